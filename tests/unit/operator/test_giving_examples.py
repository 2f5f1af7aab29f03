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
    base = spec("base")
    assert (base.capacity, base.beyond, base.kinds) == (("on-demand",), "spot", ("on-demand", "spot"))
    assert (base.min_replicas, base.replicas, base.max_replicas, base.step) == (4, 8, 16, 2)


def test_every_size_of_a_gang_of_replicas_is_whole_and_one_replica_is_the_step() -> None:
    replicas = spec("replicas")
    assert replicas.step == 2
    assert [workers for workers in range(1, 20) if replicas.may_have(workers)] == [4, 6, 8, 10, 12, 14, 16]
    raw = yaml.safe_load((FOLDER / "replicas.yaml").read_text())
    raw["spec"]["workers"]["step"] = 4
    assert effective_spec(TrainingJob.from_raw(raw).spec).step == 4, "more than one at a time"


def test_who_starts_whole_shrinks_later_and_who_shrinks_soon_says_when() -> None:
    whole, soon = spec("whole"), spec("shrink-after")
    assert (whole.partial, whole.elastic, whole.min_replicas, whole.shrink_after) == (False, True, 4, 60)
    assert (soon.shrink_after, soon.min_replicas, soon.max_replicas, soon.partial) == (20, 6, 8, True)


def test_every_example_is_in_the_list() -> None:
    listed = (FOLDER / "README.md").read_text()
    assert all(f"({path.name})" in listed for path in FOLDER.glob("*.yaml"))
