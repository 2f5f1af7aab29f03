"""Dataclasses of plain values as JSON, and back."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def encode(message: Any) -> bytes:
    """JSON bytes of a dataclass."""
    return json.dumps(dataclasses.asdict(message), allow_nan=False).encode()


def decode(kind: type[T], body: bytes) -> T:
    """Read `body` as the dataclass `kind`. Unknown fields are ignored.

    Raises:
        ValueError: the body is not JSON, or a field is missing or of the wrong shape.
    """
    message: T = _built(kind, json.loads(body))
    return message


def _built(kind: Any, raw: Any) -> Any:
    if not isinstance(raw, dict):
        raise ValueError(f"{kind.__name__}: expected a JSON object, got {type(raw).__name__}")
    values = {name: _read(hint, raw[name]) for name, hint in _hints(kind).items() if name in raw}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    """The type of each field, without None."""
    found = get_type_hints(kind)
    return {each.name: _present(found[each.name]) for each in dataclasses.fields(kind)}


def _present(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    return hint


def _read(hint: Any, value: Any) -> Any:
    """Dataclasses, enums and what stands in tuples; other values stay as JSON has them, for who takes them to judge."""
    if value is None:
        return None
    if dataclasses.is_dataclass(hint):
        return _built(hint, value)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"expected a JSON array, got {type(value).__name__}")
        return tuple(_element(get_args(hint)[0], one) for one in value)
    return hint(value) if isinstance(hint, type) and issubclass(hint, Enum) else value


def _element(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return _built(hint, value)
    try:
        return hint(value)
    except TypeError as error:
        raise ValueError(str(error)) from error
