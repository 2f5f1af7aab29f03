"""Rows in a file: JSON lines that say by `kind` what they are. What an export writes, and a report reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from muster.telemetry.cost.intervals import AttemptParts, Interval, JobFacts, PoolInterval, Stored
from muster.telemetry.cost.ledger import USEFUL, WASTE

Entry = Interval | JobFacts | PoolInterval | AttemptParts | Stored

_KINDS: Final[dict[str, type[Any]]] = {
    "interval": Interval,
    "job": JobFacts,
    "pool": PoolInterval,
    "parts": AttemptParts,
    "stored": Stored,
}
_ADAPTERS: Final = {kind: TypeAdapter(row) for kind, row in _KINDS.items()}
_PARTS: Final = (USEFUL, *WASTE)
_CAPACITIES: Final = ("on-demand", "reserved", "spot")
_FIRST: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST: Final = datetime(9999, 1, 1, tzinfo=timezone.utc)
"""Between these every month has a name of four digits, and one after it."""


class UnreadableRow(ValueError):
    """A line that is no row: says which, why, and how to mend it."""


@dataclass
class Rows:
    """What was read, by kind, in the order of the file."""

    intervals: list[Interval] = field(default_factory=list)
    jobs: list[JobFacts] = field(default_factory=list)
    pools: list[PoolInterval] = field(default_factory=list)
    parts: list[AttemptParts] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)

    def periods(self) -> list[tuple[datetime, datetime | None]]:
        """From when to when each row tells of something that is charged; None where it goes on."""
        rows: list[Interval | PoolInterval | Stored] = [*self.intervals, *self.pools, *self.stored]
        return [(row.begins, row.ends) for row in rows]

    def add(self, row: Entry) -> None:
        if isinstance(row, Interval):
            self.intervals.append(row)
        elif isinstance(row, JobFacts):
            self.jobs.append(row)
        elif isinstance(row, PoolInterval):
            self.pools.append(row)
        elif isinstance(row, AttemptParts):
            self.parts.append(row)
        else:
            self.stored.append(row)


def read(lines: Iterable[str], name: str, *, kind: str = "interval", into: Rows | None = None) -> Rows:
    """The rows of JSON lines; `kind` is that of lines without one, `name` stands in errors. Raises UnreadableRow."""
    rows = Rows() if into is None else into
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.add(_row(line, kind))
            except UnreadableRow as error:
                raise UnreadableRow(f"{name}:{number}: {error}") from None
    return rows


def written(rows: Iterable[Entry]) -> Iterator[str]:
    """A line for each row, that `read` takes."""
    kinds = {row: kind for kind, row in _KINDS.items()}
    for row in rows:
        yield json.dumps({"kind": kinds[type(row)]} | asdict(row), default=_text)


def _row(line: str, kind: str) -> Entry:
    try:
        raw = json.loads(line)
        if "\\u" in line:
            json.dumps(raw, ensure_ascii=False).encode()  # JSON can spell half a character, which nothing can print
    except (ValueError, RecursionError) as error:
        raise UnreadableRow(f"is no JSON: {error}; write one object a line") from None
    if not isinstance(raw, dict):
        raise UnreadableRow('is no object; write one like {"kind": "interval", ...}')
    kind = raw.pop("kind", kind)
    adapter = _ADAPTERS.get(kind) if isinstance(kind, str) else None
    if adapter is None:
        raise UnreadableRow(f"there is no kind {kind!r}; there are {', '.join(_KINDS)}")
    unknown = set(raw) - set(_KINDS[kind].__dataclass_fields__)
    if unknown:
        named = ", ".join(repr(name) for name in sorted(unknown))
        raise UnreadableRow(
            f"rows of kind {kind!r} have no field {named}; they have {', '.join(_KINDS[kind].__dataclass_fields__)}"
        )
    try:
        row: Entry = adapter.validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadableRow(f"{kind}.{where}: {first['msg']}") from None
    wrong = _wrong(row)
    if wrong:
        raise UnreadableRow(f"{kind}.{wrong}")
    return row


def _wrong(row: Entry) -> str:
    """What no type can say; "" for nothing."""
    if isinstance(row, AttemptParts):
        for part, number in row.seconds.items():
            if part not in _PARTS:
                return f"seconds: there is no part {part!r}; there are {', '.join(_PARTS)}"
            if number < 0:
                return f"seconds.{part}: is negative; leave the part out"
        return ""
    if isinstance(row, JobFacts):
        return ""
    if row.begins.tzinfo is None or (row.ends is not None and row.ends.tzinfo is None):
        return "begins, ends: have no time zone; write them like 2026-11-01T12:00:00Z"
    if row.begins < _FIRST or (row.ends or row.begins) >= _LAST:
        return f"begins, ends: lie before {_FIRST:%Y} or after {_LAST.year - 1}; write them like 2026-11-01T12:00:00Z"
    if row.ends is not None and row.ends < row.begins:
        return f"ends: {row.ends.isoformat()} is before it begins, {row.begins.isoformat()}"
    if isinstance(row, Stored):
        return "size: is negative; write bytes" if row.size < 0 else ""
    if row.capacity not in _CAPACITIES:
        return f"capacity: {row.capacity!r} is none; write one of {', '.join(_CAPACITIES)}"
    return "gpus: is negative; write how many there were" if row.gpus < 0 else ""


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    raise TypeError(type(value).__name__)
