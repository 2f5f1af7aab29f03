"""A gang that can't start is taken back whole, with the reason, and is nobody's failure."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.names import ConditionType
from muster.controllers.lifecycle.hindrance import Heard
from muster.controllers.lifecycle.turn import Refusal
from muster.controllers.planning import last_start, waiting_status
from muster.controllers.telling import Word

from .cases import Case, trainingjob

pytestmark = pytest.mark.unit


def placed(**spec: Any) -> Case:
    case = Case(trainingjob(**spec))
    case.settle()
    case.place("n0", "n1")
    case.settle()
    return case


def withdrawn(case: Case) -> None:
    """It is whole gone, counted as nobody's failure, and offered again once it may be."""
    assert all(pod.terminating for pod in case.pods.values())
    assert case.job.status.placement is not None, "the room is held until the last pod is gone"
    case.vanish()
    case.settle()
    assert case.job.status.placement is None
    assert case.phase == "Queued"
    assert case.job.status.failures is None
    assert case.job.status.restarts is None
    assert case.job.status.withdrawals == 1


def unschedulable(case: Case, index: int) -> None:
    message = "0/4 nodes are available: 1 Insufficient nvidia.com/gpu."
    case.change(case.worker(index).name, unschedulable=message, unschedulable_since=case.now)


def test_an_unschedulable_pod_withdraws_the_gang_after_a_moment() -> None:
    case = placed()
    case.run_pods(0)
    unschedulable(case, 1)
    decision = case.settle()
    assert case.phase == "Starting"
    assert decision.wake_at is not None
    case.later(3)
    case.settle()
    assert "Insufficient nvidia.com/gpu" in case.message()
    withdrawn(case)
    assert case.reason() == "PodUnschedulable"
    assert [item.node for item in case.job.status.avoided] == ["n1"]
    assert case.decide().plannable, "other nodes may be tried at once"


def test_the_node_is_avoided_longer_each_time() -> None:
    case = placed()
    spans = []
    for _ in range(7):
        unschedulable(case, 1)
        case.later(4)
        case.settle()
        spans.append(round((case.job.status.avoided[-1].until - case.now).total_seconds()))
        case.vanish()
        case.settle()
        case.place("n0", "n1")
        case.settle()
    assert spans == [10, 20, 40, 80, 160, 300, 300]


def refused(case: Case, why: str) -> None:
    """kube-scheduler looks at each pod again and again, and blames no node."""
    told = f"0/4 nodes are available: {why}. not found"
    for pod in list(case.gang()):
        case.change(pod.name, unschedulable=told, unschedulable_since=case.now)


@pytest.mark.parametrize(
    ("why", "mend"),
    [
        ('persistentvolumeclaim "my.data" not found', "make it, or correct what names it (spec.volumes or"),
        ("pod has unbound immediate PersistentVolumeClaims", "kubectl describe pvc -n research"),
        ('resourceclaim "gpus" not found', "make it, or correct what names it (podTemplate)"),
        (
            "4 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
            "kubectl describe pvc -n research",
        ),
        (
            "1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
            "another pod, 3 node(s) didn't match Pod's node affinity/selector",
            "see Used By in  kubectl describe pvc -n research, and make a claim with ReadWriteMany for a gang",
        ),
    ],
)
def test_what_no_node_mends_is_blamed_on_none(why: str, mend: str) -> None:
    case, seen = placed(), []
    for attempt in range(2):
        refused(case, why)
        decision = case.settle()
        assert decision.wake_at is not None
        assert attempt or reason_shown(case) == "", "it may be made for the pod right now"
        case.later(5)
        case.settle()
        seen.append(reason_shown(case))
        assert case.phase == "Starting", "a volume is made when it is asked for, and that takes a while"
        case.later(61)
        case.settle()
        assert case.message().count(why) == 1
        assert mend in case.message()
        assert case.job.status.avoided == ()
        case.vanish()
        case.settle()
        assert not case.decide().plannable
        case.later(300)
        case.settle()
        seen.append(reason_shown(case))
        if not attempt:
            case.place("n0", "n1")
            case.settle()
            seen.append(reason_shown(case))
    assert set(seen) == {"SchedulingRefused"}


