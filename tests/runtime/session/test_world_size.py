"""Another number of ranks: the same samples in the same order, and losses that differ by rounding alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hack.needs_torch import SHARDS
from test_resume_bits import records, train

STEPS = "60"
CUT = 8


def ids(found: dict[tuple[int, int], dict[str, Any]], step: int, ranks: int) -> list[int]:
    """The global batch of a step, in rank order."""
    return [sample for rank in range(ranks) for sample in found[rank, step]["ids"]]


def loss(found: dict[tuple[int, int], dict[str, Any]], step: int, ranks: int) -> float:
    return sum(float.fromhex(found[rank, step]["loss"]) for rank in range(ranks)) / ranks


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("four")
    train(folder, "ddp", STEPS=STEPS, DROPOUT="0", WIDTH="64").check()
    return records(folder)


@pytest.mark.parametrize(
    ("before", "after", "ranks", "workers"),
    [
        ("ddp", "ddp", 2, "0"),
        pytest.param("fsdp", "fsdp", 2, "2", marks=SHARDS),
        pytest.param("fsdp", "ddp", 1, "0", marks=SHARDS),
        pytest.param("ddp", "hsdp", 4, "0", marks=SHARDS),
        pytest.param("hsdp", "none", 1, "0", marks=SHARDS),
    ],
)
def test_a_run_goes_on_with_another_gang(
    before: str, after: str, ranks: int, workers: str, tmp_path: Path, reference: dict[tuple[int, int], dict[str, Any]]
) -> None:
    settings = {"STEPS": STEPS, "DROPOUT": "0", "WIDTH": "64", "WORKERS": workers, "PIECE": "4096"}
    # a blocking save: the checkpoint of step CUT is committed when the gang dies
    first = train(tmp_path, before, kill=f"{CUT + 2}:step:1", MUSTER_CHECKPOINT_BLOCKING="1", **settings)
    assert -9 in first.codes
    for file in tmp_path.glob("record-*.jsonl"):
        file.unlink()
    second = train(tmp_path, after, ranks, **settings).check()
    assert ("random states are derived anew" in second.output) == (ranks != 4)
    found = records(tmp_path, ranks)
    assert sorted(step for rank, step in found if rank == 0) == list(range(CUT, int(STEPS)))
    for step in range(CUT, int(STEPS)):
        assert ids(found, step, ranks) == ids(reference, step, 4), f"step {step}"
        if step < CUT + 50:
            assert loss(found, step, ranks) == pytest.approx(loss(reference, step, 4), rel=1e-4), f"step {step}"


def test_an_epoch_has_each_sample_at_most_once(reference: dict[tuple[int, int], dict[str, Any]]) -> None:
    for epoch in range(5):
        seen = [sample for step in range(12 * epoch, 12 * epoch + 12) for sample in ids(reference, step, 4)]
        assert len(seen) == len(set(seen)) == 192
