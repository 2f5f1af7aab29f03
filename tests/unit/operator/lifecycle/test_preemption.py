"""A gang that gives its room up: stopped only for a written promise, counted when its last pod is gone."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.names import ConditionType, EventReason
from muster.api.placement import Promise, Victim, nodes_with_workers
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import CommittedCheckpoint
from muster.controllers.lifecycle.preemption import budget_left
from muster.controllers.lifecycle.turn import Claim
from muster.scheduling.plan import MoveReason
from muster_protocol.exits import Cause

from .cases import START, Case, trainingjob

pytestmark = pytest.mark.unit

CHECKPOINT = {"uri": "s3://b/run"}


def claim(generation: int = 1, reason: MoveReason = MoveReason.PREEMPTED, nodes: tuple[str, ...] = ()) -> Claim:
    victim = Victim(
        uid="0123456789abcdef", generation=generation, reason=reason.value, lost=7200, nodes=nodes_with_workers(nodes)
    )
    return Claim("uid-of-big", "research/big", victim)


def running(**spec: Any) -> Case:
    case = Case(trainingjob(**spec))
    case.start("n0", "n1")
    return case


def test_a_gang_leaves_though_its_room_was_promised_for_a_reason_of_another_version() -> None:
    case = running()
    known = claim()
    case.claim = Claim(known.beneficiary, known.name, known.victim.model_copy(update={"reason": "Rebalanced"}))
    case.turn()
    stop = case.job.status.stop
    assert stop is not None
    assert (stop.reason, stop.beneficiary) == ("Preempted", "uid-of-big")
    assert "research/big" in stop.message


@pytest.mark.parametrize("saves", [True, False])
def test_a_gang_that_saves_nothing_is_not_told_that_it_may(*, saves: bool) -> None:
    case = running(**({"checkpoint": {"uri": "s3://models/llama"}} if saves else {}))
    case.claim = claim()
    case.turn()
    assert ("fewer if it saves" in case.message()) is saves
    assert ("for it saves no checkpoints" in case.message()) is not saves


def test_a_claimed_gang_stops_and_says_for_whom_why_and_what_it_costs() -> None:
    case = running()
    case.later(600)
    case.claim = claim()
    decision = case.turn()
    assert len(decision.delete) == 2
    assert case.phase == "Preempting"
    stop = case.job.status.stop
    assert stop is not None
    assert (stop.reason, stop.beneficiary, stop.lost) == ("Preempted", "uid-of-big", 7200)
    for words in ("research/big", "7200 GPU-seconds", "first submit time"):
        assert words in case.message()
    note = case.notes[-1]
    assert note.reason is EventReason.PREEMPTED
    assert note.message.startswith("the gang gives its room to research/big"), "the reason stands before it"
    case.settle()
    case.later(45)
    case.vanish()
    case.settle()
    status = case.job.status
    assert case.phase == "Queued"
    assert case.reason() == "Preempted"
    assert (status.preemptions, status.lost_gpu_seconds, status.stop_seconds) == (1, 7200, 45)
    assert status.submitted_at == START
    assert status.preempted_at == (case.now,)
    assert status.runtime_seconds == 600
    assert (status.restarts, status.failures) == (None, None)
    case.claim = claim()  # the promise stands for a while: it speaks of the placement that is gone
    case.place("n0", "n1")
    assert not case.turn().delete


@pytest.mark.parametrize("reason", [MoveReason.DRAINED, MoveReason.GROWN])
def test_what_is_no_preemption_is_not_booked_among_what_these_cost(reason: MoveReason) -> None:
    case = running()
    raw = case.job.to_raw()
    raw["status"]["stop"] = {"reason": reason.value, "requestedAt": "2026-03-01T12:00:00Z", "lost": 5688}
    case.job = TrainingJob.from_raw(raw)
    case.settle()
    case.vanish()
    case.settle()
    status = case.job.status
    assert status.stop is None
    assert (status.preemptions, status.lost_gpu_seconds) == (None, None)


@pytest.mark.parametrize(("committed", "lost"), [(90, None), (80, 7200), (None, 7200)])
def test_what_a_gang_saved_before_it_left_is_not_called_lost(committed: int | None, lost: int | None) -> None:
    case = running(checkpoint=CHECKPOINT)
    case.later(600)
    case.claim = claim()
    case.settle()
    assert case.phase == "Preempting"
    for index in (0, 1):
        case.end(index, Cause.PREEMPTED, 143, step=90, committed_step=committed)
    case.remember()
    case.settle()
    case.vanish()
    case.settle()
    assert case.phase == "Queued"
    assert (case.job.status.preemptions, case.job.status.lost_gpu_seconds) == (1, lost)


@pytest.mark.parametrize(
    ("committed", "told"),
    [
        (90, []),
        (80, ["the gang stopped after step 90 and left no checkpoint of it, the last is of step 80: preempted; why"]),
        (None, ["the gang stopped after step 90 and left no checkpoint of it, nor any before: preempted; why"]),
    ],
)
def test_that_the_last_save_of_a_stop_failed_is_told_once_with_the_launchers_words(
    committed: int | None, told: list[str]
) -> None:
    case = running(checkpoint=CHECKPOINT)
    case.edit(suspend=True)
    case.settle()
    case.end(0, Cause.PREEMPTED, 75, step=90, committed_step=committed, message="preempted; why")
    case.end(1, Cause.PREEMPTED, 75, step=90, message="preempted")
    case.remember()
    case.settle()
    case.vanish()
    case.settle()
    case.settle()
    notes = [note for note in case.notes if note.reason is EventReason.LAST_SAVE_FAILED]
    assert [note.message for note in notes] == told
    assert all(note.warning for note in notes)


def test_a_commit_that_only_the_status_knows_is_not_called_lost() -> None:
    case = running(checkpoint=CHECKPOINT)
    status = case.job.status.model_copy(update={"checkpoint": CommittedCheckpoint(step=90)})
    case.job = case.job.model_copy(update={"status": status})
    case.edit(suspend=True)
    case.settle()
    case.end(1, Cause.PREEMPTED, 75, step=90, message="preempted")
    case.remember()
    case.settle()
    case.vanish()
    case.settle()
    assert case.phase == "Suspended"
    assert not [note for note in case.notes if note.reason is EventReason.LAST_SAVE_FAILED]


def test_that_a_run_whose_time_is_over_saved_nothing_is_told() -> None:
    case = running(checkpoint=CHECKPOINT, maxRuntime="1h")
    for index in (0, 1):
        case.end(index, Cause.MAX_RUNTIME, 75, step=90, committed_step=80, message="maxRuntime is over; why")
    case.remember()
    case.settle()
    assert case.phase == "Failed"
    notes = [note.message for note in case.notes if note.reason is EventReason.LAST_SAVE_FAILED]
    assert notes == [
        "the gang stopped after step 90 and left no checkpoint of it, the last is of step 80: maxRuntime is over; why"
    ]


def test_a_claim_on_another_placement_is_no_business_of_this_one() -> None:
    case = running()
    case.claim = claim(generation=7)
    assert case.decide().status is None


def test_a_gang_that_is_done_is_not_preempted() -> None:
    case = running()
    case.claim = claim()
    case.end(0, Cause.SUCCEEDED, 0)
    case.end(1, Cause.SUCCEEDED, 0)
    case.settle()
    assert case.phase == "Succeeded"


def test_a_gang_that_shrinks_for_another_is_promised_its_new_place_with_its_stop() -> None:
    case = running(workers=2)
    case.claim = claim(reason=MoveReason.SHRUNK, nodes=("n0",))
    case.turn()
    status = case.job.status
    assert status.stop is not None
    assert status.promise is not None
    assert status.promise.node_of_index() == ("n0",)
    assert "goes on at once" in status.stop.message
    case.settle()
    case.vanish()
    decision = case.settle()
    assert decision.plannable
    assert case.job.status.promise is not None, "kept until it starts there"
    assert case.job.status.preemptions == 1


@pytest.mark.parametrize("claimed", ["before it fails", "while it stops", "when its pods are gone"])
def test_a_gang_that_fails_as_it_is_to_shrink_for_another_goes_on_with_its_new_size(claimed: str) -> None:
    """It asked for nothing, so it does not queue again; nor does it keep the room that is another's by now."""
    case = running(workers=2)
    case.mute = True
    shrinks = claim(reason=MoveReason.SHRUNK, nodes=("n0",))
    case.claim = shrinks if claimed == "before it fails" else None
    case.end(1, Cause.USER, 1)
    case.turn()
    if claimed == "when its pods are gone":
        case.vanish()
        case.settle()
    case.claim = shrinks
    case.settle()
    case.vanish()
    case.settle()
    status = case.job.status
    assert status.promise is not None
    assert status.promise.places() == ("n0",)
    assert (status.placement, status.restarts, case.reason()) == (None, 1, "Shrunk")
    moved = status.promise.model_copy(update={"nodes": nodes_with_workers(("n5",))})
    case.job = case.job.model_copy(update={"status": status.model_copy(update={"promise": moved})})
    case.settle()
    assert case.job.status.promise == moved, "a node of it was mended meanwhile"


