"""A plan that tells nobody why gives some jobs no look; it must decide the same as one that looks at all of them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.scheduling.plan import Plan
from muster.scheduling.planner import plan
from muster.scheduling.policy import Policy
from muster.scheduling.snapshot import Snapshot

from .standing import standing
from .worlds import contended, trees

pytestmark = pytest.mark.unit


def decisions(made: Plan) -> list[tuple[object, ...]]:
    starts = [(each.uid, each.nodes.tolist(), each.flavour, each.yields) for each in made.admissions]
    promises = [(each.uid, each.nodes.tolist(), each.flavour) for each in made.promises]
    return [*starts, *promises, *((each.uid, each.reason, each.beneficiary) for each in made.evictions), made.broken]


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.one_of(contended(), trees(), standing(elastic=True, jobs=12), standing(jobs=12)),
    st.sampled_from([Policy(), Policy(fairness=False), Policy(backfill=False), Policy(preemption=False)]),
)
def test_plan_that_explains_nothing_decides_the_same(world: Snapshot, policy: Policy) -> None:
    silent = plan(world, Policy(policy.fairness, policy.backfill, policy.preemption, explain=False))
    assert silent.waiting == ()
    assert decisions(silent) == decisions(plan(world, policy))
