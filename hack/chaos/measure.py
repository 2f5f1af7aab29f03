"""What a fault cost a run, read off its journal. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from hack.chaos.journal import Line, highest, losses, samples

SETTLE_S = 3.0
"""Processes that still take steps so long after a fault was over have come through it."""


class Losses(str, Enum):
    """How the losses of a run compare with those of the run without faults."""

    BITWISE = "bitwise"
    SAME_SAMPLES = "same samples"
    """The gang had another size for a while: the same global batches in the same order."""
    DIFFERENT = "different"


@dataclass(frozen=True)
class Recovery:
    """How a run came through a fault.

    Attributes:
        reached: the last step that was done before the fault took effect, from 0; -1 when there was none.
        resumed: the step that the gang went on with.
        seconds: until the first step beyond `reached`; of a gang that was not ended, the longest pause between two.
        usual: seconds of a usual step before the fault.
        ended: whether the ranks' processes were ended.
    """

    reached: int
    resumed: int
    seconds: float
    usual: float
    ended: bool

    @property
    def steps_lost(self) -> int:
        """Steps that were done and had to be done again."""
        return max(0, self.reached + 1 - self.resumed)


def training(lines: Sequence[Line], now: float, within_s: float = 10.0) -> bool:
    """Whether two steps at least were done in the seconds before `now`."""
    return len({line.step for line in lines if now - within_s < line.at <= now}) >= 2


def recovery(lines: Sequence[Line], fault_at: float, again_at: float, healed_at: float) -> Recovery | None:
    """What has come of a fault, or None while the run isn't beyond it.

    Args:
        lines: the run's journal, in order of time.
        fault_at, healed_at: when the fault began, and when it was over: a run is beyond it not before then. In seconds
            of the machine's monotonic clock.
        again_at: from when on the run could train again; `seconds` count from there. With most faults, `fault_at`.
    """
    born = [line for line in lines if line.born > fault_at]
    if not born:
        return _untouched(lines, fault_at, healed_at)
    reached = highest(line for line in lines if line.born <= fault_at)
    beyond = next((line for line in born if line.step > reached and line.at >= healed_at), None)
    if beyond is None:
        return None
    first = next(line for line in born if line.step > reached)
    resumed, seconds = min(line.step for line in born), max(0.0, first.at - again_at)
    return Recovery(reached, resumed, seconds, _usual(lines, fault_at), ended=True)


def _untouched(lines: Sequence[Line], fault_at: float, healed_at: float) -> Recovery | None:
    """The processes of before train on: the longest pause between two new steps."""
    reached = highest(line for line in lines if line.at <= fault_at)
    after = [line for line in lines if line.at > fault_at and line.step > reached]
    if not after or after[-1].at < healed_at + SETTLE_S:
        return None
    times, newest = [fault_at], reached
    for line in after:
        if line.step > newest:
            newest = line.step
            times.append(line.at)
    pause = max(later - earlier for earlier, later in pairwise(times))
    return Recovery(reached, reached + 1, pause, _usual(lines, fault_at), ended=False)


def _usual(lines: Sequence[Line], before: float) -> float:
    """Seconds of the median step before that moment; 0 before two steps."""
    firsts: dict[int, float] = {}
    for line in lines:
        if line.at <= before:
            firsts.setdefault(line.step, line.at)
    times = sorted(firsts.values())
    return statistics.median(later - earlier for earlier, later in pairwise(times)) if len(times) > 1 else 0.0


def compare(lines: Sequence[Line], reference: Sequence[Line], total: int) -> tuple[Losses, str]:
    """How the run's losses compare, and the first difference in words.

    `total` steps are looked at, on every rank; a step that is missing is a difference.
    """
    worlds = {line.world for line in lines}
    wanted, found = samples(reference), samples(lines)
    for step in range(total):
        if found.get(step) != wanted.get(step):
            return Losses.DIFFERENT, f"the samples of step {step} are others, or it was not done by all ranks"
    if worlds != {line.world for line in reference}:
        return Losses.SAME_SAMPLES, ""
    expected = losses(reference)
    for key, bits in sorted(losses(lines).items(), key=lambda item: item[0][2]):
        if bits != expected.get(key):
            _, rank, step = key
            return Losses.DIFFERENT, f"the loss of rank {rank} in step {step}: {sorted(bits)}, not {expected.get(key)}"
    return Losses.BITWISE, ""
