"""The journal of a run: what its ranks wrote about each step, in memory. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Line:
    """A rank has done a step.

    Attributes:
        at: when, in seconds of the machine's monotonic clock.
        wall: the same by the pod's clock of the day, in seconds since the epoch.
        step: from 0.
        rank, world: of how many ranks which.
        born: when this process of the rank began; tells one life of a rank from the next.
        loss: bits of this rank's part of the loss, as `float.hex` has them.
        samples: numbers of the samples that this rank went through, in order.
    """

    at: float
    step: int
    rank: int
    world: int
    pod: str
    born: float
    loss: str
    samples: tuple[int, ...]
    wall: float = 0.0


def parse(texts: Iterable[str]) -> tuple[Line, ...]:
    """The lines of all ranks' files, in order of time. What is still being written is left out."""
    lines = []
    for text in texts:
        for row in text.split("\n")[:-1]:
            raw = json.loads(row)
            lines.append(Line(**{**raw, "samples": tuple(raw["samples"])}))
    return tuple(sorted(lines))


def highest(lines: Iterable[Line]) -> int:
    """The last step that any rank has done; -1 before the first."""
    return max((line.step for line in lines), default=-1)


def losses(lines: Iterable[Line]) -> dict[tuple[int, int, int], set[str]]:
    """(world size, rank, step) -> the bits of the loss each time that it was trained."""
    found: dict[tuple[int, int, int], set[str]] = {}
    for line in lines:
        found.setdefault((line.world, line.rank, line.step), set()).add(line.loss)
    return found


def samples(lines: Iterable[Line]) -> dict[int, tuple[int, ...]]:
    """Step -> the samples of its global batch, sorted, as it was trained last. `lines` are in order of time."""
    shares: dict[int, dict[int, Line]] = {}
    for line in lines:
        shares.setdefault(line.step, {})[line.rank] = line
    found = {}
    for step, parts in shares.items():
        world = max(parts.values()).world  # that of the newest line: ranks of a larger gang of before don't count
        newest = [line for line in parts.values() if line.world == world]
        found[step] = tuple(sorted(number for line in newest for number in line.samples))
    return found
