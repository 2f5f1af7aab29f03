"""An admission load (`bench/loads/*.yaml`) as the objects that it stands for: nodes, queues and jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from muster.api.common import API_VERSION
from muster.cluster.quantities import amount
from testbed import NAMESPACE

Object = dict[str, Any]

LABEL: Final = "bench.muster.dev"


@dataclass(frozen=True)
class JobSet:
    """Jobs of one queue that are alike, submitted one every `every` seconds.

    Attributes:
        run: seconds that a job holds its place.
        cpu: of one worker, in millicores.
        mode: required or preferred, of `level`; unconstrained with an empty `level`.
        slice_size: neighbouring workers that must share a domain of `slice_level`; 0 without slices.
    """

    name: str
    count: int
    every: float
    run: float
    priority: int
    workers: int
    cpu: int
    mode: str
    level: str
    slice_size: int
    slice_level: str

    @property
    def size(self) -> str:
        """small, medium or large."""
        return self.name.partition("-")[0]


@dataclass(frozen=True)
class Load:
    """One file.

    Attributes:
        levels: (name, how many in each domain of the level before), widest first; the last are the nodes.
        capacity: of a node, as quantities.
        nominal, borrowing: millicores of one queue.
    """

    levels: tuple[tuple[str, int], ...]
    capacity: dict[str, str]
    cohorts: int
    per_cohort: int
    nominal: int
    borrowing: int
    sets: tuple[JobSet, ...]

    @property
    def queues(self) -> list[str]:
        return [queue_name(at, cohort) for cohort in range(self.cohorts) for at in range(self.per_cohort)]

    @property
    def jobs(self) -> int:
        return len(self.queues) * sum(one.count for one in self.sets)

    @property
    def floor(self) -> float:
        """Seconds below which no scheduler can end: what one queue's jobs use, over what it may always use."""
        return sum(one.count * one.workers * one.cpu * one.run for one in self.sets) / self.nominal


@dataclass(frozen=True)
class Submission:
    """One job: `at` is in seconds since the start."""

    at: float
    name: str
    queue: str
    kind: JobSet


def read(path: Path, scale: float = 1.0) -> Load:
    """The load, with `scale` of its jobs in each set (rounded up). Raises KeyError or ValueError for a bad file."""
    raw = yaml.safe_load(path.read_text())
    queues = raw["queues"]
    return Load(
        levels=tuple((level["name"], level["count"]) for level in raw["nodes"]["levels"]),
        capacity={name: str(value) for name, value in raw["nodes"]["capacity"].items()},
        cohorts=queues["cohorts"],
        per_cohort=queues["perCohort"],
        nominal=amount("cpu", str(queues["nominal"]["cpu"])),
        borrowing=amount("cpu", str(queues["borrowingLimit"]["cpu"])),
        sets=tuple(_set(item, scale) for item in raw["jobs"]),
    )


def _set(raw: Object, scale: float) -> JobSet:
    return JobSet(
        name=raw["class"],
        count=math.ceil(raw["count"] * scale),
        every=raw["everyMs"] / 1e3,
        run=raw["runtimeMs"] / 1e3,
        priority=raw["priority"],
        workers=raw["workers"],
        cpu=amount("cpu", str(raw["cpu"])),
        mode=raw.get("topology", "unconstrained"),
        level=raw.get("level", ""),
        slice_size=raw.get("sliceSize", 0),
        slice_level=raw.get("sliceLevel", ""),
    )


def queue_name(index: int, cohort: int) -> str:
    return f"queue-{cohort}-{index}"


def priority_name(value: int) -> str:
    return f"bench-{value}"


def level_label(level: str) -> str:
    """Of the narrowest level too: its label has the node's own name."""
    return f"{LABEL}/{level}"


# -- objects -------------------------------------------------------------------------------------------------------


def nodes(load: Load, labels_of_all: Mapping[str, str]) -> Iterator[Object]:
    """Node objects with `labels_of_all` besides their own; ready, until somebody says otherwise."""
    paths: list[tuple[int, ...]] = [()]
    for _, count in load.levels:
        paths = [(*path, index) for path in paths for index in range(count)]
    for path in paths:
        labels = {
            level_label(name): "-".join([name, *map(str, path[: depth + 1])])
            for depth, (name, _) in enumerate(load.levels)
        }
        name = labels[level_label(load.levels[-1][0])]
        amounts = {**load.capacity, "pods": "110"}
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {**labels, **labels_of_all, "kubernetes.io/hostname": name}},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "Bench", "message": "simulated"}],
            },
        }


def topology(load: Load) -> Object:
    levels = [{"name": name, "label": level_label(name)} for name, _ in load.levels]
    return {
        "apiVersion": API_VERSION,
        "kind": "Topology",
        "metadata": {"name": "default"},
        "spec": {"levels": levels},
    }


def queue_objects(load: Load) -> Iterator[Object]:
    for cohort in range(load.cohorts):
        for index in range(load.per_cohort):
            cpu = {"name": "cpu", "nominal": f"{load.nominal}m", "borrowingLimit": f"{load.borrowing}m"}
            yield {
                "apiVersion": API_VERSION,
                "kind": "TrainingQueue",
                "metadata": {"name": queue_name(index, cohort)},
                "spec": {"cohort": f"cohort-{cohort}", "quotas": [{"resources": [cpu]}]},
            }


def priority_classes(load: Load) -> Iterator[Object]:
    for value in sorted({one.priority for one in load.sets}):
        yield {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": priority_name(value)},
            "value": value,
            "preemptionPolicy": "Never",
        }


def submissions(load: Load) -> list[Submission]:
    """Every job, in the order of its time."""
    found = [
        Submission(index * one.every, f"{queue}-{one.name}-{index}", queue, one)
        for queue in load.queues
        for one in load.sets
        for index in range(one.count)
    ]
    return sorted(found, key=lambda one: (one.at, one.name))


def job(submission: Submission, annotations: Mapping[str, str]) -> Object:
    """The TrainingJob; `annotations` are for its pods."""
    kind = submission.kind
    made: Object = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "metadata": {
            "name": submission.name,
            "namespace": NAMESPACE,
            "labels": {f"{LABEL}/set": kind.name},
        },
        "spec": {
            "queue": submission.queue,
            "image": "registry.example/bench:1",
            "command": ["python", "train.py"],
            "workers": {"replicas": kind.workers, "resources": {"requests": {"cpu": f"{kind.cpu}m"}}},
            "topology": _topology(kind),
            "priorityClassName": priority_name(kind.priority),
        },
    }
    if annotations:
        made["spec"]["podTemplate"] = {"metadata": {"annotations": dict(annotations)}}
    return made


def _topology(kind: JobSet) -> Object:
    if kind.level:
        return {"mode": kind.mode, "level": kind.level}
    if kind.slice_size < 2:  # a slice of one worker is always whole
        return {"mode": "unconstrained"}
    return {"mode": "unconstrained", "slices": [{"workers": kind.slice_size, "level": kind.slice_level}]}
