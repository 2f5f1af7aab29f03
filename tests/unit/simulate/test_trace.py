"""Traces: read, written, and made."""

from __future__ import annotations

import subprocess
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from muster.scheduling.snapshot import NONE
from muster.simulate import trace as traces
from muster.simulate.cells import Form
from muster.simulate.errors import SimulationError
from muster.simulate.synthetic import DAY, LOADS, LONGEST, MENU, SEEDS, SHORTEST, SIZES, Recipe, intensity, make
from muster.simulate.workload import assemble

from .samples import cluster

pytestmark = pytest.mark.unit


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = make(Recipe(jobs=300, gpus=256, seed=4))
    path = tmp_path / "trace.csv"
    traces.write(made, path)
    read = traces.read(path)
    for name in ("submit", "duration", "limit"):
        np.testing.assert_allclose(getattr(read, name), getattr(made, name), atol=1e-3)
    for name in ("gpus", "priority", "preemptible"):
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
    assert [read.users[user] for user in read.user] == [made.users[user] for user in made.user]
    assert [read.queues[queue] for queue in read.queue] == [made.queues[queue] for queue in made.queue]


def test_elastic_jobs_and_orders_of_capacity_are_read_as_they_were_written(tmp_path: Path) -> None:
    path, again = tmp_path / "trace.csv", tmp_path / "again.csv"
    path.write_text(
        "queue,submit,gpus,duration,min,max,step,capacity,spares\n"
        "a,0,8,5,4,16,4,spot | On-Demand,\na,1,8,5,,,,,2\na,2,8,5,,24,,spot,0\n"
    )
    read = traces.read(path)
    assert read.sizes is not None
    assert read.sizes.tolist() == [[4, 16, 4], [8, 8, 0], [8, 24, 0]]
    assert read.spares is not None
    assert read.spares.tolist() == [0, 2, 0]
    assert [read.kinds[kind][1] for kind in read.kind] == ["spot|on-demand", "", "spot"]
    traces.write(read, again)
    written = traces.read(again)
    np.testing.assert_array_equal(written.sizes, read.sizes)
    np.testing.assert_array_equal(written.spares, read.spares)
    assert written.kinds == read.kinds


def test_deadlines_windows_slices_and_balance_are_read_as_they_were_written(tmp_path: Path) -> None:
    path, again = tmp_path / "trace.csv", tmp_path / "again.csv"
    path.write_text(
        "queue,submit,gpus,duration,deadline,window,slices,balanced\n"
        "a,0,32,5,100.5,nights,rack:16 | host:8,\na,1,8,5,,,,Rack\na,2,8,5,,weekends,,\n"
    )
    read = traces.read(path)
    traces.write(read, again)
    for one in (read, traces.read(again)):
        assert one.deadline is not None
        assert one.deadline.tolist() == [100.5, np.inf, np.inf]
        assert one.window is not None
        assert [one.windows[window] if window != NONE else "" for window in one.window] == ["nights", "", "weekends"]
        assert one.form is not None
        assert [one.forms[form] for form in one.form] == [
            Form((("rack", 16), ("host", 8))),
            Form(balanced="rack"),
            Form(),
        ]


def test_a_trace_without_elastic_jobs_is_written_without_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    traces.write(make(Recipe(jobs=3, gpus=64)), path)
    assert path.read_text().splitlines()[0] == ",".join(traces.REQUIRED + traces.OPTIONAL)


def test_only_four_columns_are_needed_and_rows_need_no_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("queue,submit,gpus,duration\nvision,60,8,3600\nspeech,0,1,10\n")
    read = traces.read(path)
    assert read.submit.tolist() == [0, 60]
    assert [read.queues[queue] for queue in read.queue] == ["speech", "vision"]
    assert read.users == ("vision", "speech")
    assert np.isinf(read.limit).all()
    assert read.preemptible.all()


