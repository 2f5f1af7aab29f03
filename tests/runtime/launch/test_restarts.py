"""A crash starts the gang's processes again in the pods that they have, unless it would only happen again."""

from __future__ import annotations

import os
import shlex
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trained import TRAINS

from muster_protocol import launcher_api as api
from muster_protocol.exits import EXIT_PREEMPTED, EXIT_USER, Cause
from muster_protocol.launcher_status import Phase
from muster_protocol.messages import Ended, GangState, Reliability, Stop, StopReason
from muster_protocol.wire import decode, encode
from muster_runtime.launch.config import read as configured
from muster_runtime.launch.restarts import MOST_IN_WINDOW, WINDOW_SECONDS, Refusal, Restarts
from muster_runtime.launch.tally import Tally

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]
ALLOWED = {"MUSTER_RESTARTS_IN_PLACE": "3"}

# Each incarnation leaves its port and its ranks' marks; `end` lets all ranks end well.
BEGIN = """
incarnation = int(os.environ["MUSTER_INCARNATION"])
here = Path(__file__).parent
(here / f"port-{incarnation}").write_text(os.environ["MASTER_PORT"])
mark(f"running-{incarnation}")
def until_end():
    while not (here / "end").exists(): time.sleep(0.01)
"""


def runs(gang: Any, incarnation: int, ranks: int) -> None:
    found = f"{ranks} ranks of incarnation {incarnation} run"
    gang.eventually(lambda: len(gang.marks(f"running-{incarnation}-")) == ranks, found)


def pid_of(gang: Any, incarnation: int, rank: int) -> int:
    return int((gang.folder / f"mark-running-{incarnation}-{rank}").read_text())


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_killed_rank_starts_the_gang_again_in_the_same_pods(make_gang: MakeGang) -> None:
    gang = make_gang(2, 2, **ALLOWED)
    pods = gang.all(gang.script(BEGIN + "until_end()\n"))
    runs(gang, 1, 4)
    before = [pid_of(gang, 1, rank) for rank in range(4)]
    os.kill(before[3], signal.SIGKILL)
    runs(gang, 2, 4)
    assert not [pid for pid in before if lives(pid)], "nothing of the first incarnation lives beside the second"
    status = pods[0].status()
    assert (status.incarnation, status.restarts, status.phase) == (2, 1, Phase.RUNNING)
    assert status.restarted_after == "rank 3 was ended by SIGKILL"
    assert all(pod.termination_log.read_text() == "" for pod in pods), "the word of an end is taken back"
    (gang.folder / "end").touch()
    for pod in pods:
        facts = pod.end()
        assert (facts.cause, facts.incarnation, facts.restarts) == (Cause.SUCCEEDED, 2, 1)


SAVES = f"""
mark(f"running-{{os.environ['MUSTER_INCARNATION']}}")
{TRAINS}"""


def test_a_gang_that_trains_saves_by_the_newest_word_on_how_often_nodes_fail(
    make_gang: MakeGang, tmp_path: Path
) -> None:
    auto = {"MUSTER_CHECKPOINT_INTERVAL": "auto", "MUSTER_CHECKPOINT_NODE_HOURS": "1e9"}
    every = {"MUSTER_CHECKPOINT_EVERY_STEPS": "100"}  # for something to be measured before the first minute is over
    gang = make_gang(
        2, MUSTER_CHECKPOINT_URI=f"file://{tmp_path}/run", GLOO_SOCKET_IFNAME="lo", **auto, **every, **ALLOWED
    )
    leader, other = gang.all(gang.script(SAVES))

    def interval() -> float:
        saving = leader.status().saving if leader.listens() else None
        return saving.interval_seconds if saving is not None and saving.interval_seconds is not None else 0.0

    gang.eventually(lambda: interval() == 3600.0, "a save is measured, and nodes hardly ever fail", 200)
    word = encode(Reliability(0.001))
    assert other.ask("PUT", api.RELIABILITY_PATH, word)[0] == 421
    assert leader.ask("PUT", api.RELIABILITY_PATH, encode(Reliability(0)))[0] == 400
    assert leader.ask("PUT", api.RELIABILITY_PATH, word, token=None)[0] == 401
    assert interval() == 3600.0
    assert leader.ask("PUT", api.RELIABILITY_PATH, word)[0] == 204
    gang.eventually(lambda: 0 < interval() < 60, "it is taken up at the next step")
    told = "s now, not every 3,600 s (interval auto): nodes of this cluster run 0.001 hours between"
    gang.eventually(lambda: told in leader.log(), "rank 0 says so")  # by another way than the status
    gang.eventually(lambda: leader.status().checkpoint.step % 100, "the gang saves more often than by steps")
    os.kill(pid_of(gang, 1, 0), signal.SIGKILL)
    runs(gang, 2, 2)
    gang.eventually(lambda: interval() == 60.0, "nothing is measured yet", 100)
    gang.eventually(lambda: 0 < interval() < 60, "the ranks that were started again know it, too", 100)
    for pod in (leader, other):
        pod.signal(signal.SIGTERM)
    assert leader.end().cause is Cause.PREEMPTED


