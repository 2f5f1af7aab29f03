"""Owners first: nobody borrows what a queue's own waiting jobs have a right to.

A queue that stays within its nominal quota may take back what it lent. So a job that borrowed what is wanted by its
owner would be started in this plan and asked to end in the next. Before a job borrows, the quota of those jobs is taken
off that wait in other queues of its tree, could start one day, and are within their queue's nominal.
"""

from __future__ import annotations

from collections.abc import Callable

from muster.scheduling.quota import Ledger, Need, Shortage
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, Preempts

Wants = Callable[[int], tuple[int, Need] | None]
"""The flavour and the least quota that a waiting job wants, or None if it could never start."""


class Owners:
    """Claims of one round, looked up a tree of queues at a time, when the first job there is about to borrow."""

    def __init__(self, round_: Round, wants: Wants) -> None:
        self._round, self._wants = round_, wants
        self._trees: dict[int, list[tuple[int, list[int]]]] | None = None
        self._of_queue: dict[int, tuple[int, dict[int, Need]]] = {}
        self._known: dict[int, tuple[int, dict[int, dict[int, Need]], Ledger]] = {}

    def shortage(self, queue: int, flavour: int, need: Need) -> Shortage | None:
        """What is lacking for a job when owners have had theirs; None for one that does not borrow."""
        if self._round.promised.within(queue, flavour, need):
            return None
        claims, ledger = self._claims_and_ledger(self._round.used.circle(queue))
        if not claims or (len(claims) == 1 and queue in claims):
            return None
        own = claims.get(queue, {})
        for of_flavour, mine in own.items():
            ledger.discharge(queue, of_flavour, mine)
        short = ledger.shortage(queue, flavour, need)
        for of_flavour, mine in own.items():
            ledger.charge(queue, of_flavour, mine)
        return short

    def ledger_for(self, queue: int, flavour: int, need: Need) -> Ledger:
        """The ledger of promises as a job sees it: less what owners want, if it has to borrow."""
        if self._round.promised.within(queue, flavour, need):
            return self._round.promised
        claims, ledger = self._claims_and_ledger(self._round.used.circle(queue))
        seen = ledger.copy()
        for of_flavour, mine in claims.get(queue, {}).items():
            seen.discharge(queue, of_flavour, mine)
        return seen

    def _claims_and_ledger(self, circle: int) -> tuple[dict[int, dict[int, Need]], Ledger]:
        """By queue and flavour what is claimed in a tree, and the ledger with all of it charged."""
        touched = self._round.touched.get(circle, 0)
        found = self._known.get(circle)
        if found is None or found[0] != touched:
            claims, ledger = self._look(circle), self._round.promised.copy()
            for queue, of_queue in claims.items():
                for flavour, need in of_queue.items():
                    ledger.charge(queue, flavour, need)
            found = self._known[circle] = (touched, claims, ledger)
        return found[1], found[2]

    def _look(self, circle: int) -> dict[int, dict[int, Need]]:
        """By queue and flavour, what its waiting jobs want within its nominal."""
        found: dict[int, dict[int, Need]] = {}
        for queue, rows in self._waiting().get(circle, []):
            touched = self._round.touched_queues.get(queue, 0)
            known = self._of_queue.get(queue)
            if known is None or known[0] != touched:
                sums = self._claims_of(queue, rows)
                known = (touched, {flavour: tuple(each.items()) for flavour, each in sums.items()})
                self._of_queue[queue] = known
            if known[1]:
                found[queue] = known[1]
        return found

    def _claims_of(self, queue: int, rows: list[int]) -> dict[int, dict[int, int]]:
        sums: dict[int, dict[int, int]] = {}
        served, promised = self._round.served, self._round.promised
        for row in rows:
            wants = None if row in served else self._wants(row)
            if wants is None:
                continue
            flavour, need = wants
            so_far = sums.get(flavour)
            whole = [(resource, amount + so_far.get(resource, 0)) for resource, amount in need] if so_far else need
            if promised.within(queue, flavour, whole):
                sums.setdefault(flavour, {}).update(whole)
        return sums

    def _waiting(self) -> dict[int, list[tuple[int, list[int]]]]:
        """By tree, its queues that may take back what they lent, and their waiting rows.

        Those rows are in the order of priority and submit.
        """
        if self._trees is None:
            round_ = self._round
            jobs, reclaim = round_.snapshot.jobs, round_.snapshot.queues.reclaim.tolist()
            priorities, submitted = jobs.priorities.tolist(), jobs.submitted.tolist()
            by_queue: dict[int, list[int]] = {}
            for row in sorted(round_.waiting.tolist(), key=lambda row: (-priorities[row], submitted[row])):
                by_queue.setdefault(round_.queue_of[row], []).append(row)
            self._trees = {}
            for queue, rows in by_queue.items():
                if queue != NONE and reclaim[queue] != Preempts.NEVER:
                    self._trees.setdefault(round_.used.circle(queue), []).append((queue, rows))
        return self._trees
