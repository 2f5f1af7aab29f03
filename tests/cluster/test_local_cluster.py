"""The local cluster itself, which other tests stand on. Needs root; a cold cache makes it build the programs first."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hack.cluster import api, cgroups, network, processes, state, teardown
from hack.cluster.plan import Site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).resolve().parents[2]
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
TORCH_IMAGE = "localhost/muster/torch:local"


@dataclass(frozen=True)
class Kubectl:
    """kubectl on one cluster."""

    cluster: api.Cluster

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        command = [str(self.cluster.kubectl), "--kubeconfig", str(self.cluster.kubeconfig), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self("get", *arguments, "-o", "json"))

    def apply(self, *documents: dict[str, Any]) -> None:
        self("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))

    def python(self, pod: str, program: str) -> str:
        """Runs a Python program in a pod and returns what it prints."""
        return self("exec", pod, "--", "python3", "-c", program).strip()


def until(what: str, holds: Callable[[], bool], timeout_s: float) -> float:
    """Polls until `holds`; returns the seconds it took."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < timeout_s, f"{what}: not within {timeout_s} s"
        time.sleep(0.2)
    return time.monotonic() - started


def pod(name: str, gpus: int = 0, **spec: Any) -> dict[str, Any]:
    """A pod that serves HTTP on port 8000 and never says that it is ready unless told otherwise."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {
        "name": "main",
        "image": TORCH_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-m", "http.server", "8000"],
        "resources": {"limits": limits},
    } | spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": spec.pop("labels", {})},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


def everything_of(site: Site) -> set[tuple[int, int]]:
    """(pid, start time) of every process that is in one of the cluster's network namespaces or cgroups."""
    spaces = {
        os.readlink(f"/proc/{process.pid}/ns/net")
        for process in processes.recorded(site.directory)
        if process.alive and process.name.endswith("-namespaces")
    }
    spaces.discard(os.readlink("/proc/self/ns/net"))  # of one that has not left it yet
    found = set(cgroups.pids(site.slot))
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may have ended, or be closed to us: then it is none of ours
            if os.readlink(entry / "ns" / "net") in spaces:
                found.add(int(entry.name))
    return {(pid, ticks) for pid in found if (ticks := processes.start_ticks(pid)) is not None}


def assert_gone(site: Site, lived: set[tuple[int, int]]) -> None:
    """Nothing of the cluster is left on the machine."""
    assert not [pid for pid, ticks in lived if processes.start_ticks(pid) == ticks]
    assert teardown.leftovers(site, slot=None) == []
    assert str(site.directory) not in Path("/proc/self/mountinfo").read_text()
    assert not state.holds_slot(site.directory, site.slot)
    assert not site.directory.exists()
    if not Path(f"/run/muster/slot-{site.slot}").exists():  # nobody else has taken the slot since
        assert not Path(f"/sys/class/net/{site.addresses.host_link}").exists()
        assert not [tree for tree in cgroups.trees(site.slot) if tree.exists()]
        routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
        assert site.addresses.pod_cidr not in routes


@pytest.fixture(scope="module")
def cluster() -> Iterator[api.Cluster]:
    forwarding = Path("/proc/sys/net/ipv4/ip_forward").read_text()
    api.down("test-local")
    running = api.up(api.Options(name="test-local", nodes=2, gpus=8, racks=2))
    site = state.require("test-local")
    try:
        lived = everything_of(site)
        yield running
        lived |= everything_of(site)
    finally:
        started = time.monotonic()
        api.down("test-local")
        took = time.monotonic() - started
    assert len(lived) > 12  # the check below would pass on an empty set
    assert_gone(site, lived)
    assert took < 15
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == forwarding


@pytest.fixture(scope="module")
def kubectl(cluster: api.Cluster) -> Kubectl:
    return Kubectl(cluster)


