"""Each nanosecond of a launcher's life belongs to one part, and never to another one later."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_protocol.goodput import Spent
from muster_protocol.messages import Ended
from muster_runtime.launch.spending import Spending, how_ended
from muster_runtime.telemetry.goodput import NOTHING, PLAIN_AFTER, SECOND, Account, End, Ledger, Part, Told, spent

pytestmark = pytest.mark.unit


def told(account: Account) -> Told:
    return Told(account.part, account.at, tuple(account.times), account.settled_at, account.settled)


def of(ledger: Ledger, now: int) -> dict[str, int]:
    """What took any time, by name."""
    times, pending = ledger.at(now)
    parts = {part.name.lower(): time for part, time in zip(Part, times, strict=True) if time}
    return parts | ({"pending": pending} if pending else {})


PASSED = st.integers(-3, 2 * PLAIN_AFTER)
"""Also back: whoever tells the time isn't trusted either."""
MOVES = st.lists(
    st.tuples(
        PASSED,
        st.sampled_from(["enter", "settle", "again", "look", "nonsense", "spawn", "session", "end"]),
        st.sampled_from(Part),
        st.sampled_from(End),
    ),
    max_size=60,
)


@given(MOVES, st.lists(st.integers(-5, 2**62), min_size=16, max_size=16))
def test_the_parts_add_up_to_the_whole_and_never_shrink(
    moves: list[tuple[int, str, Part, End]], nonsense: list[int]
) -> None:
    begun = latest = now = 1000
    ledger, account, before = Ledger(begun), None, NOTHING
    for passed, move, part, how in moves:
        now += passed
        latest = max(latest, now)
        if move == "spawn":
            ledger.spawned(latest)
            account = None
        elif move == "session":
            account = Account(latest)
        elif move == "nonsense":
            ledger.look(Told(part, nonsense[0], tuple(nonsense[1:8]), nonsense[8], tuple(nonsense[9:])), latest)
        elif move == "end":
            ledger.ended(told(account) if account is not None else None, latest, how)
        elif account is not None:
            if move == "look":
                ledger.look(told(account), latest)
            else:
                account.enter(part, now, again=move == "again", settles=move == "settle")
        times, pending = ledger.at(latest)
        assert sum(times) + pending == latest - begun
        assert pending >= 0
        assert all(old <= new for old, new in zip(before, times, strict=True)), (before, times)
        before = times


def a_session(ledger: Ledger) -> Account:
    """Up to its second step: 10 starting, 7 restoring, 3 waiting, 5 + 5 training, 2 saving."""
    ledger.spawned(100)
    account = Account(106)
    account.enter(Part.RESTORING, 110, settles=True)
    account.enter(Part.DATA_WAIT, 117, settles=True)
    account.enter(Part.TRAINING, 120, settles=True)
    account.enter(Part.TRAINING, 125, settles=True)
    account.enter(Part.CHECKPOINT, 130)
    account.enter(Part.TRAINING, 132, settles=True)
    return account


def test_what_came_after_the_last_step_is_held_back() -> None:
    ledger = Ledger(90)
    account = a_session(ledger)
    account.enter(Part.DATA_WAIT, 140)
    ledger.look(told(account), 145)
    assert of(ledger, 150) == {
        "starting": 20,
        "restoring": 7,
        "data_wait": 3,
        "training": 10,
        "checkpoint": 2,
        "pending": 18,
    }


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (End.WELL, {"training": 18, "data_wait": 4, "checkpoint": 2 + 9}),
        (End.BROKEN, {"training": 10, "data_wait": 3, "checkpoint": 2 + 9, "recomputing": 9}),
        (End.HUNG, {"training": 10, "data_wait": 3, "checkpoint": 2, "hung": 18}),
    ],
)
def test_the_time_since_the_last_step_goes_by_how_the_ranks_ended(how: End, expected: dict[str, int]) -> None:
    """Here 8 training, 1 waiting, and 9 in a save that they ended in."""
    ledger = Ledger(90)
    account = a_session(ledger)
    account.enter(Part.DATA_WAIT, 140)
    account.enter(Part.CHECKPOINT, 141)
    ledger.ended(told(account), 150, how)
    assert of(ledger, 150) == {"starting": 20, "restoring": 7, **expected}
    ledger.spawned(160)
    assert of(ledger, 160) == {"starting": 30, "restoring": 7, **expected}, "starting again"


def test_steps_done_before_are_computed_again_and_saves_are_saves() -> None:
    account = Account(0)
    account.enter(Part.TRAINING, 10)
    account.enter(Part.DATA_WAIT, 20, again=True)
    account.enter(Part.CHECKPOINT, 25, again=True)
    account.enter(Part.TRAINING, 40, again=True)
    account.enter(Part.TRAINING, 41)
    parts = {part: time for part, time in zip(Part, account.times, strict=True) if time}
    assert parts == {Part.STARTING: 10, Part.RECOMPUTING: 15, Part.CHECKPOINT: 15, Part.TRAINING: 1}


