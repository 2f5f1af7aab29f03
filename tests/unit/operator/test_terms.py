"""Windows, budgets and deadlines as pure functions of now."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.api import windows
from muster.api.effective import EffectiveSpec, effective_spec
from muster.api.effective_parts import EffectiveWindow
from muster.api.placement import Placement
from muster.api.queue_position import QueuePosition
from muster.api.terms import Usage
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import CommittedCheckpoint, Progress, TrainingJobStatus
from muster.controllers import deadlines, terms
from muster.controllers.inputs import run_of
from muster.controllers.records import Record
from muster_protocol.durations import parse_duration

from .lifecycle.cases import trainingjob

pytestmark = pytest.mark.unit

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
NIGHTS = EffectiveWindow("0 20 * * MON-FRI", 10 * 3600, "Europe/Berlin", stops=True)
HOUR = timedelta(hours=1)


def berlin(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=BERLIN).astimezone(UTC)  # type: ignore[misc]


def spec(**said: Any) -> EffectiveSpec:
    return effective_spec(trainingjob(**said).spec)


def test_a_window_is_open_from_its_moment_on_for_its_duration() -> None:
    evening, morning = berlin(2026, 3, 2, 20), berlin(2026, 3, 3, 6)  # a Monday
    for moment in (evening, evening + HOUR, morning - timedelta(seconds=1)):
        assert windows.opening(NIGHTS, moment) == windows.Opening(evening, morning)
    assert windows.opening(NIGHTS, evening - timedelta(seconds=1)) == windows.Opening(evening, morning)
    assert windows.opening(NIGHTS, morning).opens == berlin(2026, 3, 3, 20)
    # Friday night ends on Saturday; then nothing until Monday.
    assert windows.opening(NIGHTS, berlin(2026, 3, 7, 6)).opens == berlin(2026, 3, 9, 20)


def test_a_window_keeps_its_length_when_clocks_change() -> None:
    every_night = EffectiveWindow("0 22 * * *", 8 * 3600, "Europe/Berlin", stops=True)
    opens = berlin(2026, 3, 28, 22)  # clocks go forward at 2 in the morning
    found = windows.opening(every_night, opens + HOUR)
    assert (found.opens, found.closes - found.opens) == (opens, 8 * HOUR)
    assert found.closes == berlin(2026, 3, 29, 7)
    assert windows.opening(every_night, berlin(2026, 3, 29, 12)).opens == berlin(2026, 3, 29, 22)


@pytest.mark.parametrize(
    ("start", "opens"),
    [
        ("30 2 * * *", datetime(2026, 10, 26, 1, 30, tzinfo=UTC)),  # it came at half past two the first time
        ("*/30 * * * *", datetime(2026, 10, 25, 1, tzinfo=UTC)),  # every half an hour, whatever the clock shows
    ],
)
def test_an_hour_that_the_clock_shows_twice_opens_no_window_of_the_past(start: str, opens: datetime) -> None:
    window = EffectiveWindow(start, 600, "Europe/Berlin", stops=True)
    again = datetime(2026, 10, 25, 1, 5, tzinfo=UTC)  # five past two, for the second time
    assert windows.opening(window, again) == windows.Opening(opens, opens + timedelta(minutes=10))


def test_windows_that_overlap_are_one() -> None:
    both = EffectiveWindow("0 20,22 * * *", 3 * 3600, "Etc/UTC", stops=True)
    day = datetime(2026, 3, 2, tzinfo=UTC)
    assert windows.opening(both, day + 21 * HOUR) == windows.Opening(day + 20 * HOUR, day + 25 * HOUR)
    always = EffectiveWindow("0 * * * *", 3600, "Etc/UTC", stops=True)
    assert windows.opening(always, day + timedelta(minutes=90)).closes == windows.NEVER
    longest = EffectiveWindow("0 20 * * *", parse_duration("999999d999999h"), "Asia/Tokyo", stops=True)
    assert windows.opening(longest, day).closes == windows.NEVER
    job = spec(window={"start": "0 * * * *", "duration": "1h"})
    assert terms.window_end(job, day, day) is None
    assert terms.may_start(job, day, 120.0) <= day


@pytest.mark.parametrize(
    ("start", "seconds", "hours"),
    [("* 8-18 * * MON-FRI", 60, (8, 19)), ("*/5 * * * TUE", 300, (24, 48)), ("* * * * MON-FRI", 60, (0, 120))],
)
def test_windows_that_follow_each_other_end_where_the_last_of_them_does(
    start: str, seconds: int, hours: tuple[int, int]
) -> None:
    window, monday = EffectiveWindow(start, seconds, "Etc/UTC", stops=True), datetime(2026, 3, 2, tzinfo=UTC)
    opens, closes = (monday + each * HOUR for each in hours)
    for moment in (opens, opens + (closes - opens) / 3, closes - timedelta(seconds=30), opens):
        assert windows.opening(window, moment).closes == closes
    assert windows.opening(window, closes).opens > closes


def test_an_opening_of_many_windows_ends_where_they_do() -> None:
    summer = EffectiveWindow("* * * 6-8 *", 3600, "Etc/UTC", stops=True)
    found = windows.opening(summer, datetime(2026, 5, 1, tzinfo=UTC))
    assert found == windows.Opening(datetime(2026, 6, 1, tzinfo=UTC), datetime(2026, 9, 1, 0, 59, tzinfo=UTC))
    days = EffectiveWindow("0 0 * * *", 86400, "Europe/Berlin", stops=True)
    assert windows.opening(days, berlin(2026, 3, 1)).closes == berlin(2026, 10, 25, 23), "a day of 25 hours"


@pytest.mark.parametrize(
    ("start", "days"), [("0 0 1 * *", 40), ("0 0 29 2 *", 3000), ("0 20 * * MON-FRI", 7), ("*/30 * * * *", 1)]
)
def test_the_scheduling_loop_does_not_wait_for_who_follows_a_window_through_the_centuries(
    start: str, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0

    class Counting(windows.CronSim):  # type: ignore[misc]  # it has no types
        def __next__(self) -> datetime:
            nonlocal looked
            looked += 1
            found: datetime = super().__next__()
            return found

    monkeypatch.setattr(windows, "CronSim", Counting)
    always = EffectiveWindow(start, days * 86400 + 1, "America/New_York", stops=True)
    assert windows.opening(always, datetime(2026, 3, 2, tzinfo=UTC)).closes == windows.NEVER
    assert looked < 500


@pytest.mark.parametrize(
    ("start", "hours", "limit"),
    [("0 20 * * *", 3, 3 * 3600.0), ("0 20,22 * * *", 3, 5 * 3600.0), ("0 * * * *", 3, float("inf"))],
)
def test_a_run_lasts_as_long_as_its_whole_opening_however_short_each_window_is(
    start: str, hours: int, limit: float
) -> None:
    """Others are let in on the strength of it, so it must not be shorter than what is enforced."""
    job, day = spec(window={"start": start, "duration": f"{hours}h"}), datetime(2026, 3, 2, tzinfo=UTC)
    for hour in (12, 20, 21):
        assert terms.bounds(job, TrainingJobStatus(), day + hour * HOUR, 120.0).limit == limit


def test_a_job_may_start_until_its_last_minutes_and_before_its_window_nothing_closes() -> None:
    job, day = spec(window={"start": "0 20 * * *", "duration": "3h"}), datetime(2026, 3, 2, tzinfo=UTC)
    found = terms.bounds(job, TrainingJobStatus(), day + 21 * HOUR, 120.0)
    assert (found.opens, found.closes) == (0.0, (day + 23 * HOUR).timestamp() - 240)
    assert found.reopens == (day + 44 * HOUR).timestamp()
    found = terms.bounds(job, TrainingJobStatus(), day + 12 * HOUR, 120.0)
    assert (found.opens, found.closes) == ((day + 20 * HOUR).timestamp(), float("inf"))
    always = spec(window={"start": "0 * * * *", "duration": "3h"})
    assert terms.bounds(always, TrainingJobStatus(), day, 120.0).closes == float("inf")


def test_a_gang_that_has_to_stop_may_start_again_only_while_its_window_is_open() -> None:
    day, window = datetime(2026, 3, 2, tzinfo=UTC), {"start": "0 20 * * *", "duration": "3h"}
    job = spec(window=window, maxRuntime="1h")
    inside, beyond = (terms.bounds_of_restart(job, day + hours * HOUR, 120.0) for hours in (21, 24))
    assert inside.opens == 0.0
    assert 0 < (day + 23 * HOUR).timestamp() - inside.closes < 600, "a start in its last minutes does no step"
    assert (beyond.opens, beyond.closes) == ((day + 44 * HOUR).timestamp(), float("inf"))
    assert inside.reopens == (day + 44 * HOUR).timestamp()
    assert inside.limit == beyond.limit == float("inf"), "no other bound is of a run that is under way"
    finishing = spec(window={**window, "atEnd": "finish"})
    for always in (spec(), finishing, spec(window={"start": "0 0 31 2 *", "duration": "1h"})):
        assert terms.bounds_of_restart(always, day, 120.0) == terms.NO_BOUNDS


@settings(deadline=None)
@given(
    st.sampled_from(["0 20 * * MON-FRI", "*/45 * * * *", "30 2 * * *", "0 0 1 * *", "15 6,18 * * SAT,SUN"]),
    st.integers(60, 3 * 86400),
    st.sampled_from(["Etc/UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"]),
    st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1)),
)
def test_the_opening_that_is_found_holds_now_or_comes_next(start: str, length: int, zone: str, naive: datetime) -> None:
    window, now = EffectiveWindow(start, length, zone, stops=True), naive.replace(tzinfo=UTC)
    found = windows.opening(window, now)
    assert found.closes > now
    assert found.closes - found.opens >= timedelta(seconds=length)
    # It is the same one at any moment of it, and none is open just before it.
    assert windows.opening(window, max(now, found.opens)) == found or found.opens <= now
    if found.opens > now:
        assert windows.opening(window, found.opens - timedelta(seconds=1)).opens == found.opens


@pytest.mark.parametrize(
    ("start", "zone", "word"),
    [
        ("0 20 * * *", "Europe/Atlantis", "timeZone"),
        ("0 99 * * *", "Etc/UTC", "cron expression"),
        ("0 20 * * * *", "Etc/UTC", "number of fields"),
        ("0 20 31 2 *", "Etc/UTC", "window.start"),
        ("0 20 * * *", "../../etc/passwd", "timeZone"),
    ],
)
def test_a_window_that_is_wrong_says_how_to_mend_it(start: str, zone: str, word: str) -> None:
    window = EffectiveWindow(start, 3600, zone, stops=True)
    assert word in windows.window_error(window)
    with pytest.raises(ValueError, match=word):
        windows.opening(window, datetime(2026, 3, 2, tzinfo=UTC))


def test_a_gang_is_not_started_in_a_window_that_is_about_to_close() -> None:
    said = {"start": "0 20 * * MON-FRI", "duration": "10h", "timeZone": "Europe/Berlin"}
    job, closes = spec(window=said), berlin(2026, 3, 3, 6)
    assert terms.may_start(job, closes - HOUR, 120.0) <= closes - HOUR
    assert terms.may_start(job, closes - timedelta(minutes=3), 120.0) == berlin(2026, 3, 3, 20)
    finishing = spec(window={**said, "atEnd": "finish"})
    assert terms.may_start(finishing, closes - timedelta(minutes=3), 120.0) < closes
    assert terms.window_end(finishing, closes - HOUR, closes) is None
    end = terms.window_end(job, closes - HOUR, closes)
    assert end is not None
    assert end.at == closes
    assert "2026-03-03T19:00:00Z" in end.message


def test_the_example_of_evenings_starts_then_and_runs_to_its_end() -> None:
    path = Path(__file__).resolve().parents[3] / "examples" / "time" / "job-evenings.yaml"
    job = effective_spec(TrainingJob.from_raw(yaml.safe_load(path.read_text())).spec)
    noon, evening = berlin(2026, 3, 2, 12), berlin(2026, 3, 2, 20)
    assert terms.may_start(job, noon, 120.0) == evening
    assert terms.may_start(job, evening + HOUR, 120.0) <= evening + HOUR
    assert terms.window_end(job, evening + HOUR, evening + HOUR) is None


def placed(status: TrainingJobStatus, at: datetime, workers: int = 2) -> TrainingJobStatus:
    return status.model_copy(update={"placement": Placement.of(1, [f"n{n}" for n in range(workers)], placed_at=at)})


def test_use_is_gpus_times_time_held_and_costs_what_they_cost() -> None:
    now = datetime(2026, 3, 2, tzinfo=UTC)
    before = TrainingJobStatus(usage=Usage(gpu_seconds=3600, cost="1.5"))
    assert terms.used(before, 8, 2.0, now) == before.usage
    assert terms.used(placed(before, now - HOUR), 8, 2.0, now) == Usage(gpu_seconds=9 * 3600, cost="17.5")
    assert terms.used(placed(TrainingJobStatus(), now - HOUR), 8, 0.0, now) == Usage(gpu_seconds=8 * 3600, cost=None)


def test_the_rate_of_a_placement_stands_beside_what_is_counted_and_goes_with_it() -> None:
    assert terms.rated(None, 8, 0.0) is None
    rated = terms.rated(None, Fraction(3, 7), 2.8, "EUR")
    assert rated == Usage(hourly="1.2", currency="EUR")
    assert terms.rated(rated, 8, 0.0) == Usage(), "its nodes are gone, and with them what they cost"
    counted = Usage(gpu_seconds=3600, cost="1.5", currency="USD")
    assert terms.rated(counted, 8, 2.0, "") == counted.model_copy(update={"hourly": "16"})
    now = datetime(2026, 3, 2, tzinfo=UTC)
    running = placed(TrainingJobStatus(usage=terms.rated(counted, 8, 2.0)), now - HOUR)
    assert terms.used(running, 8, 2.0, now).hourly is None, "it is counted now"


def test_what_a_job_costs_is_in_the_currency_of_the_prices() -> None:
    now = datetime(2026, 3, 2, tzinfo=UTC)
    dollars = TrainingJobStatus(usage=Usage(gpu_seconds=3600, cost="1.5", currency="USD"))
    assert terms.used(dollars, 8, 2.0, now, "EUR") == dollars.usage, "nothing was counted since"
    paid = terms.used(placed(dollars, now - HOUR), 8, 2.0, now, "EUR")
    assert paid == Usage(gpu_seconds=9 * 3600, cost="17.5", currency="EUR")
    gone = terms.used(placed(dollars, now - HOUR), 8, 0.0, now)  # its nodes, and with them what they cost
    assert (gone.cost, gone.currency) == ("1.5", "USD")
    free = terms.used(placed(TrainingJobStatus(), now - HOUR), 8, 0.0, now, "EUR")
    assert (free.cost, free.currency) == (None, None)
    limit = spec(budget={"cost": 17})
    assert terms.budget_spent(limit, paid) == (
        "the job has cost 17.5 EUR, and its budget is 17 EUR; raise budget.cost to go on"
    )
    assert "17.5 at the platform's prices, and its budget is 17;" in terms.budget_spent(
        limit, paid.model_copy(update={"currency": None})
    )


def test_the_end_of_a_budget_is_known_beforehand_and_is_when_it_is_spent() -> None:
    now = datetime(2026, 3, 2, tzinfo=UTC)
    status = placed(TrainingJobStatus(usage=Usage(gpu_seconds=40 * 3600, cost="80")), now)
    hours, money = spec(budget={"gpuHours": 80}), spec(budget={"cost": 100, "gpuHours": 1000})
    end = terms.budget_end(hours, status, 8, 2.0)
    assert end == now + 5 * HOUR
    assert not terms.budget_spent(hours, terms.used(status, 8, 2.0, end - HOUR))
    assert "80 GPU hours" in terms.budget_spent(hours, terms.used(status, 8, 2.0, end))
    assert terms.budget_end(money, status, 8, 2.0) == now + 1.25 * HOUR
    assert "budget.cost" in terms.budget_spent(money, terms.used(status, 8, 2.0, now + 2 * HOUR))
    assert terms.budget_end(spec(budget={"cost": 100}), status, 8, 0.0) is None
    assert terms.budget_end(spec(), status, 8, 2.0) is None


def test_a_deadline_is_judged_by_progress_before_max_runtime_and_by_the_window() -> None:
    now, start = berlin(2026, 3, 2, 12), 120.0
    by_limit = spec(deadline="2026-03-02T20:00:00Z", maxRuntime="6h")
    found = deadlines.outlook(by_limit, TrainingJobStatus(), now, start)
    assert found is not None
    assert (found.met, found.changes) == (True, datetime(2026, 3, 2, 14, tzinfo=UTC) - timedelta(seconds=start))
    late = deadlines.outlook(by_limit, TrainingJobStatus(), now + 5 * HOUR, start)
    assert late is not None
    assert late.met is False
    assert "2h2m late" in late.message
    # Half of its steps are done at 1 step a second: an hour is left, whatever maxRuntime says.
    done = TrainingJobStatus(
        progress=Progress(step=3600, total_steps=7200, steps_per_second="1.0"),
        checkpoint=CommittedCheckpoint(step=3600),
    )
    known = deadlines.outlook(by_limit, done, now + 5 * HOUR, start)
    assert known is not None
    assert known.met is True
    window = {"start": "0 20 * * *", "duration": "10h", "timeZone": "Europe/Berlin"}
    nightly = deadlines.outlook(spec(deadline="2026-03-02T20:00:00Z", window=window), done, now, start)
    assert nightly is not None
    assert nightly.met is False
    assert "earliest end 2026-03-02T20:02:00Z by its progress, 2m late" in nightly.message


def test_a_job_that_has_trained_for_longer_than_its_lowered_limit_takes_no_less_than_no_time() -> None:
    """The lengths of all jobs of a flavour tell when one that says nothing is expected to end."""
    now, status = datetime(2026, 3, 2, 12, tzinfo=UTC), TrainingJobStatus(runtime_seconds=5 * 3600)
    job = spec(maxRuntime="10m", readyTimeout="2m", terminationGracePeriod="30s")
    assert terms.bounds(job, status, now, 60.0).limit == 120 + 30 + terms.MARGIN
    assert terms.length(job, status) == 0.0


def test_while_a_gang_starts_again_its_end_is_known_by_the_pace_that_it_had() -> None:
    """What waits for its nodes would else be told another start, for a minute, by how long jobs take in general."""
    now = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
    job, step = trainingjob(), Progress(step=400, total_steps=1000, steps_per_second="2", eta=now, updated_at=now)
    trains = TrainingJobStatus(progress=step)
    begins = TrainingJobStatus(progress=Progress(step=300, total_steps=1000, updated_at=now))
    record = Record.of(job.model_copy(update={"status": trains}))
    assert terms.expected_end(trains, record.pace) == now
    assert record.take(job.model_copy(update={"status": begins}))
    assert terms.expected_end(begins, record.pace) == now + timedelta(seconds=350)
    assert run_of(record, now, terms.START_SECONDS).ends == now.timestamp() + 350

    assert terms.expected_end(begins, 0.0) is None  # of a new operator
    assert terms.expected_end(begins, 1e-9) is None
    assert terms.expected_end(TrainingJobStatus(progress=Progress(step=3, updated_at=now)), 2.0) is None
    assert terms.expected_end(TrainingJobStatus(), 2.0) is None


def test_a_bounded_gang_that_starts_is_expected_to_start_as_it_did_and_to_run_its_time() -> None:
    job, now = trainingjob(maxRuntime="10m", readyTimeout="30m"), datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
    placement = Placement.of(1, ("n0", "n1"), placed_at=now)
    starts = job.model_copy(update={"status": TrainingJobStatus(placement=placement, start_seconds=20)})
    run = run_of(Record.of(starts), now, terms.START_SECONDS)
    surplus = run.grace + terms.MARGIN
    assert (run.ends - now.timestamp(), run.bound - now.timestamp()) == (620, 1800 + 600 + surplus)
    runs = starts.model_copy(update={"status": starts.status.model_copy(update={"running_since": now})})
    run = run_of(Record.of(runs), now, terms.START_SECONDS)
    assert (run.ends, run.bound - now.timestamp()) == (float("inf"), 600 + surplus)
    free = trainingjob().model_copy(update={"status": starts.status})
    assert run_of(Record.of(free), now, terms.START_SECONDS).ends == float("inf")


def test_a_deadline_counts_the_windows_that_a_job_is_stopped_by() -> None:
    now, start = datetime(2026, 3, 2, 12, tzinfo=UTC), 120.0
    window = {"start": "0 20 * * *", "duration": "1h"}

    def judged(deadline: str, **more: str) -> deadlines.Outlook:
        job = spec(deadline=deadline, maxRuntime="4h", window={**window, **more})
        found = deadlines.outlook(job, TrainingJobStatus(), now, start)
        assert found is not None
        return found

    # 58 minutes of each hour are trained: four hours take five evenings.
    late = judged("2026-03-03T23:00:00Z")
    assert late.met is False
    assert "earliest end 2026-03-06T20:10:00Z" in late.message
    met = judged("2026-03-06T21:00:00Z")
    assert (met.met, met.changes) == (True, datetime(2026, 3, 2, 21, tzinfo=UTC))
    assert judged("2026-03-03T23:00:00Z", atEnd="finish").met
    short = judged("2026-03-06T21:00:00Z", duration="2m")
    assert short.met is False
    assert "the windows are too short" in short.message


def test_a_deadline_of_which_nothing_is_known_is_neither_met_nor_missed() -> None:
    now = berlin(2026, 3, 2, 12)
    job = spec(deadline="2026-03-02T20:00:00Z")
    unknown = deadlines.outlook(job, TrainingJobStatus(), now, 120.0)
    assert unknown is not None
    assert unknown.met is None
    passed = deadlines.outlook(job, TrainingJobStatus(), now + 24 * HOUR, 120.0)
    assert passed is not None
    assert passed.met is False
    assert deadlines.outlook(spec(), TrainingJobStatus(), now, 120.0) is None


@pytest.mark.parametrize("reason", ["ExceedsCluster", "ExceedsQuota", "NoEligibleNodes"])
def test_a_deadline_of_a_job_that_cannot_start_is_not_called_in_time(reason: str) -> None:
    job, now = spec(deadline="2026-03-02T20:00:00Z", maxRuntime="1h"), berlin(2026, 3, 2, 12)
    found = deadlines.outlook(job, TrainingJobStatus(queue=QueuePosition(reason=reason)), now, 120.0)
    assert found is not None
    assert (found.met, found.stuck) == (None, True)
    assert found.message.endswith(f"it cannot start as it is: {reason}")
    short = deadlines.outlook(job, TrainingJobStatus(queue=QueuePosition(reason="InsufficientCapacity")), now, 120.0)
    assert short is not None
    assert short.met is True


def waiting(expected: datetime, basis: str) -> TrainingJobStatus:
    return TrainingJobStatus(queue=QueuePosition(position=2, expected_start=expected, basis=basis))


@pytest.mark.parametrize(
    ("basis", "words"),
    [
        ("promised", "when the room that is promised to it is cleared"),
        ("limits", "when the running jobs must have ended"),
        ("progress", "by the running jobs' own progress"),
    ],
)
def test_a_deadline_is_judged_by_the_start_that_the_planner_expects_and_says_what_that_rests_on(
    basis: str, words: str
) -> None:
    now, start = datetime(2026, 3, 2, 12, tzinfo=UTC), 120.0
    job = spec(deadline="2026-03-02T20:00:00Z", maxRuntime="4h")
    late = deadlines.outlook(job, waiting(now + 5 * HOUR, basis), now, start)
    assert late is not None
    assert (late.met, late.spare, late.waits) == (False, -3720.0, 5 * 3600.0)
    assert late.message == (
        "the deadline 2026-03-02T20:00:00Z will be missed: it is expected to start at 2026-03-02T17:00:00Z, "
        f"{words}, and ends at 2026-03-02T21:02:00Z with all of maxRuntime, 1h2m late"
    )
    met = deadlines.outlook(job, waiting(now + 2 * HOUR, basis), now, start)
    assert met is not None
    assert met.met is True
    assert (
        met.message == f"it is expected to start at 2026-03-02T14:00:00Z, {words}, and can end at 2026-03-02T18:02:00Z"
    )
    slow = spec(deadline="2026-03-02T20:00:00Z", maxRuntime="9h")
    long = deadlines.outlook(slow, waiting(now + HOUR, basis), now, start)
    assert long is not None
    assert "lower maxRuntime" in long.message, "it would be late started now, too"
    unknown = deadlines.outlook(spec(deadline="2026-03-02T20:00:00Z"), waiting(now + 9 * HOUR, basis), now, start)
    assert unknown is not None
    assert unknown.met is False
    assert "2026-03-02T21:00:00Z" in unknown.message


@pytest.mark.parametrize("basis", ["queue", ""])
def test_a_rough_expected_start_makes_no_deadline_late_and_nor_does_one_that_has_passed(basis: str) -> None:
    now, job = datetime(2026, 3, 2, 12, tzinfo=UTC), spec(deadline="2026-03-02T20:00:00Z", maxRuntime="4h")
    for status in (waiting(now + 7 * HOUR, basis), waiting(now - HOUR, "progress")):
        found = deadlines.outlook(job, status, now, 120.0)
        assert found is not None
        assert (found.met, found.waits) == (True, 0.0)
        assert found.message == "it can end at 2026-03-02T16:02:00Z at the earliest"
    running = waiting(now + 7 * HOUR, "progress").model_copy(update={"running_since": now - HOUR})
    ends = deadlines.outlook(job, placed(running, now - HOUR), now, 120.0)
    assert ends is not None
    assert ends.met is True, "it does not wait any more"
