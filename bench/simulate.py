"""Muster's planner beside FIFO and EASY backfill on synthetic traces: 80,000 jobs on 2,048 GPUs, 3 loads, 10 seeds.

Loads, seeds and the shape of the traces are those of `muster.simulate.synthetic`, fixed before any policy was run. All
policies get the same traces, limits, faults and costs, and decide at the same moments. Every run is told in the table
and in the JSON; `--quick` runs a tenth of the jobs and two seeds, `--plots DIR` also draws the first seed of each load.
Exit code 1 if a target is missed.

All of it takes hours. With `--json FILE` each run is written down as it ends, and those that stand there are not made
again: a benchmark that was cut goes on where it stopped, and loads, seeds and policies can be run piece by piece. The
file knows nothing of the code: begin a new one when the planner has changed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from muster.simulate.cluster import Cluster, ClusterFile, build
from muster.simulate.engine import Outcome, simulate
from muster.simulate.measures import Figures, measure
from muster.simulate.plots import draw
from muster.simulate.policies import policy_named
from muster.simulate.synthetic import LOADS, SEEDS, Recipe, make
from muster.simulate.tables import line_by_line
from muster.simulate.workload import assemble
from report import Target, report

JOBS = 80_000
NODES, GPUS = 256, 8
INTERVAL = 60.0
HALF_LIFE = 86_400.0
"""That the figures in docs/simulator.md were made with; the operator's default is seven days."""
POLICIES = ("fifo", "easy", "muster", "muster-no-preemption")
AVERAGED = (
    "mean_completion", "mean_wait", "median_wait", "p90_wait", "p99_wait", "mean_slowdown", "fairness", "even_speeds",
    "utilisation", "useful", "lost", "fragmentation", "makespan", "seconds", "evictions", "never",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One policy on one trace."""

    load: float
    seed: int
    jobs: int
    policy: str
    nodes: int = NODES
    interval: float = INTERVAL


def run(it: Run) -> tuple[Run, Figures]:
    return it, replace(measure(simulated(it)), policy=it.policy)


def simulated(it: Run) -> Outcome:
    cluster = _cluster(it.nodes)
    trace = make(Recipe(jobs=it.jobs, gpus=int(cluster.gpus.sum()), load=it.load, seed=it.seed))
    workload = assemble(cluster, trace)
    # The figures in docs/simulator.md are of gangs that wait again as a whole when they lose a node.
    name = f"{it.policy}-no-replacement" if it.policy.startswith("muster") else it.policy
    return simulate(workload, policy_named(name, workload), seed=it.seed, interval=it.interval)


def _cluster(nodes: int) -> Cluster:
    return build(ClusterFile.model_validate({"nodes": [{"count": nodes, "gpus": GPUS}], "halfLife": HALF_LIFE}))


def averages(rows: Sequence[Figures]) -> dict[str, float]:
    """Means over the seeds."""
    return {name: getattr(mean("", rows), name) for name in AVERAGED}


def figures(results: Mapping[float, Sequence[Sequence[Figures]]]) -> dict[str, float]:
    """What the targets are set on: Muster's means over EASY's, and the slowest simulation."""
    told: dict[str, float] = {}
    for load, runs in results.items():
        mean = {name: averages(rows) for name, rows in by_policy(runs).items()}
        for name in (name for name in mean if name.startswith("muster")):
            key = f"{name}_{load:g}"
            for figure in ("mean_completion", "mean_wait", "p99_wait"):
                told[f"{key}_{figure}_pct"] = 100 * mean[name][figure] / max(mean["easy"][figure], 1e-9)
            told[f"{key}_useful_lacking"] = 100 * (mean["easy"]["useful"] - mean[name]["useful"])
            told[f"{key}_fairness"] = mean[name]["fairness"]
            told[f"{key}_even_speeds"] = mean[name]["even_speeds"]
        easy = mean["easy"]
        told[f"easy_{load:g}_without_waits_pct"] = 100 * (1 - easy["mean_wait"] / easy["mean_completion"])
        told[f"easy_{load:g}_fairness"] = easy["fairness"]
        told[f"easy_{load:g}_even_speeds"] = easy["even_speeds"]
    every = [row for runs in results.values() for rows in runs for row in rows if row.policy == "muster"]
    told["muster_slowest_s"] = max(row.seconds for row in every)
    told["muster_never_started"] = sum(row.never for row in every)
    return told


def by_policy(runs: Iterable[Sequence[Figures]]) -> dict[str, list[Figures]]:
    rows: dict[str, list[Figures]] = {}
    for run_ in runs:
        for row in run_:
            rows.setdefault(row.policy, []).append(row)
    return rows


def targets(loads: Iterable[float]) -> dict[str, Target]:
    limits = {"muster_slowest_s": Target(60), "muster_never_started": Target(0)}
    for load in loads:
        key = f"muster_{load:g}"
        limits |= {f"{key}_mean_completion_pct": Target(70), f"{key}_mean_wait_pct": Target(70)}
        limits |= {f"{key}_p99_wait_pct": Target(100), f"{key}_useful_lacking": Target(0.0)}
    return limits


def notes(names: Iterable[str]) -> dict[str, str]:
    told = {
        "_pct": "mean over the seeds, in percent of EASY's",
        "_useful_lacking": "percentage points of useful GPU time less than EASY",
        "_fairness": "Jain's index over users' mean slowdowns",
        "_even_speeds": "Jain's index over users' mean speeds",
        "_without_waits_pct": "EASY's mean completion if nobody ever waited: what no policy can go below",
        "muster_slowest_s": "processor seconds for the slowest of all simulations with Muster",
        "muster_never_started": "jobs that Muster never started, over all runs",
    }
    return {name: next(text for end, text in told.items() if name.endswith(end)) for name in names}


def show(seeds: Sequence[int], results: Mapping[float, Sequence[Sequence[Figures]]]) -> None:
    """One table a load: every seed and policy, then each policy's means over the seeds."""
    console = Console(width=320)
    for load, runs in results.items():
        rows = [
            replace(row, policy=f"seed {seed}, {row.policy}")
            for seed, each in zip(seeds, runs, strict=True)
            for row in each
        ]
        means = [mean(f"mean, {name}", each) for name, each in by_policy(runs).items()]
        console.print(line_by_line([*rows, *means], f"load {load:g}"))


def mean(label: str, rows: Sequence[Figures]) -> Figures:
    """Each figure's mean, over the runs that have it."""
    means: dict[str, Any] = {}
    for each in fields(Figures):
        known = [value for row in rows if (value := getattr(row, each.name)) is not None]
        if known and each.name != "policy":
            found = math.fsum(known) / len(known)
            means[each.name] = round(found) if all(isinstance(value, int) for value in known) else found
    return Figures(policy=label, **means)


def read(path: Path) -> dict[Run, Figures]:
    """The runs that are written down."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    done = {}
    for row in rows:
        load, seed = row.pop("load"), row.pop("seed")
        nodes, interval = row.pop("nodes", NODES), row.pop("interval", INTERVAL)
        done[Run(load, seed, row["jobs"], row["policy"], nodes, interval)] = Figures(**row)
    return done


def write(path: Path, done: Mapping[Run, Figures]) -> None:
    """Write all runs down; a reader finds what was there before, or all of it."""
    every = [
        {"load": it.load, "seed": it.seed, "nodes": it.nodes, "interval": it.interval, **row.as_dict()}
        for it, row in done.items()
    ]
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(every, indent=1), encoding="utf-8")
    new.replace(path)


def make_all(runs: Sequence[Run], path: Path | None, processes: int) -> dict[Run, Figures]:
    """The figures of all runs: those that are written down in the file, and those that are not are made."""
    done = read(path) if path is not None else {}
    lacking = [it for it in reversed(runs) if it not in done]  # the heaviest load first, lest its last run ends alone
    with ProcessPoolExecutor(processes) as pool:
        for made in as_completed([pool.submit(run, it) for it in lacking]):
            it, row = made.result()
            done[it] = row
            print(f"load {it.load:g}, seed {it.seed}, {it.policy}: {row.seconds:.0f} s", file=sys.stderr, flush=True)
            if path is not None:
                write(path, done)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--nodes", type=int, default=NODES, help=f"of {GPUS} GPUs each")
    parser.add_argument("--interval", type=float, default=INTERVAL, help="least seconds between two decisions")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--loads", type=float, nargs="*", default=list(LOADS))
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--quick", action="store_true", help="8,000 jobs and two seeds")
    parser.add_argument("--json", type=Path, help="file for the figures of every run; those in it are not made again")
    parser.add_argument("--plots", type=Path, help="folder for plots of each load's first seed, run anew for them")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    options = parser.parse_args()
    if options.quick:
        options.jobs, options.seeds = JOBS // 10, list(SEEDS[:2])
    if not {"easy", "muster"} <= set(options.policies):
        parser.error("--policies must name easy and muster: the targets compare these two")
    runs = [
        [
            [Run(load, seed, options.jobs, policy, options.nodes, options.interval) for policy in options.policies]
            for seed in options.seeds
        ]
        for load in options.loads
    ]
    every = [it for of_load in runs for of_seed in of_load for it in of_seed]
    done = make_all(every, options.json, options.processes)
    results = {
        load: [[done[it] for it in of_seed] for of_seed in of_load]
        for load, of_load in zip(options.loads, runs, strict=True)
    }
    if options.plots is not None:
        for first, *_ in runs:
            draw([simulated(it) for it in first], options.plots / f"load-{first[0].load:g}")
    show(options.seeds, results)
    told = figures(results)
    return 0 if report("simulate", told, targets(options.loads), notes(told)) else 1


if __name__ == "__main__":
    sys.exit(main())
