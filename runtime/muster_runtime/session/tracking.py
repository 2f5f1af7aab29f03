"""The objects of a checkpoint, and their states as a table of tensors. `restoration` brings them back."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from muster_runtime.checkpoint.tree import TensorTable, split
from muster_runtime.data.foreign import is_foreign, pack
from muster_runtime.errors import StateError
from muster_runtime.parallel.gang import Gang
from muster_runtime.parallel.replicas import samples
from muster_runtime.parallel.wrap import take_from_leader, unwrap
from muster_runtime.session.made_of import take_apart

ANOTHER_RUN: Final = "start with another checkpoint.uri"
AS_IT_WAS: Final = f"Make it as it was, or {ANOTHER_RUN}"
_OPTIMIZER_STATE = re.compile(r"^\.state\.(\d+)\.(.+)$")


@runtime_checkable
class Stateful(Protocol):
    """Anything whose state can be taken and given back."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True)
class Tracked:
    """One object under its name. `where` is the line of `track`."""

    name: str
    thing: Any
    where: str

    def state(self) -> Any:
        if isinstance(self.thing, nn.Module):
            return unwrap(self.thing).state_dict()
        state = self.thing.state_dict()
        if isinstance(self.thing, Optimizer):
            return take_apart(state)
        return _without_functions(state) if isinstance(self.thing, LRScheduler) else state


def _without_functions(state: Any) -> Any:
    """A scheduler's state, and those of the schedulers inside it, but for what it computes with: torch gives all that
    an object holds, and a resumed script has made that anew (`SWALR` has a function there, up to torch 2.6)."""
    if isinstance(state, list):
        return [_without_functions(each) for each in state]
    if type(state) is not dict:
        return state
    return {name: _without_functions(value) for name, value in state.items() if not isinstance(value, FunctionType)}


def capture(objects: list[Tracked], gang: Gang, compared: set[str]) -> tuple[TensorTable, dict[str, Any]]:
    """The tensors that this rank can write and the tree of each object. Collective.

    StateError when a state can't be stored, or isn't the same on all ranks.

    Args:
        compared: names of tensors that were looked at for what has to be alike on all ranks; grows. Each is in the
            first save that has it: what is a rank's own differs then, and no other save waits for the look.
    """
    table: TensorTable = {}
    trees: dict[str, Any] = {}
    once: TensorTable = {}
    failure = ""
    for tracked in objects:
        if isinstance(tracked.thing, nn.Module):
            share_buffers(tracked.thing, gang)
    try:
        for tracked in objects:
            if is_foreign(tracked.thing):
                table[name_by_rank(tracked, gang.rank)] = pack(tracked.name, tracked.state())
                trees[tracked.name] = {"by": "rank"}
                continue
            trees[tracked.name], tensors = split(tracked.name, tracked.state(), ties_of(tracked))
            if gang.world_size > 1:
                new = {name: tensor for name, tensor in tensors.items() if name not in compared}
                once.update(_alike(tracked, new))
                compared |= new.keys()
            table.update(_own_share(tracked, tensors, gang))
    except StateError as error:
        failure = f"{error} (tracked at {tracked.where})"
    alike = dict(zip(once, samples(once.values()), strict=True))
    _agree(gang, _Report(failure, {name: digest(tree) for name, tree in trees.items()}, digest(alike)), alike)
    return table, trees


def digest(value: Any) -> str:
    """Of what is JSON: for thousands of ranks to compare without sending all of it to each."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


@dataclass(frozen=True)
class _Report:
    """What one rank has, for the others: why its state can't be stored, or digests of what has to be that of all."""

    failure: str
    trees: dict[str, str]
    tensors: str


def _alike(tracked: Tracked, tensors: TensorTable) -> TensorTable:
    """Those that are in a checkpoint once, though every rank has one of its own: they have to be alike. Not a module's:
    of what a metric counts, rank 0's is meant. Nor an optimizer's of parameters that each rank has whole, which DDP
    keeps alike."""
    if isinstance(tracked.thing, nn.Module):
        return {}
    plain = {name: tensor for name, tensor in tensors.items() if not isinstance(tensor, DTensor)}
    if not isinstance(tracked.thing, Optimizer):
        return plain
    parameters = [p for group in tracked.thing.param_groups for p in group["params"]]
    return {
        name: tensor
        for name, tensor in plain.items()
        if isinstance(parameter_at(name, tracked.name, parameters), DTensor)
    }


