"""Owners first: nobody borrows what a queue's own waiting jobs have a right to.

A queue that stays within its nominal quota may take back what it lent. So a job that borrowed what is wanted by its
owner would be started in this plan and asked to end in the next. Two things prevent that:

* of quota: before a job borrows, the quota of those jobs is taken off that wait in other queues of its tree, could
  start one day, and are within their queue's nominal;
* of nodes: when it is the turn of a job that would borrow, those have theirs first who would take it back from any
  priority: of each other queue of its tree the first in line of the same flavour, and who is behind it, as long as they
  are within nominal. A line is not passed: it ends at the first that finds no room, that would have to borrow itself,
  or that has waited for as long as age counts and lacks quota. They count in the order of shares at their own place.
  Where one finds no room, those of other lines do not pass it either: see `muster.scheduling.deciding`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from muster.scheduling.quota import Ledger, Need
from muster.scheduling.ranks import AGE_STEPS, ages, ranked
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, Int, Mask, Preempts

Wants = Callable[[int], tuple[int, int, Need] | None]
"""(row, flavour, need): the least quota that a waiting job wants, of what is limited; None if it could never start."""


class Owners:
    """Claims of one round, looked up a tree of queues at a time, when the first job there is about to borrow.

    Kept beside the ledger of promises is one that has all claims charged as well: it follows the round step by step.
    """

    def __init__(self, round_: Round, wants: Wants) -> None:
        self._round, self._wants = round_, wants
        self._queues: dict[int, list[int]] | None = None
        self._claimable: dict[int, list[tuple[int, int, Need]]] = {}
        self._given_back: set[int] = set()
        self._claims: dict[int, dict[int, dict[int, Need]]] = {}
        self._ledger: Ledger | None = None
        self._seen = 0
        self._lines: dict[tuple[int, int], list[tuple[int, Need]]] = {}
        self._at: dict[tuple[int, int], int] = {}
        self._open: dict[tuple[int, int], list[int]] = {}
        self._ended: dict[int, tuple[tuple[int, int], int]] = {}  # by the row that ended a line: it, and where

    def may_come(self, queue: int, flavour: int) -> bool:
        """Whether somebody in another queue of its tree may still have a turn; quick, so that it can be asked first."""
        lines = self._open.get((self._round.used.circle(queue), flavour))
        return lines is None or lines not in ([], [queue])

    def before(self, queue: int, flavour: int) -> int | None:
        """The next owner whose turn is before a job of the queue borrows of the flavour; None: all have had theirs."""
        circle = self._round.used.circle(queue)
        first, left = None, []
        lines = self._open.get((circle, flavour))
        for other in self._takers(circle) if lines is None else lines:
            row = self._first_in_line(other, flavour) if other != queue else None
            if row is not None and (first is None or self._places[row] < self._places[first]):
                first = row
            if other == queue or not self._at_end((other, flavour)):
                left.append(other)
        self._open[circle, flavour] = left
        return first

    def _takers(self, circle: int) -> list[int]:
        """Of the queues of a tree that may take back what they lent, those that take it from any priority."""
        reclaim, from_any = self._round.snapshot.queues.reclaim, int(Preempts.ANY)
        return [queue for queue in self._reclaiming().get(circle, ()) if reclaim[queue] == from_any]

    def _at_end(self, line: tuple[int, int]) -> bool:
        """Whether nobody in it can have a turn any more."""
        return self._at.get(line, 0) >= len(self._line(line))

    def turned_down(self, row: int, flavour: int, *, room: bool) -> None:
        """An owner that had its turn before a borrower waits on: for room, or else for quota."""
        line = (self._round.queue_of[row], flavour)
        if room or self._old[row]:
            self._ended[row] = line, self._at[line]
            self._at[line] = len(self._line(line))
        else:
            self._at[line] += 1

    def became_head(self, row: int) -> None:
        """Its room is kept, and its quota is charged: a line that ended at it goes on, as if it had been a head before
        any borrower had its turn."""
        if row in self._ended:
            line, at = self._ended.pop(row)
            self._at[line] = at
            self._open.pop((self._round.used.circle(line[0]), line[1]), None)

    def look_again(self) -> None:
        """Quota came back: who was turned down may have it now."""
        self._at.clear()
        self._open.clear()
        self._ended.clear()

    def _first_in_line(self, queue: int, flavour: int) -> int | None:
        """Of the jobs of a queue that want the flavour, the first, if it is an owner."""
        line, (used, promised) = (queue, flavour), (self._round.used, self._round.promised)
        rows = self._line(line)
        at = self._at.get(line, 0)
        while at < len(rows):
            row, need = rows[at]
            if row not in self._round.served:
                if need and promised.within(queue, flavour, need):
                    break
                if self._old[row] or used.shortage(queue, flavour, need) is None:
                    return None
            at += 1
        self._at[line] = at
        return rows[at][0] if at < len(rows) else None

    def _line(self, line: tuple[int, int]) -> list[tuple[int, Need]]:
        found = self._lines.get(line)
        if found is None:
            queue, flavour = line
            wanted = self._wanted(self._ranked[self._part(queue)])
            found = self._lines[line] = [(row, need) for row, of, need in wanted if of == flavour]
        return found

    def allow(self, queue: int, flavour: int, need: Need, *, passing: bool = False) -> bool:
        """Whether a job for which there is quota still has it when owners have had theirs, or does not borrow.

        Args:
            passing: it may take what is held back for others of its queue.
        """
        if self._round.promised.within(queue, flavour, need):
            return True
        left = self.left(queue, flavour, passing=passing)
        return left is None or all(amount <= left[resource] for resource, amount in need)

    def left(self, queue: int, flavour: int, *, passing: bool) -> list[int] | None:
        """R, what a queue may use, borrowed or not, when owners have had theirs; None where they want nothing, so that
        it is as much as there is."""
        claims, ledger = self._claims_and_ledger(self._round.used.circle(queue))
        own = claims.get(queue, {})
        if len(claims) == bool(own):
            return None
        _charge(ledger, queue, own, -1)
        left = ledger.left(queue, flavour, passing=passing)
        _charge(ledger, queue, own, 1)
        return left

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
        if self._seen == len(journal):
            return self._ledger
        ledger, changed = self._ledger, dict[int, None]()
        for queue, flavour, need, sign in journal[self._seen :]:
            if sign:
                ledger.add(queue, flavour, need, sign)
            else:
                ledger.hold_back(queue, flavour)
            if sign < 0:
                self._look_at_all(queue)
            changed[queue] = None
        self._seen = len(journal)
        for queue in changed:
            claims = self._claims.get(self._round.used.circle(queue))
            if claims is not None and queue in self._claimable:
                self._renew(queue, claims, ledger)
        return ledger

    def _renew(self, queue: int, claims: dict[int, dict[int, Need]], ledger: Ledger) -> None:
        """Look again at what the waiting jobs of a queue want within its nominal."""
        _charge(ledger, queue, claims.pop(queue, {}), -1)
        sums: dict[int, dict[int, int]] = {}
        own: dict[int, list[int]] = {}
        served, promised = self._round.served, self._round.promised
        for row, flavour, need in self._claimable_in(queue):
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

    def _claimable_in(self, queue: int) -> list[tuple[int, int, Need]]:
        """(row, flavour, need) of each waiting job of a queue that its nominal has ever had room for in this plan, in
        the queue's order: room for more comes only with what is given back."""
        found = self._claimable.get(queue)
        if found is None:
            part = self._part(queue)
            rows = self._ranked[part]
            if queue not in self._given_back:
                rows = rows[self._within_nominal[part]]
            found = self._claimable[queue] = self._wanted(rows)
        return found

    def _look_at_all(self, queue: int) -> None:
        """What is given back may be room for jobs that its nominal had none for."""
        self._given_back.add(queue)
        if queue in self._claimable:
            self._claimable[queue] = self._wanted(self._ranked[self._part(queue)])

    def _wanted(self, rows: Int) -> list[tuple[int, int, Need]]:
        """(row, flavour, need) of those of the waiting jobs that could start one day."""
        wants = self._wants
        return [each for row in rows.tolist() if (each := wants(row)) is not None]

    @cached_property
    def _within_nominal(self) -> Mask:
        """Of `_ranked`, whom its queue's nominal may have room for now. Errs to that side."""
        round_, rows = self._round, self._ranked
        kinds, jobs = round_.kinds, round_.snapshot.jobs
        kind_of = kinds.numbers[rows]
        needs, flavours = kinds.least_needs(0)
        left = round_.promised.left_within_by_queue()[jobs.queues[rows], flavours[kind_of]]
        several = np.array([len(kind.choices) > 1 for kind in kinds.kinds], dtype=np.bool_)
        within: Mask = several[kind_of] | ~((needs[kind_of] > left) & (needs[kind_of] > 0)).any(axis=1)
        return within

    def _part(self, queue: int) -> slice:
        """Where the waiting jobs of a queue stand in `_ranked`."""
        return slice(self._first_of[queue], self._first_of[queue + 1])

    @cached_property
    def _first_of(self) -> list[int]:
        """By queue, and behind the last one."""
        queues = self._round.snapshot.queues.names
        of = self._round.snapshot.jobs.queues[self._ranked]
        firsts: list[int] = np.searchsorted(of, np.arange(len(queues) + 1)).tolist()
        return firsts

    @cached_property
    def _ranked(self) -> Int:
        """Rows of the waiting jobs by queue, in the order of each."""
        rows, queues = self._round.waiting, self._round.snapshot.jobs.queues
        return rows[np.lexsort((self._places[rows], queues[rows]))]

    @cached_property
    def _places(self) -> Int:
        """J, place of each waiting job in the order, shares aside; 0 for all others."""
        snapshot = self._round.snapshot
        places = np.zeros(len(snapshot.jobs.uids), dtype=np.int64)
        places[ranked(snapshot, self._round.waiting)] = np.arange(len(self._round.waiting))
        return places

    @cached_property
    def _old(self) -> list[bool]:
        """J, those that have waited for as long as age counts."""
        old: list[bool] = (ages(self._round.snapshot) >= AGE_STEPS).tolist()
        return old

    def _reclaiming(self) -> dict[int, list[int]]:
        """By tree, its queues in which jobs wait and that may take back what they lent."""
        if self._queues is None:
            round_, self._queues = self._round, {}
            reclaim, never = round_.snapshot.queues.reclaim, int(Preempts.NEVER)
            for queue in sorted(set(round_.snapshot.jobs.queues[round_.waiting].tolist())):
                if queue != NONE and reclaim[queue] != never:
                    self._queues.setdefault(round_.used.circle(queue), []).append(queue)
        return self._queues


def _charge(ledger: Ledger, queue: int, claims: dict[int, Need], sign: int) -> None:
    for flavour, need in claims.items():
        ledger.add(queue, flavour, need, sign)
