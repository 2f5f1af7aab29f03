"""JSON of what may be large, made piece by piece.

`json.dumps` holds the interpreter until all is written: a third of a second for the manifest of 64 ranks with 2,100
tensors. A rank writes that beside its training, which wants the interpreter every few microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def dumps(value: Any, depth: int) -> bytes:
    """The bytes of `json.dumps(value)`. What lies `depth` levels of objects below it is written at once, and so is what
    a list has."""
    return "".join(_pieces(value, depth)).encode()


def _pieces(value: Any, depth: int) -> Iterator[str]:
    before = ""
    if depth and isinstance(value, Mapping) and all(type(key) is str for key in value):
        yield "{"
        for key, item in value.items():
            yield f"{before}{json.dumps(key)}: "
            yield from _pieces(item, depth - 1)
            before = ", "
        yield "}"
    elif depth and isinstance(value, list | tuple):
        yield "["
        for item in value:
            yield before + json.dumps(item)
            before = ", "
        yield "]"
    else:
        yield json.dumps(value)
