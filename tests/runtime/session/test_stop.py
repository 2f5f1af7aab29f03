"""Stops, ends and starts: the exit codes and what is left in the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gangs import run_gang
from hack.needs_torch import SHARDS

from muster_protocol import losses
from muster_protocol.checkpoints.commit import read_latest
from muster_protocol.exits import EXIT_PREEMPTED
from muster_runtime.checkpoint.store import open_store

BLOCKING = {"MUSTER_CHECKPOINT_BLOCKING": "1"}
"""Where a test counts on each checkpoint: none is left out for the one before."""

SCRIPT = """
import os, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import muster_runtime as muster

folder = Path(os.environ["FOLDER"])
session = muster.start()
model = session.wrap(nn.Linear(4, 1))
loader = session.wrap(DataLoader(TensorDataset(torch.arange(48.0).view(12, 4)), batch_size=4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
session.track(model=model, optimizer=optimizer, loader=loader)
{loop}
if session.is_leader:
    print("ended after step", session.step, "began at", session.resumed_from)
"""
BODY = """
    loss = model(x).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    session.report(loss=loss)
"""
STEPS = "for step, (x,) in session.steps(int(os.environ.get('TOTAL', '6')), loader):" + BODY


def script(folder: Path, loop: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "script.py"
    path.write_text(SCRIPT.replace("{loop}", loop))
    return path


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"FOLDER": str(folder), "MUSTER_CHECKPOINT_URI": f"file://{folder}/run", **more}


def latest(folder: Path) -> tuple[int | None, bool]:
    claim = read_latest(open_store(f"file://{folder}/run"))
    assert claim is not None
    return claim.latest.step, claim.latest.finished


def test_sigterm_commits_a_checkpoint_and_exits_75(tmp_path: Path) -> None:
    loop = STEPS + "    (folder / 'running').touch()\n    time.sleep(0.01)\n"
    path = script(tmp_path, loop)
    result = run_gang(path, tmp_path, 2, environment(tmp_path, TOTAL="100000"), stop_when=tmp_path / "running")
    assert result.codes == [75, 75], result.output
    step, finished = latest(tmp_path)
    assert step is not None
    assert step > 0
    assert not finished
    again = run_gang(path, tmp_path, 2, environment(tmp_path, TOTAL=str(step + 2))).check()
    assert f"ended after step {step + 2} began at {step}" in again.output


def test_a_stopped_session_says_so_whatever_the_shell_around_it_exits_with(tmp_path: Path) -> None:
    """Else a preempted job would have succeeded."""
    path = script(tmp_path, STEPS + "    (folder / 'running').touch()\n    time.sleep(0.01)\n")
    command = [sys.executable, "-m", "muster_runtime.launch", "--", "sh", "-c", f"{sys.executable} {path} | tee log"]
    environ = {**os.environ, **environment(tmp_path, TOTAL="100000")}
    launcher = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (tmp_path / "running").exists() and time.monotonic() < until:
        time.sleep(0.02)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(60) == EXIT_PREEMPTED
    assert latest(tmp_path)[1] is False


# Where a stop may find a rank: each of these leaves a file there, and is slow enough for the stop to come meanwhile.
PLACES = """
class Slow:
    def state_dict(self):
        if session.step:
            here("save")
        return {"some": 1}
    def load_state_dict(self, state):
        here("restore")
def here(place):
    if os.environ["PLACE"] == place and session.is_leader and not session.should_stop():
        (folder / "here").touch()
        while not session.should_stop():
            time.sleep(0.01)
session.track(slow=Slow())
model.module.register_forward_pre_hook(lambda *_: here("compile"))  # to us a compiler is a slow first forward
"""
STOPPED_SOMEWHERE = (
    PLACES
    + STEPS
    + """
    if step == 0:
        here("first step")
    if step % 3 == 2 and session.is_leader:
        with session.evaluate():
            for part in range(3):
                if session.should_stop():
                    break
                here("evaluation")
            else:
                print("evaluated after step", step + 1)
"""
)


@pytest.mark.parametrize(
    ("place", "done"), [("compile", 1), ("first step", 1), ("evaluation", 3), ("save", 3), ("restore", 3)]
)
def test_a_stop_that_meets_a_rank_anywhere_is_a_checkpoint_and_75(place: str, done: int, tmp_path: Path) -> None:
    path = script(tmp_path, STOPPED_SOMEWHERE)
    more = {"TOTAL": "100000", "MUSTER_CHECKPOINT_EVERY_STEPS": "2", **BLOCKING}
    if place == "restore":
        run_gang(path, tmp_path, 2, environment(tmp_path, PLACE="", **more | {"TOTAL": "2"})).check()
    found = environment(tmp_path, PLACE=place, **more)
    result = run_gang(path, tmp_path, 2, found, stop_when=tmp_path / "here")
    assert result.codes == [75, 75], result.output
    assert latest(tmp_path) == (done, False), "no step is lost"
    assert "evaluated" not in result.output
    again = run_gang(path, tmp_path, 2, environment(tmp_path, PLACE="", TOTAL="6")).check()
    assert f"ended after step 6 began at {done}" in again.output
    assert "evaluated after step 6" in again.output


EVALUATED_TOGETHER = (
    "import signal, torch.distributed as dist\n"
    + STEPS
    + """
    if step == 2:
        with session.evaluate():
            for part in range(1000):
                if session.should_stop(together=True):
                    break
                dist.all_reduce(torch.ones(1))  # as in each forward pass of a sharded model
                if part == 1 and session.is_leader:
                    os.kill(os.getpid(), signal.SIGTERM)  # the others hear of it later, or never
"""
)


def test_ranks_that_evaluate_together_leave_for_a_stop_together(tmp_path: Path) -> None:
    """One that went on alone would wait for the others in a collective until the grace is over."""
    path = script(tmp_path, EVALUATED_TOGETHER)
    result = run_gang(path, tmp_path, 2, environment(tmp_path, TOTAL="100"))
    assert result.codes == [75, 75], result.output
    assert latest(tmp_path) == (3, False)


def test_a_finished_run_is_a_no_op_that_succeeds(tmp_path: Path) -> None:
    path = script(tmp_path, STEPS)
    run_gang(path, tmp_path, 2, environment(tmp_path)).check()
    assert latest(tmp_path) == (6, True)
    again = run_gang(path, tmp_path, 2, environment(tmp_path)).check()
    assert "ended after step 6 began at 6" in again.output
    assert latest(tmp_path) == (6, True)
    more = run_gang(path, tmp_path, 2, environment(tmp_path, TOTAL="8")).check()
    assert "ended after step 8 began at 6" in more.output
    assert latest(tmp_path) == (8, True)


def test_a_run_that_ended_early_stays_ended(tmp_path: Path) -> None:
    path = script(tmp_path, STEPS + "    if step == 3: break\nsession.finish()\n")
    run_gang(path, tmp_path, 2, environment(tmp_path)).check()
    assert latest(tmp_path) == (4, True)
    (tmp_path / "script.py").write_text(path.read_text().replace("session.finish()\n", ""))
    again = run_gang(path, tmp_path, 2, environment(tmp_path)).check()
    assert "ended after step 4 began at 4" in again.output


def test_a_run_goes_on_over_a_dataset_that_has_grown_since_its_last_epoch(tmp_path: Path) -> None:
    path = script(tmp_path, STEPS)
    run_gang(path, tmp_path, 1, environment(tmp_path, TOTAL="3"), distributed=False).check()
    path.write_text(path.read_text().replace("arange(48.0).view(12, 4)", "arange(96.0).view(24, 4)"))
    grown = run_gang(path, tmp_path, 1, environment(tmp_path, TOTAL="5"), distributed=False).check()
    assert "ended after step 5 began at 3" in grown.output
    assert "WARNING: the checkpoint counts in 12 samples an epoch" in grown.output


EPOCHS = """
for epoch in session.epochs(3):
    for (x,) in loader:
        loss = model(x).mean() + torch.rand(())
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        session.report(loss=loss)
        if (session.step, session.resumed_from) == (int(os.environ.get("CUT", "-1")), None): os._exit(9)
    with (folder / "after").open("a") as file: print(session.rank, epoch, file=file)
"""


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 8])
def test_epochs_go_on_in_their_middle(cut: int, tmp_path: Path) -> None:
    path = script(tmp_path / "cut", EPOCHS)
    every = {"MUSTER_CHECKPOINT_EVERY_STEPS": "1"}
    first = run_gang(path, tmp_path / "cut", 2, environment(tmp_path / "cut", CUT=str(cut), **every))
    assert first.codes == [9, 9]
    second = run_gang(path, tmp_path / "cut", 2, environment(tmp_path / "cut", **every)).check()
    assert "ended after step 9" in second.output
    whole = script(tmp_path / "whole", EPOCHS)
    run_gang(whole, tmp_path / "whole", 2, environment(tmp_path / "whole", **every)).check()
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")
    after = (tmp_path / "cut" / "after").read_text().split("\n")
    assert sorted(set(after)) == sorted(set((tmp_path / "whole" / "after").read_text().split("\n")))


def curve(folder: Path) -> dict[int, float]:
    store = open_store(f"file://{folder}/run")
    bodies = [store.get(item.key) for item in store.objects("metrics/")]
    found = losses.loss_curve(losses.decode(body.content) for body in bodies if body is not None)
    assert list(found) == list(range(9))
    return found


def test_a_laptop_needs_no_environment(tmp_path: Path) -> None:
    result = run_gang(script(tmp_path, STEPS), tmp_path, 1, {"FOLDER": str(tmp_path)}, distributed=False).check()
    assert "ended after step 6 began at None" in result.output


def test_time_makes_a_checkpoint_due(tmp_path: Path) -> None:
    path = script(tmp_path, STEPS + "    time.sleep(0.06)\n")
    run_gang(path, tmp_path, 2, environment(tmp_path, MUSTER_CHECKPOINT_INTERVAL="0.1", TOTAL="9", **BLOCKING)).check()
    steps = {item.key.split("/")[0] for item in open_store(f"file://{tmp_path}/run").objects("step-")}
    assert 3 <= len(steps) < 9


def test_an_automatic_interval_is_told_with_each_save(tmp_path: Path) -> None:
    path = script(tmp_path, STEPS + "    time.sleep(0.06)\n")
    auto = {"MUSTER_CHECKPOINT_INTERVAL": "auto", "MUSTER_CHECKPOINT_EVERY_STEPS": "2"}
    result = run_gang(path, tmp_path, 2, environment(tmp_path, TOTAL="6", **auto, **BLOCKING)).check()
    assert "after this one began (interval auto)" in result.outputs[0]
    assert "interval auto" not in result.outputs[1]


@pytest.mark.parametrize(("load", "begins"), [("all", 6), ("model", None)])
def test_a_warm_start_counts_only_without_a_checkpoint_of_its_own(
    load: str, begins: int | None, tmp_path: Path
) -> None:
    source = script(tmp_path / "source", STEPS)
    run_gang(
        source, tmp_path / "source", 2, environment(tmp_path / "source", MUSTER_CHECKPOINT_EVERY_STEPS="3")
    ).check()
    warm = {
        "MUSTER_CHECKPOINT_FROM": f"file://{tmp_path}/source/run",
        "MUSTER_CHECKPOINT_FROM_LOAD": load,
        "TOTAL": "8",
    }
    shown = STEPS + "    if step in (0, 6) and session.is_leader: print('first weight', model.weight[0, 0].item())\n"
    path = script(tmp_path / "new", shown)
    first = run_gang(path, tmp_path / "new", 2, environment(tmp_path / "new", **warm)).check()
    assert f"ended after step 8 began at {begins}" in first.output
    again = run_gang(path, tmp_path / "new", 2, environment(tmp_path / "new", **warm | {"TOTAL": "9"})).check()
    assert "ended after step 9 began at 8" in again.output
    at_three = {**warm, "MUSTER_CHECKPOINT_FROM": f"file://{tmp_path}/source/run@3"}
    third = run_gang(
        script(tmp_path / "third", STEPS), tmp_path / "third", 2, environment(tmp_path / "third", **at_three)
    )
    assert f"began at {3 if load == 'all' else None}" in third.check().output


PRUNES = """
import os, time
from pathlib import Path
from muster_protocol.checkpoints.inventory import take
from muster_protocol.checkpoints.prune import carry_out
from muster_protocol.checkpoints.retention import Retention, plan
from muster_runtime.checkpoint.store import open_store

def prune():
    store = open_store(os.environ["SOURCE"])
    outcome = carry_out(store, plan(take(store), Retention(last=1), time.time()), time.time)
    print("removed", [each.folder.step for each in outcome.removed])

def let_go():
    until = time.monotonic() + 20
    while len(list(Path(os.environ["SOURCE"][7:], "holds").iterdir())) > 1 and time.monotonic() < until:
        time.sleep(0.02)
    assert time.monotonic() < until, "of two starts one has died with its hold"
"""
PRUNED = """
    if session.is_leader and step in (2, 4): prune()
    if session.is_leader and step == 5: let_go()
    if os.environ.get("DIES") == str(step): os._exit(9)
"""


def test_a_prune_takes_a_start_away_only_when_the_run_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    source = environment(tmp_path / "source", MUSTER_CHECKPOINT_EVERY_STEPS="1", **BLOCKING)
    run_gang(script(tmp_path / "source", STEPS), tmp_path / "source", 2, source).check()
    path = script(tmp_path / "new", STEPS + PRUNED)
    path.write_text(PRUNES + path.read_text())
    uri = source["MUSTER_CHECKPOINT_URI"]
    start = {"SOURCE": uri, "MUSTER_CHECKPOINT_FROM": f"{uri}@2", "MUSTER_CHECKPOINT_EVERY_STEPS": "4"}
    new = environment(tmp_path / "new", **start, **BLOCKING)
    died = run_gang(path, tmp_path / "new", 2, {**new, "DIES": "3"}, kill_peers=True)
    assert "removed [1, 3]" in died.output, "and not step 2, where it begins again"
    ended = run_gang(path, tmp_path / "new", 2, new).check()
    assert "ended after step 6 began at 2" in ended.output


@pytest.mark.parametrize(
    ("harmed", "step", "told"),
    [
        ("TOMBSTONE-0", "@3", "manifest.json is being deleted by a prune"),
        ("manifest.json", "", "manifest.json is not the manifest that was committed"),
        ("rank-00000.0000.bin", "", "rank-00000.0000.bin is not what was saved"),
    ],
)
def test_a_start_that_can_not_be_had_whole_is_told_by_every_rank(
    harmed: str, step: str, told: str, tmp_path: Path
) -> None:
    source = environment(tmp_path / "source", MUSTER_CHECKPOINT_EVERY_STEPS="3")
    run_gang(script(tmp_path / "source", STEPS), tmp_path / "source", 2, source).check()
    (folder,) = (tmp_path / f"source/run/step-0000000{3 if step else 6}").iterdir()
    content = (folder / harmed).read_bytes() if (folder / harmed).exists() else b""
    (folder / harmed).write_bytes(b"?" + content[1:])
    uri = source["MUSTER_CHECKPOINT_URI"]
    start = environment(tmp_path / "new", MUSTER_CHECKPOINT_FROM=f"{uri}{step}")
    result = run_gang(script(tmp_path / "new", STEPS), tmp_path / "new", 2, start)
    expected = f"StartError: checkpoint.from can't be taken: {folder.as_uri()}/{told}"
    assert [output.count(expected) for output in result.outputs] == [1, 1], result.output
    assert f"Name another checkpoint, as {uri}@STEP" in result.output


def test_a_warm_start_takes_the_models_that_are_there(tmp_path: Path) -> None:
    """A script may track more than what is imported, or than the run before had: an average, a teacher."""
    shown = STEPS + "print('weight', model.weight.tolist())\n"
    source = script(tmp_path / "source", shown)
    first = run_gang(source, tmp_path / "source", 1, environment(tmp_path / "source"), distributed=False).check()
    path = script(tmp_path / "new", shown)
    more = path.read_text().replace("session.track(", "ema = nn.Linear(4, 1)\nsession.track(ema=ema, ")
    uri = f"file://{tmp_path}/source/run"
    warm = {"MUSTER_CHECKPOINT_FROM": uri, "MUSTER_CHECKPOINT_FROM_LOAD": "model", "TOTAL": "0"}

    path.write_text(more)
    begun = run_gang(path, tmp_path / "new", 1, environment(tmp_path / "new", **warm), distributed=False).check()
    assert f"the checkpoint at {uri} has no 'ema': left as the script made it" in begun.output
    (weight,) = [line for line in first.output.splitlines() if line.startswith("weight")]
    assert weight in begun.output
    path.write_text(more.replace("model=model", "net=model"))
    refused = run_gang(path, tmp_path / "new", 1, environment(tmp_path / "none", **warm), distributed=False)
    assert "the checkpoint has no 'ema', 'net', which" in refused.output, "not one of them is there"
    path.write_text(more.replace("session.wrap(nn.Linear(4, 1))", "session.wrap(nn.Linear(4, 2))"))
    refused = run_gang(path, tmp_path / "new", 1, environment(tmp_path / "wider", **warm), distributed=False)
    assert f"Make it as it was, or let checkpoint.from name another checkpoint than {uri}@" in refused.output
    assert "another checkpoint.uri" not in refused.output, "that is another one already"


ACCUMULATE = """
for step, (x,) in session.steps(12, loader):
    (model(x).mean() / 3).backward()
    if (step + 1) % 3 == 0:
        optimizer.step(); optimizer.zero_grad()
"""


NEVER_ZEROED = ACCUMULATE.replace("; optimizer.zero_grad()", "")
SELDOM = """
for step, (x,) in session.steps(12, loader):
    if step % 3 == 0:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=SHARDS)])
