"""What a save copies beside the next step, in whole runs: the bits are those of the boundary, or it is left out.

The script's state is large enough to be copied late, which begins when the backward pass is done. `PAST` makes updates
that go past torch's hook, as a CUDA graph's do, and leave no trace in a tensor's version: there it begins after them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gangs import Result, run_gang

SCRIPT = """
import hashlib, json, os, threading
import torch
from torch import nn
import muster_runtime as muster
from muster_runtime.checkpoint import staging
from muster_runtime.checkpoint.layout import raw_bytes

copies, move = threading.Event(), staging._move
staging._move = lambda moves: (copies.wait(), move(moves))

session = muster.start()
model = session.wrap(nn.Linear(256, 256))
optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=True)
session.track(model=model, optimizer=optimizer)
first, every, past = (int(os.environ.get(name, at)) for name, at in (("FIRST", 0), ("EVERY", 1), ("PAST", 99)))

def digest():
    tensors = [*model.parameters(), *(t for state in optimizer.state.values() for t in state.values())]
    return hashlib.sha256(b"".join(bytes(raw_bytes(t.detach())) for t in tensors)).hexdigest()

def settle():  # or the next save would be left out for this one
    flight = session.run.saves.persistence._keeper._saver.flight
    pending = None if flight is None else flight.commit if flight.committing else flight.files
    if pending is not None and flight.handed_over:
        pending.exception()

digests = {}
for step in session.steps(int(os.environ["STEPS"])):
    digests[step] = digest()
    model(torch.randn(4, 256)).square().sum().backward()
    if step < past:
        copies.set()
    if (step + 1) % every == 0 and step >= first:
        if step < past:
            optimizer.step()
        else:
            type(optimizer).step.__wrapped__(optimizer)
        optimizer.zero_grad()
    copies.set()
    settle()
    copies.clear()
with open(os.environ["FOLDER"] + "/digests.json", "w") as file:
    json.dump(digests, file)
"""


def train(folder: Path, steps: int, ranks: int = 1, **more: str) -> Result:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = {
        "FOLDER": str(folder),
        "STEPS": str(steps),
        "MUSTER_CHECKPOINT_URI": f"file://{folder}/checkpoints",
        "MUSTER_CHECKPOINT_EVERY_STEPS": "4",
        **more,
    }
    return run_gang(script, folder, ranks, environment).check()


def digests(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "digests.json").read_text())
    return found


def resumed(folder: Path, step: int, ranks: int = 1) -> str:
    """What the checkpoint of `step` has."""
    other = folder / f"from-{step}"
    other.mkdir()
    where = f"file://{folder}/checkpoints@{step}"
    train(other, step + 1, ranks, MUSTER_CHECKPOINT_FROM=where, MUSTER_CHECKPOINT_FROM_LOAD="all")
    found = digests(other)
    assert list(found) == [str(step)], "it began elsewhere"
    return found[str(step)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_checkpoint_has_the_bits_of_its_boundary(ranks: int, tmp_path: Path) -> None:
    result = train(tmp_path, 9, ranks)
    assert "left out" not in result.output
    assert resumed(tmp_path, 4, ranks) == digests(tmp_path)["4"]
    assert resumed(tmp_path, 8, ranks) == digests(tmp_path)["8"]


def test_an_update_that_nobody_sees_costs_one_save_and_tears_none(tmp_path: Path) -> None:
    result = train(tmp_path, 13, PAST="4")
    assert result.output.count("the checkpoint of step 4 is left out: no optimizer's step was seen") == 1, result.output
    assert result.output.count("left out") == 1
    assert resumed(tmp_path, 8) == digests(tmp_path)["8"]
    assert resumed(tmp_path, 12) == digests(tmp_path)["12"]


@pytest.mark.parametrize("way", [{"EVERY": "2"}, {"FIRST": "3"}, {"PAST": "0"}])
def test_where_not_every_step_has_an_update_nothing_is_copied_late(way: dict[str, str], tmp_path: Path) -> None:
    result = train(tmp_path, 9, **way)
    assert "left out" not in result.output
    assert resumed(tmp_path, 8) == digests(tmp_path)["8"]
