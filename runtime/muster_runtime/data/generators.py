"""Generators of random numbers of the user's own (torch's, Python's, NumPy's), found where they are held and seeded."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

_OBJECTS: Final = 1000
"""Looked into at most, and of each list and dict so many entries: samples are not."""
_ENTRIES: Final = 50
_NUMBERS_AND_TEXTS: Final = frozenset((str, int, float, bool, type(None)))
_PLAIN: Final = (str, bytes, int, float, complex, type(None), torch.Tensor, type, FunctionType, ModuleType)

Kind = tuple[Callable[[Any], Any], Callable[[Any, Any], object], Callable[[Any, int], object]]
"""How a generator's state is taken and set, and how it is seeded."""


def kind_of(value: Any) -> Kind | None:
    """None for what is no generator. Asks the type alone: `isinstance` may run code of the value's, or open a proxy."""
    its = type(value)
    if issubclass(its, torch.Generator):
        return torch.Generator.get_state, torch.Generator.set_state, torch.Generator.manual_seed
    if issubclass(its, random.Random):
        return random.Random.getstate, random.Random.setstate, random.Random.seed
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        if issubclass(its, numpy.random.Generator):
            return _numpy_state, _set_numpy_state, _seed_numpy
        if issubclass(its, numpy.random.RandomState):
            kind: Any = numpy.random.RandomState
            return kind.get_state, kind.set_state, lambda one, seed: kind.seed(one, seed & 0xFFFFFFFF)
    return None


def _numpy_state(generator: Any) -> Any:
    return generator.bit_generator.state


def _set_numpy_state(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state


def _seed_numpy(generator: Any, seed: int) -> None:
    generator.bit_generator.state = type(generator.bit_generator)(seed).state


@contextmanager
def kept(generators: Sequence[Any]) -> Iterator[Callable[[Callable[[int], int]], None]]:
    """Puts them back in the end. What it gives seeds them: each with what its number is mapped to."""
    kinds = [(one, kind) for one in generators if (kind := kind_of(one)) is not None]
    before = [take(one) for one, (take, _, _) in kinds]

    def seed(seed_of: Callable[[int], int]) -> None:
        for number, (one, (_, _, set_seed)) in enumerate(kinds):
            set_seed(one, seed_of(number))

    try:
        yield seed
    finally:
        for (one, (_, put, _)), state in zip(kinds, before, strict=True):
            put(one, state)


def held_by(thing: Any) -> list[Any]:
    """The generators that a dataset or a collate function holds, also in its transforms, in a fixed order."""
    found: list[Any] = []
    left, seen = [thing], {id(thing)}
    for one in left:  # grows meanwhile
        if type(one) not in (list, tuple, dict) and kind_of(one) is not None:
            found.append(one)
            continue
        for value in _within(one) if len(left) < _OBJECTS else ():
            its = type(value)
            if its not in _NUMBERS_AND_TEXTS and not issubclass(its, _PLAIN) and id(value) not in seen:
                seen.add(id(value))
                left.append(value)
    return found


def _within(one: Any) -> Sequence[Any]:
    """Nothing of its own is called for it, such as a `__getattr__` that gives anything or fails."""
    its = type(one)
    if its is MethodType:
        return (one.__self__,)
    if issubclass(its, functools.partial):
        return (one.func, *one.args, *one.keywords.values())
    if its in (list, tuple):
        return one[:_ENTRIES]  # type: ignore[no-any-return]
    try:
        own = one if its is dict else object.__getattribute__(one, "__dict__")
    except AttributeError:
        return ()
    return list(islice(own.values(), _ENTRIES)) if type(own) is dict else ()
