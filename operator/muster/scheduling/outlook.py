"""All waiting jobs at once, as the round begins, so that most of ten thousand jobs need no look of their own.

What is used only grows while a plan is made. So a job that lacks quota in use as the round begins lacks it to its end,
and who lacks it later is found for all at once as well, now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from muster.scheduling.quota import Need
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, Int, Mask
from muster.scheduling.verdicts import Fate, Verdict

_FEW: Final = 32
"""Jobs up to which it is faster to look at each than at what all queues have left."""


@dataclass(frozen=True)
class Hope:
    """Whether a kind of job could be placed if nobody else ran.

    Attributes:
        choices: those that could.
        fate: why there is none.
        closest: where there is none, the choice of which the fate speaks.
    """

    choices: tuple[int, ...]
    fate: Fate | None
    closest: int = 0


class Outlook:
    """
    Attributes:
        obstacles: by row, what keeps a job from starting whatever ends; of special ones without looking at quota.
        short: rows whose queue may not use that much more now.
        special: rows of jobs with several choices of nodes, or that must not borrow.
    """

    def __init__(self, round_: Round, hopes: Sequence[Hope]) -> None:
        jobs, kinds, rows = round_.snapshot.jobs, round_.kinds, round_.waiting
        self.obstacles: dict[int, Verdict] = {}
        self.short: set[int] = set()
        self.special: list[int] = []
        self._used = round_.used
        if not len(rows):
            return
        kind_of: Int = kinds.numbers[rows]
        queues, flavours = jobs.queues[rows], jobs.flavours[rows]
        closed: Mask = (queues == NONE) | ~round_.snapshot.queues.open[queues]
        hopeless: Mask = np.array([hope.fate is not None for hope in hopes], dtype=np.bool_)[kind_of] & ~closed
        plain = np.array([len(each.choices) == 1 and each.preemptible for each in kinds.kinds], dtype=np.bool_)[kind_of]
        judged = ~closed & ~hopeless & plain
        at = np.flatnonzero(judged)
        pairs, needed = (queues[at], flavours[at]), kinds.least_needs(0)[0][kind_of[at]]
        never = np.zeros(len(rows), dtype=np.bool_)
        never[at] = ((round_.used.most_by_queue()[pairs] < needed) & (needed > 0)).any(axis=1)
        later = judged & ~never & (jobs.terms.opens[rows] > round_.snapshot.now)
        able = np.flatnonzero(~never[at] & ~later[at])
        self._rows, self._needed = rows[at[able]], needed[able]
        self._pairs = pairs[0][able], pairs[1][able]
        self._few: list[tuple[int, int, int, Need]] | None = None
        if len(able) <= _FEW:
            of = [(row, kinds.of[row]) for row in self._rows.tolist()]
            needs = [kinds.need(kind, 0, kinds.kinds[kind].sizes[-1]) for _, kind in of]
            columns = ((row for row, _ in of), *(column.tolist() for column in self._pairs), needs)
            self._few = list(zip(*columns, strict=True))
        self.renew()
        self.special = rows[~closed & ~hopeless & ~plain].tolist()
        for mask, fate in ((closed, Fate.CLOSED), (never, Fate.NEVER), (later, Fate.WINDOW)):
            for job in rows[mask].tolist():
                self.obstacles[job] = Verdict(job, fate)
        for job, number in zip(rows[hopeless].tolist(), kind_of[hopeless].tolist(), strict=True):
            self.obstacles[job] = Verdict(job, hopes[number].fate or Fate.TOO_LARGE, hopes[number].closest)

    def renew(self) -> None:
        """Look again at who lacks quota in use. To be called when others have started since."""
        if self._few is not None:
            shortage = self._used.shortage
            self.short.update(row for row, queue, flavour, need in self._few if shortage(queue, flavour, need))
            return
        short = (self._used.left_by_queue()[self._pairs] < self._needed).any(axis=1)
        self.short.update(self._rows[short].tolist())
        self._rows, self._needed = self._rows[~short], self._needed[~short]
        self._pairs = self._pairs[0][~short], self._pairs[1][~short]
