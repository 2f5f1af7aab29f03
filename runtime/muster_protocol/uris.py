"""Checkpoint URIs: `s3://bucket/prefix`, and `file:///folder` for a laptop."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_BUCKET: Final = r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
S3_URI_PATTERN: Final = rf"{_BUCKET}(/[^?#\s]*)?$"
"""As a regular expression that both Python and Kubernetes' RE2 read."""
# Servers that keep objects in folders take two prefixes with a '..' or '//' for one, and list nothing below a '.' or
# '//'.
_FOLDER: Final = r"(\.{0,2}[^./?#\s][^/?#\s]*|\.{3,}[^/?#\s]*)"
_LAST_FOLDER: Final = _FOLDER.replace(r"#\s", r"#\s@")
_S3_PLACE: Final = rf"{_BUCKET}(/{_FOLDER})*/*$"
S3_RUN_PATTERN: Final = rf"{_BUCKET}((/{_FOLDER})*/{_LAST_FOLDER})?/*$"
"""What `parse_uri_of_run` takes of S3: a place whose last folder has no '@'."""


@dataclass(frozen=True)
class CheckpointUri:
    """`scheme` is s3 or file; `bucket` is empty for file; `prefix` has no slash at its end."""

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{self.prefix or '/'}"
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def parse_uri(text: str) -> CheckpointUri:
    """Raises ValueError that says what is wrong with `text` and what a right one looks like."""
    if text.startswith("file:///"):
        return CheckpointUri("file", "", text.removeprefix("file://").rstrip("/"))
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        raise ValueError(
            f"{shown!r} is not a checkpoint uri as this process reads it: it is not in UTF-8, or the process does not "
            "take what it is given for UTF-8; start it with PYTHONUTF8=1, or with a locale such as LC_ALL=C.UTF-8"
        )
    if not re.fullmatch(_S3_PLACE, text):
        rules = (
            ": buckets have 3 to 63 of a-z, 0-9, '.' and '-', and prefixes no space, ? or #, no '//', and no folder "
            "'.' or '..'"
        )
        raise ValueError(
            f"{text!r} is not a checkpoint uri; write s3://BUCKET/PREFIX (or file:///FOLDER on a laptop)"
            f"{rules if text.startswith('s3://') else ''}"
        )
    bucket, _, prefix = text.removeprefix("s3://").partition("/")
    return CheckpointUri("s3", bucket, prefix.rstrip("/"))


def parse_uri_of_run(text: str) -> CheckpointUri:
    """A place for a run's own checkpoints. Raises ValueError, also where all that takes `uri@step` would look for
    another run's step."""
    head, at, step = text.rstrip("/").rpartition("@")
    if at and "/" not in step:
        raise ValueError(f"a run can't be named {text}: all that reads it takes @{step} for a step; write {head}")
    return parse_uri(text)


def parse_uri_at_step(text: str) -> tuple[CheckpointUri, int | None]:
    """`uri` or `uri@step`, as `checkpoint.from` takes it."""
    head, at, step = text.rstrip("/").rpartition("@")
    if at and re.fullmatch("[0-9]+", step):
        return parse_uri(head), int(step)
    if at and "/" not in step:
        raise ValueError(f"{text!r} ends in @{step}, and a step is a whole number; write {head}@100, or leave it out")
    return parse_uri(text), None
