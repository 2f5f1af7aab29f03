"""Dataclasses of plain values as JSON, and back."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from muster_protocol.text import encodable

T = TypeVar("T")


def encode(message: Any) -> bytes:
    """JSON bytes of a dataclass."""
    return json.dumps(dataclasses.asdict(message), allow_nan=False).encode()


def decode(kind: type[T], body: bytes) -> T:
    """Read `body` as the dataclass `kind`. Unknown fields are ignored.

    Raises:
        ValueError: the body is not JSON, or a field is missing or of another type. Names the field.
    """
    try:
        raw = json.loads(body, parse_constant=_not_json)
    except RecursionError:
        raise ValueError("it has more levels than can be read") from None
    message: T = _built(kind, raw)
    return message


def _not_json(word: str) -> float:
    raise ValueError(f"{word} is no number in JSON")


def _built(kind: Any, raw: Any) -> Any:
    _of(dict, raw)
    values = {name: _field(kind, name, raw[name]) for name in _hints(kind) if name in raw}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _field(kind: Any, name: str, value: Any) -> Any:
    hint, optional = _hints(kind)[name]
    if value is None and optional:
        return None
    try:
        return _read(hint, value)
    except ValueError as error:
        raise ValueError(f"{kind.__name__}.{name}: {error}") from error


@cache
def _hints(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """The type of each field, without None, and whether it may be None."""
    found = get_type_hints(kind)
    return {each.name: _present(found[each.name]) for each in dataclasses.fields(kind)}


def _present(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
        return hint, True
    return hint, False


def _read(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return _built(hint, value)
    if get_origin(hint) is tuple:
        return tuple(_read(get_args(hint)[0], one) for one in _of(list, value))
    if get_origin(hint) is dict:
        return {encodable(name): _read(get_args(hint)[1], one) for name, one in _of(dict, value).items()}
    if issubclass(hint, Enum):
        return hint(value)
    if hint is str:
        return encodable(_of(str, value))
    if hint is int and not -_WHOLE <= _of(int, value) < _WHOLE:
        raise ValueError(f"{value} has no room in 64 bits")
    return value if hint is float and type(value) is int else _of(hint, value)


_WHOLE: Final = 2**63

_NAMES: Final = {
    dict: "object",
    list: "array",
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
"""What JSON calls them."""


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"expected a JSON {_NAMES[kind]}, got {_NAMES[type(value)]}")
    return value
