"""What a name that does not exist is answered with."""

from __future__ import annotations

import pytest

from muster_protocol.counts import all_of, counted
from muster_protocol.spelling import nearest, there_are

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("visoin", ["default", "vision"], "vision"),
        ("h100", ["A100", "H100"], "H100"),
        ("DEFAULT", ["default"], "default"),
        ("nlp", ["default", "vision"], None),
        ("llama-8", ["llama-70b", "llama-8b"], "llama-8b"),
        ("x", [], None),
    ],
)
def test_the_name_that_was_meant_is_found(name: str, known: list[str], meant: str | None) -> None:
    assert nearest(name, known) == meant


def test_those_there_are_follow_but_no_more_than_a_person_reads() -> None:
    assert there_are("visoin", ["vision", "default"]) == "did you mean 'vision'? There are: default, vision"
    assert there_are("nlp", ["vision", "default"]) == "there are: default, vision"
    assert there_are("nlp", []) == "there are none"
    many = [f"team-{number:04}" for number in range(1000)]
    told = there_are("taem-0500", many)
    assert told.startswith("did you mean 'team-0500'? There are: team-0000, ")
    assert told.endswith("team-0009, and 990 more")


def test_one_thing_is_told_in_the_singular() -> None:
    assert [counted(number, "rank") for number in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert [all_of(number, "pod") for number in (1, 2)] == ["its pod", "all 2 pods"]
