"""Of which kind of node a job is told that takes several by now: of the one that comes closest."""

from __future__ import annotations

from collections.abc import Sequence

from muster.scheduling.reasons import Reasons
from muster.scheduling.rounds import Fate, Round, Verdict


def closest(round_: Round, reasons: Reasons, verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """The same, but that who waits for room is told of the choice on which most of its workers find room now, of those
    that could hold all of them and for which it has quota; where that is free and kept for others, of the first."""
    if all(len(each.choices) == 1 for each in round_.kinds.kinds):
        return verdicts
    known: dict[tuple[int, int, int], int] = {}
    found = []
    for each in verdicts:
        key = (round_.queue_of[each.job], round_.kinds.of[each.job], each.choice)
        if each.fate is Fate.ROOM and key not in known:
            known[key] = _choice(round_, reasons, each)
        found.append(each._replace(choice=known[key]) if each.fate is Fate.ROOM else each)
    return found


def _choice(round_: Round, reasons: Reasons, verdict: Verdict) -> int:
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
