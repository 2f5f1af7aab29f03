"""What ends badly is restarted, or given up, by its cause."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from muster.api.common import find_condition
from muster.api.effective import effective_spec
from muster.api.names import ConditionType, EventReason, Reason
from muster.api.placement import Victim
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import Progress
from muster.cluster.views import PodView
from muster.controllers.lifecycle.causes import End, Kind
from muster.controllers.lifecycle.failure import allowed_in_place, sentence
from muster.controllers.lifecycle.stopping import LAST_WORDS
from muster.controllers.lifecycle.turn import Claim
from muster.telling import wording
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Phase, ProfilePhase, Profiling
from muster_protocol.messages import Ended
from muster_protocol.numerics import Numerics

from .cases import Case, trainingjob

pytestmark = pytest.mark.unit


def restart(case: Case) -> None:
    """The gang's pods go, the backoff passes, and it trains again."""
    case.settle()
    case.vanish()
    case.settle()
    case.later(400)
    case.start()


def test_a_failing_script_is_restarted_whole_with_growing_delay_and_then_given_up() -> None:
    case = Case(trainingjob(restart={"limit": 2, "backoff": "10s"}))
    case.start()
    for failures, delay in ((1, 10), (2, 20)):
        case.end(
            1, Cause.USER, 1, message="ValueError: bad lr", rank=1, rank_exit_code=1, traceback="a\nValueError: bad lr"
        )
        case.settle()
        assert case.phase == "Restarting"
        assert all(pod.terminating for pod in case.pods.values())
        assert case.job.status.failures == failures
        assert case.job.status.breakdowns is None
        assert case.job.status.not_before is not None
        assert (case.job.status.not_before - case.now).total_seconds() == delay
        restart(case)
        assert case.job.status.placement is not None
        assert case.job.status.placement.generation == failures + 1
    case.end(0, Cause.USER, 1, message="ValueError: bad lr", rank=0, rank_exit_code=3, traceback="a\nb")
    case.end(1, Cause.PEER, 1)
    case.settle()
    assert case.phase == "Failed"
    assert case.reason(ConditionType.FAILED) == "UserError"
    assert "ValueError: bad lr" in case.message(ConditionType.FAILED)
    failure = case.job.status.failure
    assert failure is not None
    assert (failure.cause, failure.index, failure.rank, failure.exit_code) == ("user", 0, 0, 3)
    assert failure.traceback == "a\nb"
    assert case.job.status.restarts == 2


def test_a_hang_is_told_as_one_and_counts_against_the_limit() -> None:
    case = Case(trainingjob(restart={"limit": 1}))
    case.start()
    for step in (16, 33):
        hang = f"rank 1 hangs in the step after step {step}"
        case.end(1, Cause.HANG, 1, message=hang, rank=1, step=step, traceback='  File "train.py", line 3 in stuck')
        case.end(0, Cause.PEER, 70)
        case.settle()
        if step == 16:
            restart(case)
    assert (case.phase, case.reason(ConditionType.FAILED)) == ("Failed", "Hung")
    assert "rank 1 hangs in the step after step 33" in case.message(ConditionType.FAILED)
    failure = case.job.status.failure
    assert failure is not None
    assert (failure.cause, failure.index, failure.rank, failure.traceback[:6]) == ("hang", 1, 1, "  File")


def test_restarts_in_the_living_pods_are_told_and_count_against_the_limit() -> None:
    case = Case(trainingjob(restart={"limit": 2}))
    case.start()
    assert allowed_in_place(effective_spec(case.job.spec), case.job.status, case.now).script == 2
    for restarts in (1, 2):
        assert case.launcher is not None
        crashed = f"rank {restarts} was ended by SIGKILL"
        case.launcher = replace(
            case.launcher, incarnation=restarts + 1, restarts=restarts, restarted_after=crashed, phase=Phase.RUNNING
        )
        case.settle()
        assert case.phase == "Running"
        assert (case.job.status.incarnation, case.job.status.restarts_in_place) == (restarts + 1, restarts)
        notes = [note.message for note in case.notes if note.reason is EventReason.RESTARTED_IN_PLACE]
        assert len(notes) == restarts
        assert crashed in notes[-1]
        assert (case.job.status.failures, case.job.status.restarts_used) == (None, restarts)
    case.end(1, Cause.USER, 1, message="ValueError: bad lr", restarts=2)
    case.settle()
    assert case.phase == "Failed"
    assert case.job.status.failures == 3
    assert case.job.status.restarts_in_place == 2
    assert allowed_in_place(effective_spec(case.job.spec), case.job.status, case.now).script == 0


