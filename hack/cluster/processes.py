"""Starts a cluster's processes so that they outlive us, and finds and ends just those.

Three things tell that a process belongs to a cluster: its record (pid and start time), an environment variable that
names the cluster's folder, and the cgroup it was put into. A crash between starting and recording thus hides nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from hack.cluster import cgroups
from hack.cluster.errors import ClusterError, log_tail
from hack.cluster.paths import write_atomically

TAG = "MUSTER_LOCAL_CLUSTER"
NODE_TAG = "MUSTER_LOCAL_NODE"

# Enters the cgroup first, then becomes the program in a session of its own: the pid that the shell prints stays.
_ENTER_AND_EXEC = 'for f in $CGROUP_PROCS; do echo $$ > "$f"; done; unset CGROUP_PROCS; exec setsid "$@"'
_IN_BACKGROUND = f'sh -c {shlex.quote(_ENTER_AND_EXEC)} sh "$@" </dev/null >>"$LOG_FILE" 2>&1 & echo $!'


@dataclass(frozen=True)
class Process:
    """A running process of a cluster."""

    name: str
    node: str
    pid: int
    start_ticks: int
    """Clock ticks since boot; with the pid it identifies the process for ever."""
    log: str

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


def stat(pid: int) -> list[str]:
    """What /proc tells of a process behind its name: state, parent and so on; nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def start_ticks(pid: int) -> int | None:
    """When the process started, or None if there is none, a zombie counting as none."""
    fields = stat(pid)
    return None if not fields or fields[0] in ("Z", "X") else int(fields[19])


@dataclass(frozen=True)
class Launcher:
    """Starts processes of one cluster on one of its nodes (`hub` is the control plane's)."""

    directory: Path
    slot: int
    node: str

    def start(
        self, name: str, command: list[str], env: dict[str, str] | None = None, inside: Process | None = None
    ) -> Process:
        """Starts `command`, in the namespaces of `inside` when given, its output appended to logs/NAME.log."""
        log = self.directory / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        if inside is not None:
            command = [*enter(inside), *command]
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.directory),
            "LANG": "C.UTF-8",
            **(env or {}),
            TAG: str(self.directory),
            NODE_TAG: self.node,
            "LOG_FILE": str(log),
            "CGROUP_PROCS": " ".join(str(path) for path in cgroups.daemon_procs(self.slot, self.node)),
        }
        done = subprocess.run(
            ["sh", "-c", _IN_BACKGROUND, "sh", *command],
            cwd="/",  # nobody's folder is kept busy by a daemon
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        pid = int(done.stdout)
        ticks = start_ticks(pid)
        if ticks is None:
            raise ClusterError(f"{name} ended at once; its log {log} says:\n{log_tail(log)}")
        process = Process(name, self.node, pid, ticks, str(log))
        write_atomically(self.directory / "processes" / f"{name}.json", json.dumps(asdict(process)))
        return process


def enter(inside: Process) -> list[str]:
    """The command prefix that runs a program in another process's network and mount namespace."""
    if not inside.alive:
        raise ClusterError(
            f"{inside.name} (pid {inside.pid}), which holds the namespaces of {inside.node}, is gone:"
            " take the cluster down and up again"
        )
    return ["nsenter", f"--target={inside.pid}", "--net", "--mount", "--root", "--wd", "--"]


def recorded(directory: Path, node: str | None = None) -> list[Process]:
    """All processes on record, those that have died too, of one node or of all."""
    found = []
    for path in sorted((directory / "processes").glob("*.json")):
        process = Process(**json.loads(path.read_text()))
        if node is None or process.node == node:
            found.append(process)
    return found


def find(directory: Path, name: str) -> Process | None:
    """The living process of that name, if there is one."""
    return next((p for p in recorded(directory) if p.name == name and p.alive), None)


def forget(directory: Path, processes: list[Process]) -> None:
    """Drops records of processes that have ended."""
    for process in processes:
        (directory / "processes" / f"{process.name}.json").unlink(missing_ok=True)


def living(directory: Path, slot: int | None, node: str | None = None) -> set[int]:
    """Pids of everything of the cluster that runs: by record, by environment and by cgroup.

    `slot` None leaves the cgroups out: the slot may be another cluster's by now.
    """
    pids = {process.pid for process in recorded(directory, node) if process.alive}
    pids |= _tagged(directory, node)
    if slot is not None:
        pids |= cgroups.pids(slot, node)
    return {pid for pid in pids if start_ticks(pid) is not None}


def _tagged(directory: Path, node: str | None) -> set[int]:
    wanted = {f"{TAG}={directory}".encode()}
    if node is not None:
        wanted.add(f"{NODE_TAG}={node}".encode())
    found = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{entry.name}/environ").read_bytes().split(b"\0")
                if wanted.issubset(environment):
                    found.add(int(entry.name))
    return found


def kill_all(directory: Path, slot: int | None, node: str | None = None, timeout_s: float = 12.0) -> set[int]:
    """Kills everything that `living` finds until nothing is left; returns the pids that would not die."""
    deadline = time.monotonic() + timeout_s
    while left := living(directory, slot, node):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        time.sleep(0.03)
    return set()


def stop(process: Process, timeout_s: float = 10.0, first: signal.Signals = signal.SIGTERM) -> None:
    """Asks one process to end, then kills it."""
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, first)
        while process.alive:
            if time.monotonic() > deadline:
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.02)


def kill(process: Process) -> None:
    """Kills one process and returns when it has ended."""
    stop(process, timeout_s=0.0, first=signal.SIGKILL)


def run_in(inside: Process, command: list[str], stdin: str | None = None) -> str:
    """Runs a short command in a process's namespaces and returns its output; raises ClusterError with its errors."""
    return run([*enter(inside), *command], stdin)


def run(command: list[str], stdin: str | None = None, env: dict[str, str] | None = None) -> str:
    """Runs a short command and returns its output; raises ClusterError with its errors."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=env)
    if done.returncode:
        detail = (done.stderr.strip() or done.stdout.strip()).splitlines()[-8:]
        raise ClusterError(f"`{shlex.join(command)[:200]}` failed ({done.returncode}): " + "\n    ".join(detail))
    return done.stdout


def _end_group(child: subprocess.Popen[bytes], grace_s: float = 5.0) -> None:
    """Interrupts a process group, so that it removes its temporary files, then kills what is left of it."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)


def run_logged(
    command: list[str], log: Path, env: dict[str, str] | None = None, cwd: Path | None = None, what: str = ""
) -> None:
    """Runs a long command with its output in `log`; ends its whole process group when we are interrupted.

    Raises ClusterError with the end of its output when it fails; `what` names it there, else the command does.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        child = subprocess.Popen(
            command, env=env, cwd=cwd, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = child.wait()
        except BaseException:
            _end_group(child)
            raise
    if code:
        called = what or f"`{shlex.join(command)[:160]}`"
        raise ClusterError(f"{called} failed ({code}); log {log}:\n{log_tail(log)}")
