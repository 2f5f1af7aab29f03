"""What the planner decides: data, applied by `muster.cluster.executor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from muster.scheduling.snapshot import FOREVER, NONE, Index


class WaitReason(str, Enum):
    """Why a job waits. The values are condition reasons, so they are API."""

    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """Nodes that suit the job have not enough free room now; they would have if they were empty."""
    TOPOLOGY_UNSATISFIED = "TopologyUnsatisfied"
    """There is room in all, but no single domain of the required level has enough."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """The queue's nominal quota and what it may borrow now are used up."""
    EXCEEDS_QUOTA = "ExceedsQuota"
    """The job asks for more than its queue could ever have, borrowing included."""
    EXCEEDS_CLUSTER = "ExceedsCluster"
    """The job would not fit if every node were empty."""
    NO_ELIGIBLE_NODES = "NoEligibleNodes"
    """No node passes the job's GPU type, selectors and tolerations."""
    BEHIND_OTHERS = "BehindOthers"
    """There is room, but a job ahead in the order waits for it."""
    QUEUE_CLOSED = "QueueClosed"
    """The job's queue takes no jobs now."""
    WINDOW_CLOSED = "WindowClosed"
    """The job's off-peak window opens later."""
    PREEMPTING = "Preempting"
    """Room is promised; others are giving it back."""


LACKS_NODES: Final = frozenset(
    {
        WaitReason.INSUFFICIENT_CAPACITY,
        WaitReason.TOPOLOGY_UNSATISFIED,
        WaitReason.EXCEEDS_CLUSTER,
        WaitReason.NO_ELIGIBLE_NODES,
    }
)
"""Reasons that other nodes would end."""


class MoveReason(str, Enum):
    """Why a placement that stands is ended by the planner. The values are condition reasons."""

    PREEMPTED = "Preempted"
    """For a job that ranks before it."""
    RECLAIMED = "Reclaimed"
    """For a queue that takes back what it had lent."""
    YIELDED = "Yielded"
    """It had been let in before its turn, and the one that waited can start."""
    SHRUNK = "Shrunk"
    """An elastic job gives workers back; it goes on with fewer."""
    WORKERS_LOST = "WorkersLost"
    """An elastic job has lost workers, and there are no nodes in place of theirs; it goes on with fewer."""
    GROWN = "Grown"
    """An elastic job gets idle room."""
    PROMOTED = "Promoted"
    """A kind of node that the job prefers has room again."""
    DEFRAGMENTED = "Defragmented"
    """It moves so that a job fits that fragmentation alone keeps out."""
    QUOTA_LOWERED = "QuotaLowered"
    """Its queue uses more than it may since a quota was lowered, or a queue was moved or deleted."""
    DRAINED = "QueueDrained"
    """Its queue is drained: by a `stopPolicy`, or because a budget of its month is used up. No preemption."""


class StayReason(str, Enum):
    """Why an elastic gang that runs is not larger. The values are API."""

    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """Nodes that suit it have not enough free room for its next size."""
    TOPOLOGY_UNSATISFIED = "TopologyUnsatisfied"
    """There is room, but not where its topology lets the others be, or not for whole slices."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """Its queue may not use that much more now."""
    QUOTA_AWAITED = "QuotaAwaited"
    """Jobs that share its queue's quota wait for some: nobody among them grows before."""
    BEHIND_OTHERS = "BehindOthers"
    """There is room or quota, but it is kept for a job that waits."""
    QUEUE_CLOSED = "QueueClosed"
    """Its queue gives its jobs nothing more now."""
    WINDOW_CLOSED = "WindowClosed"
    """A stop might fall behind the end of its window, and it could not start again."""
    EDIT_REFUSED = "EditRefused"
    """The pods of the spec that it was edited to are refused, so that it could not start again."""
    NODES_AWAY = "NodesAway"
    """Some of its nodes take no new pods, or some of its workers have ended: it could not start again there."""
    SHAPE_FIXED = "ShapeFixed"
    """It lies balanced, or a step is no number of whole slices: such a gang keeps its size while it runs."""
    NO_CHECKPOINTS = "NoCheckpoints"
    """It saves none: it would begin again at its first step."""
    AWAITS_CHECKPOINT = "AwaitsCheckpoint"
    """It is not preemptible, and has committed no checkpoint where it stands."""
    SETTLING = "Settling"
    """Its placement is young."""
    DOES_NOT_PAY = "DoesNotPay"
    """Its restart would lose more than it wins with the workers that there is room for."""