def test_a_job_ends_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("queue,submit,gpus,duration,limit\nvision,0,8,3600,600\n")
    assert traces.read(path).duration.tolist() == [600]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty; its first line must name submit, gpus, duration, queue"),
        ("submit;gpus;duration;queue\n0;1;5;a\n", "by commas, not by semicolons, tabs or bars"),
        ("submit|gpus|duration|queue\n0|1|5|a\n", "by commas, not by semicolons, tabs or bars"),
        ("submit,gpus,duration,queue,\n0,1,5,a,\n", "column 5 has no name in the first line; name it, or take it out"),
        ("submit,gpus, ,duration,queue,\n0,1,,5,a,\n", "column 3 has no name"),
        ('"submit,gpus,duration,queue\n0,1,5,a\n', "line 2: unexpected end of data; close every quotation mark"),
        (
            "submit,gpus,duration,queue\n2026-01-05T06:00:00,1,5,a\n",
            "line 2: submit is no number: '2026-01-05T06:00:00'; write seconds, counted from the start of the trace,",
        ),
        (
            "submit,gpus,duration,queue\n0,gres/gpu=8,5,a\n",
            "line 2: gpus is no number: 'gres/gpu=8'; write a count, in plain digits",
        ),
        (
            "submit,gpus,duration,queue\n0,1,1-02:00:00,a\n",
            "line 2: duration is no number: '1-02:00:00'; write seconds, in plain digits",
        ),
        ("submit,gpus,duration,queue\n0,1,5,a,b\n", "line 2: there are more values than the 4 columns"),
        ("submit,gpus,duration\n", "no column queue"),
        ("submit,gpus,duraton,queue\n", "no column duration .is 'duraton' meant to be it"),
        ("submit,gpus,duration,queue,colour\n", "unknown columns colour; known: submit"),
        ("submit,gpus,duration,queue,topolgy\n", "unknown columns topolgy; did you mean 'topology'. Known: submit"),
        ("submit,gpus,duration,queue\n", "has no jobs"),
        (
            "submit,gpus,duration,queue,capacity\n0,1,5,a,free\n",
            r"line 2: capacity must be .* like spot\|on-demand, not 'free'",
        ),
        ("submit,gpus,duration,queue,capacity\n0,1,5,a,spot|spot\n", "line 2: capacity names spot twice"),
        ("submit,gpus,duration,queue,capacity\n0,1,5,a,spot|\n", "line 2: capacity must be"),
        ("submit,gpus,duration,queue,min\n0,8,5,a,16\n", "line 2: min must be at most the job's gpus, 8, not 16"),
        ("submit,gpus,duration,queue,max\n0,8,5,a,4\n", "line 2: max must be at least the job's gpus, 8, not 4"),
        ("submit,gpus,duration,queue,spares\n0,8,5,a,-1\n", "line 2: spares must be between 0 and 1,000, not -1"),
        ("submit,gpus,duration,queue,max,spares\n0,8,5,a,16,1\n", "line 2: spares are of jobs of one size"),
        (
            "submit,gpus,duration,queue,deadline\n9000,8,5,a,3600\n",
            "line 2: deadline must be after submit, 9000, not 3600: it is a moment",
        ),
        ("submit,gpus,duration,queue,deadline\n0,8,5,a,soon\n", "line 2: deadline is no number: 'soon'"),
        ("submit,gpus,duration,queue,balanced\n0,8,5,a,zone\n", "line 2: balanced must be block or rack or host, not"),
        (
            "submit,gpus,duration,queue,slices\n0,8,5,a,8\n",
            r"line 2: slices must be .* like rack:32\|host:8, .*not '8'",
        ),
        ("submit,gpus,duration,queue,slices\n0,8,5,a,rak:8\n", "line 2: slices must be levels .*, not 'rak:8'"),
        ("submit,gpus,duration,queue,slices\n0,8,5,a,rack:0\n", "line 2: slices must be levels .*, not 'rack:0'"),
        (f"submit,gpus,duration,queue,slices\n0,8,5,a,rack:{'8' * 5000}\n", "line 2: slices must be levels"),
        ("submit,gpus,duration,queue,slices\n0,8,5,a,rack:\u0668\n", "line 2: slices must be levels"),
        (
            "submit,gpus,duration,queue,slices\n0,8,5,a,host:8|rack:4\n",
            "from wide to narrow: rack is not narrower than ho",
        ),
        (
            "submit,gpus,duration,queue,slices\n0,8,5,a,rack:8|host:3\n",
            "give host fewer GPUs, a number that divides 8,",
        ),
        (
            "submit,gpus,duration,queue,slices\n0,8,5,a,rack:3\n",
            r"line 2: gpus must be whole slices of 3 GPUs .rack:3., ",
        ),
        (
            "submit,gpus,duration,queue,slices,topology\n0,8,5,a,rack:8,required:rack\n",
            "line 2: slices must go from wide to narrow: rack is not narrower than rack",
        ),
        (
            "submit,gpus,duration,queue,slices,max,step\n0,8,5,a,rack:8,16,4\n",
            "line 2: step must be a multiple of the slices' 8 GPUs .rack:8.: give one that is",
        ),
        ("submit,gpus,duration,queue,step\n0,8,5,a,4\n", "line 2: step is of elastic jobs: give min below max"),
        (
            "submit,gpus,duration,queue,min,step\n0,8,5,a,2,4\n",
            "line 2: gpus must be min, 2, and a multiple of step, 4",
        ),
        ("submit,gpus,duration,queue,max,step\n0,8,5,a,9,4\n", "line 2: max must be min, 8, and a multiple of step, 4"),
        ("submit,gpus,duration,queue\n0,1,x,a\n", "line 2: duration is no number: 'x'"),
        ("submit,gpus,duration,queue\n0,1,5,a\n-1,1,5,a\n", "line 3: submit must be between 0 and 10,000,000,000"),
        ("submit,gpus,duration,queue\n0,1,0,a\n", "line 2: duration must be between 0.001 and 10,000,000,000, not 0"),
        ("submit,gpus,duration,queue\n0,1,1e-300,a\n", "line 2: duration must be between 0.001"),
        ("submit,gpus,duration,queue\n1766000000000,1,5,a\n", "line 2: submit must be between 0 and 10,000,000,000"),
        ("submit,gpus,duration,queue\n0,2000000000,5,a\n", "line 2: gpus must be between 1 and 1,000,000"),
        ("submit,gpus,duration,queue\n0,1,nan,a\n", "line 2: duration must be between 0.001"),
        ("submit,gpus,duration,queue\n0,0,5,a\n", "line 2: gpus must be between 1 and"),
        ("submit,gpus,duration,queue\n0,1_0,5,a\n", "line 2: gpus is no number: '1_0'; write a count, in plain digits"),
        (
            "submit,gpus,duration,queue\n0,1,\u0665,a\n",
            "line 2: duration is no number: '\u0665'; write seconds, in plain",
        ),
        ("submit,gpus,duration,queue\n0,1.5,5,a\n", "line 2: gpus must be a whole number"),
        ("submit,gpus,duration,queue\n0,1,5,\n", "line 2: queue is empty; write a name"),
        ("submit,gpus,duration,queue\n0,1,5,a\n\n,,,\n0,1,x,a\n", "line 5: duration is no number"),
        ('submit,gpus,duration,queue,user\n0,1,5,a,"x\ny"\n0,1,x,a,u\n', "line 4: duration is no number"),
        (
            'submit,gpus,duration,queue\n0,1,5,"a\n0,1,5,b\n',
            "line 3: unexpected end of data; close every quotation mark",
        ),
        (f"submit,gpus,duration,queue\n0,1,5,{'a' * 200_000}\n", "line 2: field larger than field limit"),
        ("submit,gpus,duration,queue,queue\n0,1,5,a,b\n", "more than one column 'queue'; leave one of them"),
        ("submit,gpus,duration,queue,topology\n0,1,5,a,rack\n", "like required:rack"),
        ("submit,gpus,duration,queue,preemptible\n0,1,5,a,maybe\n", "must be true or false"),
        ("queue,submit,gpus,duration\na,0,1\n", "line 2: duration is empty; write seconds, in plain digits"),
    ],
)
def test_a_wrong_trace_says_where(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(SimulationError, match=told):
        traces.read(path)


def test_spaces_around_the_names_of_columns_are_no_part_of_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("submit, gpus ,duration, queue\n0, 8 ,5, a\n")
    read = traces.read(path)
    assert (read.gpus.tolist(), read.queues) == ([8], ("a",))


@pytest.mark.parametrize(
    ("columns", "values", "told"),
    [
        ("gpu_type", "B200", "it asks for B200/on-demand, which no node of the cluster has; there are H100/on-demand"),
        ("topology", "required:zone", "topology names the level 'zone'; there are block, rack, host"),
        ("min", "4", "whole workers, which have 8 GPUs on this cluster: give min a multiple of 8, not 4"),
    ],
)
def test_what_the_cluster_lacks_is_told_by_the_line_that_asks_for_it(
    tmp_path: Path, columns: str, values: str, told: str
) -> None:
    path = tmp_path / "trace.csv"
    empty = "," * columns.count(",")
    path.write_text(f"submit,gpus,duration,queue,{columns}\n9,8,5,a,{empty}\n5,8,5,a,{values}\n")
    with pytest.raises(SimulationError, match=rf"trace\.csv, line 3: .*{told}"):
        assemble(cluster(), traces.read(path))


def test_what_slurm_tells_becomes_a_trace_as_the_documents_say(tmp_path: Path) -> None:
    """Its jobs of seconds and of days, with and without a limit; without GPUs, and never started, they are left out."""
    documented = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()
    program = documented.split("awk -F'|' '")[1].split("}' > trace.csv")[0] + "}"
    told = (
        "1767225600|7200|billing=64,cpu=64,gres/gpu:h100=16,gres/gpu=16,mem=1T,node=2|vision|ann|1440\n"
        "1767225000|30|cpu=8,gres/gpu=8,node=1|speech|bob|UNLIMITED\n"
        "1767225001|0|cpu=8,gres/gpu=8,node=1|speech|bob|60\n"
        "1767225002|60|cpu=8,node=1|speech|bob|60\n"
        "1767225003|0||speech|bob|60\n"
    )
    made = subprocess.run(["awk", "-F|", program], input=told, capture_output=True, text=True, check=True)
    (tmp_path / "trace.csv").write_text(made.stdout)
    read = traces.read(tmp_path / "trace.csv")
    assert read.submit.tolist() == [1767225000, 1767225600]
    assert (read.gpus.tolist(), read.duration.tolist()) == ([8, 16], [30, 7200])
    assert read.limit.tolist() == [np.inf, 86_400]
    assert [read.queues[queue] for queue in read.queue] == ["speech", "vision"]
    assert read.users == ("ann", "bob")


def test_a_trace_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="cannot read the trace"):
        traces.read(tmp_path / "none.csv")


