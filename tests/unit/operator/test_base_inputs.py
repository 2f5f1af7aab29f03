"""Gangs with a safe base: what their status and their nodes tell the planner, also when these or the spec change."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.placement import Placement, Promise
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import FixedSize, TrainingJobStatus
from muster.cluster.bases import parted
from muster.cluster.eligibility import NodeFilter
from muster.cluster.jobs import JobInput
from muster.cluster.pods import PodSettings
from muster.cluster.snapshot import QueueInput, QuotaInput, build, eligible
from muster.cluster.views import NodeView
from muster.controllers import planning
from muster.controllers.cache import Cache
from muster.controllers.claims import Claims
from muster.controllers.inputs import Inputs
from muster.controllers.records import Judgement, Record
from muster.scheduling.planner import plan

from .loops import Items
from .test_planning import NOW, RACKS, SPOT, node, trainingjob, world

pytestmark = pytest.mark.unit

GPUS = "nvidia.com/gpu"
SIZES = {"replicas": 4, "min": 2, "max": 6}
BASED = {"order": ["spot"], "base": "on-demand"}
ON = ("d0", "d1", "s0", "s1")


def fleet(spot: str = "NVIDIA-H100-80GB-HBM3") -> list[NodeView]:
    """Two nodes that stay, and two spot nodes with that GPU, "" for no label of it."""
    return [node("d0"), node("d1"), node("s0", spot, **SPOT), node("s1", spot, **SPOT)]


def job_of(nodes: list[NodeView], status: TrainingJobStatus | None = None, **spec: Any) -> JobInput:
    """What the planner gets of a gang with a base of two, which may be on `ON`."""
    return input_of(record_of(trainingjob(**{"workers": SIZES, "capacity": BASED, **spec}), status), nodes)


def record_of(job: TrainingJob, status: TrainingJobStatus | None = None) -> Record:
    record = Record.of(job.model_copy(update={"status": status}) if status is not None else job)
    record.judgement = Judgement("key", ((GPUS, 8), ("pods", 1)), NodeFilter())
    return record


def input_of(record: Record, nodes: list[NodeView]) -> JobInput:
    cache_nodes = Items()
    cache_nodes.items.update({each.name: each for each in nodes})
    cache = Cache(pods=Items(), nodes=cache_nodes, namespaces=Items(), priority_classes=Items())
    inputs = Inputs(cache, PodSettings("runtime"), Claims(cache.mark))
    inputs.look(world(), nodes)
    found = inputs.standing(record, world(), NOW)
    return found if found is not None else inputs.pending(record, world(), NOW)


def placed(**fields: Any) -> TrainingJobStatus:
    placement = Placement.of(1, ON, flavour="H100/on-demand", base=2, placed_at=NOW)
    return TrainingJobStatus(placement=placement, **fields)


def parts(job: JobInput) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """(flavour, nodes, nodes that are promised) of the base and of those beyond it."""
    return [(each.flavour, each.placed, each.promised) for each in parted([job])]


def test_those_beyond_the_base_have_its_gpu() -> None:
    """Where the job names none, and most spot nodes have another."""
    others = [node(f"a{index}", "NVIDIA-A100-SXM4-80GB", **SPOT) for index in range(5)]
    nodes = [*fleet(), *others]
    found = job_of(nodes)
    assert found.flavour == "H100/on-demand"
    assert found.beyond is not None
    assert found.beyond.flavour == "H100/spot"
    assert eligible(found.beyond.node_filter, nodes).tolist() == [False, False, True, True] + [False] * 5


def test_each_part_draws_on_its_quota_while_the_labels_of_its_nodes_are_gone() -> None:
    """GPU feature discovery takes them away when it is installed anew."""
    assert [flavour for flavour, *_ in parts(job_of(fleet(), placed()))] == ["H100/on-demand", "H100/spot"]
    assert [flavour for flavour, *_ in parts(job_of(fleet(spot=""), placed()))] == ["H100/on-demand", "H100/spot"]
    bare = [node("d0", ""), node("d1", ""), *fleet(spot="")[2:]]
    assert [flavour for flavour, *_ in parts(job_of(bare, placed()))] == ["H100/on-demand", "H100/spot"]


@pytest.mark.parametrize(
    ("workers", "fixed"),
    [
        (SIZES, FixedSize(workers=4, message="another loader")),
        ({"replicas": 4}, None),
        ({"replicas": 4, "min": 4, "max": 4}, None),
    ],
    ids=["fixed", "no longer elastic", "of one size"],
)
def test_a_gang_that_cannot_change_its_size_keeps_its_two_parts_while_it_runs(
    workers: dict[str, Any], fixed: FixedSize | None
) -> None:
    spec = {"workers": workers, **({} if fixed is not None else {"capacity": BASED})}
    job = job_of(fleet(), placed(fixed_size=fixed), queue="q", **spec)
    assert parts(job) == [("H100/on-demand", ON[:2], ()), ("H100/spot", ON[2:], ())]
    quotas = tuple(QuotaInput(f"H100/{kind}", GPUS, nominal=16, borrowing=0) for kind in ("on-demand", "spot"))
    shot = build(nodes=fleet(), pods=[], jobs=[job], queues=[QueueInput("q", quotas=quotas)], levels=RACKS)
    assert shot.jobs.sizes.least.tolist() == shot.jobs.sizes.most.tolist() == [2, 2]
    assert not plan(shot).evictions, "neither part is beyond its quota"


def test_a_gang_whose_limits_are_edited_while_it_runs_keeps_within_them() -> None:
    def sizes(**workers: int) -> tuple[int, int, int] | None:
        return parted([job_of(fleet(), placed(), workers={**SIZES, **workers})])[1].sizes

    assert sizes() == (0, 4, 1)
    assert sizes(min=3) == (1, 4, 1)
    assert sizes(min=4, max=8) == (2, 6, 1)
    assert sizes(min=1, max=3, replicas=2) == (0, 1, 1)


@pytest.mark.parametrize("capacity", [{"order": ["on-demand"]}, {"order": ["reserved"], "base": "on-demand"}])
def test_a_gang_gets_no_more_nodes_of_a_kind_that_it_asks_for_no_more(capacity: dict[str, Any]) -> None:
    beyond = parted([job_of(fleet(), placed(), capacity=capacity)])[1]
    assert (beyond.flavour, beyond.sizes) == ("H100/spot", (0, 2, 1))


def test_those_beyond_the_base_draw_on_what_their_nodes_are_when_these_have_swapped_labels_with_others() -> None:
    """There are as many nodes of each kind as before."""
    before = [*fleet(), node("d2"), node("d3")]
    after = [*fleet()[:2], node("s0"), node("s1"), node("d2", **SPOT), node("d3", **SPOT)]
    there = Items()
    cache = Cache(pods=Items(), nodes=there, namespaces=Items(), priority_classes=Items())
    inputs = Inputs(cache, PodSettings("runtime"), Claims(cache.mark))
    record = record_of(trainingjob(workers=SIZES, capacity=BASED), placed())
    for nodes, kind in ((before, "spot"), (after, "on-demand")):
        there.items.update({each.name: each for each in nodes})
        inputs.look(world(), nodes)
        found = inputs.standing(record, world(), NOW)
        assert found is not None
        assert [flavour for flavour, *_ in parts(found)] == ["H100/on-demand", f"H100/{kind}"]


def test_a_promise_that_is_being_written_is_parted_as_the_written_one() -> None:
    promise = Promise(workers=3, nodes=Placement.of(1, ON[:3]).nodes, flavour="H100/on-demand", base=2, promised_at=NOW)
    job = trainingjob(workers=SIZES, capacity=BASED)
    waits = record_of(job)
    waits.assumed_promise = promise
    runs = record_of(job, placed())
    runs.assumed_promise = promise
    runs.leaving = True
    for record, on in ((waits, ((), ())), (runs, (ON[:2], ON[2:]))):
        found = [(nodes, kept) for _, nodes, kept in parts(input_of(record, fleet()))]
        assert found == [(on[0], ON[:2]), (on[1], ON[2:3])]


def test_where_a_gang_runs_says_what_of_it_is_the_base() -> None:
    def told(base: int, workers: int) -> str:
        found = Placement.of(1, ON[:workers], flavour="H100/on-demand", base=base)
        return planning.where(found).partition("; ")[2]

    assert told(2, 4) == "the first 2 are its base on on-demand nodes, 2 workers beyond it can be taken back"
    assert told(1, 2) == "the first is its base on on-demand nodes, 1 worker beyond it can be taken back"
    assert told(2, 2) == "the first 2 are its base on on-demand nodes, there is none beyond it"
