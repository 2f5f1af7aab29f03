"""How reports reach the launcher: a Unix socket of datagrams in `MUSTER_RUN_DIR`, from both of its ends.

A rank never waits for its launcher while it trains. The kernel holds about ten datagrams of a socket, a second of a
tracked run may have more; so what the launcher can't take at once waits here, and goes before anything newer. Where it
takes nothing for long the oldest go, values of metrics first, and the launcher is told how many.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

from muster_protocol import env
from muster_runtime.report import DATAGRAM_LIMIT, Lost, Message, Points, encode

SOCKET_NAME: Final = "report"
WAITING_AT_MOST: Final = 256
"""Messages: 4 MiB at most, and a quarter of a minute of fifty metrics at fifty steps a second."""
LAST_SECONDS: Final = 1.0
"""How long a last word waits for the launcher, which takes it within milliseconds unless it hangs."""


class Reporter:
    """A rank's side, for all of its threads. Nothing here raises for a launcher that is gone or busy."""

    def __init__(self, run_dir: str | None = None) -> None:
        folder = run_dir or os.environ.get(env.RUN_DIR)
        self._socket = _connected(Path(folder) / SOCKET_NAME) if folder else None
        self._waiting: deque[tuple[bytes, int]] = deque()  # with how many values of metrics each has
        self._rank = 0
        self._lost_reports = self._lost_figures = 0  # since the launcher was told
        self._lock = threading.Lock()

    def send(self, message: Message) -> bool:
        """Whether the launcher has it now, and all that was said before. Never blocks."""
        if self._socket is None:
            return False
        datagram, figures = encode(message), _figures(message)
        fits = len(datagram) <= DATAGRAM_LIMIT
        with self._lock:
            self._rank = message.rank
            if fits:
                self._waiting.append((datagram, figures))
            else:
                self._lose(figures)
            self._pass_on()
            while len(self._waiting) > WAITING_AT_MOST:
                self._make_room()
            return fits and self._socket is not None and not self._waiting

    def pass_on(self) -> None:
        """Sends what waits, as much as the launcher takes now. Call it often: where nothing waits it costs nothing."""
        if self._waiting:
            with self._lock:
                self._pass_on()

    def settle(self, seconds: float = LAST_SECONDS) -> None:
        """Returns when the launcher has all that was said; at the latest after `seconds`."""
        until = time.monotonic() + seconds
        self.pass_on()
        while self._waiting and (launcher := self._socket) is not None and (left := until - time.monotonic()) > 0:
            room = select.poll()  # `select` takes no descriptor above 1,023
            room.register(launcher, select.POLLOUT)
            room.poll(left * 1000)
            self.pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            if not self._sent(self._waiting[0][0]):
                return
            self._waiting.popleft()
        if self._lost_reports and self._sent(encode(Lost(self._rank, self._lost_reports, self._lost_figures))):
            self._lost_reports = self._lost_figures = 0

    def _sent(self, datagram: bytes) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.send(datagram)
        except ConnectionError:  # the launcher is gone, and the next one starts ranks of its own
            self._socket = None
            self._waiting.clear()
            return False
        except OSError:  # the kernel has no room for it
            return False
        return True

    def _make_room(self) -> None:
        """Gives up the oldest values; another report only where there are none."""
        place = next((place for place, (_, figures) in enumerate(self._waiting) if figures), 0)
        self._lose(self._waiting[place][1])
        del self._waiting[place]

    def _lose(self, figures: int) -> None:
        self._lost_reports += 1
        self._lost_figures += figures


def _connected(path: Path) -> socket.socket | None:
    """None where no launcher listens. Connected, for only so can be waited for room in the launcher's queue."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    try:
        sender.connect(str(path))
    except OSError:
        sender.close()
        return None
    return sender


def _figures(message: Message) -> int:
    return sum(len(values) for _, _, values in message.points) if isinstance(message, Points) else 0


def listen(run_dir: Path) -> socket.socket:
    """The launcher's side: a non-blocking datagram socket at `run_dir/report`."""
    path = run_dir / SOCKET_NAME
    path.unlink(missing_ok=True)
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.setblocking(False)
    receiver.bind(str(path))
    return receiver
