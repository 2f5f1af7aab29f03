"""Pure: from how ranks ended to what is told about it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from muster_protocol import exits
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.messages import Ended, Stop, StopReason
from muster_runtime.launch import tracebacks


@dataclass(frozen=True)
class Failure:
    """The first failed rank of a pod. `echo`: it looks like the consequence of another rank's end.

    `last_words` are its last lines on stderr, for a rank that fails without a Python traceback; what its session says
    there counts only where the script says nothing, on stdout either. `crash`: it fell, by a signal or an exception,
    rather than end itself by an exit code or for a reason that another start would meet. A rank that was refused memory
    fell; where the kernel took some, the container may be next, launcher and all.
    `signature`: by which the same failure is known again, "" where nothing tells.
    """

    rank: int
    exit_code: int
    cause: Cause
    message: str
    traceback: str
    echo: bool
    last_words: str = ""
    crash: bool = False
    signature: str = ""

    @property
    def launcher_exit_code(self) -> int:
        return _EXIT_CODES.get(self.cause, exits.EXIT_USER)


_NAMED: Final = {
    "muster_protocol.errors.StorageRefusedError": Cause.STORAGE,
    "muster_protocol.errors.StorageError": Cause.INFRASTRUCTURE,
    "muster_protocol.errors.StaleEpochError": Cause.INFRASTRUCTURE,
    "muster_protocol.errors.PathConflictError": Cause.CONFIG,
    "muster_protocol.errors.StartError": Cause.CONFIG,
    "muster_runtime.errors.NumericsError": Cause.NUMERICS,
}
"""Errors of ours that have a cause of their own: what the checkpoint's store did to a rank isn't the user's failure."""

_OURS: Final = ("muster_protocol.errors.", "muster_runtime.errors.")
"""Misuse, a state that doesn't fit, a store without a whole checkpoint: the next start would meet them, too."""

_EXIT_CODES: Final = {
    Cause.CONFIG: exits.EXIT_CONFIG,
    Cause.STORAGE: exits.EXIT_CONFIG,
    Cause.INFRASTRUCTURE: exits.EXIT_INFRASTRUCTURE,
    Cause.NETWORK: exits.EXIT_INFRASTRUCTURE,
    Cause.NODE: exits.EXIT_INFRASTRUCTURE,
}

_KILLED_FOR_MEMORY: Final = "killed for the container's memory"
"""By which such a kill is known again at the same step: by its limit, it would come a third time."""
_MORE_HOST_MEMORY: Final = "raise spec.workers.resources.limits.memory (/dev/shm counts too), or use less"
_MORE_GPU_MEMORY: Final = (
    "use a smaller batch, shard over more GPUs (spec.parallelism.strategy: fsdp, spec.workers.replicas), or ask for "
    "larger ones (spec.workers.gpuType)"
)
_SIGNALS: Final = frozenset(int(one) for one in signal.Signals)
_FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM})
"""Python says nothing when it ends by these: a traceback is of an exception that the script has lived through."""
LEFT_EARLY: Final = "had ended well before: all ranks have to make the same number of steps, so see why it made less"
ONE_LEFT: Final = "one rank ended well before the others"
"""By which that is known again: what the others say of a lost connection is not the same twice."""
LOST_EACH_OTHER: Final = "no rank failed by itself: the network between them did, or one of them hangs"


