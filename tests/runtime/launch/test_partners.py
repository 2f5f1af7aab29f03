"""Who keeps whose memory."""

from __future__ import annotations

import pytest

from muster_protocol.messages import Member, Release
from muster_protocol.wire import decode, encode
from muster_runtime.launch.partners import Partners, holders, keepers

pytestmark = [pytest.mark.runtime]


def gang(*nodes: str, copies: dict[int, tuple[int, ...]] | None = None) -> dict[int, Member]:
    return {
        index: Member(index, f"uid-{index}", f"10.0.0.{index}", node=node, copy=(copies or {}).get(index, ()))
        for index, node in enumerate(nodes)
    }


def pairs(*nodes: str, one_node: bool = False) -> dict[int, int]:
    return {index: keeper.index for index, keeper in keepers(gang(*nodes), one_node=one_node).items()}


def test_the_keeper_is_half_the_ring_away() -> None:
    assert pairs("a", "b", "c", "d") == {0: 2, 1: 3, 2: 0, 3: 1}
    assert pairs("a", "b", "c") == {0: 1, 1: 2, 2: 0}


def test_nobody_keeps_anything_on_one_node_unless_told() -> None:
    assert pairs("a", "a") == {}
    assert pairs("", "") == {}
    assert pairs("a", "a", one_node=True) == {0: 1, 1: 0}
    assert pairs("a", one_node=True) == {}


@pytest.mark.parametrize(
    "nodes", ["aabb", "abab", "aabbc", "abcab", "aaabbb", "aabbccdd", "abcdefgh", "aabbbccdd", "abacadbb"]
)
def test_where_no_node_has_more_than_half_every_copy_is_on_another(nodes: str) -> None:
    found = pairs(*nodes)
    assert all(nodes[index] != nodes[keeper] for index, keeper in found.items())
    assert sorted(found) == sorted(found.values()) == list(range(len(nodes)))


def test_where_a_node_has_more_each_pod_still_keeps_one() -> None:
    found = pairs("a", "a", "a", "b")
    assert sorted(found.values()) == [0, 1, 2, 3]
    assert all(index != keeper for index, keeper in found.items())


def test_of_two_copies_the_newer_is_fetched() -> None:
    told = gang("a", "b", "c", copies={0: (2, 1, 20, 0), 1: (2, 1, 10, 0)})
    assert {index: member.index for index, member in holders(told).items()} == {2: 0}


def test_a_release_tells_each_index_its_own() -> None:
    partners = Partners.of(gang("a", "b", copies={0: (1, 3, 10, 0)}), one_node=False)
    release = partners.release(Release(2, "10.0.0.0", 4000), 1)
    assert (release.keeper, release.holder) == (partners.keepers[1], partners.holders[1])
    assert decode(Release, encode(release)) == release
    assert release.holder is not None
    assert release.holder.copy == (1, 3, 10, 0)
