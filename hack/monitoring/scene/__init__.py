"""Jobs and queues that give every panel something to show: one runs, one makes room, one waits, one fails.

They need 5 GPUs of a kind, and take little of a processor. Pure: documents, as a user would apply them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hack import images

Json = dict[str, Any]

STEADY: Final = "steady"
"""Trains and saves; one of its ranks is slower than the other, and one of its losses isn't a number."""
BORROWER: Final = "borrower"
"""Uses what its neighbour leaves, and is asked to leave when that comes."""
OWNER: Final = "owner"
"""Takes back what is its queue's own."""
FAILING: Final = "failing"
"""Fails, is started again, and fails for good."""
FAILING_TOO: Final = "failing-too"
"""As the one before, later: the first of its queue makes the counter of ended jobs, the second is an increase of it."""
JOBS: Final = (STEADY, BORROWER, OWNER, FAILING, FAILING_TOO)

_SCRIPT: Final = (Path(__file__).parent / "light.py").read_text()
_SLEEP: Final = ("python3", "-c", "import time; time.sleep(86400)")


@dataclass(frozen=True)
class Place:
    """
    Attributes:
        queues: what the queues' names begin with; they are the whole cluster's.
        checkpoint: `spec.checkpoint` of the job that trains.
        pause: seconds that it waits in each step.
    """

    namespace: str
    queues: str
    checkpoint: Json
    pause: float = 0.1

    @property
    def research(self) -> str:
        return f"{self.queues}-research"

    @property
    def product(self) -> str:
        return f"{self.queues}-product"


def queues(place: Place) -> tuple[Json, ...]:
    """Two that lend each other what they don't use; one has a budget."""
    cohort = place.queues
    budget = {"gpuHours": 100, "cost": 50}
    return (
        _queue(place.research, {"cohort": cohort, "quotas": [_quota(3)], "budgets": [budget]}),
        _queue(place.product, {"cohort": cohort, "quotas": [_quota(2)], "weight": 2}),
    )


def before(place: Place) -> tuple[Json, ...]:
    """What runs while there is room: research uses one GPU more than its own three."""
    train = {
        "command": ["python3", "-c", _SCRIPT],
        "args": [str(place.pause)],
        "workers": {"replicas": 2, "gpusPerWorker": 1},
        "parallelism": {"strategy": "ddp"},
        "checkpoint": place.checkpoint,
        "numerics": {"action": "skip"},
        "preemptible": False,  # or it would be asked to leave: it saves, so that it loses less than the borrower
        "restart": {"limit": 3},
    }
    return (
        _job(place, STEADY, place.research, train),
        _job(place, BORROWER, place.research, {"command": [*_SLEEP], "workers": {"replicas": 2, "gpusPerWorker": 1}}),
        failing(place, FAILING),
    )


def then(place: Place) -> tuple[Json, ...]:
    """The neighbour comes and takes its two GPUs, so that the borrower has to wait; another of its jobs fails."""
    return (
        _job(place, OWNER, place.product, {"command": [*_SLEEP], "workers": {"replicas": 2, "gpusPerWorker": 1}}),
        failing(place, FAILING_TOO),
    )


def failing(place: Place, name: str) -> Json:
    """A job that is started again once, and fails for good."""
    fail = {
        "command": ["python3", "-c", "raise SystemExit('the data is not there')"],
        "workers": {"replicas": 1, "gpusPerWorker": 0},
        "restart": {"limit": 1, "backoff": "1s"},
    }
    return _job(place, name, place.product, fail)


def _queue(name: str, spec: Json) -> Json:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingQueue",
        "metadata": {"name": name},
        "spec": spec,
    }


def _quota(gpus: int) -> Json:
    return {"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": str(gpus)}]}


def _job(place: Place, name: str, queue: str, spec: Json) -> Json:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": place.namespace},
        "spec": {"image": images.EXAMPLES, "queue": queue, "terminationGracePeriod": "10s", **spec},
    }
