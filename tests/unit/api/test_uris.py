"""What the API server admits as a run's place is what the runtime takes for one."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_protocol.uris import S3_RUN_PATTERN, parse_uri_at_step, parse_uri_of_run

pytestmark = pytest.mark.unit


def taken(text: str) -> bool:
    try:
        parse_uri_of_run(text)
    except ValueError:
        return False
    return True


@given(st.sampled_from(["models", "ab", "Models", "m.s"]), st.text("/.@a6# é", max_size=12))
def test_the_pattern_of_the_crd_takes_what_the_runtime_takes(bucket: str, rest: str) -> None:
    uri = f"s3://{bucket}{rest}"
    assert bool(re.fullmatch(S3_RUN_PATTERN, uri)) == taken(uri)


@pytest.mark.parametrize("uri", ["s3://models", "s3://models/", "s3://models/a/.b/...", "s3://models/a@6/b"])
def test_places_of_runs(uri: str) -> None:
    assert taken(uri)


@pytest.mark.parametrize("uri", ["s3://models//a", "s3://models/a/./b", "s3://models/a@6", "s3://models/a@6/"])
def test_places_that_the_tools_would_take_for_others(uri: str) -> None:
    assert not taken(uri)


@pytest.mark.parametrize("place", ["s3://models", "s3://models/a", "s3://models/a@6/b", "file:///", "file:///models/a"])
def test_a_slash_at_the_end_changes_no_step(place: str) -> None:
    for end in ("", "/", "//"):
        assert parse_uri_at_step(f"{place}@12{end}") == (parse_uri_at_step(place)[0], 12)
        assert parse_uri_at_step(f"{place}{end}")[1] is None
        with pytest.raises(ValueError, match="ends in @paper"):
            parse_uri_at_step(f"{place}@paper{end}")


@pytest.mark.parametrize(
    "read_as", [os.fsdecode(b"s3://models/\xf6"), "s3://models/größe".encode().decode("ascii", "surrogateescape")]
)
def test_bytes_that_were_not_read_as_text_are_told_before_s3_is_asked(read_as: str) -> None:
    with pytest.raises(ValueError, match="PYTHONUTF8=1"):
        parse_uri_of_run(read_as)
