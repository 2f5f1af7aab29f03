"""Namespaces and cables: each cluster is a small site of its own inside the machine.

The control plane (the hub) and every node live in a network and a mount namespace of their own, as machines would. A
cable (veth) runs from the host to the hub and from the hub to each node, and the hub routes between them. So pod,
Service and node addresses work from the host as well as from pods; several clusters never meet; no bridge, iptables
rule or sysctl of the host is touched; and when a cluster's processes end, the kernel takes its links and mounts away.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from pathlib import Path

from hack.cluster import cgroups
from hack.cluster.errors import ClusterError, log_tail
from hack.cluster.plan import Site
from hack.cluster.processes import Launcher, Process, find, run, run_in

HUB = "hub"

# rp_filter off: the hub sees a node's pods behind the node's address, which strict filtering may take for spoofing.
_COMMON_SETUP = """\
set -e
mount --make-rshared /
mount -t tmpfs -o mode=755,nosuid,nodev muster-run /run
mkdir -p /run/netns /run/lock
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
echo 0 > /proc/sys/net/ipv4/conf/default/rp_filter
echo 0 > /proc/sys/net/ipv4/conf/all/send_redirects
"""


def anchor_name(node: str) -> str:
    return f"{node}-namespaces"


def anchor(site: Site, node: str) -> Process:
    """The process that holds the namespaces of the hub or of a node."""
    process = find(site.directory, anchor_name(node))
    if process is None:
        raise ClusterError(f"{node} of cluster {site.options.name} is not running: start it, or take the cluster down")
    return process


def start_anchor(site: Site, node: str, mounts: dict[str, Path]) -> Process:
    """Makes the namespaces of the hub or a node. `mounts`: path in the node -> our folder shown there."""
    cgroups.create(site.slot, node)
    ready = site.directory / "processes" / f"{node}.namespaces-ready"
    ready.parent.mkdir(parents=True, exist_ok=True)
    ready.unlink(missing_ok=True)
    script = _COMMON_SETUP
    for target, source in mounts.items():
        source.mkdir(parents=True, exist_ok=True)
        script += f"mount --bind {shlex.quote(str(source))} {shlex.quote(target)}\n"
    script += f"echo ready > {shlex.quote(str(ready))}\nexec sleep infinity\n"
    launcher = Launcher(site.directory, site.slot, node)
    process = launcher.start(
        anchor_name(node), ["unshare", "--net", "--mount", "--propagation", "slave", "--", "sh", "-c", script]
    )
    deadline = time.monotonic() + 20
    while not ready.exists():
        if not process.alive or time.monotonic() > deadline:
            raise ClusterError(
                f"the network and mount namespaces of {node} could not be made (is this root, with CAP_SYS_ADMIN and"
                f" a writable /proc/sys/net?):\n{log_tail(Path(process.log))}"
            )
        time.sleep(0.01)
    return process


def connect_hub(site: Site) -> None:
    """Lays the cable between the host and the hub."""
    hub, plan = anchor(site, HUB), site.addresses
    _ip_host(
        f"link add {plan.host_link} type veth peer name host netns {hub.pid}",
        f"address add {plan.host}/30 dev {plan.host_link}",
        f"link set {plan.host_link} up",
    )
    _ip(
        hub,
        "link set lo up",
        f"address add {plan.hub}/32 dev lo",
        f"address add {plan.hub_gateway}/30 dev host",
        "link set host up",
        # The hub's own calls to a Service need some route before kube-proxy's rules see and redirect them.
        f"route add {plan.service_cidr} dev lo src {plan.hub}",
    )
    _ip_host(
        f"route add {plan.pod_cidr} via {plan.hub_gateway} dev {plan.host_link}",
        f"route add {plan.service_cidr} via {plan.hub_gateway} dev {plan.host_link}",
    )


def connect_node(site: Site, node: str, index: int) -> None:
    """Lays the cable between the hub and a node, and the routes to the node's pods."""
    hub, holder, plan = anchor(site, HUB), anchor(site, node), site.addresses
    address = plan.node(index)
    _ip_host(f"link add {node} netns {hub.pid} type veth peer name eth0 netns {holder.pid}")
    _ip(
        hub,
        f"link set {node} up",
        f"route add {address}/32 dev {node} src {plan.hub}",
        f"route add {plan.node_pods(index)} via {address} dev {node} onlink",
    )
    _ip(
        holder,
        "link set lo up",
        f"address add {address}/32 dev eth0",
        "link set eth0 up",
        f"route add default via {plan.hub} dev eth0 onlink src {address}",
    )


def disconnect_host(site: Site, timeout_s: float = 5.0) -> None:
    """Removes the host's end of the cable. The kernel does so too, a moment after the hub's end has gone, so this may
    fail for being late; what counts is that it is away. Should it stay, the last look of a teardown tells."""
    link = Path(f"/sys/class/net/{site.addresses.host_link}")
    deadline = time.monotonic() + timeout_s
    while link.exists() and time.monotonic() < deadline:
        with contextlib.suppress(ClusterError):
            run(["ip", "link", "delete", link.name])
        time.sleep(0.02)


def _ip_host(*lines: str) -> None:
    run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")


def _ip(inside: Process, *lines: str) -> None:
    run_in(inside, ["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")
