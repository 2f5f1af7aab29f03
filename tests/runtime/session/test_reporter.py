"""What ranks report reaches a launcher that is busy; one that is so for long learns how much it has missed."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gangs import run_gang

from muster_runtime import report, reporter
from muster_runtime.control import ControlWriter
from muster_runtime.report import CheckpointCommitted, Lost, Points, Progress
from muster_runtime.reporter import WAITING_AT_MOST, Reporter

pytestmark = pytest.mark.runtime

STEPS, METRICS = 40, 50


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[socket.socket]:
    with reporter.listen(tmp_path) as receiver:
        yield receiver


def points(step: int, metrics: int = METRICS) -> Points:
    return Points(0, [(step, 1.0, {f"metric_{number}": "0.5" for number in range(metrics)})])


def taken(launcher: socket.socket) -> list[report.Message | None]:
    """All that the kernel holds for it."""
    found = []
    while True:
        try:
            found.append(report.decode(launcher.recv(report.DATAGRAM_LIMIT)))
        except BlockingIOError:
            return found


def steps_of(messages: list[report.Message | None]) -> list[int]:
    return [one.points[0][0] for one in messages if isinstance(one, Points)]


def test_a_burst_that_the_kernel_does_not_hold_arrives_whole_and_in_order(
    launcher: socket.socket, tmp_path: Path
) -> None:
    rank = Reporter(str(tmp_path))
    assert rank.send(points(0))
    assert [rank.send(points(step)) for step in range(1, STEPS)].count(False) > 0, "more than the kernel holds"
    heard = taken(launcher)
    assert len(heard) < STEPS
    assert not rank.send(Progress(0, STEPS)), "the old goes before the new"
    while more := taken(launcher):
        heard += more
        rank.pass_on()
    assert steps_of(heard) == list(range(STEPS))
    assert heard[-1] == Progress(0, STEPS)
    assert rank.send(points(STEPS))


def test_a_launcher_that_takes_nothing_for_long_misses_values_first_and_learns_how_many(
    launcher: socket.socket, tmp_path: Path
) -> None:
    rank, said = Reporter(str(tmp_path)), 3 * WAITING_AT_MOST
    committed = CheckpointCommitted(0, 5, "s3://b/x", 1.5, 10, 1e9)
    for step in range(said):
        rank.send(points(step))
        if step == 20:
            rank.send(committed)
    heard: list[report.Message | None] = []
    while more := taken(launcher):
        heard += more
        rank.pass_on()
    steps = steps_of(heard)
    assert len(steps) >= WAITING_AT_MOST - 1, "it keeps much"
    assert steps[-1] == said - 1, "the newest are kept"
    assert committed in heard
    assert heard[-1] == Lost(0, said - len(steps), (said - len(steps)) * METRICS)
    rank.send(report.Warned(0, "x" * report.DATAGRAM_LIMIT))
    assert taken(launcher) == [Lost(0, 1, 0)], "what is too long is told as well, and nothing is told twice"


def test_a_last_word_is_waited_for_while_the_launcher_is_busy(launcher: socket.socket, tmp_path: Path) -> None:
    rank, heard = Reporter(str(tmp_path)), list[report.Message | None]()
    for step in range(STEPS):
        rank.send(points(step))
    settled = threading.Event()

    def busy() -> None:
        while not settled.is_set():
            heard.extend(taken(launcher))
            time.sleep(0.02)

    thread = threading.Thread(target=busy)
    thread.start()
    began = time.process_time()
    rank.settle(20)
    assert time.process_time() - began < 1, "it sleeps meanwhile"
    settled.set()
    thread.join()
    assert steps_of(heard + taken(launcher)) == list(range(STEPS))


def test_a_last_word_waits_for_no_launcher_that_hangs_or_is_gone(launcher: socket.socket, tmp_path: Path) -> None:
    rank = Reporter(str(tmp_path))
    for step in range(STEPS):
        rank.send(points(step))
    began = time.monotonic()
    rank.settle(0.2)
    assert 0.2 <= time.monotonic() - began < 5
    launcher.close()
    began = time.monotonic()
    rank.settle(60)
    assert time.monotonic() - began < 5
    assert not rank.send(points(STEPS))


def test_many_threads_report_at_once(launcher: socket.socket, tmp_path: Path) -> None:
    rank, each = Reporter(str(tmp_path)), 50
    threads = [
        threading.Thread(target=lambda: [rank.send(Progress(0, step)) for step in range(each)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    heard: list[report.Message | None] = []
    while any(thread.is_alive() for thread in threads) or rank._waiting:
        heard += taken(launcher)
        rank.pass_on()
    heard += taken(launcher)
    assert len(heard) == 4 * each


SCRIPT = f"""
import atexit, os
import torch
import muster_runtime as muster
session = muster.start()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.track(model=model, optimizer=optimizer)
try:
    for step in session.steps({STEPS}):
        optimizer.step()
        session.report(**{{f"metric_{{number}}": step for number in range({METRICS})}})
        if step + 1 == int(os.environ["FALLS"]):
            raise ValueError("it falls")
finally:
    atexit._run_exitfuncs()  # a forked process runs none by itself
"""


@pytest.mark.parametrize(("falls", "code", "last"), [("0", 0, STEPS), ("30", 1, 29)])
def test_a_run_that_ends_has_told_its_last_steps(
    falls: str, code: int, last: int, launcher: socket.socket, tmp_path: Path
) -> None:
    """Its launcher takes one report at a time, every few milliseconds, so all of them never fit."""
    ControlWriter(tmp_path)
    script, heard, over = tmp_path / "script.py", list[report.Message | None](), threading.Event()
    script.write_text(SCRIPT)

    def busy() -> None:
        while not over.is_set():
            with contextlib.suppress(BlockingIOError):
                heard.append(report.decode(launcher.recv(report.DATAGRAM_LIMIT)))
            time.sleep(0.005)

    thread = threading.Thread(target=busy)
    thread.start()
    variables = {"MUSTER_RUN_DIR": str(tmp_path), "MUSTER_TRACKING_URI": "http://127.0.0.1:9", "FALLS": falls}
    result = run_gang(script, tmp_path / "out", 1, {**os.environ, **variables}, distributed=False)
    over.set()
    thread.join()
    heard += taken(launcher)
    assert result.codes == [code], result.output
    told = {
        (step, name) for one in heard if isinstance(one, Points) for step, _, values in one.points for name in values
    }
    assert told == {(step, f"metric_{number}") for step in range(1, last + 1) for number in range(METRICS)}
    assert max(one.step for one in heard if isinstance(one, Progress)) == last
