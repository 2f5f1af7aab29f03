"""What is counted of status writes, and how queues and the fleet are shown."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import TrainingJobStatus
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.eligibility import NodeFilter
from muster.cluster.jobs import PLAIN_TERMS, AlternativeInput, JobInput, TermsInput
from muster.cluster.queues import QueueInput, QuotaInput
from muster.cluster.snapshot import LevelInput, build
from muster.cluster.views import NodeView
from muster.controllers import standing
from muster.controllers.books import Tally
from muster.controllers.cache import Cache
from muster.controllers.observing import Observing, _waiting
from muster.controllers.records import Record
from muster.scheduling.snapshot import NONE
from muster.telemetry import metrics_declared as declared
from muster.telemetry.exposition import NEW_SECONDS
from muster.telemetry.metrics import Metrics
from muster_protocol.metrics import Metric

from .loops import Items

pytestmark = pytest.mark.unit

GPU = "nvidia.com/gpu"
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
PLACED = {"generation": 1, "workers": 1, "nodes": [{"node": "n", "indexes": "0"}], "placedAt": "2026-03-01T12:00:00Z"}
STOP = {"reason": "Reclaimed", "requestedAt": "2026-03-01T12:00:00Z", "lost": 480}


def counted(before: dict[str, Any], after: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By name of a metric: its values, by those of its labels."""
    later = count(start=0.0, step=NEW_SECONDS)
    metrics = Metrics(lambda: next(later))
    metadata = {"name": "job", "namespace": "ns", "uid": "1", "creationTimestamp": "2026-03-01T11:50:00Z"}
    spec = {"queue": "q", "image": "i", "command": ["x"], "workers": {"replicas": 1}, "priorityClassName": "high"}
    job = TrainingJob.from_raw({"metadata": metadata, "spec": spec, "status": after})
    Observing(metrics, {}).wrote(Record.of(job), TrainingJobStatus.model_validate(before))
    found: dict[str, dict[str, float]] = {}
    metrics.text()  # what is new stands at 0 first
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            if sample.labels and "le" not in sample.labels:
                labels = ",".join(sample.labels.values())
                found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_a_placement_is_an_admission_and_ends_a_wait() -> None:
    assert counted({}, {"placements": 1, "placement": PLACED}) == {
        "muster_admissions_total": {"q": 1},
        "muster_wait_seconds_count": {"q": 1},
        "muster_wait_seconds_sum": {"q": 600},
        "muster_priority_wait_seconds_count": {"high": 1},
        "muster_priority_wait_seconds_sum": {"high": 600},
    }


def test_a_later_wait_begins_where_the_last_placement_ended() -> None:
    before = {"placements": 1, "goodput": {"until": "2026-03-01T11:59:00Z"}}
    found = counted(before, before | {"placements": 2, "placement": PLACED | {"generation": 2}})
    assert found["muster_wait_seconds_sum"] == {"q": 60}


def test_what_is_written_again_is_not_counted_again() -> None:
    status = {"placements": 1, "placement": PLACED, "restarts": 2, "stop": STOP}
    assert counted(status, status) == {}


def test_a_stop_for_another_costs_what_it_says() -> None:
    assert counted({"placement": PLACED}, {"placement": PLACED, "stop": STOP}) == {
        "muster_preemptions_total": {"q,Reclaimed": 1},
        "muster_preemption_lost_gpu_seconds_total": {"q,Reclaimed": 480},
    }


def test_a_restart_is_no_preemption() -> None:
    after = {
        "placement": PLACED,
        "stop": STOP | {"reason": "Restarting", "lost": 0},
        "restarts": 1,
        "restartsInPlace": 2,
        "recentFailures": [{"at": "2026-03-01T12:00:00Z", "cause": "hang"}],
    }
    assert counted({"placement": PLACED}, after) == {"muster_restarts_total": {"q,gang,hang": 1, "q,in-place,hang": 2}}


@pytest.mark.parametrize("outcome", ["Succeeded", "Failed"])
def test_an_end_is_counted_by_how_it_ended(outcome: str) -> None:
    found = counted({"phase": "Running"}, {"phase": outcome, "finishedAt": "2026-03-01T12:00:00Z"})
    assert found == {"muster_jobs_finished_total": {f"q,{outcome}": 1}}


