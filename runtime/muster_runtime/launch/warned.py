"""What ranks have warned of: the newest few, for the job's status. Pure but for its clock."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from muster_protocol.launcher_status import WARNINGS_KEPT

_CHARACTERS: Final = 500
_ALIKE: Final = 3
_ALIKE_SECONDS: Final = 3600.0
_WITH_NUMBERS: Final = re.compile(r"\S*\d\S*")


@dataclass
class Warned:
    """Each text once. Of those that are alike but for words with a digit, three an hour: a store that is too slow for
    the interval is told of at each save, and must not push out that a checkpoint was damaged."""

    clock: Callable[[], float] = time.monotonic
    _kept: dict[str, float] = field(default_factory=dict)

    def take(self, text: str) -> None:
        text, now = text[:_CHARACTERS], self.clock()
        if text in self._kept:
            return
        kind = _WITH_NUMBERS.sub("", text)
        recent = (known for known, at in self._kept.items() if now - at < _ALIKE_SECONDS)
        if sum(_WITH_NUMBERS.sub("", known) == kind for known in recent) >= _ALIKE:
            return
        self._kept[text] = now
        if len(self._kept) > WARNINGS_KEPT:
            del self._kept[next(iter(self._kept))]

    def __iter__(self) -> Iterator[str]:
        """The oldest first."""
        return iter(self._kept)
