"""The examples of topology: each is read as it stands, and asks for levels that the example of levels has."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.api.topology import Topology
from muster.api.trainingjob import TrainingJob

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "topology"
JOBS = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "levels")


def document(path: Path) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load(path.read_text())
    return raw


def levels() -> list[str]:
    return [level.name for level in Topology.from_raw(document(FOLDER / "levels.yaml")).spec.levels]


def test_levels_are_the_ones_that_the_planner_reads() -> None:
    assert document(FOLDER / "levels.yaml")["metadata"]["name"] == "default"
    assert levels() == ["block", "rack", "host"]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_job_asks_for_levels_that_there_are_from_wide_to_narrow(path: Path) -> None:
    job = TrainingJob.from_raw(document(path))
    topology = job.spec.topology
    assert topology is not None
    slices = topology.slices or ()
    named = [topology.level, *(each.level for each in slices)]
    rows = [levels().index(name) for name in named if name]
    assert rows == sorted(set(rows))
    assert topology.balanced is None or topology.balanced in levels()
    sizes = [job.spec.workers.replicas, *(each.workers for each in slices)]
    assert all(wide % narrow == 0 for wide, narrow in pairwise(sizes))


def test_every_example_is_in_the_list() -> None:
    listed = (FOLDER / "README.md").read_text()
    assert JOBS
    assert all(f"({path.name})" in listed for path in FOLDER.glob("*.yaml"))
