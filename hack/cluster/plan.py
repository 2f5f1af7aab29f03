"""What a cluster is asked to be, and every name and address that follows from it. Pure: nothing is touched here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from hack.cluster.errors import ClusterError

SLOTS = 16
MAX_REAL_NODES = 64
MAX_KWOK_NODES = 10_000
API_PORT = 6443
S3_PORT = 7070

REGION = "local"
HOSTS_PER_RACK = 16
RACKS_PER_BLOCK = 8
BLOCKS_PER_ZONE = 4


@dataclass(frozen=True)
class GpuType:
    """A GPU as GPU feature discovery would label its node."""

    product: str
    memory_mib: int


GPU_TYPES = {
    "A100": GpuType("NVIDIA-A100-SXM4-80GB", 81920),
    "H100": GpuType("NVIDIA-H100-80GB-HBM3", 81559),
    "H200": GpuType("NVIDIA-H200", 143771),
    "B200": GpuType("NVIDIA-B200", 183359),
    "L40S": GpuType("NVIDIA-L40S", 46068),
}


@dataclass(frozen=True)
class Options:
    """What `up` is asked for."""

    name: str = "muster"
    nodes: int = 2
    gpus: int = 8
    """Made-up GPUs on each node, real or simulated."""
    gpu_type: str = "H100"
    kwok_nodes: int = 0
    racks: int = 1
    """Racks that the real nodes are spread over, round robin."""
    control_plane_only: bool = False
    """etcd, API server, scheduler and controller manager: no kubelet, no DNS, no images."""
    s3: bool | None = None
    """Start an S3 server; None means: unless `control_plane_only`."""
    torch: bool = True
    """Show PyTorch at /opt/torch in every container."""
    audit_log: bool = False
    """Write every request (metadata) to `Cluster.audit_log`."""
    feature_gates: str = ""
    runtime_config: str = ""

    def check(self) -> None:
        """Raises ClusterError that names the option to change."""
        if not self.name.replace("-", "").isalnum() or len(self.name) > 30 or not self.name.islower():
            raise ClusterError(f"--name {self.name}: use at most 30 lower-case letters, digits and dashes")
        if self.gpu_type not in GPU_TYPES:
            raise ClusterError(f"--gpu-type {self.gpu_type}: known types are {', '.join(GPU_TYPES)}")
        if not 0 <= self.nodes <= MAX_REAL_NODES:
            raise ClusterError(f"--nodes {self.nodes}: from 0 to {MAX_REAL_NODES}; for more use --kwok-nodes")
        if not 0 <= self.kwok_nodes <= MAX_KWOK_NODES:
            raise ClusterError(f"--kwok-nodes {self.kwok_nodes}: from 0 to {MAX_KWOK_NODES}")
        if self.gpus < 0 or self.racks < 1:
            raise ClusterError("--gpus must not be negative, --racks must be at least 1")

    def beside(self, other: Options) -> str:
        """What differs, in flags: `--nodes 2 and not --nodes 3`."""
        names = [
            item.name for item in dataclasses.fields(self) if getattr(self, item.name) != getattr(other, item.name)
        ]
        return ", ".join(f"{self._flag(name)} and not {other._flag(name)}" for name in names)

    def _flag(self, name: str) -> str:
        value, flag = getattr(self, name), f"--{name.replace('_', '-')}"
        if value is None or isinstance(value, bool):
            return f"{flag} {'left out' if value is None else 'on' if value else 'off'}"
        return f"{flag} {value}" if value != "" else f"{flag} ''"

    @property
    def real_nodes(self) -> int:
        return 0 if self.control_plane_only else self.nodes

    @property
    def wants_s3(self) -> bool:
        return not self.control_plane_only if self.s3 is None else self.s3

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node-{index}" for index in range(self.real_nodes))


@dataclass(frozen=True)
class Addresses:
    """IPv4 plan of one slot. The hub is the network namespace of the control plane, and every node's router."""

    slot: int

    @property
    def pod_cidr(self) -> str:
        return f"10.{200 + self.slot}.0.0/16"

    @property
    def service_cidr(self) -> str:
        return f"10.{216 + self.slot}.0.0/16"

    @property
    def hub(self) -> str:
        """API server, S3 and DNS listen here; reachable from the host and from pods."""
        return f"10.{200 + self.slot}.255.1"

    @property
    def host(self) -> str:
        """The host's own address on the cable to the hub: what pods call to reach a process on the host."""
        return f"10.{200 + self.slot}.254.2"

    @property
    def hub_gateway(self) -> str:
        """The hub's end of that cable."""
        return f"10.{200 + self.slot}.254.1"

    @property
    def api_service(self) -> str:
        return f"10.{216 + self.slot}.0.1"

    @property
    def dns_service(self) -> str:
        return f"10.{216 + self.slot}.0.10"

    @property
    def kwok_pods(self) -> str:
        """Simulated pods get addresses that nothing answers."""
        return f"10.{200 + self.slot}.128.1/18"

    def kwok_node(self, index: int) -> str:
        """A simulated node's address, which nothing answers either."""
        return f"10.{200 + self.slot}.{192 + index // 250}.{1 + index % 250}"

    @property
    def host_link(self) -> str:
        """Network interface on the host."""
        return f"muster{self.slot}"

    @property
    def cgroup(self) -> str:
        return f"muster-{self.slot}"

    def node(self, index: int) -> str:
        return f"10.{200 + self.slot}.255.{10 + index}"

    def node_pods(self, index: int) -> str:
        return f"10.{200 + self.slot}.{index}.0/24"

    @property
    def api_url(self) -> str:
        return f"https://{self.hub}:{API_PORT}"

    @property
    def s3_url(self) -> str:
        return f"http://{self.hub}:{S3_PORT}"


