"""Tensors in an optimizer's state that are made of others, as the states of 8-bit optimizers are.

Such a tensor is of a class of its own, and its bytes are in its parts: codes, say, and their scales. Stored as the
numbers that it stands for, it would come back as a plain tensor: of four times the memory from the resume on, and of
other numbers after the next step. So a checkpoint has the parts, by torch's own protocol for such classes, and the name
of the class. That is looked for among the modules that the script has loaded; nothing is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from muster_runtime.checkpoint.tree import is_spread, local_part

_KEY: Final = "muster.made_of"
_DTYPE: Final = "muster.dtype"
_SIZE: Final = "muster.size"


def take_apart(state: Any) -> Any:
    """An optimizer's state with the parts of such tensors in their places.

    Not of one that lies in a DTensor: another number of ranks has other parts. Nor of one whose class keeps beside its
    parts what a checkpoint can't hold.
    """

    def apart(value: Any) -> Any:
        if not _is_made(value) or is_spread(value) or value.layout is not torch.strided:
            return value
        names, context = value.__tensor_flatten__()
        parts = {name: getattr(value, name) for name in names}
        if any(type(part) is not torch.Tensor for part in parts.values()):
            return value
        try:
            told = _mapped(context, _plain)
        except TypeError:
            return value
        kind, size = type(value), [list(value.shape), list(value.stride())]
        return {_KEY: {"class": [kind.__module__, kind.__qualname__], "context": told, "size": size, "parts": parts}}

    try:
        return _mapped(state, apart)
    except RecursionError:  # it holds itself, which whoever stores it tells
        return state


def put_together(state: Any, parameters: list[torch.Tensor]) -> Any:
    """The state of which `take_apart` has made this, for an optimizer of these parameters. Collective where they are
    sharded: it then has the numbers that such a tensor stands for, sharded as they are.

    ValueError where a tensor's class isn't there.
    """
    states = state.get("state") if isinstance(state, dict) else None
    if not isinstance(states, dict):
        return state
    of = dict(enumerate(parameters))
    return {**state, "state": {number: _together(own, of.get(number)) for number, own in states.items()}}


def not_kept(tensors: Iterable[torch.Tensor]) -> list[str]:
    """The names of the classes among an optimizer's tensors that a checkpoint doesn't keep, once `take_apart` has seen
    them."""
    return sorted({type(part).__name__ for part in map(local_part, tensors) if _is_made(part)})


def _is_made(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__")


def _together(value: Any, parameter: torch.Tensor | None) -> Any:
    if isinstance(value, Mapping) and value.keys() == {_KEY}:
        made = _made(value[_KEY], parameter)
        return _sharded_as(parameter, made) if isinstance(parameter, DTensor) else made
    if isinstance(value, dict):
        return {key: _together(each, parameter) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_together(each, parameter) for each in value)
    return value


def _made(told: dict[str, Any], parameter: torch.Tensor | None) -> torch.Tensor:
    module, name = told["class"]
    kind = getattr(sys.modules.get(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.Tensor) and hasattr(kind, "__tensor_unflatten__")):
        raise ValueError(f"it has tensors of the class {module}.{name}, which the script has not imported")
    device = parameter.device if parameter is not None else None
    whole = {name: part.full_tensor() if isinstance(part, DTensor) else part for name, part in told["parts"].items()}
    parts = {name: part.to(device) for name, part in whole.items()}
    size, stride = map(torch.Size, told["size"])
    made: torch.Tensor = kind.__tensor_unflatten__(parts, _typed(told["context"]), size, tuple(stride))
    return made


def _sharded_as(parameter: DTensor, made: torch.Tensor) -> torch.Tensor:
    plain = torch.empty(made.shape, dtype=made.dtype, device=parameter.device).copy_(made)
    if made.shape != parameter.shape:
        return plain
    return distribute_tensor(plain, parameter.device_mesh, parameter.placements)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` of all that isn't a plain dict, list or tuple in it."""
    if type(value) is dict:
        return {key: _mapped(each, change) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(each, change) for each in value)
    return change(value)


def _plain(value: Any) -> Any:
    """TypeError for what can't be stored."""
    if isinstance(value, torch.dtype):
        return {_DTYPE: str(value).removeprefix("torch.")}
    if isinstance(value, torch.Size):
        return {_SIZE: list(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"{type(value).__name__} can't be stored")


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_DTYPE}:
            return getattr(torch, value[_DTYPE])
        return torch.Size(value[_SIZE]) if value.keys() == {_SIZE} else {k: _typed(v) for k, v in value.items()}
    return type(value)(map(_typed, value)) if isinstance(value, (list, tuple)) else value
