"""How often a gang starts again: by cause, within a window, and not at all for what would only happen again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.effective import effective_spec
from muster.api.jobparts import MAX_RESTARTS
from muster.api.names import ConditionType
from muster.api.restarts import Group, InPlace, booked, used
from muster.api.trainingjob_status import PastFailure
from muster.controllers.lifecycle.failure import allowed_in_place
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Phase

from .cases import START, Case, trainingjob

pytestmark = pytest.mark.unit

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 17, in step\nValueError: bad [3, 4]'
SHAPE: dict[str, Any] = {
    "message": "rank 1 exited with code 1: ValueError: bad [3, 4]",
    "traceback": TRACEBACK,
    "signature": "ValueError: bad [#, #] at train.py:17 in step",
    "rank": 1,
}
NOT_THERE: dict[str, Any] = {
    "message": "rank 0 exited with code 2: python: can't open file 'trian.py'",
    "traceback": "python: can't open file 'trian.py'",
    "signature": "exit code 2, python: can't open file 'trian.py'",
}


def fails(case: Case, cause: Cause = Cause.USER, code: int = 1, **facts: Any) -> None:
    case.end(1, cause, code, **facts)
    case.settle()


def again(case: Case) -> None:
    """The gang's pods go, the back-off passes, and it trains again."""
    assert case.phase == "Restarting"
    case.vanish()
    case.settle()
    case.later(400)
    if case.job.status.placement is None:
        case.place("n0", "n1")
    case.start_placed()


def test_the_same_failure_twice_ends_the_job_and_says_so() -> None:
    case = Case(trainingjob())
    case.start()
    fails(case, step=1200, **SHAPE)
    failure = case.job.status.failure
    assert failure is not None
    assert (failure.step, failure.alike) == (1200, None)
    again(case)
    fails(case, step=1200, **{**SHAPE, "message": "rank 0 exited with code 1: ValueError: bad [3, 9]", "rank": 0})
    assert (case.phase, case.reason(ConditionType.FAILED)) == ("Failed", "IdenticalFailures")
    told = case.message(ConditionType.FAILED)
    assert told.startswith("it failed twice alike at step 1200, and would again: mend the script")
    assert "ValueError: bad [3, 9]" in told
    assert case.job.status.queue is not None
    assert case.job.status.queue.message == told
    assert case.job.status.failure is not None
    assert case.job.status.failure.alike == 2
    assert [past.step for past in case.job.status.recent_failures] == [1200, 1200]


@pytest.mark.parametrize("change", ["a later step", "another place", "a new spec", "nothing to know it by"])
def test_a_failure_after_progress_or_a_change_is_another(change: str) -> None:
    case = Case(trainingjob())
    case.start()
    first, second = {**SHAPE, "step": 1200}, {**SHAPE, "step": 1200}
    match change:
        case "a later step":
            second["step"] = 1201
        case "another place":
            second["signature"] = "ValueError: bad [#, #] at train.py:18 in step"
        case "nothing to know it by":
            first["signature"] = second["signature"] = ""
    fails(case, **first)
    if change == "a new spec":
        case.edit(suspend=True)
        case.settle()
        case.vanish()
        case.settle()
        case.edit(suspend=False)
        case.start()
    else:
        again(case)
    fails(case, **second)
    assert case.phase == "Restarting"
    assert case.job.status.failures == 2


def test_what_the_platform_does_in_between_mends_no_script() -> None:
    case = Case(trainingjob())
    case.start()
    fails(case, step=7, **SHAPE)
    again(case)
    fails(case, Cause.INFRASTRUCTURE, 70)
    again(case)
    fails(case, step=7, **SHAPE)
    assert case.reason(ConditionType.FAILED) == "IdenticalFailures"


def test_what_failed_twice_alike_in_the_living_pods_is_not_tried_in_new_ones() -> None:
    case = Case(trainingjob())
    case.start()
    fails(case, step=7, alike=2, restarts=1, failures=1, **SHAPE)
    assert (case.phase, case.reason(ConditionType.FAILED)) == ("Failed", "IdenticalFailures")
    assert case.job.status.failures == 2


def test_a_script_that_is_not_there_ends_the_job_before_its_first_step() -> None:
    case = Case(trainingjob())
    case.start()
    fails(case, **NOT_THERE)
    again(case)
    fails(case, **NOT_THERE)
    told = case.message(ConditionType.FAILED)
    assert told.startswith("it failed twice alike before it told of a step, and would again: correct spec.command")
    assert "trian.py" in told


def test_the_same_lack_of_memory_twice_is_told_as_such() -> None:
    case = Case(trainingjob())
    case.start()
    facts = {"signature": "torch.OutOfMemoryError: # at train.py:9", "message": "OOM; use a smaller batch", "step": 0}
    fails(case, Cause.OUT_OF_MEMORY, **facts)
    again(case)
    fails(case, Cause.OUT_OF_MEMORY, **facts)
    assert case.reason(ConditionType.FAILED) == "OutOfMemory"
    assert "ran out of memory twice at step 0" in case.message(ConditionType.FAILED)
    assert "smaller batch" in case.message(ConditionType.FAILED)


def test_failures_that_are_older_than_the_window_count_no_more() -> None:
    case = Case(trainingjob(restart={"limit": 1, "window": "1h", "backoff": "10s"}))
    case.start()
    for _ in range(4):
        fails(case, message="boom")
        assert case.job.status.not_before is not None
        assert (case.job.status.not_before - case.now).total_seconds() == 10, "the back-off begins anew as well"
        again(case)
        case.later(3600)
    fails(case, message="boom")
    again(case)
    fails(case, message="boom")
    assert case.reason(ConditionType.FAILED) == "UserError"
    assert "restart.limit 1 is used up" in case.message(ConditionType.FAILED)


