"""A whole run over S3: killed, resumed, looked at with S3 alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from hack.needs_torch import SHARDS
from typer.testing import CliRunner

from muster.cli.app import app
from muster_protocol import losses

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "session"))
from gangs import run_gang

if TYPE_CHECKING:
    from hack.s3server import S3Server


def run(server: S3Server, folder: Path, name: str, kill: str = "") -> list[int | None]:
    environment = {
        **server.environment(),
        "FOLDER": str(folder),
        "STEPS": "12",
        "MUSTER_STRATEGY": "fsdp",
        "MUSTER_CHECKPOINT_URI": f"s3://models/runs/{name}",
        "MUSTER_CHECKPOINT_EVERY_STEPS": "3",
        **({"KILL": kill} if kill else {}),
        # so that no save is left out for the one before, and the kill finds its step
        **({"MUSTER_CHECKPOINT_BLOCKING": "1"} if ":before" in kill else {}),
    }
    result = run_gang("bits.py", folder, 4, environment, kill_peers=bool(kill))
    if not kill:
        result.check()
    return result.codes


@SHARDS
def test_a_run_over_s3_is_the_same_bits_after_a_kill(s3_environment: S3Server, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(s3_environment, whole, "whole")
    assert -9 in run(s3_environment, cut, "cut", kill="9:before-latest:0")
    assert -9 in run(s3_environment, cut, "cut", kill="10:backward:3")
    run(s3_environment, cut, "cut")
    for rank in range(4):
        facts = [json.loads((folder / f"final-{rank}.json").read_text()) for folder in (whole, cut)]
        assert facts[0] == facts[1]
    client = boto3.client("s3", endpoint_url=s3_environment.endpoint, region_name="us-east-1")
    curves = [losses.read(client, "models", f"runs/{name}") for name in ("whole", "cut")]
    assert list(curves[0]) == list(range(12))
    assert curves[0] == curves[1]
    verified = CliRunner().invoke(app, ["checkpoint", "verify", "s3://models/runs/cut", "--all"])
    assert verified.exit_code == 0, verified.output