def test_restarts_in_the_living_pods_that_no_launcher_was_asked_about_count_as_such() -> None:
    case = Case(trainingjob())
    case.start()
    case.end(1, Cause.USER, 1, message="ValueError: bad lr", restarts=2)
    case.settle()
    assert case.job.status.restarts_in_place == 2
    case = Case(trainingjob())
    case.start()
    case.end(1, Cause.USER, 1, message="ValueError: bad lr")
    case.settle()
    assert case.job.status.restarts_in_place is None


def test_what_a_restart_in_place_followed_is_kept_with_its_stack() -> None:
    case = Case(trainingjob())
    case.start()
    assert case.launcher is not None
    hang = Ended(1, 1, Cause.HANG.value, "rank 1 hangs", 1, crash=True, step=16, traceback="in stuck")
    again = replace(case.launcher, incarnation=2, restarts=1, phase=Phase.RUNNING, restarted_after=hang.message)
    case.launcher = replace(again, restarted_by=replace(hang, rank="none of ours"))  # type: ignore[arg-type]
    case.settle()
    assert case.job.status.failure is None
    case.launcher = replace(again, incarnation=3, restarts=2, restarted_by=hang)
    case.settle()
    failure = case.job.status.failure
    assert failure is not None
    assert (failure.cause, failure.index, failure.rank, failure.node) == ("hang", 1, 1, "n1")
    assert (failure.message, failure.traceback, case.phase) == ("rank 1 hangs", "in stuck", "Running")


def test_a_failure_tells_how_far_the_ranks_were_and_nothing_of_those_that_run_now() -> None:
    case = Case(trainingjob())
    case.start()
    assert case.launcher is not None
    crash = Ended(1, 1, Cause.USER.value, "ValueError", 1, crash=True, step=16)
    known = Progress(step=6, loss="0.5", total_steps=90, updated_at=case.now)
    case.job = case.job.model_copy(update={"status": case.job.status.model_copy(update={"progress": known})})
    case.later(10)
    case.launcher = replace(case.launcher, incarnation=2, restarts=1, restarted_after="ValueError", restarted_by=crash)
    case.settle()
    assert case.job.status.progress == known.model_copy(update={"step": 16, "loss": None})
    case.launcher = replace(case.launcher, restarts=2, incarnation=3, restarted_by=replace(crash, step=12))
    case.settle()
    assert case.job.status.progress is not None
    assert case.job.status.progress.step == 16


def test_unsound_steps_are_counted_and_told_as_they_come() -> None:
    case = Case(trainingjob(numerics={"action": "rollback"}, checkpoint={"uri": "s3://models/a"}))
    case.start()
    for said in (None, Numerics(0, 1, "first"), Numerics(0, 1, "first"), Numerics(2, 1, "third"), None):
        assert case.launcher is not None
        case.launcher = replace(case.launcher, numerics=said)
        case.settle()
    known = case.job.status.numerics
    assert known is not None
    assert (known.skipped, known.rollbacks, known.last, known.at) == (2, 1, "third", case.now)
    notes = [(note.message, note.warning) for note in case.notes if note.reason is EventReason.UNSOUND_NUMBERS]
    assert notes == [("first", True), ("third", True)]
    case.launcher = replace(case.launcher, numerics=Numerics(-1, 1, "nonsense"))
    case.settle()
    assert case.job.status.numerics == known
    case.launcher = replace(case.launcher, numerics=Numerics(1, 1, "less, after a crash before the next checkpoint"))
    case.settle()
    assert len([note for note in case.notes if note.reason is EventReason.UNSOUND_NUMBERS]) == 2


def test_unsound_steps_that_no_answer_told_of_are_told_by_the_end() -> None:
    case = Case(trainingjob(numerics={"action": "rollback"}, checkpoint={"uri": "s3://models/a"}))
    case.start()
    case.end(1, Cause.USER, 1, numerics=Numerics(9, 9, "of another worker"))
    case.end(0, Cause.USER, 1, numerics=Numerics(0, 1, "the loss of the step after step 6 is nan"))
    case.settle()
    known = case.job.status.numerics
    assert known is not None
    assert (known.skipped, known.rollbacks, known.last) == (None, 1, "the loss of the step after step 6 is nan")
    told = [note.message for note in case.notes if note.reason is EventReason.UNSOUND_NUMBERS]
    assert told == ["the loss of the step after step 6 is nan"]


def test_a_launcher_that_answers_after_all_is_no_longer_said_to_be_silent() -> None:
    case = Case(trainingjob())
    case.mute = True
    case.start()
    running = find_condition(case.job.status.conditions, "Running")
    assert running is not None
    assert running.message.endswith("the launcher does not answer the operator: no progress is shown")
    case.mute, since = False, running.last_transition_time
    case.now += timedelta(minutes=1)
    case.train()
    case.settle()
    running = find_condition(case.job.status.conditions, "Running")
    assert running is not None
    assert running.message == "all 2 workers have joined, and their ranks run"
    assert running.last_transition_time == since


