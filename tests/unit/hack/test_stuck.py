"""A test or a teardown that waits for ever ends with words, and what comes after it still runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]

SETTINGS = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
timeout = 1
"""
HURRIED = """
pytest_plugins = ["hack.stuck"]

def pytest_configure():
    from hack import stuck
    stuck.TEARDOWN_S, stuck.AGAIN_S = 0.5, 2.0
"""


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """pytest on one file, with alarms that ring soon."""
    (folder / "conftest.py").write_text(HURRIED)
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\ntimeout = 1\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_a_fixture_that_never_ends_after_a_failed_test_holds_up_no_other(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import asyncio
import pytest

@pytest.fixture
def server():
    yield
    print("the server is taken away")

@pytest.fixture
async def stuck(server):
    yield
    async def waits_for_what_never_comes():
        await asyncio.Event().wait()
    try:
        await waits_for_what_never_comes()
    except asyncio.CancelledError:
        await waits_for_what_never_comes()

async def test_fails(stuck):
    assert False, "the test's own failure"

def test_next():
    pass
""",
    )
    assert "1 failed, 1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "the test's own failure" in done.stdout
    assert "the teardown is stuck; tasks that are not done" in done.stdout
    assert "waits_for_what_never_comes" in done.stdout
    assert "the server is taken away" in done.stdout


def test_an_alarm_that_a_callback_swallows_rings_again(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import asyncio
import time

async def test_waits():
    def works():  # the first alarm comes while it does; the event loop logs what it raises
        time.sleep(1.3)
    asyncio.get_running_loop().call_soon(works)
    await asyncio.Event().wait()

def test_next():
    pass
""",
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Timeout" in done.stdout
