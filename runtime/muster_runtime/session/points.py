"""What the run's tracker is told of each step: gathered on rank 0, sent to the launcher with its reports.

A step costs two appends. Numbers that lie on a GPU are read when the losses are, so nothing waits for the device more
often than it does anyway.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from muster_runtime import report

STEPS_AT_ONCE: Final = 50
"""Of the steps between two reports, about a second, so many are told: evenly, and the last one always."""
_PENDING_AT_MOST: Final = 5_000

Step = dict[str, Any]


class Points:
    """One per session, on the rank that tells."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._steps: dict[int, tuple[float, Step]] = {}

    def note(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Metrics of `step`, counted from 1; a later word on one takes the place of the one before."""
        known = self._steps.get(step)
        if known is None:
            if len(self._steps) >= _PENDING_AT_MOST:
                return
            known = self._steps[step] = (time.time(), {})
        for name, value in metrics.items():
            known[1][name] = value.detach().clone() if isinstance(value, torch.Tensor) else value

    def take(self, read_to: int) -> Iterator[report.Points]:
        """What is known of the steps up to `read_to`, in messages that fit."""
        ready = sorted(step for step in self._steps if step <= read_to)
        stride = -(-len(ready) // STEPS_AT_ONCE) or 1
        kept = set(ready[::-1][::stride])
        part: list[tuple[int, float, dict[str, str]]] = []
        size = 0
        for step in ready:
            at, metrics = self._steps.pop(step)
            if step not in kept:
                continue
            piece: dict[str, str] = {}
            size += 40
            for name, value in metrics.items():
                if not (told := _decimal(value)):
                    continue
                known = name[: report.NAME_LIMIT]
                taken = len(json.dumps(known)) + 40
                if size + taken > report.PART_BYTES:
                    yield report.Points(self._rank, [*part, (step, at, piece)] if piece else part)
                    part, piece, size = [], {}, 40
                piece[known] = told
                size += taken
            if piece:
                part.append((step, at, piece))
        if part:
            yield report.Points(self._rank, part)

    def settle(self, to: int) -> None:
        """Reads what the steps up to `to` have on a device, now that the device has been waited for."""
        for step, (_, metrics) in self._steps.items():
            if step <= to:
                metrics.update({name: _decimal(one) for name, one in metrics.items() if isinstance(one, torch.Tensor)})

    def go_back(self, step: int) -> None:
        """The run goes on after `step`; what came later was not."""
        self._steps = {number: told for number, told in self._steps.items() if number <= step}


def _decimal(value: Any) -> str:
    """ "" for what is no number after all, such as a tensor of several."""
    try:
        return repr(float(value))
    except (ValueError, TypeError, RuntimeError):
        return ""
