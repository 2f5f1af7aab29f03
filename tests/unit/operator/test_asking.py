"""Whom an autoscaler is asked to make room for: one request a job, a bound on all, and a back-off that grows."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from muster.api.names import (
    JOB_UID_LABEL,
    REQUEST_ATTEMPT_ANNOTATION,
    REQUEST_KEY_ANNOTATION,
    ConditionType,
    Reason,
)
from muster.cluster.pods import Identity
from muster.cluster.provisioning import Answer, Asking, Request, pod_template, request, request_key
from muster.controllers.asking import Capacity, Wish, decide, delay, lacks_nodes
from muster.scheduling.plan import Waiting, WaitReason, Wanted

from .lifecycle.cases import START, Case, trainingjob

pytestmark = pytest.mark.unit

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)


def wish(uid: str, *keys: str, position: int = 1) -> Wish:
    return Wish(uid, keys or ("k",), (position, uid))


def asked(uid: str, *, key: str = "k", attempt: int = 1, answer: Answer = Answer.NONE, ago: float = 0.0) -> Request:
    since = NOW - timedelta(seconds=ago)
    return Request("ns", f"{uid}-{attempt}", f"uid-{uid}-{attempt}", uid, key, attempt, answer, "told", since, False)


def test_first_in_rank_are_asked_for_up_to_the_bound() -> None:
    decided = decide([wish("c", position=3), wish("a", position=1), wish("b", position=2)], [asked("d")], {"d"}, NOW, 3)
    assert [(ask.wish.uid, ask.attempt) for ask in decided.make] == [("a", 1), ("b", 1)]
    assert not decided.drop


def test_a_request_that_is_answered_keeps_nobody_from_asking() -> None:
    """Its nodes are there, and its job may lack them for long all the same: they are in other racks."""
    decided = decide([wish("a"), wish("b")], [asked("b", answer=Answer.PROVISIONED)], (), NOW, 1)
    assert [ask.wish.uid for ask in decided.make] == ["a"]


@pytest.mark.parametrize("attempt", ["0", "-1", "²", "9" * 5000, "many", ""])
def test_what_somebody_wrote_into_a_requests_annotations_ends_nothing(attempt: str) -> None:
    raw = {
        "metadata": {
            "namespace": "ns",
            "name": "r",
            "uid": "u",
            "creationTimestamp": "2026-03-01T11:00:00Z",
            "labels": {JOB_UID_LABEL: "a"},
            "annotations": {REQUEST_KEY_ANNOTATION: "k", REQUEST_ATTEMPT_ANNOTATION: attempt},
        },
        "status": {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": "2026-03-01T11:00:00Z"}]},
    }
    decided = decide([wish("a")], [Request.from_raw(raw)], (), NOW)
    assert [ask.attempt for ask in decided.make] == [2]


def test_request_goes_with_its_job_or_when_the_job_asks_for_something_else() -> None:
    decided = decide([wish("changed", "new")], [asked("changed", key="old"), asked("started")], (), NOW)
    assert [each.job_uid for each in decided.drop] == ["changed", "started"]
    assert [(ask.key, ask.attempt) for ask in decided.make] == [("new", 1)]
    assert not decided.told


def test_request_stays_while_a_job_may_want_it_again_and_is_never_doubled() -> None:
    decided = decide([wish("a")], [asked("a"), asked("pausing", answer=Answer.PROVISIONED)], {"pausing"}, NOW)
    assert (decided.make, decided.drop) == ((), ())
    assert decided.told["pausing"].answer is Answer.PROVISIONED


def test_failure_is_told_and_asked_again_after_a_delay_that_grows() -> None:
    soon = decide([wish("a")], [asked("a", answer=Answer.FAILED, ago=59)], (), NOW)
    assert (soon.make, soon.drop) == ((), ())
    assert soon.told["a"] == Capacity("a-1", Answer.FAILED, "told", NOW + timedelta(seconds=1))
    again = decide([wish("a")], [asked("a", attempt=2, answer=Answer.FAILED, ago=120)], (), NOW)
    assert [(ask.wish.uid, ask.attempt) for ask in again.make] == [("a", 3)]
    assert [each.attempt for each in again.drop] == [2]
    assert [delay(attempt) for attempt in (1, 2, 3, 7, 100)] == [60, 120, 240, 3600, 3600]


def test_failed_request_without_a_turn_keeps_its_count() -> None:
    failed = asked("a", attempt=4, answer=Answer.FAILED, ago=9999)
    decided = decide([wish("a"), wish("b")], [failed, asked("b")], (), NOW, 1)
    assert (decided.make, decided.drop) == ((), ())


def test_what_a_job_takes_as_well_is_asked_for_at_once_when_the_first_fails_and_the_first_again_after_a_while() -> None:
    def after(key: str, attempt: int, ago: float) -> list[tuple[str, int]]:
        failed = asked("a", key=key, attempt=attempt, answer=Answer.FAILED, ago=ago)
        decided = decide([wish("a", "spot", "on-demand")], [failed], (), NOW)
        assert len(decided.drop) == len(decided.make)
        return [(ask.key, ask.attempt) for ask in decided.make]

    assert after("spot", 1, 0) == [("on-demand", 2)]
    assert after("on-demand", 2, 59) == []
    assert after("on-demand", 2, 60) == [("spot", 3)]
    assert after("on-demand", 4, 119) == []
    assert after("on-demand", 4, 120) == [("spot", 5)]
    runs = decide([wish("a", "spot", "on-demand")], [asked("a", key="on-demand", attempt=2)], (), NOW)
    assert (runs.make, runs.drop) == ((), ()), "one at a time"


@pytest.mark.parametrize(
    ("reason", "with_quota", "expected"),
    [
        (WaitReason.INSUFFICIENT_CAPACITY, True, True),
        (WaitReason.TOPOLOGY_UNSATISFIED, True, True),
        (WaitReason.EXCEEDS_CLUSTER, True, True),
        (WaitReason.EXCEEDS_CLUSTER, False, False),
        (WaitReason.QUOTA_EXCEEDED, False, False),
        (WaitReason.BEHIND_OTHERS, True, False),
        (WaitReason.PREEMPTING, True, False),
    ],
)
def test_nodes_are_asked_for_jobs_that_lack_nothing_else(reason: WaitReason, with_quota: bool, expected: bool) -> None:
    wanted = (Wanted("H100/spot", 1),) if with_quota else ()
    assert lacks_nodes(Waiting("a", reason, "", 1, wanted=wanted)) is expected


def test_objects_read_back_as_what_they_were() -> None:
    job, asking = Identity("ns", "train", "0123456789abcdef"), Asking("some.class", (("a", "1"),))
    key = request_key("template", 4, asking)
    raw = request(job, key, 2, 4, asking)
    raw["metadata"] |= {"uid": "u", "creationTimestamp": "2026-03-01T12:00:00Z"}
    found = Request.from_raw(raw)
    assert (found.job_uid, found.key, found.attempt, found.answer, found.since) == (job.uid, key, 2, Answer.NONE, NOW)
    template = pod_template(job, key, 2, {"metadata": {}, "spec": {}})
    assert raw["spec"]["podSets"] == [{"podTemplateRef": {"name": template["metadata"]["name"]}, "count": 4}]
    assert request_key("template", 5, asking) != key
    raw["status"] = {
        "conditions": [
            {"type": "Provisioned", "status": "True", "reason": "Done", "lastTransitionTime": "2026-03-01T12:05:00Z"},
            {
                "type": "BookingExpired",
                "status": "True",
                "message": "gone",
                "lastTransitionTime": "2026-03-01T12:15:00Z",
            },
        ]
    }
    found = Request.from_raw(raw)
    assert (found.answer, found.message, found.since.minute) == (Answer.FAILED, "BookingExpired: gone", 15)


def test_a_request_names_the_node_group_of_its_flavour_and_the_jobs_own_selector_wins() -> None:
    selectors = {"H100/spot": {"pool": "h100", "spot": "true"}, "H100/on-demand": {"pool": "h100"}}
    job, asking = Identity("ns", "train", "0123456789abcdef"), Asking("some.class", node_selectors=selectors)
    spec = {"nodeSelector": {"pool": "mine"}, "containers": []}
    made = pod_template(job, "k", 1, {"metadata": {}, "spec": spec}, asking.selector("H100/spot"))
    assert made["template"]["spec"] == {"nodeSelector": {"pool": "mine", "spot": "true"}, "containers": []}
    assert spec["nodeSelector"] == {"pool": "mine"}, "what the pods are made from stays as it is"
    assert pod_template(job, "k", 1, {"spec": {}}, asking.selector("B200/spot"))["template"] == {"spec": {}}
    keys = {request_key("template", 4, asking, flavour) for flavour in ("H100/spot", "H100/on-demand", "B200/spot")}
    assert len(keys) == 3, "another kind of capacity is another request"


def test_job_tells_what_became_of_its_request() -> None:
    case = Case(trainingjob())
    case.capacity = Capacity("train-1", Answer.NONE)
    case.settle()
    assert case.is_true(ConditionType.CAPACITY_REQUESTED)
    case.capacity = Capacity("train-1", Answer.FAILED, "OutOfResources: no quota", START)
    case.settle()
    message = case.message(ConditionType.CAPACITY_REQUESTED)
    assert message == "ProvisioningRequest train-1: OutOfResources: no quota; asked again at 12:00:00 UTC"
    writes = case.writes
    case.settle()
    assert case.writes == writes
    case.place("n0", "n1")
    assert case.reason(ConditionType.CAPACITY_REQUESTED) == Reason.NOT_NEEDED.value