def failure(
    rank: int, exit_code: int, stderr: Sequence[str], stdout: Sequence[str] = (), *, killed_for_memory: bool
) -> Failure:
    """What the end of `rank` with `exit_code` (not 0) means.

    `stderr` and `stdout` are its last lines; `killed_for_memory`: the kernel's OOM killer was at work in this container
    meanwhile.
    """
    ended_by, stderr, stdout = _signal(exit_code), tracebacks.printable(stderr), tracebacks.printable(stdout)
    traceback = "" if ended_by in _FROM_OUTSIDE else tracebacks.last_traceback(stderr)
    last_words = "" if traceback else tracebacks.last_words(tracebacks.of_script(stderr))
    aside = "" if traceback or last_words else tracebacks.last_words(stdout) or tracebacks.last_words(stderr)
    words = last_words or aside
    how = f"rank {rank} {describe(exit_code)}"
    what = tracebacks.exception_line(traceback)
    signature = tracebacks.signature(what, traceback)
    message = f"{how}: {what}" if what else how
    if more := tracebacks.beside(what, traceback, stderr):
        message += f" ({more})"
    why = tracebacks.at_abort(stderr) if ended_by == signal.SIGABRT and not what else ""
    if tracebacks.gave_up_a_collective(why):
        told = f"{message}: {why}; a rank took no part in it, or the network lost it"
        return Failure(rank, exit_code, Cause.HANG, told, "", False, words, crash=True)
    message += f": {why}" if why else ""
    memory = _out_of_memory(ended_by, traceback, killed_for_memory=killed_for_memory)
    if memory:
        told, crash, known = f"{message}{memory}", not killed_for_memory, signature or _KILLED_FOR_MEMORY
        return Failure(rank, exit_code, Cause.OUT_OF_MEMORY, told, traceback, False, words, crash, known)
    if tracebacks.is_broken_gpu(traceback):
        message += "; the GPU or its driver is at fault, not the script"
        return Failure(rank, exit_code, Cause.NODE, message, traceback, echo=False)
    name, _, said = what.partition(": ")
    named = _NAMED.get(name)
    if named is Cause.CONFIG:  # where it was raised in the script tells nobody anything
        return Failure(rank, exit_code, named, said, "", echo=False)
    if named is not None:  # never an echo, even where it speaks of a connection that was reset
        return Failure(rank, exit_code, named, message, traceback, echo=False)
    if exit_code == exits.EXIT_PREEMPTED:
        message += "; 75 means `stopped when asked`, but nobody had asked"
    echo = tracebacks.is_echo(traceback or "\n".join(stderr[-20:]))
    if not traceback and not ended_by:
        signature = f"exit code {exit_code}"
        if words:
            said = words.splitlines()[-1].strip()
            message += f": {said}"
            if last_words:  # by stdout or the session, which tell of progress as well, no failure is known again
                signature += f", {tracebacks.signature(said, last_words)}"
    crash = bool(ended_by) or (bool(traceback) and not what.startswith(_OURS))
    known = "" if echo else signature
    return Failure(rank, exit_code, Cause.USER, message, traceback, echo, words, crash, known)


def refused_since(own: Failure) -> Failure:
    """The end of a rank to which the store refuses what it took of this pod before, as to keys that were rotated. What
    its Secret has by now reaches new pods alone; whether that is taken, their look at the storage tells for good."""
    told = (
        "the store took checkpoints of these pods before, so new pods try it, with the keys that the Secret has by now"
    )
    return replace(own, cause=Cause.INFRASTRUCTURE, message=f"{own.message}; {told}")


