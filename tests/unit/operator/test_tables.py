"""What `muster jobs` and `muster queues` show."""

from __future__ import annotations

import io
import re
from datetime import datetime, timezone
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from muster.api.placement import Placement
from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import TrainingQueue
from muster.cli.checkpoint_tables import natural
from muster.cli.printing import PlainTable, natural_width, print_sentence, print_table
from muster.cli.scene import NotThere
from muster.cli.tables import JOB_TITLES, below, budgets, job_row, queue_rows, readable
from muster.server.queues import summaries

pytestmark = pytest.mark.unit


def queue(name: str, nominal: int | None = None, *, status: dict[str, Any] | None = None, **spec: Any) -> TrainingQueue:
    if nominal is not None:
        resources = [{"name": "nvidia.com/gpu", "nominal": nominal}]
        spec["quotas"] = [{"gpuType": "H100", "capacity": "on-demand", "resources": resources}]
    return TrainingQueue.from_raw({"metadata": {"name": name}, "spec": spec, "status": status or {}})


def uses(gpus: int, borrowed: int = 0) -> dict[str, Any]:
    used = {"name": "nvidia.com/gpu", "used": str(gpus), **({"borrowed": str(borrowed)} if borrowed else {})}
    ready = {"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    flavour = {"gpuType": "H100", "capacity": "on-demand", "resources": [used]}
    return {"running": 2, "waiting": 1, "usedGpus": gpus, "usage": [flavour], "conditions": [ready]}


def test_a_queue_shows_what_it_uses_of_what_it_has_and_what_of_that_is_borrowed() -> None:
    company = queue("company", 32, status=uses(80))
    team = queue("team", 64, parent="company", status=uses(80, borrowed=16))
    assert queue_rows([company, team]) == [
        ("company", "", "open", "2", "1", "80", "H100 on-demand: 80 of 96 nvidia.com/gpu"),
        ("team", "company", "open", "2", "1", "80", "H100 on-demand: 80 of 64 nvidia.com/gpu, 16 borrowed"),
    ]
    lowered = queue_rows([queue("alone", 64, status=uses(80, borrowed=16))])
    assert lowered[0][-1] == "H100 on-demand: 80 of 64 nvidia.com/gpu, 16 beyond it", "there is nobody to borrow from"


def test_a_quota_that_names_the_whole_product_is_told_beside_its_use() -> None:
    resources = [{"name": "nvidia.com/gpu", "nominal": 64}]
    whole = queue("team", quotas=[{"gpuType": "NVIDIA-H100-80GB-HBM3", "resources": resources}], status=uses(80))
    assert [row[-1] for row in queue_rows([whole])] == ["H100 on-demand: 80 of 64 nvidia.com/gpu"]


def test_a_queue_without_quota_has_no_limit_only_where_none_above_has_one() -> None:
    rows = queue_rows([queue("root", 8), queue("leaf", parent="root"), queue("free", status=uses(8))])
    assert [row[-1] for row in rows] == [
        "H100 on-demand: 0 of 8 nvidia.com/gpu",
        "no quota of its own",
        "no limit; in use: H100 on-demand: 8 nvidia.com/gpu",
    ]


def test_a_queue_that_cannot_be_read_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    absurd = {"name": "nvidia.com/gpu", "nominal": "1e99"}  # the API server takes it
    team = queue("team", parent="company", quotas=[{"gpuType": "H100", "resources": [absurd]}])
    every = [queue("company", 32), team]
    assert [row[-1] for row in queue_rows(every)] == ["H100 on-demand: 0 of 32 nvidia.com/gpu", ""]
    assert [each.name for each in summaries(every, datetime.now(timezone.utc))] == ["company", "team"]
    older = {"metadata": {"name": "older"}, "spec": {"usageHalfLife": "9999999s"}}
    assert readable(TrainingQueue, [older, team.to_raw()]) == [team]
    assert "older is left out: spec.usageHalfLife: " in capsys.readouterr().err


def test_a_queue_shows_what_it_has_used_of_its_budgets_of_this_month() -> None:
    noon = datetime(2026, 11, 2, 12, tzinfo=timezone.utc)
    uses = [
        {"gpuType": "H100", "gpuSeconds": 3_600_000, "gpus": 8, "hourly": "20", "cost": "2500"},
        {"gpuType": "A100", "gpuSeconds": 7_200, "gpus": 0},
    ]
    found = queue(
        "research",
        budgets=[{"gpuType": "H100", "gpuHours": 40_000}, {"gpuHours": 50_000, "cost": "90000", "atLimit": "drain"}],
        status={"month": {"until": "2026-11-02T11:00:00Z", "currency": "EUR", "uses": uses}},
    )
    assert budgets(found, noon) == (
        "1,008.0 of 40,000 GPU hours H100, then hold; 1,010.0 of 50,000 GPU hours, 2,520.00 of 90,000 EUR, then drain"
    )
    assert budgets(found, datetime(2026, 12, 1, tzinfo=timezone.utc)).startswith("0.0 of 40,000 GPU hours H100")
    (row,) = summaries([found], noon)
    assert row.model_dump(by_alias=True, exclude_defaults=True)["budgets"] == [
        {"gpuType": "H100", "gpuHours": 40_000, "gpuHoursUsed": 1_008.0, "atLimit": "hold"},
        {
            "gpuHours": 50_000,
            "gpuHoursUsed": 1_010.0,
            "cost": 90_000.0,
            "costUsed": 2_520.0,
            "currency": "EUR",
            "atLimit": "drain",
        },
    ]
    assert budgets(queue("other"), noon) == ""


def test_cores_and_bytes_are_told_as_people_read_them() -> None:
    resources = [{"name": "cpu", "nominal": "1536"}, {"name": "memory", "nominal": "8Ti"}]
    (row,) = queue_rows([queue("cpus", quotas=[{"gpuType": "", "resources": resources}])])
    assert row[-1] == "without GPUs: 0 of 1536 cores, 0 GiB of 8192 GiB memory"


def test_a_queue_that_is_held_or_has_lost_its_parent_says_so() -> None:
    faults = [("Ready", "Held"), ("ParentFound", "ParentNotFound")]
    conditions = [
        {"type": kind, "status": "False", "reason": why, "lastTransitionTime": "2026-01-02T03:04:05Z"}
        for kind, why in faults
    ]
    (row,) = queue_rows([queue("lost", parent="gone", cohort=None, status={"conditions": conditions})])
    assert row[1:3] == ("gone", "Held, ParentNotFound")
    both = [conditions[0] | {"reason": "ParentNotFound"}, conditions[1]]
    assert (
        queue_rows([queue("lost", parent="gone", cohort=None, status={"conditions": both})])[0][2] == "ParentNotFound"
    )
    spent = conditions[0] | {"reason": "BudgetExhausted"}
    assert queue_rows([queue("metered", status={"conditions": [spent]})])[0][2] == "BudgetExhausted"
    (row,) = queue_rows([queue("unseen", cohort="all")])
    assert row[1:6] == ("cohort all", "", "", "", "")


def test_queues_whose_parents_lead_in_a_circle_have_what_is_their_own() -> None:
    """As the planner counts them: each is a root until that is mended."""
    one, two = queue("one", 8, parent="two", status=uses(12, borrowed=2)), queue("two", 4, parent="one", status=uses(0))
    below_them = queue("below", 2, parent="one", status=uses(0))
    assert [row[-1] for row in queue_rows([one, two, below_them])] == [
        "H100 on-demand: 12 of 10 nvidia.com/gpu, 2 borrowed",
        "H100 on-demand: 0 of 4 nvidia.com/gpu",
        "H100 on-demand: 0 of 2 nvidia.com/gpu",
    ]


def test_a_circle_of_parents_ends() -> None:
    circle = [queue("a", 8, parent="b"), queue("b", 8, parent="a")]
    assert {row[-1] for row in queue_rows(circle)} == {"H100 on-demand: 0 of 8 nvidia.com/gpu"}
    assert below("a", circle) == {"a", "b"}


def test_where_no_terminal_reads_no_line_ends_in_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a", ""), ("b", "a long sentence [with brackets]" * 10)]
    print_table(Console(markup=False), PlainTable(("NAME", "WHY"), rows))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["NAME  WHY", "a"]
    assert lines[2] == f"b     {'a long sentence [with brackets]' * 10}"


def test_a_row_is_one_line_and_its_columns_stand_below_each_other() -> None:
    written = io.StringIO()
    console = Console(markup=False, width=40, force_terminal=True, color_system="standard", file=written)
    rows = [("模型", Text("Running", "green"), "of 2\nlines\x1b[2J"), ("a", Text(""), "[x]")]
    table = PlainTable(("NAME", "PHASE", "WHY"), rows)
    assert natural_width(console, table) == len("NAME  Running  of 2 lines[2J")
    print_table(console, table)
    shown = written.getvalue()
    assert "\x1b[32mRunning\x1b[0m" in shown
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()]
    assert lines == ["NAME  PHASE    WHY", "模型  Running  of 2 lines[2J", "a              [x]"]


