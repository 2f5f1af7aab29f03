"""`python -m muster_runtime.tracking`: the process that index 0's launcher starts, its socket as standard input."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

from muster_protocol.launcher_status import Tracking as Told
from muster_runtime.tracking import wire
from muster_runtime.tracking.choose import tracker
from muster_runtime.tracking.courier import Courier

LAST_SECONDS = 10.0
"""How long what is left is tried to be brought after the launcher has gone without a word."""


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the launcher decides
    launcher = socket.socket(fileno=os.dup(0))
    first = launcher.recv(wire.PACKET_LIMIT)
    if not first:
        return 0
    run = wire.opened(first)

    def tell(news: Told) -> None:
        with suppress(OSError):
            launcher.send(wire.told(news))

    courier = Courier(lambda: tracker(run.uri), run, tell)
    threading.Thread(target=_listen, args=(launcher, courier), daemon=True, name="launcher's word").start()
    courier.run()
    return 0


def _listen(launcher: socket.socket, courier: Courier) -> None:
    with suppress(OSError):
        while (packet := launcher.recv(wire.PACKET_LIMIT)) and wire.take(packet, courier):
            pass
        if packet:
            return
    courier.end(None, time.time())
    time.sleep(LAST_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
