"""Every label, annotation, condition type and reason of Muster, each with what it says. All of them are API."""

from __future__ import annotations

from enum import Enum
from typing import Final

FIELD_MANAGER: Final = "muster"
"""Field manager of everything that the operator writes."""


# -- labels that the operator sets on what it makes ------------------------------------------------------------------

JOB_LABEL: Final = "muster.dev/job"
"""Name of the TrainingJob; on its pods, its Service and its Secret. `status.selector` selects by it."""
JOB_UID_LABEL: Final = "muster.dev/job-uid"
"""UID of the TrainingJob, so that a job made anew under the same name never takes old pods for its own."""
GENERATION_LABEL: Final = "muster.dev/generation"
"""Counts the whole gang's placements, from 1; on pods."""
INDEX_LABEL: Final = "muster.dev/index"
"""The worker's index in its gang, from 0; on pods."""
ATTEMPT_LABEL: Final = "muster.dev/attempt"
"""Counts the replacements of one index within a generation, from 0; on pods."""
QUEUE_LABEL: Final = "muster.dev/queue"
"""Name of the TrainingQueue that the pod's room is counted in; on pods."""
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
"""Kubernetes' own; the operator sets `MANAGED_BY`. Informers select pods' companions by it."""
MANAGED_BY: Final = "muster"

REQUEST_KEY_ANNOTATION: Final = "muster.dev/request-key"
"""Hash of what a ProvisioningRequest asks for; on the request."""
REQUEST_ATTEMPT_ANNOTATION: Final = "muster.dev/request-attempt"
"""How often the same was asked for, from 1; on the request."""

ADDRESS_ANNOTATION: Final = "muster.dev/address"
"""`host:port` at which the operator that leads answers HTTP; on its Lease. The other replicas pass on to it."""

KEEP_ANNOTATIONS: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations of the pods that ask autoscalers to leave their node alone: one pod that is moved ends its whole gang. A
job's `podTemplate` may say otherwise."""

OWN_LABELS: Final = (
    JOB_LABEL,
    JOB_UID_LABEL,
    GENERATION_LABEL,
    INDEX_LABEL,
    ATTEMPT_LABEL,
    QUEUE_LABEL,
    MANAGED_BY_LABEL,
)
"""Labels that a job's `podTemplate` may not set."""

# -- labels that Muster reads on jobs --------------------------------------------------------------------------------

USER_LABEL: Final = "muster.dev/user"
"""Who pays for the job; a label or an annotation. The history and the cost report group by it."""
PROJECT_LABEL: Final = "muster.dev/project"
"""What the job is for; a label or an annotation. The history and the cost report group by it."""

# -- labels that Muster reads on nodes -------------------------------------------------------------------------------

GPU_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
"""Set by NVIDIA's GPU feature discovery, like `NVIDIA-H100-80GB-HBM3`. `workers.gpuType` is matched with it."""
CAPACITY_LABEL: Final = "muster.dev/capacity"
"""`on-demand`, `reserved` or `spot`. A node without it is on-demand, unless a cloud's label says otherwise."""
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
BLOCK_LABEL: Final = "muster.dev/block"
"""Racks behind one spine switch. Set by the site's labeller."""
RACK_LABEL: Final = "muster.dev/rack"
"""Hosts behind one leaf switch, or one NVLink domain. Set by the site's labeller."""
HOST_LABEL: Final = "kubernetes.io/hostname"

GPU_RESOURCE: Final = "nvidia.com/gpu"
"""The extended resource that `workers.gpusPerWorker` asks for."""

# -- what the operator leaves on nodes, with `badNodes.policy: taint` ------------------------------------------------

QUARANTINE_TAINT: Final = "muster.dev/quarantined"
"""Key of the `NoSchedule` taint of a node on which gangs failed again and again."""
QUARANTINE_REASON: Final = "muster.dev/quarantine-reason"
"""Annotation: what has failed there, for people."""
QUARANTINE_UNTIL: Final = "muster.dev/quarantine-until"
"""Annotation: when the operator takes the taint away. A taint without it is somebody else's, and stays."""
QUARANTINE_LIFTED: Final = "muster.dev/quarantine-lifted"
"""Annotation: when the last quarantine ended; what failed before counts no more."""

# -- objects that the chart makes ------------------------------------------------------------------------------------

DEFAULT_TOPOLOGY: Final = "default"
"""The one Topology that the planner reads today."""
DEFAULT_QUEUE: Final = "default"
"""The queue of a job that names none."""
GANG_PRIORITY_CLASS: Final = "muster-gang"
"""PriorityClass of all training pods; `preemptionPolicy: Never`, so that only Muster's planner ever preempts."""