def test_what_a_rank_has_started_in_a_session_of_its_own_does_not_live_beside_the_next(make_gang: MakeGang) -> None:
    """As torchrun does with its workers, and as trackers do with their services."""
    gang = make_gang(1, **ALLOWED)
    child = "import subprocess\nsleeps = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
    child += "child = subprocess.Popen(sleeps, start_new_session=True)\n"
    keep = "(here / f'child-{incarnation}').write_text(str(child.pid))\nmark(f'started-{incarnation}')\nuntil_end()\n"
    pod = gang.pod(0, gang.script(BEGIN + child + keep))

    def child_of(incarnation: int) -> int:
        gang.eventually(lambda: gang.marks(f"started-{incarnation}-"), f"incarnation {incarnation} has a child")
        return int((gang.folder / f"child-{incarnation}").read_text())

    first = child_of(1)
    os.kill(pid_of(gang, 1, 0), signal.SIGKILL)
    second = child_of(2)
    assert not lives(first), "nothing of the first incarnation lives beside the second"
    (gang.folder / "end").touch()
    assert pod.end().cause is Cause.SUCCEEDED
    os.kill(second, signal.SIGKILL)  # the container's end would


def test_a_crash_behind_a_shell_is_one(make_gang: MakeGang) -> None:
    gang = make_gang(1, **ALLOWED)
    script = gang.script(BEGIN + "if incarnation == 1: os.kill(os.getpid(), signal.SIGSEGV)\n")
    facts = gang.pod(0, ["sh", "-c", f"{shlex.join(script)}; exit $?"]).end()
    assert (facts.cause, facts.incarnation, facts.restarts) == (Cause.SUCCEEDED, 2, 1)


def test_a_stop_of_the_incarnation_before_that_comes_late_stops_nobody(make_gang: MakeGang) -> None:
    gang = make_gang(2, **ALLOWED)
    leader, other = gang.all(gang.script(BEGIN + "until_end()\n"))
    runs(gang, 1, 2)
    os.kill(pid_of(gang, 1, 1), signal.SIGKILL)
    runs(gang, 2, 2)
    from_leader = {"X_Muster_Relayed": "1", "X_Muster_Pod": leader.uid, "X_Muster_Generation": "1"}
    for reason in (StopReason.PREEMPT, StopReason.PEER):
        late = encode(Stop(reason, 20, told=1, incarnation=1))
        assert other.ask("POST", api.STOP_PATH, late, **from_leader)[0] == 202
    assert other.status().phase is Phase.RUNNING
    (gang.folder / "end").touch()
    assert {pod.end().cause for pod in (leader, other)} == {Cause.SUCCEEDED}


def test_a_stop_of_the_present_incarnation_that_index_0_passes_on_counts(make_gang: MakeGang) -> None:
    gang = make_gang(2, **ALLOWED)
    leader, other = gang.all(gang.script(BEGIN + "until_end()\n"))
    runs(gang, 1, 2)
    os.kill(pid_of(gang, 1, 1), signal.SIGKILL)
    runs(gang, 2, 2)
    leader.signal(signal.SIGTERM)
    assert {pod.end().cause for pod in (leader, other)} == {Cause.PREEMPTED}
    assert "asked to stop (preempt)" in other.log()


