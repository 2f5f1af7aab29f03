"""Pure: from what the ranks of a gang that doesn't get on were at to who holds up the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Final

from muster_protocol import exits
from muster_protocol.exits import Cause
from muster_protocol.messages import Ended, Examined, RankSeen
from muster_runtime.launch.tracebacks import is_library

STACK_LINES: Final = 40
_NAMED: Final = 8

_WAITS: Final = re.compile(
    r"torch/distributed/|torch/autograd/graph\.py\", line \d+ in _engine_run_backward|torch/cuda/.* in synchronize"
    r"|muster_runtime/parallel/gang\.py"
)
"""Calls of a rank that waits for others: in a collective, or in the backward pass that has them."""

_LOADS: Final = re.compile(r"torch/utils/data/|torchdata/")
_COMPILES: Final = re.compile(r"torch/_(dynamo|inductor|functorch)/|/triton/")
_ENDED: Final = re.compile(r'/threading\.py", line \S+ in _shutdown')
_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+|\?+) in (?P<function>\S+)')

_OURS: Final = ("boundary", "checkpoint")
"""Sections in which the session is at work, not the script."""

_WHERE: Final = {
    "none": "before it has started a session",
    "setup": "before its loop",
    "join": "in muster.start(), where all ranks join",
    "start": "before the end of its first step",
    "step": "in the step after step {step}",
    "boundary": "at the end of the step after step {step}",
    "evaluation": "in an evaluation after step {step}",
    "checkpoint": "in a save or a restore after step {step}",
    "outside": "after its loop",
}


def compiles(stack: str) -> bool:
    """Whether a rank is at torch's compiler, which may take minutes in any step."""
    return bool(_COMPILES.search(stack))


def suspects(ranks: Sequence[RankSeen]) -> list[RankSeen]:
    """Those who hold up the others, by the first of these marks that some have and others haven't; else all.

    Stopped by a signal or stuck in the kernel; fewer steps done; not at the boundary, where the step is done; not
    waiting in a collective.
    """
    first = max((seen.step for seen in ranks), default=0)
    marks: tuple[Callable[[RankSeen], bool], ...] = (
        _in_the_kernel,
        lambda seen: seen.step < first,
        lambda seen: seen.section != "boundary",
        lambda seen: not _waits(seen.stack),
    )
    for mark in marks:
        marked = [seen for seen in ranks if mark(seen)]
        if 0 < len(marked) < len(ranks):
            return marked
    return list(ranks)


def _waits(stack: str) -> bool:
    """Whether such a call is the script's innermost."""
    for line in stack.split("\n"):
        if _WAITS.search(line):
            return True
        frame = _FRAME.search(line)
        if frame is not None and _is_script(frame["file"]):
            return False
    return False


def _in_the_kernel(seen: RankSeen) -> bool:
    """Stopped, or in a call that doesn't return: one that only reads a file just now has shown its stack."""
    return seen.state in ("T", "t", "D") and not seen.stack


def _ended(seen: RankSeen) -> bool:
    """Whether the script has come to its end, by sys.exit() perhaps, and threads of its own keep the process alive."""
    return _place(seen) is None and bool(_ENDED.search(seen.stack))


def judge(workers: Sequence[Examined]) -> Ended:
    """The hang, as an end of the first of the suspects. `workers` have a rank at least."""
    index_of = {seen.rank: one.index for one in workers for seen in one.ranks}
    ranks = sorted((seen for one in workers for seen in one.ranks), key=lambda seen: seen.rank)
    found = suspects(ranks)
    first = found[0]
    return Ended(
        index_of[first.rank],
        exits.EXIT_USER,
        Cause.HANG.value,
        _message(found, len(ranks)),
        first.rank,
        crash=True,
        step=first.step,
        traceback="\n".join(first.stack.split("\n")[:STACK_LINES]),
        signature=_signature(first) if len(found) < len(ranks) or len(ranks) == 1 else "",
        suspect=len(found) < len(ranks),
    )


def _signature(seen: RankSeen) -> str:
    """By which the same hang is known again, and ends the job as the script's own error: what it was at, and the place.
    "" where it may be well the next time.

    Only a rank whose main thread runs, in an endless loop, is surely held up by nothing but the script. One that sleeps
    (S, D, T) waits for something, and its place tells for what but not why. At `for batch in loader` every hang of a
    data loader looks the same, `queue.get` in `_try_get_data`, whether its workers are locked up for good or a file
    system is away; a read from NFS waits in state D, one from FUSE or a socket in S. Called the script's, two such
    stalls would end the job for a night; called unknown, a real deadlock costs one or two restarts more, within its
    limit. Nor is a place known where all ranks of several are alike: for a collective on the GPU they spin at
    `loss.item()`.
    """
    frame = _place(seen)
    if frame is None or seen.state != "R" or seen.section in _OURS or _waits(seen.stack):
        return ""
    return f"hang ({seen.section}) at {PurePath(frame['file']).name}:{frame['line']} in {frame['function']}"


def _place(seen: RankSeen) -> re.Match[str] | None:
    """The script's innermost frame, where the stack is known."""
    return next((found for found in _FRAME.finditer(seen.stack) if _is_script(found["file"])), None)


def _is_script(path: str) -> bool:
    return not (is_library(path) or "muster_runtime/" in path or path.startswith("<"))


def _message(found: Sequence[RankSeen], ranks: int) -> str:
    first = found[0]
    where = _WHERE.get(first.section, "").format(step=first.step)
    if len(found) == ranks > 1:
        told = f"all {ranks} ranks hang {where}, and none of them stands out; rank {first.rank}"
    elif len(found) > 1:
        told = f"ranks {_some(found)} hang {where}; rank {first.rank}"
    else:
        told = f"rank {first.rank} hangs {where}: it"
    message = f"{told} did not get on for {first.still:.0f} s{_doing(first)}"
    if len(found) < ranks:
        message += "; the others wait for it" if len(found) == 1 else "; the others wait for them"
    return f"{message}{_remedy(first)}"


def _doing(seen: RankSeen) -> str:
    if _in_the_kernel(seen):
        stopped, waits = "is stopped by a signal (SIGSTOP)", "waits in the kernel (state D), for a disk or a device"
        return f" and {waits if seen.state == 'D' else stopped}"
    frame = _place(seen)
    if frame is None:
        return ": its script has ended, and Python waits for its threads that are no daemons" if _ended(seen) else ""
    loads = ", where it waits for its data loader" if _LOADS.search(seen.stack[: frame.start()]) else ""
    return f", at {frame['file']}:{frame['line']} in {frame['function']}{loads}"


def _remedy(seen: RankSeen) -> str:
    """For what may be no hang at all."""
    if _in_the_kernel(seen):
        return ""
    if _ended(seen):
        return ". End them first, or start them with daemon=True"
    evaluate = "; put evaluations under `with session.evaluate():`" if seen.limit == "step" else ""
    return f". If it may take as long, raise spec.hang.{seen.limit}{evaluate}"


def _some(found: Sequence[RankSeen]) -> str:
    shown = ", ".join(str(seen.rank) for seen in found[:_NAMED])
    return shown if len(found) <= _NAMED else f"{shown} and {len(found) - _NAMED} more"
