"""Small clusters and traces for the simulator's tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from muster.scheduling.plan import Admission, Plan
from muster.scheduling.snapshot import FOREVER, NONE
from muster.simulate.cells import CAPACITIES, Form
from muster.simulate.cluster import Cluster, ClusterFile, build
from muster.simulate.trace import Trace, in_order
from muster.simulate.workload import Workload, assemble
from muster.simulate.world import World

CALM: dict[str, Any] = {"failures": 0, "reclaims": 0}
"""No faults."""


def cluster(nodes: int = 2, **more: Any) -> Cluster:
    """Nodes of 8 GPUs without faults, unless `more` says otherwise."""
    return build(ClusterFile.model_validate({"nodes": [{"count": nodes}], "faults": CALM, **more}))


def trace(*jobs: dict[str, Any]) -> Trace:
    """Each job by submit, gpus, duration and more."""
    count = len(jobs)

    def column(name: str, missing: float) -> list[Any]:
        return [job.get(name, missing) for job in jobs]

    kinds = [("", job.get("capacity", ""), job.get("topology", "")) for job in jobs]
    windows = tuple(dict.fromkeys(job["window"] for job in jobs if "window" in job))
    forms = [Form(tuple(job.get("slices", ())), job.get("balanced", "")) for job in jobs]
    sizes = [
        [job.get("min", job.get("gpus", 1)), job.get("max", job.get("gpus", 1)), job.get("step", 0)] for job in jobs
    ]
    return in_order(
        Trace(
            submit=np.array(column("submit", 0.0)),
            duration=np.array(column("duration", 100.0)),
            limit=np.array(column("limit", FOREVER)),
            gpus=np.array(column("gpus", 1), dtype=np.int32),
            priority=np.array(column("priority", 0), dtype=np.int32),
            preemptible=np.array(column("preemptible", 1), dtype=np.bool_),
            queue=np.zeros(count, dtype=np.int32),
            user=np.array(column("user", 0), dtype=np.int32),
            kind=np.array([list(dict.fromkeys(kinds)).index(kind) for kind in kinds], dtype=np.int32),
            queues=("research",),
            users=("ann", "bob"),
            kinds=tuple(dict.fromkeys(kinds)),
            base=np.array([CAPACITIES.index(job["base"]) if "base" in job else NONE for job in jobs], dtype=np.int32)
            if any("base" in job for job in jobs)
            else None,
            spares=np.array(column("spares", 0), dtype=np.int32) if any(column("spares", 0)) else None,
            sizes=np.array(sizes, dtype=np.int32) if any(least < most for least, most, _ in sizes) else None,
            deadline=np.array(column("deadline", FOREVER)) if any("deadline" in job for job in jobs) else None,
            window=np.array([windows.index(job["window"]) if "window" in job else NONE for job in jobs], dtype=np.int32)
            if windows
            else None,
            windows=windows,
            form=np.array([list(dict.fromkeys(forms)).index(form) for form in forms], dtype=np.int32)
            if any(form != Form() for form in forms)
            else None,
            forms=tuple(dict.fromkeys(forms)),
        )
    )


def workload(*jobs: dict[str, Any], nodes: int = 2, **more: Any) -> Workload:
    return assemble(cluster(nodes, **more), trace(*jobs))


class Scripted:
    """Gives one plan after the other, then empty ones."""

    name = "scripted"
    replaces = False

    def __init__(self, *plans: Plan) -> None:
        self._plans = list(plans)
        self.moments: list[float] = []

    def decide(self, world: World, now: float) -> Plan:
        self.moments.append(now)
        return self._plans.pop(0) if self._plans else Plan((), ())

    def reasons(self, world: World, now: float) -> dict[int, str]:
        return {}


def admit(work: Workload, job: int, *nodes: int) -> Admission:
    return Admission(work.uids[job], np.array(nodes, dtype=np.int32))
