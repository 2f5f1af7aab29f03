"""A gang that doesn't get on: who holds it up is found, the stacks of all are kept, and it starts again in place."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from muster_protocol import launcher_api as api
from muster_protocol.exits import EXIT_INFRASTRUCTURE, EXIT_USER, Cause
from muster_protocol.messages import Examined
from muster_protocol.wire import decode

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]
QUICK = {"MUSTER_HEARTBEAT_SECONDS": "0.2", "MUSTER_HANG_START": "20", "MUSTER_HANG_STEP": "1"}
ALLOWED = {"MUSTER_RESTARTS_IN_PLACE": "3"}

# What a session and a data-parallel step do, without torch: each rank waits in each step for all others.
SESSION = """
from muster_runtime import report, stacks
from muster_runtime.pulse import Pulse, Section
from muster_runtime.reporter import Reporter
incarnation, world = int(os.environ["MUSTER_INCARNATION"]), int(os.environ["WORLD_SIZE"])
folder = Path(__file__).parent
stacks.show_when_asked(RANK)
pulse = Pulse(int(os.environ["LOCAL_RANK"]))
Reporter().send(report.Hello(RANK, os.getpid()))
sys.path.insert(0, str(folder / "torch" / "distributed"))
from collective import all_reduce

def stuck():
    while True:
        pass

def run(body, steps):
    pulse.begin(0)
    for step in range(steps):
        pulse.step_opens()
        body(step)
        all_reduce(folder, f"{incarnation}-{step}", RANK, world)
        pulse.step_done(step + 1)
        if step == 3:
            mark(f"running-{incarnation}")
    pulse.enter(Section.OUTSIDE)
"""
COLLECTIVE = """
import time

def all_reduce(folder, name, rank, world):
    (folder / f"step-{name}-{rank}").touch()
    while not all((folder / f"step-{name}-{other}").exists() for other in range(world)):
        time.sleep(0.002)
"""


def command(gang: Any, body: str) -> list[str]:
    library = gang.folder / "torch" / "distributed"
    library.mkdir(parents=True)
    (library / "collective.py").write_text(COLLECTIVE)
    made: list[str] = gang.script(SESSION + body)
    return made


def runs(gang: Any, incarnation: int, ranks: int) -> None:
    gang.eventually(lambda: len(gang.marks(f"running-{incarnation}-")) == ranks, f"{ranks} ranks of {incarnation} run")


def test_whoever_asks_sees_what_the_ranks_are_at_and_nothing_follows(make_gang: MakeGang) -> None:
    gang = make_gang(1, 2, **QUICK | {"MUSTER_HANG_STEP": "0"}, **ALLOWED)
    body = """
def body(step):
    while step == 6 and RANK == 1 and not (folder / "end").exists():
        pass
run(body, 10)
"""
    (pod,) = gang.all(command(gang, body))
    runs(gang, 1, 2)

    def seen() -> dict[int, Any]:
        code, answer = pod.ask("GET", api.STACKS_PATH)
        assert code == 200
        return {one.rank: one for one in decode(Examined, answer).ranks}

    gang.eventually(
        lambda: "in body" in seen()[1].stack and "in all_reduce" in seen()[0].stack, "rank 1 holds up rank 0"
    )
    assert [(one.section, one.step) for one in seen().values()] == [("step", 6), ("step", 6)]
    assert "did not get on" not in pod.log()
    assert pod.ask("GET", api.STACKS_PATH, token=None)[0] == 401
    (gang.folder / "end").touch()
    assert pod.end().cause is Cause.SUCCEEDED


def test_a_stopped_rank_is_found_and_the_gang_starts_again(make_gang: MakeGang) -> None:
    gang = make_gang(2, 2, **QUICK, **ALLOWED)
    body = """
