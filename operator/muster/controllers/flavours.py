"""Which kinds of nodes a job takes: GPU type and kind of capacity, whose quota it draws on there. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from muster.api import names
from muster.api.effective import EffectiveSpec
from muster.cluster.gpus import (
    BY_SURENESS,
    ON_DEMAND,
    flavour_of,
    gpu_type_of,
    named_types,
    product_of,
    same_type,
    short_type,
)
from muster.cluster.jobs import NO_ACCELERATOR
from muster.cluster.views import NodeView
from muster.sizing.slices import device_price


def flavour_counts(nodes: Iterable[NodeView]) -> Counter[tuple[str, str]]:
    """Number of nodes by (flavour, whole product name); nodes without a GPU type are left out."""
    return Counter((flavour_of(node.labels), product_of(node.labels)) for node in nodes if gpu_type_of(node.labels))


def by_flavour(nodes: Iterable[NodeView]) -> dict[str, list[NodeView]]:
    """The nodes of each flavour, "" of those without a GPU type."""
    found: dict[str, list[NodeView]] = {}
    for node in nodes:
        found.setdefault(flavour_of(node.labels), []).append(node)
    return found


QuotaTypes = Sequence[Sequence[str]]
"""GPU types as the quotas of a queue name them, and those of each queue above it."""


def choose_flavour(spec: EffectiveSpec, counts: Counter[tuple[str, str]], quotas: QuotaTypes = ()) -> str:
    """Whose quota a job that isn't placed would draw on: of the flavours that suit it, on-demand before reserved before
    spot, then the one with the most nodes. "" for a job without GPUs, and where no node tells its GPU type."""
    if not spec.gpus_per_worker:
        return NO_ACCELERATOR
    suited = suited_by(spec, counts)
    if not suited:
        return f"{_absent_type(spec.gpu_type, counts, quotas)}/{ON_DEMAND}" if spec.gpu_type else NO_ACCELERATOR
    return min(suited, key=lambda flavour: (BY_SURENESS.index(flavour.rpartition("/")[2]), -suited[flavour], flavour))


def suited_by(spec: EffectiveSpec, counts: Counter[tuple[str, str]]) -> Counter[str]:
    """Number of nodes with the GPU that a job asks for, by flavour."""
    suited: Counter[str] = Counter()
    for (flavour, product), count in counts.items():
        labels = {names.GPU_PRODUCT_LABEL: product, "muster.dev/gpu-type": flavour.partition("/")[0]}
        if not spec.gpu_type or same_type(spec.gpu_type, labels):
            suited[flavour] += count
    return suited


def renamed(spec: EffectiveSpec, flavour: str, counts: Counter[tuple[str, str]]) -> bool:
    """Whether nodes have a flavour, and none of them is called what the job asks for."""
    return any(of == flavour for of, _ in counts) and not suited_by(spec, counts)[flavour]


def _absent_type(asked: str, counts: Counter[tuple[str, str]], quotas: QuotaTypes) -> str:
    """The type that a job asks for and no node has now, as the quotas of its queue have it: while the last `H100-NVL`
    is away, it is not an `H100` where both have a quota."""
    there = sorted({flavour.partition("/")[0] for flavour, _ in counts})
    for named in quotas:
        for name, meant in named_types(named, there).items():
            if name.lower() == asked.lower():
                return meant
    return short_type(asked)


@dataclass(frozen=True)
class Choice:
    """A kind of node that a job takes.

    Attributes:
        flavour: whose quota it draws on there.
        capacity: kinds of capacity allowed, empty for any.
        renamed: it runs there, and the nodes' GPUs are called now what it does not ask for: their name goes before.
    """

    flavour: str
    capacity: tuple[str, ...]
    renamed: bool = False


def choose_flavours(
    spec: EffectiveSpec,
    counts: Counter[tuple[str, str]],
    quotas: QuotaTypes = (),
    prices: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Choice, ...]:
    """The kinds of node that a job takes, in its order: one that says nothing of capacity has a single choice.

    `prices`: money for an hour of one GPU, by flavour.
    """
    if not spec.capacity:
        flavour = choose_flavour(spec, counts, quotas)
        capacity = flavour.partition("/")[2]
        return (Choice(flavour, (capacity,) if capacity else ()),)
    choices = [choose_of_kind(spec, kind, counts, quotas) for kind in spec.capacity]
    if spec.cheapest:
        choices.sort(key=lambda choice: _price(prices, choice.flavour))
    return tuple(choices)


def _price(prices: Mapping[str, float], flavour: str) -> float:
    price = device_price(prices, flavour)
    return math.inf if price is None else price


def choose_of_kind(spec: EffectiveSpec, kind: str, counts: Counter[tuple[str, str]], quotas: QuotaTypes = ()) -> Choice:
    """The nodes that a job takes of one kind of capacity."""
    of_kind = Counter({key: count for key, count in counts.items() if key[0].endswith(f"/{kind}")})
    # Where no node of the kind is there now, it is the GPU that the job would get of another kind.
    flavour = choose_flavour(spec, of_kind if suited_by(spec, of_kind) else counts, quotas)
    if flavour and not flavour.endswith(f"/{kind}"):
        flavour = f"{flavour.partition('/')[0]}/{kind}"
    return Choice(flavour, (kind,))


def standing_choices(
    spec: EffectiveSpec, choices: Sequence[Choice], flavour: str, *, renamed: bool = False
) -> tuple[Choice, ...]:
    """The choices of a job that draws on a flavour already: the one that is of its kind of capacity is just that,
    whatever most nodes are now. `flavour`: "" where that is not known."""
    if not flavour:
        return tuple(choices)
    drawn_on = Choice(flavour, (flavour.partition("/")[2],), renamed)
    if not spec.capacity:
        return (drawn_on,)
    return tuple(drawn_on if choice.capacity == drawn_on.capacity else choice for choice in choices)
