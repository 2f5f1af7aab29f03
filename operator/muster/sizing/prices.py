"""The price catalogue: what a GPU, a stored gigabyte and a transferred terabyte cost at a moment.

Prices come in layers, the strongest first: the chart's flat `prices`, its catalogue, and the public list prices. Within
a layer the chosen region goes before prices without one, and of those that hold at a moment the one that began last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timezone
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Final

from pydantic import ValidationError

from muster.sizing.currencies import CURRENCIES
from muster.sizing.price_file import (
    CAPACITIES,
    DOLLAR,
    GpuPrice,
    Price,
    PriceFile,
    list_prices,
)
from muster_protocol.spelling import there_are

NO_CURRENCY: Final = "XXX"
"""ISO 4217's word for none: of flat prices whose currency nobody told."""

FLAT: Final = "the chart's prices"
"""Source of a price of the flat map."""

Key = tuple[str, str]
"""GPU type in lower case, and capacity; ("", "storage") and ("", "transfer") for the others."""

STORAGE: Final[Key] = ("", "storage")
TRANSFER: Final[Key] = ("", "transfer")


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All prices that hold in one region.

    Attributes:
        layers: the strongest first.
        problems: what was left out, as sentences.
    """

    currency: str = DOLLAR
    region: str = ""
    layers: tuple[PriceFile, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """The currency for a status or a tag: "" where nobody told."""
        return "" if self.currency == NO_CURRENCY else self.currency

    def gpu(self, gpu_type: str, capacity: str, moment: datetime) -> Price | None:
        """The price of an hour of one GPU."""
        return self._at((gpu_type.lower(), capacity), moment)

    def storage(self, moment: datetime) -> Price | None:
        return self._at(STORAGE, moment)

    def transfer(self, moment: datetime) -> Price | None:
        return self._at(TRANSFER, moment)

    def rate(self, key: Key, moment: datetime) -> Decimal | None:
        """What a unit costs at a moment; None where nothing is known."""
        price = self._at(key, moment)
        return None if price is None else price.amount

    def changes(self, key: Key) -> list[datetime]:
        """The moments at which the rate may change."""
        return self._changes.get(key, [])

    def flat(self, moment: datetime) -> dict[str, float]:
        """Money for an hour of one GPU by flavour like `H100/on-demand`, of all flavours that have a price."""
        names = {price.gpu.lower(): price.gpu for layer in reversed(self.layers) for price in layer.gpus}
        found = {
            f"{names[key[0]]}/{key[1]}": price
            for key in self._by_key
            if key[0] and (price := self._at(key, moment)) is not None
        }
        return {flavour: float(price.amount) for flavour, price in sorted(found.items())}

    def known(self, moment: datetime) -> list[GpuPrice]:
        """The GPU prices that hold at a moment, by GPU type and capacity."""
        held = [self._at(key, moment) for key in sorted(self._by_key) if key[0]]
        return [price for price in held if isinstance(price, GpuPrice)]

    def _at(self, key: Key, moment: datetime) -> Price | None:
        for candidates in self._by_key.get(key, ()):
            held = [price for price in candidates if _holds(price, moment)]
            if held:
                return max(held, key=lambda price: price.start or date.min)
        return None

    @property
    def regions(self) -> frozenset[str]:
        """The regions that any price is for."""
        return frozenset(price.region for layer in self.layers for _, price in _keyed(layer)) - {""}

    @cached_property
    def _by_key(self) -> dict[Key, list[list[Price]]]:
        """The prices that may hold, in groups, the strongest group first."""
        found: dict[Key, list[list[Price]]] = {}
        for layer in self.layers:
            for region in dict.fromkeys((self.region or layer.region, "")):
                groups: dict[Key, list[Price]] = {}
                for key, price in _keyed(layer):
                    if price.region == region:
                        groups.setdefault(key, []).append(price)
                for key, group in groups.items():
                    found.setdefault(key, []).append(group)
        return found

    @cached_property
    def _changes(self) -> dict[Key, list[datetime]]:
        return {
            key: sorted(
                {_midnight(day) for group in groups for price in group for day in (price.start, price.end) if day}
            )
            for key, groups in self._by_key.items()
        }


def catalogue(
    flat: Mapping[str, object] | None = None,
    own: PriceFile | None = None,
    *,
    region: str = "",
    currency: str = "",
    defaults: bool = True,
) -> Catalogue:
    """All that holds.

    Args:
        flat: the chart's `prices`, by flavour like `H100/on-demand`; in `currency`.
        own: the chart's catalogue, or a file.
        region: as prices name it, like `aws/us-east-1`; "" for that which the catalogue or the list prices name.
        currency: of `flat`; "" where nobody told.
        defaults: take the public list prices for what has no other. They are in dollars; no other currency has them.
    """
    first, problems = _flat(flat or {})
    if currency and currency not in CURRENCIES:
        problems.append(f"there is no currency {currency!r}; write a code of ISO 4217 like EUR")
        currency = ""
    layers = [first] if first.gpus else []
    money = currency or (NO_CURRENCY if layers else DOLLAR)
    if own is not None:
        problems += own.problems
        if own.gpus or own.storage or own.transfer:
            if layers and money != own.currency:
                told = f"in {currency}" if currency else "in a currency that nobody told"
                problems.append(
                    f"prices are {told} and the catalogue in {own.currency}; the catalogue's holds for both"
                )
            money = own.currency
        layers.append(own)
    if defaults and money == DOLLAR:
        layers.append(list_prices())
    chosen = region or (own.region if own is not None else "")
    found = Catalogue(money, chosen, tuple(layers))
    if chosen and chosen not in found.regions:
        problems.append(f"no price is for region {chosen!r}; {there_are(chosen, found.regions)}")
    return replace(found, problems=tuple(problems))


def _flat(flat: Mapping[str, object]) -> tuple[PriceFile, list[str]]:
    prices, problems = [], []
    for flavour, hourly in flat.items():
        gpu, _, capacity = str(flavour).partition("/")
        if not gpu or capacity not in CAPACITIES:
            problems.append(
                f"prices: {flavour!r} is no flavour; write it like H100/on-demand, with one of {', '.join(CAPACITIES)}"
            )
            continue
        try:
            prices.append(GpuPrice(gpu=gpu, capacity=capacity, hourly=Decimal(str(hourly)), source=FLAT))
        except (ValidationError, InvalidOperation):
            problems.append(f"prices: {flavour}: {hourly} is no price; write what one GPU costs an hour, like 2.50")
    return PriceFile(gpus=tuple(prices)), problems


def _keyed(layer: PriceFile) -> Iterable[tuple[Key, Price]]:
    yield from (((price.gpu.lower(), price.capacity), price) for price in layer.gpus)
    yield from ((STORAGE, price) for price in layer.storage)
    yield from ((TRANSFER, price) for price in layer.transfer)


def _holds(price: Price, moment: datetime) -> bool:
    after = price.start is None or _midnight(price.start) <= moment
    return after and (price.end is None or moment < _midnight(price.end))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), timezone.utc)
