"""What a failed rank's last lines tell: its traceback, what kind of failure it is, and by what it is known again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from muster_runtime.streams import SESSIONS

TRACEBACK_LINES: Final = 60
LAST_WORDS: Final = 10
_AFTER_LINES: Final = 20
"""Lines kept after the exception's own: messages may have several lines."""

_RANK_PREFIX: Final = re.compile(r"^\[rank\d+\]:\s?")
_HEADER: Final = "Traceback (most recent call last):"
_BESIDE: Final = 300
"""Characters of a line that is told beside, or in place of, an exception's."""
_WARNING: Final = re.compile(r"(\[rank\d+\]:\s?)?\S.*:\d+: \w*Warning: ")
_GAVE_UP: Final = "Watchdog caught collective operation timeout"
_ASSERTION: Final = re.compile(r"([^:\s]*:\d+:.*\bAssertion .+ failed\b.*)")
_ABORTS: Final = (re.compile(rf"({_GAVE_UP}: .*)"), re.compile(r"what\(\):\s*(\S.*)"), _ASSERTION)
_RAN_ANOTHER: Final = re.compile(r"ChildFailedError|subprocess\.CalledProcessError: .*\b(python\S*|torchrun)\b")
"""Of a launcher within the script's command: what failed has told its own before."""
_GROUP_HEADER: Final = f"+ Exception Group {_HEADER}"
_GROUP_FRAME: Final = re.compile(r"^ +(\| |\+-*[-+ 0-9.]*$)")
"""What Python draws before the lines of an exception group and between its members."""
_ORIGINAL: Final = f"Original {_HEADER}"
"""Behind an exception that torch has carried out of a process or thread: a data loader's worker, mostly. Its own line
says no more than that, `ValueError: Caught ValueError in DataLoader worker process 0.`"""

_ECHOES: Final = re.compile(
    r"connection closed by peer|connection reset by peer|connection refused|broken pipe|socket timeout"
    r"|remote process exited|Connection was likely closed|recvValue failed|sendBytes failed|failed to recv"
    r"|ncclRemoteError|ncclSystemError|NCCL communicator was aborted|DistNetworkError|recv failed|peer closed"
    r"|timed out waiting .* for (recv|send) operation|Timed out after \d+ ?(ms|seconds) waiting",
    re.IGNORECASE,
)
_DISTRIBUTED: Final = re.compile(r"gloo|nccl|torch[/.]distributed|c10d|TCPStore|ProcessGroup", re.IGNORECASE)

_GPU_MEMORY: Final = re.compile(
    r"(CUDA|HIP)( error:)? out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE
)
_HOST_MEMORY: Final = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|^(numpy\S*)?MemoryError|Cannot allocate memory"
)
_WORKER_KILLED: Final = re.compile(
    r"DataLoader worker .*(exited unexpectedly|killed by signal: (Killed|Bus error))|terminated abruptly", re.DOTALL
)
"""A rank's own processes are gone: its data loader's, or a process pool's."""

_SPAWNED: Final = "multiprocessing/spawn.py"
"""In the frames of a process that did not begin as a copy of the rank's, but reads the script anew."""

_GPU_BROKEN: Final = re.compile(
    r"uncorrectable (ECC|NVLink) error|ECC error|fallen off the bus|CUDA_ERROR_(SYSTEM_NOT_READY|ECC_UNCORRECTABLE)"
    r"|CUDA error: (system not yet initialized|hardware stack error)",
    re.IGNORECASE,
)
"""What a script can't bring about. A device-side assert or an illegal address is nearly always the script's."""

_PLACE: Final = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (.+))?$')
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")
"""In the paths of code that isn't the script's own."""
_VARIES: Final = re.compile(r"0x[0-9a-fA-F]+|\b(?=[a-f]*\d)[0-9a-f]{8,}\b|\d+(\.\d+)?([eE][-+]?\d+)?")
"""Numbers, addresses and hashes: they differ between two failures that are alike."""
_SIGNATURE_LENGTH: Final = 240
_ESCAPES: Final = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])|[\x80-\x9f]")
"""ECMA-48's: what colours a traceback (Python 3.13 does, where it is told to), moves the cursor or sets a title."""


def printable(lines: Sequence[str]) -> list[str]:
    """The lines without colours, and without what commands a terminal: they are shown on many."""
    plain = (_ESCAPES.sub("", line).expandtabs(4) for line in lines)
    return ["".join(character for character in line if character.isprintable()) for line in plain]


def last_traceback(lines: Sequence[str]) -> str:
    """The last Python traceback in `lines`, "" when there is none.

    Torch's `[rank3]: ` before each line is taken away. Tracebacks of exceptions that Python ignored are passed over.
    Of an exception group it is that of its last member which has one, else the group's. Where the last one says that a
    process of the rank's is gone, the cause is why that could not even start; where it is of a launcher in the script's
    command, such as torchrun, it is the one before.
    """
    clean = _ungrouped([_RANK_PREFIX.sub("", line) for line in lines])
    starts = [i for i, line in enumerate(clean) if line.strip() == _HEADER]
    own = [i for i in starts if i == 0 or not clean[i - 1].startswith(("Exception ignored", "Exception in thread"))]
    if not (own or starts):
        return ""
    last = _traceback_at(clean, (own or starts)[-1])
    if _RAN_ANOTHER.search(exception_line(last)) and len(own) > 1:
        own = [start for start in own if not _RAN_ANOTHER.search(exception_line(_traceback_at(clean, start)))] or own
        last = _traceback_at(clean, own[-1])
    if not lost_a_process(last):
        return last
    earlier = (_traceback_at(clean, start) for start in reversed(own[:-1]))
    return next((found for found in earlier if _SPAWNED in found and not lost_a_process(found)), last)


