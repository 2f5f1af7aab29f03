"""Ranks that wait for one to join that has ended already, as index 0 hears of both."""

from __future__ import annotations

import pytest

from muster_runtime.launch.alone import LEFT_SECONDS, Alone, Joining

pytestmark = pytest.mark.unit


def test_who_waits_is_alone_when_another_has_left_for_a_while() -> None:
    joining = Joining()
    joining.heard(2, 5, None, 0.0)
    joining.heard(1, 3, None, 0.0)
    assert joining.found(1e6) is None, "they wait for one that is slow"
    joining.ended_well(0, 100.0)
    assert joining.found(100.0 + LEFT_SECONDS - 0.1) is None, "it may have joined, and these are nearly through"
    assert joining.found(100.0 + LEFT_SECONDS) == Alone(1, 3, "index 0")
    joining.heard(1, None, None, 200.0)
    assert joining.found(200.0) == Alone(2, 5, "index 0")
    joining.heard(2, None, None, 200.0)
    assert joining.found(200.0) is None, "all have joined"


def test_one_of_several_ranks_in_a_pod_may_be_who_left() -> None:
    joining = Joining()
    joining.heard(1, 2, 3, 10.0)
    joining.heard(1, 2, 3, 10.0 + LEFT_SECONDS)
    assert joining.found(10.0 + LEFT_SECONDS) == Alone(1, 2, "rank 3")


def test_who_is_lost_or_has_ended_waits_for_nobody() -> None:
    joining = Joining()
    joining.heard(0, 0, None, 0.0)
    joining.heard(1, None, 3, 0.0)
    joining.heard(2, 4, None, 0.0)
    joining.ended_well(0, 0.0)
    joining.forget(2)
    assert joining.found(1e6) is None
    joining.heard(2, 4, None, 1e6)
    joining.forget(0)
    assert joining.found(1e6) == Alone(2, 4, "rank 3")
