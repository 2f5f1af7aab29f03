"""What a failed rank's last lines tell: its traceback, and whether the failure is its own or another rank's echo."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

TRACEBACK_LINES: Final = 60
LAST_WORDS: Final = 10
_AFTER_LINES: Final = 20
"""Lines kept after the exception's own: messages may have several lines."""

_RANK_PREFIX: Final = re.compile(r"^\[rank\d+\]:\s?")
_HEADER: Final = "Traceback (most recent call last):"

_ECHOES: Final = re.compile(
    r"connection closed by peer|connection reset by peer|connection refused|broken pipe|socket timeout"
    r"|remote process exited|Connection was likely closed|recvValue failed|sendBytes failed|failed to recv"
    r"|ncclRemoteError|ncclSystemError|NCCL communicator was aborted|DistNetworkError|recv failed|peer closed"
    r"|timed out waiting .* for (recv|send) operation|Timed out after \d+ms waiting",
    re.IGNORECASE,
)
_DISTRIBUTED: Final = re.compile(r"gloo|nccl|torch[/.]distributed|c10d|TCPStore|ProcessGroup", re.IGNORECASE)

_OUT_OF_MEMORY: Final = re.compile(
    r"CUDA out of memory|OutOfMemoryError|HIP out of memory|DefaultCPUAllocator: can't allocate memory"
    r"|DefaultCPUAllocator: not enough memory|^MemoryError"
)


def last_traceback(lines: Sequence[str]) -> str:
    """The last Python traceback in `lines`, "" when there is none.

    Torch's `[rank3]: ` before each line is taken away. Tracebacks of exceptions that Python ignored are passed over.
    """
    clean = [_RANK_PREFIX.sub("", line) for line in lines]
    starts = [i for i, line in enumerate(clean) if line.strip() == _HEADER]
    own = [i for i in starts if i == 0 or not clean[i - 1].startswith(("Exception ignored", "Exception in thread"))]
    if not (own or starts):
        return ""
    start = (own or starts)[-1]
    end = start + 1
    while end < len(clean) and (not clean[end].strip() or clean[end][0] in " \t"):
        end += 1
    until = next((i for i in range(end + 1, len(clean)) if clean[i].startswith("Exception ignored")), len(clean))
    kept = clean[start : min(end + 1 + _AFTER_LINES, until)]
    return "\n".join(kept if len(kept) <= TRACEBACK_LINES else [kept[0], "  ...", *kept[-TRACEBACK_LINES:]])


def last_words(lines: Sequence[str]) -> str:
    """The last lines that are not empty: what a program without tracebacks says before it fails."""
    return "\n".join([line.rstrip() for line in lines if line.strip()][-LAST_WORDS:])


def exception_line(traceback: str) -> str:
    """The line that names the exception, such as `ValueError: bad shape`; "" without a traceback."""
    lines = traceback.split("\n")[1:]
    return next((line.strip() for line in lines if line.strip() and line[0] not in " \t"), "")


def is_echo(text: str) -> bool:
    """Does `text` look like a collective that failed because another rank had ended?"""
    return bool(_ECHOES.search(text) and _DISTRIBUTED.search(text))


def is_out_of_memory(traceback: str) -> bool:
    return bool(_OUT_OF_MEMORY.search(exception_line(traceback)))
