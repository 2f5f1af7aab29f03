"""The rank processes of one pod: started together, reaped as they end, ended together."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from muster_protocol import env
from muster_runtime.launch import processes
from muster_runtime.launch.logs import Pump, Sink

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_DRAIN_SECONDS: Final = 2.0
"""How long to wait for the rest of an ended rank's output; a process it left behind may hold the pipe open."""


class CommandError(Exception):
    """The command can't be executed. One sentence: which, why, and how to mend it."""


class NoRoomError(Exception):
    """The machine starts no more processes now, whichever. One sentence."""


@dataclass
class Rank:
    """One rank's process. `exit_code` is None while it runs, negative for a signal; `session` once it said hello,
    `stopped` once it said that it ends because it was asked to."""

    rank: int
    process: subprocess.Popen[bytes]
    session: bool = False
    stopped: bool = False
    exit_code: int | None = None
    pumps: list[Pump] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    def drain(self, until: float | None = None) -> None:
        """Returns when all output of the ended process is passed on, or soon after (at `until`, monotonic)."""
        until = time.monotonic() + _DRAIN_SECONDS if until is None else until
        for pump in self.pumps:
            pump.join(max(0.0, until - time.monotonic()))

    def tails(self) -> tuple[list[str], list[str]]:
        """The last lines of its stdout and of its stderr."""
        return (self.pumps[0].tail(), self.pumps[1].tail()) if self.pumps else ([], [])


async def beside(work: Callable[[], None]) -> None:
    """Does what may block for some seconds in a thread of its own; here, where none can be started."""
    try:
        done = asyncio.get_running_loop().run_in_executor(None, work)
    except RuntimeError:
        work()
    else:
        await done


class Ranks:
    """All rank processes of this pod, and whatever they leave behind, which the launcher inherits.

    `notify` is called when a process has ended; call `reap` at every SIGCHLD.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._by_pid: dict[int, Rank] = {}
        self._strangers = frozenset(processes.descendants(os.getpid()))  # of a shell that became this process
        self.all: list[Rank] = []

    def start(
        self,
        command: Sequence[str],
        environments: Iterable[tuple[int, Mapping[str, str], Sequence[int]]],
        prefix: bool,
    ) -> None:
        """Starts one process for each (rank, environment, descriptors to inherit).

        Raises CommandError or NoRoomError, with none of them left running.
        """
        for rank, environment, descriptors in environments:
            try:
                process = _spawn(command, environment, descriptors)
            except OSError as error:
                self.signal(signal.SIGKILL)
                if error.errno in _FULL:
                    raise _no_room(f"process for rank {rank}", error) from error
                raise CommandError(_cannot_execute(command, environment, error)) from error
            self._by_pid[process.pid] = started = Rank(rank, process)
            self.all.append(started)
        out, err = Sink(1), Sink(2)
        for started in self.all:  # after all processes: threads and fork don't mix well
            label = f"[rank {started.rank}] ".encode() if prefix else b""
            for pipe, sink in ((started.process.stdout, out), (started.process.stderr, err)):
                assert pipe is not None
                try:
                    pump = Pump(os.dup(pipe.fileno()), sink, label)
                    pipe.close()
                    pump.start()
                except (OSError, RuntimeError) as error:
                    self.signal(signal.SIGKILL)
                    raise _no_room(f"thread for the output of rank {started.rank}", error) from error
                started.pumps.append(pump)

    def reap(self) -> None:
        """Collects every child that has ended, also those that the ranks left behind."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._by_pid.get(pid)
            if rank is not None:
                rank.exit_code = rank.process.returncode = os.waitstatus_to_exitcode(status)
            self._notify()

    @property
    def running(self) -> list[Rank]:
        return [rank for rank in self.all if rank.exit_code is None]

    def of_rank(self, rank: int) -> Rank | None:
        return next((one for one in self.all if one.rank == rank), None)

    def signal(self, number: int, ranks: Iterable[Rank] | None = None) -> None:
        """Sends a signal to the running ranks (or to those of `ranks` that run) and all that they started."""
        for rank in self.running if ranks is None else ranks:
            if rank.exit_code is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(rank.pid, number)

    def signal_processes(
        self, number: int, ranks: Iterable[Rank] | None = None, *, told: Container[int] = ()
    ) -> list[int]:
        """Sends a signal to the ranks' own processes alone: a script that saves on SIGTERM needs its data workers.
        Where a shell has started the script, to that in its place; to nobody `told` already. Whom it was sent to."""
        own = [rank.pid for rank in (self.running if ranks is None else ranks) if rank.exit_code is None]
        found = [pid for one in own for pid in processes.hearers(one, number) if pid not in told]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return found

    def forget(self) -> None:
        """Makes room for the next `start`, when none runs any more."""
        self._by_pid.clear()
        self.all = []

    def drain(self) -> None:
        """The same for all ranks together."""
        until = time.monotonic() + _DRAIN_SECONDS
        for rank in self.all:
            rank.drain(until)

    def end_groups(self) -> None:
        """Ends what ended ranks left behind in their process groups, as the launcher ends. All else ends with the pod;
        on a laptop, what a script has opened for its user in a session of its own (a browser, a server) goes on."""
        for rank in self.all:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, signal.SIGKILL)

    def sweep(self, spared: Iterable[int] = ()) -> list[int]:
        """Ends what ended ranks left behind, also in sessions of its own; what still lived. `spared` are children of
        the launcher that no rank has started. For the ranks' end, before new ones are started.

        In a pod the launcher inherits what `kubectl exec` leaves behind, too (a profiler, a terminal's server). That
        has the container's environment, and so the token, which no rank gets.
        """
        own = self._strangers.union(spared)
        left = []
        for pid in processes.descendants(os.getpid(), lambda one: one in own or processes.knows(one, env.TOKEN)):
            with contextlib.suppress(ProcessLookupError, PermissionError):  # a debugger's, of another user
                os.kill(pid, signal.SIGKILL)
                left.append(pid)
        return left