def test_three_restarts_leave_nothing_open_in_the_launchers(make_gang: MakeGang) -> None:
    gang = make_gang(2, **ALLOWED)
    pods = gang.all(gang.script(BEGIN + "until_end()\n"))
    runs(gang, 1, 2)
    open_files = [len(os.listdir(f"/proc/{pod.process.pid}/fd")) for pod in pods]
    for incarnation in (1, 2, 3):
        os.kill(pid_of(gang, incarnation, incarnation % 2), signal.SIGKILL)
        runs(gang, incarnation + 1, 2)
    for pod, before in zip(pods, open_files, strict=True):
        gang.eventually(lambda: len(os.listdir(f"/proc/{pod.process.pid}/fd")) <= before, "no file stays open")  # noqa: B023
        folders = [path for path in gang.runs.glob("run-*/*") if path.is_dir()]
        assert len(folders) == len(pods), "one run folder a pod"
    ports = {(gang.folder / f"port-{incarnation}").read_text() for incarnation in (1, 2, 3, 4)}
    assert len(ports) == 4, "a rank of an older incarnation never meets the ranks of a newer one"
    os.kill(pid_of(gang, 4, 1), signal.SIGKILL)
    facts = pods[1].end()
    assert (facts.cause, facts.exit_code, facts.restarts) == (Cause.USER, EXIT_USER, 3)
    assert facts.message == "rank 1 was ended by SIGKILL; the gang was restarted in place 3 times before"


def test_the_same_exception_again_ends_the_gang_with_its_traceback(make_gang: MakeGang) -> None:
    gang = make_gang(2, **ALLOWED)
    command = gang.script(BEGIN + "if RANK == 1: raise ValueError(f'a bad shape {os.getpid()}')\nuntil_end()\n")
    leader, culprit = gang.all(command)
    facts = culprit.end()
    assert (facts.cause, facts.exit_code, facts.rank, facts.rank_exit_code) == (Cause.USER, EXIT_USER, 1, 1)
    assert facts.message.startswith("rank 1 exited with code 1: ValueError: a bad shape ")
    assert facts.message.endswith("; the same exception came before the restart in place")
    assert "\nValueError: a bad shape " in facts.traceback
    assert facts.signature.startswith("ValueError: a bad shape # at script.py:")
    assert (facts.incarnation, facts.restarts, facts.failures, facts.alike) == (2, 1, 1, 2)
    assert "a bad shape" in leader.end().message
    assert not gang.marks("running-3-")


def test_another_exception_is_tried_again(make_gang: MakeGang) -> None:
    gang = make_gang(1, **ALLOWED)
    pod = gang.pod(0, gang.script(BEGIN + "if incarnation < 3: raise (ValueError, KeyError)[incarnation - 1]('x')\n"))
    facts = pod.end()
    assert (facts.cause, facts.incarnation, facts.restarts) == (Cause.SUCCEEDED, 3, 2)


def test_a_want_of_memory_starts_the_gang_again_in_the_same_pods(make_gang: MakeGang) -> None:
    gang = make_gang(2, **ALLOWED)
    short = "if RANK == 1 and incarnation == 1: raise MemoryError\n"
    leader, other = gang.all(gang.script(BEGIN + short + "until_end()\n"))
    runs(gang, 1, 2)
    runs(gang, 2, 2)
    first = leader.status().restarted_by
    assert (first.cause, first.rank) == (Cause.OUT_OF_MEMORY.value, 1)
    (gang.folder / "end").touch()
    for facts in (leader.end(), other.end()):
        assert (facts.cause, facts.restarts, facts.failures, facts.memory_failures) == (Cause.SUCCEEDED, 1, 1, 1)


def test_the_same_want_of_gpu_memory_again_ends_the_gang_as_such(make_gang: MakeGang) -> None:
    gang = make_gang(1, **ALLOWED)
    refused = "raise torch.OutOfMemoryError(f'CUDA out of memory. Tried to allocate {20 + incarnation}.00 MiB.')\n"
    facts = gang.pod(0, gang.script("import torch\n" + BEGIN + refused)).end(120)
    assert (facts.cause, facts.exit_code, facts.restarts, facts.alike) == (Cause.OUT_OF_MEMORY, EXIT_USER, 1, 2)
    assert facts.message.startswith("rank 0 exited with code 1: torch.OutOfMemoryError: CUDA out of memory. Tried to")
    assert "; the GPU ran out of memory: use a smaller batch" in facts.message
    assert facts.message.endswith("; the same exception came before the restart in place")
    assert facts.traceback.endswith("Tried to allocate 22.00 MiB.")


def test_no_want_of_memory_is_answered_where_the_job_allows_none(make_gang: MakeGang) -> None:
    gang = make_gang(1, **ALLOWED, MUSTER_MEMORY_RESTARTS_IN_PLACE="0")
    facts = gang.pod(0, gang.script(BEGIN + "raise MemoryError\n")).end()
    assert (facts.cause, facts.incarnation, facts.restarts) == (Cause.OUT_OF_MEMORY, 1, 0)


