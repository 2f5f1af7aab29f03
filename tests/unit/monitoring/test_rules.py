"""Rules and alerts: what they read exists, each has its runbook, and each alert fires when it should and not before."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hack.prometheus import program
from tests.unit.monitoring import rules

from muster.cli.app import app
from muster.telemetry.metrics_declared import ALL

pytestmark = pytest.mark.unit

SERIES: Final = frozenset(name for metric in ALL for name in metric.series)
RUNBOOKS: Final = rules.ROOT / "docs" / "runbooks"

JOB: Final = 'namespace="ns",job_name="j"'
POD: Final = f'{JOB},index="0",pod="j-g1-0-0"'
GPU: Final = f'{POD},gpu="0",uuid="U",model="H100"'


@dataclass(frozen=True)
class Case:
    """Series in promtool's notation, one sample a minute: the alert fires at `at` with `firing`, not with `quiet`."""

    alert: str
    firing: dict[str, str]
    quiet: dict[str, str]
    at: str = "45m"


def utilization(value: float) -> dict[str, str]:
    return {
        f"muster_worker_ranks_running{{{POD}}}": "1x200",
        'DCGM_FI_DEV_GPU_UTIL{exported_namespace="ns",exported_pod="j-g1-0-0",gpu="0",UUID="U"}': f"{value}x200",
    }


def own_utilization(value: float) -> dict[str, str]:
    return {
        f"muster_worker_ranks_running{{{POD}}}": "1x200",
        f"muster_worker_gpu_utilization_ratio{{{GPU}}}": f"{value}x200",
    }


def beside_dcgm(value: float) -> dict[str, str]:
    """As `own_utilization`, of a cluster beside one where the DCGM exporter tells of a pod of the same name."""
    clusters = {"a": utilization(70), "b": own_utilization(value)}
    return {
        series.replace("{", f'{{cluster="{cluster}",'): values
        for cluster, told in clusters.items()
        for series, values in told.items()
    }


def quota(owed: int) -> dict[str, str]:
    return {
        'muster_queue_waiting_gpus{queue="q"}': "8x200",
        'muster_queue_oldest_wait_seconds{queue="q"}': "3600x200",
        'muster_queue_owed_wait_seconds{queue="q"}': f"{owed}x200",
    }


def ended(failed: str, succeeded: str) -> dict[str, str]:
    return {
        'muster_jobs_finished_total{queue="q",outcome="Failed"}': failed,
        'muster_jobs_finished_total{queue="q",outcome="Succeeded"}': succeeded,
    }


def plans(bound: str) -> dict[str, str]:
    """All plans take at most so long."""
    bounds = ["1", "2.5", "10", "+Inf"]
    return {
        f'muster_plan_duration_seconds_bucket{{le="{each}"}}': "0+5x200" if float(each) >= float(bound) else "0x200"
        for each in bounds
    }


COMMITTED: Final = f"muster_worker_checkpoint_last_committed_timestamp_seconds{{{POD}}}"
FAILED: Final = f"muster_worker_checkpoint_last_failed_timestamp_seconds{{{POD}}}"
FELL_BACK: Final = f"muster_worker_checkpoint_last_fallback_timestamp_seconds{{{POD}}}"
STRAGGLER: Final = f'muster_worker_straggler_factor{{{POD},rank="3"}}'
ECC: Final = f'muster_worker_gpu_ecc_errors_total{{{GPU},kind="%s"}}'
XID: Final = 'DCGM_FI_DEV_XID_ERRORS{Hostname="n",gpu="0",UUID="U"}'
BUDGET: Final = 'muster_queue_budget_used_ratio{queue="q",gpu_type="",unit="cost"}'
QUARANTINED: Final = 'muster_node_quarantined{node="n"}'

