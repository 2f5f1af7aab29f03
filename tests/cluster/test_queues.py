"""TrainingQueues on a real API server: what it refuses, what the examples do, and what the operator tells of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import ROOT, ControlPlane
from .gangs import Corner, condition, corner

pytestmark = pytest.mark.cluster

Object = dict[str, Any]
EXAMPLES = sorted((ROOT / "examples" / "queues").glob("*.yaml"))


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        yield found


def queue(name: str = "some", **spec: Any) -> Object:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingQueue",
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_taken_as_it_stands(path: Path, control_plane: ControlPlane) -> None:
    control_plane.kubectl("apply", "--dry-run=server", "-f", str(path))
    for document in yaml.safe_load_all(path.read_text()):
        assert document["apiVersion"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"parent": "a", "cohort": "b"}, "a queue has one place: keep parent and leave cohort out"),
        ({"parent": "some"}, "a queue cannot be its own parent: name another queue"),
        ({"usageHalfLife": "0s"}, "a half-life of 0 would forget all use at once"),
        ({"usageHalfLife": "a week"}, "write a duration as days, hours, minutes and seconds"),
        ({"weight": 0}, "spec.weight: Invalid value: 0"),
        ({"stopPolicy": "drain"}, 'supported values: "none", "hold", "holdAndDrain"'),
        ({"preemption": {"reclaim": "all"}}, 'supported values: "never", "lowerPriority", "any"'),
        ({"preemption": {"withinQueue": "any"}}, 'supported values: "never", "lowerPriority"'),
        ({"maxPriority": 2**31}, "spec.maxPriority"),
    ],
)
def test_mistakes_are_refused_with_the_way_out(spec: Object, said: str, control_plane: ControlPlane) -> None:
    assert said in control_plane.refusal(queue(**spec))


def test_what_is_no_duration_is_not_taken_for_one_of_no_length(control_plane: ControlPlane) -> None:
    for spec in ({"usageHalfLife": "week"}, {"idle": {"after": "week"}}, {"defaultTemplate": {"maxRuntime": "week"}}):
        said = control_plane.refusal(queue(**spec))
        assert "write a duration" in said
        assert " 0" not in said
        assert "no time at all" not in said


def test_a_queue_that_says_nothing_shows_the_defaults(control_plane: ControlPlane) -> None:
    control_plane.apply(queue("plain", preemption={}))
    spec = control_plane.get("tq", "plain")["spec"]
    control_plane.kubectl("delete", "tq", "plain")
    assert spec == {
        "weight": 1,
        "order": "shortestExpected",
        "stopPolicy": "none",
        "preemption": {"withinQueue": "lowerPriority", "reclaim": "any", "whenBorrowing": "never"},
    }


async def test_a_wrong_parent_becomes_a_condition_and_goes_when_the_parent_comes(
    place: Corner, control_plane: ControlPlane
) -> None:
    await place.add_nodes(1)
    above, below = f"{place.namespace}-above", f"{place.namespace}-below"
    await _create(place, queue(below, parent=above))
    try:
        place.start()
        told = await _told(place, below, "ParentFound", "False")
        assert told["reason"] == "ParentNotFound"
        assert f"TrainingQueue '{above}', does not exist" in told["message"]
        shown = control_plane.kubectl("get", "tq", below, "-o", "wide").stdout
        assert f"ParentNotFound   takes no jobs: {told['message']}" in shown
        await place.submit("child", 1, queue=below)
        await place.until_waits("child", "QueueClosed")
        await _create(place, queue(above, parent=below))
        told = await _told(place, below, "ParentFound", "False", "ParentCircle")
        assert f"{above} -> {below} -> {above}" in told["message"]
        await place.api.merge_patch(_path(above), {"spec": {"parent": None}})
        assert (await _told(place, below, "ParentFound", "True"))["reason"] == "ParentFound"
        await place.until_phase("child", "Running")
        used = await place.until("the parent counts what is below it", lambda: _used(place, above))
        assert used == {"running": 1, "gpus": 1}
    finally:
        await _delete(place, above, below)


async def test_a_held_queue_starts_nothing_and_says_who_holds_it(place: Corner) -> None:
    await place.add_nodes(1)
    above, below = f"{place.namespace}-above", f"{place.namespace}-below"
    await _create(place, queue(above, stopPolicy="hold"))
    await _create(place, queue(below, parent=above))
    try:
        place.start()
        await place.submit("held", 1, queue=below)
        await place.until_waits("held", "QueueClosed")
        told = await _told(place, below, "Ready", "False")
        assert told["reason"] == "Held"
        assert told["message"].startswith(f"TrainingQueue '{above}' above it: its stopPolicy is hold")
        await place.api.merge_patch(_path(above), {"spec": {"stopPolicy": "none"}})
        await place.until_phase("held", "Running")
        await _told(place, below, "Ready", "True")
    finally:
        await _delete(place, above, below)


async def test_a_priority_above_the_queues_highest_counts_as_that_and_says_so(place: Corner) -> None:
    await place.add_nodes(1)
    name, path = f"{place.namespace}-calm", "/apis/scheduling.k8s.io/v1/priorityclasses"
    await place.api.create(path, {"metadata": {"name": name}, "value": 10_000, "preemptionPolicy": "Never"})
    await _create(place, queue(name, maxPriority=1000))
    try:
        place.start()
        await place.submit("loud", 1, queue=name, priorityClassName=name)
        await place.until_phase("loud", "Running")
        admitted = condition(await place.job("loud"), "Admitted")
        assert admitted is not None
        assert admitted["message"].endswith(
            f"; its priority 10000 counts as 1000, the highest that TrainingQueue '{name}' allows"
        )
    finally:
        await _delete(place, name)
        await place.api.delete(f"{path}/{name}")


def _path(name: str) -> str:
    return f"/apis/muster.dev/v1alpha1/trainingqueues/{name}"


async def _create(place: Corner, manifest: Object) -> None:
    await place.api.create("/apis/muster.dev/v1alpha1/trainingqueues", manifest)


async def _delete(place: Corner, *names: str) -> None:
    for name in names:
        if name in [found["metadata"]["name"] for found in await _all(place)]:
            await place.api.delete(_path(name))


async def _all(place: Corner) -> list[Object]:
    found: list[Object] = (await place.api.get("/apis/muster.dev/v1alpha1/trainingqueues"))["items"]
    return found


async def _told(place: Corner, name: str, type_: str, status: str, reason: str = "") -> Object:
    """The queue's condition, once it is so."""

    async def found() -> Object | None:
        told = condition(await place.api.get(_path(name)), type_)
        return told if told and told["status"] == status and reason in ("", told["reason"]) else None

    told: Object = await place.until(f"{name} says {type_} {status} {reason}", found)
    return told


