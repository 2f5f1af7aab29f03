"""Price files: YAML of what GPUs, storage and transfer cost, and from when on. What is wrong is told and left out.

A price file never stops anything: whoever reads one gets what is valid, and a sentence for each thing that is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Any, Final, Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from muster.api.handwritten import Once, WrongLine
from muster.sizing.currencies import CURRENCIES

CAPACITIES: Final = ("on-demand", "reserved", "spot")
DOLLAR: Final = "USD"
PARTS: Final = ("currency", "region", "gpus", "storage", "transfer")
"""What a price file has."""

Amount = Annotated[Decimal, Field(ge=0, le=10**9, allow_inf_nan=False, max_digits=24)]


class Price(BaseModel):
    """What all prices have. `region` "" is every region; `start` and `end` are days in UTC, the last one excluded."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    region: str = ""
    start: Annotated[date | None, Field(alias="from")] = None
    end: Annotated[date | None, Field(alias="until")] = None
    source: str = ""
    as_of: date | None = None
    via: str = ""

    @property
    def amount(self) -> Decimal:
        raise NotImplementedError


class GpuPrice(Price):
    """Of an hour of one GPU."""

    gpu: Annotated[str, Field(min_length=1, max_length=63)]
    capacity: Annotated[str, Field(pattern=f"^({'|'.join(CAPACITIES)})$")]
    hourly: Amount

    @property
    def amount(self) -> Decimal:
        return self.hourly


class StoragePrice(Price):
    """Of a gigabyte (10^9 bytes) that is kept for a month (730 hours)."""

    gb_month: Amount

    @property
    def amount(self) -> Decimal:
        return self.gb_month


class TransferPrice(Price):
    """Of a terabyte (10^12 bytes) that leaves the region."""

    tb: Amount

    @property
    def amount(self) -> Decimal:
        return self.tb


Kind = TypeVar("Kind", bound=Price)


@dataclass(frozen=True)
class PriceFile:
    """What was read.

    Attributes:
        region: whose prices hold where nobody chose one.
        problems: a sentence for each thing that is wrong and was left out: what, where, and how to mend it.
    """

    currency: str = DOLLAR
    region: str = ""
    gpus: tuple[GpuPrice, ...] = ()
    storage: tuple[StoragePrice, ...] = ()
    transfer: tuple[TransferPrice, ...] = ()
    problems: tuple[str, ...] = ()


class _AsWritten(Once, yaml.BaseLoader):
    """Every scalar as it was written: 2.10 becomes a Decimal by its digits, not by the nearest float."""


def load(text: str) -> Any:
    """The maps, lists and scalars of a YAML text. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_AsWritten)


def parse(text: str, name: str) -> PriceFile:
    """A price file from its text; `name` stands in its problems."""
    try:
        raw = load(text)
    except WrongLine as error:
        return PriceFile(problems=(f"{name}: {error}. None of its prices is used until then",))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark is not None else ""
        return PriceFile(problems=(f"{name}:{where} is no YAML: {getattr(error, 'problem', error)}; mend it there",))
    return read({} if raw in (None, "", "null") else raw, name)  # `helm get values -o yaml` of none: null


def read(raw: Any, name: str) -> PriceFile:
    """A price file from maps, lists and scalars."""
    if not isinstance(raw, Mapping):
        return PriceFile(problems=(f"{name}: is no map; write `currency`, `gpus`, `storage` and `transfer`",))
    problems = [
        f"{name}: {key!r} is no part of a price file; it has currency, region, gpus, storage and transfer"
        for key in raw
        if key not in PARTS
    ]
    currency = str(raw.get("currency") or DOLLAR)
    if currency not in CURRENCIES:
        like = (
            f"; write {currency.upper()}" if currency.upper() in CURRENCIES else "; write a code of ISO 4217 like EUR"
        )
        problems.append(
            f"{name}: currency: there is no currency {currency!r}{like}. None of its prices is used until then"
        )
        return PriceFile(problems=tuple(problems))
    gpus = _Entries("gpus", GpuPrice).read(raw, name, problems)
    storage = _Entries("storage", StoragePrice).read(raw, name, problems)
    transfer = _Entries("transfer", TransferPrice).read(raw, name, problems)
    return PriceFile(currency, str(raw.get("region") or ""), gpus, storage, transfer, tuple(problems))


@dataclass(frozen=True)
class _Entries(Generic[Kind]):
    key: str
    model: type[Kind]

    def read(self, raw: Mapping[str, Any], name: str, problems: list[str]) -> tuple[Kind, ...]:
        entries = raw.get(self.key) or []
        if not isinstance(entries, list):
            problems.append(f"{name}: {self.key}: is no list; begin each price with a dash")
            return ()
        found: dict[tuple[Any, ...], Kind] = {}
        for number, entry in enumerate(entries):
            where = f"{name}: {self.key}[{number}]"
            try:
                price = self.model.model_validate(entry)
            except ValidationError as error:
                problems += [f"{where}{_sentence(problem)}" for problem in error.errors()]
                continue
            if price.start is not None and price.end is not None and price.end <= price.start:
                problems.append(f"{where}: until {price.end} is not after from {price.start}; give a later `until`")
                continue
            key = (*(getattr(price, field, "") for field in ("gpu", "capacity")), price.region, price.start)
            if key in found:
                problems.append(
                    f"{where}: says the same as an entry before it; remove one, or give a `from` to this one"
                )
                continue
            found[key] = price
        return tuple(found.values())


_HINTS: Final = {
    "gpu": "write the GPU type as `muster queues` shows it, like H100",
    "capacity": f"write one of {', '.join(CAPACITIES)}",
    "hourly": "write what one GPU costs an hour, like 2.50; 0 for nothing",
    "gbMonth": "write what a gigabyte costs a month, like 0.023",
    "tb": "write what a terabyte costs, like 90",
    "from": "write a day like 2026-11-01",
    "until": "write a day like 2026-12-01",
    "asOf": "write a day like 2026-11-01",
}


def _sentence(problem: Any) -> str:
    """`.hourly: -2 is negative; write ...`"""
    field, given = str(problem["loc"][0]) if problem["loc"] else "", problem["input"]
    said = {
        "missing": "is missing",
        "extra_forbidden": f"{given!r} has no place here",
        "greater_than_equal": f"{given!r} is negative",
        "string_pattern_mismatch": f"{given!r} is no kind of capacity",
        "decimal_parsing": f"{given!r} is no number",
    }.get(problem["type"], f"{given!r}: {problem['msg']}")
    hint = _HINTS.get(field, "remove it" if problem["type"] == "extra_forbidden" else "write a map of its fields")
    return f"{'.' if field else ''}{field}: {said}; {hint}"


@lru_cache(maxsize=1)
def list_prices() -> PriceFile:
    """The public list prices that come with Muster."""
    name = "list_prices.yaml"
    return parse(files("muster.sizing").joinpath(name).read_text(encoding="utf-8"), name)


@lru_cache(maxsize=1)
def _listed() -> frozenset[str]:
    return frozenset(price.gpu for price in list_prices().gpus)


def slip(gpu_type: str) -> str:
    """The name, where it may be a slip of another GPU type's; "" of a GPU that is made: an A100 is no misspelt H100."""
    return "" if gpu_type in _listed() else gpu_type