class Basis(str, Enum):
    """What an expected start rests on, the surest first."""

    PROMISED = "promised"
    """Room is promised and being cleared."""
    LIMITS = "limits"
    """Enforced ends of running jobs (`maxRuntime`): not later than this, if nobody comes to rank before it meanwhile;
    all who do have reservations, and take no other nodes by then."""
    PROGRESS = "progress"
    """The running jobs' own progress: an estimate."""
    QUEUE = "queue"
    """The jobs ahead and the rate at which room comes back: a rough estimate."""
    UNKNOWN = "unknown"
    """Nothing tells when running jobs end."""


@dataclass(frozen=True)
class Admission:
    """Start the gang: worker i on node `nodes[i]` (index into the snapshot's nodes).

    Attributes:
        flavour: whose quota it draws on: the job's own, or that of one of its alternatives.
        yields: it is let in before its turn, and has to give way when the one ahead could start.
        base: of a gang with a safe base: how many workers, the first, are that. The flavour is theirs.
    """

    uid: str
    nodes: Index
    flavour: int = NONE
    yields: bool = False
    base: int = 0


@dataclass(frozen=True)
class Eviction:
    """Ask a gang to save and end; it queues again with its first submit time.

    Attributes:
        beneficiary: uid of the job that gets the room, its own when it moves or is resized for nobody else; "" when
            there is none (a quota was lowered).
        lost: accelerator-seconds of work that it costs: since the last committed checkpoint, and the restart.
    """

    uid: str
    reason: MoveReason
    beneficiary: str = ""
    lost: float = 0.0

    @property
    def for_itself(self) -> bool:
        """It moves or is resized for its own good, and makes room for nobody."""
        return self.beneficiary == self.uid


@dataclass(frozen=True)
class Promise:
    """Keep room for a job whose victims are still there: it starts on `nodes` when they are gone, nobody else does.

    Made durable before any victim is told. A job that is itself evicted to be moved or resized has one too, which is
    written with its stop.

    Attributes:
        base: as of an `Admission`.
        yields: likewise, of one that waits. One that runs goes on as it started: it yields if it did.
    """

    uid: str
    nodes: Index
    flavour: int = NONE
    base: int = 0
    yields: bool = False


@dataclass(frozen=True)
class Replacement:
    """New nodes for some workers of a promise, or for lost workers and for spares of a gang that runs: worker
    `indexes[i]` on `nodes[i]`.

    Indexes count the spares behind the workers. A spare that gave its place to a worker, or lost it, and gets no other
    has the node NONE.
    """

    uid: str
    indexes: Index
    nodes: Index


@dataclass(frozen=True)
class Almost:
    """A domain of the level asked for, how many of the gang's workers fit there now, and how many are lacking."""

    domain: str
    placeable: int
    lacking: int


class ChangeKind(str, Enum):
    """What of a waiting job's spec would have to be another. The values are API."""

    WORKERS = "workers"
    """Fewer workers: the value is how many."""
    SPARES = "spares"
    """No spares: the value is 0."""
    LEVEL = "level"
    """A wider level of its topology: the value names it."""
    MODE = "mode"
    """Its level preferred, not required: the value is preferred."""
    CAPACITY = "capacity"
    """Another kind of capacity: the value names it."""
    PREEMPTIBLE = "preemptible"
    """To be preemptible, so that it may borrow quota: the value is true."""


class Change(NamedTuple):
    """What would let a job start now, as it would stand in its spec, and in words for its owner."""

    kind: ChangeKind
    value: str
    text: str


class Wanted(NamedTuple):
    """A gang that could start if there were nodes for it.

    Attributes:
        flavour: by name, like "H100/on-demand"; "" for one without accelerators.
        workers: its spares not counted.
    """

    flavour: str
    workers: int


