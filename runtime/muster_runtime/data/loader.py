"""A DataLoader whose batches are global, shared equally by the ranks, and whose place can be restored."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from muster_protocol.counts import counted
from muster_runtime.data.order import BatchPlan, Microbatch, equal_part, mix
from muster_runtime.data.samplers import Permutation, sampled, set_epoch, within
from muster_runtime.data.seeded import Draw, Request, SeededCollate, SeededDataset, WorkerInit
from muster_runtime.data.waiting import UNTOLD, Waiting, waited
from muster_runtime.data.workers import ending_with_rank
from muster_runtime.errors import UsageError, caller


class Stepper(Protocol):
    """What a tracked loader tells its session."""

    went_back: bool
    """The last step closed with everything as it was at a checkpoint, this loader's place, too. Whoever goes on from
    there sets it to False."""

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
        self.changed = ""
        """What is otherwise than it was in the checkpoint that was restored, for people; "" for nothing."""
        self.stepper: Stepper | None = None
        """The session that tracks it."""
        self.untracked: Callable[[], None] = lambda: None
        """Called with each batch of a loader that isn't tracked."""
        self.waiting: Waiting = UNTOLD
        self._passed: int | None = None  # the last epoch that a pass of steps began in, here in this process
        self._left_out: set[tuple[int, int]] = set()  # epoch and number of batches that nobody is to train on
        self._drives = False  # a loop over steps goes through it
        self._plan: BatchPlan | None = None
        if _own_batches(source) is None:
            assert source.batch_size is not None
            sampler: Any = source.sampler
            try:
                self._plan = BatchPlan(len(sampler), source.batch_size, bool(source.drop_last))
                self._refuse(self._plan)
            except ValueError as error:
                raise ValueError(f"{error} ({where})") from None
        self._batches = RankBatches(self)
        self._loader = self._rebuild()

    def _refuse(self, plan: BatchPlan) -> None:
        """ValueError for batches that this loader can't share."""
        plan.refuse_unequal(self._parts)

    def _rebuild(self, *, persistent: bool = True) -> DataLoader[Any]:
        source = self._source
        batches: Any = self._batches  # requests in place of lists of indices
        return _RankLoader(
            SeededDataset(source.dataset),
            batch_sampler=batches,
            num_workers=source.num_workers,
            collate_fn=SeededCollate(source.collate_fn),
            pin_memory=source.pin_memory,
            timeout=source.timeout,
            worker_init_fn=WorkerInit(source.worker_init_fn),
            multiprocessing_context=source.multiprocessing_context,
            # of its own: drawing the workers' seed from torch's would shift the training's random numbers
            generator=torch.Generator().manual_seed(mix(self._seed, "workers")),
            prefetch_factor=source.prefetch_factor,
            persistent_workers=source.persistent_workers and persistent,
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

    @property
    def samples(self) -> int | None:
        """Samples of the global batch at hand; None where its size is the script's own matter."""
        return len(self._plan.places(self.number)) if self._plan is not None else None

    def __iter__(self) -> Iterator[Any]:
        stepper = self.stepper
        if stepper is None or not stepper.loader_steps():
            for batch in self.batches(self.epoch, 0, beside=self._drives):
                if stepper is None:
                    self.untracked()
                yield batch
            return
        if self._passed == self.epoch:
            raise UsageError(
                f"{caller()}: the tracked loader was gone through already in epoch {self.epoch}, and its batches are "
                "the steps; for another pass wrap a second DataLoader of the same dataset and don't track it"
            )
        yield from self._pass(stepper)

    def _pass(self, stepper: Stepper) -> Iterator[Any]:
        """The rest of this epoch, a step a batch; again from where a checkpoint stands when the session goes back.

        Where that is another epoch, or before what an epoch's body does first, the loop over epochs goes on there.
        """
        self._passed = epoch = self.epoch
        goes_on = True
        while goes_on:
            for batch in self.batches(self.epoch, self.position):
                stepper.before_first_batch()
                stepper.opens_step()
                yield batch
                stepper.closes_step()
                if stepper.went_back:
                    break
            if goes_on := stepper.went_back and self.epoch == epoch and self.position > 0:
                self._passed, stepper.went_back = epoch, False

    def endless(self) -> Iterator[Any]:
        """Batches from here on, epoch after epoch."""
        self._drives = True
        try:
            while True:
                if self.is_over:
                    self.next_epoch()
                yield from self.batches(self.epoch, self.position)
        finally:
            self._drives = False

    # ------------------------------------------------------------------ the place

    @property
    def number(self) -> int:
        """Of the batch at hand, or to come."""
        return self._from(self.position)

    @property
    def is_over(self) -> bool:
        """Whether this epoch has no batch left."""
        return self.number >= len(self)

    @property
    def is_last(self) -> bool:
        """Whether the batch at hand is the last of its epoch."""
        return self._from(self.number + 1) >= len(self)

    def _from(self, number: int) -> int:
        while (self.epoch, number) in self._left_out:
            number += 1
        return number

    def move_on(self) -> None:
        """The batch at hand has been trained on."""
        self.position = self.number + 1

    def leave_out(self, batches: Iterable[tuple[int, int]]) -> None:
        """Nobody trains on these any more (epoch and number), after a restart neither."""
        self._left_out.update(batches)

    def next_epoch(self) -> None:
        self.epoch, self.position = self.epoch + 1, 0
        if self._plan is None:
            set_epoch(self._source.batch_sampler, self.epoch)  # its length, which a save tells, may be another in each

    def batches(self, epoch: int, start: int, *, beside: bool = False) -> Iterator[Any]:
        """This rank's batches of `epoch` from number `start` on. `beside`: a loop over steps has its own meanwhile."""
        for _, batch in self._pieces(epoch, start, beside=beside):
            yield to_device(batch, self._device)

    def _pieces(self, epoch: int, start: int, *, beside: bool) -> Iterator[tuple[Microbatch, Any]]:
        """The microbatches of one pass. Workers that persist have one iterator, which a pass beside the loop's would
        set back: the loop would go on with that pass's batches. So such a pass has workers of its own."""
        self._batches.epoch, self._batches.start = epoch, start
        loader = self._rebuild(persistent=False) if beside and self._source.persistent_workers else self._loader
        return waited(loader, self.waiting)

    def requests(self, epoch: int, start: int) -> Iterator[Request]:
        """What this rank reads in `epoch` from batch `start` on."""
        own = _own_batches(self._source)
        if own is None:
            assert self._plan is not None
            ids = self._order(epoch)
            if len(ids) != self._plan.samples:
                raise ValueError(
                    f"the {type(self._source.sampler).__name__} gives {counted(len(ids), 'sample')} in epoch {epoch}, "
                    f"and gave {self._plan.samples} when the loader was made ({self.where}): the place in an epoch is "
                    "counted in these. Give it a dataset that keeps its length, or batches of your own (batch_sampler=)"
                )
            for number in range(start, len(self._plan)):
                if (epoch, number) in self._left_out:
                    continue
                places = self._plan.places(number)
                batch = ids[places.start : places.stop]
                # each sample once an epoch: what is drawn for it then doesn't even depend on the order
                marks = batch if isinstance(ids, (range, Permutation)) else places
                yield from self._ask(epoch, batch, marks)
            return
        for number, batch in enumerate(self._sampled(own, epoch)):
            if number >= start and (epoch, number) not in self._left_out:
                yield from self._ask(epoch, batch, range(number << 32, (number << 32) + len(batch)))

    def _ask(self, epoch: int, batch: Sequence[Any], marks: Sequence[Any]) -> Iterator[Request]:
        """`batch` has the samples of a global batch, `marks` what their draws are seeded by."""
        for one in self._microbatches(len(batch)):
            draws = [Draw(batch[place], mix(self._seed, epoch, marks[place])) for place in one.places]
            yield Request(draws, one)

    def _microbatches(self, size: int) -> Iterator[Microbatch]:
        """This rank's part of a global batch of `size` samples."""
        try:
            yield equal_part(size, self._parts, self._rank)
        except ValueError as error:
            raise ValueError(f"{error} ({self.where})") from None

    def _order(self, epoch: int) -> Sequence[Any]:
        sampler: Any = self._source.sampler
        if type(sampler) is SequentialSampler:
            return range(len(sampler))
        if self._shuffles(sampler):
            generator = torch.Generator().manual_seed(mix(self._seed, "order", epoch))
            return Permutation(torch.randperm(len(sampler), generator=generator, device="cpu"))
        return self._sampled(sampler, epoch)

    def _sampled(self, sampler: Any, epoch: int) -> list[Any]:
        """What a sampler of the user's gives, made a function of (seed, epoch)."""
        try:
            return sampled(sampler, epoch, mix(self._seed, "order", epoch))
        except ValueError as error:
            raise ValueError(f"{error} ({self.where})") from None

    def state_dict(self) -> dict[str, Any]:
        """One cursor for the whole gang: `offset` counts the samples of the epoch that the training has had, in an
        `order` that is said in words.

        Batches, where a sampler of the user's makes them. `left_out` has epoch and number of those still to be left
        out; it is absent where there are none.
        """
        samples, batch = self._sizes()
        offset = min(self.position * batch, samples)
        left_out = sorted(list(one) for one in self._left_out if one >= (self.epoch, self.position))
        place: dict[str, Any] = {"seed": self._seed, "epoch": self.epoch, "offset": offset, "samples": samples}
        place |= {"global_batch": batch, "order": self._named_order()}
        return {**place, "left_out": left_out} if left_out else place

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """ValueError when the data or the batch has changed in a way that makes the cursor meaningless: between two
        epochs they may."""
        if self._plan is None:
            set_epoch(self._source.batch_sampler, state["epoch"])
        samples, batch = self._sizes()
        order, now, position = state.get("order"), self._named_order(), -(-state["offset"] // state["global_batch"])
        self.changed = ""
        if (state["samples"], state["global_batch"]) != (samples, batch):
            told = (
                f"the checkpoint counts in {state['samples']} samples an epoch and batches of {state['global_batch']}, "
                f"this loader has {samples} and {batch} ({self.where})"
            )
            left = state["samples"] - state["offset"]
            is_over = left <= 0 or (self._source.drop_last and left < state["global_batch"])
            if (position and not is_over) or state.get("left_out"):  # which are numbers of batches, too
                raise ValueError(
                    f"{told}; the dataset or batch_size has changed since, which they may between two epochs, and the "
                    f"checkpoint stands within epoch {state['epoch']}"
                )
            self.changed = f"{told}: the next epoch is of these"
            position = len(self) if position else 0
        if 0 < position < len(self) and order not in (None, now):  # with drop_last an epoch ends before its last sample
            raise ValueError(
                f"the checkpoint stands within epoch {state['epoch']}, whose samples come {order}, and this loader's "
                f"come {now} ({self.where}): some would be had twice in that epoch and others never; shuffle or the "
                "sampler has changed since"
            )
        self._seed, self.epoch, self.position = state["seed"], state["epoch"], position
        self._passed = None
        self.leave_out((epoch, number) for epoch, number in state.get("left_out", ()))

    def _named_order(self) -> str:
        """What decides on the order of samples beside seed and epoch, in words."""
        own: Any = self._source.sampler if self._plan is not None else self._source.batch_sampler
        if type(own) is SequentialSampler:
            return "as the dataset has them"
        if self._shuffles(own):
            return "shuffled"
        kinds = [type(one) for one in within(own)]  # of a list or a range it makes no difference which
        names = [kind.__name__ for kind in kinds if kind.__module__ != "builtins"]
        return f"by {' of '.join(names) or 'a sequence'}"

    def _shuffles(self, sampler: Any) -> bool:
        """Whether every sample comes once, wherever it falls."""
        return type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(self.dataset)

    def _sizes(self) -> tuple[int, int]:
        return (self._plan.samples, self._plan.batch) if self._plan is not None else (len(self), 1)


class _RankLoader(DataLoader[Any]):
    """Draws its workers' seed on the CPU, where its generator is, whatever `torch.set_default_device` says."""

    def __iter__(self) -> Any:
        with torch.device("cpu"):
            return ending_with_rank(super().__iter__())


class RankBatches:
    """The batch sampler that the inner DataLoader iterates, anew each epoch: one request a microbatch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[Request]:
        return self._loader.requests(self.epoch, self.start)

    def __len__(self) -> int:
        return len(self._loader) - self.start


def refuse_unsplittable(source: DataLoader[Any], where: str) -> None:
    """TypeError for what can't be split and restored by position."""
    if isinstance(source.dataset, IterableDataset):
        raise TypeError(
            f"{where}: an IterableDataset has no positions, so a run can't go on where it was cut; "
            "give the DataLoader a dataset with __getitem__ and __len__"
        )
    for name in ("__iter__", "_get_iterator"):
        if getattr(type(source), name) is not getattr(DataLoader, name):
            raise TypeError(
                f"{where}: {type(source).__name__} has an {name} of its own, which session.wrap would leave out, for "
                "it makes a loader of its own over the dataset; do what it does in the dataset or in collate_fn"
            )
    if source.batch_size is None and source.batch_sampler is None:
        raise TypeError(f"{where}: batch_size=None gives single samples; give the DataLoader the global batch size")
    if any(isinstance(one, DistributedSampler) for one in within(source.batch_sampler)):
        raise TypeError(f"{where}: leave the DistributedSampler out; session.wrap splits the batches itself")
    own: Any = source.batch_sampler if source.batch_size is None else source.sampler
    try:
        len(own)
    except TypeError:
        raise TypeError(
            f"{where}: the {type(own).__name__} has no length, so the place in an epoch isn't known; give it __len__"
        ) from None


def _own_batches(source: DataLoader[Any]) -> Iterable[Any] | None:
    """The batch sampler that the user gave, or None when the DataLoader made its own."""
    return source.batch_sampler if source.batch_size is None else None


def to_device(batch: Any, device: torch.device) -> Any:
    """Tensors of a batch, in tuples, lists and mappings of any depth, moved to `device`; anything else is asked to move
    itself where it can (`to`)."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        moved = {key: to_device(value, device) for key, value in batch.items()}
        if not isinstance(batch, MutableMapping):
            return moved
        same = copy.copy(batch)  # a defaultdict's factory and a BatchEncoding's word positions stay
        same.update(moved)
        return same
    if type(batch) not in (list, tuple) and callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
