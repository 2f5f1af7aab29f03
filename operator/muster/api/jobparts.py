"""Parts of a job that its queue may give defaults for."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

from annotated_types import Ge, Le, Len

from muster.api.common import Count, Duration, DurationOrAuto, Label63, Labels, Model, ObjectName
from muster.api.numerics import Numerics
from muster.api.podparts import EnvVar, NameRef, Toleration
from muster.api.rules import (
    CAPACITY_RULES,
    CLOSENESS_RULES,
    DISRUPTION_WINDOW_RULE,
    GRACE_RULE,
    MAX_RUNTIME_RULE,
    READY_TIMEOUT_RULE,
    RESTART_WINDOW_RULE,
    TOPOLOGY_RULES,
)
from muster.api.schema import MapList, SetList
from muster.api.tracking import Tracking

MAX_WORKERS: Final = 16384
"""Workers of one gang."""
MAX_RESTARTS: Final = 32
"""Within one window, after failures of one kind."""


class CapacityKind(str, Enum):
    """How sure the nodes are. A node says it by its label `muster.dev/capacity`; without it, it is on-demand."""

    ON_DEMAND = "on-demand"
    RESERVED = "reserved"
    SPOT = "spot"


class CapacityPreference(str, Enum):
    """Which of the kinds that a job names it wants most."""

    LISTED = "listed"
    """the one that is named first."""
    CHEAPEST = "cheapest"
    """the one whose GPU costs least by the operator's prices; kinds without a price come last."""


class TopologyMode(str, Enum):
    """How strictly the gang keeps together."""

    REQUIRED = "required"
    """all workers in one domain of `level`, or the job waits."""
    PREFERRED = "preferred"
    """the narrowest domain that holds all of them, of whatever level; in it as few of the next narrower as possible."""
    UNCONSTRAINED = "unconstrained"
    """anywhere."""


class Slice(Model):
    """Neighbouring workers that must share a domain."""

    workers: Annotated[int, Ge(2), Le(MAX_WORKERS)]
    """How many: workers 0 to n-1, n to 2n-1 and so on."""
    level: Label63
    """Name of the level of which they share one domain."""


class JobTopology(Model):
    """How close together the workers must be."""

    RULES = TOPOLOGY_RULES

    mode: TopologyMode | None = None
    """Left out: preferred."""
    level: Label63 | None = None
    """Name of a level in the Topology `default`, such as rack: all workers in one domain of it, with required. With
    preferred it changes no placement, for the narrowest domain that fits is taken anyway; it is the level of which a
    job that waits is told how much of it would fit into one domain."""
    slices: Annotated[tuple[Slice, ...], Len(1, 4)] | None = None
    """Groups of workers that must lie closer together than the whole gang: tensor groups in one NVLink domain, pipeline
    stages in one rack. Widest first; each size divides the one before it, and each level is narrower."""
    balanced: Label63 | None = None
    """Name of a level: every domain of it that the gang uses gets the same number of workers."""


class Capacity(Model):
    """On what terms the nodes are rented, in the order in which the job wants them."""

    RULES = CAPACITY_RULES

    order: Annotated[tuple[CapacityKind, ...], Len(1, 3), SetList()]
    """Of on-demand, reserved and spot, the preferred first. A kind that is not named is never used."""
    base: CapacityKind | None = None
    """Of an elastic gang: the kind of the first `workers.min` workers, whatever becomes of the others. Those beyond run
    on the one kind of `order`, as far as that has room, and the gang goes on without them when it is taken back. Left
    out: all workers run on one kind."""
    prefer: CapacityPreference | None = None
    """listed: the kinds in their order. cheapest: by the price of a GPU now, and by their order where that is the same
    or not known. Left out: listed."""
    fallback_after: Duration | None = None
    """How long the job waits for the preferred kind alone, counted from its submit; then it takes the next as well, and
    after as long again the third. Left out: 10m."""


class DisruptionBudget(Model):
    """How often a job may be asked to give its room back. It protects neither what its queue has borrowed nor room into
    which the job was let before its turn."""

    preemptions: Annotated[Count, Le(32)]
    """At most this many within `window`."""
    window: Annotated[Duration, DISRUPTION_WINDOW_RULE] | None = None
    """Left out: 1d."""


class RestartCauses(Model):
    """Restarts within the window after other failures than the script's, each counted for itself."""

    out_of_memory: Annotated[Count, Le(MAX_RESTARTS)] | None = None
    """A worker or a GPU ran out of memory. Left out: as `limit`."""
    network: Annotated[Count, Le(MAX_RESTARTS)] | None = None
    """Ranks lost each other, and none had failed by itself. Left out: 10."""
    platform: Annotated[Count, Le(MAX_RESTARTS)] | None = None
    """Nodes, pods or launchers broke or were taken away, and the whole gang starts again. Left out: any number."""


