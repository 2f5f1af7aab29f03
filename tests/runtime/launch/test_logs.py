"""When a line that comes in several pieces is passed on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster_runtime.launch import logs
from muster_runtime.launch.logs import Pump, Sink

pytestmark = pytest.mark.runtime


class Rank:
    """One that writes `say`; `log` is what was passed on."""

    def __init__(self, log: Path) -> None:
        ours, self._out = os.pipe()
        self._log, self._sink = log, os.open(log, os.O_CREAT | os.O_WRONLY)
        self.pump = Pump(ours, Sink(self._sink), b"[rank 3] ")
        self.pump.start()

    def say(self, text: str) -> None:
        os.write(self._out, text.encode())

    @property
    def log(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        os.close(self._out)
        self.pump.join()
        os.close(self._sink)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path / "log")
    yield made
    if made.pump.is_alive():
        made.end()


def test_a_line_in_pieces_is_one_line_however_long_ago_the_last_one_was(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    rank.say("one\n")
    eventually(lambda: rank.log != "")
    now = 100.0
    rank.say("step")  # as print("step", 0) writes it where Python doesn't buffer
    eventually(lambda: rank.pump._partial == b"step" or "step" in rank.log)
    rank.say(" 0\n")
    rank.end()
    assert rank.log == "[rank 3] one\n[rank 3] step 0\n"


def test_the_late_end_of_a_line_that_is_shown_already_makes_no_empty_one(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "IDLE_FLUSH_SECONDS", 0.01)
    rank.say("half")
    eventually(lambda: rank.log != "")
    rank.say("\n\nnext\n")
    rank.end()
    assert rank.log == "[rank 3] half\n[rank 3] \n[rank 3] next\n"


def eventually(holds: Callable[[], bool]) -> None:
    until = time.perf_counter() + 20
    while not holds():
        assert time.perf_counter() < until, "not within 20 s"
        time.sleep(0.01)
