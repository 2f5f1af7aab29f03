"""The writes of one plan that count on each other: see `muster.scheduling.reliance`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Write:
    over: asyncio.Event = field(default_factory=asyncio.Event)
    stands: bool = False


class Writes:
    """The stops and promises of one plan, to be begun in the order of `counts_on`.

    Attributes:
        counts_on: see `counted_on`.
    """

    def __init__(self, counts_on: Mapping[str, tuple[str, ...]]) -> None:
        self.counts_on = counts_on
        self._begun: dict[str, _Write] = {}

    def possible(self, uid: str) -> bool:
        """Whether all that a job's write counts on are begun."""
        return all(other in self._begun for other in self.counts_on[uid])

    def begin(self, uid: str, work: Callable[[], Awaitable[None]], stands: Callable[[], bool]) -> Awaitable[None]:
        """`work`, a job's write, once those stand written that it counts on; nothing where one of these failed.

        Args:
            stands: whether it is written, asked when it was tried.
        """
        ahead = [self._begun[other] for other in self.counts_on[uid]]
        mine = self._begun[uid] = _Write()

        async def in_turn() -> None:
            try:
                for other in ahead:
                    await other.over.wait()
                if all(other.stands for other in ahead):
                    await work()
            finally:
                mine.stands = stands()
                mine.over.set()

        return in_turn()