@pytest.mark.parametrize(
    ("loop", "saved"),
    [
        pytest.param(ACCUMULATE, {6, 9, 12}, id="accumulated"),
        pytest.param(NEVER_ZEROED, {6, 9, 12}, id="accumulated-on-top-of-what-was-used"),
        pytest.param(SELDOM, {4, 8, 12}, id="used-and-left-over"),
    ],
)
def test_no_save_falls_into_gradient_accumulation(loop: str, saved: set[int], strategy: str, tmp_path: Path) -> None:
    more = {"MUSTER_CHECKPOINT_EVERY_STEPS": "4", "MUSTER_STRATEGY": strategy, **BLOCKING}
    run_gang(script(tmp_path, loop), tmp_path, 2, environment(tmp_path, **more)).check()
    keys = [item.key for item in open_store(f"file://{tmp_path}/run").objects("step-")]
    assert {int(key.split("/")[0].removeprefix("step-")) for key in keys} == saved


FORKS = """
import multiprocessing, os, signal, time
import muster_runtime as muster

def work(begun):
    begun.set()
    for _ in range(6000):  # a handler has its turn between two sleeps, where the signal came right before one
        time.sleep(0.1)

session = muster.start()
fork = multiprocessing.get_context("fork")
begun = fork.Event()
process = fork.Process(target=work, args=(begun,))
process.start()
begun.wait()
process.terminate()  # as a pool ends its workers, for one
process.join(30)
print("the child ended with", process.exitcode)
process.kill()
assert not session.should_stop()
os.kill(os.getpid(), signal.SIGTERM)
print("this rank is asked to stop:", session.should_stop())
"""


