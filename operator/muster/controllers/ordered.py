"""Stops and promises on their way to the API server, in the order in which they count on each other: see
`muster.scheduling.reliance`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Write:
    over: asyncio.Event = field(default_factory=asyncio.Event)
    stands: bool = False


class Writes:
    """Those of one plan, to be begun in the order of `counts_on`, behind those of earlier plans that are under way.

    Attributes:
        counts_on: see `muster.scheduling.reliance.counted_on`.
    """

    def __init__(self) -> None:
        self.counts_on: Mapping[str, tuple[str, ...]] = {}
        self._begun: dict[str, _Write] = {}
        self._earlier: list[_Write] = []

    def plan(self, counts_on: Mapping[str, tuple[str, ...]]) -> None:
        """Another plan is carried out. It was made as if all that is under way stood written."""
        self._earlier = [each for each in (*self._earlier, *self._begun.values()) if not each.over.is_set()]
        self._begun, self.counts_on = {}, counts_on

    def possible(self, uid: str) -> bool:
        """Whether all that a job's write counts on are begun."""
        return all(other in self._begun for other in self.counts_on[uid])

    def begin(
        self,
        uid: str,
        work: Callable[[], Awaitable[None]],
        stands: Callable[[], bool],
        otherwise: Callable[[], None],
        *,
        takes: bool,
    ) -> Awaitable[None]:
        """`work`, a job's write, once those stand written that it counts on; nothing where one of these failed.

        Args:
            stands: whether it is written, asked when it was tried; if not, `otherwise` is called.
            takes: it promises something, and may count on what is under way.
        """
        ahead = [self._begun[other] for other in self.counts_on[uid]] + (self._earlier if takes else [])
        mine = self._begun[uid] = _Write()

        async def in_turn() -> None:
            try:
                for other in ahead:
                    await other.over.wait()
                if all(other.stands for other in ahead):
                    await work()
            finally:
                mine.stands = stands()
                if not mine.stands:
                    otherwise()
                mine.over.set()

        return in_turn()
