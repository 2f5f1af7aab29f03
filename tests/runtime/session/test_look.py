"""`muster checkpoint` on what real ranks have saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
from gangs import run_gang
from test_stop import STEPS, environment, script
from typer.testing import CliRunner

from muster.cli.app import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("look")
    run_gang(script(made, STEPS), made, 2, environment(made, MUSTER_CHECKPOINT_EVERY_STEPS="3")).check()
    return made


def muster(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["checkpoint", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_what_ranks_saved_is_listed_exported_and_verified(folder: Path, tmp_path: Path) -> None:
    uri = f"file://{folder}/run"
    rows = json.loads(muster("ls", uri, "-o", "json"))
    assert [(row["step"], row["worldSize"], row["keptBy"]) for row in rows] == [
        (6, 2, ["LATEST"]),
        (3, 2, ["ancestor"]),
    ]
    assert rows[0]["metrics"].keys() == {"loss"}
    assert "2 of 2 checkpoints are whole" in muster("verify", uri, "--all")
    muster("export", uri, str(tmp_path))
    shown = json.loads(muster("show", uri, "-o", "json"))
    shapes = {each["name"].removeprefix("model."): each["shape"] for each in shown["tensors"]}
    for name, tensor in safetensors.torch.load_file(tmp_path / "model.safetensors").items():
        assert list(tensor.shape) == shapes[name]
    shard = next((folder / "run").glob("step-00000003/*/rank-00000.0000.bin"))
    content = shard.read_bytes()
    shard.write_bytes(b"\xff" + content[1:])
    assert "1 of 2 checkpoints are whole" in muster("verify", uri, "--all", code=1)
    shard.unlink()
    assert "is missing" in muster("verify", uri, "--all", code=1)
