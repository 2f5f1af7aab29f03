"""The same cluster through kind, where a Docker engine answers.

This path is kept small and is NOT tried by the project's own tests, which run without Docker. It gives real nodes with
labels and made-up GPUs; it starts no S3 server and no simulated nodes, and cannot stop single nodes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import yaml

from hack.cluster.errors import ClusterError
from hack.cluster.paths import state_root
from hack.cluster.plan import Options, real_node_labels
from hack.cluster.processes import run
from hack.cluster.progress import Progress

POD_CIDR = "10.244.0.0/16"
SERVICE_CIDR = "10.96.0.0/16"


@cache
def docker_answers() -> bool:
    """Whether a Docker engine is there. MUSTER_CLUSTER=native ignores it, for those who have both."""
    if os.environ.get("MUSTER_CLUSTER") == "native" or shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, timeout=20).returncode == 0


def node_names(options: Options) -> tuple[str, ...]:
    """kind's names of the workers."""
    workers = [f"{options.name}-worker{index + 1 if index else ''}" for index in range(options.real_nodes)]
    return tuple(workers)


def names() -> list[str]:
    """The clusters that this module has made."""
    return [path.parent.name for path in _kubeconfig("*").parent.parent.glob("*/kubeconfig")]


def owns(name: str) -> bool:
    """Whether the cluster of that name was made by this module."""
    return _kubeconfig(name).exists()


def up(options: Options, progress: Progress) -> Path:
    """Creates the cluster and returns its kubeconfig."""
    if shutil.which("kind") is None or shutil.which("kubectl") is None:
        raise ClusterError(
            "Docker answers, but `kind` or `kubectl` is missing: install both, or set MUSTER_CLUSTER=native"
        )
    kubeconfig = _kubeconfig(options.name)
    kubeconfig.parent.mkdir(parents=True, exist_ok=True)
    workers = [{"role": "worker", "labels": real_node_labels(options, index)} for index in range(options.real_nodes)]
    config = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": {"podSubnet": POD_CIDR, "serviceSubnet": SERVICE_CIDR},
        "nodes": [{"role": "control-plane"}, *workers],
    }
    with progress.part(f"kind create cluster {options.name}"):
        create = ["kind", "create", "cluster", "--name", options.name, "--kubeconfig", str(kubeconfig)]
        try:
            run([*create, "--wait", "180s", "--config", "-"], stdin=yaml.safe_dump(config))
            _set_gpus(options, kubeconfig)
        except BaseException:
            down(options.name)
            raise
    return kubeconfig


def down(name: str) -> None:
    """Deletes the cluster."""
    run(["kind", "delete", "cluster", "--name", name, "--kubeconfig", str(_kubeconfig(name))])
    shutil.rmtree(_kubeconfig(name).parent, ignore_errors=True)


def api_server(kubeconfig: Path) -> str:
    """The API server's URL."""
    document = yaml.safe_load(kubeconfig.read_text())
    url: str = document["clusters"][0]["cluster"]["server"]
    return url


def _set_gpus(options: Options, kubeconfig: Path) -> None:
    gpus = {"nvidia.com/gpu": str(options.gpus)}
    patch = json.dumps({"status": {"capacity": gpus, "allocatable": gpus}})
    for name in node_names(options):
        run(
            [
                "kubectl",
                "--kubeconfig",
                str(kubeconfig),
                "patch",
                "node",
                name,
                "--subresource=status",
                "--type=merge",
                f"--patch={patch}",
            ]
        )


def _kubeconfig(name: str) -> Path:
    return state_root().parent / "kind" / name / "kubeconfig"
