"""A script that falls leaves at once, and leaves out nothing that it has asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.runtime

SCRIPT = """
import atexit, os, sys, threading, time
class Module:
    def __del__(self, write=os.write): write(1, b"taken apart\\n")
module = Module()
atexit.register(print, "handler of before")
if "tells" in sys.argv:
    first = sys.excepthook
    def tell(*error):
        time.sleep(1.5)
        first(*error)
        print("told")
    sys.excepthook = tell
if "soon" in sys.argv:
    from muster_runtime.session.fall import end_soon
    end_soon(0.5 if "blocks" in sys.argv or "tells" in sys.argv else 60)
ours = sys.excepthook
def hook(*error):
    ours(*error)
    print("hook of later")
sys.excepthook = hook
def work():
    time.sleep(0.2)
    print("thread")
threading.Thread(target=work).start()
if "blocks" in sys.argv: threading.Thread(target=threading.Event().wait, name="prefetch").start()
atexit.register(print, "handler of later")
if "logs" in sys.argv:
    try:
        raise KeyError("survived")
    except KeyError:
        sys.excepthook(*sys.exc_info())
if "exits" in sys.argv: sys.exit(3)
raise ValueError("it falls")
"""
IN_ORDER = ["hook of later", "thread", "handler of later", "handler of before"]


def run(*args: str) -> tuple[int, list[str], str]:
    ended = subprocess.run([sys.executable, "-c", SCRIPT, *args], capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout.splitlines(), ended.stderr


def test_a_script_that_falls_runs_its_exit_handlers_once_and_is_not_taken_apart() -> None:
    code, said, told = run("soon")
    assert (code, said) == (1, IN_ORDER)
    assert told.endswith("ValueError: it falls\n")
    assert run() == (1, [*IN_ORDER, "taken apart"], told), "what Python does by itself"


def test_a_script_that_falls_does_not_wait_for_ever_for_its_threads() -> None:
    code, said, told = run("soon", "blocks")
    assert (code, said) == (1, IN_ORDER)
    assert "ValueError: it falls\n" in told
    assert told.endswith("ends without its threads that still run: prefetch\n")


def test_a_hook_that_tells_of_the_fall_has_its_own_time() -> None:
    """As one that sends a report: only threads are waited for in vain."""
    code, said, told = run("soon", "tells")
    assert (code, [line for line in said if line != "thread"]) == (1, ["told", IN_ORDER[0], *IN_ORDER[2:]])
    assert told.endswith("ValueError: it falls\n")


def test_a_script_that_exits_by_itself_ends_as_it_did() -> None:
    assert run("soon", "exits") == run("exits") == (3, [*IN_ORDER[1:], "taken apart"], "")


def test_a_script_that_tells_an_exception_and_goes_on_ends_as_it_did() -> None:
    code, said, told = run("soon", "logs", "exits")
    assert (code, said) == (3, ["hook of later", *IN_ORDER[1:], "taken apart"])
    assert "survived" in told
