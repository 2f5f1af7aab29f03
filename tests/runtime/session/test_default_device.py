"""A script may choose where its tensors are made (`torch.set_default_device`): what Muster makes for itself is no part
of that. No device but the meta device is everywhere, and what lands there is lost at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from gangs import run_gang

pytestmark = pytest.mark.runtime

SCRIPT = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import muster_runtime as muster

class History:
    values = []

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = state["values"]

session = muster.start(seed=1)
model = session.wrap(nn.Linear(4, 4))
data = TensorDataset(torch.arange(64.0).reshape(16, 4))
if os.environ["LOADER"] == "elastic":
    loader = session.loader(data, global_batch=4, microbatch=1, shuffle=True)
else:
    loader = session.wrap(DataLoader(data, 4, shuffle=True, num_workers=1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
history = History()
session.track(model=model, optimizer=optimizer, loader=loader, history=history)
torch.set_default_device(os.environ["DEVICE"])
for step, batch in session.steps(6, loader):
    if os.environ["LOADER"] == "elastic":
        for (inputs,) in batch:
            session.backward(model(inputs).square().mean(), weight=2)
    else:
        model(batch[0]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    history.values.append(torch.full((step + 1,), step, device="cpu"))
    if step == 4 and os.environ["CUT"]:
        os._exit(9)
if session.is_leader:
    print("END", session.resumed_from, [p.tolist() for p in model.parameters()], [v.tolist() for v in history.values])
"""


@pytest.mark.parametrize(("ranks", "loader"), [(1, "wrapped"), (2, "wrapped"), (2, "elastic")])
def test_a_resume_has_every_bit_wherever_the_script_makes_its_tensors(ranks: int, loader: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def end(device: str) -> str:
        folder = tmp_path / device
        environment = {"LOADER": loader, "DEVICE": device, "MUSTER_CHECKPOINT_URI": f"file://{folder}/checkpoints"}
        environment |= {"MUSTER_CHECKPOINT_EVERY_STEPS": "2", "MUSTER_CHECKPOINT_BLOCKING": "1"}
        cut = run_gang(script, folder, ranks, {**environment, "CUT": "1"}, distributed=ranks > 1)
        assert set(cut.codes) == {9}, cut.output
        again = run_gang(script, folder, ranks, {**environment, "CUT": ""}, distributed=ranks > 1).check()
        (told,) = [line for line in again.outputs[0].splitlines() if line.startswith("END")]
        return told

    whole = end("cpu")
    assert whole.startswith("END 4 ")
    assert end("meta") == whole
