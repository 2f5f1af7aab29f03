"""The launcher's HTTP API.

Every launcher serves it on `MUSTER_PORT`. All paths but `/metrics` and `/healthz` need the job's token, as
`Authorization: Bearer TOKEN` or as `X-Muster-Token: TOKEN` (the API server's pod proxy keeps Authorization for itself).
Bodies are JSON objects, made and read by the dataclasses here. A launcher says of which generation it is
(`X-Muster-Generation`); another generation's answers 409, whatever it is asked: an address may be another pod's by now.

    GET  /healthz            200 while the launcher lives
    GET  /metrics            Prometheus text
    GET  /v1/status          -> Status; from index 0 it speaks for the gang
    GET  /v1/membership      -> Membership
    PUT  /v1/membership      Membership -> 204; 409 when its incarnation is older than the held one
    POST /v1/join            Member -> Release; launchers call index 0 and wait there for the barrier;
                             202 when it is not complete after JOIN_HOLD_SECONDS: ask again at once;
                             403 for a pod UID outside the membership, 409 for another generation;
                             410 with Ended when the gang ended before it was complete
    POST /v1/stop            Stop -> 202; relayed to the whole gang by the launcher that gets it, and a relayed one that
                             comes late, of an older incarnation, is ignored; 403 as for /v1/restart
    POST /v1/heartbeat       Heartbeat -> GangState; every launcher calls index 0, by `heartbeat_seconds`
    POST /v1/ended           Ended -> GangState; a launcher tells index 0 that its ranks ended, and learns who was first
    POST /v1/restart         Restart -> 202; index 0 tells the others to end their ranks and to join again;
                             403 for a pod that was replaced, or lost and not let in again: what it says means nothing
    POST /v1/stacks          -> Examined; what this pod's ranks are at, asked by index 0 when the gang does not get on
    POST /v1/profile         Profile -> Profiling with 202; ranks record their next steps. Of index 0 alone; 400 without
                             a place to store it, 409 while one is under way
    GET  /v1/profile         -> Profiling; how far this pod is with it
    PUT  /v1/facts           Facts -> 204; what the operator knows of the job, for the run's tracker. Of index 0 alone;
                             404 where nothing is tracked
    POST /v1/copy            Copy -> 204 when it is here already, else 101: its bytes follow on the same connection
    POST /v1/copy/fetch      Copy -> 101, and its bytes follow; 404 when it isn't here

Unknown fields are ignored on reading, so that either side may be one version ahead.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from muster_protocol.exits import Cause
from muster_protocol.goodput import Spent
from muster_protocol.idleness import Busy, Idleness

TOKEN_HEADER: Final = "X-Muster-Token"
STATUS_PATH: Final = "/v1/status"
MEMBERSHIP_PATH: Final = "/v1/membership"
JOIN_PATH: Final = "/v1/join"
STOP_PATH: Final = "/v1/stop"
HEARTBEAT_PATH: Final = "/v1/heartbeat"
ENDED_PATH: Final = "/v1/ended"
RESTART_PATH: Final = "/v1/restart"
STACKS_PATH: Final = "/v1/stacks"
PROFILE_PATH: Final = "/v1/profile"
FACTS_PATH: Final = "/v1/facts"
COPY_PATH: Final = "/v1/copy"
FETCH_PATH: Final = "/v1/copy/fetch"
METRICS_PATH: Final = "/metrics"
HEALTH_PATH: Final = "/healthz"
RELAYED_HEADER: Final = "X-Muster-Relayed"
"""Set by index 0 on a stop that it relays, so that it isn't sent back."""

POD_HEADER: Final = "X-Muster-Pod"
"""The pod UID of the launcher that calls. The operator's calls are without it."""

GENERATION_HEADER: Final = "X-Muster-Generation"
"""Of the gang of the launcher that calls. The operator's calls are without it."""

JOIN_HOLD_SECONDS: Final = 20.0
"""How long index 0 keeps one call to the barrier open."""


