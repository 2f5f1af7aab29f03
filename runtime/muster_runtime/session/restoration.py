"""A checkpoint's states, back into the tracked objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from muster_runtime.checkpoint.reader import Reader
from muster_runtime.checkpoint.reads import Saved
from muster_runtime.checkpoint.spread import copy_into
from muster_runtime.checkpoint.tree import TensorTable, is_spread, join, split
from muster_runtime.data.foreign import is_foreign, unpack
from muster_runtime.errors import StateError
from muster_runtime.parallel.wrap import unwrap
from muster_runtime.session.made_of import put_together
from muster_runtime.session.tracking import (
    ANOTHER_RUN,
    AS_IT_WAS,
    Tracked,
    name_by_rank,
    parameter_at,
    paths_of_held,
    ties_of,
)

_EXTRA: Final = "_extra_state"
"""torch's key of what a module's `get_extra_state` gives."""
_WRAPPERS: Final = frozenset(("module", "_orig_mod"))
"""What DDP (and an average of weights) and torch.compile call the module inside."""


class Restoration:
    """One attempt to bring a checkpoint's states into the tracked objects.

    `table` is what the reader fills: models in place, everything else as fresh tensors, which `apply` hands over.
    So a damaged checkpoint leaves optimizers and the rest untouched.
    """

    def __init__(self, objects: list[Tracked], trees: dict[str, Any], reader: Reader, rank: int) -> None:
        self._reader = reader
        self.table: TensorTable = {}
        self.gathered: list[str] = []
        """Paths of what each rank had a part of, and is given whole, for the script has nothing sharded there yet."""
        self._states: list[tuple[Tracked, Any]] = []
        self._copies: list[tuple[torch.Tensor, str]] = []
        self._names = {
            id(parameter): f"{tracked.name}.{name}"
            for tracked in objects
            if isinstance(tracked.thing, nn.Module)
            for name, parameter in unwrap(tracked.thing).named_parameters()
        }
        missing = [tracked for tracked in objects if tracked.name not in trees]
        if missing:
            names = ", ".join(repr(tracked.name) for tracked in missing)
            raise StateError(
                f"the checkpoint has no {names}, which {missing[0].where} tracks; it has: {', '.join(trees)}. "
                f"Track what the run tracked before, under the same names, or {ANOTHER_RUN}"
            )
        self._by_rank: list[tuple[Tracked, torch.Tensor]] = []
        for tracked in objects:
            if is_foreign(tracked.thing):
                self._by_rank.append((tracked, self._fresh(name_by_rank(tracked, rank), None, None)))
                continue
            tree = trees[tracked.name]
            if isinstance(tracked.thing, nn.Module) and isinstance(tree, dict):
                tree = _under_own_keys(tree, tracked.state())
            state = join(tree, self._lookup_for(tracked, tree), tracked.name)
            self._states.append((tracked, _with_all_ties(tracked, state)))

    def _lookup_for(self, tracked: Tracked, tree: Any) -> Callable[[str, str], torch.Tensor]:
        if isinstance(tracked.thing, nn.Module):
            return self._model_lookup(tracked, tree)
        _, present = split(tracked.name, tracked.state())
        if isinstance(tracked.thing, Optimizer):
            parameters = [p for group in tracked.thing.param_groups for p in group["params"]]
            return lambda path, name: self._fresh(name, present.get(path), parameter_at(path, tracked.name, parameters))

        def lookup(path: str, name: str) -> torch.Tensor:
            found = self._fresh(name, present.get(path), None)
            if self._saved(name).spread and not is_spread(found):
                self.gathered.append(path)
            return found

        return lookup

    def _model_lookup(self, tracked: Tracked, tree: Any) -> Callable[[str, str], torch.Tensor]:
        _, present = split(tracked.name, tracked.state())
        known = paths_of_held(tracked)
        keys = {f"{tracked.name}.{key}" for key in tree}
        reshaped = _paths_of_reshaped(tracked)

        def lookup(path: str, name: str) -> torch.Tensor:
            own = path not in known and (path in present or path not in keys)  # or in a list or dict under a key
            if own or _EXTRA in path.split("."):  # of any shape: the module makes of it what it will
                return self._fresh(name, present.get(path), None)
            target = present.get(name if name.startswith(f"{path}#") else path)
            if target is None:
                raise StateError(
                    f"the checkpoint has {path}, which the model tracked at {tracked.where} lacks. {AS_IT_WAS}"
                )
            saved = self._saved(name)
            if saved.shape != target.shape and path in reshaped:
                return self._fresh(name, None, None)
            if saved.shape != target.shape:
                raise StateError(
                    f"{path} is {tuple(saved.shape)} in the checkpoint and {tuple(target.shape)} in the model tracked "
                    f"at {tracked.where}; the model has changed since. {AS_IT_WAS}"
                )
            if name in self.table:
                self._copies.append((target, name))  # tied when it was saved; a tie still, or two parameters now
            else:
                self.table[name] = target
            return target

        return lookup

    def _fresh(self, name: str, present: torch.Tensor | None, parameter: torch.Tensor | None) -> torch.Tensor:
        if name not in self.table:
            saved = self._saved(name)
            if parameter is not None and self._is_apart(saved, parameter):
                parameter = None
            like = next((t for t in (present, parameter) if t is not None and t.shape == saved.shape), None)
            dtype = saved.dtype
            if like is not None:
                self.table[name] = torch.empty_like(like.detach(), dtype=dtype)
            else:
                self.table[name] = torch.empty(saved.shape, dtype=dtype, device="cpu")
        return self.table[name]

    def _is_apart(self, saved: Saved, parameter: torch.Tensor) -> bool:
        """Of an optimizer's state: whether it was whole on every rank beside the parameter's shards, and so it is to be
        again, though it is of the same shape: one number beside a parameter of one."""
        name = self._names.get(id(parameter))
        of = None if name is None or not is_spread(parameter) else self._reader.saved(name)
        return of is not None and of.spread and not saved.spread

    def _saved(self, name: str) -> Saved:
        entry = self._reader.saved(name)
        if entry is None:
            raise StateError(f"the checkpoint's tree names {name}, which its table lacks")
        return entry

    def apply(self) -> None:
        """Hands the states over, models first. After the reader has filled `table`."""
        with torch.no_grad():
            for target, name in self._copies:
                copy_into(target, self.table[name])
        states = self._states + [(tracked, unpack(tracked.name, packed)) for tracked, packed in self._by_rank]
        optimizers = [tracked.thing for tracked, _ in states if isinstance(tracked.thing, Optimizer)]
        groups = [(optimizer, optimizer.param_groups) for optimizer in optimizers]
        for tracked, state in sorted(states, key=lambda pair: not isinstance(pair[0].thing, nn.Module)):
            thing = unwrap(tracked.thing) if isinstance(tracked.thing, nn.Module) else tracked.thing
            wanted = set(thing.defaults) if isinstance(thing, Optimizer) else set()  # torch adds some as it loads
            try:
                if isinstance(thing, Optimizer):
                    state = put_together(state, [p for group in thing.param_groups for p in group["params"]])
                _load(tracked, thing, state)
                _refuse_another_kind(thing, wanted)
                if isinstance(thing, Optimizer):
                    self._keep_types(thing, state)
            except (RuntimeError, ValueError, KeyError) as error:
                why = f"it has no {error}" if isinstance(error, KeyError) else error  # which says the key alone
                raise StateError(
                    f"the checkpoint's {tracked.name!r} doesn't fit the object tracked at {tracked.where}: {why}. "
                    f"{AS_IT_WAS}"
                ) from error
        for optimizer, before in groups:
            _keep_groups(optimizer, before)

    def _keep_types(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """torch gives all of a parameter's state but `step` the parameter's type, also what the optimizer had made in
        another one: fp32 means beside a bf16 parameter would lose bits."""
        if type(optimizer).load_state_dict is not Optimizer.load_state_dict:
            return  # it knows what it wants
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        types = self._types_of_parameters()
        for number, parameter in zip(numbers, parameters, strict=True):
            saved, own = state["state"].get(number), optimizer.state.get(parameter)
            if saved and own:
                plain = types.get(id(parameter), parameter.dtype)
                own |= {key: _typed_as(own[key], saved[key], plain) for key in own.keys() & saved.keys() - {"step"}}

    def _types_of_parameters(self) -> dict[int, torch.dtype]:
        """By the parameter's id: its type in the checkpoint."""
        found = {parameter: self._reader.saved(name) for parameter, name in self._names.items()}
        return {parameter: entry.dtype for parameter, entry in found.items() if entry is not None}


