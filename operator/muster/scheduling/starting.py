"""One waiting job: whether it could ever start, whether it may start now, how large and where.

A job takes the first of its choices of nodes that has quota and room, with as many workers as both allow. Before it is
left waiting for room, every choice was tried.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from muster.scheduling.gangs import Gang
from muster.scheduling.heads import Heads
from muster.scheduling.open_quota import OpenQuota
from muster.scheduling.outlook import Hope, Outlook
from muster.scheduling.owners import Owners
from muster.scheduling.placement import fits, most_placeable
from muster.scheduling.plan import Admission
from muster.scheduling.quota import Need
from muster.scheduling.rounds import Round
from muster.scheduling.slots import count_slots
from muster.scheduling.snapshot import NONE
from muster.scheduling.topology import prefix_sums
from muster.scheduling.verdicts import Fate, Found, Verdict

_ROOM, _QUOTA = Fate.ROOM, Fate.QUOTA
"""Read for every job that waits: a name's value is faster than an enum's member."""

_CLOSEST_FIRST: Final = (Fate.NODES_AWAY, Fate.TOO_LARGE, Fate.NO_NODES)
"""Of a job that takes several kinds of node, none of which could hold it, what it is told."""

_MANY: Final = 64
"""Admissions after which it pays to look at everybody's quota again."""


@dataclass(frozen=True)
class _Wishes:
    """What waiting jobs want at least. Owners ask this and not `Starting`, which holds them: as a circle, a round's
    objects would stay until the garbage collector stops everything to find them.

    Attributes:
        obstacles: as `Starting` has them.
        first_choice: by queue and kind, the first choice for which there could ever be quota; without an entry, 0.
    """

    round_: Round
    obstacles: Mapping[int, Verdict]
    first_choice: Mapping[tuple[int, int], int]

    def of(self, job: int) -> tuple[int, int, Need] | None:
        """See `muster.scheduling.owners.Wants`. It is the same all through a plan."""
        # Asked for nearly every job that waits.
        if job in self.obstacles:
            return None
        kinds, queue = self.round_.kinds, self.round_.queue_of[job]
        kind = kinds.of[job]
        choice, it = self.first_choice.get((queue, kind), 0), kinds.kinds[kind]
        flavour = it.choices[choice].flavour
        return job, flavour, kinds.limited_need(kind, choice, it.sizes[-1], self.round_.used.limited(queue, flavour))


