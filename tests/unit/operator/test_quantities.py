from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cluster.quantities import amount, limit, parse

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("resource", "quantity", "expected"),
    [
        ("cpu", "4", 4000),
        ("cpu", "500m", 500),
        ("cpu", "0.1", 100),
        ("cpu", "1.5", 1500),
        ("cpu", ".5", 500),
        ("cpu", "1u", 1),
        ("cpu", "1500000n", 2),
        ("cpu", 2, 2000),
        ("memory", "1Ki", 1024),
        ("memory", "64Gi", 64 * 2**30),
        ("memory", "1.5Gi", 3 * 2**29),
        ("memory", "128974848", 128974848),
        ("memory", "129e6", 129_000_000),
        ("memory", "129E6", 129_000_000),
        ("memory", "129M", 129_000_000),
        ("memory", "1E", 10**18),
        ("memory", "1Ei", 2**60),
        ("memory", "100m", 1),
        ("memory", "1.2", 2),
        ("nvidia.com/gpu", "8", 8),
        ("nvidia.com/gpu", "1k", 1000),
        ("pods", "110", 110),
        ("cpu", "+2", 2000),
        ("cpu", "-1", -1000),
    ],
)
def test_quantities_are_exact_and_rounded_up(resource: str, quantity: str | int, expected: int) -> None:
    assert amount(resource, quantity) == expected


@pytest.mark.parametrize(
    ("resource", "quantity", "expected"),
    [("nvidia.com/gpu", "1.5", 1), ("nvidia.com/gpu", "900m", 0), ("nvidia.com/gpu", 8, 8), ("cpu", "1.0005", 1000)],
)
def test_a_limit_is_not_passed_by_rounding(resource: str, quantity: str | int, expected: int) -> None:
    assert limit(resource, quantity) == expected


@pytest.mark.parametrize(
    "text", ["", " ", "abc", "1 Gi", "1gi", "Gi", "1e", "1Gie3", "--1", "1.2.3", "0x10", "1e999999999"]
)
def test_what_is_no_quantity_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse(text)


@given(st.integers(0, 10**12), st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "n", "u"]))
def test_no_binary_rounding_creeps_in(number: int, suffix: str) -> None:
    scale = {
        "": Fraction(1),
        "m": Fraction(1, 1000),
        "u": Fraction(1, 10**6),
        "n": Fraction(1, 10**9),
        "k": Fraction(1000),
        "M": Fraction(10**6),
        "Ki": Fraction(1024),
        "Mi": Fraction(2**20),
    }[suffix]
    assert parse(f"{number}{suffix}") == number * scale
