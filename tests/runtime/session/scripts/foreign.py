"""Trains with torchdata's StatefulDataLoader, each rank on its part of the data. FOLDER, STOP: as in elastic.py; with
NOISE the dataset adds some to each sample, and the model to each batch."""

import json
import os
import signal
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

import muster_runtime as muster

warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

session = muster.start()
model = session.wrap(nn.Linear(1, 1))
data = TensorDataset(torch.arange(30.0).view(30, 1))
NOISE = 0.1 if os.environ.get("NOISE") else 0.0


class Noisy(Subset):
    def __getitems__(self, places):
        return [(x + NOISE * torch.rand(1),) for (x,) in super().__getitems__(places)]


own = Noisy(data, range(session.rank, 30, session.world_size))
loader = StatefulDataLoader(own, batch_size=4, shuffle=True, num_workers=int(os.environ.get("WORKERS", "0")))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
session.track(model=model, optimizer=optimizer, loader=loader)
record = (Path(os.environ["FOLDER"]) / f"record-{session.rank}.jsonl").open("a")
for step, (x,) in session.steps(10, loader):
    loss = model(x + NOISE * torch.rand(1)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(json.dumps({"step": step, "ids": x.flatten().tolist(), "loss": loss.item().hex()}), file=record, flush=True)
    if session.rank == 0 and str(step) == os.environ.get("STOP"):
        os.kill(os.getpid(), signal.SIGTERM)
