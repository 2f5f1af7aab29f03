"""Which pod keeps the copy of which other pod's memory. Pure, so that it can be told before anybody asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from muster_protocol.messages import Member, Release


@dataclass(frozen=True)
class Partners:
    """By index: the pod that keeps its copy from now on, and the one that has one from before."""

    keepers: Mapping[int, Member] = field(default_factory=dict)
    holders: Mapping[int, Member] = field(default_factory=dict)

    @classmethod
    def of(cls, members: Mapping[int, Member], *, one_node: bool) -> Partners:
        return cls(keepers(members, one_node=one_node), holders(members))

    def release(self, common: Release, index: int) -> Release:
        """What this index is told when the gang is let go."""
        return replace(common, keeper=self.keepers.get(index), holder=self.holders.get(index))


def keepers(members: Mapping[int, Member], *, one_node: bool) -> dict[int, Member]:
    """By index: the pod that keeps its copy. Each pod keeps one.

    Half the ring away: ranks are in the order of the topology, so that is mostly in another domain. Pods of one node
    stand together in the ring, so it is another node for all of them as long as no node has more than half of the gang.
    Nobody keeps anything where all lie on one node, unless `one_node`: there a copy outlives its pod alone.
    """
    by_node: dict[str, list[int]] = {}
    for index in sorted(members):
        by_node.setdefault(members[index].node, []).append(index)
    ring = [index for indexes in by_node.values() for index in indexes]
    half = len(ring) // 2
    if not half or (len(by_node) == 1 and not one_node):
        return {}
    return {index: members[ring[(at + half) % len(ring)]] for at, index in enumerate(ring)}


def holders(members: Mapping[int, Member]) -> dict[int, Member]:
    """By index: who told at the barrier that it has a copy of that pod's memory, the newest where there are several."""
    found: dict[int, Member] = {}
    for member in members.values():
        if not member.copy:
            continue
        index, *order = member.copy
        if index not in found or order > list(found[index].copy[1:]):
            found[index] = member
    return found
