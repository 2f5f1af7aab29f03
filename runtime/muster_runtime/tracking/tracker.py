"""What a tracker is: the interface that MLflow's and W&B's keep, and that others may (docs/tracking.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


@dataclass(frozen=True)
class Run:
    """The run that is to be opened.

    Attributes:
        uri: `tracking.uri`, as the job has it.
        key: the same for all starts of one TrainingJob, over restarts and preemptions; another job has another.
        experiment: what the run belongs to.
        name: for people.
        tags: what a new run gets; one that is opened again keeps its own.
        started_at: seconds since the epoch.
    """

    uri: str
    key: str
    experiment: str
    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    started_at: float = 0.0


@dataclass(frozen=True)
class Point:
    """One value of a metric. `value` may be no finite number; `at` is in seconds since the epoch."""

    name: str
    value: float
    step: int
    at: float


class RunStatus(str, Enum):
    """How a run stands, in MLflow's words."""

    RUNNING = "RUNNING"
    SCHEDULED = "SCHEDULED"
    """Stopped with a checkpoint, to go on later."""
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


class TrackerError(Exception):
    """The tracker has not taken what it was given; the same is tried again later. The message is for people."""


class Rejected(TrackerError):
    """It never will take it, however often it is tried, but may take other things."""


class Tracker(Protocol):
    """All calls come from one thread, one after the other, and may take their time.

    Whatever is raised is told to people, and the same call is made again after a pause; a call may so come twice.
    """

    def begin(self, run: Run) -> str:
        """Opens the run, or the one that has its key already. Returns a link to it, or ""."""

    def params(self, values: Mapping[str, str]) -> None:
        """What the run was set up with; a name may come again, with another value, when a run is resumed."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Facts; the newest word counts."""

    def metrics(self, points: Sequence[Point]) -> None:
        """At most `BATCH` of them. Steps that are done again after a restore come again."""

    def end(self, status: RunStatus, at: float) -> None:
        """The processes of the run have ended, at `at`; it may be begun again. Nothing follows."""


BATCH = 1000
"""Points in one call: what MLflow takes at once."""
