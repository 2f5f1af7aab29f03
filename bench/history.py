"""What the history costs: the scheduling loop for each turn of a job, the writer's thread for each row, memory.

Processor time of one core, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hack import postgres

from muster.api.common import API_VERSION
from muster.api.effective import effective_spec
from muster.api.placement import Placement
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import Progress
from muster.cluster.views import PodView
from muster.controllers.lifecycle.reconcile import reconcile
from muster.controllers.lifecycle.turn import Situation
from muster.controllers.planning import admitted
from muster.controllers.sight import Sight
from muster.controllers.sightings import Seen, look
from muster.telemetry.cost.intervals import Interval
from muster.telemetry.history.database import parse
from muster.telemetry.history.writer import Writer
from report import Target, report

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=timezone.utc)
WORKERS = 8


def job(number: int) -> TrainingJob:
    """A gang that was placed a minute ago."""
    workers = {"replicas": WORKERS, "gpusPerWorker": 8, "gpuType": "H100"}
    raw = {
        "metadata": {
            "name": f"job-{number}",
            "namespace": "research",
            "uid": f"uid-{number}",
            "generation": 1,
            "creationTimestamp": "2026-11-22T11:00:00Z",
            "resourceVersion": "1",
            "labels": {"team": "blue", "muster.dev/project": "llm"},
        },
        "spec": {"image": "train:1", "command": ["python", "train.py"], "workers": workers},
    }
    made = TrainingJob.from_raw(raw)
    nodes = [f"node-{number}-{index}" for index in range(WORKERS)]
    status = admitted(made, Placement.of(1, nodes, placed_at=NOW), NOW)
    return TrainingJob.from_raw(made.to_raw() | {"status": status.to_raw()})


def pods(one: TrainingJob) -> tuple[PodView, ...]:
    labels = {"muster.dev/job": one.metadata.name, "muster.dev/generation": "1", "muster.dev/attempt": "0"}
    owner = {"apiVersion": API_VERSION, "kind": "TrainingJob", "uid": one.metadata.uid, "controller": True}
    return tuple(
        PodView.from_raw(
            {
                "metadata": {
                    "name": f"{one.metadata.name}-g1-{index}-0",
                    "namespace": one.metadata.namespace,
                    "uid": f"{one.metadata.uid}-{index}",
                    "labels": {**labels, "muster.dev/index": str(index)},
                    "ownerReferences": [owner],
                },
                "spec": {"nodeName": f"node-{index}", "containers": []},
                "status": {"phase": "Running"},
            }
        )
        for index in range(WORKERS)
    )


def each(number: int, work: Callable[[], None]) -> float:
    """Microseconds of processor time for each of `number`."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / number * 1e6


def looks(number: int) -> dict[str, float]:
    """Microseconds for a turn's decision, and for a look at the job beside it."""
    jobs = [job(index) for index in range(number)]
    specs, gangs = [effective_spec(one.spec) for one in jobs], [pods(one) for one in jobs]
    seen: list[Seen | None] = [None] * number
    figures = {}

    def look_at_all(found: list[TrainingJob], now: datetime) -> None:
        for index, one in enumerate(found):
            seen[index], _ = look(seen[index], Sight(one, specs[index], now, gangs[index]))

    def decide() -> None:
        for index, one in enumerate(jobs):
            reconcile(Situation(one, specs[index], NOW, gangs[index]))

    figures["turn_us"] = each(number, decide)
    figures["first_look_us"] = each(number, lambda: look_at_all(jobs, NOW))
    figures["look_us"] = each(number, lambda: look_at_all(jobs, NOW))
    later = NOW + timedelta(seconds=10)
    moved = [
        one.model_copy(
            update={
                "metadata": one.metadata.model_copy(update={"resource_version": "2"}),
                "status": one.status.model_copy(update={"progress": Progress(step=9)}),
            }
        )
        for one in jobs
    ]
    figures["look_at_progress_us"] = each(number, lambda: look_at_all(moved, later))
    return figures


def rows(number: int) -> list[Interval]:
    return [Interval(f"uid-{index}", 1, 0, 0, f"node-{index}", "H100", "spot", 8, NOW) for index in range(number)]


def writes(url: str, number: int) -> tuple[float, float]:
    """Seconds of processor time until so many rows are committed, and bytes that a row takes while it waits."""
    writer = Writer(parse(url), identity="bench")
    made = rows(number)
    tracemalloc.start()
    writer.put(made)
    size = tracemalloc.get_traced_memory()[0] / number
    tracemalloc.stop()
    writer.start()
    began = time.process_time()
    writer.picture(NOW)
    writer.close(600.0)
    if writer.health.written != number:
        raise RuntimeError(f"not written: {writer.health}")
    return time.process_time() - began, size


@contextmanager
def databases() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder, postgres.serving() as server:
        yield {"sqlite": f"sqlite:///{Path(folder) / 'history.db'}", "postgresql": server.url}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    figures = looks(arguments.jobs)
    figures["look_percent_of_turn"] = 100 * figures["look_us"] / figures["turn_us"]
    with databases() as urls:
        for name, url in urls.items():
            seconds, size = writes(url, arguments.rows)
            figures[f"{name}_rows_per_second"] = arguments.rows / seconds
    figures["waiting_row_bytes"] = size
    notes = {
        "turn_us": f"what the lifecycle decides in a turn, {WORKERS} workers",
        "first_look_us": "the first look at a job, all its rows made",
        "look_us": "a look at which nothing is new",
        "look_at_progress_us": "a look after a status write, at which the step is new",
        "look_percent_of_turn": "of the decision alone, without reading and writing the job",
        "sqlite_rows_per_second": "intervals in one transaction, by processor time of the operator",
        "postgresql_rows_per_second": "the same",
        "waiting_row_bytes": "beside the row itself",
    }
    return 0 if report("history", figures, {"look_percent_of_turn": Target(5.0)}, notes) else 1


if __name__ == "__main__":
    sys.exit(main())
