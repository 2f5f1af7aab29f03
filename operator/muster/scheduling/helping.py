"""What would help a job that waits: for room, for quota, or for both. Once for all that are alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Final

import numpy as np

from muster.scheduling.changes import Changes
from muster.scheduling.gangs import Gang
from muster.scheduling.heads import Heads
from muster.scheduling.owners import Owners
from muster.scheduling.plan import Almost, Change, ChangeKind
from muster.scheduling.quota import Need
from muster.scheduling.ranks import AGE_STEPS, ages
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, Int, Mask, Preempts
from muster.scheduling.verdicts import Fate, Verdict

NO_ROOM: Final = frozenset((Fate.ROOM, Fate.TOO_LARGE, Fate.NODES_AWAY))
_MAY_LACK_QUOTA: Final = frozenset((Fate.QUOTA, Fate.NEVER, Fate.TOO_LARGE, Fate.NODES_AWAY))
_LESS: Final = frozenset((ChangeKind.WORKERS, ChangeKind.SPARES))
"""Changes with which a job wants less quota."""


class Helps:
    """Looks at what a plan leaves of room and quota."""

    def __init__(self, round_: Round, heads: Heads, owners: Owners) -> None:
        self._round, self._heads, self._owners = round_, heads, owners
        self._changes = Changes(round_)
        self._helps: dict[tuple[int, int, bool], tuple[tuple[Almost, ...], tuple[Change, ...], tuple[int, ...]]] = {}
        self._known_quota_helps: dict[tuple[int, int, int, bool, bool], tuple[tuple[Change, ...], str]] = {}
        self._verdicts: Sequence[Verdict] = ()
        self._places: Int = np.empty(0, dtype=np.int64)

    def order(self, verdicts: Sequence[Verdict], places: Int) -> None:
        """To be told first: those who wait, first in rank first, and J, the place of each among them."""
        self._verdicts, self._places = verdicts, places

    def of(self, verdict: Verdict, *, has_quota: bool) -> tuple[tuple[Almost, ...], tuple[Change, ...], str]:
        """Domains in which the job almost fits, changes that would start it, and another flavour with room for it. One
        that lacks quota has the domains alone: see `of_quota`."""
        if verdict.fate not in NO_ROOM:
            return (), (), ""
        kind, spare = self._round.kinds.of[verdict.job], not self._open[verdict.job]
        key = (kind, verdict.choice, spare)
        if key not in self._helps:
            self._helps[key] = self._changes.of(kind, verdict.choice, spare=spare)
        almost, changes, others = self._helps[key]
        if not has_quota or self._round.opens_later(verdict.job):
            return almost, (), ""
        changes = self._alone(verdict.job, changes or self._of_other_choices(verdict, spare=spare))
        named = (self._round.snapshot.flavours[other] for other in others if self._has_quota_of(verdict, other))
        return almost, changes, next(named, "")

    def of_quota(self, verdict: Verdict) -> tuple[tuple[Change, ...], str]:
        """Changes with which a job that lacks quota would have that and room, and another flavour with both."""
        round_, job = self._round, verdict.job
        if job in self._heads.jobs or verdict.fate not in _MAY_LACK_QUOTA or round_.opens_later(job):
            return (), ""  # what is kept for a head is charged already
        spare = not self._open[job]
        changes, elsewhere = self._of_quota(job, verdict.choice, spare=spare)
        return self._alone(job, changes or self._of_other_choices(verdict, spare=spare)), elsewhere

    def _alone(self, job: int, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Without those by which a job would claim less of its own quota, where one ahead of it waits to borrow that,
        or would start with more workers: it may take the room as well."""
        if any(each.kind in _LESS for each in changes) and self._keeps_back(job):
            return tuple([each for each in changes if each.kind not in _LESS])
        return changes

    def _keeps_back(self, job: int) -> bool:
        """Whether a job of another queue that ranks before this one lacks no more than what owners claim, and has its
        turn before it."""
        round_, queue, place = self._round, self._round.queue_of[job], int(self._places[job])
        reclaim = NONE if queue == NONE else int(round_.snapshot.queues.reclaim[queue])
        if reclaim in (NONE, int(Preempts.NEVER)):
            return False
        for each in round_.kind(job).choices:
            first = reclaim == int(Preempts.ANY) and place <= self._line_ends.get((queue, each.flavour), place)
            others = self._kept_back.get((round_.used.circle(queue), each.flavour), {})
            if not first and any(before < place and other != queue for other, before in others.items()):
                return True
            if self._cut_short.get((round_.used.circle(queue), each.flavour), {queue}) != {queue}:
                return True
        return False

    @cached_property
    def _cut_short(self) -> dict[tuple[int, int], set[int]]:
        """By tree of queues and flavour: the queues of those that start with fewer workers than they wish for. They may
        have left the rest to an owner behind a job of its queue that lacks quota, and would have it if that wanted
        less: see `muster.scheduling.owners`."""
        round_, found = self._round, dict[tuple[int, int], set[int]]()
        jobs = round_.snapshot.jobs
        for each in round_.admissions:
            job = jobs.rows[each.uid]
            wish = int(jobs.workers[job]) + jobs.terms.shapes[job].spares
            if jobs.pending[job] and jobs.queues[job] != NONE and len(each.nodes) < wish:
                queue = round_.queue_of[job]
                found.setdefault((round_.used.circle(queue), each.flavour), set()).add(queue)
        return found

    @cached_property
    def _line_ends(self) -> dict[tuple[int, int], int]:
        """By queue and flavour the place of the first job behind which nobody has a turn before a borrower has: see
        `muster.scheduling.owners`."""
        round_, old = self._round, ages(self._round.snapshot) >= AGE_STEPS
        found: dict[tuple[int, int], int] = {}
        for job, fate, choice, _ in self._verdicts:
            if fate is Fate.ROOM or (fate is Fate.QUOTA and old[job]):
                flavour = round_.kind(job).choices[choice].flavour
                found.setdefault((round_.queue_of[job], flavour), int(self._places[job]))
        return found

    @cached_property
    def _kept_back(self) -> dict[tuple[int, int], dict[int, int]]:
        """By tree of queues and flavour: of each queue the place of the first job that lacks no quota in use."""
        round_, seen = self._round, set[tuple[int, int]]()
        found: dict[tuple[int, int], dict[int, int]] = {}
        for job, fate, *_ in self._verdicts:
            queue, kind = round_.queue_of[job], round_.kinds.of[job]
            if fate is not Fate.QUOTA or (queue, kind) in seen:
                continue
            seen.add((queue, kind))
            it = round_.kinds.kinds[kind]
            for choice, each in enumerate(it.choices):
                need = round_.kinds.need(kind, choice, it.sizes[-1])
                if it.preemptible and round_.used.shortage(queue, each.flavour, need) is None:
                    firsts = found.setdefault((round_.used.circle(queue), each.flavour), {})
                    firsts.setdefault(queue, int(self._places[job]))
        return found

    def _of_quota(self, job: int, choice: int, *, spare: bool) -> tuple[tuple[Change, ...], str]:
        round_ = self._round
        key = (round_.queue_of[job], round_.kinds.of[job], choice, spare, self._precedes_a_head(job))
        if key not in self._known_quota_helps:
            allows, borrows = partial(self._allows, job), partial(self._could_borrow, job, choice)
            self._known_quota_helps[key] = self._changes.of_quota(key[1], choice, allows, spare=spare, borrows=borrows)
        return self._known_quota_helps[key]

    def _of_other_choices(self, verdict: Verdict, *, spare: bool) -> tuple[Change, ...]:
        """What would let a job start on another kind of node that it takes by now."""
        for choice in range(len(self._round.kind(verdict.job).choices)):
            found = self._of_quota(verdict.job, choice, spare=spare)[0] if choice != verdict.choice else ()
            if found:
                return found
        return ()

    def _allows(self, job: int, flavour: int, gang: Gang) -> bool:
        """Whether a job has quota for a gang now, after all who would take back what it borrows."""
        round_, it = self._round, self._round.kind(job)
        need = tuple((resource, amount * gang.total) for resource, amount in round_.kinds.workers[gang.worker].asks)
        passing = it.preemptible and round_.policy.backfill
        if round_.shortage_on(job, flavour, need, passing=passing) is not None:
            return False
        return not it.preemptible or self._owners_allow(job, flavour, need, passing=passing)

    def _could_borrow(self, job: int, choice: int) -> bool:
        """Whether a job that is not preemptible would have quota if it were."""
        round_, kind = self._round, self._round.kinds.of[job]
        it, queue = round_.kinds.kinds[kind], round_.queue_of[job]
        flavour, need = it.choices[choice].flavour, round_.kinds.need(kind, choice, it.sizes[-1])
        if any(ledger.shortage(queue, flavour, need) is not None for ledger in (round_.promised, round_.used)):
            return False
        return self._owners_allow(job, flavour, need, passing=False)

    def _owners_allow(self, job: int, flavour: int, need: Need, *, passing: bool) -> bool:
        """What owners claim now is not what they claim at the turn of a job that ranks before one of them with a
        reservation: others of that one's queue had their claims beside it then."""
        if not self._round.policy.preemption or self._round.promised.within(self._round.queue_of[job], flavour, need):
            return True
        if self._precedes_a_head(job):
            return False
        return self._owners.allow(self._round.queue_of[job], flavour, need, passing=passing)

    def _precedes_a_head(self, job: int) -> bool:
        """Whether a job ranks before one of another queue of its tree that has a reservation."""
        circle, queue_of = self._round.used.circle, self._round.queue_of
        own, place = queue_of[job], self._places[job]
        behind = (queue_of[head] for head in self._heads.jobs if self._places[head] > place)
        return any(queue != own and circle(queue) == circle(own) for queue in behind)

    def _has_quota_of(self, verdict: Verdict, flavour: int) -> bool:
        """Whether the job's queue may use that much of another flavour now."""
        kinds, kind = self._round.kinds, self._round.kinds.of[verdict.job]
        return self._allows(verdict.job, flavour, kinds.gang(kind, verdict.choice, kinds.kinds[kind].sizes[-1]))

    @cached_property
    def _open(self) -> Mask:
        return self._heads.open_to()
