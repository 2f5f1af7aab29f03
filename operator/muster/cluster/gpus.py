"""Which GPU a node has and on what terms it is rented, read from the labels that others set.

GPU feature discovery writes `nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3`; people write `gpuType: H100`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import takewhile
from typing import Final

from muster.api.names import CAPACITY_LABEL, GPU_PRODUCT_LABEL

PRODUCT_LABELS: Final = ("muster.dev/gpu-type", GPU_PRODUCT_LABEL, "amd.com/gpu.product-name")
"""The first that a node has tells its GPU type. Ours is for sites whose product labels say too little."""

ON_DEMAND: Final = "on-demand"
RESERVED: Final = "reserved"
SPOT: Final = "spot"
BY_SURENESS: Final = (ON_DEMAND, RESERVED, SPOT)
"""In which order a job that names no kind of capacity takes the first that there is."""

_CAPACITY_LABELS: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    (CAPACITY_LABEL, {kind: kind for kind in BY_SURENESS}),
    ("karpenter.sh/capacity-type", {"spot": SPOT, "reserved": RESERVED}),
    ("eks.amazonaws.com/capacityType", {"SPOT": SPOT, "CAPACITY_BLOCK": RESERVED}),
    ("cloud.google.com/gke-spot", {"true": SPOT}),
    ("cloud.google.com/gke-preemptible", {"true": SPOT}),
    ("kubernetes.azure.com/scalesetpriority", {"spot": SPOT}),
)
"""Label keys, and what their values mean. The first of them that says anything counts: ours is for sites whose clouds
say too little."""

_VENDORS: Final = frozenset({"NVIDIA", "TESLA", "QUADRO", "AMD", "INSTINCT", "GEFORCE", "GRAPHICS", "DEVICE"})
_MODEL: Final = re.compile(r"^(RTX[0-9]+|[A-Z]{1,3}[0-9]{1,4}[A-Z]{0,2})$")
_VARIANTS: Final = frozenset({"TI", "SUPER", "D", "SFF", "ADA"})
"""Words behind a number that make another GPU of it: a Quadro RTX 6000 has half the memory of an RTX 6000 Ada."""
_MIG: Final = re.compile(r"-MIG-([0-9]+g\.[0-9]+gb)", re.IGNORECASE)


@lru_cache(maxsize=1024)
def short_type(product: str) -> str:
    """The name people use: `NVIDIA-H100-80GB-HBM3` is `H100`, `NVIDIA-GeForce-RTX-4090` is `RTX-4090`.
    Those of one series are told apart: `RTX-PRO-6000`, `RTX-6000-ADA`, `RTX-3080-TI`.

    A product that follows no known pattern keeps its whole name.
    """
    mig = _MIG.search(product)
    bare = _MIG.sub("", product) if mig else product
    words = [word for word in re.split(r"[-_ ]", bare) if word and word.upper() not in _VENDORS]
    name = _from_words([word for word in words if word.upper() not in _VENDORS]) or product
    return f"{name}-MIG-{mig.group(1).lower()}" if mig else name


def _from_words(words: list[str]) -> str:
    for position, word in enumerate(words):
        upper, behind = word.upper(), [each.upper() for each in words[position + 1 :]]
        if upper == "RTX" and behind:
            return "-".join(["RTX", *_rtx(behind)])
        if _MODEL.match(upper):
            return upper
    return ""


def _rtx(words: list[str]) -> list[str]:
    """Of the words behind `RTX` those that tell one GPU from another: up to its number, and what makes a variant of it.
    Where no word has a number, the first."""
    number = next((index for index, word in enumerate(words) if re.search("[0-9]", word)), 0)
    return [*words[: number + 1], *takewhile(_VARIANTS.__contains__, words[number + 1 :])]


def gpu_type_of(labels: Mapping[str, str]) -> str:
    """The node's GPU type, or "" for a node whose labels name none."""
    for key in PRODUCT_LABELS:
        if labels.get(key):
            return labels[key] if key == PRODUCT_LABELS[0] else short_type(labels[key])
    return ""


def product_of(labels: Mapping[str, str]) -> str:
    """The whole product name of the node's GPUs, as their vendor's tools write it, or ""."""
    return next((labels[key] for key in PRODUCT_LABELS[1:] if labels.get(key)), "")


def named_type(name: str, types: Iterable[str]) -> str:
    """The type that people mean by a name in any case: one of these that are there, as nodes have them; else its short
    name. What a site calls its GPUs (`H100-NVL`) may look like a product of another type."""
    return next((one for one in types if one.lower() == name.lower()), "") or short_type(name)


def named_types(names: Iterable[str], types: Iterable[str]) -> dict[str, str]:
    """`named_type` of each of the names in one list. One that no node has now stays as it is where its short name is
    another's of the list: while the last `H100-NVL` is away, its quota is not another one of `H100`."""
    every, there = tuple(names), tuple(types)
    meant = {name: named_type(name, there) for name in every}
    claimed = Counter(one.lower() for one in meant.values())
    own = {name for name, one in meant.items() if claimed[one.lower()] > 1 and one not in there}
    own |= {name for name, one in meant.items() if one.lower() in {other.lower() for other in every}}
    return {name: name if name in own and one.lower() != name.lower() else one for name, one in meant.items()}


def same_type(asked: str, labels: Mapping[str, str]) -> bool:
    """Whether the node has the GPU that `asked` names, by its short name or by the whole product."""
    has = gpu_type_of(labels)
    products = {labels[key].lower() for key in PRODUCT_LABELS if key in labels}
    return bool(has) and (asked.lower() == has.lower() or asked.lower() in products)


def capacity_of(labels: Mapping[str, str]) -> str:
    """`on-demand`, `reserved` or `spot`."""
    for key, kinds in _CAPACITY_LABELS:
        kind = kinds.get(labels.get(key, ""))
        if kind is not None:
            return kind
    return ON_DEMAND


def flavour_of(labels: Mapping[str, str]) -> str:
    """`H100/on-demand`, or "" for a node without GPUs."""
    gpu_type = gpu_type_of(labels)
    return f"{gpu_type}/{capacity_of(labels)}" if gpu_type else ""
