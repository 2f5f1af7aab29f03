"""TrainingJob: one training run."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from annotated_types import Ge, Le, Len
from pydantic import Field

from muster.api.common import (
    Count,
    Duration,
    DurationOrAuto,
    Label63,
    Labels,
    Model,
    ObjectName,
    Resource,
    S3Uri,
    Step,
    Timestamp,
    cel_text,
    matches,
)
from muster.api.jobparts import MAX_WORKERS, Capacity, DisruptionBudget, Hang, Health, JobTopology, Restart
from muster.api.names import DEFAULT_QUEUE
from muster.api.numerics import Numerics
from muster.api.placement import MAX_SPARES
from muster.api.podparts import (
    EnvFromSource,
    EnvVar,
    NameRef,
    PodTemplate,
    Toleration,
    Volume,
    VolumeMount,
    WorkerResources,
)
from muster.api.rules import (
    CHECKPOINT_RULES,
    COMMAND_RULE,
    ENCRYPTION_RULES,
    GRACE_RULE,
    INTERVAL_RULE,
    JOB_RULES,
    MAX_RUNTIME_RULE,
    READY_TIMEOUT_RULE,
    SPEC_RULES,
    WORKERS_RULES,
)
from muster.api.schema import Atomic, MapList, Rule, SchemaDefault
from muster.api.terms import JobBudget, Window
from muster.api.tracking import Tracking
from muster.api.trainingjob_status import TrainingJobStatus
from muster_protocol.uris import S3_URI_PATTERN

Argument = Annotated[str, Len(0, 4096)]
GpuType = Annotated[
    str,
    Len(1, 63),
    matches(
        "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "use a short name such as H100, or the value of the nodes' label nvidia.com/gpu.product",
    ),
]
Url = Annotated[
    str,
    Len(1, 512),
    matches(r"^https?://[^\s]+$", "write the URL of an S3 server, like https://s3.example.com"),
]
ConfigKey = Annotated[str, Len(1, 253), matches(r"^[-._a-zA-Z0-9]+$", "use letters, digits, dashes and dots")]
MOMENT_PATTERN = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
"""CEL takes a zone of a whole day, and of 60 minutes, too."""
Deadline = Annotated[
    Timestamp,
    Rule(
        f"self.matches({cel_text(MOMENT_PATTERN)}) && timestamp(self).getFullYear() > 0",
        "write a moment as date, time and time zone, like 2026-12-01T08:00:00Z or 2026-12-01T08:00:00+01:00",
    ),
]
UriAtStep = Annotated[str, Len(1, 1060), matches(S3_URI_PATTERN, "write s3://BUCKET/PREFIX or s3://BUCKET/PREFIX@STEP")]


class Strategy(str, Enum):
    """How `session.wrap` spreads the model over the ranks."""

    DDP = "ddp"
    """every rank holds the whole model."""
    FSDP = "fsdp"
    """parameters, gradients and optimizer state are sharded over all ranks."""
    HSDP = "hsdp"
    """sharded within a worker, replicated over the workers."""


class BestMode(str, Enum):
    """Which values of a metric are good."""

    MIN = "min"
    """Small ones."""
    MAX = "max"
    """Large ones."""


class Load(str, Enum):
    """What a warm start takes from another run's checkpoint."""

    ALL = "all"
    """model, optimizer, data position and step."""
    MODEL = "model"
    """the weights alone; the run begins at step 0."""