def test_how_a_profile_ended_is_told_once() -> None:
    case = Case(trainingjob(checkpoint={"uri": "s3://models/a"}))
    case.start()
    uri = "s3://models/a/profiles/7-20260102T030405Z"
    asked = Profiling(ProfilePhase.ASKED, asked_at=1000.0)
    done = Profiling(ProfilePhase.DONE, uri, ("rank-0.json.gz",), "no CUDA", 1000.0)
    failed = Profiling(ProfilePhase.FAILED, text="bucket away", asked_at=2000.0)
    nonsense = (replace(failed, asked_at=1e300), replace(failed, asked_at=3000.0, uri=7))  # type: ignore[arg-type]
    for said in (None, asked, done, done, asked, failed, *nonsense, done):
        assert case.launcher is not None
        case.launcher = replace(case.launcher, profile=said)
        case.settle()
    known = case.job.status.profile
    assert known is not None
    assert (known.stored, known.message, known.asked_at.timestamp()) == (False, "bucket away", 2000.0)
    ends = (EventReason.PROFILED, EventReason.PROFILE_FAILED)
    notes = [(note.message, note.warning) for note in case.notes if note.reason in ends]
    assert notes == [(f"a profile lies at {uri}; no CUDA", False), ("bucket away", True)]


def test_processes_that_start_anew_without_a_crash_are_no_restart() -> None:
    """As after a launcher that was away for a while, or with a new index 0."""
    case = Case(trainingjob(restart={"limit": 2}))
    case.start()
    counts = []
    for incarnation, restarts, why in ((2, 1, "rank 1 fell"), (3, 1, "rank 1 fell"), (4, 1, ""), (6, 2, "")):
        assert case.launcher is not None
        case.launcher = replace(
            case.launcher, incarnation=incarnation, restarts=restarts, restarted_after=why, phase=Phase.RUNNING
        )
        case.settle()
        assert case.job.status.incarnation == incarnation
        counts.append((case.job.status.restarts_in_place, case.job.status.restarts_used))
    assert counts == [(1, 1), (1, 1), (1, 1), (2, 2)]
    notes = [note.message for note in case.notes if note.reason is EventReason.RESTARTED_IN_PLACE]
    assert [note.partition(";")[0] for note in notes] == ["rank 1 fell", "a rank crashed"]


@pytest.mark.parametrize("end", ["a worker is lost", "the gang is asked to stop"])
def test_restarts_in_the_living_pods_count_once_also_when_pods_end_without_a_word(end: str) -> None:
    case = Case(trainingjob(restart={"limit": 2}))
    case.start()
    assert case.launcher is not None
    case.launcher = replace(case.launcher, incarnation=2, restarts=1, restarted_after="x", phase=Phase.RUNNING)
    case.settle()
    if end == "a worker is lost":
        case.vanish(case.worker(0).name)
    else:
        case.edit(suspend=True)
    case.settle()
    assert case.job.status.restarts_used == 1
    case.edit(suspend=True)
    case.settle()
    case.vanish()
    case.settle()
    assert case.job.status.placement is None
    assert (case.job.status.failures, case.job.status.restarts_used) == (1, 1)


def test_a_limit_of_0_gives_up_at_once() -> None:
    case = Case(trainingjob(restart={"limit": 0}))
    case.start()
    case.end(0, Cause.USER, 1)
    case.settle()
    assert case.phase == "Failed"


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (Cause.CONFIG, "ConfigurationError"),
        (Cause.STORAGE, "StorageError"),
        (Cause.NUMERICS, "UnsoundNumbers"),
    ],
)
def test_what_trying_again_cannot_mend_fails_at_once_in_the_launchers_words(cause: Cause, reason: str) -> None:
    case = Case(trainingjob())
    case.start()
    case.end(0, cause, 78, message="bucket s3://nope does not exist; make it")
    case.settle()
    assert case.phase == "Failed"
    assert case.reason(ConditionType.FAILED) == reason
    assert "bucket s3://nope does not exist" in case.message(ConditionType.FAILED)
    assert not case.worker(1).terminating, "it is about to follow, and its log would go with it"
    if cause is Cause.STORAGE:
        assert case.message(ConditionType.CHECKPOINT_STORAGE_READY).startswith("bucket s3://nope")


