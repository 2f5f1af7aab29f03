"""The demo's one screen: jobs, pods and what happened; plain lines where there is no terminal."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hack.demo.watch import JobView

_SAY_AGAIN_S = 60.0
"""Without a terminal a line comes when a job has another phase or another quarter of its steps, or after so long."""
_LINES_SHOWN = 8


class Screen:
    """A context manager. `show` what is, `note` what happened."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._jobs: Sequence[JobView] = ()
        self._notes: list[tuple[float, str]] = []
        self._started = time.monotonic()
        self._line_at = 0.0
        self._told: list[tuple[object, ...]] = []

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._draw)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def note(self, text: str) -> None:
        """Something happened."""
        self._notes.append((time.monotonic() - self._started, text))
        if not self._live:
            self._console.print(f"  {self._notes[-1][0]:5.1f} s  {text}", markup=False)

    def show(self, jobs: Sequence[JobView]) -> None:
        """How things are now."""
        self._jobs = jobs
        told, now = [_stage(job) for job in jobs], time.monotonic()
        if not self._live and (told != self._told or now - self._line_at > _SAY_AGAIN_S):
            self._told, self._line_at = told, now
            self._console.print(f"  {now - self._started:5.1f} s  {'; '.join(map(_line, jobs))}", markup=False)

    def _draw(self) -> RenderableType:
        notes = Text("\n".join(self._told_lines()[-_LINES_SHOWN:]))
        height = _LINES_SHOWN + 2
        return Group(*(_panel(job) for job in self._jobs), Panel(notes, title="what happened", height=height))

    def _told_lines(self) -> list[str]:
        """The notes as lines that fit between the panel's borders; what goes on stands below its own text."""
        width = max(20, self._console.width - 4)
        return [
            line
            for when, text in self._notes
            for line in textwrap.wrap(f"{when:5.1f} s  {text}", width, subsequent_indent=" " * 9)
        ]


def _stage(job: JobView) -> tuple[object, ...]:
    """What a reader of a log wants a line for when it changes."""
    quarter = 4 * (job.step or 0) // job.total if job.total else 0
    return job.phase, job.reason, job.restarts, quarter


def _line(job: JobView) -> str:
    """A job in one line for logs."""
    parts = [f"{job.name}: {job.phase}"]
    if job.step is not None:
        parts.append(f"step {job.step}/{job.total or '?'}")
    if job.loss:
        parts.append(f"loss {_short(job.loss)}")
    if job.committed is not None:
        parts.append(f"checkpoint at {job.committed}")
    if job.reason and not job.succeeded:
        parts.append(job.reason[:150])
    return ", ".join(parts)


def _short(number: str) -> str:
    return f"{float(number):.4f}"


def _panel(job: JobView) -> Panel:
    facts = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, job.total or 1), completed=job.step or 0, width=40)
    facts.add_row("progress", bar, f"step {_known(job.step)} of {_known(job.total)}")
    loss = _short(job.loss) if job.loss else "-"
    facts.add_row("loss", loss, f"last committed checkpoint: step {_known(job.committed)}; restarts: {job.restarts}")
    for pod in job.pods:
        facts.add_row(pod.name, pod.node or "-", pod.phase)
    if job.reason and not job.succeeded:
        facts.add_row("why", Text(job.reason, overflow="fold"), "")
    style = "green" if job.succeeded else "red" if job.failed else "cyan"
    return Panel(facts, title=f"{job.name}: {job.phase}", title_align="left", border_style=style)


def _known(number: int | None) -> str:
    return "-" if number is None else str(number)