@pytest.mark.parametrize(
    "why",
    [
        "1 node(s) had untolerated taint {a: b}, 3 node(s) didn't match Pod's node affinity/selector",
        "node(s) didn't satisfy plugin(s) [NodeAffinity VolumeBinding] simultaneously",
    ],
)
def test_what_another_node_may_mend_is_the_nodes(why: str) -> None:
    case = placed()
    refused(case, why)
    case.later(4)
    case.settle()
    assert case.message().startswith("kube-scheduler can't place pod llama-g1-0-0 on node n0: 0/4 nodes")
    assert [item.node for item in case.job.status.avoided] == ["n0"]


def test_a_gang_whose_volume_is_being_made_for_one_of_its_pods_has_the_time_for_it() -> None:
    """kube-scheduler can't bind the claim for the others until the volume is there, and blames their nodes."""
    case = placed()
    told = "1 node(s) didn't find available persistent volumes to bind, 3 node(s) didn't match Pod's node affinity"
    message = f"0/4 nodes are available: {told}. not found"
    case.change(case.worker(1).name, unschedulable=message, unschedulable_since=case.now)
    case.settle()
    case.later(30)
    case.settle()
    assert case.phase == "Starting"
    case.later(31)
    case.settle()
    withdrawn(case)
    assert case.reason() == "PodUnschedulable"
    assert [item.node for item in case.job.status.avoided] == ["n1"]


@pytest.mark.parametrize("reason", ["OutOfcpu", "OutOfnvidia.com/gpu", "NodeAffinity", "UnexpectedAdmissionError"])
def test_a_pod_rejected_by_kubelet_withdraws_the_gang(reason: str) -> None:
    case = placed()
    case.run_pods(0)
    case.change(case.worker(1).name, phase="Failed", status_reason=reason, status_message="Pod was rejected")
    case.settle()
    assert reason in case.message()
    withdrawn(case)
    assert case.reason() == "PodUnschedulable"


def test_a_refused_pod_withdraws_the_gang_and_waits() -> None:
    case = Case(trainingjob())
    case.settle()
    case.place("n0", "n1")
    case.refusal = Refusal(1, 'pods "llama-g1-1-0" is forbidden: exceeded quota: compute, requested: pods=1')
    case.turn()
    assert "exceeded quota" in case.message()
    withdrawn(case)
    assert case.reason() == "PodRefused"
    decision = case.settle()
    assert not decision.plannable
    assert decision.wake_at is not None
    case.later(11)
    assert case.settle().plannable


def test_a_gang_of_a_namespace_that_is_being_deleted_keeps_no_room_for_pods_that_cannot_be_made() -> None:
    """Kubernetes deletes pods first, and jobs when the last of these is gone: with one on a dead node that is never."""
    case = Case(trainingjob(checkpoint={"uri": "s3://models/llama"}))
    case.start()
    case.namespace_ends = True
    case.settle()
    assert case.phase == "Running"
    for pod in list(case.pods):
        case.change(pod, terminating=True)
    case.settle()
    case.vanish()
    case.settle()
    assert (case.job.status.placement, case.job.status.promise) == (None, None)

    starts = Case(trainingjob())
    starts.settle()
    starts.place("n0", "n1")
    starts.namespace_ends = True
    starts.settle()
    assert starts.job.status.placement is None
    assert starts.reason() == "PodRefused"
    assert "its namespace is being deleted" in starts.message()


