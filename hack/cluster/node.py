"""A node: a kubelet, a containerd and a kube-proxy of its own, in namespaces of their own."""

from __future__ import annotations

import json
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import yaml

from hack.cluster import build, cgroups, images, network, processes, seed, torchtree
from hack.cluster.apiclient import ApiClient, Json, wait_for
from hack.cluster.errors import ClusterError, log_tail
from hack.cluster.plan import Site, real_node_labels
from hack.cluster.processes import Launcher, Process

READY_TIMEOUT_S = 120.0

_CONTAINERD_CONFIG = """\
version = 3
root = "{root}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[plugins.'io.containerd.cri.v1.images']
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{pause}"

[plugins.'io.containerd.cri.v1.runtime']
  # Root without CAP_SYS_RESOURCE may not lower a score; without this line every sandbox would fail there.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{cni}"
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{spec}"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = "/usr/sbin/runc"
        SystemdCgroup = false
"""


def prepare(site: Site, node: str) -> None:
    """Fills the node's containerd with the images that every node has, and writes its configuration."""
    folder = site.node_directory(node)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "containerd").exists():
        seed.plant((site.directory / "seed").resolve(), folder / "containerd")
    (folder / "cni").mkdir(exist_ok=True)
    index = site.options.node_names.index(node)
    (folder / "cni" / "10-muster.conflist").write_text(json.dumps(_cni(site, index)))
    (folder / "runtime-spec.json").write_text(json.dumps(_base_runtime_spec(site)))
    (folder / "containerd.toml").write_text(
        _CONTAINERD_CONFIG.format(
            root=folder / "containerd", pause=images.PAUSE, cni=folder / "cni", spec=folder / "runtime-spec.json"
        )
    )
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet_config(site, node, index)))
    (folder / "resolv.conf").write_text("")  # pods' DNS is the cluster's; nothing leads outside


def start_machine(site: Site, node: str) -> None:
    """What powering the machine on is: namespaces, cable, containerd. Needs the hub, no API server."""
    folder = site.node_directory(node)
    mounts = {
        "/var/lib/kubelet": folder / "kubelet",
        "/var/lib/cni": folder / "cni-state",
        "/var/log/pods": folder / "pod-logs",
        "/var/log/containers": folder / "container-logs",
    }
    holder = network.start_anchor(site, node, mounts)
    network.connect_node(site, node, site.options.node_names.index(node))
    prepare(site, node)
    start_containerd(site, node, holder)


def start_containerd(site: Site, node: str, holder: Process) -> None:
    """Starts the node's containerd in the namespaces of `holder`; containers that run already go on."""
    folder = site.node_directory(node)
    _start(site, node, holder, "containerd", ["--config", str(folder / "containerd.toml"), "--log-level", "warn"])
    address = f"/proc/{holder.pid}/root/run/containerd/containerd.sock"  # in the node's mount namespace
    log = site.logs / f"{node}-containerd.log"

    def listens() -> bool:
        if processes.find(site.directory, f"{node}-containerd") is None:
            raise ClusterError(f"containerd of {node} ended while it started:\n{log_tail(log)}")
        return answers(address)

    wait_for(f"containerd's listening on {node}", listens, 30, lambda: log_tail(log))


def answers(address: str) -> bool:
    """Whether anybody listens on a unix socket. A process that was killed leaves the socket's file behind."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(address) == 0


def join(site: Site, node: str) -> None:
    """Starts kubelet and kube-proxy; needs the API server."""
    folder, holder = site.node_directory(node), network.anchor(site, node)
    index = site.options.node_names.index(node)
    labels = ",".join(f"{key}={value}" for key, value in real_node_labels(site.options, index).items())
    _start(
        site,
        node,
        holder,
        "kubelet",
        [
            f"--config={folder / 'kubelet.yaml'}",
            f"--kubeconfig={site.kubeconfig_of(node)}",
            f"--hostname-override={node}",
            f"--node-ip={site.addresses.node(index)}",
            f"--node-labels={labels}",
            "--root-dir=/var/lib/kubelet",
            "--v=1",
        ],
    )
    start_proxy(site, node, node, site.addresses.node(index))


def start_proxy(site: Site, where: str, node: str, address: str) -> None:
    """Starts a kube-proxy in the namespaces of `where`, on behalf of `node`. The hub has one too, so that Service
    addresses work from the host."""
    config = site.directory / f"{where}-kube-proxy.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "nftables",
                "bindAddress": address,
                "hostnameOverride": node,
                "clusterCIDR": site.addresses.pod_cidr,
                "clientConnection": {"kubeconfig": str(site.kubeconfig_of("kube-proxy"))},
                # These are the whole machine's, not a namespace's: leave them alone.
                "conntrack": {
                    "maxPerCore": 0,
                    "min": 0,
                    "tcpEstablishedTimeout": "0s",
                    "tcpCloseWaitTimeout": "0s",
                },
                "nftables": {"syncPeriod": "30s", "minSyncPeriod": "100ms"},
            }
        )
    )
    _start(site, where, network.anchor(site, where), "kube-proxy", [f"--config={config}"])


def wait_ready(site: Site, client: ApiClient, node: str) -> None:
    """Returns when the node is Ready, untainted and counts its GPUs."""
    started = datetime.now(UTC)
    problem = ["it has not registered"]

    def ready() -> bool:
        if processes.find(site.directory, f"{node}-kubelet") is None:
            raise ClusterError(f"kubelet of {node} ended while it started:\n{log_tail(_kubelet_log(site, node))}")
        document = client.get(f"/api/v1/nodes/{node}")
        if document is None:
            return False
        _set_gpus(site, client, node, document)
        problem[0] = _why_not_ready(site, document, started)
        return not problem[0]

    def why_not() -> str:
        return f"    {problem[0]}\n{log_tail(_kubelet_log(site, node))}"

    wait_for(f"{node}'s getting Ready", ready, READY_TIMEOUT_S, why_not)


def kill_agents(site: Site, node: str) -> list[int]:
    """Kills the node's kubelet and containerd, and nothing else: containers go on. Returns the pids."""
    # A kubelet without a checkpoint of its devices takes the node for a new one: it would count no GPU and refuse the
    # pods that run. An empty checkpoint does; kubelet says that it cannot read it, and goes on.
    plugins = site.node_directory(node) / "kubelet" / "device-plugins"
    (plugins / "kubelet_internal_checkpoint").write_text("{}")
    killed = []
    for program in ("kubelet", "containerd"):
        running = processes.find(site.directory, f"{node}-{program}")
        if running:
            processes.kill(running)
            killed.append(running.pid)
    return killed