class Restart(Model):
    """What happens after a failure."""

    limit: Annotated[Count, Le(MAX_RESTARTS)] | None = None
    """Restarts within the window after failures of the training script; then the job has failed. Left out: 3. Failures
    of nodes and preemptions do not count. Crashes restart in the living pods first, at most 3 times in 10 minutes. The
    same failure twice at the same step ends the job at once."""
    causes: RestartCauses | None = None
    """Limits for other causes."""
    window: Annotated[Duration, RESTART_WINDOW_RULE] | None = None
    """Failures that are older count no more. Left out: 1d."""
    backoff: Duration | None = None
    """Wait before a restart; doubled with each one of its cause within the window, up to 5m. Left out: 10s."""


class Hang(Model):
    """How long ranks may be at one thing, before the gang counts as hung. Then the stacks of all are kept, and its
    processes start again in their pods, counted like a crash. It hangs when each of its ranks has used up its time, and
    not before. 0s: never. Scripts without a session are watched only by `start`."""

    start: DurationOrAuto | None = None
    """For joining the gang, and for the first step of a loop, which may compile. auto: 30m. Left out: auto. A time of
    one's own counts before the session's start and before its loop, too, which `auto` leaves alone: it ends a script
    that never comes to one."""
    step: DurationOrAuto | None = None
    """A step. auto: 3 times what a slow step takes usually, at least 30s. Left out: auto."""
    evaluation: DurationOrAuto | None = None
    """What is under `session.evaluate()`, goes through a loader that isn't tracked, or stands between two epochs. auto:
    30m. Left out: auto."""
    checkpoint: DurationOrAuto | None = None
    """A save or a restore, as far as training waits for it. auto: 30m. Left out: auto."""


class Health(Model):
    """What is looked at of the nodes, before the gang trains and while it does."""

    preflight: bool | None = None
    """Whether each worker's node is looked at before the ranks start: GPUs, memory, disk, clock. Left out: true."""
    slower_by: Annotated[Count, Le(10_000)] | None = None
    """Percent by which a rank's own part of a step may be slower than the gang's median before it is named as a
    straggler, and a GPU in the preflight; 0: none ever is. Left out: 50."""
    idle: bool | None = None
    """Whether the queue's `idle` holds for the job. False: its GPUs may be idle for as long as they like. Left out:
    true."""


class DefaultTopology(Model):
    """How close together the workers of jobs must be that name neither mode nor level."""

    RULES = CLOSENESS_RULES

    mode: TopologyMode | None = None
    """Left out: preferred."""
    level: Label63 | None = None
    """Name of a level in the Topology `default`, such as rack: all workers in one domain of it, with required. With
    preferred it changes no placement, for the narrowest domain that fits is taken anyway; it is the level of which a
    job that waits is told how much of it would fit into one domain."""


class JobDefaults(Model):
    """Defaults for jobs. A field that a job sets takes the place of the whole field here; `nodeSelector`, `tolerations`
    and `env` are joined, and the job's own entry wins."""

    priority_class_name: ObjectName | None = None
    """PriorityClass whose value orders the queue."""
    topology: DefaultTopology | None = None
    """How close together the workers must be, for jobs that name neither mode nor level; their slices and balance
    stay."""
    capacity: Capacity | None = None
    """On what terms the nodes are rented."""
    preemptible: bool | None = None
    """Whether a job may be asked to make room."""
    disruption_budget: DisruptionBudget | None = None
    """How often that may happen."""
    restart: Restart | None = None
    """What happens after a failure."""
    hang: Hang | None = None
    """When the training counts as hung."""
    health: Health | None = None
    """What is looked at of the nodes."""
    tracking: Tracking | None = None
    """Where runs are tracked; each job's namespace must have the Secret."""
    numerics: Numerics | None = None
    """Watches over losses and gradients; `rollback` is for jobs with a checkpoint, and the others are not watched."""
    ready_timeout: Annotated[Duration, READY_TIMEOUT_RULE] | None = None
    """How long a gang may take from placement to its barrier."""
    max_runtime: Annotated[Duration, MAX_RUNTIME_RULE] | None = None
    """How long a job may train in all."""
    termination_grace_period: Annotated[Duration, GRACE_RULE] | None = None
    """Time that a pod has to save and end."""
    ttl_after_finished: Duration | None = None
    """How long an ended job stays."""
    node_selector: Labels | None = None
    """Labels that the nodes must have, beside the job's own."""
    tolerations: Annotated[tuple[Toleration, ...], Len(0, 32)] | None = None
    """Taints that the pods bear, beside the job's own."""
    image_pull_secrets: Annotated[tuple[NameRef, ...], Len(0, 16), MapList(("name",))] | None = None
    """Secrets for pulling the image; each job's namespace must have them."""
    env: Annotated[tuple[EnvVar, ...], Len(0, 64), MapList(("name",))] | None = None
    """Environment variables of the training container, beside the job's own."""
