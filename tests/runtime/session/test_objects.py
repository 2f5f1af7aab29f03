"""What can be tracked comes back with all its bits; a state that can't be stored is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gangs import run_gang
from hack.needs_torch import SHARDS

from muster_protocol.checkpoints.inventory import find_start
from muster_runtime.checkpoint.store import open_store


def run(folder: Path, strategy: str, cut: int = 0) -> list[int | None]:
    environment = {
        "FOLDER": str(folder),
        "CUT": str(cut),
        "MUSTER_STRATEGY": strategy,
        "MUSTER_CHECKPOINT_URI": f"file://{folder}/checkpoints",
        "MUSTER_CHECKPOINT_EVERY_STEPS": "2",
    }
    result = run_gang("objects.py", folder, 2, environment)
    assert set(result.codes) == ({9} if cut else {0}), result.output
    return result.codes


def facts(folder: Path) -> list[Any]:
    return [json.loads((folder / f"facts-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=SHARDS)])
def test_everything_tracked_round_trips(strategy: str, tmp_path: Path) -> None:
    run(tmp_path / "whole", strategy)
    run(tmp_path / "cut", strategy, cut=5)
    run(tmp_path / "cut", strategy)
    assert facts(tmp_path / "cut") == facts(tmp_path / "whole")
    for found in facts(tmp_path / "cut"):
        assert found["tied"]
        assert found["frozen"]
    store = open_store(f"file://{tmp_path}/whole/checkpoints")
    tensors = find_start(store, None).manifest.planner["tensors"]
    assert "model.words.weight" in tensors
    assert "model.head.weight" not in tensors, "tied weights are stored once"


FORGETFUL = """
import os
import torch
import muster_runtime as muster

session = muster.start()
model = session.wrap(torch.nn.Linear(2, 1))
average = torch.nn.Linear(2, 1)
average.requires_grad_(False)
more = {} if "FORGETS" in os.environ else {"average": average}
session.track(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), **more)
for step in session.steps(int(os.environ["TOTAL"])):
    pass
"""


def test_what_a_script_tracks_no_more_is_told_before_it_is_in_no_checkpoint(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FORGETFUL)

    def ended(uri: str, total: int, **more: str) -> str:
        variables = {"MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/{uri}", "TOTAL": str(total), **more}
        return run_gang(script, tmp_path / "out", 1, variables, distributed=False).check().output

    ended("run", 1)
    start = {"MUSTER_CHECKPOINT_FROM": f"file://{tmp_path}/run"}
    told = "WARNING: the checkpoint has 'average', which the script does not track: left out"
    assert told not in ended("run", 2)
    assert told in ended("new", 3, FORGETS="1", **start)
    assert told not in ended("tuned", 1, FORGETS="1", MUSTER_CHECKPOINT_FROM_LOAD="model", **start)
    assert told in ended("run", 3, FORGETS="1")
    assert told not in ended("run", 4, FORGETS="1"), "that checkpoint is one without it"


AVERAGED = """
import os
import torch
import muster_runtime as muster


class Average:
    def __init__(self, early):
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()} if early else {}

    def update(self):
        for name, parameter in model.named_parameters():
            self.values[name] = torch.lerp(self.values.get(name, parameter.detach()), parameter.detach(), 0.1)

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = state["values"]
        print("got", {type(one).__name__ for one in self.values.values()})


session = muster.start()
model = session.wrap(torch.nn.Linear(4, 2))
average = Average("EARLY" in os.environ)
session.track(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), average=average)
for step in session.steps(int(os.environ["TOTAL"])):
    if session.resumed_from is None:
        average.update()
"""


@SHARDS
@pytest.mark.parametrize("early", [True, False])
def test_shards_that_a_script_makes_only_in_its_loop_come_back_whole_and_that_is_told(
    early: bool, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(AVERAGED)
    variables = {"MUSTER_STRATEGY": "fsdp", "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    variables |= {"EARLY": "1"} if early else {}
    run_gang(script, tmp_path / "out", 2, {**variables, "TOTAL": "1"}).check()
    output = run_gang(script, tmp_path / "out", 2, {**variables, "TOTAL": "2"}).check().output
    told = (
        "WARNING: the checkpoint has average.values.weight and 1 more in shards, and the script has no sharded tensor"
    )
    assert (told in output) is not early
    assert output.count(f"got {{'{'DTensor' if early else 'Tensor'}'}}") == 2
