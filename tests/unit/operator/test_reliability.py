"""How often nodes fail is learned from the jobs' statuses."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from muster.cluster.pods import container
from muster.controllers.records import Ended, Record
from muster.controllers.reliability import LOOK_AGAIN, Reliability, Stay, observed, stay_of
from muster_protocol import env

from .lifecycle.cases import trainingjob
from .loops import world

pytestmark = pytest.mark.unit

NOON = datetime(2026, 11, 15, 12, tzinfo=timezone.utc)
SUPPOSED = {"on-demand": 3600.0, "spot": 24.0}


def hours(kind: str, worker_hours: float, breakdowns: int) -> Stay:
    return Stay((kind,), worker_hours * 3600, breakdowns)


def test_a_new_cluster_goes_by_what_is_supposed_and_an_old_one_by_what_it_saw() -> None:
    assert observed(SUPPOSED, []) == SUPPOSED
    fragile = [hours("on-demand", 50_000, 40), hours("on-demand", 50_000, 60)]
    assert observed(SUPPOSED, fragile)["on-demand"] == pytest.approx(103_600 / 101)
    sound = observed(SUPPOSED, [hours("on-demand", 100_000, 0)])
    assert sound == {"on-demand": 103_600.0, "spot": 24.0}


def test_a_job_that_may_run_on_spot_tells_of_spot() -> None:
    both = Stay(("on-demand", "spot"), 48 * 3600, 2)
    assert observed(SUPPOSED, [both]) == {"on-demand": 3600.0, "spot": 72 / 3}
    assert observed(SUPPOSED, [Stay((), 0.0, 1)])["on-demand"] == 1800.0  # a job that names no kind


def status(**fields: Any) -> Any:
    job = trainingjob(workers=4)
    return job.model_copy(update={"status": job.status.model_copy(update=fields)})


def test_all_workers_time_counts_in_past_runs_and_in_the_present_one() -> None:
    running = status(runtime_seconds=100, running_since=NOON - timedelta(seconds=50), breakdowns=3)
    assert stay_of(running, (), NOON) == Stay((), 4 * 150.0, 3)
    assert stay_of(status(), ("spot",), NOON) == Stay(("spot",), 0.0, 0)
    ended = Ended.of(Record.of(status(runtime_seconds=100, replicas=0, breakdowns=1)), NOON)
    assert ended.stay == Stay((), 400.0, 1)


def test_ten_thousand_jobs_are_not_looked_at_for_each_gang() -> None:
    clock, looks = [0.0], [0]

    def stays() -> list[Stay]:
        looks[0] += 1
        return [hours("spot", 24, looks[0] - 1)]

    found = Reliability(tuple(SUPPOSED.items()), stays, lambda: clock[0])
    assert dict(found.hours()) == {"on-demand": 3600.0, "spot": 48.0}
    clock[0] = LOOK_AGAIN - 1
    assert dict(found.hours())["spot"] == 48.0
    clock[0] = LOOK_AGAIN
    assert dict(found.hours()) == {"on-demand": 3600.0, "spot": 24.0}
    assert looks == [2]


async def test_a_gangs_pods_are_told_what_was_seen() -> None:
    async with world(node_hours=(("on-demand", 1234.5678), ("spot", 9.0))) as place:
        place.submit("a", checkpoint={"uri": "s3://a/b", "interval": "auto"})
        await place.until(lambda: len(place.server.pods) == 2)
        for pod in place.server.pods.values():
            found = {entry["name"]: entry.get("value") for entry in container(pod["spec"], "trainer")["env"]}
            assert found[env.CHECKPOINT_NODE_HOURS] == "1235"