@pytest.mark.parametrize("reason", [MoveReason.GROWN, MoveReason.WORKERS_LOST])
def test_another_size_for_its_own_good_is_no_preemption(reason: MoveReason) -> None:
    case = running()
    case.claim = claim(reason=reason, nodes=("n0", "n1", "n2"))
    case.settle()
    assert case.phase == ("Restarting" if reason is MoveReason.WORKERS_LOST else "Preempting")
    case.vanish()
    case.settle()
    assert case.job.status.preemptions is None
    assert case.job.status.preempted_at == ()
    assert case.job.status.breakdowns == (1 if reason is MoveReason.WORKERS_LOST else None)


@pytest.mark.parametrize("edit", [{"suspend": True}, {"workers": {"replicas": 3, "gpusPerWorker": 1}}])
def test_a_promise_ends_when_the_job_is_another(edit: dict[str, Any]) -> None:
    case = Case(trainingjob())
    case.settle()
    hash_ = case.situation().promise_hash
    promise = Promise(workers=2, nodes=nodes_with_workers(("n0", "n1")), spec=hash_)
    case.job = case.job.model_copy(update={"status": case.job.status.model_copy(update={"promise": promise})})
    case.settle()
    assert case.job.status.promise == promise
    case.edit(**edit)
    case.settle()
    assert case.job.status.promise is None
    assert EventReason.PROMISE_BROKEN in [note.reason for note in case.notes]


