"""What people get wrong: each job says what is wrong, where, and how to mend it, and nothing else stops working."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hack.cluster.plan import Options
from hack.demo import install
from hack.demo.kube import Json, condition, holds

if TYPE_CHECKING:
    from conftest import World

ECHO = ("python3", "-c", "print('hello')")


def background(world: World) -> list[Json]:
    cluster_gpus = 2 * Options().gpus
    wrong_keys = install.s3_secret(world.kube, world.namespace, "wrong-keys", secret_key="not-the-key")
    denied = {**world.storage("denied"), "secretRef": {"name": "wrong-keys"}}
    missing = {**world.storage("no-bucket"), "uri": "s3://this-bucket-does-not-exist/run"}
    refused = ("python3", "-c", "import sys; print('the learning rate is missing', file=sys.stderr); sys.exit(1)")
    return [
        wrong_keys,
        world.plain("no-image", *ECHO, image="localhost/muster/there-is-no-such-image:1"),
        world.plain("exits-at-once", *refused, replicas=2),
        world.plain("no-bucket", *ECHO, checkpoint=missing),
        world.plain("denied", *ECHO, checkpoint=denied),
        world.plain("no-queue", *ECHO, queue="there-is-no-such-queue"),
        world.plain("one-too-many", *ECHO, replicas=cluster_gpus + 1),
        world.plain("no-program", "this-program-does-not-exist"),
    ]


def admitted(job: Json, reason: str) -> Json | None:
    found = condition(job, "Admitted")
    return found if found and found["status"] == "False" and found["reason"] == reason else None


def test_a_command_that_exits_1_at_once_fails_with_its_own_words(world: World) -> None:
    failed = world.until_failed("exits-at-once")
    assert failed["reason"] == "UserError"
    failure = world.job("exits-at-once")["status"]["failure"]
    assert (failure["cause"], failure["exitCode"]) == ("user", 1)
    assert failure["rank"] in (0, 1), "whichever was first"

    def ended() -> list[Json] | None:
        pods = world.pods("exits-at-once")
        return pods if all(pod["status"]["phase"] == "Failed" for pod in pods) else None

    pods = world.wait("no pod of the failed job holds GPUs", ended, 90, "exits-at-once")
    words = [world.kube.logs(world.namespace, pod["metadata"]["name"]) for pod in pods]
    assert any("the learning rate is missing" in told for told in words), words


def test_a_program_that_is_not_there_is_named(world: World) -> None:
    failed = world.until_failed("no-program")
    assert "this-program-does-not-exist" in failed["message"]


def test_a_bucket_that_does_not_exist_is_named(world: World) -> None:
    failed = world.until_failed("no-bucket")
    assert failed["reason"] in ("StorageError", "ConfigurationError")
    assert "this-bucket-does-not-exist" in failed["message"]
    storage = condition(world.job("no-bucket"), "CheckpointStorageReady")
    assert storage
    assert storage["status"] == "False"


def test_a_bucket_that_denies_access_says_which_keys_to_check(world: World) -> None:
    failed = world.until_failed("denied")
    assert "denied" in failed["message"]
    assert "secretRef" in failed["message"]


def test_a_job_whose_queue_is_missing_starts_when_there_is_one(world: World) -> None:
    job = world.until("no-queue", "says so", lambda job: admitted(job, "QueueNotFound"))
    assert not world.pods("no-queue")
    found = admitted(job, "QueueNotFound")
    assert found
    assert "there-is-no-such-queue" in found["message"]
    queue = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingQueue",
        "metadata": {"name": "there-is-no-such-queue"},
        "spec": {},
    }
    world.apply(queue)
    try:
        world.until_succeeded("no-queue")
    finally:
        world.kube.kubectl("delete", "trainingqueue", "there-is-no-such-queue")


def test_a_gang_one_pod_short_starts_no_pod_and_says_what_is_missing(world: World) -> None:
    job = world.until("one-too-many", "says so", lambda job: admitted(job, "ExceedsCluster"))
    found = admitted(job, "ExceedsCluster")
    assert found
    assert "nvidia.com/gpu" in found["message"]
    assert not world.pods("one-too-many")
    events = [event["note"] for event in world.kube.events(world.namespace, "one-too-many")]
    assert any("nvidia.com/gpu" in note for note in events)
    shown = world.kube.kubectl("get", "tj", "one-too-many", "-n", world.namespace, "-o", "wide")
    assert "ExceedsCluster" in shown or "nvidia.com/gpu" in shown


def test_nothing_else_stops_working_meanwhile(world: World) -> None:
    world.apply(world.plain("fine", *ECHO))
    job = world.until_succeeded("fine")
    assert holds(job, "Succeeded"), json.dumps(job["status"])


def test_an_image_that_cannot_be_pulled_is_named_and_holds_no_gpus(world: World) -> None:
    job = world.until("no-image", "says so", lambda job: admitted(job, "ImagePullFailed"), 200)
    found = admitted(job, "ImagePullFailed")
    assert found
    assert "there-is-no-such-image" in found["message"]
