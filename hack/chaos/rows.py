"""The rows of the table: each a fault, the job that meets it, and what the job has to keep to."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hack.chaos import on_jobs, on_nodes, on_platform, results
from hack.chaos.measure import Losses
from hack.chaos.recipe import EVERY, Recipe
from hack.chaos.results import Result, Target
from hack.chaos.table import Entry
from hack.chaos.victim import Hit, Victim

STANDARD = Recipe()


@dataclass(frozen=True)
class Row:
    """A fault.

    Attributes:
        name: as in `make chaos ROW=...`.
        words: the fault in the table's words.
        alone: others may not run meanwhile, for the fault hits them, too, or it needs the nodes' room.
        steps: the fault comes after one of these steps, by seed.
        patience: seconds in which the run has to be beyond the fault.
    """

    name: str
    words: str
    fault: Callable[[Victim], Hit]
    target: Target
    recipe: Recipe = STANDARD
    alone: bool = True
    steps: range = range(30, 100)
    patience: float = 240.0


QUICK = Target(seconds=10, steps_lost=EVERY, new_pods=0)
UNTOUCHED = Target(steps_lost=0, new_pods=0)
GRACEFUL = Target(steps_lost=0)
NODE = Target(seconds=60, steps_lost=EVERY)
LONG = Recipe(steps=300, pace=0.15)
"""Longer than a fault of 20 s."""
LONGER = Recipe(steps=600, pace=0.15)
REFERENCE_STEPS = 800
"""Of the run without faults, which every other is compared with: as many as the longest has."""
APART = Recipe(apart=True)
QUOTA = Recipe(quota=True)

_ROWS = (
    Row(
        "rank-sigkill", "a rank is killed (SIGKILL)", on_jobs.rank_ended(signal.SIGKILL, "SIGKILL"), QUICK, alone=False
    ),
    Row("rank-exception", "a rank raises", on_jobs.rank_ended(signal.SIGUSR1, "an exception"), QUICK, alone=False),
    Row(
        "rank-sigstop",
        "a rank hangs (SIGSTOP)",
        on_jobs.rank_stopped,
        Target(seconds=40, steps_lost=EVERY, new_pods=0),  # found within 30 s, then as quick as a crash
        alone=False,
    ),
    Row(
        "launcher-sigkill",
        "a launcher is killed, and its container with it",
        on_jobs.launcher_killed,
        Target(seconds=30, steps_lost=EVERY, new_pods=1),
        alone=False,
    ),
    Row(
        "pod-deleted",
        "`kubectl delete pod`",
        on_jobs.pod_deleted(),
        Target(seconds=30, steps_lost=0),
        alone=False,
    ),
    Row("operator-sigkill", "the operator that leads is killed", on_platform.operator_killed, UNTOUCHED, LONG),
    Row(
        "pod-deleted-by-force",
        "`kubectl delete pod --grace-period=0 --force`",
        on_jobs.pod_deleted("--grace-period=0", "--force"),
        Target(seconds=30, steps_lost=EVERY),
        alone=False,
    ),
    Row("suspend", "suspended and resumed", on_jobs.suspended, GRACEFUL, alone=False),
    Row("preemption", "preempted by a job of higher priority", on_jobs.preempted, GRACEFUL, QUOTA, alone=False),
    Row("drain", "a node is drained", on_jobs.drained, GRACEFUL, APART),
    Row("node-dead", "a node dies: its processes and its network", on_nodes.node_dead(1), NODE, APART),
    Row("node-of-pod-0-dead", "the node of pod 0 dies", on_nodes.node_dead(0), NODE, APART),
    Row(
        "two-nodes-dead",
        "both nodes of a gang die at once",
        on_nodes.two_nodes_dead,
        Target(steps_lost=EVERY),
        APART,
    ),
    Row(
        "kubelet-dead",
        "a node's kubelet and containerd are killed",
        on_nodes.agents_killed,
        UNTOUCHED,
        Recipe(steps=LONG.steps, pace=LONG.pace, apart=True),
    ),
    Row("apiserver-away", "the API server is away for 10 s", on_platform.apiserver_away(10), UNTOUCHED, LONG),
    Row("etcd-still", "etcd stands still for 20 s", on_platform.stands_still("etcd", 20), UNTOUCHED, LONG),
    Row("dns-away", "DNS answers nothing for 20 s", on_platform.stands_still("coredns", 20), UNTOUCHED, LONG),
    Row("s3-refuses", "S3 answers 503 for a minute", on_platform.storage_refuses(60), UNTOUCHED, LONGER),
    Row("s3-slow", "S3 is slow for 20 s", on_platform.storage_slow(20, share=0.05), UNTOUCHED, LONG),
    Row("network-cut", "the network between two pods is cut for good", on_nodes.pods_parted, NODE, APART),
    Row(
        "network-cut-briefly",
        "the network between two pods is cut for 5 s",
        on_nodes.pods_parted_for(5),
        UNTOUCHED,
        Recipe(steps=LONG.steps, pace=LONG.pace, apart=True),
    ),
    Row(
        "out-of-memory",
        "a rank is killed by the kernel for its memory",
        on_jobs.out_of_memory,
        Target(steps_lost=EVERY),
        Recipe(spec={"workers": {"replicas": 2, "gpusPerWorker": 1, "resources": {"limits": {"memory": "2Gi"}}}}),
        alone=False,
    ),
    Row(
        "preemption-in-save",
        "preempted while a checkpoint is being saved",
        on_jobs.preempted_in_a_save,
        GRACEFUL,
        Recipe(quota=True, ballast=256),
        alone=False,
    ),
    Row(
        "preemption-in-restore",
        "preempted while it restores",
        on_jobs.preempted_in_a_restore,
        GRACEFUL,
        Recipe(quota=True, ballast=256),
        alone=False,
        patience=300,
    ),
    Row(
        "disk-full",
        "a pod's file system is full for 10 s",
        on_jobs.disk_full,
        UNTOUCHED,
        Recipe(steps=LONG.steps, pace=LONG.pace, disk="64Mi"),
        alone=False,
    ),
    Row(
        "clock-jump",
        "a pod's clock jumps by 10 minutes, forwards or back",
        on_jobs.clock_jumped(600),
        UNTOUCHED,
        Recipe(clock=True),
        alone=False,
    ),
    Row(
        "operator-clock-jump",
        "the operator's clock jumps by 10 minutes, and back",
        on_platform.operators_clock_jumped(600, 20),
        UNTOUCHED,
        LONGER,
    ),
    Row("straggler", "a worker gets 5% of a processor for 10 s", on_jobs.throttled, UNTOUCHED, LONG, alone=False),
    Row(
        "shrink-and-grow",
        "an elastic gang gives a worker's room for a while",
        on_jobs.shrunk_and_grown,
        Target(steps_lost=0, losses=Losses.SAME_SAMPLES),
        Recipe(
            steps=LONGER.steps,
            pace=0.5,  # five minutes: to shrink, to stand for GROWS_AFTER_S, and to grow while it still pays
            quota=True,
            spec={"workers": {"replicas": 2, "min": 1, "max": 2, "gpusPerWorker": 1}},
        ),
        alone=False,
        steps=range(5, 20),
        patience=300,
    ),
)
ROWS = {row.name: row for row in _ROWS}


def missing(
    rows: Sequence[Row], seeds: Sequence[int], known: Sequence[Result], version: str | None
) -> list[tuple[Row, int]]:
    """The runs that are not on record, those of rows with the fewest runs first. With `version`, runs with other images
    count for nothing."""
    found = []
    for row in rows:
        lacks = [seed for seed in seeds if results.known(known, row.name, seed, version) is None]
        have = len(seeds) - len(lacks)
        found += [(have + place, row, seed) for place, seed in enumerate(lacks)]
    return [(row, seed) for _, row, seed in sorted(found, key=lambda run: (run[0], run[1].alone))]


def entries(known: Sequence[Result]) -> list[Entry]:
    """The rows with what is on record of them, for the table."""
    return [
        Entry(row.name, row.words, row.target, results.newest(known, row.name), results.void(known, row.name))
        for row in ROWS.values()
    ]
