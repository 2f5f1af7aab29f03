"""Waiting jobs that a plan may leave out as long as it tells nobody why: they lack quota and may ask nobody for it, and
those who leave don't give back as much.

Quota in use only grows while a plan is made, so who lacks it as the round begins lacks it to its end. But jobs that
start may borrow, and give others somebody to ask: whenever quota has changed, those whom that may concern are looked at
again. When one of them may ask, nobody can be left out, and the plan is made anew with all of them.

Old jobs are never left out: they hold others of their queue back.
"""

from __future__ import annotations

import numpy as np

from muster.scheduling.preempting import Preempting
from muster.scheduling.ranks import AGE_STEPS, ages, works
from muster.scheduling.rounds import Round
from muster.scheduling.starting import Starting
from muster.scheduling.verdicts import Fate, Verdict


class Bystanders:
    """
    Attributes:
        rows: of all of them.
    """

    def __init__(self, round_: Round, starting: Starting, preempting: Preempting) -> None:
        self._round, self._preempting = round_, preempting
        self._by_tree: dict[int, list[int]] = {}
        self.rows: set[int] = set()
        for group in _alike(round_, starting):
            if not self._concerns(group[0]):
                self.rows.update(group)
                self._by_tree.setdefault(round_.used.circle(round_.queue_of[group[0]]), []).append(group[0])
        self._seen = len(round_.journal)
        if not self.rows:
            return
        trees = {round_.used.circle(queue) for queue in range(len(round_.snapshot.queues.names))}
        self._lowest = min((preempting.lowest(tree) for tree in trees), default=0)

    def concerned(self) -> bool:
        """Whether one of them may ask somebody since quota changed. To be asked after each change."""
        if not self.rows:
            return False
        journal = self._round.journal
        trees = {self._round.used.circle(queue) for queue, *_ in journal[self._seen :]}
        self._seen = len(journal)
        lowest = min((self._preempting.lowest(tree) for tree in trees), default=self._lowest)
        if lowest < self._lowest:
            self._lowest = lowest
            trees.update(self._by_tree)
        return any(self._concerns(job) for tree in trees for job in self._by_tree.get(tree, ()))

    def _concerns(self, job: int) -> bool:
        """Whether it may ask somebody, or keeps quota for itself that comes back."""
        return self._preempting.could_ask(job) or self._round.quota_comes_back(job, 0)

    def verdicts(self) -> list[Verdict]:
        """One for each queue and kind."""
        return [Verdict(job, Fate.QUOTA) for tree in self._by_tree.values() for job in tree]


def _alike(round_: Round, starting: Starting) -> list[list[int]]:
    """Jobs that lack quota in use, those of one queue, kind and priority together, that with the least work first."""
    if not starting.short:
        return []
    jobs = round_.snapshot.jobs
    rows = np.array(list(starting.short), dtype=np.int64)
    if round_.policy.fairness:
        rows = rows[ages(round_.snapshot)[rows] < AGE_STEPS]
    if not len(rows):
        return []
    priorities, rank = np.unique(jobs.priorities[rows], return_inverse=True)
    keys = (jobs.queues[rows] * len(round_.kinds.kinds) + round_.kinds.numbers[rows]) * len(priorities) + rank
    order = np.lexsort((works(round_.snapshot)[rows], keys))
    return [group.tolist() for group in np.split(rows[order], np.flatnonzero(np.diff(keys[order])) + 1)]
