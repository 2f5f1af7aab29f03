"""The members of the gang, as index 0 knows them, and the barrier at which they meet before their processes start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from muster_protocol import exits
from muster_protocol import launcher_api as api
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.launcher_status import Kept
from muster_protocol.messages import Ended, Figures, Member, Release
from muster_runtime.launch import verdict
from muster_runtime.launch.checkup import judge
from muster_runtime.launch.config import Config
from muster_runtime.launch.membership import Barrier, Refused, Roll
from muster_runtime.launch.partners import Partners
from muster_runtime.launch.ports import Ports
from muster_runtime.launch.restarts import Restarts
from muster_runtime.launch.standing import Standing
from muster_runtime.launch.state import Over, State
from muster_runtime.launch.termination import say

REJOIN_SECONDS: Final = 60.0
"""How long the barrier of a restart waits: every pod lives, and its ranks are killed after a few seconds."""
_BARRIER_PATIENCE: Final = 10.0
"""Between two calls a launcher counts as present for so long; it calls again at once."""
_SAY_AGAIN_SECONDS: Final = 10.0


class Rendezvous:
    """
    Attributes:
        incarnation: of the processes that were let go last, or will be next.
        release: what they were told; None while the barrier is open.
        members: by index, who was let go, once anybody was, but for those that were lost since. A restart doesn't
            change it.
        lost: why those indexes are waited for.
        not_before: when the barrier may end, on the state's clock.
    """

    def __init__(self, config: Config, state: State, roll: Roll, standing: Standing, restarts: Restarts) -> None:
        self._config, self._state, self._roll = config, state, roll
        self._standing, self._restarts = standing, restarts
        self._own = config.member
        self.members: dict[int, Member] = {}
        self.lost: dict[int, Ended] = {}
        self.not_before = 0.0
        self._over: Ended | None = None
        self._told: set[int] = set()
        """Who has been told of it."""
        self._deadline = 0.0
        self._ports = Ports(config.address)
        self._figures: dict[int, Figures] = {}
        self._partners = Partners()
        self.open(1)

    def open(self, incarnation: int) -> None:
        """For the processes that will be this incarnation."""
        self.incarnation = incarnation
        self._barrier = Barrier(self._config.workers, patience=_BARRIER_PATIENCE)
        self._barrier.enter(self._own, self._state.clock())
        self.release: Release | None = None
        self._decided = asyncio.Event()
        """The barrier is over, well or not."""
        self._unfit: Ended | None = None

    @property
    def joined(self) -> int:
        return len(self.members) if self.release else len(self._barrier.present(self._state.clock()))

    @property
    def missed(self) -> tuple[int, ...]:
        """The indexes that are lost and have no new pod at the barrier yet."""
        present = self._barrier.present(self._state.clock()) if self.lost else {}
        return tuple(sorted(index for index in self.lost if index not in present))

    def here(self) -> tuple[Member, ...]:
        """The members, or who is at the barrier while nobody was let go."""
        known = self.members if self.release else self._barrier.present(self._state.clock())
        return tuple(known[index] for index in sorted(known))

    def is_member(self, index: int, pod_uid: str) -> bool:
        return index in self.members and self.members[index].pod_uid == pod_uid

    def lose(self, lost: Mapping[int, Ended]) -> None:
        """The pods of these indexes are not of the gang any more; others are waited for in their places."""
        for index in lost:
            self._roll.give_up(self.members.pop(index).pod_uid)
            self._barrier.forget(index)
        self.lost |= lost
        self._deadline = self._state.clock() + self._config.replace_seconds

    def keep_named(self) -> None:
        """A newer membership was pushed: whom it doesn't name is not at the barrier."""
        if self.release is None:
            self._barrier.keep(self._roll)

    async def assemble(self, preflight: asyncio.Future[None] | None) -> Release:
        """Returns when every index is here and the storage is found well. Raises Over."""
        state = self._state
        self._wait, self._wait_name = self._config.first_wait
        if self.members:
            self._wait, self._wait_name = REJOIN_SECONDS, "the time of a restart in place"
        if not self.lost:
            self._deadline = max(state.clock(), self.not_before) + self._wait
        say_at, waits = state.clock() + 1.0, False
        try:
            while True:
                state.raise_if_over(0)
                if preflight is not None and preflight.done():
                    preflight.result()
                now = state.clock()
                checked = (preflight is None or preflight.done()) and now >= self.not_before
                if checked and self._barrier.may_be_full and not self._barrier.missing(now):
                    self._check_nodes()
                    release = self._let_go()
                    if waits:
                        say(f"all {self._config.workers} workers are here")
                    return self._partners.release(release, 0)
                if now >= self._deadline:
                    raise Over(self._late(self._barrier.missing(now)))
                if now >= say_at and (missing := self._barrier.missing(now)):
                    here = self._config.workers - len(missing)
                    say(f"waiting for index {_some(missing)} ({here} of {self._config.workers} are here)")
                    say_at, waits = now + _SAY_AGAIN_SECONDS, True
                until = min(self._deadline, self.not_before) if now < self.not_before else self._deadline
                await state.wait(min(1.0, until - now))
        except Over as over:
            facts = over.facts
            self._over = self._unfit or Ended(0, facts.exit_code, facts.cause.value, facts.message)
            self._decided.set()
            raise

    def _late(self, missing: list[int]) -> ExitFacts:
        gone = [index for index in missing if index in self.lost]
        if gone:
            waited = f"no other pod took the place of index {_some(gone)} within {self._config.replace_seconds:g} s"
            message = f"{self.lost[gone[0]].message}; {waited}"
            return ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, message)
        waited = f"within {self._wait_name} ({self._wait:g} s)"
        message = f"index {_some(missing)} did not join {waited}; see why those pods are not running"
        if not missing:
            message = f"the checkpoint's storage could not be checked {waited}"
        return ExitFacts(Cause.RENDEZVOUS, exits.EXIT_INFRASTRUCTURE, message)

    def _check_nodes(self) -> None:
        """Raises Over where a node is not fit to train, by the figures of those who join for the first time."""
        present = self._barrier.present(self._state.clock())
        new = {index: member.figures for index, member in present.items() if member.figures is not None}
        if self._standing.figures is not None and not self._figures:
            new[0] = self._standing.figures
        self._figures |= new
        found = [one for one in judge(self._figures, factor=self._config.pace.factor) if one.index in new]
        for one in found:
            say(one.ended().message)
        if found:
            self._unfit = found[0].ended()
            raise Over(verdict.unfit(self._unfit, 0))

    def _let_go(self) -> Release:
        own = replace(self._own, copy=self._standing.copy)
        self.members = {**self._barrier.present(self._state.clock()), 0: own}
        if self._config.copies_memory:
            self._partners = Partners.of(self.members, one_node=self._config.memory == Kept.PEER.value)
        for index in self.lost:
            self._roll.take_back(self.members[index].pod_uid)  # it may be the one that was lost
        self.lost.clear()
        seen = max(member.incarnation for member in self.members.values())
        self.incarnation = self._state.incarnation = max(self.incarnation, seen + 1, self._roll.incarnation())
        port = self._ports.free()
        for member in self.members.values():
            self._restarts.tally = self._restarts.tally.heard(member)
        tally = self._restarts.tally
        self.release = Release(
            self.incarnation,
            self._config.address,
            port,
            leader_uid=self._own.pod_uid,
            restarts=tally.restarts,
            failures=tally.failures,
            memory_failures=tally.memory_failures,
        )
        self._decided.set()
        return self.release

    def check(self, member: Member) -> Refused | None:
        """May this pod join?"""
        refused = self._roll.check(member)
        if refused is None and member.index == 0 and member.pod_uid != self._own.pod_uid:
            return Refused(403, f"index 0 is pod {self._own.pod_uid}")
        if refused is None and member.index in self.members and not self.is_member(member.index, member.pod_uid):
            known = self.members[member.index].pod_uid
            return Refused(409, f"the gang runs already, with pod {known} as index {member.index}")
        return refused

    async def join(self, member: Member, gone: asyncio.Event) -> Release | Ended | Refused | None:
        """One call of one launcher, whose pod may join; None: not yet, ask again."""
        if self.release is not None:
            return self._partners.release(self.release, member.index)
        if self._over is not None:
            return self._end_of(member)
        if member.figures is not None:
            skew = member.figures.sent_at - time.time()
            member = replace(member, figures=replace(member.figures, skew=skew))
        return self._barrier.enter(member, self._state.clock()) or await self._hold(member, gone)

    async def _hold(self, member: Member, gone: asyncio.Event) -> Release | Ended | None:
        if self._barrier.may_be_full:
            self._state.tell()
        either = [asyncio.ensure_future(self._decided.wait()), asyncio.ensure_future(gone.wait())]
        try:
            await asyncio.wait(either, timeout=api.JOIN_HOLD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in either:
                one.cancel()
            self._barrier.leave(member, self._state.clock(), hung_up=gone.is_set())
        if self.release is not None and self.members[member.index].pod_uid != member.pod_uid:
            return None  # replaced by a newer attempt while it waited; its next call is refused
        if self.release is None:
            return self._end_of(member)
        return self._partners.release(self.release, member.index)

    def _end_of(self, member: Member) -> Ended | None:
        """What ended the gang at the barrier, told to `member`; None while nothing has."""
        if self._over is not None:
            self._told.add(member.index)
            if len(self._told) == self._config.workers - 1:
                self._state.tell()
        return self._over

    async def tell_all(self, seconds: float) -> None:
        """Serves until each of the others has been told why the gang doesn't start, at most for `seconds`."""
        until = self._state.clock() + seconds
        while len(self._told) < self._config.workers - 1 and (left := until - self._state.clock()) > 0:
            await self._state.wait(left)


def _some(indexes: list[int]) -> str:
    shown = ", ".join(str(index) for index in indexes[:8])
    return shown if len(indexes) <= 8 else f"{shown} and {len(indexes) - 8} more"
