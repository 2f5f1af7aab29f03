"""The planner's plans are those of a naive reference, on a thousand small clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from muster.scheduling.plan import MoveReason
from muster.scheduling.planner import plan
from muster.scheduling.policy import DEFAULT
from muster.scheduling.snapshot import Index, Snapshot

from .crowded import crowded, lending, letting_in, with_windows
from .naive_places import Counts
from .naive_victims import lost
from .reference import Asked, Decided, Reference, Told

pytestmark = pytest.mark.unit

WORLDS, BATCH = 1_000, 200
WITH = (with_windows, letting_in, lambda _, world: world)
ALL_THAT_HAPPENS = {
    "one borrower goes",
    "several borrowers go",
    "one that is within nominal stays",
    "one that is not preemptible stays",
    "one of lower priority goes",
    "one that was let in goes",
    "one shrinks, and nobody goes",
    "what others leave is enough",
    "nobody goes for one that could not start",
}
IN_FULL = replace(DEFAULT, searches=10_000, candidates=1_000_000, defragmentation=False)


@pytest.mark.parametrize("first", range(0, WORLDS, BATCH))
def test_plans_are_those_of_a_naive_planner(first: int) -> None:
    for seed in range(first, first + BATCH):
        draw = np.random.default_rng(seed)
        world = WITH[seed % 3](draw, crowded(draw))
        made = decided(world)
        assert made == Reference(world, made).plan(), f"seed {seed}"


@pytest.mark.parametrize("first", range(0, WORLDS, BATCH))
def test_those_go_whom_a_naive_planner_asks(first: int) -> None:
    happened: set[str] = set()
    for seed in range(first, first + BATCH):
        draw = np.random.default_rng(seed)
        world = WITH[seed % 3](draw, lending(draw))
        made = decided(world)
        reference = Reference(world, made)
        assert made == reference.plan(), f"seed {seed}"
        happened.update(_happened(world, made))
        asked = {each.uid for each in made.asked}
        if any(world.jobs.uids[job] not in asked for job in reference.refused):
            happened.add("nobody goes for one that could not start")
    assert happened == ALL_THAT_HAPPENS, "the clusters have lost what they are for"


def _happened(world: Snapshot, made: Decided) -> set[str]:
    """Of `ALL_THAT_HAPPENS`, what those are asked for who give room back."""
    found: set[str] = set()
    for each in made.asked:
        reasons = [reason for _, reason, _ in each.evicted]
        if MoveReason.RECLAIMED in reasons:
            found.add("several borrowers go" if len(reasons) > 1 else "one borrower goes")
            found.update(_left_alone(world, made, each))
        if MoveReason.YIELDED in reasons:
            found.add("one that was let in goes")
        if MoveReason.PREEMPTED in reasons:
            found.add("one of lower priority goes")
        if each.shrunk and not each.evicted:
            found.add("one shrinks, and nobody goes")
        if not each.shrunk and not each.evicted:
            found.add("what others leave is enough")
    return found


def _left_alone(world: Snapshot, made: Decided, asked: Asked) -> set[str]:
    """Who stays of the queues that give back what they have borrowed, though it would lose less."""
    jobs, row = world.jobs, {uid: index for index, uid in enumerate(world.jobs.uids)}
    gone = {uid for each in made.asked for uid, *_ in (*each.evicted, *each.shrunk)}
    found = set()
    for uid, reason, loses in asked.evicted:
        home = (jobs.queues[row[uid]], jobs.flavours[row[uid]])
        for other in np.flatnonzero(jobs.holding & (jobs.queues == home[0]) & (jobs.flavours == home[1])).tolist():
            if reason is MoveReason.RECLAIMED and jobs.uids[other] not in gone and lost(world, other) < loses:
                stays = "within nominal" if jobs.terms.preemptible[other] else "not preemptible"
                found.add(f"one that is {stays} stays")
    return found


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3, id="a gang that starts with fewer gives back no more"),
        pytest.param(104, id="a gang gives back its spares too"),
        pytest.param(935, id="spares of one ahead do not make who cannot delay it yield"),
        pytest.param(470, id="of gangs without GPUs each worker counts, won and lost"),
        pytest.param(1_208, id="what is reserved for one that cannot be stopped counts once"),
        pytest.param(155_689, id="those behind a head that an owner has become go before borrowers"),
    ],
)
def test_what_they_once_differed_in(seed: int) -> None:
    world = crowded(np.random.default_rng(seed))
    assert decided(world) == Reference(world).plan()


def decided(world: Snapshot) -> Decided:
    """The planner's answer, in the reference's terms."""
    made, silent = plan(world, IN_FULL), plan(world, replace(IN_FULL, explain=False))
    assert (silent.evictions, len(silent.promises)) == (made.evictions, len(made.promises)), "telling decides nothing"
    assert (made.replacements, made.broken) == ((), ())
    grown = {each.uid for each in made.evictions if each.reason is MoveReason.GROWN}
    then = {each.uid: each.nodes for each in made.promises}
    in_passing = {each.uid for each in made.promises if each.yields}
    assert all(each.beneficiary == each.uid for each in made.evictions if each.uid in grown)

    def counts(nodes: Index) -> Counts:
        return [nodes.tolist().count(node) for node in range(len(world.nodes.names))]

    def asked(uid: str) -> Asked:
        mine = sorted((each for each in made.evictions if each.beneficiary == uid), key=lambda each: row[each.uid])
        return Asked(
            uid,
            counts(then[uid]),
            [(each.uid, each.reason, each.lost) for each in mine if each.reason is not MoveReason.SHRUNK],
            [(each.uid, counts(then[each.uid]), each.lost) for each in mine if each.reason is MoveReason.SHRUNK],
            uid in in_passing,
        )

    row = {uid: index for index, uid in enumerate(world.jobs.uids)}
    others = {each.uid for each in made.evictions}
    asked_for = [asked(each.uid) for each in made.promises if each.uid not in others]
    assert {each.beneficiary for each in made.evictions} <= {each.uid for each in asked_for} | grown
    started = [(each.uid, counts(each.nodes), each.yields) for each in made.admissions]
    waiting = {each.uid: Told(each.reason, each.position, each.expected, each.basis) for each in made.waiting}
    larger = [(each.uid, counts(each.nodes)) for each in made.promises if each.uid in grown]
    return Decided(started, asked_for, waiting, larger)