def test_a_script_without_a_session_trains_in_its_own_way() -> None:
    ledger = Ledger(0)
    ledger.spawned(5)
    ledger.look(None, 100)
    assert of(ledger, 100) == {"starting": 5, "pending": 95}, "it may begin one yet"
    ledger.look(None, 5 + PLAIN_AFTER)
    assert of(ledger, 5 + PLAIN_AFTER) == {"starting": 5, "training": PLAIN_AFTER}
    ledger.look(None, 15 + PLAIN_AFTER)
    assert of(ledger, 15 + PLAIN_AFTER) == {"starting": 5, "training": PLAIN_AFTER + 10}, "from then on it is known"
    ledger.ended(None, 20 + PLAIN_AFTER, End.WELL)
    assert of(ledger, 20 + PLAIN_AFTER) == {"starting": 5, "training": PLAIN_AFTER + 15}


def test_ranks_that_end_before_their_session_were_starting_where_the_script_has_one() -> None:
    ledger = Ledger(90)
    ledger.ended(told(a_session(ledger)), 150, End.BROKEN)
    known = of(ledger, 150)
    ledger.spawned(150)
    ledger.ended(None, 170, End.BROKEN)
    assert of(ledger, 170) == known | {"starting": known["starting"] + 20}


def test_ranks_that_fall_before_anything_is_known_of_them_had_only_started() -> None:
    """Such as a container that is killed for memory while it imports."""
    ledger = Ledger(0)
    ledger.spawned(5)
    ledger.ended(None, 9, End.BROKEN)
    assert of(ledger, 9) == {"starting": 9}
    ledger.spawned(9)
    ledger.look(None, 9 + PLAIN_AFTER)
    ledger.ended(None, 20 + PLAIN_AFTER, End.BROKEN)
    assert of(ledger, 20 + PLAIN_AFTER) == {"starting": 9, "training": PLAIN_AFTER + 11}, "by then it trained, for sure"
    ledger.spawned(20 + PLAIN_AFTER)
    ledger.ended(None, 25 + PLAIN_AFTER, End.BROKEN)
    assert of(ledger, 25 + PLAIN_AFTER) == {"starting": 14, "training": PLAIN_AFTER + 11}


def test_a_session_without_a_loop_trains_in_its_own_way() -> None:
    ledger = Ledger(0)
    ledger.spawned(0)
    account = Account(10)
    account.enter(Part.STARTING, 15, settles=True)
    ledger.ended(told(account), 100, End.WELL)
    assert of(ledger, 100) == {"starting": 15, "training": 85}


def test_how_ranks_ended() -> None:
    hang, crash = (Ended(0, 1, cause) for cause in ("hang", "user"))
    assert how_ended([0, 75], None) is End.WELL
    assert how_ended([0, -9], None) is End.BROKEN
    assert how_ended([0, 1], crash) is End.BROKEN
    assert how_ended([-9, -9], hang) is End.HUNG


def test_seconds_are_told_with_what_is_pending() -> None:
    told = spent(tuple(range(1_000_000_000, 8_000_000_000, 1_000_000_000)), 500_000_000)
    assert told == Spent(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 0.5)
    assert told.age == 28.5
    names = [part.name.lower() for part in Part]
    assert names == list(asdict(told))[: len(names)], "the order of the one is the other's"


@pytest.mark.parametrize("raw", [None, [], {"training": -1}, {"hung": "3"}, {"training": 1e300}, {"starting": True}])
def test_nonsense_is_no_account(raw: object) -> None:
    assert Spent.read(raw) is None


def test_an_account_of_a_later_version_is_read() -> None:
    assert Spent.read({**asdict(Spent(training=2.5)), "a later field": 1}) == replace(Spent(), training=2.5)


class Ranks:
    """A pulse of which only the account of rank 0 is read."""

    def __init__(self, account: Account) -> None:
        self.account = account

    def told(self, rank: int) -> Told:
        return told(self.account)

    def read(self, rank: int) -> None:
        return None


def test_training_counts_as_underused_by_how_busy_the_gpus_were_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    now, busy = 0, 0.9
    spending = Spending(0, lambda: busy, lambda: now * SECOND)
    account = Account(0)
    monkeypatch.setattr(spending, "_pulse", Ranks(account))
    spending._ledger.spawned(0)

    def step(seconds: int, *seen: float) -> None:
        """One, in whose midst the launcher looks once for each of `seen`, and once when it is over."""
        nonlocal now, busy
        account.enter(Part.TRAINING, now * SECOND, settles=True)
        for one in seen:
            busy = one
            spending.look()
        now += seconds
        account.enter(Part.TRAINING, now * SECOND, settles=True)
        spending.look()

    step(10, 0.9, 0.95)
    assert spending.spent().underused == 0
    step(10, 0.05, 0.1, 0.0, 0.0)
    step(100, 0.0, 0.8)  # idle for some time only
    found = spending.spent()
    assert (found.training, found.underused) == (120, 10)
    assert found.age == 120
    nothing = Spending(0, clock=lambda: now * SECOND)
    assert nothing.spent().underused == 0