class Starting:
    """Decides over the jobs of a round, one after the other. What is alike is looked at once.

    Attributes:
        obstacles: by row, what keeps a job from starting whatever ends. All others could start one day.
        short: rows of those of them that lack quota in use all through this plan.
        choices: by kind of job, the choices of nodes that could hold it if they were empty.
    """

    def __init__(self, round_: Round, heads: Heads) -> None:
        self._round, self._heads = round_, heads
        self._hopes = [self._look(kind) for kind in range(len(round_.kinds.kinds))]
        self.choices = [hope.choices for hope in self._hopes]
        self._outlook = Outlook(round_, self._hopes)
        self.obstacles, self.short = self._outlook.obstacles, self._outlook.short
        self._first_choice: dict[tuple[int, int], int] = {}
        self.owners = Owners(round_, _Wishes(round_, self.obstacles, self._first_choice).of)
        self._open = OpenQuota(round_, self.owners)
        self._admitted = 0
        self._no_quota: set[tuple[int, int]] = set()
        self._no_room: set[tuple[int, int]] = set()
        self._hopeless: dict[tuple[int, int], bool] = {}
        for job in self._outlook.special:
            self._judge_special(job)
        for job, verdict in self.obstacles.items():
            if verdict.fate is Fate.NODES_AWAY and self._never(job):
                self.obstacles[job] = Verdict(job, Fate.NEVER)  # nodes that come back would change nothing

    def start(self, job: int, *, own: bool = False) -> Admission | Verdict:
        """Admit the job if quota and room allow it now. It must be none of `obstacles`, nor known to lack quota.

        Args:
            own: with no more workers than for which it need not borrow: see `has_own`.
        """
        round_ = self._round
        queue, kind = round_.queue_of[job], round_.kinds.of[job]
        first = self._first_choice.get((queue, kind), 0)
        fate, common = _QUOTA, True
        for choice in self._hopes[kind].choices:
            size, passing = self._largest_with_quota(job, kind, choice), False
            if own:
                size = self._largest_within(job, kind, choice)
            elif size == 0:
                size, passing = self._largest_in_passing(job, kind, choice), True
            if size == 0:
                continue
            if fate is _QUOTA and not passing:
                fate, first = _ROOM, choice
            if (kind, choice) in self._no_room:
                continue
            admission = self._place(job, kind, choice, size, yields=passing)
            if admission is not None:
                return admission
            common = common and (kind, choice) in self._no_room
        return Verdict(job, fate, first, common)

    def lacks_quota(self, job: int) -> Verdict | None:
        """The verdict on a job that lacks quota now, in passing, too, whichever of its choices it takes."""
        # Asked for every job that waits, and true of most of them.
        round_ = self._round
        kind = round_.kinds.of[job]
        alike = (round_.queue_of[job], kind)
        if job not in self.short and alike not in self._no_quota:
            for choice in self._hopes[kind].choices:
                if self._largest(job, kind, choice):
                    return None
            self._no_quota.add(alike)
        return Verdict(job, _QUOTA, self._first_choice.get(alike, 0))

    def owner_before(self, job: int) -> int | None:
        """The next of those whose turn comes before a job that has quota, but would borrow it; None for all others.

        One that is not preemptible borrows nothing itself. But it makes others of its queue borrow, who are asked then.
        """
        round_ = self._round
        queue, kind = round_.queue_of[job], round_.kinds.of[job]
        it = round_.kinds.kinds[kind]
        if not round_.policy.preemption:
            return None
        choices = self._hopes[kind].choices
        for choice in choices:
            flavour = it.choices[choice].flavour
            line = self.owners.may_come(queue, flavour)
            if not line and len(choices) == 1:
                continue
            size = self._largest(job, kind, choice)
            if size == 0:
                continue
            need = round_.kinds.limited_need(kind, choice, size, round_.used.limited(queue, flavour))
            owner = self.owners.before(queue, flavour) if line and not round_.within(job, choice, need) else None
            if owner is not None:
                return owner
            if len(choices) > 1 and self._largest_with_room(kind, choice, size, spare=True):
                return None  # it starts there, whoever would come before it on the next
        return None

    def home(self, job: int) -> tuple[int, int]:
        """The tree of queues and the flavour in whose line of owners a job is."""
        kind = self._round.kind(job)
        return self._round.used.circle(self._round.queue_of[job]), kind.choices[self._first_choice_of(job)].flavour

    def may_start(self, job: int) -> bool:
        """Whether quota and room allow it now, for whomever the room is kept."""
        kind = self._round.kinds.of[job]
        for choice in self._hopes[kind].choices:
            size = self._largest(job, kind, choice)
            if size and self._largest_with_room(kind, choice, size, spare=False):
                return True
        return False

    def has_own(self, job: int) -> bool:
        """Whether a gang of several sizes would borrow, but need not, for it may start with fewer workers."""
        kind = self._round.kinds.of[job]
        if len(self._round.kinds.kinds[kind].sizes) == 1:
            return False
        return any(self._largest_within(job, kind, choice) for choice in self._hopes[kind].choices)

    def _largest_within(self, job: int, kind: int, choice: int) -> int:
        """The largest of its sizes for which there is quota and that its queue has by itself, or 0."""
        round_, it = self._round, self._round.kinds.kinds[kind]
        most = self._largest_with_quota(job, kind, choice)
        limited = round_.used.limited(round_.queue_of[job], it.choices[choice].flavour)
        for size in it.sizes:
            if size <= most and round_.within(job, choice, round_.kinds.limited_need(kind, choice, size, limited)):
                return size
        return 0

    def turned_down(self, verdict: Verdict) -> None:
        """An owner that had its turn before a borrower waits on."""
        first = self._round.kind(verdict.job).choices[self._first_choice_of(verdict.job)]
        self.owners.turned_down(verdict.job, first.flavour, room=verdict.fate is _ROOM)

    def quota_came_back(self) -> None:
        """Victims' quota is somebody's again: what lacked quota before may have it now."""
        self.owners.look_again()
        self._no_quota.clear()

    def _look(self, kind: int) -> Hope:
        round_, it = self._round, self._round.kinds.kinds[kind]
        gangs = [round_.kinds.gang(kind, choice, it.sizes[-1]) for choice in range(len(it.choices))]
        fates = [self._judge(gang) for gang in gangs]
        able = tuple([choice for choice, fate in enumerate(fates) if fate is None])
        if able:
            return Hope(able, None)
        fate = next(each for each in _CLOSEST_FIRST if each in fates)
        alike = [choice for choice, other in enumerate(fates) if other is fate]
        closest = alike[0]
        if len(alike) > 1 and fate is not Fate.NO_NODES:
            closest = max(alike, key=lambda choice: self._most_when_empty(gangs[choice], fate))
        return Hope((), fate, closest)

    def _most_when_empty(self, gang: Gang, fate: Fate) -> int:
        """How many workers of a gang that is too large find room on empty nodes: on the usable ones, if others would
        hold all of it."""
        round_, room = self._round, self._round.room
        prefix = room.slots_when_empty(gang.worker).prefix
        if fate is Fate.TOO_LARGE:
            worker = round_.kinds.workers[gang.worker]
            prefix = prefix_sums(count_slots(room.empty, worker, room.eligible[worker.filter]))
        return most_placeable(round_.tree, prefix, gang)

    def _judge(self, gang: Gang) -> Fate | None:
        round_ = self._round
        room, worker = round_.room, round_.kinds.workers[gang.worker]
        suits = room.eligible[worker.filter]
        if not suits.any():
            return Fate.NO_NODES
        if fits(round_.tree, room.slots_when_empty(gang.worker).prefix, gang):
            return None
        if (suits & ~room.usable).any():
            all_back = count_slots(room.empty, worker, suits)
            if fits(round_.tree, prefix_sums(all_back), gang):
                return Fate.NODES_AWAY
        return Fate.TOO_LARGE

    def _judge_special(self, job: int) -> None:
        """Find the first possible choice for which the queue could ever have the quota."""
        round_ = self._round
        kinds, kind = round_.kinds, round_.kinds.of[job]
        key = (round_.queue_of[job], kind)
        choices, least = self._hopes[kind].choices, kinds.kinds[kind].sizes[-1]
        if key not in self._first_choice:
            able = (c for c in choices if round_.never(job, c, kinds.need(kind, c, least)) is None)
            self._first_choice[key] = next(able, NONE)
        if self._first_choice[key] == NONE:
            self.obstacles[job] = Verdict(job, Fate.NEVER, choices[0])
        elif round_.opens_later(job):
            self.obstacles[job] = Verdict(job, Fate.WINDOW)

    def _never(self, job: int) -> bool:
        """Whether the queue could never have the quota, for any choice of nodes."""
        round_ = self._round
        kinds, kind = round_.kinds, round_.kinds.of[job]
        key = (round_.queue_of[job], kind)
        if key not in self._hopeless:
            it = kinds.kinds[kind]
            needs = ((choice, kinds.need(kind, choice, it.sizes[-1])) for choice in range(len(it.choices)))
            self._hopeless[key] = all(round_.never(job, choice, need) is not None for choice, need in needs)
        return self._hopeless[key]

    def _largest(self, job: int, kind: int, choice: int) -> int:
        """The largest of its sizes for which there is quota now, if need be in passing, or 0."""
        return self._largest_with_quota(job, kind, choice) or self._largest_in_passing(job, kind, choice)

    def _largest_in_passing(self, job: int, kind: int, choice: int) -> int:
        """The same with what is held back for an older job of its queue, or 0: for those that give it back on
        demand."""
        round_, it = self._round, self._round.kinds.kinds[kind]
        flavour = it.choices[choice].flavour
        if not (
            it.preemptible and round_.policy.backfill and round_.promised.holds_back(round_.queue_of[job], flavour)
        ):
            return 0
        return self._largest_with_quota(job, kind, choice, passing=True)

    def _largest_with_quota(self, job: int, kind: int, choice: int, *, passing: bool = False) -> int:
        """`passing`: what is held back for others of its queue counts as well."""
        sizes = self._round.kinds.kinds[kind].sizes
        if len(sizes) == 1:
            return sizes[0] if self._has_quota(job, kind, choice, sizes[0], passing=passing) else 0
        first = bisect_left(sizes, True, key=lambda size: self._has_quota(job, kind, choice, size, passing=passing))
        return sizes[first] if first < len(sizes) else 0

    def _has_quota(self, job: int, kind: int, choice: int, size: int, *, passing: bool) -> bool:
        round_, kinds = self._round, self._round.kinds
        it, queue = kinds.kinds[kind], round_.queue_of[job]
        flavour = it.choices[choice].flavour
        need = kinds.limited_need(kind, choice, size, round_.used.limited(queue, flavour))
        if it.preemptible:  # what others may not use, a job that must not borrow may
            return self._open.has(queue, flavour, need, passing=passing)
        return round_.shortage(job, choice, need, passing=passing) is None

    def _first_choice_of(self, job: int) -> int:
        """The first choice of nodes for which its queue could ever have the quota."""
        return self._first_choice.get((self._round.queue_of[job], self._round.kinds.of[job]), 0)

    def _place(self, job: int, kind: int, choice: int, size: int, *, yields: bool) -> Admission | None:
        round_ = self._round
        largest = self._largest_with_room(kind, choice, size, spare=False)
        if largest == 0:
            if size == round_.kinds.kinds[kind].sizes[0]:
                self._no_room.add((kind, choice))
            return None
        if not self._heads.all:
            return self._admit(job, choice, round_.find(kind, choice, largest, spare=False), yields=yields)
        apart = self._largest_with_room(kind, choice, largest, spare=True)
        if apart != largest:
            found = self._heads.lets_in(job, choice, largest)
            if found is not None:
                return self._admit(job, choice, found[0], yields=yields or found[1])
        if apart == 0:
            return None
        return self._admit(job, choice, round_.find(kind, choice, apart, spare=True), yields=yields)

    def _largest_with_room(self, kind: int, choice: int, size: int, *, spare: bool) -> int:
        """The largest of its sizes, at most `size`, that fits; or 0."""
        round_ = self._round
        sizes = round_.kinds.kinds[kind].sizes
        if len(sizes) == 1:
            return size if round_.fits(kind, choice, size, spare=spare) else 0
        sizes = sizes[sizes.index(size) :]
        if round_.kinds.kinds[kind].shape.balanced != NONE:
            return next((each for each in sizes if round_.fits(kind, choice, each, spare=spare)), 0)
        # Fewer workers fit where more do, so the edge is found by halving.
        first = bisect_left(sizes, True, key=lambda each: round_.fits(kind, choice, each, spare=spare))
        return sizes[first] if first < len(sizes) else 0

    def _admit(self, job: int, choice: int, found: Found | None, *, yields: bool) -> Admission:
        assert found is not None, "a gang that fits was not placed"
        round_ = self._round
        kind = round_.kinds.of[job]
        gang = round_.kinds.gang(kind, choice, found.size)
        need = round_.kinds.need(kind, choice, found.size)
        yields = yields or self._borrows_behind_a_head(job, choice, need)
        round_.charge(job, choice, need)
        self._admitted += 1
        if self._admitted % _MANY == 0:
            self._outlook.renew()
        self._heads.started(job, found.taken, gang.worker, yields=yields)
        round_.take(gang, found.taken)
        flavour = round_.kinds.kinds[kind].choices[choice].flavour
        return Admission(round_.snapshot.jobs.uids[job], round_.nodes(found.places), flavour, yields)

    def _borrows_behind_a_head(self, job: int, choice: int, need: Need) -> bool:
        """Whether a job would use what others lend while one ahead of it in its queue waits for room."""
        round_, it = self._round, self._round.kind(job)
        queue, flavour = round_.queue_of[job], it.choices[choice].flavour
        if (queue, flavour) not in self._heads.queues or not (it.preemptible and round_.policy.backfill):
            return False
        return not round_.promised.within(queue, flavour, need)
