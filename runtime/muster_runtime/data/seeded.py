"""Random choices inside a dataset (crops, noise), made the same whichever worker or rank reads the sample.

Python's, NumPy's and torch's generators are seeded for each sample by (seed, epoch, sample) while it is read, and for
each microbatch while it is collated, and put back afterwards, so that the training's own random numbers
don't depend on how many workers there are. So are those that the dataset, its transforms or the collate function hold
themselves: they would go on from sample to sample, and a run that is resumed has read none of those before.
"""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, get_worker_info

from muster_runtime.data.generators import held_by, kept
from muster_runtime.data.order import Microbatch, mix


class Draw(NamedTuple):
    """One sample to read: its index in the dataset, and what seeds the random choices made for it."""

    index: Any
    seed: int


class Request(NamedTuple):
    """What a worker is asked for: the samples of one microbatch."""

    draws: list[Draw]
    microbatch: Microbatch


class Fetched(NamedTuple):
    """The samples of one microbatch, and what seeds the random choices made while collating them."""

    samples: list[Any]
    seed: int
    microbatch: Microbatch


class SeededDataset(Dataset[Any]):
    """The user's dataset, asked by `Request`s. What it gives goes through `SeededCollate`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, request: Request) -> Fetched:
        # looked for each time, for many make theirs in the first sample
        with kept_generators(), kept(held_by(self.dataset)) as seed_own:
            samples = []
            for draw in request.draws:
                seed_generators(draw.seed)
                seed_own(partial(mix, draw.seed, "own"))
                samples.append(self._read(draw.index))
            return Fetched(samples, mix(request.draws[0].seed, "collate"), request.microbatch)

    def _read(self, index: Any) -> Any:
        try:
            # One at a time also where the dataset can give many: a sample's draws must not depend on those beside it.
            if callable(getattr(self.dataset, "__getitems__", None)):
                return self.dataset.__getitems__([index])[0]
            return self.dataset[index]
        except StopIteration as error:
            raise _no_end(f"{type(self.dataset).__name__}, asked for sample {index!r},") from error


class SeededCollate:
    """The user's collate_fn, whose random choices (masking, mixing) are seeded."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, fetched: Any) -> tuple[Microbatch, Any]:
        with kept_generators(), kept(held_by(self._collate)) as seed_own:
            seed_generators(fetched.seed)
            seed_own(partial(mix, fetched.seed, "own"))
            try:
                return fetched.microbatch, self._collate(fetched.samples)
            except StopIteration as error:
                raise _no_end("collate_fn") from error


def _no_end(who: str) -> RuntimeError:
    """To whoever asks for batches a StopIteration is the epoch's end."""
    return RuntimeError(
        f"{who} raised StopIteration, which is no sample: is it a next(...) of an iterator that has nothing left?"
    )


class WorkerInit:
    """Lets the user's code in a worker find its own dataset by `get_worker_info()`, then runs its worker_init_fn.

    Where all of a process group is asked to stop (as torchrun, Slurm and timeout do), its rank still trains to the next
    boundary and saves: it would fall over the death of a worker. So SIGTERM does nothing to a worker; see
    `muster_runtime.data.workers` for how it ends with its rank.
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, SeededDataset)
        object.__setattr__(info, "dataset", info.dataset.dataset)  # torch refuses a plain assignment
        # No SIG_IGN, which programs that the dataset starts would inherit.
        signal.signal(signal.SIGTERM, lambda *_: None)
        if self._init is not None:
            self._init(worker)


def seed_generators(seed: int) -> None:
    """Seeds the CPU generators. NumPy's only if the script has imported it."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Puts the CPU generators back as they were."""
    numpy = sys.modules.get("numpy")
    had_numpy = numpy is not None and hasattr(numpy, "random")
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    numpy_state = numpy.random.get_state() if numpy is not None and had_numpy else None
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)
