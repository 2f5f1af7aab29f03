"""A gang ends together, and each pod tells what it knows about why."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster_protocol import env
from muster_protocol import launcher_api as api
from muster_protocol.exits import EXIT_CONFIG, EXIT_INFRASTRUCTURE, EXIT_PREEMPTED, EXIT_USER, Cause
from muster_protocol.launcher_status import Phase
from muster_protocol.messages import Stop, StopReason
from muster_protocol.wire import encode
from muster_runtime.launch import ranks
from muster_runtime.launch.logs import Pump

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]

# What a session does, without torch: it says hello, reports, hears the control word, commits and exits 75.
SESSION = """
from muster_runtime import report
from muster_runtime.control import ControlReader
from muster_runtime.reporter import Reporter
reporter, control = Reporter(), ControlReader()
reporter.send(report.Hello(RANK, os.getpid()))
signal.signal(signal.SIGTERM, lambda *_: mark("sigterm"))
step = 0
while not control.stop_requested():
    step += 1
    reporter.send(report.Progress(RANK, step, 100000, "0.5", 0.01, 10.0, 5.0, None))
    if step == 3:
        mark("running")
    time.sleep(0.01)
left = control.deadline() - time.monotonic()
mark("stopped" if 0 < left < 60 else "bad-deadline")
if RANK == 0:
    Path(__file__).with_name("committed").write_text(str(step))
    reporter.send(report.CheckpointCommitted(0, step, "s3://models/x", 0.1, 1000, time.time()))
    reporter.send(report.Stored(0, 7000))
sys.exit(75)
"""
PLAIN = "mark('running')\ntime.sleep(600)\n"


def running(gang: Any, ranks: int) -> None:
    gang.eventually(lambda: len(gang.marks("running")) == ranks, f"{ranks} ranks run")


def dead(gang: Any, name: str) -> None:
    """No process that left a mark lives on."""

    def none() -> bool:
        return not any(alive(int((gang.folder / mark).read_text() or 0)) for mark in gang.marks(name))

    gang.eventually(none, "all ranks are gone", 10)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_crash_of_one_rank_ends_all_and_is_told_with_its_traceback(make_gang: MakeGang) -> None:
    gang = make_gang(3, 2)
    command = gang.script(
        "mark('running')\n"
        "if RANK == 3:\n"
        "    while len(list(Path(__file__).parent.glob('mark-running-*'))) < 6: time.sleep(0.01)\n"
        "    raise ValueError('a bad shape')\n"
        "time.sleep(600)\n"
    )
    leader, culprit, bystander = gang.all(command)
    facts = culprit.end()
    assert (facts.cause, facts.exit_code) == (Cause.USER, EXIT_USER)
    assert (facts.rank, facts.rank_exit_code) == (3, 1)
    assert facts.message == "rank 3 exited with code 1: ValueError: a bad shape"
    assert facts.traceback.startswith("Traceback (most recent call last):")
    assert facts.traceback.endswith("ValueError: a bad shape")
    for pod in (leader, bystander):
        followed = pod.end()
        assert (followed.cause, followed.exit_code) == (Cause.PEER, EXIT_INFRASTRUCTURE)
        assert "index 1: rank 3 exited with code 1: ValueError: a bad shape" in followed.message
    dead(gang, "running")


def test_a_lost_connection_is_not_taken_for_the_cause(make_gang: MakeGang) -> None:
    """Rank 0 feels rank 1's end and may even die first; rank 1 is the one to name."""
    gang = make_gang(2)
    command = gang.script(
        "mark('running')\n"
        "if RANK == 0:\n"
        "    raise RuntimeError('[torch/csrc gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1')\n"
        "until = time.monotonic() + 20\n"
        "while not list(Path(__file__).parent.glob('mark-running-0')) and time.monotonic() < until: time.sleep(0.01)\n"
        "time.sleep(0.7)\n"
        "raise KeyError('the cause')\n"
    )
    leader, culprit = gang.all(command)
    assert culprit.end().cause is Cause.USER
    facts = leader.end()
    assert facts.cause is Cause.PEER
    assert "the cause" in facts.message
    assert "Connection closed by peer" in facts.traceback


