"""How fast jobs are admitted on a real API server: 15,000 gangs in 30 queues, 640 simulated nodes, no pods.

Starts an API server with etcd, Muster's own process (`without_pods.py`: only the making of pods is replaced; with
`--pods`, `without_launchers.py`: only the way to launchers, of which simulated pods have none), and a load generator
that holds each placement for the job's runtime. A witness checks quota, racks and nodes at every event.
`--scale 0.1` takes a tenth of the jobs; `--kueue` lets Kueue have its turn before (`kueue.py`). Exit code 1 if a target
is missed, or a rule is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import kueue
import load as loads
from generator import Generator
from muster.api.common import API_VERSION
from report import Target, report
from testbed import control_plane, control_plane_processes, cpu_seconds, muster, peak_mib, run, wait_account
from wire import Wire
from witness import Witness

ROOT: Final = Path(__file__).resolve().parents[1]
WITHOUT_PODS: Final = [sys.executable, str(ROOT / "bench" / "without_pods.py")]
WITHOUT_LAUNCHERS: Final = [sys.executable, str(ROOT / "bench" / "without_launchers.py")]
LOAD: Final = ROOT / "bench" / "loads" / "tas.yaml"

BESIDE_KUEUE: Final = {
    "wall_percent": Target(100 / 3),
    "wait_small_percent": Target(100),
    "wait_medium_percent": Target(100),
    "wait_large_percent": Target(100),
}
"""Of the time that Kueue takes in the same run."""
TARGETS: Final = {
    "wall_s": Target(90),
    "muster_peak_mib": Target(300),
    "muster_writes_per_job": Target(5),
    "violations": Target(0),
    "wait_small_s": Target(168),
    "wait_medium_s": Target(100),
    "wait_large_s": Target(57),
}
NOTES: Final = kueue.NOTES | {
    "wall_percent": "of Kueue's, as are the next",
    "wall_s": "from the first submit to the last job's end",
    "floor_s": "no less is possible: a queue's jobs over its nominal quota",
    "admissions_per_s": "jobs over wall time",
    "muster_cpu_s": "processor time of Muster's process, from start to end",
    "muster_peak_mib": "its peak resident memory",
    "muster_writes_per_job": "status, Events and Service of jobs; without pods, one Service a placement is added",
    "pod_writes_per_job": "pods made and deleted, and their Secrets",
    "rehearsals_per_job": "dry runs of pods",
    "book_writes_per_job": "status of queues and the Topology; its Lease, every few seconds, is counted nowhere",
    "server_cpu_s": "API server and etcd",
    "generator_cpu_s": "load generator and witness",
    "submit_s": "until the last job was submitted",
    "wait_small_s": "mean from submit to placement; Kueue elsewhere: 168",
    "wait_medium_s": "Kueue elsewhere: 100",
    "wait_large_s": "Kueue elsewhere: 57",
    "preemptions": "placements after a job's first",
    "violations": "events that broke quota, rack, slice or a node's room",
    "peak_use_percent": "most of all queues' nominal quota that was in use at once",
    "watch_events": "of the jobs",
    "object_bytes": "a job that has ended, in a watch's event",
}


async def prepare(wire: Wire, load: loads.Load, labels: Mapping[str, str]) -> None:
    """Nodes with `labels`, topology, queues and priority classes."""
    nodes = asyncio.gather(*(_node(wire, node) for node in loads.nodes(load, labels)))
    ours = f"/apis/{API_VERSION}"
    await wire.call("POST", f"{ours}/topologies", loads.topology(load))
    for queue in loads.queue_objects(load):
        await wire.call("POST", f"{ours}/trainingqueues", queue)
    for priority in loads.priority_classes(load):
        await wire.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", priority)
    await nodes


async def _node(wire: Wire, node: loads.Object) -> None:
    await wire.call("POST", "/api/v1/nodes", node)


async def measure(scale: float, timeout: float, folder: Path, *, pods: bool) -> dict[str, float]:
    load, labels = loads.read(LOAD, scale), {"type": "kwok"} if pods else {}
    racks = {
        node["metadata"]["name"]: node["metadata"]["labels"][loads.level_label("rack")]
        for node in loads.nodes(load, labels)
    }
    witness = Witness(load, racks, pods=pods)
    with control_plane(kwok_nodes=int(pods)) as cluster:
        wire = Wire(cluster.kubeconfig, 48)
        await prepare(wire, load, labels)
        await asyncio.to_thread(wait_account, cluster)
        if pods:
            run(cluster, "cordon", "kwok-0000")  # came with kwok, and is none of the load's
            run(cluster, "wait", "--for=condition=Ready", "--timeout=120s", "nodes", "--all")
        server = control_plane_processes(cluster, controllers=pods)
        with muster(cluster, folder, WITHOUT_LAUNCHERS if pods else WITHOUT_PODS) as process:
            process.wait_ready(60)
            before = {one.pid: cpu_seconds(one.pid) for one in server}
            began_cpu, own = time.process_time(), cpu_seconds(process.process.pid)
            generator = Generator(wire, load, witness, pods=pods)
            try:
                await process.with_it(generator.run(timeout))
            except TimeoutError:
                print(f"only {len(generator.finished)} of {load.jobs} jobs have finished in {timeout:.0f} s")
            wall = time.monotonic() - generator.began
            figures = {
                "wall_s": wall,
                "floor_s": load.floor,
                "admissions_per_s": len(generator.finished) / wall,
                "muster_cpu_s": cpu_seconds(process.process.pid) - own,
                "muster_peak_mib": peak_mib(process.process.pid),
                "server_cpu_s": sum(cpu_seconds(one.pid) - before[one.pid] for one in server),
                "generator_cpu_s": time.process_time() - began_cpu,
                "submit_s": max(generator.submitted.values()) - generator.began,
                **{f"wait_{size}_s": statistics.fmean(waits) for size, waits in sorted(generator.waits().items())},
                "preemptions": generator.restarts,
                "violations": witness.violations,
                "peak_use_percent": 100 * witness.peak / (load.nominal * len(load.queues)),
                "watch_events": generator.events,
                "object_bytes": generator.ended_bytes / max(1, len(generator.finished)),
                "unfinished": load.jobs - len(generator.finished),
            }
            writes = await asyncio.to_thread(process.writes)
            services = 0 if pods else load.jobs + generator.restarts
            figures |= {name: count / load.jobs for name, count in by_kind(writes, services).items()}
            print("Muster's writes: " + ", ".join(f"{verb} {kind} {count}" for (verb, kind), count in writes.items()))
        await wire.close()
    for line in witness.told:
        print(line)
    return figures


def by_kind(writes: Mapping[tuple[str, str], int], services: int) -> dict[str, int]:
    """Writes of Muster by what a job costs, given (verb, resource).

    Args:
        services: that are not made in this run, and would be.
    """

    def of(*resources: str) -> int:
        return sum(count for (verb, kind), count in writes.items() if kind in resources and verb != "rehearse")

    return {
        "muster_writes_per_job": of("trainingjobs/status", "services", "events") + services,
        "pod_writes_per_job": of("pods", "secrets"),
        "rehearsals_per_job": sum(count for (verb, _), count in writes.items() if verb == "rehearse"),
        "book_writes_per_job": of("trainingqueues/status", "topologies/status"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="this part of the jobs (default 1)")
    parser.add_argument("--pods", action="store_true", help="with pods, on nodes and in containers that kwok plays")
    parser.add_argument("--kueue", action="store_true", help="Kueue first, on an API server of its own")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds after which the run is given up")
    parser.add_argument("--logs", type=Path, help="keep Muster's log in this folder")
    options = parser.parse_args()
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    if options.kueue and options.pods:
        parser.error("Kueue's own load has no pods: leave one of --kueue and --pods out")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.logs or Path(temporary)
        rival = kueue.measure(options.scale, options.timeout, folder) if options.kueue else {}
        figures = asyncio.run(measure(options.scale, options.timeout, folder, pods=options.pods))
    targets = {name: TARGETS[name] for name in ("violations", "muster_writes_per_job")} if options.pods else TARGETS
    targets = {**targets, "unfinished": Target(0)}
    if rival:
        for name in BESIDE_KUEUE:
            took = name.replace("_percent", "_s")
            figures[name] = 100 * figures[took] / rival[f"kueue_{took}"]
        figures |= rival
        targets |= BESIDE_KUEUE
    return 0 if report("admission", figures, targets, NOTES) else 1


if __name__ == "__main__":
    sys.exit(main())
