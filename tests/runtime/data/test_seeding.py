"""Random choices of datasets, collate functions and workers."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from muster_runtime.data.loader import Loader

pytestmark = pytest.mark.unit


class Noisy(Dataset[Any]):
    """Each sample is its index and a random number of each generator."""

    def __init__(self) -> None:
        self.mark = 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, float, float, int]:
        return index, random.random(), torch.rand(()).item(), self.mark


class Batched(Noisy):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Item(dict[str, Any]):
    """With its keys as attributes, as many have written it."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Reader:
    """Opens its file with the first sample, and is that file from then on."""

    __slots__ = ("file",)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class Proxy:
    @property
    def __class__(self) -> Any:
        raise AssertionError("it would be loaded")


def gone() -> Any:
    return weakref.proxy(Noisy())


def as_they_are(samples: list[Any]) -> list[Any]:
    return list(samples)


def masked(samples: list[Any]) -> list[Any]:
    return [(sample[0], torch.rand(()).item(), random.random()) for sample in samples]


class Shift:
    """A transform with a generator of its own, as several libraries have them."""

    def __init__(self) -> None:
        self.state = np.random.RandomState(1)

    def __call__(self, value: float) -> float:
        return value + float(self.state.rand())


class Own(Dataset[Any]):
    """Its numbers come from generators that it holds, one of which it makes with its first sample."""

    def __init__(self) -> None:
        self.rng: Any = None
        self.more = {"python": random.Random(2), "torch": torch.Generator().manual_seed(3)}
        self.transforms = [Shift(), partial(Shift())]

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        self.rng = self.rng or np.random.default_rng(4)
        drawn = [self.rng.random() if index >= 0 else 0.0, self.more["python"].random()]
        drawn += [torch.rand((), generator=self.more["torch"]).item(), *(shift(0.0) for shift in self.transforms)]
        return index, *drawn


class Masks:
    """A collate function with a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)

    def __call__(self, samples: list[Any]) -> list[Any]:
        return [(*sample, torch.rand((), generator=self.generator).item()) for sample in samples]


def mark_dataset(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.mark = 10 + worker  # type: ignore[attr-defined]


def loader(dataset: Any, rank: int = 0, parts: int = 1, **more: Any) -> Loader:
    more = {"batch_size": 8, "shuffle": True, "collate_fn": as_they_are, **more}
    return Loader(
        DataLoader(dataset, **more), rank=rank, parts=parts, seed=5, device=torch.device("cpu"), where="train.py:4"
    )


@pytest.mark.parametrize(
    "dataset", [Noisy(), Batched(), Subset(Noisy(), range(24))], ids=["plain", "batched", "subset"]
)
def test_a_samples_draws_do_not_depend_on_the_number_of_ranks(dataset: Any) -> None:
    alone = list(loader(dataset).batches(1, 0))
    shares = [list(loader(dataset, rank, 4).batches(1, 0)) for rank in range(4)]
    assert alone == [[sample for share in shares for sample in share[number]] for number in range(3)]
    assert len({sample[2] for batch in alone for sample in batch}) == 24, "each sample has draws of its own"


@pytest.mark.parametrize("workers", [0, 2])
def test_generators_that_a_dataset_holds_go_on_as_if_never_cut(workers: int) -> None:
    own = Own()
    own[0]  # so that all of its generators are there
    state = own.more["torch"].get_state()
    whole = list(loader(own, collate_fn=Masks()).batches(1, 0))
    assert torch.equal(own.more["torch"].get_state(), state), "what the script draws from them isn't shifted"
    resumed = Own()
    resumed[5]
    assert list(loader(resumed, collate_fn=Masks(), num_workers=workers).batches(1, 1)) == whole[1:]
    shares = [list(loader(own, rank, 4).batches(1, 0)) for rank in range(4)]
    alone = list(loader(own).batches(1, 0))
    assert alone == [[sample for share in shares for sample in share[number]] for number in range(3)]
    for column in zip(*(sample for batch in whole for sample in batch), strict=True):
        assert len(set(column)) == 24, "each sample has draws of its own"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_random_collate_goes_on_as_if_never_cut(workers: int) -> None:
    whole = list(loader(Noisy(), collate_fn=masked).batches(1, 0))
    torch.manual_seed(99)
    random.seed(99)
    assert list(loader(Noisy(), collate_fn=masked, num_workers=workers).batches(1, 1)) == whole[1:]
    assert len({sample[1] for batch in whole for sample in batch}) == 24, "each batch has draws of its own"


def test_a_random_collate_leaves_the_trainings_numbers_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    list(loader(Noisy(), collate_fn=masked).batches(0, 0))
    assert torch.equal(torch.rand(3), expected)


def test_a_worker_finds_the_users_dataset() -> None:
    batches = list(loader(Noisy(), num_workers=2, worker_init_fn=mark_dataset).batches(0, 0))
    assert [{sample[3] for sample in batch} for batch in batches] == [{10}, {11}, {10}]


@pytest.mark.parametrize("made", [lambda: Item(a=1), Reader, Proxy, gone], ids=["item", "reader", "proxy", "gone"])
def test_nothing_of_what_a_dataset_holds_is_called_to_look_for_generators(made: Callable[[], Any]) -> None:
    data = Noisy()
    data.held = [made()]  # type: ignore[attr-defined]
    assert len(list(loader(data).batches(0, 0))) == 3
