"""Owners first: nobody borrows what a queue's own waiting jobs have a right to.

A queue that stays within its nominal quota may take back what it lent. So a job that borrowed what is wanted by its
owner would be started in this plan and asked to end in the next. Before a job borrows, the quota of those jobs is taken
off that wait in other queues of its tree, could start one day, and are within their queue's nominal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from muster.scheduling.quota import Ledger, Need, Shortage
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, Index, Int, Preempts

Wants = Callable[[int], tuple[int, Need] | None]
"""The flavour and the least quota that a waiting job wants, of what is limited; None if it could never start."""


class Owners:
    """Claims of one round, looked up a tree of queues at a time, when the first job there is about to borrow.

    Kept beside the ledger of promises is one that has all claims charged as well: it follows the round step by step.
    """

    def __init__(self, round_: Round, wants: Wants) -> None:
        self._round, self._wants = round_, wants
        self._queues: dict[int, list[int]] | None = None
        self._wanted: dict[int, list[tuple[int, int, Need]]] = {}
        self._claims: dict[int, dict[int, dict[int, Need]]] = {}
        self._ledger: Ledger | None = None
        self._seen = 0

    def shortage(self, queue: int, flavour: int, need: Need, *, passing: bool = False) -> Shortage | None:
        """What is lacking for a job when owners have had theirs; None for one that does not borrow.

        Args:
            passing: it may take what is held back for others of its queue.
        """
        if self._round.promised.within(queue, flavour, need):
            return None
        claims, ledger = self._claims_and_ledger(self._round.used.circle(queue))
        if not claims or (len(claims) == 1 and queue in claims):
            return None
        own = claims.get(queue, {})
        for of_flavour, mine in own.items():
            ledger.discharge(queue, of_flavour, mine)
        short = (ledger.shortage_in_passing if passing else ledger.shortage)(queue, flavour, need)
        for of_flavour, mine in own.items():
            ledger.charge(queue, of_flavour, mine)
        return short

    def ledger_for(self, queue: int, flavour: int, need: Need) -> Ledger:
        """The ledger of promises as a job sees it: less what owners want, if it has to borrow."""
        if self._round.promised.within(queue, flavour, need):
            return self._round.promised
        circle = self._round.used.circle(queue)
        claims, ledger = self._claims_and_ledger(circle)
        seen = ledger.copy()
        for other, of_queue in self._elsewhere(circle):
            _charge(seen, other, of_queue, -1)
        _charge(seen, queue, claims.get(queue, {}), -1)
        return seen

    def _elsewhere(self, circle: int) -> list[tuple[int, dict[int, Need]]]:
        """What is charged in other trees: what is claimed there is no matter of a job's."""
        return [each for other, claims in self._claims.items() if other != circle for each in claims.items()]

    def _claims_and_ledger(self, circle: int) -> tuple[dict[int, dict[int, Need]], Ledger]:
        """By queue and flavour what is claimed in a tree, and the ledger with all of it charged."""
        ledger = self._caught_up()
        claims = self._claims.get(circle)
        if claims is None:
            claims = self._claims[circle] = {}
            for queue in self._reclaiming().get(circle, []):
                self._renew(queue, claims, ledger)
        return claims, ledger

    def _caught_up(self) -> Ledger:
        """The ledger with all claims, after everything that the round has charged since it was asked for last."""
        journal = self._round.journal
        if self._ledger is None:
            self._ledger, self._seen = self._round.promised.copy(), len(journal)
        ledger, changed = self._ledger, dict[int, None]()
        for queue, flavour, need, sign in journal[self._seen :]:
            if sign:
                ledger.add(queue, flavour, need, sign)
            else:
                ledger.hold_back(queue, flavour)
            changed[queue] = None
        self._seen = len(journal)
        for queue in changed:
            claims = self._claims.get(self._round.used.circle(queue))
            if claims is not None and queue in self._wanted:
                self._renew(queue, claims, ledger)
        return ledger

    def _renew(self, queue: int, claims: dict[int, dict[int, Need]], ledger: Ledger) -> None:
        """Look again at what the waiting jobs of a queue want within its nominal."""
        _charge(ledger, queue, claims.pop(queue, {}), -1)
        sums: dict[int, dict[int, int]] = {}
        own: dict[int, list[int]] = {}
        served, promised = self._round.served, self._round.promised
        for row, flavour, need in self._wanted_in(queue):
            if row in served:
                continue
            left = own.get(flavour)
            if left is None:
                left = own[flavour] = promised.left_within(queue, flavour)
            for resource, amount in need:
                if amount > left[resource]:
                    break
            else:
                so_far = sums.setdefault(flavour, {})
                for resource, amount in need:
                    left[resource] -= amount
                    so_far[resource] = so_far.get(resource, 0) + amount
        if sums:
            claims[queue] = {flavour: tuple(each.items()) for flavour, each in sums.items()}
            _charge(ledger, queue, claims[queue], 1)

    def _wanted_in(self, queue: int) -> list[tuple[int, int, Need]]:
        """(row, flavour, need) of each waiting job of a queue that could start one day, by priority and submit."""
        found = self._wanted.get(queue)
        if found is None:
            rows, queues = self._ranked
            first, last = np.searchsorted(queues, (queue, queue + 1)).tolist()
            wants = ((row, self._wants(row)) for row in rows[first:last].tolist())
            found = self._wanted[queue] = [(row, *each) for row, each in wants if each is not None]
        return found

    @cached_property
    def _ranked(self) -> tuple[Int, Index]:
        """(waiting rows by queue, priority and submit; the queue of each)."""
        jobs, rows = self._round.snapshot.jobs, self._round.waiting
        keys = (jobs.submitted[rows], -jobs.priorities[rows].astype(np.int64), jobs.queues[rows])
        rows = rows[np.lexsort(keys)]
        return rows, jobs.queues[rows]

    def _reclaiming(self) -> dict[int, list[int]]:
        """By tree, its queues in which jobs wait and that may take back what they lent."""
        if self._queues is None:
            round_, self._queues = self._round, {}
            reclaim = round_.snapshot.queues.reclaim
            for queue in np.unique(round_.snapshot.jobs.queues[round_.waiting]).tolist():
                if queue != NONE and reclaim[queue] != Preempts.NEVER:
                    self._queues.setdefault(round_.used.circle(queue), []).append(queue)
        return self._queues


def _charge(ledger: Ledger, queue: int, claims: dict[int, Need], sign: int) -> None:
    for flavour, need in claims.items():
        ledger.add(queue, flavour, need, sign)
