"""What a queue's parent, its priority limit and its preemption do to who starts when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from muster.simulate.engine import simulate
from muster.simulate.policies import policy_named
from muster.simulate.workload import assemble

from .samples import cluster, trace

pytestmark = pytest.mark.unit

LENDS = {"submit": 0, "gpus": 16, "duration": 7200}
"""Of vision, which owns half of the nodes."""
OWNS = {"submit": 60, "gpus": 8, "duration": 7200}


def waits(jobs: tuple[dict[str, Any], ...], *of: str, **queues: dict[str, Any]) -> list[float]:
    """Seconds that each job waited before its first start. `of`: each job's queue."""
    names = tuple(queues)
    made = replace(trace(*jobs), queues=names, queue=np.array([names.index(name) for name in of], dtype=np.int32))
    shares = [{"name": name, "gpus": 8, **said} for name, said in queues.items()]
    work = assemble(cluster(2, queues=shares), made)
    outcome = simulate(work, policy_named("muster", work), interval=10)
    first: list[float] = (outcome.world.first_start - made.submit).tolist()
    return first


def test_queues_of_one_parent_lend_each_other_and_take_back_what_is_theirs() -> None:
    below: dict[str, Any] = {"parent": "all"}
    tree = {"all": {"gpus": 0}, "vision": below, "speech": below}
    assert waits((LENDS, OWNS), "vision", "speech", **tree) == pytest.approx([0, 60], abs=15)
    never = {**tree, "speech": {**below, "preemption": {"reclaim": "never"}}}
    assert waits((LENDS, OWNS), "vision", "speech", **never) == pytest.approx([0, 7140], abs=15)


def test_priorities_above_the_limit_of_a_queue_count_as_that() -> None:
    runs, urgent = {"gpus": 16, "duration": 7200}, {"submit": 60, "gpus": 16, "duration": 7200, "priority": 9}
    owner = {"gpus": 16, "order": "submitTime"}
    assert waits((runs, urgent), "a", "a", a=owner) == pytest.approx([0, 60], abs=15)
    assert waits((runs, urgent), "a", "a", a={**owner, "maxPriority": 0}) == pytest.approx([0, 7140], abs=15)
    never = {**owner, "preemption": {"withinQueue": "never"}}
    assert waits((runs, urgent), "a", "a", a=never) == pytest.approx([0, 7140], abs=15)
