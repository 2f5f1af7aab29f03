"""A job and what belongs to it, as it was read; and words on the events among that. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.views import PodView
from muster.telling.leading import Unled


@dataclass(frozen=True)
class Scene:
    """A job and what belongs to it, at one moment.

    Attributes:
        queues: the job's queue and those above it, the nearest first; none where nobody may read them.
        unled: set where it is known that no operator leads: what the job tells is old.
    """

    job: TrainingJob
    pods: tuple[PodView, ...]
    events: tuple[dict[str, Any], ...]
    now: datetime
    trouble: str = ""
    queues: tuple[TrainingQueue, ...] = ()
    unled: Unled | None = None


def event_time(event: dict[str, Any]) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("eventTime") or event.get("lastTimestamp") or "")
