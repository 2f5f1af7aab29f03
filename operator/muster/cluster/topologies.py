"""The levels of a cluster that nobody described: found in the node labels that clouds and NVIDIA's tools write.

Used while there is no Topology `default`. Levels get the same names everywhere, so a job that says `rack` runs on all
these clouds: `zone`, then the network from its core to the switches next to the nodes (`datacenter`, `island`, `block`,
`rack`), then `nvlink`, nodes whose GPUs share one NVLink switch, and `host`.

A level counts when more than half of the nodes that could have its label do. So a node that lacks a label for a while,
or a few nodes of another kind, neither make levels nor take them away, and no job loses the level that it asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from muster.api.names import HOST_LABEL, ZONE_LABEL
from muster.cluster.gpus import gpu_type_of
from muster.cluster.jobs import NO_FABRIC, LevelInput
from muster.cluster.views import NodeView

HOST: Final = LevelInput("host", HOST_LABEL)


@dataclass(frozen=True)
class LabelSet:
    """The labels of one source.

    Attributes:
        source: who writes them, for people.
        labels: widest first; the last is that of the switches next to the nodes.
    """

    source: str
    labels: tuple[str, ...]


FABRICS: Final = (
    LabelSet("GKE", ("cloud.google.com/gce-topology-block", "cloud.google.com/gce-topology-subblock")),
    # Layer 1 is the widest. A fabric of four layers has a fourth label, and then that is the closest to the node.
    LabelSet("EKS", tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (1, 2, 3, 4))),
    LabelSet(
        "OCI",
        tuple(f"oci.oraclecloud.com/rdma.{part}_id" for part in ("hpc_island", "network_block", "local_block")),
    ),
    LabelSet("Nebius", ("topology.nebius.com/tier-2", "topology.nebius.com/tier-1")),
    # Tier 0 is the switch next to the node.
    LabelSet("topograph", tuple(f"fabric.topograph.run/tier-{tier}" for tier in (3, 2, 1, 0))),
    LabelSet(
        "topograph before 1.0", tuple(f"network.topology.nvidia.com/{tier}" for tier in ("core", "spine", "leaf"))
    ),
    LabelSet(
        "topograph before 0.2",
        tuple(f"network.topology.nvidia.com/{tier}" for tier in ("datacenter", "spine", "block")),
    ),
)
"""Networks between nodes. AKS names zones only: there the levels of its InfiniBand come from topograph."""

FABRIC_NAMES: Final = ("rack", "block", "island", "datacenter")
"""Names of a fabric's levels, the closest to the nodes first."""

NVLINK_LABELS: Final = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "topology.nebius.com/tier-0",
)
"""Domains of multi-node NVLink; the first that counts is taken."""


_KNOWN: Final = frozenset(label for fabric in FABRICS for label in fabric.labels) | set(NVLINK_LABELS)


def detect(nodes: Sequence[NodeView]) -> tuple[LevelInput, ...]:
    """The levels, widest first; `host` alone when no known label is found.

    Where some nodes have GPUs only those are asked: labels of a fabric that others lack are the rule.
    """
    asked = [node for node in nodes if gpu_type_of(node.labels)] or list(nodes)
    held = Counter(
        label
        for node in asked
        for label in _KNOWN.intersection(node.labels)
        if node.labels[label] and not node.labels[label].startswith(NO_FABRIC)
    )
    fabric = max(FABRICS, key=lambda fabric: _weight(fabric, held))
    most, _ = _weight(fabric, held)
    levels = [LevelInput("zone", ZONE_LABEL)] if _zones(asked) else []
    if most:
        counting = [label for label in fabric.labels if 2 * held[label] > most]
        names = FABRIC_NAMES[: len(counting)][::-1]
        levels += [LevelInput(name, label) for name, label in zip(names, counting, strict=True)]
    levels += [LevelInput("nvlink", label) for label in NVLINK_LABELS if 2 * held[label] > len(asked)][:1]
    return (*levels, HOST)


def _weight(fabric: LabelSet, held: Counter[str]) -> tuple[int, int]:
    """How many nodes have a label of the set, and how many such labels there are in all: two sets share one."""
    counts = [held[label] for label in fabric.labels]
    return max(counts), sum(counts)


def _zones(nodes: Sequence[NodeView]) -> bool:
    """Whether zones count. Where a cluster has none, AKS writes numbers of fault domains instead."""
    found = [node.labels.get(ZONE_LABEL, "") for node in nodes]
    return 2 * sum(bool(zone) and not zone.isdigit() for zone in found) > len(found)


class Detector:
    """`detect`, done again only when nodes have changed."""

    def __init__(self) -> None:
        self._nodes: list[NodeView] | None = None
        self._levels: tuple[LevelInput, ...] = (HOST,)

    def levels(self, nodes: Sequence[NodeView]) -> tuple[LevelInput, ...]:
        # Views are replaced when they change, so this compares identities, mostly.
        if self._nodes is None or self._nodes != list(nodes):
            self._nodes, self._levels = list(nodes), detect(nodes)
        return self._levels
