"""A lost worker of a running gang is made anew alone, within a time, and counts against nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from muster.api.names import ConditionType, EventReason
from muster.api.placement import Victim
from muster.api.trainingjob_status import FixedSize
from muster.controllers.lifecycle.failure import UNANSWERED
from muster.controllers.lifecycle.replacement import AVOIDED, MOST, SHRINKING, shrinks_at
from muster.controllers.lifecycle.turn import REPLACE_LIMIT, Claim, Made
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Phase

from .cases import Case, trainingjob

pytestmark = pytest.mark.unit


def running(workers: int = 4, **spec: Any) -> Case:
    case = Case(trainingjob(workers=workers, **spec))
    case.start()
    return case


def kill(case: Case, *indexes: int) -> None:
    """The launchers of these workers are killed from outside."""
    for index in indexes:
        case.change(case.worker(index).name, phase="Failed", ready=False, exit_code=137, exit_reason="Error")


def waits(case: Case, *lost: int) -> None:
    """Index 0 has noticed."""
    assert case.launcher is not None
    case.launcher = replace(case.launcher, phase=Phase.JOINING, lost=lost)


def come_together(case: Case) -> None:
    """The new pods run, every launcher has the new membership, and the gang trains again."""
    placement = case.job.status.placement
    assert placement is not None
    assert case.launcher is not None
    case.run_pods()
    case.told = placement.incarnation or 1
    case.launcher = replace(case.launcher, phase=Phase.RUNNING, lost=(), incarnation=case.launcher.incarnation + 2)


def names(case: Case) -> list[str]:
    """The living pods."""
    return sorted(pod.name for pod in case.pods.values() if not pod.terminating)


def events(case: Case, reason: EventReason) -> list[str]:
    return [note.message for note in case.notes if note.reason is reason]


def test_a_killed_worker_is_made_anew_on_its_node_and_the_others_keep_their_pods() -> None:
    case = running()
    kill(case, 1)
    first = case.turn()
    assert first.status is not None
    assert first.make == (1,)
    assert first.delete == (("llama-g1-1-0", "uid-llama-g1-1-0"),)
    assert first.hurried == {"llama-g1-1-0"}, "its launcher may be frozen, and the new pod needs the GPUs"
    waits(case, 1)
    case.settle()
    placement = case.job.status.placement
    assert placement is not None
    assert (placement.generation, placement.attempt_of(1), placement.incarnation) == (1, 1, 2)
    assert placement.replaced == (1,)
    assert case.phase == "Running"
    assert case.reason(ConditionType.PODS_READY) == "PodLost"
    assert case.job.status.ready == 3
    assert names(case) == ["llama-g1-0-0", "llama-g1-1-1", "llama-g1-2-0", "llama-g1-3-0"]
    assert case.worker(1).node == "n1"
    assert "ended from outside by SIGKILL; worker 1 was lost" in events(case, EventReason.WORKER_FAILED)[0]
    case.later(12)
    come_together(case)
    case.settle()
    status = case.job.status
    assert status.placement is not None
    assert status.placement.replacing is None
    assert (status.replacements, status.incarnation, status.ready) == (1, 3, 4)
    assert (status.restarts, status.failures, status.restarts_in_place) == (None, None, None)
    assert case.is_true(ConditionType.PODS_READY)
    assert events(case, EventReason.WORKER_REPLACED) == [
        "worker 1 was replaced within 12 s, on n1; the others kept their pods"
    ]
    assert not events(case, EventReason.RESTARTED_IN_PLACE)


@pytest.mark.parametrize(
    "fields",
    [
        {"terminating": True, "forced": True},
        {"phase": "Failed", "status_reason": "Evicted", "disruption_target": "TerminationByKubelet"},
        {"phase": "Failed", "status_reason": "NodeLost"},
        {"phase": "Failed", "exit_code": 143},
        {"phase": "Failed"},
    ],
)
def test_every_end_without_a_word_that_is_nobodys_fault_is_a_loss(fields: dict[str, Any]) -> None:
    case = running()
    case.change(case.worker(1).name, ready=False, **fields)
    case.settle()
    assert case.job.status.placement is not None
    assert case.job.status.placement.replaced == (1,)


def test_a_gang_that_saves_in_the_seconds_that_a_pod_deleted_by_force_had_puts_its_stop_down_to_that() -> None:
    case = running()
    case.change(case.worker(1).name, terminating=True, forced=True)
    case.settle()
    case.end(0, Cause.PREEMPTED, 75, message="preempted; the last committed checkpoint is step 7")
    case.settle()
    assert case.phase == "Restarting"
    assert events(case, EventReason.WORKER_FAILED)[1:] == [
        "the gang was asked to stop by worker 1 before being lost, and has stopped: preempted; the last committed "
        "checkpoint is step 7"
    ]


def test_several_are_replaced_at_once_and_one_that_is_lost_meanwhile_too() -> None:
    case = running(restart={"limit": 0})
    kill(case, 1, 3)
    case.settle()
    case.later(5)
    case.vanish("llama-g1-0-0")
    case.settle()
    placement = case.job.status.placement
    assert placement is not None
    assert placement.replaced == (0, 1, 3)
    assert placement.incarnation == 3
    assert placement.replacing is not None
    assert (case.now - placement.replacing.since).total_seconds() == 5, "the time counts from the first loss"
    assert names(case) == ["llama-g1-0-1", "llama-g1-1-1", "llama-g1-2-0", "llama-g1-3-1"]
    come_together(case)
    case.settle()
    assert case.job.status.replacements == 3


def test_gang_that_ends_well_before_it_is_seen_together_again_has_its_replacement_counted() -> None:
    case = running(workers=2)
    kill(case, 1)
    case.settle()
    for index in range(2):
        case.end(index, Cause.SUCCEEDED, 0)
    case.settle()
    assert case.phase == "Succeeded"
    assert case.job.status.replacements == 1


def test_new_pod_that_is_lost_as_well_gets_the_next_attempt() -> None:
    case = running()
    kill(case, 2)
    case.settle()
    kill(case, 2)
    case.settle()
    assert "llama-g1-2-2" in names(case)
    come_together(case)
    case.settle()
    assert case.job.status.replacements == 1


def test_pod_that_the_watch_does_not_show_yet_is_not_made_twice() -> None:
    case = running()
    kill(case, 1)
    case.turn()
    made = case.pods.pop("llama-g1-1-1")
    case.shown.discard(made.name)
    case.unshown = (Made(made.name, made.uid, 1, 1),)
    decision = case.settle()
    assert decision.make == ()
    assert case.job.status.restarts is None


def test_operator_that_starts_anew_in_between_makes_what_is_lacking() -> None:
    case = running()
    kill(case, 1)
    case.turn()
    del case.pods["llama-g1-1-1"]
    case.shown = set(case.pods)  # a new operator knows what it sees
    case.launcher = None
    assert case.turn().make == (1,)
    come = case.job.status.placement
    assert come is not None
    assert come.attempt_of(1) == 1


def test_worker_of_a_lost_node_waits_for_the_planners_and_its_old_pod_is_left_there() -> None:
    case = running()
    case.lost_nodes = frozenset({"n1"})
    decision = case.settle()
    assert decision.make == ()
    placement = case.job.status.placement
    assert placement is not None
    assert placement.replaced == (1,)
    assert case.pods["llama-g1-1-0"].terminating
    case.move("n0", "n9", "n2", "n3")
    case.settle()
    assert case.worker(1).node == "n9"
    come_together(case)
    case.change("llama-g1-1-0", ready=False)
    case.settle()
    assert case.job.status.replacements == 1
    assert "llama-g1-1-0" in case.pods


def test_gang_lives_on_when_its_leader_says_so_of_a_node_that_does_not_answer() -> None:
    case = running()
    case.lost_nodes, case.answered_ago, case.unanswered_for = frozenset({"n1"}), 200.0, 0.0
    case.change("llama-g1-1-0", disruption_target="DeletionByTaintManager", terminating=True)
    case.settle()
    assert case.phase == "Running", "the answer is old, for there are thousands to ask; no question was left unanswered"
    waits(case, 1)
    case.settle()
    assert case.job.status.placement is not None
    assert case.job.status.placement.replaced == (1,)


def test_operator_that_has_just_taken_over_asks_before_it_takes_unreachable_nodes_for_dead() -> None:
    case = running()
    case.lost_nodes, case.launcher, case.unanswered_for = frozenset({"n0", "n1", "n2", "n3"}), None, 0.0
    case.settle()
    assert (case.phase, case.job.status.restarts) == ("Running", None)
    case.unanswered_for = UNANSWERED
    case.settle()
    assert case.phase == "Restarting"


def test_worker_on_an_unreachable_node_is_lost_before_the_leader_answers_when_the_others_miss_it() -> None:
    case = running()
    case.lost_nodes, case.launcher, case.unanswered_for = frozenset({"n0"}), None, UNANSWERED / 2
    case.missed = frozenset({0})
    case.settle()
    assert case.job.status.placement is not None
    assert case.job.status.placement.replaced == (0,)


def test_worker_that_its_gang_misses_goes_elsewhere_though_its_pod_looks_alive() -> None:
    case = running()
    waits(case, 1)
    case.settle()
    assert case.job.status.placement is not None
    assert case.job.status.placement.replacing is None, "kubelet may tell more in a moment"
    case.missed, case.unfit_nodes = frozenset({1}), frozenset({"n1"})
    case.settle()
    assert [item.node for item in case.job.status.avoided] == ["n1"]
    assert "no longer hears the launcher of pod llama-g1-1-0" in events(case, EventReason.WORKER_FAILED)[0]
    assert case.pods["llama-g1-1-0"].terminating
    case.unfit_nodes = frozenset()
    case.later(AVOIDED)
    assert case.turn().make == (1,)
    placement = case.job.status.placement
    assert placement is not None
    assert placement.attempt_of(1) == 1, "it is missed until its new pod has joined"


def test_gang_that_does_not_come_together_in_time_starts_again_whole() -> None:
    case = running()
    kill(case, 1)
    case.settle()
    waits(case, 1)
    case.later(REPLACE_LIMIT - 1)
    decision = case.settle()
    assert case.phase == "Running"
    assert decision.wake_at is not None
    case.later(1)
    case.settle()
    assert case.phase == "Restarting"
    assert case.job.status.promise is not None, "its room stays its own"
    assert case.job.status.failure is not None
    assert "did not come together again within 90 s" in case.job.status.failure.message
    assert (case.job.status.restarts, case.job.status.failures, case.job.status.replacements) == (1, None, None)
    case.vanish()
    case.settle()
    case.place("n0", "n1", "n2", "n3")
    placement = case.job.status.placement
    assert placement is not None
    assert (placement.generation, placement.attempts, placement.incarnation) == (2, (), None)


def test_an_answer_from_before_the_loss_does_not_end_the_replacement() -> None:
    case = running()
    kill(case, 1)
    case.settle()
    case.run_pods()
    case.settle()
    assert case.launcher is not None
    assert case.launcher.phase is Phase.RUNNING
    case.launcher = replace(case.launcher, incarnation=9)
    case.settle()
    assert case.job.status.placement is not None
    assert case.job.status.placement.replacing is not None, "the launchers don't know the new member yet"


@pytest.mark.parametrize(
    "end", ["oom", "user", "preempted", "deleted", "peer", "succeeded-another", "all", "claimed", "never answered"]
)
def test_other_ends_stop_the_whole_gang_as_before(end: str) -> None:
    case = running(workers=2)
    name = case.worker(1).name
    match end:
        case "oom":
            case.change(name, phase="Failed", ready=False, exit_code=137, exit_reason="OOMKilled")
        case "user" | "preempted":
            case.end(1, Cause(end), 1)
        case "deleted":
            case.change(name, terminating=True)
        case "peer":
            kill(case, 1)
            case.end(0, Cause.PEER, 1)
        case "succeeded-another":
            kill(case, 1)
            case.end(0, Cause.SUCCEEDED, 0)
        case "all":
            kill(case, 0, 1)
        case "claimed":
            kill(case, 1)
            case.claim = Claim(
                "other", "research/other", Victim(uid=case.job.metadata.uid, generation=1, reason="Preempted")
            )
        case _:
            kill(case, 1)
            status = case.job.status.model_copy(update={"incarnation": None})
            case.job, case.launcher = case.job.model_copy(update={"status": status}), None
    case.settle()
    assert case.phase in ("Restarting", "Preempting")
    assert case.job.status.replacements is None


def test_gang_of_which_the_last_worker_is_lost_before_the_others_are_back_starts_again_whole() -> None:
    case = running(workers=2)
    case.vanish("llama-g1-0-0")
    case.settle()
    assert case.job.status.placement is not None
    assert case.job.status.placement.replaced == (0,)
    case.vanish("llama-g1-1-0")  # as by `kubectl delete pods --all --force`, which the watch shows one by one
    case.settle()
    assert case.phase == "Restarting"
    assert not [told for told in events(case, EventReason.WORKER_FAILED) if "workers 0-1" in told]


def test_a_single_worker_is_restarted_as_before() -> None:
    case = running(workers=1)
    kill(case, 0)
    case.settle()
    assert case.phase == "Restarting"


def test_failure_of_another_worker_while_one_is_replaced_stops_the_gang() -> None:
    case = running()
    kill(case, 1)
    case.settle()
    case.end(2, Cause.USER, 1)
    case.settle()
    assert case.phase == "Restarting"
    assert case.job.status.failures == 1


def test_node_that_rejects_the_new_pod_is_avoided_and_tried_again_later() -> None:
    case = running()
    kill(case, 1)
    case.settle()
    case.change(case.worker(1).name, phase="Failed", status_reason="UnexpectedAdmissionError", status_message="no")
    case.unfit_nodes = frozenset({"n1"})
    decision = case.settle()
    assert [item.node for item in case.job.status.avoided] == ["n1"]
    placement = case.job.status.placement
    assert placement is not None
    assert placement.attempt_of(1) == 2
    assert decision.make == ()
    assert decision.wake_at is not None
    assert (decision.wake_at - case.now).total_seconds() <= AVOIDED
    case.later(AVOIDED)
    case.unfit_nodes = frozenset()
    assert case.turn().make == (1,)


def test_worker_that_is_lost_again_and_again_ends_in_a_whole_restart() -> None:
    case = running()
    for _ in range(MOST - 1):
        kill(case, 1)
        case.settle()
        come_together(case)
        case.settle()
    assert case.job.status.replacements == MOST - 1
    assert case.phase == "Running"
    kill(case, 1)
    case.settle()
    assert case.phase == "Restarting"


ELASTIC = {"replicas": 4, "min": 2, "gpusPerWorker": 1, "shrinkAfter": "2m"}


def test_an_elastic_gang_waits_for_a_node_as_long_as_its_job_says_before_it_starts_again_whole() -> None:
    case = running(workers=ELASTIC)
    kill(case, 1)
    case.unfit_nodes = frozenset({"n1"})
    case.settle()
    waits(case, 1)
    placement, spec = case.job.status.placement, case.situation().spec
    assert placement is not None
    assert placement.replacing is not None
    moment = shrinks_at(case.job.status, spec)
    assert moment == placement.replacing.since + timedelta(minutes=2)
    case.later(REPLACE_LIMIT)
    decision = case.settle()
    assert case.phase == "Running", "the planner has its time first"
    assert decision.wake_at == moment
    case.later(120 + SHRINKING - REPLACE_LIMIT)
    case.settle()
    assert case.phase == "Restarting"
    assert case.job.status.promise is not None


def test_a_gang_that_keeps_its_size_does_not_shrink() -> None:
    case = running(workers=ELASTIC)
    assert shrinks_at(case.job.status, case.situation().spec) is None, "nobody is lost"
    kill(case, 1)
    case.settle()
    spec = case.situation().spec
    assert shrinks_at(case.job.status, spec) is not None
    fixed = case.job.status.model_copy(update={"fixed_size": FixedSize(workers=4, message="its loader says so")})
    assert shrinks_at(fixed, spec) is None
    assert shrinks_at(case.job.status, replace(spec, min_replicas=4)) is None
