"""The operator's metrics. Labels are bounded: queues, phases, verbs; never jobs, on counters that live for ever."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """One registry a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leader = Gauge("muster_operator_leader", "1 while this process leads.", registry=self.registry)
        self.requests = Counter(
            "muster_operator_api_requests",
            "Requests to the API server.",
            ["method", "code"],
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "muster_operator_api_request_seconds",
            "Time until the API server's answer began.",
            ["method"],
            buckets=(0.005, 0.02, 0.1, 0.5, 2.0, 10.0),
            registry=self.registry,
        )
        self.jobs = Gauge("muster_jobs", "Live TrainingJobs.", ["queue", "phase"], registry=self.registry)
        self.goodput = Gauge(
            "muster_goodput_ratio",
            "Part of a live job's time since it was submitted that was training, 0 to 1.",
            ["namespace", "job"],
            registry=self.registry,
        )
        self.plan_seconds = Gauge(
            "muster_plan_duration_seconds", "Time that the last plan took.", registry=self.registry
        )
        self.turn_errors = Gauge(
            "muster_operator_turn_errors", "Turns of jobs that failed, since the start.", registry=self.registry
        )
        self.relists = Gauge(
            "muster_operator_relists", "Lists made afresh since the start.", ["path"], registry=self.registry
        )
        self.watch_age = Gauge(
            "muster_operator_watch_age_seconds",
            "Time since its last sign of life.",
            ["path"],
            registry=self.registry,
        )
        self.node_hours = Gauge(
            "muster_worker_hours_between_failures",
            "Hours that one worker trains between two failures of its node, by what is supposed and seen.",
            ["capacity"],
            registry=self.registry,
        )
        self.events_dropped = Gauge(
            "muster_operator_events_dropped", "Events that were not written for want of time.", registry=self.registry
        )

        self.quarantined = Gauge(
            "muster_node_quarantined", "1 for each node in quarantine.", ["node"], registry=self.registry
        )
        self.spared = Gauge(
            "muster_nodes_spared",
            "Nodes that fail often and stay in service, for too many of their kind are in quarantine already.",
            registry=self.registry,
        )
        self.node_faults = Gauge(
            "muster_node_faults",
            "Faults of nodes within the window of badNodes, by cause.",
            ["cause"],
            registry=self.registry,
        )

    def request(self, method: str, code: int, seconds: float) -> None:
        self.requests.labels(method, str(code)).inc()
        self.request_seconds.labels(method).observe(seconds)

    def count_jobs(self, queue_and_phase: Iterable[tuple[str, str]]) -> None:
        """Set the jobs gauge from every live job's (queue, phase); series of empty ones go."""
        self.jobs.clear()
        for (queue, phase), number in Tally(queue_and_phase).items():
            self.jobs.labels(queue, phase).set(number)

    def tell_goodput(self, jobs: Iterable[tuple[str, str, float]]) -> None:
        """Set it from every live job's (namespace, name, ratio); series of others go."""
        self.goodput.clear()
        for namespace, name, ratio in jobs:
            self.goodput.labels(namespace, name).set(ratio)

    def count_bad_nodes(self, held: Iterable[str], spared: Iterable[str], faults: Mapping[str, int]) -> None:
        """Set the gauges of `badNodes`; the series of a node goes when it is let out."""
        self.quarantined.clear()
        for node in held:
            self.quarantined.labels(node).set(1)
        self.spared.set(len(tuple(spared)))
        self.node_faults.clear()
        for cause, number in faults.items():
            self.node_faults.labels(cause).set(number)

    def text(self) -> bytes:
        return generate_latest(self.registry)
