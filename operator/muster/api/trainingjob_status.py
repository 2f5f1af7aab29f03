"""What the operator tells of a TrainingJob."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Le, Len

from muster.api.common import Condition, Count, Message, Model, S3Uri, ShortMessage, Step, Timestamp, clip
from muster.api.jobparts import MAX_RESTARTS, MAX_WORKERS, JobDefaults
from muster.api.names import Phase
from muster.api.placement import AvoidedNode, NodeName, Placement, Promise, Stop
from muster.api.queue_position import Lacking, QueuePosition
from muster.api.schema import Int64, MapList
from muster.api.terms import Usage
from muster.api.tracking import TrackingStatus
from muster_protocol.launcher_status import WARNINGS_KEPT

Seconds = Annotated[int, Ge(0), Int64()]


class CommittedCheckpoint(Model):
    """The last committed checkpoint."""

    step: Step
    """Its training step."""
    uri: S3Uri | None = None
    """Where it is."""
    committed_at: Timestamp | None = None
    """When it was committed; absent of one that was there before the job."""


class Saving(Model):
    """How often checkpoints are taken, as rank 0 reports it."""

    interval_seconds: Count | None = None
    """What `checkpoint.interval: auto` has chosen, from what a save costs and how often nodes fail. Told anew when it
    has changed by more than a fifth."""
    left_out: Count | None = None
    """Saves that all ranks left out because the one before was still being written, since the processes started: the
    storage is slower than the interval, or doesn't answer."""


class NumericsStatus(Model):
    """Steps whose loss or gradients were not sound, since the run began, over all restarts."""

    skipped: Count | None = None
    """Updates that were left out."""
    rollbacks: Count | None = None
    """How often the run went back to its last checkpoint, and on without the batches that led to it."""
    last: ShortMessage = ""
    """The newest of them: its step, its value, and what was done."""
    at: Timestamp | None = None
    """When it was seen."""


class TrainingWarning(Model):
    """What the training has warned of, in its words."""

    at: Timestamp
    """When the operator heard of it."""
    message: ShortMessage
    """What it says."""


class ProfileStatus(Model):
    """The last profile that was asked for (`muster profile`), as index 0 tells it."""

    asked_at: Timestamp
    """When it was asked for."""
    stored: bool = False
    """Whether it lies at `uri`."""
    uri: S3Uri | None = None
    """Folder of its files."""
    message: ShortMessage = ""
    """What went wrong, or is worth knowing."""


class Progress(Model):
    """How far the training is, as rank 0 reports it."""

    step: Step
    """Steps done since the run began, over all restarts."""
    total_steps: Step | None = None
    """Steps in all, when the script says so."""
    steps_per_second: Annotated[str, Len(0, 32)] | None = None
    """Over the last minute, as decimal text."""
    loss: Annotated[str, Len(0, 32)] | None = None
    """The last reported loss, as decimal text."""
    eta: Timestamp | None = None
    """When the last step is expected to be done."""
    updated_at: Timestamp | None = None
    """When this was read from the launcher."""
    stands_still: bool | None = None
    """True when the launcher answers and no step has been done since `updatedAt`, for a minute at least and for as long
    as 20 steps take: an evaluation, a save of the script's own, or a hang."""


class PartSeconds(Model):
    """Seconds by what they were spent on; what is absent took none."""

    training: Seconds | None = None
    """Steps for the first time, evaluations included."""
    data_wait: Seconds | None = None
    """Training waited for a batch."""
    checkpoint: Seconds | None = None
    """Training stood still for a save."""
    starting: Seconds | None = None
    """From placement to the first step, and from each end of the processes to the first step after it."""
    restoring: Seconds | None = None
    """A checkpoint was read."""
    recomputing: Seconds | None = None
    """Steps that were done before and lost, and steps that were broken off."""
    queued: Seconds | None = None
    """The job waited for its turn, or for room."""
    hung: Seconds | None = None
    """Nobody got on, from the last step until that was found."""


