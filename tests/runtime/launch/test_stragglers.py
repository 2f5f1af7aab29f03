"""A slow rank is told from those that wait for it, and only where it lasts and matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_protocol.launcher_api import METRICS_PATH
from muster_protocol.messages import Pace
from muster_runtime.launch.stragglers import Rule, Stragglers, told

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]
RULE = Rule(factor=1.5, window=20.0, windows=3)


class Watched:
    """A gang of two ranks a worker, of which each takes `own` seconds a step by itself and all take `step`."""

    def __init__(self, ranks: int, rule: Rule = RULE) -> None:
        self.ranks, self.now, self.steps = ranks, 0.0, 0
        self.own = [0.0] * ranks
        self.seconds = 0.0
        self.view = Stragglers(rule, self.now)

    def run(self, own: dict[int, float], *, usual: float = 1.0, step: float = 2.0, seconds: float = 20.0) -> list[int]:
        """The ranks that are newly found after so long."""
        steps = int(seconds / step)
        self.now, self.steps, self.seconds = self.now + seconds, self.steps + steps, self.seconds + steps * step
        for rank in range(self.ranks):
            self.own[rank] += steps * own.get(rank, usual)
            self.view.heard(rank // 2, [Pace(rank, self.steps, self.seconds, self.own[rank])])
        return [one.rank for one in self.view.look(self.now, self.ranks)]

    @property
    def found(self) -> list[tuple[int, int, float]]:
        return [(one.rank, one.index, one.factor) for one in self.view.found]


def test_a_rank_that_is_slow_in_three_windows_running_is_named_until_it_keeps_up() -> None:
    gang = Watched(8)
    assert gang.run({5: 1.8}) == []
    assert gang.run({5: 1.8}) == []
    assert gang.run({5: 1.8}) == [5]
    assert gang.found == [(5, 2, 1.8)]
    assert told(gang.view.found[0]).startswith("rank 5 of worker 2 is 1.8 times as slow as the others: its own part")
    assert gang.run({5: 1.9}) == [], "known already"
    assert gang.found == [(5, 2, 1.8)], "and hardly changed"
    gang.run({5: 3.0})
    assert gang.found == [(5, 2, 3.0)]
    gang.run({})
    assert gang.found == []
    assert [gang.run({5: 1.8}) for _ in range(3)] == [[], [], [5]]


def test_a_bad_window_now_and_then_names_nobody() -> None:
    gang = Watched(4)
    for own in ({1: 5.0}, {1: 5.0}, {2: 5.0}) * 3:
        assert gang.run(own) == []


def test_what_is_slow_but_holds_nobody_up_is_not_named() -> None:
    gang = Watched(4)
    assert [gang.run({3: 0.02}, usual=0.005) for _ in range(5)] == [[]] * 5, "20 ms of a step of 2 s"


def test_of_two_ranks_the_slower_is_named() -> None:
    gang = Watched(2)
    assert [gang.run({1: 1.8}) for _ in range(3)] == [[], [], [1]]


def test_long_steps_make_long_windows_and_unknown_ranks_none() -> None:
    gang = Watched(4)
    assert [gang.run({1: 9.0}, step=10.0) for _ in range(2)] == [[], []], "two steps tell little"
    gang.view.heard(9, [Pace(99, 0, 0.0, 0.0)])
    assert [gang.run({1: 9.0}, step=2.0) for _ in range(9)] == [[]] * 9, "a script without a session tells no pace"


def test_other_processes_begin_anew_and_nothing_is_named_where_nobody_wants_it() -> None:
    gang = Watched(4)
    gang.run({1: 9.0})
    gang.run({1: 9.0})
    gang.view.begin_anew(gang.now)
    assert gang.run({1: 9.0}) == []
    never = Watched(4, Rule(factor=float("inf")))
    assert [never.run({1: 9.0}) for _ in range(5)] == [[]] * 5


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=12), st.floats(0.01, 30.0))
def test_at_most_half_of_the_ranks_are_slow_and_all_of_them_by_the_factor(own: list[float], step: float) -> None:
    view = Stragglers(Rule(windows=1), 0.0)
    for rank, mine in enumerate(own):
        view.heard(rank, [Pace(rank, 10, 10 * step, 10 * mine)])
    found = view.look(20.0, len(own))
    assert len(found) <= len(own) // 2
    for one in found:
        assert own[one.rank] == pytest.approx(one.own)
        assert one.own >= 1.5 * one.usual > 0
        assert sum(mine <= one.usual * (1 + 1e-9) for mine in own) * 2 >= len(own)


LOOP = """
from muster_runtime import report
from muster_runtime.pulse import Pulse, Section
from muster_runtime.reporter import Reporter
folder, world = Path(__file__).parent, int(os.environ["WORLD_SIZE"])
pulse = Pulse(int(os.environ["LOCAL_RANK"]))
Reporter().send(report.Hello(RANK, os.getpid()))

def all_reduce(step):
    (folder / f"step-{step}-{RANK}").touch()
    while not all((folder / f"step-{step}-{other}").exists() for other in range(world)):
        time.sleep(0.001)

pulse.begin(0)
step = 0
while not (folder / f"end-{step}").exists():
    pulse.step_opens()
    time.sleep(0.03 if RANK == 1 and not (folder / "healed").exists() else 0.002)
    pulse.shares()
    step += 1
    if RANK == 1 and (folder / "end").exists():
        (folder / f"end-{step}").touch()  # before the others leave this step
    all_reduce(step)
    pulse.step_done(step)
"""


def test_a_gang_tells_its_slow_rank_and_when_it_keeps_up_again(make_gang: MakeGang) -> None:
    quick = {"MUSTER_HEARTBEAT_SECONDS": "0.2", "MUSTER_PACE_WINDOW_SECONDS": "0.4"}
    gang = make_gang(2, **quick)
    pods = gang.all(gang.script(LOOP))
    gang.eventually(lambda: pods[0].listens() and pods[0].status().stragglers, "a straggler")
    (found,) = pods[0].status().stragglers
    assert (found.rank, found.index) == (1, 1), "both take as long for a step"
    assert found.factor > 3
    metrics = pods[0].ask("GET", METRICS_PATH)[1].decode()
    assert 'muster_worker_straggler_factor{index="0",job_name="probe",namespace="research",rank="1"}' in metrics
    assert "rank 1 of worker 1 is" in pods[0].log()
    (gang.folder / "healed").touch()
    gang.eventually(lambda: not pods[0].status().stragglers, "it keeps up")
    assert "muster_worker_straggler_factor{" not in pods[0].ask("GET", METRICS_PATH)[1].decode()
    (gang.folder / "end").touch()
    for pod in pods:
        assert pod.end().exit_code == 0