def test_a_rank_that_is_killed_names_its_signal(make_gang: MakeGang) -> None:
    gang = make_gang(1, 2)
    pod = gang.pod(0, gang.script("if RANK == 1: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(600)\n"))
    facts = pod.end()
    assert (facts.cause, facts.rank, facts.rank_exit_code) == (Cause.USER, 1, -signal.SIGSEGV)
    assert "SIGSEGV" in facts.message


def test_exit_75_without_being_asked_is_the_users_failure(make_gang: MakeGang) -> None:
    gang = make_gang(1)
    facts = gang.pod(0, gang.script("sys.exit(75)\n")).end()
    assert (facts.cause, facts.exit_code) == (Cause.USER, EXIT_USER)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["no-such-program"], "'no-such-program' was not found on PATH"),
        (["/no/such/program"], "'/no/such/program' was not found in this image"),
        (["./not-executable"], "not executable"),
        (["./bad-interpreter"], "the interpreter in its first line does not exist"),
    ],
)
def test_a_command_that_cant_be_executed_is_a_configuration_error(
    make_gang: MakeGang, command: list[str], told: str
) -> None:
    gang = make_gang(1)
    (gang.folder / "not-executable").write_text("echo\n")
    script = gang.folder / "bad-interpreter"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    facts = gang.pod(0, command).end()
    assert (facts.cause, facts.exit_code) == (Cause.CONFIG, EXIT_CONFIG)
    assert told in facts.message


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EAGAIN, "limit of processes"),
        (errno.ENOMEM, "limit of processes"),
        (errno.EMFILE, "Too many open files.*ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
    ],
)
def test_a_machine_without_room_for_a_process_is_not_the_commands_fault(
    monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ranks, "_spawn", refuse)
    with pytest.raises(ranks.NoRoomError, match=rf"no process for rank 3 can be started .*{told}"):
        ranks.Ranks(lambda: None).start(["python"], [(3, {}, ())], prefix=False)


def test_a_machine_without_room_for_a_thread_leaves_no_rank_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Pump) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Pump, "start", refuse)
    started = ranks.Ranks(lambda: None)
    with pytest.raises(ranks.NoRoomError, match=r"no thread for the output of rank 3 .*limit of processes"):
        started.start(["sleep", "600"], [(3, os.environ, ())], prefix=False)
    assert started.all[0].process.wait(10) == -signal.SIGKILL


def test_a_launcher_without_a_descriptor_for_the_output_leaves_no_rank_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    started = ranks.Ranks(lambda: None)
    monkeypatch.setattr("muster_runtime.launch.ranks.os.dup", refuse)
    with pytest.raises(ranks.NoRoomError, match=r"the output of rank 3 can be started .*ulimit -n"):
        started.start(["sleep", "600"], [(3, os.environ, ())], prefix=False)
    assert started.all[0].process.wait(10) == -signal.SIGKILL


FAILS_ITSELF = """
import os, pathlib
from muster_runtime.launch import command
from muster_runtime.launch.launcher import Launcher
async def fail(launcher):
    while not pathlib.Path("begun").exists(): await launcher._state.wait(0.02)
    raise KeyError("unforeseen")
Launcher._watch = fail
command.run(lambda: False)
"""


