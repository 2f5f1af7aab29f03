"""Every kind of optimizer goes on with the bits that it had."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from gangs import run_gang, whole_and_cut
from hack.needs_torch import SHARDS

from muster_runtime.checkpoint.tree import split
from muster_runtime.errors import StateError
from muster_runtime.session.made_of import not_kept, put_together, take_apart

pytestmark = pytest.mark.runtime

SCRIPT = """
import json, os
import torch
from torch import nn
import muster_runtime as muster

class Own(torch.optim.Optimizer):
    \"\"\"As people write them.\"\"\"

    def __init__(self, parameters, lr=0.01):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(
                        mean=torch.zeros_like(p, dtype=torch.float32), few=torch.zeros(p.shape, dtype=torch.uint8), n=0,
                        pair=(torch.zeros(3, dtype=torch.uint8), [torch.zeros(2, dtype=torch.complex64)])
                    )
                state["mean"].lerp_(p.grad.float(), 0.1)
                state["few"] += 1
                state["n"] += 1
                state["pair"][0].add_(1)
                state["pair"][1][0].add_(1j)
                p.sub_(state["mean"].sign().to(p.dtype), alpha=group["lr"])

KINDS = {
    "Adafactor": torch.optim.Adafactor,
    "AdamW": torch.optim.AdamW,
    "AMSGrad": lambda parameters: torch.optim.Adam(parameters, torch.tensor(0.01), amsgrad=True),
    "ASGD": torch.optim.ASGD,
    "LBFGS": torch.optim.LBFGS,
    "Muon": lambda parameters: torch.optim.Muon([p for p in parameters if p.ndim == 2]),
    "NAdam": torch.optim.NAdam,
    "Own": Own,
    "Rprop": torch.optim.Rprop,
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
}
if not hasattr(torch.optim, "Muon"):  # up to torch 2.8
    del KINDS["Muon"]
if "ONLY" in os.environ:
    KINDS = {os.environ["ONLY"]: KINDS[os.environ["ONLY"]]}

session = muster.start()
models, optimizers = {}, {}
for name, make in KINDS.items():
    models[name] = session.wrap(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).to(getattr(torch, os.environ["TYPE"])))
    optimizers[name] = make(list(models[name].parameters()))
session.track(**{f"{name}_model": model for name, model in models.items()}, **optimizers)

def train(model, optimizer):
    inputs = torch.randn(3, 4, dtype=next(model.parameters()).dtype)

    def closure():
        optimizer.zero_grad()
        loss = model(inputs).square().sum()
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        return optimizer.step(closure)
    loss = closure()
    optimizer.step()
    return loss

def texts(value):
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), str(value.tolist()) if value.is_complex() else value.tolist()]
    if isinstance(value, dict):
        return {str(key): texts(item) for key, item in value.items()}
    return [texts(item) for item in value] if isinstance(value, (list, tuple)) else repr(value)

for step in session.steps(5):
    session.report(loss=sum(train(models[name], optimizers[name]) for name in KINDS))
    if step == 2 and "CUT" in os.environ:
        session.run.stopping.signal()
found = {name: texts([models[name].state_dict(), optimizers[name].state_dict()]) for name in KINDS}
print("FOUND", json.dumps(found), flush=True)
"""


def run(folder: Path, kind: str, code: int, **more: str) -> dict[str, Any]:
    script = folder.parent / "script.py"
    script.write_text(SCRIPT)
    environment = {"TYPE": kind, "MUSTER_CHECKPOINT_URI": f"file://{folder}/run", **more}
    result = run_gang(script, folder, 1, environment, distributed=False)
    assert result.codes == [code], result.output
    found = re.search(r"^FOUND (.*)$", result.output, re.MULTILINE)
    return dict(json.loads(found[1])) if found else {}


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_it_goes_on_as_if_never_cut(kind: str, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", kind, 0)
    run(tmp_path / "cut", kind, 75, CUT="1")
    resumed = run(tmp_path / "cut", kind, 0)
    assert whole
    for name, state in whole.items():
        assert resumed[name] == state, name


def test_state_follows_parameters_whose_type_has_changed(tmp_path: Path) -> None:
    run(tmp_path / "run", "float32", 75, CUT="1", ONLY="AdamW")
    state = run(tmp_path / "run", "bfloat16", 0, ONLY="AdamW")["AdamW"][1]["state"]["0"]
    assert {name: value[0] for name, value in state.items()} == {
        "step": "torch.float32",
        "exp_avg": "torch.bfloat16",
        "exp_avg_sq": "torch.bfloat16",
    }


HELD = """
import torch
from torch import nn
import muster_runtime as muster

class Around(torch.optim.Optimizer):
    \"\"\"As those that look ahead, or for sharpness, are written: around another one, whose groups are theirs.\"\"\"

    def __init__(self, base):
        super().__init__(base.param_groups, {"lr": 0.1, "momentum": 0.9})
        self.base = base
        self.param_groups = base.param_groups

    def step(self):
        self.base.step()

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.base.param_groups = self.param_groups

