"""Label selectors as kubectl takes them: `team=vision,tier!=test,zone in (a,b),gpu notin (k80),trial,!old`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MOST: Final = 32
"""Requirements of one selector: each is asked of every job."""
_KEY: Final = r"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE: Final = r"[-A-Za-z0-9_.]*"
_EQUAL: Final = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET: Final = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_PRESENT: Final = re.compile(rf"(!?)\s*({_KEY})")
_COMMA: Final = re.compile(r",(?![^()]*\))")


@dataclass(frozen=True)
class Requirement:
    """The label's value is among `values` (or, negated, is not; also a label that is not there), or with None it is
    there (or not)."""

    key: str
    values: frozenset[str] | None
    negated: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        found = labels.get(self.key)
        return (found is not None if self.values is None else found in self.values) != self.negated


def parse(text: str) -> tuple[Requirement, ...]:
    """All of them must match. Raises ValueError for what kubectl would not take either, and for more than MOST."""
    parts = _COMMA.split(text) if text.strip() else []
    if len(parts) > MOST:
        raise ValueError(f"it has {len(parts)} requirements, and at most {MOST} are taken")
    return tuple(_requirement(part.strip()) for part in parts)


def _requirement(part: str) -> Requirement:
    if found := _EQUAL.fullmatch(part):
        return Requirement(found[1], frozenset({found[3]}), found[2] == "!=")
    if found := _SET.fullmatch(part):
        values = frozenset(value.strip() for value in found[3].split(","))
        if all(re.fullmatch(_VALUE, value) for value in values):
            return Requirement(found[1], values, found[2] == "notin")
    if found := _PRESENT.fullmatch(part):
        return Requirement(found[2], None, found[1] == "!")
    raise ValueError(
        f"{part!r} is no label selector; write it as team=vision, team!=vision, team in (a,b), team or !team"
    )