CASES: Final = (
    Case("MusterJobUnderused", utilization(30), utilization(70), at="90m"),
    Case("MusterJobUnderused", own_utilization(0.3), own_utilization(0.7), at="90m"),
    Case("MusterJobIdleGPUs", utilization(1), utilization(30)),
    Case("MusterJobIdleGPUs", beside_dcgm(0.01), beside_dcgm(0.3)),
    Case(
        "MusterQueueWaitLong",
        {'muster_queue_oldest_wait_seconds{queue="q"}': "86000+60x200"},
        {'muster_queue_oldest_wait_seconds{queue="q"}': "3600x200"},
    ),
    Case(  # another operator takes over while the job waits on
        "MusterQueueWaitLong",
        {
            'muster_queue_oldest_wait_seconds{queue="q",pod="a"}': "90000+60x42 stale",
            'muster_queue_oldest_wait_seconds{queue="q",pod="b"}': "_x42 92520+60x100",
        },
        {'muster_queue_oldest_wait_seconds{queue="q",pod="a"}': "90000+60x30 0x100"},
    ),
    Case("MusterFailureRateHigh", ended("0+0.1x200", "0+1x200"), ended("0+0.01x200", "0+1x200")),
    Case("MusterFailureRateHigh", ended("0+1x200", "0+1x200"), ended("0 1x200", "0x200")),
    Case("MusterCheckpointOld", {COMMITTED: "0x300"}, {COMMITTED: "0+60x300"}, at="2h20m"),
    Case(
        "MusterCheckpointFailing",
        {COMMITTED: "600x200", FAILED: "0x20 1200x180"},
        {COMMITTED: "600x200", FAILED: "0x200"},
    ),
    Case(
        "MusterCheckpointFailing",
        {COMMITTED: "600x200", FAILED: "0x20 1200x10 1800x10 2400x160"},
        {COMMITTED: "600x24 1500x176", FAILED: "0x20 1200x180"},  # the next save went well
    ),
    Case("MusterCheckpointDamaged", {FELL_BACK: "0x20 1200x180"}, {FELL_BACK: "0x200"}, at="50m"),
    Case("MusterCheckpointDamaged", {FELL_BACK: "0x20 4000x180"}, {FELL_BACK: "1200x200"}, at="85m"),
    Case("MusterStraggler", {STRAGGLER: "1.8x200"}, {STRAGGLER: "1.8x20 _x140"}),
    Case("MusterNodeQuarantined", {QUARANTINED: "1x200"}, {QUARANTINED: "1x20 _x140"}),
    Case("MusterGPUXid", {XID: "0x38 79x20"}, {XID: "79x200"}),
    Case(
        "MusterGPUXid",
        # A launcher has no series of a code before its first error.
        {f'muster_worker_gpu_xid_errors_total{{{GPU},xid="79"}}': "_x38 1x20"},
        {f'muster_worker_gpu_xid_errors_total{{{GPU},xid="79"}}': "1x200"},
    ),
    Case(
        "MusterGPUXid",
        {f'muster_worker_gpu_xid_errors_total{{{GPU},xid="79"}}': "1x38 2x20"},
        {f'muster_worker_gpu_xid_errors_total{{{GPU},xid="79"}}': "_x10 1x200"},
    ),
    Case("MusterGPUMemoryErrors", {ECC % "uncorrected": "0x38 1x20"}, {ECC % "corrected": "0x38 9x20"}),
    Case(
        "MusterCostSpike",
        {f"muster_job_cost_per_hour{{{JOB}}}": "10x60 40x60"},
        {f"muster_job_cost_per_hour{{{JOB}}}": "10x60 12x60"},
        at="100m",
    ),
    Case("MusterBudgetNearEnd", {BUDGET: "0.95x200"}, {BUDGET: "0.8x200"}),
    Case(
        "MusterOperatorDown", {'muster_operator_leader{pod="a"}': "0x200"}, {'muster_operator_leader{pod="a"}': "1x200"}
    ),
    Case(
        "MusterOperatorDown",
        {},
        {'muster_operator_leader{pod="a"}': "1x200", 'muster_operator_leader{pod="b"}': "0x200"},
    ),
    Case(  # of two clusters one has a leader
        "MusterOperatorDown",
        {
            'muster_operator_leader{cluster="a",pod="a"}': "0x200",
            'muster_operator_leader{cluster="a",pod="b"}': "0x200",
            'muster_operator_leader{cluster="b",pod="a"}': "1x200",
        },
        {
            'muster_operator_leader{cluster="a",pod="a"}': "0x200",
            'muster_operator_leader{cluster="a",pod="b"}': "1x200",
            'muster_operator_leader{cluster="b",pod="a"}': "1x200",
        },
    ),
    Case("MusterOperatorSlow", plans("10"), plans("1")),
    Case(
        "MusterOperatorSlow",
        {"muster_operator_work_queue_age_seconds": "60x200"},
        {"muster_operator_work_queue_age_seconds": "1x200"},
    ),
    Case(
        "MusterOperatorErrors",
        {"muster_operator_reconcile_errors_total": "0+1x200"},
        {"muster_operator_reconcile_errors_total": "7x200"},
    ),
    Case(
        "MusterOperatorBlind",
        {'muster_operator_watch_age_seconds{path="/api/v1/pods"}': "30x30 0+60x170"},
        {'muster_operator_watch_age_seconds{path="/api/v1/pods"}': "30x20 90 150 210 270 330 5x180"},
    ),
    Case("MusterHistoryDown", {"muster_history_up": "0x200"}, {"muster_history_up": "1x20 0x10 1x200"}),
    Case(
        "MusterHistoryDown",
        {"muster_history_dropped_rows_total": "0x20 0+5x200"},
        {"muster_history_dropped_rows_total": "7x200"},
    ),
    Case(  # a row that the database refuses comes once, and its job's cost is wrong for good
        "MusterHistoryDown",
        {"muster_history_dropped_rows_total": "0x20 1x200"},
        {"muster_history_dropped_rows_total": "_x20 0x200"},
    ),
    Case("MusterQuotaStarved", quota(3600), quota(60)),
)


