"""What is served is what is declared, and the other way round."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hack.prometheus import program

from muster.telemetry.metrics import Metrics
from muster.telemetry.metrics_declared import ALL, OPERATOR
from muster_protocol.goodput import Spent
from muster_protocol.launcher_status import Straggler, Tracking
from muster_protocol.metrics import RUNTIME, Kind
from muster_runtime import report
from muster_runtime.launch import config
from muster_runtime.launch.gathered import GATHERED
from muster_runtime.launch.metrics import Metrics as LauncherMetrics

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]


def families(text: bytes) -> dict[str, str]:
    """Type by name."""
    lines = (line.split() for line in text.decode().splitlines() if line.startswith("# TYPE"))
    return {name: kind for _, _, name, kind in lines}


SAMPLES = [(one, one.labels[3:], 1.0) for one in GATHERED]


def launcher() -> LauncherMetrics:
    laptop = config.read({"MUSTER_CHECKPOINT_URI": "s3://bucket/run"}, ("python", "x.py"))
    return LauncherMetrics(replace(laptop, job="job", namespace="ns"), lambda: SAMPLES)


def at_work() -> LauncherMetrics:
    metrics = launcher()
    for message in (
        report.Progress(0, 4, 8, "2.5", 0.1, 1000.0, 4.0, 0.5, grad_norm="1.5"),
        report.CheckpointCommitted(0, 4, "s3://bucket/run", 1.5, 4096, 1e9),
        report.Resumed(0, 2, "s3://bucket/run"),
        report.FellBack(0, 2),
        report.StorageFailed(0, "refused"),
        report.Saving(0, 1, 60.0),
        report.Numerics(0, 4, 1, 1, "nan"),
    ):
        metrics.take(message)
    metrics.processes(1, 1)
    metrics.pace(4, 8, 2.0)
    metrics.spent(Spent(training=3.0, starting=1.0))
    metrics.tracking(Tracking(True, dropped=3))
    return metrics


def test_a_gang_that_stands_still_has_no_pace() -> None:
    """Three of its steps, and a minute, are not long; the step and the loss that it has reached stay."""
    now = [0.0]
    laptop = config.read({}, ("python", "x.py"))
    metrics = LauncherMetrics(replace(laptop, job="job", namespace="ns"), lambda: (), lambda: now[0])
    paces = ("tokens_per_second{", "samples_per_second{", "mfu_ratio{", "eta_seconds{")
    for step, seconds, lasts in ((1, 0.5, 60.0), (2, 50.0, 150.0)):
        metrics.take(report.Progress(0, step, 8, "2.5", seconds, 1000.0, 4.0, 0.5))
        for later, there in ((lasts - 1.0, True), (1.0, False), (1.0, False)):
            now[0] += later
            metrics.pace(step, 8, 2.0)
            text = metrics.text()[0].decode()
            assert [pace in text for pace in paces] == [there] * 4
            assert f'rank="0"}} {step}.0' in text
            assert "muster_worker_loss{" in text


def test_the_operator_serves_what_is_declared() -> None:
    assert families(Metrics().text()) == {one.name: one.kind.value for one in OPERATOR}


def test_the_launcher_serves_what_is_declared() -> None:
    assert families(launcher().text()[0]) == {one.name: one.kind.value for one in RUNTIME}


def test_promtool_has_nothing_to_say_about_a_launchers_metrics() -> None:
    metrics = at_work()
    metrics.stragglers([Straggler(1, 0, 2.0, 0.2, 0.1)])
    done = subprocess.run([program("promtool"), "check", "metrics"], input=metrics.text()[0], capture_output=True)
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_a_launcher_at_work_has_a_value_for_each() -> None:
    text = at_work().text()[0].decode()
    without = {one.name for one in RUNTIME if not any(f"\n{series}{{" in text for series in one.series)}
    assert without == {"muster_worker_straggler_factor"}, "nobody is slow"


def test_what_has_not_happened_yet_is_zero() -> None:
    """Prometheus doesn't see a counter increase that first appears as 1."""
    text = launcher().text()[0].decode()
    for name in ("muster_worker_checkpoint_failures_total", "muster_worker_checkpoint_bytes_total"):
        assert re.search(rf"^{name}{{.*}} 0\.0$", text, re.MULTILINE)


def test_names_are_unique_and_follow_the_rules() -> None:
    assert len({one.name for one in ALL}) == len(ALL)
    for one in ALL:
        assert one.name.startswith("muster_")
        assert one.name.endswith("_total") is (one.kind is Kind.COUNTER)
        assert one.text.endswith(".")
        assert one.who
        assert list(one.buckets) == sorted(one.buckets)
        assert bool(one.buckets) is (one.kind is Kind.HISTOGRAM)
        assert "job" not in one.labels, "Prometheus gives it itself"
