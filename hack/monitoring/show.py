"""`python -m hack.monitoring.show`: a Prometheus beside the local cluster, jobs that give the dashboards something to
show, and pictures of all dashboards, drawn from what their own queries find.

Brings up the cluster and Muster where they aren't. The jobs and queues go at the end; the cluster stays, and what
Prometheus has gathered.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from hack.cluster.errors import ClusterError
from hack.cluster.progress import Progress
from hack.demo import install, strike
from hack.demo.bring_up import BUCKET, bring_up
from hack.demo.kube import Kube, KubeError, holds
from hack.monitoring import asked, beside, scene
from hack.monitoring.draw import Window, picture
from hack.monitoring.server import Prometheus, Series
from hack.prometheus import program

Json = dict[str, Any]

NAMESPACE: Final = "dashboards"
INTERVAL_S: Final = 5
PRICE: Final = "muster_gpu_price_per_hour"
POINTS: Final = 120
"""Of a line."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.monitoring.show", description=__doc__)
    parser.add_argument("--name", default="muster", help="the local cluster (default: %(default)s)")
    parser.add_argument("--pictures", type=Path, default=Path("build/dashboards"), help="folder (default: %(default)s)")
    parser.add_argument("--pace", type=float, default=45.0, help="seconds between two things that happen")
    parser.add_argument("--port", type=int, default=9090, help="where Prometheus listens, on 127.0.0.1")
    parser.add_argument("--keep", action="store_true", help="let all go on until Ctrl-C or cluster-down")
    options = parser.parse_args()
    os.environ.setdefault("MUSTER_CLUSTER", "native")  # made-up GPUs and the S3 server are the native cluster's
    try:
        program("prometheus")
        _show(bring_up(options.name), options)
    except (ClusterError, KubeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _show(kube: Kube, options: argparse.Namespace) -> None:
    progress, interval = Progress(), f"{INTERVAL_S}s"
    objects, place = beside.chart(kube, interval), _place(kube)
    _clear(kube, place)  # an earlier run's
    folder = kube.cluster.directory / "prometheus"
    with ExitStack() as stack:
        stack.callback(_clear, kube, place)
        running = stack.enter_context(beside.prometheus(kube, objects, folder, interval, port=options.port))
        progress.say(f"  Prometheus is at {running.url}")
        started = time.time()
        _play(kube, place, options.pace, progress)
        _draw(running, beside.dashboards(objects), started, options.pictures, progress)
        if options.keep:
            progress.say("  everything goes on until Ctrl-C, or until the cluster is taken down")
            while kube.cluster.directory.exists():
                time.sleep(1)


def _place(kube: Kube) -> scene.Place:
    install.namespace(kube, NAMESPACE)
    install.bucket(kube, BUCKET)
    uri = f"s3://{BUCKET}/{NAMESPACE}/{scene.STEADY}"
    install.empty(kube, BUCKET, f"{NAMESPACE}/")
    endpoint, secret = kube.cluster.s3_endpoint, {"name": install.S3_SECRET}
    checkpoint = {"uri": uri, "endpoint": endpoint, "secretRef": secret, "everySteps": 50}
    return scene.Place(NAMESPACE, NAMESPACE, checkpoint)


def _play(kube: Kube, place: scene.Place, pace: float, progress: Progress) -> None:
    """A run, a neighbour that takes back its quota, a worker that is killed, and the neighbour's end."""
    kube.apply(*scene.queues(place), *scene.before(place))
    with progress.part("a run saves, and another borrows what is free"):
        _until(kube, scene.STEADY, "saves", lambda job: (job["status"].get("checkpoint") or {}).get("step"))
        _until(kube, scene.FAILING, "fails", lambda job: holds(job, "Failed"))
        time.sleep(pace)
    with progress.part("the owner takes its quota back"):
        kube.apply(*scene.then(place))
        _until(kube, scene.BORROWER, "makes room", lambda job: job["status"].get("preemptions"))
        time.sleep(pace)
    with progress.part("a worker is killed, and another takes its place"):
        pods = kube.pods(NAMESPACE, scene.STEADY)
        strike.kill(next(pod for pod in pods if pod["metadata"]["labels"]["muster.dev/index"] == "1"))
        _until(kube, scene.STEADY, "goes on", lambda job: job["status"].get("replacements"))
        time.sleep(pace)
    with progress.part("the owner ends, and the borrower comes back"):
        kube.kubectl("delete", "trainingjob", scene.OWNER, "-n", NAMESPACE)
        _until(kube, scene.BORROWER, "runs again", lambda job: job["status"].get("phase") == "Running")
        time.sleep(pace)


def _until(kube: Kube, name: str, what: str, holds_for: Callable[[Json], Any]) -> None:
    def look() -> bool:
        job = kube.job(NAMESPACE, name)
        return bool(job and "status" in job and holds_for(job))

    kube.wait(f"{name}: {what}", look, 300, lambda: kube.describe(NAMESPACE, name))


def _draw(
    prometheus: Prometheus,
    boards: dict[str, Json],
    started: float,
    folder: Path,
    progress: Progress,
) -> None:
    now = time.time()
    step = max(INTERVAL_S, (now - started) / POINTS)
    window = Window(now - int((now - started) / step) * step, now, step)
    values = {
        "cluster": ".*",
        "namespace": ".*",
        "queue": ".*",
        "job": scene.STEADY,
        "currency": next((one.labels.get("currency", "") for one in prometheus.query(PRICE, now)), ""),
        "__rate_interval": f"{max(4 * INTERVAL_S, round(step) + INTERVAL_S)}s",
        "__range": f"{round(now - started)}s",
    }

    def ask(expression: str, instant: bool) -> Sequence[Series]:
        if instant:
            # Only where nothing is known by now of what looks back in steps: soon counts what is there now for more.
            return prometheus.query(expression, now) or prometheus.query(expression, asked.moment(expression, now))
        return prometheus.query_range(expression, window.start, window.end, window.step)

    folder.mkdir(parents=True, exist_ok=True)
    for name, board in boards.items():
        path = folder / f"dashboard-{name}.png"
        path.write_bytes(picture(board, values, ask, window))
        progress.say(f"  drew {path}")


def _clear(kube: Kube, place: scene.Place) -> None:
    """The queues go last, when no job is left in them. What was in a cluster that is gone is gone with it."""
    if not kube.cluster.directory.exists():
        return
    gone = ("--ignore-not-found", "--timeout=150s")
    kube.kubectl("delete", "trainingjob", *scene.JOBS, "-n", NAMESPACE, *gone, timeout_s=180)
    kube.kubectl("delete", "trainingqueue", place.research, place.product, "--ignore-not-found")


if __name__ == "__main__":
    sys.exit(main())
