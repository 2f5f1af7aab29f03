"""Checkpoints to a real S3 server: how long training stands still, how soon they are durable, what they cost.

Each contender trains, saves and restores the same state in a gang of its own; the contenders take turns, so that
whatever else the machine does meets all of them. Medians over the repetitions, of the worst rank. Exit code 1 if a
target is missed or a restored tensor differs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from report import Target, report
from s3server import S3Server, s3_server, stored_bytes

CONTENDERS: Final = ("muster", "torch.save", "put_object")
GANG_SCRIPT: Final = Path(__file__).with_name("checkpoint_gang.py")


@dataclass(frozen=True)
class Shape:
    """One gang: `fsdp` or `ddp` on so many ranks."""

    strategy: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.strategy}{self.ranks}"


Figures = dict[str, float]


def run_gang(server: S3Server, shape: Shape, name: str, megabytes: float, prefix: str) -> Figures:
    """Each figure of the worst rank; `cpu_s` and `peak` are sums over the ranks. RuntimeError when a rank fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(shape.ranks):
        environment = {
            **os.environ,
            **server.environment,
            "RANK": str(rank),
            "WORLD_SIZE": str(shape.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(GANG_SCRIPT), name, shape.strategy, str(megabytes), prefix]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{name} on {shape}: a rank failed, see above")
    ranks = [json.loads(output.splitlines()[-1]) for output in outputs]
    figures = {key: max(rank[key] for rank in ranks) for key in ranks[0]}
    figures["same"] = min(rank["same"] for rank in ranks)
    for key in ("cpu_s", "restore_cpu_s", "save_peak_bytes", "restore_peak_bytes"):
        figures[key] = sum(rank[key] for rank in ranks)
    return figures


def compare(server: S3Server, shape: Shape, names: list[str], megabytes: float, repetitions: int) -> dict[str, Figures]:
    """By contender, the median of each figure."""
    found: dict[str, list[Figures]] = defaultdict(list)
    for repetition in range(repetitions):
        for name in names:
            prefix = f"{shape}-{name}-{repetition}"
            figures = run_gang(server, shape, name, megabytes, prefix)
            saves = 2 if name == "muster" else 1  # ours keeps both; the others overwrite the first
            figures["stored"] = stored_bytes(server.folder / prefix) / saves / figures["state_bytes"]
            subprocess.run(["rm", "-rf", str(server.folder / prefix)], check=True)
            found[name].append(figures)
            print(f"  {shape} {name}: {_line(figures)}", file=sys.stderr, flush=True)
    return {name: {key: statistics.median(f[key] for f in runs) for key in runs[0]} for name, runs in found.items()}


def _line(figures: Figures) -> str:
    return "  ".join(f"{key} {value:.3g}" for key, value in figures.items())


COLUMNS: Final = (
    "stall s", "durable MB/s", "CPU s/GB", "step slower by", "memory × state", "stored × state",
    "restore MB/s", "CPU s/GB", "memory × state",
)  # fmt: skip


def table(title: str, medians: dict[str, Figures]) -> None:
    """Markdown, as the docs have it."""
    print(f"\n{title}\n\n| | {' | '.join(COLUMNS)} |\n|{' --- |' * (len(COLUMNS) + 1)}")
    for name, f in medians.items():
        size = f["state_bytes"]
        slower = "" if math.isnan(f["slowdown"]) else f"{100 * (f['slowdown'] - 1):.0f} %"
        cells = [
            f"{f['stall_s']:.3f}",
            f"{size / 1e6 / f['durable_s']:.0f}",
            f"{f['cpu_s'] / size * 1e9:.1f}",
            slower,
            f"{f['save_peak_bytes'] / size:.2f}",
            f"{f['stored']:.3f}",
            f"{size / 1e6 / f['restore_s']:.0f}",
            f"{f['restore_cpu_s'] / size * 1e9:.1f}",
            f"{f['restore_peak_bytes'] / size:.2f}",
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=500.0, help="of state, over all ranks")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--fsdp", default="1,2,4", help="ranks of the FSDP gangs")
    parser.add_argument("--ddp", default="4", help="ranks of the DDP gangs")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--folder", type=Path, help="where the server keeps its objects; default: the temporary folder")
    given = parser.parse_args()
    names = given.contenders.split(",")
    shapes = [Shape("fsdp", int(n)) for n in given.fsdp.split(",") if n]
    shapes += [Shape("ddp", int(n)) for n in given.ddp.split(",") if n]
    results: dict[Shape, dict[str, Figures]] = {}
    with s3_server(given.folder) as server:
        for shape in shapes:
            results[shape] = compare(server, shape, names, given.megabytes, given.repetitions)
    for shape, medians in results.items():
        table(f"{shape.strategy.upper()}, {shape.ranks} ranks, {given.megabytes:g} MB", medians)
    print()
    return 0 if report("checkpoint", *judge(results)) else 1


def judge(results: dict[Shape, dict[str, Figures]]) -> tuple[Figures, dict[str, Target], dict[str, str]]:
    """Figures, targets and notes for the report. Ratios are turned so that smaller is better."""
    figures: Figures = {}
    targets: dict[str, Target] = {}
    notes: dict[str, str] = {}

    def put(name: str, value: float, at_most: float, note: str) -> None:
        figures[name], targets[name], notes[name] = value, Target(at_most), note

    for shape, by_name in results.items():
        put(
            f"{shape}_wrong",
            sum(1 - f["same"] for name, f in by_name.items() if name != "put_object"),
            0,
            "contenders that restored another state",
        )
        ours = by_name.get("muster")
        if ours is None:
            continue
        for name, f in by_name.items():
            if name == "torch.save":
                put(f"{shape}_stall_percent", 100 * ours["stall_s"] / f["stall_s"], 2, "of torch.save's stall")
            if name == "put_object":
                put(f"{shape}_durable_of_put", ours["durable_s"] / f["durable_s"], 1 / 0.95, "time, of plain puts'")
        put(f"{shape}_save_memory", ours["save_peak_bytes"] / ours["state_bytes"], 1.2, "× state, over training")
        put(f"{shape}_restore_memory", ours["restore_peak_bytes"] / ours["state_bytes"], 0.2, "× state")
        put(f"{shape}_stored", ours["stored"], 1.01, "bytes in S3, × state")
    return figures, targets, notes


if __name__ == "__main__":
    sys.exit(main())
