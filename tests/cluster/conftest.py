"""A real API server with etcd, scheduler and controller manager, shared by all tests of this folder; no nodes."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.cluster import api

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "crds"
CHART = ROOT / "charts" / "muster"


LONGEST_FIRST = (
    "test_two_operators.py",
    "test_preemption.py",
    "test_gang.py",
    "test_alone.py",
    "test_replacement.py",
    "test_cuts.py",
    "test_time.py",
    "test_storm.py",
)
"""Files of minutes. Where processes share the files, one that came last would keep one of them busy alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        long = item.path.parent == here and item.path.name in LONGEST_FIRST
        return LONGEST_FIRST.index(item.path.name) if long else len(LONGEST_FIRST)

    items.sort(key=place)


@dataclass(frozen=True)
class ControlPlane:
    """The running API server, with Muster's CRDs applied."""

    cluster: api.Cluster

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.cluster.kubeconfig

    @property
    def environment(self) -> dict[str, str]:
        """For child processes: this API server, and no proxy on the way to it."""
        kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        return {**kept, "KUBECONFIG": str(self.kubeconfig)}

    def kubectl(
        self, *arguments: str, stdin: str | Mapping[str, Any] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl; a mapping given as `stdin` goes as YAML. With `check`, a failure shows what kubectl said."""
        text = yaml.safe_dump(dict(stdin)) if isinstance(stdin, Mapping) else stdin
        return self._run([str(self.cluster.kubectl), *arguments], text, check)

    def helm(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs helm against this API server."""
        return self._run([str(self.cluster.helm), *arguments], None, check)

    def get(self, *arguments: str) -> dict[str, Any]:
        """`kubectl get ... -o json`."""
        result: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)
        return result

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """`kubectl apply -f -`."""
        self.kubectl("apply", "-f", "-", stdin=manifest)

    def refusal(self, manifest: Mapping[str, Any]) -> str:
        """What `kubectl apply` says to a manifest that must be refused. Nothing is changed should it be taken."""
        done = self.kubectl("apply", "--dry-run=server", "-f", "-", stdin=manifest, check=False)
        assert done.returncode != 0, f"kubectl apply took it: {done.stdout}"
        return done.stderr

    def set_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """Writes a TrainingJob's status, as the operator would."""
        patch = json.dumps({"status": status})
        self.kubectl("patch", "tj", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)

    def _run(self, command: list[str], stdin: str | None, check: bool) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, input=stdin, env=self.environment, capture_output=True, text=True, timeout=120)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}{done.stdout}")
        return done


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """An API server of this test session's own, with the CRDs established."""
    name = f"test-{secrets.token_hex(3)}"
    cluster = api.up(api.Options(name=name, nodes=0, control_plane_only=True))
    try:
        plane = ControlPlane(cluster)
        plane.kubectl("apply", "--server-side", "-f", str(CRDS))
        plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
        yield plane
    finally:
        api.down(name)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own. Its deletion is not waited for."""
    name = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def job(namespace: str) -> dict[str, Any]:
    """The shortest TrainingJob, to be changed by the test."""
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "tiny", "namespace": namespace},
        "spec": {"image": "example/train:1", "command": ["python", "train.py"], "workers": {"replicas": 2}},
    }
