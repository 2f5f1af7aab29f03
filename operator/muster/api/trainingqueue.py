"""TrainingQueue: a tenant's share of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Final

from annotated_types import Ge, Le, Len

from muster.api.common import (
    Condition,
    Count,
    Duration,
    Label63,
    LabelKey,
    Labels,
    Model,
    Quantity,
    Resource,
    Timestamp,
    above_zero,
    matches,
)
from muster.api.jobparts import CapacityKind, JobDefaults
from muster.api.schema import Atomic, Int64, MapList, Rule, SchemaDefault, SetList
from muster.api.terms import DecimalText, Month, MonthlyBudget

MAX_FLAVOURS: Final = 32
MAX_RESOURCES: Final = 16
MAX_WEIGHT: Final = 1_000_000
IDLE_SECONDS: Final = 1800
IDLE_BELOW_PERCENT: Final = 30
HIGHEST_PRIORITY: Final = 2**31 - 1


class StopPolicy(str, Enum):
    """Whether the queue works."""

    NONE = "none"
    """it takes jobs."""
    HOLD = "hold"
    """nothing new starts; what runs goes on."""
    HOLD_AND_DRAIN = "holdAndDrain"
    """nothing new starts, and what runs saves a checkpoint, stops, and waits; jobs with preemptible: false go on."""


class JobOrder(str, Enum):
    """Which of the queue's jobs comes first, of those that are equal in priority, age and slack."""

    SUBMIT_TIME = "submitTime"
    """the one that was submitted first."""
    SHORTEST_EXPECTED = "shortestExpected"
    """the one with the fewest GPU-seconds to go by its `maxRuntime`, those without one last."""


class OwnVictims(str, Enum):
    """Whom a job may ask for room in its own queue, and elsewhere while its queue borrows."""

    NEVER = "never"
    """nobody."""
    LOWER_PRIORITY = "lowerPriority"
    """jobs of lower priority."""


class Reclaim(str, Enum):
    """From whom a queue takes back what is its own."""

    NEVER = "never"
    """from nobody: it waits until borrowers end."""
    LOWER_PRIORITY = "lowerPriority"
    """from borrowers of lower priority than the job that needs it."""
    ANY = "any"
    """from any borrower."""


class SelectorOperator(str, Enum):
    """As in Kubernetes' label selectors."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class SelectorRequirement(Model):
    """One demand on a label."""

    RULES = (
        Rule(
            "self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : !has(self.values)",
            "In and NotIn need values; Exists and DoesNotExist have none",
            field_path=".values",
        ),
    )

    key: LabelKey
    """The label's key."""
    operator: SelectorOperator
    """In, NotIn, Exists or DoesNotExist."""
    values: Annotated[tuple[Annotated[str, Len(0, 63)], ...], Len(0, 64), SetList()] | None = None
    """Values for In and NotIn."""


class LabelSelector(Model):
    """Kubernetes' label selector: every demand must hold. An empty one selects everything."""

    match_labels: Labels | None = None
    """Labels with their values."""
    match_expressions: Annotated[tuple[SelectorRequirement, ...], Len(0, 32)] | None = None
    """Further demands."""

    def unmet(self, labels: dict[str, str]) -> tuple[str, ...]:
        """Each demand that `labels` do not meet, as in a selector of kubectl's; none of an object that is selected."""
        wanted = (self.match_labels or {}).items()
        return (
            *(f"{key}={value}" for key, value in wanted if labels.get(key) != value),
            *(_in_words(each) for each in self.match_expressions or () if not _holds(each, labels)),
        )


def _in_words(requirement: SelectorRequirement) -> str:
    key, values = requirement.key, requirement.values or ()
    if requirement.operator in (SelectorOperator.IN, SelectorOperator.NOT_IN):
        word = "in" if requirement.operator is SelectorOperator.IN else "notin"
        return f"{key} {word} ({', '.join(values)})"
    return key if requirement.operator is SelectorOperator.EXISTS else f"!{key}"


def _holds(requirement: SelectorRequirement, labels: dict[str, str]) -> bool:
    present, values = labels.get(requirement.key), requirement.values or ()
    if requirement.operator is SelectorOperator.IN:
        return present is not None and present in values
    if requirement.operator is SelectorOperator.NOT_IN:
        return present is None or present not in values
    return (present is not None) is (requirement.operator is SelectorOperator.EXISTS)


class ResourceQuota(Model):
    """How much of one resource of one flavour the queue may use."""

    name: Annotated[
        str,
        Len(1, 317),
        matches(
            "^(cpu|memory|ephemeral-storage|pods|hugepages-[0-9]+[KMGT]i|"
            "[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$",
            "use the name of a resource: cpu, memory, or one with its domain, such as nvidia.com/gpu",
        ),
    ]
    """The resource: nvidia.com/gpu, cpu, memory, ..."""
    nominal: Quantity
    """What the queue may always use. What a queue with others below it names here is for all of them, on top of their
    own."""
    borrowing_limit: Quantity | None = None
    """How much more than its nominal, that of the queues below it included, the queue may use of what its parent or
    cohort leaves unused. Left out: all of it. Without a parent or cohort: nothing."""
    lending_limit: Quantity | None = None
    """How much of its nominal, that of the queues below it included, others may use while this queue does not. Left
    out: all of it."""