def test_a_gang_that_keeps_its_room_for_a_restart_still_yields_if_it_was_let_in_before_its_turn() -> None:
    case = running()
    placement = case.job.status.placement
    assert placement is not None
    let_in = case.job.status.model_copy(update={"placement": placement.model_copy(update={"yields": True})})
    case.job = case.job.model_copy(update={"status": let_in})
    case.end(1, Cause.USER, 1, message="ValueError: bad lr", rank=1, rank_exit_code=1)
    case.settle()
    assert case.job.status.promise is not None
    assert case.job.status.promise.yields


def test_the_budget_counts_what_lies_within_the_window() -> None:
    moments = tuple(START.replace(hour=hour) for hour in (1, 9, 11))
    assert budget_left(moments, None, 3600, START) is None
    assert budget_left(moments, 3, 4 * 3600, START) == 1
    assert budget_left(moments, 1, 4 * 3600, START) == 0


def test_what_the_launchers_tell_while_they_are_stopped_is_written_with_the_end() -> None:
    """After a suspend STEP and CHECKPOINT are those of the last commit, not of the last poll."""
    case = running(checkpoint=CHECKPOINT)
    case.edit(suspend=True)
    case.turn()
    before = case.writes
    case.end(0, Cause.PREEMPTED, 75, step=41, committed_step=40)
    case.remember()
    case.end(1, Cause.PREEMPTED, 75, step=41, committed_step=40)
    case.remember()
    case.settle()
    assert case.writes == before, "one write tells it all, when the last pod is gone"
    case.vanish()
    case.settle()
    status = case.job.status
    assert status.progress is not None
    assert status.checkpoint is not None
    assert (status.progress.step, status.checkpoint.step) == (41, 40)
    assert case.phase == "Suspended"


@pytest.mark.parametrize(
    ("kubelets", "reason"),
    [
        ("CreateContainerConfigError", "CreateContainerConfigError"),
        ("ErrImagePull", "ImagePullFailed"),
        ("ImagePullBackOff", "ImagePullFailed"),
    ],
)
def test_what_keeps_a_pod_from_starting_is_told_at_once(kubelets: str, reason: str) -> None:
    case = Case(trainingjob())
    case.settle()
    case.place("n0", "n1")
    case.settle()
    case.wait(1, kubelets, 'secret "s3" not found')
    case.settle()
    assert case.phase == "Starting"
    assert case.reason(ConditionType.PODS_READY) == reason
    assert 'secret "s3" not found' in case.message(ConditionType.PODS_READY)
    assert case.job.status.queue is not None
    assert case.job.status.queue.reason == reason
    case.run_pods()
    case.train()
    case.settle()
    assert case.job.status.queue is None
    assert case.phase == "Running"


def test_kubelets_turns_between_two_words_for_one_trouble_are_one_write() -> None:
    case = Case(trainingjob())
    case.settle()
    case.place("n0", "n1")
    case.settle()
    case.wait(0, "ErrImagePull", "denied")
    case.settle()
    before = case.writes
    for word in ("ImagePullBackOff", "ErrImagePull"):
        case.wait(0, word, "denied")
        case.settle()
    assert case.writes == before
