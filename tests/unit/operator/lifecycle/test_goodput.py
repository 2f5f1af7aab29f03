"""Where a job's time goes, as its status tells it: the queue, pods and launchers join without a gap."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from muster.api.goodput import whole_of
from muster.api.trainingjob import TrainingJob
from muster.controllers.progressed import COUNTED_EVERY, progressed
from muster_protocol.exits import Cause
from muster_protocol.goodput import Spent
from muster_protocol.launcher_status import Phase, Status

from .cases import START, Case, trainingjob

pytestmark = pytest.mark.unit


def parts(case: Case) -> dict[str, int]:
    known = case.job.status.goodput
    assert known is not None
    return known.seconds.model_dump(exclude_none=True)


def asks(case: Case, step: int | None = None, **spent: float) -> bool:
    """Index 0's launcher answers; whether that is written."""
    placement = case.job.status.placement
    assert placement is not None
    answer = Status(Phase.RUNNING, placement.generation, 1, 0, step=step, spent=Spent(**spent))
    status = progressed(case.job, answer, case.now)
    if status is not None:
        case.job = TrainingJob.from_raw(case.job.to_raw() | {"status": status.to_raw()})
    return status is not None


def begin(**spec: Any) -> Case:
    """A job that queued for 40 s, took 25 s to its launcher and then 5 s to its first step."""
    case = Case(trainingjob(**spec))
    case.settle()
    case.later(40)
    case.place("n0", "n1")
    case.settle()
    case.later(25 + 5)
    case.run_pods()
    case.train()
    case.settle()
    assert asks(case, step=1, starting=5)
    assert parts(case) == {"queued": 40, "starting": 30}
    return case


def until(case: Case) -> datetime:
    known = case.job.status.goodput
    assert known is not None
    assert whole_of(known.seconds) == (known.until - START).total_seconds()
    return known.until


def test_preempted_and_placed_again() -> None:
    case = begin()
    case.later(100)
    assert asks(case, step=50, starting=5, training=98, pending=2)
    assert until(case) == case.now - timedelta(seconds=2)
    case.edit(suspend=True)
    case.settle()
    case.later(6)
    case.end(0, Cause.PREEMPTED, 75, spent=Spent(starting=5, training=101, checkpoint=4))
    case.end(1, Cause.PREEMPTED, 75)
    case.remember()
    case.later(2)
    case.vanish()
    case.settle()
    assert parts(case) == {"queued": 40, "training": 101, "checkpoint": 4, "starting": 30 + 3}
    assert until(case) == case.now
    case.later(1000)
    case.edit(suspend=False)
    case.settle()
    case.later(60)
    case.place("n2", "n3")
    case.start_placed()
    case.later(20)
    assert asks(case, step=60, starting=7, recomputing=3, pending=1)
    assert parts(case) == {"queued": 100, "training": 101, "checkpoint": 4, "starting": 33 + 9 + 7, "recomputing": 3}
    known = case.job.status.goodput
    assert known is not None
    assert known.ratio == f"{101 / 257:.3f}"
    assert whole_of(known.seconds) == (known.until - START).total_seconds() - 1000, "suspended for so long"


def test_a_pod_that_is_lost_costs_what_nobody_has_told() -> None:
    case = begin()
    case.later(100)
    assert asks(case, step=50, starting=5, training=100)
    case.later(8)
    case.lost_nodes = frozenset({"n0", "n1"})
    case.settle()
    assert case.job.status.placement is None
    assert parts(case) == {"queued": 40, "training": 100, "starting": 30 + 8}
    assert until(case) == case.now


def test_a_job_that_succeeds_keeps_its_account() -> None:
    case = begin()
    case.later(100)
    for index in (0, 1):
        case.end(index, Cause.SUCCEEDED, 0, spent=Spent(starting=5, training=90, data_wait=8, checkpoint=1))
    case.settle()
    assert case.phase == "Succeeded"
    assert parts(case) == {"queued": 40, "training": 90, "data_wait": 8, "checkpoint": 1, "starting": 31}
    assert until(case) == case.now
    case.later(500)
    case.settle()
    assert parts(case)["starting"] == 31


def test_time_alone_is_written_rarely() -> None:
    case = begin()
    case.later(10)
    assert not asks(case, step=1, starting=5, pending=10)
    assert not asks(case, step=1, starting=5, hung=10)
    case.later(COUNTED_EVERY)
    assert asks(case, step=1, starting=5, hung=10 + COUNTED_EVERY)
    assert parts(case)["hung"] == 10 + COUNTED_EVERY


def test_nonsense_of_a_launcher_is_not_counted() -> None:
    case = begin()
    before = parts(case)
    case.later(10)
    assert asks(case, step=2, training=-5)
    assert asks(case, step=3, training=float("nan"))
    assert asks(case, step=4, training="much")  # type: ignore[arg-type]
    assert parts(case) == before