def test_a_failed_job_holds_its_placement_until_its_living_pods_are_gone() -> None:
    case = Case(trainingjob(restart={"limit": 0}))
    case.start()
    case.end(0, Cause.USER, 1)
    decision = case.settle()
    living = case.worker(1)
    assert not living.terminating
    assert decision.wake_at == case.now + timedelta(seconds=LAST_WORDS)
    case.later(LAST_WORDS)
    case.settle()
    assert case.worker(1).terminating
    assert not case.worker(0).terminating, "the failed pod stays for its log"
    assert case.job.status.placement is not None
    case.vanish(living.name)
    case.settle()
    assert case.job.status.placement is None
    assert case.phase == "Failed"


def test_the_log_of_a_worker_that_ends_behind_another_stays() -> None:
    """Index 0 was seen to end first, for what a rank of index 1 has done."""
    case = Case(trainingjob(restart={"limit": 0}))
    case.start()
    case.end(0, Cause.USER, 70, rank=1)
    case.settle()
    assert case.phase == "Failed"
    case.later(3)
    case.end(1, Cause.USER, 1)
    case.settle()
    case.later(LAST_WORDS)
    case.settle()
    assert [pod.terminating for pod in case.pods.values()] == [False, False]
    assert case.job.status.placement is None


def test_a_failed_job_waits_for_no_last_word_from_a_pod_that_has_no_launcher() -> None:
    case = Case(trainingjob(workers=3, restart={"limit": 0}), mute=True)
    case.start()
    case.end(0, Cause.USER, 1)
    case.end_beside(1, Cause.USER, 1)
    case.change(case.worker(2).name, phase="Pending")
    case.settle()
    assert case.phase == "Failed"
    assert [case.worker(index).terminating for index in range(3)] == [False, True, True]


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"disruption_target": "EvictionByEvictionAPI: Eviction API: evicting"}, "disrupted"),
        (
            {"phase": "Failed", "status_reason": "Evicted", "status_message": "The node was low on resource: memory."},
            "disrupted",
        ),
        ({"phase": "Failed", "status_reason": "NodeShutdown"}, "disrupted"),
        ({"terminating": True}, "disrupted"),
        ({"phase": "Failed", "exit_code": 137, "exit_reason": "Error"}, "infrastructure"),
        ({"phase": "Failed", "exit_code": 255, "exit_reason": "ContainerStatusUnknown"}, "node"),
    ],
)
def test_disruptions_are_no_failure_of_the_script(fields: dict[str, object], cause: str) -> None:
    case = Case(trainingjob(restart={"limit": 0}), mute=True)
    case.start()
    case.change(case.worker(0).name, **fields)
    case.settle()
    assert case.phase == "Restarting"
    assert case.job.status.failures is None
    assert case.job.status.restarts == case.job.status.breakdowns == 1
    assert case.job.status.failure is not None
    assert case.job.status.failure.cause == cause


def test_a_drain_is_told_in_one_calm_line() -> None:
    case = Case(trainingjob(), mute=True)
    case.start()
    evicted = {"disruption_target": "EvictionByEvictionAPI: Eviction API: evicting", "terminating": True}
    for index in (0, 1):
        case.change(case.worker(index).name, **evicted)
    case.settle()
    told = [note for note in case.notes if note.reason in (EventReason.RESTARTING, EventReason.WORKER_FAILED)]
    assert [(note.reason, note.warning) for note in told] == [(EventReason.RESTARTING, False)]
    assert told[0].message.startswith(
        "pod llama-g1-0-0 was evicted from node n0, as `kubectl drain` does; the gang starts"
    )
    assert "node n0" in case.message(ConditionType.ADMITTED)


def test_where_a_gang_goes_on_is_told_as_far_as_it_is_certain() -> None:
    """What is known of its checkpoints is some seconds old, and a gang that is drained saves another one."""
    case = Case(trainingjob(), mute=True)
    case.start()
    raw = case.job.to_raw()
    case.job = TrainingJob.from_raw(raw | {"status": raw["status"] | {"checkpoint": {"step": 1400, "uri": "s3://b/p"}}})
    case.change(
        case.worker(0).name, disruption_target="EvictionByEvictionAPI: Eviction API: evicting", terminating=True
    )
    case.settle()
    (told,) = [note.message for note in case.notes if note.reason is EventReason.RESTARTING]
    assert told.endswith("; the gang starts again from step 1400, or from a later one that it has saved by then")


def test_a_pod_gone_without_a_record_is_the_infrastructures_doing() -> None:
    case = Case(trainingjob(restart={"limit": 0}), mute=True)
    case.start()
    case.vanish(case.worker(1).name)
    case.settle()
    assert case.phase == "Restarting"
    assert case.job.status.failure is not None
    assert "gone without a record" in case.job.status.failure.message