class Workers(Model):
    """The gang: how many workers, and what each of them holds. A worker is one pod."""

    RULES = WORKERS_RULES

    replicas: Annotated[int, Ge(1), Le(MAX_WORKERS)]
    """Number of workers. The gang starts with exactly this many, or not at all."""
    min: Annotated[int, Ge(1), Le(MAX_WORKERS)] | None = None
    """Fewest workers that the gang may run with, `replicas` when left out. With `min` below `max` the gang is elastic:
    it gives workers back when others need them, gets more when there is idle room, and goes on from its last checkpoint
    with its new size; `kubectl scale` may change `replicas`, the wish, between them. What it has beyond the wish it
    gives back when others need it, or where `max` is lower by then, at its next start."""
    max: Annotated[int, Ge(1), Le(MAX_WORKERS)] | None = None
    """Most workers, `replicas` when left out. See `min`."""
    step: Annotated[int, Ge(1), Le(MAX_WORKERS)] | None = None
    """The gang has `min` workers and a multiple of this many. Left out: `parallelism.workersPerReplica`, so that every
    size is a number of whole replicas of the model."""
    partial: bool | None = None
    """When true, the gang may start with fewer workers than `replicas`, though not with fewer than `min`, and grows
    when there is room. Left out: true when `min` is below `replicas`."""
    shrink_after: Duration | None = None
    """How long the others of an elastic gang wait in their pods when a worker's node is gone and there is no other for
    it. Then the gang goes on with fewer workers, though not with fewer than `min`. Left out: 1m."""
    spares: Annotated[Count, Le(MAX_SPARES)] | None = None
    """Room for so many more workers is kept for the gang, where its topology lets them be, so that it goes on at once
    when nodes break. No pods run there; it counts against quota, budget and `status.gpus`. Left out: 0."""
    gpus_per_worker: Annotated[int, Ge(0), Le(128)] | None = None
    """GPUs of each worker. Left out, or 0: a gang on CPUs."""
    gpu_type: GpuType | None = None
    """Type of the GPUs: a short name such as H100, or the value of the nodes' label nvidia.com/gpu.product. Left out:
    the type of which the cluster has the most nodes, of those on one of which it may run."""
    processes_per_worker: Annotated[int, Ge(1), Le(256)] | None = None
    """Ranks in each worker. One for each GPU, or 1 on CPUs, when left out."""
    resources: WorkerResources | None = None
    """CPU, memory and other resources of each worker."""


class Parallelism(Model):
    """How the training is spread over the ranks."""

    strategy: Strategy | None = None
    """Left out: ddp."""
    workers_per_replica: Annotated[int, Ge(1), Le(MAX_WORKERS)] | None = None
    """Workers that hold one replica of the model together, where the script divides it by tensor, pipeline, context or
    expert parallelism: ranks of one replica by ranks of one worker. The gang has whole replicas only, at every size.
    Left out: 1."""


class Best(Model):
    """The checkpoints with the best values of a metric."""

    metric: Annotated[str, Len(1, 63), matches(r"^[^:\s]+$", "a metric's name has neither spaces nor colons")]
    """Name of the metric, as `session.report` is given it, or loss: the mean loss since the checkpoint before."""
    mode: BestMode | None = None
    """Whether small or large values are good. Left out: min."""
    count: Annotated[int, Ge(1), Le(1000)] | None = None
    """How many are kept. Left out: 1."""


class Retention(Model):
    """Which checkpoints are kept. The committed one and its two ancestors always are, and those that were tagged by
    `muster checkpoint keep`."""

    last: Annotated[int, Ge(1), Le(1000)] | None = None
    """How many of the newest are kept. Left out: 3."""
    every: Annotated[Step, Ge(1)] | None = None
    """Checkpoints at multiples of this many steps are kept for ever."""
    every_hours: Annotated[int, Ge(1), Le(8760)] | None = None
    """The first checkpoint in each span of so many hours is kept for ever."""
    best: Best | None = None
    """Those with the best values of a metric are kept."""


class EncryptionType(str, Enum):
    """Who keeps the key that objects are encrypted with."""

    SSE_S3 = "SSE-S3"
    SSE_KMS = "SSE-KMS"


class Encryption(Model):
    """What the S3 server is asked to encrypt each object with."""

    RULES = ENCRYPTION_RULES

    type: EncryptionType
    """SSE-S3: with a key of the server's. SSE-KMS: with a key of a key server."""
    key_id: Annotated[str, Len(1, 2048), matches(r"^[^\s]+$", "a key's id has no spaces")] | None = None
    """Id or ARN of the key. Left out, with SSE-KMS: the account's own key for S3."""


