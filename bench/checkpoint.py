"""Checkpoints to a real S3 server: how long training stands still, how soon they are durable, what they cost.

Each contender trains and saves the same state in a gang of its own, and restores it in one that has just been started;
the contenders take turns, so that whatever else the machine does meets all of them. Medians over the repetitions, of
the worst rank. Exit code 1 if a target is missed or a restored tensor differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from hack.s3server import BUCKET, S3Server, serving

from checkpoint_gang import BESIDE
from checkpoint_verdict import Figures, judge, table
from muster_protocol import env
from muster_runtime.launch.rank_memory import RankMemory
from report import report

CONTENDERS: Final = ("muster", "muster-memory", "torch.save", "dcp", "dcp-async", "s3torch", "s3torch4", "put_object")
OURS: Final = ("muster", "muster-memory")
SAVES: Final = 2 + BESIDE
"""Of each gang: a first one, one with training waiting, some beside it."""
GANG_SCRIPT: Final = Path(__file__).with_name("checkpoint_gang.py")
_SERVER_NICENESS: Final = 19
"""The server stands for machines elsewhere: it gives way to the training. At 10 it still took a tenth of its steps."""


@dataclass(frozen=True)
class Case:
    """One gang: `fsdp` or `ddp` on so many ranks, with so much state over all of them."""

    strategy: str
    ranks: int
    megabytes: float

    def __str__(self) -> str:
        return f"{self.strategy}{self.ranks}_{self.megabytes:g}mb"


Runs = dict[tuple[Case, str], list[Figures]]
"""By case and contender, the figures of each repetition."""


@dataclass(frozen=True)
class Bench:
    server: S3Server
    device: str

    def run_gang(self, case: Case, name: str, prefix: str) -> Figures:
        """Saves in one gang and restores in the next, as after a crash of all ranks.

        Each figure of the worst rank; CPU and memory are sums over the ranks. RuntimeError when a rank fails.
        """
        memories = [RankMemory.make() for _ in range(case.ranks)] if name == "muster-memory" else []
        try:
            saved, restored = (self._run_phase(phase, case, name, prefix, memories) for phase in ("save", "restore"))
        finally:
            for descriptor in itertools.chain.from_iterable(memory.descriptors for memory in memories):
                os.close(descriptor)
        same = [rank.pop("digest") for rank in saved] == [rank.pop("digest") for rank in restored]
        ranks = [{**before, **after} for before, after in zip(saved, restored, strict=True)]
        figures = {key: max(rank[key] for rank in ranks) for key in ranks[0]}
        for key in ("cpu_s", "restore_cpu_s", "save_peak_bytes", "restore_peak_bytes"):
            figures[key] = sum(rank[key] for rank in ranks)
        return {**figures, "same": float(same)}

    def _run_phase(
        self, phase: str, case: Case, name: str, prefix: str, memories: list[RankMemory]
    ) -> list[dict[str, Any]]:
        """What each rank told."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        processes = []
        for rank in range(case.ranks):
            descriptors = memories[rank].descriptors if memories else ()
            environment = {
                **os.environ,
                **self.server.environment(AWS_ENDPOINT_URL=self.server.endpoint, AWS_REGION="us-east-1"),
                "RANK": str(rank),
                "WORLD_SIZE": str(case.ranks),
                "LOCAL_WORLD_SIZE": str(case.ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "PYTHONWARNINGS": "ignore",  # of torch, about its own planner
                **({env.MEMORY_TIER: ",".join(map(str, descriptors))} if descriptors else {}),
            }
            gang = [phase, name, case.strategy, str(case.megabytes), prefix, self.device]
            command = [sys.executable, str(GANG_SCRIPT), *gang]
            processes.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, pass_fds=descriptors)
            )
        outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise RuntimeError(f"{name} on {case}: a rank failed to {phase}, see above")
        return [json.loads(output.splitlines()[-1]) for output in outputs]

    def compare(self, cases: list[Case], names: list[str], repetitions: int) -> tuple[Runs, set[str]]:
        """And who failed of the others: they are left out from there on, for some don't get on with some torch."""
        found: Runs = defaultdict(list)
        failed: set[str] = set()
        turns = itertools.product(cases, range(repetitions), names)
        for case, repetition, name in turns:
            prefix = f"{case}-{name}-{repetition}"
            if name in failed:
                continue
            try:
                figures = self.run_gang(case, name, prefix)
            except RuntimeError as error:
                if name in OURS:
                    raise
                failed.add(name)
                print(f"  {case} {name} is left out: {error}", file=sys.stderr, flush=True)
                continue
            finally:
                subprocess.run(["rm", "-rf", str(self.server.folder / BUCKET / prefix)], check=True)
            found[case, name].append(figures)
            line = "  ".join(f"{key} {value:.3g}" for key, value in figures.items())
            print(f"  {case} {name}: {line}", file=sys.stderr, flush=True)
        return found, failed


def received_bytes(log: Path) -> dict[str, int]:
    """By first folder of the key, bytes of content that the server took, whether or not the request succeeded."""
    received: dict[str, int] = defaultdict(int)
    for line in log.read_text().splitlines():
        fields = line.split()
        if len(fields) > 14 and fields[7] in ("s3_PutObject", "s3_UploadPart"):
            received[fields[8].split("/")[0]] += int(fields[13])
    return received


def medians(runs: Runs, received: dict[str, int]) -> dict[Case, dict[str, Figures]]:
    found: dict[Case, dict[str, Figures]] = defaultdict(dict)
    for (case, name), repetitions in runs.items():
        sent = [received[f"{case}-{name}-{number}"] for number in range(len(repetitions))]
        figures = {key: _median([each[key] for each in repetitions]) for key in repetitions[0]}
        found[case][name] = {**figures, "sent": _median(sent) / SAVES / figures["state_bytes"]}
    return found


def _median(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", default="500", help="of state, over all ranks; FSDP gangs take each of several")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--fsdp", default="1,2,4", help="ranks of the FSDP gangs")
    parser.add_argument("--ddp", default="4", help="ranks of the DDP gangs, at the first size only")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--folder", type=Path, help="where the server keeps its objects; default: the temporary folder")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("bench-checkpoint --device cuda is skipped: torch sees no CUDA device here")
        return 0
    sizes = [float(size) for size in given.megabytes.split(",")]
    cases = [Case("fsdp", int(n), size) for size in sizes for n in given.fsdp.split(",") if n]
    cases += [Case("ddp", int(n), sizes[0]) for n in given.ddp.split(",") if n]
    if given.device == "cuda":
        cases = [case for case in cases if case.ranks <= torch.cuda.device_count()]
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="muster-bench-s3-") as folder:
        log, objects = Path(folder) / "requests.log", Path(folder) / "objects"
        objects.mkdir()
        with serving(objects, log=log, niceness=_SERVER_NICENESS) as server:
            runs, failed = Bench(server, given.device).compare(cases, given.contenders.split(","), given.repetitions)
        results = medians(runs, received_bytes(log))  # the server writes the end of its log when it stops
    for case, by_name in results.items():
        table(f"{case.strategy.upper()}, ranks: {case.ranks}, {case.megabytes:g} MB", by_name)
    print()
    if failed:
        print(f"left out, for they failed: {', '.join(sorted(failed))}; what is measured beside them is missing")
    return 0 if report("checkpoint", *judge(results)) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