@pytest.mark.parametrize(
    ("reason", "oldest"),
    [("InsufficientCapacity", 600), ("QuotaExceeded", 600), ("QueueClosed", 0), ("WindowClosed", 0), ("Backoff", 0)],
)
def test_a_wait_that_somebody_meant_pages_nobody(reason: str, oldest: float) -> None:
    metadata = {"name": "job", "namespace": "ns", "uid": "1", "creationTimestamp": "2026-03-01T11:50:00Z"}
    spec = {"queue": "q", "image": "i", "command": ["x"], "workers": {"replicas": 1}}
    status = {"phase": "Queued", "queue": {"reason": reason, "message": "why"}}
    cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
    cache.on_queue("q", TrainingQueue.from_raw({"metadata": {"name": "q"}, "spec": {}}))
    record = Record.of(TrainingJob.from_raw({"metadata": metadata, "spec": spec, "status": status}))
    shown = _waiting([record], cache, {"1": "q"}, NOW)
    assert shown[declared.OLDEST] == shown[declared.OWED] == {("q",): oldest}
    assert _waiting([record], cache, {}, NOW)[declared.OWED] == {("q",): 0}
    assert shown[declared.WAITING_WHY] == {("q", reason): 1}


@pytest.mark.parametrize(("why", "oldest"), [("Held", 0), ("ParentNotFound", 600), ("InvalidSpec", 600)])
def test_a_queue_that_is_closed_by_mistake_is_told(why: str, oldest: float) -> None:
    metadata = {"name": "job", "namespace": "ns", "uid": "1", "creationTimestamp": "2026-03-01T11:50:00Z"}
    spec = {"queue": "q", "image": "i", "command": ["x"], "workers": {"replicas": 1}}
    status = {"phase": "Queued", "queue": {"reason": "QueueClosed", "message": "why"}}
    ready = {"type": "Ready", "status": "False", "reason": why, "lastTransitionTime": "2026-03-01T11:50:00Z"}
    cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
    queue = {"metadata": {"name": "q"}, "spec": {}, "status": {"conditions": [ready]}}
    cache.on_queue("q", TrainingQueue.from_raw(queue))
    record = Record.of(TrainingJob.from_raw({"metadata": metadata, "spec": spec, "status": status}))
    assert _waiting([record], cache, {}, NOW)[declared.OLDEST] == {("q",): oldest}


# -- whose quota is unused ---------------------------------------------------------------------------------------------


def owed(*waiting: JobInput) -> dict[str, str]:
    """Queue `team` has 16 H100, no cores beside them, and 8 A100; `runs`, in `project` below it, holds 12 H100 and
    borrows cores."""
    quotas = (
        QuotaInput("H100/on-demand", GPU, 16),
        QuotaInput("H100/on-demand", "cpu", 0),
        QuotaInput("A100/on-demand", GPU, 8),
        QuotaInput("A100/on-demand", "cpu", 0),
    )
    queues = [QueueInput("team", quotas=quotas), QueueInput("project", parent="team"), QueueInput("free")]
    runs = JobInput(
        "runs", "project", 2, {GPU: 6, "cpu": 4, "pods": 1}, flavour="H100/on-demand", placed=("a", "b"), holding=True
    )
    levels = [LevelInput("host", "kubernetes.io/hostname")]
    nodes = [node("a", "r1"), node("b", "r1")]
    built = build(nodes=nodes, pods=[], jobs=[runs, *waiting], queues=queues, levels=levels, now=NOW.timestamp())
    return standing.owed(Tally.of(built, {}))


def wants(uid: str, gpus: int, flavour: str = "H100/on-demand", queue: str = "team", **more: Any) -> JobInput:
    return JobInput(uid, queue, workers=gpus, request={GPU: 1, "pods": 1}, flavour=flavour, **more)


def terms(**those: Any) -> TermsInput:
    return replace(PLAIN_TERMS, **those)


def test_unused_quota_is_owed_to_those_alone_whom_it_would_hold_whole_and_of_their_kind() -> None:
    assert owed(wants("a", 4), wants("b", 5), wants("c", 8, "A100/on-demand"), wants("d", 9, "A100/on-demand")) == {
        "a": "team",
        "c": "team",
    }


def test_quota_of_the_queue_above_is_owed_to_those_below_it() -> None:
    assert owed(wants("a", 4, queue="project"), wants("b", 5, queue="project"), wants("c", 1, queue="free")) == {
        "a": "team"
    }