class Quota(Model):
    """Quota of one flavour: a GPU type on one kind of capacity."""

    RULES = (
        Rule(
            "self.gpuType != '' || self.capacity == 'on-demand'",
            "gangs without GPUs have one quota for all nodes: leave capacity out, or name a gpuType",
            field_path=".capacity",
        ),
    )

    gpu_type: Annotated[str, Len(0, 63), SchemaDefault("")] = ""
    """GPU type, as in a job's `workers.gpuType`. Empty: the quota of gangs without GPUs."""
    capacity: Annotated[CapacityKind, SchemaDefault(CapacityKind.ON_DEMAND.value)] = CapacityKind.ON_DEMAND
    """on-demand, reserved or spot."""
    resources: Annotated[tuple[ResourceQuota, ...], Len(1, MAX_RESOURCES), MapList(("name",))]
    """The resources, each with its limits."""


class QueuePreemption(Model):
    """Which running jobs the queue's jobs may ask to save and make room. Only jobs that are preemptible are ever asked,
    and the cheapest of them."""

    within_queue: Annotated[OwnVictims, SchemaDefault(OwnVictims.LOWER_PRIORITY.value)] = OwnVictims.LOWER_PRIORITY
    """In the queue itself."""
    reclaim: Annotated[Reclaim, SchemaDefault(Reclaim.ANY.value)] = Reclaim.ANY
    """In the rest of its tree, while it stays within its nominal: those who use what it has lent."""
    when_borrowing: Annotated[OwnVictims, SchemaDefault(OwnVictims.NEVER.value)] = OwnVictims.NEVER
    """In the rest of its tree, while it borrows itself: other borrowers."""


class IdleAction(str, Enum):
    """What happens to a job whose GPUs are idle for too long."""

    NONE = "none"
    """nobody looks."""
    REPORT = "report"
    """its condition and an Event tell."""
    SUSPEND = "suspend"
    """besides, it saves a checkpoint, stops, and waits until its spec changes. One that has committed no checkpoint is
    told only."""


class Idle(Model):
    """When the GPUs of a job count as idle, and what follows."""

    after: (
        Annotated[
            Duration,
            above_zero("every GPU is idle for no time at all: give some, like 30m, or leave after out for 30m"),
        ]
        | None
    ) = None
    """For how long they have to be idle, of the time in which the job trains; judged by whole minutes. Left out:
    30m."""
    below: Annotated[int, Ge(1), Le(100)] | None = None
    """Percent of each minute below which GPUs count as idle, by NVML, all of each worker on average. Left out: 30."""
    action: IdleAction | None = None
    """What follows: none, report, or suspend. Left out: report."""


class TrainingQueueSpec(Model):
    """Who may use the queue, how much, and in which order."""

    RULES = (
        Rule(
            "!has(self.parent) || !has(self.cohort)",
            "a queue has one place: keep parent and leave cohort out, or put the parent into the cohort",
            field_path=".cohort",
        ),
    )

    namespaces: LabelSelector | None = None
    """Namespaces whose jobs may use the queue, by their labels. Left out: all. `kubernetes.io/metadata.name` is the
    label with a namespace's own name."""
    parent: Label63 | None = None
    """Name of the TrainingQueue above this one. It lends to its parent what it does not use, and borrows from it what
    others leave unused. Left out: the queue is a root."""
    cohort: Label63 | None = None
    """The short way to a common parent: queues that name the same cohort lend each other what they do not use, as if
    they had a parent without quota of its own. Left out, without a parent: the queue neither borrows nor lends."""
    quotas: Annotated[tuple[Quota, ...], Len(0, MAX_FLAVOURS), MapList(("gpuType", "capacity"))] | None = None
    """Quota by flavour. Without any entry, here or in a queue above, nothing is limited. A resource that no entry names
    is not limited by this queue; one that some entry names is 0 in every other flavour. So name cpu and memory under
    each flavour that the queue may use, or under none."""
    weight: Annotated[int, Ge(1), Le(MAX_WEIGHT), SchemaDefault(1)] = 1
    """Its part beside the other queues of the same parent: one of weight 2 gets twice as much as one of weight 1 before
    it is the other's turn."""
    order: Annotated[JobOrder, SchemaDefault(JobOrder.SHORTEST_EXPECTED.value)] = JobOrder.SHORTEST_EXPECTED
    """Which of its jobs comes first, of those that are equal in priority, age and slack: submitTime, or
    shortestExpected. With the latter a job may also ask preemptible ones of the queue that have at least twice as many
    GPU-seconds to go, unless `preemption.withinQueue` is never."""
    usage_half_life: (
        Annotated[
            Duration,
            above_zero(
                "a half-life of 0 would forget all use at once: give it some time, like 1d, or leave it out for 7d"
            ),
        ]
        | None
    ) = None
    """How fast past use is forgiven: it counts half after this time. Left out: 7d."""
    preemption: QueuePreemption | None = None
    """Whom the queue's jobs may ask for room. Left out: the defaults of its fields."""
    max_priority: Annotated[int, Ge(-(2**31)), Le(HIGHEST_PRIORITY)] | None = None
    """Highest priority that counts here and in the queues below: jobs of a higher one are taken as if they had this
    one, and say so. Left out: any."""
    stop_policy: Annotated[StopPolicy, SchemaDefault(StopPolicy.NONE.value)] = StopPolicy.NONE
    """Whether the queue and those below it work: none, hold, or holdAndDrain."""
    default_template: JobDefaults | None = None
    """What the queue's jobs get where they say nothing. A job that is placed keeps what it got; those that wait follow
    a change. Queues below this one do not take it over."""
    idle: Idle | None = None
    """What happens to jobs of the queue, and of those below it that say nothing, whose GPUs are idle for long. Left
    out: what the queue above says; with none above, nothing."""
    budgets: Annotated[tuple[MonthlyBudget, ...], Len(1, 16), MapList(("gpuType",))] | None = None
    """What the jobs of the queue and those below it may use in a calendar month. Left out: no limit."""


