"""The loop's edges: an epoch's end, the end of the run, and loops that would lose data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gangs import Result, run_gang

from muster_runtime.checkpoint.store import open_store

SCRIPT = """
import os, signal
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import muster_runtime as muster

folder = Path(os.environ["FOLDER"])
session = muster.start()
model = session.wrap(nn.Linear(4, 1))
data = TensorDataset(torch.arange(48.0).view(12, 4))
loader = session.wrap(DataLoader(data, batch_size=4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
def update(x):
    loss = model(x).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    session.report(loss=loss)
    return loss
"""
TRACKED = "session.track(model=model, optimizer=optimizer, loader=loader)\n"


def run(folder: Path, body: str, ranks: int = 1, **more: str) -> Result:
    """One process (or a gang) with a checkpoint folder of its own under `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "script.py"
    path.write_text(SCRIPT + body)
    environment = {"FOLDER": str(folder), "MUSTER_CHECKPOINT_URI": f"file://{folder}/run", **more}
    return run_gang(path, folder, ranks, environment, distributed=ranks > 1)


# `loss` and `drawn` are used after the inner loop: a resume there would have neither.
EPOCHS = (
    TRACKED
    + """
for epoch in session.epochs(4):
    drawn = torch.rand(())
    for (x,) in loader:
        loss = update(x)
        if (session.step, session.resumed_from) == (int(os.environ.get("STOP", "-1")), None):
            os.kill(os.getpid(), signal.SIGTERM)
    with (folder / "bodies").open("a") as file:
        print(epoch, loss.item().hex(), drawn.item(), torch.rand(()).item(), file=file)
"""
)


def test_a_stop_at_an_epochs_last_batch_waits_for_its_body(tmp_path: Path) -> None:
    every = {"MUSTER_CHECKPOINT_EVERY_STEPS": "3"}  # as many as an epoch's batches
    run(tmp_path / "whole", EPOCHS, **every).check()
    stopped = run(tmp_path / "cut", EPOCHS, STOP="5", **every)
    assert stopped.codes == [75], stopped.output
    assert "stopped after step 6" in stopped.output
    fewer = run(tmp_path / "cut", EPOCHS.replace("epochs(4)", "epochs(1)"), **every).check()
    assert "is at step 6 already, and this loop ends at step 3" in fewer.output
    again = run(tmp_path / "cut", EPOCHS, **every).check()
    assert "resumed after step 6" in again.output
    bodies = (tmp_path / "cut" / "bodies").read_text()
    assert bodies == (tmp_path / "whole" / "bodies").read_text()
    assert len(bodies.splitlines()) == 4
    steps = {item.key.split("/")[0] for item in open_store(f"file://{tmp_path}/whole/run").objects("step-")}
    assert "step-00000012" in steps
    assert all(int(step.removeprefix("step-")) % 3 == 0 for step in steps)


def test_what_an_epochs_body_draws_first_is_the_same_after_a_resume_in_its_middle(tmp_path: Path) -> None:
    every = {"MUSTER_CHECKPOINT_EVERY_STEPS": "1"}
    run(tmp_path / "whole", EPOCHS, **every).check()
    assert run(tmp_path / "cut", EPOCHS, STOP="3", **every).codes == [75]  # after step 4, in the second epoch
    again = run(tmp_path / "cut", EPOCHS, **every).check()
    assert "resumed after step 4" in again.output
    bodies = (tmp_path / "cut" / "bodies").read_text()
    assert bodies == (tmp_path / "whole" / "bodies").read_text()
    assert len({line.split()[2] for line in bodies.splitlines()}) == 4


def test_an_epoch_left_by_break_is_not_gone_on_with(tmp_path: Path) -> None:
    counted = EPOCHS.replace("for (x,) in loader:", "for number, (x,) in enumerate(loader):")
    body = counted.replace("    with (folder", "        if number == 1: break\n    with (folder")
    every = {"MUSTER_CHECKPOINT_EVERY_STEPS": "1"}
    run(tmp_path / "whole", body, **every).check()
    assert run(tmp_path / "cut", body, STOP="3", **every).codes == [75]
    run(tmp_path / "cut", body, **every).check()
    assert (tmp_path / "cut" / "bodies").read_text() == (tmp_path / "whole" / "bodies").read_text()


def test_a_method_that_bypasses_ddp_is_told(tmp_path: Path) -> None:
    body = """
class Net(nn.Linear):
    def loss(self, x): return self(x).mean()
model = session.wrap(Net(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
session.track(model=model, optimizer=optimizer, loader=loader)
for step, (x,) in session.steps(5, loader):
    optimizer.zero_grad()
    (model(x).mean() if step < 2 else model.loss(x)).backward()
    optimizer.step()
    print("done", step)
"""
    result = run(tmp_path, body, ranks=2)
    for rank in range(2):
        assert result.codes[rank] == 1, result.output
        assert "done 1" in result.outputs[rank]
        assert "done 2" not in result.outputs[rank]
        assert "UsageError" in result.outputs[rank].splitlines()[-1]
        assert "'model' has gradients, but model(...) itself was not called" in result.outputs[rank]


STEPS = TRACKED + "for step, (x,) in session.steps(4, loader):\n    update(x)\n"


def test_finish_after_a_whole_loop_does_nothing(tmp_path: Path) -> None:
    once = run(tmp_path, STEPS + "session.finish()\n").check()
    assert once.output.count("the run is finished") == 1
    again = run(tmp_path, STEPS + "session.finish()\n").check()
    assert "committed" not in again.output
    more = run(tmp_path, STEPS.replace("steps(4", "steps(6") + "session.finish()\n").check()
    assert "checkpoint of step 6 committed" in more.output, "the run had not been ended early"


TWO_LOOPS = """
session.track(model=model, optimizer=optimizer)
for name, total in (("first", 10), ("second", 20)):
    for step in session.steps(total):
        update(torch.ones(1, 4))
        with (folder / "steps").open("a") as file:
            print(name, step, file=file)
        if (name, step) == ("first", 3): break
        if step == 6 and "CUT" in os.environ:
            os._exit(9) if os.environ["CUT"] == "kill" else session.run.stopping.signal()
    session.finish()
"""


@pytest.mark.parametrize(("cut", "code", "step"), [("kill", 9, 4), ("stop", 75, 7)])
def test_a_loop_after_one_that_was_ended_early_goes_on(cut: str, code: int, step: int, tmp_path: Path) -> None:
    """From where the first one ended, or from a checkpoint of its own."""
    assert run(tmp_path, TWO_LOOPS, CUT=cut).codes == [code]
    (tmp_path / "steps").unlink()
    assert "nothing is left to train" not in run(tmp_path, TWO_LOOPS).check().output
    again = [f"second {number}" for number in range(step, 20)]
    assert (tmp_path / "steps").read_text().splitlines() == again
    assert "had finished already, at step 20" in run(tmp_path, TWO_LOOPS).check().output
    assert (tmp_path / "steps").read_text().splitlines() == again


@pytest.mark.parametrize(
    ("way", "lost"),
    [("break", True), ("sys.exit(0)", True), ("raise KeyError", False), ("session.finish(); break", False)],
)
def test_a_loop_that_is_left_without_finish_is_told_what_is_lost(tmp_path: Path, way: str, lost: bool) -> None:
    script = tmp_path / "script.py"
    loop = f"for step, (x,) in session.steps(4, loader):  # loop\n    update(x)\n    if step == 2: {way}\n"
    script.write_text("import sys\n" + SCRIPT + TRACKED + loop)
    line = script.read_text().splitlines().index(loop.splitlines()[0]) + 1
    uri = {"FOLDER": str(tmp_path), "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env={**os.environ, **uri}
    )
    assert ended.returncode == ("KeyError" in way)
    told = f"WARNING: the loop at {script}:{line} was left after step 2 of 4, and session.finish() wasn't called"
    assert (told in ended.stderr) == lost, ended.stderr


FORKS = """
for step, (x,) in session.steps(4, loader):
    update(x)
    if step == 2:
        child = os.fork()
        if not child: sys.exit(3)
        print(os.waitpid(child, 0)[1] >> 8)
"""


def test_the_end_of_a_process_that_the_script_forks_is_not_the_loops(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\n" + SCRIPT + TRACKED + FORKS)
    uri = {"FOLDER": str(tmp_path), "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env={**os.environ, **uri}
    )
    assert ended.stdout.split()[-1] == "3"
    assert "WARNING" not in ended.stderr
    assert "the run is finished" in ended.stderr


def test_finish_before_any_loop_is_told(tmp_path: Path) -> None:
    result = run(tmp_path, TRACKED + "session.finish()\n")
    assert "session.finish() belongs after the loop, and none has begun yet" in result.output


def test_a_tracked_loader_that_the_loop_does_not_drive_is_told(tmp_path: Path) -> None:
    result = run(tmp_path, TRACKED + "for step in session.steps(4):\n    for (x,) in loader:\n        update(x)\n")
    assert result.codes == [1]
    assert "write session.steps(4, loader), or don't track it" in result.output


def test_a_second_pass_in_an_epoch_is_told(tmp_path: Path) -> None:
    body = (
        TRACKED
        + "more = session.wrap(DataLoader(data, batch_size=4))\n"
        + "for epoch in session.epochs(2):\n    for (x,) in loader:\n        update(x)\n"
        + "    print('evaluated', sum(len(x) for (x,) in more))\n"
        + "    if epoch == 1: print('empty', list(loader))\n"
    )
    result = run(tmp_path, body)
    assert result.codes == [1], result.output
    assert result.output.count("evaluated 12") == 2
    assert "the tracked loader was gone through already in epoch 1" in result.output
    run(tmp_path / "once", body.replace("list(loader)", "list(more)")).check()