_CROWDED: Final = "its pod or node has reached its limit of processes, or is out of memory"
_FULL: Final = {
    errno.EAGAIN: _CROWDED,
    errno.ENOMEM: _CROWDED,
    errno.EMFILE: "the launcher has reached its limit; raise that of what starts it (ulimit -n)",
    errno.ENFILE: "its node has reached its limit (fs.file-max)",
}
"""What there is no room for, by the error's number."""


def _no_room(what: str, error: OSError | RuntimeError) -> NoRoomError:
    why, full = str(error), _CROWDED
    if isinstance(error, OSError) and error.errno:
        why, full = os.strerror(error.errno), _FULL.get(error.errno, _CROWDED)
    return NoRoomError(f"no {what} can be started ({why}: {full})")


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(command),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_prepare,
        pass_fds=descriptors,
    )


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_OPEN_FILES: Final = resource.getrlimit(resource.RLIMIT_NOFILE)


def adopt_orphans() -> None:
    """What ranks leave behind becomes the launcher's child also where it isn't process 1."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def allow_open_files(count: int) -> None:
    """Lets the launcher have `count` open files more, as far as the hard limit goes. The ranks keep the old limit."""
    soft, hard = _OPEN_FILES
    wanted = count + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _prepare() -> None:
    """In the child, before exec. A launcher that is killed must not leave ranks that hold GPUs (in a pod its end is
    the pod's anyway)."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_NOFILE, _OPEN_FILES)


def _cannot_execute(command: Sequence[str], environment: Mapping[str, str], error: OSError) -> str:
    name = command[0]
    found = name if "/" in name else shutil.which(name, path=environment.get("PATH"))
    if error.errno == errno.ENOENT and found and Path(found).exists():
        return f"{name!r} can't be executed: the interpreter in its first line does not exist in this image"
    if error.errno == errno.ENOENT:
        where = "in this image" if "/" in name else f"on PATH ({environment.get('PATH', '')})"
        return f"the command {name!r} was not found {where}; correct spec.command or the image"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{name!r} is not executable for this user; `chmod +x` it, or start it by its interpreter"
    if error.errno == errno.ENOEXEC:
        return f"{name!r} is not a program for this machine, or a script without a first line like #!/bin/sh"
    return f"{name!r} can't be executed: {error.strerror or error}"
