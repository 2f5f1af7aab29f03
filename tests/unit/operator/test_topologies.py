"""Levels are found in the labels that clouds write, under the same names everywhere."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from muster.cluster.topologies import FABRICS, NVLINK_LABELS, Detector, detect
from muster.cluster.views import NodeView

pytestmark = pytest.mark.unit

GPU = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
ZONE = "topology.kubernetes.io/zone"


def node(name: str, *labels: Mapping[str, str]) -> NodeView:
    together = {key: value for each in labels for key, value in each.items()}
    return NodeView(name, f"uid-{name}", together | {"kubernetes.io/hostname": name}, (), True, False, ())


def found(*nodes: NodeView) -> list[tuple[str, str]]:
    return [(level.name, level.label) for level in detect(nodes)]


def names(*nodes: NodeView) -> list[str]:
    return [name for name, _ in found(*nodes)]


def test_nothing_known_leaves_hosts() -> None:
    assert found(node("a", GPU, {"example.com/rack": "r1"})) == [("host", "kubernetes.io/hostname")]
    assert names() == ["host"]


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: fabric.source)
def test_whole_set_gives_its_levels_widest_first_ending_in_rack(fabric: object) -> None:
    labels = fabric.labels  # type: ignore[attr-defined]
    levels = found(node("a", GPU, dict.fromkeys(labels, "x"), {ZONE: "eu-1a"}))
    assert [label for _, label in levels] == [ZONE, *labels, "kubernetes.io/hostname"]
    assert [name for name, _ in levels[1:-1]] == ["datacenter", "island", "block", "rack"][-len(labels) :]


def test_fabric_of_three_layers_on_eks_has_its_racks_on_the_third() -> None:
    labels = {f"topology.k8s.aws/network-node-layer-{layer}": "nn-1" for layer in (1, 2, 3)}
    assert found(node("a", GPU, labels))[2] == ("rack", "topology.k8s.aws/network-node-layer-3")


def test_nvlink_domains_lie_inside_racks() -> None:
    labels = {"cloud.google.com/gce-topology-block": "b", "nvidia.com/gpu.clique": "u.0"}
    assert names(node("a", GPU, labels)) == ["rack", "nvlink", "host"]
    assert names(node("a", GPU, {"nvidia.com/gpu.clique": "u.0"})) == ["nvlink", "host"]


@pytest.mark.parametrize("label", NVLINK_LABELS)
def test_gpus_that_reach_no_other_node_by_nvlink_make_no_domain_though_tools_label_them(label: str) -> None:
    fabric = {"network.topology.nvidia.com/leaf": "l"}
    alone = {label: "00000000-0000-0000-0000-000000000000.0"}
    nodes = [node("a", GPU, fabric, alone), node("b", GPU, fabric, alone)]
    assert names(*nodes) == ["rack", "host"]
    linked = [
        node(str(index), GPU, fabric, {label: f"0a0b0c0d-0000-0000-0000-000000000000.{index}"}) for index in "345"
    ]
    assert names(*nodes, *linked) == ["rack", "nvlink", "host"]


def test_one_node_that_lacks_a_label_takes_no_level_away() -> None:
    whole = {"cloud.google.com/gce-topology-block": "b", "cloud.google.com/gce-topology-subblock": "s"}
    nodes = [node(str(index), GPU, whole) for index in range(3)]
    fresh = node("fresh", GPU, {"cloud.google.com/gce-topology-block": "b"})
    assert names(*nodes, fresh, node("bare", GPU)) == ["block", "rack", "host"]


def test_nodes_without_gpus_have_no_say_where_others_have_some() -> None:
    others = [node(f"cpu-{index}", {ZONE: "z"}) for index in range(9)]
    assert names(node("gpu", GPU, {"cloud.google.com/gce-topology-block": "b"}), *others) == ["rack", "host"]
    assert names(*others) == ["zone", "host"]


def test_fault_domains_that_aks_writes_as_zones_are_none() -> None:
    assert names(node("a", GPU, {ZONE: "0"}), node("b", GPU, {ZONE: "1"})) == ["host"]
    assert names(node("a", GPU, {ZONE: "westeurope-1"})) == ["zone", "host"]


def test_source_with_the_most_nodes_is_taken() -> None:
    oci = {"oci.oraclecloud.com/rdma.local_block_id": "l"}
    gke = {"cloud.google.com/gce-topology-block": "b"}
    nodes = [node("a", GPU, oci), node("b", GPU, oci), node("c", GPU, gke)]
    assert found(*nodes)[0] == ("rack", "oci.oraclecloud.com/rdma.local_block_id")


def test_levels_are_looked_for_again_when_nodes_change() -> None:
    detector = Detector()
    bare = node("a", GPU)
    assert [level.name for level in detector.levels([])] == ["host"]
    assert [level.name for level in detector.levels([bare])] == ["host"]
    labelled = node("a", GPU, {"cloud.google.com/gce-topology-block": "b"})
    assert [level.name for level in detector.levels([labelled])] == ["rack", "host"]
    assert detector.levels([labelled]) is detector.levels([labelled])
