"""What the ranks agree on between two steps, in one small all-reduce.

The vector that is summed: votes to save, votes to stop, ranks at the loop's end, the step modulo a prime and that
squared (equal on all ranks if and only if the sums are N times this rank's own), tokens, ranks that are still writing
the save in flight, ranks whose writing has failed, ranks whose part of it isn't in memory whole, then a (sum, weight)
of losses for each step since the last time losses were read, and rank 0's wish to see the gradient's norm with a
(square, presence) of it, for people, and its wish of a profile, with the time. Where the job's numbers are watched, a
(square, presence) of the gradient follows for each of these steps: what isn't finite on one rank isn't in the sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from muster_runtime.errors import UsageError
from muster_runtime.parallel.gang import Gang

_STEPS_APART: Final = 4093
"""The square of a long run's step, summed over many ranks, is too large for a double; ranks are never so far apart."""


Loss = tuple[float, float]
"""A rank's losses in one step: their sum, each times its weight, and the sum of the weights."""

Square = tuple[float, float]
"""A rank's share of the gradient's squared norm in one step, and 1 where there was an update."""


@dataclass(frozen=True)
class Votes:
    """One rank's word. `losses` has one entry for each step read now; None where this rank reported none. So has
    `squares`, or nothing where nobody watches."""

    step: int
    save: bool
    stop: bool
    ends: bool
    tokens: float = 0.0
    losses: tuple[Loss | None, ...] = ()
    writing: bool = False
    write_failed: bool = False
    unsealed: bool = False
    squares: tuple[Square | None, ...] = ()
    asks_norm: bool = False
    square: Square | None = None
    profile: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Agreement:
    """The gang's word: any vote counts. `losses` are weighed means over the ranks that reported one, `norms` those of
    the gradient."""

    save: bool
    stop: bool
    tokens: float
    losses: tuple[float | None, ...]
    writing: bool = False
    write_failed: bool = False
    unsealed: bool = False
    norms: tuple[float | None, ...] = ()
    norm_asked: bool = False
    norm: float | None = None
    profile: tuple[float, float] = (0.0, 0.0)


def agree(votes: Votes, gang: Gang, where: str) -> Agreement:
    """Collective. UsageError when the ranks aren't at the same step; `where` is the loop's line."""
    step = float(votes.step % _STEPS_APART)
    own = [
        float(votes.save),
        float(votes.stop),
        float(votes.ends),
        step,
        step**2,
        votes.tokens,
        float(votes.writing),
        float(votes.write_failed),
        float(votes.unsealed),
        float(votes.asks_norm),
        *(votes.square or (0.0, 0.0)),
        *votes.profile,
    ]
    fixed = len(own)
    for pair in (*votes.losses, *votes.squares):
        own += pair or (0.0, 0.0)
    total = gang.sum(own)
    count = gang.world_size
    together = total[2] in (0.0, float(count)) and total[3] == count * own[3] and total[4] == count * own[4]
    if not together:
        places = gang.gather((votes.step, votes.ends))
        told = ", ".join(
            f"rank {rank} {'ends' if ends else 'goes on'} after {step}" for rank, (step, ends) in enumerate(places)
        )
        raise UsageError(
            f"{where}: the ranks are at different steps ({told}). Every rank must take every step: look for a number "
            "of steps that depends on the rank, or a break or return that only some ranks reach"
        )
    pairs = tuple(zip(total[fixed::2], total[fixed + 1 :: 2], strict=True))
    losses, squares = pairs[: len(votes.losses)], pairs[len(votes.losses) :]
    means = tuple(value / weight if weight else None for value, weight in losses)
    norms = tuple(map(_norm, squares))
    return Agreement(
        save=total[0] > 0,
        stop=total[1] > 0,
        tokens=total[5],
        losses=means,
        writing=total[6] > 0,
        write_failed=total[7] > 0,
        unsealed=total[8] > 0,
        norms=norms,
        norm_asked=total[9] > 0,
        norm=_norm((total[10], total[11])),
        profile=(total[12], total[13]),
    )


def _norm(square: Square) -> float | None:
    return math.sqrt(square[0]) if square[1] else None
