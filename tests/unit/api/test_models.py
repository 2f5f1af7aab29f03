"""What the models read and write."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from muster.api.common import Condition, Duration, DurationOrAuto, Timestamp, find_condition, set_condition
from muster.api.examples import EXAMPLES
from muster.api.kinds import KINDS
from muster.api.placement import Attempt, Placement, format_indexes, parse_indexes
from muster.api.podparts import OPERATOR_ENV
from muster.api.terms import Cost
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import Failure
from muster.api.trainingqueue import LabelSelector

pytestmark = pytest.mark.unit

NEWCOMER = """
apiVersion: muster.dev/v1alpha1
kind: TrainingJob
metadata: {name: llama-8b, namespace: research}
spec:
  queue: research
  workers: {replicas: 4, gpusPerWorker: 8, gpuType: H100}
  command: [python, train.py, --lr, "3e-4"]
  image: ghcr.io/example/train:1.2
  checkpoint: {uri: "s3://models/llama-8b"}
"""
NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone.utc)


def job(**spec: Any) -> TrainingJob:
    base = {"image": "a:1", "command": ["x"], "workers": {"replicas": 1}}
    return TrainingJob.from_raw({"metadata": {"name": "a", "namespace": "b"}, "spec": {**base, **spec}})


def test_a_newcomers_job_is_read() -> None:
    read = TrainingJob.from_raw(yaml.safe_load(NEWCOMER))
    assert read.key == ("research", "llama-8b")
    assert read.spec.command == ("python", "train.py", "--lr", "3e-4")
    assert read.spec.workers.gpu_type == "H100"
    assert read.to_raw()["spec"] == {**yaml.safe_load(NEWCOMER)["spec"], "suspend": False}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_examples_are_read_and_written_back(kind: Any) -> None:
    raw = yaml.safe_load(EXAMPLES[kind.name])
    read = kind.model.from_raw(raw)
    assert read.kind == raw["kind"] == kind.name
    assert kind.model.from_raw(read.to_raw()) == read


def test_unknown_fields_are_ignored_but_for_those_of_pods() -> None:
    volume = {"name": "data", "csi": {"driver": "example.com"}}
    read = job(newerField=1, volumes=[volume], podTemplate={"spec": {"hostIPC": True}})
    spec = read.to_raw()["spec"]
    assert "newerField" not in spec
    assert spec["volumes"] == [volume]
    assert spec["podTemplate"] == {"spec": {"hostIPC": True}}


def test_numbers_are_read_as_quantities() -> None:
    resources = job(workers={"replicas": 1, "resources": {"requests": {"cpu": 4}}}).spec.workers.resources
    assert resources is not None
    assert resources.requests == {"cpu": "4"}


def test_models_are_frozen() -> None:
    with pytest.raises(ValidationError):
        job().spec.queue = "other"  # type: ignore[misc]


def test_times_are_written_in_utc_with_whole_seconds() -> None:
    local = NOW.astimezone(timezone(timedelta(hours=2)))
    condition = Condition(type="Running", status="True", reason="Training", last_transition_time=local)
    assert condition.to_raw()["lastTransitionTime"] == "2026-01-02T03:04:05Z"


def test_long_text_of_the_operator_is_cut_and_not_refused() -> None:
    assert len(Failure(traceback="x" * 5000).traceback) == 4096


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    later = NOW + timedelta(hours=1)
    old = Condition(type="Admitted", status="False", reason="Pending", last_transition_time=NOW)
    other = Condition(type="Running", status="False", reason="NoPods", last_transition_time=NOW)
    reason = Condition(type="Admitted", status="False", reason="QuotaExceeded", last_transition_time=later)
    status = Condition(type="Admitted", status="True", reason="Admitted", last_transition_time=later)
    waiting = find_condition(set_condition((old, other), reason), "Admitted")
    admitted = find_condition(set_condition((old, other), status), "Admitted")
    assert waiting is not None
    assert (waiting.reason, waiting.last_transition_time) == ("QuotaExceeded", NOW)
    assert admitted is not None
    assert admitted.last_transition_time == later
    assert set_condition((other,), status) == (other, status)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_indexes_round_trip(indexes: set[int]) -> None:
    assert set(parse_indexes(format_indexes(indexes))) == indexes


@given(st.lists(st.sampled_from(["node-a", "node-b", "node-c"]), min_size=1, max_size=64))
def test_a_placement_round_trips(nodes: list[str]) -> None:
    placement = Placement.of(3, nodes, attempts={0: 2})
    read = Placement.model_validate(placement.to_raw())
    assert read == placement
    assert read.node_of_index() == tuple(nodes)
    assert (read.attempt_of(0), read.attempt_of(1)) == (2, 0)


def test_whose_pod_was_replaced_is_found_without_a_look_at_all_of_them_whatever_order_they_are_written_in() -> None:
    looked = 0

    class Watched(tuple[Attempt, ...]):
        def __getitem__(self, at: Any) -> Any:
            nonlocal looked
            looked += 1
            return super().__getitem__(at)

        def __iter__(self) -> Iterator[Attempt]:
            nonlocal looked
            for item in super().__iter__():
                looked += 1
                yield item

    replaced = {index: index % 3 + 1 for index in range(0, 4096, 4)}
    placed = Placement.of(1, [f"node-{index // 4}" for index in range(4096)], attempts=replaced)
    raw = placed.to_raw()
    shuffled = Placement.model_validate({**raw, "attempts": raw["attempts"][::-1]})
    found = shuffled.model_copy(update={"attempts": Watched(shuffled.attempts)})
    assert [found.attempt_of(index) for index in range(4097)] == [replaced.get(index, 0) for index in range(4097)]
    assert looked <= 4097 * 16, "a turn asks for each pod of a gang, several times"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nodes": [{"node": "a", "indexes": "0,2"}]}, "2 of 3 workers"),
        ({"nodes": []}, "0 of 3 workers"),
        ({"nodes": [{"node": "a", "indexes": "0-"}]}, "'0-' is no ascending list of indexes"),
        ({"nodes": [{"node": "a", "indexes": "2-0"}]}, "'2-0' is no ascending list"),
        ({"nodes": [{"node": "a", "indexes": "0-99999999999"}]}, "is no ascending list"),
        ({"spares": [{"node": "a", "indexes": "many"}]}, "'many' is no ascending list"),
        ({"replacing": {"indexes": "3", "since": "2026-01-01T00:00:00Z"}}, "workers that it does not have"),
        ({"placedAt": "9999-12-31T23:59:59Z"}, "no clock has shown this moment"),
        ({"placedAt": "2026-01-01T00:00:00"}, "needs a time zone"),
    ],
)
def test_a_placement_that_cannot_be_is_an_error(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Placement.model_validate(Placement.of(1, ["a"] * 3).to_raw() | fields)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (Duration, "9999999s", "is not a duration"),
        (DurationOrAuto, "automatic", "is not a duration"),
        (Cost, "nan", "is no amount"),
        (Timestamp, "0001-01-01T00:00:00+12:00", "outside of the calendar"),
    ],
)
def test_what_no_rule_of_the_api_server_has_seen_is_looked_at_when_it_is_read(kind: Any, text: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TypeAdapter(kind).validate_python(text)


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({}, True),
        ({"matchLabels": {"team": "a"}}, True),
        ({"matchLabels": {"team": "b"}}, False),
        ({"matchLabels": {"other": "a"}}, False),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "other", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_a_selector_selects_as_in_kubernetes(selector: dict[str, Any], selected: bool) -> None:
    assert (not LabelSelector.model_validate(selector).unmet({"team": "a"})) is selected


def test_the_operators_variables_are_reserved_and_the_sessions_are_not() -> None:
    assert "MUSTER_TOKEN" in OPERATOR_ENV
    assert "MUSTER_SEED" not in OPERATOR_ENV
