"""The state of one call of `plan`: what is left of room and quota after everything that was decided so far.

Two ledgers are kept. `used` has what placements hold, and what this plan admits: a job holds its quota until its last
pod is gone. `promised` has that, and what is promised or reserved; what victims hold is not in it, for it goes to
those for whom they leave. A gang starts only where both allow it.

Two rooms are kept. `room` is what is free; `spare` is that less the places that are reserved for jobs ahead. Both are
less what is promised. Room only shrinks while a plan is made, so a gang that did not fit before does not fit now.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import Final

import numpy as np

from muster.scheduling.gangs import Gang
from muster.scheduling.kinds import Kind, Kinds
from muster.scheduling.letin import LetIn
from muster.scheduling.mending import mend_gangs, mend_promises
from muster.scheduling.placement import fits, locate
from muster.scheduling.plan import Admission, Eviction, Promise, Replacement
from muster.scheduling.policy import Policy
from muster.scheduling.promises import Kept, firm_use, keep_promises
from muster.scheduling.quota import Ledger, Need, Shortage
from muster.scheduling.room import Room
from muster.scheduling.slots import Taken, open_then
from muster.scheduling.snapshot import NONE, Index, Int, Mask, Snapshot
from muster.scheduling.topology import Tree
from muster.scheduling.verdicts import Found, Left

_NOTHING: Final[tuple[int, Found | None]] = (0, None)


class Round:
    """See the module. Arrays of places are in tree order, arrays of nodes in the snapshot's.

    Attributes:
        kept: what became of earlier promises.
        reserved_quota: (job, flavour) of those for whom quota was reserved.
        served: rows of those whose quota is charged in this plan.
        touched: by tree of queues (`Ledger.circle`), how often its use has changed; `touches` in all.
        journal: all changes of `promised` in their order: queue, flavour, need, and 1 for what is charged, -1 for what
            is given back, 0 for what is held back.
        state: grows whenever room or quota change.
        left: None unless somebody may grow and was looked at.
        beyond: by uid of those that start on a safe base: nodes of the workers that they get beyond it.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self.tree = Tree(snapshot.nodes.domains, snapshot.levels)
        snapshot, replaced = mend_gangs(snapshot, self.tree)
        snapshot, mended, reduced = mend_promises(snapshot, self.tree)
        jobs = snapshot.jobs
        self.snapshot, self.policy = snapshot, policy
        self.waiting: Int = np.flatnonzero(jobs.pending).astype(np.int64)
        self.kinds = Kinds(snapshot, self.waiting, elastic=policy.elastic)
        self.used = Ledger(snapshot.queues, jobs)
        self.promised = self.used.copy()
        self.kept: Kept = keep_promises(snapshot, self.used, self.promised)
        self.room = Room(snapshot, self.tree, self.kinds.workers, self.kept.free)
        self.kinds.limit_sizes(self.fits_empty)
        self._spare: Room | None = None
        self.queue_of: list[int] = jobs.queues.tolist()
        self.opens: list[float] = jobs.terms.opens.tolist()
        self.admissions: list[Admission] = list(self.kept.admissions)
        self.promises: list[Promise] = []
        self.evictions: list[Eviction] = []
        self.replacements: list[Replacement] = [*replaced, *mended]
        self.reduced = reduced
        self.beyond: dict[str, Index] = {}
        self.left: Left | None = None
        self.reserved_quota: list[tuple[int, int]] = []
        self._firm_held_back: set[tuple[int, int]] = set()
        leaving = set(jobs.queues[jobs.runs.leaving & (jobs.queues != NONE)].tolist())
        self._returning = {self.used.circle(queue) for queue in leaving}  # trees in which quota comes back
        self.served: set[int] = set()
        self.touched: dict[int, int] = {}
        self.journal: list[tuple[int, int, Need, int]] = []
        self.touches = 0
        self.state = self._version = 1
        self._too_many: dict[tuple[bool, int], int] = {}
        self._fitted: dict[tuple[bool, int], tuple[int, int]] = {}
        self._found: dict[tuple[bool, int, int, int], tuple[int, Found]] = {}

    def fits_empty(self, gang: Gang) -> bool:
        """Whether a gang fits the usable nodes when they are empty."""
        return fits(self.tree, self.room.slots_when_empty(gang.worker).prefix, gang)

    @cached_property
    def _firm(self) -> Int:
        """Q x V x R, what jobs hold, are promised or were given that cannot give it back. Made when it is first asked
        for."""
        return firm_use(self.snapshot, ~self.snapshot.jobs.pending)

    @property
    def spare(self) -> Room:
        """What is free, less what is reserved for jobs ahead."""
        return self.room if self._spare is None else self._spare

    def split_spare(self) -> Room:
        """From now on `spare` is a room of its own, from which reservations may be taken."""
        if self._spare is None:
            self._spare = self.room.twin()
        return self._spare

    def open_to_all(self, coming: Int | int = 0) -> Room:
        """The room with what is kept for jobs ahead taken off what is free, but not off what running jobs give back.

        Args:
            coming: R x N, what comes back from those who leave, see `open_then`.
        """
        room, spare = self.room, self.spare
        if spare is room:
            return room
        view = copy(room)
        view.open = open_then(room.free, spare.open, coming) - coming
        return view

    def kept_nodes(self) -> Mask:
        """N, nodes of which room is kept for jobs ahead."""
        kept: Mask = np.any(self.spare.open < self.room.open, axis=0)
        return kept[self.tree.place_of]

    @property
    def version(self) -> int:
        """Grows whenever room shrinks."""
        return self._version

    def opens_later(self, job: int) -> bool:
        """Whether nothing starts the job now, for its window is closed."""
        return self.opens[job] > self.snapshot.now

    def kind(self, job: int) -> Kind:
        return self.kinds.kinds[self.kinds.of[job]]

    def shortage(self, job: int, choice: int, need: Need, *, passing: bool = False) -> Shortage | None:
        """What quota lacks for the job now, or None.

        Args:
            passing: it may take what is held back for others of its queue, because it gives it back on demand.
        """
        return self.shortage_on(job, self.kind(job).choices[choice].flavour, need, passing=passing)

    def shortage_on(self, job: int, flavour: int, need: Need, *, passing: bool = False) -> Shortage | None:
        """`shortage`, of nodes of any flavour, whether the job takes them or not."""
        queue, preemptible = self.queue_of[job], self.kind(job).preemptible
        promised = self.promised.shortage_in_passing if passing else self.promised.shortage
        short = promised(queue, flavour, need)
        if short is None and self.promised.lowered:  # else what is used is promised, and more
            short = self.used.shortage(queue, flavour, need)
        if short is not None or preemptible:
            return short
        limited = [ask for ask in need if ask[0] in self.used.limited(queue, flavour)]
        if limited and (queue, flavour) in self._firm_held_back:
            return Shortage(*max(limited, key=itemgetter(1)), 0)
        return self._firm_shortage_on(queue, flavour, need)

    def firm_shortage(self, job: int, choice: int, need: Need) -> Shortage | None:
        """What a job that cannot give room back lacks of its queue's own nominal, of which only jobs like it count:
        what the others use beside them is what is borrowed, and can be taken back."""
        return self._firm_shortage_on(self.queue_of[job], self.kind(job).choices[choice].flavour, need)

    def _firm_shortage_on(self, queue: int, flavour: int, need: Need) -> Shortage | None:
        for resource, amount in need:
            left = self.own_left(queue, flavour, resource)
            if left < amount:
                return Shortage(resource, amount, left)
        return None

    def firm_used(self, queue: int, flavour: int, resource: int) -> int:
        """What a queue's jobs that cannot give it back use."""
        return int(self._firm[queue, flavour, resource])

    def own_left(self, queue: int, flavour: int, resource: int) -> int:
        """What a queue has left of its own for jobs that cannot give it back."""
        return max(0, self.used.most_own(queue, flavour, resource) - self.firm_used(queue, flavour, resource))

    def own_left_by_queue(self) -> Int:
        """Q x V x R: `own_left` of every queue at once."""
        left: Int = np.maximum(0, self.used.most_own_by_queue() - self._firm)
        return left

    def never(self, job: int, choice: int, need: Need) -> Shortage | None:
        """What quota lacks for the job when nobody else uses anything, or None."""
        queue, kind = self.queue_of[job], self.kind(job)
        flavour = kind.choices[choice].flavour
        return self.used.never(queue, flavour, need, borrowing=kind.preemptible)

    def would_be_lent(self, job: int, choice: int) -> bool:
        """Whether the least that a waiting job wants is lent by others, even in place of what gives way to it: see
        `Ledger.would_be_lent`."""
        queue, flavour, need = self._least(job, choice)
        if not self.promised.would_be_lent(queue, flavour, need):
            return False
        less = self._let_in.without(job, flavour, need, self.evictions)
        return less is None or self.promised.would_be_lent(queue, flavour, less)

    def within(self, job: int, choice: int, need: Need) -> bool:
        """Whether a waiting job's queue stays within its own nominal with `need` more, in place of what gives way."""
        queue, flavour = self.queue_of[job], self.kind(job).choices[choice].flavour
        if self.promised.within(queue, flavour, need):
            return True
        less = self._let_in.without(job, flavour, need, self.evictions)
        return less is not None and self.promised.within(queue, flavour, less)

    def waits_for_its_own(self, job: int, choice: int) -> bool:
        """Whether a job that others keep from borrowing lacks room as well, and would borrow nothing in place of what
        gives way to it."""
        if not self._let_in.anybody:
            return False
        queue, flavour, need = self._least(job, choice)
        less = self._let_in.without(job, flavour, need, self.evictions)
        if less is None:
            return False  # nothing keeps a job from what is its queue's own
        if self.shortage(job, choice, need) is not None or not self.promised.within(queue, flavour, less):
            return False
        return not self.fits(self.kinds.of[job], choice, self.kind(job).sizes[-1], spare=False)

    def quota_comes_back(self, job: int, choice: int) -> bool:
        """Whether the least that a job wants, which lacks quota, is there when those are gone who leave."""
        queue = self.queue_of[job]
        if not self._returning or self.used.circle(queue) not in self._returning:
            return False
        _, flavour, need = self._least(job, choice)
        if self.promised.shortage(queue, flavour, need) is not None:
            return False
        if self.used.shortage(queue, flavour, need) is None:
            return False  # it lacks what owners' own jobs wait for
        return self.kind(job).preemptible or self.firm_shortage(job, choice, need) is None

    def _least(self, job: int, choice: int) -> tuple[int, int, Need]:
        """(queue, flavour, need) of the smallest size that a job wants."""
        kind = self.kinds.of[job]
        it = self.kinds.kinds[kind]
        return self.queue_of[job], it.choices[choice].flavour, self.kinds.need(kind, choice, it.sizes[-1])

    @cached_property
    def _let_in(self) -> LetIn:
        return LetIn(self.snapshot)

    def charge(self, job: int, choice: int, need: Need) -> None:
        """The job starts, and uses that much."""
        queue, flavour = self.queue_of[job], self.kind(job).choices[choice].flavour
        self.used.charge(queue, flavour, need)
        self._promise(queue, flavour, need, 1)
        self._count_firm(job, flavour, need)
        self.served.add(job)

    def reserve_quota(self, job: int, choice: int, need: Need) -> None:
        """Quota is kept for the job, but not used yet."""
        self.charge_reserved(job, choice, need, 1)
        self.reserved_quota.append((job, self.kind(job).choices[choice].flavour))
        self.served.add(job)

    def charge_reserved(self, job: int, choice: int, need: Need, sign: int) -> None:
        """What is reserved counts for its queue (1), or stands in nobody's way for a while (-1)."""
        flavour = self.kind(job).choices[choice].flavour
        self._promise(self.queue_of[job], flavour, need, sign)
        self._count_firm(job, flavour, [(resource, sign * amount) for resource, amount in need])

    def _count_firm(self, job: int, flavour: int, need: Need) -> None:
        if not self.kind(job).preemptible:
            for resource, amount in need:
                self._firm[self.queue_of[job], flavour, resource] += amount

    def hold_back_quota(self, job: int, choice: int, need: Need) -> None:
        """No later job of its queue gets more quota of the flavour in this plan, but in passing: see `shortage`.

        One that is not preemptible and lacks only what such jobs may hold together holds back such jobs alone.
        """
        queue, kind = self.queue_of[job], self.kind(job)
        flavour = kind.choices[choice].flavour
        ledgers = (self.promised, self.used)
        if not kind.preemptible and all(ledger.shortage(queue, flavour, need) is None for ledger in ledgers):
            self._firm_held_back.add((queue, flavour))
        else:
            self._promise(queue, flavour, (), 0)
        self.reserved_quota.append((job, flavour))

    def give_back_quota(self, queue: int, flavour: int, need: Need) -> None:
        """A placement that is to end leaves its quota to others. It uses it until its pods are gone."""
        self._promise(queue, flavour, need, -1)
        self._returning.add(self.used.circle(queue))

    def after_evictions(self, *, moves: bool = True) -> Snapshot:
        """The snapshot in which those whom this plan asks to end are leaving already: nobody asks them twice.
        `moves`: those as well who move or grow for their own good, and make room for nobody."""
        if not self.evictions:
            return self.snapshot
        going = {each.uid for each in self.evictions if moves or not each.for_itself}
        jobs = self.snapshot.jobs
        ends = np.array([uid in going for uid in jobs.uids], dtype=np.bool_)
        for row, base in jobs.bases.items():
            ends[row] |= ends[base]  # not the other way round: the base of a gang that goes on keeps its room
        leaving = jobs.runs.leaving | ends
        return replace(self.snapshot, jobs=replace(jobs, runs=replace(jobs.runs, leaving=leaving)))

    def longest_grace(self) -> float:
        """Seconds until the last of those is gone who make room for others in this plan."""
        jobs = self.snapshot.jobs
        return max(
            (float(jobs.runs.grace[jobs.rows[each.uid]]) for each in self.evictions if not each.for_itself), default=0.0
        )

    def _promise(self, queue: int, flavour: int, need: Need, sign: int) -> None:
        """Change the ledger of promises: see `journal`."""
        if sign:
            self.promised.add(queue, flavour, need, sign)
        else:
            self.promised.hold_back(queue, flavour)
        self.journal.append((queue, flavour, need, sign))
        circle = self.used.circle(queue)
        self.touched[circle] = self.touched.get(circle, 0) + 1
        self.touches += 1
        self.state += 1

    def fits(self, kind: int, choice: int, size: int, *, spare: bool) -> bool:
        """Whether a gang fits the spare room, or all that is free."""
        like = (spare, self.kinds.like(kind, choice))
        if self.kinds.kinds[kind].shape.balanced != NONE:  # it may fit with more workers where it does not with fewer
            like = (spare, -1 - self.kinds.like(kind, choice) - size * 2**32)
        if size >= self._too_many.get(like, size + 1):
            return False
        version, most = self._fitted.get(like, (0, 0))
        if version == self._version and size <= most:
            return True
        gang = self.kinds.gang(kind, choice, size)
        room = self.spare if spare else self.room
        if room.none_fits(gang.worker):
            self._too_many[like] = 1
            return False
        slots = room.slots(gang.worker)
        if fits(slots.tree, slots.prefix, gang):
            self._fitted[like] = (self._version, size)
            return True
        self._too_many[like] = size
        return False

    def find(self, kind: int, choice: int, size: int, *, spare: bool) -> Found | None:
        """A valid placement in the spare room, or in all that is free."""
        if not self.fits(kind, choice, size, spare=spare):
            return None
        key = (spare, kind, choice, size)
        version, found = self._found.get(key, _NOTHING)
        if found is not None and version == self._version:
            return found
        gang = self.kinds.gang(kind, choice, size)
        room = self.spare if spare else self.room
        slots = room.slots(gang.worker)
        site = slots.site
        indexes = locate(
            site.tree,
            slots.counts,
            slots.prefix,
            gang,
            whole=slots.counts >= site.cut(room.slots_when_empty(gang.worker).counts),
            spared=None if self.kinds.workers[gang.worker].accelerated else site.cut(room.spared),
        )
        assert indexes is not None, "a gang that fits was not placed"
        used = Taken.of(np.bincount(indexes)) if len(indexes) > 1 else Taken(indexes, np.ones(1, dtype=np.int64))
        found = Found(size, site.whole(indexes), Taken(site.whole(used.places), used.workers))
        self._found[key] = (self._version, found)
        return found

    def take(self, gang: Gang, taken: Taken) -> None:
        """Nobody else gets this room any more."""
        self._shrank()
        self.room.take(gang.worker, taken)
        if self._spare is not None:
            self._spare.take(gang.worker, taken)

    def _shrank(self) -> None:
        self._version += 1
        self.state += 1

    def keep_nodes(self, job: int, nodes: Index) -> None:
        """A running job starts again on these nodes: their room, and its quota there, is nobody else's."""
        worker = self.kinds.worker(job, int(self.snapshot.jobs.filters[job]))
        places = self.tree.place_of[nodes[nodes != NONE]]
        taken = Taken(*np.unique(places, return_counts=True))
        self.room.take(worker, taken)
        if self._spare is not None:
            self._spare.take(worker, taken)
        self._shrank()
        asks = self.kinds.workers[worker].asks
        need = tuple((resource, amount * len(nodes)) for resource, amount in asks)
        self._promise(self.queue_of[job], int(self.snapshot.jobs.flavours[job]), need, 1)

    def nodes(self, places: Int) -> Index:
        """The snapshot's nodes at places of the tree order."""
        return self.tree.order[places].astype(np.int32)

    def fits_free(self, gang: Gang) -> bool:
        """Whether it fits what is free now, reserved or not."""
        slots = self.room.slots(gang.worker)
        return fits(slots.tree, slots.prefix, gang)