@pytest.fixture(scope="module")
def gang(kubectl: Kubectl) -> tuple[str, str]:
    """Two pods on two nodes behind a headless and an ordinary Service; `late` never becomes ready."""
    never = {"container": {"readinessProbe": {"exec": {"command": ["false"]}}}}
    spec: dict[str, Any] = {"subdomain": "gang", "labels": {"app": "gang"}}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "gang"},
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "gang"}},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "gang"}, "ports": [{"port": 80, "targetPort": 8000}]},
        },
        pod("early", nodeName="node-0", hostname="early", **spec),
        pod("late", nodeName="node-1", hostname="late", **spec, **never),
    )
    kubectl("wait", "pod/early", "--for=condition=Ready", "--timeout=60s")
    kubectl("wait", "pod/late", "--for=jsonpath={.status.phase}=Running", "--timeout=60s")
    return "early", "late"


def test_nodes_carry_gpus_and_topology(kubectl: Kubectl) -> None:
    nodes = {node["metadata"]["name"]: node for node in kubectl.json("nodes")["items"]}
    assert set(nodes) == {"node-0", "node-1"}
    labels = nodes["node-1"]["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert labels["nvidia.com/gpu.count"] == "8"
    assert labels["muster.dev/rack"] == "rack-1"
    assert labels["muster.dev/block"] == "block-0"
    assert labels["kubernetes.io/hostname"] == "node-1"
    for node in nodes.values():
        assert node["status"]["capacity"]["nvidia.com/gpu"] == "8"
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_names_find_pods_that_are_not_ready(kubectl: Kubectl, gang: tuple[str, str]) -> None:
    address = kubectl.json("pod", "late")["status"]["podIP"]
    look_up = "import socket; print(socket.gethostbyname('late.gang'))"
    until("the name late.gang", lambda: kubectl.python("early", look_up) == address, 15)
    fetch = "import urllib.request as u; print(u.urlopen('http://late.gang:8000', timeout=5).status)"
    assert kubectl.python("early", fetch) == "200"


def test_a_name_outside_the_cluster_is_unknown_at_once(kubectl: Kubectl, gang: tuple[str, str]) -> None:
    program = """
import socket, time
started = time.monotonic()
try:
    socket.gethostbyname("registry.example.com")
except socket.gaierror as error:
    print(error.errno == socket.EAI_NONAME, time.monotonic() - started < 2)
"""
    assert kubectl.python("early", program) == "True True"


def test_services_route_from_pods_and_from_the_host(
    kubectl: Kubectl, gang: tuple[str, str], cluster: api.Cluster
) -> None:
    fetch = "import urllib.request as u; print(u.urlopen('http://web', timeout=5).status)"
    assert kubectl.python("late", fetch) == "200"  # the only ready endpoint is on the other node
    assert kubectl.python("early", fetch) == "200"  # a pod that reaches itself by its Service
    service = kubectl.json("service", "web")["spec"]["clusterIP"]
    pod_address = kubectl.json("pod", "late")["status"]["podIP"]
    for url in (f"http://{service}", f"http://{pod_address}:8000"):
        with DIRECTLY.open(url, timeout=5) as answer:
            assert answer.status == 200


def test_pods_reach_the_api_server_and_s3_by_name(
    kubectl: Kubectl, gang: tuple[str, str], cluster: api.Cluster
) -> None:
    program = f"""
import http.client, json, ssl, urllib.error, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
context = ssl.create_default_context(cafile=folder + "/ca.crt")
request = urllib.request.Request("https://kubernetes.default.svc/version")
request.add_header("Authorization", "Bearer " + open(folder + "/token").read())
print(json.load(urllib.request.urlopen(request, context=context, timeout=5))["gitVersion"])
for url in ("http://s3.muster-system.svc:7070", {cluster.s3_endpoint!r}):
    try:
        urllib.request.urlopen(url, timeout=5)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
    assert kubectl.python("early", program).split() == ["v1.36.3", "403", "403"]


def test_the_s3_servers_name_comes_back(kubectl: Kubectl, cluster: api.Cluster) -> None:
    kubectl("delete", "namespace", "muster-system", "--timeout=50s")
    cluster.announce_s3()
    slices = kubectl.json("endpointslices", "-n", "muster-system", "-l", "kubernetes.io/service-name=s3")["items"]
    (endpoint,) = (endpoint for part in slices for endpoint in part["endpoints"])
    assert f"http://{endpoint['addresses'][0]}:7070" == cluster.s3_endpoint
    address = kubectl.json("service", "s3", "-n", "muster-system")["spec"]["clusterIP"]

    def answers() -> bool:
        try:
            DIRECTLY.open(f"http://{address}:7070", timeout=5)
        except urllib.error.HTTPError as error:
            return error.code == 403  # the server's own: we have no keys
        except OSError:
            return False
        return False

    until("the S3 server behind its Service", answers, 15)


def test_torch_is_there_read_only_for_a_user_that_is_not_root(kubectl: Kubectl, gang: tuple[str, str]) -> None:
    program = """
import os, sys, torch
print(os.getuid(), sys.executable, torch.__file__.startswith("/opt/torch/"), float(torch.ones(3).sum()))
print(os.statvfs("/opt/torch").f_flag & os.ST_RDONLY)
"""
    assert kubectl.python("early", program).split() == ["1000", "/opt/torch/bin/python3", "True", "3.0", "1"]


def test_the_scheduler_counts_gpus(kubectl: Kubectl) -> None:
    names = ["gpu-0", "gpu-1", "gpu-2"]
    kubectl.apply(*(pod(name, gpus=8) for name in names))

    def placed() -> list[str]:
        found = [kubectl.json("pod", name)["spec"].get("nodeName") for name in names]
        return [node for node in found if node]

    until("two pods' placement", lambda: len(placed()) == 2, 20)
    assert sorted(placed()) == ["node-0", "node-1"]

    def refusals() -> list[str]:
        conditions = [kubectl.json("pod", name)["status"].get("conditions", []) for name in names]
        return [entry.get("message", "") for entries in conditions for entry in entries if entry["status"] == "False"]

    until("the third's refusal", lambda: any("Insufficient nvidia.com/gpu" in text for text in refusals()), 20)
    kubectl("delete", "pod", *names, "--wait=true")


def test_an_image_is_built_and_imported_once(kubectl: Kubectl, cluster: api.Cluster, tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_text(
        "ARG BASE=localhost/muster/base:local\nFROM ${BASE}\nARG WORD\nENV WORD=${WORD}\n"
    )
    name = "localhost/test-local/word:1"
    for _ in range(2):
        cluster.build_image(name, tmp_path / "Containerfile", tmp_path, {"WORD": "marvellous"})
    container = {"image": name, "command": ["python3", "-c", "import os; print(os.environ['WORD'])"]}
    for node in cluster.nodes:
        kubectl.apply(pod(f"word-{node}", nodeName=node, restartPolicy="Never", container=container))
    for node in cluster.nodes:
        kubectl("wait", f"pod/word-{node}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
        assert kubectl("logs", f"word-{node}").strip() == "marvellous"


def test_an_api_server_restart_loses_nothing(kubectl: Kubectl, cluster: api.Cluster, gang: tuple[str, str]) -> None:
    before = kubectl.json("pod", "early")["status"]["containerStatuses"][0]
    cluster.stop_apiserver()
    with pytest.raises(AssertionError, match="refused"):
        kubectl("get", "nodes")
    cluster.start_apiserver()
    after = kubectl.json("pod", "early")["status"]["containerStatuses"][0]
    assert after["containerID"] == before["containerID"]
    assert after["restartCount"] == before["restartCount"]


def test_a_node_dies_and_comes_back_with_its_gpus(kubectl: Kubectl, cluster: api.Cluster) -> None:
    def ready(name: str) -> str:
        conditions = kubectl.json("node", name)["status"]["conditions"]
        return next(entry["status"] for entry in conditions if entry["type"] == "Ready")

    kubectl.apply(pod("doomed", gpus=4, nodeName="node-1", restartPolicy="Never"))
    kubectl("wait", "pod/doomed", "--for=condition=Ready", "--timeout=60s")
    address = kubectl.json("pod", "doomed")["status"]["podIP"]
    cluster.stop_node("node-1")
    with pytest.raises(OSError):
        DIRECTLY.open(f"http://{address}:8000", timeout=2)
    assert until("the node's loss being noticed", lambda: ready("node-1") == "Unknown", 40) < 30
    assert ready("node-0") == "True"
    cluster.start_node("node-1")
    assert ready("node-1") == "True"
    assert kubectl.json("node", "node-1")["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    until("the pod's failure", lambda: kubectl.json("pod", "doomed")["status"]["phase"] == "Failed", 30)
    kubectl.apply(pod("revived", gpus=8, nodeName="node-1"))
    kubectl("wait", "pod/revived", "--for=condition=Ready", "--timeout=60s")


def test_a_second_cluster_beside_it_with_simulated_nodes(kubectl: Kubectl) -> None:
    options = api.Options(name="test-kwok", control_plane_only=True, kwok_nodes=200, audit_log=True)
    second = api.up(options)
    try:
        other = Kubectl(second)
        labels = [node["metadata"]["labels"] for node in other.json("nodes")["items"]]
        assert len(labels) == 200
        assert len({entry["muster.dev/rack"] for entry in labels}) == 13
        assert len(kubectl.json("nodes")["items"]) == 2
        other.apply(pod("simulated", gpus=8))
        until("a simulated pod's start", lambda: other.json("pod", "simulated")["status"]["phase"] == "Running", 30)
        assert second.audit_log is not None
        until("the audit log", lambda: '"simulated"' in second.audit_log.read_text(), 10)
    finally:
        site = state.require("test-kwok")
        lived = everything_of(site)
        api.down("test-kwok")
    assert_gone(site, lived)


@pytest.mark.parametrize("cut_after", ["etcd", "node-0-namespaces", "node-0-kubelet"])
@pytest.mark.parametrize("cut_by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing(cluster: api.Cluster, cut_after: str, cut_by: signal.Signals) -> None:
    starting, site, lived = start_until(cut_after)
    starting.send_signal(cut_by)
    output, _ = starting.communicate(timeout=30)
    assert starting.returncode == 130, output
    assert_gone(site, lived)


def test_the_remains_of_a_killed_start_are_removed(cluster: api.Cluster) -> None:
    starting, site, lived = start_until("node-0-containerd")
    starting.kill()
    starting.communicate(timeout=30)
    assert teardown.leftovers(site, site.slot)
    api.down("test-cut")
    assert_gone(site, lived)


def start_until(record: str) -> tuple[subprocess.Popen[str], Site, set[tuple[int, int]]]:
    """Starts `test-cut` by the command line; returns as soon as the process named `record` is on record."""
    starting = subprocess.Popen(
        [sys.executable, "-m", "hack.cluster", "up", "--name", "test-cut", "--nodes", "1"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    directory = state.directory_of("test-cut")
    deadline = time.monotonic() + 60
    while not (directory / "processes" / f"{record}.json").exists():
        assert starting.poll() is None, starting.communicate()[0]
        assert time.monotonic() < deadline, f"{record} was not started"
        time.sleep(0.005)
    known = state.load("test-cut")
    assert known is not None
    return starting, known[0], everything_of(known[0])


def test_errors_say_how_to_mend_them(cluster: api.Cluster) -> None:
    with pytest.raises(api.ClusterError, match="known types are"):
        api.up(api.Options(name="test-cut", gpu_type="Z9"))
    with pytest.raises(api.ClusterError, match="other options, --nodes 2 and not --nodes 1"):
        api.up(api.Options(name="test-local", nodes=1))
    with pytest.raises(api.ClusterError, match="no cluster `nowhere` is up"):
        api.get("nowhere")
    with pytest.raises(api.ClusterError, match="no node node-7"):
        cluster.stop_node("node-7")
    assert network.anchor_name("node-0") in {p.name for p in processes.recorded(cluster.directory) if p.alive}
