"""One rank of `bench/checkpoint.py`: trains, saves by one contender, trains on, restores, and prints what it measured.

    python checkpoint_gang.py CONTENDER STRATEGY MEGABYTES PREFIX

The state is a stack of square layers under AdamW: 12 bytes a parameter, in fp32.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW

from checkpoint_contenders import Contender, makers
from muster_runtime.checkpoint.tree import local_part
from muster_runtime.parallel.gang import Gang
from muster_runtime.parallel.wrap import unwrap, wrap_model

WIDTH: Final = 1024
BATCH: Final = 64
BYTES_PER_LAYER: Final = 12 * (WIDTH * WIDTH + WIDTH)
BASELINE_STEPS: Final = 6
STEPS_AT_MOST: Final = 400


class Training:
    """The model, its optimizer and one step of them."""

    def __init__(self, strategy: str, megabytes: float, gang: Gang) -> None:
        torch.manual_seed(0)
        layers = math.ceil(megabytes * 1e6 / BYTES_PER_LAYER)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)))
        self._gang = gang
        self.model = wrap_model(
            model,
            strategy=strategy,
            device=torch.device("cpu"),
            world_size=gang.world_size,
            ranks_per_worker=gang.world_size,
            precision="fp32",
            ddp={},
            fsdp={},
            where="bench",
        )
        self.optimizer = AdamW(self.model.parameters(), lr=1e-4)
        self.state_bytes = layers * BYTES_PER_LAYER

    def step(self) -> float:
        """Seconds that one step took on this rank, the exchange at its boundary included."""
        began = time.monotonic()
        self.optimizer.zero_grad()
        self.model(torch.randn(BATCH, WIDTH)).square().mean().backward()
        self.optimizer.step()
        self._gang.sum([0.0])
        return time.monotonic() - began

    def digest(self) -> list[float]:
        """One number a tensor; equal when the tensors are."""
        states = [*unwrap(self.model).state_dict().values()]
        states += [t for s in self.optimizer.state_dict()["state"].values() for t in s.values()]
        return [float(local_part(t).double().sum()) for t in states]

    def spoil(self) -> None:
        """So that a restore that does nothing is seen."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                local_part(parameter).zero_()


def measure(training: Training, contender: Contender, gang: Gang) -> dict[str, float]:
    """Figures of this rank: a first save, then a measured one, then a restore. Seconds, bytes."""
    training.step()
    _reset_peak()
    before = _status("self")["VmRSS"]
    first = time.monotonic()
    contender.save(1)
    while not contender.durable():
        training.step()
    figures = {"first_save_s": time.monotonic() - first}
    quiet = [training.step() for _ in range(BASELINE_STEPS)]
    base = statistics.median(quiet)

    cpu, began = _cpu(), time.monotonic()
    contender.save(2)
    figures["return_s"] = time.monotonic() - began
    saved = training.digest() if figures else []
    behind: list[float] = []
    resumed = time.monotonic()
    busy = True
    while busy and len(behind) < STEPS_AT_MOST:
        behind.append(training.step())
        busy = not contender.durable()
    done = time.monotonic()
    # the digest above is the bench's own work
    digesting = resumed - began - figures["return_s"]
    figures["stall_s"] = max(0.0, figures["return_s"] + behind[0] - base)
    figures["durable_s"] = done - began - digesting if len(behind) > 1 else figures["return_s"]
    figures["cpu_s"] = _cpu() - cpu
    figures["step_s"] = base
    figures["slowdown"] = statistics.median(behind[1:]) / base if len(behind) > 3 else math.nan
    figures["save_peak_bytes"] = _peak() - before

    training.spoil()
    gang.gather(0)
    _reset_peak()
    held, cpu, began = _resident(), _cpu(), time.monotonic()
    contender.restore()
    gang.gather(0)
    figures["restore_s"] = time.monotonic() - began
    figures["restore_cpu_s"] = _cpu() - cpu
    figures["restore_peak_bytes"] = _peak() - held
    figures["same"] = float(training.digest() == saved)
    return figures


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def _status(pid: str) -> dict[str, int]:
    """Bytes by name, of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}


def _reset_peak() -> None:
    for pid in ["self", *_children()]:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peak() -> int:
    """Of this process and its children; memory that they share counts here alone."""
    shared = [_status(pid) for pid in _children()]
    return _status("self")["VmHWM"] + sum(status["VmHWM"] - status["RssShmem"] for status in shared)


def _resident() -> int:
    shared = [_status(pid) for pid in _children()]
    return _status("self")["VmRSS"] + sum(status["VmRSS"] - status["RssShmem"] for status in shared)


def _cpu() -> float:
    total = time.process_time()
    for pid in _children():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def main(name: str, strategy: str, megabytes: str, prefix: str) -> None:
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    gang = Gang(rank, world_size, dist.new_group(backend="gloo") if world_size > 1 else None)
    training = Training(strategy, float(megabytes), gang)
    training.step()  # the optimizer's state comes into being
    contender = makers([name])[name](training.model, training.optimizer, gang, prefix)
    figures = measure(training, contender, gang)
    contender.close()
    print(json.dumps({**figures, "state_bytes": training.state_bytes}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
