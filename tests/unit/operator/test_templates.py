"""A queue's template reaches the jobs that wait, and no others."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from muster.api.jobparts import JobDefaults
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.errors import ApiError
from muster.cluster.views import PodView
from muster.controllers.situations import Patience
from muster.controllers.work import LAST_RETRY

from .loops import World, compressed, world

pytestmark = pytest.mark.unit


def queue(around: World, **template: object) -> None:
    spec = {"defaultTemplate": template} if template else {}
    around.cache.on_queue("q", TrainingQueue.from_raw({"metadata": {"name": "q"}, "spec": spec}))


async def test_a_placed_job_keeps_what_it_got_and_those_that_wait_follow() -> None:
    async with world(cpu="4") as around:
        queue(around, terminationGracePeriod="7s", env=[{"name": "A", "value": "1"}])
        around.submit("first", workers=2)
        await around.until(lambda: len(around.server.pods) == 2)
        around.submit("second", workers=4)
        await around.until(lambda: around.status("second").get("queue"))
        (pod, *_) = around.server.pods.values()
        assert pod["spec"]["terminationGracePeriodSeconds"] == 7
        assert {"name": "A", "value": "1"} in pod["spec"]["containers"][0]["env"]
        told = {"terminationGracePeriod": "7s", "env": [{"name": "A", "value": "1"}]}
        assert around.status("first")["defaults"] == told
        assert around.status("second")["defaults"] == told

        queue(around, terminationGracePeriod="9s", maxRuntime="1h")
        records = around.loop.records
        await around.until(lambda: records["uid-of-second"].spec.grace == 9)
        assert records["uid-of-second"].spec.max_runtime == 3600
        assert (records["uid-of-first"].spec.grace, records["uid-of-first"].spec.max_runtime) == (7, None)
        assert around.status("first")["defaults"] == told

        around.edit("first", suspend=True)
        await around.until(lambda: around.status("first").get("stop"))
        for name in list(around.server.pods):
            around.show(name)
        around.gone("first")
        await around.until(lambda: records["uid-of-first"].spec.grace == 9)


async def test_a_new_operator_reads_what_a_placed_job_got_from_its_status() -> None:
    async with world() as around:
        queue(around, terminationGracePeriod="7s")
        around.submit("first")
        await around.until(lambda: around.placed("first"))
        raw = around.server.jobs["first"]
    async with world() as later:
        queue(later, terminationGracePeriod="9s")
        later.feed(raw)
        await later.until(lambda: "uid-of-first" in later.loop.records)
        assert later.loop.records["uid-of-first"].spec.grace == 7


def apart(job: str) -> dict[str, Any]:
    """A pod template that keeps the workers of `job` from each other's nodes."""
    selector = {"matchLabels": {"muster.dev/job": job}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    return {"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}}


async def test_a_job_that_names_another_in_its_anti_affinity_is_refused_though_that_one_is_planned_so() -> None:
    async with world(cpu="4") as around:
        around.submit("first", workers=1, podTemplate=apart("first"))
        await around.until(lambda: len(around.server.pods) == 1)
        around.submit("second", workers=1, podTemplate=apart("first"))
        around.submit("large", workers=2, podTemplate=apart("large"))
        await around.until(lambda: around.status("second").get("queue") and around.status("large").get("queue"))
        told = around.status("second")["queue"]
        assert told["reason"] == "InvalidPodTemplate"
        assert "{muster.dev/job: second}" in told["message"]
        assert "a node of its own is missing" in around.status("large")["queue"]["message"]


async def test_a_demand_on_other_pods_that_a_webhook_adds_is_told_before_anything_is_placed() -> None:
    async with world(cpu="4") as around:
        create = around.server.create
        spread = {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}

        async def adding(path: str, body: dict[str, Any], *, dry_run: bool = False, strict: bool = False) -> Any:
            made = await create(path, body, dry_run=dry_run, strict=strict)
            return {**made, "spec": {**made["spec"], "topologySpreadConstraints": [spread]}} if dry_run else made

        around.server.create = adding  # type: ignore[method-assign]
        around.submit("first")
        await around.until(lambda: around.status("first").get("queue"))
        told = around.status("first")["queue"]
        assert told["reason"] == "PodRefused"
        assert told["message"].startswith("a webhook changes the job's pods: spec.topologySpreadConstraints[0] is not")
        assert not around.server.pods


async def test_an_edit_of_a_running_gang_is_rehearsed_before_it_stops_for_it() -> None:
    async with world(patience=Patience(launcher=0.1)) as around:
        create = around.server.create

        async def strict_one(path: str, body: dict[str, Any], *, dry_run: bool = False, strict: bool = False) -> Any:
            made = await create(path, body, dry_run=dry_run, strict=strict)
            if dry_run and "nodeselector" in body["spec"]:
                raise ApiError(400, "BadRequest", 'strict decoding error: unknown field "spec.nodeselector"')
            return made

        around.server.create = strict_one  # type: ignore[method-assign]
        around.submit("first", workers=1)
        await around.until(lambda: around.server.pods)
        ((name, _),) = around.server.pods.items()
        around.show(name, "Running")
        await around.until(lambda: around.status("first").get("phase") == "Running")

        around.edit("first", podTemplate={"spec": {"nodeselector": {"a": "b"}}})

        def says_so() -> bool:
            conditions = around.status("first")["conditions"]
            return any(each["type"] == "EditRefused" and each["status"] == "True" for each in conditions)

        await around.until(says_so)
        assert around.status("first")["phase"] == "Running"
        record = around.loop.records["uid-of-first"]
        around.submit("second")  # so that there is another plan, which neither moves nor resizes the first
        await around.until(lambda: around.placed("second"))
        assert record.planned is not None
        assert record.planned[1].terms.opens == float("inf")

        around.edit("first", podTemplate={"spec": {"nodeSelector": {"a": "b"}}})
        await around.until(lambda: around.status("first").get("stop"))
        assert around.status("first")["stop"]["reason"] == "Restarting"


def refuse(around: World, why: str) -> None:
    """The watch shows that kube-scheduler has long refused the only pod."""
    ((name, raw),) = around.server.pods.items()
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    scheduled |= {"lastTransitionTime": "2026-03-01T12:00:00Z", "message": f"0/1 nodes are available: {why}."}
    metadata = {**raw["metadata"], "creationTimestamp": "2026-03-01T12:00:00Z"}
    status = {"phase": "Pending", "conditions": [scheduled]}
    around.pods.items[f"ns/{name}"] = PodView.from_raw({**raw, "metadata": metadata, "status": status})
    around.cache.on_pod(f"ns/{name}", around.pods.items[f"ns/{name}"])


async def test_what_is_known_of_a_pod_is_forgotten_when_kube_scheduler_wants_it_nowhere() -> None:
    async with world() as around:
        around.submit("first", workers=1)
        await around.until(lambda: around.server.pods)
        record = around.loop.records["uid-of-first"]
        assert record.judgement is not None
        refuse(around, "pod has unbound immediate PersistentVolumeClaims")
        await around.until(lambda: around.status("first").get("stop"))
        assert around.status("first")["stop"]["reason"] == "SchedulingRefused"
        assert record.judgement is None


async def test_what_a_webhook_demands_by_now_is_planned_by_once_kube_scheduler_has_refused_a_pod() -> None:
    """Or the gang would be placed, refused and taken back on one node after the other."""
    async with world() as around:
        create, rehearsed = around.server.create, around.server.calls

        async def adding(path: str, body: dict[str, Any], *, dry_run: bool = False, strict: bool = False) -> Any:
            new = not dry_run or rehearsed["REHEARSE pods"] > 0
            if new and path.endswith("/pods"):
                body = {**body, "spec": {**body["spec"], "nodeSelector": {"pool": "own"}}}
            return await create(path, body, dry_run=dry_run, strict=strict)

        around.server.create = adding  # type: ignore[method-assign]
        around.submit("first", workers=1)
        await around.until(lambda: around.server.pods)
        refuse(around, "1 node(s) didn't match Pod's node affinity/selector")
        await around.until(lambda: around.status("first").get("stop"))
        assert around.status("first")["stop"]["reason"] == "PodUnschedulable"
        around.gone("first")
        await around.until(lambda: around.status("first").get("queue", {}).get("reason") == "NoEligibleNodes")
        assert "none has the label pool=own" in around.status("first")["queue"]["message"]
        assert rehearsed["REHEARSE pods"] == 2


ELSEWHERE = {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}


@pytest.mark.parametrize(
    ("claim", "volume", "told"),
    [
        (
            {"volumeName": "pv-1"},
            {"nodeAffinity": ELSEWHERE},
            "none whose labels suit reaches the volume of PersistentVolumeClaim 'data'",
        ),
        (
            {"storageClassName": "zonal"},
            None,
            "none whose labels suit reaches the volume of PersistentVolumeClaim 'data'",
        ),
        ({"storageClassName": "gone"}, None, ""),
        ({"volumeName": "pv-1"}, {}, ""),
        ({"volumeName": "pv-1"}, None, ""),
        ({}, None, ""),
        (None, None, ""),
    ],
)
async def test_a_job_goes_to_where_its_volume_lies(claim: Any, volume: Any, told: str) -> None:
    """What is not bound, not there, or not for the operator's eyes is left to kube-scheduler."""
    async with world(cpu="4") as around:
        objects = {
            "/api/v1/namespaces/ns/persistentvolumeclaims/data": claim,
            "/api/v1/persistentvolumes/pv-1": volume,
            "/apis/storage.k8s.io/v1/storageclasses/zonal": {},
            "/apis/storage.k8s.io/v1/storageclasses/gone": None,
        }
        zones = [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]
        others = around.server.get

        async def get(path: str) -> dict[str, Any]:
            if path not in objects:
                return await others(path)
            if objects[path] is None:
                raise ApiError(403 if "persistentvolumes" in path else 404, "Refused", "no")
            return {"allowedTopologies": zones} if path.endswith("zonal") else {"spec": objects[path]}

        around.server.get = get  # type: ignore[method-assign]
        around.submit("first", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
        if told:
            await around.until(lambda: around.status("first").get("queue", {}).get("reason") == "NoEligibleNodes")
            assert told in around.status("first")["queue"]["message"]
            assert not around.server.pods
        else:
            await around.until(lambda: len(around.server.pods) == 2)


NONSENSE = {"spec": {"tolerations": [None]}}


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (NONSENSE, "podTemplate.spec.tolerations[0] is null: write a mapping"),
        ({"spec": {"affinity": "podAntiAffinity"}}, "podTemplate.spec.affinity is a text: write a mapping"),
        (
            {"spec": {"affinity": {"podAntiAffinity": [1]}}},
            "podTemplate.spec.affinity.podAntiAffinity is a list: write",
        ),
    ],
)
async def test_a_job_whose_pod_template_is_nonsense_is_told_so_and_stops_nobody(
    template: dict[str, Any], words: str
) -> None:
    async with world() as around:
        around.submit("first", podTemplate=template)
        around.submit("second")
        await around.until(lambda: around.status("first").get("queue"))
        told = around.status("first")["queue"]
        assert told["reason"] == "InvalidPodTemplate"
        assert told["message"].startswith(words)
        await around.until(lambda: around.placed("second"))


async def test_a_running_job_whose_pod_template_becomes_nonsense_stops_nobody() -> None:
    async with world() as around:
        around.submit("first")
        await around.until(lambda: len(around.server.pods) == 2)
        raw, made = around.server.jobs["first"], dict(around.server.pods)
    raw["spec"]["podTemplate"] = NONSENSE
    async with world() as later:
        later.server.pods.update(made)
        later.feed(raw)
        for name in made:
            later.show(name)
        later.submit("second")
        await later.until(lambda: later.placed("second"), seconds=10)


UNKNOWN = (
    'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.containers[0].resorces"'
)


def misread(around: World) -> None:
    """The API server takes a pod of the job only where nobody asks whether all of its fields are known."""
    create = around.server.create

    async def refusing(path: str, body: dict[str, Any], *, dry_run: bool = False, strict: bool = False) -> Any:
        made = await create(path, body, dry_run=dry_run, strict=strict)
        if strict and "resorces" in body["spec"]["containers"][0]:
            raise ApiError(400, "BadRequest", UNKNOWN)
        return made

    around.server.create = refusing  # type: ignore[method-assign]


MISSPELT = {"spec": {"containers": [{"name": "trainer", "resorces": {"limits": {"memory": "1Gi"}}}]}}


async def test_a_misspelt_field_of_a_pod_is_told_before_anything_is_placed() -> None:
    async with world() as around:
        misread(around)
        around.submit("first", podTemplate=MISSPELT)
        await around.until(lambda: around.status("first").get("queue"))
        told = around.status("first")["queue"]
        assert told["reason"] == "InvalidPodTemplate"
        assert told["message"].startswith("spec.podTemplate.spec.containers[0].resorces: a pod has no such field")
        assert not around.server.pods
        around.edit("first", podTemplate=None)
        await around.until(lambda: around.placed("first"))


async def test_a_gang_that_ran_without_a_misspelt_field_goes_on_and_is_told() -> None:
    """An older operator let it through, and its room is kept: nobody else would get it while it waits for its owner."""
    async with world() as around:
        around.submit("first", podTemplate=MISSPELT)
        await around.until(lambda: len(around.server.pods) == 2)
        for name in list(around.server.pods):
            around.show(name, "Running")
        raw = around.server.jobs["first"]
    async with world() as later:
        misread(later)
        status, placement = dict(raw["status"]), raw["status"]["placement"]
        promise = {"workers": 2, "nodes": placement["nodes"], "queue": "q", "promisedAt": "2026-03-01T12:00:00Z"}
        conditions = [{**item, "status": "False", "reason": "Restarting"} for item in status["conditions"]]
        del status["placement"]
        later.feed({**raw, "status": {**status, "promise": promise, "conditions": conditions}})
        await later.until(lambda: later.placed("first") and len(later.server.pods) == 2)
        (told,) = [note for name, note in later.notes if note.warning]
        assert told.reason.value == "Restarting"
        assert "spec.podTemplate.spec.containers[0].resorces: a pod has no such field" in told.message


def test_the_page_names_every_field_of_a_template_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "queues.md").read_text()
    (listed,) = re.findall(r"^\* It may give (.*?)\. ", page, re.MULTILINE | re.DOTALL)
    fields = {field.alias or name for name, field in JobDefaults.model_fields.items()}
    assert set(re.findall(r"`(\w+)`", listed)) == fields


