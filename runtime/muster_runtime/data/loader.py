"""A DataLoader whose batches are global, shared equally by the ranks, and whose place can be restored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from muster_runtime.data.order import BatchPlan, equal_parts, mix
from muster_runtime.data.seeded import (
    Draw,
    SeededCollate,
    SeededDataset,
    WorkerInit,
    kept_generators,
    sample_seed,
    seed_generators,
)
from muster_runtime.errors import UsageError, caller


class Stepper(Protocol):
    """What a tracked loader tells its session."""

    def loader_steps(self) -> bool:
        """Whether each batch is a step of the loop now."""

    def opens_step(self) -> None: ...

    def closes_step(self) -> None: ...

    def before_first_batch(self) -> None: ...


class Loader:
    """The ranks' common view of a dataset. Made by `session.wrap(DataLoader(...))`.

    Iterating gives this rank's part of each global batch, on `device`. `len` is the number of global batches an epoch.
    """

    def __init__(
        self, source: DataLoader[Any], *, rank: int, parts: int, seed: int, device: torch.device, where: str
    ) -> None:
        refuse_unsplittable(source, where)
        self._source, self._rank, self._parts, self._device = source, rank, parts, device
        self._seed = seed
        self.epoch = 0
        self.position = 0
        """Global batches of this epoch that the training has had."""
        self.where = where
        self.stepper: Stepper | None = None
        self._passed: int | None = None  # the last epoch that a pass of steps began in, here in this process
        self._plan: BatchPlan | None = None
        if _own_batches(source) is None:
            assert source.batch_size is not None
            sampled: Any = source.sampler
            try:
                self._plan = BatchPlan(len(sampled), source.batch_size, bool(source.drop_last), parts)
            except ValueError as error:
                raise ValueError(f"{error} ({where})") from None
        self._batches = RankBatches(self)
        self._loader = self._rebuild()

    def _rebuild(self) -> DataLoader[Any]:
        source = self._source
        return DataLoader(
            SeededDataset(source.dataset),
            batch_sampler=self._batches,
            num_workers=source.num_workers,
            collate_fn=SeededCollate(source.collate_fn),
            pin_memory=source.pin_memory,
            timeout=source.timeout,
            worker_init_fn=WorkerInit(source.worker_init_fn),
            multiprocessing_context=source.multiprocessing_context,
            # of its own: drawing the workers' seed from torch's would shift the training's random numbers
            generator=torch.Generator().manual_seed(mix(self._seed, "workers")),
            prefetch_factor=source.prefetch_factor,
            persistent_workers=source.persistent_workers,
        )

    def __len__(self) -> int:
        if self._plan is not None:
            return len(self._plan)
        own: Any = self._source.batch_sampler
        return len(own)

    @property
    def dataset(self) -> Any:
        return self._source.dataset

    @property
    def batch_size(self) -> int | None:
        """Samples in a global batch."""
        return self._source.batch_size

    def __iter__(self) -> Iterator[Any]:
        stepper = self.stepper
        if stepper is None or not stepper.loader_steps():
            yield from self.batches(self.epoch, 0)
            return
        if self._passed == self.epoch:
            raise UsageError(
                f"{caller()}: the tracked loader was gone through already in epoch {self.epoch}, and its batches are "
                "the steps; for another pass wrap a second DataLoader of the same dataset and don't track it"
            )
        self._passed = self.epoch
        for batch in self.batches(self.epoch, self.position):
            stepper.before_first_batch()
            stepper.opens_step()
            yield batch
            stepper.closes_step()

    def endless(self) -> Iterator[Any]:
        """Batches from here on, epoch after epoch."""
        while True:
            if self.position >= len(self):
                self.next_epoch()
            yield from self.batches(self.epoch, self.position)

    def next_epoch(self) -> None:
        self.epoch, self.position = self.epoch + 1, 0

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """This rank's batches of `epoch` from number `start` on."""
        self._batches.epoch, self._batches.start = epoch, start
        for batch in self._loader:
            yield to_device(batch, self._device)

    def shares(self, epoch: int, start: int) -> Iterator[list[Draw]]:
        """What this rank reads in `epoch` from batch `start` on."""
        own = _own_batches(self._source)
        if own is None:
            assert self._plan is not None
            ids = self._order(epoch)
            for number in range(start, len(self._plan)):
                yield [self._draw(epoch, at, ids[at]) for at in self._plan.share(number, self._rank)]
            return
        for number, batch in enumerate(self._sampled(own, epoch)):
            if number >= start:
                part = equal_parts(batch, self._parts, self._rank)
                first = self._rank * len(part)
                yield [self._draw(epoch, (number << 32) + first + i, index) for i, index in enumerate(part)]

    def _draw(self, epoch: int, position: int, index: Any) -> Draw:
        return Draw(index, sample_seed(self._seed, epoch, position))

    def _order(self, epoch: int) -> Sequence[Any]:
        sampler: Any = self._source.sampler
        if type(sampler) is SequentialSampler:
            return range(len(sampler))
        if type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(self.dataset):
            generator = torch.Generator().manual_seed(mix(self._seed, "order", epoch))
            return _Permutation(torch.randperm(len(sampler), generator=generator))
        return self._sampled(sampler, epoch)

    def _sampled(self, sampler: Any, epoch: int) -> list[Any]:
        """What a sampler of the user's gives, made a function of (seed, epoch)."""
        if callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(epoch)
        had = getattr(sampler, "generator", None)
        seed = mix(self._seed, "order", epoch)
        with kept_generators():
            seed_generators(seed)
            if isinstance(had, torch.Generator):
                had.manual_seed(seed)
            return list(sampler)

    def state_dict(self) -> dict[str, int]:
        """One position for the whole gang."""
        return {"seed": self._seed, "epoch": self.epoch, "position": self.position, "batches": len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """ValueError when the data or the batch has changed in a way that makes the position meaningless."""
        if state["batches"] != len(self):
            raise ValueError(
                f"the checkpoint's epochs have {state['batches']} batches, this loader's have {len(self)} "
                f"({self.where}); the dataset or batch_size has changed since"
            )
        self._seed, self.epoch, self.position = state["seed"], state["epoch"], state["position"]


class RankBatches:
    """The batch sampler that the inner DataLoader iterates, anew each epoch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[list[Draw]]:
        return self._loader.shares(self.epoch, self.start)

    def __len__(self) -> int:
        return len(self._loader) - self.start


class _Permutation(Sequence[int]):
    """A tensor of indices that gives plain ints; a list would take four times the memory."""

    def __init__(self, order: torch.Tensor) -> None:
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, at: Any) -> Any:
        return int(self._order[at])


def refuse_unsplittable(source: DataLoader[Any], where: str) -> None:
    """TypeError for what can't be split and restored by position."""
    if isinstance(source.dataset, IterableDataset):
        raise TypeError(
            f"{where}: an IterableDataset has no positions, so a run can't go on where it was cut; "
            "give the DataLoader a dataset with __getitem__ and __len__"
        )
    if source.batch_size is None and source.batch_sampler is None:
        raise TypeError(f"{where}: batch_size=None gives single samples; give the DataLoader the global batch size")
    if isinstance(source.sampler, DistributedSampler):
        raise TypeError(f"{where}: leave the DistributedSampler out; session.wrap splits the batches itself")


def _own_batches(source: DataLoader[Any]) -> Iterable[Any] | None:
    """The batch sampler that the user gave, or None when the DataLoader made its own."""
    return source.batch_sampler if source.batch_size is None else None


def to_device(batch: Any, device: torch.device) -> Any:
    """Tensors of a batch, in tuples, lists and dicts of any depth, moved to `device`."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)((key, to_device(value, device)) for key, value in batch.items())
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
