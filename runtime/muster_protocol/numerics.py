"""Steps that were not sound, as index 0's launcher tells them to the operator: while it runs, and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from muster_protocol.text import encodable

_MOST: Final = 2**31
TEXT_LEFT: Final = 200
"""Characters of `last` that a launcher leaves at its end, beside a traceback."""


@dataclass(frozen=True)
class Numerics:
    """Steps whose loss or gradients were not sound, since the run began, over all restarts.

    Attributes:
        skipped: whose update was left out.
        rollbacks: for which the run went back to a checkpoint, and on without their batches.
        last: the newest of them in a sentence, with its step and value.
    """

    skipped: int = 0
    rollbacks: int = 0
    last: str = ""

    @classmethod
    def read(cls, raw: Any) -> Numerics | None:
        """From a JSON object; None for anything but two counts and a text."""
        if not isinstance(raw, Mapping):
            return None
        skipped, rollbacks, last = raw.get("skipped"), raw.get("rollbacks"), raw.get("last")
        if type(skipped) is not int or type(rollbacks) is not int or not isinstance(last, str):
            return None
        return cls(skipped, rollbacks, encodable(last)) if 0 <= skipped < _MOST and 0 <= rollbacks < _MOST else None
