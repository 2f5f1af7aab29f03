"""Quota of all waiting jobs at once, as the round begins, so that most of ten thousand jobs need no look of their own.

What is used only grows while a plan is made. So a job that lacks quota in use as the round begins lacks it to its end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, UNLIMITED, Int, Mask


class Outlook:
    """
    Attributes:
        never: by row, the job asks for more than its queue could ever use.
        short: by row, its queue may not use that much more now.
        plain: by row, the two are certain: one choice of nodes, and it may borrow. False for jobs that do not wait.
    """

    def __init__(self, round_: Round) -> None:
        jobs, kinds = round_.snapshot.jobs, round_.kinds
        count = len(jobs.uids)
        self.never, self.short, self.plain = [False] * count, [False] * count, [False] * count
        rows = round_.waiting[jobs.queues[round_.waiting] != NONE]
        if not len(rows):
            return
        kind_of = np.array(kinds.of, dtype=np.int64)[rows]
        needs = np.zeros((len(kinds.kinds), len(round_.snapshot.resources)), dtype=np.int64)
        for kind, each in enumerate(kinds.kinds):
            for resource, amount in kinds.need(kind, 0, each.sizes[-1]):
                needs[kind, resource] = amount
        simple = np.array([len(each.choices) == 1 and each.preemptible for each in kinds.kinds], dtype=np.bool_)
        pair = jobs.queues[rows].astype(np.int64) * len(round_.snapshot.flavours) + jobs.flavours[rows]
        pairs, pair_of = np.unique(pair, return_inverse=True)
        asked = np.flatnonzero(needs.any(axis=0))
        needed = needs[kind_of][:, asked]
        never = _beyond(round_, pairs, asked, round_.used.most)[pair_of] < needed
        short = _beyond(round_, pairs, asked, round_.used.available)[pair_of] < needed
        _fill(self.never, rows, never, needed)
        _fill(self.short, rows, short, needed)
        for row, plain in zip(rows.tolist(), simple[kind_of].tolist(), strict=True):
            self.plain[row] = plain


def _beyond(round_: Round, pairs: Int, asked: Int, left: Callable[[int, int, int], int]) -> Int:
    """P x asked, what each (queue, flavour) may use of each resource; both numbers in one of `pairs`."""
    flavours = len(round_.snapshot.flavours)
    table = [
        [min(left(queue, flavour, resource), int(UNLIMITED)) for resource in asked.tolist()]
        for queue, flavour in (divmod(pair, flavours) for pair in pairs.tolist())
    ]
    return np.array(table, dtype=np.int64).reshape(len(pairs), len(asked))


def _fill(told: list[bool], rows: Int, lacking: Mask, needed: Int) -> None:
    for row in rows[(lacking & (needed > 0)).any(axis=1)].tolist():
        told[row] = True