class Addressing(str, Enum):
    """Where requests name the bucket."""

    PATH = "path"
    VIRTUAL = "virtual"


class KeptInMemory(str, Enum):
    """Where the newest checkpoint stays beside the store."""

    AUTO = "auto"
    OFF = "off"
    LOCAL = "local"
    PEER = "peer"


class KeyOfConfigMap(Model):
    """A key of a ConfigMap in the job's namespace."""

    name: ObjectName
    """Name of the ConfigMap."""
    key: ConfigKey | None = None
    """The key. Left out: ca.crt."""


class Checkpoint(Model):
    """Where the run saves its state, and how often."""

    RULES = CHECKPOINT_RULES

    uri: S3Uri
    """`s3://BUCKET/PREFIX`. The bucket must exist; the prefix belongs to this job alone."""
    interval: Annotated[DurationOrAuto, INTERVAL_RULE] | None = None
    """Time between checkpoints, like 10m, or auto: that at which saves and lost work cost the least together, by what a
    save costs this run and how often nodes of its `capacity` fail. Left out: 10m, or none by time when `everySteps` is
    set."""
    every_steps: Annotated[Step, Ge(1)] | None = None
    """Steps between checkpoints."""
    retention: Retention | None = None
    """Which checkpoints are kept."""
    memory: KeptInMemory | None = None
    """local: the newest one also stays in the workers' own memory, so that a crash is mended without the store. That
    takes two copies of a worker's part of the state, within its memory request and limit. peer: each worker also keeps
    that of another, on another node where there is one, so that a lost worker is mended so, too; three copies. auto:
    peer where there is room for it and the gang lies on several nodes, else local where there is room for that; room
    goes by the memory limit, or by the request where there is no limit. off: one copy, while it is written. Left out:
    auto."""
    secret_ref: NameRef | None = None
    """Secret in the job's namespace with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; AWS_SESSION_TOKEN, AWS_REGION and
    AWS_ENDPOINT_URL_S3 may stand beside them. Left out: the pods get their credentials otherwise, for example from
    their service account."""
    endpoint: Url | None = None
    """URL of the S3 server. Left out: AWS's own."""
    addressing: Addressing | None = None
    """path: `https://s3.example.com/BUCKET`; virtual: `https://BUCKET.s3.example.com`. Left out: path with `endpoint`,
    and what AWS wants without."""
    ca_config_map_ref: KeyOfConfigMap | None = None
    """Certificates (PEM) that the S3 server's is checked by. Left out: the public authorities'."""
    encryption: Encryption | None = None
    """What objects are encrypted with. Left out: as the bucket's own setting wants it."""
    from_: UriAtStep | None = Field(None, alias="from")
    """Checkpoint of another run to start from, `s3://BUCKET/PREFIX` or `s3://BUCKET/PREFIX@STEP`. Only used while this
    job has no checkpoint of its own."""
    load: Load | None = None
    """What is taken from `from`. Left out: all."""


