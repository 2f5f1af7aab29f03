"""How often nodes fail, as the operator knows it while the gang trains: index 0's ranks decide when a save is due."""

from __future__ import annotations

import math

from muster_protocol.messages import Reliability
from muster_runtime.control import ControlWriter
from muster_runtime.launch.config import Config
from muster_runtime.launch.membership import Refused


class NodeHours:
    """Passes the operator's last word on to the ranks that run, and to those that are started later."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._control: ControlWriter | None = None
        self._hours = 0.0

    def begin(self, control: ControlWriter) -> None:
        """Ranks start, with this control word."""
        self._control = control
        self._tell()

    def end(self) -> None:
        self._control = None

    def know(self, told: Reliability) -> Refused | None:
        """The operator's word."""
        if not self._config.leads:
            return Refused(421, "how often nodes fail is told to index 0")
        hours = told.node_hours
        if isinstance(hours, bool) or not isinstance(hours, (int, float)) or not 0 < hours < math.inf:
            return Refused(400, f"node_hours is {hours!r}; it has to be a number above 0")
        self._hours = float(hours)
        self._tell()
        return None

    def _tell(self) -> None:
        if self._control is not None and self._hours:
            self._control.tell_node_hours(self._hours)
