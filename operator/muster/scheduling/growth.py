"""Why an elastic gang that runs is not larger: what keeps `muster.scheduling.elastic` from giving it its next size.

Asked after everybody who could grow has grown, of one gang at a time: few are looked at, and each by the same tests
that growth itself makes. What its next size lacks comes first, for that is what somebody can do something about; then
what it merely has to wait for. As in `muster.scheduling.reasons`, no sentence holds anything that passes with time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from muster.scheduling.claims import goes_on
from muster.scheduling.elastic import fewest_that_pay, grows_in_shape, is_open, sites, starts_there, steps_left
from muster.scheduling.explain import Words
from muster.scheduling.gangs import Gang
from muster.scheduling.heads import Heads
from muster.scheduling.holders import Holders
from muster.scheduling.moves import Choices, OpenRoom, need_of
from muster.scheduling.placement import fits
from muster.scheduling.plan import Stay, StayReason, WaitReason
from muster.scheduling.quota import Ledger, Shortage
from muster.scheduling.reasons import Reasons, Why
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, Index, Int, TopologyMode
from muster.scheduling.topology import prefix_sums


@dataclass(frozen=True)
class _Step:
    """The next size of a gang, and where it would get the workers that it lacks for it.

    Attributes:
        row: of the gang, or of its workers beyond its base where there are any.
        size: workers that it has then, its base included.
        count: how many more that are.
        nodes: those of the row.
        filter, flavour: of the nodes that the others may have.
    """

    row: int
    size: int
    count: int
    nodes: Index
    filter: int
    flavour: int


class Growth:
    """What one plan knows of those that did not grow in it."""

    def __init__(self, round_: Round, heads: Heads, words: Words) -> None:
        """`words`: of the same plan."""
        assert round_.left is not None, "this plan has not looked at who may grow"
        self._round, self._heads, self._words, self._left = round_, heads, words, round_.left
        self._snapshot = round_.after_evictions()

    def of(self, uid: str) -> Stay | None:
        """See `Plan.stays`."""
        row = self._rows.get(uid, NONE)
        if row == NONE or not self._stands[row] or not self._steps[row]:
            return None
        step = self._next(row)
        stay = self._hindered(step) or self._lacks_quota(step) or self._lacks_room(step) or self._waits(step)
        settled = float(self._snapshot.jobs.runs.started[row]) + self._left.pace.settle
        return None if stay is None else stay._replace(not_before=settled if settled > self._snapshot.now else 0.0)

    @cached_property
    def _rows(self) -> dict[str, int]:
        """By uid of a gang the row that grows: that of its workers beyond its base, where there are any."""
        jobs = self._snapshot.jobs
        return {**jobs.rows, **{jobs.uids[base]: row for row, base in jobs.bases.items()}}

    @cached_property
    def _stands(self) -> list[bool]:
        jobs = self._snapshot.jobs
        has_nodes = jobs.holding & ~jobs.runs.leaving & (np.diff(jobs.runs.first) > 0)
        stands: list[bool] = has_nodes.tolist()
        return stands

    @cached_property
    def _columns(self) -> tuple[Int, Int, Int]:
        return steps_left(self._snapshot)

    @cached_property
    def _steps(self) -> list[int]:
        steps: list[int] = self._columns[2].tolist()
        return steps

    @cached_property
    def _open(self) -> OpenRoom:
        return OpenRoom(self._snapshot, self._round.tree, self._left.room)

    @cached_property
    def _with_kept(self) -> OpenRoom:
        """The same, with what is kept for those ahead."""
        room = self._round.room.open
        grown = np.minimum(room, self._round.spare.open) - self._left.room
        return OpenRoom(self._snapshot, self._round.tree, room - grown)

    @cached_property
    def _choices(self) -> Choices:
        return Choices(self._snapshot)

    @cached_property
    def _reasons(self) -> Reasons:
        round_ = self._round
        holders = Holders(self._snapshot, round_.used.circles)
        return Reasons(self._snapshot, round_.tree, round_.room, round_.kinds.workers, holders)

    def _next(self, row: int) -> _Step:
        jobs = self._snapshot.jobs
        more, nodes, (step, begun, _) = jobs.beyond.get(row), jobs.runs.nodes_of(row), self._columns
        base = jobs.bases.get(row, NONE)
        has = len(nodes) - jobs.terms.shapes[row].spares + (len(jobs.runs.nodes_of(base)) if base != NONE else 0)
        count = int(step[row] - begun[row])
        filter_ = self._choices.current(row) if more is None else more.filter
        flavour = int(jobs.flavours[row]) if more is None else more.flavour
        return _Step(row, has + count, count, nodes, filter_, flavour)

    def _hindered(self, step: _Step) -> Stay | None:
        """What keeps it from growing whatever room there is."""
        snapshot, row = self._snapshot, step.row
        terms, queue = snapshot.jobs.terms, int(snapshot.jobs.queues[row])
        if not terms.saves[row]:
            told = "it grows by a stop and a start, and saves no checkpoints: it would begin again at its first step"
            return Stay(StayReason.NO_CHECKPOINTS, told, step.size)
        if not grows_in_shape(snapshot, row):
            told = "its workers lie in equal numbers in each domain (topology.balanced): such a gang keeps its size"
            if terms.shapes[row].balanced == NONE:
                slice_ = terms.shapes[row].slices[0][0]
                told = f"a step of its sizes (workers.step) is no number of whole slices of {slice_} workers"
            return Stay(StayReason.SHAPE_FIXED, told, step.size)
        if queue == NONE or not is_open(snapshot, row):
            return Stay(StayReason.QUEUE_CLOSED, self._reasons.queue_closed(queue).message, step.size)
        if not starts_there(snapshot, row, step.nodes):
            told = "some of its nodes take no new pods now (gone, cordoned, not ready)"
            base = snapshot.jobs.runs.nodes_of(snapshot.jobs.bases.get(row, row))
            if NONE in step.nodes or NONE in base:  # which of the two it is, a snapshot does not tell
                told += ", or some of its workers have ended"
            return Stay(StayReason.NODES_AWAY, f"{told}: it could not start again there", step.size)
        if np.isinf(terms.opens[row]):
            told = "it grows by a stop and a start, and the pods of its spec are refused: see its condition EditRefused"
            return Stay(StayReason.EDIT_REFUSED, told, step.size)
        if not goes_on(snapshot)[row]:
            told = "it grows by a stop and a start, and its window may be closed by then"
            return Stay(StayReason.WINDOW_CLOSED, told, step.size)
        return None

    def _lacks_quota(self, step: _Step) -> Stay | None:
        snapshot, round_ = self._snapshot, self._round
        queue = int(snapshot.jobs.queues[step.row])
        waits = self._left.contested.get(round_.used.circle(queue))
        if waits is not None:
            told = "jobs that share quota with its queue wait for some, and nobody among them grows before they have it"
            return Stay(StayReason.QUOTA_AWAITED, told, step.size, blocker=snapshot.jobs.gangs[waits])
        need, firm = need_of(snapshot, step.row, step.count), not snapshot.jobs.terms.preemptible[step.row]
        borrowing = not firm and (queue, step.flavour) not in self._heads.queues
        based = step.row in snapshot.jobs.beyond or step.row in snapshot.jobs.bases
        ledgers = [round_.promised, *([self._left.used] if based and self._left.used is not None else [])]
        for ledger in ledgers:
            short = ledger.shortage(queue, step.flavour, need, borrowing=borrowing)
            if short is None:
                continue
            if not borrowing and (lent := ledger.shortage(queue, step.flavour, need)) is not None:
                short, borrowing = lent, True  # it isn't there to be borrowed either
            why, blocker = self._quota(queue, step.flavour, short, ledger, borrowing=borrowing, firm=firm)
            return _of(why, step, blocker)
        return None

    def _quota(
        self, queue: int, flavour: int, short: Shortage, ledger: Ledger, *, borrowing: bool, firm: bool
    ) -> tuple[Why, str]:
        """The sentence, and who the quota is kept for."""
        jobs, round_ = self._snapshot.jobs, self._round
        if not borrowing:
            rows = [] if firm else [head.job for head in self._heads.all if round_.queue_of[head.job] == queue]
            why = self._reasons.would_borrow(queue, flavour, short, firm=firm)
            return why, jobs.gangs[rows[0]] if rows else ""
        used = round_.used.shortage(queue, flavour, [(short.resource, short.needed)])
        if used is not None:
            return self._reasons.quota_exceeded(round_.used, queue, flavour, used), ""
        ahead = self._words.ahead(queue, flavour)
        if ahead is None:  # others that grow have it
            return self._reasons.quota_exceeded(ledger, queue, flavour, short), ""
        why = self._reasons.quota_is_kept(queue, flavour, short, int(jobs.queues[ahead]), int(jobs.priorities[ahead]))
        return why, jobs.gangs[ahead]

    def _lacks_room(self, step: _Step) -> Stay | None:
        if self._fits(self._open, step):
            return None
        snapshot, round_ = self._snapshot, self._round
        jobs, slots = snapshot.jobs, self._open.slots(step.row, step.filter)[0]
        found = sites(snapshot, round_.tree, step.row, step.nodes, slots)
        if not found:
            level = round_.tree.level_name(int(jobs.levels[step.row])) or "domain of the level that it requires"
            told = f"its workers do not lie in one {level} by the nodes' present labels"
            return Stay(StayReason.TOPOLOGY_UNSATISFIED, told, step.size)
        gang, pool = found[-1]  # the widest
        gang = replace(gang, size=step.count, worker=round_.kinds.worker(step.row, step.filter))
        if self._heads.all and self._fits(self._with_kept, step):
            ahead = self._heads.in_the_way(gang)
            why = self._reasons.room_is_kept(gang, int(jobs.queues[ahead]), int(jobs.priorities[ahead]))
            return _of(why, step, jobs.gangs[ahead])
        return self._short(step, gang, pool)

    def _short(self, step: _Step, gang: Gang, pool: Int) -> Stay:
        """Where even the room that is kept for others does not hold its next size."""
        snapshot, tree = self._snapshot, self._round.tree
        jobs = snapshot.jobs
        mask = snapshot.nodes.usable[tree.order] & snapshot.eligible[step.filter][tree.order]
        level = domain = ""
        if jobs.modes[step.row] == TopologyMode.REQUIRED:
            at = int(jobs.levels[step.row])
            here = snapshot.nodes.domains[step.nodes[0], at]
            mask = mask & (snapshot.nodes.domains[tree.order, at] == here)
            level, domain = tree.level_name(at), snapshot.levels.domain_names[at][here]
        why = self._reasons.lacks_in(gang, self._left.room, mask, pool)
        if int(pool.sum()) >= step.count:
            why = why._replace(reason=WaitReason.TOPOLOGY_UNSATISFIED)
        return _of(why, step, where=f" in {level} {domain}" if domain else "")._replace(level=level, domain=domain)

    def _fits(self, room: OpenRoom, step: _Step) -> bool:
        tree = self._round.tree
        slots, there = room.slots(step.row, step.filter)
        if there < step.count:
            return False
        return any(
            fits(tree, prefix_sums(pool), replace(gang, size=step.count))
            for gang, pool in sites(self._snapshot, tree, step.row, step.nodes, slots)
        )

    def _waits(self, step: _Step) -> Stay | None:
        """There is room and quota for its next size."""
        snapshot, pace, row = self._snapshot, self._left.pace, step.row
        runs = snapshot.jobs.runs
        if snapshot.now - runs.started[row] < pace.settle:
            told = f"there is room, and a placement stands for {pace.settle:g} s (moves.settleAfter) before it grows"
            return Stay(StayReason.SETTLING, told, step.size)
        if not snapshot.jobs.terms.preemptible[row] and runs.saved[row] <= runs.started[row]:
            told = "there is room, but it is not preemptible and has committed no checkpoint since it was placed"
            return Stay(StayReason.AWAITS_CHECKPOINT, told, step.size)
        steps, begun, _ = self._columns
        least, _ = fewest_that_pay(snapshot, np.array([row], dtype=np.int64), pace, steps, begun)
        told = (
            "its restart would lose more than it wins with the workers that there is room and quota for; it is looked "
            "at again after each checkpoint, when least is lost"
        )
        return Stay(StayReason.DOES_NOT_PAY, told, step.size) if least[0] > 1 else None


def _of(why: Why, step: _Step, blocker: str = "", *, where: str = "") -> Stay:
    """A sentence about what its next size lacks."""
    told = why.message
    if told.startswith("needs "):
        told = f"for its next size, {step.size} workers{where}, it {told}"
    return Stay(
        StayReason(why.reason.value),
        told,
        step.size,
        resource=why.resource,
        missing=why.missing,
        placeable=why.placeable,
        blocker=blocker,
    )
