"""The effective spec: the job's word over the built-in defaults."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.builtin import BUILT_IN
from muster.api.effective import EffectiveSpec, effective_spec
from muster.api.jobparts import TopologyMode
from muster.api.restarts import Group
from muster.api.trainingjob import Load, Strategy, TrainingJobSpec

pytestmark = pytest.mark.unit


def effective(workers: dict[str, Any] | None = None, **spec: Any) -> EffectiveSpec:
    base = {"image": "a:1", "command": ["x"], "workers": {"replicas": 2, **(workers or {})}}
    return effective_spec(TrainingJobSpec.model_validate({**base, **spec}))


def test_a_job_that_says_little_gets_the_documented_defaults() -> None:
    spec = effective(checkpoint={"uri": "s3://models/a"})
    assert (spec.min_replicas, spec.max_replicas) == (2, 2)
    assert (spec.gpus_per_worker, spec.processes_per_worker) == (0, 1)
    assert spec.strategy.value == BUILT_IN["spec.parallelism.strategy"] == Strategy.DDP.value
    assert spec.mode.value == BUILT_IN["spec.topology.mode"] == TopologyMode.PREFERRED.value
    assert spec.level == ""
    assert spec.checkpoint is not None
    assert (spec.checkpoint.interval, spec.checkpoint.every_steps) == (600, None)
    assert BUILT_IN["spec.checkpoint.interval"].startswith("10m")
    assert spec.checkpoint.load is Load.ALL
    assert str(spec.checkpoint.retention.last) == BUILT_IN["spec.checkpoint.retention.last"] == "3"
    assert str(spec.restart_limits[Group.SCRIPT]) == BUILT_IN["spec.restart.limit"] == "3"
    assert (spec.ready_timeout, BUILT_IN["spec.readyTimeout"]) == (1800, "30m")
    assert (spec.grace, BUILT_IN["spec.terminationGracePeriod"]) == (120, "2m")
    assert (spec.max_runtime, spec.ttl) == (None, None)


def test_a_gang_with_gpus_has_one_rank_a_gpu_and_asks_for_them() -> None:
    spec = effective({"gpusPerWorker": 8})
    assert (spec.gpus, spec.world_size) == (16, 16)
    assert spec.requests == spec.limits == {"nvidia.com/gpu": "8"}


def test_a_limit_without_a_request_reserves_it() -> None:
    spec = effective({"resources": {"limits": {"memory": "8Gi", "cpu": 4}, "requests": {"cpu": 2}}})
    assert spec.requests == {"memory": "8Gi", "cpu": "2"}
    assert spec.limits == {"memory": "8Gi", "cpu": "4"}


def test_no_checkpoints_by_time_when_they_are_asked_for_by_steps() -> None:
    by_steps = effective(checkpoint={"uri": "s3://models/a", "everySteps": 100}).checkpoint
    both = effective(checkpoint={"uri": "s3://models/a", "everySteps": 100, "interval": "1h"}).checkpoint
    assert by_steps is not None
    assert both is not None
    assert (by_steps.interval, by_steps.every_steps) == (None, 100)
    assert (both.interval, both.every_steps) == (3600, 100)


def test_zero_restarts_is_a_word_and_not_its_absence() -> None:
    assert effective(restart={"limit": 0}).restart_limits[Group.SCRIPT] == 0


def test_the_wait_before_a_restart_doubles_up_to_five_minutes() -> None:
    spec = effective(restart={"backoff": "20s"})
    assert [spec.restart_delay(n) for n in (1, 2, 3, 6, 50)] == [20, 40, 80, 300, 300]
    assert effective(restart={"backoff": "1h"}).restart_delay(9) == 3600
