"""From the first look to the good end, one status write a transition."""

from __future__ import annotations

from datetime import timedelta

import pytest

from muster.api.names import ConditionType
from muster.api.trainingjob_status import Progress
from muster.controllers.lifecycle.turn import Made
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Phase, Status

from .cases import RUNTIME_IMAGE, Case, pod_view, trainingjob

pytestmark = pytest.mark.unit


def test_a_new_job_is_seen_once_and_offered_to_the_planner() -> None:
    case = Case(trainingjob())
    assert case.turn().plannable
    assert (case.phase, case.reason()) == ("Queued", "Pending")
    assert case.job.status.selector == "muster.dev/job-uid=0123456789abcdef"
    assert case.job.status.gpus == 2
    assert case.decide().status is None
    assert case.writes == 1


def test_every_transition_to_the_good_end_is_one_write() -> None:
    case = Case(trainingjob())
    case.settle()
    case.place("n0", "n1")
    assert case.phase == "Starting"
    before = case.writes
    assert case.turn().make == (0, 1)
    assert case.writes == before
    case.run_pods()
    case.turn()
    assert case.writes == before, "most gangs pass their barrier within seconds: both are told at once"
    case.train()
    case.turn()
    assert case.phase == "Running"
    assert case.reason(ConditionType.PODS_READY) == "PodsReady"
    assert case.writes == before + 1
    case.end(0, Cause.SUCCEEDED, 0)
    case.settle()
    assert case.phase == "Running"
    case.end(1, Cause.SUCCEEDED, 0)
    case.settle()
    assert case.phase == "Succeeded"
    assert case.writes == before + 2
    assert case.job.status.placement is None
    assert case.reason() == "Finished"
    assert not any(pod.terminating for pod in case.pods.values()), "ended pods stay for their logs"


def test_a_gang_whose_pods_go_on_beside_their_trainers_is_done_and_they_are_removed() -> None:
    """A proxy of a mesh, say, that nobody stops."""
    case = Case(trainingjob())
    case.start()
    case.end(0, Cause.SUCCEEDED, 0)
    case.end_beside(1, Cause.SUCCEEDED, 0)
    decision = case.settle()
    assert case.phase == "Running", "it may end by itself, and then its log stays"
    assert decision.wake_at is not None
    case.now = decision.wake_at
    case.settle()
    assert case.phase == "Succeeded"
    assert [pod.terminating for pod in case.pods.values()] == [False, True]


def test_a_trainer_that_fails_beside_another_container_is_seen_to_fail() -> None:
    case = Case(trainingjob(workers=1))
    case.start()
    case.end_beside(0, Cause.USER, 1)
    case.missed, case.now = frozenset({0}), case.now + timedelta(seconds=9)
    case.settle()
    assert (case.phase, case.job.status.placement.attempts) == ("Running", ()), "no worker is replaced that has failed"
    case.later(1)
    case.settle()
    assert (case.phase, case.job.status.failures) == ("Restarting", 1)
    assert case.pods["llama-g1-0-0"].terminating


def test_a_gang_is_done_by_its_leaders_word_though_the_kubelet_of_another_does_not_tell() -> None:
    case = Case(trainingjob())
    case.start()
    case.lost_nodes = frozenset({"n1"})
    case.end(0, Cause.SUCCEEDED, 0)
    case.settle()
    assert case.phase == "Succeeded"
    assert case.job.status.placement is None, "a pod that nobody can end holds no quota"
    assert case.pods["llama-g1-1-0"].terminating


def test_a_leader_that_ended_badly_vouches_for_nobody() -> None:
    case = Case(trainingjob())
    case.start()
    case.lost_nodes = frozenset({"n1"})
    case.end(0, Cause.USER, 1)
    case.settle()
    assert case.phase == "Restarting"


def test_a_worker_that_ended_does_not_vouch_for_a_leader_whose_kubelet_does_not_tell() -> None:
    case = Case(trainingjob())
    case.start()
    case.lost_nodes, case.unanswered_for = frozenset({"n0"}), 0.0
    case.end(1, Cause.SUCCEEDED, 0)
    case.settle()
    assert case.phase == "Running"


def test_a_barrier_that_takes_long_is_told_by_itself() -> None:
    case = Case(trainingjob())
    case.settle()
    case.place("n0", "n1")
    case.settle()
    case.run_pods()
    case.whole_for = 6.0
    case.turn()
    assert case.reason(ConditionType.PODS_READY) == "PodsReady"
    assert case.reason(ConditionType.RUNNING) == "WaitingForGang"


def test_pods_that_exist_are_not_made_again_also_when_the_watch_lags() -> None:
    case = Case(trainingjob(workers=3))
    case.settle()
    case.place("n0", "n0", "n1")
    case.unshown = (Made("llama-g1-2-0", "u", 1, 2),)
    assert case.decide().make == (0, 1)


