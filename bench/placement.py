"""How long it takes to place one large gang, what a full cycle takes, and how both grow with the cluster. One core.

12,500 nodes of 8 GPUs in three levels, half full: a gang of 1,024 GPUs (128 workers of 8) is planned, the whole call,
arrays in, plan out. Then the same for clusters of 1,000 to 100,000 GPUs, and a full cycle beside it: nine tenths in
use, with as many waiting and running jobs for each GPU as the large cluster has. 1,000 queues throughout. Last what
`bench/planner.py` measures: whole plans over 10,000 waiting and 5,000 running jobs, a full cycle among them.

Run it with `python bench/placement.py`; `--chart FILE` also draws the growth as SVG. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chart import Curve, draw
from muster.controllers.garbage import short_looks
from muster.scheduling.snapshot import NONE, PLAIN, Index, Nodes, Shape, Snapshot, TopologyMode
from planner import NOTES as PLANS_NOTES
from planner import TARGETS as PLANS_TARGETS
from planner import Shapes, crowded, jobs, snapshot, timed
from planner import measure as measure_plans
from planner import small as measure_small_plans
from report import Target, report

NODES, WORKERS, GPUS_A_NODE = 12_500, 128, 8
BLOCK, RACK, HOST = range(3)
SIZES = (125, 250, 500, 1_250, 2_500, 5_000, 12_500)
"""Nodes of the growing cluster."""
REPEATS = 25
"""Calls for each point of the growth."""
SEED = 20240607
JOBS, PLANS = 10_000, 100
"""Waiting jobs of the whole plans, and calls of those that are made often."""


@dataclass(frozen=True)
class Kind:
    """A way in which the large gang is asked for."""

    what: str
    mode: TopologyMode
    level: int
    shape: Shape = PLAIN


KINDS = {
    "required": Kind("in one block", TopologyMode.REQUIRED, BLOCK),
    "preferred": Kind("in one rack if possible, which it is not: climbs", TopologyMode.PREFERRED, RACK),
    "unconstrained": Kind("anywhere", TopologyMode.UNCONSTRAINED, NONE),
    "slices": Kind(
        "in one block, each 16 workers in one rack", TopologyMode.REQUIRED, BLOCK, Shape(slices=((16, RACK),))
    ),
    "nested": Kind(
        "anywhere, each 64 workers in one block, each 8 of them in one rack, and 4 spares",
        TopologyMode.UNCONSTRAINED,
        NONE,
        Shape(slices=((64, BLOCK), (8, RACK)), spares=4),
    ),
    "balanced": Kind("in one block, equal numbers in its racks", TopologyMode.REQUIRED, BLOCK, Shape(balanced=RACK)),
}

TARGETS = {
    "required_p50_ms": Target(5),
    "required_p99_ms": Target(20),
    "growth_gang_x": Target(SIZES[-1] / SIZES[0]),
    "growth_cycle_x": Target(SIZES[-1] / SIZES[0]),
}
NOTES = {
    "relabelled_ms": "the required gang when all labels are new, so that the tree has to be laid out: median",
    "growth_gang_x": "time at 100,000 GPUs by that at 1,000: one gang, required in a block",
    "growth_cycle_x": "the same for a full cycle",
}


def asking(kind: Kind, workers: int, rng: np.random.Generator, nodes: int) -> Snapshot:
    """A cluster half full and one gang, without any limit of quota."""
    gang = Shapes(*(np.array([value]) for value in (GPUS_A_NODE, workers, kind.mode, kind.level)))
    one = jobs(1, gang, rng)
    world = snapshot(nodes, rng.random(nodes) < 0.5, replace(one, terms=replace(one.terms, shapes=(kind.shape,))))
    return replace(world, queues=replace(world.queues, nominal=world.queues.lending))


def times(kind: Kind, workers: int, nodes: int, repeats: int, *, relabelled: bool = False) -> list[float]:
    """Milliseconds of each call; the first is made twice, for what the process does only once."""
    rng = np.random.default_rng(SEED)
    spent = []
    for repeat in range(repeats):
        world = asking(kind, workers, rng, nodes)
        if relabelled:
            world = replace(world, nodes=_shuffled(world.nodes, rng.permutation(nodes).astype(np.int32)))
        if not repeat:
            timed(world)
        took, made = timed(world)
        assert made.admissions, f"the gang was not placed: {made.waiting[0].message}"
        spent.append(took)
    return spent


def _shuffled(nodes: Nodes, order: Index) -> Nodes:
    """The same nodes in another order, which is what new labels are to the planner."""
    return replace(
        nodes,
        names=tuple(nodes.names[at] for at in order.tolist()),
        free=nodes.free[order],
        domains=nodes.domains[order],
    )


def gang_times() -> Iterator[tuple[int, float]]:
    """(GPUs, milliseconds) of the gang whose size grows with the cluster as long as it fits into a block."""
    for nodes in SIZES:
        spent = times(KINDS["required"], min(WORKERS, nodes // 8), nodes, REPEATS)
        yield nodes * GPUS_A_NODE, float(np.median(spent))


def cycle_times() -> Iterator[tuple[int, float]]:
    """(GPUs, milliseconds) of a full cycle: 0.8 waiting and 0.4 running jobs for each node."""
    for nodes in SIZES:
        world = crowded(nodes, nodes * 2 // 5, nodes * 4 // 5, np.random.default_rng(SEED))
        yield nodes * GPUS_A_NODE, min(timed(world)[0] for _ in range(3))


def measure(repeats: int) -> tuple[dict[str, float], list[Curve]]:
    figures: dict[str, float] = {}
    for name, kind in KINDS.items():
        spent = times(kind, WORKERS, NODES, repeats)
        figures[f"{name}_p50_ms"], figures[f"{name}_p99_ms"] = np.percentile(spent, [50, 99]).tolist()
    figures["relabelled_ms"] = float(np.median(times(KINDS["required"], WORKERS, NODES, REPEATS, relabelled=True)))
    curves = [
        Curve("full cycle: nine tenths in use, jobs in proportion", tuple(cycle_times())),
        Curve("one gang of up to 1,024 GPUs, required in a block, half full", tuple(gang_times())),
    ]
    for name, curve in zip(("growth_cycle_x", "growth_gang_x"), curves, strict=True):
        figures[name] = curve.points[-1][1] / curve.points[0][1]
    return figures, curves


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200, help="of each gang")
    parser.add_argument("--chart", type=Path, help="write the growth into this SVG file")
    options = parser.parse_args()
    figures, curves = measure(options.repeats)
    with short_looks():  # as the operator does
        figures |= measure_plans(NODES, JOBS, PLANS) | measure_small_plans(PLANS)
    for curve in curves:
        print(f"{curve.name}: " + ", ".join(f"{gpus:,} GPUs {spent:.1f} ms" for gpus, spent in curve.points))
    if options.chart:
        title = "How long a plan takes, by the size of the cluster (one core)"
        options.chart.parent.mkdir(parents=True, exist_ok=True)
        options.chart.write_text(draw(curves, title, "GPUs in the cluster", "milliseconds"), encoding="utf-8")
    notes = {f"{name}_{part}_ms": f"1,024 GPUs {kind.what}" for name, kind in KINDS.items() for part in ("p50", "p99")}
    return 0 if report("placement", figures, TARGETS | PLANS_TARGETS, notes | NOTES | PLANS_NOTES) else 1


if __name__ == "__main__":
    sys.exit(main())
