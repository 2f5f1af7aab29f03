"""`spec.tracking`: into the pods, to index 0's launcher, and back into the job's status."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from muster.api.common import find_condition
from muster.api.effective import effective_spec
from muster.api.jobparts import JobDefaults
from muster.api.tracking import TrackingStatus
from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import TrainingQueue
from muster.cli.look import render
from muster.cluster import pod_tracking
from muster.cluster.pods import Identity, PodSettings, container, template
from muster.cluster.views import PodView
from muster.controllers import tracking
from muster.controllers.progress import progressed
from muster.controllers.records import Record
from muster.telling.scene import Scene
from muster_protocol.launcher_status import Phase, Status, Tracking

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
EXAMPLES = Path(__file__).parents[3] / "examples" / "tracking"
MLFLOW = {"uri": "https://mlflow.example.com", "secretRef": {"name": "mlflow"}}
DIGEST = "docker.io/example/train@sha256:1234"


def trainingjob(tracked: Any = None, status: Any = None, **spec: Any) -> TrainingJob:
    return TrainingJob.from_raw(
        {
            "metadata": {
                "name": "llama",
                "namespace": "research",
                "uid": "0123456789abcdef",
                "labels": {"muster.dev/user": "ada"},
                "annotations": {"muster.dev/project": "atlas"},
            },
            "spec": {
                "image": "train:1",
                "command": ["python", "train.py"],
                "workers": {"replicas": 2, "gpusPerWorker": 8, "gpuType": "H100"},
                **({"tracking": tracked} if tracked is not None else {}),
                **spec,
            },
            "status": status or {},
        }
    )


def environment(tracked: Any, **spec: Any) -> dict[str, Any]:
    job = trainingjob(tracked, **spec)
    identity = Identity("research", "llama", job.metadata.uid)
    pod = template(identity, effective_spec(job.spec), PodSettings("runtime:1"))
    entries = container(pod["spec"], "trainer")["env"]
    found = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}
    assert len(found) == len(entries), "a variable is set twice"
    return {name: value for name, value in found.items() if "TRACKING" in name or "WANDB" in name}


def test_what_the_pods_get() -> None:
    assert environment(None) == {}
    assert environment({"enabled": False}) == environment({**MLFLOW, "enabled": False}) == {}
    whole = {**MLFLOW, "experiment": "llama", "runName": "first", "tags": {"b": "2", "a": "1"}}
    found = environment(whole, env=[{"name": "MLFLOW_TRACKING_TOKEN", "value": "own"}])
    secrets = {"MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY"}
    assert {name for name, value in found.items() if isinstance(value, dict)} == secrets
    for name in secrets:
        reference = {"name": "mlflow", "key": name, "optional": True}
        assert found.pop(name) == {"secretKeyRef": reference}, "a pod starts without a Secret that is not there"
    assert found == {
        "MUSTER_TRACKING_URI": "https://mlflow.example.com",
        "MUSTER_TRACKING_EXPERIMENT": "llama",
        "MUSTER_TRACKING_RUN_NAME": "first",
        "MUSTER_TRACKING_TAGS": '{"a": "1", "b": "2"}',
        "MLFLOW_TRACKING_TOKEN": "own",
    }


def test_a_queue_may_have_all_its_jobs_tracked() -> None:
    defaults = JobDefaults.model_validate({"tracking": MLFLOW})
    spec = effective_spec(trainingjob().spec, defaults)
    assert spec.tracking is not None
    assert (spec.tracking.uri, spec.tracking.secret) == (MLFLOW["uri"], "mlflow")
    assert effective_spec(trainingjob({"enabled": False}).spec, defaults).tracking is None
    own = effective_spec(trainingjob({"uri": "wandb://me/gpt"}).spec, defaults).tracking
    assert own is not None
    assert (own.uri, own.secret) == ("wandb://me/gpt", ""), "the Secret is of the other tracker"


@pytest.mark.parametrize("name", ["mlflow.yaml", "wandb.yaml", "queue.yaml"])
def test_the_examples_say_what_they_mean(name: str) -> None:
    raw = yaml.safe_load((EXAMPLES / name).read_text())
    if raw["kind"] == "TrainingQueue":
        template = TrainingQueue.from_raw(raw).spec.default_template
        spec = effective_spec(trainingjob().spec, template)
    else:
        spec = effective_spec(TrainingJob.from_raw(raw).spec)
    assert spec.tracking is not None
    assert {entry["name"] for entry in pod_tracking.environment(spec.tracking)} >= {"MUSTER_TRACKING_URI"}


def placed(**status: Any) -> TrainingJob:
    at = (NOW - timedelta(hours=2)).isoformat()
    placement = {"generation": 1, "workers": 2, "nodes": [{"node": "a", "indexes": "0-1"}], "placedAt": at}
    usage = {"gpuSeconds": 3600, "cost": "2.50"}
    return trainingjob(MLFLOW, {"phase": "Running", "placement": placement, "usage": usage, **status})


def leader(image: str) -> PodView:
    statuses = [{"name": "muster-runtime", "imageID": "other"}, {"name": "trainer", "imageID": image}]
    return PodView.from_raw({"status": {"containerStatuses": statuses}})


def test_what_the_tracker_is_told_of_cost_and_image() -> None:
    record = Record.of(placed(nodes="a", restarts=1, restartsInPlace=2))
    record.price, record.currency = 2.0, "EUR"
    facts = tracking.facts(record, leader(DIGEST), NOW)
    assert (facts.gpus, facts.gpu_seconds, facts.hourly) == (16, 3600 + 16 * 7200, 32.0)
    assert (float(facts.cost), facts.currency) == (2.5 + 64.0, "EUR")
    assert facts.tags == {
        "mlflow.user": "ada",
        "mlflow.docker.image.uri": "train:1",
        "mlflow.docker.image.id": DIGEST,
        "muster.project": "atlas",
        "muster.queue": "default",
        "muster.gpu_type": "H100",
        "muster.gpus": "16",
        "muster.workers": "2",
        "muster.nodes": "a",
        "muster.restarts": "3",
        "muster.preemptions": "0",
    }


def test_its_trouble_is_a_condition_until_it_is_over() -> None:
    job, answer = placed(), Status(Phase.RUNNING, 1, 1, 0)
    away = Tracking(False, "https://mlflow/#/1", "MLflow at https://mlflow can't be reached: Connection refused", 7)
    seen = []
    for told in (away, replace(away, well=True, text="")):
        status = progressed(job, replace(answer, tracking=told), NOW)
        assert status is not None
        job = job.model_copy(update={"status": status})
        assert progressed(job, replace(answer, tracking=told), NOW) is None, "nothing new, no write"
        condition = find_condition(status.conditions, "TrackingReachable")
        assert condition is not None
        assert status.tracking == TrackingStatus(url="https://mlflow/#/1", dropped=7)
        console = Console(width=200, file=io.StringIO())
        with console.capture() as shown:
            console.print(render(Scene(job, (), (), NOW)))
        seen.append((condition.status, condition.reason, "Connection refused" in shown.get()))
    assert seen == [("False", "TrackerFails", True), ("True", "Tracked", False)]
