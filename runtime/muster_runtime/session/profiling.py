"""PyTorch's profiler over a few steps, when somebody asks for it while the run goes on.

Rank 0 sees the wish in the control word and puts it into its vote, so all ranks hear of it at the same boundary and
record the same steps. The launcher takes the files from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from muster_runtime import report
from muster_runtime.control import ControlReader
from muster_runtime.reporter import Reporter
from muster_runtime.streams import tell

Word = tuple[float, float]
"""A wish in a vote: steps and flags in one number, and when it was asked for; zeros for none."""
NOTHING: Final[Word] = (0.0, 0.0)
_MEMORY_ENTRIES: Final = 100_000
"""Allocations that are remembered, the newest."""
_TROUBLES: Final = (RuntimeError, OSError, ValueError, AssertionError, AttributeError, KeyError)
"""What PyTorch's profiler is known to raise; a training run never ends for it."""


class Profiler:
    """Without a launcher nobody asks."""

    def __init__(self, rank: int, device: torch.device, control: ControlReader, reporter: Reporter) -> None:
        self._rank, self._device = rank, device
        self._control, self._reporter = control, reporter
        self._seen = 0  # the number of the last wish
        self._wish: tuple[int, bool, float] | None = None  # steps, memory, at
        self._profile: Any = None
        self._begun = 0

    def asks(self) -> Word:
        """Rank 0's word for the vote."""
        if self._rank or self._wish is not None:
            return NOTHING
        wish = self._control.wish()
        if wish is None or wish.number == self._seen:
            return NOTHING
        self._seen = wish.number
        return float(wish.steps * 4 + wish.everybody + 2 * wish.memory), wish.at

    def heard(self, word: Word) -> None:
        """The gang's word: the next steps are recorded, by rank 0 or by all."""
        code = int(word[0])
        if code and self._wish is None and (code & 1 or self._rank == 0):
            self._wish = code // 4, bool(code & 2), word[1]

    def at_boundary(self, step: int) -> bool:
        """Whether it has something to do now, `step` steps being done."""
        return self._wish is not None and (self._profile is None or step - self._begun >= self._wish[0])

    def turn(self, step: int) -> None:
        """Begins to record, or ends it and tells the launcher."""
        assert self._wish is not None
        _, memory, at = self._wish
        try:
            if self._profile is None:
                self._begun = step
                self._begin(memory)
                return
            text = self._end(memory)
        except _TROUBLES as error:
            told = (str(error).splitlines() or [""])[0]
            text = f"PyTorch's profiler failed: {type(error).__name__}: {told}"
            tell(text)
        done, self._wish, self._profile = step - self._begun, None, None
        self._reporter.send(report.Profiled(self._rank, self._begun, done, at, text))

    def _begin(self, memory: bool) -> None:
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            if memory:
                torch.cuda.memory._record_memory_history(max_entries=_MEMORY_ENTRIES)
        self._profile = profile(activities=activities, record_shapes=True, profile_memory=memory)
        self._profile.start()

    def _end(self, memory: bool) -> str:
        """Writes the files; what is worth knowing of them, or ""."""
        self._profile.stop()
        folder = self._control.folder
        assert folder is not None
        self._profile.export_chrome_trace(str(report.profile_file(folder, self._rank)))
        if not memory:
            return ""
        if self._device.type != "cuda":
            return "there is no CUDA here, so no snapshot of its memory; the trace has the allocations"
        return self._snapshot(report.memory_file(folder, self._rank))

    def _snapshot(self, path: Path) -> str:
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]
        torch.cuda.memory._record_memory_history(enabled=None)
        return ""
