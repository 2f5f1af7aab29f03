"""An operator's state with many jobs that all hold GPUs, without a cluster: for the bench and the tests of metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final

from muster.api.common import format_time
from muster.api.names import Phase
from muster.api.placement import NodeWorkers, Placement
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import TrainingJobStatus
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.jobs import JobInput
from muster.cluster.snapshot import LevelInput, build
from muster.cluster.views import NodeView
from muster.controllers.books import Tally
from muster.controllers.cache import Cache
from muster.controllers.observing import Observing
from muster.controllers.queues import queue_inputs
from muster.controllers.records import Record
from muster.telemetry.metrics import Metrics

GPUS: Final = "nvidia.com/gpu"
PER_NODE: Final = 8
FLAVOUR: Final = "H100/on-demand"


def state(
    metrics: Metrics, now: datetime, *, jobs: int, queues: int, waiting: int = 0, strangers: int = 0
) -> Callable[[], None]:
    """What to call before each scrape: it looks at so many jobs of one GPU each, and at others that wait; `strangers`
    wait, too, each for a queue and a priority that nobody has made."""
    nodes = [_node(number) for number in range(-(-jobs // PER_NODE))]
    cache = _cache(nodes)
    for number in range(queues):
        cache.queues[_queue(number)] = _trainingqueue(number, 2 * jobs // queues)
    records = _records(now, jobs, queues, waiting)
    records += [_stranger(number, now) for number in range(strangers)]
    for record in records:
        record.price = 2.5
    inputs = [_input(number, jobs, queues) for number in range(queues)]
    found, _ = queue_inputs(cache.queues.values(), now)
    levels = [LevelInput("rack", "muster.dev/rack"), LevelInput("host", "kubernetes.io/hostname")]
    snapshot = build(nodes=nodes, pods=[], jobs=inputs, queues=found, levels=levels, now=now.timestamp())
    loop: Any = SimpleNamespace(
        records={record.uid: record for record in records},
        ended={},
        tally=Tally.of(snapshot, {}),
        last_tick=time.monotonic(),
        turn_errors=0,
    )
    observing = Observing(metrics, {FLAVOUR: 2.5})
    for record in records[:jobs]:
        observing.wrote(record, TrainingJobStatus())
    return lambda: observing.look(loop, cache)


def _cache(nodes: list[NodeView]) -> Cache:
    none: Any = SimpleNamespace(items={})
    found: Any = SimpleNamespace(items={node.name: node for node in nodes})
    classes: Any = SimpleNamespace(items={name: SimpleNamespace(name=name, value=1) for name in ("high", "low")})
    return Cache(pods=none, nodes=found, namespaces=none, priority_classes=classes)


def _queue(number: int) -> str:
    return f"team-{number:04d}"


def _trainingqueue(number: int, nominal: int) -> TrainingQueue:
    quota = {"gpuType": "H100", "resources": [{"name": GPUS, "nominal": nominal}]}
    spec = {"quotas": [quota], "cohort": "all"}
    return TrainingQueue.from_raw({"metadata": {"name": _queue(number), "uid": f"q{number}"}, "spec": spec})


def _node(number: int) -> NodeView:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "kubernetes.io/hostname": f"node-{number}",
        "muster.dev/rack": f"rack-{number // 32}",
    }
    allocatable = {GPUS: str(PER_NODE), "cpu": "64", "memory": "512Gi", "pods": "110"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    return NodeView.from_raw({"metadata": {"name": f"node-{number}", "labels": labels}, "status": status})


def _records(now: datetime, jobs: int, queues: int, waiting: int) -> list[Record]:
    """Copies of one job in each queue, for to read each of ten thousand takes long."""
    first = [_job(number, now) for number in range(queues)]
    records = []
    for number in range(jobs + waiting):
        pattern = first[number % queues]
        metadata = {"name": f"llama-8b-{number:05d}", "uid": f"uid-{number}"}
        status: TrainingJobStatus = TrainingJobStatus(phase=Phase.QUEUED)
        if number < jobs:
            nodes = (NodeWorkers(node=f"node-{number // PER_NODE}", indexes="0"),)
            placement = Placement(generation=1, workers=1, nodes=nodes, placed_at=now)
            status = TrainingJobStatus(phase=Phase.RUNNING, placement=placement, placements=1)
        made = {"metadata": pattern.metadata.model_copy(update=metadata), "status": status}
        records.append(Record.of(pattern.model_copy(update=made)))
    return records


def _stranger(number: int, now: datetime) -> Record:
    job = _job(number, now)
    metadata = job.metadata.model_copy(update={"name": f"stranger-{number}", "uid": f"stranger-{number}"})
    spec = job.spec.model_copy(update={"queue": f"none-{number}", "priority_class_name": f"none-{number}"})
    return Record.of(job.model_copy(update={"metadata": metadata, "spec": spec}))


def _job(number: int, now: datetime) -> TrainingJob:
    spec = {
        "queue": _queue(number),
        "image": "train:1",
        "command": ["python", "train.py"],
        "workers": {"replicas": 1, "gpusPerWorker": 1, "gpuType": "H100"},
        "priorityClassName": "high" if number % 3 else "low",
    }
    created = format_time(now - timedelta(hours=1))
    metadata = {"name": "job", "namespace": _queue(number), "uid": "uid", "creationTimestamp": created}
    return TrainingJob.from_raw({"metadata": metadata, "spec": spec})


def _input(number: int, jobs: int, queues: int) -> JobInput:
    """All that the queue's jobs hold, as one gang."""
    nodes = tuple(f"node-{job // PER_NODE}" for job in range(number, jobs, queues))
    return JobInput(
        uid=f"uid-{number}",
        queue=_queue(number),
        workers=len(nodes),
        request={GPUS: 1, "cpu": 1000, "pods": 1},
        flavour=FLAVOUR,
        placed=nodes,
        holding=True,
    )
