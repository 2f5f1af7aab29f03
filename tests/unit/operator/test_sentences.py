"""What the planner does not know, and a waiting job is told: what keeps it from nodes with another kind of capacity."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from muster.api.effective import effective_spec
from muster.api.names import QUARANTINE_TAINT
from muster.api.trainingjob_status import AvoidedNode
from muster.cluster.eligibility import filter_of_pod
from muster.cluster.queues import QueueInput
from muster.cluster.snapshot import LevelInput, build
from muster.cluster.views import NodeView, Taint
from muster.controllers import flavours, planning
from muster.controllers.records import Record
from muster.controllers.sentences import Sentences
from muster.controllers.telling import Word
from muster.scheduling.plan import LACKS_NODES, ChangeKind, Waiting, WaitReason
from muster.scheduling.planner import plan

from .test_planning import node, trainingjob

pytestmark = pytest.mark.unit

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
HOSTS = (LevelInput("host", "kubernetes.io/hostname"),)
SPOT = Taint("kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule")


def changes(nodes: list[NodeView], pod: dict[str, Any]) -> tuple[str, ...]:
    """What would help a gang of two workers of eight GPUs that names H100 and no kind of capacity."""
    job = trainingjob(queue="q", workers={"gpuType": "H100"})
    spec = effective_spec(job.spec)
    made = planning.pending_input(
        job,
        spec,
        request={"nvidia.com/gpu": 8, "pods": 1},
        node_filter=filter_of_pod(pod),
        choices=flavours.choose_flavours(spec, flavours.flavour_counts(nodes)),
        priority=0,
        levels=HOSTS,
    )
    shot = build(nodes=nodes, pods=[], jobs=[made], queues=[QueueInput("q")], levels=HOSTS)
    (waiting,) = plan(shot).waiting
    record = Record.of(job)
    record.planned = ((), made)
    sentences = Sentences(shot, {}, nodes, {}, {}, {}, NOW)
    word = Word.of(waiting, sentences.of(record, waiting), sentences.elsewhere(record, waiting))
    assert [each.value for each in word.changes if each.kind is ChangeKind.CAPACITY] == ["spot"]
    return tuple(each.text for each in word.changes)


def cluster(*, taints: tuple[Taint, ...]) -> list[NodeView]:
    spot = [node(f"spot-{number}", **{"muster.dev/capacity": "spot"}) for number in (1, 2)]
    return [node("reserved"), *(replace(each, taints=taints) for each in spot)]


def test_room_on_another_kind_of_capacity_is_told_with_what_keeps_the_job_from_it() -> None:
    fewer = "1 worker instead of 2 would find room now"
    there = "there is room now on H100/spot"
    assert changes(cluster(taints=()), {}) == (fewer, there)
    assert changes(cluster(taints=(SPOT,)), {}) == (
        fewer,
        f"{there}, but it does not tolerate the taints of those whose labels suit: "
        "kubernetes.azure.com/scalesetpriority=spot:NoSchedule",
    )
    tolerates = {"tolerations": [{"key": SPOT.key, "operator": "Exists"}]}
    assert changes(cluster(taints=(SPOT,)), tolerates) == (fewer, there)


def test_who_lacks_nodes_is_told_when_it_may_take_one_again_that_is_not_in_quarantine() -> None:
    shut = replace(node("n1"), taints=(Taint(QUARANTINE_TAINT, "", "NoSchedule"),))
    nodes = [shut, node("n2"), node("n3")]
    away = [AvoidedNode(node=f"n{number}", until=NOW + timedelta(minutes=number)) for number in range(4)]
    job = trainingjob(queue="q", workers={"gpuType": "H100"})
    record = Record.of(job.model_copy(update={"status": job.status.model_copy(update={"avoided": tuple(away)})}))
    sentences = Sentences(build(nodes=nodes, pods=[], jobs=[], queues=[], levels=HOSTS), {}, nodes, {}, {}, {}, NOW)
    for reason in WaitReason:
        waiting = Waiting("u", reason, "needs more", 1)
        word = Word.of(waiting, "", retry_at=sentences.retry_at(record, waiting))
        assert word.told().retry_at == (NOW + timedelta(minutes=2) if reason in LACKS_NODES else None)


def test_nodes_that_would_suit_but_are_in_quarantine_are_named_with_their_end() -> None:
    shut = (Taint(QUARANTINE_TAINT, "", "NoSchedule"),)
    nodes = [
        replace(node("n1"), taints=shut, quarantine_until="2026-03-01T12:00:00Z"),
        replace(node("n2"), taints=shut),  # somebody's own doing
        replace(node("n3", pool="other"), taints=shut, quarantine_until="2026-03-01T12:00:00Z"),
        replace(node("n4"), taints=(*shut, SPOT)),
    ]
    job = trainingjob(queue="q", workers={"gpuType": "H100"})
    away = AvoidedNode(node="n1", reason="ECC", until=NOW + timedelta(minutes=5))
    job = job.model_copy(update={"status": job.status.model_copy(update={"avoided": (away,)})})
    spec = effective_spec(job.spec)
    record = Record.of(job)
    for labels, told in (
        (
            {},
            "; in quarantine, or it would suit: n1 (until 2026-03-01T12:00:00Z), n2 (until somebody lets it out) and ",
        ),
        ({"pool": "other"}, "; in quarantine, or it would suit: n3 (until 2026-03-01T12:00:00Z)"),
        ({"pool": "none"}, ""),
    ):
        made = planning.pending_input(
            job,
            spec,
            request={"nvidia.com/gpu": 8, "pods": 1},
            node_filter=filter_of_pod({"nodeSelector": labels}, avoided={"n1"}),
            choices=flavours.choose_flavours(spec, flavours.flavour_counts(nodes)),
            priority=0,
            levels=HOSTS,
        )
        record.planned = ((), made)
        shot = build(nodes=nodes, pods=[], jobs=[made], queues=[QueueInput("q")], levels=HOSTS)
        said = Sentences(shot, {}, nodes, {}, {}, {}, NOW).of(
            record, Waiting("u", WaitReason.EXCEEDS_CLUSTER, "needs more", 1)
        )
        assert said.startswith("needs more")
        assert told in said
        assert ("quarantine" in said) is bool(told)
        assert "stays away" not in said, "to try n1 at once would be in vain"


def test_a_gang_that_waits_for_its_base_is_told_so_and_not_of_the_kind_that_it_takes_beyond_it() -> None:
    nodes = cluster(taints=())
    sizes = {"gpuType": "H100", "replicas": 3, "min": 2}
    job = trainingjob(queue="q", workers=sizes, capacity={"order": ["spot"], "base": "on-demand"})
    spec, counts = effective_spec(job.spec), flavours.flavour_counts(nodes)
    made = planning.pending_input(
        job,
        spec,
        request={"nvidia.com/gpu": 8, "pods": 1},
        node_filter=filter_of_pod({}),
        choices=flavours.choose_flavours(spec, counts),
        beyond=flavours.choose_of_kind(spec, spec.beyond, counts),
        priority=0,
        levels=HOSTS,
    )
    shot = build(nodes=nodes, pods=[], jobs=[made], queues=[QueueInput("q")], levels=HOSTS)
    (waiting,) = plan(shot).waiting
    record = Record.of(job)
    record.planned = ((), made)
    sentences = Sentences(shot, {}, nodes, {}, {}, {}, NOW)
    assert waiting.elsewhere == "H100/spot"
    assert sentences.elsewhere(record, waiting) is None
    told = "this is what it needs for its base, 2 workers (workers.min) on the kind of nodes of capacity.base"
    assert told in sentences.of(record, waiting)


def test_for_whom_a_job_waits_is_told_once_each_and_by_name() -> None:
    names = {uid: f"research/{uid}" for uid in "abcdefg"}
    sentences = Sentences(build(nodes=[], pods=[], jobs=[], queues=[], levels=HOSTS), names, [], {}, {}, {}, NOW)
    waiting = Waiting("me", WaitReason.QUOTA_EXCEEDED, "", 4, blocker="b", before=("a", "b", "gone"))
    assert [(one.job, one.why) for one in sentences.ahead(waiting)] == [
        ("research/b", "kept"),
        ("research/a", "before"),
    ]
    held = waiting._replace(blocker="", before=(), holders=tuple("cdefg"))
    assert [(one.job, one.why) for one in sentences.ahead(held)] == [(f"research/{uid}", "holds") for uid in "cdef"]