class Waiting(NamedTuple):
    """A job that stays in its queue, and what it lacks. A tuple: thousands are made in one plan.

    Attributes:
        position: place in the order of its queue, from 1; 0 for one that could not start if it were alone.
        resource: the scarcest resource, or "".
        missing: how much of it is lacking for the whole gang, in base units; 0 when no one resource is to blame.
        level, domain: the level asked for, and the domain that came closest, or "".
        placeable: workers that would fit there now.
        blocker: uid of the job ahead that the room is kept for, or "".
        expected: seconds since the epoch at which it is expected to start; FOREVER when unknown.
        basis: what `expected` rests on.
        almost: domains in which it almost fits, best first.
        changes: what would let it start now, the smallest change first. What would help one that lacks quota is found
            when it is asked for: see `Plan.helped`.
        elsewhere: a flavour with another kind of capacity that has room for it now, and its queue quota, or "". Whether
            it may run there is not known: its labels and tolerations were judged for its own kinds of node only.
        wanted: what its queue would let it start as now, if there were nodes: of each kind of node that it takes by
            now, in its order, the gang that it wishes to be, and the smallest. Empty if it lacks more than nodes.
        holders: uids of the jobs that hold the quota that it lacks, who holds most first.
        names_holders: the message is to end with them: they are those alone whom it waits for.
        before: uids of the first jobs of its queue's order, of those that come before it.
        rank: place among all that wait, from 0.
    """

    uid: str
    reason: WaitReason
    message: str
    position: int
    resource: str = ""
    missing: int = 0
    level: str = ""
    domain: str = ""
    placeable: int = 0
    blocker: str = ""
    expected: float = FOREVER
    basis: Basis = Basis.UNKNOWN
    almost: tuple[Almost, ...] = ()
    changes: tuple[Change, ...] = ()
    elsewhere: str = ""
    wanted: tuple[Wanted, ...] = ()
    holders: tuple[str, ...] = ()
    names_holders: bool = False
    before: tuple[str, ...] = ()
    rank: int = 0


class Stay(NamedTuple):
    """Why an elastic gang that runs is not larger.

    Attributes:
        workers: its next size.
        not_before: it does not grow before this moment, in seconds since the epoch, whatever room there is; 0: at any.
        resource, missing: what it lacks for its next size, in base units, or ("", 0).
        level, domain: where all its workers have to be, or "".
        placeable: more workers that would fit there now.
        blocker: uid of the job that the room or quota is kept for, or "".
    """

    reason: StayReason
    message: str
    workers: int
    not_before: float = 0.0
    resource: str = ""
    missing: int = 0
    level: str = ""
    domain: str = ""
    placeable: int = 0
    blocker: str = ""


def as_it_is(waiting: Waiting) -> Waiting:
    """Of a plan that tells nobody anything."""
    return waiting


@dataclass(frozen=True)
class Plan:
    """Admissions in the order in which they are to be made, what has to give way first, and everyone who waits.

    Attributes:
        reduced: in place of promises that stand, of elastic jobs that start again: nodes of some workers are gone, and
            they have fewer workers now.
        broken: uids of RESERVED jobs whose promise cannot be kept (a node is gone): they are PENDING again.
        helped: gives one of those who wait with its `changes` and `elsewhere`, also where it lacks quota. Ten thousand
            may, each queue's have their own, and few of them are told anything new after a plan.
        stays: gives, by uid of a job, why it is not larger; None for one that waits, is about to go or has its most
            workers. None itself: this plan has not looked at who may grow.
    """

    admissions: tuple[Admission, ...]
    waiting: Sequence[Waiting]
    promises: tuple[Promise, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    replacements: tuple[Replacement, ...] = ()
    reduced: tuple[Promise, ...] = ()
    broken: tuple[str, ...] = ()
    helped: Callable[[Waiting], Waiting] = field(default=as_it_is, compare=False, repr=False)
    stays: Callable[[str], Stay | None] | None = field(default=None, compare=False, repr=False)