def promtool(*arguments: str | Path, folder: Path) -> str:
    """What it said, if anything was wrong."""
    command = [program("promtool"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def written(folder: Path) -> list[str]:
    """The rules as files in `folder`."""
    for name in ("recording", "alerts"):
        (folder / f"{name}.yaml").write_text(rules.text(name))
    return ["recording.yaml", "alerts.yaml"]


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    assert promtool("check", "rules", *written(tmp_path), folder=tmp_path) == ""


def alerts_of(case: Case, *, firing: bool) -> dict[str, Any]:
    """A test for promtool. It compares all labels and annotations, so of the alert only whether it fires is asked."""
    series = case.firing if firing else case.quiet
    query = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing"}}) > bool 0'
    samples = [{"labels": "{}", "value": 1}] if firing else []
    return {
        "interval": "1m",
        "name": f"{case.alert} {'fires' if firing else 'is quiet'}",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": case.at, "exp_samples": samples}],
    }


def test_each_alert_fires_when_it_should_and_is_quiet_else(tmp_path: Path) -> None:
    tests = [alerts_of(case, firing=firing) for case in CASES for firing in (True, False)]
    document = {"rule_files": written(tmp_path), "evaluation_interval": "5m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    assert promtool("test", "rules", "tests.yaml", folder=tmp_path) == ""


def test_errors_that_end_by_themselves_call_nobody(tmp_path: Path) -> None:
    """A job is made anew under its name, and its old pods save for four minutes before they go."""
    asked = 'count(ALERTS{alertname="MusterOperatorErrors",alertstate="firing"}) > bool 0'
    test = {
        "interval": "1m",
        "input_series": [{"series": "muster_operator_reconcile_errors_total", "values": "0x20 1+2x4 9x60"}],
        "promql_expr_test": [{"expr": asked, "eval_time": f"{at}m", "exp_samples": []} for at in range(20, 60)],
    }
    document = {"rule_files": written(tmp_path), "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    assert promtool("test", "rules", "tests.yaml", folder=tmp_path) == ""


@pytest.mark.parametrize(("seconds", "score"), [((2, 3), 1.5), ((2, 3, 6), 2.0), ((2,), 1.0)])
def test_the_slowest_rank_is_held_against_the_middle_one_of_two_against_the_faster(
    tmp_path: Path, seconds: tuple[int, ...], score: float
) -> None:
    """As the launcher does, which names it."""
    series = {
        f'muster_worker_{what}_total{{{JOB},rank="{rank}"}}': f"0+{each}x200"
        for rank, own in enumerate(seconds)
        for what, each in (("own_seconds", own * 10), ("steps", 10))
    }
    asked = {"expr": "round(max(rank:muster_straggler_score:ratio), 0.01)", "eval_time": "45m"}
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{**asked, "exp_samples": [{"labels": "{}", "value": score}]}],
    }
    document = {"rule_files": written(tmp_path), "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    assert promtool("test", "rules", "tests.yaml", folder=tmp_path) == ""


TAKEN_OVER: Final = {
    f'muster_job_info{{{JOB},queue="q",gpu_type="H100",capacity="spot"}}': 1,
    f"muster_job_gpus{{{JOB}}}": 8,
    f"muster_job_cost_per_hour{{{JOB}}}": 16,
    'muster_fleet_gpus{gpu_type="H100",capacity="spot"}': 64,
    'muster_gpu_price_per_hour{gpu_type="H100",capacity="spot",currency="USD"}': 2,
}
"""Series of an operator that leads."""


@pytest.mark.parametrize(
    ("record", "value"),
    [
        ("queue:muster_gpus:sum", 8),
        ("queue:muster_cost_per_hour:sum", 16),
        ("queue:muster_waste_per_hour:sum", 16),
        ("cluster:muster_cost_per_hour:sum", 16),
        ("cluster:muster_fleet_cost_per_hour:sum", 128),
    ],
)
def test_while_an_operator_takes_over_from_another_each_thing_counts_once(
    tmp_path: Path, record: str, value: int
) -> None:
    """For a scrape or two Prometheus has the series of both: the next one's come before the other's count as old."""
    told = {"a": "{}x20 stale", "b": "_x19 {}x20"}
    series = {
        series.replace("}", f',pod="{pod}"}}'): values.format(number)
        for series, number in TAKEN_OVER.items()
        for pod, values in told.items()
    }
    series[f'muster_run_seconds_total{{{JOB},part="starting"}}'] = "0+60x40"
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": f"sum({record})", "eval_time": at, "exp_samples": [{"labels": "{}", "value": value}]}
            for at in ("18m", "19m", "20m", "22m")
        ],
    }
    document = {"rule_files": written(tmp_path), "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    assert promtool("test", "rules", "tests.yaml", folder=tmp_path) == ""


def test_each_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == {rule["alert"] for rule in rules.ALERTS}


@pytest.mark.parametrize("rule", [*rules.ALERTS, *rules.rules("recording")], ids=lambda rule: next(iter(rule.values())))
def test_rules_read_what_exists(rule: dict[str, Any]) -> None:
    found = rules.names(rule["expr"])
    assert found
    assert found <= SERIES | rules.DCGM | set(rules.RECORDED)


@pytest.mark.parametrize("rule", rules.ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_tells_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"
    page = (RUNBOOKS / f"{rule['alert']}.md").read_text()
    assert page.startswith(f"# {rule['alert']}\n")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == ["What it means", "How to see", "How to mend it"]
    assert rule["alert"] in (RUNBOOKS / "README.md").read_text()


def test_no_summary_tells_in_words_what_a_threshold_says_in_figures() -> None:
    """Another threshold would make it untrue."""
    table = (RUNBOOKS / "README.md").read_text()
    for summary in (rule["annotations"]["summary"] for rule in rules.ALERTS):
        assert not re.search(r"half|third|quarter|twenty|nothing", summary), summary
        assert re.sub(r"{{ \$labels\.(\w+) }}", r"`\1`", summary) in table or "{{ if" in summary


def test_no_threshold_is_left_open_or_unused() -> None:
    source = (rules.CHART / "rules" / "alerts.yaml").read_text()
    assert set(re.findall(r"@(\w+)@", source)) == {*rules.VALUES["thresholds"], "runbookUrl"}


def test_runbooks_name_only_commands_that_exist() -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {group.name for group in app.registered_groups if group.name}
    for page in RUNBOOKS.glob("Muster*.md"):
        used = set(re.findall(r"(?:^|`)muster ([a-z]+)", page.read_text(), re.MULTILINE))
        assert used <= known, page.name
