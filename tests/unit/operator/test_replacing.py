"""A replacement in a job's status: which nodes change, which stay, and what is said."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from muster.api.common import find_condition
from muster.api.effective import effective_spec
from muster.api.placement import Placement, Promise, nodes_with_workers
from muster.api.terms import Usage
from muster.api.trainingjob import TrainingJob
from muster.controllers import devices, terms
from muster.controllers.replacing import replaced

from .lifecycle.cases import START, trainingjob

pytestmark = pytest.mark.unit


def job(**status: object) -> TrainingJob:
    found = trainingjob(workers={"replicas": 3, "gpusPerWorker": 1, "spares": 1})
    return found.model_copy(update={"status": found.status.model_copy(update=status)})


def promise(*nodes: str, spares: tuple[str, ...] = ()) -> Promise:
    return Promise(workers=len(nodes), nodes=nodes_with_workers(nodes), spares=nodes_with_workers(spares, len(nodes)))


def test_worker_of_a_promise_takes_the_place_of_a_spare() -> None:
    found = replaced(job(promise=promise("a", "b", "c", spares=("d",))), {1: "d", 3: ""}, 1, START, Usage())
    assert found is not None
    assert found.status.promise is not None
    assert found.status.promise.places() == ("a", "d", "c")
    assert found.status.promise.spares == ()
    assert found.note.message == (
        "worker 1 goes to node d in place of b, spare 0 has no room now; the others keep their nodes"
    )


def test_spares_of_a_promise_keep_their_numbers_in_order() -> None:
    found = replaced(job(promise=promise("a", spares=("b", "c"))), {0: "b", 1: ""}, 2, START, Usage())
    assert found is not None
    assert found.status.promise is not None
    assert found.status.promise.places() == ("b", "c")
    assert [item.indexes for item in found.status.promise.spares] == ["1"]


def test_spare_of_a_running_gang_is_found_again_and_its_gpus_are_told() -> None:
    placed = Placement.of(4, ["a", "b", "c"])
    found = replaced(job(placement=placed), {3: "d"}, 1, START, Usage())
    assert found is not None
    assert found.status.placement is not None
    assert [(item.node, item.indexes) for item in found.status.placement.spares] == [("d", "3")]
    assert found.status.placement.node_of_index() == ("a", "b", "c")
    assert found.status.gpus == 4
    assert found.note.message == "spare 0 goes to node d"


@pytest.mark.parametrize(("before", "moves"), [(("d",), {3: ""}), ((), {3: "d"}), (("d",), {1: "d", 3: "e"})])
def test_what_a_gang_has_used_counts_the_spares_that_it_had_at_each_moment(
    before: tuple[str, ...], moves: dict[int, str]
) -> None:
    placed = Placement.of(4, ["a", "b", "c"], spares=before, placed_at=START, attempts={1: 1})
    lost, ended = START + timedelta(hours=99), START + timedelta(hours=100)
    asked = job(placement=placed)
    spec = effective_spec(asked.spec)
    found = replaced(asked, moves, 1, lost, terms.used(asked.status, devices.held(placed, spec, ""), 2.0, lost))
    assert found is not None
    after = found.status.placement
    assert after is not None
    held = devices.held(after, spec, "")
    usage = terms.used(found.status, held, 2.0, ended)
    hours = 99 * (3 + len(before)) + held
    assert (usage.gpu_seconds, usage.cost) == (hours * 3600, f"{2 * hours}")
    budget = replace(spec, budget_gpu_hours=hours)
    assert terms.budget_end(budget, found.status, held, 2.0) == ended, "the gang stops when it is used up"


def test_job_that_holds_nothing_any_more_is_left_alone() -> None:
    assert replaced(job(), {0: "a"}, 1, START, Usage()) is None


def test_lost_worker_of_a_running_gang_gets_its_node_and_all_that_is_told_of_it_follows() -> None:
    placed = Placement.of(4, ["a", "b", "c"], spares=["d"], attempts={1: 1}, domain="rack r")
    found = replaced(job(placement=placed), {1: "d", 3: ""}, 1, START, Usage(), domain="block b")
    assert found is not None
    placement = found.status.placement
    assert placement is not None
    assert (placement.node_of_index(), placement.spares, placement.domain) == (("a", "d", "c"), (), "block b")
    assert placement.attempts == placed.attempts
    assert found.status.nodes == "a, d, c"
    told = find_condition(found.status.conditions, "Admitted")
    assert told is not None
    assert told.message == "3 workers on 3 nodes in block b: a, d, c"
    assert found.note.message == (
        "worker 1 goes to node d in place of b, spare 0 has no room now; the others keep their nodes"
    )