class ResourceUse(Model):
    """How much of one resource is in use."""

    name: Annotated[str, Len(1, 317)]
    """The resource."""
    used: Quantity
    """Held by jobs of the queue and those below it, their stopping pods included."""
    borrowed: Quantity | None = None
    """How much of it is above their nominal."""


class FlavourUse(Model):
    """What jobs of the queue and those below it hold of one flavour."""

    gpu_type: Annotated[str, Len(0, 63), SchemaDefault("")] = ""
    """GPU type; empty for gangs without GPUs."""
    capacity: Annotated[CapacityKind, SchemaDefault(CapacityKind.ON_DEMAND.value)] = CapacityKind.ON_DEMAND
    """on-demand, reserved or spot."""
    resources: Annotated[tuple[ResourceUse, ...], Len(0, 64), MapList(("name",))] = ()
    """The resources."""


class FairShare(Model):
    """What fairness knows of the queue and those below it. Shares are parts of the whole cluster, from 0 to 1: of the
    resource of which they hold the largest part."""

    share: Annotated[DecimalText, Len(1, 16)]
    """The share that they hold now."""
    mean: Annotated[DecimalText, Len(1, 16)]
    """Mean of the share up to `at`, in which each moment counts half as much after each `usageHalfLife`."""
    at: Timestamp
    """When `share` became what it is."""


class TrainingQueueStatus(Model):
    """What the operator tells of the queue."""

    conditions: Annotated[tuple[Condition, ...], Len(0, 8), MapList(("type",))] = ()
    """The aspects of the queue's state."""
    observed_generation: Annotated[int, Ge(0), Int64()] | None = None
    """The `metadata.generation` that the status speaks of."""
    running: Count | None = None
    """Jobs of the queue and those below it that hold quota."""
    waiting: Count | None = None
    """Jobs of the queue and those below it that wait."""
    used_gpus: Count | None = None
    """GPUs in use by the queue and those below it, of all flavours."""
    gpus: Annotated[str, Len(0, 48)] = ""
    """The same for people: `16`, or `16/32` where the quotas of the queue and those below it name 32."""
    usage: Annotated[tuple[FlavourUse, ...], Len(0, MAX_FLAVOURS), MapList(("gpuType", "capacity"))] = ()
    """Use by flavour."""
    fair_share: FairShare | None = None
    """Its share of the cluster, now and in the past."""
    month: Month | None = None
    """What was used in the calendar month while there were `spec.budgets`."""


class TrainingQueue(Resource):
    """A tenant's share of the cluster: who may use it, and how much of what."""

    RULES = (
        Rule(
            "self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "pods carry the queue's name as a label: use at most 63 lower-case letters, digits and dashes",
            field_path=".metadata.name",
        ),
        Rule(
            "!has(self.spec) || !has(self.spec.parent) || self.spec.parent != self.metadata.name",
            "a queue cannot be its own parent: name another queue, or leave parent out for a root",
            field_path=".spec.parent",
        ),
    )

    kind: str = "TrainingQueue"
    spec: TrainingQueueSpec = TrainingQueueSpec()
    """Who may use the queue, and how much."""
    status: Annotated[TrainingQueueStatus, Atomic()] = TrainingQueueStatus()
    """What the operator tells of it."""


def with_below(name: str, every: Sequence[TrainingQueue]) -> frozenset[str]:
    """The names of a queue and of all queues below it; of a queue that isn't there, its own."""
    within = {name}
    while grown := {queue.metadata.name for queue in every if queue.spec.parent in within} - within:
        within |= grown
    return frozenset(within)