@pytest.mark.parametrize("columns", [20, 60])
def test_a_sentence_below_a_table_is_wrapped_where_the_terminal_ends(columns: int) -> None:
    written = io.StringIO()
    console = Console(markup=False, width=columns, force_terminal=True, color_system=None, file=written)
    print_table(console, PlainTable(("NAME", "WHY"), [("a", "as wide as it is, which is 40")]))
    print_sentence(console, "of ten columns " * 8)
    below = written.getvalue().splitlines()[2:]
    assert columns - len("columns ") < max(len(line.rstrip()) for line in below) <= columns


def test_tensors_stand_in_the_order_in_which_people_count() -> None:
    names = [
        "muster.rng",
        "optimizer.state.2",
        "model.10.weight",
        "model.3.weight",
        "model.3.bias",
        "optimizer.state.11",
    ]
    assert sorted(names, key=natural) == [
        "model.3.bias",
        "model.3.weight",
        "model.10.weight",
        "optimizer.state.2",
        "optimizer.state.11",
        "muster.rng",
    ]


def test_the_queues_below_one_are_found_and_a_wrong_name_is_answered_with_those_there_are() -> None:
    tree = [queue("root"), queue("middle", parent="root"), queue("leaf", parent="middle"), queue("other")]
    assert below("middle", tree) == {"middle", "leaf"}
    with pytest.raises(NotThere, match="no TrainingQueue 'x'; there are: leaf, middle, other, root"):
        below("x", tree)


def test_a_gang_that_has_not_the_size_it_asks_for_shows_both() -> None:
    def workers(**status: Any) -> str:
        spec = {"image": "i", "command": ["c"], "workers": {"replicas": 8, "min": 2}, "queue": "q"}
        raw = {"metadata": {"name": "j", "namespace": "n", "uid": "u"}, "spec": spec, "status": status}
        return str(job_row(TrainingJob.from_raw(raw))[JOB_TITLES.index("WORKERS")])

    assert workers() == "8"
    assert workers(placement=Placement.of(1, ["n"] * 8).to_raw()) == "8"
    assert workers(placement=Placement.of(2, ["n"] * 6).to_raw()) == "6/8"


def test_a_job_that_no_operator_has_seen_says_so_and_claims_no_gpus() -> None:
    spec = {"image": "i", "command": ["c"], "workers": {"replicas": 8}, "queue": "q"}
    job = TrainingJob.from_raw({"metadata": {"name": "j", "namespace": "n", "uid": "u"}, "spec": spec})
    row = dict(zip(JOB_TITLES, job_row(job), strict=True))
    assert (row["GPUS"], row["WHY"]) == ("", "not seen yet: does the operator run?")
