"""The history's answers and questions, as OpenAPI describes them."""

from __future__ import annotations

from datetime import datetime, timezone
from enum import Enum
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from muster.api.names import Phase
from muster.server.models import Answer, Limit, Moment


def _in_utc(moment: datetime) -> datetime:
    """As the database takes it: near the ends of the calendar UTC has no such moment."""
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError:
        raise PydanticCustomError("datetime_parsing", "there is no such moment in UTC") from None


Name = Annotated[str, StringConstraints(max_length=253, pattern="^[-A-Za-z0-9_.]*$")]
Words = Annotated[str, StringConstraints(max_length=1024)]
"""What an annotation may say: an address, a name with spaces."""
Border = Annotated[AwareDatetime, AfterValidator(_in_utc)]


class Read(Answer):
    """Made from a row of the history."""

    model_config = ConfigDict(from_attributes=True, extra="ignore")


class PastJob(Read):
    """A job that is, or was."""

    uid: str
    namespace: str
    name: str
    queue: str
    user: str
    project: str
    labels: dict[str, str]
    image: str
    gpu_type: str = Field(description="That the spec asks for; empty for any.")
    gpus: int
    workers: int
    phase: str = Field(description="The last one.")
    cause: str = Field(description="Of the last failure.")
    message: str
    submitted_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    deleted_at: Moment | None = Field(description="When the object was gone.")
    estimated: bool = Field(description="`deletedAt` is the last time that it was seen.")
    restarts: int
    preemptions: int
    lost_gpu_seconds: int = Field(description="Of work, by preemptions.")
    gpu_seconds: int = Field(description="Of the placements that have ended.")
    goodput: dict[str, int] = Field(description="Seconds by part, over all placements.")
    step: int | None


class PastAttempt(Read):
    """One placement of the gang."""

    attempt: int
    queue: str
    workers: int
    gpus: int
    domain: str
    placed_at: Moment
    running_at: Moment | None
    ended_at: Moment | None
    estimated: bool
    reason: str = Field(description="Why it ended.")
    cause: str
    message: str
    restarts: int
    replacements: int


class PastInterval(Read):
    """One worker's hold of GPUs on one node: what is charged for."""

    attempt: int
    index: int
    replacement: int
    node: str
    gpu_type: str
    capacity: str
    gpus: int
    begins: Moment
    ends: Moment | None
    estimated: bool


class PastPreemption(Read):
    attempt: int
    at: Moment
    beneficiary: str = Field(description="UID of the job that got the room.")
    reason: str
    lost_gpu_seconds: int
    message: str


class PastCheckpoint(Read):
    step: int
    attempt: int
    uri: str
    committed_at: Moment
    bytes: int
    save_seconds: float


class PastFailure(Read):
    at: Moment
    cause: str
    index: int | None
    node: str
    step: int | None
    in_place: bool
    message: str


class PastJobDetail(Read):
    """What is known of one job. Of each list the newest 20,000, oldest first."""

    job: PastJob
    attempts: list[PastAttempt]
    intervals: list[PastInterval]
    preemptions: list[PastPreemption]
    checkpoints: list[PastCheckpoint]
    failures: list[PastFailure]
    left_out: dict[str, int] = Field(
        {}, description="How many older ones there are, by list; empty where all are told."
    )


class PastPage(Answer):
    """Jobs, those submitted last first."""

    items: list[PastJob]
    next: str = Field(description="`cursor` of the next page; empty on the last one.")


class PastQuery(BaseModel):
    """Which jobs, and which page of them."""

    model_config = ConfigDict(extra="forbid")

    namespace: Name = Field("", description="Only of this namespace.")
    name: Name | None = Field(None, description="Only of this name: one name may have been used by many jobs.")
    queue: Name | None = Field(None, description="Only of this queue.")
    user: Words | None = Field(
        None, description="Only of this user, as the label or the annotation `muster.dev/user` says."
    )
    project: Words | None = Field(
        None, description="Only of this project, as the label or the annotation `muster.dev/project` says."
    )
    phase: Phase | None = Field(None, description="Only whose last phase this is.")
    begins: Border | None = Field(None, description="Only jobs that existed at or after this moment.")
    ends: Border | None = Field(None, description="Only jobs that were submitted before this moment.")
    gone: bool | None = Field(None, description="true: only whose object is gone; false: only whose object is there.")
    limit: Limit = 100
    cursor: Annotated[str, StringConstraints(max_length=2048)] = Field(
        "", description="`next` of the page before, with the same filters."
    )


class CostForm(str, Enum):
    JSON = "json"
    CSV = "csv"
    FOCUS = "focus"
    HTML = "html"

    @property
    def media_type(self) -> str:
        return {CostForm.JSON: "application/json", CostForm.HTML: "text/html"}.get(self, "text/csv")


class CostQuery(BaseModel):
    """Which month, and how it is told."""

    model_config = ConfigDict(extra="forbid")

    month: Annotated[str, StringConstraints(max_length=16)] = Field("", description="Like 2026-11, in UTC; this month.")
    by: Annotated[str, StringConstraints(max_length=512)] = Field(
        "queue",
        description="queue, namespace, user, project, month, job, flavour or label:KEY; several with commas.",
    )
    format: CostForm = Field(CostForm.JSON, description="json, csv, html: a page; or focus: the FinOps CSV.")
    namespace: Name = Field("", description="Only jobs of this namespace.")
    cluster: Annotated[str, StringConstraints(max_length=253)] = Field(
        "", description="Its name: FOCUS's billing account, and on the page."
    )