def _paths_of_reshaped(tracked: Tracked) -> set[str]:
    """The buffers of modules that load their state in a way of their own, and may give them the shape that was saved:
    what quantization observes has one only after the first batch."""
    return {
        ".".join(filter(None, (tracked.name, at, name)))
        for at, module in unwrap(tracked.thing).named_modules()
        if type(module)._load_from_state_dict is not nn.Module._load_from_state_dict
        for name in module._buffers
    }


def _under_own_keys(tree: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A model's tree under the keys that its state has now, `own`.

    Those that it was saved under may differ by names of wrappers: in an average of a model's weights DDP has one on a
    gang of several ranks, and there is none on one rank. A key that fits two is left as it is, and told.
    """
    now = _by_plain_key(key for key in own if key not in tree)
    saved = _by_plain_key(key for key in tree if key not in own)
    found = {keys[0]: now[plain][0] for plain, keys in saved.items() if len(keys) == len(now.get(plain, ())) == 1}
    return {found.get(key, key): value for key, value in tree.items()}


def _by_plain_key(keys: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(".".join(name for name in key.split(".") if name not in _WRAPPERS), []).append(key)
    return found


def _keep_groups(optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    """torch makes the groups anew as it loads. A script, which has been set up by then, may hold on to the ones before
    (to change a learning rate), and an optimizer around another shares its groups: the list that it has now may be the
    other's, so the groups go back into that."""
    now = optimizer.param_groups
    if len(groups) == len(now):
        for group, loaded in zip(groups, now, strict=True):
            if group is not loaded:
                group.clear()
                group.update(loaded)
        now[:] = groups


def _load(tracked: Tracked, thing: Any, state: Any) -> None:
    """Hands `state` to `thing`. What a model's own state_dict() leaves out (weights that adapters don't train) isn't
    missing in it. Raises what `load_state_dict` does, or ValueError."""
    if not isinstance(thing, nn.Module) or type(thing).load_state_dict is not nn.Module.load_state_dict:
        thing.load_state_dict(state)
        return
    found = thing.load_state_dict(state, strict=False)
    if found.missing_keys and (missing := [key for key in tracked.state() if key not in state]):
        raise ValueError(f"it has no {', '.join(missing)}")
    if found.unexpected_keys:
        raise ValueError(f"the model doesn't take {', '.join(found.unexpected_keys)}")


def _with_all_ties(tracked: Tracked, state: Any) -> Any:
    """A model's state with every key of its tied weights: one that was imported has one of them, as the hub's have."""
    ties = ties_of(tracked)
    if not ties or not isinstance(state, dict):
        return state
    groups: dict[str, list[str]] = {}
    for path, first in ties.items():
        groups.setdefault(first, [first]).append(path)
    own, found = tracked.state(), dict(state)
    for paths in groups.values():
        keys = [path.removeprefix(f"{tracked.name}.") for path in paths]
        had = next((key for key in keys if key in state), None)
        if had is not None:
            found |= {key: state[had] for key in keys if key in own and key not in state}
    return found


def _typed_as(loaded: Any, saved: Any, plain: torch.dtype) -> Any:
    """`loaded` with its tensors of the types that they have in `saved`, but where that is `plain`."""
    if isinstance(loaded, torch.Tensor) and isinstance(saved, torch.Tensor):
        return loaded if saved.dtype in (plain, loaded.dtype) else saved.to(loaded.device)
    if isinstance(loaded, dict) and isinstance(saved, dict):
        return {key: _typed_as(value, saved.get(key), plain) for key, value in loaded.items()}
    if type(loaded) in (list, tuple) and type(saved) is type(loaded) and len(loaded) == len(saved):
        return type(loaded)(_typed_as(one, other, plain) for one, other in zip(loaded, saved, strict=True))
    return loaded


def _refuse_another_kind(thing: Any, wanted: set[str]) -> None:
    """Of an optimizer with the options `wanted` that has taken its state: torch takes another kind's without a word,
    and fails at the first step. Raises ValueError."""
    if isinstance(thing, Optimizer):
        lacks = sorted({name for group in thing.param_groups for name in wanted - group.keys()})
        if lacks:
            raise ValueError(f"another kind of optimizer has saved it, without {', '.join(lacks)}")
