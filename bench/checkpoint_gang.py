"""One rank of `bench/checkpoint.py`: trains and saves by one contender, or restores what was saved, and prints what it
measured.

    python checkpoint_gang.py PHASE CONTENDER STRATEGY MEGABYTES PREFIX DEVICE

PHASE is `save` or `restore`. A restore is in a process of its own, as after a crash: nothing of the state is in memory
that it had before. The state is a stack of square layers under AdamW: 12 bytes a parameter, in fp32.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW

from checkpoint_contenders import Contender, makers
from muster_runtime.checkpoint.layout import raw_bytes
from muster_runtime.checkpoint.tree import local_part
from muster_runtime.parallel.gang import Gang
from muster_runtime.parallel.wrap import unwrap, wrap_model

WIDTH: Final = 1024
BATCH: Final = 64
BYTES_PER_LAYER: Final = 12 * (WIDTH * WIDTH + WIDTH)
BASELINE_STEPS: Final = 6
BESIDE: Final = 3
"""Saves beside the training. A stall may be shorter than steps differ by themselves, so one says little."""
SETTLING_STEPS: Final = (20, 60)
"""At least and at most, until the training's own memory no longer grows: gloo's and malloc's. After 20 steps it still
does, by 50 to 70 MB, which passed for a save's of a tenth of a state of 500 MB. Of a large state that is little, and
its steps take long."""
STEPS_AT_MOST: Final = 400


class Training:
    """The model, its optimizer and one step of them."""

    def __init__(self, strategy: str, megabytes: float, gang: Gang, device: torch.device) -> None:
        torch.manual_seed(0)
        layers = math.ceil(megabytes * 1e6 / BYTES_PER_LAYER)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)))
        self._gang, self._device = gang, device
        self.model = wrap_model(
            model,
            strategy=strategy,
            device=device,
            world_size=gang.world_size,
            ranks_per_worker=gang.world_size,
            precision="fp32",
            ddp={},
            fsdp={},
            where="bench",
        )
        self.optimizer = AdamW(self.model.parameters(), lr=1e-4)
        self.state_bytes = layers * BYTES_PER_LAYER

    def step(self, staged: Callable[[], None] = lambda: None) -> float:
        """Seconds that one step took on this rank, the exchange at its boundary included."""
        began = time.monotonic()
        self.optimizer.zero_grad()
        self.model(torch.randn(BATCH, WIDTH, device=self._device)).square().mean().backward()
        staged()
        self.optimizer.step()
        self.wait()
        self._gang.sum([0.0])
        return time.monotonic() - began

    def wait(self) -> None:
        """For what the device has still to do."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _tensors(self) -> list[torch.Tensor]:
        states = [*unwrap(self.model).state_dict().values()]
        states += [t for s in self.optimizer.state_dict()["state"].values() for _, t in sorted(s.items())]
        return [local_part(t).detach().contiguous() for t in states]

    def digest(self) -> str:
        """SHA-256 of all tensors' bytes; equal when the tensors are, bit for bit."""
        digest = hashlib.sha256()
        for tensor in self._tensors():
            digest.update(raw_bytes(tensor.cpu()))
        return digest.hexdigest()

    def bytes_of_optimizer(self) -> int:
        """In this process's memory."""
        if self._device.type != "cpu":
            return 0
        return sum(local_part(t).nbytes for s in self.optimizer.state.values() for t in s.values())

    def zero(self) -> None:
        """What is initialised is not what was saved."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                local_part(parameter).zero_()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # or freed memory would pass for what a restore needs


Told = dict[str, float | str]
"""Of this rank: figures in seconds and bytes, and the digest of what was saved last, or restored."""


def measure_saves(training: Training, contender: Contender, gang: Gang) -> Told:
    """Saves with training waiting, then some beside it; of those the medians, and the digest of what the last has."""
    figures: dict[str, float] = {}
    contender.begin()
    _reset_peak()
    least, most = SETTLING_STEPS
    for _ in range(max(least, min(most, round(most * 500e6 / training.state_bytes)))):
        training.step()
    quiet_peak = _peak() - sum(_unshared(pid) for pid in _children())
    for name in ("first_save_s", "durable_s"):
        gang.gather(0)
        cpu, began = _cpu(), time.monotonic()
        contender.save_now(1 + len(figures))
        figures[name] = time.monotonic() - began
        figures["cpu_s"] = _cpu() - cpu

    rounds = []
    for step in range(9, 9 + BESIDE):
        base = statistics.median(training.step() for _ in range(BASELINE_STEPS))
        digest = training.digest()
        gang.gather(0)
        rounds.append(_beside(training, contender, step, base))
    known = {key: [each[key] for each in rounds if not math.isnan(each[key])] for key in rounds[0]}
    figures |= {key: statistics.median(values) if values else math.nan for key, values in known.items()}
    figures["save_peak_bytes"] = _peak() - quiet_peak
    return {**figures, "digest": digest}


def _beside(training: Training, contender: Contender, step: int, base: float) -> dict[str, float]:
    """A save beside the training, until it is durable. `base`: seconds of a step without one."""
    began = time.monotonic()
    contender.save(step)
    training.wait()
    returned = time.monotonic() - began
    behind = [training.step(contender.staged)]
    while not contender.durable() and len(behind) < STEPS_AT_MOST:
        behind.append(training.step())
    return {
        "step_s": base,
        "return_s": returned,
        "beside_s": time.monotonic() - began,
        "stall_s": max(0.0, returned + behind[0] - base),
        "slowdown": statistics.median(behind[1:]) / base if len(behind) > 2 else math.nan,
    }


def measure_restore(training: Training, contender: Contender, gang: Gang) -> Told:
    """A restore by a contender that has just been made."""
    training.zero()
    gang.gather(0)
    _reset_peak()
    held, cpu, began = _resident(), _cpu(), time.monotonic()
    contender.restore()
    training.wait()
    gang.gather(0)
    took, cpu = time.monotonic() - began, _cpu() - cpu
    peak = _peak() - held - training.bytes_of_optimizer()
    return {
        "restore_s": took,
        "restore_cpu_s": cpu,
        "restore_peak_bytes": peak,
        "digest": training.digest(),
    }


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
    return _status("self")["VmRSS"] + sum(_unshared(pid) for pid in _children())


def _unshared(pid: str) -> int:
    status = _status(pid)
    return status["VmRSS"] - status["RssShmem"]


def _cpu() -> float:
    total = time.process_time()
    for pid in _children():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def main(phase: str, name: str, strategy: str, megabytes: str, prefix: str, kind: str) -> None:
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    gang = Gang(rank, world_size, dist.new_group(backend="gloo") if world_size > 1 else None)
    contender = makers([name], device)[name](gang, prefix)
    training = Training(strategy, float(megabytes), gang, device)
    if phase == "save":
        training.step()  # the optimizer's state comes into being
    contender.attach(training.model, training.optimizer)
    told = (measure_saves if phase == "save" else measure_restore)(training, contender, gang)
    contender.close()
    print(json.dumps({**told, "state_bytes": training.state_bytes}), flush=True)
    dist.destroy_process_group()
    os._exit(0)  # threads that async_save leaves behind keep an interpreter from ending


if __name__ == "__main__":
    main(*sys.argv[1:])
