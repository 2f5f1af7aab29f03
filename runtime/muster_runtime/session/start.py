"""`muster.start()`: from the environment to a session."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from muster_protocol import env
from muster_protocol.counts import counted
from muster_protocol.exits import EXIT_PREEMPTED
from muster_runtime import report, stacks
from muster_runtime.errors import UsageError, caller
from muster_runtime.parallel.gang import Gang, end_group
from muster_runtime.pulse import Pulse, Section
from muster_runtime.session import described, flight, rng
from muster_runtime.session.fall import end_soon
from muster_runtime.session.mistakes import tell_shortly
from muster_runtime.session.run import Run
from muster_runtime.session.session import Session
from muster_runtime.session.settings import Settings, read_settings
from muster_runtime.streams import keep_standard

_TIMEOUT: Final = datetime.timedelta(minutes=30)
"""Of our own group: the others wait there while a rank writes a large shard."""

_started: list[tuple[Session, str]] = []


def start(
    *,
    seed: int | None = None,
    strategy: str | None = None,
    checkpoint: str | None = None,
    checkpoint_every_steps: int | None = None,
) -> Session:
    """Starts this process's session. See docs/session.md."""
    where = caller()
    if _started:
        raise UsageError(f"{where}: the session was started at {_started[0][1]} already; use that one")
    tell_shortly()
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself asks
        raise UsageError(
            f"{where}: a process that the script has started (a data loader's worker, by spawn or forkserver) imports "
            "the script, and would begin a second session as this rank; put muster.start(), and what comes after it, "
            'below `if __name__ == "__main__":`'
        )
    keep_standard()
    if env.RUN_DIR in os.environ:  # it is a launcher's rank, whose peers wait
        end_soon()
    try:
        settings = read_settings(
            os.environ, seed=seed, strategy=strategy, checkpoint=checkpoint, every_steps=checkpoint_every_steps
        )
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    device = _device(settings)
    _pin(settings, device)
    stacks.show_when_asked(settings.rank)
    pulse = Pulse(settings.local_rank)
    pulse.enter(Section.JOIN)
    gang = _join(settings, device)
    if device.type == "cuda":
        refuse_shared(gang.gather(str(torch.cuda.get_device_properties(device).uuid)), where)
    flight.show_when_asked(settings.rank, device)
    rng.seed_all(settings.seed)
    session = Session(settings, gang, device, pulse)
    pulse.enter(Section.SETUP)
    _started.append((session, where))
    _listen(session.run)
    reporter = session.run.progress.reporter
    reporter.send(report.Hello(settings.rank, os.getpid()))
    if session.run.progress.points is not None:
        for message in described.messages(settings.rank, "environment", described.environment(device)):
            reporter.send(message)
    atexit.register(_leave, session.run, gang, os.getpid())
    return session


def _device(settings: Settings) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", settings.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _pin(settings: Settings, device: torch.device) -> None:
    """Makes arithmetic repeatable: the number of threads decides how sums are split."""
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(max(1, int(os.environ["OMP_NUM_THREADS"])))
    elif settings.distributed:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // settings.ranks_per_worker))
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # that part costs time and changes no result


def _join(settings: Settings, device: torch.device) -> Gang:
    if not settings.distributed:
        return Gang()
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    group: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT) if settings.world_size > 1 else None
    return Gang(settings.rank, settings.world_size, group)


def refuse_shared(uuids: Sequence[str], where: str) -> None:
    """UsageError where ranks have one GPU together, which NCCL would tell in the first collective, in words of its own.

    Args:
        uuids: of each rank's GPU.
    """
    first: dict[str, int] = {}
    for rank, uuid in enumerate(uuids):
        if first.setdefault(uuid, rank) != rank:
            raise UsageError(
                f"{where}: rank {first[uuid]} and rank {rank} have one GPU together ({uuid}), and NCCL wants one for "
                f"each rank; start {counted(len(set(uuids)), 'rank')}, as many as there are GPUs, or hide the GPUs by "
                "CUDA_VISIBLE_DEVICES= and train on the CPU"
            )


def _listen(run: Run) -> None:
    def before_step(optimizer: Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        closure = options.get("closure") is not None or any(map(callable, args))
        run.optimizer_steps(optimizer, closure=closure)

    register_optimizer_step_pre_hook(before_step)
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # a handler of the script's own stays

        def stop(*_: object) -> None:
            run.stopping.signal()
            if run.stopping.ends_before(began=run.began):
                sys.exit(EXIT_PREEMPTED)

        def forked() -> None:
            """What the script forks (a pool's workers) is ended by SIGTERM, as if there were no session."""
            if signal.getsignal(signal.SIGTERM) is stop:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

        signal.signal(signal.SIGTERM, stop)
        os.register_at_fork(after_in_child=forked)


def _leave(run: Run, gang: Gang, pid: int) -> None:
    if os.getpid() != pid:
        return  # the script has forked this process: the loop, what was told of it, and the groups are not its own
    if run.stopping.ends_before(began=run.began):
        run.progress.log("stopped before the loop, as asked; nothing was to be saved")
    if not run.closed:
        run.last_word(fell=getattr(sys, "last_value", None) is not None)  # which Python sets before it tells it
    elif run.nothing_left:  # a second loop of the script might have had something
        run.progress.log(run.nothing_left)
    run.progress.reporter.settle()
    # After an error the peers may be gone, and leaving the groups in order would wait for them.
    if run.closed:
        with contextlib.suppress(RuntimeError):
            gang.leave()
            end_group()
