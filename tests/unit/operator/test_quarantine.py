"""Which nodes go into quarantine: by gangs hurt, never more than a share of a kind, and let out again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.controllers.quarantine import Fault, Rules, Suspect, decide

pytestmark = pytest.mark.unit

NOON = datetime(2026, 11, 15, 12, tzinfo=timezone.utc)
RULES = Rules(threshold=3, window=86400.0, forgive_after=3600.0, share=10)
NODES = [Suspect(f"n{index}", "H100/on-demand") for index in range(20)]


def fault(node: str = "n0", cause: str = "hardware", job: str = "a", placement: int = 1, ago: float = 60.0) -> Fault:
    return Fault(node, cause, NOON - timedelta(seconds=ago), job, placement, f"ns/{job}", f"{cause} of {job}")


def three(node: str = "n0", **fields: float) -> list[Fault]:
    return [fault(node, job=job, **fields) for job in "abc"]  # type: ignore[arg-type]


def after(nodes: list[Suspect], faults: list[Fault], now: datetime) -> list[Suspect]:
    """The nodes once the decision is carried out."""
    decided = decide(faults, nodes, RULES, now)
    until = {one.node: one.until for one in decided.quarantine}
    lifted = {name for name, _ in decided.lift}
    return [
        replace(node, tainted=False, until=None, since=now)
        if node.name in lifted
        else replace(node, tainted=True, until=until[node.name])
        if node.name in until
        else node
        for node in nodes
    ]


def test_a_node_that_hurt_enough_gangs_goes_into_quarantine_with_the_reason() -> None:
    assert decide(three()[:2], NODES, RULES, NOON).quarantine == ()
    (sentence,) = decide(three(), NODES, RULES, NOON).quarantine
    assert (sentence.node, sentence.until) == ("n0", NOON + timedelta(hours=1))
    assert sentence.reason.startswith("3 gangs failed here: hardware (ns/")
    assert "hardware of a" in sentence.reason


def test_one_gang_counts_once_however_often_it_fails() -> None:
    assert decide([fault(ago=ago) for ago in range(50)], NODES, RULES, NOON).quarantine == ()
    placements = [fault(placement=generation) for generation in (1, 2, 3)]
    assert len(decide(placements, NODES, RULES, NOON).quarantine) == 1, "broken hardware met by three gangs of one job"


@pytest.mark.parametrize("cause", ["hang", "straggler"])
def test_what_a_script_could_bring_about_counts_once_for_each_job(cause: str) -> None:
    one_job = [fault(cause=cause, placement=generation) for generation in range(1, 30)]
    assert decide(one_job, NODES, RULES, NOON).quarantine == ()
    assert len(decide([fault(cause=cause, job=job) for job in "abc"], NODES, RULES, NOON).quarantine) == 1


def test_old_faults_and_those_of_the_machine_that_stood_there_before_do_not_count() -> None:
    assert decide(three(ago=86401), NODES, RULES, NOON).quarantine == ()
    anew = [replace(NODES[0], since=NOON - timedelta(seconds=30)), *NODES[1:]]
    assert decide(three(ago=60), anew, RULES, NOON).quarantine == ()
    assert len(decide(three(ago=20), anew, RULES, NOON).quarantine) == 1


def test_an_image_that_hangs_everywhere_empties_no_pool() -> None:
    everywhere = [one for node in NODES for one in three(node.name)]
    decided = decide(everywhere, NODES, RULES, NOON)
    assert len(decided.quarantine) == 2, "10 % of 20"
    assert len(decided.spared) == 18
    small = [Suspect("a", "A100/spot"), Suspect("b", "A100/spot"), *NODES]
    decided = decide([*three("a"), *three("b")], small, RULES, NOON)
    assert ([one.node for one in decided.quarantine], decided.spared) == (["a"], ("b",)), "of a small pool one"
    assert decide(everywhere, NODES, replace(RULES, share=0), NOON).quarantine == ()


def test_what_people_tainted_counts_against_the_share_and_is_left_to_them() -> None:
    nodes = [replace(node, tainted=node.name in ("n7", "n8")) for node in NODES]
    decided = decide([*three("n0"), *three("n7")], nodes, RULES, NOON + timedelta(days=0))
    assert (decided.quarantine, decided.spared, decided.lift) == ((), ("n0",), ())
    assert decide([], nodes, RULES, NOON + timedelta(days=300)).lift == ()


def test_a_quarantine_ends_by_time_or_by_hand_and_old_faults_do_not_bring_it_back() -> None:
    nodes = after(NODES, three(), NOON)
    assert nodes[0].tainted
    soon = NOON + timedelta(minutes=59)
    assert decide(three(), nodes, RULES, soon).lift == ()
    over = NOON + timedelta(hours=1)
    assert decide(three(), nodes, RULES, over).lift == (("n0", "its time is over"),)
    by_hand = [replace(nodes[0], tainted=False), *nodes[1:]]
    assert decide(three(), by_hand, RULES, soon).lift == (("n0", "somebody took the taint away"),)
    assert decide(three(), after(by_hand, three(), soon), RULES, soon).quarantine == ()
    assert decide(three(), after(nodes, three(), over), RULES, over).quarantine == ()


POOLS = ("H100/on-demand", "A100/spot", "")
SUSPECTS = st.lists(
    st.builds(
        Suspect,
        st.integers(0, 30).map(str),
        st.sampled_from(POOLS),
        st.booleans(),
        st.none() | st.integers(-100, 100).map(lambda minutes: NOON + timedelta(minutes=minutes)),
        st.none() | st.integers(0, 100).map(lambda minutes: NOON - timedelta(minutes=minutes)),
    ),
    unique_by=lambda node: node.name,
)
FAULTS = st.lists(
    st.builds(
        fault,
        st.integers(0, 30).map(str),
        st.sampled_from(["hardware", "lost", "hang", "straggler"]),
        st.sampled_from("abcde"),
        st.integers(1, 3),
        st.integers(0, 200_000),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(SUSPECTS, FAULTS)
@example([Suspect("1")], [fault("1"), fault("1", placement=2), fault("1", "hang")])
def test_whatever_happened(nodes: list[Suspect], faults: list[Fault]) -> None:
    decided = decide(faults, nodes, RULES, NOON)
    by_name = {node.name: node for node in nodes}
    for sentence in decided.quarantine:
        node = by_name[sentence.node]
        assert not node.tainted
        gangs = {(one.job, one.placement) for one in faults if one.node == node.name}
        assert len(gangs) >= RULES.threshold
    for name, _ in decided.lift:
        assert by_name[name].until is not None, "only ours are taken back"
    then = after(nodes, faults, NOON)
    sizes, before = Counter(node.pool for node in nodes), Counter(node.pool for node in nodes if node.tainted)
    for pool, out in Counter(node.pool for node in then if node.tainted).items():
        assert out <= max(1, sizes[pool] * RULES.share // 100, before[pool])
    again = decide(faults, then, RULES, NOON)
    assert (again.quarantine, again.lift) == ((), ()), "the same facts give no further change"