def test_what_keeps_a_job_from_every_node_is_read_anew_while_it_waits() -> None:
    """Its claim was made anew where there are nodes: nobody tells the operator, and the job is what it was."""
    objects = {"data": {"volumeName": "far"}, "far": {"nodeAffinity": ELSEWHERE}, "near": {}}

    async def test() -> None:
        async with world() as around:
            others, rehearsed = around.server.get, around.server.calls

            async def get(path: str) -> dict[str, Any]:
                name = path.rsplit("/", 1)[1]
                return {"spec": objects[name]} if name in objects else await others(path)

            around.server.get = get  # type: ignore[method-assign]
            around.submit("first", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
            await around.until(lambda: around.status("first").get("queue", {}).get("reason") == "NoEligibleNodes")
            await asyncio.sleep(2 * LAST_RETRY)
            assert 2 <= rehearsed["REHEARSE pods"] <= 4
            assert around.status("first")["queue"]["reason"] == "NoEligibleNodes"
            objects["data"] = {"volumeName": "near"}
            await around.until(lambda: around.placed("first"), seconds=2 * LAST_RETRY)
            seen = rehearsed["REHEARSE pods"]
            around.submit("large", workers=3)
            await around.until(lambda: around.status("large").get("queue", {}).get("reason") == "InsufficientCapacity")
            await asyncio.sleep(2 * LAST_RETRY)
            assert rehearsed["REHEARSE pods"] == seen + 1, "it waits for its turn, whatever admission says by now"

    compressed(test())