class Counted(Model):
    """What the launcher of one of index 0's pods has counted so far."""

    attempt: Count = 0
    """Number of the pod within the placement."""
    seconds: PartSeconds = PartSeconds()
    """What it has told."""
    underused: Seconds | None = None
    """Of its seconds of training, those in which its GPUs were hardly used."""


class Goodput(Model):
    """How much of the job's time was training. Each second since it was submitted belongs to one part, but for those in
    which it was suspended."""

    ratio: Annotated[str, Len(0, 8)] | None = None
    """Seconds of training by all seconds, as decimal text from 0 to 1."""
    seconds: PartSeconds = PartSeconds()
    """All seconds up to `until`."""
    underused: Seconds | None = None
    """Of the seconds of training, those in which index 0's GPUs were busy for less than 30 % of the time."""
    until: Timestamp
    """The moment up to which time is counted."""
    launcher: Counted | None = None
    """What of that the present launcher of index 0 has counted."""


class Failure(Model):
    """The first cause of the last failure."""

    cause: Annotated[str, Len(0, 64)] = ""
    """user (the script), out-of-memory, hang, numerics, network, node, disrupted (drained, evicted, deleted),
    infrastructure, peer, config, storage, preempted or max-runtime."""
    index: Count | None = None
    """Worker whose pod failed first."""
    rank: Count | None = None
    """Global rank of the process that failed first."""
    node: NodeName | None = None
    """Node that it ran on."""
    exit_code: Annotated[int, Ge(-(2**31)), Le(2**31 - 1)] | None = None
    """Its exit code; negative for a signal."""
    step: Step | None = None
    """The last step that was reported before, or the one that the run had resumed from."""
    alike: Count | None = None
    """Failures of the script in a row, up to this one, with the same exception at the same place and step; two end the
    job. Absent for one."""
    message: Message = ""
    """What went wrong and how to mend it."""
    traceback: Message = ""
    """The last lines of its Python traceback; without one, of its stderr, or else of its stdout."""
    at: Timestamp | None = None
    """When it was seen."""


class PastFailure(Model):
    """A failure in short, kept for the limits of `restart` and for people."""

    at: Timestamp
    """When it was seen."""
    cause: Annotated[str, Len(0, 64)] = ""
    """As in `failure`."""
    index: Count | None = None
    """Worker that failed first."""
    node: NodeName | None = None
    """Node that it ran on."""
    step: Step | None = None
    """As in `failure`."""
    message: Annotated[str, clip(200), Len(0, 200)] = ""
    """What went wrong."""
    signature: ShortMessage = ""
    """By which the same failure of the script is known again: its exception and place, without numbers."""
    observed_generation: Annotated[int, Ge(0), Int64()] | None = None
    """The `metadata.generation` of the spec that failed; a failure of another spec is another failure."""
    in_place: bool = False
    """The gang's processes were started again in the pods that they had."""


class NodeFault(Model):
    """Something that may be a node's doing. By these the operator counts, over all jobs, how often a node fails."""

    node: NodeName
    """Name of the node."""
    cause: Annotated[str, Len(1, 64)]
    """hardware (broken, as a rank or the preflight has found), lost (gone or silent), hang (a rank there held up the
    others) or straggler (a rank there is slower than the others)."""
    at: Timestamp
    """When it was seen last."""
    placement: Annotated[int, Ge(0), Int64()] = 0
    """Generation of the gang that it happened to."""
    message: Annotated[str, clip(200), Len(0, 200)] = ""
    """What was seen."""


class FixedSize(Model):
    """Why an elastic job keeps its size."""

    workers: Count
    """Workers that it runs with."""
    message: Annotated[str, clip(1024), Len(1, 1024)]
    """What the training says."""
    failed: Annotated[int, Ge(1), Le(MAX_WORKERS)] | None = None
    """Number of workers with which its script failed alike again and again, while it had trained with `workers`; absent
    where it is the training that says so. Then it keeps its size until its spec is edited."""
    observed_generation: Annotated[int, Ge(0), Int64()] | None = None
    """The `metadata.generation` of the spec that failed with so many."""