session = muster.start()
model = session.wrap(nn.Linear(4, 1))
base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
around = Around(base)
group = base.param_groups[0]
schedule = torch.optim.lr_scheduler.StepLR(around, 1, 0.5)
session.track(model=model, around=around, base=base, schedule=schedule)
for step in session.steps(6):
    loss = model(torch.ones(2, 4)).square().mean()
    around.zero_grad(); loss.backward(); around.step(); schedule.step()
    group["momentum"] = 0.9 / (step + 1)
    print("HAD", step, loss.item().hex(), base.param_groups[0]["lr"], base.param_groups[0]["momentum"])
    if step == 2 and session.resumed_from is None and "CUT" in os.environ:
        session.run.stopping.signal()
"""


MADE = """
import os
import torch
from torch import nn
import muster_runtime as muster

class Codes(torch.Tensor):
    \"\"\"Numbers in eight bits each, as 8-bit optimizers keep theirs: one scale for all of them.\"\"\"

    @staticmethod
    def __new__(cls, codes, scale, kind):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=kind)

    def __init__(self, codes, scale, kind):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], [self.dtype]

    @classmethod
    def __tensor_unflatten__(cls, parts, context, size, stride):
        return cls(parts["codes"], parts["scale"], *context)

    @classmethod
    def of(cls, numbers):
        scale = numbers.abs().max().reshape(1) / 127
        return cls((numbers / scale).round().to(torch.int8), scale, numbers.dtype)

    def numbers(self):
        return self.codes * self.scale

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments, options=None):
        plain = [each.numbers() if isinstance(each, cls) else each for each in arguments]
        return function(*plain, **(options or {}))

class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in (p for group in self.param_groups for p in group["params"]):
            state = self.state[p]
            mean = state["mean"].numbers() if state else torch.zeros_like(p)
            state["mean"] = Codes.of(mean.lerp(p.grad, 0.3))
            state["last"] = p.grad.clone()
            p.sub_(0.1 * state["mean"].numbers())

session = muster.start(seed=5)
model = session.wrap(nn.Linear(4, 3))
optimizer = Own(list(model.parameters()))
session.track(model=model, optimizer=optimizer)

def means():
    return [optimizer.state[p]["mean"] for p in model.parameters()]

for step in session.steps(6):
    if session.strategy == "fsdp":
        print("HAD", *(type(mean).__name__ for mean in means()), [mean.full_tensor().tolist() for mean in means()])
        break
    optimizer.zero_grad()
    model(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
    if step == 2 and "CUT" in os.environ:
        session.run.stopping.signal()
        print("HAS", [mean.numbers().tolist() for mean in means()])
if session.strategy != "fsdp":
    for p, mean in zip(model.parameters(), means(), strict=True):
        print("HAD", type(mean).__name__, mean.codes.tolist(), mean.scale.item().hex(), p.tolist())
"""


def test_states_of_a_class_of_their_own_come_back_as_such(tmp_path: Path) -> None:
    whole, _, resumed = whole_and_cut(MADE, tmp_path, "HAD")
    assert len(whole) == 2
    assert resumed == whole


@SHARDS
def test_where_parameters_become_sharded_such_states_are_what_they_stand_for(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(MADE)
    environment = {"MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    cut = run_gang(script, tmp_path, 2, {**environment, "CUT": "1"})
    assert cut.codes == [75, 75], cut.output
    resumed = run_gang(script, tmp_path, 2, {**environment, "MUSTER_STRATEGY": "fsdp"}).check()
    has = re.findall(r"^HAS (.*)$", cut.output, re.MULTILINE)
    assert re.findall(r"^HAD (.*)$", resumed.output, re.MULTILINE) == [f"DTensor DTensor {numbers}" for numbers in has]


class Made(torch.Tensor):
    """Of one plain tensor, and `context`."""

    inner: torch.Tensor
    context: Any

    @staticmethod
    def __new__(cls, inner: torch.Tensor, context: Any) -> Made:
        made: Made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner, made.context = inner, context
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner"], self.context

    @classmethod
    def __tensor_unflatten__(cls, parts: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> Made:
        return cls(parts["inner"], context)

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise NotImplementedError


def test_a_class_is_told_that_no_checkpoint_keeps_or_that_a_resume_lacks() -> None:
    opaque = Made(torch.ones(2), object())
    assert take_apart({"state": {0: {"mean": opaque}}})["state"][0]["mean"] is opaque
    assert not_kept([opaque, torch.ones(2), torch.nn.Parameter(torch.ones(2))]) == ["Made"]
    round_and_round: dict[str, Any] = {"state": {}}
    round_and_round["state"][0] = round_and_round
    with pytest.raises(StateError, match="optimizer has a list or dict that holds itself"):
        split("optimizer", take_apart(round_and_round))
    apart = take_apart({"state": {0: {"mean": Made(torch.ones(2), [torch.int8, (1, None), torch.Size([2])])}}})
    _, tensors = split("optimizer", apart)
    assert not_kept(tensors.values()) == []
    parameters = [torch.ones(2)]
    found = put_together(apart, parameters)["state"][0]["mean"]
    assert isinstance(found, Made)
    assert (found.inner.tolist(), found.context) == ([1.0, 1.0], [torch.int8, (1, None), torch.Size([2])])
    apart["state"][0]["mean"]["muster.made_of"]["class"] = ["torch", "load"]
    with pytest.raises(ValueError, match=r"tensors of the class torch\.load, which the script has not imported"):
        put_together(apart, parameters)


OTHERS = """
    def __init__(self, base):
        self.base, self.defaults = base, base.defaults
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}

    @property
    def param_groups(self):
        return self.base.param_groups

    @property
    def state(self):
        return self.base.state

    def state_dict(self):
        return self.base.state_dict()

    def load_state_dict(self, state):
        self.base.load_state_dict(state)

    def step(self):
        self.base.step()
