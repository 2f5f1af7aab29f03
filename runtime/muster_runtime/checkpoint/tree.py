"""State dicts as JSON trees plus a flat table of tensors.

A tree keeps the shape of a state dict and every plain value in it, exactly; each tensor is replaced by the name under
which the table has it. Trees go into the manifest, tensors into the shard files. Nothing is pickled, so reading a
checkpoint runs no code from it.

JSON has neither tuples, bytes, NaN nor keys that aren't strings: those carry a tag, a dict of one key with a `$`. A
Counter does, too, since MultiStepLR's milestones must be one; other kinds of dicts come back as plain ones.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Final

import torch
from torch.distributed.tensor import DTensor

from muster_protocol.checkpoints.cuts import Box
from muster_protocol.checkpoints.tensors import ITEM_BYTES
from muster_runtime.errors import StateError

TensorTable = dict[str, torch.Tensor]

_INT_BITS: Final = 14_000
"""Of 4,214 digits: no more than 4,300 does Python turn into a text, or back."""


def split(name: str, state: Any, ties: Mapping[str, str] | None = None) -> tuple[Any, TensorTable]:
    """The tree and the tensors of `state`.

    `ties` maps the path of a tensor to the path of the one that it is tied to; that one alone gets into the table.
    A tensor's name there is its path, but where another has that already.
    StateError names the key of a value that can't be stored.
    """
    table: TensorTable = {}
    tied = ties or {}

    def encode(path: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {"$tensor": _enter(path, value, table, tied)}
        if value is None or isinstance(value, (bool, str)):
            return value
        if type(value) is int:
            return _bounded(path, value)
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        if type(value) is Counter:
            return {"$counter": encode(path, dict(value))}
        if isinstance(value, dict):
            return _encode_dict(path, value, encode)
        if type(value) is list:
            return [encode(f"{path}.{i}", item) for i, item in enumerate(value)]
        if type(value) is tuple:
            return {"$tuple": [encode(f"{path}.{i}", item) for i, item in enumerate(value)]}
        plain = _plain_number(value)
        if plain is not None:
            return encode(path, plain)
        raise StateError(
            f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint can't hold: it takes "
            "tensors, numbers, strings, None, lists, tuples and dicts. Change what its state_dict() returns"
        )

    try:
        return encode(name, state), table
    except RecursionError:
        raise StateError(
            f"{name} has a list or dict that holds itself, or lists and dicts in each other hundreds deep, which a "
            "checkpoint can't hold. Change what its state_dict() returns"
        ) from None


def _bounded(path: str, value: int) -> int:
    if value.bit_length() > _INT_BITS:
        raise StateError(
            f"{path} is a number of {value.bit_length():,} bits, which a checkpoint can't hold: it takes up to "
            f"{_INT_BITS:,}. Let its state_dict() return its bytes (`.to_bytes`)"
        )
    return value


def _encode_dict(path: str, value: dict[Any, Any], encode: Callable[[str, Any], Any]) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: encode(f"{path}.{key}", item) for key, item in value.items()}
    # keys of other types (an optimizer's state has ints) keep their type and order
    return {"$dict": [[encode(f"{path} key", key), encode(f"{path}.{key}", item)] for key, item in value.items()]}


def _enter(path: str, tensor: torch.Tensor, table: TensorTable, ties: Mapping[str, str]) -> str:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else str(tensor.layout)[6:]
        raise StateError(
            f"{path} is a {kind} tensor; a checkpoint holds dense ones: convert what its state_dict() returns"
        )
    if str(tensor.dtype).removeprefix("torch.") not in ITEM_BYTES:
        raise StateError(
            f"{path} is of type {tensor.dtype}, which a checkpoint can't hold; let its state_dict() return a view of "
            "its bytes (`.view(torch.uint8)`)"
        )
    if any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
        raise StateError(
            f"{path} is a DTensor of partial sums; a checkpoint holds shards and replicas: let its state_dict() return "
            "what `redistribute` makes of it, with Replicate() or Shard() in Partial()'s place"
        )
    if tensor.is_meta:
        raise StateError(
            f"{path} is on the meta device, so it has no values yet: materialize it (`to_empty`) before track()"
        )
    if ties.get(path) in table:  # else what it is tied to is in no state: a buffer that isn't persistent, for one
        return ties[path]
    name, number = path, 1
    while name in table:  # the keys 1 and "1", or "a.b" and "b" in "a", have one path
        number += 1
        name = f"{path}#{number}"
    table[name] = tensor.detach() if tensor.requires_grad else tensor
    return name


def packed(tree: Any) -> torch.Tensor:
    """`tree` as bytes (uint8 tensor), filled up with spaces to a power of two: what is a bit longer at the next save
    leaves the table's shapes, and so the plan, as they are."""
    text = json.dumps(tree).encode()
    return torch.frombuffer(bytearray(text.ljust(1 << (len(text) - 1).bit_length())), dtype=torch.uint8)