def test_a_refusal_of_another_placement_is_forgotten() -> None:
    case = placed()
    case.refusal = Refusal(7, "old")
    case.settle()
    assert case.phase == "Starting"


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull"])
def test_an_image_that_cannot_be_pulled_is_given_a_minute(reason: str) -> None:
    case = placed()
    case.wait(0, reason, "manifest unknown")
    decision = case.settle()
    assert case.phase == "Starting"
    assert decision.wake_at is not None
    case.later(61)
    case.settle()
    assert "manifest unknown" in case.message()
    withdrawn(case)
    assert case.reason() == "ImagePullFailed"
    assert not case.decide().plannable, "no GPUs are held meanwhile, and the registry is not hammered"


def test_nobody_is_sent_to_a_registry_for_an_image_of_localhost() -> None:
    case = placed()
    case.wait(
        0, "ErrImagePull", 'failed to pull and unpack image "localhost/muster/exampels:local": connection refused'
    )
    case.settle()
    case.later(61)
    case.settle()
    assert "the node doesn't have it, and nothing can be pulled from localhost" in case.message()
    assert "imagePullSecrets" not in case.message()


def test_an_image_name_that_cannot_be_is_not_waited_for() -> None:
    case = placed()
    case.wait(0, "InvalidImageName", "couldn't parse image")
    case.settle()
    withdrawn(case)
    assert case.reason() == "ImagePullFailed"


def test_a_container_that_cannot_be_made_withdraws_the_gang() -> None:
    case = placed()
    case.wait(1, "CreateContainerConfigError", 'secret "s3" not found')
    case.later(61)
    case.settle()
    assert 'secret "s3" not found' in case.message()
    withdrawn(case)
    assert case.reason() == "CreateContainerConfigError"


@pytest.mark.parametrize("kind", ["secret", "configmap"])
def test_an_api_server_that_kubelet_does_not_reach_withdraws_no_gang_before_ready_timeout(kind: str) -> None:
    """It is back after a minute, and the first pods that the operator sees then are as they were when it went away."""
    case = placed(readyTimeout="5m")
    case.wait(0, "CreateContainerConfigError", f"failed to sync {kind} cache: timed out waiting for the condition")
    case.later(100)
    case.settle()
    assert case.phase == "Starting"
    assert case.reason(ConditionType.PODS_READY) == "CreateContainerConfigError"
    assert "asks again by itself" in case.message(ConditionType.PODS_READY)
    case.later(201)
    case.settle()
    withdrawn(case)


def reason_shown(case: Case) -> str:
    """The column REASON of `kubectl get tj`."""
    return case.job.status.queue.reason if case.job.status.queue is not None else ""


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("ErrImagePull", "ImagePullBackOff", "ErrImagePull"), "ImagePullFailed"),
        (("CreateContainerConfigError", "PodInitializing", "CreateContainerConfigError"), "CreateContainerConfigError"),
    ],
)
def test_one_cause_has_one_word_over_all_tries(words: tuple[str, ...], shown: str) -> None:
    case, seen = placed(), []
    for attempt in range(3):
        if attempt:
            case.place("n0", "n1")
            seen.append(reason_shown(case))
            case.settle()
            seen.append(reason_shown(case))
        for word in words:
            case.wait(0, word, 'secret "s3" not found')
            if word == "PodInitializing":  # what the Events have told meanwhile
                case.heard = Heard(case.worker(0).name, "CreateContainerConfigError", 'secret "s3" not found')
            case.later(5)
            case.settle()
            seen.append(reason_shown(case))
        case.later(61)
        case.settle()
        seen.append(reason_shown(case))
        case.heard = None
        case.vanish()
        case.settle()
        seen.append(reason_shown(case))
        case.later(300)
        case.settle()
    assert set(seen) == {shown}
    assert case.job.status.withdrawals == 3