class Phase(str, Enum):
    """`status.phase` of a TrainingJob: one word for people, derived from the conditions, never read by programs."""

    QUEUED = "Queued"
    """Waits for quota and room; `status.queue` says for what."""
    STARTING = "Starting"
    """Placed; its pods are being made, pull images and join the barrier."""
    RUNNING = "Running"
    """Every worker has joined and the ranks train."""
    PREEMPTING = "Preempting"
    """Asked to make room, or suspended; saves a checkpoint and stops."""
    RESTARTING = "Restarting"
    """Failed in a way that a restart may mend; its old pods go, then it starts again."""
    SUSPENDED = "Suspended"
    """Stopped because `spec.suspend` is true, or because its GPUs were idle."""
    SUCCEEDED = "Succeeded"
    """Trained to its end."""
    FAILED = "Failed"
    """Ended and is not tried again; `status.failure` says why."""


class ConditionType(str, Enum):
    """`status.conditions[].type` of a TrainingJob."""

    ADMITTED = "Admitted"
    """True while the job holds quota and nodes for every worker. False: the reason says what it waits for."""
    PODS_READY = "PodsReady"
    """True while every pod of the placement runs and its launcher has answered."""
    RUNNING = "Running"
    """True while the gang has passed its barrier and the ranks train, also while a crash or a loss is mended in the
    living gang."""
    CHECKPOINT_STORAGE_READY = "CheckpointStorageReady"
    """False when the launchers cannot use `checkpoint.uri`; the message is the storage's. Unknown before that."""
    CHECKPOINT_IN_MEMORY = "CheckpointInMemory"
    """Whether the newest checkpoint also stays in the workers' memory, and where; the message tells what is lacking to
    more. From the first save on; the memory ends with the pods."""
    STRAGGLING = "Straggling"
    """True while a rank is slower than the others for a while, and all wait for it; the message names rank, node and
    factor. Absent before the first."""
    GPUS_IDLE = "GPUsIdle"
    """True while the GPUs of all workers have been idle for longer than the queue's `idle` allows, and while the job is
    suspended for that. Unknown where nobody knows any more how busy they are. Absent before the first time."""
    PRIORITY_CLASS_MISSING = "PriorityClassMissing"
    """True while `priorityClassName` of a job that has run names no PriorityClass: the priority that it had counts
    until it does. Absent before the first time."""
    EDIT_REFUSED = "EditRefused"
    """True while a gang runs whose spec has been edited to one that the API server refuses the pods of: it runs on as
    it was made. The reason and the message are those that a waiting job would have. Absent before the first time."""
    TRACKING_REACHABLE = "TrackingReachable"
    """False while the tracker that `spec.tracking` names does not take what it is told; the message says why. The
    training goes on, and what is not told yet is kept for a while. Absent before the first word."""
    SUSPENDED = "Suspended"
    """True when the job was stopped and stays so, its last pod being gone: for `spec.suspend`, or because its GPUs were
    idle; then until its spec changes."""
    DEADLINE_REACHABLE = "DeadlineReachable"
    """Whether `spec.deadline` can be met, from the expected start where that is known well enough, else from the
    earliest possible one. Unknown when nothing tells how long the job takes. Only with a deadline."""
    SUCCEEDED = "Succeeded"
    """True when the training ended well. Final."""
    FAILED = "Failed"
    """True when the training ended badly and is not tried again. Final; `status.failure` has the first cause."""
    CAPACITY_REQUESTED = "CapacityRequested"
    """True while an autoscaler is asked for nodes for the gang. False: it failed, or none are needed. Absent where
    nothing was asked."""


class QueueConditionType(str, Enum):
    """`status.conditions[].type` of a TrainingQueue."""

    READY = "Ready"
    """True when the queue takes jobs. False: the reason says what is wrong with its spec or its parent, that it is
    held, or that a budget is used up."""
    PARENT_FOUND = "ParentFound"
    """False when `spec.parent` cannot be the queue's parent; then the queue takes no jobs. Absent without one."""


class TopologyConditionType(str, Enum):
    """`status.conditions[].type` of a Topology."""

    READY = "Ready"
    """True when every usable node has the labels of every level; False: the message names nodes that lack one."""


