"""`python -m muster_runtime.checkpoint`: a list for people, and a verdict for programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from gangs import run_gang
from test_stop import STEPS, environment, script

from muster_runtime.checkpoint.__main__ import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("look")
    run_gang(script(made, STEPS), made, 2, environment(made, MUSTER_CHECKPOINT_EVERY_STEPS="3")).check()
    return made


def test_ls_and_verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", f"file://{folder}/run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["6", "3"]
    assert lines[1].endswith("LATEST")
    assert main(["verify", f"file://{folder}/run"]) == 0
    assert "2 of 2 checkpoints are whole" in capsys.readouterr().out
    shard = next((folder / "run").glob("step-00000003/*/rank-00000.bin"))
    content = shard.read_bytes()
    shard.write_bytes(b"\xff" + content[1:])
    assert main(["verify", f"file://{folder}/run"]) == 1
    out = capsys.readouterr().out
    assert "DAMAGED" in out
    assert "1 of 2 checkpoints are whole" in out
    shard.unlink()
    assert main(["verify", f"file://{folder}/run"]) == 1
    assert "does not exist" in capsys.readouterr().out


def test_a_place_without_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", f"file://{tmp_path}/none"]) == 0
    assert "has no checkpoints" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["ls", "somewhere"])