def _ungrouped(lines: Sequence[str]) -> Sequence[str]:
    """The same without the frames that Python draws around exception groups."""
    first = next((at for at, line in enumerate(lines) if line.strip() == _GROUP_HEADER), len(lines))
    drawn = (_HEADER if line.strip() == _GROUP_HEADER else _GROUP_FRAME.sub("", line) for line in lines[first:])
    return [*lines[:first], *drawn]


def _traceback_at(clean: Sequence[str], start: int) -> str:
    end = _exception_at(clean, start + 1)
    while clean[end + 1 : end + 2] == [_ORIGINAL]:
        end = _exception_at(clean, end + 2)
    other = (i for i in range(end + 1, len(clean)) if clean[i].startswith(("Exception ignored", _HEADER)))
    until = next(other, len(clean))
    kept = clean[start : min(end + 1 + _AFTER_LINES, until)]
    return "\n".join(kept if len(kept) <= TRACEBACK_LINES else [kept[0], "  ...", *kept[-TRACEBACK_LINES:]])


def _exception_at(lines: Sequence[str], start: int) -> int:
    """Behind a traceback's frames: where its exception stands."""
    return next((at for at in range(start, len(lines)) if lines[at].strip() and lines[at][0] not in " \t"), len(lines))


def last_words(lines: Sequence[str]) -> str:
    """The last lines that are not empty: what a program without tracebacks says before it fails."""
    return "\n".join([line.rstrip() for line in lines if line.strip()][-LAST_WORDS:])


def of_script(lines: Sequence[str]) -> list[str]:
    """Those that the session has not written: how far the training was is no word about its end. Nor is the line of
    source, mostly `warnings.warn(`, that Python shows below a warning."""
    own = [line for line in lines if not line.startswith(SESSIONS)]
    return [line for before, line in pairwise(["", *own]) if not (line.startswith("  ") and _WARNING.match(before))]


def exception_line(traceback: str) -> str:
    """The line that names the exception, such as `ValueError: bad shape`; "" without a traceback."""
    lines = traceback.rpartition(f"\n{_ORIGINAL}")[2].split("\n")[1:]
    return next((lines[at].strip() for at in [_exception_at(lines, 0)] if at < len(lines)), "")


def is_echo(text: str) -> bool:
    """Does `text` look like a collective that failed because another rank had ended?"""
    return bool(_ECHOES.search(text) and _DISTRIBUTED.search(text))


def is_out_of_gpu_memory(traceback: str) -> bool:
    return bool(_GPU_MEMORY.search(exception_line(traceback)))


def is_out_of_host_memory(traceback: str) -> bool:
    return bool(_HOST_MEMORY.search(exception_line(traceback)))


def at_abort(lines: Sequence[str]) -> str:
    """What tells why a process aborted itself: of a collective that was given up, of a C++ exception or a failed
    assertion; "" where nothing does, for a last line may be about anything."""
    return next((found for pattern in _ABORTS if (found := _last_of(pattern, lines))), "")


def _last_of(pattern: re.Pattern[str], lines: Sequence[str]) -> str:
    """What the pattern finds last, cut; "" for nothing."""
    found = (told[1] for line in reversed(lines) if (told := pattern.search(line)))
    return next(found, "").strip()[:_BESIDE]


def gave_up_a_collective(said: str) -> bool:
    """NCCL's watchdog ends its process when a collective takes longer than the process group's timeout."""
    return _GAVE_UP in said


def beside(what: str, traceback: str, lines: Sequence[str]) -> str:
    """What stands elsewhere, in the traceback or the last lines, and tells more than the exception's own line `what`
    does; "" where nothing."""
    if "NCCL error in" in what:
        return traceback.partition("\nLast error:\n")[2].partition("\n")[0].strip()[:_BESIDE]
    return _last_of(_ASSERTION, lines) if "device-side assert" in what else ""


def lost_a_process(traceback: str) -> bool:
    """Does the exception tell of a process of the rank's that was killed, by whomever?"""
    return bool(_WORKER_KILLED.search(exception_line(traceback)))


def is_broken_gpu(traceback: str) -> bool:
    return bool(_GPU_BROKEN.search(exception_line(traceback)))


def is_library(path: str) -> bool:
    """Whether a frame's file was installed, with Python or beside it."""
    return any(part in path for part in _LIBRARIES)


def signature(what: str, lines: str) -> str:
    """By what a failure is known again, on any rank: `ValueError: # rows at train.py:17 in step`.

    `what` is the exception's line, or what the rank said last; `lines` have the place: the innermost of the script's
    own, else the innermost. "" without `what`.
    """
    if not what:
        return ""
    places = [found for found in map(_PLACE.match, lines.split("\n")) if found]
    own = [found for found in places if not is_library(found[1])]
    told = _VARIES.sub("#", what)[:_SIGNATURE_LENGTH]
    for file, line, function in (found.groups() for found in (own or places)[-1:]):
        told += f" at {file.rpartition('/')[2]}:{line}" + (f" in {function}" if function else "")
    return told
