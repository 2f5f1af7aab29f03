"""The operator's own metrics, as Prometheus reads them."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timezone
from itertools import count

import pytest
from hack.monitoring import busy
from hack.prometheus import program
from prometheus_client.parser import text_string_to_metric_families

from muster.telemetry import metrics_declared as declared
from muster.telemetry.exposition import NEW_SECONDS, Store
from muster.telemetry.metrics import Metrics
from muster_protocol.metrics import Kind, Metric

pytestmark = pytest.mark.unit

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
GAUGE = Metric("a_gauge", Kind.GAUGE, "A gauge.", ("queue", "of"))
COUNTER = Metric("a_total", Kind.COUNTER, "A counter.", ("queue",))
HISTOGRAM = Metric("a_seconds", Kind.HISTOGRAM, "A histogram.", ("queue",), "", (1.0, 2.5))
PLAIN = Metric("plain", Kind.GAUGE, "Without labels.")


def store(clock: Callable[[], float] = time.monotonic) -> Store:
    return Store((GAUGE, COUNTER, HISTOGRAM, PLAIN), clock)


def settled(filled: Store) -> bytes:
    """What it tells once nothing in it is new."""
    later = count(start=0.0, step=NEW_SECONDS)
    filled._clock = lambda: next(later)
    filled.text()
    return filled.text()


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_the_text_is_prometheus_format() -> None:
    filled = store()
    filled.set(GAUGE, 0.25, "q", 'odd "value"\\\n')
    filled.count(COUNTER, 2, "q")
    filled.count(COUNTER, 0.5, "q")
    filled.set(PLAIN, math.inf)
    assert samples(settled(filled)) == {
        ("a_gauge", (("of", 'odd "value"\\\n'), ("queue", "q"))): 0.25,
        ("a_total", (("queue", "q"),)): 2.5,
        ("plain", ()): math.inf,
    }


def test_buckets_add_up() -> None:
    filled = store()
    for value in (0.5, 1.0, 2.0, 7.0):
        filled.observe(HISTOGRAM, value, "q")
    shown = samples(settled(filled))
    found = {labels[0][1]: value for (name, labels), value in shown.items() if name.endswith("bucket")}
    assert found == {"1": 2, "2.5": 3, "+Inf": 4}
    assert shown["a_seconds_sum", (("queue", "q"),)] == 10.5
    assert shown["a_seconds_count", (("queue", "q"),)] == 4


def test_what_counts_begins_at_zero_so_that_its_first_event_is_an_increase() -> None:
    now = 1_000.0
    filled = store(lambda: now)

    def told() -> list[float]:
        found = samples(filled.text())
        return [found[name, (("queue", "q"),)] for name in ("a_total", "a_seconds_count", "a_seconds_sum")]

    filled.count(COUNTER, 3, "q")
    filled.observe(HISTOGRAM, 2.0, "q")
    now += 3600  # nobody has asked meanwhile
    assert told() == [0, 0, 0]
    now += NEW_SECONDS - 1
    filled.count(COUNTER, 1, "q")
    assert told() == [0, 0, 0], "another Prometheus"
    now += 1
    assert told() == [4, 1, 2.0]
    filled.count(COUNTER, 1, "q")
    assert told() == [5, 1, 2.0], "at once"
    filled.forget("queue", ())
    filled.count(COUNTER, 1, "q")
    assert samples(filled.text()) == {("a_total", (("queue", "q"),)): 0}


def test_series_of_a_queue_that_is_gone_go() -> None:
    filled = store()
    for queue in ("kept", "gone"):
        filled.set(GAUGE, 1, queue, "x")
        filled.count(COUNTER, 1, queue)
        filled.observe(HISTOGRAM, 1, queue)
    filled.forget("queue", {"kept"})
    text = filled.text()
    assert text.count(b'queue="kept"') == 7
    assert b"gone" not in text


def test_what_is_shown_anew_takes_the_place_of_what_was() -> None:
    metrics = Metrics()
    metrics.show({declared.JOBS: {("a", "Running"): 2}})
    metrics.show({declared.JOBS: {("b", "Queued"): 1}})
    assert b'muster_jobs{queue="b",phase="Queued"} 1' in metrics.text()
    assert b'queue="a"' not in metrics.text()


def test_ten_thousand_jobs_are_four_series_each_and_with_a_thousand_queues_at_most_5_megabytes() -> None:
    metrics, queues = Metrics(), 1_000
    busy.state(metrics, NOW, jobs=10_000, queues=queues, waiting=100)()
    text = settled(metrics.store)
    lines = [line for line in text.splitlines() if not line.startswith(b"#")]
    of_jobs = [line for line in lines if b"job_name=" in line]
    assert len(of_jobs) == 4 * 10_000, "four of each job that holds GPUs, none of those that wait"
    assert len(lines) - len(of_jobs) <= 25 * queues + 200
    assert len(text) <= 5_000_000


def test_names_that_users_make_up_are_no_series() -> None:
    metrics = Metrics()
    busy.state(metrics, NOW, jobs=2, queues=2, strangers=50)()
    text = metrics.text().decode()
    assert 'muster_queue_waiting_jobs{queue="(unknown)",priority_class="(unknown)"} 50' in text
    assert 'muster_jobs{queue="(unknown)",phase="Queued"} 50' in text
    assert "none-1" not in text


def test_promtool_has_nothing_to_say_about_metrics_of_an_operator_at_work() -> None:
    metrics = Metrics()
    metrics.leads()
    metrics.request("GET", 200, 0.01)
    metrics.planned(0.2)
    busy.state(metrics, NOW, jobs=16, queues=2, waiting=1)()
    done = subprocess.run([program("promtool"), "check", "metrics"], input=metrics.text(), capture_output=True)
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_a_process_that_stands_by_says_only_so() -> None:
    found = samples(Metrics().text())
    assert found["muster_operator_leader", ()] == 0
    assert all(value == 0 for value in found.values())
    assert not [name for name, _ in found if name.startswith("muster_history_up")], "0 is an alarm, and none is kept"
