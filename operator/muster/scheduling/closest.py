"""Of which kind of node a job is told that takes several by now: of the one that comes closest."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from muster.scheduling.reasons import Reasons
from muster.scheduling.rounds import Round
from muster.scheduling.verdicts import Fate, Verdict

_CHOSEN: Final = frozenset((Fate.ROOM, Fate.QUOTA, Fate.NEVER))
"""Of the others the verdict names it: see `muster.scheduling.starting`."""


def closest(round_: Round, reasons: Reasons, verdicts: Sequence[Verdict], heads: Container[int]) -> Sequence[Verdict]:
    """The same, but that each is told of the choice of nodes that comes closest, of those that could hold it:

    * who waits for room, of the one on which most of its workers find room now, of those for which it has quota; where
      that is free and kept for others, of the first;
    * who lacks quota, of the one of which the least is missing; who waits for it, of one of which there may be enough.

    Args:
        heads: rows of jobs with a reservation: one that lacks quota waits for that of its reservation.
    """
    if all(len(each.choices) == 1 for each in round_.kinds.kinds):
        return verdicts
    known: dict[tuple[int, int, Fate, int], int] = {}
    found = []
    for each in verdicts:
        if each.fate not in _CHOSEN or (each.fate is not Fate.ROOM and each.job in heads):
            found.append(each)
            continue
        key = (round_.queue_of[each.job], round_.kinds.of[each.job], each.fate, each.choice)
        if key not in known:
            known[key] = _of_room(round_, reasons, each) if each.fate is Fate.ROOM else _of_quota(round_, each)
        found.append(each._replace(choice=known[key]))
    return found


def _of_room(round_: Round, reasons: Reasons, verdict: Verdict) -> int:
    kind, best = round_.kinds.of[verdict.job], verdict.choice
    it = round_.kinds.kinds[kind]
    first = round_.kinds.gang(kind, best, it.sizes[-1])
    if len(it.choices) == 1 or round_.fits_free(first):
        return best
    most = reasons.most(first)
    for choice in range(len(it.choices)):
        gang = round_.kinds.gang(kind, choice, it.sizes[-1])
        if round_.fits_free(gang) or not round_.fits_empty(gang) or reasons.most(gang) <= most:
            continue
        if round_.shortage(verdict.job, choice, round_.kinds.need(kind, choice, it.sizes[-1])) is None:
            best, most = choice, reasons.most(gang)
    return best


def _of_quota(round_: Round, verdict: Verdict) -> int:
    kind, job, never = round_.kinds.of[verdict.job], verdict.job, verdict.fate is Fate.NEVER
    least = round_.kinds.kinds[kind].sizes[-1]
    missing: dict[int, int] = {}
    for choice in range(len(round_.kinds.kinds[kind].choices)):
        need = round_.kinds.need(kind, choice, least)
        ever = round_.never(job, choice, need)
        short = ever if never else round_.shortage(job, choice, need) if ever is None else None
        if short is not None and (
            choice == verdict.choice or round_.fits_empty(round_.kinds.gang(kind, choice, least))
        ):
            missing[choice] = short.needed - short.available
    return min(missing, key=missing.__getitem__) if verdict.choice in missing else verdict.choice