def name_by_rank(tracked: Tracked, rank: int) -> str:
    return f"muster.rank.{rank:05d}.{tracked.name}"  # by rank, or the planner would keep one of them


def _own_share(tracked: Tracked, tensors: TensorTable, gang: Gang) -> TensorTable:
    # Replicas of parameters are equal, and torch's planner spreads them over the ranks. Other plain tensors may differ
    # from rank to rank (what a metric counts, say); rank 0's are the ones that count.
    if gang.leads or isinstance(tracked.thing, Optimizer):
        return tensors
    equal = paths_of_held(tracked)
    return {name: tensor for name, tensor in tensors.items() if name in equal or isinstance(tensor, DTensor)}


def _agree(gang: Gang, own: _Report, tensors: Mapping[str, tuple[Any, ...]]) -> None:
    """StateError where the ranks' states are not one. `tensors`: what `own` has the digest of. Collective."""
    reports = gang.gather(own)
    for rank, report in enumerate(reports):
        if report.failure:
            raise StateError(f"rank {rank}: {report.failure}")
    for rank, report in enumerate(reports):
        for name in _differing(reports[0].trees, report.trees):
            raise StateError(
                f"the state of {name!r} on rank {rank} differs from rank 0's; a checkpoint holds it once for all "
                "ranks. Make it the same everywhere (all-reduce what it counts), or don't track it"
            )
    if len({report.tensors for report in reports}) == 1:
        return
    first, *others = gang.gather(tensors)
    for rank, found in enumerate(others, 1):
        for name in _differing(first, found):
            raise StateError(
                f"{name} on rank {rank} differs from rank 0's; a checkpoint holds a plain tensor once for all ranks. "
                "What belongs to this rank's part of a sharded parameter has to be a DTensor as the parameter is "
                "(torch.zeros_like(parameter), not of parameter.to_local()); make anything else the same everywhere "
                "(all-reduce what it counts), or don't track it"
            )


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    return (name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name))


def share_buffers(model: nn.Module, gang: Gang) -> None:
    """Makes every rank's buffers (BatchNorm's statistics) rank 0's, which a checkpoint holds. Collective.

    Not those that no state has: each rank's may be of a size of its own (a cache that grows with its sequences).
    """
    if gang.group is None:
        return
    stored = {
        id(buffer): buffer
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    }
    with torch.no_grad():
        for buffer in stored.values():
            if not isinstance(buffer, DTensor):
                take_from_leader(buffer)


def held(tracked: Tracked) -> Iterator[tuple[str, torch.Tensor]]:
    """A model's parameters and buffers by path, tied ones under each of theirs. What else its state has is the modules'
    own. Nothing of what is no model."""
    if isinstance(tracked.thing, nn.Module):
        model = unwrap(tracked.thing)
        for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
            for name, tensor in named:
                yield f"{tracked.name}.{name}", tensor


def named_in_state(tracked: Tracked) -> Iterator[tuple[str, torch.Tensor]]:
    """The same as its state names them: a wrapper around a module (of activation checkpointing, say) may leave its own
    name out there. Nothing where the model makes its state in a way of its own."""
    model = unwrap(tracked.thing) if isinstance(tracked.thing, nn.Module) else None
    if model is not None and type(model).state_dict is nn.Module.state_dict:
        own = {id(tensor) for _, tensor in held(tracked)}
        for key, tensor in model.state_dict(keep_vars=True).items():
            if id(tensor) in own:
                yield f"{tracked.name}.{key}", tensor


def paths_of_held(tracked: Tracked) -> set[str]:
    """Under both names."""
    return {path for path, _ in named_in_state(tracked)} | {path for path, _ in held(tracked)}


def ties_of(tracked: Tracked) -> dict[str, str]:
    """Path of each tied parameter -> path of the first one that is the same."""
    first: dict[int, str] = {}
    ties = {}
    for path, tensor in held(tracked):
        known = first.setdefault(id(tensor), path)
        if known != path:
            ties[path] = known
    return ties


def parameter_at(path: str, name: str, parameters: list[torch.Tensor]) -> torch.Tensor | None:
    """The parameter that an optimizer's state tensor belongs to. Step counts stay on the CPU, as optimizers want it."""
    match = _OPTIMIZER_STATE.match(path.removeprefix(name))
    if match is None or match[2] == "step" or int(match[1]) >= len(parameters):
        return None
    return parameters[int(match[1])]
