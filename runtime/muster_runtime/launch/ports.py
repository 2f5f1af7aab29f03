"""The port at which the ranks of an incarnation meet."""

from __future__ import annotations

import random
import socket

from muster_protocol import exits
from muster_protocol.exits import Cause, ExitFacts
from muster_runtime.launch.state import Over


class Ports:
    """Never gives a port of before: a rank of an older incarnation that still lives must not meet the new ones."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._used: set[int] = set()

    def free(self) -> int:
        """One that nobody listens on, below those that the kernel takes for outgoing calls. Raises Over."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        for port in random.SystemRandom().sample(range(15000, 29000), 200):
            if port in self._used:
                continue
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                try:
                    probe.bind((self._address, port))
                except OSError:
                    continue
                self._used.add(port)
                return port
        message = f"no free port for the ranks' rendezvous on {self._address}"
        raise Over(ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, message))
