"""The jobs of the rows, as TrainingJobs. Pure."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path

from hack import images
from hack.chaos import clock
from hack.demo import install
from hack.demo.kube import Json

EVERY = 10
"""Steps between two checkpoints of a job that meets a fault."""
WORKERS = 2
ROOM = "2Gi"
"""Memory that each of them requests, by which there is room for the memory tier."""
GROWS_AFTER_S = 20
"""So long a gang keeps a size, by the chart's `moves.settleAfter`, before it grows; elsewhere it is ten minutes."""
SCRIPT = Path(__file__).with_name("train.py")

DISK = "/dev/shm"
"""Where the launcher has its run folder."""
CLOCK = "/tmp/clock"
"""In a pod: by how much its clock is off, in seconds with a sign; nothing where the file is missing."""
SET_BY_CLOCK = [
    {"name": "LD_PRELOAD", "value": f"/journal/{clock.LIBRARY}"},
    {"name": "CHAOS_CLOCK", "value": CLOCK},
]
"""The environment of a container whose clock CLOCK sets."""
_APART: Json = {"spec": {"containers": [{"name": "trainer", "ports": [{"containerPort": 7470, "hostPort": 7470}]}]}}
"""Each node has that port once, so the workers lie on as many nodes."""


@dataclass(frozen=True)
class Recipe:
    """A job: how many steps of how many seconds, and what differs from the others' specification.

    Attributes:
        pace: seconds that a step waits besides its work of a few milliseconds.
        every: steps between two checkpoints.
        ballast: MiB more in a checkpoint.
        apart: each worker on a node of its own.
        quota: the job has a queue to itself, with room for its workers and no more.
        disk: size of the file system that the launcher and the ranks write to, as a quantity; None: as it is.
        clock: the pods' clock of the day can be set, by the file CLOCK; it leaves the monotonic one alone.
        spec: fields of the TrainingJob's spec that are replaced.
    """

    steps: int = 200
    pace: float = 0.05
    every: int = EVERY
    ballast: int = 0
    apart: bool = False
    quota: bool = False
    disk: str | None = None
    clock: bool = False
    spec: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a job goes.

    Attributes:
        uri, endpoint: of its checkpoints.
        folder: on this machine; its pods see it at /journal, with the script in it.
        queue: the one that a recipe with `quota` asks for.
    """

    namespace: str
    name: str
    uri: str
    endpoint: str
    folder: Path
    queue: str


def training(recipe: Recipe, place: Place) -> Json:
    """The job that meets the fault."""
    spec: Json = {
        "command": ["python3", f"/journal/{SCRIPT.name}"],
        "args": [f"--steps={recipe.steps}", f"--pace={recipe.pace}", f"--ballast={recipe.ballast}"],
        "workers": {"replicas": WORKERS, "gpusPerWorker": 1, "resources": {"requests": {"memory": ROOM}}},
        "parallelism": {"strategy": "ddp"},
        "checkpoint": {
            "uri": place.uri,
            "secretRef": {"name": install.S3_SECRET},
            "endpoint": place.endpoint,
            "everySteps": recipe.every,
        },
        "volumes": [{"name": "journal", "hostPath": {"path": str(place.folder), "type": "Directory"}}],
        "volumeMounts": [{"name": "journal", "mountPath": "/journal"}],
    }
    if recipe.disk is not None:
        spec["volumes"].append({"name": "disk", "emptyDir": {"medium": "Memory", "sizeLimit": recipe.disk}})
        spec["volumeMounts"].append({"name": "disk", "mountPath": DISK})
    if recipe.clock:
        spec["env"] = SET_BY_CLOCK
    if recipe.apart:
        spec["podTemplate"] = copy.deepcopy(_APART)
    if recipe.quota:
        spec["queue"] = place.queue
    return _job(place.namespace, place.name, {**spec, **copy.deepcopy(recipe.spec)})


def queue(name: str) -> tuple[Json, Json]:
    """A queue with room for one job, and a PriorityClass of the same name that comes first in it."""
    quota = {"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": str(WORKERS)}]}
    return (
        {
            "apiVersion": "muster.dev/v1alpha1",
            "kind": "TrainingQueue",
            "metadata": {"name": name},
            "spec": {"quotas": [quota]},
        },
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000},
    )


def urgent(namespace: str, name: str, queue_name: str, seconds: float, workers: int) -> Json:
    """A job that comes first in a queue of `queue`, and needs room for so many seconds."""
    spec: Json = {
        "command": ["python3", "-c", f"import time; time.sleep({seconds})"],
        "workers": {"replicas": workers, "gpusPerWorker": 1},
        "queue": queue_name,
        "priorityClassName": queue_name,
    }
    return _job(namespace, name, spec)


def _job(namespace: str, name: str, spec: Json) -> Json:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"image": images.EXAMPLES, **spec},
    }
