"""What waits could be on the traces of `bench/simulate.py`: an oracle that knows every duration.

The cluster is one pool of GPUs without nodes, queues or faults. At each moment at which the policies may decide, the
jobs with the fewest GPU-seconds to go run, each whole, as far as the pool goes; stopping and starting costs nothing.
That is shortest remaining processing time first (SRPT), which minimises the mean completion on one processor (L.
Schrage, Operations Research 16(3), 1968). For gangs in a pool it is no proof of a bound, but nothing that works without
an oracle, in whole nodes and at a price for each stop, can be expected to come near it.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from muster.scheduling.snapshot import Int, Seconds
from muster.simulate.synthetic import LOADS, SEEDS, Recipe, make
from muster.simulate.trace import Trace
from report import report

GPUS = 2048
INTERVAL = 60.0


def ends(trace: Trace, gpus: int) -> Seconds:
    """J, when each job ends in a pool of so many GPUs."""
    submit, left, ended = trace.submit, trace.duration.copy(), np.full(len(trace), np.nan)
    present, running = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    following, now = 0, 0.0
    while len(present) or following < len(submit):
        # What was chosen at `now` runs on until the next decision, at the first submission or end from now on.
        upcoming = float(submit[following]) if following < len(submit) else math.inf
        end = now + float(left[running].min(initial=math.inf))
        then = math.ceil(min(upcoming, end) / INTERVAL - 1e-9) * INTERVAL
        left[running] -= then - now
        done = running[left[running] <= 0]
        ended[done] = then + left[done]
        now = then
        arrived = int(np.searchsorted(submit, now, side="right"))
        present = np.concatenate([present[left[present] > 0], np.arange(following, arrived)])
        following = arrived
        running = _chosen(present, left, trace, gpus)
    return ended


def _chosen(present: Int, left: Seconds, trace: Trace, gpus: int) -> Int:
    """The jobs with the fewest GPU-seconds left, as far as the pool goes."""
    order = present[np.argsort(left[present] * trace.gpus[present], kind="stable")]
    room, chosen = gpus, []
    for job, asked in zip(order.tolist(), trace.gpus[order].tolist(), strict=True):
        if asked <= room:
            room -= asked
            chosen.append(job)
            if not room:
                break
    return np.array(chosen, dtype=np.int64)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=80_000)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS[:1]))
    parser.add_argument("--loads", type=float, nargs="*", default=list(LOADS))
    options = parser.parse_args()
    figures: dict[str, float] = {}
    notes: dict[str, str] = {}
    for load in options.loads:
        for seed in options.seeds:
            trace = make(Recipe(jobs=options.jobs, gpus=GPUS, load=load, seed=seed))
            completion = ends(trace, GPUS) - trace.submit
            waits = completion - trace.duration
            for name, figure, note in (
                ("completion", completion.mean(), "seconds from submission to the end, in the mean"),
                ("work", trace.duration.mean(), "seconds of work, in the mean: what no completion can go below"),
                ("wait", waits.mean(), "seconds of that in which a job did not run, in the mean"),
                ("wait_p99", np.percentile(waits, 99), "what 99 of 100 jobs wait at most"),
            ):
                figures[f"load_{load:g}_seed_{seed}_{name}"], notes[f"load_{load:g}_seed_{seed}_{name}"] = figure, note
    report("attainable", {name: float(value) for name, value in figures.items()}, {}, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
