"""Trains with torchdata's StatefulDataLoader, each rank on its part of the data. FOLDER, STOP: as in elastic.py."""

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
own = Subset(data, range(session.rank, 30, session.world_size))
loader = StatefulDataLoader(own, batch_size=4, shuffle=True, num_workers=int(os.environ.get("WORKERS", "0")))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
session.track(model=model, optimizer=optimizer, loader=loader)
record = (Path(os.environ["FOLDER"]) / f"record-{session.rank}.jsonl").open("a")
for step, (x,) in session.steps(10, loader):
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(json.dumps({"step": step, "ids": x.flatten().tolist(), "loss": loss.item().hex()}), file=record, flush=True)
    if session.rank == 0 and str(step) == os.environ.get("STOP"):
        os.kill(os.getpid(), signal.SIGTERM)