@pytest.mark.parametrize(
    ("cause", "code", "field", "reason"),
    [
        (Cause.OUT_OF_MEMORY, 1, "outOfMemory", "OutOfMemory"),
        (Cause.NETWORK, 70, "network", "RestartLimitExceeded"),
        (Cause.INFRASTRUCTURE, 70, "platform", "RestartLimitExceeded"),
    ],
)
def test_each_cause_has_its_own_limit_and_spends_no_other(cause: Cause, code: int, field: str, reason: str) -> None:
    case = Case(trainingjob(restart={"limit": 1, "causes": {field: 1}}))
    case.start()
    fails(case, message="boom")
    again(case)
    fails(case, cause, code)
    again(case)
    assert allowed_in_place(effective_spec(case.job.spec), case.job.status, case.now).script == 0
    fails(case, cause, code)
    assert case.reason(ConditionType.FAILED) == reason
    assert f"restart.causes.{field} 1 is used up" in case.message(ConditionType.FAILED)


def test_the_network_and_the_platform_never_spend_the_scripts_limit() -> None:
    case = Case(trainingjob(restart={"limit": 1}))
    case.start()
    for cause in (Cause.NETWORK, Cause.NODE, Cause.INFRASTRUCTURE) * 2:
        fails(case, cause, 70)
        again(case)
    assert case.job.status.failures is None
    assert allowed_in_place(effective_spec(case.job.spec), case.job.status, case.now).script == 1
    told = [past.cause for past in case.job.status.recent_failures]
    assert told == ["network", "node", "infrastructure"] * 2


def test_lost_connections_that_were_mended_in_the_living_pods_spend_none_either() -> None:
    case = Case(trainingjob(restart={"limit": 1}))
    case.start()
    assert case.launcher is not None
    told = {"restarted_after": "no rank failed by itself", "phase": Phase.RUNNING}
    case.launcher = replace(case.launcher, incarnation=3, restarts=2, failures=1, **told)
    case.settle()
    status = case.job.status
    assert (status.restarts_in_place, status.restarts_used) == (2, 1)
    assert [(past.cause, past.in_place) for past in status.recent_failures] == [("user", True), ("network", True)]
    fails(case, restarts=2, failures=1)
    assert case.phase == "Failed"
    assert len(case.job.status.recent_failures) == 3


def test_lost_connections_are_mended_in_the_living_pods_when_the_scripts_failures_are_used_up() -> None:
    case = Case(trainingjob(restart={"limit": 1, "causes": {"outOfMemory": 0, "network": 2}}))
    case.start()
    fails(case, message="boom")
    again(case)
    spec = effective_spec(case.job.spec)
    assert allowed_in_place(spec, case.job.status, case.now) == InPlace(network=2)
    told = {"restarted_after": "no rank failed by itself", "phase": Phase.RUNNING}
    assert case.launcher is not None
    case.launcher = replace(case.launcher, restarts=1, failures=0, **told)
    case.settle()
    assert allowed_in_place(spec, case.job.status, case.now) == InPlace(network=1)


def test_wants_of_memory_that_were_mended_in_the_living_pods_spend_their_own_limit() -> None:
    case = Case(trainingjob(restart={"limit": 3, "causes": {"outOfMemory": 2}}))
    case.start()
    assert case.launcher is not None
    told = {"restarted_after": "the GPU ran out of memory", "phase": Phase.RUNNING}
    case.launcher = replace(case.launcher, incarnation=3, restarts=2, failures=2, memory_failures=1, **told)
    case.settle()
    status, spec = case.job.status, effective_spec(case.job.spec)
    assert (status.restarts_in_place, status.restarts_used) == (2, 2)
    assert [(past.cause, past.in_place) for past in status.recent_failures] == [("out-of-memory", True), ("user", True)]
    assert allowed_in_place(spec, status, case.now) == InPlace(script=2, memory=1, network=10)
    case.settle()
    assert len(case.job.status.recent_failures) == 2, "told once"
    fails(case, Cause.OUT_OF_MEMORY, restarts=3, failures=3, memory_failures=2)
    assert [past.cause for past in case.job.status.recent_failures] == ["out-of-memory", "user", *["out-of-memory"] * 2]
    assert (case.job.status.failures, case.reason(ConditionType.FAILED)) == (4, "OutOfMemory")
    assert "restart.causes.outOfMemory 2 is used up" in case.message(ConditionType.FAILED)


def test_a_termination_message_of_the_scripts_own_may_tell_of_any_number_of_restarts() -> None:
    case = Case(trainingjob())
    case.start()
    fails(case, restarts=2**31 - 1)
    assert case.job.status.failures == 1, "it is none of ours, so the exit code counts"
    again(case)
    fails(case, restarts=2**20 - 1)
    assert case.phase == "Failed"
    assert len(case.job.status.recent_failures) == MAX_RESTARTS + 1


def test_a_node_with_a_broken_gpu_is_avoided() -> None:
    case = Case(trainingjob())
    case.start("n0", "n1")
    fails(case, Cause.NODE, 70, message="CUDA error: uncorrectable ECC error encountered")
    assert [item.node for item in case.job.status.avoided] == ["n1"]
    assert case.job.status.failure is not None
    assert case.job.status.failure.cause == "node"


def test_no_cause_drives_anothers_failures_out_of_memory() -> None:
    script = [PastFailure(at=START, cause="user")] * 3
    nodes = [PastFailure(at=START, cause="node")] * 100
    past = booked((), *script, *nodes)
    assert used(past, Group.SCRIPT, 60, START) == 3
    assert used(past, Group.PLATFORM, 60, START) == MAX_RESTARTS + 1