@dataclass(frozen=True)
class Site:
    """One cluster: what was asked, where its files are and which slot it holds."""

    options: Options
    slot: int
    directory: Path
    secrets: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def addresses(self) -> Addresses:
        return Addresses(self.slot)

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    def node_directory(self, node: str) -> Path:
        return self.directory / "nodes" / node

    def kubeconfig_of(self, identity: str) -> Path:
        return self.directory / "pki" / f"{identity}.kubeconfig"


def rack_labels(rack: int) -> dict[str, str]:
    """Topology labels of a rack, as a cloud's or a site's labeller would set them. Names are unique in the cluster."""
    block = rack // RACKS_PER_BLOCK
    zone = block // BLOCKS_PER_ZONE
    return {
        "topology.kubernetes.io/region": REGION,
        "topology.kubernetes.io/zone": f"{REGION}-{chr(ord('a') + zone % 26)}{zone // 26 or ''}",
        "muster.dev/block": f"block-{block}",
        "muster.dev/rack": f"rack-{rack}",
    }


def gpu_labels(options: Options) -> dict[str, str]:
    """Labels as GPU feature discovery sets them; none for a node without GPUs."""
    labels = {"muster.dev/capacity": "on-demand"}
    if options.gpus:
        gpu = GPU_TYPES[options.gpu_type]
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": gpu.product,
            "nvidia.com/gpu.count": str(options.gpus),
            "nvidia.com/gpu.memory": str(gpu.memory_mib),
        }
    return labels


def real_node_labels(options: Options, index: int) -> dict[str, str]:
    """Labels of real node `index`."""
    return {**gpu_labels(options), **rack_labels(index % options.racks)}


def kwok_node_labels(options: Options, index: int) -> dict[str, str]:
    """Labels of simulated node `index`; its racks come after those of the real nodes."""
    rack = options.racks + index // HOSTS_PER_RACK
    return {**gpu_labels(options), **rack_labels(rack), "type": "kwok"}
