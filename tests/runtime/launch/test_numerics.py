"""What launchers tell of steps that were not sound; and a rollback, which asks no store where memory has it all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster_protocol import exits
from muster_protocol.exits import Cause
from muster_protocol.numerics import Numerics
from muster_runtime.launch import verdict
from muster_runtime.launch.restarts import Refusal, Restarts

pytestmark = pytest.mark.runtime

SCRIPT = """
import torch, muster_runtime as muster
from torch.utils.data import TensorDataset
session = muster.start(checkpoint_every_steps=4)
loader = session.loader(TensorDataset(torch.ones(96, 2)), global_batch=4, microbatch=1)
model = session.wrap(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
session.track(model=model, optimizer=optimizer, loader=loader)
for step, batch in session.steps(12, loader):
    for (x,) in batch:
        session.backward(model(x).mean() * (float("nan") if RANK == 1 and loader.number == 6 else 1.0))
    optimizer.step(); optimizer.zero_grad()
    while step == 10 and not (Path(__file__).parent / "go").exists(): time.sleep(0.01)
"""


def test_a_rollback_from_memory_is_told_by_every_launcher(make_gang: Callable[..., Any]) -> None:
    gang = make_gang(2, 1, MUSTER_RESTARTS_IN_PLACE="3", MUSTER_JOB_UID="uid", OMP_NUM_THREADS="1")
    uri = f"file://{gang.folder}/run"
    script = gang.script(SCRIPT)
    pods = gang.all(script, MUSTER_NUMERICS="rollback", MUSTER_CHECKPOINT_URI=uri, MUSTER_CHECKPOINT_BLOCKING="1")
    last = (
        "the loss of the step after step 6 is nan (by the loss on rank 1; the others' are finite); back to step 4, and "
        "on without batch 6 of epoch 0"
    )
    for pod in pods:
        gang.eventually(
            lambda pod=pod: pod.listens() and pod.status().numerics is not None, "each launcher tells it", 180
        )
        assert pod.status().numerics == Numerics(0, 1, last)
    back = "back at step 4, from the memory of its pods"  # told when it is there, a moment after that it goes
    gang.eventually(lambda: back in pods[0].log(), back, 180)
    metrics = pods[0].ask("GET", "/metrics")[1].decode()
    assert [line.split()[-1] for line in metrics.splitlines() if line.startswith("muster_worker_rollbacks{")] == ["1.0"]
    (gang.folder / "go").touch()
    ends = [pod.end(180) for pod in pods]
    assert [facts.cause for facts in ends] == [Cause.SUCCEEDED] * 2, pods[0].log()
    assert [facts.numerics for facts in ends] == [Numerics(0, 1, last), None], "an operator may ask too late"


def test_the_end_has_a_cause_of_its_own_and_is_not_tried_again() -> None:
    what = "muster_runtime.errors.NumericsError: the loss of the step after step 6 is nan, and the run ends: it is stop"
    lines = ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', what]
    found = verdict.failure(1, 1, lines, killed_for_memory=False)
    facts = verdict.facts_of(found)
    assert (facts.cause, facts.exit_code) == (Cause.NUMERICS, exits.EXIT_USER)
    assert what in facts.message
    with pytest.raises(Refusal):
        Restarts(limit=3).pause(verdict.ended(0, facts, crash=found.crash), 0.0)
