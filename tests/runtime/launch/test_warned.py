"""What a session warns of comes out of its pod: in the launcher's status, for the operator, and in its metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster_protocol.exits import Cause

pytestmark = pytest.mark.runtime

SCRIPT = """
import torch, muster_runtime as muster
from torch.utils.data import TensorDataset
session = muster.start(checkpoint_every_steps=4)
loader = session.loader(TensorDataset(torch.ones(96, 2)), global_batch=4, microbatch=4)
model = session.wrap(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
session.track(model=model, optimizer=optimizer, loader=loader)
for step, batch in session.steps(int(os.environ["STEPS"]), loader):
    for (x,) in batch:
        session.backward(model(x).mean())
    optimizer.step(); optimizer.zero_grad()
    while step == 9 and not (Path(__file__).parent / "go").exists(): time.sleep(0.01)
"""


def test_a_checkpoint_that_is_damaged_is_told_and_measured(make_gang: Callable[..., Any]) -> None:
    gang = make_gang(1, 1, MUSTER_JOB_UID="uid", OMP_NUM_THREADS="1", MUSTER_CHECKPOINT_BLOCKING="1")
    run = gang.folder / "run"
    script = gang.script(SCRIPT)
    assert gang.pod(0, script, MUSTER_CHECKPOINT_URI=f"file://{run}", STEPS="8").end(180).cause is Cause.SUCCEEDED
    (shard,) = (path for path in run.glob("step-00000008/*/*") if path.suffix != ".json")
    shard.unlink()
    pod = gang.pod(0, script, MUSTER_CHECKPOINT_URI=f"file://{run}", STEPS="12")

    def fell_back_at() -> float:
        lines = pod.ask("GET", "/metrics", token=None)[1].decode().splitlines()
        name = "muster_worker_checkpoint_last_fallback_timestamp_seconds{"
        return float(next(line for line in lines if line.startswith(name)).split()[-1])

    gang.eventually(lambda: pod.listens() and fell_back_at() > 0, "the fallback is measured", 180)
    (told,) = pod.status().warnings
    assert told.startswith("step 8 can't be restored: ")
    assert told.endswith("trying an older checkpoint")
    assert pod.status().resumed_from == 4
    (gang.folder / "go").touch()
    assert pod.end(180).cause is Cause.SUCCEEDED
