"""What a queue's template fills in: only what the job leaves out, and never half of what belongs together."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.defaults import filled, used
from muster.api.effective import effective_spec
from muster.api.jobparts import JobDefaults, TopologyMode
from muster.api.numerics import NumericsAction
from muster.api.restarts import Group
from muster.api.trainingjob import TrainingJobSpec

pytestmark = pytest.mark.unit


def spec(**said: Any) -> TrainingJobSpec:
    base = {"image": "i", "command": ["x"], "workers": {"replicas": 2}}
    return TrainingJobSpec.model_validate({**base, **said})


def template(**said: Any) -> JobDefaults:
    return JobDefaults.model_validate(said)


def test_job_that_says_nothing_gets_everything_between_its_word_and_the_built_in() -> None:
    defaults = template(
        priorityClassName="batch",
        maxRuntime="2d",
        topology={"mode": "required", "level": "rack"},
        preemptible=False,
        restart={"limit": 7},
        capacity={"order": ["spot"]},
        hang={"step": "2h"},
    )
    found = effective_spec(spec(), defaults)
    assert (found.priority_class, found.max_runtime, found.preemptible) == ("batch", 172800, False)
    assert (found.mode, found.level, found.capacity) == (TopologyMode.REQUIRED, "rack", ("spot",))
    assert (found.restart_limits[Group.SCRIPT], found.restart_backoff, found.ready_timeout) == (7, 10, 1800)
    assert (found.hang.step, found.hang.start) == (7200, "auto")
    assert used(spec(), defaults) == defaults


def test_the_jobs_word_wins_field_by_field() -> None:
    defaults = template(maxRuntime="2d", restart={"limit": 7, "backoff": "1m"}, preemptible=False)
    job = spec(maxRuntime="1h", restart={"limit": 1}, preemptible=True)
    found = effective_spec(job, defaults)
    assert (found.max_runtime, found.restart_limits[Group.SCRIPT], found.restart_backoff, found.preemptible) == (
        3600,
        1,
        10,
        True,
    )
    assert used(job, defaults) is None
    assert filled(job, defaults) is job


def test_a_job_without_checkpoints_is_not_told_to_go_back_to_one() -> None:
    defaults = template(numerics={"action": "rollback"}, maxRuntime="2d")
    saved = spec(checkpoint={"uri": "s3://models/x"})
    assert effective_spec(saved, defaults).numerics is not None
    assert effective_spec(spec(), defaults).numerics is None
    assert used(spec(), defaults) == template(maxRuntime="2d")
    for job in (spec(), saved):
        found = effective_spec(job, template(numerics={"action": "skip"})).numerics
        assert found is not None
        assert found.action is NumericsAction.SKIP
    assert effective_spec(spec(numerics={"action": "stop"}), template(numerics={"action": "skip"})).numerics == (
        effective_spec(spec(numerics={"action": "stop"})).numerics
    )


def test_mode_and_level_come_together_and_leave_the_jobs_slices() -> None:
    defaults = template(topology={"mode": "required", "level": "block"})
    assert effective_spec(spec(topology={"level": "rack"}), defaults).level == "rack"
    assert effective_spec(spec(topology={"level": "rack"}), defaults).mode is TopologyMode.PREFERRED
    found = effective_spec(spec(topology={"slices": [{"workers": 2, "level": "rack"}]}), defaults)
    assert (found.mode, found.level, found.slices) == (TopologyMode.REQUIRED, "block", ((2, "rack"),))


def test_selectors_tolerations_and_environment_are_joined() -> None:
    taint = {"key": "team", "operator": "Exists"}
    defaults = template(
        nodeSelector={"pool": "a", "disk": "ssd"},
        tolerations=[taint],
        env=[{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "A", "value": "1"}],
    )
    job = spec(nodeSelector={"pool": "b"}, tolerations=[taint, {"key": "x"}], env=[{"name": "A", "value": "2"}])
    found = effective_spec(job, defaults)
    assert found.node_selector == {"pool": "b", "disk": "ssd"}
    assert [each.key for each in found.tolerations] == ["team", "x"]
    assert [(each.name, each.value) for each in found.env] == [("NCCL_DEBUG", "INFO"), ("A", "2")]
    shown = used(job, defaults)
    assert shown is not None
    assert shown.to_raw() == {"nodeSelector": {"disk": "ssd"}, "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}


def test_without_a_template_nothing_changes() -> None:
    assert effective_spec(spec(), template()) == effective_spec(spec(), None) == effective_spec(spec())
