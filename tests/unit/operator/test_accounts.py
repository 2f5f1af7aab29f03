"""A queue's month: what is used follows from a sum and a rate, and budgets close queues and open them again."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.api.effective import effective_spec
from muster.api.names import Reason
from muster.api.terms import Month, MonthUse
from muster.api.trainingqueue import TrainingQueue, TrainingQueueStatus
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.executor import Executor
from muster.cluster.queues import QueueInput
from muster.cluster.snapshot import JobInput, LevelInput, build
from muster.cluster.views import NodeView
from muster.controllers import accounts
from muster.controllers import books as booking
from muster.controllers.accounts import Held
from muster.controllers.admission import World, obstacle
from muster.controllers.books import Books, Tally, queue_status
from muster.controllers.cache import Cache
from muster.controllers.queues import standings, why_drained
from muster.scheduling.snapshot import Snapshot
from muster.telemetry.cost import periods

from .lifecycle.cases import trainingjob
from .loops import Items

pytestmark = pytest.mark.unit

NOON = datetime(2026, 11, 15, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
DECEMBER = datetime(2026, 12, 1, tzinfo=timezone.utc)


def queue(*budgets: dict[str, Any], name: str = "research", parent: str = "") -> TrainingQueue:
    spec: dict[str, Any] = {"budgets": list(budgets)} if budgets else {}
    return TrainingQueue.from_raw({"metadata": {"name": name}, "spec": spec | ({"parent": parent} if parent else {})})


def holding(found: TrainingQueue, held: dict[str, Held], now: datetime, currency: str = "") -> TrainingQueue:
    """After a round of planning at `now`, through the wire."""
    month = accounts.account(found, held, now, currency)
    status = found.status.model_copy(update={"month": month})
    return TrainingQueue.from_raw(found.to_raw() | {"status": status.to_raw()})


def test_use_grows_with_time_and_nothing_is_written_while_the_rate_stays() -> None:
    found = holding(queue({"gpuHours": 1000}), {"H100": Held(8, 20.0)}, NOON)
    assert accounts.account(found, {"H100": Held(8, 20.0)}, NOON + 5 * HOUR) is found.status.month
    (use,) = accounts.brought_forward(found.status.month, NOON + 5 * HOUR)
    assert (use.gpu_seconds, use.cost) == (40 * 3600, "100")
    found = holding(found, {"H100": Held(16, 40.0), "A100": Held(4, 0.0)}, NOON + 5 * HOUR)
    spent = {use.gpu_type: use for use in accounts.brought_forward(found.status.month, NOON + 6 * HOUR)}
    assert (spent["H100"].gpu_seconds, spent["H100"].cost) == (56 * 3600, "140")
    assert (spent["A100"].gpu_seconds, spent["A100"].cost) == (4 * 3600, None)
    found = holding(found, {}, NOON + 6 * HOUR)
    assert accounts.account(found, {}, NOON + 9 * HOUR) is found.status.month
    later = {use.gpu_type: use.gpu_seconds for use in accounts.brought_forward(found.status.month, NOON + 9 * HOUR)}
    assert later == {"H100": 56 * 3600, "A100": 4 * 3600}


def test_a_queue_without_budgets_has_no_account() -> None:
    assert accounts.account(queue(), {"H100": Held(8, 20.0)}, NOON) is None
    assert accounts.changes(queue(), NOON) is None


def test_budgets_that_are_taken_away_and_set_again_go_on_from_what_was_used() -> None:
    held, budget = {"H100": Held(8, 20.0)}, {"gpuHours": 40}
    found = holding(queue(budget), held, NOON)

    def later(hours: int, *budgets: dict[str, Any], since: TrainingQueue = found) -> TrainingQueue:
        return holding(queue(*budgets).model_copy(update={"status": since.status}), held, NOON + hours * HOUR)

    without = later(5)
    assert without.status.month is not None
    assert accounts.account(without, held, NOON + 6 * HOUR) == without.status.month
    assert accounts.changes(without, NOON + 6 * HOUR) is None
    again = later(7, budget, since=without)
    assert accounts.spent(again, NOON + 7 * HOUR) is not None
    more = later(7, {"gpuHours": 48}, since=without)
    assert accounts.spent(more, NOON + 8 * HOUR - timedelta(seconds=1)) is None
    assert accounts.spent(more, NOON + 8 * HOUR) is not None
    assert accounts.account(without, held, DECEMBER) is None
    kept = accounts.account(queue().model_copy(update={"status": found.status}), held, DECEMBER + HOUR)
    assert kept == Month(until=DECEMBER + HOUR, uses=(MonthUse(gpu_type="H100", gpu_seconds=8 * 3600, cost="20"),))


def test_another_currency_of_the_prices_is_written_down_and_nothing_is_converted() -> None:
    held = {"H100": Held(8, 20.0)}
    found = holding(queue({"cost": 1000}), held, NOON, "USD")
    month = accounts.account(found, held, NOON + HOUR, "EUR")
    assert month is not None
    assert (month.currency, month.uses[0].cost, month.until) == ("EUR", "20", NOON + HOUR)
    assert accounts.account(found, held, NOON + HOUR, "USD") is found.status.month


def test_a_new_month_begins_at_nothing_with_what_is_held_then() -> None:
    found = holding(queue({"gpuHours": 100}), {"H100": Held(8, 20.0)}, NOON)
    assert accounts.spent(found, DECEMBER - HOUR) is not None
    assert accounts.spent(found, DECEMBER + HOUR) is None
    (use,) = accounts.brought_forward(found.status.month, DECEMBER + HOUR)
    assert (use.gpu_seconds, use.cost) == (8 * 3600, "20")
    assert periods.next_month(datetime(2026, 12, 31, 23, tzinfo=timezone.utc)) == datetime(
        2027, 1, 1, tzinfo=timezone.utc
    )


def test_a_budget_is_used_up_when_it_was_foretold_and_says_what_helps() -> None:
    found = holding(
        queue({"gpuHours": 40}, {"gpuType": "NVIDIA-H100-80GB-HBM3", "cost": 60}), {"H100": Held(8, 20.0)}, NOON
    )
    moment = accounts.changes(found, NOON)
    assert moment == NOON + 3 * HOUR + timedelta(seconds=1)
    assert accounts.spent(found, NOON + 3 * HOUR - timedelta(seconds=1)) is None
    money = accounts.spent(found, moment)
    assert money is not None
    assert money.message == (
        "queue research has spent its 60 in money on NVIDIA-H100-80GB-HBM3 of 2026-11, at the platform's prices; "
        "it takes jobs again on "
        "2026-12-01T00:00:00Z, or when the budget is raised"
    )
    euros = holding(queue({"cost": 60}), {"H100": Held(8, 20.0)}, NOON, "EUR")
    told = accounts.spent(euros, moment)
    assert told is not None
    assert told.message.startswith("queue research has spent its 60 EUR of 2026-11; it takes jobs again on")
    hours = accounts.spent(holding(queue({"gpuHours": 40}), {"H100": Held(8, 20.0)}, NOON), NOON + 5 * HOUR)
    assert hours is not None
    assert "40 GPU hours of 2026-11" in hours.message
    assert accounts.changes(found, DECEMBER - HOUR) == DECEMBER


def test_money_counts_nothing_where_gpus_have_no_price() -> None:
    found = holding(queue({"cost": 1}), {"H100": Held(8, 0.0)}, NOON)
    assert accounts.spent(found, NOON + 100 * HOUR) is None
    assert accounts.changes(found, NOON) is None


def test_a_budget_closes_the_queues_below_it_and_drains_those_that_say_so() -> None:
    used = Month(until=NOON, uses=(MonthUse(gpu_type="H100", gpu_seconds=10 * 3600),))
    queues = {
        "top": queue({"gpuHours": 10, "atLimit": "drain"}, name="top"),
        "team": queue(name="team", parent="top"),
        "other": queue({"gpuHours": 20}, name="other"),
        "held": queue({"gpuHours": 5}, name="held"),
    }
    for name in ("top", "other", "held"):
        queues[name] = queues[name].model_copy(
            update={"status": queues[name].status.model_copy(update={"month": used})}
        )
    spent = accounts.Budgets().spent(queues, NOON)
    assert {name: one.drains for name, one in spent.items()} == {"top": True, "team": True, "held": False}
    inputs = {one.name: one for one in accounts.closed([QueueInput(name) for name in queues], spent)}
    assert [inputs[name].open for name in ("top", "team", "other", "held")] == [False, False, True, False]
    assert [inputs[name].drain for name in ("top", "team", "other", "held")] == [True, True, False, False]


def test_budgets_are_looked_at_again_when_their_queue_or_the_answer_changes() -> None:
    budgets, queues = accounts.Budgets(), {"research": holding(queue({"gpuHours": 40}), {"H100": Held(8, 0.0)}, NOON)}
    assert not budgets.spent(queues, NOON)
    assert budgets.change == NOON + 5 * HOUR + timedelta(seconds=1)
    assert not budgets.spent(queues, NOON + 4 * HOUR)
    assert budgets.spent(queues, budgets.change)
    assert budgets.change == DECEMBER
    queues["research"] = holding(queue({"gpuHours": 400}), {"H100": Held(8, 0.0)}, NOON)
    assert not budgets.spent(queues, NOON + 6 * HOUR)
    assert budgets.change == NOON + 50 * HOUR + timedelta(seconds=1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 64)), min_size=1, max_size=12))
def test_the_sum_over_any_changes_of_rate_is_what_was_held(steps: list[tuple[int, int]]) -> None:
    now, expected, found = datetime(2026, 11, 1, tzinfo=timezone.utc), 0, queue({"gpuHours": 10**9})
    for seconds, gpus in steps:
        found = holding(found, {"H100": Held(gpus, 2.0 * gpus)} if gpus else {}, now)
        then = now + timedelta(seconds=seconds)
        begins = then.replace(day=1, hour=0, minute=0, second=0)
        if periods.month_of(now) != periods.month_of(then):
            expected, now = 0, begins
        expected += gpus * round((then - now).total_seconds())
        now = then
        assert sum(use.gpu_seconds for use in accounts.brought_forward(found.status.month, now)) == expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 10.0), st.integers(0, 64)), min_size=1, max_size=100))
def test_changes_at_any_part_of_a_second_count_no_time_twice(steps: list[tuple[float, int]]) -> None:
    now, expected, found = NOON, 0, queue({"gpuHours": 10**9})
    for seconds, gpus in steps:
        found = holding(found, {"H100": Held(gpus, 0.0)} if gpus else {}, now)
        then = now + timedelta(seconds=seconds)
        expected += gpus * (int(then.timestamp()) - int(now.timestamp()))
        now = then
    found = holding(found, {"H100": Held(65, 0.0)}, now)
    assert found.status.month is not None
    assert sum(use.gpu_seconds for use in found.status.month.uses) == expected


def holding_gpus(*held: int) -> Snapshot:
    """Of a queue whose jobs hold so many H100s each, at 2.50 an hour."""
    node = NodeView.from_raw(
        {
            "metadata": {"name": "a", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
            "status": {"allocatable": {"nvidia.com/gpu": "8", "pods": "110"}},
        }
    )
    jobs = [
        JobInput(
            f"j{number}",
            "research",
            1,
            {"nvidia.com/gpu": gpus, "pods": 1},
            flavour="H100/on-demand",
            placed=("a",),
            holding=True,
        )
        for number, gpus in enumerate(held)
    ]
    return build(
        nodes=[node],
        pods=[],
        jobs=jobs,
        queues=[QueueInput("research")],
        levels=[LevelInput("host", "kubernetes.io/hostname")],
        prices={"H100/on-demand": 2.5},
    )


def test_the_queues_status_counts_what_its_jobs_hold_at_the_prices_of_their_flavours() -> None:
    found = queue({"gpuHours": 100})
    standing = standings({"research": found}, {}, {})["research"]
    month = queue_status(found, Tally.of(holding_gpus(4, 4), {}), standing, NOON).month
    assert month == Month(until=NOON, uses=(MonthUse(gpu_type="H100", gpus=8, hourly="20"),))


def test_a_queue_with_many_types_of_slices_loses_none_of_them() -> None:
    """Three models of GPUs, cut into slices of all kinds, and what they were before, are more than thirty types."""
    held = {f"A100-MIG-{number}g.{number}gb": Held(7, 1.0) for number in range(1, 41)}
    found = holding(queue({"gpuHours": 1000}), held, NOON)
    assert accounts.account(found, held, NOON + HOUR) is found.status.month
    uses = accounts.brought_forward(found.status.month, NOON + HOUR)
    assert sum(use.gpu_seconds for use in uses) == 40 * 7 * 3600


def test_a_queue_that_has_come_since_the_snapshot_keeps_its_account() -> None:
    found = holding(queue({"gpuHours": 100}, name="late"), {"H100": Held(8, 20.0)}, NOON)
    standing = standings({"late": found}, {}, {})["late"]
    assert queue_status(found, Tally.of(holding_gpus(4), {}), standing, NOON + HOUR).month == found.status.month


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["held", "held", "write", "fail", "show"]), st.integers(0, 8)), max_size=12))
def test_what_is_held_between_two_writes_counts_however_late_they_are_and_shown(events: list[tuple[str, int]]) -> None:
    """A queue is written every few seconds at most; gangs come and go in between."""

    async def run() -> None:
        shown, gpus, used, now = queue({"gpuHours": 100}), 0, 0, NOON
        cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
        written: list[TrainingQueueStatus] = []
        fails: list[bool] = []

        class Server:
            async def update_status(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
                if fails.pop():
                    raise ApiUnreachable("refused")
                written.append(TrainingQueueStatus.model_validate(body["status"]))
                return body

        books = Books(cache, Executor(Server(), b"k" * 16))  # type: ignore[arg-type]  # it has all that is called
        cache.on_queue("research", shown)
        for what, number in [*events, ("held", 8), ("held", 0), ("write", 0)]:
            if what == "held":
                now, used, gpus = now + timedelta(seconds=3), used + 3 * gpus, number
            elif what == "show" and written:
                shown = shown.model_copy(update={"status": written[-1]})
                cache.on_queue("research", shown)
            books.keep(holding_gpus(*[gpus] * (gpus > 0)), {}, {}, {}, now)
            if what in ("write", "fail"):
                fails[:] = [False, what == "fail"]  # the last answers first
                books.write_due()
                while others := asyncio.all_tasks() - {asyncio.current_task()}:
                    await asyncio.wait(others)
        month = written[-1].month
        assert month is not None
        assert sum(use.gpu_seconds for use in month.uses) == used

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(booking, "WRITE_EVERY", 0.0)
        asyncio.run(run())


async def test_a_queue_that_is_made_again_begins_at_nothing_whatever_of_the_one_before_was_not_written() -> None:
    cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
    written: list[TrainingQueueStatus] = []

    class Server:
        async def update_status(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            written.append(TrainingQueueStatus.model_validate(body["status"]))
            return body

    books = Books(cache, Executor(Server(), b"k" * 16))  # type: ignore[arg-type]  # it has all that is called
    for hours, gpus in enumerate((8, 4)):
        cache.on_queue("research", queue({"gpuHours": 100}))
        books.keep(holding_gpus(gpus), {}, {}, {}, NOON + hours * HOUR)
    cache.on_queue("research", None)
    books.keep(holding_gpus(), {}, {}, {}, NOON + 2 * HOUR)
    cache.on_queue("research", queue({"gpuHours": 100}))
    books.keep(holding_gpus(2), {}, {}, {}, NOON + 3 * HOUR)
    books.write_due()
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    (status,) = written
    assert status.month is not None
    assert [(use.gpus, use.gpu_seconds) for use in status.month.uses] == [(2, 0)]
    cache.on_queue("research", None)
    books.keep(holding_gpus(), {}, {}, {}, NOON + 4 * HOUR)
    assert not books._wanted
    assert not books._written


async def test_a_status_that_is_refused_is_told_once_and_again_when_it_was_taken_in_between(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue's account is kept nowhere else: without a word budgets would begin anew with the next operator."""
    monkeypatch.setattr(booking, "WRITE_EVERY", 0.0)
    forbidden = ApiError(403, "Forbidden", "muster may not update trainingqueues/status")
    conflict, away = ApiError(409, "Conflict", "it was changed"), ApiUnreachable("away")
    answers: list[Exception | None] = []

    class Server:
        async def update_status(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = answers.pop(0)
            if answer is not None:
                raise answer
            return body

    cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
    books = Books(cache, Executor(Server(), b"k" * 16))  # type: ignore[arg-type]  # it has all that is called
    cache.on_queue("research", queue({"gpuHours": 100}))

    async def told(gpus: int, *to_be_answered: Exception | None) -> int:
        """How often by the time at which what is held is written."""
        answers[:] = to_be_answered
        books.keep(holding_gpus(gpus), {}, {}, {}, NOON)
        books.write_due()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        assert not answers
        return caplog.text.count("trainingqueues/research is refused and stays old")

    assert await told(1, conflict, away, None) == 0
    assert await told(2, forbidden, forbidden, conflict, forbidden, None) == 1
    assert await told(3, forbidden, None) == 2
    assert "muster may not update" in caplog.text


@pytest.mark.parametrize(
    ("policy", "runs"), [("hold", "what runs goes on"), ("drain", "what runs and is preemptible saves and stops")]
)
def test_queues_closed_by_a_budget_say_so_and_what_opens_them_until_it_is_mended(policy: str, runs: str) -> None:
    company = holding(queue({"gpuHours": 40, "atLimit": policy}, name="company"), {"H100": Held(8, 0.0)}, NOON)
    queues = {"company": company, "team": queue(name="team", parent="company"), "other": queue(name="other")}

    def ready(now: datetime) -> dict[str, Reason]:
        found = standings(queues, {}, accounts.Budgets().spent(queues, now))
        message = found["team"].message
        assert found["team"].ready or message == (
            "queue company has used its 40 GPU hours of 2026-11; it takes jobs again on 2026-12-01T00:00:00Z, or when "
            f"the budget is raised; {runs}"
        )
        return {name: standing.reason for name, standing in found.items()}

    open_, spent = Reason.READY, Reason.BUDGET_EXHAUSTED
    assert ready(NOON + 4 * HOUR) == {"company": open_, "team": open_, "other": open_}
    assert ready(NOON + 5 * HOUR) == {"company": spent, "team": spent, "other": open_}
    assert ready(DECEMBER + HOUR) == {"company": open_, "team": open_, "other": open_}


def test_a_queue_that_is_held_says_so_also_when_its_budget_is_used_up() -> None:
    held = TrainingQueue.from_raw({"metadata": {"name": "research"}, "spec": {"stopPolicy": "hold"}})
    spent = {"research": accounts.Spent("used up", drains=False)}
    assert standings({"research": held}, {}, spent)["research"].reason is Reason.HELD


def test_a_drained_queue_names_what_it_is_drained_for_and_what_ends_that() -> None:
    drained = TrainingQueue.from_raw({"metadata": {"name": "company"}, "spec": {"stopPolicy": "holdAndDrain"}})
    queues = {"company": drained, "team": queue(name="team", parent="company"), "apart": queue(name="apart")}
    policy = "holdAndDrain: nothing starts until it is set to none"
    assert why_drained("company", queues, None) == f"the stopPolicy of TrainingQueue 'company' is {policy}"
    assert why_drained("team", queues, None) == (
        f"the stopPolicy of TrainingQueue 'company' above its queue 'team' is {policy}"
    )
    assert why_drained("apart", queues, accounts.Spent("used up", drains=True)) == "used up"
    assert why_drained("apart", queues, accounts.Spent("used up", drains=False)) == ""
    circle = {"a": queue(name="a", parent="b"), "b": queue(name="b", parent="a")}
    assert why_drained("a", circle, None) == ""


def test_a_job_of_a_queue_whose_budget_is_used_up_is_told_so() -> None:
    world = World(
        queues={"default": queue(name="default")},
        namespaces={},
        priorities={},
        levels=(),
        has_topology=False,
        gpu_types=(),
        products=(),
        spent={"default": "queue default has used its 40 GPU hours of 2026-11; it takes jobs again later"},
    )
    found = obstacle("research", effective_spec(trainingjob().spec), world)
    assert found is not None
    assert (found.reason, found.message) == (Reason.BUDGET_EXHAUSTED, world.spent["default"])
