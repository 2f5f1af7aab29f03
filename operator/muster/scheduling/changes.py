"""What would let a waiting job start now, and in which domains it almost fits. Once for each kind of job."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from math import lcm

from muster.scheduling.almost import almost_fits
from muster.scheduling.gangs import Gang, Worker
from muster.scheduling.placement import fits, placeable
from muster.scheduling.plan import Almost, Change, ChangeKind
from muster.scheduling.room import Room
from muster.scheduling.rounds import Round
from muster.scheduling.slots import count_slots
from muster.scheduling.snapshot import NONE, Int, TopologyMode
from muster.scheduling.topology import prefix_sums

Allows = Callable[[int, Gang], bool]
"""Whether a job's quota allows a gang now, on nodes of a flavour."""


class Changes:
    """Looks at the room that is left after the round's admissions."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self._prefixes: dict[tuple[int, bool], Int] = {}
        self._fewer_known: dict[tuple[Gang, int, bool, int], int] = {}
        self._fits_known: dict[tuple[Gang, int, bool], bool] = {}

    def of(
        self, kind: int, choice: int, *, spare: bool
    ) -> tuple[tuple[Almost, ...], tuple[Change, ...], tuple[int, ...]]:
        """(domains in which it almost fits, best first; changes, smallest first; other flavours with room).

        Args:
            spare: what is kept for others is not for it: no change is told that would only find such room.
        """
        round_ = self._round
        it = round_.kinds.kinds[kind]
        gang = round_.kinds.gang(kind, choice, it.sizes[-1])
        slots = round_.room.slots(gang.worker)
        prefix = prefix_sums(slots.everywhere())
        almost = almost_fits(round_.tree, prefix, gang)
        if fits(slots.tree, slots.prefix, gang):
            return (), (), ()
        prefix = self._prefix(gang.worker, spare=spare)
        changes = [
            self._without_spares(gang, prefix) or self._fewer(gang, it.step, spare=spare),
            self._wider(gang, prefix),
        ]
        taken = frozenset(each.flavour for each in it.choices)
        others = tuple(self._other_kinds(gang, it.choices[choice].flavour, taken, spare=spare))
        return almost, tuple(change for change in changes if change is not None), others

    def of_quota(
        self, kind: int, choice: int, allows: Allows, *, spare: bool, borrows: Callable[[], bool]
    ) -> tuple[tuple[Change, ...], str]:
        """(changes of a job that lacks quota, smallest first; another flavour with quota and room, or "").

        Args:
            spare: as for `of`.
            borrows: whether it would have quota if it were preemptible.
        """
        it = self._round.kinds.kinds[kind]
        gang, flavour = self._round.kinds.gang(kind, choice, it.sizes[-1]), it.choices[choice].flavour
        found: list[Change | None] = []
        bare = replace(gang, shape=replace(gang.shape, spares=0))
        if gang.shape.spares and allows(flavour, bare) and self._fits(bare, flavour, spare=spare):
            spares = "spare" if gang.shape.spares == 1 else "spares"
            found.append(Change(ChangeKind.SPARES, "0", f"there is quota and room now without its {spares}"))
        else:
            found.append(self._fewer(gang, it.step, spare=spare, allowed=partial(allows, flavour)))
        if not it.preemptible and borrows() and self._fits(gang, flavour, spare=spare):
            text = "with preemptible: true it could borrow quota now, and there is room"
            found.append(Change(ChangeKind.PREEMPTIBLE, "true", text))
        taken = frozenset(each.flavour for each in it.choices)
        others = (other for other in self._alike(flavour, taken) if allows(other, gang))
        elsewhere = next((other for other in others if self._fits(gang, other, spare=spare, there=True)), NONE)
        name = self._round.snapshot.flavours[elsewhere] if elsewhere != NONE else ""
        return tuple(change for change in found if change is not None), name

    def _prefix(self, worker: int, *, spare: bool) -> Int:
        """Prefix sums of a worker's slots in the room that a job may be told of."""
        key = (worker, spare)
        if key not in self._prefixes:
            room = self._round.spare if spare else self._round.room
            self._prefixes[key] = prefix_sums(room.slots(worker).everywhere())
        return self._prefixes[key]

    def _fits(self, gang: Gang, flavour: int, *, spare: bool, there: bool = False) -> bool:
        """`there`: on the nodes of the flavour, whatever the job's filter says; else on its own."""
        key = (gang, flavour if there else NONE, spare)
        if key not in self._fits_known:
            room = self._round.spare if spare else self._round.room
            prefix = self._slots_of(gang.worker, flavour, room) if there else self._prefix(gang.worker, spare=spare)
            self._fits_known[key] = fits(self._round.tree, prefix, gang)
        return self._fits_known[key]

    def _without_spares(self, gang: Gang, prefix: Int) -> Change | None:
        bare = replace(gang, shape=replace(gang.shape, spares=0))
        if not gang.shape.spares or not fits(self._round.tree, prefix, bare):
            return None
        spares = "spare" if gang.shape.spares == 1 else "spares"
        return Change(ChangeKind.SPARES, "0", f"there is room now without its {spares}")

    def _fewer(
        self, gang: Gang, step: int, *, spare: bool, allowed: Callable[[Gang], bool] | None = None
    ) -> Change | None:
        """
        Args:
            step: what sizes of an elastic gang differ by; its whole slices are such steps.
            allowed: whether there is quota for one, of a gang that lacks that.
        """
        step = lcm(step, gang.shape.slices[0][0] if gang.shape.slices else 1)
        most = gang.size - step
        if allowed is not None:
            sizes = range(most, 0, -step)
            if not sizes or not allowed(replace(gang, size=sizes[-1])):  # so it is with most of those that lack quota
                return None
            most = sizes[bisect_left(sizes, True, key=lambda size: allowed(replace(gang, size=size)))]
        key = (gang, step, spare, most)
        if key not in self._fewer_known:
            self._fewer_known[key] = self._most_that_fit(gang, self._prefix(gang.worker, spare=spare), step, most)
        size = self._fewer_known[key]
        if size == 0:
            return None
        told = f"{size} {'worker' if size == 1 else 'workers'} instead of {gang.size} would"
        text = f"{told} find room now" if allowed is None else f"{told} have quota and room now"
        return Change(ChangeKind.WORKERS, str(size), text)

    def _most_that_fit(self, gang: Gang, prefix: Int, step: int, most: int) -> int:
        """Workers, at most so many in whole steps; or 0."""
        tree, required = self._round.tree, gang.mode == TopologyMode.REQUIRED
        if required and (gang.level == NONE or not len(tree.starts[gang.level])):
            return 0
        found = int(placeable(tree, prefix, gang, gang.level if required else NONE).max())
        lacking = max(gang.size - found, 1)
        sizes = range(min(most, gang.size - -(-lacking // step) * step), 0, -step)

        def fit(size: int) -> bool:
            return fits(tree, prefix, replace(gang, size=size))

        if gang.shape.balanced != NONE:  # a smaller one may not be shared out evenly where a larger one may
            return next(filter(fit, sizes), 0)
        # Where its spares need room beside it, it is searched for: mostly a gang fits where a larger one does.
        at = 0 if sizes and fit(sizes[0]) else bisect_left(sizes, True, key=fit)
        return sizes[at] if at < len(sizes) else 0

    def _wider(self, gang: Gang, prefix: Int) -> Change | None:
        if gang.mode != TopologyMode.REQUIRED or gang.level == NONE:
            return None
        tree = self._round.tree
        for level in range(gang.level - 1, -1, -1):
            if fits(tree, prefix, replace(gang, level=level)):
                narrow, wide = tree.level_name(gang.level), tree.level_name(level)
                text = f"there is room now if {wide} were required instead of {narrow}"
                return Change(ChangeKind.LEVEL, wide, text)
        if fits(tree, prefix, replace(gang, mode=TopologyMode.UNCONSTRAINED, level=NONE)):
            text = f"there is room now if {tree.level_name(gang.level)} were preferred instead of required"
            return Change(ChangeKind.MODE, "preferred", text)
        return None

    def _other_kinds(self, gang: Gang, flavour: int, taken: Collection[int], *, spare: bool) -> Iterator[int]:
        return (other for other in self._alike(flavour, taken) if self._fits(gang, other, spare=spare, there=True))

    def _alike(self, flavour: int, taken: Collection[int]) -> Iterator[int]:
        """Nodes with the same GPU in another capacity kind: `H100/spot` beside `H100/on-demand`. Not those that the job
        takes already: what keeps it from them is no matter of room."""
        gpu, _, capacity = self._round.snapshot.flavours[flavour].partition("/")
        if not gpu or not capacity:
            return
        for other, name in enumerate(self._round.snapshot.flavours):
            if other not in taken and name.partition("/")[0] == gpu and name.partition("/")[2]:
                yield other

    def _slots_of(self, worker: int, flavour: int, room: Room) -> Int:
        """Prefix sums of slots on the usable nodes of a flavour, whatever the job's filter says."""
        round_ = self._round
        nodes = (round_.snapshot.nodes.flavours == flavour)[round_.tree.order] & room.usable
        asks: Worker = round_.kinds.workers[worker]
        return prefix_sums(count_slots(room.open, asks, nodes))
