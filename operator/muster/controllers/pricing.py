"""What the gangs' GPUs cost: by the prices that the operator was given, and the nodes on which they stand."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from muster.cluster.gpus import flavour_of
from muster.controllers import devices, planning
from muster.controllers.cache import Cache
from muster.controllers.records import Record
from muster.sizing.slices import gpu_price

log = logging.getLogger(__name__)


class Pricing:
    """Prices records. Of a flavour that has no price it warns once."""

    def __init__(self, cache: Cache, prices: Mapping[str, float], currency: str = "") -> None:
        """`prices`: money for an hour of one GPU, by flavour like `H100/on-demand`; in `currency`, "" for unknown."""
        self._cache, self._prices, self._currency = cache, prices, currency
        self._unpriced: set[str] = set()

    def price(self, record: Record) -> None:
        """Take over the GPU type and the price of the gang's nodes: by what was written down with them while they are
        gone, or their labels are. Of a gang on two kinds of nodes the price is the mean of its workers'."""
        placement = record.job.status.placement
        if placement is None:
            return
        first = self._of_node(record, placement.nodes[0].node if placement.nodes else "", placement.flavour)
        if first is None:
            return
        record.gpu_type, record.price = first
        record.currency = self._currency
        base, workers = planning.base_of(placement), placement.workers
        if base < workers:
            last = self._of_node(record, placement.nodes[-1].node if placement.nodes else "", "")
            beyond = record.price if last is None else last[1]
            record.price = (base * record.price + (workers - base) * beyond) / workers

    def _of_node(self, record: Record, name: str, written: str) -> tuple[str, float] | None:
        """The GPU type of a node, and money for an hour of a whole GPU of what a worker holds there; None where its
        flavour isn't known. `written`: its flavour, as long as it doesn't say another."""
        node = self._cache.node(name) if name else None
        flavour = (flavour_of(node.labels) if node is not None else "") or written
        if not flavour and node is None:
            return None
        gpu_type, _, capacity = flavour.partition("/")
        kind = devices.of_worker(record.spec.gpus_per_worker, record.spec.requests, gpu_type).gpu_type
        price = gpu_price(self._prices, f"{kind}/{capacity}") if kind else None
        if self._prices and kind and price is None and flavour not in self._unpriced:
            self._unpriced.add(flavour)
            log.warning("no price is known for %s: it costs nothing; give the chart's `prices` one", flavour)
        return gpu_type, price or 0.0
