"""Faults of nodes, and of the network between pods."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hack.chaos import kernel
from hack.chaos.stage import now
from hack.chaos.victim import Hit, Victim, VoidRun, name_of, node_of, rank_of
from hack.cluster import processes, state
from hack.demo.kube import Json


def node_dead(index: int | None) -> Callable[[Victim], Hit]:
    """A power cut of the node of that worker, or of any: its processes die and its network is gone. It comes back after
    the run."""

    def fault(victim: Victim) -> Hit:
        return _power_cut(victim, [node_of(victim.pod(index))])

    return fault


def two_nodes_dead(victim: Victim) -> Hit:
    """Of a gang's nodes, two at once."""
    nodes = sorted({node_of(pod) for pod in victim.stage.living(victim.name)})
    if len(nodes) < 2:
        raise VoidRun(f"all pods are on {nodes}")
    return _power_cut(victim, nodes[:2])


def _power_cut(victim: Victim, nodes: Sequence[str]) -> Hit:
    cluster = victim.stage.kube.cluster
    site = state.require(cluster.name)

    def mend() -> None:
        for node in nodes:
            cluster.start_node(node)

    at = now()
    try:
        for node in nodes:
            cluster.stop_node(node)
        left = {pid for node in nodes for pid in processes.living(site.directory, site.slot, node)}
        if left:
            raise VoidRun(f"processes of {nodes} still live: {sorted(left)}")
    except BaseException:
        mend()
        raise
    names = " and ".join(nodes)
    return Hit(at, f"power cut of {names}", f"no process of {names} lives, and their links are gone", mend=mend)


def agents_killed(victim: Victim) -> Hit:
    """kubelet and containerd of a pod's node die, and stay away for longer than a node may be silent."""
    cluster, node = victim.stage.kube.cluster, node_of(victim.pod())
    at = now()
    try:
        pids = cluster.kill_agents(node)
        if len(pids) != 2:
            raise VoidRun(f"kubelet and containerd did not both run on {node}: {pids}")
        victim.until(f"{node}'s being NotReady", lambda: not _ready(victim, node), 60)
    finally:
        cluster.start_agents(node)
    told = f"processes {pids} are gone; {node} was NotReady"
    return Hit(at, f"SIGKILL to kubelet and containerd of {node}", told, healed=now())


def _ready(victim: Victim, node: str) -> bool:
    found = victim.stage.kube.get(f"/api/v1/nodes/{node}") or {}
    conditions = found.get("status", {}).get("conditions", [])
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def pods_parted(victim: Victim) -> Hit:
    """No packet passes between two workers any more; to everybody else both still speak."""
    pod, other = victim.stage.living(victim.name)[:2]
    if victim.dice.random() < 0.5:
        pod, other = other, pod
    pid = rank_of(pod)
    at = now()
    kernel.cut_off(pid, _address(other))
    victim.until("dropped packets", lambda: kernel.dropped(pid) > 0)
    packets = kernel.dropped(pid)
    what = f"nftables in {name_of(pod)} drop all packets from and to {name_of(other)}"
    return Hit(at, what, f"{packets} packets were dropped at once")


def pods_parted_for(seconds: float) -> Callable[[Victim], Hit]:
    """The same, for a while: shorter than anybody may be silent."""

    def fault(victim: Victim) -> Hit:
        pod, other = victim.stage.living(victim.name)[:2]
        pid = rank_of(pod)
        at = now()
        kernel.cut_off(pid, _address(other))
        try:
            time.sleep(seconds)  # so long it lasts
            packets = kernel.dropped(pid)
        finally:
            kernel.connect_again(pid)
        if not packets:
            raise VoidRun("no packet was dropped")
        what = f"nftables in {name_of(pod)} drop all packets from and to {name_of(other)} for {seconds:g} s"
        return Hit(at, what, f"{packets} packets were dropped", healed=now())

    return fault


def _address(pod: Json) -> str:
    return str(pod["status"]["podIP"])
