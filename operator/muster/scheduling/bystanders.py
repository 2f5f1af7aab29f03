"""Waiting jobs that need no look in a plan that tells nobody why: they lack quota and may ask nobody for it, and those
who leave don't give back as much.

Quota in use only grows while a plan is made, so who lacks it as the round begins lacks it to its end. But jobs that
start may borrow, and give others somebody to ask: whenever quota has changed, those whom that may concern are looked at
again. One that may ask stands by no more. Where its turn has passed it had asked in vain, and nothing came of it.

Old jobs never stand by: they hold others of their queue back.
"""

from __future__ import annotations

import numpy as np

from muster.scheduling.preempting import Preempting
from muster.scheduling.ranks import AGE_STEPS, ages, works
from muster.scheduling.rounds import Round
from muster.scheduling.starting import Starting

FEW = 64
"""Up to so many that lack quota it is faster to look at each than to find out who need not be looked at."""


class Bystanders:
    """
    Attributes:
        rows: of all who stand by as things are.
    """

    def __init__(self, round_: Round, starting: Starting, preempting: Preempting) -> None:
        self._round, self._preempting = round_, preempting
        self._by_tree: dict[int, list[list[int]]] = {}
        self.rows: set[int] = set()
        for group in _alike(round_, starting):
            if not self._concerns(group[0]):
                self.rows.update(group)
                self._by_tree.setdefault(round_.used.circle(round_.queue_of[group[0]]), []).append(group)
        self._seen = len(round_.journal)
        if not self.rows:
            return
        trees = {round_.used.circle(queue) for queue in range(len(round_.snapshot.queues.names))}
        self._lowest = min((preempting.lowest(tree) for tree in trees), default=0)

    def look_again(self) -> None:
        """Those who may ask somebody since quota changed stand by no more. To be called after each change."""
        journal = self._round.journal
        trees = {self._round.used.circle(queue) for queue, *_ in journal[self._seen :]}
        self._seen = len(journal)
        lowest = min((self._preempting.lowest(tree) for tree in trees), default=self._lowest)
        if lowest < self._lowest:
            self._lowest = lowest
            trees.update(self._by_tree)
        for tree in trees & self._by_tree.keys():
            groups = self._by_tree[tree]
            concerned = [group for group in groups if self._concerns(group[0])]
            for group in concerned:
                groups.remove(group)
                self.rows.difference_update(group)

    def _concerns(self, job: int) -> bool:
        """Whether it may ask somebody, or keeps quota for itself that comes back."""
        return self._preempting.could_ask(job) or self._round.quota_comes_back(job, 0)


def _alike(round_: Round, starting: Starting) -> list[list[int]]:
    """Jobs that lack quota in use, those of one queue, kind and priority together, that with the least work first; none
    where everybody is looked at: for they are few, or each is told why."""
    if round_.policy.explain or len(starting.short) <= FEW:
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
