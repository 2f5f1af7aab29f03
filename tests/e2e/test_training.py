"""Training on real nodes: gangs that are killed, drained, suspended and stopped go on where they were, bit by bit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hack.demo import strike, watch
from hack.demo.kube import Json, condition, holds

from muster_protocol import losses, manifest

if TYPE_CHECKING:
    from conftest import World

STEPS = 60
EVERY = 10


RESTRICTED = {
    "spec": {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 4711, "runAsGroup": 4711, "fsGroup": 4711},
        "containers": [
            {
                "name": "trainer",
                "securityContext": {
                    "readOnlyRootFilesystem": True,
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
}


APART = {"spec": {"containers": [{"name": "trainer", "ports": [{"containerPort": 7470, "hostPort": 7470}]}]}}
"""Each node has that port once, so the gang's workers lie on as many nodes."""


def short_gpt(world: World, name: str, **more: Any) -> Json:
    """examples/gpt with a few steps, and a checkpoint every EVERY steps."""
    arguments = ["--steps", str(more.pop("steps", STEPS))]
    checkpoint = world.storage(name, **{"everySteps": EVERY, **more.pop("checkpoint", {})})
    return world.gpt(name, args=arguments, checkpoint=checkpoint, **more)


def background(world: World) -> list[Json]:
    return [
        short_gpt(world, "undisturbed"),
        short_gpt(world, "restricted", steps=20, podTemplate=RESTRICTED),
        endless(world, "too-long", maxRuntime="120s"),
    ]


ENDLESS = """\
import time
import torch
import muster_runtime as muster

session = muster.start()
model = session.wrap(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.track(model=model, optimizer=optimizer)
for step in session.steps(1_000_000):
    time.sleep(0.1)
    optimizer.zero_grad()
    loss = model(torch.ones(4)).sum()
    loss.backward()
    optimizer.step()
    session.report(loss=loss)
"""


def endless(world: World, name: str, **more: Any) -> Json:
    """A gang that trains for a day and leaves the processors to others."""
    storage = world.storage(name, everySteps=EVERY)
    return world.plain(name, "python3", "-c", ENDLESS, replicas=2, checkpoint=storage, **more)


def curve(world: World, name: str) -> Mapping[int, float]:
    return losses.read(world.s3, world.bucket, name)


def latest(world: World, name: str) -> manifest.Latest:
    body = world.s3.get_object(Bucket=world.bucket, Key=f"{name}/{manifest.LATEST_KEY}")["Body"].read()
    return manifest.decode_latest(body)


def until_committed(world: World, name: str, step: int = 1) -> manifest.Latest:
    """Waits until a checkpoint at `step` or later is committed while the job still trains."""

    def look() -> manifest.Latest | None:
        job = world.job(name)
        assert not holds(job, "Succeeded"), f"{name} ended before anything could be done to it"
        if f"{name}/{manifest.LATEST_KEY}" not in [f"{name}/{key}" for key in world.keys(name)]:
            return None
        found = latest(world, name)
        return found if found.step is not None and found.step >= step else None

    found: manifest.Latest = world.wait(f"{name}'s checkpoint at step {step}", look, 300, name)
    return found


def until_resumed(world: World, name: str, epoch: int) -> int | None:
    """The step that the next incarnation restored: None when it began anew."""

    def look() -> watch.JobView | None:
        view = watch.look(world.kube, world.namespace, name)
        if view.failed:
            pytest.fail(f"{name} failed:\n{world.kube.describe(world.namespace, name)}", pytrace=False)
        return view if latest(world, name).epoch > epoch and view.resumed_from is not None else None

    view: watch.JobView = world.wait(f"{name}'s going on", look, 180, name)
    return view.resumed_from


def worker(world: World, name: str, index: int) -> Json:
    return next(pod for pod in world.pods(name) if pod["metadata"]["labels"]["muster.dev/index"] == str(index))


def running(world: World, name: str) -> list[Json]:
    """The job's pods that still hold something."""
    return [pod for pod in world.pods(name) if pod["status"].get("phase") not in ("Succeeded", "Failed")]