def stop(site: Site, node: str) -> None:
    """A power cut: everything of the node dies at once, and its namespaces with it. Its disk stays."""
    left = processes.kill_all(site.directory, site.slot, node)
    if left:
        raise ClusterError(f"processes of {node} would not die: {sorted(left)}")
    processes.forget(site.directory, processes.recorded(site.directory, node))
    cgroups.remove(site.slot, node)


def _start(site: Site, node: str, holder: Process, program: str, arguments: list[str]) -> Process:
    name = f"{node}-{program}"
    running = processes.find(site.directory, name)
    if running:
        return running
    path = build.program(program)
    environment = {"PATH": f"{path.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    launcher = Launcher(site.directory, site.slot, node)
    return launcher.start(name, [str(path), *arguments], env=environment, inside=holder)


def _kubelet_log(site: Site, node: str) -> Path:
    return site.logs / f"{node}-kubelet.log"


def _set_gpus(site: Site, client: ApiClient, node: str, document: Json) -> None:
    """Extended resources live in the node's status. A kubelet that starts sets those it does not know to zero (it
    takes them for those of a device plugin that has not come back), so this is done again whenever they differ."""
    wanted = str(site.options.gpus)
    status = document["status"]
    counted = {status.get(part, {}).get("nvidia.com/gpu", "0") for part in ("capacity", "allocatable")}
    if counted != {wanted}:
        gpus = {"nvidia.com/gpu": wanted}
        client.merge(f"/api/v1/nodes/{node}/status", {"status": {"capacity": gpus, "allocatable": gpus}})


def _why_not_ready(site: Site, document: Json, started: datetime) -> str:
    conditions = {entry["type"]: entry for entry in document["status"].get("conditions", [])}
    ready = conditions.get("Ready")
    if ready is None or ready["status"] != "True":
        return f"not Ready: {(ready or {}).get('message', 'no condition yet')}"
    heartbeat = datetime.fromisoformat(ready["lastHeartbeatTime"])
    if heartbeat.timestamp() < int(started.timestamp()):
        return "its last sign of life is from before this start"
    if document["spec"].get("taints"):
        return f"tainted: {', '.join(taint['key'] for taint in document['spec']['taints'])}"
    if document["status"]["allocatable"].get("nvidia.com/gpu", "0") != str(site.options.gpus):
        return "its GPUs are not counted yet"
    return ""


def _cni(site: Site, index: int) -> Json:
    """A cable to each pod, routed. No bridge: pods of one node would meet on it behind the back of the node's NAT."""
    subnet = site.addresses.node_pods(index)
    return {
        "cniVersion": "1.0.0",
        "name": "muster",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": subnet}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/run/cni-ipam",
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
        ],
    }


def _base_runtime_spec(site: Site) -> Json:
    """containerd's own default specification and one mount more."""
    done = subprocess.run([str(build.program("ctr")), "oci", "spec"], capture_output=True, text=True, check=True)
    spec: Json = json.loads(done.stdout)
    spec["process"].pop("rlimits", None)  # ctr's 1024 open files are too few; inherit containerd's
    source = torchtree.folder() if site.options.torch else torchtree.empty_folder()
    spec["mounts"].append(
        {
            "destination": torchtree.IN_CONTAINER,
            "type": "bind",
            "source": str(source),
            "options": ["rbind", "ro", "nosuid", "nodev"],
        }
    )
    return spec


def _kubelet_config(site: Site, node: str, index: int) -> Json:
    address = site.addresses.node(index)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(site.directory / "pki" / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDNS": [site.addresses.dns_service],
        "clusterDomain": "cluster.local",
        "resolvConf": str(site.node_directory(node) / "resolv.conf"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups.path(site.slot, node),
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        # Images have no registry to come back from.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "maxPods": 110,
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "4s",
        "nodeStatusReportFrequency": "10s",
        "nodeLeaseDurationSeconds": 16,
        "shutdownGracePeriod": "0s",
    }
