"""What the planner does not know, and a waiting job is told: what keeps it from nodes with another kind of capacity."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from muster.api.effective import effective_spec
from muster.cluster.eligibility import filter_of_pod
from muster.cluster.queues import QueueInput
from muster.cluster.snapshot import LevelInput, build
from muster.cluster.views import NodeView, Taint
from muster.controllers import planning
from muster.controllers.records import Record
from muster.controllers.sentences import Sentences
from muster.controllers.telling import Word
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
        choices=planning.choose_flavours(spec, planning.flavour_counts(nodes)),
        priority=0,
        levels=HOSTS,
    )
    shot = build(nodes=nodes, pods=[], jobs=[made], queues=[QueueInput("q")], levels=HOSTS)
    (waiting,) = plan(shot).waiting
    record = Record.of(job)
    record.planned = ((), made)
    sentences = Sentences(shot, {}, nodes, {}, {}, {}, NOW)
    return Word.of(waiting, sentences.of(record, waiting), sentences.elsewhere(record, waiting)).changes


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
