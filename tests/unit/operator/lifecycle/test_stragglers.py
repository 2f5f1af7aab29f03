"""A slow rank is named while it is slow, its node is held to account once, and nothing is stopped for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.api.names import ConditionType, EventReason
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Straggler

from .cases import Case, trainingjob

pytestmark = pytest.mark.unit

SLOW = Straggler(rank=5, index=1, factor=2.4, own=0.96, usual=0.4)


def hears(case: Case, *found: Straggler) -> None:
    assert case.launcher is not None
    case.launcher = replace(case.launcher, stragglers=found)
    case.settle()


@pytest.fixture
def case() -> Case:
    found = Case(trainingjob())
    found.start("n0", "n1")
    return found


def events(case: Case) -> list[str]:
    return [note.message for note in case.notes if note.reason is EventReason.STRAGGLER]


def test_rank_node_and_factor_are_told_once_and_the_gang_runs_on(case: Case) -> None:
    assert case.reason(ConditionType.STRAGGLING) == "", "no condition before the first"
    hears(case, SLOW)
    assert case.is_true(ConditionType.STRAGGLING)
    assert case.message(ConditionType.STRAGGLING) == (
        "rank 5, worker 1 on node n1 is 2.4 times as slow as the others: its own part of a step takes 0.96 s, "
        "theirs 0.4 s, and all wait for it"
    )
    assert events(case) == [case.message(ConditionType.STRAGGLING)]
    writes = case.writes
    hears(case, SLOW)
    assert case.writes == writes
    hears(case, replace(SLOW, factor=3.0))
    assert "3 times as slow" in case.message(ConditionType.STRAGGLING)
    assert len(events(case)) == 1
    hears(case)
    assert case.reason(ConditionType.STRAGGLING) == "EvenPace"
    assert case.phase == "Running"
    assert [(one.node, one.cause, one.placement) for one in case.job.status.node_faults] == [("n1", "straggler", 1)]


def test_a_gang_that_starts_again_has_no_old_straggler_and_stays_away_from_its_node(case: Case) -> None:
    hears(case, SLOW)
    case.end(0, Cause.USER, 1, message="ValueError")
    case.end(1, Cause.PEER, 70)
    case.settle()
    assert not case.is_true(ConditionType.STRAGGLING)
    assert [item.node for item in case.job.status.avoided] == ["n1"]


def test_many_stragglers_are_told_in_short(case: Case) -> None:
    hears(case, *(replace(SLOW, rank=rank) for rank in range(6)))
    assert case.message(ConditionType.STRAGGLING).endswith("; and 2 more")
    assert len(events(case)) == 1, "one node"
