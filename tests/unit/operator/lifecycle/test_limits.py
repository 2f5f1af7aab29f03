"""Windows, budgets and deadlines in a job's life."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from muster.api.common import find_condition
from muster.api.names import ConditionType, EventReason, Phase
from muster.api.placement import Promise, Stop, nodes_with_workers
from muster.api.queue_position import QueuePosition
from muster.api.terms import Usage
from muster.cluster.status import Draft
from muster.controllers import terms
from muster.controllers.lifecycle.reconcile import reconcile
from muster.controllers.lifecycle.turn import write_stop

from .cases import START, Case, trainingjob

pytestmark = pytest.mark.unit

NOON = {"start": "0 12 * * *", "duration": "2h"}


def gone(case: Case) -> None:
    """The kubelets have ended all pods."""
    case.settle()
    case.pods.clear()
    case.settle()


def test_a_gang_stops_when_its_window_closes_and_waits_for_the_next() -> None:
    case = Case(trainingjob(window=NOON))
    case.start()
    assert case.decide().wake_at == START + timedelta(hours=2)
    case.now = START + timedelta(hours=2)
    case.turn()
    stop = case.job.status.stop
    assert stop is not None
    assert stop.reason == "WindowClosed"
    assert "2026-03-02T12:00:00Z" in stop.message
    assert EventReason.TIME_IS_UP in [note.reason for note in case.notes]
    gone(case)
    decision = case.decide()
    assert case.job.status.placement is None
    assert decision.plannable
    assert decision.wake_at == START + timedelta(days=1)
    usage = case.job.status.usage
    assert usage is not None
    assert usage.gpu_seconds == 2 * 2 * 3600


def test_a_gang_that_is_given_a_window_while_it_runs_stops_only_where_that_is_closed() -> None:
    case = Case(trainingjob())
    case.start()
    case.now = START + timedelta(days=1, hours=1)
    case.edit(window=NOON)  # it was placed a day before, at noon; the window is open again
    assert case.settle().wake_at == START + timedelta(days=1, hours=2)
    assert case.job.status.stop is None
    case.edit(window={"start": "0 20 * * *", "duration": "1h"})
    case.turn()
    stop = case.job.status.stop
    assert stop is not None
    assert "it goes on when the next one opens, at 2026-03-02T20:00:00Z" in stop.message, "and not in the past"


def test_nobody_is_stopped_for_a_window_that_has_closed_and_opened_again_while_no_operator_was_there() -> None:
    case = Case(trainingjob(window=NOON))
    case.start()
    case.now = START + timedelta(days=1, hours=1)
    assert case.settle().wake_at == START + timedelta(days=1, hours=2)
    assert case.job.status.stop is None
    case.now = START + timedelta(days=1, hours=5)
    case.turn()
    assert case.job.status.stop is not None
    assert "2026-03-03T12:00:00Z" in case.job.status.stop.message


def test_room_that_is_kept_for_a_gang_is_open_again_when_its_window_is_about_to_close() -> None:
    case = Case(trainingjob(window=NOON))
    case.settle()
    promise = Promise(workers=2, nodes=nodes_with_workers(("n0", "n1")), spec=case.situation().promise_hash)
    case.job = case.job.model_copy(update={"status": case.job.status.model_copy(update={"promise": promise})})
    late = START + timedelta(hours=2, seconds=-2 * 120)  # there has to be time for two starts
    assert case.settle().wake_at == late
    assert case.job.status.promise is not None
    case.now = late
    assert case.settle().wake_at == START + timedelta(days=1)
    assert case.job.status.promise is None


def test_a_gang_that_may_finish_runs_on_when_its_window_closes() -> None:
    case = Case(trainingjob(window={**NOON, "atEnd": "finish"}))
    case.start()
    case.now = START + timedelta(hours=5)
    case.settle()
    assert case.job.status.stop is None


@pytest.mark.parametrize("why", ["Grown", "Shrunk", "Defragmented", "Restarting"])
def test_a_gang_that_may_finish_goes_on_where_it_moves_or_starts_again_when_its_window_has_closed(why: str) -> None:
    case = Case(trainingjob(window={**NOON, "atEnd": "finish"}, deadline="2026-03-01T20:00:00Z", maxRuntime="4h"))
    case.start()
    case.now = START + timedelta(hours=3)
    case.settle()
    draft = Draft(case.job, case.now)
    kept = nodes_with_workers(("n0", "n2"))
    draft.set(promise=Promise(workers=2, nodes=kept, promised_at=case.now, spec=case.situation().promise_hash))
    write_stop(draft, Stop(reason=why, message="it goes on", requested_at=case.now))
    case.job = type(case.job).from_raw(case.job.to_raw() | {"status": draft.done().to_raw()})
    gone(case)
    status = case.job.status
    assert status.placement is None
    assert status.promise is not None
    assert case.decide().plannable
    assert terms.bounds(case.situation().spec, status, case.now, 120.0).opens == 0.0
    assert EventReason.DEADLINE_AT_RISK not in [note.reason for note in case.notes]
    case.job = type(case.job).from_raw(
        case.job.to_raw() | {"status": status.model_copy(update={"promise": None}).to_raw()}
    )
    assert terms.bounds(case.situation().spec, case.job.status, case.now, 120.0).opens > 0.0, "nothing is kept for it"


def test_a_gang_stops_when_its_budget_is_spent_and_goes_on_when_it_is_raised() -> None:
    case = Case(trainingjob(budget={"gpuHours": 4}))
    case.start()
    assert case.decide().wake_at == START + timedelta(hours=2)
    case.now = START + timedelta(hours=2)
    case.turn()
    assert case.job.status.stop is not None
    gone(case)
    admitted = find_condition(case.job.status.conditions, ConditionType.ADMITTED.value)
    assert admitted is not None
    assert (admitted.reason, admitted.status) == ("BudgetExhausted", "False")
    assert "raise budget.gpuHours" in admitted.message
    assert case.job.status.phase is Phase.QUEUED
    writes = case.writes
    assert not case.decide().plannable
    case.settle()
    assert case.writes == writes
    raised = case.job.to_raw()
    raised["spec"]["budget"] = {"gpuHours": 8}
    raised["metadata"]["generation"] = 2
    case.job = type(case.job).from_raw(raised)
    case.settle()
    assert case.decide().plannable


def test_a_budget_that_lacks_a_part_of_a_second_at_its_end_is_looked_at_again_soon() -> None:
    case = Case(trainingjob(budget={"cost": 1}))
    case.start()
    ends = reconcile(replace(case.situation(), price=1.3)).wake_at
    assert ends is not None
    case.now = ends
    at_its_end = reconcile(replace(case.situation(), price=1.3))
    assert at_its_end.status is None, "2 GPUs for 1384.6 s are 2769 whole GPU-seconds, which cost 0.9999"
    assert at_its_end.wake_at is not None
    assert at_its_end.wake_at <= ends + timedelta(seconds=1)
    stopped = reconcile(replace(case.situation(), price=1.3, now=at_its_end.wake_at)).status
    assert stopped is not None
    assert stopped.stop is not None


def test_the_rate_of_a_placement_is_written_with_the_next_change_and_by_itself_is_none() -> None:
    case = Case(trainingjob())
    case.start()
    assert reconcile(replace(case.situation(), price=1.3, currency="EUR")).status is None
    case.job = type(case.job).from_raw(case.job.to_raw() | {"spec": case.job.to_raw()["spec"] | {"suspend": True}})
    stops = reconcile(replace(case.situation(), price=1.3, currency="EUR")).status
    assert stops is not None
    assert stops.placement is not None
    assert stops.usage == Usage(hourly="2.6", currency="EUR")


def test_use_is_booked_once_for_each_placement() -> None:
    case = Case(trainingjob())
    case.start()
    case.now = START + timedelta(seconds=100)
    case.job = type(case.job).from_raw(case.job.to_raw() | {"spec": case.job.to_raw()["spec"] | {"suspend": True}})
    gone(case)
    assert case.job.status.usage is not None
    assert case.job.status.usage.gpu_seconds == 200
    case.now += timedelta(seconds=100)
    case.settle()
    assert case.job.status.usage.gpu_seconds == 200


@pytest.mark.parametrize(("had", "gets"), [(8, 1), (1, 8), (8, 0), (0, 8)])
def test_a_placement_is_booked_with_the_gpus_that_it_had_though_the_job_is_edited_as_it_stops(
    had: int, gets: int
) -> None:
    case = Case(trainingjob(workers={"replicas": 2, "gpusPerWorker": had}))
    case.start()
    case.now = START + timedelta(seconds=100)
    raw = case.job.to_raw()
    edited = raw["spec"] | {"suspend": True, "workers": raw["spec"]["workers"] | {"gpusPerWorker": gets}}
    case.job = type(case.job).from_raw(raw | {"spec": edited})
    case.turn()
    assert case.job.status.gpus == 2 * had
    gone(case)
    assert (case.job.status.usage.gpu_seconds if case.job.status.usage else 0) == 200 * had
    assert case.job.status.gpus == 2 * gets


def test_a_window_that_is_wrong_holds_the_job_back_and_says_how_to_mend_it() -> None:
    case = Case(trainingjob(window={**NOON, "timeZone": "Europe/Atlantis"}))
    decision = case.settle()
    admitted = find_condition(case.job.status.conditions, ConditionType.ADMITTED.value)
    assert admitted is not None
    assert admitted.reason == "InvalidWindow"
    assert "Europe/Berlin" in admitted.message
    assert not decision.plannable


def test_a_gang_whose_window_is_edited_to_a_wrong_one_still_stops_when_its_budget_is_spent() -> None:
    case = Case(trainingjob(budget={"gpuHours": 4}))
    case.start()
    case.edit(window={**NOON, "timeZone": "Europe/Atlantis"})
    assert case.settle().wake_at == START + timedelta(hours=2)
    assert case.job.status.stop is None, "a window that is wrong ends nothing"
    case.now = START + timedelta(hours=2)
    case.turn()
    assert case.job.status.stop is not None
    assert case.job.status.stop.reason == "BudgetExhausted"


def test_a_deadline_is_judged_at_once_and_again_when_it_slips_away() -> None:
    case = Case(trainingjob(deadline="2026-03-01T16:00:00Z", maxRuntime="3h"))
    decision = case.settle()
    assert case.is_true(ConditionType.DEADLINE_REACHABLE)
    assert decision.wake_at == datetime(2026, 3, 1, 13, tzinfo=timezone.utc) - timedelta(seconds=120)
    case.now = datetime(2026, 3, 1, 13, 30, tzinfo=timezone.utc)
    case.settle()
    found = find_condition(case.job.status.conditions, ConditionType.DEADLINE_REACHABLE.value)
    assert found is not None
    assert (found.status, found.reason) == ("False", "TooLate")
    assert [note.reason for note in case.notes].count(EventReason.DEADLINE_AT_RISK) == 1
    writes = case.writes
    case.now += timedelta(minutes=5)
    decision = case.settle()
    assert case.writes == writes
    assert decision.wake_at == datetime(2026, 3, 1, 16, tzinfo=timezone.utc)


def test_a_deadline_follows_the_expected_start_and_does_not_waver_with_it() -> None:
    case = Case(trainingjob(deadline="2026-03-01T20:00:00Z", maxRuntime="3h"))
    case.settle()
    assert case.is_true(ConditionType.DEADLINE_REACHABLE)

    def judged(**wait: float) -> str:
        start = case.now + timedelta(**wait)
        told = QueuePosition(position=1, reason="x", expected_start=start, basis="progress")
        status = case.job.status.model_copy(update={"queue": told})
        case.job = case.job.model_copy(update={"status": status})
        case.settle()
        found = find_condition(case.job.status.conditions, ConditionType.DEADLINE_REACHABLE.value)
        assert found is not None
        return found.reason

    latest = 5 * 60 - 2  # minutes from now until it has to start
    assert judged(minutes=latest + 1) == "TooLate"
    assert [note.reason for note in case.notes].count(EventReason.DEADLINE_AT_RISK) == 1
    writes = case.writes
    assert judged(minutes=latest - 1) == "TooLate", "a minute of hours to wait: it may slip away again"
    assert case.writes == writes
    assert judged(minutes=latest / 2) == "InTime"
    assert judged(minutes=latest + 1) == "TooLate"


@pytest.mark.parametrize("terms", [{}, {"maxRuntime": "9h"}])
def test_a_deadline_that_passes_is_told_whatever_was_known_before(terms: dict[str, str]) -> None:
    case = Case(trainingjob(deadline="2026-03-01T16:00:00Z", **terms))
    case.start()
    decision = case.settle()
    while case.now < datetime(2026, 3, 1, 16, tzinfo=timezone.utc):
        assert decision.wake_at is not None
        case.now = max(decision.wake_at, case.now + timedelta(seconds=1))
        decision = case.settle()
    found = find_condition(case.job.status.conditions, ConditionType.DEADLINE_REACHABLE.value)
    assert found is not None
    assert (found.status, found.reason) == ("False", "DeadlinePassed")
    assert case.notes[-1].reason is EventReason.DEADLINE_AT_RISK


def test_an_unreachable_deadline_is_told_in_the_first_turn() -> None:
    case = Case(trainingjob(deadline="2026-03-01T13:00:00Z", maxRuntime="3h"))
    case.turn()
    found = find_condition(case.job.status.conditions, ConditionType.DEADLINE_REACHABLE.value)
    assert found is not None
    assert found.status == "False"
    assert "2h2m late" in found.message
