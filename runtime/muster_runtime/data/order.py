"""Which samples a batch has: a pure function of (seed, epoch, batch number), the same for every world size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from muster_protocol.counts import counted

T = TypeVar("T")


def mix(*parts: int | str) -> int:
    """63 bits that depend on all of `parts`, the same on every machine and Python."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@dataclass(frozen=True)
class BatchPlan:
    """How `samples` samples fall into global batches of `batch`; the last is smaller, or left out with `drop_last`.

    ValueError when there is no batch.
    """

    samples: int
    batch: int
    drop_last: bool

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"the global batch is {self.batch}; it must be 1 or more")
        if len(self) == 0:
            are = "is" if self.samples == 1 else "are"
            raise ValueError(f"{counted(self.samples, 'sample')} {are} less than one batch of {self.batch}")

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(self.samples, self.batch)
        return whole + (1 if rest and not self.drop_last else 0)

    def places(self, number: int) -> range:
        """Where batch `number` lies in the epoch's order."""
        first = number * self.batch
        return range(first, min(first + self.batch, self.samples))

    @property
    def rest(self) -> int:
        """Samples in the last, smaller batch of an epoch; 0 when there is none."""
        return 0 if self.drop_last else self.samples % self.batch

    def refuse_unequal(self, parts: int) -> None:
        """ValueError when `parts` ranks can't share every batch equally."""
        if self.batch % parts:
            near = max(1, self.batch // parts) * parts
            raise ValueError(
                f"the global batch of {self.batch} can't be shared equally by {parts} data-parallel ranks; "
                f"choose a multiple of {parts}, say {near}, or let session.loader share it unequally"
            )
        if self.rest % parts:
            raise ValueError(
                f"the last batch of an epoch has {counted(self.rest, 'sample')} ({self.samples} in batches of "
                f"{self.batch}), which {parts} data-parallel ranks can't share equally; give the DataLoader "
                "drop_last=True, or let session.loader share it unequally"
            )

    def is_equal(self, parts: int, most: int | None) -> bool:
        """Whether each rank has one microbatch of each batch, all of the same size."""
        largest = -(-self.batch // parts)
        return not self.batch % parts and not self.rest % parts and (most is None or largest <= most)


def part_of(whole: Sequence[T], parts: int, part: int) -> Sequence[T]:
    """Part `part` of `whole`: contiguous, in order; sizes differ by one at most, and the first parts are the larger."""
    size, rest = divmod(len(whole), parts)
    first = part * size + min(part, rest)
    return whole[first : first + size + (part < rest)]


@dataclass(frozen=True)
class Microbatch:
    """What one rank does in one go: number `number` of `of` that every rank does in this step.

    `samples` of the global batch's `total` are in it; 0 when this rank has none left and passes one of another
    microbatch without weight, since models that are sharded or synchronised need every rank in each pass.
    """

    places: range
    samples: int
    total: int
    number: int = 0
    of: int = 1

    @property
    def is_last(self) -> bool:
        return self.number + 1 == self.of


def microbatches(size: int, parts: int, part: int, most: int | None) -> Iterator[Microbatch]:
    """Rank `part`'s microbatches of a global batch of `size` samples, of at most `most` samples each.

    As many on every rank; `places` count from the batch's first sample.
    """
    whole = range(size)
    largest = -(-size // parts)
    count = -(-largest // most) if most else 1
    share = part_of(whole, parts, part)
    for number in range(count):
        own = part_of(share, count, number)
        stands_in = own or share[:1] or whole[:1]
        yield Microbatch(range(stands_in[0], stands_in[-1] + 1), len(own), size, number, count)


def equal_part(size: int, parts: int, part: int) -> Microbatch:
    """Rank `part`'s share of a batch that a sampler of the user's made. ValueError when it can't be shared equally."""
    if not size:
        raise ValueError("the batch sampler made a batch without samples; leave it out")
    if size % parts:
        raise ValueError(
            f"the batch sampler made a batch of {counted(size, 'sample')}, which {parts} data-parallel ranks can't "
            f"share equally; make batches of a multiple of {parts}"
        )
    return next(microbatches(size, parts, part, None))
