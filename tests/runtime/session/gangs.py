"""Gangs of ranks for tests: real processes with torchrun's environment, forked from a server that has loaded torch.

Loading torch takes seconds on a busy machine; forking takes none.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import re
import runpy
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"

# Installed modules only: the fork server doesn't get this process's sys.path. It ignores those that aren't there.
PRELOADED = [
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch._dynamo",
    "torch.optim.swa_utils",
    "muster_runtime.session.start",
    "muster_protocol.checkpoints.file_store",
    "muster_runtime.checkpoint.s3_store",
]


@dataclass(frozen=True)
class Result:
    """Exit codes by rank (negative for a signal), and what each rank printed."""

    codes: list[int | None]
    outputs: list[str]

    @property
    def output(self) -> str:
        return "\n".join(
            f"--- rank {rank}: {code}\n{text}"
            for rank, (code, text) in enumerate(zip(self.codes, self.outputs, strict=True))
        )

    def check(self) -> Result:
        """Fails the test unless every rank succeeded."""
        assert all(code == 0 for code in self.codes), self.output
        return self


def run_gang(
    script: str | Path,
    folder: Path,
    ranks: int = 4,
    environment: Mapping[str, str] | None = None,
    *,
    arguments: tuple[str, ...] = (),
    distributed: bool = True,
    ranks_per_worker: int | None = None,
    kill_peers: bool = False,
    stop_when: Path | None = None,
    seconds: float = 120.0,
) -> Result:
    """Runs `script` (of scripts/, or a path) on `ranks` ranks and waits for their end.

    Args:
        folder: for the ranks' output; made when absent.
        distributed: False for one process as on a laptop.
        kill_peers: as soon as one rank is dead, the others are killed, too, as when a whole pod goes.
        stop_when: SIGTERM is sent to all ranks once this file exists.
        seconds: after that, or 20 s after the first bad end, the rest is killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    port = free_port()
    path = script if isinstance(script, Path) else SCRIPTS / script
    processes = []
    for rank in range(ranks):
        variables = dict(environment or {})
        if distributed:
            variables |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks_per_worker or ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        output = folder / f"output-{rank}"
        process = context.Process(target=_rank, args=(str(path), arguments, variables, str(output)))
        process.start()
        processes.append(process)
    try:
        _wait(processes, kill_peers, stop_when, seconds)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    texts = [(folder / f"output-{rank}").read_text(errors="replace") for rank in range(ranks)]
    return Result([process.exitcode for process in processes], texts)


def whole_and_cut(text: str, folder: Path, word: str) -> list[list[str]]:
    """The lines that begin with `word`: of a run of the script `text`, of another that is cut, for which it finds CUT
    in its environment and is to stop, and of what goes on from there."""
    script = folder / "script.py"
    script.write_text(text)
    found = []
    for name, more in (("whole", {}), ("cut", {"CUT": "1"}), ("cut", {})):
        uri = {"MUSTER_CHECKPOINT_URI": f"file://{folder}/{name}"}
        result = run_gang(script, folder, 1, {**uri, **more}, distributed=False)
        assert result.codes == [75 if more else 0], result.output
        found.append(re.findall(rf"^{word} .*$", result.output, re.MULTILINE))
    return found


def _wait(
    processes: list[multiprocessing.context.ForkServerProcess],
    kill_peers: bool,
    stop_when: Path | None,
    seconds: float,
) -> None:
    until = time.monotonic() + seconds
    alive = {process.sentinel: process for process in processes}
    while alive and time.monotonic() < until:
        for sentinel in multiprocessing.connection.wait(list(alive), timeout=0.05):
            ended = alive.pop(sentinel)  # type: ignore[call-overload]
            ended.join()
            if ended.exitcode != 0:
                until = min(until, time.monotonic() + (0 if kill_peers else 20))
        if stop_when is not None and stop_when.exists():
            stop_when = None
            for process in alive.values():
                os.kill(process.pid or 0, signal.SIGTERM)


def _rank(path: str, arguments: tuple[str, ...], variables: dict[str, str], output: str) -> None:
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    for name in [name for name in os.environ if name.startswith(("MUSTER_", "AWS_"))]:
        del os.environ[name]
    os.environ.update(variables)
    os.environ["OMP_NUM_THREADS"] = "1"
    multiprocessing.set_start_method("fork", force=True)  # a script of its own, with Linux' default for its workers
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
