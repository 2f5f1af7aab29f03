"""Parameters that can't be taken: what is wrong with each, and what would do, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.server.problems import BadField
from muster_protocol.spelling import nearest

SHOWN: Final = 64
"""Characters of a wrong value that are said again."""


def parameters(openapi: Mapping[str, Any], path: str) -> list[str]:
    """Names of those that a GET of `path` takes behind the question mark."""
    return sorted(one["name"] for one in openapi["paths"][path]["get"].get("parameters", ()) if one["in"] == "query")


def bad_field(item: Mapping[str, Any], known: Sequence[str]) -> BadField:
    """`item` is one of the errors of a RequestValidationError; `known` are the names that there are."""
    name = ".".join(part for part in item["loc"][1:] if isinstance(part, str))  # not the place within a list
    if item["type"] == "extra_forbidden":
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near is not None else f"there are {', '.join(known)}"
        return BadField(name=name, message=f"there is no such parameter; {hint}")
    return BadField(name=name, message=_wrong(item))


def _wrong(item: Mapping[str, Any]) -> str:
    said = repr(item["input"])
    value = said if len(said) <= SHOWN else f"{said[:SHOWN]}…"
    limits = item.get("ctx") or {}
    match item["type"]:
        case "enum" | "literal_error":
            return f"{value} is none of {limits['expected']}"
        case "int_parsing":
            return f"{value} is no whole number"
        case "bool_parsing":
            return f"{value} is neither true nor false"
        case "greater_than_equal":
            return f"{item['input']} is too small: give {limits['ge']} or more"
        case "less_than_equal":
            return f"{item['input']} is too much: give {limits['le']} or less"
        case "string_too_long":
            return f"it has {len(item['input'])} characters, and at most {limits['max_length']} are taken"
        case "string_pattern_mismatch":
            return f"{value} is no name of Kubernetes: those have letters, digits, -, _ and ."
        case "timezone_aware" | "datetime_parsing" | "datetime_from_date_parsing":
            return f"{value} is no moment with its zone: write it like 2026-11-01T00:00:00Z"
    return str(item["msg"])
