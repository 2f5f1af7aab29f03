"""Figures, tables, plots and the command."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from muster.cli.app import app
from muster.scheduling.plan import Plan
from muster.simulate import trace as traces
from muster.simulate.cluster import ClusterFile, build
from muster.simulate.engine import simulate
from muster.simulate.measures import jain, measure
from muster.simulate.plots import draw, log_ticks, number
from muster.simulate.policies import policy_named
from muster.simulate.tables import COLUMNS, duration
from muster.simulate.workload import assemble

from .samples import Scripted, admit, trace, workload

pytestmark = pytest.mark.unit

CLUSTER = "nodes: [{count: 2}]\nfaults: {failures: 0}\n"
JOBS = "submit,gpus,duration,queue,user,limit\n0,8,600,vision,ann,700\n0,16,300,vision,bob,300\n60,1,30,vision,ann,60\n"


def test_figures_of_a_run_done_by_hand() -> None:
    work = workload(
        {"gpus": 8, "duration": 600},
        {"gpus": 16, "duration": 300, "user": 1},
        {"submit": 1200, "gpus": 8, "duration": 60},
    )
    policy = Scripted(Plan((admit(work, 0, 0),), ()), Plan((admit(work, 1, 0, 1),), ()), Plan((admit(work, 2, 0),), ()))
    figures = measure(simulate(work, policy, interval=60))
    assert figures.mean_wait == pytest.approx((0 + 600 + 0) / 3)
    assert figures.mean_completion == pytest.approx((600 + 900 + 60) / 3)
    # In 1,200 s: 8 GPUs for 600 s and 16 for 300 s, of 16.
    assert figures.utilisation == pytest.approx((8 * 600 + 16 * 300) / (16 * 1200))
    assert figures.useful == figures.utilisation
    assert figures.lost == 0
    assert figures.fairness == pytest.approx(jain(np.array([1.0, 3.0])))
    assert figures.even_speeds == pytest.approx(jain(np.array([1.0, 1 / 3])))
    assert figures.makespan == 1260
    assert figures.never == 0


def test_use_is_counted_to_the_last_end_where_all_jobs_are_submitted_at_once() -> None:
    work = workload({"gpus": 8, "duration": 600}, {"gpus": 16, "duration": 300})
    policy = Scripted(Plan((admit(work, 0, 0),), ()), Plan((admit(work, 1, 0, 1),), ()))
    figures = measure(simulate(work, policy, interval=60))
    assert figures.utilisation == figures.useful == pytest.approx((8 * 600 + 16 * 300) / (16 * 900))
    large = workload({"gpus": 99})
    nobody = measure(simulate(large, policy_named("fifo", large), interval=60))
    assert (nobody.utilisation, nobody.useful) == (0, 0)


def test_no_more_is_in_use_than_there_is_also_within_the_notice_of_a_reclaim() -> None:
    faults = {"failures": 0, "reclaims": 20_000, "notice": 3600, "absence": 1}
    spot = {"nodes": [{"count": 4, "capacity": "spot"}], "costs": {"grace": 3600, "checkpoint": 600}, "faults": faults}
    jobs = trace(*({"submit": 1000.0 * job, "gpus": 8, "duration": 20_000} for job in range(20)))
    work = assemble(build(ClusterFile.model_validate(spot)), jobs)
    outcome = simulate(work, policy_named("fifo", work))
    figures = measure(outcome)
    assert outcome.world.evictions.sum() > 5
    assert 0.4 < figures.useful <= figures.utilisation <= 1


def test_fragmentation_is_of_the_time_that_jobs_waited_however_short() -> None:
    jobs = ({"gpus": 4, "duration": 300}, {"gpus": 4, "duration": 540}, {"submit": 60, "gpus": 16, "duration": 60})
    work = workload(*jobs)
    policy = Scripted(
        Plan((admit(work, 0, 0), admit(work, 1, 1)), ()), Plan((), ()), Plan((), ()), Plan((admit(work, 2, 0, 1),), ())
    )
    # From 60 on the third waits: until 300 of 8 idle GPUs all are on partly used nodes, then until 540 4 of 12.
    assert measure(simulate(work, policy)).fragmentation == pytest.approx((8 * 240 + 4 * 240) / (8 * 240 + 12 * 240))


def test_jain_is_one_for_equals_and_one_nth_for_one_of_n() -> None:
    assert jain(np.full(7, 3.0)) == pytest.approx(1)
    assert jain(np.array([5.0, 0, 0, 0])) == pytest.approx(0.25)
    assert jain(np.empty(0)) == 1


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0s"), (119, "119s"), (120, "2.0m"), (7200, "2.0h"), (200_000, "2.3d")]
)
def test_durations_are_short(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_durations_of_a_row_have_one_unit_that_of_the_shortest() -> None:
    work = workload({"gpus": 8, "duration": 600})
    figures = measure(simulate(work, policy_named("fifo", work), interval=60))
    waits = dict(COLUMNS)["p99 wait"]
    rows = [replace(figures, p99_wait=seconds) for seconds in (7200.0, 130.0, 0.0)]
    assert waits(rows) == ["120.0m", "2.2m", "0.0m"]
    assert waits([replace(figures, p99_wait=seconds) for seconds in (0.0, 50_000.0, 7.0)]) == ["0s", "50,000s", "7s"]


def test_nobody_who_ended_has_no_mean_in_place_of_a_mean_of_nothing() -> None:
    large = workload({"gpus": 99})
    figures = measure(simulate(large, policy_named("fifo", large), interval=60))
    assert not {"mean_completion", "mean_wait", "median_wait", "p90_wait", "p99_wait", "mean_slowdown"} & set(
        figures.as_dict()
    )
    told = {name: show([figures]) for name, show in COLUMNS}
    assert told["mean completion"] == told["mean wait"] == ["no job ended"]
    assert told["p90 wait"] == told["p99 wait"] == told["slowdown"] == [""]


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [(1, 1.8, "1 1.2 1.4 1.6 1.8"), (1, 10, "1 2 5 10"), (10, 100_000, "10 100 1,000 10,000 100,000"), (1, 1, "1")],
)
def test_a_logarithmic_axis_has_several_ticks_however_short_it_is(low: float, high: float, labels: str) -> None:
    ticks = log_ticks(np.log10(low), np.log10(high))
    assert [number(10**tick) for tick in ticks] == labels.split()


def test_plots_are_well_formed_and_have_a_line_for_each_policy(tmp_path: Path) -> None:
    work = workload({"gpus": 8}, {"gpus": 16, "user": 1}, {"submit": 4000})
    paths = draw([simulate(work, policy_named(name, work)) for name in ("fifo", "easy")], tmp_path / "plots")
    assert {path.stem for path in paths} == {"utilisation", "waiting", "fragmentation", "waits", "fairness"}
    for path in paths:
        root = ET.parse(path).getroot()
        lines = root.findall("{http://www.w3.org/2000/svg}polyline")
        assert len(lines) == 2
        for line in lines:
            points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
            assert points
            assert all(0 <= x <= 860 and 0 <= y <= 380 for x, y in points)


def test_a_curve_holds_until_it_changes_and_names_are_not_cut(tmp_path: Path) -> None:
    """One job ends 5 minutes behind the first sample, and the next comes a day later: till then half of all is idle."""
    name = "muster-no-preemption-no-backfill-no-elastic-no-promotion"
    work = workload({"gpus": 8, "duration": 300}, {"gpus": 8, "duration": 86_400}, {"submit": 86_400.0, "gpus": 8})
    outcome = replace(simulate(work, policy_named("fifo", work), interval=60), policy=name)
    draw([outcome], tmp_path)
    root = ET.parse(tmp_path / "utilisation.svg").getroot()
    (line,) = root.findall("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert all(x == before[0] or y == before[1] for before, (x, y) in pairwise(points)), "steps alone"
    half = [x for x, y in points if y == (40 + 330) / 2]
    assert max(half) - min(half) > 0.95 * 590
    legend = [each for each in root.findall("{http://www.w3.org/2000/svg}text") if each.text == name]
    assert float(legend[0].attrib["x"]) + 7 * len(name) < float(root.attrib["viewBox"].split()[2])
    (one,) = ET.parse(tmp_path / "fairness.svg").getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert len(one.attrib["points"].split()) > 1, "a single user is seen, too"


def test_the_command_shows_policies_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "trace.csv").write_text(JOBS)
    arguments = ["simulate", str(tmp_path / "cluster.yaml"), str(tmp_path / "trace.csv")]
    told = CliRunner().invoke(app, [*arguments, "--plots", str(tmp_path / "plots")])
    assert told.exit_code == 0, told.output
    for name in ("fifo", "easy", "muster"):
        assert name in told.stdout
    assert (tmp_path / "plots" / "waits.svg").exists()
    rows = json.loads(CliRunner().invoke(app, [*arguments, "-o", "json", "--policy", "easy"]).stdout)
    assert [(row["policy"], row["jobs"], row["never"]) for row in rows] == [("easy", 3, 0)]


def simulated(folder: Path, nodes: str, jobs: str, *policies: str) -> str:
    """What the command prints of a cluster of these `nodes` and a trace of these lines."""
    (folder / "cluster.yaml").write_text(f"nodes:\n{nodes}")
    (folder / "trace.csv").write_text(f"submit,gpus,duration,queue\n{jobs}")
    chosen = [word for policy in policies for word in ("--policy", policy)]
    files = [str(folder / "cluster.yaml"), str(folder / "trace.csv")]
    return CliRunner().invoke(app, ["simulate", *files, *chosen]).output


def test_jobs_that_never_end_are_told_apart_from_one_that_is_too_large_and_means_are_marked(tmp_path: Path) -> None:
    jobs = "0,4,100,a\n1,64,100,a\n2,4,100,a\n3,4,100,a\n"
    shown = simulated(tmp_path, "- {count: 2, gpus: 8}\n", jobs, "fifo", "easy")
    first = "the first with submit 1, 64 GPUs and queue a; it asks for more than the cluster's 16 GPUs"
    assert f"fifo: 3 jobs never ended, {first}, and the others never" in shown
    assert f"easy: 1 job never ended, {first}\n" in shown
    assert "of 1 of 4 jobs" in shown
    assert "of 3 of 4 jobs" in shown


def test_a_job_whose_workers_no_empty_cluster_could_hold_is_told_so_by_every_policy(tmp_path: Path) -> None:
    shown = simulated(tmp_path, "- {count: 1, gpus: 8}\n- {count: 2, gpus: 4}\n", "0,16,100,a\n", "fifo")
    assert (
        "fifo: 1 job never ended, the first with submit 0, 16 GPUs and queue a; it needs 2 workers of 8 GPUs, and the "
        "nodes of H100/on-demand have room for 1 when they are empty\n"
    ) in shown
    assert "no job ended" in shown


def test_gpus_that_no_equal_workers_can_have_are_rounded_up_aloud(tmp_path: Path) -> None:
    shown = simulated(tmp_path, "- {count: 3, gpus: 8}\n", "0,12,100,a\n1,9,100,a\n2,17,100,a\n", "fifo")
    assert (
        "workers have equal sizes, so 2 jobs took more GPUs than the trace says: the first, with submit 1, 9 GPUs and "
        "queue a, had 2 workers of 5 GPUs\n"
    ) in shown


def test_the_command_makes_traces_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    made = CliRunner().invoke(
        app, ["simulate", str(tmp_path / "cluster.yaml"), "--make-trace", str(tmp_path / "t.csv"), "--jobs", "20"]
    )
    assert made.exit_code == 0, made.output
    assert "20 jobs" in made.stdout
    told = CliRunner().invoke(app, ["simulate", str(tmp_path / "cluster.yaml"), str(tmp_path / "t.csv"), "-o", "json"])
    assert [row["jobs"] for row in json.loads(told.stdout)] == [20, 20, 20]


def test_a_trace_that_is_made_has_its_load_on_the_nodes_that_its_jobs_take(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        "nodes: [{count: 4}, {count: 60, gpuType: A100}, {count: 64, capacity: spot}]\n"
    )
    arguments = ["simulate", str(tmp_path / "cluster.yaml"), "--make-trace", str(tmp_path / "t.csv"), "--jobs", "3000"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    made = traces.read(tmp_path / "t.csv")
    assert made.kinds == (("", "", ""),), "of the first kind of nodes alone"
    assert made.work / (32 * made.submit[-1]) == pytest.approx(0.9, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give a cluster file and a trace"),
        (["none.yaml", "none.csv"], "cannot read the cluster file none.yaml"),
        (["--make-trace", "t.csv", "--load", "0"], "a load above 0"),
        (["--make-trace", "t.csv", "--load", "1e-300"], "years: give a higher load or fewer jobs"),
        (["--make-trace", "/nowhere/t.csv"], "cannot write /nowhere/t.csv"),
    ],
)
def test_what_is_wrong_is_a_sentence(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_folder_for_plots_that_cannot_be_is_told_before_anything_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "trace.csv").write_text(JOBS)
    (tmp_path / "file").touch()
    files = [str(tmp_path / "cluster.yaml"), str(tmp_path / "trace.csv")]
    found = CliRunner().invoke(app, ["simulate", *files, "--plots", str(tmp_path / "file")])
    assert (found.exit_code, found.stdout, f"cannot write {tmp_path}/file" in found.stderr) == (2, "", True)


def test_the_table_is_as_wide_as_it_is_into_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "trace.csv").write_text(JOBS)
    files = [str(tmp_path / "cluster.yaml"), str(tmp_path / "trace.csv")]
    found = CliRunner().invoke(app, ["simulate", *files], env={"COLUMNS": "20"})
    assert found.stdout.splitlines()[0].startswith("3 jobs of")
    assert found.stdout.splitlines()[1].split() == ["fifo", "easy", "muster"]
