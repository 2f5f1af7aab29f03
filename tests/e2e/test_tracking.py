"""A job on real nodes in a real MLflow: what the operator tells of it, and its status over a suspension and its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hack.demo.kube import holds
from hack.mlflow import serving, values

if TYPE_CHECKING:
    from conftest import World

SCRIPT = """\
import time
import torch
import muster_runtime as muster

session = muster.start()
session.params(lr=0.1)
model = session.wrap(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.track(model=model, optimizer=optimizer)
for step in session.steps(1_000_000):
    time.sleep(0.1)
    optimizer.zero_grad()
    loss = model(torch.ones(4)).square().sum()
    loss.backward()
    optimizer.step()
    session.report(loss=loss)
"""


def test_a_job_is_one_run_that_is_stopped_goes_on_and_is_killed(world: World, tmp_path: Path) -> None:
    with serving(tmp_path, world.kube.cluster.host_address) as mlflow:
        tracking = {"uri": mlflow.uri, "experiment": "tracked", "tags": {"purpose": "test"}}
        job = world.plain("tracked", "python", "-c", SCRIPT, tracking=tracking, checkpoint=world.storage("tracked"))
        world.apply(job)
        world.until("tracked", "MLflow has it", lambda job: holds(job, "TrackingReachable"))

        def told() -> bool:
            (run,) = mlflow.runs("tracked")
            return "muster/gpu_hours" in values(run, "metrics") and "loss" in values(run, "metrics")

        world.wait("the operator's word is in MLflow", told, 120, "tracked")
        (run,) = mlflow.runs("tracked")
        tags = values(run, "tags")
        assert (run["info"]["status"], run["info"]["run_name"]) == ("RUNNING", "tracked")
        assert "sha256:" in tags["mlflow.docker.image.id"]
        assert tags.items() >= {"purpose": "test", "muster.queue": "default", "muster.gpus": "1"}.items()
        assert world.job("tracked")["status"]["tracking"]["url"].endswith(run["info"]["run_id"])

        world.patch("tracked", '{"spec": {"suspend": true}}')
        world.until_gone("tracked")
        assert [run["info"]["status"] for run in mlflow.runs("tracked")] == ["KILLED"]
        world.patch("tracked", '{"spec": {"suspend": false}}')

        def stands(status: str) -> bool:
            return [run["info"]["status"] for run in mlflow.runs("tracked")] == [status]

        world.wait("it goes on, as the same run", lambda: stands("RUNNING"), 200, "tracked")
        world.delete("tracked")
        world.wait("its end is told", lambda: stands("KILLED"), 150)