def test_a_gang_whose_making_was_cut_gets_one_runtime() -> None:
    """Who goes on with it may be an operator that was upgraded, and brings another one."""
    case = Case(trainingjob(workers=3))
    case.settle()
    case.place("n0", "n0", "n1")
    assert case.decide().runtime_image == "", "the operator's own"
    case.turn()
    del case.pods["llama-g1-0-0"]
    case.shown.discard("llama-g1-0-0")
    decision = case.decide()
    assert (decision.make, decision.runtime_image) == ((0,), RUNTIME_IMAGE)


def test_a_gang_that_joins_the_barrier_does_not_run_yet() -> None:
    case = Case(trainingjob())
    case.settle()
    case.place("n0", "n1")
    case.settle()
    case.run_pods()
    case.launcher = Status(Phase.JOINING, 1, 1, 0, joined=1, workers=2)
    case.settle()
    assert case.phase == "Starting"


def test_what_the_preflight_waits_for_is_told_until_the_gang_runs() -> None:
    case = Case(trainingjob(checkpoint={"uri": "s3://models/x"}))
    case.settle()
    case.place("n0", "n1")
    case.settle()
    case.run_pods(0, 1)
    case.launcher = Status(Phase.PREFLIGHT, 1, 1, 0, joined=2, workers=2, storage_error="the server can't be reached")
    case.whole_for = 6.0
    case.settle()
    ready, queue = ConditionType.CHECKPOINT_STORAGE_READY, case.job.status.queue
    assert (case.phase, case.reason(ready), case.is_true(ready)) == ("Starting", "StorageError", False)
    assert queue is not None
    assert (queue.reason, queue.message) == ("StorageError", "the server can't be reached")
    case.train()
    case.settle()
    assert (case.phase, case.job.status.queue, case.is_true(ready)) == ("Running", None, True)


def test_a_silent_launcher_is_given_time_and_then_believed_to_train() -> None:
    case = Case(trainingjob())
    case.settle()
    case.place("n0", "n1")
    case.settle()
    case.run_pods()
    decision = case.settle()
    assert case.phase == "Starting"
    assert decision.wake_at is not None
    case.silent_for = 61.0
    case.settle()
    assert case.phase == "Running"
    assert "does not answer" in case.message(ConditionType.RUNNING)


def test_ttl_deletes_the_job_after_its_end() -> None:
    case = Case(trainingjob(workers=1, ttlAfterFinished="1h"))
    case.start()
    case.end(0, Cause.SUCCEEDED, 0)
    decision = case.settle()
    assert decision.wake_at is not None
    assert (decision.wake_at - case.now).total_seconds() == pytest.approx(3600, abs=1)
    assert not case.deleted_job
    case.later(3601)
    case.turn()
    assert case.deleted_job