class Reason(str, Enum):
    """Condition reasons that are not the planner's (`muster.scheduling.plan.WaitReason` has those)."""

    # Admitted = True
    ADMITTED = "Admitted"
    """Quota and nodes are held."""

    # Admitted = False
    PENDING = "Pending"
    """Seen, not planned yet."""
    QUEUE_NOT_FOUND = "QueueNotFound"
    """`spec.queue` names no TrainingQueue. The job starts when there is one."""
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    """The queue's `namespaces` selector does not select the job's namespace."""
    TOPOLOGY_NOT_FOUND = "TopologyNotFound"
    """The Topology `default` does not exist and the job asks for a level of it."""
    LEVEL_NOT_FOUND = "LevelNotFound"
    """`topology.level` is not a level of the Topology."""
    LEVELS_OUT_OF_ORDER = "LevelsOutOfOrder"
    """`topology.slices` name levels that are not narrower than the ones before them, or than the required level."""
    UNKNOWN_GPU_TYPE = "UnknownGpuType"
    """No node of the cluster has GPUs of `workers.gpuType`. The job starts when one does."""
    PRIORITY_CLASS_NOT_FOUND = "PriorityClassNotFound"
    """`priorityClassName` names no PriorityClass. Of PriorityClassMissing, too."""
    CHECKPOINT_PATH_CONFLICT = "CheckpointPathConflict"
    """Another live job has the same `checkpoint.uri`; the message names it. The job starts when that one has ended, or
    is deleted or suspended."""
    INVALID_SPEC = "InvalidSpec"
    """The stored object does not fit the model of this operator's version."""
    INVALID_POD_TEMPLATE = "InvalidPodTemplate"
    """`podTemplate` sets what Muster sets, it or `volumes` has a field that no pod has, or the API server refuses the
    pod that they make."""
    POD_REFUSED = "PodRefused"
    """The API server refused a pod (ResourceQuota, LimitRange, Pod Security, a webhook, ...); the whole gang was
    withdrawn."""
    POD_UNSCHEDULABLE = "PodUnschedulable"
    """kube-scheduler or kubelet rejected a pod (somebody took the room); the whole gang was withdrawn."""
    SCHEDULING_REFUSED = "SchedulingRefused"
    """kube-scheduler refuses a pod whichever node it is for: a claim that it names is missing or not bound."""
    READY_TIMEOUT = "ReadyTimeout"
    """Not every pod was ready within `readyTimeout`; the whole gang was withdrawn."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """A pod's image cannot be pulled; the message is the registry's. The word stays while it is tried again."""
    INVALID_WINDOW = "InvalidWindow"
    """`window` names a time zone that does not exist, or a moment that never comes."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    """The job's `budget`, or a budget of the month of its queue or one above, is used up; the message says what mends
    it. Of a queue, too."""
    BACKOFF = "Backoff"
    """Waits before the next try; `status.notBefore` says until when."""
    RESTARTING = "Restarting"
    """The last run failed, or its spec has changed; its pods are being removed before the next."""
    STOPPING = "Stopping"
    """Its pods are on their way out; quota and room are held until the last is gone."""
    SUSPENDED = "Suspended"
    """`spec.suspend` is true."""
    GPUS_IDLE = "GPUsIdle"
    """Its GPUs were idle for longer than its queue allows; the message says how it goes on. Of Suspended, too."""
    FINISHED = "Finished"
    """The job has ended."""

    # PodsReady, Running
    PODS_STARTING = "PodsStarting"
    """Pods are being made, or their images pulled."""
    PODS_READY = "PodsReady"
    """Every pod is ready."""
    WAITING_FOR_GANG = "WaitingForGang"
    """Some workers have not joined the barrier."""
    TRAINING = "Training"
    """The gang has passed its barrier."""
    NO_PODS = "NoPods"
    """The job holds no pods."""
    POD_LOST = "PodLost"
    """A worker was lost and is made anew; the others wait in their pods."""

    # Straggling
    SLOW_RANK = "SlowRank"
    """Its own part of a step takes longer than the gang's median by more than `health.slowerBy`."""
    EVEN_PACE = "EvenPace"
    """All ranks keep up."""

    # PriorityClassMissing
    PRIORITY_CLASS_FOUND = "PriorityClassFound"
    """There is one of that name."""

    # EditRefused
    EDIT_TAKEN_BACK = "EditTakenBack"
    """The spec is again the one that the gang runs."""

    # GPUsIdle
    HARDLY_USED = "HardlyUsed"
    """Each minute of the queue's `idle.after` was below its `idle.below`."""
    IN_USE = "InUse"
    """A minute was not."""
    NOT_KNOWN = "NotKnown"
    """NVML no longer tells of all workers, or index 0's launcher does not answer."""
    NOT_WATCHED = "NotWatched"
    """Neither the queue nor one above it has `idle` any more, or the job has `health.idle` false."""

    # CheckpointStorageReady
    STORAGE_READY = "StorageReady"
    """The launchers can use the storage."""
    STORAGE_ERROR = "StorageError"
    """The bucket does not exist, denies access or does not answer; the message has the storage's words."""
    NOT_CHECKED = "NotChecked"
    """No launcher has tried the storage yet."""

    # TrackingReachable
    TRACKED = "Tracked"
    """The tracker takes what it is told."""
    TRACKER_FAILS = "TrackerFails"
    """It can't be reached, refuses access, or fails."""

    # CheckpointInMemory
    KEPT_LOCALLY = "KeptLocally"
    """In each worker's own memory: a crash of a rank is mended from there, a lost worker from the store."""
    KEPT_BY_PEERS = "KeptByPeers"
    """Also in another worker's memory: a lost worker is mended from there."""
    COPY_FAILS = "CopyFails"
    """In each worker's own memory, but the copy of one keeps failing; the message says why. Should that worker be lost,
    the gang restores from the store."""
    NOT_KEPT = "NotKept"
    """Every restart restores from the store: memory doesn't suffice, or it wasn't wanted."""

    # DeadlineReachable
    IN_TIME = "InTime"
    """It can end before the deadline."""
    TOO_LATE = "TooLate"
    """It cannot, or not with all of `maxRuntime`; the message says when it ends, and whether that is for its wait."""
    DEADLINE_PASSED = "DeadlinePassed"
    """It has passed, and the job has not ended. It goes on."""
    LENGTH_UNKNOWN = "LengthUnknown"
    """Neither progress nor `maxRuntime` tells how long it takes."""
    CANNOT_START = "CannotStart"
    """It waits for what may never come: more than the cluster, or its queue, has."""
    NO_DEADLINE = "NoDeadline"
    """The deadline was taken away."""

    # CapacityRequested
    REQUESTED = "Requested"
    """A ProvisioningRequest asks for the nodes of the whole gang."""
    PROVISIONED = "Provisioned"
    """The autoscaler says that they are there."""
    PROVISIONING_FAILED = "ProvisioningFailed"
    """It could not get them; the message has its words, and when it is asked again."""
    NOT_NEEDED = "NotNeeded"
    """The job does not lack nodes now."""

    # Succeeded, Failed
    COMPLETED = "Completed"
    """Every rank ended with exit code 0."""
    NOTHING_LEFT = "NothingLeft"
    """Every rank ended with exit code 0 and trained nothing: the run at `checkpoint.uri` had finished before. The
    message says at which step, and how to begin a fresh run."""
    USER_ERROR = "UserError"
    """The training script failed more often than `restart.limit` allows, or uses its session in a way that no start
    makes right."""
    IDENTICAL_FAILURES = "IdenticalFailures"
    """The training script failed twice alike, with the same exception at the same place and step: mend it."""
    OUT_OF_MEMORY = "OutOfMemory"
    """A worker or a GPU ran out of memory more often than `restart` allows, or twice at the same step."""
    HUNG = "Hung"
    """The ranks ran and did not get on, more often than `restart.limit` allows."""
    UNSOUND_NUMBERS = "UnsoundNumbers"
    """Losses or gradients were not finite, or spiked, and `numerics` asks for an end; the message says which."""
    CONFIGURATION_ERROR = "ConfigurationError"
    """The run cannot start as it is written: image, command or storage."""
    RESTART_LIMIT_EXCEEDED = "RestartLimitExceeded"
    """The network or the platform failed more often than `restart.causes` allows."""
    MAX_RUNTIME_EXCEEDED = "MaxRuntimeExceeded"
    """`maxRuntime` has passed; a checkpoint was saved where the script can."""
    NOT_FINISHED = "NotFinished"
    """The job goes on."""

    # Suspended = False
    NOT_SUSPENDED = "NotSuspended"
    """`spec.suspend` is false."""

    # TrainingQueue, Topology
    READY = "Ready"
    """In use."""
    HELD = "Held"
    """`stopPolicy` of the queue, or of one above it, is hold."""
    DRAINED = "Drained"
    """`stopPolicy` of the queue, or of one above it, is holdAndDrain."""
    PARENT_FOUND = "ParentFound"
    """The queue has the parent that it names."""
    PARENT_NOT_FOUND = "ParentNotFound"
    """`spec.parent` names no TrainingQueue."""
    PARENT_CIRCLE = "ParentCircle"
    """The parents of some queues lead back to themselves."""
    NODES_NOT_LABELLED = "NodesNotLabelled"
    """Nodes that lack a level's label take no job that asks for this level."""


