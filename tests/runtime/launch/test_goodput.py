"""Where a run's time goes: a slow loader, saves, a crash, a hang, each where it belongs, over restarts in place."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from muster_protocol import launcher_api as api
from muster_protocol.exits import EXIT_OK, Cause
from muster_protocol.goodput import Spent

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]
QUICK = {"MUSTER_HEARTBEAT_SECONDS": "0.2", "MUSTER_RESTARTS_IN_PLACE": "1"}

# What a session does in a loop, without torch. `took` sums up by name what the script itself has measured.
SESSION = """
import json
from contextlib import contextmanager
from muster_runtime import stacks
from muster_runtime.pulse import Pulse, Section
from muster_runtime.telemetry.goodput import Part
incarnation, folder = int(os.environ["MUSTER_INCARNATION"]), Path(__file__).parent
stacks.show_when_asked(RANK)
pulse = Pulse(int(os.environ["LOCAL_RANK"]))
pulse.enter(Section.SETUP)
took = {}
@contextmanager
def timed(name):
    began = time.monotonic()
    yield
    took[name] = took.get(name, 0) + time.monotonic() - began
def tell():
    (folder / f"took-{incarnation}").write_text(json.dumps(took))
def step(number, *, data=0.0, save=0.0, train=0.02):
    with timed("data"), pulse.waits_for_data():
        time.sleep(data)
    with timed("train" if number > reached else "again"):
        pulse.step_opens()
        time.sleep(train)
        pulse.step_done(number)
    if save:
        with timed("save"), pulse.during(Section.CHECKPOINT):
            time.sleep(save)
"""

CRASH = """
reached = 6 if incarnation == 2 else 0
if incarnation == 2:
    time.sleep(0.3)
    with timed("restore"), pulse.during(Section.CHECKPOINT, Part.RESTORING):
        time.sleep(0.4)
pulse.begin(0 if incarnation == 1 else 3)
for number in range(1, 7) if incarnation == 1 else range(4, 9):
    step(number, data=0.1, save=0.4 if number == 3 else 0.0)
if incarnation == 1:
    tell()
    pulse.step_opens()
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
pulse.leave()
tell()
mark("done")
while not (folder / "end").exists(): time.sleep(0.01)
"""

HANG = """
reached = 0
pulse.begin(0)
for number in range(1, 6):
    step(number)
    if incarnation == 1 and number == 4:
        tell()
        mark("hangs")
        with pulse.waits_for_data():
            time.sleep(600)
tell()
pulse.leave()
"""


def took(gang: Any, incarnation: int) -> dict[str, float]:
    found: dict[str, float] = json.loads((gang.folder / f"took-{incarnation}").read_text())
    return found


def whole(spent: Spent) -> float:
    return spent.age - spent.pending


def asked(pod: Any) -> tuple[float, float, Spent]:
    """(before, after, the answer) of one look at where the time goes."""
    before, spent, after = time.monotonic(), pod.status().spent, time.monotonic()
    assert spent is not None
    return before, after, spent


def test_a_slow_loader_a_save_and_a_crash_are_each_where_they_belong(make_gang: MakeGang) -> None:
    began = time.monotonic()
    gang = make_gang(1, **QUICK)
    pod = gang.pod(0, gang.script(SESSION + CRASH))
    gang.eventually(lambda: gang.marks("done"), "the second incarnation is through")
    earlier = asked(pod)
    gang.eventually(lambda: "muster_run_seconds_total" in pod.ask("GET", api.METRICS_PATH)[1].decode(), "its metrics")
    scraped = pod.ask("GET", api.METRICS_PATH)[1].decode()
    later = asked(pod)
    assert later[0] - earlier[1] - 0.01 < later[2].age - earlier[2].age < later[1] - earlier[0] + 0.01
    (gang.folder / "end").touch()
    facts = pod.end()
    assert (facts.exit_code, facts.restarts) == (EXIT_OK, 1)
    spent = facts.spent
    assert spent is not None
    assert spent.pending == 0
    assert whole(spent) < time.monotonic() - began
    first, second = took(gang, 1), took(gang, 2)
    slack = 0.01  # the script measures around what the pulse does
    assert spent.data_wait + slack >= 6 * 0.1 + 2 * 0.1, "of steps 1 to 6, and of 7 and 8"
    assert spent.data_wait < first["data"] + second["data"] - 3 * 0.1 + slack
    assert 0.4 <= spent.checkpoint + slack < first["save"] + 2 * slack
    assert 0.4 <= spent.restoring + slack < second["restore"] + 2 * slack
    assert spent.recomputing + slack >= 3 * (0.1 + 0.02) + 0.3, "steps 4 to 6, and the one that was broken off"
    assert spent.recomputing + slack >= second["again"] + 3 * 0.1 + 0.3
    assert spent.starting >= 0.3, "the second incarnation's own start at least"
    assert spent.training + slack >= first["train"] + second["train"]
    assert spent.hung == 0
    told = {
        line.split('part="')[1].split('"')[0]: float(line.split()[-1])
        for line in scraped.splitlines()
        if line.startswith("muster_run_seconds_total{")
    }
    assert set(told) == {"training", "data_wait", "checkpoint", "starting", "restoring", "recomputing", "hung"}
    assert sum(told.values()) <= whole(spent) + slack
    assert told["checkpoint"] == spent.checkpoint
    assert told["restoring"] == spent.restoring


def test_a_hang_counts_from_the_last_step_on(make_gang: MakeGang) -> None:
    gang = make_gang(1, **QUICK, MUSTER_HANG_START="20", MUSTER_HANG_STEP="1")
    pod = gang.pod(0, gang.script(SESSION + HANG))
    gang.eventually(lambda: gang.marks("hangs"), "it hangs")
    hangs = time.monotonic()
    before = asked(pod)[2]
    assert before.hung == 0
    facts = pod.end()
    ended = time.monotonic()
    assert facts.cause is Cause.SUCCEEDED, pod.log()
    spent = facts.spent
    assert spent is not None
    assert 1.0 <= spent.hung < ended - hangs + 1.0
    first, second = took(gang, 1), took(gang, 2)
    assert spent.data_wait <= first["data"] + second["data"] + 0.01, "the hang's wait is none"
    assert spent.training >= first["train"] - 0.01
    assert spent.recomputing >= 4 * 0.02, "steps 1 to 4: this script saves nothing"
    assert spent.training < first["train"] + second["train"] - 4 * 0.02 + 1.0
    for part, seconds in vars(before).items():
        assert part == "pending" or getattr(spent, part) >= seconds, part
