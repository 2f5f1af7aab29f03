"""A run for pictures of dashboards: all that a real one tells, at little of a processor; rank 1 is slower.

python light.py PAUSE: seconds that each step waits, so that others may run beside it.
"""

from __future__ import annotations

import math
import sys
import time

import torch
from torch.utils.data import TensorDataset

import muster_runtime as muster

WIDTH, SAMPLES, BATCH = 64, 4096, 32
SLOWER = 1.8
UNSOUND = 40  # the step whose loss isn't a number

pause = float(sys.argv[1])
session = muster.start()
torch.manual_seed(1)
inputs = torch.randn(SAMPLES, WIDTH)
loader = session.loader(TensorDataset(inputs, inputs.cumsum(1)), global_batch=BATCH, shuffle=True)
model = session.wrap(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session.track(model=model, optimizer=optimizer, loader=loader)
session.peak_flops = 1e9  # a processor's, more or less
for step, part in session.steps(20_000, loader):
    time.sleep(pause * (SLOWER if session.rank == 1 else 1))
    optimizer.zero_grad()
    for given, wanted in part:
        loss = torch.nn.functional.mse_loss(model(given), wanted)
        session.backward(loss * math.nan if step == UNSOUND else loss)
    optimizer.step()
    session.report(tokens=given.numel())
