"""Quota that a job may take now which gives it back on demand, looked up once for each state of a tree of queues.

Of ten thousand jobs that wait most lack quota, and few of those before them have changed what there is.
"""

from __future__ import annotations

from muster.scheduling.owners import Owners
from muster.scheduling.quota import Ledger, Need
from muster.scheduling.rounds import Round

Key = tuple[int, int, bool]
"""(queue, flavour, whether what is held back for others of the queue counts)."""


class OpenQuota:
    """For jobs that must not borrow see `Round.shortage`."""

    def __init__(self, round_: Round, owners: Owners) -> None:
        self._round, self._owners = round_, owners
        self._known: dict[Key, tuple[int, _Open]] = {}

    def has(self, queue: int, flavour: int, need: Need, *, passing: bool = False) -> bool:
        """Whether there is quota for a job's `need` when those have had theirs who would take back what it borrows.

        Args:
            need: what of it quota limits.
            passing: it may take what is held back for others of its queue.
        """
        round_, key = self._round, (queue, flavour, passing)
        state = round_.touched.get(round_.used.circle(queue), 0)
        known = self._known.get(key)
        if known is None or known[0] != state:
            known = self._known[key] = (state, _Open(round_, self._owners, key))
        return known[1].has(need)


class _Open:
    """Of one queue and flavour, while nothing is charged in its tree."""

    __slots__ = ("_borrowed", "_key", "_left", "_owners", "_within")

    def __init__(self, round_: Round, owners: Owners, key: Key) -> None:
        queue, flavour, passing = key
        promised: Ledger = round_.promised
        self._left = promised.left(queue, flavour, passing=passing)
        if promised.lowered:  # else what is used is promised, and more
            self._left = list(map(min, self._left, round_.used.left(queue, flavour)))
        self._within = promised.left_within(queue, flavour) if round_.policy.preemption else self._left
        self._owners, self._key = owners, key
        self._borrowed: list[int] | None = None

    def has(self, need: Need) -> bool:
        borrows, left, within = False, self._left, self._within
        for resource, amount in need:
            if amount > left[resource]:
                return False
            if amount > within[resource]:
                borrows = True
        if not borrows:
            return True
        if self._borrowed is None:
            queue, flavour, passing = self._key
            self._borrowed = self._owners.left(queue, flavour, passing=passing) or left
        borrowed = self._borrowed
        return all(amount <= borrowed[resource] for resource, amount in need)
