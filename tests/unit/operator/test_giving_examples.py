"""The examples of what a job allows: each is read as it stands, and means what the documentation says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from muster.api.effective import EffectiveSpec, effective_spec
from muster.api.trainingjob import TrainingJob

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "giving"


def spec(name: str) -> EffectiveSpec:
    return effective_spec(TrainingJob.from_raw(yaml.safe_load((FOLDER / f"{name}.yaml").read_text())).spec)


def test_a_job_that_says_nothing_is_preemptible_and_not_elastic() -> None:
    plain = spec("slices")
    assert (plain.preemptible, plain.budget, plain.partial, plain.capacity) == (True, None, False, ())
    assert (plain.min_replicas, plain.max_replicas, plain.step) == (16, 16, 1)
    assert plain.slices == ((4, "rack"),)


def test_what_the_others_allow() -> None:
    assert not spec("never").preemptible
    assert (spec("budget").budget, spec("budget").budget_window) == (2, 86400)
    elastic = spec("elastic")
    assert (elastic.min_replicas, elastic.replicas, elastic.max_replicas, elastic.step, elastic.partial) == (
        4,
        8,
        16,
        2,
        True,
    )
    assert (spec("spot").capacity, spec("spot").fallback_after) == (("spot", "on-demand"), 600)
    assert (spec("cheapest").capacity, spec("cheapest").cheapest) == (("reserved", "spot", "on-demand"), True)
    assert not spec("spot").cheapest
