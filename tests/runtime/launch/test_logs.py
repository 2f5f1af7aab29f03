"""When a line that comes in several pieces is passed on."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import termios
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


# Its log is full at first.
TELLS = """
import os, time
from muster_runtime.launch import termination
log = os.dup(2)
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
termination.say("lost")
termination.say("perhaps lost")
until = time.monotonic() + 20
while not termination._lines.empty() and time.monotonic() < until: time.sleep(0.01)  # then the first was tried
os.dup2(log, 2)
termination.say("told")
termination.flush(20)
"""


def test_after_a_line_that_could_not_be_written_the_launcher_tells_the_next() -> None:
    done = subprocess.run([sys.executable, "-c", TELLS], capture_output=True, text=True, timeout=90, check=True)
    assert done.stderr.splitlines()[-1:] == ["[muster] told"]
    assert "[muster] lost" not in done.stderr


def test_the_launcher_waits_for_who_reads_its_log_slowly_also_where_writes_do_not_block() -> None:
    """As a terminal, or another process that has the same stream, may have made it."""
    lines = 2000
    script = (
        "import os\n"
        "from muster_runtime.launch import termination\n"
        "os.set_blocking(2, False)\n"
        f"for number in range({lines}): termination.say(str(number))\n"
        "termination.flush(60)\n"
    )
    ours, theirs = os.pipe()
    with open(ours) as log:
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, 4096)
        with subprocess.Popen([sys.executable, "-c", script], stderr=theirs):
            os.close(theirs)
            eventually(lambda: _unread(ours) > 4000)
            assert list(log) == [f"[muster] {number}\n" for number in range(lines)]


def _unread(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def eventually(holds: Callable[[], bool]) -> None:
    until = time.perf_counter() + 20
    while not holds():
        assert time.perf_counter() < until, "not within 20 s"
        time.sleep(0.01)
