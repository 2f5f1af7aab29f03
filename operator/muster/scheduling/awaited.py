"""Quota that some queues wait for, and whether they would lose any of it to a job that moves.

Asked for each of thousands of jobs that could move, while hundreds of queues wait in their tree. So the waiting queues
are not asked one by one: they are looked through once, for how much of what each queue above them has left they could
take. A job's quota is drawn on one way up the tree, and it costs them something where it leaves a queue on that way
with less than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from muster.scheduling.quota import Ledger, Need
from muster.scheduling.snapshot import UNLIMITED

_ALL = int(UNLIMITED)


class Awaited:
    """Of one ledger, which may be charged meanwhile: say so by `changed`."""

    def __init__(self, ledger: Ledger, waiting: Mapping[tuple[int, int], Set[int]]) -> None:
        """`waiting`: the queues that wait, by their tree (`Ledger.circle`) and flavour."""
        self._ledger, self._waiting = ledger, waiting
        self._wanted: dict[int, dict[tuple[int, int], dict[int, int]]] = {}

    def changed(self, queue: int) -> None:
        """Something was charged, or discharged, in the queue's tree."""
        self._wanted.pop(self._ledger.circle(queue), None)

    def would_lose(self, queue: int, flavour: int, need: Need) -> bool:
        """Whether `need` of one queue leaves any of those that wait less than it may use now, held back or not. Where
        it does not, what its own jobs give back is enough for it then as well."""
        ledger, circle = self._ledger, self._ledger.circle(queue)
        waiting = self._waiting.get((circle, flavour))
        if not waiting:
            return False
        limited, way = ledger.limited(queue, flavour), ledger.way_up(queue)
        for ask in need:
            resource = ask[0]
            if resource not in limited:
                continue
            known = self._wanted.setdefault(circle, {})
            wanted = known.get((flavour, resource))
            if wanted is None:
                wanted = known[flavour, resource] = _wanted(ledger, waiting, flavour, resource)
            before = _left(ledger, way, flavour, resource)
            ledger.charge(queue, flavour, (ask,))
            after = _left(ledger, way, flavour, resource)
            ledger.discharge(queue, flavour, (ask,))
            if any(after[row] < min(before[row], wanted.get(row, 0)) for row in way):
                return True
        return False


def _left(ledger: Ledger, way: list[int], flavour: int, resource: int) -> dict[int, int]:
    """What each queue on a way up may still use: the rest of its own, and what its limit lets it have of the next."""
    found, above = dict[int, int](), _ALL
    for row in reversed(way):
        own, beyond = ledger.margins(row, flavour, resource)
        found[row] = above = own + min(beyond, above)
    return found


def _wanted(ledger: Ledger, waiting: Set[int], flavour: int, resource: int) -> dict[int, int]:
    """By queue that waits, or has such a one below it: how much those could take of what it may use. To take more, they
    would have to pass a limit below it; to take any, they need more than is their own."""
    found = dict[int, int]()
    for queue in waiting:
        if resource not in ledger.limited(queue, flavour):
            continue
        wanted = _ALL
        for row in ledger.way_up(queue):
            if wanted <= found.get(row, 0):
                break
            found[row] = wanted
            own, beyond = ledger.margins(row, flavour, resource)
            wanted = min(wanted - own, beyond)
    return found