def test_want_of_memory_is_answered_where_the_limit_of_crashes_is_used_up(make_gang: MakeGang) -> None:
    """So the operator says it: with the number of the one alone."""
    gang = make_gang(1, MUSTER_MEMORY_RESTARTS_IN_PLACE="2")
    script = BEGIN + "if incarnation == 1: raise MemoryError\nraise ValueError('crash')\n"
    facts = gang.pod(0, gang.script(script)).end()
    assert (facts.cause, facts.incarnation, facts.memory_failures) == (Cause.USER, 2, 1)


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ({}, (0, 0, 0)),
        ({"MUSTER_RESTARTS_IN_PLACE": "3"}, (3, 3, 3)),
        ({"MUSTER_RESTARTS_IN_PLACE": "3", "MUSTER_MEMORY_RESTARTS_IN_PLACE": "1"}, (3, 1, 3)),
        ({"MUSTER_MEMORY_RESTARTS_IN_PLACE": "2"}, (0, 2, 0)),
        ({"MUSTER_NETWORK_RESTARTS_IN_PLACE": "9"}, (0, 0, 9)),
        ({"MUSTER_RESTARTS_IN_PLACE": "0", "MUSTER_NETWORK_RESTARTS_IN_PLACE": "9"}, (0, 0, 9)),
        ({"MUSTER_RESTARTS_IN_PLACE": "0"}, (0, 0, 0)),
    ],
)
def test_the_limits_of_restarts_in_place_are_read_each_for_itself(
    said: dict[str, str], allowed: tuple[int, int, int]
) -> None:
    config = configured(said, ("true",), 2)
    assert (config.restarts, config.memory_restarts, config.network_restarts) == allowed
    assert config.keeps_memory == any(allowed)


def test_one_rank_that_no_crash_starts_again_needs_no_memory_for_lost_connections() -> None:
    assert not configured({"MUSTER_NETWORK_RESTARTS_IN_PLACE": "9"}, ("true",), 1).keeps_memory


def test_lost_connections_are_mended_in_the_same_pods_where_the_limits_are_used_up(make_gang: MakeGang) -> None:
    """So the operator says it: with the number of these alone."""
    gang = make_gang(1, 2, MUSTER_NETWORK_RESTARTS_IN_PLACE="2")
    lose = "if incarnation == 1: raise RuntimeError('[gloo] Connection closed by peer')\nraise ValueError('crash')\n"
    facts = gang.pod(0, gang.script(BEGIN + lose)).end()
    assert (facts.cause, facts.incarnation, facts.restarts, facts.failures) == (Cause.USER, 2, 1, 0)


def test_ranks_that_lose_each_other_are_put_down_to_the_network(make_gang: MakeGang) -> None:
    gang = make_gang(1, 2, **ALLOWED)
    lose = "if incarnation == 1: raise RuntimeError('[gloo] Connection closed by peer')\n"
    facts = gang.pod(0, gang.script(BEGIN + lose)).end()
    assert "no rank failed by itself" in gang.pods[0].log()
    assert (facts.cause, facts.restarts, facts.failures) == (Cause.SUCCEEDED, 1, 0)


@pytest.mark.parametrize("script", ["sys.exit(3)", "sys.exit(75)", "raise StaleEpochError('taken over')"])
def test_an_end_that_means_an_end_is_one(make_gang: MakeGang, script: str) -> None:
    gang = make_gang(1, **ALLOWED)
    pod = gang.pod(0, gang.script(BEGIN + "from muster_protocol.errors import StaleEpochError\n" + script + "\n"))
    assert pod.end().incarnation == 1


def test_no_crash_is_answered_by_a_restart_where_a_rank_is_done(make_gang: MakeGang) -> None:
    """The pod that ended well can't come back."""
    gang = make_gang(2, **ALLOWED)
    pods = gang.all(gang.script(BEGIN + "if RANK == 1: sys.exit(0)\nuntil_end()\nraise ValueError('late')\n"))
    assert pods[1].end().cause is Cause.SUCCEEDED
    (gang.folder / "end").touch()
    facts = pods[0].end()
    assert (facts.cause, facts.restarts) == (Cause.USER, 0)