@pytest.mark.parametrize("mended", ["spec", "elsewhere", "elsewhere, and pulled for long"])
def test_what_kept_the_pods_of_the_last_try_is_told_until_it_is_known_to_be_mended(mended: str) -> None:
    case = placed()
    case.wait(0, "ErrImagePull", "denied")
    case.later(61)
    case.settle()
    case.vanish()
    case.settle()
    if mended == "spec":
        case.edit(image="train:2")
        case.settle()
        assert reason_shown(case) == ""
    case.later(11)
    case.settle()
    case.place("n0", "n1")
    decision = case.settle()
    assert reason_shown(case) == ("" if mended == "spec" else "ImagePullFailed")
    if "long" in mended:
        assert decision.wake_at is not None
        case.later(60)
        case.settle()
        assert (case.phase, reason_shown(case)) == ("Starting", "")
    case.run_pods()
    case.train()
    case.settle()
    assert (case.phase, reason_shown(case)) == ("Running", "")


@pytest.mark.parametrize("mended", [False, True])
def test_the_last_start_is_told_beside_what_the_job_waits_for_now(mended: bool) -> None:
    case = placed()
    case.wait(0, "ErrImagePull", "denied")
    case.later(61)
    case.settle()
    case.vanish()
    case.later(11)
    case.settle()
    word = Word("InsufficientCapacity", f"needs room{last_start(case.job)}")
    case.job = case.job.model_copy(update={"status": waiting_status(case.job, word, case.now)})
    assert case.message() == (
        "needs room; its last start was taken back: pod llama-g1-0-0 on node n0 can't get the image of container "
        "trainer: ErrImagePull: denied; check spec.image and imagePullSecrets"
    )
    if mended:
        case.edit(image="train:2")
        assert last_start(case.job) == ""
    case.place("n0", "n1")
    case.settle()
    assert reason_shown(case) == ("" if mended else "ImagePullFailed")
    case.start_placed()
    assert last_start(case.job) == ""


def test_what_kubelet_has_told_stays_the_word_when_ready_timeout_is_over() -> None:
    case = placed(readyTimeout="5m")
    case.heard = Heard(case.worker(0).name, "FailedMount", "no such volume")
    case.settle()
    case.later(301)
    case.settle()
    assert case.job.status.stop is not None, "it is taken back"
    assert reason_shown(case) == "FailedMount"
    assert "0 of 2 pods were ready after readyTimeout (300 s)" in case.message()


def test_the_only_pod_of_a_gang_is_said_not_to_be_ready() -> None:
    case = Case(trainingjob(workers=1, readyTimeout="5m"))
    case.place("n0")
    case.settle()
    case.later(301)
    case.settle()
    assert case.message().startswith("its pod was not ready after readyTimeout (300 s)")


def test_ready_timeout_covers_what_gives_no_signal() -> None:
    case = placed(readyTimeout="5m")
    case.run_pods(0)
    decision = case.settle()
    assert decision.wake_at is not None
    case.later(301)
    case.settle()
    assert "1 of 2 pods were ready" in case.message()
    withdrawn(case)
    assert case.reason() == "ReadyTimeout"


def test_a_gang_that_trains_is_never_withdrawn() -> None:
    case = Case(trainingjob(readyTimeout="5m"))
    case.start()
    case.later(10_000)
    case.refusal = Refusal(1, "late answer")
    case.settle()
    assert case.phase == "Running"


def test_success_forgets_the_withdrawals() -> None:
    case = placed()
    unschedulable(case, 1)
    case.later(4)
    case.settle()
    case.vanish()
    case.start("n0", "n2")
    assert case.job.status.withdrawals is None
    assert case.job.status.avoided == ()


def test_pods_made_but_not_shown_are_waited_for() -> None:
    from muster.controllers.lifecycle.turn import Made

    case = Case(trainingjob())
    case.settle()
    case.place("n0", "n1")
    case.unshown = (Made("llama-g1-0-0", "u0", 1, 0),)
    case.refusal = Refusal(1, "exceeded quota")
    assert ("llama-g1-0-0", "u0") in case.turn().delete
    case.turn()
    assert case.job.status.placement is not None
    case.unshown = ()
    case.settle()
    assert case.job.status.placement is None