def unpacked(content: torch.Tensor) -> Any:
    """What `packed` was given."""
    return json.loads(bytes(content.tolist()))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part that this rank holds: a DTensor's shard, else the tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def local_boxes(table: TensorTable) -> Iterator[Box]:
    """Where the `local_part` of each lies in the whole tensor."""
    known: dict[Hashable, Box] = {}  # torch takes long to tell, and a state has few kinds
    for tensor in table.values():
        if not is_spread(tensor):
            yield (0,) * tensor.ndim, tuple(tensor.shape)
        elif isinstance(tensor, DTensor):
            kind = tensor.shape, tensor.placements, tensor.device_mesh
            if kind not in known:
                known[kind] = _box(tensor)
            yield known[kind]
        else:
            yield _box(tensor)


def is_spread(tensor: torch.Tensor) -> bool:
    """Whether it says by torch's protocol which part of the whole this rank holds, as a DTensor does."""
    return hasattr(tensor, "__create_chunk_list__")


def _box(tensor: torch.Tensor) -> Box:
    if isinstance(tensor, DTensor) and tensor.device_mesh.get_coordinate() is None:  # spread over other ranks
        return (0,) * tensor.ndim, (0,) * tensor.ndim
    spread: Any = tensor
    (chunk,) = spread.__create_chunk_list__()
    return tuple(chunk.offsets), tuple(chunk.sizes)


def _plain_number(value: Any) -> int | float | bool | None:
    """NumPy's scalars and subclasses of int and float (enums) as plain numbers."""
    if isinstance(value, (int, float)):
        return float(value) if isinstance(value, float) else int(value)
    if type(value).__module__ == "numpy" and callable(getattr(value, "item", None)) and getattr(value, "ndim", 1) == 0:
        plain = value.item() if value.dtype.kind in "biuf" else None  # a moment in nanoseconds would be an int
        return plain if isinstance(plain, (bool, int, float)) else None
    return None


def join(tree: Any, lookup: Callable[[str, str], torch.Tensor], path: str = "") -> Any:
    """The state dict of `tree`; `lookup(path, name)` gives the tensor that is wanted at `path`.

    StateError names what a newer version wrote: taken for a dict, it would be loaded as something else."""
    if isinstance(tree, list):
        return [join(item, lookup, f"{path}.{i}") for i, item in enumerate(tree)]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((tag, value),) = tree.items()
        if tag == "$tensor":
            return lookup(path, value)
        if tag == "$float":
            return float(value)
        if tag == "$bytes":
            return base64.b64decode(value)
        if tag == "$tuple":
            return tuple(join(item, lookup, f"{path}.{i}") for i, item in enumerate(value))
        if tag == "$counter":
            return Counter(join(value, lookup, path))
        if tag == "$dict":
            pairs = [(join(key, lookup), item) for key, item in value]
            return {key: join(item, lookup, f"{path}.{key}") for key, item in pairs}
        if tag.startswith("$"):
            raise StateError(
                f"the checkpoint has {path} in a form ({tag}) that this Muster does not know; resume with the one that "
                "wrote it, or a newer one"
            )
    return {key: join(item, lookup, f"{path}.{key}" if path else key) for key, item in tree.items()}
