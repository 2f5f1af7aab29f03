"""For how long GPUs have hardly been used, as one launcher sees it and as the gang's first puts it together."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_protocol import env
from muster_protocol.idleness import Busy, Idleness, of_gang
from muster_protocol.launcher_status import Phase, Status
from muster_protocol.messages import Heartbeat
from muster_protocol.wire import decode, encode
from muster_runtime.launch import config
from muster_runtime.launch.hangs import Hangs
from muster_runtime.launch.idling import Idling, trains
from muster_runtime.launch.leader import Leader
from muster_runtime.launch.membership import Roll
from muster_runtime.launch.ranks import Ranks
from muster_runtime.launch.spending import Spending
from muster_runtime.launch.standing import Standing
from muster_runtime.launch.state import State
from muster_runtime.telemetry.goodput import NOTHING, PLAIN_AFTER, SECOND, End, Part, Told

pytestmark = pytest.mark.unit

MINUTES = st.lists(st.integers(0, 100), max_size=12)


def seen(*minutes: float) -> Idleness:
    """By a launcher that looks each second; one share a minute."""
    idling = Idling()
    for second in range(60 * len(minutes) + 1):
        idling.look(counts=True, busy=minutes[max(0, second - 1) // 60], now=second * SECOND)
    assert idling.told is not None
    return idling.told


def idle_minutes(minutes: list[int], below: int) -> int:
    """Minutes at the end that are all below that percent."""
    return next((back for back, one in enumerate(reversed(minutes)) if one >= below), len(minutes))


def of(minutes: list[int]) -> Idleness:
    idling = Idling()
    idling.look(counts=True, busy=0.0, now=0)
    for number, percent in enumerate(minutes):
        for second in range(12):
            idling.look(counts=True, busy=(percent + 0.5) / 100, now=(60 * number + 5 * (second + 1)) * SECOND)
    assert idling.told is not None
    return idling.told


@given(MINUTES, st.integers(1, 100))
def test_every_share_has_its_own_answer(minutes: list[int], below: int) -> None:
    told = of(minutes)
    assert told.plausible
    assert told.watched == 60 * len(minutes)
    idle = idle_minutes(minutes, below)
    assert told.below(below) == 60 * idle
    assert told.busiest(60 * idle) == max(minutes[len(minutes) - idle :], default=0)
    percents = [one.percent for one in told.minutes]
    assert percents == sorted(set(percents), reverse=True)


@given(st.lists(MINUTES, min_size=1, max_size=4), st.integers(1, 100))
def test_a_gang_is_idle_for_as_long_as_the_one_that_was_at_work_last(workers: list[list[int]], below: int) -> None:
    told = of_gang(of(minutes) for minutes in workers)
    assert told.plausible
    assert told.below(below) == min(60 * idle_minutes(minutes, below) for minutes in workers)
    assert len(told.minutes) <= 101


def test_one_busy_minute_ends_an_idle_time() -> None:
    assert seen(0.0, 0.02, 0.9, 0.01, 0.0).below(30) == 120
    assert seen(0.0, 0.02).below(30) == 120
    assert seen(0.02, 0.0).below(1) == 60
    assert seen(0.2999).below(30) == 60
    assert seen(0.3).below(30) == 0


def test_time_in_which_the_ranks_do_not_train_is_left_out() -> None:
    idling, now = Idling(), 0
    for counts, seconds in ((True, 40), (False, 1000), (True, 21)):
        for _ in range(seconds):
            idling.look(counts=counts, busy=0.0, now=now)
            now += SECOND
    assert idling.told == Idleness(60.0, (Busy(0, 0.0),))


def test_time_in_which_the_launcher_did_not_look_is_left_out() -> None:
    idling = Idling()
    idling.look(counts=True, busy=0.0, now=0)
    idling.look(counts=True, busy=0.0, now=3600 * SECOND)
    assert idling.told == Idleness()


def test_without_nvml_nothing_is_known_and_what_was_known_holds_no_more() -> None:
    idling = Idling()
    assert idling.told is None
    idling.look(counts=True, busy=None, now=0)
    assert idling.told is None
    for second in range(100):
        idling.look(counts=True, busy=0.0, now=second * SECOND)
    assert idling.told is not None
    assert idling.told.watched == 60
    idling.look(counts=True, busy=None, now=100 * SECOND)
    assert idling.told is None
    idling.look(counts=True, busy=0.0, now=101 * SECOND)
    assert idling.told == Idleness()


@pytest.mark.parametrize(
    ("part", "counts"),
    [
        (Part.TRAINING, True),
        (Part.DATA_WAIT, True),
        (Part.STARTING, False),
        (Part.RESTORING, False),
        (Part.CHECKPOINT, False),
    ],
)
def test_what_counts(part: Part, counts: bool) -> None:
    assert trains(Told(part, 0, NOTHING, 0, NOTHING), 10 * PLAIN_AFTER) is counts


def test_a_script_without_a_session_trains_after_a_while() -> None:
    assert not trains(None, PLAIN_AFTER - 1)
    assert trains(None, PLAIN_AFTER)


class Pulse:
    """Of ranks that are at `part`."""

    part = Part.STARTING

    def told(self, rank: int) -> Told:
        return Told(self.part, 0, NOTHING, 0, NOTHING)

    def read(self, rank: int) -> None:
        return None


def test_a_launcher_counts_while_its_ranks_train_and_begins_anew_with_each_start() -> None:
    now = 0
    pulse, spending = Pulse(), Spending(0, lambda: 0.02, lambda: now * SECOND)

    def pass_minutes(count: int) -> None:
        nonlocal now
        for _ in range(60 * count + 1):
            spending.look()
            now += 1

    assert spending.idleness is None
    spending.begin(pulse)  # type: ignore[arg-type]
    pass_minutes(5)
    assert spending.idleness == Idleness()
    pulse.part = Part.TRAINING
    pass_minutes(3)
    assert spending.idleness == Idleness(180.0, (Busy(2, 0.0),))
    spending.end(End.BROKEN)
    assert spending.idleness is None
    spending.begin(pulse)  # type: ignore[arg-type]
    pass_minutes(1)
    assert spending.idleness == Idleness(60.0, (Busy(2, 0.0),))


def test_index_0_knows_of_all_or_of_none() -> None:
    given = replace(config.read({env.LEADER_HOST: "127.0.0.1"}, ("true",)), workers=3)
    state, roll = State(), Roll(0, 3)
    standing = Standing(idleness=of([0, 0, 0]))
    leader = Leader(given, None, state, roll, standing, Hangs(given, Ranks(state.tell), state))  # type: ignore[arg-type]
    leader.heartbeat(Heartbeat(1, "uid-1", idleness=of([0, 90, 0])))
    assert leader.idleness_of_all is None
    leader.heartbeat(Heartbeat(2, "uid-2", idleness=of([0, 0])))
    assert leader.idleness_of_all is not None
    assert leader.idleness_of_all.below(30) == 60
    leader.heartbeat(Heartbeat(2, "uid-2", idleness=Idleness(-60.0)))
    assert leader.idleness_of_all is None
    leader.heartbeat(Heartbeat(2, "uid-2"))
    assert leader.idleness_of_all is None


def test_it_goes_over_the_wire() -> None:
    told = Idleness(600.0, (Busy(95, 540.0), Busy(2, 0.0)))
    beat = decode(Heartbeat, encode(Heartbeat(1, "uid", idleness=told)))
    assert beat.idleness == told
    status = decode(Status, encode(Status(Phase.RUNNING, 1, 1, 0, idleness=told)))
    assert status.idleness == told


@pytest.mark.parametrize(
    "nonsense",
    [
        Idleness(-1.0),
        Idleness(math.inf),
        Idleness("60"),  # type: ignore[arg-type]
        Idleness(60.0, (Busy(101, 0.0),)),
        Idleness(60.0, (Busy(True, 0.0),)),
        Idleness(60.0, (Busy(50, math.nan),)),
    ],
)
def test_nonsense_is_known_as_such(nonsense: Idleness) -> None:
    assert not nonsense.plausible