async def _used(place: Corner, name: str) -> Object | None:
    status = (await place.api.get(_path(name))).get("status", {})
    return {"running": status["running"], "gpus": status["usedGpus"]} if status.get("usedGpus") else None


async def test_a_template_fills_in_what_a_job_leaves_out_and_leaves_running_jobs_alone(place: Corner) -> None:
    await place.add_nodes(1)
    name = f"{place.namespace}-template"
    template = {"nodeSelector": {"pool": place.name}, "maxRuntime": "2d", "preemptible": False}
    await _create(place, queue(name, defaultTemplate=template))
    try:
        place.start()
        await place.submit("first", 2, queue=name, nodeSelector=None, maxRuntime="1h")
        job = await place.until_phase("first", "Running")
        got = {"nodeSelector": {"pool": place.name}, "preemptible": False}
        assert job["status"]["defaults"] == got
        (pod, _) = await place.pods("first")
        assert pod["spec"]["nodeSelector"] == {"pool": place.name}
        await place.api.merge_patch(_path(name), {"spec": {"defaultTemplate": {"preemptible": None, "env": []}}})
        await place.submit("second", 2, queue=name, nodeSelector={"pool": place.name})
        assert (await place.until_phase("second", "Running"))["status"]["defaults"] == {"maxRuntime": "2d"}
        job = await place.job("first")
        assert (job["status"]["defaults"], job["status"]["placement"]["generation"]) == (got, 1)
    finally:
        await _delete(place, name)


def test_a_template_that_could_never_work_is_refused(control_plane: ControlPlane) -> None:
    told = control_plane.refusal(queue("bad", defaultTemplate={"topology": {"mode": "required"}}))
    assert "mode required needs a level" in told
    assert "readyTimeout is 0" in control_plane.refusal(queue("bad", defaultTemplate={"readyTimeout": "0s"}))
