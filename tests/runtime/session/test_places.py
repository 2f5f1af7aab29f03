"""An optimizer's state belongs to its parameters, whatever order a script has them in, and what is each rank's own is
not taken for everybody's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gangs import Result, run_gang
from hack.needs_torch import SHARDS

SCRIPT = """
import os
import torch
from torch import nn
from torch.distributed.tensor import DTensor
import muster_runtime as muster

session = muster.start()
net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
model = session.wrap(net)
names = {id(p): name for name, p in model.named_parameters()}
parameters = [p for p in model.parameters()]
"""
LOOP = """
session.track(model=model, optimizer=optimizer)
for step in session.steps(6):
    loss = model(torch.randn(2, 4)).square().sum()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    session.report(loss=loss)
    if step == 2 and "CUT" in os.environ:
        session.run.stopping.signal()
for group in optimizer.param_groups:
    assert group.get("param_names", [names[id(p)] for p in group["params"]]) == [names[id(p)] for p in group["params"]]
weights = [[name, p.tolist()] for name, p in model.named_parameters()]
moments = sorted([names[id(p)], state["exp_avg"].tolist()] for p, state in optimizer.state.items())
print("FOUND", weights, moments, flush=True)
"""


def run(folder: Path, body: str, ranks: int = 1, strategy: str = "ddp", **more: str) -> Result:
    folder.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(SCRIPT + body)
    uri = {"MUSTER_CHECKPOINT_URI": f"file://{folder}/run", "MUSTER_STRATEGY": strategy}
    return run_gang(script, folder, ranks, {**uri, **more}, distributed=ranks > 1)


def found(result: Result) -> list[str]:
    return re.findall(r"^FOUND .*$", result.check().output, re.MULTILINE)


GROUPS = """
if os.environ.get("ORDER") == "another":
    parameters = parameters[:2][::-1] + parameters[2:][::-1]
named = os.environ.get("NAMED")
first, second = ([(names[id(p)], p) if named else p for p in part] for part in (parameters[:2], parameters[2:]))
optimizer = torch.optim.AdamW([{"params": first}, {"params": second, "weight_decay": 0.5}], lr=0.1)
"""


@pytest.mark.parametrize("named", ["", "1"])
def test_parameters_in_another_order_have_their_own_state(tmp_path: Path, named: str) -> None:
    whole = found(run(tmp_path / "whole", GROUPS + LOOP, NAMED=named))
    assert run(tmp_path / "cut", GROUPS + LOOP, CUT="1", NAMED=named).codes == [75]
    assert found(run(tmp_path / "cut", GROUPS + LOOP, ORDER="another", NAMED=named)) == whole


def test_an_optimizer_of_other_parameters_is_told(tmp_path: Path) -> None:
    body = 'optimizer = torch.optim.AdamW(parameters[:2] if "CUT" in os.environ else parameters[2:4])' + LOOP
    assert run(tmp_path, body, CUT="1").codes == [75]
    result = run(tmp_path, body)
    assert result.codes == [1]
    assert re.search(
        r"StateError: group 0 of the optimizer tracked at .*script.py:\d+ lacks model.0.weight, whose state the "
        r"checkpoint has there under 'optimizer'",
        result.output,
    ), result.output


def test_another_order_on_another_rank_is_told_before_training(tmp_path: Path) -> None:
    body = "optimizer = torch.optim.AdamW(parameters[::-1] if session.rank else parameters)" + LOOP
    result = run(tmp_path, body.replace("for step in", 'print("BEGINS")\nfor step in'), ranks=2)
    assert result.codes == [1, 1]
    for output in result.outputs:
        assert re.search(r"'optimizer', tracked at .*script.py:\d+, has its parameters in another order on", output)
        assert "sort it by name" in output


OWN = {
    "an optimizer's": """
class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            mean = self.state[p].setdefault("mean", torch.zeros_like(p.to_local()))
            mean.lerp_(p.grad.to_local(), 0.1)
            p.to_local().sub_(mean)

optimizer = Own(parameters)
""",
    "an average's": """
class Average:
    def __init__(self):
        self.values = [p.detach().to_local().clone() for p in parameters]
    def state_dict(self): return {"mean": self.values}
    def load_state_dict(self, state): self.values = state["mean"]

optimizer = torch.optim.AdamW(parameters)
session.track(average=Average())
""",
}


@SHARDS
@pytest.mark.parametrize("whose", OWN)
def test_a_plain_tensor_of_a_ranks_own_shard_is_told(whose: str, tmp_path: Path) -> None:
    """Every rank would get rank 0's back."""
    result = run(tmp_path, OWN[whose] + LOOP, ranks=2, strategy="fsdp", MUSTER_CHECKPOINT_EVERY_STEPS="2")
    assert result.codes == [1, 1], result.output
    told = r"StateError: (optimizer\.state\.0\.mean|average\.mean\.0) on rank 1 differs from rank 0's; .*a DTensor"
    for output in result.outputs:
        assert re.search(told, output), output
