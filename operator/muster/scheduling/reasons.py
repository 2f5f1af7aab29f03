"""Why a job waits, in one sentence that a person can act on.

All sentences are made from the state after the plan's admissions, and hold nothing that passes with time: a sentence
changes only when the cluster does. The sentence of a gang is made once, however many jobs are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from muster.scheduling.amounts import amount, amounts, counted, is_or_are
from muster.scheduling.away import Away
from muster.scheduling.gangs import Gang, Worker, is_accelerator
from muster.scheduling.holders import Holders
from muster.scheduling.placement import placeable
from muster.scheduling.plan import WaitReason
from muster.scheduling.quota import Ledger, Need, Shortage
from muster.scheduling.room import Room
from muster.scheduling.slots import count_slots
from muster.scheduling.snapshot import NONE, UNLIMITED, Index, Int, Mask, Preempts, Snapshot, TopologyMode
from muster.scheduling.topology import Tree, prefix_sums

_BORROWING: Final = "borrowing included"
_FIRM: Final = "without borrowing, for it is not preemptible"


class Why(NamedTuple):
    """The part of a `Waiting` that jobs which are alike share. A tuple: thousands are made in one plan."""

    reason: WaitReason
    message: str
    resource: str = ""
    missing: int = 0
    level: str = ""
    domain: str = ""
    placeable: int = 0
    holders: tuple[str, ...] = ()
    names_holders: bool = False


@dataclass(frozen=True)
class Closest:
    """The domain, or all suitable nodes, where most of a gang fits.

    Attributes:
        domain: index in tree order, or NONE for all nodes.
        start, end: its places.
        placeable: workers that fit.
    """

    domain: int
    start: int
    end: int
    placeable: int


@dataclass(frozen=True)
class _State:
    """The room in which a gang is short.

    Attributes:
        room: R x N.
        mask: N, places that suit.
        slots: N, workers that each place takes in `room`, and `when_empty`.
    """

    room: Int
    mask: Mask
    slots: Int
    when_empty: Int


class Reasons:
    """Explains, for the gangs and workers of one plan."""

    def __init__(self, snapshot: Snapshot, tree: Tree, room: Room, workers: list[Worker], holders: Holders) -> None:
        self._snapshot, self._tree, self._room, self._workers = snapshot, tree, room, workers
        self._holders = holders
        self._names = snapshot.resources
        self._away = Away(snapshot, tree, room, workers)
        self._states: dict[tuple[int, int, int, int, int, int | None], str] = {}
        self._amounts: dict[tuple[str, int, int], str] = {}

    def queue_closed(self, queue: int) -> Why:
        if queue == NONE:
            return Why(WaitReason.QUEUE_CLOSED, "the job's queue does not exist")
        name = self._queue(queue)
        return Why(WaitReason.QUEUE_CLOSED, f"queue {name} takes no new jobs: kubectl describe tq {name} says why")

    def no_eligible_nodes(self, flavours: Sequence[int]) -> Why:
        """No node suits; `flavours` are those that the job takes by now."""
        count = len(self._snapshot.nodes.names)
        if not count:
            return Why(WaitReason.NO_ELIGIBLE_NODES, "the cluster has no nodes")
        names = list(dict.fromkeys(self._snapshot.flavours[flavour] for flavour in flavours))
        of_them = int(np.isin(self._snapshot.nodes.flavours, flavours).sum())
        if not all(names):  # a gang on CPUs: nodes of any flavour would do
            told = f"{_none(count, 'node', 'passes')} the job's kind of capacity, node labels and tolerations"
        elif of_them:
            told = f"{_none(of_them, ' and '.join(names) + ' node', 'passes')} the job's node labels and tolerations"
        else:
            told = f"{_none(count, 'node', 'is')} of {' or '.join(names)}"
        return Why(WaitReason.NO_ELIGIBLE_NODES, told)

    def exceeds_cluster(self, gang: Gang) -> Why:
        """The gang does not fit, not even with every suitable node back and empty."""
        mask = self._room.eligible[self._workers[gang.worker].filter]
        if gang.mode == TopologyMode.REQUIRED and (gang.level == NONE or not len(self._tree.starts[gang.level])):
            level = self._tree.level_name(gang.level) or "domain of the required level"
            return Why(
                WaitReason.EXCEEDS_CLUSTER,
                f"needs {self._ask(gang)} in one {level}; no node carries the label of such a {level}",
                level=self._tree.level_name(gang.level),
            )
        for shared in (*(level for _, level in gang.shape.slices), gang.shape.balanced):
            if shared != NONE and not len(self._tree.starts[shared]):
                level = self._tree.level_name(shared)
                told = f"needs {self._ask(gang)}{self._shape(gang)}; no node carries the label of such a {level}"
                return Why(WaitReason.EXCEEDS_CLUSTER, told, level=level)
        slots = count_slots(self._room.empty, self._workers[gang.worker], mask)
        state = _State(self._room.empty, mask, slots, slots)
        return self._lacks(gang, state, WaitReason.EXCEEDS_CLUSTER, when=" even when empty")

    def nodes_away(self, gang: Gang) -> Why:
        """The gang fits an empty cluster only with nodes that are not ready or are cordoned."""
        mask = self._room.eligible[self._workers[gang.worker].filter]
        usable = mask & self._room.usable
        slots = self._room.slots_when_empty(gang.worker).counts
        state = _State(self._room.empty, usable, slots, slots)
        why = self._lacks(gang, state, WaitReason.INSUFFICIENT_CAPACITY, when=" even when empty")
        return why._replace(message=why.message + self._away.of(gang.worker))

    def of_room(self, gang: Gang) -> WaitReason:
        """The reason of a gang that does not fit what is free now."""
        bound = gang.mode == TopologyMode.REQUIRED or bool(gang.shape.slices) or gang.shape.balanced != NONE
        scattered = bound and self._room.free_slots(gang.worker).total >= gang.total
        return WaitReason.TOPOLOGY_UNSATISFIED if scattered else WaitReason.INSUFFICIENT_CAPACITY

    def most(self, gang: Gang) -> int:
        """How many workers find room now, in the domain that comes closest."""
        room, worker = self._room, gang.worker
        return self._closest(gang, room.free_slots(worker).everywhere(), room.slots_when_empty(worker).counts).placeable

    def lacks_room(self, gang: Gang) -> Why:
        """The gang does not fit what is free now."""
        mask, slots = self._room.candidates(gang.worker), self._room.free_slots(gang.worker)
        state = _State(self._room.free, mask, slots.everywhere(), self._room.slots_when_empty(gang.worker).counts)
        why = self._lacks(gang, state, self.of_room(gang), when="")
        return why._replace(message=why.message + self._away.with_room(gang.worker))

    def lacks_in(self, gang: Gang, room: Int, mask: Mask, slots: Int) -> Why:
        """The gang does not fit what of `room` (R x N) is on some places, on which there are so many slots."""
        return self._lacks(gang, _State(room, mask, slots, slots), WaitReason.INSUFFICIENT_CAPACITY, when="")

    def room_is_kept(self, gang: Gang, queue: int, priority: int, *, passed: bool = False) -> Why:
        """Free room would do, but a job ahead, in `queue`, waits for it; `passed`: one behind it in the order, whose
        turn came before, for owners come before borrowers."""
        who = f"of queue {self._queue(queue)} with priority {priority}"
        kept = f"a job {who}, whose turn came before: this one would borrow, and owners of quota come first"
        return Why(
            WaitReason.BEHIND_OTHERS,
            f"there is room for {self._ask(gang)}, but it is kept for "
            f"{kept if passed else f'a job ahead in the order, {who}'}",
        )

    def window_closed(self, opens: float) -> Why:
        """The job may not start before a moment, in seconds since the epoch."""
        moment = np.datetime64(int(opens), "s")
        return Why(WaitReason.WINDOW_CLOSED, f"the job's window opens at {moment}Z")

    def promised(self, places: Index, victims: int) -> Why:
        """Room is promised, by the node of each worker, and others are still giving it back."""
        message = _promised_to(places)
        if victims:
            return Why(WaitReason.PREEMPTING, f"{message}; {counted(victims, 'job')} still to save and make room there")
        return Why(WaitReason.PREEMPTING, f"{message}; jobs that are ending there still hold room")

    def promised_without_quota(self, places: Index, queue: int, flavour: int, short: Shortage) -> Why:
        """The room that is promised is there, but what quota lacks is still held by others that end, on other nodes."""
        held = self._of_flavour(self._names[short.resource], short.needed - short.available, flavour)
        what = f"{held} of what queue {self._queue(queue)} may use"
        return Why(WaitReason.PREEMPTING, f"{_promised_to(places)}; jobs that are ending still hold {what}")

    def quota_is_kept(self, queue: int, flavour: int, short: Shortage, ahead: int, priority: int) -> Why:
        resource = self._names[short.resource]
        return Why(
            WaitReason.BEHIND_OTHERS,
            f"queue {self._queue(queue)} has quota for {self._of_flavour(resource, short.needed, flavour)}, but it is "
            f"kept for a job ahead in the order, of queue {self._queue(ahead)} with priority {priority}",
            resource,
            short.needed - short.available,
        )

    def exceeds_quota(
        self, queue: int, flavour: int, short: Shortage, *, firm: bool = False, could_borrow: bool = False
    ) -> Why:
        """`firm`: the job is not preemptible, so it may not borrow; `could_borrow`: else it could have enough."""
        resource = self._names[short.resource]
        way_out = "; with preemptible: true it could borrow what it lacks" if could_borrow else ""
        return Why(
            WaitReason.EXCEEDS_QUOTA,
            f"needs {self._of_flavour(resource, short.needed, flavour)}; queue {self._queue(queue)} can never use "
            f"more than {amount(resource, short.available)}, {_FIRM if firm else _BORROWING}"
            f"{self._elsewhere(queue, flavour, short.resource)}{way_out}",
            resource,
            short.needed - short.available,
        )

    def _elsewhere(self, queue: int, flavour: int, resource: int) -> str:
        """For which other kinds a queue has quota and none for this one: a missing line is easily overlooked."""
        nominal = self._snapshot.queues.nominal[queue, :, resource]
        there = np.flatnonzero((nominal > 0) & (nominal < UNLIMITED)).tolist()
        if nominal[flavour] or not there:
            return ""
        kinds = " and ".join(self._snapshot.flavours[other] or "gangs without GPUs" for other in there)
        return f"; its quota of {self._names[resource]} is for {kinds}"

    def quota_exceeded(
        self, ledger: Ledger, queue: int, flavour: int, short: Shortage, *, firm: int | None = None
    ) -> Why:
        """`firm`: what the queue's jobs use that are not preemptible, for one of them: it may not borrow, and what the
        others use can be taken back. None for one that is preemptible."""
        resource = self._names[short.resource]
        key = (id(ledger), queue, flavour, short.resource, short.available, firm)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = self._state(ledger, queue, flavour, short, firm=firm)
        return Why(
            WaitReason.QUOTA_EXCEEDED,
            f"needs {self._of_flavour(resource, short.needed, flavour)}; {state}",
            resource,
            short.needed - short.available,
        )

    def held_by(self, why: Why, queue: int, flavour: int, short: Shortage, *, firm: bool) -> Why:
        """With who holds the own quota of a queue, one of whose jobs is not preemptible: it may not borrow, so it waits
        for them alone, and it may be for long.

        Args:
            firm: they are those alone that are not preemptible either; else all, whom it cannot ask for enough.
        """
        uids, held = self._holders.of_queue(queue, flavour, short.resource, firm=firm)
        if held + short.needed <= self._snapshot.queues.nominal[queue, flavour, short.resource]:
            return why  # it is others whom it waits for
        jobs, hold = counted(len(uids), "job"), "hold" if len(uids) > 1 else "holds"
        if firm:
            asked = "not preemptible either, so nobody may be asked"
        elif self._snapshot.queues.within[queue] == Preempts.NEVER:
            asked = "and preemption.withinQueue of the queue is never, so nobody may be asked"
        else:
            asked = "and asking those of lower priority, if any, would not let it start"
        who = f"{jobs} of its queue {hold} it, {asked}"
        return why._replace(message=f"{why.message}; {who}", holders=uids, names_holders=True)

    def in_use_by(self, why: Why, queue: int, flavour: int, short: Shortage) -> Why:
        """With who holds the quota that a preemptible job lacks: jobs of its queue or, where these hold none, of those
        that it would share quota with. The sentence stays: they come and go, and it waits for none of them alone."""
        uids, _ = self._holders.of_queue(queue, flavour, short.resource, firm=False)
        return why._replace(holders=uids or self._holders.of_tree(queue, flavour, short.resource))

    def _state(self, ledger: Ledger, queue: int, flavour: int, short: Shortage, *, firm: int | None) -> str:
        """What a queue uses and may use of a resource: the same for all its jobs. Those below it count with it, but for
        jobs that may not borrow from there."""
        resource = self._names[short.resource]
        below = firm is None and bool((self._snapshot.queues.parents == queue).any())
        used = ledger.used(queue, flavour, short.resource) if firm is None else firm
        nominal = ledger.nominal(queue, flavour, short.resource)
        if below:
            nominal = ledger.has(queue, flavour, short.resource) or nominal
        quota = f" of its quota of {amount(resource, nominal)}" if nominal < UNLIMITED else ", has no quota of its own"
        limiting = ledger.limiting(queue, flavour, short.resource)
        above = "" if firm is not None or limiting == queue else f"; {self._above(limiting)} has no more to give"
        if above and used + short.available < nominal < UNLIMITED:
            above = "; others have borrowed the rest of its own: `muster queues` shows who"
        who = f"queue {self._queue(queue)}{', with those below it,' if below else ''}"
        like_it = "" if firm is None else " for jobs that are not preemptible"
        return (
            f"{who} uses {amount(resource, used)}{quota}{like_it} and can use {amount(resource, short.available)} more "
            f"now, {_BORROWING if firm is None else _FIRM}{above}"
        )

    def would_borrow(self, queue: int, flavour: int, short: Shortage, *, firm: bool) -> Why:
        """A gang that runs would have to borrow for more workers, and may not: it isn't preemptible (`firm`), or a job
        of its queue that waits comes first."""
        resource, name = self._names[short.resource], self._queue(queue)
        told = f"needs {self._of_flavour(resource, short.needed, flavour)}; queue {name} has "
        told += f"{amount(resource, short.available)} left of its own, and "
        told += (
            "it may not borrow, for it is not preemptible"
            if firm
            else "what it could borrow is for a job of the queue that waits"
        )
        reason = WaitReason.QUOTA_EXCEEDED if firm else WaitReason.BEHIND_OTHERS
        return Why(reason, told, resource, short.needed - short.available)

    def quota_is_owned(self, queue: int, flavour: int, need: Need) -> Why:
        """There is quota, but only to borrow, and the jobs of those who own it wait for it."""
        resource, amount_ = max(need, key=lambda ask: is_accelerator(self._names[ask[0]]))
        what = self._of_flavour(self._names[resource], amount_, flavour)
        return Why(
            WaitReason.QUOTA_EXCEEDED,
            f"needs {what}; queue {self._queue(queue)} would have to borrow it from queues whose own jobs wait for it",
            self._names[resource],
        )

    def _above(self, queue: int) -> str:
        name = self._queue(queue)
        return name if name.startswith("cohort ") else f"queue {name} above it"

    def _queue(self, queue: int) -> str:
        return self._snapshot.queues.names[queue]

    def _of_flavour(self, resource: str, quantity: int, flavour: int) -> str:
        key = (resource, quantity, flavour)
        text = self._amounts.get(key)
        if text is None:
            name = self._snapshot.flavours[flavour]
            text = self._amounts[key] = amount(resource, quantity) + (f" of {name}" if name else "")
        return text

    def _ask(self, gang: Gang, blamed: int = NONE) -> str:
        """`8 workers × (8 nvidia.com/gpu + 64 GiB memory)`: the accelerators and what is short."""
        asks = self._workers[gang.worker].asks
        told = [ask for ask in asks if is_accelerator(self._names[ask[0]]) or ask[0] == blamed]
        told = told or [ask for ask in asks if self._names[ask[0]] in ("cpu", "memory")] or list(asks)
        text = amounts((self._names[resource], quantity) for resource, quantity in told)
        workers = counted(gang.size, "worker")
        if gang.shape.spares:
            workers = f"({workers} + {counted(gang.shape.spares, 'spare')})"
        return f"{workers} × ({text})" if len(told) > 1 else f"{workers} × {text}" if told else workers

    def _lacks(self, gang: Gang, state: _State, reason: WaitReason, *, when: str) -> Why:
        worker, mask, slots = self._workers[gang.worker], state.mask, state.slots
        closest = self._closest(gang, slots, state.when_empty)
        within = slice(closest.start, closest.end)
        here, suits = state.room[:, within], mask[within]
        resource, missing = self._scarcest(gang, here, suits)
        name = self._names[resource] if resource != NONE else ""
        message = f"needs {self._ask(gang, resource)}{self._where(gang, closest, mask, when)}"
        one_by_one = int(slots[within].sum())
        if one_by_one >= gang.total:
            message += f"; one by one {one_by_one} would fit, but not in this shape"
        else:
            there, never = closest.domain != NONE, reason is WaitReason.EXCEEDS_CLUSTER
            message += self._shortfall(worker, here, suits, resource, missing, there=there, never=never)
        domain = self._tree.domain_name(gang.level, closest.domain) if closest.domain != NONE else ""
        return Why(reason, message, name, missing, self._tree.level_name(gang.level), domain, closest.placeable)

    def _closest(self, gang: Gang, slots: Int, when_empty: Int) -> Closest:
        """The domain with the most slots; of equal ones that with the most when empty: never one that suits nobody."""
        if gang.mode != TopologyMode.REQUIRED:
            return Closest(NONE, 0, len(slots), int(placeable(self._tree, prefix_sums(slots), gang, NONE)[0]))
        rooms = placeable(self._tree, prefix_sums(slots), gang, gang.level)
        best = int(np.lexsort((-self._tree.sums(prefix_sums(when_empty), gang.level), -rooms))[0])
        starts, ends = self._tree.starts[gang.level], self._tree.ends[gang.level]
        return Closest(best, int(starts[best]), int(ends[best]), int(rooms[best]))

    def _scarcest(self, gang: Gang, room: Int, mask: Mask) -> tuple[int, int]:
        """The resource of which there is least for this gang, and how much of it is missing; or (NONE, 0).

        Of equally scarce ones an accelerator is blamed: it is what people wait for.
        """
        scarcest, fewest = NONE, gang.total
        asks = sorted(self._workers[gang.worker].asks, key=lambda ask: not is_accelerator(self._names[ask[0]]))
        for resource, quantity in asks:
            alone = int((np.maximum(room[resource], 0) // quantity)[mask].sum())
            if alone < fewest:
                scarcest, fewest = resource, alone
        if scarcest == NONE:
            return NONE, 0
        return scarcest, (gang.total - fewest) * dict(asks)[scarcest]

    def _where(self, gang: Gang, closest: Closest, mask: Mask, when: str) -> str:
        room, shape = f"room for {closest.placeable}{when}", self._shape(gang)
        if closest.domain != NONE:
            level, domain = self._tree.level_name(gang.level), self._tree.domain_name(gang.level, closest.domain)
            return f" in one {level}{shape}; the best {level}, {domain}, has {room}"
        nodes = int(mask.sum())
        if not nodes:
            return f"{shape}; no suitable node can take pods now"
        kind = self._kind(mask)
        suit = f"the one {kind}node that suits has" if nodes == 1 else f"the {nodes} {kind}nodes that suit have"
        return f"{shape}; {suit} {room}"

    def _kind(self, mask: Mask) -> str:
        """`H100/on-demand ` where all these places are of one flavour: a job that names no type is told which it waits
        for. Nodes without accelerators are of none."""
        flavours = np.unique(self._snapshot.nodes.flavours[self._tree.order][mask])
        one = int(flavours[0]) if len(flavours) == 1 else NONE
        name = self._snapshot.flavours[one] if one != NONE else ""
        return f"{name} " if name else ""

    def _shape(self, gang: Gang) -> str:
        """`, each 16 of them in one block, each 4 in one rack, as many in each rack as in any other`."""
        text = ", ".join(
            f"each {size}{'' if index else ' of them'} in one {self._tree.level_name(level) or 'unknown level'}"
            for index, (size, level) in enumerate(gang.shape.slices)
        )
        if gang.shape.balanced != NONE:
            level_name = self._tree.level_name(gang.shape.balanced)
            text += f"{', ' if text else ''}as many in each {level_name} as in any other"
        return f", {text}" if text else ""

    def _shortfall(
        self, worker: Worker, room: Int, mask: Mask, resource: int, missing: int, *, there: bool, never: bool
    ) -> str:
        place = " there" if there else ""
        if resource == NONE:
            return f"; each resource alone would do{place}, but not together on the same nodes"
        name, quantity = self._names[resource], dict(worker.asks)[resource]
        if never and 0 < (most := int(room[resource][mask].max(initial=0))) < quantity:
            return f"; a worker asks for {amount(name, quantity)}, and the largest node{place} has {amount(name, most)}"
        text = f"; {amount(name, missing)} {is_or_are(name, missing)} missing{place}"
        crumbs = int((np.maximum(room[resource], 0) % quantity)[mask].sum())
        if crumbs:
            text += f", where {amount(name, crumbs)} {is_or_are(name, crumbs)} free in pieces too small for a worker"
        return text


def _none(number: int, noun: str, verb: Literal["is", "passes"]) -> str:
    if number > 1:
        return f"none of the cluster's {number} {noun}s {verb}"
    return f"the cluster's only {noun} {'is not' if verb == 'is' else 'does not pass'}"


def _promised_to(places: Index) -> str:
    nodes = len(np.unique(places))
    return f"{counted(nodes, 'node')} {'is' if nodes == 1 else 'are'} promised to this job"