def test_a_job_being_deleted_loses_its_pods_even_when_a_finalizer_holds_it() -> None:
    case = Case(trainingjob())
    case.start()
    raw = case.job.to_raw()
    raw["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    case.job = type(case.job).from_raw(raw)
    decision = case.decide()
    assert [name for name, _ in decision.delete] == ["llama-g1-0-0", "llama-g1-1-0"]
    assert not any((decision.status, decision.make, decision.plannable))


def test_strays_of_older_placements_are_deleted() -> None:
    case = Case(trainingjob())
    case.start()
    stray = "llama-g0-0-0"
    case.pods[stray] = pod_view(stray, case.job.metadata.uid, node="n0", generation=0, index=0, created=case.now)
    assert case.turn().delete == ((stray, f"uid-{stray}"),)
    assert case.phase == "Running"


def test_what_the_launchers_left_completes_progress_and_checkpoint() -> None:
    case = Case(trainingjob(workers=1, checkpoint={"uri": "s3://models/llama"}))
    case.start()
    case.end(0, Cause.SUCCEEDED, 0, step=60, committed_step=60)
    case.settle()
    assert case.job.status.checkpoint is not None
    assert case.job.status.checkpoint.step == 60
    assert case.job.status.checkpoint.uri == "s3://models/llama"
    assert case.job.status.progress is not None
    assert case.job.status.progress.step == 60


@pytest.mark.parametrize(
    ("ended", "committed"),
    [
        (((60, 300), (60, 310)), 300),  # seconds after the start; it was committed before the first of them ended
        (((40, 300), (60, 310)), 310),
        (((60, None), (60, None)), 7200),
        (((60, -900), (60, -900)), 0),  # the node's clock is slow
        (((60, 9000), (60, 9000)), 7200),  # and here fast
    ],
)
def test_a_checkpoint_of_a_run_that_ended_while_no_operator_looked_is_as_old_as_that(
    ended: tuple[tuple[int, int | None], ...], committed: int
) -> None:
    case = Case(trainingjob(workers=2, checkpoint={"uri": "s3://models/llama"}))
    case.start()
    began = case.now
    assert case.job.status.placement is not None
    placed = case.job.status.placement.placed_at
    case.later(7200)
    for index, (step, at) in enumerate(ended):
        case.end(index, Cause.SUCCEEDED, 0, step=60, committed_step=step)
        finished = began + timedelta(seconds=at) if at is not None else None
        case.change(case.worker(index).name, finished=finished)
    case.settle()
    assert case.job.status.checkpoint is not None
    expected = placed if committed == 0 else began + timedelta(seconds=committed)
    assert (case.job.status.checkpoint.step, case.job.status.checkpoint.committed_at) == (60, expected)


@pytest.mark.parametrize(("left", "loss"), [("2.810783", "2.810783"), ("", None)])
def test_an_older_steps_loss_does_not_stand_beside_the_last_step(left: str, loss: str | None) -> None:
    case = Case(trainingjob(workers=1))
    case.start()
    older = Progress(step=182, total_steps=200, loss="2.65934", updated_at=case.now)
    case.job = case.job.model_copy(update={"status": case.job.status.model_copy(update={"progress": older})})
    case.end(0, Cause.SUCCEEDED, 0, step=200, loss=left)
    case.settle()
    progress = case.job.status.progress
    assert progress is not None
    assert (progress.step, progress.total_steps, progress.loss) == (200, 200, loss)


@pytest.mark.parametrize("ends", [(0, 1), (1, 0)])
def test_the_last_loss_stands_whichever_pod_ends_first(ends: tuple[int, int]) -> None:
    """Index 0 tells it."""
    case = Case(trainingjob(workers=2))
    case.start()
    for index in ends:
        case.end(index, Cause.SUCCEEDED, 0, step=200, loss="2.810783" if index == 0 else "")
        case.settle()
    assert (case.phase, case.job.status.finished_at is not None) == ("Succeeded", True)
    progress = case.job.status.progress
    assert progress is not None
    assert (progress.step, progress.loss) == (200, "2.810783")


@pytest.mark.parametrize(
    ("workers", "ready", "runs", "ended"),
    [
        (1, "its pod runs", "its worker has joined, and its ranks run", "its worker ended with exit code 0"),
        (2, "all 2 pods run", "all 2 workers have joined, and their ranks run", "all 2 workers ended with exit code 0"),
    ],
)
def test_a_gang_of_one_worker_is_told_of_in_the_singular(workers: int, ready: str, runs: str, ended: str) -> None:
    case = Case(trainingjob(workers=workers))
    case.start()
    assert case.message(ConditionType.PODS_READY) == ready
    assert case.message(ConditionType.RUNNING) == runs
    for index in range(workers):
        case.end(index, Cause.SUCCEEDED, 0)
    case.settle()
    assert case.message(ConditionType.SUCCEEDED) == ended


def test_a_job_whose_run_had_finished_before_says_so_and_has_its_checkpoint() -> None:
    told = "the run at s3://models/llama had finished already, at step 60"
    case = Case(trainingjob(workers=2, checkpoint={"uri": "s3://models/llama"}))
    case.start()
    for index in range(2):
        case.end(index, Cause.SUCCEEDED, 0, step=60, message=told, nothing_left=True)
    case.settle()
    assert (case.phase, case.reason(ConditionType.SUCCEEDED)) == ("Succeeded", "NothingLeft")
    assert case.message(ConditionType.SUCCEEDED) == f"all 2 workers ended with exit code 0; {told}"
    assert case.job.status.queue is not None
    assert case.job.status.queue.why == f"NothingLeft: {told}"
    assert case.job.status.checkpoint is not None
    assert (case.job.status.checkpoint.step, case.job.status.checkpoint.committed_at) == (60, None)


@pytest.mark.parametrize("step", [None, 0])
def test_a_script_that_could_have_saved_and_started_no_session_is_told_of(step: int | None) -> None:
    case = Case(trainingjob(workers=1, checkpoint={"uri": "s3://models/llama"}))
    case.start()
    case.end(0, Cause.SUCCEEDED, 0, step=step)
    case.settle()
    told = (
        "nothing was saved at s3://models/llama: its script told of no step, and only one that starts a session saves"
    )
    assert (told in case.message(ConditionType.SUCCEEDED)) == (step is None)


def test_a_job_that_starts_again_after_its_own_end_has_just_completed() -> None:
    case = Case(trainingjob(workers=1, checkpoint={"uri": "s3://models/llama"}))
    case.start()
    case.end(0, Cause.INFRASTRUCTURE, 70, step=60, committed_step=60)
    case.settle()
    case.vanish()
    case.later(400)
    case.start()
    case.end(0, Cause.SUCCEEDED, 0, step=60, message="it had finished", nothing_left=True)
    case.settle()
    assert (case.phase, case.reason(ConditionType.SUCCEEDED)) == ("Succeeded", "Completed")
    assert case.job.status.queue is None
