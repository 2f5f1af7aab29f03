"""Prices: files that are wrong, the layers, the days, the list that comes with Muster, and the arithmetic."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli.settings import Settings
from muster.controllers.chosen import price_catalogue
from muster.sizing.money import apportioned, exact, gpu_cost, written
from muster.sizing.price_file import list_prices, parse
from muster.sizing.prices import NO_CURRENCY, catalogue

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
HEAD = "gpus:\n- {gpu: H100, capacity: spot, hourly: 2.10}\n- "


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            "{gpu: A100, capacity: spot, hourly: -2}",
            r"gpus\[1\]\.hourly: '-2' is negative; write what one GPU costs an hour",
        ),
        ("{capacity: spot, hourly: 2}", r"gpus\[1\]\.gpu: is missing; write the GPU type"),
        ("{gpu: A100, capacity: spot}", r"gpus\[1\]\.hourly: is missing; write what one GPU costs"),
        (
            "{gpu: A100, capacity: cheap, hourly: 2}",
            r"\.capacity: 'cheap' is no kind of capacity; write one of on-demand",
        ),
        ("{gpu: A100, capacity: spot, hourly: two}", r"\.hourly: 'two' is no number"),
        ("{gpu: A100, capacity: spot, hourly: NaN}", r"\.hourly: 'NaN'"),
        ("{gpu: A100, capacity: spot, hourly: 2, monthly: 1}", r"\.monthly: '1' has no place here; remove it"),
        ("{gpu: A100, capacity: spot, hourly: 2, from: soon}", r"\.from: 'soon': .*; write a day like"),
        (
            "{gpu: A100, capacity: spot, hourly: 2, from: 2026-02-01, until: 2026-01-01}",
            "until 2026-01-01 is not after",
        ),
        ("{gpu: H100, capacity: spot, hourly: 3}", "says the same as an entry before it"),
        ("A100", r"gpus\[1\]: 'A100': .*; write a map"),
    ],
)
def test_what_is_wrong_is_told_and_the_rest_is_taken(entry: str, said: str) -> None:
    found = parse(HEAD + entry, "prices.yaml")
    assert [price.hourly for price in found.gpus] == [Decimal("2.10")]
    assert len(found.problems) == 1
    assert re.search(f"prices.yaml: .*{said}", found.problems[0]), found.problems[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("currency: eur\ngpus: []", "there is no currency 'eur'; write EUR"),
        ("currency: Taler", "there is no currency 'Taler'; write a code of ISO 4217"),
        ("- H100", "is no map"),
        ("gpus: [", "prices.yaml: line 1 is no YAML"),
        ("gpus: 3", "gpus: is no list; begin each price with a dash"),
        ("gpu: []", "'gpu' is no part of a price file"),
        (
            "gpus: []\nstorage: []\ngpus: []",
            "prices.yaml: line 3: 'gpus' stands in line 1 already; leave one of them. None of its",
        ),
    ],
)
def test_a_file_that_is_wrong_as_a_whole_gives_a_sentence(text: str, said: str) -> None:
    (problem,) = parse(text, "prices.yaml").problems
    assert said in problem


def test_an_empty_file_is_right() -> None:
    assert parse("", "prices.yaml").problems == ()


def test_the_list_that_comes_along_is_right_and_names_a_day_and_a_page_for_each_figure() -> None:
    listed = list_prices()
    prices = [*listed.gpus, *listed.storage, *listed.transfer]
    assert not listed.problems
    assert len(prices) > 40
    for price in prices:
        assert price.as_of is not None
        assert price.source.startswith("https://")
        assert price.region
    assert catalogue().flat(NOW)["H100/on-demand"] == 6.155
    assert catalogue(region="aws/us-east-1").flat(NOW)["H100/on-demand"] == 6.88


def test_the_flat_map_goes_before_the_catalogue_and_that_before_the_list() -> None:
    own = parse("gpus:\n- {gpu: H100, capacity: on-demand, hourly: 3}\n- {gpu: A100, capacity: spot, hourly: 1}", "own")
    found = catalogue({"H100/on-demand": 2.5}, own, currency="USD").flat(NOW)
    assert (found["H100/on-demand"], found["A100/spot"], found["H200/spot"]) == (2.5, 1.0, 2.61625)


def test_list_prices_are_not_mixed_with_prices_of_another_currency_or_of_none() -> None:
    euros = parse("currency: EUR\ngpus:\n- {gpu: H100, capacity: spot, hourly: 1}", "own")
    assert catalogue(own=euros).flat(NOW) == {"H100/spot": 1.0}
    flat = catalogue({"H100/spot": 1})
    assert (flat.flat(NOW), flat.currency) == ({"H100/spot": 1.0}, NO_CURRENCY)


def test_a_region_goes_before_none_and_a_later_day_before_an_earlier_one() -> None:
    own = parse(
        """gpus:
- {gpu: H100, capacity: spot, hourly: 1}
- {gpu: H100, capacity: spot, hourly: 2, from: 2026-11-01, until: 2026-12-01}
- {gpu: H100, capacity: spot, hourly: 3, region: moon, from: 2026-11-22}""",
        "own",
    )
    here, moon = catalogue(own=own, defaults=False), catalogue(own=own, defaults=False, region="moon")
    assert [here.flat(NOW + timedelta(days=days))["H100/spot"] for days in (-30, 0, 30)] == [1, 2, 1]
    assert [moon.flat(NOW + timedelta(days=days))["H100/spot"] for days in (-1, 0)] == [2, 3]


def test_an_unknown_region_or_flavour_is_told() -> None:
    problems = catalogue({"H100": 2, "A100/spot": -1}, region="mars").problems
    assert [
        part
        for part in ("'H100' is no flavour", "-1 is no price", "region 'mars'")
        if not any(part in one for one in problems)
    ] == []


def test_the_operator_goes_on_with_what_is_right(caplog: pytest.LogCaptureFixture) -> None:
    bad = {
        "gpus": [{"gpu": "H100", "capacity": "spot", "hourly": -1}, {"gpu": "A100", "capacity": "spot", "hourly": 1.1}]
    }
    settings = Settings(catalogue=bad, currency="Taler", list_prices=False)
    assert price_catalogue(settings).flat(NOW) == {"A100/spot": 1.1}
    assert "cost.catalogue: gpus[0].hourly: -1 is negative" in caplog.text
    assert "there is no currency 'Taler'" in caplog.text


@given(st.lists(st.fractions(-(10**6), 10**6), max_size=30), st.integers(0, 6))
def test_what_is_apportioned_adds_up_and_is_off_by_less_than_a_unit(amounts: list[Fraction], places: int) -> None:
    shown, unit = apportioned(amounts, places), Fraction(1, 10**places)
    assert abs(sum(map(Fraction, shown), Fraction(0)) - sum(amounts, Fraction(0))) <= unit / 2
    assert all(abs(Fraction(one) - amount) < unit for one, amount in zip(shown, amounts, strict=True))


def test_money_is_exact_until_it_is_written() -> None:
    assert gpu_cost(1, Decimal("2.50")) * 3600 == Fraction("2.5")
    assert (written(gpu_cost(3600, Decimal("2.50"))), written(Fraction(1, 3)), written(Fraction(0))) == (
        "2.5",
        "0.3333",
        "0",
    )
    assert exact(Decimal("2.46375") * 8) == "19.71"
