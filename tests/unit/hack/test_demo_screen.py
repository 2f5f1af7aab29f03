"""What the demo shows never goes back without a reason, and a log of it can be read."""

from __future__ import annotations

import io

import pytest
from hack.demo.screen import Screen
from hack.demo.watch import JobView, since
from rich.console import Console

pytestmark = pytest.mark.unit


def view(step: int | None, *, live: bool = False, phase: str = "Running") -> JobView:
    return JobView(
        "gpt", phase=phase, step=step, total=200 if live else None, loss=f"{5 - (step or 0) / 50}", live=live
    )


def test_a_launcher_that_is_gone_takes_no_steps_back() -> None:
    last = view(200, live=True)
    told = since(view(182, phase="Succeeded"), last)
    assert (told.step, told.total, told.loss, told.phase) == (200, 200, last.loss, "Succeeded")


def test_nobody_knows_less_than_before() -> None:
    assert since(view(None), view(57, live=True)).step == 57


def test_what_a_launcher_tells_counts_also_when_it_is_less() -> None:
    assert since(view(100, live=True), view(120, live=True)).step == 100, "it went back to a checkpoint"


def test_what_the_operator_tells_counts_where_it_is_more() -> None:
    assert since(view(130), view(120, live=True)).step == 130


def test_a_log_has_a_line_for_each_quarter_and_phase_not_for_each_step() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=200)) as screen:
        for step in range(201):
            screen.show([view(step, live=True)])
        screen.show([view(200, live=True, phase="Succeeded")])
    lines = out.getvalue().splitlines()
    assert len(lines) == 6
    assert "step 50/200" in lines[1]
    assert "Succeeded" in lines[-1]


def test_a_narrow_terminal_cuts_no_note_off() -> None:
    out = io.StringIO()
    said = "SIGKILL to 5 processes of gpt-g1-1-0 at step 101, with step 100 committed; the other worker waits for it"
    with Screen(Console(file=out, width=60, force_terminal=True)) as screen:
        screen.note(said)
    shown = " ".join(out.getvalue().replace("│", " ").split())
    assert said in shown
