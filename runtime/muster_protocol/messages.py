"""What the launchers of a gang tell each other, and the operator tells them; `launcher_api` says where each belongs.

Unknown fields are ignored on reading, so that either side may be one version ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from muster_protocol.exits import Cause
from muster_protocol.idleness import Idleness


class StopReason(str, Enum):
    PREEMPT = "preempt"
    SUSPEND = "suspend"
    MAX_RUNTIME = "max-runtime"
    PEER = "peer"


@dataclass(frozen=True)
class GpuFigures:
    """One GPU before any rank runs: bytes of its memory, those of them that are free, and how fast it multiplies."""

    memory: int
    free: int
    tflops: float


@dataclass(frozen=True)
class Figures:
    """What a worker has measured of its node before its first ranks. Bytes; None where it couldn't be told.

    Attributes:
        sent_at: the worker's clock when it joined, in seconds since the epoch.
        skew: seconds that it is ahead of index 0's; index 0 sets it.
        gpus_wanted: how many GPUs its ranks use.
        gpu_error: why no GPU can be used, or "".
    """

    node: str = ""
    memory_free: int | None = None
    disk_free: int | None = None
    shm_free: int | None = None
    sent_at: float = 0.0
    skew: float = 0.0
    gpus_wanted: int = 0
    gpus: tuple[GpuFigures, ...] = ()
    gpu_error: str = ""


@dataclass(frozen=True)
class Member:
    """One worker of the gang: its index, its pod and where its launcher listens (an IP).

    Attributes:
        attempt: counts the replacements of this index within the generation.
        incarnation: of the processes that this launcher ran last, or was told not to run any more; 0 before any.
        node: the name of its node, or "" where that isn't known.
        copy: the index whose ranks' memory this launcher has a whole copy of, and that copy's epoch, step and attempt;
            empty where it has none.
        restarts, failures, memory_failures: how often the gang's processes were started again in place, after failures
            of the script, and for want of memory, as far as this launcher has seen. So a new index 0 goes on counting.
        figures: of its node, when it joins for the first time.
    """

    index: int
    pod_uid: str
    address: str
    generation: int = 0
    attempt: int = 0
    incarnation: int = 0
    node: str = ""
    copy: tuple[int, ...] = ()
    restarts: int = 0
    failures: int = 0
    memory_failures: int = 0
    figures: Figures | None = None


@dataclass(frozen=True)
class Membership:
    """Who belongs to the gang. Pushed by the operator; `incarnation` rises with every change."""

    generation: int
    incarnation: int
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class Release:
    """The barrier's answer: everyone is here, start your ranks.

    Attributes:
        leader_uid: the pod UID of index 0.
        keeper: whose launcher this pod sends a copy of its ranks' memory to, or None.
        holder: whose launcher has the newest copy of this index's memory, or None.
        restarts, failures, memory_failures: how often the gang's processes were started again in place since it was
            placed; of those, how often after a failure of the script; of these, how often for want of memory.
    """

    incarnation: int
    master_addr: str
    master_port: int
    leader_uid: str = ""
    keeper: Member | None = None
    holder: Member | None = None
    restarts: int = 0
    failures: int = 0
    memory_failures: int = 0


@dataclass(frozen=True)
class Copy:
    """One pod's memory at one step, offered to the launcher that keeps it.

    Attributes:
        incarnation: of the processes whose memory it is.
        order: epoch, step and attempt.
        size: bytes of all of its ranks' parts.
        claim: index 0's: the gang's claim on `LATEST`, as JSON; newer than the copy when the copy is known already.
    """

    index: int
    pod_uid: str
    incarnation: int
    order: tuple[int, ...]
    size: int
    claim: str = ""


@dataclass(frozen=True)
class Stop:
    """Ask the gang to stop at an agreed step, with a checkpoint where the script can make one.

    Attributes:
        told: the index of the worker whose pod was told, where only one was; None: the gang is meant.
        incarnation: of the gang as the launcher that passes this on knows it; 0: the operator asks, or nobody knows.
    """

    reason: StopReason
    grace_seconds: float
    told: int | None = None
    incarnation: int = 0


@dataclass(frozen=True)
class Reliability:
    """How often nodes of the job's kind of capacity fail, as its cluster shows.

    Attributes:
        node_hours: that one of them runs between two failures.
    """

    node_hours: float


@dataclass(frozen=True)
class Ended:
    """One worker's ranks have ended.

    Attributes:
        cause: a value of `exits.Cause`.
        rank: global rank of the process that failed first there, or None.
        secondary: what failed looks like the consequence of another worker's end (a connection was lost).
        crash: the script fell over (a signal or an exception), so starting it again in the same pod may help.
        step, signature, alike: as in `exits.ExitFacts`; `alike` is what index 0 has found.
        incarnation: of the processes that ended; 0 before any was started.
        traceback: the last lines of the Python traceback or, of a rank that hangs, its stack.
        suspect: of a hang: the rank is one of those that held up the others, which waited for them.
    """

    index: int
    exit_code: int
    cause: str
    message: str = ""
    rank: int | None = None
    secondary: bool = False
    crash: bool = False
    step: int | None = None
    incarnation: int = 0
    traceback: str = ""
    signature: str = ""
    alike: int = 1
    suspect: bool = False

    @property
    def is_loss(self) -> bool:
        """The pod is lost: others tell of its end."""
        return self.cause == Cause.INFRASTRUCTURE.value and self.rank is None


@dataclass(frozen=True)
class Restart:
    """The gang's ranks start again, in the pods that they have, as `incarnation`; `first` is the end that led to it.

    Where that was no crash, a pod was lost, and the gang starts when another stands in its place.
    """

    incarnation: int
    first: Ended


@dataclass(frozen=True)
class Pace:
    """How fast a rank is, since its process started. In the steps of a gang all ranks wait for each other, so `own`
    alone tells which of them is slow.

    Attributes:
        steps: that count.
        seconds: that they took.
        own: of these, the ones in which the rank was at work by itself.
    """

    rank: int
    steps: int
    seconds: float
    own: float


@dataclass(frozen=True)
class Heartbeat:
    """A worker's launcher lives and its ranks run.

    Attributes:
        stuck: all of them are still for longer than they may.
        stopped: one of them was stopped by a signal, and is still for longer than it may.
        copy_error: why no other launcher gets a copy of its memory.
        paces: of its ranks.
        idleness: of its GPUs; None where nobody knows.
        joining: a rank of it that waits for all others to join; None: none does.
        left: a rank of it that has ended well while others of it run; None: none has.
    """

    index: int
    pod_uid: str
    storage_error: str = ""
    stuck: bool = False
    copy_error: str = ""
    paces: tuple[Pace, ...] = ()
    stopped: bool = False
    idleness: Idleness | None = None
    joining: int | None = None
    left: int | None = None


@dataclass(frozen=True)
class RankSeen:
    """What a rank was at when it was looked at.

    Attributes:
        section: join, setup (its loop has not begun), start (of its loop), step, boundary (its step is done, it waits
            for the others), evaluation, checkpoint, outside (its loop is over), or none for a script without a session.
        step: steps of the run that are done.
        still: seconds since it moved.
        limit: the field of `spec.hang` that it counts by.
        state: the kernel's letter for its process: R, S, D, T (stopped by a signal), ... or "".
        stack: of its main thread, the innermost call first, as `faulthandler` writes it, or "".
    """

    rank: int
    section: str
    step: int
    still: float
    limit: str
    state: str = ""
    stack: str = ""


@dataclass(frozen=True)
class Examined:
    """One worker's ranks. `stuck` and `stopped` as in `Heartbeat`, now that their stacks are known."""

    index: int
    stuck: bool
    ranks: tuple[RankSeen, ...] = ()
    stopped: bool = False


@dataclass(frozen=True)
class GangState:
    """What index 0 says of the whole gang.

    Attributes:
        stop: the gang was asked to stop; `grace_seconds` is what is left of the grace.
        ended: the failure that came first; every worker has to end.
        restart: the newest incarnation, when there was more than one; a worker of an older one has to join again.
    """

    stop: Stop | None = None
    ended: Ended | None = None
    restart: Restart | None = None
