"""Slices of GPUs: what part of one they are, what they cost, and that everything that counts them agrees."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from muster.api.effective import effective_spec
from muster.api.placement import Placement
from muster.api.terms import Month, MonthUse
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import TrainingJobStatus
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.queues import QueueInput
from muster.cluster.snapshot import JobInput, LevelInput, build
from muster.cluster.views import NodeView, PodView
from muster.controllers import accounts, devices, terms
from muster.controllers.books import Tally, queue_status
from muster.controllers.devices import Devices
from muster.controllers.queues import standings
from muster.sizing.price_file import parse
from muster.sizing.prices import Catalogue, catalogue
from muster.sizing.slices import device_price, gpu_price, share, sliced, whole
from muster.telemetry.cost.chargeback import report
from muster.telemetry.cost.intervals import Interval, JobFacts, PoolInterval
from muster.telemetry.cost.ledger import Kind, ledger
from muster.telling.budgets import budget_uses

pytestmark = pytest.mark.unit

NOON = datetime(2026, 11, 15, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
MIG = "nvidia.com/mig-"


@pytest.mark.parametrize(
    ("gpu_type", "of", "part"),
    [
        ("H100", "H100", Fraction(1)),
        ("A100-MIG-3g.20gb", "A100", Fraction(3, 7)),
        ("a100-mig-3g.20gb", "a100", Fraction(3, 7)),
        ("A100-MIG-1g.5gb.me", "A100", Fraction(1, 7)),
        ("H200-MIG-7g.141gb", "H200", Fraction(1)),
        ("A100-MIG-1c.3g.20gb", "A100", Fraction(1, 7)),
        ("A30-MIG-1g.6gb", "A30", Fraction(1, 4)),
        ("A30-MIG-4g.24gb", "A30", Fraction(1)),
        ("RTX-PRO-6000-MIG-2g.48gb", "RTX-PRO-6000", Fraction(1, 2)),
        ("RTX-PRO-5000-MIG-1g.24gb", "RTX-PRO-5000", Fraction(1, 2)),
        ("MIG-2g.12gb", "", Fraction(1, 2)),
        ("MIG-2g.10gb", "", Fraction(2, 7)),
        ("A100-MIG-1g", "A100", Fraction(1, 7)),
    ],
)
def test_a_slice_is_a_part_of_a_gpu_by_its_profile(gpu_type: str, of: str, part: Fraction) -> None:
    assert (whole(gpu_type), share(gpu_type)) == (of, part)


@pytest.mark.parametrize(
    ("resource", "gpu_type", "told"),
    [
        (f"{MIG}3g.20gb", "A100", "A100-MIG-3g.20gb"),
        (f"{MIG}1g.5gb", "", "MIG-1g.5gb"),
        (f"{MIG}1g.10gb.me", "H100-MIG-1g.10gb", "H100-MIG-1g.10gb.me"),
        (f"{MIG}strange", "A100", ""),
        ("nvidia.com/gpu", "A100", ""),
        ("nvidia.com/gpu.shared", "A100", ""),
        ("cpu", "A100", ""),
    ],
)
def test_a_resource_is_a_slice_by_its_name(resource: str, gpu_type: str, told: str) -> None:
    assert sliced(resource, gpu_type) == told


def test_a_slice_costs_its_part_of_the_whole_unless_it_has_a_price_of_its_own() -> None:
    prices = {"A100/on-demand": 2.8, "A100-MIG-1g.5gb/on-demand": 0.5}
    assert device_price(prices, "A100/on-demand") == gpu_price(prices, "A100/on-demand") == 2.8
    assert device_price(prices, "A100-MIG-3g.20gb/on-demand") == pytest.approx(1.2)
    assert gpu_price(prices, "A100-MIG-3g.20gb/on-demand") == 2.8
    assert device_price(prices, "A100-MIG-1g.5gb/on-demand") == 0.5
    assert gpu_price(prices, "A100-MIG-1g.5gb/on-demand") == pytest.approx(3.5)
    for flavour in ("A100-MIG-3g.20gb/spot", "H100/on-demand", "MIG-1g.5gb/on-demand", ""):
        assert device_price(prices, flavour) is gpu_price(prices, flavour) is None


def test_a_price_for_a_type_in_another_case_is_the_same_to_statuses_and_to_the_ledger() -> None:
    """Or `muster prices check` finds nothing wrong, the report counts it, and a budget in money holds nobody."""
    found = catalogue({"h100/on-demand": 2.5, "a100/spot": 1.4, "a100-mig-1g.5gb/spot": 0.3}, currency="USD")
    flat = found.flat(NOON)
    for gpu_type, capacity, price in (("H100", "on-demand", 2.5), ("A100", "spot", 1.4), ("H100", "spot", 2.46375)):
        assert device_price(flat, f"{gpu_type}/{capacity}") == gpu_price(flat, f"{gpu_type}/{capacity}") == price
        assert found.rate((gpu_type.lower(), capacity), NOON) == Decimal(str(price))
    assert device_price(flat, "A100-MIG-3g.20gb/spot") == pytest.approx(0.6)
    assert device_price(flat, "A100-MIG-1g.5gb/spot") == 0.3


def test_what_a_worker_holds() -> None:
    assert devices.of_worker(8, {"cpu": "4"}, "H100") == Devices("H100", 8)
    assert devices.of_worker(0, {"cpu": "4"}, "H100") == Devices("", 0)
    assert devices.of_worker(0, {f"{MIG}3g.20gb": "2"}, "A100") == Devices("A100-MIG-3g.20gb", 2)
    assert devices.of_worker(2, {}, "A100-MIG-1g.5gb").gpus == Fraction(2, 7), "where each device of a node is one"
    mixed = devices.of_worker(1, {f"{MIG}3g.20gb": "1", f"{MIG}1g.5gb": "2"}, "A100")
    assert (mixed, mixed.gpus) == (Devices("A100-MIG-1g", 12), Fraction(12, 7))
    assert devices.of_worker(0, {f"{MIG}3g.20gb": "many"}, "A100") == Devices("", 0)


def job(**workers: Any) -> TrainingJob:
    spec = {"queue": "research", "image": "i", "command": ["true"], "budget": {"gpuHours": 3, "cost": 100}}
    workers = {"replicas": 4, "resources": {"limits": {f"{MIG}3g.20gb": "1"}}, **workers}
    metadata = {"name": "llama", "namespace": "team", "uid": "j"}
    return TrainingJob.from_raw({"metadata": metadata, "spec": {**spec, "workers": workers}})


def test_a_jobs_budget_counts_slices() -> None:
    spec = effective_spec(job().spec)
    status = TrainingJobStatus(placement=Placement.of(1, ["a", "a", "b", "b"], placed_at=NOON))
    assert status.placement is not None
    held = devices.held(status.placement, spec, "A100")
    assert held == Fraction(12, 7)
    used = terms.used(status, held, 2.8, NOON + 7 * HOUR)
    assert (used.gpu_seconds, used.cost) == (12 * 3600, "33.6")
    end = terms.budget_end(spec, status, held, 2.8)
    assert end is not None
    assert abs((end - NOON) - timedelta(seconds=3 * 3600 * 7 / 12)) < timedelta(milliseconds=1)
    assert "budget of 3 GPU hours" in terms.budget_spent(spec, used)
    # Before it starts, the planner knows from the profile alone that it ends by then.
    assert terms.bounds(spec, TrainingJobStatus(), NOON, 0.0).limit == pytest.approx(3 * 3600 * 7 / 12)


NODES = [
    NodeView.from_raw(
        {
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product}},
            "status": {"allocatable": {resource: "16", "pods": "110"}},
        }
    )
    for name, product, resource in (
        ("a", "NVIDIA-A100-SXM4-40GB", f"{MIG}3g.20gb"),
        ("b", "NVIDIA-A100-SXM4-40GB", f"{MIG}3g.20gb"),
        ("c", "NVIDIA-A30", f"{MIG}1g.6gb"),
        ("d", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/gpu"),
    )
]
PRICES = {"A100/on-demand": 2.8, "A30/on-demand": 0.8}


def holding(*jobs: JobInput, pods: Iterable[PodView] = ()) -> Tally:
    frozen = build(
        nodes=NODES,
        pods=pods,
        jobs=jobs,
        queues=[QueueInput("company"), QueueInput("research", parent="company")],
        levels=[LevelInput("host", "kubernetes.io/hostname")],
        prices=PRICES,
    )
    return Tally.of(frozen, {})


def month_of(tally: Tally, *budgets: dict[str, Any], name: str = "research") -> TrainingQueue:
    found = TrainingQueue.from_raw({"metadata": {"name": name}, "spec": {"budgets": list(budgets)}})
    standing = standings({name: found}, {}, {})[name]
    status = queue_status(found, tally, standing, NOON, PRICES)
    return TrainingQueue.from_raw(found.to_raw() | {"status": status.to_raw()})


THIRDS = JobInput("j", "research", 4, {f"{MIG}3g.20gb": 1, "pods": 1}, placed=("a", "a", "b", "b"), holding=True)
QUARTERS = JobInput("k", "research", 2, {f"{MIG}1g.6gb": 2, "pods": 1}, placed=("c", "c"), holding=True)
SINGLE = JobInput(
    "s",
    "research",
    1,
    {"nvidia.com/gpu": 7, "pods": 1},
    flavour="A100-MIG-1g.5gb/on-demand",
    placed=("d",),
    holding=True,
)


@pytest.mark.parametrize("name", ["research", "company"])
def test_a_queues_account_has_the_slices_of_its_jobs_by_the_gpu_that_they_are_of(name: str) -> None:
    found = month_of(holding(THIRDS, QUARTERS, SINGLE), {"gpuHours": 100}, name=name)
    assert found.status.month == Month(
        until=NOON,
        uses=(
            MonthUse(gpu_type="A100-MIG-1g.5gb", gpus=7, hourly="2.8"),
            MonthUse(gpu_type="A100-MIG-3g.20gb", gpus=4, hourly="4.8"),
            MonthUse(gpu_type="A30-MIG-1g.6gb", gpus=4, hourly="0.8"),
        ),
    )


def test_slices_of_a_gang_without_a_placement_count_until_its_pods_are_gone() -> None:
    asked = {"resources": {"requests": {f"{MIG}3g.20gb": "1"}}}
    owner = {"kind": "TrainingJob", "uid": "j", "controller": True, "apiVersion": "muster.dev/v1alpha1"}
    place = {"job": "j", "generation": "1", "index": "0", "attempt": "0"}
    labels = {f"muster.dev/{key}": value for key, value in place.items()}
    pod = PodView.from_raw(
        {
            "metadata": {"name": "j-g1-0-0", "uid": "p", "labels": labels, "ownerReferences": [owner]},
            "spec": {"nodeName": "a", "containers": [asked]},
            "status": {"phase": "Running"},
        }
    )
    left = JobInput("j", "research", 1, {f"{MIG}3g.20gb": 1, "pods": 1}, holding=True, reserving=False)
    told = month_of(holding(left, pods=[pod]), {"gpuHours": 100}).status.month
    assert told == Month(until=NOON, uses=(MonthUse(gpu_type="MIG-3g.20gb", gpus=1),))


def test_a_budget_on_a_gpu_type_counts_slices_of_it() -> None:
    budgets = ({"gpuHours": 12}, {"gpuType": "A100", "gpuHours": 12}, {"gpuType": "A30", "cost": 2})
    found = month_of(holding(THIRDS, QUARTERS), *budgets, {"gpuType": "A100-MIG-3g.20gb", "gpuHours": 5})
    later = budget_uses(found, NOON + 7 * HOUR)
    assert [float(use.gpu_seconds) / 3600 for use in later] == [12 + 7, 12, 7, 12]
    assert [float(use.cost) for use in later] == pytest.approx([33.6 + 5.6, 33.6, 5.6, 33.6])
    assert [float(use.gpus) for use in later] == pytest.approx([12 / 7 + 1, 12 / 7, 1, 12 / 7])
    # The fourth is used up first, then the third; both were foretold.
    assert accounts.spent(found, NOON + timedelta(hours=2)) is None
    assert accounts.changes(found, NOON) == NOON + timedelta(seconds=2.5 * 3600 + 1)
    assert accounts.spent(found, NOON + timedelta(seconds=2.5 * 3600 + 1)) is not None


def prices(text: str) -> Catalogue:
    found = catalogue(own=parse(text, "test"), defaults=False)
    assert not found.problems
    return found


A100 = "gpus: [{gpu: A100, capacity: on-demand, hourly: 2.80}, {gpu: A100, capacity: spot, hourly: 1.40}]"
DAY = (NOON, NOON + 24 * HOUR)


def slice_interval(gpu_type: str, count: int, capacity: str = "on-demand") -> Interval:
    return Interval("j", 1, 0, 0, "a", gpu_type, capacity, count, NOON, NOON + 7 * HOUR)


def test_the_ledger_the_jobs_status_and_the_queues_month_agree() -> None:
    rows = [
        Interval("j", 1, index, 0, "a", "A100-MIG-3g.20gb", "on-demand", 1, NOON, NOON + 7 * HOUR) for index in range(4)
    ]
    charges = ledger(prices(A100), *DAY, rows).charges
    status = TrainingJobStatus(placement=Placement.of(1, ["a", "a", "b", "b"], placed_at=NOON))
    assert status.placement is not None
    held = devices.held(status.placement, effective_spec(job().spec), "A100")
    used = terms.used(status, held, gpu_price(PRICES, "A100-MIG-3g.20gb/on-demand") or 0, NOON + 7 * HOUR)
    (use,) = budget_uses(month_of(holding(THIRDS), {"gpuHours": 100}), NOON + 7 * HOUR)
    assert sum(charge.quantity for charge in charges) == used.gpu_seconds == use.gpu_seconds == 12 * 3600
    assert sum(charge.cost for charge in charges) == Fraction(used.cost or 0) == Fraction(use.cost) == Fraction("33.6")


def test_a_slices_own_price_is_for_a_slice_and_spot_slices_save_their_part() -> None:
    own = f"{A100[:-1]}, {{gpu: A100-MIG-1g.5gb, capacity: on-demand, hourly: 0.5}}]"
    (charge,) = ledger(prices(own), *DAY, [slice_interval("A100-MIG-1g.5gb", 2)]).charges
    assert float(charge.cost) == pytest.approx(2 * 7 * 0.5)
    assert charge.quantity == 2 * 3600
    (spot,) = ledger(prices(A100), *DAY, [slice_interval("A100-MIG-1g.5gb", 2, "spot")]).charges
    assert (spot.cost, spot.saved) == (Fraction("2.8"), Fraction("2.8"))
    nothing = ledger(prices(A100), *DAY, [slice_interval("H100-MIG-1g.10gb", 7)])
    assert (nothing.cost, nothing.unpriced) == (0, {"H100-MIG-1g.10gb/on-demand": 7 * 3600})


def test_slices_that_nobody_held_are_idle() -> None:
    pool = PoolInterval("A100-MIG-3g.20gb", "on-demand", 14, NOON, NOON + 7 * HOUR)
    found = ledger(prices(A100), *DAY, [slice_interval("A100-MIG-3g.20gb", 7)], pools=[pool])
    assert {charge.line.kind: (charge.quantity / 3600, charge.cost) for charge in found.charges} == {
        Kind.GPU: (21, Fraction("58.8")),
        Kind.IDLE: (21, Fraction("58.8")),
    }
    less = PoolInterval("A100-MIG-3g.20gb", "on-demand", 0, NOON, NOON + 7 * HOUR)
    over = ledger(prices(A100), *DAY, [slice_interval("A100-MIG-3g.20gb", 7)], pools=[less])
    assert over.beyond == {"A100-MIG-3g.20gb/on-demand": 21 * 3600}


def test_a_report_adds_slices_up_with_whole_gpus() -> None:
    rows = [slice_interval("A100-MIG-3g.20gb", 1), Interval("k", 1, 0, 0, "b", "A100", "on-demand", 1, *DAY)]
    facts = [JobFacts(uid, "team", uid, "research") for uid in ("j", "k")]
    made = report(ledger(prices(A100), *DAY, rows), facts, ("queue",))
    assert sum((charge.quantity for charge in made.ledger.charges), Fraction(0)) == 27 * 3600
    assert made.ledger.cost == Fraction(Decimal("2.8")) * 27
