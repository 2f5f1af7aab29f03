"""Deadlines, off-peak windows, slices and balance: what every policy keeps, and what is reported."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from muster.api.effective_parts import EffectiveWindow
from muster.cli.app import app
from muster.cli.simulate import missed_told
from muster.scheduling.plan import Plan
from muster.simulate.cluster import ClusterFile, build
from muster.simulate.engine import simulate
from muster.simulate.errors import SimulationError
from muster.simulate.measures import measure
from muster.simulate.policies import NAMES, policy_named
from muster.simulate.windows import Window
from muster.simulate.workload import Workload, assemble
from muster.simulate.world import HOPELESS, State, World

from .samples import Scripted, admit, cluster, trace, workload

pytestmark = pytest.mark.unit

HOUR = 3600.0
DAY = 24 * HOUR
COSTS = {"checkpoint": 600, "grace": 20, "restart": 60, "unsaved": 0}
NIGHTS = {"start": "0 20 * * *", "duration": 36_000}
WINDOWS = {
    "nights": NIGHTS,
    "evenings": {**NIGHTS, "atEnd": "finish"},
    "saturdays": {"start": "0 0 * * SAT", "duration": 86_400},
    "moments": {"start": "*/10 * * * *", "duration": 50},
}


def timed(*jobs: dict[str, Any], **more: Any) -> Workload:
    return workload(*jobs, windows=WINDOWS, costs=COSTS, **more)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_stops_when_its_window_closes_and_goes_on_in_the_next(name: str) -> None:
    work = timed({"window": "nights", "duration": 8 * HOUR, "gpus": 8}, {"submit": 7 * HOUR, "gpus": 8}, nodes=1)
    outcome = simulate(work, policy_named(name, work))
    # From midnight until six, and from eight in the evening on.
    assert outcome.world.runs.start[0] == 0
    assert outcome.world.runs.stop[0] == 6 * HOUR + 20
    assert outcome.world.ended.tolist() == [20 * HOUR + 60 + 2 * HOUR, 7 * HOUR + 100]
    figures = measure(outcome)
    assert (figures.window_stops, figures.mean_wait_in_windows) == (1, 0)
    assert outcome.world.queued[0] == 14 * HOUR - 20


@pytest.mark.parametrize("name", NAMES)
def test_a_job_that_may_finish_runs_on_when_its_window_closes(name: str) -> None:
    work = timed({"window": "evenings", "duration": 8 * HOUR}, {"window": "evenings", "submit": 7 * HOUR})
    outcome = simulate(work, policy_named(name, work))
    assert outcome.world.ended.tolist() == [8 * HOUR, 20 * HOUR + 100]
    assert measure(outcome).window_stops == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_window_keeps_nobody_else_waiting_and_is_waited_for_as_long_as_it_takes(name: str) -> None:
    first = {"window": "saturdays", "gpus": 16, "priority": 1}
    work = timed(first, {"submit": 60, "gpus": 16, "limit": 100})
    outcome = simulate(work, policy_named(name, work))
    assert outcome.never == ()
    assert outcome.world.ended.tolist() == [5 * DAY + 100, 160]


def test_who_could_never_start_in_its_window_is_given_up_and_told() -> None:
    work = timed({"window": "saturdays", "gpus": 800}, {"window": "nights", "submit": 7 * HOUR, "gpus": 800})
    outcome = simulate(work, policy_named("muster", work))
    assert [job for job, _ in outcome.never] == [0, 1]
    assert outcome.plans < 3_000


def test_a_window_too_short_to_get_anything_done_in_ends_the_job_and_not_the_patience() -> None:
    work = timed({"window": "moments", "duration": 3000})
    work = assemble(cluster(1, windows=WINDOWS, costs={**COSTS, "restart": 200, "grace": 0}), work.trace)
    outcome = simulate(work, policy_named("easy", work), interval=10)
    # The first run needs no restart; all others close before they have restarted.
    assert outcome.world.state.tolist() == [State.FAILED]
    assert outcome.world.window_stops[0] == HOPELESS + 1


def test_a_policy_that_starts_a_job_outside_of_its_window_is_caught() -> None:
    work = timed({"window": "nights", "submit": 7 * HOUR})
    with pytest.raises(SimulationError, match="outside of its window"):
        simulate(work, Scripted(Plan((admit(work, 0, 0),), ())))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_run_lies_outside_of_its_window_whatever_fails_and_all_work_is_done(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs: list[dict[str, Any]] = []
    for _ in range(60):
        job: dict[str, Any] = {"submit": rng.uniform(0, 3 * DAY), "gpus": int(rng.choice([1, 4, 8, 16, 24]))}
        job |= {"duration": rng.uniform(600, 9 * HOUR), "limit": 10 * HOUR, "preemptible": rng.random() < 0.8}
        if job["gpus"] >= 16:
            job |= {"min": 8, "max": 32} if rng.random() < 0.4 else {"spares": 1}
        window = str(rng.choice(["", "", "nights", "evenings", "saturdays"]))
        jobs.append(job | ({"window": window} if window else {}))
    faults = {"failures": 500, "reclaims": 0, "repair": 4 * HOUR}
    work = timed(*jobs, nodes=6, faults=faults)
    outcome = simulate(work, policy_named(name, work), seed=seed)
    assert outcome.never == ()
    world, runs = outcome.world, outcome.world.runs
    assert world.crashes.sum() > 0
    done = np.bincount(runs.job, np.array(runs.kept) * np.array(runs.worked), minlength=len(jobs))
    np.testing.assert_allclose(done, work.trace.duration * work.trace.gpus)
    for job, start, stop in zip(runs.job, runs.start, runs.stop, strict=True):
        window = work.window_of(job)
        if window is not None and window.stops:
            found = window.opening(start)
            assert found.opens <= start
            assert stop <= found.closes + COSTS["grace"]
    with_window = [job for job in range(len(jobs)) if work.window_of(job) is not None]
    assert (world.shut[with_window] <= world.queued[with_window] + 1e-6).all()
    np.testing.assert_array_equal(world.free, work.cluster.allocatable)


def test_a_window_on_the_simulations_clock() -> None:
    begins = datetime(2024, 1, 1, tzinfo=timezone.utc)
    window = Window(EffectiveWindow("0 20 * * *", 36_000, "Etc/UTC", stops=True), begins)
    assert window.opening(0) == (-4 * HOUR, 6 * HOUR)
    assert window.opening(6 * HOUR) == (20 * HOUR, 30 * HOUR)
    assert window.shut(0, 2 * DAY) == 28 * HOUR
    assert window.shut(5 * HOUR, 7 * HOUR) == HOUR
    # One that is open already is none that has passed.
    assert [window.passed(5 * HOUR, now * HOUR, DAY) for now in (7, 21, 30)] == [False, False, True]
    assert window.passed(5 * HOUR, 22 * HOUR, HOUR)
    # Ten hours fit into one night, eleven end in the next, after a restart.
    assert window.earliest_end(20 * HOUR, 10 * HOUR, 60) == 30 * HOUR
    assert window.earliest_end(20 * HOUR, 11 * HOUR, 60) == 44 * HOUR + 60 + HOUR
    # Twice the time of a start has to be left.
    assert window.may_start(6 * HOUR - 119, 60) == 20 * HOUR
    assert window.may_start(6 * HOUR - 121, 60) <= 6 * HOUR - 121
    assert window.bounds(7 * HOUR, 60) == (20 * HOUR, np.inf, 0, 10 * HOUR)
    assert window.bounds(21 * HOUR, 60) == (0, 30 * HOUR - 120, 44 * HOUR, 10 * HOUR)


def test_a_deadline_hurries_a_job_under_muster_alone() -> None:
    blocks = {"gpus": 16, "duration": 1000, "limit": 1000}
    calm = {"submit": 60, "gpus": 16, "duration": HOUR, "limit": HOUR}
    work = timed(blocks, calm, {**calm, "submit": 120, "deadline": 1000 + HOUR + 600})
    came = {name: measure(simulate(work, policy_named(name, work))) for name in NAMES}
    assert {name: (row.deadlines, row.deadlines_met) for name, row in came.items()} == {
        "fifo": (1, 0),
        "easy": (1, 0),
        "muster": (1, 1),
    }


def test_deadlines_that_leave_no_time_from_the_start_are_told_apart() -> None:
    work = timed(
        {"duration": 900, "limit": HOUR, "deadline": 1800},  # met, though its limit let nobody promise it
        {"duration": 3000, "limit": HOUR, "deadline": 1800},
        {"duration": 100, "submit": 7 * HOUR, "deadline": 19 * HOUR, "window": "nights"},
        {"duration": 3000, "gpus": 16, "limit": 3000, "submit": 10, "deadline": 3500},
        {"duration": 100},
    )
    outcome = simulate(work, policy_named("easy", work))
    figures = measure(outcome)
    assert (figures.deadlines, figures.deadlines_met, figures.deadlines_told) == (4, 1, 2)
    assert missed_told(outcome) == (
        "easy: 3 deadlines missed, the most that of the job with submit 25200, 1 GPU and queue research, by 61.7m; of "
        "2 of them limit and window left no time from the start"
    )


def test_a_job_that_never_ends_misses_its_deadline() -> None:
    work = timed({"gpus": 800, "deadline": 1800})
    told = missed_told(simulate(work, policy_named("fifo", work)))
    assert told.startswith("fifo: 1 deadline missed, the most that of the job with submit 0, 800 GPUs and ")
    assert told.endswith(", which never ended")


def placed(work: Workload) -> list[int]:
    """The racks of the first job's workers, as the planner places it alone."""
    world = World(work, 1)
    world.submit(0, 0.0)
    (admission,) = policy_named("muster", work).decide(world, 0.0).admissions
    racks: list[int] = work.cluster.domains[admission.nodes, 1].tolist()
    return racks


