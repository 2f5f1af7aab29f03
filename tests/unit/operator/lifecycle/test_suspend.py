"""`spec.suspend` stops, keeps, and queues again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.api.common import find_condition
from muster.api.names import ConditionType, EventReason
from muster.api.trainingjob_status import CommittedCheckpoint, Progress
from muster.controllers.progress import progressed
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Kept, MemoryTier

from .cases import Case, trainingjob

pytestmark = pytest.mark.unit


def test_a_job_made_suspended_is_not_planned() -> None:
    case = Case(trainingjob(suspend=True))
    decision = case.settle()
    assert not decision.plannable
    assert case.phase == "Suspended"


def test_a_running_gang_stops_and_waits_and_goes_on() -> None:
    case = Case(trainingjob())
    case.start()
    case.edit(suspend=True)
    case.settle()
    assert case.phase == "Preempting"
    assert all(pod.terminating for pod in case.pods.values())
    for index in (0, 1):
        case.end(index, Cause.PREEMPTED, 75)
    case.settle()
    assert case.phase == "Preempting", "the launchers' own end is what we asked for"
    case.vanish()
    case.settle()
    assert case.phase == "Suspended"
    assert case.is_true(ConditionType.SUSPENDED)
    told = case.job.status.queue
    assert told is not None
    assert told.why == "Suspended: spec.suspend is true; set it to false to queue the job again"
    running = find_condition(case.job.status.conditions, ConditionType.RUNNING.value)
    assert running is not None
    assert running.message == "spec.suspend is true", "nothing is still to come"
    assert case.job.status.restarts is None
    first = case.job.status.submitted_at
    case.edit(suspend=False)
    assert case.settle().plannable
    assert case.phase == "Queued"
    assert not case.is_true(ConditionType.SUSPENDED)
    assert case.job.status.queue is None
    assert case.job.status.submitted_at == first


@pytest.mark.parametrize("step", [None, 3])
def test_who_suspends_a_script_without_a_session_is_told_that_nothing_was_saved(step: int | None) -> None:
    case = Case(trainingjob(workers=1, checkpoint={"uri": "s3://models/llama"}))
    case.start()
    case.edit(suspend=True)
    case.settle()
    case.end(0, Cause.PREEMPTED, 75, step=step)
    case.remember()
    case.settle()
    case.vanish()
    case.settle()
    (told,) = (note.message for note in case.notes if note.reason == EventReason.SUSPENDED)
    assert ("nothing was saved at s3://models/llama" in told) == (step is None)


def test_one_that_never_started_had_nothing_to_save() -> None:
    case = Case(trainingjob(workers=1, checkpoint={"uri": "s3://models/llama"}, suspend=True))
    case.settle()
    (told,) = (note.message for note in case.notes if note.reason == EventReason.SUSPENDED)
    assert told == "spec.suspend is true; set it to false to queue the job again"


def test_a_checkpoint_stays_in_memory_no_longer_than_the_gang() -> None:
    case = Case(trainingjob(checkpoint={"uri": "s3://models/llama"}))
    case.start()
    assert case.launcher is not None
    answer = replace(case.launcher, memory_tier=MemoryTier(Kept.LOCAL, "all its workers lie on one node"))

    def hear() -> None:
        told = progressed(case.job, answer, case.now)
        case.job = case.job.model_copy(update={"status": told or case.job.status})

    hear()
    assert case.is_true(ConditionType.CHECKPOINT_IN_MEMORY)
    case.edit(suspend=True)
    case.settle()
    hear()
    assert not case.is_true(ConditionType.CHECKPOINT_IN_MEMORY), "its pods end, and still answer"
    case.vanish()
    case.settle()
    assert case.reason(ConditionType.CHECKPOINT_IN_MEMORY) == "Suspended"


def test_suspending_a_restarting_job_suspends_it() -> None:
    case = Case(trainingjob())
    case.start()
    case.change(case.worker(0).name, disruption_target="drained")
    case.settle()
    case.edit(suspend=True)
    case.settle()
    case.vanish()
    case.settle()
    assert case.phase == "Suspended"


def test_an_ended_job_stays_ended() -> None:
    case = Case(trainingjob(workers=1))
    case.start()
    case.end(0, Cause.SUCCEEDED, 0)
    case.settle()
    case.edit(suspend=True)
    case.settle()
    assert case.phase == "Succeeded"


ASKS_TO_COPY = "suspend the job and copy it:  muster checkpoint cp s3://models/llama s3://models/other"


@pytest.mark.parametrize(
    ("checkpoint", "ends"),
    [
        ({"uri": "s3://models/other"}, ASKS_TO_COPY),
        ({"uri": "s3://models/other", "from": "s3://models/llama@20"}, "or begins from s3://models/llama@20"),
        ({"uri": "s3://models/llama/"}, ""),
        (None, "no checkpoint.uri any more: the run begins anew"),
    ],
)
def test_another_checkpoint_uri_leaves_the_run_that_was_there(checkpoint: dict[str, str] | None, ends: str) -> None:
    case = Case(trainingjob(checkpoint={"uri": "s3://models/llama"}))
    case.start()
    saved = CommittedCheckpoint(step=28, uri="s3://models/llama")
    status = {"checkpoint": saved, "progress": Progress(step=30, updated_at=case.now)}
    case.job = case.job.model_copy(update={"status": case.job.status.model_copy(update=status)})
    case.edit(suspend=True)
    case.settle()
    for index in (0, 1):
        case.end(index, Cause.PREEMPTED, 75)
    case.vanish()
    case.edit(checkpoint=checkpoint)
    case.settle()
    assert case.job.status.checkpoint == saved, "it may be changed back"
    case.edit(suspend=False)
    case.settle()
    left = [note.message for note in case.notes if note.reason is EventReason.RUN_LEFT]
    if not ends:
        assert (case.job.status.checkpoint, left) == (saved, [])
        return
    assert (case.job.status.checkpoint, case.job.status.progress) == (None, None)
    (told,) = left
    assert told.startswith("the checkpoint of step 28 stays at s3://models/llama, and the spec names ")
    assert told.endswith(ends)
