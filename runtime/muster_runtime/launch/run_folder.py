"""Where the launcher and one incarnation of ranks meet: a folder with the control word and the socket of reports."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from muster_runtime import report, reporter
from muster_runtime.control import ControlWriter
from muster_runtime.pulse import PulseReader

_REPORTS_AT_ONCE: Final = 256
"""More than a socket's buffer holds; calls and signals get their turn in between."""
_SOCKET_PATH_LIMIT: Final = 100


class RunFolder:
    """`heard` is called when there are `messages`; `reached`: steps that the run has done before.

    OSError when there is room for it below none of `roots`.
    """

    def __init__(
        self, roots: Sequence[Path], incarnation: int, heard: Callable[[], None], *, ranks: int = 1, reached: int = 0
    ) -> None:
        self.path, self.control, self.pulse, self._reports = _make(roots, incarnation, ranks, reached)
        asyncio.get_running_loop().add_reader(self._reports.fileno(), heard)

    def messages(self) -> Iterator[report.Message]:
        """What the ranks have reported since, without waiting for more."""
        for _ in range(_REPORTS_AT_ONCE):
            try:
                datagram = self._reports.recv(report.DATAGRAM_LIMIT)
            except BlockingIOError:
                return
            if not datagram:
                return
            message = report.decode(datagram)
            if message is not None:
                yield message

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._reports.fileno())
        self._reports.close()
        self.control.close()
        self.pulse.close()
        shutil.rmtree(self.path, ignore_errors=True)


def _make(
    roots: Sequence[Path], incarnation: int, ranks: int, reached: int
) -> tuple[Path, ControlWriter, PulseReader, socket.socket]:
    """A new folder and what is in it, below the first root that can be written: on a full disk a folder may still be
    made, and a file not."""
    refused = []
    for root in roots:
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"muster-{incarnation}-", dir=root))
        except OSError as error:
            refused.append(f"{root}: {error.strerror or error}")
            continue
        try:
            if len(str(folder / reporter.SOCKET_NAME)) > _SOCKET_PATH_LIMIT:
                raise OSError(f"too long a path for a socket (over {_SOCKET_PATH_LIMIT} characters)")
            return folder, ControlWriter(folder), PulseReader(folder, ranks, reached), reporter.listen(folder)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            refused.append(f"{root}: {error.strerror or error}")
    raise OSError("; ".join(refused))