def test_slices_and_balance_reach_the_planner() -> None:
    racks = build(ClusterFile.model_validate({"nodes": [{"count": 6, "nodesPerRack": 3}]}))
    gang: dict[str, Any] = {"gpus": 32}
    assert placed(assemble(racks, trace(gang))) == [0, 0, 0, 1]
    assert placed(assemble(racks, trace({**gang, "balanced": "rack"}))) == [0, 0, 1, 1]
    assert placed(assemble(racks, trace({**gang, "slices": [("rack", 16)]}))) == [0, 0, 1, 1]
    assert placed(assemble(racks, trace({**gang, "slices": [("rack", 16), ("host", 8)]}))) == [0, 0, 1, 1]


def test_a_slice_that_is_not_whole_workers_is_told_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("nodes: [{count: 4}]\n")
    path = tmp_path / "trace.csv"
    path.write_text("submit,gpus,duration,queue,slices\n0,8,5,a,\n0,16,5,a,host:4\n")
    found = CliRunner().invoke(app, ["simulate", str(tmp_path / "cluster.yaml"), str(path)])
    assert found.exit_code == 2
    told = "slices must be whole workers, which have 8 GPUs on this cluster: give host a multiple of 8, not 4"
    assert f"{path}, line 3: {told}" in found.stderr


