"""W&B's own client, without its server: it keeps what it is told in a file, to be sent later."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hack import mlflow

pytestmark = pytest.mark.runtime

RUNTIME = Path(__file__).parents[3] / "runtime"
SCRIPT = """
import json, sys, time
from muster_runtime.tracking.choose import tracker
from muster_runtime.tracking.courier import Courier
from muster_runtime.tracking.tracker import Point, Run, RunStatus
uri = "wandb://team/gpt"
for status in (RunStatus.SCHEDULED, RunStatus.FINISHED):
    run = Run(uri, "uid-1", "research", "llama", {}, time.time())
    courier = Courier(lambda: tracker(uri), run, lambda told: print(told.well, told.text))
    courier.add([Point(name, step + 0.125, step, time.time()) for step in range(3, 6) for name in ("loss", "accuracy")])
    courier.know(params={"lr": "3e-4"}, tags={"muster.job": status.value})
    courier.end(status, time.time())
    courier.run()
"""


def test_its_client_takes_everything_also_when_the_run_goes_on(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(RUNTIME), "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    command = [str(mlflow.python()), "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert (done.returncode, set(done.stdout.split())) == (0, {"True"}), done.stderr
    files = [path.read_bytes() for path in sorted(tmp_path.rglob("run-uid-1.wandb"))]
    assert len(files) == 2
    for kept, status in zip(files, (b"SCHEDULED", b"FINISHED"), strict=True):
        assert all(word in kept for word in (b"team", b"gpt", b"llama", b"3e-4", b"accuracy", status))
        assert all(value in kept for value in (b"3.125", b"4.125", b"5.125"))


def test_an_image_without_it_is_told_what_to_install() -> None:
    from muster_runtime.tracking.choose import tracker
    from muster_runtime.tracking.tracker import TrackerError

    with pytest.raises(TrackerError, match="the training image has no wandb: install it there"):
        tracker("wandb://team/gpt")
    with pytest.raises(TrackerError, match="write http"):
        tracker("file:///runs")