def test_a_process_that_the_script_forks_is_ended_by_sigterm(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(FORKS)
    result = run_gang(path, tmp_path, 1).check()
    assert "the child ended with -15" in result.output
    assert "this rank is asked to stop: True" in result.output


HANDLED = FORKS.replace("fork = multi", "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nfork = multi").rsplit(
    "os.kill(", 1
)[0]


SETTING_UP = """
    if os.environ["WAY"] == "minded":
        session.should_stop()
    (folder / "running").touch()
    for _ in range(600):
        time.sleep(0.1)
        if os.environ["WAY"] == "minded" and session.should_stop():
            sys.exit(0)
"""


@pytest.mark.parametrize(("way", "code"), [("absent", 75), ("minded", 0)])
def test_a_stop_before_the_loop_is_an_end_at_once(way: str, code: int, tmp_path: Path) -> None:
    """Such as while it loads its data for ten minutes; a script that asks by itself whether it is to stop is let be."""
    path = script(tmp_path, "import sys\nif session.is_leader:" + SETTING_UP + STEPS)
    more = environment(tmp_path, WAY=way, TOTAL="1")
    result = run_gang(path, tmp_path, 1, more, stop_when=tmp_path / "running", seconds=60)
    assert result.codes == [code], result.output


ASKED = """
    if step == 2 and session.is_leader and session.resumed_from is None:
        os.kill(os.getpid(), signal.SIGTERM)
    if session.should_stop(together=True): break
"""


@pytest.mark.parametrize(("body", "done"), [(BODY + ASKED, 3), (ASKED + BODY, 2)], ids=["after", "before-its-update"])
def test_a_loop_that_is_left_because_of_a_stop_is_not_finished(body: str, done: int, tmp_path: Path) -> None:
    """It would have succeeded, for good, with a part of its training."""
    path = script(tmp_path, "import signal\n" + STEPS.replace(BODY, body) + "session.finish()\n")
    assert run_gang(path, tmp_path, 2, environment(tmp_path)).codes == [75, 75]
    assert latest(tmp_path) == (done, False)
    again = run_gang(path, tmp_path, 2, environment(tmp_path)).check()
    assert f"ended after step 6 began at {done}" in again.output


def test_an_epoch_that_is_left_because_of_a_stop_is_told(tmp_path: Path) -> None:
    left = (
        "        if session.step == 1: os.kill(os.getpid(), signal.SIGTERM)\n        if session.should_stop(): break\n"
    )
    loop = EPOCHS.replace("        if (session.step, ", left + "        if (session.step, ")
    path = script(tmp_path, "import signal\n" + loop)
    result = run_gang(path, tmp_path, 1, environment(tmp_path), distributed=False)
    assert result.codes == [75], result.output
    assert "WARNING: epoch 0 was left by a break after session.should_stop() had said so" in result.output


def test_a_stop_of_a_whole_process_group_leaves_the_data_workers_alone(tmp_path: Path) -> None:
    """As torchrun, Slurm and timeout stop: the death of a worker would fell the rank before it has saved."""
    loop = STEPS + "    (folder / 'running').touch()\n    time.sleep(0.05)\n"
    path = script(tmp_path, loop)
    path.write_text(path.read_text().replace("batch_size=4)", "batch_size=4, num_workers=2)"))
    environ = {**os.environ, **environment(tmp_path, TOTAL="100000")}
    rank = subprocess.Popen([sys.executable, str(path)], env=environ, start_new_session=True)
    until = time.monotonic() + 60
    while not (tmp_path / "running").exists() and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(rank.pid, signal.SIGTERM)
    assert rank.wait(60) == EXIT_PREEMPTED
    assert latest(tmp_path)[0]


def test_a_script_that_falls_is_not_held_up_by_its_data_workers(tmp_path: Path) -> None:
    """Multiprocessing sends them one SIGTERM, and waits for ever."""
    path = script(tmp_path, STEPS + "    if step == 1: raise ValueError('mine')\n")
    path.write_text(path.read_text().replace("batch_size=4)", "batch_size=4, num_workers=1, persistent_workers=True)"))
    result = run_gang(path, tmp_path, 1, environment(tmp_path), seconds=60)
    assert result.codes == [1], result.output
    assert "ValueError: mine" in result.output


STUCK = """
import ctypes

class Stuck(torch.utils.data.TensorDataset):
    taken = 0

    def __getitem__(self, index):
        Stuck.taken += 1
        if Stuck.taken > 8:
            libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
            libc.pthread_mutex_lock(mutex)
            libc.pthread_mutex_lock(mutex)
        return super().__getitem__(index)

session = """


def test_a_script_that_falls_is_not_held_up_by_a_data_worker_that_is_stuck(tmp_path: Path) -> None:
    """In a deadlock of a library's: no handler that Python has for a signal runs there any more."""
    path = script(tmp_path, STEPS + "    if step == 1: raise ValueError('mine')\n")
    text = path.read_text().replace("session = ", STUCK, 1).replace("TensorDataset(torch", "Stuck(torch")
    path.write_text(text.replace("batch_size=4)", "batch_size=4, num_workers=1)"))
    result = run_gang(path, tmp_path, 1, environment(tmp_path), seconds=60)
    assert result.codes == [1], result.output
    assert "ValueError: mine" in result.output


def test_a_handler_of_the_scripts_own_is_that_of_the_processes_it_forks(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(HANDLED)
    assert "the child ended with 7" in run_gang(path, tmp_path, 1).check().output