def test_a_lost_node_restarts_the_gang_elsewhere_without_waiting_for_the_dead_pod() -> None:
    case = Case(trainingjob(), mute=True)
    case.start("n0", "n1")
    case.lost_nodes = frozenset({"n1"})
    case.settle()
    assert case.phase == "Restarting"
    assert not case.decide().plannable
    case.vanish(case.worker(0).name)
    decision = case.settle()
    assert decision.plannable, "the pod on the dead node can't be waited for"
    assert len(case.pods) == 1
    case.place("n0", "n2")
    case.settle()
    assert sorted(pod.name for pod in case.gang()) == ["llama-g2-0-0", "llama-g2-1-0"]


def test_a_lost_node_explains_the_errors_of_its_peers() -> None:
    case = Case(trainingjob(restart={"limit": 0}))
    case.start("n0", "n1")
    case.end(0, Cause.USER, 1, message="connection reset by peer")
    case.lost_nodes = frozenset({"n1"})
    case.settle()
    assert case.phase == "Restarting"


def test_peers_wait_for_the_one_they_followed() -> None:
    case = Case(trainingjob(restart={"limit": 0}))
    case.start()
    case.end(0, Cause.PEER, 70)
    decision = case.settle()
    assert case.phase == "Running"
    assert decision.wake_at is not None
    case.end(1, Cause.USER, 1, message="boom")
    case.settle()
    assert case.phase == "Failed"
    assert "boom" in case.message(ConditionType.FAILED)


def test_peers_are_believed_when_nobody_else_tells() -> None:
    case = Case(trainingjob(restart={"limit": 0}))
    case.start()
    case.end(0, Cause.PEER, 70)
    case.peers_wait = 20.0
    case.settle()
    assert case.phase == "Restarting"


def test_75_without_our_message_is_the_users_failure() -> None:
    case = Case(trainingjob(restart={"limit": 0}))
    case.start()
    case.change(case.worker(0).name, phase="Failed", exit_code=75, exit_reason="Error")
    case.settle()
    assert case.phase == "Failed"


def test_75_with_our_message_is_not() -> None:
    case = Case(trainingjob(restart={"limit": 0}))
    case.start()
    case.end(0, Cause.PREEMPTED, 75, message="preempted; the last committed checkpoint is step 7")
    case.settle()
    assert case.phase == "Restarting"
    assert case.job.status.failures is None
    failure = case.job.status.failure
    assert failure is not None
    assert failure.index is None, "it is no worker's doing"
    assert failure.message == (
        "the gang was asked to stop by somebody else than Muster, as SIGTERM to a worker does, and has stopped: "
        "preempted; the last committed checkpoint is step 7"
    )
    assert wording.word_for(failure.cause) == "interruption"


def test_out_of_memory_is_named() -> None:
    case = Case(trainingjob(restart={"limit": 0}))
    case.start()
    case.change(case.worker(0).name, phase="Failed", exit_code=137, exit_reason="OOMKilled")
    case.settle()
    assert case.reason(ConditionType.FAILED) == "OutOfMemory"
    assert "spec.workers.resources.limits.memory" in case.message(ConditionType.FAILED)


def test_a_pod_evicted_for_memory_is_told_what_to_ask_for() -> None:
    case = Case(trainingjob(), mute=True)
    case.start()
    told = {
        "status_reason": "Evicted",
        "status_message": "The node was low on resource: memory. Threshold quantity: 1Gi",
    }
    case.change(case.worker(0).name, phase="Failed", **told)
    case.settle()
    assert case.job.status.failure is not None
    assert case.job.status.failure.message.endswith("by spec.workers.resources.requests.memory")


def test_an_image_without_python_is_a_mistake_in_the_job() -> None:
    case = Case(trainingjob())
    case.start()
    name = case.worker(0).name
    case.change(name, phase="Failed", exit_code=128, exit_reason="StartError", termination_message="no such file")
    case.settle()
    assert case.reason(ConditionType.FAILED) == "ConfigurationError"
    assert "python3" in case.message(ConditionType.FAILED)


def test_max_runtime_told_by_the_launcher_ends_the_job() -> None:
    case = Case(trainingjob(maxRuntime="10m"))
    case.start()
    case.later(600)
    for index in (0, 1):
        case.end(index, Cause.MAX_RUNTIME, 75, message="maxRuntime is over; the last committed checkpoint is step 7")
    case.settle()
    assert case.reason(ConditionType.FAILED) == "MaxRuntimeExceeded"
    assert case.message(ConditionType.FAILED) == "maxRuntime is over; the last committed checkpoint is step 7"