signal.signal(signal.SIGTERM, lambda *_: mark("terminated"))
run(lambda step: time.sleep(0.01), 100000 if incarnation == 1 else 5)
while not (folder / "end").exists(): time.sleep(0.01)
"""
    pods = gang.all(command(gang, body))
    runs(gang, 1, 4)
    os.kill(int((gang.folder / "mark-running-1-3").read_text()), signal.SIGSTOP)
    runs(gang, 2, 4)
    hang = pods[0].status().restarted_by
    assert hang is not None
    assert (hang.cause, hang.index, hang.rank) == (Cause.HANG.value, 1, 3)
    assert hang.suspect, "its node may be at fault"
    assert not gang.marks("terminated"), "nobody who hangs answers SIGTERM: seconds would be waited for it in vain"
    (gang.folder / "end").touch()
    for pod in pods:
        facts = pod.end()
        assert (facts.cause, facts.incarnation, facts.restarts) == (Cause.SUCCEEDED, 2, 1)
    told = pods[0].log()
    assert "rank 3 hangs in the step after step" in told
    assert "is stopped by a signal (SIGSTOP); the others wait for it" in told
    for rank, pod in ((0, pods[0]), (1, pods[0]), (2, pods[1])):
        assert f"[rank {rank}] [muster] did not get on for" in pod.log()
        assert f"[rank {rank}] [muster]   File" in pod.log()
    assert "collective.py" in told
    assert "in all_reduce" in told
    stopped = [line for line in pods[1].log().splitlines() if "is stopped by a signal" in line]
    assert any(line.startswith("[rank 3] [muster] process ") for line in stopped)


def test_a_rank_that_is_stopped_in_a_save_is_found_long_before_a_save_may_take(make_gang: MakeGang) -> None:
    """The others wait for it in the same section, and are not overdue."""
    gang = make_gang(2, 2, **QUICK, **ALLOWED, MUSTER_HANG_CHECKPOINT="600")
    body = """
def body(step):
    if step == 6 and incarnation == 1:
        pulse.enter(Section.CHECKPOINT)
        mark("saving")
        while RANK == 3: time.sleep(0.01)
run(body, 8)
"""
    pods = gang.all(command(gang, body))
    gang.eventually(lambda: len(gang.marks("saving-")) == 4, "all ranks save")
    os.kill(int((gang.folder / "mark-saving-3").read_text()), signal.SIGSTOP)
    for pod in pods:
        facts = pod.end()
        assert (facts.cause, facts.incarnation, facts.restarts) == (Cause.SUCCEEDED, 2, 1)
    assert "rank 3 hangs in a save or a restore after step 6" in pods[0].log()
    assert "is stopped by a signal (SIGSTOP); the others wait for it" in pods[0].log()


def test_an_endless_loop_is_told_from_those_who_wait_for_it(make_gang: MakeGang) -> None:
    """Without restarts the gang ends; the worker with the loop has its stack in the exit facts."""
    gang = make_gang(2, **QUICK)
    body = "run(lambda step: stuck() if RANK == 1 and step == 5 else None, 100)\n"
    waiting, looping = gang.all(command(gang, body))
    facts = looping.end()
    assert (facts.cause, facts.exit_code, facts.rank) == (Cause.HANG, EXIT_USER, 1)
    assert facts.suspect
    assert facts.message.startswith("rank 1 hangs in the step after step 5: it did not get on for ")
    assert f"{gang.folder}/script.py:" in facts.message
    assert "in stuck; the others wait for it. If it may take as long, raise spec.hang.step" in facts.message
    assert "in stuck" in facts.traceback.splitlines()[0]
    other = waiting.end()
    assert (other.cause, other.exit_code) == (Cause.PEER, EXIT_INFRASTRUCTURE)
    assert "followed index 1: rank 1 hangs" in other.message


def test_an_evaluation_longer_than_a_step_is_no_hang(make_gang: MakeGang) -> None:
    gang = make_gang(2, **QUICK, MUSTER_HANG_EVALUATION="20")
    body = """
def body(step):
    if RANK == 0 and step == 4:
        with pulse.during(Section.EVALUATION):
            time.sleep(3)
run(body, 6)
"""
    pods = gang.all(command(gang, body))
    assert [pod.end().cause for pod in pods] == [Cause.SUCCEEDED] * 2
    assert "hang" not in pods[0].log()


def test_a_script_that_starts_no_session_is_ended_by_a_start_of_its_own(make_gang: MakeGang) -> None:
    gang = make_gang(1, MUSTER_HEARTBEAT_SECONDS="0.2", MUSTER_HANG_START="1", MUSTER_HANG_STEP="auto")
    facts = gang.pod(0, gang.script("time.sleep(600)\n")).end()
    assert facts.cause is Cause.HANG
    assert facts.message.startswith("rank 0 hangs before it has started a session")