class Size(Model):
    """A size that an elastic gang has had."""

    workers: Annotated[int, Ge(1), Le(MAX_WORKERS)]
    """Number of its workers."""
    since: Timestamp
    """When it was placed with so many."""
    reason: Annotated[str, Len(0, 64)] = ""
    """Why it got this size: Started, Shrunk (others needed room), WorkersLost (nodes went, and none came in their
    place), Grown (there was idle room), SizeFailed (its script failed with the size before), or another reason for
    which it had stopped."""


class Growth(Model):
    """Why an elastic gang runs with fewer workers than it asks for."""

    reason: Annotated[str, Len(0, 64)]
    """One word for what keeps it from its next size: InsufficientCapacity, TopologyUnsatisfied, QuotaExceeded,
    QuotaAwaited (others wait for quota that it would take), BehindOthers (what it lacks is kept for a job that waits),
    QueueClosed, WindowClosed, NodesAway (it could not start again on those that it has), ShapeFixed, NoCheckpoints,
    AwaitsCheckpoint (it is not preemptible and has not saved where it stands), Settling (its placement is young) or
    DoesNotPay (a restart would lose more than it wins)."""
    message: Message
    """The same in a sentence."""
    workers: Count
    """Its next size."""
    not_before: Timestamp | None = None
    """It does not grow before this moment, whatever room there is."""
    lacking: Lacking | None = None
    """What it lacks for its next size."""
    kept_for: Annotated[str, Len(0, 512)] = ""
    """NAMESPACE/NAME of the job that waits for what it lacks."""


MAX_SIZES = 10
"""Sizes of one job that are kept."""