def test_max_runtime_is_enforced_when_the_launcher_does_not() -> None:
    case = Case(trainingjob(maxRuntime="10m", terminationGracePeriod="30s", checkpoint={"uri": "s3://models/llama"}))
    case.start()
    case.later(640)
    decision = case.settle()
    assert case.phase == "Running"
    assert decision.wake_at is not None
    case.later(30)
    case.settle()
    assert case.reason(ConditionType.FAILED) == "MaxRuntimeExceeded"
    assert all(pod.terminating for pod in case.pods.values())
    for index in (0, 1):
        case.end(index, Cause.PREEMPTED, 75, step=70, committed_step=70)
    case.settle()
    assert case.job.status.checkpoint is not None, "saved when they were asked to end"
    assert case.job.status.checkpoint.step == 70
    assert case.job.status.progress is not None
    assert case.job.status.progress.step == 70


@pytest.mark.parametrize("before", [{"maxRuntime": "10h"}, {}])
def test_a_lower_max_runtime_ends_a_run_that_has_passed_it_at_the_next_turn(before: dict[str, str]) -> None:
    """The launcher knows the limit that its pod was made with, if any, so nobody waits for its own attempt."""
    case = Case(trainingjob(terminationGracePeriod="30s", **before))
    case.start()
    case.later(1000)
    case.settle()
    assert case.phase == "Running"
    case.edit(maxRuntime="20m")
    decision = case.settle()
    assert case.phase == "Running"
    assert decision.wake_at == case.now + timedelta(seconds=200), "at the limit, not a grace later"
    case.edit(maxRuntime="10m")
    case.turn()
    assert case.reason(ConditionType.FAILED) == "MaxRuntimeExceeded"
    assert all(pod.terminating for pod in case.pods.values()), "they have their grace to save"


@pytest.mark.parametrize("after", ["20m", None])
def test_a_run_goes_on_that_its_launcher_ended_at_a_limit_which_was_raised(after: str | None) -> None:
    case = Case(trainingjob(maxRuntime="10m"))
    case.start()
    case.edit(maxRuntime=after)
    case.later(600)
    for index in (0, 1):
        case.end(index, Cause.MAX_RUNTIME, 75, message="saved at step 7", committed_step=7)
    case.settle()
    assert case.phase == "Restarting"
    assert "which was raised since" in case.message()
    assert case.job.status.promise is not None, "its room stays its own"
    for index in (0, 1):
        case.vanish(case.worker(index).name)
    case.settle()
    assert (case.job.status.restarts, case.job.status.failures) == (None, None)
    case.start()
    leader = case.worker(0)
    assert leader.max_runtime == (600 if after else None), "what the old limit has used counts"
    if after:
        case.later(600)
        for index in (0, 1):
            case.end(index, Cause.MAX_RUNTIME, 75)
        case.settle()
        assert case.reason(ConditionType.FAILED) == "MaxRuntimeExceeded"


def test_the_clock_of_a_launcher_that_took_anothers_place_is_not_waited_for() -> None:
    case = Case(trainingjob(maxRuntime="10m", terminationGracePeriod="30s"))
    case.start()
    case.later(400)
    case.change(case.worker(0).name, created=case.now)
    decision = case.settle()
    assert decision.wake_at == case.now + timedelta(seconds=200)
    case.later(200)
    case.settle()
    assert case.reason(ConditionType.FAILED) == "MaxRuntimeExceeded"


def test_max_runtime_counts_earlier_runs() -> None:
    case = Case(trainingjob(maxRuntime="10m", terminationGracePeriod="30s"))
    case.start()
    case.later(400)
    case.change(case.worker(0).name, disruption_target="drained")
    restart(case)
    assert case.job.status.runtime_seconds == 400
    case.later(261)
    case.settle()
    assert case.reason(ConditionType.FAILED) == "MaxRuntimeExceeded"


def test_one_that_ended_well_does_not_hide_one_that_failed() -> None:
    case = Case(trainingjob(restart={"limit": 0}))
    case.start()
    case.end(0, Cause.SUCCEEDED, 0)
    case.end(1, Cause.USER, 1)
    case.settle()
    assert case.phase == "Failed"


def test_the_platforms_first_failure_costs_no_wait_and_later_ones_do() -> None:
    case = Case(trainingjob(restart={"backoff": "10s"}), mute=True)
    case.start()
    for delay in (0, 10, 20):
        case.change(case.worker(0).name, phase="Failed", exit_code=137, exit_reason="Error")
        case.settle()
        not_before = case.job.status.not_before
        assert (0 if not_before is None else (not_before - case.now).total_seconds()) == delay
        restart(case)


def test_a_pod_that_kubelet_rejects_after_the_gang_ran_restarts_the_gang() -> None:
    """A node that reboots re-admits its pods before the device plugin is back."""
    case = Case(trainingjob())
    case.start()
    case.change(case.worker(0).name, phase="Failed", status_reason="UnexpectedAdmissionError", status_message="no GPUs")
    case.settle()
    assert case.phase == "Restarting"
    assert case.job.status.restarts == 1
    assert case.job.status.failures is None


