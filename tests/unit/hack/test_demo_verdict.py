"""The demo may only say yes when everything that it promises holds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hack.demo.plot import curve
from hack.demo.verify import Story, judge

pytestmark = pytest.mark.unit

LOSSES = {step: 5.0 / (step + 1) for step in range(20)}
GOOD = Story(
    succeeded=True,
    reference_succeeded=True,
    killed_at=12,
    committed=(5, 10),
    resumed_from=10,
    losses=LOSSES,
    reference=dict(LOSSES),
    total=20,
)


def test_a_good_story_has_facts_and_no_fault() -> None:
    verdict = judge(GOOD)
    assert verdict.good
    assert any("10 losses after the resume" in fact for fact in verdict.facts)


@pytest.mark.parametrize(
    ("story", "said"),
    [
        (replace(GOOD, succeeded=False), "did not succeed"),
        (replace(GOOD, reference_succeeded=False), "undisturbed run did not succeed"),
        (replace(GOOD, killed_at=None), "no worker was killed"),
        (replace(GOOD, resumed_from=5), "the killed gang had committed"),
        (replace(GOOD, resumed_from=None), "the killed gang had committed"),
        (replace(GOOD, committed=()), "the killed gang had committed"),
        (replace(GOOD, total=21), "no loss for 1 of 21"),
        (replace(GOOD, losses={**LOSSES, 15: math.nextafter(LOSSES[15], 9.0)}), "first at step 15"),
    ],
)
def test_each_broken_promise_is_a_fault(story: Story, said: str) -> None:
    verdict = judge(story)
    assert not verdict.good
    assert any(said in fault for fault in verdict.faults), verdict.faults


def test_a_falling_curve_begins_high_and_ends_low() -> None:
    drawn = curve([(float(x), float(-x)) for x in range(100)], width=20, height=5, marks={50.0: "half"})
    lines = drawn.splitlines()
    assert lines[0].startswith("  0.000 |")
    assert lines[0][9] != "\u2800"
    assert lines[4].startswith("-99.000 |")
    assert lines[4].rstrip("\u2800")[-1] != "|"
    assert lines[-1].strip() == "^ half"


def test_points_that_are_not_finite_are_left_out() -> None:
    assert curve([(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)], width=4, height=2)
    with pytest.raises(ValueError, match="no point"):
        curve([(0, math.nan)])
