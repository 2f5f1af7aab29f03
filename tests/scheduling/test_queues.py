"""Queues keep to their quota, borrow what others leave unused, and lend no more than they said."""

from __future__ import annotations

import pytest

from muster.scheduling.plan import WaitReason
from muster.scheduling.planner import plan

from .cases import Job, Outcome, Queue, rack, snapshot

pytestmark = pytest.mark.unit

NODES = rack(0, 8)


def planned(queues: list[Queue], *jobs: Job) -> Outcome:
    shot = snapshot(NODES, jobs, queues)
    return Outcome(shot, plan(shot))


def test_queue_stops_at_its_quota() -> None:
    outcome = planned([Queue(gpus=16)], *[Job(f"job-{index}", submitted=index) for index in range(3)])
    assert list(outcome.admitted) == ["job-0", "job-1"]
    assert outcome.waiting["job-2"].reason is WaitReason.QUOTA_EXCEEDED
    assert outcome.waiting["job-2"].message == (
        "needs 8 nvidia.com/gpu of H100; queue research uses 16 nvidia.com/gpu of its quota of 16 nvidia.com/gpu "
        "and can use 0 nvidia.com/gpu more now, borrowing included"
    )
    assert outcome.waiting["job-2"].missing == 8


def test_quota_held_by_pods_that_are_not_gone_yet_counts() -> None:
    outcome = planned([Queue(gpus=16)], Job("old", workers=2, holding=True), Job("new"))
    assert "new" in outcome.waiting


def test_queue_borrows_what_its_cohort_leaves_unused() -> None:
    queues = [Queue("research", gpus=8, cohort=0), Queue("ops", gpus=16, cohort=0)]
    outcome = planned(queues, Job("a", workers=3), Job("b", submitted=1))
    assert list(outcome.admitted) == ["a"]
    assert outcome.waiting["b"].reason is WaitReason.QUOTA_EXCEEDED


def test_borrowing_limit_binds_the_borrower() -> None:
    queues = [Queue("research", gpus=8, borrowing=8, cohort=0), Queue("ops", gpus=32, cohort=0)]
    outcome = planned(queues, Job("a", workers=2), Job("b", workers=3))
    assert list(outcome.admitted) == ["a"]
    assert outcome.waiting["b"].reason is WaitReason.EXCEEDS_QUOTA


def test_borrowing_limit_binds_several_jobs_together() -> None:
    queues = [Queue("research", gpus=8, borrowing=8, cohort=0), Queue("ops", gpus=32, cohort=0)]
    outcome = planned(queues, *[Job(f"job-{index}", submitted=index) for index in range(3)])
    assert list(outcome.admitted) == ["job-0", "job-1"]
    assert outcome.waiting["job-2"].reason is WaitReason.QUOTA_EXCEEDED


def test_lending_limit_keeps_the_rest_for_the_lender() -> None:
    queues = [Queue("research", gpus=8, cohort=0), Queue("ops", gpus=32, lending=8, cohort=0)]
    outcome = planned(queues, Job("a", workers=3), Job("b", workers=2, submitted=1))
    assert list(outcome.admitted) == ["b"]
    assert outcome.waiting["a"].reason is WaitReason.EXCEEDS_QUOTA


def test_lender_waits_for_what_it_lent_but_has_the_part_that_it_never_lends() -> None:
    queues = [Queue("research", gpus=0, cohort=0), Queue("ops", gpus=32, lending=16, cohort=0)]
    outcome = planned(
        queues,
        Job("borrower", workers=2, holding=True),
        Job("own", workers=2, queue="ops", submitted=1),
        Job("lent", queue="ops", submitted=2),
    )
    assert list(outcome.admitted) == ["own"]
    assert outcome.waiting["lent"].reason is WaitReason.QUOTA_EXCEEDED


def test_queue_without_named_quota_lends_nothing() -> None:
    queues = [Queue("research", gpus=8, cohort=0), Queue("ops", cohort=0)]
    outcome = planned(queues, Job("a", workers=2), Job("b", queue="ops", workers=4, submitted=1))
    assert list(outcome.admitted) == ["b"]


def test_queue_alone_neither_borrows_nor_lends() -> None:
    queues = [Queue("research", gpus=8, borrowing=8), Queue("ops", gpus=32)]
    assert planned(queues, Job("a", workers=2)).waiting["a"].reason is WaitReason.EXCEEDS_QUOTA


def test_quota_speaks_of_one_flavour_only() -> None:
    assert "cpu" in planned([Queue(gpus=0)], Job("cpu", gpus=0)).admitted


def test_closed_queue_admits_nothing_and_its_use_stays_counted() -> None:
    queues = [Queue("research", gpus=8, cohort=0), Queue("gone", gpus=0, cohort=0, open=False)]
    outcome = planned(queues, Job("old", queue="gone", holding=True), Job("new", queue="gone"), Job("a"))
    assert outcome.waiting["new"].reason is WaitReason.QUEUE_CLOSED
    assert outcome.waiting["a"].reason is WaitReason.QUOTA_EXCEEDED


def test_job_whose_queue_does_not_exist_waits() -> None:
    waiting = planned([Queue()], Job("a", queue=None)).waiting["a"]
    assert (waiting.reason, waiting.message) == (WaitReason.QUEUE_CLOSED, "the job's queue does not exist")


def test_quota_lowered_under_use_stops_what_uses_it_and_nothing_else() -> None:
    outcome = planned([Queue(gpus=8)], Job("old", workers=2, holding=True), Job("gpu"), Job("cpu", gpus=0))
    assert list(outcome.admitted) == ["cpu"]


def test_job_that_waits_for_quota_holds_nobody_back() -> None:
    queues = [Queue("research", gpus=8), Queue("ops")]
    outcome = planned(queues, Job("large", workers=2, priority=9), Job("own"), Job("other", workers=7, queue="ops"))
    assert sorted(outcome.admitted) == ["other", "own"]


def test_a_cohort_of_queues_without_limits_does_not_wrap_round() -> None:
    queues = [Queue(f"queue-{index}", cohort=0) for index in range(8)]
    outcome = planned(queues, *[Job(f"job-{index}", queue=f"queue-{index}") for index in range(8)])
    assert len(outcome.admitted) == 8


def test_huge_finite_quotas_of_a_cohort_do_not_wrap_round() -> None:
    queues = [Queue(f"queue-{index}", gpus=2**61, cohort=0) for index in range(8)] + [Queue("poor", gpus=0, cohort=0)]
    assert "a" in planned(queues, Job("a", queue="poor", workers=8)).admitted
