"""`python -m hack.chaos`: plays the rows on the local cluster `chaos`, keeps what came out, and makes the table anew.

A run that is on record is not played again, so a call that was cut goes on, and runs add up over days; each tells the
images that it was played with. Exit code 0 only if every run that was played met its target.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hack.chaos import results, table
from hack.chaos.bring_up import BUCKET, NAMESPACE, OPTIONS, bring_up
from hack.chaos.results import Outcome, Result
from hack.chaos.rows import ROWS, Row, entries, missing
from hack.chaos.run import Circumstances, play
from hack.chaos.stage import Stage
from hack.cluster import api
from hack.cluster.errors import ClusterError
from hack.demo.kube import Kube, KubeError
from muster_protocol.spelling import there_are

SEEDS = (1, 2, 3, 4, 5)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.chaos", description="Faults, and what they cost a run.")
    parser.add_argument("--row", action="append", type=row_named, metavar="ROW", help="a row, or several (all)")
    parser.add_argument("--seed", action="append", type=int, help="a seed, or several (1 to 5)")
    parser.add_argument("--fresh", action="store_true", help="runs with other images than this checkout's don't count")
    parser.add_argument("--again", action="store_true", help="play runs that are on record, too")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run when these are over")
    parser.add_argument("--list", action="store_true", help="the rows, and how often each was played; nothing runs")
    parser.add_argument("--table", action="store_true", help="make the table of docs/reliability.md anew; nothing runs")
    chosen = parser.parse_args()
    if chosen.list:
        _list()
        return 0
    if chosen.table:
        table.write(entries(results.read()))
        return 0
    os.environ.setdefault("MUSTER_CLUSTER", "native")  # the rows stop processes that kind keeps for itself
    rows = [ROWS[name] for name in chosen.row or ROWS]
    try:
        return _play_all(rows, chosen)
    except (ClusterError, KubeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was", file=sys.stderr)
        return 130


def row_named(name: str) -> str:
    """For argparse."""
    if name not in ROWS:
        raise argparse.ArgumentTypeError(f"there is no row {name!r}; {there_are(name, ROWS)}. --list describes them")
    return name


def _list() -> None:
    known = results.read()
    for row in ROWS.values():
        print(f"{row.name:<24} {len(results.newest(known, row.name))} seeds played   {row.words}")


def _play_all(rows: Sequence[Row], chosen: argparse.Namespace) -> int:
    cluster, circumstances = bring_up()
    until = time.monotonic() + 60 * chosen.minutes
    known = [] if chosen.again else results.read()
    wanted = missing(rows, chosen.seed or SEEDS, known, circumstances.version if chosen.fresh else None)
    played: list[Result] = []
    for alone, runs in itertools.groupby(wanted, key=lambda run: run[0].alone):
        played += _play(cluster, list(runs), circumstances, at_once=1 if alone else 2, until=until)
    missed = [result for result in played if result.outcome != Outcome.MET.value]
    print(f"{len(played)} runs played, {len(missed)} of them not as they should be; docs/reliability.md has the table")
    print(f".venv/bin/python -m hack.cluster down --name {OPTIONS.name}   # takes the cluster away")
    return 1 if missed else 0


def _play(
    cluster: api.Cluster, runs: Sequence[tuple[Row, int]], circumstances: Circumstances, *, at_once: int, until: float
) -> list[Result]:
    """Plays runs that leave each other alone: while one goes on to its end, the next begins, but none after `until`
    (monotonic)."""
    turn, record = threading.Lock(), threading.Lock()

    def one(run: tuple[Row, int]) -> Result | None:
        began, (row, seed) = time.monotonic(), run
        if began > until:
            return None
        stage = Stage(Kube(cluster), NAMESPACE, BUCKET, circumstances.version)
        result = play(stage, row, seed, circumstances, turn, lambda text: print(text, file=sys.stderr, flush=True))
        with record:
            results.append(result)
            table.write(entries(results.read()))
            print(f"  {_told(result)} (a run of {time.monotonic() - began:.0f} s)", flush=True)
        return result

    with ThreadPoolExecutor(at_once) as pool:
        return [result for result in pool.map(one, runs) if result is not None]


def _told(result: Result) -> str:
    head = f"{result.row} seed {result.seed}: {result.outcome}"
    if result.seconds is None:
        return f"{head}: {result.why}"
    costs = f"{result.seconds:.1f} s, {result.steps_lost} steps lost, {result.new_pods} new pods"
    return f"{head}: {costs}, losses {result.losses or 'not compared'}" + (f"; {result.why}" if result.why else "")


if __name__ == "__main__":
    sys.exit(main())
