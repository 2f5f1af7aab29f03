"""What the gangs of `make chaos` train: a small model in quick steps, and one journal line for each step of a rank.

A line is written after the optimizer's step, so it is known to a few milliseconds when a gang trained. Times are those
of CLOCK_MONOTONIC, which is the same in all pods of one machine.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from types import FrameType

import torch
from torch import nn
from torch.utils.data import Dataset

import muster_runtime as muster

FEATURES = 32
SAMPLES = 4096


class Points(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Points and a rule to be learnt; each sample knows its number."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=made)
        rule = self.inputs[:, :4].prod(dim=1) + self.inputs.sin().sum(dim=1)
        self.targets = rule.tanh().unsqueeze(1)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.inputs[index], self.targets[index]


class Journal:
    """One file for each rank; every start of the script appends to it."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        pod = os.environ.get("MUSTER_POD_NAME", "")
        self._head = {"rank": rank, "world": world, "pod": pod, "born": time.monotonic()}
        self._file = os.open(folder / f"rank-{rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, step: int, loss: float, samples: list[int]) -> None:
        times = {"at": time.monotonic(), "wall": time.time()}
        line = {**self._head, **times, "step": step, "loss": loss.hex(), "samples": samples}
        os.write(self._file, (json.dumps(line) + "\n").encode())  # one write: a rank that is killed leaves no half line


class OrderedFaultError(Exception):
    """SIGUSR1 asks for an exception in the middle of the script."""


def _fall(number: int, frame: FrameType | None) -> None:
    raise OrderedFaultError("SIGUSR1 asked for this exception")


def _take_memory(number: int, frame: FrameType | None) -> None:
    taken = []
    while True:
        taken.append(b"x" * 2**24)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds that a step waits besides its work")
    parser.add_argument("--ballast", type=int, default=0, help="MiB more in the checkpoint, so that saves take longer")
    parser.add_argument("--journal", type=Path, default=Path("/journal"))
    args = parser.parse_args()

    signal.signal(signal.SIGUSR1, _fall)
    signal.signal(signal.SIGUSR2, _take_memory)
    session = muster.start()
    journal = Journal(args.journal, session.rank, session.world_size)
    model = session.wrap(nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1)))
    loader = session.loader(Points(), global_batch=24, microbatch=4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session.track(model=model, optimizer=optimizer, loader=loader)
    if args.ballast:
        session.track(ballast=nn.ParameterList([torch.zeros(args.ballast, 2**18)]))

    for step, batch in session.steps(args.steps, loader):
        total, samples = 0.0, []
        for numbers, inputs, targets in batch:
            loss = nn.functional.mse_loss(model(inputs), targets)
            session.backward(loss)
            total += loss.item()
            samples += numbers[: session.samples].tolist()
        time.sleep(args.pace)
        optimizer.step()
        optimizer.zero_grad()
        journal.write(step, total, samples)


if __name__ == "__main__":
    main()
