"""Pages of jobs: filtered, sorted, and continued from a cursor. Pure.

A cursor says behind which row the next page begins, so a page is right whatever came or went before it, on whichever
replica it is asked for.
"""

from __future__ import annotations

import base64
import hashlib
import json
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from muster.server.rows import JobRow
from muster.server.selectors import Requirement

SortKey = tuple[Any, ...]
"""What is sorted by, then namespace and name, so that no two rows have the same."""

SORTS: Final[Mapping[str, Callable[[JobRow], SortKey]]] = {
    "name": lambda row: (row.namespace, row.name),
    "created": lambda row: (row.created, row.namespace, row.name),
    "queue": lambda row: (row.queue, row.position or 2**31, row.namespace, row.name),
    "phase": lambda row: (row.phase, row.namespace, row.name),
    "gpus": lambda row: (row.gpus, row.namespace, row.name),
}
REMEMBERED: Final = 64
"""Filtered and sorted lists of the last snapshot."""
RESORT: Final = 8
"""Where more than one row of so many is new, all are sorted anew: that is quicker then."""
FORGED: Final = "no cursor of this API: take `next` of the page before as it is"


class BadCursor(ValueError):
    """Not one of ours, or of another question."""


@dataclass(frozen=True)
class Filter:
    """Which jobs; an empty field lets all through.

    Attributes:
        namespaces: None: all.
        queues: None: all.
        sort: a key of SORTS, with `-` before it for the reverse.
    """

    namespaces: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    phases: frozenset[str] = frozenset()
    labels: tuple[Requirement, ...] = ()
    sort: str = "name"

    def of(self, rows: Sequence[JobRow]) -> Sequence[JobRow]:
        """Those of `rows` that it lets through, in their order."""
        if (namespaces := self.namespaces) is not None:
            rows = [row for row in rows if row.namespace in namespaces]
        if (queues := self.queues) is not None:
            rows = [row for row in rows if row.queue in queues]
        if phases := self.phases:
            rows = [row for row in rows if row.phase in phases]
        if labels := self.labels:
            rows = [row for row in rows if all(one.matches(row.labels) for one in labels)]
        return rows

    @property
    def order(self) -> str:
        """A key of SORTS."""
        return self.sort.lstrip("-")


@dataclass(frozen=True)
class Page:
    """`following` is the cursor of the next page, or "" for the last one; `total` counts the rows of all pages."""

    rows: Sequence[JobRow]
    following: str
    total: int


@dataclass
class Lists:
    """Sorted and filtered lists of the newest snapshot; the same question soon comes again, for its next page.

    What is sorted stays sorted: of the next snapshot only the rows that are new are put in their places.
    """

    _of: tuple[JobRow, ...] = ()
    _rows: set[JobRow] = field(default_factory=set)
    _sorted: dict[str, list[JobRow]] = field(default_factory=dict)
    _filtered: OrderedDict[Filter, Sequence[JobRow]] = field(default_factory=OrderedDict)
    _namespaces: frozenset[str] = frozenset()

    def namespaces(self, jobs: tuple[JobRow, ...]) -> frozenset[str]:
        """Those that have jobs."""
        self._see(jobs)
        return self._namespaces

    def rows(self, jobs: tuple[JobRow, ...], wanted: Filter) -> Sequence[JobRow]:
        """Ascending, whatever the direction."""
        self._see(jobs)
        found = self._filtered.get(wanted)
        if found is None:
            found = self._filtered[wanted] = wanted.of(self._in_order(wanted.order))
            if len(self._filtered) > REMEMBERED:
                self._filtered.popitem(last=False)
        return found

    def _see(self, jobs: tuple[JobRow, ...]) -> None:
        if jobs is self._of:
            return
        rows = set(jobs)
        gone, new = self._rows - rows, rows - self._rows
        if len(new) * RESORT > len(rows):
            self._sorted = {}
        for order, before in self._sorted.items():
            self._sorted[order] = after = [row for row in before if row not in gone]
            for row in new:
                insort(after, row, key=SORTS[order])
        self._of, self._rows, self._filtered = jobs, rows, OrderedDict()
        self._namespaces = frozenset(row.namespace for row in jobs)

    def _in_order(self, order: str) -> list[JobRow]:
        if order not in self._sorted:
            self._sorted[order] = sorted(self._of, key=SORTS[order])
        return self._sorted[order]


def page(rows: Sequence[JobRow], wanted: Filter, cursor: str, limit: int, question: str) -> Page:
    """One page of `rows`, which are ascending. `question` stands for what was asked: a cursor of another one raises
    BadCursor."""
    key, backwards = SORTS[wanted.order], wanted.sort.startswith("-")
    at = len(rows) if backwards else 0
    if cursor:
        try:
            at = (bisect_left if backwards else bisect_right)(rows, behind(cursor, question), key=key)
        except TypeError as error:
            raise BadCursor(FORGED) from error
    if backwards:
        found, more = rows[max(0, at - limit) : at][::-1], at > limit
    else:
        found, more = rows[at : at + limit], at + limit < len(rows)
    return Page(found, cursor_of(key(found[-1]), question) if more else "", len(rows))


def question_of(**asked: object) -> str:
    """A short word for a question, the same for the same."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:12]


def cursor_of(last: SortKey, question: str) -> str:
    """Where the page behind `last` begins, for the same question only."""
    return base64.urlsafe_b64encode(json.dumps([question, *last]).encode()).decode().rstrip("=")


def behind(cursor: str, question: str) -> SortKey:
    """The reverse of `cursor_of`. Raises BadCursor."""
    try:
        asked, *last = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadCursor(FORGED) from error
    if asked != question:
        raise BadCursor("the cursor belongs to other filters or another order: keep them from page to page")
    return tuple(last)