def assert_as_undisturbed(world: World, name: str, reference: str) -> None:
    """The losses of all steps have the bits of the run that nobody disturbed."""
    world.until_succeeded(reference)
    found, expected = curve(world, name), curve(world, reference)
    assert sorted(expected) == list(range(STEPS))
    assert found == expected


def until_copied(world: World, name: str, step: int) -> None:
    """Waits until each worker keeps a copy of another's memory at `step`."""

    def look() -> bool:
        pods = world.pods(name)
        found = watch.statuses(world.kube, world.namespace, pods)
        return len(found) == len(pods) == 2 and all(status.copy[2:3] == (step,) for status in found)

    world.wait(f"copies of {name}'s memory at step {step}", look, 300, name)


def test_a_killed_worker_is_replaced_alone_and_resumes_from_the_copy_of_its_memory(world: World) -> None:
    step = STEPS // 2
    world.apply(short_gpt(world, "killed", checkpoint={"memory": "peer", "everySteps": step}, podTemplate=APART))
    until_copied(world, "killed", step)
    pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.pods("killed")}
    assert len({pod["spec"]["nodeName"] for pod in world.pods("killed")}) == 2
    lost = worker(world, "killed", 1)["metadata"]["name"]
    before = latest(world, "killed")
    assert strike.kill(worker(world, "killed", 1)), "no process was found in the worker's container"
    assert until_resumed(world, "killed", before.epoch) == step
    for line in (
        r"\[worker 0\] \[muster\] the gang starts again in place, as incarnation 2: index 1 .* is lost",
        rf"\[worker 1\] \[muster\] the copy of this pod's memory at step {step}, with index 0, was fetched",
        rf"\[worker 0\] \[rank 0\] muster: resumed after step {step} from the memory of its pods",
    ):
        world.wait(line, lambda: re.search(line, muster(world, "logs", "killed", "--all")), 30, "killed")  # noqa: B023
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.pods("killed")}
    kept = pods.keys() - {lost}
    assert {name: after.get(name) for name in kept} == {name: pods[name] for name in kept}
    assert after.keys() - pods.keys() == {"killed-g1-1-1"}
    job = world.until_succeeded("killed")
    in_memory = condition(job, "CheckpointInMemory")
    assert in_memory
    assert (in_memory["status"], in_memory["reason"]) == ("False", "Completed"), "it was True, and ended with the pods"
    assert job["status"]["replacements"] == 1
    assert not {"restarts", "failures"} & job["status"].keys()
    assert job["status"]["checkpoint"]["step"] == STEPS
    assert_as_undisturbed(world, "killed", "undisturbed")


def test_a_suspended_job_saves_leaves_and_goes_on_when_asked(world: World) -> None:
    world.apply(short_gpt(world, "suspended"))
    before = until_committed(world, "suspended")
    world.patch("suspended", json.dumps({"spec": {"suspend": True}}))
    world.until("suspended", "is suspended", lambda job: holds(job, "Suspended"))
    assert not world.pods("suspended")
    kept = latest(world, "suspended")
    assert kept.step is not None
    assert kept.step > (before.step or 0), "nothing was saved when the job was asked to stop"
    world.patch("suspended", json.dumps({"spec": {"suspend": False}}))
    assert until_resumed(world, "suspended", kept.epoch) == kept.step
    world.until_succeeded("suspended")
    assert_as_undisturbed(world, "suspended", "undisturbed")


def test_a_job_that_runs_too_long_is_ended_with_a_checkpoint(world: World) -> None:
    failed = world.until_failed("too-long", 400)
    assert failed["reason"] == "MaxRuntimeExceeded"
    kept = latest(world, "too-long")
    assert kept.step
    assert not kept.finished
    world.wait("the end of its pods", lambda: not running(world, "too-long"), 60, "too-long")


def test_a_deleted_job_takes_its_pods_with_it_and_leaves_its_checkpoints(world: World) -> None:
    world.apply(endless(world, "deleted"))
    before = until_committed(world, "deleted")
    world.delete("deleted", "--wait=false")
    world.until_gone("deleted")
    kept = latest(world, "deleted")
    assert kept.step is not None
    assert kept.step > (before.step or 0), "the pods were not given the time to save"
    assert f"{kept.manifest}" in world.keys("deleted")


