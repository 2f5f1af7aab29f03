"""What only Events tell of a pod that hangs: which pods are asked about, and what the job says then."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from muster.api.names import ConditionType, Reason
from muster.controllers.lifecycle.hindrance import Heard
from muster.controllers.listening import hangs, newest
from muster.telling.outlook import follows
from muster.telling.scene import Scene

from .lifecycle.cases import START, Case, trainingjob

pytestmark = pytest.mark.unit

MESSAGE = 'MountVolume.SetUp failed for volume "data": secret "s3" not found'
MEND = "; make it, or correct what names it (checkpoint.secretRef, envFrom, env, volumes)"


def starting() -> Case:
    case = Case(trainingjob())
    case.settle()
    case.place("n0", "n1")
    case.settle()
    return case


def test_a_pod_hangs_when_kubelet_has_it_for_long_and_its_status_says_nothing() -> None:
    case = starting()
    case.wait(0, "ContainerCreating")
    pod = replace(case.worker(0), bound=True)
    assert hangs(pod, START + timedelta(seconds=21))
    assert not hangs(pod, START + timedelta(seconds=19))
    assert not hangs(replace(pod, bound=False), START + timedelta(hours=1))
    assert not hangs(replace(pod, terminating=True), START + timedelta(hours=1))
    case.wait(0, "CreateContainerConfigError", 'secret "s3" not found')
    assert hangs(replace(case.worker(0), bound=True), START)
    case.wait(0, "ImagePullBackOff")
    assert not hangs(replace(case.worker(0), bound=True), START + timedelta(hours=1))


def test_the_newest_trouble_of_kubelet_is_told() -> None:
    events = [
        {"reason": "FailedMount", "message": "old", "lastTimestamp": "2026-03-01T12:00:00Z"},
        {"reason": "FailedMount", "message": MESSAGE, "lastTimestamp": "2026-03-01T12:01:00Z"},
        {"reason": "Unhealthy", "message": "no", "lastTimestamp": "2026-03-01T12:02:00Z"},
    ]
    pod = starting().worker(0)
    assert newest(pod, events) == Heard(pod.name, "FailedMount", MESSAGE)
    assert newest(pod, events[2:]) is None


def test_a_secret_that_is_missed_is_told_while_kubelet_tries_again_and_until_a_container_starts() -> None:
    case = starting()
    pod = case.worker(0)
    failed = {"reason": "Failed", "message": 'Error: secret "s3" not found', "lastTimestamp": "2026-03-01T12:01:00Z"}
    pulled = {"reason": "Pulled", "message": "already present", "lastTimestamp": "2026-03-01T12:01:05Z"}
    started = {"reason": "Started", "message": "Started container", "lastTimestamp": "2026-03-01T12:01:30Z"}
    image = {"reason": "Failed", "message": "Error: ImagePullBackOff", "lastTimestamp": "2026-03-01T12:02:00Z"}
    heard = Heard(pod.name, "CreateContainerConfigError", 'secret "s3" not found')
    assert newest(pod, [failed, pulled]) == heard
    assert newest(pod, [failed, pulled, started]) is None
    assert newest(pod, [image]) is None

    case.heard = heard
    case.wait(0, "CreateContainerConfigError", 'secret "s3" not found')
    case.settle()
    assert case.message(ConditionType.PODS_READY).endswith(f'secret "s3" not found{MEND}')
    writes = case.writes
    case.wait(0, "PodInitializing")
    case.settle()
    assert case.reason(ConditionType.PODS_READY) == "CreateContainerConfigError"
    assert case.job.status.queue is not None
    assert "make it" in case.job.status.queue.message
    assert case.writes == writes


def test_an_image_that_is_pulled_for_long_is_told_and_is_no_trouble() -> None:
    case = starting()
    pod = case.worker(0)
    pulling = {"reason": "Pulling", "message": 'Pulling image "llm:1"', "lastTimestamp": "2026-03-01T12:01:00Z"}
    pulled = {"reason": "Pulled", "message": "Successfully pulled", "lastTimestamp": "2026-03-01T12:09:00Z"}
    refused = {"reason": "Failed", "message": "Failed to pull image", "lastTimestamp": "2026-03-01T12:02:00Z"}
    mount = {"reason": "FailedMount", "message": MESSAGE, "lastTimestamp": "2026-03-01T12:00:00Z"}
    heard = Heard(pod.name, "Pulling", 'image "llm:1"')
    assert newest(pod, [pulling]) == heard
    assert newest(pod, [pulling, pulled]) is None
    assert newest(pod, [pulling, refused]) is None
    assert newest(pod, [pulling, refused, {**pulling, "lastTimestamp": "2026-03-01T12:03:00Z"}]) == heard
    assert newest(pod, [mount, pulling]) == Heard(pod.name, "FailedMount", MESSAGE)

    case.heard = heard
    case.later(61)
    case.settle()
    assert case.phase == "Starting", "it is not taken back for that"
    assert case.reason(ConditionType.PODS_READY) == Reason.PODS_STARTING.value
    told = f'pod {pod.name} pulls image "llm:1" on node n0'
    assert case.message(ConditionType.PODS_READY) == told
    assert follows(Scene(case.job, (), (), case.now)).startswith(f"{told}; the ranks start as soon as")
    writes = case.writes
    case.settle()
    case.heard = None
    case.settle()
    assert case.writes == writes, "that it has ended is told by what comes next"
    case.start_placed()
    assert case.is_true(ConditionType.PODS_READY)


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap"])
def test_a_key_that_is_missed_is_told_with_what_to_edit(kind: str) -> None:
    case = starting()
    case.wait(0, "CreateContainerConfigError", f"couldn't find key AWS_ACCESS_KEY_ID in {kind} research/wrongnames")
    case.settle()
    assert case.message(ConditionType.PODS_READY).endswith(
        f"in {kind} research/wrongnames; add the key:  kubectl edit {kind.lower()} wrongnames -n research  or "
        "correct what names it (checkpoint.secretRef, env)"
    )


def test_the_job_says_it_once_and_takes_it_back() -> None:
    case = starting()
    pod = case.worker(1)
    case.heard = Heard(pod.name, "FailedMount", MESSAGE)
    case.settle()
    told = f"pod {pod.name} on node n1 can't start: FailedMount: {MESSAGE}{MEND}"
    assert case.reason(ConditionType.PODS_READY) == "FailedMount"
    assert case.message(ConditionType.PODS_READY) == told
    assert case.job.status.queue is not None
    assert case.job.status.queue.message == told
    writes = case.writes
    case.heard = Heard(pod.name, "FailedAttachVolume", "the same trouble in other words")
    case.settle()
    assert case.writes == writes
    case.heard = None
    case.settle()
    assert case.reason(ConditionType.PODS_READY) == Reason.PODS_STARTING.value