def test_another_kind_that_a_job_takes_counts_and_so_do_its_spares_and_the_size_that_it_may_start_with() -> None:
    assert owed(wants("a", 8, terms=terms(alternatives=(AlternativeInput(NodeFilter(), "A100/on-demand"),)))) == {
        "a": "team"
    }
    assert owed(wants("a", 3, terms=terms(spares=1)), wants("b", 4, terms=terms(spares=1))) == {"a": "team"}
    assert owed(wants("a", 8, sizes=(4, 8, 1), partial=True), wants("b", 8, sizes=(4, 8, 1))) == {"a": "team"}


# -- who lends ---------------------------------------------------------------------------------------------------------


def lent(parents: list[int], nominal: list[int], held: list[int]) -> list[float]:
    """With one flavour. `nominal` and `held` are each queue's own."""
    above = np.array(parents, dtype=np.int32)
    sums = [np.array(values, dtype=np.int64)[:, None] for values in (held, nominal)]
    for row in reversed(range(len(parents))):  # parents come first
        if above[row] != NONE:
            for values in sums:
                values[above[row]] += values[row]
    found: list[float] = standing.lent_out(sums[0], sums[1], above)[:, 0].tolist()
    return found


def test_what_one_borrows_others_have_lent_by_what_they_leave() -> None:
    assert lent([NONE, 0, 0, 0], [0, 10, 10, 20], [0, 16, 10, 8]) == [0, 0, 0, 6]
    assert lent([NONE, 0, 0, 0], [0, 10, 10, 20], [0, 16, 6, 12]) == [0, 0, 2, 4]


def test_nobody_lends_while_nobody_borrows() -> None:
    assert lent([NONE, 0, 0], [0, 10, 10], [0, 10, 2]) == [0, 0, 0]


def test_a_parents_own_quota_lends_too() -> None:
    assert lent([NONE, 0, 0], [8, 10, 10], [0, 18, 2]) == [0, 0, 4]


def test_a_branch_lends_outside_what_its_queues_leave() -> None:
    # 0 over 1 and 2; 2 over 3 and 4. Queue 1 borrows 6, of what 3 and 4 leave (4 and 8).
    assert lent([NONE, 0, 0, 2, 2], [0, 10, 0, 10, 10], [0, 16, 0, 6, 2]) == [0, 0, 6, 2, 4]


# -- the fleet ---------------------------------------------------------------------------------------------------------


def node(name: str, rack: str, *, ready: bool = True) -> NodeView:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "kubernetes.io/hostname": name,
        "muster.dev/rack": rack,
    }
    conditions = [{"type": "Ready", "status": str(ready)}]
    allocatable = {"nvidia.com/gpu": "8", "cpu": "64", "pods": "110"}
    status = {"allocatable": allocatable, "conditions": conditions}
    return NodeView.from_raw({"metadata": {"name": name, "labels": labels}, "status": status})


def test_free_room_is_shown_with_its_pieces() -> None:
    request = {"nvidia.com/gpu": 6, "pods": 1}
    job = JobInput(
        "j", "q", workers=1, request=request, flavour="H100/on-demand", placed=("b",), holding=True
    )  # leaves 2 of b's GPUs
    nodes = [node("a", "r1"), node("b", "r1"), node("c", "r2"), node("d", "r3", ready=False)]
    levels = [LevelInput("rack", "muster.dev/rack"), LevelInput("host", "kubernetes.io/hostname")]
    shown = standing.fleet(build(nodes=nodes, pods=[], jobs=[job], queues=[], levels=levels, now=NOW.timestamp()))

    def value(metric: Metric, *level: str) -> float:
        return shown[metric][(*level, "H100", "on-demand")]

    assert (value(declared.FLEET), value(declared.FREE), value(declared.UNUSABLE)) == (32, 18, 8)
    assert (value(declared.LARGEST, "rack"), value(declared.LARGEST, "host")) == (10, 8)
    assert value(declared.FRAGMENTED, "host") == pytest.approx(2 / 18)
    assert value(declared.FRAGMENTED, "rack") == pytest.approx(10 / 18)


def test_a_fleet_without_gpus_has_no_series() -> None:
    snapshot = build(nodes=[], pods=[], jobs=[], queues=[], levels=[], now=(NOW + timedelta()).timestamp())
    assert not any(standing.fleet(snapshot).values())
