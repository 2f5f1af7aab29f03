"""A run of millions of small steps takes no more memory for each."""

from __future__ import annotations

from pathlib import Path

import pytest
from gangs import run_gang

SCRIPT = """
import gc, os, sys
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
import muster_runtime as muster

session = muster.start()
model = session.wrap(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
data, elastic = TensorDataset(torch.ones(4000, 1)), bool(os.environ["ELASTIC"])
loader = session.loader(data, global_batch=4, microbatch=2) if elastic else session.wrap(DataLoader(data, 4))
session.track(model=model, optimizer=optimizer, loader=loader)

def train(batch):
    for (x,) in batch if elastic else [batch]:
        loss = model(x).mean()
        session.backward(loss) if elastic else loss.backward()
    session.report(accuracy=0.5, tokens=4, **({} if elastic else {"loss": loss}))
    optimizer.step()
    optimizer.zero_grad()

for step, batch in session.steps(1200, loader):
    train(batch)
    if step in (750, 1150):  # when as much is done since the last save
        gc.collect()
        with Path(os.environ["FOLDER"], "taken").open("a") as file:
            print(sys.getallocatedblocks(), file=file)
"""
STEPS = 400
LEFT_AT_MOST = 0.8
"""Objects a step; torch itself leaves some behind."""


@pytest.mark.parametrize("elastic", ["", "1"])
@pytest.mark.parametrize("numerics", ["", "skip", "rollback"])
def test_no_step_leaves_anything_behind(numerics: str, elastic: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {"FOLDER": str(tmp_path), "ELASTIC": elastic, "MUSTER_NUMERICS": numerics}
    if numerics:
        environment |= {
            "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run",
            "MUSTER_CHECKPOINT_EVERY_STEPS": "100",
            "MUSTER_CHECKPOINT_BLOCKING": "1",
        }
    run_gang(tmp_path / "script.py", tmp_path, 1, environment, distributed=False).check()
    before, after = map(int, (tmp_path / "taken").read_text().split())
    assert (after - before) / STEPS < LEFT_AT_MOST
