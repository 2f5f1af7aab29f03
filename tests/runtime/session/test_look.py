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


TIED = """
import torch
from torch import nn
import muster_runtime as muster

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.words.weight

session = muster.start(seed=SEED)
net = Words()
model = session.wrap(net)
session.track(model=model)
for step in session.steps(1):
    print("SUMS", [tensor.double().sum().item() for tensor in net.state_dict().values()], flush=True)
    print("TIED", net.head.weight is net.words.weight, flush=True)
"""


@pytest.mark.parametrize("left", ["words", "head"])
def test_a_model_with_tied_weights_begins_from_what_was_exported(left: str, tmp_path: Path) -> None:
    """As from one of the hub, which has one tensor for the two keys."""
    (tmp_path / "script.py").write_text(TIED.replace("SEED", "1"))
    before = run_gang(
        tmp_path / "script.py", tmp_path, 1, {"MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}, distributed=False
    ).check()
    muster("export", f"file://{tmp_path}/run", str(tmp_path / "hub"))
    file = tmp_path / "hub" / "model.safetensors"
    exported = safetensors.torch.load_file(file)
    assert sorted(exported) == ["body.bias", "body.weight", "words.weight"]
    exported[f"{left}.weight"] = exported.pop("words.weight")
    safetensors.torch.save_file(exported, file)
    muster("import", str(tmp_path / "hub"), f"file://{tmp_path}/base")
    (tmp_path / "script.py").write_text(TIED.replace("SEED", "2"))
    environment = {
        "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/second",
        "MUSTER_CHECKPOINT_FROM": f"file://{tmp_path}/base",
        "MUSTER_CHECKPOINT_FROM_LOAD": "model",
    }
    after = run_gang(tmp_path / "script.py", tmp_path, 1, environment, distributed=False).check()
    assert told(after.output) == told(before.output)


def told(output: str) -> list[str]:
    lines = [line for line in output.splitlines() if line.startswith(("SUMS", "TIED"))]
    assert lines[1] == "TIED True"
    return lines