class Phase(str, Enum):
    """Where a launcher stands."""

    JOINING = "joining"
    PREFLIGHT = "preflight"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


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
        restarts, failures: how often the gang's processes were started again in place, and after failures of the
            script, as far as this launcher has seen. So a new index 0 goes on counting.
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
        restarts, failures: how often the gang's processes were started again in place since it was placed; of those,
            how often after a failure of the script.
    """

    incarnation: int
    master_addr: str
    master_port: int
    leader_uid: str = ""
    keeper: Member | None = None
    holder: Member | None = None
    restarts: int = 0
    failures: int = 0


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


class Kept(str, Enum):
    """Where the newest checkpoint stays beside the store."""

    OFF = "off"
    LOCAL = "local"
    PEER = "peer"


@dataclass(frozen=True)
class MemoryTier:
    """What became of `checkpoint.memory` in this run.

    `why`: one sentence where that isn't all that could be, or "". With `PEER`: which copy doesn't arrive.
    """

    kept: Kept
    why: str = ""


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
class Straggler:
    """A rank that has been slower than the others for a while.

    Attributes:
        factor: its own time of a step over the gang's median.
        own, usual: seconds of a step: its own, and the median.
    """

    rank: int
    index: int
    factor: float
    own: float
    usual: float


@dataclass(frozen=True)
class Heartbeat:
    """A worker's launcher lives and its ranks run.

    Attributes:
        stuck: all of them are still for longer than they may.
        stopped: one of them was stopped by a signal, and is still for longer than it may.
        copy_error: why no other launcher gets a copy of its memory.
        paces: of its ranks.
        idleness: of its GPUs; None where nobody knows.
    """

    index: int
    pod_uid: str
    storage_error: str = ""
    stuck: bool = False
    copy_error: str = ""
    paces: tuple[Pace, ...] = ()
    stopped: bool = False
    idleness: Idleness | None = None


@dataclass(frozen=True)
class Profile:
    """A wish to see what ranks do in their next steps, by PyTorch's profiler.

    Attributes:
        steps: how many, 1 to `PROFILE_STEPS`.
        everybody: all ranks record, not only rank 0.
        memory: each allocation on CUDA, too.
    """

    steps: int = 3
    everybody: bool = False
    memory: bool = False


PROFILE_STEPS: Final = 100
"""At most: a trace has megabytes a step."""


class ProfilePhase(str, Enum):
    NONE = "none"
    """None was asked for yet."""
    ASKED = "asked"
    """The ranks begin at their next step's end, or record."""
    STORING = "storing"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Profiling:
    """One pod's last profile.

    Attributes:
        uri: the folder that it lies in, once it is known.
        stored: names of files in it, of this pod's ranks.
        text: what went wrong, or is worth knowing, for people; or "".
        asked_at: when it was asked for, in seconds since the epoch.
    """

    phase: ProfilePhase = ProfilePhase.NONE
    uri: str = ""
    stored: tuple[str, ...] = ()
    text: str = ""
    asked_at: float = 0.0


@dataclass(frozen=True)
class RankSeen:
    """What a rank was at when it was looked at.

    Attributes:
        section: start, setup (its loop has not begun), step, boundary (its step is done, it waits for the others),
            evaluation, checkpoint, outside (its loop is over), or none for a script without a session.
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


@dataclass(frozen=True)
class Checkpoint:
    """The last committed checkpoint. `committed_at` is in seconds since the epoch, `bytes` are of all ranks' shards."""

    step: int
    uri: str
    committed_at: float
    save_seconds: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class Facts:
    """What only the operator knows of a job, for the tracker of its run.

    Attributes:
        tags: names and texts.
        gpus: that are held now.
        gpu_seconds: of all placements, up to `at`.
        cost: of those, in `currency`, as decimal text; "" where the GPUs have no price.
        hourly: what the GPUs that are held cost in an hour.
        at: seconds since the epoch.
    """

    tags: dict[str, str] = field(default_factory=dict)
    gpus: int = 0
    gpu_seconds: int = 0
    cost: str = ""
    hourly: float = 0.0
    currency: str = ""
    at: float = 0.0


@dataclass(frozen=True)
class Tracking:
    """How the run's tracker takes what it is told.

    Attributes:
        well: it took the last of it; None before it was asked.
        url: of the run there, or "".
        text: what went wrong, for people, or "".
        dropped: values that were given up.
    """

    well: bool | None = None
    url: str = ""
    text: str = ""
    dropped: int = 0


@dataclass(frozen=True)
class Saving:
    """How the saves of these processes do.

    Attributes:
        left_out: saves that were due while the one before was still being written.
        interval_seconds: what `interval: auto` has chosen; None where the interval is given.
    """

    left_out: int = 0
    interval_seconds: float | None = None


@dataclass(frozen=True)
class Numerics:
    """Steps whose loss or gradients were not sound, since the run began, over all restarts.

    Attributes:
        skipped: whose update was left out.
        rollbacks: for which the run went back to a checkpoint, and on without their batches.
        last: the newest of them in a sentence, with its step and value.
    """

    skipped: int = 0
    rollbacks: int = 0
    last: str = ""


