"""An edit of what a running gang is made from: taken up by a new start, or refused while the gang runs on."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.names import ConditionType, EventReason
from muster.controllers.lifecycle.turn import NO_EDIT, Edit
from muster_protocol import exits

from .cases import Case, trainingjob

pytestmark = pytest.mark.unit

KIND = ConditionType.EDIT_REFUSED
TYPO = {"podTemplate": {"spec": {"nodeselector": {"a": "b"}}}}
REFUSED = Edit(reason="InvalidPodTemplate", message="no pod has spec.podTemplate.spec.nodeselector")
TOLD = (
    "no pod has spec.podTemplate.spec.nodeselector; the gang runs on as it was made, and could not start again: mend "
    "the spec, or take the edit back"
)


def running() -> Case:
    case = Case(trainingjob())
    case.start()
    return case


def refused() -> Case:
    """A gang that runs on under an edit that the API server refuses."""
    case = running()
    case.edit(**TYPO)
    case.judged = REFUSED
    case.settle()
    return case


def told(case: Case) -> list[str]:
    return [note.message for note in case.notes if note.reason is EventReason.EDIT_REFUSED and note.warning]


@pytest.mark.parametrize(
    "edit",
    [
        {"image": "train:2"},
        {"podTemplate": {"spec": {"hostNetwork": True}}},
        {"imagePullSecrets": [{"name": "registry"}]},
        {"volumes": [{"name": "data", "emptyDir": {}}]},
        {"workers": {"replicas": 3, "gpusPerWorker": 1}},
        {"workers": {"replicas": 1, "gpusPerWorker": 1}},
    ],
)
def test_a_gang_whose_spec_was_changed_under_it_starts_again_with_the_new_one(edit: dict[str, Any]) -> None:
    """Suspend, edit and unsuspend between two looks of the operator; and fields that no rule compares."""
    case = running()
    case.edit(**edit)
    case.settle()
    assert case.phase == "Restarting"
    assert "the spec has changed" in case.message()
    case.vanish()
    decision = case.settle()
    assert decision.plannable
    assert (case.job.status.failures, case.job.status.restarts) == (None, None)
    case.start()
    assert case.is_true(ConditionType.RUNNING)


@pytest.mark.parametrize(
    "edit",
    [
        {"maxRuntime": "3d", "ttlAfterFinished": "1h"},
        {"workers": {"replicas": 3, "max": 4, "min": 1, "gpusPerWorker": 1}},
    ],
)
def test_an_edit_that_no_gang_minds_stops_nobody(edit: dict[str, Any]) -> None:
    case = running()
    case.edit(**edit)
    case.settle()
    assert case.phase == "Running"


def generations(case: Case, *kinds: ConditionType) -> list[int]:
    found = {condition.type: condition for condition in case.job.status.conditions}
    assert all(found[kind.value].status == "True" for kind in kinds)
    return [found[kind.value].observed_generation for kind in kinds]


def test_who_waits_for_a_condition_of_an_edited_job_gets_it() -> None:
    """`kubectl wait` wants it told of the spec as it is now."""
    case, life = running(), (ConditionType.ADMITTED, ConditionType.PODS_READY, ConditionType.RUNNING)
    since = [condition.last_transition_time for condition in case.job.status.conditions]
    case.later(60)
    case.edit(maxRuntime="3d")
    case.settle()
    now = case.job.metadata.generation
    assert now > 1
    assert generations(case, *life) == [now] * 3
    assert [condition.last_transition_time for condition in case.job.status.conditions] == since
    for index in (0, 1):
        case.end(index, exits.Cause.SUCCEEDED, 0)
        case.settle()
    case.edit(ttlAfterFinished="1h")
    case.settle()
    assert generations(case, ConditionType.SUCCEEDED) == [case.job.metadata.generation]


def test_a_gang_that_is_not_as_its_edited_spec_wants_it_is_not_said_to_be() -> None:
    case = running()
    case.edit(**TYPO)
    case.judged = Edit(judged=False)
    case.settle()
    assert generations(case, ConditionType.RUNNING) == [1] != [case.job.metadata.generation]
    assert generations(refused(), ConditionType.RUNNING) == [1]


def test_a_running_gang_is_not_stopped_before_the_api_server_has_been_asked() -> None:
    case = running()
    case.edit(**TYPO)
    case.judged = Edit(judged=False)
    case.settle()
    assert case.phase == "Running"
    assert not told(case)
    case.judged = NO_EDIT
    case.settle()
    assert case.phase == "Restarting"


def test_an_edit_that_is_refused_is_told_once_and_the_gang_runs_on() -> None:
    case = refused()
    assert case.phase == "Running"
    assert case.is_true(KIND)
    assert case.reason(KIND) == "InvalidPodTemplate"
    assert told(case) == [TOLD] == [case.message(KIND)]
    writes = case.writes
    case.settle()
    assert (case.writes, len(told(case))) == (writes, 1)
    case.edit(maxRuntime="3d")  # another edit, which mends nothing
    case.settle()
    assert len(told(case)) == 1


def test_an_edit_that_is_taken_back_leaves_nothing_behind() -> None:
    case = refused()
    raw = case.job.to_raw()
    del raw["spec"]["podTemplate"]
    case.job, case.judged = type(case.job).from_raw(raw), NO_EDIT
    case.settle()
    assert case.phase == "Running"
    assert (case.is_true(KIND), case.reason(KIND)) == (False, "EditTakenBack")


def test_an_edit_that_is_mended_starts_the_gang_again() -> None:
    case = refused()
    case.edit(podTemplate={"spec": {"nodeSelector": {"a": "b"}}})
    case.judged = NO_EDIT
    case.settle()
    assert case.phase == "Restarting"
    assert not case.is_true(KIND)


def test_a_worker_of_another_spec_is_never_made() -> None:
    """Neither in place of a lost one, nor for a gang that is not whole yet."""
    case = refused()
    case.vanish(case.worker(1).name)
    case.settle()
    assert case.job.status.restarts == 1
    assert case.job.status.placement is not None
    assert case.job.status.placement.replacing is None
    assert case.job.status.stop is not None

    waits = Case(trainingjob())
    waits.settle()
    waits.place("n0", "n1")
    waits.edit(**TYPO)
    waits.judged = REFUSED
    waits.settle()
    assert not waits.pods
    assert waits.phase != "Running"


@pytest.mark.parametrize(
    "edit",
    [
        {"numerics": {"action": "skip"}},
        {"checkpoint": {"uri": "s3://models/llama", "endpoint": "https://other.example.com"}},
        {"terminationGracePeriod": "10m"},
    ],
)
def test_a_worker_that_would_do_other_than_the_rest_is_never_made(edit: dict[str, Any]) -> None:
    """Who watches the losses sums them up over all ranks; a shard that goes to another store is in no checkpoint."""
    case = Case(trainingjob(checkpoint={"uri": "s3://models/llama"}))
    case.start()
    case.edit(**edit)
    case.settle()
    assert case.phase == "Running", "the gang as it is needs nothing of it"
    case.vanish(case.worker(1).name)
    case.settle()
    assert (case.phase, case.job.status.failures) == ("Restarting", None)
    assert case.job.status.placement is not None
    assert case.job.status.placement.replacing is None
    case.vanish()
    case.settle()
    case.start()
    assert case.is_true(ConditionType.RUNNING)
    case.vanish(case.worker(1).name)
    case.settle()
    assert case.job.status.placement.replacing is not None, "all are of the new spec now"


def test_a_gang_that_starts_takes_up_where_its_checkpoints_are_to_be() -> None:
    """It may be edited for that very reason: the launcher tries a store for minutes that it can't reach."""
    case = Case(trainingjob(checkpoint={"uri": "s3://models/llama", "endpoint": "https://wrong.example.com"}))
    case.settle()
    case.place("n0", "n1")
    case.settle()
    case.edit(checkpoint={"uri": "s3://models/llama", "endpoint": "https://right.example.com"})
    case.settle()
    assert case.phase == "Restarting"
    assert "starts again with the new spec" in case.message()


def test_a_lost_worker_is_made_anew_under_an_edit_that_no_pod_has() -> None:
    case = running()
    case.edit(health={"idle": False}, maxRuntime="3d", restart={"limit": 1})
    case.vanish(case.worker(1).name)
    case.settle()
    assert case.job.status.placement is not None
    assert case.job.status.placement.replacing is not None


def test_an_older_operators_gang_is_as_it_was_made() -> None:
    """It has not written down of which spec its pods are."""
    case = running()
    placement = case.job.status.placement
    assert placement is not None
    known = placement.model_copy(update={"pods": ""})
    case.job = case.job.model_copy(update={"status": case.job.status.model_copy(update={"placement": known})})
    case.edit(numerics={"action": "skip"})
    case.vanish(case.worker(1).name)
    case.settle()
    assert case.job.status.placement is not None
    assert case.job.status.placement.replacing is not None


def test_a_run_that_ends_under_a_refused_edit_has_ended() -> None:
    case = refused()
    for index in (0, 1):
        case.end(index, exits.Cause.SUCCEEDED, 0)
        case.settle()
    assert case.phase == "Succeeded"
    assert not case.is_true(KIND)