def test_a_finished_job_that_is_applied_again_does_nothing_and_succeeds(world: World) -> None:
    world.until_succeeded("undisturbed")
    kept, keys = latest(world, "undisturbed"), world.keys("undisturbed")
    assert kept.finished
    again = short_gpt(world, "again")
    again["spec"]["checkpoint"]["uri"] = world.uri("undisturbed")
    world.apply(again)
    world.until_succeeded("again")
    after = latest(world, "undisturbed")
    assert (after.step, after.manifest, after.finished) == (kept.step, kept.manifest, True)
    assert [key for key in world.keys("undisturbed") if "/manifest.json" in key] == [
        key for key in keys if "/manifest.json" in key
    ]


def test_a_drained_node_ends_in_a_resume_elsewhere(world: World) -> None:
    world.apply(short_gpt(world, "drained"))
    before = until_committed(world, "drained", EVERY)
    node = worker(world, "drained", 0)["spec"]["nodeName"]
    try:
        flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
        world.kube.kubectl("drain", node, *flags, "--pod-selector=muster.dev/job=drained", timeout_s=150)
        assert (until_resumed(world, "drained", before.epoch) or 0) >= (before.step or 0)
        assert all(pod["spec"]["nodeName"] != node for pod in world.pods("drained"))
        world.until_succeeded("drained")
    finally:
        world.kube.kubectl("uncordon", node)
    assert_as_undisturbed(world, "drained", "undisturbed")


def test_a_preempted_gang_saves_makes_room_and_goes_on_with_the_same_losses(world: World) -> None:
    """A job of higher priority needs quota that a gang uses: the gang is asked to save, and loses no step."""
    name = f"{world.namespace}-small"
    quota = {"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": "4"}]}
    queue = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingQueue",
        "metadata": {"name": name},
        "spec": {"quotas": [quota]},
    }
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 1000,
    }
    try:
        world.apply(queue, priority)
        world.apply(short_gpt(world, "preempted", queue=name, restart={"limit": 0}))
        before = until_committed(world, "preempted", EVERY)
        echo = ("python3", "-c", "print('hello')")
        world.apply(world.plain("urgent", *echo, replicas=2, queue=name, priorityClassName=name))
        job = world.until("preempted", "makes room", lambda job: job["status"].get("preemptions"))
        assert job["status"]["preemptions"] == 1
        world.until_succeeded("urgent")
        kept = latest(world, "preempted")
        assert (kept.step or 0) > (before.step or 0), "nothing was saved when the gang was asked to make room"
        assert until_resumed(world, "preempted", kept.epoch) == kept.step
        assert not world.until_succeeded("preempted")["status"].get("failures")
    finally:
        world.kube.kubectl("delete", "priorityclass", name, "--ignore-not-found")
        world.kube.kubectl("delete", "trainingqueue", name, "--ignore-not-found")
    assert_as_undisturbed(world, "preempted", "undisturbed")


def test_a_pod_may_be_anyone_and_see_its_root_read_only(world: World) -> None:
    world.until_succeeded("restricted")
    for pod in world.pods("restricted"):
        assert pod["spec"]["securityContext"]["runAsUser"] == 4711
        assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_job_that_succeeded_shows_it_in_one_line(world: World) -> None:
    world.until_succeeded("undisturbed")
    line = world.kube.kubectl("get", "tj", "undisturbed", "-n", world.namespace, "--no-headers")
    assert "Succeeded" in line
    ready = condition(world.job("undisturbed"), "Admitted")
    assert ready
    assert ready["status"] == "False", "a job that has ended still holds quota"
    assert "Succeeded" in muster(world, "status", "undisturbed")


def muster(world: World, *arguments: str) -> str:
    """What the command prints."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "muster"), *arguments, "-n", world.namespace],
        capture_output=True,
        text=True,
        env={"KUBECONFIG": str(world.kube.cluster.kubeconfig), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