@dataclass(frozen=True)
class Status:
    """What a launcher knows about its run.

    Attributes:
        step, total_steps: progress as rank 0 reports it; None before the first report.
        loss: last reported loss, as a decimal string (JSON has no NaN).
        steps_per_second: over the last minute.
        resumed_from: the step that this incarnation restored, or None for a fresh start.
        storage_error: what the preflight or a save found wrong with the checkpoint's storage, or "".
        fixed_size: why the run can't go on with another number of ranks, or "" when it can.
        warnings: one sentence each, for people.
        restarts: how often the gang's processes were started again in these pods.
        failures: of those, how many followed a failure of the script; None: all.
        restarted_after: the failure that led to the last of them, or "".
        restarted_by: that failure, as index 0 knows it.
        lost: the indexes whose pods were lost and that this launcher waits for, its phase being `joining`: of index 0
            all that are lost; of the others index 0, where it is.
        memory_tier: None until it is known, at the first save.
        copy: what it has of another's memory, as a `Member` tells it.
        stored: bytes that all committed checkpoints under the run's uri take; None until rank 0 has told it.
        saving: None until rank 0 has told it.
        numerics: None where nothing was unsound, or nobody looks.
        spent: where this launcher's time went, from index 0.
        stragglers: the slowest first; index 0 knows them.
        idleness: of all workers' GPUs, from index 0; None where that of one isn't known.
        tracking: None where nothing is tracked.
        profile: the last one of index 0's ranks, once one was asked for.
    """

    phase: Phase
    generation: int
    incarnation: int
    index: int
    joined: int = 0
    workers: int = 0
    step: int | None = None
    total_steps: int | None = None
    loss: str | None = None
    steps_per_second: float | None = None
    tokens_per_second: float | None = None
    checkpoint: Checkpoint | None = None
    resumed_from: int | None = None
    storage_error: str = ""
    fixed_size: str = ""
    warnings: tuple[str, ...] = field(default=())
    restarts: int = 0
    failures: int | None = None
    restarted_after: str = ""
    restarted_by: Ended | None = None
    lost: tuple[int, ...] = ()
    memory_tier: MemoryTier | None = None
    copy: tuple[int, ...] = ()
    stored: int | None = None
    saving: Saving | None = None
    numerics: Numerics | None = None
    spent: Spent | None = None
    stragglers: tuple[Straggler, ...] = ()
    idleness: Idleness | None = None
    tracking: Tracking | None = None
    profile: Profiling | None = None


T = TypeVar(
    "T",
    Member,
    Membership,
    Release,
    Copy,
    Stop,
    Ended,
    Restart,
    Heartbeat,
    Examined,
    GangState,
    Status,
    Profile,
    Profiling,
    Facts,
)

_NESTED: Final[dict[tuple[str, str], Any]] = {
    ("Membership", "members"): Member,
    ("Release", "members"): Member,
    ("Status", "checkpoint"): Checkpoint,
    ("Status", "phase"): Phase,
    ("Stop", "reason"): StopReason,
    ("GangState", "stop"): Stop,
    ("GangState", "ended"): Ended,
    ("GangState", "restart"): Restart,
    ("Restart", "first"): Ended,
    ("Status", "restarted_by"): Ended,
    ("Status", "warnings"): str,
    ("Status", "lost"): int,
    ("Status", "memory_tier"): MemoryTier,
    ("Status", "copy"): int,
    ("Status", "saving"): Saving,
    ("Status", "numerics"): Numerics,
    ("Status", "spent"): Spent,
    ("Status", "stragglers"): Straggler,
    ("Status", "idleness"): Idleness,
    ("Status", "tracking"): Tracking,
    ("Status", "profile"): Profiling,
    ("Heartbeat", "paces"): Pace,
    ("Heartbeat", "idleness"): Idleness,
    ("Idleness", "minutes"): Busy,
    ("MemoryTier", "kept"): Kept,
    ("Member", "copy"): int,
    ("Member", "figures"): Figures,
    ("Figures", "gpus"): GpuFigures,
    ("Release", "keeper"): Member,
    ("Release", "holder"): Member,
    ("Copy", "order"): int,
    ("Profiling", "phase"): ProfilePhase,
    ("Profiling", "stored"): str,
    ("Examined", "ranks"): RankSeen,
}


def heartbeat_seconds(workers: int) -> float:
    """Time between two heartbeats: 2 s, more in gangs of over 1,000 workers, so that index 0 serves 500 a second."""
    return max(2.0, workers / 500)


def encode(message: Any) -> bytes:
    """JSON bytes of one of this module's dataclasses."""
    return json.dumps(dataclasses.asdict(message), allow_nan=False).encode()


def decode(kind: type[T], body: bytes) -> T:
    """Read `body` as `kind`.

    Raises:
        ValueError: the body is not JSON, or a field is missing or of the wrong shape.
    """
    raw = json.loads(body)
    if not isinstance(raw, dict):
        raise ValueError(f"{kind.__name__}: expected a JSON object, got {type(raw).__name__}")
    message: T = _build(kind, raw)
    return message


def _build(kind: Any, raw: dict[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for name in (f.name for f in dataclasses.fields(kind)):
        if name not in raw:
            continue
        value = raw[name]
        nested = _NESTED.get((kind.__name__, name))
        if nested is not None and value is not None:
            value = tuple(_one(nested, item) for item in value) if isinstance(value, list) else _one(nested, value)
        values[name] = value
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _one(nested: Any, value: Any) -> Any:
    return _build(nested, value) if dataclasses.is_dataclass(nested) and isinstance(value, dict) else nested(value)
