"""Product labels become the names that people use."""

import pytest

from muster.cluster.gpus import capacity_of, flavour_of, gpu_type_of, named_type, same_type, short_type

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("product", "short"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("NVIDIA-H200", "H200"),
        ("NVIDIA-A100-SXM4-80GB", "A100"),
        ("NVIDIA-A100-PCIE-40GB", "A100"),
        ("NVIDIA-L40S", "L40S"),
        ("NVIDIA-L4", "L4"),
        ("NVIDIA-B200", "B200"),
        ("NVIDIA-GH200-480GB", "GH200"),
        ("Tesla-V100-SXM2-16GB", "V100"),
        ("Tesla-T4", "T4"),
        ("NVIDIA-A10G", "A10G"),
        ("NVIDIA-RTX-A6000", "RTX-A6000"),
        ("NVIDIA-GeForce-RTX-4090", "RTX-4090"),
        ("NVIDIA-GeForce-RTX-3080-Ti", "RTX-3080-TI"),
        ("NVIDIA-GeForce-RTX-4070-Ti-SUPER", "RTX-4070-TI-SUPER"),
        ("Quadro-RTX-6000", "RTX-6000"),
        ("NVIDIA-RTX-6000-Ada-Generation", "RTX-6000-ADA"),
        ("NVIDIA-RTX-4000-SFF-Ada-Generation", "RTX-4000-SFF-ADA"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "RTX-PRO-6000"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-1g.24gb", "RTX-PRO-6000-MIG-1g.24gb"),
        ("NVIDIA-RTX-PRO-4500-Blackwell", "RTX-PRO-4500"),
        ("NVIDIA-RTX-Prototype", "RTX-PROTOTYPE"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "A100-MIG-1g.10gb"),
        ("something", "something"),
    ],
)
def test_short_names(product: str, short: str) -> None:
    assert short_type(product) == short


def test_the_site_may_say_it_better() -> None:
    assert gpu_type_of({"muster.dev/gpu-type": "H100-NVL", "nvidia.com/gpu.product": "NVIDIA-H100"}) == "H100-NVL"
    assert gpu_type_of({}) == ""


@pytest.mark.parametrize(
    ("name", "there", "meant"),
    [
        ("H100-NVL", ["H100", "H100-NVL"], "H100-NVL"),
        ("h100-nvl", ["H100-NVL"], "H100-NVL"),
        ("NVIDIA-H100-80GB-HBM3", ["H100", "H100-NVL"], "H100"),
        ("NVIDIA-H100-80GB-HBM3", [], "H100"),
        ("Fast", ["fast"], "fast"),
    ],
)
def test_a_quota_means_a_type_that_nodes_have_by_any_of_its_names(name: str, there: list[str], meant: str) -> None:
    assert named_type(name, there) == meant


def test_people_may_write_short_or_whole_names_in_any_case() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert same_type("h100", labels)
    assert same_type("NVIDIA-H100-80GB-HBM3", labels)
    assert not same_type("H200", labels)
    assert not same_type("H100", {})


@pytest.mark.parametrize(
    ("labels", "capacity"),
    [
        ({}, "on-demand"),
        ({"karpenter.sh/capacity-type": "spot"}, "spot"),
        ({"karpenter.sh/capacity-type": "on-demand"}, "on-demand"),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, "spot"),
        ({"cloud.google.com/gke-spot": "true"}, "spot"),
        ({"muster.dev/capacity": "reserved"}, "reserved"),
        ({"karpenter.sh/capacity-type": "reserved"}, "reserved"),
        ({"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, "reserved"),
        ({"muster.dev/capacity": "reserved", "karpenter.sh/capacity-type": "spot"}, "reserved"),
        ({"muster.dev/capacity": "on-demand", "eks.amazonaws.com/capacityType": "SPOT"}, "on-demand"),
        ({"muster.dev/capacity": "colo", "eks.amazonaws.com/capacityType": "SPOT"}, "spot"),
    ],
)
def test_capacity(labels: dict[str, str], capacity: str) -> None:
    assert capacity_of(labels) == capacity


def test_flavour() -> None:
    assert flavour_of({"nvidia.com/gpu.product": "NVIDIA-H200", "muster.dev/capacity": "spot"}) == "H200/spot"
    assert flavour_of({}) == ""
