"""Loaders of other libraries (torchdata's StatefulDataLoader): each rank has a place of its own to restore."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from muster_runtime.checkpoint.layout import dtype_name, dtype_named, raw_bytes
from muster_runtime.checkpoint.tree import join, packed, split, unpacked
from muster_runtime.data.loader import to_device
from muster_runtime.data.waiting import Waiting, waited
from muster_runtime.errors import UsageError


def is_foreign(thing: Any) -> bool:
    """Whether `thing` is a loader that has a state of its own: a DataLoader with one, or anything of torchdata's."""
    loads = isinstance(thing, DataLoader) or type(thing).__module__.partition(".")[0] == "torchdata"
    return loads and callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def fixed_size(name: str, thing: Any, where: str) -> str:
    """For people: why a run with `thing` can't change its size."""
    return (
        f"{name!r}, tracked at {where}, is of {type(thing).__name__}, whose place is each rank's own: the run can go "
        "on with the same number of ranks only. session.loader goes on with any"
    )


def endless(loader: Iterable[Any], device: torch.device, where: str, waiting: Waiting) -> Iterator[Any]:
    """Batches of a foreign loader from where it stands, pass after pass. The first pass begins with this call: random
    numbers that are drawn as it does (for the order, say) have been drawn before the batches' own."""
    with waiting():
        first = iter(loader)

    def batches() -> Iterator[Any]:
        items: Iterable[Any] = first
        empty = 0
        while empty < 2:  # one pass is empty after a resume at an epoch's end
            empty += 1
            for batch in waited(items, waiting):
                empty = 0
                yield to_device(batch, device)
            items = loader
        raise UsageError(f"{where}: the loader has no batches on this rank")

    return batches()


def pack(name: str, state: Any) -> torch.Tensor:
    """One rank's state as bytes (uint8 tensor). StateError names the key of a value that can't be stored."""
    tree, tensors = split(name, state)
    plain = {path: [dtype_name(t.dtype), list(t.shape), _text(t)] for path, t in tensors.items()}
    return packed({"tree": tree, "tensors": plain})


def _text(tensor: torch.Tensor) -> str:
    """Its bytes: as numbers an empty one would lose its shape, and complex ones are none in JSON."""
    whole = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    return base64.b64encode(raw_bytes(whole)).decode()


def unpack(name: str, content: torch.Tensor) -> Any:
    """What `pack` was given."""
    state = unpacked(content)

    def lookup(_: str, tensor: str) -> torch.Tensor:
        dtype, *rest = state["tensors"][tensor]
        if len(rest) == 1:  # an older Muster has written its numbers
            return torch.tensor(rest[0], dtype=dtype_named(dtype), device="cpu")
        found = torch.empty(rest[0], dtype=dtype_named(dtype), device="cpu")
        if found.numel():
            raw_bytes(found)[:] = base64.b64decode(rest[1])
        return found

    return join(state["tree"], lookup, name)