def test_pods_that_cannot_be_made_for_long_are_told_once_and_when_it_passes() -> None:
    case = Case(trainingjob(readyTimeout="10m"))
    case.settle()
    case.place("n0", "n1")
    case.unmade = 'pod llama-g1-1-0: 500 InternalError: failed calling webhook "inject"'
    case.pods.clear()
    decision = case.turn()
    assert decision.wake_at is not None
    assert (decision.wake_at - case.now).total_seconds() == 10
    case.later(11)
    case.turn()
    told = f"pods can't be made, and are tried again: {case.unmade}"
    assert case.message(ConditionType.PODS_READY) == told
    assert case.job.status.queue is not None
    assert (case.job.status.queue.reason, case.job.status.queue.message) == ("PodsStarting", told)
    case.unmade = "pod llama-g1-0-0: in other words"
    writes = case.writes
    case.turn()
    assert case.writes == writes
    case.unmade = ""
    case.settle()
    assert case.message(ConditionType.PODS_READY) == "pods are being made"
    assert case.job.status.queue is None


def test_pods_that_cannot_be_made_in_time_are_told_with_the_withdrawal() -> None:
    case = Case(trainingjob(readyTimeout="10m"))
    case.settle()
    case.place("n0", "n1")
    case.unmade = "no webhook answers"
    case.later(601)
    case.turn()
    assert "pod llama-g1-0-0 does not exist, for it can't be made: no webhook answers" in case.message()


def test_a_gate_that_a_webhook_put_on_a_pod_is_told() -> None:
    case = Case(trainingjob(readyTimeout="10m"))
    case.settle()
    case.place("n0", "n1")
    case.settle()
    case.change("llama-g1-1-0", gates=("kueue.x-k8s.io/admission",))
    case.later(11)
    case.settle()
    told = "pods are not scheduled while a scheduling gate is on them: llama-g1-1-0 has kueue.x-k8s.io/admission; "
    assert case.message(ConditionType.PODS_READY).startswith(told)
    assert case.job.status.queue is not None
    assert case.job.status.queue.message.startswith(told)
    case.change("llama-g1-0-0", ready=True, phase="Running")
    case.later(600)
    case.settle()
    assert "is Pending: it has the scheduling gate kueue.x-k8s.io/admission" in case.message()


def test_a_pod_that_a_webhook_gave_to_a_scheduler_which_says_nothing_is_told() -> None:
    case = Case(trainingjob(readyTimeout="10m"))
    case.settle()
    case.place("n0", "n1")
    case.settle()
    case.change("llama-g1-1-0", scheduler="volcano", bound=False)
    case.later(11)
    case.settle()
    told = (
        "pods wait for another scheduler than kube-scheduler: a webhook has given llama-g1-1-0 the schedulerName "
        "volcano, which has said nothing of it; have the webhook leave the pods out, or see whether that scheduler runs"
    )
    assert case.message(ConditionType.PODS_READY) == told
    assert case.job.status.queue is not None
    assert case.job.status.queue.message == told
    case.change("llama-g1-0-0", ready=True, phase="Running")
    case.later(600)
    case.settle()
    assert "is Pending: a webhook has given it the schedulerName volcano" in case.message()


def test_a_pod_that_another_scheduler_has_bound_is_told_as_any_other() -> None:
    case = Case(trainingjob())
    case.settle()
    case.place("n0", "n1")
    case.settle()
    case.change("llama-g1-1-0", scheduler="yunikorn", bound=False)
    case.later(11)
    case.settle()
    case.change("llama-g1-1-0", bound=True)
    case.settle()
    assert case.message(ConditionType.PODS_READY) == "pods are being made"
    assert case.job.status.queue is None


def test_a_gate_that_is_taken_away_is_no_longer_told() -> None:
    case = Case(trainingjob())
    case.settle()
    case.place("n0", "n1")
    case.settle()
    case.change("llama-g1-1-0", gates=("image-scan",))
    case.later(11)
    case.settle()
    case.change("llama-g1-1-0", gates=())
    case.settle()
    assert case.message(ConditionType.PODS_READY) == "pods are being made"
    assert case.job.status.queue is None