class EventReason(str, Enum):
    """Reasons of Events on a TrainingJob: decisions and troubles. That a job trains, or has ended well, is in its
    conditions; repetitions become a series."""

    QUEUED = "Queued"
    """The turn of a job alone does not help it, so something has to change: a Warning; or that is over, and it waits
    for its turn. The note says for what. A job that waits for its turn alone has it in its status, and no Event."""
    ADMITTED = "Admitted"
    """Nodes were chosen; the note says how many, and in which domain. A job that only waited for its first turn, and
    for which nobody had to leave, has it in its status, and no Event."""
    WITHDRAWN = "Withdrawn"
    """The whole gang was taken back before it trained; not counted as the user's failure."""
    WORKER_FAILED = "WorkerFailed"
    """A worker ended; the note has index, rank, exit code and cause."""
    WORKER_REPLACED = "WorkerReplaced"
    """Lost workers were replaced alone, or workers of broken nodes, or spares, got another node; the note tells."""
    RESTARTING = "Restarting"
    """The gang starts again from its last committed checkpoint; of one that was drained the note says so. A Warning: it
    does so without fields of the job that no pod has."""
    RESTARTED_IN_PLACE = "RestartedInPlace"
    """A rank crashed, and the gang's processes were started again in the pods that they have; the note says why."""
    UNSOUND_NUMBERS = "UnsoundNumbers"
    """A step's loss or gradients were not finite, or spiked: its update was left out, or the run went back to its last
    checkpoint and on without the batch. The note has step and value."""
    TRAINING_WARNING = "TrainingWarning"
    """The training warns of something and goes on, as of a damaged checkpoint in whose place it took an older one; the
    note has its words, which `status.warnings` keeps. Each is told once."""
    PROFILED = "Profiled"
    """Steps were recorded by PyTorch's profiler, as `muster profile` had asked; the note says where the traces lie."""
    PROFILE_FAILED = "ProfileFailed"
    """They were not, or could not be stored; the note says why. The training goes on."""
    STRAGGLER = "Straggler"
    """A rank is slower than the others for a while, and all wait for it; the note names node and factor."""
    GPUS_IDLE = "GPUsIdle"
    """The GPUs of all workers are idle for longer than the queue's `idle` allows; the note says what follows and how
    to mend it."""
    PREEMPTING = "Preempting"
    """Room is kept for the job, and others are asked to leave it; the note says how many and what it costs."""
    PROMISE_BROKEN = "PromiseBroken"
    """The room that was kept for the job can't be had any more; the note says why. It waits in its old order. Not told
    of a gang that starts again and whose own nodes are drained or gone: `Restarting` was."""
    PREEMPTED = "Preempted"
    """Asked to make room for another job; the note names it and says what it costs."""
    MOVED = "Moved"
    """Asked to stop and go on elsewhere or with another size; the note says why."""
    LAST_SAVE_FAILED = "LastSaveFailed"
    """The gang was asked to stop, and its last steps are in no checkpoint: the save failed, or did not fit into
    `terminationGracePeriod`. They will be done again; the note has the launcher's words."""
    TIME_IS_UP = "TimeIsUp"
    """Its window has closed or its budget is used up: the gang saves a checkpoint and stops."""
    PRIORITY_CLASS_NOT_FOUND = "PriorityClassNotFound"
    """The spec of a job that has run names a PriorityClass that is not there; the note says which priority counts."""
    EDIT_REFUSED = "EditRefused"
    """The API server refuses the pods of the spec that a running gang was edited to: it runs on as it was made."""
    DEADLINE_AT_RISK = "DeadlineAtRisk"
    """The deadline cannot be met any more; the note says by how much."""
    SUSPENDED = "Suspended"
    """`spec.suspend` became true, or the GPUs were idle for too long, and the last pod is gone."""
    RESUMED = "Resumed"
    """`spec.suspend` became false, or the spec of a job that was suspended for idle GPUs has changed."""
    RUN_LEFT = "RunLeft"
    """`checkpoint.uri` became another one while the job had no pods; the note says where its last checkpoint stays."""
    CAPACITY_REQUESTED = "CapacityRequested"
    """An autoscaler was asked for nodes, or has answered."""
    STORAGE_ERROR = "StorageError"
    """The launchers cannot use the checkpoint storage."""
    FAILED = "Failed"
    """The job has failed; the note has the first cause."""


class NodeEventReason(str, Enum):
    """Reasons of Events on a Node."""

    QUARANTINED = "Quarantined"
    """Gangs failed there again and again: it takes no new pods for a while. The note says what failed, until when."""
    QUARANTINE_LIFTED = "QuarantineLifted"
    """It takes pods again: its time was over, or somebody took the taint away."""