@pytest.mark.parametrize(
    ("windows", "told"),
    [
        ("", "the cluster file has no `windows`; add it there"),
        ("windows: {nights: {start: 0 20 * * *, duration: 60}}\n", "did you mean 'nights'"),
    ],
)
def test_a_window_that_the_cluster_file_lacks_is_told_by_the_line_that_names_it(
    tmp_path: Path, windows: str, told: str
) -> None:
    (tmp_path / "cluster.yaml").write_text("nodes: [{count: 4}]\n" + windows)
    path = tmp_path / "trace.csv"
    path.write_text("submit,gpus,duration,queue,window\n0,8,5,a,\n0,8,5,a,nigths\n")
    found = CliRunner().invoke(app, ["simulate", str(tmp_path / "cluster.yaml"), str(path)])
    assert f"{path}, line 3: window names 'nigths', which the cluster file lacks; {told}" in found.stderr


def test_a_trace_without_these_columns_has_no_figures_of_them() -> None:
    work = timed({"gpus": 8})
    figures = measure(simulate(work, policy_named("muster", work))).as_dict()
    assert not {"deadlines", "deadlines_met", "deadlines_told", "mean_wait_in_windows", "window_stops", "failed"} & set(
        figures
    )


def test_the_example_meets_some_of_its_deadlines_and_keeps_its_windows() -> None:
    examples = Path(__file__).parents[3] / "examples" / "simulator"
    files = [str(examples / "offpeak.yaml"), str(examples / "offpeak.csv")]
    shown = CliRunner().invoke(app, ["simulate", *files])
    assert shown.exit_code == 0, shown.output
    lines = {line[:21].strip(): line[21:].split() for line in shown.stdout.splitlines()}
    for row in ("deadlines met", "missed, told at once", "wait in windows", "stopped by windows"):
        assert lines[row], shown.stdout
