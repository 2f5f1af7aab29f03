"""A checkpoint now, because somebody asks: index 0 passes the wish on to rank 0, which votes to save at a step's end.
The wish outlives a restart of the ranks."""

from __future__ import annotations

from muster_protocol.launcher_status import SaveAsked
from muster_runtime import report
from muster_runtime.control import ControlWriter
from muster_runtime.launch.config import Config
from muster_runtime.launch.hangs import Hangs
from muster_runtime.launch.membership import Refused
from muster_runtime.launch.ranks import Ranks


class AskedSaves:
    def __init__(self, config: Config, ranks: Ranks, hangs: Hangs) -> None:
        self._config, self._ranks, self._hangs = config, ranks, hangs
        self._control: ControlWriter | None = None
        self._number = 0
        self._step: int | None = None
        """Steps done at the newest wish, while it waits for its checkpoint."""

    def begin(self, control: ControlWriter) -> None:
        """Ranks start, with this control word."""
        self._control = control
        if self._step is not None:
            control.ask_save(self._number)

    def end(self) -> None:
        self._control = None

    def ask(self) -> Refused | SaveAsked:
        """Index 0's part."""
        if not self._config.leads:
            return Refused(421, "saves are asked of index 0")
        if not self._config.checkpoint_uri:
            return Refused(400, "the job has no checkpoint.uri, so there is no place to save to")
        if self._control is None or not self._ranks.running:
            return Refused(409, "no ranks run now; ask again when the job trains")
        first = self._config.rank(0)
        beat = self._hangs.beats().get(first)
        self._step = beat.step if beat is not None else 0
        self._number += 1
        self._control.ask_save(self._number)
        leader = self._ranks.of_rank(first)
        return SaveAsked(self._step, session=leader is not None and leader.session)

    def heard(self, told: report.CheckpointCommitted) -> None:
        if self._step is not None and told.step >= self._step:
            self._step = None
