"""The API's answers, as OpenAPI describes them: camelCase on the wire, fields that say nothing left out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, StringConstraints
from pydantic.alias_generators import to_camel

from muster.api.common import format_time
from muster.api.names import Phase
from muster.api.queue_position import QueuePosition
from muster.api.trainingjob_status import Growth

Moment = Annotated[datetime, PlainSerializer(format_time, return_type=str)]

JOB_EXAMPLE: Final[dict[str, Any]] = {
    "namespace": "research",
    "name": "llama-8b",
    "uid": "0b6f3a52-7c07-4c0e-b5f5-2f0d1f7f4b6e",
    "labels": {"team": "nlp"},
    "createdAt": "2026-01-02T03:04:05Z",
    "queue": "research",
    "phase": "Running",
    "workers": 4,
    "placedWorkers": 4,
    "gpus": 32,
    "gpuType": "H100",
    "nodes": "gpu-[001-004]",
    "step": 1200,
    "totalSteps": 50000,
    "eta": "2026-01-04T09:00:00Z",
    "checkpointStep": 1000,
    "goodput": "0.9431",
    "submittedAt": "2026-01-02T03:04:06Z",
    "startedAt": "2026-01-02T03:05:40Z",
}


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class JobSummary(Answer):
    """A job in a list."""

    model_config = ConfigDict(json_schema_extra={"example": JOB_EXAMPLE})

    namespace: str
    name: str
    uid: str
    labels: dict[str, str] = {}
    created_at: Moment
    queue: str
    phase: Phase | None = Field(None, description="Absent while no operator has seen the job.")
    reason: str = Field("", description="One word for what it waits for.")
    message: str = Field("", description="The same in a sentence, cut to 256 characters.")
    position: int | None = Field(None, description="Place in the order of its queue, from 1.")
    expected_start: Moment | None = None
    workers: int = Field(description="Workers that it asks for.")
    placed_workers: int | None = Field(None, description="Workers that it holds room for.")
    gpus: int | None = Field(None, description="GPUs that it asks for, or holds.")
    gpu_type: str | None = None
    nodes: str | None = Field(None, description="Its nodes in short.")
    step: int | None = Field(None, description="Training steps done.")
    total_steps: int | None = None
    eta: Moment | None = Field(None, description="When the last step is expected to be done.")
    checkpoint_step: int | None = Field(None, description="Of the last committed checkpoint.")
    goodput: str | None = Field(None, description="Part of its time that was training, as decimal text from 0 to 1.")
    restarts: int | None = None
    preemptions: int | None = None
    submitted_at: Moment | None = None
    started_at: Moment | None = None
    finished_at: Moment | None = None


class JobPage(Answer):
    """Jobs that the user may list."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"items": [JOB_EXAMPLE], "next": "WyI0", "total": 1, "asOf": "2026-01-02T03:30:00Z"}
        }
    )

    items: list[JobSummary]
    next: str = Field(description="`cursor` of the next page; empty on the last one.")
    total: int = Field(description="Jobs on all pages.")
    as_of: Moment = Field(description="When the operator knew the cluster to be so.")


class Section(Answer):
    """Part of the explanation: rows of columns of text."""

    heading: str
    rows: list[list[str]]


class Worker(Answer):
    """A pod of the job."""

    index: int
    pod: str
    node: str
    state: str
    ready: bool
    capacity: str = Field("", description="Kind of capacity of its node, where the job names kinds.")
    base: bool | None = Field(None, description="Whether it is of the safe base, of a gang that has one.")