def test_a_launcher_that_fails_itself_leaves_neither_its_folder_nor_what_ranks_have_started(
    make_gang: MakeGang,
) -> None:
    gang = make_gang(1)
    root = gang.runs / "alone"
    root.mkdir()
    shell = ["sh", "-c", "sleep 600 & echo $! > pid; mv pid begun; wait"]
    done = subprocess.run(
        [sys.executable, "-c", FAILS_ITSELF, "--", *shell],
        cwd=gang.folder,
        env={**os.environ, "MUSTER_RUN_ROOT": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == EXIT_INFRASTRUCTURE
    assert "the launcher failed: KeyError('unforeseen')" in done.stderr
    assert not list(root.iterdir())
    pid = int((gang.folder / "begun").read_text())
    gang.eventually(lambda: not Path(f"/proc/{pid}").exists(), "what the rank had started ends")


STARTS_NO_THREADS = """
import sys, threading
start, allowed = threading.Thread.start, sys.argv.pop(1).split(",")
def only(thread):
    if not any(thread.name.startswith(name) for name in allowed): raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = only
from muster_runtime.launch import command
command.run(lambda: False)
"""


@pytest.mark.parametrize(
    ("allowed", "script", "code", "told"),
    [
        ("none", "true", EXIT_INFRASTRUCTURE, "no thread for the output of rank 0 can be started"),
        ("launcher's log", "true", EXIT_INFRASTRUCTURE, "no thread for the output of rank 0 can be started"),
        ("log ", "exit 3", EXIT_USER, "rank 0 exited with code 3"),
    ],
)
def test_a_launcher_that_can_start_no_threads_still_tells_how_it_ends(
    allowed: str, script: str, code: int, told: str
) -> None:
    command = [sys.executable, "-c", STARTS_NO_THREADS, allowed, "--", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert told in done.stderr.splitlines()[-1]


def test_a_command_missing_on_one_pod_ends_the_gang(make_gang: MakeGang) -> None:
    gang = make_gang(2)
    leader, follower = gang.pod(0, gang.script(PLAIN)), gang.pod(1, ["no-such-program"])
    assert follower.end().cause is Cause.CONFIG
    facts = leader.end()
    assert (facts.cause, facts.exit_code) == (Cause.PEER, EXIT_CONFIG)
    assert "no-such-program" in facts.message


@pytest.mark.parametrize("asked", [0, 1])
def test_sigterm_at_any_pod_stops_the_sessions_of_all_with_a_checkpoint(make_gang: MakeGang, asked: int) -> None:
    gang = make_gang(2, 2)
    pods = gang.all(gang.script(SESSION))
    running(gang, 4)
    gang.eventually(lambda: (pods[0].status().step or 0) > 3, "index 0 knows the step")
    pods[asked].signal(signal.SIGTERM)
    for pod in pods:
        facts = pod.end()
        assert (facts.cause, facts.exit_code) == (Cause.PREEMPTED, EXIT_PREEMPTED), pod.log()
    committed = int((gang.folder / "committed").read_text())
    assert pods[0].end().committed_step == committed, "what a rank says just before its end is heard"
    assert [pod.end().stored for pod in pods] == [7000, None], "rank 0 tells it"
    assert gang.marks("stopped") == {f"mark-stopped-{rank}" for rank in range(4)}
    assert gang.marks("sigterm") == set(), "a session is asked by the control word, not by a signal"


KILLED = """
import torch
import muster_runtime as muster
session = muster.start()
model = session.wrap(torch.nn.Linear(4, 1))
session.track(model=model)
for step in session.steps(100):
    if step == 40 and RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.ones(2, 4)).sum().backward()
"""


def test_a_rank_that_is_killed_is_told_with_the_steps_that_it_had_done(make_gang: MakeGang) -> None:
    """It reports once a second: so the same want of memory would be another one each time."""
    gang = make_gang(2, GLOO_SOCKET_IFNAME="lo")
    _, killed = gang.all(gang.script(KILLED))
    facts = killed.end()
    assert (facts.cause, facts.step) == (Cause.USER, 40), killed.log()


def test_a_plain_script_gets_sigterm_at_once(make_gang: MakeGang) -> None:
    gang = make_gang(2)
    pods = gang.all(gang.script(PLAIN), MUSTER_GRACE_SECONDS="60")
    running(gang, 2)
    started = time.monotonic()
    pods[1].signal(signal.SIGTERM)
    for pod in pods:
        facts = pod.end()
        assert (facts.cause, facts.exit_code) == (Cause.PREEMPTED, EXIT_PREEMPTED)
    assert time.monotonic() - started < 15
    dead(gang, "running")


@pytest.mark.parametrize("code", [0, 128 + signal.SIGTERM])
def test_a_plain_script_that_saves_on_sigterm_and_exits_as_it_likes_is_not_done(make_gang: MakeGang, code: int) -> None:
    gang = make_gang(1)
    pod = gang.pod(0, gang.script(f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))\n" + PLAIN))
    running(gang, 1)
    pod.signal(signal.SIGTERM)
    facts = pod.end()
    assert (facts.cause, facts.exit_code) == (Cause.PREEMPTED, EXIT_PREEMPTED)


def test_a_failure_while_stopping_is_told_and_not_its_echo(make_gang: MakeGang) -> None:
    gang = make_gang(1, 2)
    fails = (
        "if RANK == 1: raise ValueError('the save failed')\n"
        "other = Path('/proc') / Path(__file__).with_name('mark-running-1').read_text()\n"
        "while other.exists(): time.sleep(0.01)\n"
        "raise RuntimeError('[gloo] Connection closed by peer')\n"
    )
    pod = gang.pod(0, gang.script(SESSION.replace("sys.exit(75)", fails)))
    running(gang, 2)
    pod.signal(signal.SIGTERM)
    assert "while stopping, rank 1 exited with code 1: ValueError: the save failed" in pod.end().message


def test_an_echo_while_stopping_is_no_explanation(make_gang: MakeGang) -> None:
    gang = make_gang(1)
    echo = "raise RuntimeError('[gloo] Connection closed by peer')"
    pod = gang.pod(0, gang.script(SESSION.replace("sys.exit(75)", echo)))
    running(gang, 1)
    pod.signal(signal.SIGTERM)
    facts = pod.end()
    assert facts.message.endswith("; while stopping, rank 0 lost another rank")
    assert "Connection closed by peer" in facts.traceback


@pytest.mark.parametrize("then", ["exit $?", "{again}"])
def test_a_plain_script_behind_a_shell_gets_sigterm_too(make_gang: MakeGang, then: str) -> None:
    """A shell would die of it, and the script with it; and what it starts next is asked as well."""
    gang = make_gang(1, MUSTER_GRACE_SECONDS="60")
    saves = "def save(*_):\n    mark('saved')\n    sys.exit(0)\nsignal.signal(signal.SIGTERM, save)\n"
    script = shlex.join(gang.script(saves + PLAIN))
    again = shlex.join(gang.script("mark('again')\n" + PLAIN, "again.py"))
    started = time.monotonic()
    pod = gang.pod(0, ["sh", "-c", f"{script}; {then.format(again=again)}"])
    running(gang, 1)
    pod.signal(signal.SIGTERM)
    assert pod.end().cause is Cause.PREEMPTED
    assert gang.marks("saved")
    assert time.monotonic() - started < 30
    dead(gang, "again")


@pytest.mark.parametrize("way", ["pipe", "first line"])
def test_a_script_behind_a_shell_can_save_whatever_started_it(make_gang: MakeGang, way: str) -> None:
    """Who reads its output (`tee`) would break its pipe by ending first; a script's own name hides its shell."""
    gang = make_gang(1, MUSTER_GRACE_SECONDS="60")
    saves = "def save(*_):\n    time.sleep(0.5)\n    print('saving', flush=True)\n    mark('saved')\n    sys.exit(0)\n"
    script = shlex.join(gang.script(saves + "signal.signal(signal.SIGTERM, save)\n" + PLAIN))
    run = gang.folder / "run.sh"
    run.write_text(f"#!/bin/sh\n{script}{' | cat' * (way == 'pipe')}\nexit $?\n")
    run.chmod(0o755)
    pod = gang.pod(0, ["sh", str(run)] if way == "pipe" else [str(run)])
    running(gang, 1)
    pod.signal(signal.SIGTERM)
    assert pod.end().cause is Cause.PREEMPTED
    assert gang.marks("saved")


def test_what_kubectl_exec_or_another_user_has_left_behind_is_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher, as process 1, inherits it all. Only ranks are without the token."""
    swept, killed = ranks.Ranks(lambda: None), os.kill
    sleeps = ["sleep", "600"]
    started = [subprocess.Popen(sleeps, env={**os.environ, **more}) for more in ({}, {}, {env.TOKEN: "secret"})]
    own, others, debugger = started

    def kill(pid: int, number: int) -> None:
        if pid == others.pid:
            raise PermissionError
        killed(pid, number)

    monkeypatch.setattr(os, "kill", kill)
    try:
        assert swept.sweep() == [own.pid]
        assert own.wait(30) == -signal.SIGKILL
        assert debugger.poll() is None
    finally:
        monkeypatch.undo()
        for one in started:
            one.kill()
            one.wait()


def test_what_a_script_has_opened_for_its_user_goes_on(make_gang: MakeGang) -> None:
    """On a laptop: a browser, a server."""
    gang = make_gang(1)
    opens = (
        "import pathlib, subprocess\n"
        "quiet = dict.fromkeys(('stdin', 'stdout', 'stderr'), subprocess.DEVNULL)\n"
        "opened = subprocess.Popen(['sleep', '600'], start_new_session=True, **quiet)\n"
        f"pathlib.Path({str(gang.folder / 'opened')!r}).write_text(str(opened.pid))\n"
    )
    assert gang.pod(0, gang.script(opens)).end().cause is Cause.SUCCEEDED
    opened = int((gang.folder / "opened").read_text())
    assert opened > 1
    os.kill(opened, signal.SIGKILL)  # ProcessLookupError where it has been ended


def test_a_shell_with_a_trap_is_asked_itself(make_gang: MakeGang) -> None:
    gang = make_gang(1, MUSTER_GRACE_SECONDS="60")
    script = shlex.join(gang.script("signal.signal(signal.SIGTERM, lambda *_: mark('asked'))\n" + PLAIN))
    pod = gang.pod(0, ["sh", "-c", f"trap 'kill -KILL $!; exit 0' TERM; {script} & wait"])
    running(gang, 1)
    pod.signal(signal.SIGTERM)
    assert pod.end().cause is Cause.PREEMPTED
    assert not gang.marks("asked")


def test_a_session_that_stops_is_not_done_whatever_the_shell_around_it_says(make_gang: MakeGang) -> None:
    gang = make_gang(1)
    stops = SESSION.replace("sys.exit(75)", "reporter.send(report.Stopped(RANK, step))\nsys.exit(75)")
    pod = gang.pod(0, ["sh", "-c", f"{shlex.join(gang.script(stops))} | tee log"])
    running(gang, 1)
    pod.signal(signal.SIGTERM)
    facts = pod.end()
    assert (facts.cause, facts.exit_code) == (Cause.PREEMPTED, EXIT_PREEMPTED)
    assert "the last committed checkpoint is step" in facts.message


def test_a_stop_while_some_ranks_still_import_ends_those_at_once(make_gang: MakeGang) -> None:
    gang = make_gang(2, MUSTER_GRACE_SECONDS="60")
    pods = gang.all(gang.script("if RANK:\n    mark('imports')\n    time.sleep(600)\n" + SESSION))
    gang.eventually(lambda: gang.marks("running") and gang.marks("imports"), "one trains, one imports")
    started = time.monotonic()
    pods[0].signal(signal.SIGTERM)
    for pod in pods:
        facts = pod.end()
        assert (facts.cause, facts.exit_code) == (Cause.PREEMPTED, EXIT_PREEMPTED), pod.log()
    assert time.monotonic() - started < 15
    assert gang.marks("stopped") == {"mark-stopped-0"}, "the one that has a session saves"


# What a session is at, by its pulse; it has said hello.
AT = """
from muster_runtime import report
from muster_runtime.control import ControlReader
from muster_runtime.pulse import Pulse, Section
from muster_runtime.reporter import Reporter
Reporter().send(report.Hello(RANK, os.getpid()))
control = ControlReader()
def leave(*_):
    mark("sigterm")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
Pulse(int(os.environ["LOCAL_RANK"])).enter(Section.{section})
mark("running")
while not {leaves}: time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("section", "leaves", "cause"),
    [
        pytest.param("STEP", "control.stop_requested()", Cause.PREEMPTED, id="out-of-its-loop-when-asked"),
        pytest.param("STEP", "False", Cause.PREEMPTED, id="out-of-its-loop-by-a-handler-of-its-own"),
        pytest.param("OUTSIDE", "control.stop_requested()", Cause.SUCCEEDED, id="after-its-loop"),
        pytest.param("SETUP", "False", Cause.PREEMPTED, id="before-its-loop"),
    ],
)
def test_a_session_that_leaves_its_loop_for_a_stop_is_not_done(
    make_gang: MakeGang, section: str, leaves: str, cause: Cause
) -> None:
    """It may say 0: `if session.should_stop(): break`. The job would have succeeded."""
    gang = make_gang(1, MUSTER_GRACE_SECONDS="4")
    pod = gang.pod(0, gang.script(AT.format(section=section, leaves=leaves)))
    running(gang, 1)
    pod.signal(signal.SIGTERM)
    assert pod.end().cause is cause, pod.log()


WAITS_FOR_RANK_0 = """
if RANK:
    first = Path(__file__).with_name("mark-running-0")
    while not first.exists(): time.sleep(0.01)
    while Path("/proc", first.read_text()).exists(): time.sleep(0.01)
    raise RuntimeError("[gloo] Connection closed by peer")
"""


def test_that_others_have_left_before_a_rank_could_begin_is_no_failure(make_gang: MakeGang) -> None:
    """One loads its data, and the others wait for it in their first step."""
    at = AT.replace("Section.{section}", "Section.START if RANK else Section.SETUP").replace("{leaves}", "False")
    gang = make_gang(1, 2)
    pod = gang.pod(0, gang.script(at.replace("while not", f"{WAITS_FOR_RANK_0}while not")))
    running(gang, 2)
    pod.signal(signal.SIGTERM)
    facts = pod.end()
    assert (facts.cause, facts.message) == (Cause.PREEMPTED, "preempted"), pod.log()


@pytest.mark.parametrize(("kept", "at_once"), [(False, True), (True, False)])
def test_a_session_before_its_loop_is_ended_at_once_unless_memory_may_hold_what_is_to_be_saved(
    make_gang: MakeGang, kept: bool, at_once: bool
) -> None:
    gang = make_gang(1, MUSTER_GRACE_SECONDS="20", MUSTER_RESTARTS_IN_PLACE="1")
    falls = "if os.environ['MUSTER_INCARNATION'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
    pod = gang.pod(0, gang.script(falls * kept + AT.format(section="SETUP", leaves="False")))
    running(gang, 1)
    asked = time.monotonic()
    pod.signal(signal.SIGTERM)
    gang.eventually(lambda: gang.marks("sigterm"), "it gets SIGTERM in the end", 30)
    assert (time.monotonic() - asked < 10) is at_once
    assert pod.end().cause is Cause.PREEMPTED


def test_what_ignores_the_stop_is_killed_within_the_grace(make_gang: MakeGang) -> None:
    gang = make_gang(1, 2, MUSTER_GRACE_SECONDS="2")
    stubborn = (
        "from muster_runtime import report, reporter\n"
        "if RANK: reporter.Reporter().send(report.Hello(RANK, os.getpid()))\n"
    )
    pod = gang.pod(0, gang.script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + stubborn + PLAIN))
    running(gang, 2)
    started = time.monotonic()
    pod.signal(signal.SIGTERM)
    facts = pod.end()
    assert time.monotonic() - started < 2 + 5
    assert (facts.cause, facts.exit_code) == (Cause.PREEMPTED, EXIT_PREEMPTED)
    assert "rank 0, 1 did not end within the grace" in facts.message
    dead(gang, "running")


def test_a_stop_by_http_reaches_the_whole_gang(make_gang: MakeGang) -> None:
    gang = make_gang(3)
    pods = gang.all(gang.script(SESSION))
    running(gang, 3)
    stop = encode(Stop(StopReason.PREEMPT, 20))
    assert pods[2].ask("POST", api.STOP_PATH, stop)[0] == 202
    assert {pod.end().cause for pod in pods} == {Cause.PREEMPTED}
    assert len(gang.marks("stopped")) == 3


def test_max_runtime_saves_and_ends_the_run(make_gang: MakeGang) -> None:
    gang = make_gang(2, MUSTER_MAX_RUNTIME="1")
    pods = gang.all(gang.script(SESSION))
    facts = pods[0].end()
    assert (facts.cause, facts.exit_code) == (Cause.MAX_RUNTIME, EXIT_PREEMPTED)
    assert facts.message.startswith("maxRuntime")
    assert facts.committed_step is not None
    assert pods[1].end().cause is Cause.MAX_RUNTIME


def test_followers_end_when_the_leader_dies(make_gang: MakeGang) -> None:
    gang = make_gang(2, MUSTER_HEARTBEAT_SECONDS="0.2")
    leader, follower = gang.all(gang.script(PLAIN))
    running(gang, 2)
    leader.process.kill()
    facts = follower.end(15)
    assert (facts.cause, facts.exit_code) == (Cause.INFRASTRUCTURE, EXIT_INFRASTRUCTURE)
    assert "index 0 gave no answer" in facts.message
    dead(gang, "running")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_leader_ends_the_gang_when_a_follower_is_lost(make_gang: MakeGang, how: int) -> None:
    gang = make_gang(3, MUSTER_HEARTBEAT_SECONDS="0.2")
    leader, lost, other = gang.all(gang.script(PLAIN))
    running(gang, 3)
    lost.signal(how)
    facts = leader.end(20)
    assert (facts.cause, facts.exit_code) == (Cause.INFRASTRUCTURE, EXIT_INFRASTRUCTURE)
    assert "index 1 (pod uid-1-0) is lost" in facts.message
    assert other.end().cause is Cause.PEER


def test_a_stop_waits_for_nobody_who_was_killed_before_it_could_stop(make_gang: MakeGang) -> None:
    """As of a pod that is deleted by force: it is asked to stop, and killed two seconds later."""
    gang = make_gang(2, MUSTER_GRACE_SECONDS="60", MUSTER_REPLACE_SECONDS="60")
    slow = SESSION.replace("sys.exit(75)", "if RANK == 1: time.sleep(50)\nsys.exit(75)")
    leader, killed = gang.all(gang.script(slow))
    running(gang, 2)
    for pod in (killed, leader):
        pod.signal(signal.SIGTERM)
    gang.eventually(lambda: (gang.folder / "committed").exists(), "index 0's rank has saved")
    killed.process.kill()
    began = time.monotonic()
    assert leader.end().cause is Cause.PREEMPTED, leader.log()
    assert time.monotonic() - began < 15, "ten heartbeats take 20 s"


def test_echoes_of_a_killed_pod_are_put_down_to_it(make_gang: MakeGang) -> None:
    """Its launcher can't tell; the others only know lost connections. Found by asking round, before any heartbeat."""
    gang = make_gang(3)
    gone = "Path(__file__).parent.joinpath('gone').exists()"
    command = gang.script(
        f"mark('running')\nwhile not {gone}: time.sleep(0.01)\nraise RuntimeError('gloo: Connection closed by peer')\n"
    )
    leader, lost, other = gang.all(command)
    running(gang, 3)
    lost.process.kill()
    lost.process.wait()
    (gang.folder / "gone").touch()
    facts = leader.end(15)
    assert facts.cause is Cause.INFRASTRUCTURE, "index 0 bears witness for it"
    assert "index 1 (pod uid-1-0) is lost" in facts.message
    assert other.end().cause is Cause.PEER


def test_index_0_waits_for_the_others_to_finish(make_gang: MakeGang) -> None:
    gang = make_gang(2, MUSTER_HEARTBEAT_SECONDS="0.1")
    command = gang.script(
        "mark('running')\n"
        "if RANK == 1:\n"
        "    while not Path(__file__).parent.joinpath('go').exists(): time.sleep(0.01)\n"
    )
    leader, follower = gang.all(command)
    running(gang, 2)
    gang.eventually(lambda: b"ranks_running{" in leader.ask("GET", "/metrics")[1], "metrics")
    gang.eventually(lambda: ranks_running(leader) == 0, "index 0's rank has ended")
    assert leader.process.poll() is None
    (gang.folder / "go").touch()
    assert (leader.end().cause, follower.end().cause) == (Cause.SUCCEEDED, Cause.SUCCEEDED)


def test_a_failure_after_index_0_finished_is_not_a_success_of_index_0(make_gang: MakeGang) -> None:
    gang = make_gang(2)
    command = gang.script(
        "if RANK == 1:\n"
        "    while not Path(__file__).parent.joinpath('go').exists(): time.sleep(0.01)\n"
        "    raise OSError('late')\n"
    )
    leader, follower = gang.all(command)
    gang.eventually(leader.listens, "index 0 listens")
    gang.eventually(lambda: leader.phase_is(Phase.RUNNING) and ranks_running(leader) == 0, "its rank has ended")
    (gang.folder / "go").touch()
    assert follower.end().cause is Cause.USER
    facts = leader.end()
    assert facts.cause is Cause.PEER
    assert "late" in facts.message


def ranks_running(pod: Any) -> int:
    lines = pod.ask("GET", "/metrics")[1].decode().splitlines()
    return int(float(next(line for line in lines if line.startswith("muster_worker_ranks_running{")).split()[-1]))
