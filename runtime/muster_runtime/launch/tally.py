"""How often a gang's processes were started again in place, as members, releases and ends tell each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from muster_protocol.exits import Cause
from muster_protocol.messages import Ended


class Tells(Protocol):
    """A message that carries the three numbers."""

    @property
    def restarts(self) -> int: ...

    @property
    def failures(self) -> int: ...

    @property
    def memory_failures(self) -> int: ...


@dataclass(frozen=True)
class Tally:
    """Since the gang was placed.

    Attributes:
        restarts: in all.
        failures: of `restarts`, how many answered a failure of the script, want of memory included.
        memory_failures: of `failures`, how many were for want of memory.
    """

    restarts: int = 0
    failures: int = 0
    memory_failures: int = 0

    @property
    def network_failures(self) -> int:
        """Restarts after ranks have lost each other."""
        return self.restarts - self.failures

    def after(self, first: Ended) -> Tally:
        """With the restart that answers the failure `first`."""
        return Tally(
            self.restarts + 1,
            self.failures + (first.cause != Cause.NETWORK.value),
            self.memory_failures + (first.cause == Cause.OUT_OF_MEMORY.value),
        )

    def heard(self, other: Tells) -> Tally:
        """The larger of each: who comes later, or was away, has not seen all of them."""
        return Tally(
            max(self.restarts, other.restarts),
            max(self.failures, other.failures),
            max(self.memory_failures, other.memory_failures),
        )