class JobDetail(Answer):
    """One job, with what `muster explain` says of it."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "job": JOB_EXAMPLE,
                "explanation": [
                    {"heading": "Why", "rows": [["", "all 4 workers train on gpu-[001-004]"]]},
                    {"heading": "What you can do", "rows": [["-", "nothing: it trains"]]},
                ],
                "workers": [
                    {"index": 0, "pod": "llama-8b-g1-0-0", "node": "gpu-001", "state": "Running", "ready": True}
                ],
                "withheld": [],
            }
        }
    )

    job: JobSummary
    waiting: QueuePosition | None = Field(
        None, description="Why it waits, for programs: `status.queue` of the TrainingJob. Absent where it does not."
    )
    growth: Growth | None = Field(
        None,
        description="Why an elastic gang has fewer workers than it asks for, for programs: `status.growth` of the "
        "TrainingJob. Absent for any other.",
    )
    explanation: list[Section]
    workers: list[Worker]
    withheld: list[str] = Field(
        description="What the user may not list, and so is left out: pods, events, trainingqueues."
    )


class ResourceShare(Answer):
    """In base units: GPUs, bytes of memory, thousandths of a CPU."""

    name: str
    nominal: int | None = Field(None, description="What the queue and those below it may always use; absent: no quota.")
    used: int
    borrowed: int = Field(description="Of `used`, what is above their nominal.")
    free: int | None = Field(None, description="Nominal that is not used.")


class FlavourShare(Answer):
    """A GPU type on one kind of capacity; both empty for gangs without GPUs."""

    gpu_type: str
    capacity: str
    resources: list[ResourceShare]


QUEUE_EXAMPLE: Final[dict[str, Any]] = {
    "name": "research",
    "parent": "company",
    "state": "open",
    "weight": 2,
    "running": 3,
    "waiting": 5,
    "usedGpus": 96,
    "flavours": [
        {
            "gpuType": "H100",
            "capacity": "on-demand",
            "resources": [{"name": "nvidia.com/gpu", "nominal": 64, "used": 96, "borrowed": 32, "free": 0}],
        }
    ],
    "budgets": [{"gpuType": "H100", "gpuHours": 40000, "gpuHoursUsed": 31250.5, "atLimit": "hold"}],
}


class BudgetShare(Answer):
    """A budget of the month, and what is used of it. GPU types are all of them where none is named."""

    gpu_type: str = ""
    gpu_hours: int | None = Field(None, description="The limit.")
    gpu_hours_used: float | None = None
    cost: float | None = Field(None, description="The limit, in the currency of the prices.")
    cost_used: float | None = None
    currency: str = Field("", description="Of these; absent where the prices name none.")
    at_limit: str = Field(
        description="`hold`: nothing more starts then; `drain`: what runs and is preemptible saves and stops, too."
    )


class QueueSummary(Answer):
    """A queue: what it may use, uses, and borrows."""

    model_config = ConfigDict(json_schema_extra={"example": QUEUE_EXAMPLE})

    name: str
    parent: str = ""
    cohort: str = ""
    state: str = Field(description="open, or in one word each what is wrong; empty while no operator has seen it.")
    weight: int
    running: int | None = Field(None, description="Jobs of it and those below it that hold quota.")
    waiting: int | None = Field(None, description="Jobs of it and those below it that wait.")
    used_gpus: int | None = None
    flavours: list[FlavourShare]
    budgets: list[BudgetShare] | None = Field(None, description="Of this month, in UTC; absent: it has none.")


class QueueList(Answer):
    items: list[QueueSummary]
    as_of: Moment


class Told(Answer):
    """A condition."""

    type: str
    status: str
    reason: str
    message: str


class QueueDetail(Answer):
    """One queue. To who may not list queues, `below` and the nominal of those below it stay untold."""

    queue: QueueSummary
    below: list[str] = Field(description="Names of the queues directly below it.")
    fair_share: str | None = Field(None, description="Part of the whole cluster that it holds, 0 to 1.")
    conditions: list[Told]
    withheld: list[str] = Field(
        description="`trainingqueues`: the user may not list them, and so those below are left out."
    )
    as_of: Moment


class LevelRoom(Answer):
    """The domains of one level of the Topology, or of the levels that nodes' usual labels name where there is none."""

    level: str
    domains: int
    largest_domain: str = Field("", description="The domain with the most free GPUs.")
    largest_free: int | None = Field(None, description="Free GPUs in it.")


class Pool(Answer):
    """The GPUs of one type, or slices of a type, on one kind of capacity. Total = used + free + unavailable."""

    gpu_type: str
    capacity: str
    nodes: int
    total: int
    used: int | None = None
    free: int | None = Field(None, description="On nodes that take pods.")
    unavailable: int | None = Field(None, description="Unused, on nodes that are not ready, cordoned or quarantined.")
    largest_free_node: int | None = Field(None, description="Most free GPUs on one node.")
    levels: list[LevelRoom]


class NodeCounts(Answer):
    total: int
    not_ready: int
    cordoned: int
    quarantined: int


FLEET_EXAMPLE: Final[dict[str, Any]] = {
    "nodes": {"total": 64, "notReady": 1, "cordoned": 0, "quarantined": 1},
    "pools": [
        {
            "gpuType": "H100",
            "capacity": "on-demand",
            "nodes": 64,
            "total": 512,
            "used": 440,
            "free": 56,
            "unavailable": 16,
            "largestFreeNode": 8,
            "levels": [{"level": "rack", "domains": 8, "largestDomain": "rack-3", "largestFree": 24}],
        }
    ],
    "withheld": [],
    "asOf": "2026-01-02T03:30:00Z",
}


class Fleet(Answer):
    """Nodes and GPUs."""

    model_config = ConfigDict(json_schema_extra={"example": FLEET_EXAMPLE})

    nodes: NodeCounts
    pools: list[Pool]
    withheld: list[str] = Field(
        description="`pods`: the user may not list those of all namespaces, and so what is used and free is left out. "
        "`topologies`: they may not get the Topology, and so its levels are."
    )
    as_of: Moment


Limit = Annotated[int, Field(ge=1, le=500, description="Jobs on a page.")]
Sort = Literal["name", "-name", "created", "-created", "queue", "-queue", "phase", "-phase", "gpus", "-gpus"]


class JobsQuery(BaseModel):
    """Which jobs, in which order, and which page of them."""

    model_config = ConfigDict(extra="forbid")

    namespace: Annotated[str, StringConstraints(max_length=63)] = Field("", description="Only of this namespace.")
    queue: Annotated[str, StringConstraints(max_length=63)] = Field(
        "", description="Only of this queue and, for who may list queues, those below it."
    )
    phase: list[Phase] = Field([], description="Only in this phase; may be given again.")
    label_selector: Annotated[str, StringConstraints(max_length=2048)] = Field(
        "", alias="labelSelector", description="As kubectl takes it: `team=vision,tier!=test,zone in (a,b),!old`."
    )
    sort: Sort = Field("name", description="`queue` means the place in it, too; with `-` before it, descending.")
    limit: Limit = 100
    cursor: Annotated[str, StringConstraints(max_length=2048)] = Field(
        "", description="`next` of the page before, with the same filters and order."
    )
