"""How far this launcher is with its part of the gang, and what it tells the others of its pod."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from muster_protocol.idleness import Idleness
from muster_protocol.launcher_status import Phase
from muster_protocol.messages import Figures
from muster_runtime.launch.tally import Tally

STOOD_STILL_SECONDS: Final = 600.0
"""A failure without any step, later than this, is not taken for the one before: who knows how far it was."""


@dataclass
class Standing:
    """Its `Launcher` alone changes it.

    Attributes:
        incarnation: of the ranks that run, or ran last; 0 before any.
        started_at: when those were started, on the state's clock.
        restarted_after: the failure that the last restart in place answered, or "".
        copy: what it holds of another's memory, as a `Member` tells it.
        copy_error: why nobody gets a copy of this pod's memory, or "".
        idleness: of this pod's GPUs; None where nobody knows.
        figures: of this node, before its first ranks.
    """

    phase: Phase = Phase.JOINING
    incarnation: int = 0
    started_at: float = 0.0
    tally: Tally = field(default_factory=Tally)
    restarted_after: str = ""
    copy: tuple[int, ...] = ()
    copy_error: str = ""
    idleness: Idleness | None = None
    figures: Figures | None = None

    def may_be_known_again(self, step: int | None, now: float) -> bool:
        """Whether a failure at this step, or before any, may be the same as the one before it."""
        return step is not None or now - self.started_at <= STOOD_STILL_SECONDS