def _signal(exit_code: int) -> int:
    """The signal that ended the rank, or its script behind a shell, which then exits with 128 and the number; or 0."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if exit_code < 0 or number in _SIGNALS else 0


def _out_of_memory(ended_by: int, traceback: str, *, killed_for_memory: bool) -> str:
    """Which memory was used up and what to do, to follow what the rank said; "" where it was none."""
    if ended_by == signal.SIGKILL and killed_for_memory:
        return f": the container ran out of memory; {_MORE_HOST_MEMORY}"
    if killed_for_memory and tracebacks.lost_a_process(traceback):
        return f"; the kernel killed that process, for the container ran out of memory: {_MORE_HOST_MEMORY}"
    if tracebacks.is_out_of_host_memory(traceback):
        # Python's own word: a container at its limit is killed by the kernel instead, so there may be none.
        return (
            "; the worker could not get that much memory (not the GPU): if that line asks for a sane amount, use less, "
            "or raise spec.workers.resources.limits.memory where it is set (/dev/shm counts too)"
        )
    if tracebacks.is_out_of_gpu_memory(traceback):
        return f"; the GPU ran out of memory: {_MORE_GPU_MEMORY}"
    return ""


def describe(exit_code: int) -> str:
    number = _signal(exit_code)
    if not number:
        return f"exited with code {exit_code}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"was ended by {name}" if exit_code < 0 else f"exited with code {exit_code}: its script was ended by {name}"


_FOUND: Final = frozenset({Cause.HANG.value, Cause.USER.value})
"""What index 0 finds in a pod whose ranks run."""


def left_alone(index: int, waits: int, left: str, incarnation: int) -> Ended:
    """Rank `waits`, of pod `index`, waits for all to join, and `left` has ended."""
    message = (
        f"{left} ended with exit code 0 before it had joined, and rank {waits} waits for it in muster.start(): every "
        "rank has to call that and to train, so see why it left"
    )
    user = Cause.USER.value
    return Ended(index, exits.EXIT_USER, user, message, waits, incarnation=incarnation, signature=ONE_LEFT)


def succeeded(nothing_left: str) -> ExitFacts:
    """The good end. `nothing_left` is why the ranks had nothing to train, or ""."""
    told = nothing_left or "all ranks ended well"
    return ExitFacts(Cause.SUCCEEDED, exits.EXIT_OK, told, nothing_left=bool(nothing_left))


_REASONS: Final = {
    StopReason.PREEMPT: "preempted",
    StopReason.SUSPEND: "suspended",
    StopReason.MAX_RUNTIME: "maxRuntime is over",
    StopReason.PEER: "stopped",
}


def stopped(stop: Stop, failed: Failure | None, *, killed: Sequence[int], committed_step: int | None) -> ExitFacts:
    """The end after a stop was asked. `killed` are the ranks that did not end within the grace."""
    cause = Cause.MAX_RUNTIME if stop.reason is StopReason.MAX_RUNTIME else Cause.PREEMPTED
    message = _REASONS[stop.reason]
    if committed_step is not None:
        message += f"; the last committed checkpoint is step {committed_step}"
    if killed:
        some = ", ".join(str(rank) for rank in killed[:8])
        message += f"; rank {some} did not end within the grace of {stop.grace_seconds:g} s and was killed"
    if failed is not None and failed.echo:  # whose rank was first tells why
        message += f"; while stopping, rank {failed.rank} lost another rank"
    elif failed is not None and (failed.traceback or failed.cause is Cause.CONFIG):
        message += f"; while stopping, {failed.message}"
    return ExitFacts(
        cause,
        exits.EXIT_PREEMPTED,
        message,
        rank=failed.rank if failed else None,
        rank_exit_code=failed.exit_code if failed else None,
        traceback=failed.traceback if failed else "",
    )


def facts_of(own: Failure) -> ExitFacts:
    """The end by a failed rank, as its own pod sees it."""
    return ExitFacts(
        own.cause,
        own.launcher_exit_code,
        own.message,
        rank=own.rank,
        rank_exit_code=own.exit_code,
        traceback=own.traceback or own.last_words,
        signature=own.signature,
    )


def failed(own: Failure, first: Ended | None, index: int) -> ExitFacts:
    """The end by a failed rank. `first` is what the gang found to have come first, None when nobody could be asked."""
    facts = facts_of(own)
    if first is not None and first.index == index:  # index 0 may know more: why it was not tried again, and what it was
        known = first.signature or facts.signature
        facts = replace(facts, message=first.message, alike=first.alike, signature=known)
        lost = first.cause == Cause.NETWORK.value
        return replace(facts, cause=Cause.NETWORK, exit_code=exits.EXIT_INFRASTRUCTURE) if lost else facts
    if not own.echo:
        return facts
    if first is None:
        told = f"{own.message}; it lost its peers, and index 0 does not answer"
        return _replace(facts, Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, told)
    return _replace(facts, Cause.PEER, exits.EXIT_INFRASTRUCTURE, _after(first))


def followed(first: Ended | None, index: int) -> ExitFacts:
    """The end of a pod whose own ranks had not failed when the gang ended. Of a hang, the one that held it up tells;
    where a rank has left, one that waits for it."""
    if first is not None and first.cause in _FOUND and first.index == index:
        facts = ExitFacts(Cause(first.cause), first.exit_code, first.message, first.rank, traceback=first.traceback)
        return replace(facts, suspect=first.suspect, signature=first.signature, alike=first.alike)
    code = first.exit_code if first is not None and first.exit_code == exits.EXIT_CONFIG else exits.EXIT_INFRASTRUCTURE
    return ExitFacts(Cause.PEER, code, _after(first))


def unfit(found: Ended, index: int) -> ExitFacts:
    """The end of worker `index` before any rank, because the node of one worker is not fit to train."""
    if found.index == index:
        return ExitFacts(Cause.NODE, found.exit_code, found.message)
    return followed(found, index)


def ended(index: int, facts: ExitFacts, *, echo: bool = False, crash: bool = False) -> Ended:
    """What index 0 is told of `facts`."""
    return Ended(
        index,
        facts.exit_code,
        facts.cause.value,
        facts.message,
        facts.rank,
        secondary=echo,
        crash=crash,
        step=facts.step,
        incarnation=facts.incarnation,
        traceback=facts.traceback,
        signature=facts.signature,
        suspect=facts.suspect,
    )


def _after(first: Ended | None) -> str:
    return f"followed index {first.index}: {first.message}" if first else "followed another pod of the gang"


def _replace(facts: ExitFacts, cause: Cause, code: int, message: str) -> ExitFacts:
    return ExitFacts(cause, code, message, facts.rank, facts.rank_exit_code, facts.traceback)
