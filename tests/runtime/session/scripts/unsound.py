"""Trains on sequential data, with losses that are no numbers where it is told; writes each step's with all its bits.

Environment: FOLDER for the records, STEPS or EPOCHS, SAMPLES, BAD (samples: a rank that has one of them has a loss that
is no number, or TIMES what it is), EPOCH (in which BAD counts; else in all), WITHOUT (samples that aren't in the data),
LEFT_OUT (epoch:number of a batch that nobody trains on), STOP (a step in which rank 0 is told to stop when it is there
again), LATE (the loss is reported after the update), READ (steps between two readings of losses, as on GPUs).
"""

import hashlib
import json
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import muster_runtime as muster
from muster_runtime.checkpoint.tree import local_part
from muster_runtime.session import progress

FOLDER = Path(os.environ["FOLDER"])
RANK = os.environ.get("RANK", "0")
EPOCH, TIMES, LATE = os.environ.get("EPOCH", ""), float(os.environ.get("TIMES", "nan")), "LATE" in os.environ
progress.Progress.read_every = property(lambda _: int(os.environ.get("READ", "1")))
BAD, WITHOUT = (set(map(int, os.environ.get(name, "").split())) for name in ("BAD", "WITHOUT"))


class Points(Dataset):
    def __init__(self):
        self.ids = [number for number in range(int(os.environ.get("SAMPLES", "96"))) if number not in WITHOUT]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        number = self.ids[index]
        x = torch.sin(torch.arange(8.0) * (number + 1))
        return x, x.sum().view(1), number


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = self.dropout(torch.relu(layer(x)))
        return self.layers[-1](x)


def digest(*things):
    found = hashlib.sha256()
    for thing in things:
        state = thing.state_dict()
        for _, tensor in sorted(state.items() if isinstance(thing, nn.Module) else states(state)):
            found.update(local_part(tensor).contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def states(state):
    return [(f"{at}.{name}", tensor) for at, one in state["state"].items() for name, tensor in one.items()]


session = muster.start(seed=3)
model = session.wrap(Net())
loader = session.wrap(DataLoader(Points(), batch_size=4))
if "LEFT_OUT" in os.environ:
    loader.leave_out([tuple(map(int, os.environ["LEFT_OUT"].split(":")))])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
session.track(model=model, optimizer=optimizer, schedule=schedule, loader=loader)
trained = []
record = (FOLDER / f"record-{RANK}.jsonl").open("a")


def train(batch):
    x, y, ids = batch
    step = session.step
    trained.append(step)
    if RANK == "0" and str(step) == os.environ.get("STOP") and trained.count(step) == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    loss = nn.functional.mse_loss(model(x), y)
    if BAD & set(ids.tolist()) and EPOCH in ("", str(session.epoch)):
        loss = loss * TIMES
    if not LATE:
        session.report(loss=loss)
    optimizer.zero_grad()
    loss.backward()
    before = digest(model, optimizer)
    optimizer.step()
    if LATE:
        session.report(loss=loss)
    updated = digest(model, optimizer) != before
    entry = {"step": step, "loss": loss.item().hex(), "ids": ids.tolist(), "updated": updated}
    print(json.dumps(entry), file=record, flush=True)


if "EPOCHS" in os.environ:
    for epoch in session.epochs(int(os.environ["EPOCHS"])):
        for batch in loader:
            train(batch)
        schedule.step()
        print(json.dumps({"epoch": epoch, "drawn": torch.rand(()).item()}), file=record, flush=True)
else:
    for _, batch in session.steps(int(os.environ["STEPS"]), loader):
        train(batch)
(FOLDER / f"final-{RANK}").write_text(f"{digest(model, optimizer)} {optimizer.param_groups[0]['lr']} {torch.rand(())}")