def test_the_same_recipe_makes_the_same_trace_and_another_seed_another() -> None:
    one, again, other = (make(Recipe(jobs=500, seed=seed)) for seed in (1, 1, 2))
    for field in fields(one):
        if isinstance(getattr(one, field.name), np.ndarray):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(again, field.name))
    assert not np.array_equal(one.duration, other.duration)


def test_a_spreadsheets_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\ufeffsubmit,gpus,duration,queue\n0,1,5,a\n", encoding="utf-8")
    assert str(traces.read(path)) == "1 job of 1 user in 1 queue, submitted over 0.0 minutes; 0 GPU-hours of work"


@pytest.mark.parametrize("good", [0, 5_000])
def test_a_trace_in_another_encoding_is_told_by_its_line_however_far_that_is(good: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("submit,gpus,duration,queue\n" + "0,1,5,a\n" * good + "0,1,5,caf\u00e9\n", encoding="latin-1")
    with pytest.raises(SimulationError, match=rf"trace.csv, line {good + 2}: it is not in UTF-8; save it in UTF-8$"):
        traces.read(path)


def test_rows_of_nothing_but_spaces_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("submit,gpus,duration,queue\n0,1,5,a\n , ,,\n   \n1,1,5,a\n", encoding="utf-8")
    assert len(traces.read(path)) == 2


@pytest.mark.parametrize("load", LOADS)
def test_a_trace_has_the_load_that_was_asked_for(load: float) -> None:
    made = make(Recipe(jobs=5_000, gpus=2048, load=load, seed=3))
    assert made.work / (2048 * made.submit[-1]) == pytest.approx(load, rel=0.05)


def test_traces_have_the_published_shapes() -> None:
    made = [make(Recipe(jobs=20_000, seed=seed)) for seed in SEEDS]
    duration = np.concatenate([trace.duration for trace in made])
    gpus = np.concatenate([trace.gpus for trace in made])
    assert set(gpus.tolist()) == set(SIZES)
    assert (gpus == 1).mean() > 0.5
    assert (gpus > 8).mean() < 0.1
    work = duration * gpus
    assert work[gpus > 8].sum() > 0.5 * work.sum()
    assert 150 < np.median(duration) < 300
    assert 4_000 < duration.mean() < 8_000
    assert duration.min() >= SHORTEST
    assert duration.max() <= LONGEST
    for trace in made:
        by_user = np.sort(np.bincount(trace.user, trace.duration * trace.gpus))[::-1]
        assert by_user[:8].sum() > 0.4 * by_user.sum()


def test_limits_come_from_a_menu_and_are_never_too_short() -> None:
    made = make(Recipe(jobs=20_000))
    assert set(made.limit.tolist()) <= set(MENU)
    assert (made.limit >= made.duration).all()
    assert (made.limit == MENU[-1]).mean() > 0.2
    # Not a multiple of the runtime: jobs of one limit differ widely.
    assert np.ptp(np.log10(made.duration[made.limit == MENU[0]])) > 1


def test_fewer_jobs_are_submitted_at_night_and_at_weekends() -> None:
    hours = np.arange(7 * 24) * 3600.0
    load = intensity(hours)
    assert load.max() <= 1
    assert load[4] < 0.5 * load[16]
    assert load[5 * 24 : 6 * 24].sum() < load[:24].sum()
    made = make(Recipe(jobs=80_000))
    whole = made.submit < 14 * DAY
    hour = (made.submit[whole] % DAY // 3600).astype(int)
    counts = np.bincount(hour, minlength=24)
    assert counts[4] < 0.7 * counts[16]


def test_no_job_is_larger_than_a_small_cluster() -> None:
    assert make(Recipe(jobs=500, gpus=64)).gpus.max() == 8


def test_a_trace_of_nothing_is_refused() -> None:
    with pytest.raises(SimulationError, match="load above 0"):
        make(Recipe(load=0))
