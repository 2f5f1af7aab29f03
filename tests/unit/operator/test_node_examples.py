"""The examples of nodes: each is read as it stands, and demands of a node what the documentation says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.api.effective import effective_spec
from muster.api.trainingjob import TrainingJob
from muster.cluster.eligibility import Matcher, filter_of_pod
from muster.cluster.pods import Identity, PodSettings, template
from muster.cluster.requests import requests_of
from muster.cluster.views import NodeView, PodView

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "nodes"
POOL = {"pool": "research", "example.com/local-disk": "yes"}
TAINT = {"key": "pool", "value": "research", "effect": "NoSchedule"}


def made(name: str) -> dict[str, Any]:
    job = TrainingJob.from_raw(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
    identity = Identity("research", job.metadata.name, "u")
    return template(identity, effective_spec(job.spec), PodSettings(runtime_image="runtime:1"))


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = made(name)["spec"]
    return spec


def node(labels: dict[str, str], *taints: dict[str, str]) -> NodeView:
    return NodeView.from_raw({"metadata": {"name": "a", "labels": labels}, "spec": {"taints": list(taints)}})


def test_the_pool_takes_its_job_and_no_other_node_does() -> None:
    allows = Matcher(filter_of_pod(pod("hardware"))).allows
    assert allows(node(POOL, TAINT))
    assert allows(node(POOL | {"example.com/row": "new"}))
    assert not allows(node(POOL | {"example.com/row": "old"}))
    assert not allows(node({"pool": "research"}))
    assert not allows(node({"example.com/local-disk": "yes"}))
    assert not allows(node(POOL, TAINT | {"value": "product"}))


def test_resources_of_any_name_are_asked_for() -> None:
    assert dict(requests_of(pod("slices-of-gpus")))["nvidia.com/mig-1g.10gb"] == 1
    assert dict(requests_of(pod("cpus")))["cpu"] == 8000
    assert "nvidia.com/gpu" not in dict(requests_of(pod("cpus")))


def test_a_worker_takes_the_only_place_of_its_gang_on_a_node() -> None:
    apart = {"apart//one-a-node": 1}
    assert dict(PodView.from_raw(made("apart")).requests).items() >= apart.items()
    assert not any(name.startswith("apart/") for name, _ in PodView.from_raw(made("hardware")).requests)


def test_every_example_is_in_the_list() -> None:
    listed = (FOLDER / "README.md").read_text()
    assert all(f"({path.name})" in listed for path in FOLDER.glob("*.yaml"))
