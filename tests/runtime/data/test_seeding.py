"""Random choices of datasets, collate functions and workers."""

from __future__ import annotations

import random
from typing import Any

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


def as_they_are(samples: list[Any]) -> list[Any]:
    return list(samples)


def masked(samples: list[Any]) -> list[Any]:
    return [(sample[0], torch.rand(()).item(), random.random()) for sample in samples]


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
