"""The operator's own metrics."""

from __future__ import annotations

import pytest

from muster.telemetry.metrics import Metrics

pytestmark = pytest.mark.unit


def test_the_goodput_of_a_job_goes_with_the_job() -> None:
    metrics = Metrics()
    metrics.tell_goodput([("research", "llama", 0.75), ("research", "bert", 0.9)])
    assert b'muster_goodput_ratio{job="llama",namespace="research"} 0.75' in metrics.text()
    metrics.tell_goodput([("research", "bert", 0.91)])
    assert b"llama" not in metrics.text()
    assert b'muster_goodput_ratio{job="bert",namespace="research"} 0.91' in metrics.text()
