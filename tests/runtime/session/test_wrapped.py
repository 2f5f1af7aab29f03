"""Modules under wrappers, whose names a model's state leaves out, as in activation checkpointing, or has at times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from gangs import run_gang
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from muster_runtime.checkpoint.tree import split
from muster_runtime.parallel.gang import Gang
from muster_runtime.session import restoration, tracking
from muster_runtime.session.tracking import Tracked

pytestmark = pytest.mark.runtime


def model(*, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), cast(nn.Module, checkpoint_wrapper(nn.Linear(2, 2, bias=bias))))


@dataclass
class Follower:
    leads: bool = False


def test_its_parameters_are_replicas_that_every_rank_may_write() -> None:
    tracked = Tracked("model", model(), "here")
    _, tensors = split("model", tracked.state())
    assert sorted(tensors) == ["model.0.bias", "model.0.weight", "model.1.bias", "model.1.weight"]
    assert tracking._own_share(tracked, tensors, cast(Gang, Follower())).keys() == tensors.keys()


def test_one_that_the_checkpoint_lacks_is_told() -> None:
    tracked = Tracked("model", model(), "here")
    state: dict[str, Any] = model(bias=False).state_dict()
    with pytest.raises(ValueError, match=r"it has no 1\.bias"):
        restoration._load(tracked, tracked.thing, state)
    restoration._load(tracked, tracked.thing, {**state, "1.bias": torch.zeros(2)})


SCRIPT = """
import os
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
import muster_runtime as muster

session = muster.start()
net = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
if os.environ.get("COMPILED"):
    net[0] = torch.compile(net[0], backend="eager")
model = session.wrap(net)
average = AveragedModel(model, avg_fn=lambda old, new, count: old / 2 + new / 2)
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
session.track(model=model, optimizer=optimizer, average=average)

def told(when):
    if session.is_leader:
        print(when, [p.tolist() for m in (model, average) for p in m.parameters()], int(average.n_averaged))

for step in session.steps(int(os.environ["STEPS"])):
    if step == (session.resumed_from or 0):
        told("begins with")
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    average.update_parameters(model)
told("ends with")
"""


@pytest.mark.parametrize("gangs", [(2, 1, 2), ("compiled", 1, "compiled", 2)])
def test_names_of_wrappers_are_no_part_of_what_is_restored(gangs: tuple[int | str, ...], tmp_path: Path) -> None:
    """Neither DDP's in an average, which gangs of one rank have not, nor that of a part that is compiled."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    known = ""
    for number, gang in enumerate(gangs, 1):
        ranks = gang if isinstance(gang, int) else 1
        variables = {"MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run", "STEPS": str(2 * number)}
        variables |= {"COMPILED": "yes"} if isinstance(gang, str) else {}
        lines = run_gang(script, tmp_path, ranks, variables, distributed=ranks > 1).check().outputs[0].splitlines()
        (begins,) = (line.removeprefix("begins with ") for line in lines if line.startswith("begins with"))
        assert begins == known or number == 1
        (known,) = (line.removeprefix("ends with ") for line in lines if line.startswith("ends with"))


def test_a_key_that_fits_two_is_taken_for_neither() -> None:
    own = {"a": 0, "module.a": 0, "b": 0}
    assert restoration._under_own_keys({"module.module.a": 1, "module.b": 2}, own) == {"module.module.a": 1, "b": 2}
    assert restoration._under_own_keys({"module.module.a": 1, "module.a": 2}, own) == {"a": 1, "module.a": 2}