@pytest.mark.parametrize(("workers", "processes", "who"), [(2, 1, "index 1"), (1, 2, "rank 1")])
def test_who_left_before_the_others_is_named(make_gang: MakeGang, workers: int, processes: int, who: str) -> None:
    gang = make_gang(workers, processes, **ALLOWED)
    lost = "raise RuntimeError('[gloo] Connection closed by peer')\n"
    pods = gang.all(gang.script(BEGIN + "if RANK == 1: sys.exit(0)\nuntil_end()\n" + lost))
    runs(gang, 1, 2)
    gang.eventually(lambda: not lives(pid_of(gang, 1, 1)), "rank 1 has left")
    if workers == 2:
        assert pods[1].end().cause is Cause.SUCCEEDED
    (gang.folder / "end").touch()
    facts = pods[0].end()
    assert (facts.cause, facts.restarts) == (Cause.USER, 0)
    assert facts.message.startswith(f"{who} had ended well before: all ranks have to make the same number of steps")
    assert "Connection closed by peer" in facts.message
    assert facts.signature == "one rank ended well before the others", "the words of a lost connection vary"


@pytest.mark.parametrize(("workers", "processes", "who"), [(3, 1, "index 1"), (1, 2, "rank 1"), (3, 1, "index 0")])
def test_nobody_waits_to_join_with_one_that_has_left(
    make_gang: MakeGang, workers: int, processes: int, who: str
) -> None:
    """Torch would wait for half an hour. Whether hangs are watched doesn't matter: without all ranks nobody joins."""
    gang = make_gang(workers, processes, MUSTER_HEARTBEAT_SECONDS="0.2", **ALLOWED)
    leaves = int(who.split()[1])
    join = (
        "from muster_runtime.pulse import Pulse, Section\n"
        'Pulse(int(os.environ["LOCAL_RANK"])).enter(Section.JOIN)\nuntil_end()\n'
    )
    pods = gang.all(gang.script(BEGIN + f"if RANK == {leaves}: sys.exit(0)\n" + join))
    ends = [pod.end() for pod in pods]
    waits = 1 if leaves == 0 else 0
    told = ends[waits]
    assert (told.cause, told.rank, told.exit_code, told.restarts) == (Cause.USER, waits, EXIT_USER, 0)
    assert told.message.startswith(f"{who} ended with exit code 0 before it had joined, and rank {waits} waits for it")
    assert told.signature == "one rank ended well before the others"
    for index, facts in enumerate(ends):
        if index not in (waits, leaves):
            assert facts.cause is Cause.PEER
            assert told.message in facts.message


def test_a_stop_while_the_gang_starts_again_is_heard(make_gang: MakeGang) -> None:
    gang = make_gang(2, **ALLOWED)
    pods = gang.all(gang.script(BEGIN + "until_end()\n"))
    for incarnation in (1, 2):
        runs(gang, incarnation, 2)
        os.kill(pid_of(gang, incarnation, 0), signal.SIGKILL)
    gang.eventually(lambda: pods[1].status().restarts == 2, "the second restart's pause")
    pods[1].signal(signal.SIGTERM)
    assert [pod.end().exit_code for pod in pods] == [EXIT_PREEMPTED] * 2
    assert not gang.marks("running-3-")
    told = "stopped (preempt) before its processes had started again in their pods, after rank 0 was ended by SIGKILL"
    assert pods[0].end().message == told, "the pods' logs are gone soon, and nobody else has heard of it"


def test_what_an_older_incarnation_says_ends_nobody(make_gang: MakeGang) -> None:
    gang = make_gang(2, **ALLOWED)
    pods = gang.all(gang.script(BEGIN + "until_end()\n"))
    runs(gang, 1, 2)
    os.kill(pid_of(gang, 1, 0), signal.SIGKILL)
    runs(gang, 2, 2)
    old = Ended(1, 1, Cause.USER.value, "old news", rank=1, crash=True, incarnation=1)
    code, body = pods[0].ask("POST", api.ENDED_PATH, encode(old))
    answer = decode(GangState, body)
    assert code == 200
    assert answer.ended is None
    assert answer.restart is not None
    assert answer.restart.incarnation == 2
    with socket.socket() as late, pytest.raises(ConnectionRefusedError):  # where the first incarnation's ranks met
        late.connect((pods[0].address, int((gang.folder / "port-1").read_text())))
    (gang.folder / "end").touch()
    assert [pod.end().cause for pod in pods] == [Cause.SUCCEEDED] * 2


