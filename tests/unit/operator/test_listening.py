"""What only Events tell of a pod that hangs: which pods are asked about, and what the job says then."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from muster.api.names import ConditionType, Reason
from muster.controllers.lifecycle.hindrance import Heard
from muster.controllers.listening import hangs, newest

from .lifecycle.cases import START, Case, trainingjob

pytestmark = pytest.mark.unit

MESSAGE = 'MountVolume.SetUp failed for volume "data": secret "s3" not found'


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


def test_the_job_says_it_once_and_takes_it_back() -> None:
    case = starting()
    pod = case.worker(1)
    case.heard = Heard(pod.name, "FailedMount", MESSAGE)
    case.settle()
    told = f"pod {pod.name} on node n1 can't start: FailedMount: {MESSAGE}"
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