"""


@pytest.mark.parametrize("around", ["shares", "passes on"])
def test_groups_that_a_script_or_another_optimizer_holds_stay_the_optimizers(tmp_path: Path, around: str) -> None:
    text = HELD.replace("import torch\n", "import os, torch\n", 1)
    if around == "passes on":  # they are a property, which nobody can set
        text = text[: text.index("    def __init__")] + OTHERS.lstrip("\n") + text[text.index("\nsession =") :]
        text = text.replace("StepLR(around", "StepLR(base")
    had = whole_and_cut(text, tmp_path, "HAD")
    assert had[1] + had[2] == had[0]
    assert len(had[2]) == 3


SCHEDULED = """
import os
import torch
import muster_runtime as muster
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, SequentialLR
from torch.optim.swa_utils import SWALR

class Own(LRScheduler):
    \"\"\"As people write them: torch's own state_dict() gives the function, too.\"\"\"

    def __init__(self, optimizer, shape):
        self.shape = shape
        super().__init__(optimizer)

    def get_lr(self):
        return [self.shape(base, self.last_epoch) for base in self.base_lrs]

def make(name):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if name == "averaging":
        return optimizer, SWALR(optimizer, swa_lr=0.01, anneal_epochs=4)
    if name == "own":
        return optimizer, Own(optimizer, lambda base, at: base / (1 + at))
    warm = ConstantLR(optimizer, total_iters=1)
    return optimizer, SequentialLR(optimizer, [warm, Own(optimizer, lambda base, at: base / (2 + at))], [2])

session = muster.start()
model = session.wrap(torch.nn.Linear(4, 1))
made = {name: make(name) for name in ("averaging", "own", "inside")}
session.track(model=model)
for name, (optimizer, schedule) in made.items():
    session.track(**{name: optimizer, f"schedule_{name}": schedule})
for step in session.steps(6):
    model(torch.randn(3, 4)).sum().backward()
    for optimizer, schedule in made.values():
        optimizer.step()
        schedule.step()
    model.zero_grad()
    if step == 3 and "CUT" in os.environ:
        session.run.stopping.signal()
print("FOUND", [schedule.get_last_lr() for _, schedule in made.values()], model.weight.tolist(), flush=True)
"""


def test_a_scheduler_that_holds_a_function_goes_on_with_it(tmp_path: Path) -> None:
    found = whole_and_cut(SCHEDULED, tmp_path, "FOUND")
    assert found[0]
    assert found[2] == found[0]


ONE_NUMBER = """
import os
import torch
from torch import nn
import muster_runtime as muster

class Scaled(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state.update(mean=torch.zeros_like(p), largest=torch.zeros(1))
            state["mean"].lerp_(p.grad, 0.5)
            state["largest"].clamp_(min=float(p.grad.full_tensor().abs().max()))
            p.sub_(state["mean"] / state["largest"].item())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.line(x) * self.scale

session = muster.start()
model = session.wrap(Net())
optimizer = Scaled(model.parameters())
session.track(model=model, optimizer=optimizer)
for step in session.steps(4):
    loss = model(torch.ones(2, 4)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("HAD", step, [p.full_tensor().tolist() for p in model.parameters()])
    if step == 1 and "CUT" in os.environ:
        session.run.stopping.signal()
print("HAD", [[type(value).__name__ for value in state.values()] for state in optimizer.state.values()])
"""


@SHARDS
def test_a_number_beside_a_sharded_parameter_of_one_stays_whole_on_each_rank(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ONE_NUMBER)
    had = []
    for name, code, more in (("whole", 0, {}), ("cut", 75, {"CUT": "1"}), ("cut", 0, {})):
        place = {"MUSTER_STRATEGY": "fsdp", "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/{name}"}
        result = run_gang(script, tmp_path, 2, {**place, **more})
        assert result.codes == [code] * 2, result.output
        had.append([re.findall(r"^HAD .*$", output, re.MULTILINE) for output in result.outputs])
    whole, _, resumed = had
    assert resumed == [each[2:] for each in whole]
    assert resumed[1][-1] == f"HAD {[['DTensor', 'Tensor']] * 3}"
