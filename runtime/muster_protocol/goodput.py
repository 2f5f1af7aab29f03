"""Where the time of a run went, as index 0's launcher tells it to the operator: each second belongs to one part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

PLAIN_AFTER_SECONDS: Final = 600
"""Ranks that have begun no session by then never will, and train in their own way. Until then nobody knows what their
time is."""
UNDERUSED_BELOW: Final = 0.3
"""Part of the time that NVML must see a GPU at work, or its training is called underused. A run bound by its GPUs
has 0.9 and more."""


@dataclass(frozen=True)
class Spent:
    """Seconds of this launcher's life by part, never less than before. docs/goodput.md says what counts as what.

    Attributes:
        pending: seconds whose part isn't known yet: those since the last step, which may turn out to be a hang. With
            them the sum is the launcher's age.
        underused: of the seconds of training, those in which this pod's GPUs were busy for less than `UNDERUSED_BELOW`.
    """

    training: float = 0.0
    data_wait: float = 0.0
    checkpoint: float = 0.0
    starting: float = 0.0
    restoring: float = 0.0
    recomputing: float = 0.0
    hung: float = 0.0
    pending: float = 0.0
    underused: float = 0.0

    @property
    def age(self) -> float:
        return math.fsum(seconds for part, seconds in asdict(self).items() if part != "underused")

    @classmethod
    def read(cls, raw: Any) -> Spent | None:
        """From a JSON object; None for anything but non-negative numbers of seconds, which a century has room for."""
        if not isinstance(raw, Mapping):
            return None
        values = {one.name: raw[one.name] for one in fields(cls) if one.name in raw}
        if all(type(value) in (int, float) and 0 <= value < _CENTURY for value in values.values()):
            return cls(**values)
        return None


_CENTURY: Final = 100 * 365.25 * 86400