def test_a_pod_that_is_lost_while_the_gang_starts_again_ends_it(make_gang: MakeGang) -> None:
    gang = make_gang(2, MUSTER_HEARTBEAT_SECONDS="0.2", **ALLOWED)
    leader, lost = gang.all(gang.script(BEGIN + "until_end()\n"))
    for incarnation in (1, 2):
        runs(gang, incarnation, 2)
        os.kill(pid_of(gang, incarnation, 0), signal.SIGKILL)
    gang.eventually(lambda: lost.status().restarts == 2, "the second restart's pause")
    lost.process.kill()
    facts = leader.end()
    assert facts.cause in (Cause.PEER, Cause.INFRASTRUCTURE)
    assert "index 1 (pod uid-1-0) is lost" in facts.message


def crash(how: str = "was ended by SIGKILL", step: int | None = None, *, rank: int = 0, echo: bool = False) -> Ended:
    signature = how if "Error" in how else ""
    ended = Ended(0, 1, Cause.USER.value, f"rank {rank} {how}", rank, secondary=echo, crash=True, step=step)
    return replace(ended, signature=signature)


BAD_VALUE = "exited with code 1: ValueError: x"


def test_the_window_moves_on() -> None:
    restarts = Restarts(100)
    pauses = [restarts.pause(crash(), 10.0 * number) for number in range(MOST_IN_WINDOW)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 0
    with pytest.raises(Refusal, match="within 600 s"):
        restarts.pause(crash(), WINDOW_SECONDS - 1)
    assert restarts.pause(crash(), WINDOW_SECONDS + 1) > 0
    assert restarts.tally.failures == MOST_IN_WINDOW + 1


@pytest.mark.parametrize(
    ("first", "second", "again"),
    [
        (crash(BAD_VALUE, 7), crash(BAD_VALUE, 7, rank=1), False),
        (crash(BAD_VALUE, 7), crash(BAD_VALUE, 8), True),
        (crash(BAD_VALUE, 7), crash("exited with code 1: KeyError: x", 7), True),
        (crash(step=7), crash(step=7), True),
        (crash(BAD_VALUE, 7, echo=True), crash(BAD_VALUE, 7, echo=True), True),
    ],
)
def test_the_same_exception_at_the_same_step_is_the_scripts(first: Ended, second: Ended, again: bool) -> None:
    restarts = Restarts(100)
    restarts.pause(first, 0.0)
    if again:
        restarts.pause(second, 1.0)
    else:
        with pytest.raises(Refusal, match="same exception came at step 7"):
            restarts.pause(second, 1.0)
    assert restarts.alike == (1 if again else 2)


def test_the_same_hang_at_the_same_step_is_the_scripts() -> None:
    hung = replace(crash(BAD_VALUE, 7), cause=Cause.HANG.value, signature="hang (step) at train.py:6 in main")
    restarts = Restarts(100)
    restarts.pause(hung, 0.0)
    restarts.pause(replace(hung, step=8), 1.0)
    with pytest.raises(Refusal, match="same hang came at step 8 before"):
        restarts.pause(replace(hung, step=8), 2.0)


def test_lost_connections_do_not_use_up_what_the_script_may_fail() -> None:
    restarts = Restarts(1, network_limit=3)
    lost = replace(crash("exited with code 1: lost", echo=True), cause=Cause.NETWORK.value)
    assert [restarts.pause(lost, now) for now in (0.0, 1.0)] == [0.0, 5.0]
    restarts.pause(crash(), 2.0)
    assert restarts.tally.failures == 1
    with pytest.raises(Refusal, match="restarted in place once before"):
        restarts.pause(crash(), 2 * WINDOW_SECONDS)
    restarts.pause(lost, 2 * WINDOW_SECONDS)
    with pytest.raises(Refusal, match="restarted in place 3 times before"):
        restarts.pause(lost, 4 * WINDOW_SECONDS)


def test_crashes_and_wants_of_memory_are_limited_apart() -> None:
    restarts = Restarts(1, memory_limit=1)
    short = replace(crash("exited with code 1: MemoryError", 7), cause=Cause.OUT_OF_MEMORY.value)
    restarts.pause(short, 0.0)
    restarts.pause(crash(), 1.0)
    assert restarts.tally == Tally(restarts=2, failures=2, memory_failures=1)
    for again in (replace(short, step=8), crash()):
        with pytest.raises(Refusal, match="restarted in place once before"):
            restarts.pause(again, 2 * WINDOW_SECONDS)