class TrainingJobSpec(Model):
    """What is to be trained, on what, and how."""

    RULES = SPEC_RULES

    queue: Annotated[Label63, SchemaDefault(DEFAULT_QUEUE)] = DEFAULT_QUEUE
    """Name of the TrainingQueue that the job waits in and whose quota it uses."""
    image: Annotated[str, Len(1, 1024), matches(r"^[^\s]+$", "an image reference has no spaces")]
    """Image with Python 3.10 or newer, torch 2.6 or newer, and the training script. Muster brings its own runtime."""
    command: Annotated[tuple[Argument, ...], Len(1, 64), COMMAND_RULE]
    """The training command, as it would be typed for one process: `[python, train.py]`. It is not given to a shell; as
    in any pod, `$(NAME)` is replaced by a variable of `env`, and `$$` by `$`."""
    args: Annotated[tuple[Argument, ...], Len(0, 256)] | None = None
    """Arguments put after `command`."""
    workers: Workers
    """The gang."""
    parallelism: Parallelism | None = None
    """How the training is spread over the ranks."""
    topology: JobTopology | None = None
    """How close together the workers must be."""
    capacity: Capacity | None = None
    """On what terms the nodes are rented. Left out: on-demand, or where no node with the GPU type is, reserved, or else
    spot."""
    preemptible: bool | None = None
    """Whether the job may be asked to save, stop and queue again, for a job of higher priority or a queue that takes
    back what it has lent. One that may not be asked never borrows quota. Left out: true."""
    disruption_budget: DisruptionBudget | None = None
    """How often the job may be preempted. Left out: as often as need be."""
    priority_class_name: ObjectName | None = None
    """PriorityClass whose value orders the queue: higher first, then older first. 0 when left out."""
    checkpoint: Checkpoint | None = None
    """Where the run saves its state. Left out: nowhere, and a restart begins anew."""
    restart: Restart | None = None
    """What happens after a failure."""
    hang: Hang | None = None
    """When the training counts as hung. Left out: auto in all."""
    tracking: Tracking | None = None
    """Where the run's parameters and metrics go, beside Prometheus. Left out: nowhere."""
    numerics: Numerics | None = None
    """What follows a step whose loss or gradients are not finite, or spike. Left out: nobody looks."""
    health: Health | None = None
    """What is looked at of the nodes."""
    ready_timeout: Annotated[Duration, READY_TIMEOUT_RULE] | None = None
    """How long the whole gang may take from placement to its barrier, image pulls included; then it is withdrawn.
    Left out: 30m."""
    max_runtime: Annotated[Duration, MAX_RUNTIME_RULE] | None = None
    """How long the job may train in all. At its end a checkpoint is saved and the job has failed with
    MaxRuntimeExceeded. Left out: for ever."""
    window: Window | None = None
    """When the gang may run, for example at night. Left out: at any time."""
    deadline: Deadline | None = None
    """Moment by which the training should be done, like 2026-12-01T08:00:00Z. It hurries the job in the order of its
    queue when time runs short, and the condition DeadlineReachable says whether it can be met. Nothing ends there."""
    budget: JobBudget | None = None
    """What the job may use in all. Left out: no limit."""
    suspend: Annotated[bool, SchemaDefault(False)] = False
    """When true, the gang is stopped with a checkpoint, and the job waits until it is false again. Fields that cannot
    change while the job is admitted can change meanwhile."""
    ttl_after_finished: Duration | None = None
    """The job is deleted this long after its end; its checkpoints stay. Left out: never."""
    env: Annotated[tuple[EnvVar, ...], Len(0, 256), MapList(("name",))] | None = None
    """Environment variables of the training container."""
    env_from: Annotated[tuple[EnvFromSource, ...], Len(0, 64)] | None = None
    """ConfigMaps and Secrets whose keys become environment variables."""
    volumes: Annotated[tuple[Volume, ...], Len(0, 64), MapList(("name",))] | None = None
    """Volumes of the pods, as in a PodSpec."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], Len(0, 64), MapList(("mountPath",))] | None = None
    """Where the training container sees them."""
    pod_template: PodTemplate | None = None
    """Laid over the pods that Muster makes."""
    node_selector: Labels | None = None
    """Labels that the nodes must have."""
    tolerations: Annotated[tuple[Toleration, ...], Len(0, 32)] | None = None
    """Taints that the pods bear."""
    image_pull_secrets: Annotated[tuple[NameRef, ...], Len(0, 16), MapList(("name",))] | None = None
    """Secrets for pulling the image."""
    service_account_name: ObjectName | None = None
    """The pods' service account; they get no token of it unless `podTemplate` asks for one."""
    termination_grace_period: Annotated[Duration, GRACE_RULE] | None = None
    """Time that a pod has to save and end once it is told to. Left out: 2m."""


class TrainingJob(Resource):
    """One training run: a gang of workers that starts whole, next to each other, or not at all."""

    RULES = JOB_RULES

    kind: str = "TrainingJob"
    spec: TrainingJobSpec
    """What is to be trained, on what, and how."""
    status: Annotated[TrainingJobStatus, Atomic()] = TrainingJobStatus()
    """What the operator tells of it."""
