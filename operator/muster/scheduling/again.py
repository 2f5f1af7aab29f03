"""Who is asked to end for others waits again then, with its first submit: often before those who wait now."""

from __future__ import annotations

import numpy as np

from muster.scheduling.ranks import classes, ranked
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, Mask


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


class Again:
    """The jobs of one round that are being ended for others, by this plan or an earlier one, and then wait."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        jobs, asked = round_.snapshot.jobs, ending_for_others(round_)
        asked[asked] = round_.snapshot.queues.open[jobs.queues[asked]]
        self._rows: list[int] = np.flatnonzero(asked).tolist()
        self._classes = classes(round_.snapshot) if self._rows else np.empty(0)

    def before(self, job: int) -> tuple[set[int], set[tuple[int, int]]]:
        """Of those that may rank before a waiting job: the workers that they have on any kind of node that they take,
        and the (tree of queues, flavour) that they draw on."""
        workers, pools = set[int](), set[tuple[int, int]]()
        jobs, kinds = self._round.snapshot.jobs, self._round.kinds
        for row in self._rows:
            if self._is_behind(row, job):
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
