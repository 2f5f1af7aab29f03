"""Whose state an optimizer's is: by the names of its parameters, and not by their places alone.

torch numbers an optimizer's parameters by their places in its lists. These are as steady as the script that makes them:
a set of parameters, or of their names, has another order in each process. So a checkpoint has the names as well, and
the states come back to the parameters that they were of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from muster_runtime.errors import StateError
from muster_runtime.parallel.gang import Gang
from muster_runtime.session.tracking import AS_IT_WAS, Tracked, digest, held, named_in_state

Order = list[list[str]]
"""The names of an optimizer's parameters, by group."""


def agreed_orders(objects: Sequence[Tracked], gang: Gang) -> dict[str, Order]:
    """Of each optimizer among `objects`. A parameter of no model there has the name "". Collective.

    StateError where they are not the same on all ranks: each writes a part of the states, under numbers that would mean
    other parameters to the others.
    """
    names = _names(objects)
    own = {
        tracked.name: [[names.get(id(p), [""])[0] for p in group["params"]] for group in tracked.thing.param_groups]
        for tracked in objects
        if isinstance(tracked.thing, Optimizer)
    }
    if len(set(gang.gather(digest(own)))) == 1:
        return own
    for rank, found in enumerate(gang.gather(own)):
        for tracked in objects:
            if found.get(tracked.name) != own.get(tracked.name):
                raise StateError(
                    f"{tracked.name!r}, tracked at {tracked.where}, has its parameters in another order on rank {rank} "
                    f"than on rank {gang.rank}, so a checkpoint would mix their states up. Give the optimizer a list "
                    "that is the same everywhere: a set has another order in each process; sort it by name"
                )
    return own


def in_place(objects: Sequence[Tracked], trees: dict[str, Any], saved: dict[str, Order]) -> dict[str, Any]:
    """`trees`, with the states of optimizers in the order that their parameters have now. `saved` has the names as they
    were, where the checkpoint has them.

    StateError for an optimizer that has other parameters of the models than it had.
    """
    names = _names(objects)
    return {
        **trees,
        **{
            tracked.name: _moved(trees[tracked.name], _places(tracked, saved[tracked.name], names))
            for tracked in objects
            if tracked.name in saved and tracked.name in trees and isinstance(tracked.thing, Optimizer)
        },
    }


def _names(objects: Sequence[Tracked]) -> dict[int, list[str]]:
    """By a parameter's id: all its names, first the one that its model's state has."""
    found: dict[int, list[str]] = {}
    for tracked in objects:
        if isinstance(tracked.thing, nn.Module):
            for path, tensor in (*named_in_state(tracked), *held(tracked)):
                found.setdefault(id(tensor), []).append(path)
    return found


def _places(tracked: Tracked, saved: Order, names: dict[int, list[str]]) -> dict[int, int]:
    """By the number that a parameter had: the one that it has now. Empty where nothing has moved, or can be told."""
    now = [group["params"] for group in tracked.thing.param_groups]
    if [len(group) for group in saved] != [len(group) for group in now]:
        return {}  # torch says what is wrong
    known = {name for found in names.values() for name in found}
    if any(name not in known for group in saved for name in group):
        return {}
    places = dict[int, int]()
    first = 0
    for number, (before, group) in enumerate(zip(saved, now, strict=True)):
        where = {name: first + at for at, parameter in enumerate(group) for name in names.get(id(parameter), ())}
        if lost := [name for name in before if name not in where]:
            raise StateError(
                f"group {number} of the optimizer tracked at {tracked.where} lacks {lost[0]}, whose state the "
                f"checkpoint has there under {tracked.name!r}. {AS_IT_WAS}"
            )
        places |= {first + at: where[name] for at, name in enumerate(before)}
        first += len(group)
    return {had: has for had, has in places.items() if had != has}


def _moved(tree: Any, places: dict[int, int]) -> Any:
    """An optimizer's tree with the states, and torch's own names, of parameters under other numbers."""
    if not places or not isinstance(tree, dict) or "$dict" not in tree.get("state", {}):
        return tree
    pairs = [[places.get(key, key) if type(key) is int else key, value] for key, value in tree["state"]["$dict"]]
    groups, first = [], 0
    for group in tree["param_groups"]:
        if "param_names" in group:
            named = {places.get(first + at, first + at): name for at, name in enumerate(group["param_names"])}
            group = {**group, "param_names": [named[number] for number in sorted(named)]}
        groups.append(group)
        first += len(group["params"])
    return {**tree, "state": {"$dict": pairs}, "param_groups": groups}