class TrainingJobStatus(Model):
    """What the operator tells of the job. `conditions` are for programs, the rest for people."""

    phase: Phase | None = None
    """One word for people; programs read the conditions."""
    conditions: Annotated[tuple[Condition, ...], Len(0, 16), MapList(("type",))] = ()
    """The aspects of the job's state."""
    observed_generation: Annotated[int, Ge(0), Int64()] | None = None
    """The `metadata.generation` that the status speaks of."""
    placement: Placement | None = None
    """Where the gang runs."""
    stop: Stop | None = None
    """Set while the placement is being ended."""
    promise: Promise | None = None
    """Room that is kept for the job until those that are asked to leave it are gone."""
    placements: Annotated[int, Ge(0), Int64()] | None = None
    """Number of the last placement; the next one gets this number plus one. The first is 1, or higher where a lost node
    still keeps pods of a deleted job of this name."""
    incarnation: Annotated[int, Ge(0), Int64()] | None = None
    """Counts every re-join or restart of the gang's processes."""
    restarts: Count | None = None
    """How often the whole gang was started anew, with new pods: after failures, drains and lost nodes."""
    failures: Count | None = None
    """Failures of the training script and for want of memory, over all time. Those that were answered by a restart in
    place stand in `placement.restarts` until the placement ends."""
    restarts_in_place: Count | None = None
    """How often the processes of the gang were started again in the pods that they had, after a crash."""
    breakdowns: Count | None = None
    """How often the platform ended a run of the job: a node or a pod was lost, or taken away."""
    replacements: Count | None = None
    """Workers that were lost and replaced alone, while the others of the gang waited in their pods."""
    preemptions: Count | None = None
    """How often the job gave its room to another."""
    preempted_at: Annotated[tuple[Timestamp, ...], Len(0, 32)] = ()
    """When it last did, for `disruptionBudget`."""
    lost_gpu_seconds: Annotated[int, Ge(0), Int64()] | None = None
    """GPU-seconds that this has cost, of lost work and restarts: none where the gang had saved its last step before it
    left, else as much as was expected when it was asked."""
    start_seconds: Annotated[int, Ge(0), Int64()] | None = None
    """What the last start took: from the placement until all workers had joined and their ranks were started. Imports
    and the model come after it; `goodput.seconds.starting` counts up to the first step, over all starts."""
    stop_seconds: Annotated[int, Ge(0), Int64()] | None = None
    """What the last stop took, from being asked until the last pod was gone."""
    withdrawals: Count | None = None
    """How often the whole gang was taken back before it trained, since it last did."""
    not_before: Timestamp | None = None
    """The next placement is not made before this moment."""
    avoided: Annotated[tuple[AvoidedNode, ...], Len(0, 64)] = ()
    """Nodes that the gang stays away from for a while."""
    checkpoint: CommittedCheckpoint | None = None
    """The last committed checkpoint."""
    saving: Saving | None = None
    """How often checkpoints are taken."""
    numerics: NumericsStatus | None = None
    """Steps whose numbers were not sound, where `numerics` has them watched."""
    warnings: Annotated[tuple[TrainingWarning, ...], Len(0, WARNINGS_KEPT)] = ()
    """What the training warned of last and went on, the oldest first: a damaged checkpoint in whose place an older one
    was taken, saves that were given up or left out."""
    progress: Progress | None = None
    """How far the training is."""
    tracking: TrackingStatus | None = None
    """The run in its tracker, where `tracking` names one."""
    profile: ProfileStatus | None = None
    """The last profile of its steps."""
    goodput: Goodput | None = None
    """How much of its time was training, and where the rest went."""
    fixed_size: FixedSize | None = None
    """Set while the training can go on with as many workers only; then the job is never resized."""
    sizes: Annotated[tuple[Size, ...], Len(0, MAX_SIZES)] = ()
    """The last sizes of an elastic gang, the oldest first."""
    growth: Growth | None = None
    """Why an elastic gang that runs has fewer workers than it asks for; told at most once a minute."""
    queue: QueuePosition | None = None
    """Why the job waits; gone while it runs."""
    failure: Failure | None = None
    """The first cause of the last failure."""
    recent_failures: Annotated[tuple[PastFailure, ...], Len(0, 5 * (MAX_RESTARTS + 1))] = ()
    """The last failures of each kind, the oldest first; the limits of `restart` count those within its window."""
    node_faults: Annotated[tuple[NodeFault, ...], Len(0, 32)] = ()
    """What its nodes have done to the job, the oldest first; one for each node, cause and placement."""
    defaults: JobDefaults | None = None
    """What the queue's `defaultTemplate` filled in where the job says nothing; kept while the job is placed."""
    priority: Annotated[int, Ge(-(2**31)), Le(2**31 - 1)] | None = None
    """The value of its PriorityClass since it was first placed. It counts as long as there is none of the name that the
    spec has. Gone while it is suspended."""
    replicas: Count | None = None
    """Workers that the job holds now."""
    workers: Annotated[str, Len(0, 16)] = ""
    """The same for people: `8`, or `6/8` where it holds 6 and asks for 8. What it asks for while it holds none."""
    ready: Count | None = None
    """Workers whose pods are ready."""
    gpus: Count | None = None
    """GPUs that the job asks for, or holds."""
    nodes: Annotated[str, Len(0, 1024)] | None = None
    """The nodes in short, for `kubectl get -o wide`."""
    selector: Annotated[str, Len(0, 512)] | None = None
    """Label selector of the job's pods, for the scale subresource."""
    submitted_at: Timestamp | None = None
    """First submit; kept over preemptions and restarts, and the job's age in the order of its queue."""
    started_at: Timestamp | None = None
    """When the gang first trained."""
    running_since: Timestamp | None = None
    """When the present run passed its barrier."""
    runtime_seconds: Annotated[int, Ge(0), Int64()] | None = None
    """Time trained in runs that have ended; `maxRuntime` counts it and the present run."""
    usage: Usage | None = None
    """GPU time and money of placements that have ended; `budget` counts them and the present placement."""
    finished_at: Timestamp | None = None
    """When the job ended."""

    @property
    def restarts_used(self) -> int:
        """Failures of the training script so far, over all time."""
        here = self.placement.restarts if self.placement is not None else None
        return (self.failures or 0) + (here or 0)

    def to_raw(self) -> dict[str, Any]:
        """Without what is empty or as it is when nothing is said: each byte is read and written many times."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