def test_disruptions_that_meet_the_gang_again_and_again_are_slowed_down() -> None:
    case = Case(trainingjob(restart={"backoff": "10s"}), mute=True)
    case.start()
    for delay in (0, 0, 0, 10, 20):
        case.change(case.worker(0).name, phase="Failed", status_reason="Evicted", status_message="too much disk")
        case.settle()
        not_before = case.job.status.not_before
        assert (0 if not_before is None else (not_before - case.now).total_seconds()) == delay
        restart(case)


def test_the_room_is_kept_for_the_restart_in_the_write_that_stops_the_gang() -> None:
    case = Case(trainingjob(workers={"replicas": 2, "gpusPerWorker": 1, "spares": 1}), mute=True)
    case.settle()
    case.place("n0", "n1", "n2")
    case.start_placed()
    case.lost_nodes = frozenset({"n1"})
    status = case.decide().status
    assert status is not None
    assert status.stop is not None
    assert status.promise is not None
    assert status.promise.places() == ("n0", "n1", "n2")
    assert status.promise.workers == 2


def test_long_back_off_or_a_claim_of_another_leaves_the_room_to_others() -> None:
    case = Case(trainingjob(restart={"backoff": "2m"}), mute=True)
    case.start()
    case.end(0, Cause.USER, 1)
    status = case.decide().status
    assert status is not None
    assert status.promise is None
    case = Case(trainingjob(), mute=True)
    case.start()
    claim = Claim("uid-of-high", "ns/high", Victim(uid=case.job.metadata.uid, generation=1, reason="Preempted"))
    case.lost_nodes = frozenset({"n1"})
    case.turn()
    assert case.job.status.promise is not None
    case.claim = claim  # decided on while the gang failed
    case.turn()
    assert case.job.status.promise is None
    assert case.notes[-1].message == "the gang failed while its room was given to ns/high; it queues again"


@pytest.mark.parametrize(("step", "kept"), [(1, True), (2, True), (4, False)])
def test_no_room_is_kept_for_a_size_that_the_gang_may_not_have_any_more(step: int, kept: bool) -> None:
    workers = {"replicas": 6, "min": 4, "max": 12, "gpusPerWorker": 1}
    case = Case(trainingjob(workers=workers), mute=True)
    case.start()
    case.edit(workers=workers | {"replicas": 8, "step": step})
    case.lost_nodes = frozenset({"n1"})
    case.turn()
    assert (case.job.status.promise is not None) is kept


def test_kept_room_is_given_up_when_the_job_may_not_start() -> None:
    case = Case(trainingjob(budget={"gpuHours": 1}), mute=True)
    case.start()
    case.later(1700)
    case.lost_nodes = frozenset({"n1"})
    case.turn()
    assert case.job.status.promise is not None
    case.later(200)
    case.vanish()
    case.settle()
    assert case.reason() == Reason.BUDGET_EXHAUSTED.value
    assert case.job.status.promise is None


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (End(Kind.USER, "rank 0 exited with code 2", index=0, node="n1", rank=0), "worker 0 on node n1: rank 0 exited"),
        (End(Kind.USER, "CUDA error", index=0, node="n1", rank=0), "rank 0, worker 0 on node n1: CUDA error"),
        (End(Kind.LOST, "pod a-g1-0-0 on node n1 is lost", index=0, node="n1"), "worker 0: pod a-g1-0-0 on node n1 is"),
        (
            End(Kind.LOST, "its peer on node n10 is lost", index=0, node="n1"),
            "worker 0 on node n1: its peer on node n10",
        ),
        (
            End(Kind.LOST, "node n1, where it ran, is gone", index=0, node="n1"),
            "worker 0: node n1, where it ran, is gone",
        ),
        (End(Kind.LOST, "nobody came"), "nobody came"),
    ],
)
def test_a_failure_says_nothing_twice(end: End, told: str) -> None:
    assert sentence(end).startswith(told)


def failed_before_the_trainer(case: Case, container: str, **terminated: Any) -> None:
    """Worker 1's init container ends badly."""
    name = case.worker(1).name
    told = PodView.from_raw(
        {
            "status": {
                "phase": "Failed",
                "initContainerStatuses": [{"name": container, "state": {"terminated": terminated}}],
                "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}],
            }
        }
    )
    fields = ("phase", "exit_code", "exit_reason", "termination_message", "ended")
    case.change(name, **{field: getattr(told, field) for field in fields})


def starting() -> Case:
    case = Case(trainingjob(restart={"limit": 0}))
    case.settle()
    case.place("n0", "n1")
    case.settle()
    return case


