"""Killed anywhere and resumed: every bit is the same. Four ranks, several DDP buckets, dropout, AdamW."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from gangs import Result, run_gang
from hack.needs_torch import SHARDS

STEPS = 24
EVERY = 4
PLACES = ("forward", "backward", "step", "before-manifest", "before-latest")


def train(folder: Path, strategy: str, ranks: int = 4, kill: str = "", **more: str) -> Result:
    environment = {
        "FOLDER": str(folder),
        "STEPS": str(STEPS),
        "MUSTER_STRATEGY": strategy,
        "MUSTER_CHECKPOINT_URI": f"file://{folder}/checkpoints",
        "MUSTER_CHECKPOINT_EVERY_STEPS": str(EVERY),
        "MUSTER_CHECKPOINT_KEEP_LAST": "2",
        **({"KILL": kill} if kill else {}),
        # so that no save is left out for the one before, and the kill finds its step
        **({"MUSTER_CHECKPOINT_BLOCKING": "1"} if ":before" in kill else {}),
        **more,
    }
    half = ranks // 2 if strategy == "hsdp" else ranks
    return run_gang("bits.py", folder, ranks, environment, kill_peers=True, ranks_per_worker=half)


def records(folder: Path, ranks: int = 4) -> dict[tuple[int, int], dict[str, Any]]:
    """(rank, step) -> what was trained there. A step that was trained twice must have come out the same."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for rank in range(ranks):
        for line in (folder / f"record-{rank}.jsonl").read_text().splitlines():
            entry = json.loads(line)
            assert found.setdefault((rank, entry["step"]), entry) == entry, f"rank {rank}, step {entry['step']}"
    return found


def finals(folder: Path, ranks: int = 4) -> list[dict[str, Any]]:
    return [json.loads((folder / f"final-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs that nobody disturbed, by strategy."""
    made: dict[str, Path] = {}

    def get(strategy: str) -> Path:
        if strategy not in made:
            made[strategy] = tmp_path_factory.mktemp(strategy)
            train(made[strategy], strategy).check()
        return made[strategy]

    return get


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=SHARDS)])
def test_killed_at_random_steps_every_bit_is_the_same(strategy: str, tmp_path: Path, undisturbed: Any) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails
    chance = random.Random(seed)
    steps = sorted(chance.sample(range(1, STEPS), 5))
    for at in steps:
        place = chance.choice(PLACES)
        rank = 0 if place.startswith("before") else chance.randrange(4)
        step = -(-at // EVERY) * EVERY if place.startswith("before") else at
        result = train(tmp_path, strategy, kill=f"{step}:{place}:{rank}")
        assert -9 in result.codes, f"not killed at {step}:{place}:{rank}\n{result.output}"
    train(tmp_path, strategy).check()
    reference = undisturbed(strategy)
    assert records(tmp_path) == records(reference)
    assert finals(tmp_path) == finals(reference)


def test_the_ddp_runs_have_several_buckets(undisturbed: Any) -> None:
    for final in finals(undisturbed("ddp")):
        assert len(final["buckets"].split(",")) >= 3, final["buckets"]


@SHARDS
def test_fsdp_holds_less_than_six_tenths_of_the_parameters(undisturbed: Any) -> None:
    whole = [final["held"] for final in finals(undisturbed("ddp"))]
    shards = [final["held"] for final in finals(undisturbed("fsdp"))]
    assert all(shard < 0.6 * full for shard, full in zip(shards, whole, strict=True)), (shards, whole)


@SHARDS
def test_strategies_agree(undisturbed: Any) -> None:
    ddp, fsdp = records(undisturbed("ddp")), records(undisturbed("fsdp"))
    for key, entry in ddp.items():
        assert entry["ids"] == fsdp[key]["ids"]
        assert float.fromhex(entry["loss"]) == pytest.approx(float.fromhex(fsdp[key]["loss"]), rel=1e-4)
