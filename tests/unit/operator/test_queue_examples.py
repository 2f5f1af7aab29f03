"""The examples of queues: each is read as it stands, and does what the documentation says of it."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.api.trainingqueue import TrainingQueue
from muster.cluster.queues import lineage
from muster.cluster.snapshot import build
from muster.controllers.queues import queue_inputs
from muster.scheduling.quota import Ledger

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples" / "queues").glob("*.yaml"))
NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def queues_of(path: Path) -> list[TrainingQueue]:
    return [TrainingQueue.from_raw(raw) for raw in documents(path) if raw["kind"] == "TrainingQueue"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_read_as_it_stands(path: Path) -> None:
    queues = queues_of(path)
    inputs, errors = queue_inputs(queues, NOW)
    assert inputs
    assert not errors
    assert not lineage({queue.name: queue.parent for queue in inputs}).faults
    assert [TrainingQueue.from_raw(queue.to_raw()) for queue in queues] == queues


def test_no_two_examples_share_a_queue_except_those_of_the_same_team() -> None:
    names = [queue.metadata.name for path in EXAMPLES for queue in queues_of(path)]
    assert {name for name in names if names.count(name) > 1} == {"research", "product"}


def test_every_example_is_in_the_documentation() -> None:
    listed = (ROOT / "examples" / "queues" / "README.md").read_text()
    assert EXAMPLES
    assert all(f"({path.name})" in listed for path in EXAMPLES)


def test_the_tree_gives_what_the_documentation_says() -> None:
    inputs, _ = queue_inputs(queues_of(ROOT / "examples" / "queues" / "tree.yaml"), NOW)
    shot = build(nodes=[], pods=[], jobs=[], queues=inputs, levels=[])
    books, row = Ledger(shot.queues, shot.jobs), {name: row for row, name in enumerate(shot.queues.names)}
    flavour, gpu = shot.flavours.index("H100/on-demand"), shot.resources.index("nvidia.com/gpu")
    assert books.available(row["company"], flavour, gpu) == 96
    assert books.available(row["vision"], flavour, gpu) == 128
    assert books.available(row["product"], flavour, gpu) == 64
    assert books.available(row["students"], flavour, gpu) == 8
    books.charge(row["product"], flavour, [(gpu, 64)])
    assert books.available(row["research"], flavour, gpu) == 64, "32 that never leave it, and 32 of the pot"
