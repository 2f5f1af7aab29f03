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
"""Trains and saves; one of its ranks is slower than the other."""
BORROWER: Final = "borrower"
"""Uses what its neighbour leaves, and is asked to leave when that comes."""
OWNER: Final = "owner"
"""Takes back what is its queue's own."""
FAILING: Final = "failing"
"""Fails, is started again, and fails for good."""
JOBS: Final = (STEADY, BORROWER, OWNER, FAILING)

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
        "preemptible": False,  # or it would be asked to leave: it saves, so that it loses less than the borrower
        "restart": {"limit": 3},
    }
    fail = {
        "command": ["python3", "-c", "raise SystemExit('the data is not there')"],
        "workers": {"replicas": 1, "gpusPerWorker": 0},
        "restart": {"limit": 1, "backoff": "1s"},
    }
    return (
        _job(place, STEADY, place.research, train),
        _job(place, BORROWER, place.research, {"command": [*_SLEEP], "workers": {"replicas": 2, "gpusPerWorker": 1}}),
        _job(place, FAILING, place.product, fail),
    )


def then(place: Place) -> tuple[Json, ...]:
    """The neighbour comes and takes its two GPUs, so that the borrower has to wait."""
    return (_job(place, OWNER, place.product, {"command": [*_SLEEP], "workers": {"replicas": 2, "gpusPerWorker": 1}}),)


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