def test_a_runtime_that_cannot_be_brought_is_the_nodes_want_and_not_the_scripts_failure() -> None:
    case = starting()
    why = "the runtime can't be copied from /opt to /muster: [Errno 28] No space left on device"
    failed_before_the_trainer(case, "muster-runtime", exitCode=1, reason="Error", message=f"{why}\n")
    case.settle()
    case.vanish()
    case.settle()
    assert case.phase == "Queued"
    assert case.reason() == "PodUnschedulable"
    assert (
        f"init container muster-runtime of pod llama-g1-1-0 on node n1 ended with exit code 1: {why}" in case.message()
    )
    assert [item.node for item in case.job.status.avoided] == ["n1"]
    assert case.job.status.failures is None


@pytest.mark.parametrize(
    ("ended", "cause", "told"),
    [
        ({"exitCode": 1, "reason": "Error"}, "user", "exit code 1"),
        ({"exitCode": 127, "reason": "Error"}, "user", "exit code 127"),
        (
            {"exitCode": 128, "reason": "StartError", "message": 'exec: "fetch": not found'},
            "config",
            'exit code 128, StartError: exec: "fetch": not found; correct it in podTemplate.spec.initContainers',
        ),
        (
            {"exitCode": 137, "reason": "OOMKilled"},
            "out-of-memory",
            "exit code 137, OOMKilled; raise its own resources.limits.memory in podTemplate",
        ),
    ],
)
def test_a_failed_init_container_of_the_jobs_own_is_named(ended: dict[str, Any], cause: str, told: str) -> None:
    case = starting()
    failed_before_the_trainer(case, "fetch", **ended)
    case.settle()
    assert case.phase == "Failed"
    message = case.message(ConditionType.FAILED)
    assert f"init container fetch of pod llama-g1-1-0 on node n1 ended with {told}" in message
    assert case.job.status.failure is not None
    assert case.job.status.failure.cause == cause


def test_a_container_that_containerd_lost_with_its_node_is_not_the_scripts_failure() -> None:
    case = Case(trainingjob(restart={"limit": 0}), mute=True)
    case.start()
    case.change(case.worker(1).name, phase="Failed", exit_code=255, exit_reason="Unknown", ended="trainer")
    case.settle()
    assert case.phase == "Restarting"
    assert "lost to the container runtime of node n1" in case.message()
    assert case.job.status.failures is None
    assert case.job.status.failure is not None
    assert case.job.status.failure.cause == "node"


@pytest.mark.parametrize(
    ("told", "mend"),
    [
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            "raise spec.workers.resources.limits.ephemeral-storage",
        ),
        (
            'Container trainer exceeded its local ephemeral storage limit "1Gi". ',
            "raise spec.workers.resources.limits.ephemeral-storage",
        ),
        ('Usage of EmptyDir volume "scratch" exceeds the limit "5Gi". ', "raise the sizeLimit of volume scratch"),
    ],
)
def test_a_pod_that_writes_more_than_its_own_limit_spends_the_limit_of_restarts(told: str, mend: str) -> None:
    case = Case(trainingjob(restart={"limit": 1}))
    case.start()
    for failures in (1, 2):
        # kubelet gives the launcher a second, in which it may leave a word.
        case.end(1, Cause.PREEMPTED, 75, message="stopped when asked")
        case.change(case.worker(1).name, status_reason="Evicted", status_message=told)
        case.settle()
        assert case.job.status.failures == failures
        if failures == 1:
            assert case.phase == "Restarting"
            restart(case)
    assert case.phase == "Failed"
    assert f"was evicted: {told.strip().rstrip('.')}; {mend}" in case.message(ConditionType.FAILED)


def test_a_full_volume_of_musters_own_is_not_the_scripts_failure() -> None:
    case = Case(trainingjob(restart={"limit": 0}), mute=True)
    case.start()
    told = 'Usage of EmptyDir volume "muster" exceeds the limit "1Gi". '
    case.change(case.worker(1).name, phase="Failed", status_reason="Evicted", status_message=told)
    case.settle()
    assert case.phase == "Restarting"
    assert case.job.status.failures is None


def test_an_eviction_for_want_of_memory_names_the_field_to_raise_by_kubelets_condition_too() -> None:
    case = Case(trainingjob(), mute=True)
    case.start()
    told = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi."
    disrupted = {
        "status_reason": "Evicted",
        "status_message": told,
        "disruption_target": f"TerminationByKubelet: {told}",
    }
    case.change(case.worker(1).name, phase="Failed", **disrupted)
    case.settle()
    assert case.phase == "Restarting"
    assert "by spec.workers.resources.requests.memory" in case.message()
