"""A resume takes an optimizer's and a scheduler's values from the checkpoint; what a script now asks for is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from gangs import run_gang
from hack.needs_torch import needs_torch
from torch import nn
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
)

from muster_runtime.session.asked import Asked, asked, changes
from muster_runtime.session.tracking import Tracked

SCRIPT = """
import torch
import muster_runtime as muster

session = muster.start(seed=0)
model = session.wrap(torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
session.track(model=model, optimizer=optimizer, scheduler=scheduler)
for step in session.steps(4):
    loss = model(torch.randn(8, 4)).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step(); scheduler.step()
    session.report(loss=loss)
"""

DECOUPLED = "; .*decoupled_weight_decay" if issubclass(torch.optim.AdamW, torch.optim.Adam) else ""
"""The option that makes the one of the other; up to torch 2.6 each was a class of its own."""


def run(folder: Path, script: str) -> str:
    (folder / "script.py").write_text(script)
    uri = {"MUSTER_CHECKPOINT_URI": f"file://{folder}/run", "MUSTER_CHECKPOINT_EVERY_STEPS": "2"}
    return run_gang(folder / "script.py", folder, 1, uri, distributed=False).check().output


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("lr=0.01", "lr=0.001"), "optimizer's lr is 0.001 in the script and was 0.01"),
        (
            ("optim.Adam(", "optim.AdamW("),
            "optimizer's kind is AdamW in the script and was Adam" + DECOUPLED,
        ),
        (("T_max=4", "T_max=8"), "scheduler's T_max is 8 in the script and was 4"),
        (("seed=0", "seed=1"), "the seed is 1 now and was 0"),
    ],
    ids=["lr", "kind", "scheduler", "seed"],
)
def test_what_is_changed_between_two_runs_is_told_each_time(change: tuple[str, str], told: str, tmp_path: Path) -> None:
    assert "in the script" not in run(tmp_path, SCRIPT)
    longer = SCRIPT.replace("steps(4)", "steps(6)")
    assert "WARNING" not in run(tmp_path, longer), "what a resume itself changes isn't the script's"
    for total in (8, 10):  # its own checkpoints, too, are of values that the script doesn't ask for
        output = run(tmp_path, SCRIPT.replace(*change).replace("steps(4)", f"steps({total})"))
        assert re.search(f"WARNING: {told}", output), output


def words(*things: object) -> Asked:
    return asked([Tracked(f"thing{number}", thing, "script.py:1") for number, thing in enumerate(things)])


def test_schedules_inside_others_count_and_values_that_differ_by_process_do_not() -> None:
    def made(milestone: int, factor: float) -> Asked:
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=torch.tensor(0.5))
        parts = [LinearLR(optimizer, 0.1, total_iters=3), ConstantLR(optimizer, factor), LambdaLR(optimizer, float)]
        return words(optimizer, SequentialLR(optimizer, parts, [3, 6]), MultiStepLR(optimizer, [milestone]))

    assert made(4, 0.5) == made(4, 0.5)
    assert changes(made(4, 0.5), made(4, 0.5)) == ""
    told = changes(made(4, 0.5), made(5, 0.25))
    assert "thing1's 1.factor is 0.25 in the script and was 0.5" in told
    assert "thing2's milestones is {5: 1} in the script and was {4: 1}" in told


class Phases(LRScheduler):
    """A script's own, with two of torch's inside."""

    def __init__(self, optimizer: torch.optim.Optimizer, factor: float) -> None:
        self.factor = factor
        self._schedulers = {"warm": LinearLR(optimizer, 0.1, total_iters=3), "then": ConstantLR(optimizer, 0.5)}
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        return [group["lr"] for group in self.optimizer.param_groups]


class InADict(Phases):
    def state_dict(self) -> Any:
        inner = {name: one.state_dict() for name, one in self._schedulers.items()}
        return {"factor": self.factor, "_schedulers": inner, 7: "of no name"}


class InATuple(Phases):
    def state_dict(self) -> Any:
        return self.factor, [one.state_dict() for one in self._schedulers.values()]


class AsTheyAre(Phases):
    """Its state has the schedulers themselves, as torch's `state_dict` makes it: no checkpoint takes that."""

    def __init__(self, optimizer: torch.optim.Optimizer, factor: float) -> None:
        super().__init__(optimizer, factor)
        self._schedulers = list(self._schedulers.values())  # type: ignore[assignment]


@pytest.mark.parametrize(("kind", "named"), [(InADict, True), (InATuple, False), (Phases, True), (AsTheyAre, True)])
def test_a_scheduler_of_the_scripts_own_may_have_a_state_of_any_form(kind: type[Phases], named: bool) -> None:
    def made(factor: float) -> Asked:
        return words(kind(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5), factor))

    assert made(1.0) == made(1.0)
    assert ("thing0's factor is 2.0 in the script and was 1.0" in changes(made(1.0), made(2.0))) is named


def test_what_is_of_another_kind_is_not_said_to_go_on_as_it_was() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5)
    then, now = words(optimizer, MultiStepLR(optimizer, [3])), words(optimizer, CosineAnnealingLR(optimizer, 10))
    told = changes(then, now)
    assert told.startswith("thing1's kind is CosineAnnealingLR in the script and was MultiStepLR. ")
    assert "has, by which thing1 now computes as the script's kind does: " in told
    assert "computes" not in changes(then, words(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)))


@needs_torch("2.7", "the first in which an option makes AdamW of Adam")
def test_adam_that_goes_on_as_adamw_by_its_checkpoint_is_not_said_to_compute_otherwise() -> None:
    parameters = list(nn.Linear(2, 2).parameters())
    adam, adamw = torch.optim.Adam(parameters, weight_decay=0.1), torch.optim.AdamW(parameters, weight_decay=0.1)
    then, now = words(adamw), words(adam)
    computes = "now computes as the script's kind does"
    assert computes in changes(now, then), "AdamW stays AdamW whatever it loads"
    adam.load_state_dict(adamw.state_dict())
    assert adam.param_groups[0]["decoupled_weight_decay"] is True, "it goes on as AdamW"
    told = changes(then, now)
    assert told.startswith("thing0's kind is Adam in the script and was AdamW; ")
    assert computes not in told
    assert computes in changes(words(torch.optim.SGD(parameters, lr=0.1)), now)


def test_what_training_changes_is_not_asked() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5)
    scheduler = CosineAnnealingLR(optimizer, 10)
    before = words(scheduler)
    optimizer.step()
    scheduler.step()
    assert words(scheduler) == before


def test_many_changes_are_told_in_one_line_of_some_length() -> None:
    parameters = [{"params": [parameter], "lr": 0.1 * n} for n, parameter in enumerate(nn.Linear(2, 2).parameters())]
    then = {"optimizer": {f"option{n}": "1" for n in range(9)}}
    now = {"optimizer": {f"option{n}": "2" * 500 for n in range(9)}}
    assert "; and 4 more. The run goes on" in changes(then, now)
    assert len(changes(then, now)) < 1000
    assert words(torch.optim.SGD(parameters, lr=1.0))["thing0"]["lr"] == "0.0, 0.1"
