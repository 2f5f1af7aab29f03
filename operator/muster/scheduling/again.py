"""Who is asked to end for others waits again then, with its first submit: often before those who wait now. So does who
is stopped at the end of its window, when that opens again."""

from __future__ import annotations

import numpy as np

from muster.scheduling.ranks import classes, ranked
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import FOREVER, NONE, Mask, Seconds


def ending_for_others(round_: Round) -> Mask:
    """J, jobs that are being ended for others, by this plan or an earlier one, and do not go on at once."""
    jobs, runs = round_.snapshot.jobs, round_.snapshot.jobs.runs
    found: Mask = runs.leaving & jobs.holding & (runs.beneficiary != NONE)
    found &= runs.beneficiary != np.arange(len(found))  # a move is no end
    onward = {each.uid for each in round_.promises}
    going = {each.uid for each in round_.evictions if each.beneficiary not in ("", each.uid)} - onward
    if going:
        found |= np.array([uid in going for uid in jobs.uids], dtype=np.bool_)
    found[list(jobs.bases)] = False  # their gang goes on without them
    found &= jobs.queues != NONE
    return found


def in_next_window(round_: Round) -> Seconds:
    """J, when those who hold room, or get some, wait again after the end of their window; FOREVER for all others."""
    jobs, terms = round_.snapshot.jobs, round_.snapshot.jobs.terms
    holds = ~jobs.pending & (jobs.queues != NONE)
    holds[[jobs.rows[each.uid] for each in round_.admissions]] = True
    holds[list(jobs.bases)] = False
    shut = terms.opens > round_.snapshot.now  # in the last minutes of the window that they run in
    closes = (terms.closes < FOREVER) & (terms.reopens > 0) & (jobs.runs.bound >= terms.closes)  # or they end before
    back = np.where(shut, terms.opens, np.where(closes, terms.reopens, FOREVER))
    return np.where(holds, back, FOREVER)


class Again:
    """The jobs of one round that end, by this plan, an earlier one or their window, and then wait."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        jobs = round_.snapshot.jobs
        self._since = np.where(ending_for_others(round_), round_.snapshot.now, in_next_window(round_))
        ends = self._since < FOREVER
        ends[ends] = round_.snapshot.queues.open[jobs.queues[ends]]
        self._rows: list[int] = np.flatnonzero(ends).tolist()
        self._classes = classes(round_.snapshot) if self._rows else np.empty(0)

    def before(self, job: int, start: float) -> tuple[set[int], set[tuple[int, int]]]:
        """Of those that may rank before a waiting job, and wait again before it starts: the workers that they have on
        any kind of node that they take, and the (tree of queues, flavour) that they draw on."""
        workers, pools = set[int](), set[tuple[int, int]]()
        jobs, kinds = self._round.snapshot.jobs, self._round.kinds
        for row in self._rows:
            if self._since[row] >= start or self._is_behind(row, job):
                continue
            circle = self._round.used.circle(self._round.queue_of[row])
            kept = (int(jobs.filters[row]), int(jobs.flavours[row]))
            for filter_, flavour in [kept, *((each.filter, each.flavour) for each in jobs.terms.alternatives[row])]:
                workers.add(kinds.worker(row, filter_))
                if self._round.used.limited(self._round.queue_of[row], flavour):
                    pools.add((circle, flavour))
        return workers, pools

    def _is_behind(self, row: int, job: int) -> bool:
        """Between queues shares decide, and these change."""
        if self._classes[row] != self._classes[job]:
            return bool(self._classes[row] > self._classes[job])
        of, both = self._round.queue_of, np.array([row, job], dtype=np.int64)
        return of[row] == of[job] and int(ranked(self._round.snapshot, both)[0]) == job
