"""What each waiting job is told: why it waits, for what, behind whom, since when it is expected to start, what helps.

Found after all admissions are made. Reason, position and expected start are found for all at once; the sentence, and
what else a person reads, when somebody looks at the job, and then once for all that are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, overload

import numpy as np

from muster.scheduling.closest import closest
from muster.scheduling.expected import BASES, Expected
from muster.scheduling.heads import Heads
from muster.scheduling.helping import NO_ROOM, Helps
from muster.scheduling.holders import Holders
from muster.scheduling.owners import Owners
from muster.scheduling.plan import Waiting, WaitReason, Wanted
from muster.scheduling.promises import left_nodes, victims_of
from muster.scheduling.quota import Shortage
from muster.scheduling.ranks import positions
from muster.scheduling.reasons import Reasons, Why
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, Index, Int, Mask, Seconds
from muster.scheduling.verdicts import Fate, Verdict

_REASONS: Final = {
    Fate.PROMISED: WaitReason.PREEMPTING,
    Fate.CLEARED: WaitReason.PREEMPTING,
    Fate.CLOSED: WaitReason.QUEUE_CLOSED,
    Fate.WINDOW: WaitReason.WINDOW_CLOSED,
    Fate.NEVER: WaitReason.EXCEEDS_QUOTA,
    Fate.NO_NODES: WaitReason.NO_ELIGIBLE_NODES,
    Fate.TOO_LARGE: WaitReason.EXCEEDS_CLUSTER,
    Fate.NODES_AWAY: WaitReason.INSUFFICIENT_CAPACITY,
}
"""Of the fates that have one reason."""

BEFORE: Final = 3
"""Jobs ahead in the order of its queue that a job is told."""
_ROOM: Final = Fate.ROOM
_NEVER: Final = frozenset((Fate.NEVER, Fate.NO_NODES, Fate.TOO_LARGE))
"""Of jobs that could not start if they were alone: they have no place in the order."""
_OF_NODES: Final = frozenset((*NO_ROOM, Fate.NO_NODES))
"""Of jobs that lack nodes, whatever their quota."""


def explain(round_: Round, words: Words, verdicts: Sequence[Verdict], expected: Expected) -> Told | tuple[()]:
    """Everyone who waits: those with a promise first, then by rank.

    Args:
        verdicts: of all that wait for quota, room or anything else, first in rank first.
    """
    bases = round_.snapshot.jobs.bases  # who has workers beyond one is told of them with it
    promised = (Verdict(job, Fate.PROMISED) for job in round_.kept.waiting if job not in bases)
    everyone = [*promised, *verdicts]
    return Told(everyone, words, expected) if everyone else ()


class Told(Sequence[Waiting]):
    """Those who wait, as columns of W. A `Waiting` is made when it is looked at.

    Attributes:
        rows: of the snapshot's jobs.
        reasons, positions, starts, bases: see `Waiting`; `bases` are indexes into `expected.BASES`.
    """

    def __init__(self, verdicts: Sequence[Verdict], words: Words, expected: Expected) -> None:
        self._verdicts, self._words = verdicts, words
        self._told = words.closest(verdicts)
        self.rows: Int = np.array([each.job for each in verdicts], dtype=np.int64)
        words.order(verdicts, self.rows)
        self.reasons: list[WaitReason] = words.reasons(self._told, self.rows)
        could = np.array([each.fate not in _NEVER for each in verdicts], dtype=np.bool_)
        self.positions: Int = positions(words.queues[self.rows], could)
        self.starts: Seconds = expected.starts[self.rows]
        self.bases: Index = expected.bases[self.rows]
        self._first: dict[int, tuple[str, ...]] | None = None

    def __len__(self) -> int:
        return len(self._verdicts)

    @overload
    def __getitem__(self, index: int) -> Waiting: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Waiting]: ...

    def __getitem__(self, index: int | slice) -> Waiting | Sequence[Waiting]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        words, verdict, position = self._words, self._verdicts[index], int(self.positions[index])
        told = self._told[index]
        why, blocker = words.why(told)
        almost, changes, elsewhere = words.helps.of(told, has_quota=words.has_quota(told))
        return Waiting(
            uid=words.uids[verdict.job],
            reason=why.reason,
            message=why.message,
            position=position,
            rank=index % len(self._verdicts),
            resource=why.resource,
            missing=why.missing,
            level=why.level,
            domain=why.domain,
            placeable=why.placeable,
            blocker=blocker,
            expected=float(self.starts[index]),
            basis=BASES[int(self.bases[index])],
            almost=almost,
            changes=changes,
            elsewhere=elsewhere,
            wanted=words.wanted(verdict),
            holders=why.holders,
            names_holders=why.names_holders,
            before=self._before(verdict.job, position),
        )

    def helped(self, waiting: Waiting) -> Waiting:
        """See `Plan`."""
        verdict = self._told[waiting.rank]
        if self._words.has_quota(verdict):
            return waiting
        changes, elsewhere = self._words.helps.of_quota(verdict)
        return waiting._replace(changes=changes, elsewhere=elsewhere)

    def _before(self, job: int, position: int) -> tuple[str, ...]:
        """The first of a job's queue, as far as they come before it."""
        if position <= 1:
            return ()
        if self._first is None:
            self._first = {}
            for at in np.flatnonzero((self.positions >= 1) & (self.positions <= BEFORE)).tolist():
                row = int(self.rows[at])
                queue = int(self._words.queues[row])
                self._first[queue] = (*self._first.get(queue, ()), self._words.uids[row])
        first = self._first.get(int(self._words.queues[job]), ())
        return first if position > BEFORE else first[: position - 1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Words:
    """Says why jobs wait, as things stand when a plan is made. What is alike is said once."""

    def __init__(self, round_: Round, heads: Heads, owners: Owners) -> None:
        self._round, self._heads = round_, heads
        self.helps = Helps(round_, heads, owners)
        self.uids = round_.snapshot.jobs.uids
        self.queues = round_.snapshot.jobs.queues
        holders = Holders(round_.snapshot, round_.used.circles)
        self._reasons = Reasons(round_.snapshot, round_.tree, round_.room, round_.kinds.workers, holders)
        self._charged_first: dict[tuple[int, int], int] = {}
        flavours, promised = round_.snapshot.jobs.flavours, (*round_.kept.waiting, *round_.kept.left)
        for job, flavour in (*((job, int(flavours[job])) for job in promised), *round_.reserved_quota):
            self._charged_first.setdefault((round_.used.circle(round_.queue_of[job]), flavour), job)
        self._by_kind: dict[tuple[int, Fate, int, int], tuple[Why, str]] = {}
        self._by_quota: dict[tuple[int, int, int, bool], tuple[Why, str]] = {}
        self._places: Int = np.full(len(self.uids), NONE, dtype=np.int64)
        self._kept: dict[tuple[int, int, int], bool] = {}
        self._room: dict[tuple[int, int], WaitReason] = {}
        self._wanted: dict[tuple[int, int, int, bool], tuple[Wanted, ...]] = {}

    def closest(self, verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
        """See `muster.scheduling.closest`."""
        return closest(self._round, self._reasons, verdicts, self._heads.jobs)

    def order(self, verdicts: Sequence[Verdict], rows: Int) -> None:
        """To be told first: all who wait, first in rank first, and their rows."""
        self._places[rows] = np.arange(len(rows))
        self.helps.order(verdicts, self._places)

    def reasons(self, verdicts: Sequence[Verdict], rows: Int) -> list[WaitReason]:
        """The same as `why` tells of each, without its sentence. `rows` are the verdicts'."""
        short = self._lack_quota_in_use(verdicts, rows).tolist()
        found = []
        for verdict, lacks in zip(verdicts, short, strict=True):
            reason = WaitReason.QUOTA_EXCEEDED if lacks else _REASONS.get(verdict.fate)
            if reason is None:
                reason = self._room_reason(verdict) if verdict.fate is Fate.ROOM else self._quota_reason(verdict)
            found.append(reason)
        return found

    def why(self, verdict: Verdict) -> tuple[Why, str]:
        """The reason, and the uid of the job that is in the way, or ""."""
        job, fate = verdict.job, verdict.fate
        kind = self._round.kinds.of[job]
        if fate in _OF_NODES:
            like = (kind, fate, verdict.choice, self._heads_before(job) if fate is _ROOM else 0)
            if like not in self._by_kind:
                self._by_kind[like] = self._placement(verdict)
            return self._by_kind[like]
        if fate in (Fate.QUOTA, Fate.NEVER):
            queue, flavour = self._round.queue_of[job], self._round.kinds.kinds[kind].choices[verdict.choice].flavour
            first = job in self._heads.jobs or self._is_first(job, self.ahead(queue, flavour))
            key = (queue, kind, verdict.choice, first)
            if key not in self._by_quota:
                why, blocker = self._quota(verdict)
                self._by_quota[key] = self._with_spares(kind, why), blocker
            return self._by_quota[key]
        if fate is Fate.CLOSED:
            return self._reasons.queue_closed(self._round.queue_of[job]), ""
        if fate is Fate.WINDOW:
            return self._reasons.window_closed(self._round.opens[job]), ""
        if fate is Fate.CLEARED:
            return self._cleared(job), ""
        nodes = self._round.snapshot.jobs.runs.nodes_of(job)  # of a promise that an earlier plan made
        victims = {*victims_of(self._round.snapshot, job), *self._going_from(nodes)}
        short = None if victims else self._quota_still_held(job)
        if short is not None:
            queue, flavour = self._round.queue_of[job], int(self._round.snapshot.jobs.flavours[job])
            return self._reasons.promised_without_quota(nodes, queue, flavour, short), ""
        return self._reasons.promised(nodes, len(victims)), ""

    def _quota_still_held(self, job: int) -> Shortage | None:
        """What a job lacks of quota to which room was promised."""
        jobs = self._round.snapshot.jobs
        need = [(resource, amount) for resource, amount in enumerate(jobs.held[job].tolist()) if amount > 0]
        return self._round.used.shortage(self._round.queue_of[job], int(jobs.flavours[job]), need)

    def wanted(self, verdict: Verdict) -> tuple[Wanted, ...]:
        """See `Waiting`."""
        job, kinds = verdict.job, self._round.kinds
        if verdict.fate not in _OF_NODES or self._round.opens_later(job):
            return ()  # nodes that came for one whose window opens later would stand idle
        kind, reserved = kinds.of[job], job in self._heads.jobs
        it, flavours = kinds.kinds[kind], self._round.snapshot.flavours
        if verdict.fate is not _ROOM:
            key = (self._round.queue_of[job], kind, NONE, reserved)
        elif len(it.choices) == 1 and it.sizes[0] == it.sizes[-1]:
            key = (NONE, kind, verdict.choice, False)  # it has quota for all that it could start with, as most have
        else:
            key = (self._round.queue_of[job], kind, verdict.choice, reserved)
        if key not in self._wanted:
            sizes = dict.fromkeys((it.sizes[0], it.sizes[-1]))
            self._wanted[key] = tuple(
                Wanted(flavours[it.choices[choice].flavour], size)
                for choice in range(len(it.choices))
                for size in sizes
                if self._may_be(verdict, choice, size, reserved=reserved and choice == verdict.choice)
            )
        return self._wanted[key]

    def _may_be(self, verdict: Verdict, choice: int, size: int, *, reserved: bool) -> bool:
        """Whether the job has quota for a gang, beside what is reserved for it: that of the smallest."""
        kinds, kind = self._round.kinds, self._round.kinds.of[verdict.job]
        least = kinds.kinds[kind].sizes[-1]
        if size == least and choice == verdict.choice and verdict.fate is _ROOM:
            return True  # else it would wait for quota
        need = kinds.need(kind, choice, size)
        if reserved:
            has = dict(kinds.need(kind, choice, least))
            need = tuple((resource, amount - has.get(resource, 0)) for resource, amount in need)
        return self._round.shortage(verdict.job, choice, need) is None

    def has_quota(self, verdict: Verdict) -> bool:
        """Whether the job lacks nothing but nodes of the kind that came closest."""
        if verdict.fate is _ROOM:
            return True
        if verdict.fate not in _OF_NODES:
            return False
        kinds, kind = self._round.kinds, self._round.kinds.of[verdict.job]
        need = kinds.need(kind, verdict.choice, kinds.kinds[kind].sizes[-1])
        return self._round.shortage(verdict.job, verdict.choice, need) is None

    def _lack_quota_in_use(self, verdicts: Sequence[Verdict], rows: Int) -> Mask:
        """W, jobs that wait for quota of which running ones, and those that start, hold too much."""
        round_ = self._round
        choices = np.array([each.choice if each.fate is Fate.QUOTA else NONE for each in verdicts], dtype=np.int64)
        found: Mask = np.zeros(len(verdicts), dtype=np.bool_)
        left = round_.used.left_by_queue()
        for choice in range(int(choices.max(initial=NONE)) + 1):
            at = np.flatnonzero(choices == choice)
            kinds = round_.kinds.numbers[rows[at]]
            needs, flavours = round_.kinds.least_needs(choice)
            needed = needs[kinds]
            found[at] = ((left[self.queues[rows[at]], flavours[kinds]] < needed) & (needed > 0)).any(axis=1)
        return found

    def _room_reason(self, verdict: Verdict) -> WaitReason:
        kind = self._round.kinds.of[verdict.job]
        key = (kind, verdict.choice)
        if key not in self._room:
            gang = self._round.kinds.gang(kind, verdict.choice, self._round.kinds.kinds[kind].sizes[-1])
            fits = self._round.fits_free(gang)
            self._room[key] = WaitReason.BEHIND_OTHERS if fits else self._reasons.of_room(gang)
        return self._room[key]

    def _quota_reason(self, verdict: Verdict) -> WaitReason:
        """Of a job whose queue has that much left beside what is in use: see `_quota`."""
        round_, job = self._round, verdict.job
        queue, kind = round_.queue_of[job], round_.kinds.of[job]
        it = round_.kinds.kinds[kind]
        ahead = self.ahead(queue, it.choices[verdict.choice].flavour)
        if job in self._heads.jobs or ahead is None or self._is_first(job, ahead):
            return WaitReason.QUOTA_EXCEEDED
        key = (queue, kind, verdict.choice)
        if key not in self._kept:
            need = round_.kinds.need(kind, verdict.choice, it.sizes[-1])
            firm = not it.preemptible and round_.firm_shortage(job, verdict.choice, need) is not None
            self._kept[key] = not firm and round_.shortage(job, verdict.choice, need) is not None
        return WaitReason.BEHIND_OTHERS if self._kept[key] else WaitReason.QUOTA_EXCEEDED

    def ahead(self, queue: int, flavour: int) -> int | None:
        """Row of the first job that has a promise or a reservation of the quota which the queue draws on."""
        return self._charged_first.get((self._round.used.circle(queue), flavour))

    def _is_first(self, job: int, ahead: int | None) -> bool:
        """Whether who has the quota that a job draws on is the job itself or ranks behind it: an owner has it then, for
        those come before whoever borrows."""
        return ahead is not None and bool(self._places[job] <= self._places[ahead])

    def _heads_before(self, job: int) -> int:
        """How many with a reservation rank before a job: not all that keep room from one whom owners came before."""
        return sum(bool(self._places[head] < self._places[job]) for head in self._heads.jobs)

    def _cleared(self, job: int) -> Why:
        uid = self.uids[job]
        promise = next(each for each in self._round.promises if each.uid == uid)
        going = set(self._going_from(promise.nodes))
        victims = len(going | {row for row, of in self._asked.items() if of == uid})
        victims += sum(bool(np.isin(nodes, promise.nodes).any()) for nodes in self._left)
        return self._reasons.promised(promise.nodes, victims)

    def _going_from(self, nodes: Index) -> list[int]:
        """Rows of those that leave some of these nodes, whomever they were asked for: what one of them leaves may be
        promised to several."""
        runs = self._round.snapshot.jobs.runs
        rows = np.arange(len(self.uids))
        before = np.flatnonzero(runs.leaving & (runs.beneficiary != NONE) & (runs.beneficiary != rows)).tolist()
        return [row for row in {*before, *self._asked} if np.isin(runs.nodes_of(row), nodes).any()]

    @cached_property
    def _asked(self) -> dict[int, str]:
        """By row of those that this plan asks to leave altogether for another: for whom."""
        onward = {each.uid for each in self._round.promises}
        going = [each for each in self._round.evictions if each.beneficiary and each.uid not in onward]
        asked = {each.uid: each.beneficiary for each in going}
        return {row: asked[uid] for row, uid in enumerate(self.uids) if uid in asked}

    @cached_property
    def _left(self) -> list[Index]:
        """Nodes that each of those leaves who move or are resized in this plan."""
        moved = {each.uid for each in self._round.evictions}
        after = {each.uid: each.nodes for each in self._round.promises if each.uid in moved}
        runs = self._round.snapshot.jobs.runs
        rows = [row for row, uid in enumerate(self.uids) if uid in after]
        return [left_nodes(runs.nodes_of(row), after[self.uids[row]]) for row in rows]

    def _quota(self, verdict: Verdict) -> tuple[Why, str]:
        round_, job = self._round, verdict.job
        queue, kind = round_.queue_of[job], round_.kinds.of[job]
        it = round_.kinds.kinds[kind]
        flavour = it.choices[verdict.choice].flavour
        need = round_.kinds.need(kind, verdict.choice, it.sizes[-1])
        if verdict.fate is Fate.NEVER:
            never = round_.never(job, verdict.choice, need)
            assert never is not None, "quota that could never do suffices"
            firm, borrows = not it.preemptible, round_.used.never(queue, flavour, need) is None
            return self._reasons.exceeds_quota(queue, flavour, never, firm=firm, could_borrow=firm and borrows), ""
        lacks = None if it.preemptible else round_.firm_shortage(job, verdict.choice, need)
        if lacks is not None:
            firm_use = round_.firm_used(queue, flavour, lacks.resource)
            why = self._reasons.quota_exceeded(round_.used, queue, flavour, lacks, firm=firm_use)
            return self._reasons.held_by(why, queue, flavour, lacks, firm=True), ""
        short = round_.used.shortage(queue, flavour, need)
        if short is not None:
            why = self._reasons.quota_exceeded(round_.used, queue, flavour, short)
            if it.preemptible:
                return self._reasons.in_use_by(why, queue, flavour, short), ""
            return self._reasons.held_by(why, queue, flavour, short, firm=False), ""
        kept, ahead = round_.shortage(job, verdict.choice, need), self.ahead(queue, flavour)
        # What an old job holds back itself is in nobody's way but of those behind it.
        if kept is None or job in self._heads.jobs or self._is_first(job, ahead):
            return self._reasons.quota_is_owned(queue, flavour, need), ""
        # Promises that are in the way came before this job, so the first of all did.
        if ahead is None:  # a job that grows has it
            return self._reasons.quota_exceeded(round_.promised, queue, flavour, kept), ""
        jobs = round_.snapshot.jobs
        why = self._reasons.quota_is_kept(queue, flavour, kept, int(jobs.queues[ahead]), int(jobs.priorities[ahead]))
        return why, jobs.gangs[ahead]

    def _with_spares(self, kind: int, why: Why) -> Why:
        """The sentence of a job that lacks quota, with the spares that it needs more for than for its workers."""
        spares = self._round.kinds.kinds[kind].shape.spares
        if not spares or not why.message.startswith("needs "):
            return why
        return why._replace(message=f"with {spares} {'spare' if spares == 1 else 'spares'} it {why.message}")

    def _placement(self, verdict: Verdict) -> tuple[Why, str]:
        round_, (job, fate, choice, _) = self._round, verdict
        kind = round_.kinds.of[job]
        gang = round_.kinds.gang(kind, choice, round_.kinds.kinds[kind].sizes[-1])
        if fate is Fate.NO_NODES:
            taken = [each.flavour for each in round_.kinds.kinds[kind].choices]
            return self._reasons.no_eligible_nodes(taken), ""
        if fate is Fate.TOO_LARGE:
            return self._reasons.exceeds_cluster(gang), ""
        if fate is Fate.NODES_AWAY:
            return self._reasons.nodes_away(gang), ""
        if not round_.fits_free(gang):
            return self._reasons.lacks_room(gang), ""
        ahead = self._heads.in_the_way(gang)
        jobs = round_.snapshot.jobs
        passed = bool(self._places[ahead] > self._places[job])
        why = self._reasons.room_is_kept(gang, int(jobs.queues[ahead]), int(jobs.priorities[ahead]), passed=passed)
        return why, jobs.gangs[ahead]
