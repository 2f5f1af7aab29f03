"""What a save copies beside the next step, in whole runs: the bits are those of the boundary, or it is left out.

The script's state is large enough to be copied late, which begins when the backward pass is done. `PAST` makes updates
that go past torch's hook, as a CUDA graph's do, and leave no trace in a tensor's version: there it begins after them.
`SECOND` gives another model an optimizer of its own, and then these updates are its.
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
import muster_runtime.session.updates
from muster_runtime.checkpoint import staging
from muster_runtime.checkpoint.layout import raw_bytes

copies, move = threading.Event(), staging._move
staging._move = lambda moves: (print("copies late", flush=True), copies.wait(), move(moves))
muster_runtime.session.updates.SEEN_STEPS = int(os.environ.get("SEEN", "100"))

session = muster.start()
models = [session.wrap(nn.Linear(256, 256)) for _ in range(2 if os.environ.get("SECOND") else 1)]
optimizers = [torch.optim.AdamW(model.parameters(), 0.1, fused=True) for model in models]
named = [("model", models), ("optimizer", optimizers)]
session.track(**{f"{name}{at}": one for name, things in named for at, one in enumerate(things)})
first, every, past = (int(os.environ.get(name, at)) for name, at in (("FIRST", 0), ("EVERY", 1), ("PAST", 99)))

def digest():
    tensors = [parameter for model in models for parameter in model.parameters()]
    tensors += [t for optimizer in optimizers for state in optimizer.state.values() for t in state.values()]
    return hashlib.sha256(b"".join(bytes(raw_bytes(t.detach())) for t in tensors)).hexdigest()

def settle():  # or the next save would be left out for this one
    flight = session.run.saves.persistence.saver.flight
    if flight is not None and flight.staging._thread is not None:
        flight.staging._thread.result()
    pending = None if flight is None else flight.commit if flight.committing else flight.files
    if pending is not None and flight.handed_over:
        pending.exception()

digests = {}
for step in session.steps(int(os.environ["STEPS"])):
    digests[step] = digest()
    sum(model(torch.randn(4, 256)).square().sum() for model in models).backward()
    if step < past:
        copies.set()
    if (step + 1) % every == 0 and step >= first:
        if step < past:
            optimizers[-1].step()
        else:
            type(optimizers[-1]).step.__wrapped__(optimizers[-1])
        copies.set()
        for optimizer in optimizers[:-1]:
            optimizer.step()
        for optimizer in optimizers:
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


def resumed(folder: Path, step: int, ranks: int = 1, **more: str) -> str:
    """What the checkpoint of `step` has."""
    other = folder / f"from-{step}"
    other.mkdir()
    where = f"file://{folder}/checkpoints@{step}"
    train(other, step + 1, ranks, MUSTER_CHECKPOINT_FROM=where, MUSTER_CHECKPOINT_FROM_LOAD="all", **more)
    found = digests(other)
    assert list(found) == [str(step)], "it began elsewhere"
    return found[str(step)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_checkpoint_has_the_bits_of_its_boundary(ranks: int, tmp_path: Path) -> None:
    result = train(tmp_path, 9, ranks)
    assert "left out" not in result.output
    assert "given up" not in result.output
    assert "copies late" in result.output
    assert resumed(tmp_path, 4, ranks) == digests(tmp_path)["4"]
    assert resumed(tmp_path, 8, ranks) == digests(tmp_path)["8"]


@pytest.mark.parametrize("second", ["", "1"])
def test_an_update_that_nobody_sees_gives_up_one_save_and_tears_none(second: str, tmp_path: Path) -> None:
    result = train(tmp_path, 13, PAST="4", SECOND=second)
    assert result.output.count("the checkpoint of step 4 is given up") == 1, result.output
    assert result.output.count("given up") == 1
    assert "checkpoint of step 4 committed" not in result.output
    for step in (6, 8, 12):  # 5 is where it was given up, and the next boundary has the save that takes its place
        assert f"checkpoint of step {step} committed" in result.output, result.output
    assert resumed(tmp_path, 12, SECOND=second) == digests(tmp_path)["12"]


@pytest.mark.parametrize("way", [{"EVERY": "2"}, {"FIRST": "3"}, {"PAST": "0"}, {"PAST": "0", "SECOND": "1"}])
def test_where_not_every_step_has_an_update_nothing_is_copied_late(way: dict[str, str], tmp_path: Path) -> None:
    result = train(tmp_path, 9, **way)
    assert "given up" not in result.output
    assert "copies late" not in result.output
    assert resumed(tmp_path, 8, SECOND=way.get("SECOND", "")) == digests(tmp_path)["8"]


def test_after_some_steps_with_all_updates_it_is_tried_again(tmp_path: Path) -> None:
    result = train(tmp_path, 9, FIRST="3", SEEN="4")
    assert result.output.count("copies late") == 1, result.output  # the saves are of steps 4, 8 and the last
    assert resumed(tmp_path, 8) == digests(tmp_path)["8"]
