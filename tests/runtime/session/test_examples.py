"""The examples do what their comments promise."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from gangs import run_gang
from hack.needs_torch import SHARDS

from muster_protocol.checkpoints.commit import read_latest
from muster_runtime.checkpoint.store import open_store

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
OUTSIDE = EXAMPLES / "outside"


def code(path: Path) -> list[str]:
    """The lines that do something."""
    return [line for line in path.read_text().splitlines() if line.strip() and not line.startswith('"""')]


def test_a_plain_loop_needs_at_most_eight_lines() -> None:
    changes = list(difflib.ndiff(code(OUTSIDE / "plain_loop.py"), code(OUTSIDE / "plain_loop_resumable.py")))
    added = [line for line in changes if line.startswith("+ ")]
    removed = [line for line in changes if line.startswith("- ")]
    assert 0 < len(added) <= 8, added
    assert len(removed) <= 1, removed


def test_the_gpt_is_short_and_marks_its_lines() -> None:
    lines = (EXAMPLES / "gpt" / "train.py").read_text().splitlines()
    assert len(lines) <= 200
    assert sum("# muster" in line for line in lines) - 1 <= 8  # the docstring explains the mark


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=SHARDS)])
def test_the_gpt_learns(strategy: str, tmp_path: Path) -> None:
    environment = {"MUSTER_STRATEGY": strategy, "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    small = ("--steps", "40", "--width", "32", "--corpus-bytes", "200000", "--workers", "1")
    result = run_gang(EXAMPLES / "gpt" / "train.py", tmp_path, 2, environment, arguments=small).check()
    line = next(line for line in result.outputs[0].splitlines() if "step 40/40" in line)
    assert float(line.split("loss ")[1].split()[0]) < 4.5, "from 5.5 for a guess"
    claim = read_latest(open_store(f"file://{tmp_path}/run"))
    assert claim is not None
    assert (claim.latest.step, claim.latest.finished) == (40, True)


def test_a_script_that_only_knows_torchrun(tmp_path: Path) -> None:
    assert "muster" not in (OUTSIDE / "torchrun_ddp.py").read_text().split('"""')[2].lower()
    result = run_gang(OUTSIDE / "torchrun_ddp.py", tmp_path, 2).check()
    assert "epoch 2: loss" in result.outputs[0]


@pytest.mark.parametrize("script", ["plain_loop.py", "plain_loop_resumable.py", "configured.py"])
def test_the_scripts_run_on_a_laptop(script: str, tmp_path: Path) -> None:
    run_gang(OUTSIDE / script, tmp_path, 1, distributed=False).check()


def test_the_plain_loop_is_the_same_training_on_one_process(tmp_path: Path) -> None:
    """Made resumable it learns as well as before; its samples come in another order."""
    losses = []
    for script in ("plain_loop.py", "plain_loop_resumable.py"):
        result = run_gang(OUTSIDE / script, tmp_path, 1, distributed=False).check()
        losses.append(float(result.output.split("epoch 5: loss ")[1].split()[0]))
    assert max(losses) < 0.15


def test_the_configured_script_takes_its_arguments_and_resumes(tmp_path: Path) -> None:
    environment = {"MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    run_gang(OUTSIDE / "configured.py", tmp_path, 2, environment, arguments=("--set", "steps=20")).check()
    again = run_gang(OUTSIDE / "configured.py", tmp_path, 2, environment, arguments=("--set", "steps=30")).check()
    assert "resumed after step 20" in again.outputs[0]
    assert "step 30/30" in again.outputs[0]


def test_the_elastic_example_trains_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    losses = []
    for ranks in (1, 3):
        result = run_gang(
            EXAMPLES / "elastic" / "train.py", tmp_path, ranks, arguments=("--steps", "12"), distributed=ranks > 1
        ).check()
        line = next(line for line in result.outputs[0].splitlines() if "step 12/12" in line)
        losses.append(float(line.split("loss ")[1].split()[0]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] < 4.5, "from 5.5 for a guess"
