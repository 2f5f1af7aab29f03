"""A script that fails at a size that the planner chose goes back to the size that it had trained with."""

from __future__ import annotations

import pytest

from muster.api.names import ConditionType, EventReason
from muster.api.trainingjob import TrainingJob
from muster_protocol.exits import Cause

from .cases import Case, trainingjob

pytestmark = pytest.mark.unit

SIZES = {"replicas": 2, "min": 1, "max": 4, "gpusPerWorker": 1}
BATCH = "ValueError: the global batch of 16 can't be shared equally"


def elastic(**sizes: int) -> Case:
    """A gang of 2 workers that has done some steps."""
    case = Case(trainingjob(workers={**SIZES, **sizes}))
    case.start("n0", "n1")
    raw = case.job.to_raw()
    raw["status"]["progress"] = {"step": 224, "totalSteps": 400}
    case.job = TrainingJob.from_raw(raw)
    return case


def resize(case: Case, *nodes: str, why: str = "Grown") -> None:
    """What the planner's promise and the loop make of it."""
    raw = case.job.to_raw()
    del raw["status"]["placement"]
    next(each for each in raw["status"]["conditions"] if each["type"] == "Admitted").update(status="False", reason=why)
    case.pods.clear()
    case.job = TrainingJob.from_raw(raw)
    case.later(600)
    case.place(*nodes)
    case.start_placed()


def fail(case: Case, error: str = BATCH) -> None:
    """The script fails; the gang is stopped and gone."""
    placement = case.job.status.placement
    assert placement is not None
    traceback = f'Traceback (most recent call last):\n  File "train.py", line 17, in <module>\n{error}'
    case.end(0, Cause.USER, 1, rank=0, traceback=traceback, signature=error)
    case.settle()
    for pod in case.gang():
        if pod.phase not in ("Failed", "Succeeded"):
            case.change(pod.name, terminating=True)
    case.vanish()
    case.vanish(*case.pods)
    case.settle()


def again(case: Case) -> None:
    """It starts again on what is kept for it."""
    promise = case.job.status.promise
    assert promise is not None
    case.place(*promise.node_of_index())
    case.start_placed()


def test_a_gang_whose_script_fails_at_the_size_that_it_has_grown_to_goes_back() -> None:
    case = elastic()
    resize(case, "n0", "n1", "n2")
    fail(case)
    again(case)
    fail(case)
    assert case.phase == "Restarting"
    fixed, promise = case.job.status.fixed_size, case.job.status.promise
    assert fixed is not None
    assert promise is not None
    assert (fixed.workers, fixed.failed, promise.node_of_index()) == (2, 3, ("n0", "n1"))
    assert not case.job.status.recent_failures, "the script's restarts are all left"
    (told,) = [note.message for note in case.notes if note.reason is EventReason.MOVED and note.warning]
    assert told.startswith(
        "the gang goes back to 2 workers: with 3 workers its script failed 2 times alike, and it had"
    )
    again(case)
    assert case.is_true(ConditionType.RUNNING)
    assert [(size.workers, size.reason) for size in case.job.status.sizes] == [
        (2, "Started"),
        (3, "Grown"),
        (2, "SizeFailed"),
    ]
    assert case.job.status.fixed_size is not None, "it does not grow into that again"
    case.edit(workers={**SIZES, "step": 2, "min": 2})
    case.settle()
    assert case.job.status.fixed_size is None


def test_a_gang_whose_script_fails_with_fewer_waits_for_the_size_that_it_had() -> None:
    case = elastic()
    resize(case, "n0", why="Shrunk")
    fail(case)
    again(case)
    fail(case)
    assert case.job.status.promise is None
    fixed = case.job.status.fixed_size
    assert fixed is not None
    assert (fixed.workers, fixed.failed) == (2, 1)
    assert case.phase != "Failed"


def test_what_fails_with_the_former_size_too_ends_the_job() -> None:
    case = elastic()
    resize(case, "n0", "n1", "n2")
    for _ in range(3):
        fail(case)
        again(case)
    fail(case)
    assert case.phase == "Failed"


@pytest.mark.parametrize("sizes", [{}, {"min": 3, "max": 4, "replicas": 3}])
def test_a_failure_that_was_there_before_is_not_the_sizes(sizes: dict[str, int]) -> None:
    case = elastic()
    if not sizes:
        fail(case)
        again(case)
    resize(case, "n0", "n1", "n2")
    if sizes:  # the former size is one that it may not have any more
        case.edit(workers={**SIZES, **sizes})
        fail(case)
        again(case)
    fail(case)
    assert case.phase == "Failed"
    assert case.job.status.fixed_size is None


def test_a_gang_that_never_trained_has_no_size_to_go_back_to() -> None:
    case = Case(trainingjob(workers=SIZES))
    case.start("n0", "n1")
    resize(case, "n0", "n1", "n2")
    fail(case)
    again(case)
    fail(case)
    assert case.phase == "Failed"


USAGE = "muster_runtime.errors.UsageError: a global batch of # is not shared equally by # ranks"


def test_misuse_of_the_session_ends_the_job_at_once() -> None:
    case = elastic()
    fail(case, USAGE)
    assert (case.phase, case.reason(ConditionType.FAILED)) == ("Failed", "UserError")
    assert case.message(ConditionType.FAILED).startswith("the script uses its session in a way that it can't")
    assert not case.job.status.restarts


def test_but_not_where_it_comes_with_a_size_that_the_author_did_not_choose() -> None:
    case = elastic()
    resize(case, "n0", "n1", "n2")
    fail(case, USAGE)
    fixed = case.job.status.fixed_size
    assert fixed is not None
    assert (case.phase, fixed.workers, fixed.failed) == ("Restarting", 2, 3)
    assert fixed.message.startswith("with 3 workers its script failed, and it had trained with 2: ")
