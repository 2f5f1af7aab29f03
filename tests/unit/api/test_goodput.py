"""A job's account: each second in one part, over queues, launchers and jumping clocks."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api import goodput
from muster.api.placement import Placement
from muster.api.trainingjob_status import Counted, Goodput, PartSeconds, TrainingJobStatus
from muster_protocol.goodput import Spent

pytestmark = pytest.mark.unit

BEGIN = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
NEW = Goodput(until=BEGIN)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def parts(known: Goodput) -> dict[str, int]:
    return known.seconds.model_dump(exclude_none=True)


def test_a_run_from_the_queue_to_its_end() -> None:
    placement = Placement.of(1, ["a"], placed_at=at(30))
    known = goodput.account(TrainingJobStatus(placement=placement, placements=1), BEGIN)
    assert parts(known) == {"queued": 30}
    known = goodput.told(known, 0, Spent(training=10.2, starting=4.6, pending=2.4), at(30 + 20 + 17.2))
    assert parts(known) == {"queued": 30, "training": 10, "starting": 20 + 5}
    assert known.until == at(30 + 20 + 15)
    known = goodput.told(known, 0, Spent(training=15.4, starting=4.6, hung=9.9), at(9000))
    assert parts(known) == {"queued": 30, "training": 15, "starting": 25, "hung": 10}, (
        "a clock that jumped adds nothing"
    )
    known = goodput.ended(known, at(84))
    assert parts(known) == {"queued": 30, "training": 15, "starting": 29, "hung": 10}
    assert known.until == at(84)
    assert known.launcher is None
    assert known.ratio == "0.179"


def test_another_pod_of_index_0_goes_on_where_the_last_word_of_the_one_before_was() -> None:
    first = goodput.told(NEW, 0, Spent(training=100, starting=10), at(110))
    again = goodput.told(first, 1, Spent(starting=4), at(130))
    assert parts(again) == {"training": 100, "starting": 10 + 16 + 4}
    assert goodput.told(again, 0, Spent(training=103, starting=10), at(131)) == again, "old news"
    later = goodput.told(again, 1, Spent(training=7, starting=5), at(138))
    assert parts(later) == {"training": 107, "starting": 31}
    assert later.launcher == Counted(attempt=1, seconds=PartSeconds(training=7, starting=5))


def test_time_suspended_is_not_the_runs() -> None:
    known = goodput.resumed(goodput.up_to(NEW, goodput.QUEUED, at(10)), at(5000))
    assert parts(goodput.up_to(known, goodput.QUEUED, at(5020))) == {"queued": 30}


def test_of_placements_before_the_account_nothing_is_made_up() -> None:
    placement = Placement.of(3, ["a"], placed_at=at(5000))
    known = goodput.account(TrainingJobStatus(placement=placement, placements=3, restarts=2), BEGIN)
    assert (parts(known), known.until) == ({}, at(5000))


def test_a_first_placement_may_have_a_higher_number() -> None:
    """As where a lost node keeps pods of a deleted job of that name."""
    placement = Placement.of(3, ["a"], placed_at=at(30))
    known = goodput.account(TrainingJobStatus(placement=placement, placements=3), BEGIN)
    assert parts(known) == {"queued": 30}


def test_what_was_underused_is_of_the_time_of_training_and_adds_up_over_pods() -> None:
    known = goodput.told(NEW, 0, Spent(training=100, underused=40), at(100))
    known = goodput.told(known, 0, Spent(training=160, underused=90), at(160))
    assert (parts(known), known.underused) == ({"training": 160}, 90)
    known = goodput.ended(known, at(170))
    known = goodput.told(known, 1, Spent(training=20, underused=500), at(190))
    assert known.underused == 110, "no more than it trained"
    assert goodput.told(known, 1, Spent(training=20), at(190)).underused == 110


def test_the_account_survives_the_wire() -> None:
    known = goodput.told(NEW, 0, Spent(training=100, data_wait=20, starting=10), at(130))
    raw = TrainingJobStatus(goodput=known).to_raw()
    assert raw["goodput"] == {
        "ratio": "0.769",
        "seconds": {"training": 100, "dataWait": 20, "starting": 10},
        "until": "2026-03-01T12:02:10Z",
        "launcher": {"seconds": {"training": 100, "dataWait": 20, "starting": 10}},
    }
    assert TrainingJobStatus.model_validate(raw).goodput == known


SECONDS = st.floats(0, 1e6)
SPENT = st.builds(Spent, *[SECONDS] * 8)
CLOCK = st.floats(-1e6, 1e7)
ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.just("told"), st.integers(0, 3), SPENT, CLOCK),
        st.tuples(st.just("queued"), CLOCK),
        st.tuples(st.just("ended"), CLOCK),
    ),
    max_size=20,
)


@given(ENTRIES)
def test_the_parts_add_up_to_the_time_that_is_counted_and_never_shrink(entries: list[tuple]) -> None:  # type: ignore[type-arg]
    known = NEW
    for what, *more in entries:
        before = known
        if what == "told":
            attempt, spent, clock = more
            known = goodput.told(known, attempt, spent, at(clock))
        elif what == "queued":
            known = goodput.up_to(known, goodput.QUEUED, at(more[0]))
        else:
            known = goodput.ended(known, at(more[0]))
        assert goodput.whole_of(known.seconds) == (known.until - BEGIN).total_seconds()
        assert known.until >= before.until
        for part, seconds in before.seconds:
            assert (seconds or 0) <= (getattr(known.seconds, part) or 0)
        assert known == Goodput.model_validate(known.model_dump())
