"""What a worker holds of GPUs: whole ones, slices of them, or both. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from muster.api.effective import EffectiveSpec
from muster.api.placement import Placement
from muster.cluster.quantities import amount
from muster.sizing import slices


@dataclass(frozen=True)
class Devices:
    """Devices of one type.

    Attributes:
        gpu_type: that of whole GPUs, or a slice type of `muster.sizing.slices`; "" for none, or where nobody knows it.
    """

    gpu_type: str
    count: int

    @property
    def gpus(self) -> Fraction:
        """As so many whole GPUs."""
        return self.count * slices.share(self.gpu_type)


NONE: Final = Devices("", 0)


def of_worker(gpus: int, requests: Mapping[str, str], gpu_type: str) -> Devices:
    """What one worker holds on a node of a GPU type: `gpus`, and the slices among its requests.

    Of several kinds at once the sum is told in single slices: a ledger has one row for a worker.
    """
    found: dict[str, int] = {}
    for name, asked in requests.items():
        if (kind := slices.sliced(name, gpu_type)) and (count := _number(name, asked)):
            found[kind] = count
    if gpus:
        found[gpu_type] = gpus
    if len(found) < 2:
        return next((Devices(kind, count) for kind, count in found.items()), NONE)
    unit = slices.unit(gpu_type)
    whole = sum((count * slices.share(kind) for kind, count in found.items()), Fraction(0))
    return Devices(unit, round(whole / slices.share(unit)))


def _number(name: str, asked: str) -> int:
    """Pieces; 0 for what is no number: such a pod is never made."""
    try:
        return amount(name, asked)
    except ValueError:
        return 0


def held(placement: Placement, spec: EffectiveSpec, gpu_type: str) -> int | Fraction:
    """What a gang holds, in whole GPUs, spares' included; `gpu_type` is that of its nodes, "" where nobody knows it."""
    each = spec.gpus_per_worker if placement.gpus_per_worker is None else placement.gpus_per_worker
    found = of_worker(each, spec.requests, gpu_type)
    # Nearly all hold whole GPUs, and are asked in every round of planning: fractions are slow.
    return placement.held * (found.count if slices.whole(found.gpu_type) == found.gpu_type else found.gpus)


def held_as_written(placement: Placement, spec: EffectiveSpec) -> int | Fraction:
    """As `held`, for who does not see the nodes: their GPU type is what was written down with them."""
    return held(placement, spec, placement.flavour.partition("/")[0])
