"""Which samples a batch has: a pure function of (seed, epoch, batch number), the same for every world size."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


def mix(*parts: int | str) -> int:
    """63 bits that depend on all of `parts`, the same on every machine and Python."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@dataclass(frozen=True)
class BatchPlan:
    """How `samples` samples fall into global batches of `batch` (the last may be smaller), and each into equal parts.

    ValueError when a batch can't be shared equally.
    """

    samples: int
    batch: int
    drop_last: bool
    parts: int

    def __post_init__(self) -> None:
        if self.batch % self.parts:
            near = max(1, self.batch // self.parts) * self.parts
            raise ValueError(
                f"the global batch of {self.batch} can't be shared equally by {self.parts} data-parallel ranks; "
                f"choose a multiple of {self.parts}, say {near}"
            )
        rest = self.samples % self.batch
        if rest % self.parts and not self.drop_last:
            raise ValueError(
                f"the last batch of an epoch has {rest} samples ({self.samples} in batches of {self.batch}), which "
                f"{self.parts} data-parallel ranks can't share equally; give the DataLoader drop_last=True"
            )
        if len(self) == 0:
            raise ValueError(f"{self.samples} samples are less than one batch of {self.batch}")

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(self.samples, self.batch)
        return whole + (1 if rest and not self.drop_last else 0)

    def share(self, number: int, part: int) -> range:
        """Positions in the epoch's order that rank `part` reads of batch `number`: contiguous, in rank order."""
        first = number * self.batch
        size = min(self.batch, self.samples - first) // self.parts
        return range(first + part * size, first + (part + 1) * size)


def equal_parts(batch: Sequence[int], parts: int, part: int) -> Sequence[int]:
    """Rank `part`'s share of a batch that a sampler of the user's made. ValueError when it can't be shared equally."""
    if len(batch) % parts:
        raise ValueError(
            f"the batch sampler made a batch of {len(batch)} samples, which {parts} data-parallel ranks can't share "
            f"equally; make batches of a multiple of {parts}"
        )
    size = len(batch) // parts
    return batch[part * size : (part + 1) * size]
