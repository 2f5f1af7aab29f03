"""`muster simulate`: what a policy would do to a cluster and its jobs, before anyone has to live with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import typer
from rich.console import Console

from muster.cli.printing import Output, print_table
from muster.simulate import cluster as clusters
from muster.simulate import trace as traces
from muster.simulate.engine import Outcome, simulate
from muster.simulate.measures import measure, missed, told_at_once
from muster.simulate.plots import draw
from muster.simulate.policies import policy_named
from muster.simulate.synthetic import Recipe, make
from muster.simulate.tables import as_json, duration, side_by_side
from muster.simulate.workload import Workload, assemble
from muster.simulate.world import State
from muster_protocol.counts import counted


def make_trace(path: Path, cluster: Path | None, jobs: int, load: float, seed: int) -> None:
    """Write a synthetic trace, of the load that it says on the first kind of nodes, for its jobs name none.

    Raises:
        SimulationError: the cluster file or the recipe is wrong.
        OSError: the trace cannot be written.
    """
    gpus = int(clusters.read(cluster).gpus_of_flavours[1]) if cluster else Recipe().gpus
    trace = make(Recipe(jobs=jobs, gpus=gpus, load=load, seed=seed))
    traces.write(trace, path)
    typer.echo(f"{path}: {trace}")


def run(
    cluster: Path,
    trace: Path,
    policies: Sequence[str],
    seed: int,
    interval: float,
    *,
    output: Output,
    plots: Path | None,
) -> None:
    """Simulate each policy, and show them side by side.

    Raises:
        SimulationError: a file or an option is wrong.
        OSError: the plots cannot be written.
    """
    workload = assemble(clusters.read(cluster), traces.read(trace))
    chosen = [policy_named(name, workload) for name in policies]
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)  # before hours of work, not behind them
    outcomes = [simulate(workload, policy, seed=seed, interval=interval) for policy in chosen]
    rows = [measure(outcome) for outcome in outcomes]
    if output is Output.JSON:
        typer.echo(as_json(rows))
    else:
        typer.echo(str(workload.trace))
        print_table(Console(markup=False, highlight=False), side_by_side(rows))
        if rounded := rounded_told(workload):
            typer.echo(rounded, err=True)
        for outcome in outcomes:
            for told in (never_told(outcome), missed_told(outcome)):
                if told:
                    typer.echo(told, err=True)
    if plots is not None:
        for path in draw(outcomes, plots):
            typer.echo(str(path), err=True)


def rounded_told(workload: Workload) -> str:
    """Which jobs have more GPUs than their lines say, for the sake of equal workers; "" for none."""
    rounded = np.flatnonzero(workload.workers * workload.each > workload.trace.gpus)
    if not rounded.size:
        return ""
    first = int(rounded[0])
    size = f"{counted(int(workload.workers[first]), 'worker')} of {counted(int(workload.each[first]), 'GPU')}"
    return (
        f"workers have equal sizes, so {counted(len(rounded), 'job')} took more GPUs than the trace says: "
        f"the first, {_described(workload, first)}, had {size}"
    )


def missed_told(outcome: Outcome) -> str:
    """How many deadlines were missed, and the job that was latest; "" for none."""
    late, trace = missed(outcome), outcome.world.workload.trace
    if not late.size or trace.deadline is None:
        return ""
    behind = outcome.world.ended[late] - trace.deadline[late]
    at = int(np.argmax(np.where(np.isnan(behind), np.inf, behind)))
    told = int(told_at_once(outcome.world.workload)[late].sum())
    by = "which never ended" if np.isnan(behind[at]) else f"by {duration(float(behind[at]))}"
    limits = f"; of {told} of them limit and window left no time from the start" if told else ""
    return (
        f"{outcome.policy}: {len(late)} deadline{'s' * (len(late) != 1)} missed, the most that of the job "
        f"{_described(outcome.world.workload, int(late[at]))}, {by}{limits}"
    )


def never_told(outcome: Outcome) -> str:
    """Which jobs never ended, and why: those that failed on a line of their own. "" for none."""
    world = outcome.world
    failed = [one for one in outcome.never if world.state[one[0]] == State.FAILED]
    waited = [one for one in outcome.never if world.state[one[0]] != State.FAILED]
    lines = [_told(outcome, which, word) for which, word in ((failed, "failed"), (waited, "never ended")) if which]
    return "\n".join(lines)


def _told(outcome: Outcome, never: Sequence[tuple[int, str]], word: str) -> str:
    """The first of these with its reason: those that ask for more GPUs than there are, apart from the rest."""
    workload = outcome.world.workload
    there = int(workload.cluster.gpus.sum())
    large = [job for job, _ in never if workload.trace.gpus[job] > there]
    job, reason = never[0]
    count = len(never)
    told = f"{outcome.policy}: {count} job{'s' * (count != 1)} {word}, the first {_described(workload, job)}"
    if reason:
        return f"{told}: {reason}"
    if not large:
        return f"{told}{_too_wide(workload, job)}"
    alone = "it asks" if large == [job] else f"{_described(workload, large[0])} asks"
    asks = f"{len(large)} of them ask" if len(large) != 1 else alone
    behind = ", and the others never had their turn" if count > len(large) else ""
    return f"{told}; {asks} for more than the cluster's {counted(there, 'GPU')}{behind}"


def _too_wide(workload: Workload, job: int) -> str:
    """Why an empty cluster that has GPUs enough could not hold a job; "" if it could."""
    cluster, each, workers = workload.cluster, int(workload.each[job]), int(workload.workers[job])
    others = workload.alternatives[job] if workload.alternatives is not None else ()
    flavours = [int(workload.flavour[job]), *(other.flavour for other in others)]
    rooms = [int((cluster.gpus[workload.filters[flavour]] // each).sum()) for flavour in flavours]
    if workers <= max(rooms):
        return ""
    return (
        f"; it needs {counted(workers, 'worker')} of {counted(each, 'GPU')}, and the nodes of "
        f"{cluster.flavours[flavours[0]]} have room for {rooms[0]} when they are empty"
    )


def _described(workload: Workload, job: int) -> str:
    """A job by what its line in the trace says, for it has no name there."""
    trace = workload.trace
    gpus = int(trace.gpus[job])
    queue = trace.queues[trace.queue[job]]
    return f"with submit {float(trace.submit[job]):.10g}, {gpus:,} GPU{'s' * (gpus != 1)} and queue {queue}"
