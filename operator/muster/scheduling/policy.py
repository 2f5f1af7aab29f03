"""What the planner may do, as switches: the simulator compares plans with parts off."""

from __future__ import annotations

from dataclasses import dataclass

from muster.scheduling.moves import SETTLE


@dataclass(frozen=True)
class Policy:
    """All on is Muster as it runs. Promises and gangs' limits are kept whatever is off.

    Attributes:
        fairness: order by fair shares and aging within a priority; off: by first submit alone.
        backfill: let jobs in before their turn where that does not delay those ahead; off: strictly in order.
        preemption: end placements for jobs that rank before them, and for queues that take back what they lent.
        elastic: start, shrink and grow elastic gangs; off: a gang has the size that it asks for.
        promotion: move jobs to a kind of node that they prefer when it has room again.
        defragmentation: move jobs so that one fits which fragmentation alone keeps out.
        explain: say of each waiting job why, its position and when it is expected to start; off: `Plan.waiting` is
            empty, and nothing else differs.
        settle: seconds that a placement stands at least before it grows or moves.
        heads: waiting jobs of each flavour that hold a reserved place and time, one behind the other.
        searches: searches for victims in one plan, over all jobs; what bounds a plan's time when nothing fits.
        candidates: running jobs that those searches look at in all; the job whose searches pass it is the last.
    """

    fairness: bool = True
    backfill: bool = True
    preemption: bool = True
    elastic: bool = True
    promotion: bool = True
    defragmentation: bool = True
    explain: bool = True
    settle: float = SETTLE
    heads: int = 4
    searches: int = 16
    candidates: int = 1_000


DEFAULT = Policy()
