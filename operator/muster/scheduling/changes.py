"""What would let a waiting job start now, and in which domains it almost fits. Once for each kind of job."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import replace
from math import lcm
from typing import Final

import numpy as np

from muster.scheduling.gangs import Gang, Worker
from muster.scheduling.placement import fits, placeable
from muster.scheduling.plan import Almost, Change, ChangeKind
from muster.scheduling.room import Room, count_slots
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, Int, TopologyMode
from muster.scheduling.topology import prefix_sums

CLOSEST: Final = 3
"""Domains that are told: enough to see whether one more node would do."""


class Changes:
    """Looks at the room that is left after the round's admissions."""

    def __init__(self, round_: Round) -> None:
        self._round = round_

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
        almost = self._almost(gang, prefix)
        if fits(slots.tree, slots.prefix, gang):
            return (), (), ()
        room = round_.spare if spare else round_.room
        prefix = prefix_sums(room.slots(gang.worker).everywhere())
        changes = [self._without_spares(gang, prefix) or self._fewer(gang, prefix, it.step), self._wider(gang, prefix)]
        taken = frozenset(each.flavour for each in it.choices)
        others = tuple(self._other_kinds(gang, it.choices[choice].flavour, taken, room))
        return almost, tuple(change for change in changes if change is not None), others

    def _almost(self, gang: Gang, prefix: Int) -> tuple[Almost, ...]:
        if gang.mode != TopologyMode.REQUIRED or gang.level == NONE:
            return ()
        tree = self._round.tree
        rooms = placeable(tree, prefix, gang, gang.level)
        best = np.argsort(-rooms, kind="stable")[:CLOSEST]
        return tuple(
            Almost(tree.domain_name(gang.level, domain), int(rooms[domain]), gang.total - int(rooms[domain]))
            for domain in best.tolist()
            if 0 < rooms[domain] < gang.total
        )

    def _without_spares(self, gang: Gang, prefix: Int) -> Change | None:
        bare = replace(gang, shape=replace(gang.shape, spares=0))
        if not gang.shape.spares or not fits(self._round.tree, prefix, bare):
            return None
        spares = "spare" if gang.shape.spares == 1 else "spares"
        return Change(ChangeKind.SPARES, "0", f"there is room now without its {spares}")

    def _fewer(self, gang: Gang, prefix: Int, step: int) -> Change | None:
        """`step`: what sizes of an elastic gang differ by; its whole slices are such steps."""
        tree, required = self._round.tree, gang.mode == TopologyMode.REQUIRED
        if required and (gang.level == NONE or not len(tree.starts[gang.level])):
            return None
        step = lcm(step, gang.shape.slices[0][0] if gang.shape.slices else 1)
        found = int(placeable(tree, prefix, gang, gang.level if required else NONE).max())
        lacking = max(gang.size - found, 1)
        sizes = range(gang.size - -(-lacking // step) * step, 0, -step)

        def fit(size: int) -> bool:
            return fits(tree, prefix, replace(gang, size=size))

        # Where its spares need room beside it, it is searched for: mostly a gang fits where a larger one does.
        at = 0 if sizes and fit(sizes[0]) else bisect_left(sizes, True, key=fit)
        if at == len(sizes):
            return None
        workers = "worker" if sizes[at] == 1 else "workers"
        text = f"{sizes[at]} {workers} instead of {gang.size} would find room now"
        return Change(ChangeKind.WORKERS, str(sizes[at]), text)

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

    def _other_kinds(self, gang: Gang, flavour: int, taken: Collection[int], room: Room) -> Iterator[int]:
        """Nodes with the same GPU in another capacity kind: `H100/spot` beside `H100/on-demand`. Not those that the job
        takes already: what keeps it from them is no matter of room."""
        gpu, _, capacity = self._round.snapshot.flavours[flavour].partition("/")
        if not gpu or not capacity:
            return
        for other, name in enumerate(self._round.snapshot.flavours):
            if other in taken or name.partition("/")[0] != gpu or not name.partition("/")[2]:
                continue
            if fits(self._round.tree, self._slots_of(gang.worker, other, room), gang):
                yield other

    def _slots_of(self, worker: int, flavour: int, room: Room) -> Int:
        """Prefix sums of slots on the usable nodes of a flavour, whatever the job's filter says."""
        round_ = self._round
        nodes = (round_.snapshot.nodes.flavours == flavour)[round_.tree.order] & room.usable
        asks: Worker = round_.kinds.workers[worker]
        return prefix_sums(count_slots(room.open, asks, nodes))
