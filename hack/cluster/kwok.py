"""Simulated nodes by the hundred: Node objects that kwok keeps Ready, and pods on them that it lets run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import yaml

from hack.cluster import build, network, processes
from hack.cluster.apiclient import ApiClient, Json, wait_for
from hack.cluster.dns import bind_role
from hack.cluster.errors import ClusterError, log_tail
from hack.cluster.plan import Site, kwok_node_labels
from hack.cluster.processes import Launcher
from hack.cluster.versions import NODE_WORKSPACE

COMPLETE_ANNOTATION = "kwok.muster.dev/complete-after"
"""A simulated pod with this annotation, a duration like `30s`, succeeds that long after it started to run."""

_STAGES = sorted(NODE_WORKSPACE.data)

_ROLE: Json = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "system:kwok"},
    "rules": [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["update", "patch"]},
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "verbs": ["get", "list", "watch", "update", "patch", "delete"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "list", "watch", "create", "update", "patch"],
        },
    ],
}


def start(site: Site, client: ApiClient) -> None:
    """Starts kwok and creates the simulated nodes."""
    bind_role(client, _ROLE, "system:kwok")
    stages = site.directory / "kwok-stages.yaml"
    stages.write_text("---\n".join(_stage(name) for name in _STAGES))
    Launcher(site.directory, site.slot, network.HUB).start(
        "kwok",
        [
            str(build.program("kwok")),
            f"--kubeconfig={site.kubeconfig_of('kwok')}",
            f"--config={stages}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-label-selector=type=kwok",
            f"--cidr={site.addresses.kwok_pods}",
            "--node-lease-duration-seconds=40",
            "--server-address=",
        ],
        inside=network.anchor(site, network.HUB),
    )
    _create_nodes(site)


def wait_ready(site: Site, client: ApiClient) -> None:
    """Returns when every simulated node is Ready and untainted."""
    count = [0]

    def ready() -> bool:
        if processes.find(site.directory, "kwok") is None:
            raise ClusterError(f"kwok ended while it started:\n{log_tail(site.logs / 'kwok.log')}")
        document = client.get("/api/v1/nodes?labelSelector=type%3Dkwok&resourceVersion=0") or {}
        count[0] = sum(_is_ready(node) for node in document.get("items", []))
        return count[0] == site.options.kwok_nodes

    def why_not() -> str:
        return f"    {count[0]} of {site.options.kwok_nodes} are\n{log_tail(site.logs / 'kwok.log')}"

    wait_for("simulated nodes' getting Ready", ready, 60 + site.options.kwok_nodes / 10, why_not)


def _is_ready(node: Json) -> bool:
    conditions = {entry["type"]: entry["status"] for entry in node["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")


def _stage(name: str) -> str:
    """A stage as kwok ships it. Its own completes every Job's pods at once; ours completes whoever asks, then."""
    path = build.binaries_folder(NODE_WORKSPACE) / name
    if name != "kwok-pod-complete.yaml":
        return path.read_text()
    stage = yaml.safe_load(path.read_text())
    annotation = f'.metadata.annotations["{COMPLETE_ANNOTATION}"]'
    expressions = stage["spec"]["selector"]["matchExpressions"]
    kept = [entry for entry in expressions if "ownerReferences" not in entry["key"]]
    stage["spec"]["selector"]["matchExpressions"] = [*kept, {"key": annotation, "operator": "Exists"}]
    stage["spec"]["delay"] = {"durationMilliseconds": 1000, "durationFrom": {"expressionFrom": annotation}}
    text: str = yaml.safe_dump(stage)
    return text


def _node(site: Site, index: int) -> Json:
    name = f"kwok-{index:04d}"
    resources = {"cpu": "96", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "110"}
    if site.options.gpus:
        resources["nvidia.com/gpu"] = str(site.options.gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **kwok_node_labels(site.options, index),
            },
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [
                {"type": "InternalIP", "address": site.addresses.kwok_node(index)},
                {"type": "Hostname", "address": name},
            ],
        },
    }


def _create_nodes(site: Site) -> None:
    threads = 8

    def create_some(first: int) -> None:
        client = ApiClient(site)
        for index in range(first, site.options.kwok_nodes, threads):
            client.create("/api/v1/nodes", _node(site, index))

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(create_some, first) for first in range(threads)]:
            done.result()
