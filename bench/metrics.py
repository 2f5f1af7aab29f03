"""What /metrics of the operator costs with 10,000 jobs that all hold GPUs, in 1,000 queues: bytes and processor time.

Run it with `python bench/metrics.py`. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from datetime import datetime, timezone
from itertools import count

from hack.monitoring import busy
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from muster.telemetry.exposition import NEW_SECONDS
from muster.telemetry.metrics import Metrics
from report import Target, report
from timing import fastest

JOBS, QUEUES = 10_000, 1_000

TARGETS = {"bytes_mb": Target(5), "scrape_ms": Target(300)}
NOTES = {
    "bytes_mb": f"{JOBS:,} jobs, each with its four series, and the queues",
    "scrape_ms": "one scrape: to look at all jobs, and to write the text",
    "text_ms": "of that, to write the text",
    "series": "lines with a value",
    "client_text_ms": "four series of each job alone, written by prometheus-client",
}


class Client:
    """Four series of each job, for prometheus-client."""

    def collect(self) -> list[Metric]:
        families: list[Metric] = []
        for name in ("info", "gpus", "phase", "cost_per_hour"):
            more = {"info": ["queue", "gpu_type", "capacity", "priority_class"], "phase": ["phase"]}.get(name, [])
            family = GaugeMetricFamily(f"muster_job_{name}", name, labels=["namespace", "job_name", *more])
            for number in range(JOBS):
                family.add_metric([f"team-{number % 200}", f"llama-8b-{number:05d}", *more], 8)
            families.append(family)
        return families


async def measure(queues: int, repeats: int) -> dict[str, float]:
    later = count(start=0.0, step=NEW_SECONDS)
    metrics = Metrics(lambda: next(later))
    look = busy.state(metrics, datetime.now(timezone.utc), jobs=JOBS, queues=queues)
    registry = CollectorRegistry()
    registry.register(Client())

    def scrape() -> bytes:
        look()
        return metrics.text()

    scrape()  # after which nothing is new
    text = scrape()
    return {
        "queues": queues,
        "bytes_mb": len(text) / 1e6,
        "scrape_ms": fastest(scrape, repeats),
        "text_ms": fastest(metrics.text, repeats),
        "series": sum(not line.startswith(b"#") for line in text.splitlines()),
        "client_text_ms": fastest(lambda: generate_latest(registry), repeats),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=QUEUES)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    return 0 if report("metrics", asyncio.run(measure(given.queues, given.repeats)), TARGETS, NOTES) else 1


if __name__ == "__main__":
    sys.exit(main())
