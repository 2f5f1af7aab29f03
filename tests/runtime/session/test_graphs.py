"""Updates that are captured into a CUDA graph, and replayed where no hook sees them.

Without a GPU nothing is captured: `capturing` says so in its place, and `replay` makes the update past torch's hook.
tests/runtime/session/test_cuda.py has the same with real graphs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gangs import Result, run_gang

SCRIPT = """
import contextlib
import torch
from torch import nn
from torch.utils.data import TensorDataset
import muster_runtime as muster
from muster_runtime.session import run

captures = False
run.captures = lambda: captures

@contextlib.contextmanager
def capturing():
    global captures
    captures = True
    yield
    captures = False

def replay(optimizer):
    type(optimizer).step.__wrapped__(optimizer)

session = muster.start(seed=1)
one, other = (session.wrap(nn.Linear(4, 4)) for _ in range(2))
first, second = (torch.optim.SGD(model.parameters(), 1e-2) for model in (one, other))
"""
LOOP = """
session.track(one=one, other=other, first=first, second=second)
for step in session.steps(9):
    x = torch.full((2, 4), float(step))
    if step == 0:
        with capturing():
            one(x).sum().backward()
            first.step()
    replay(first)  # its gradients stay where they are, as a graph has them
    other(x).sum().backward()
    if step % EVERY == EVERY - 1:
        second.step()
        second.zero_grad()
"""


def run(folder: Path, body: str, **more: str) -> Result:
    script = folder / "script.py"
    script.write_text(SCRIPT + body)
    uri = {"MUSTER_CHECKPOINT_URI": f"file://{folder}/run", "MUSTER_CHECKPOINT_EVERY_STEPS": "2"}
    return run_gang(script, folder, 1, {**uri, "MUSTER_CHECKPOINT_BLOCKING": "1", **more})


def saved(result: Result) -> list[int]:
    return [int(step) for step in re.findall(r"checkpoint of step (\d+) committed", result.check().output)]


def test_gradients_that_a_graph_keeps_hold_no_save_back(tmp_path: Path) -> None:
    assert saved(run(tmp_path, f"EVERY = 1\n{LOOP}")) == [2, 4, 6, 8, 9]


def test_those_that_another_optimizer_accumulates_still_do(tmp_path: Path) -> None:
    assert saved(run(tmp_path, f"EVERY = 3\n{LOOP}")) == [3, 6, 9]


REFUSED = {
    "untracked": (
        "session.track(one=one, other=other, second=second)\n"
        "for step in session.steps(9):\n    with capturing(): one(torch.ones(2, 4)).sum().backward(); first.step()",
        r"this SGD isn't tracked, so a resume would lose its state",
    ),
    "before the loop": (
        "session.track(one=one, other=other, first=first)\n"
        "with capturing(): one(torch.ones(2, 4)).sum().backward(); first.step()\n"
        "for step in session.steps(9): pass",
        r"captured into a CUDA graph before session.steps\(...\) has begun",
    ),
    "elastic": (
        "loader = session.loader(TensorDataset(torch.ones(8, 4)), global_batch=4)\n"
        "session.track(one=one, other=other, first=first, loader=loader)\n"
        "for _, batch in session.steps(2, loader):\n"
        "    with capturing():\n"
        "        for x in batch: session.backward(one(x[0]).sum())\n"
        "        first.step()",
        r"a CUDA graph would replay one of these weights for ever",
    ),
    "numerics": (
        "session.track(one=one, other=other, first=first)\n"
        "for step in session.steps(9):\n    with capturing(): one(torch.ones(2, 4)).sum().backward(); first.step()",
        r"an update inside a CUDA graph is never seen",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_graph_would_hide_is_refused(case: str, tmp_path: Path) -> None:
    body, told = REFUSED[case]
    result = run(tmp_path, body, **({"MUSTER_NUMERICS": "stop"} if case == "numerics" else {}))
    assert result.codes == [1], result.output
    assert re.search(told, result.output), result.output
