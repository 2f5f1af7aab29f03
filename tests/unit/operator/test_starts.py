"""What a start is taken to cost that nobody has measured."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from tests.unit.operator.lifecycle.cases import trainingjob
from tests.unit.operator.test_planning import Items, world

from muster.api.trainingjob import TrainingJob
from muster.cluster.pods import PodSettings
from muster.controllers.cache import Cache
from muster.controllers.claims import Claims
from muster.controllers.inputs import Inputs
from muster.controllers.records import Record
from muster.controllers.starts import COUNTED, ENOUGH, Starts
from muster.controllers.terms import START_SECONDS

pytestmark = pytest.mark.unit

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def started(uid: int, seconds: int | None, **spec: Any) -> TrainingJob:
    """A job whose last start took so long."""
    job = trainingjob(**spec)
    status = job.status.model_copy(update={"start_seconds": seconds})
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": f"u{uid}"}), "status": status})


def test_it_is_the_median_of_others_once_there_are_some() -> None:
    starts = Starts()
    for uid in range(ENOUGH - 1):
        starts.see(started(uid, 7))
        starts.see(started(uid, 7))  # the watch tells of a job more than once
    starts.see(started(100, None))
    assert starts.typical == START_SECONDS
    starts.see(started(ENOUGH, 900))
    assert starts.typical == 10, "one that took long is not what others take"


def test_it_stays_while_it_fits() -> None:
    starts, seen = Starts(), list[float]()
    for seconds in (8, 6, 10, 11, 7, 24, 400, 400, 3600):
        for uid in range(COUNTED):
            starts.see(started(uid, seconds))
        seen.append(starts.typical)
    assert seen == [10, 10, 10, 15, 10, 30, 450, 450, 1800]


def test_the_newest_count() -> None:
    starts = Starts()
    for uid in range(COUNTED):
        starts.see(started(uid, 600))
    for uid in range(COUNTED // 2):
        assert starts.typical == 600
        starts.see(started(COUNTED + uid, 20))
    assert starts.typical == 600, "the median is still one of the old"
    starts.see(started(2 * COUNTED, 20))
    assert starts.typical == 20


def test_jobs_that_wait_are_looked_at_anew_when_it_changes() -> None:
    cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
    inputs = Inputs(cache, PodSettings("runtime"), Claims(cache.mark))
    waits = Record.of(trainingjob(maxRuntime="10m", window={"start": "0 0 * * *", "duration": "13h"}))

    def estimate() -> tuple[float, float]:
        around = world()
        inputs.look(around, [])
        made = inputs.pending(waits, around, NOW)
        return made.terms.estimate - 600, made.terms.closes

    closes = (NOW + timedelta(hours=1)).timestamp()
    assert estimate() == (START_SECONDS, closes - 2 * START_SECONDS)
    for uid in range(ENOUGH):
        inputs.starts.see(started(uid, 30))
    assert estimate() == (30, closes - 60)
