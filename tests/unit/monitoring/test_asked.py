"""What dashboards ask for, with their variables filled in."""

from __future__ import annotations

import pytest
from hack.monitoring import asked
from hack.monitoring.dashboards import DASHBOARDS

pytestmark = pytest.mark.unit

VALUES = {
    "cluster": ".*",
    "namespace": ".*",
    "queue": ".*",
    "job": "llama",
    "currency": "EUR",
    "__rate_interval": "2m",
    "__range": "6h",
}


def test_every_variable_of_every_dashboard_is_filled_in() -> None:
    for board in DASHBOARDS:
        queries = asked.queries(board.model(), VALUES)
        assert len(queries) == sum(len(panel.queries) for panel in board.panels)
        assert not [query for query in queries if "$" in query.expression]


def test_a_variable_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        asked.filled('up{job="$job"}', {})


def test_choices_are_asked_for_by_label_values() -> None:
    (job,) = [board for board in DASHBOARDS if board.uid == "muster-job"]
    choices = {choice.name: choice for choice in asked.choices(job.model())}
    assert set(choices) == {"cluster", "namespace", "queue", "job"}
    assert (choices["job"].label, choices["job"].every) == ("job_name", "")
    assert choices["queue"] == asked.Choice("queue", 'muster_queue_weight{cluster=~"$cluster"}', "queue", ".*")


@pytest.mark.parametrize(
    ("legend", "labels", "name"),
    [
        ("{{namespace}}/{{job_name}}", {"namespace": "ns", "job_name": "j"}, "ns/j"),
        ("{{queue}} {{gpu_type}}", {"queue": "q"}, "q"),
        ("p95", {"queue": "q"}, "p95"),
        ("__auto", {"queue": "q"}, '{queue="q"}'),
        ("__auto", {}, ""),
    ],
)
def test_a_series_name_in_the_legend(legend: str, labels: dict[str, str], name: str) -> None:
    assert asked.name_of(legend, labels) == name


def test_the_metrics_of_an_expression_with_their_matchers() -> None:
    expression = 'sum(rate(muster_run_seconds_total{part="training"}[1h])) / queue:muster_gpus:sum or label_replace('
    expression += 'DCGM_FI_DEV_GPU_UTIL, "a", "muster_x", "b", "")'
    assert list(asked.selectors(expression)) == [
        'muster_run_seconds_total{part="training"}',
        "queue:muster_gpus:sum",
        "DCGM_FI_DEV_GPU_UTIL",
    ]


def test_steps_of_five_minutes_are_taken_at_whole_ones() -> None:
    assert asked.moment("sum_over_time((up)[30d:5m])", 1201.0) == 1500
    assert asked.moment("up", 1201.0) == 1201
