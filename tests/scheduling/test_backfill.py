"""Nobody who is let in before its turn delays the job ahead, whatever ends when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from muster.scheduling.backfill import Proof, delays, guard, worthwhile
from muster.scheduling.gangs import Gang
from muster.scheduling.placement import fits, place
from muster.scheduling.plan import Basis
from muster.scheduling.slots import Taken
from muster.scheduling.snapshot import FOREVER, Int, Seconds, Snapshot
from muster.scheduling.timeline import Reservation, Timeline
from muster.scheduling.topology import prefix_sums

from .cases import Job, Node, rack
from .futures import GRACE, NOW, Desk, Run, actual_ends, large_runs, world, worlds

pytestmark = pytest.mark.unit
thorough = settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True, eq=False)
class Newcomer:
    """Who was let in: what it took, when it goes, and whether it gives way."""

    took: Int
    ends: float
    yields: bool


def test_what_the_head_cannot_use_is_free_for_all() -> None:
    nodes = [*rack(0, 2), *rack(1, 1)]
    waiting = [Job("head", workers=2, required="rack"), Job("other")]
    desk = Desk.of(world(nodes, [Run(Job("a"), ("rack-0-host-0",))], waiting))
    assert not delayed(desk, on={"rack-1-host-0": 1})
    assert delayed(desk, on={"rack-0-host-1": 1})


def test_what_the_heads_workers_leave_over_on_a_node_is_free_for_all() -> None:
    nodes = [Node("node", gpus=8, cores=64)]
    waiting = [Job("head", gpus=8, cores=40), Job("small", gpus=0, cores=24), Job("large", gpus=0, cores=25)]
    desk = Desk.of(world(nodes, [Run(Job("a", gpus=4, cores=1), ("node",))], waiting))
    # 63 cores are free now, and the head takes 40 of them.
    assert delayed(desk, 1, {"node": 1})
    desk = Desk.of(world(nodes, [Run(Job("a", gpus=4, cores=0), ("node",))], waiting))
    assert not delayed(desk, 1, {"node": 1})
    assert delayed(desk, 2, {"node": 1})


def test_room_in_excess_after_any_one_end_is_free_for_all() -> None:
    nodes = rack(0, 7)
    large = Run(Job("large"), tuple(f"rack-0-host-{host}" for host in range(4)))
    waiting = [Job("head", workers=5), Job("other")]
    # 3 nodes are free, the head needs 5; whoever ends first gives back 4, so 2 will be in excess.
    desk = Desk.of(world(nodes, [large], waiting))
    assert not delayed(desk, on={"rack-0-host-4": 1, "rack-0-host-5": 1})
    assert delayed(desk, on={"rack-0-host-4": 1, "rack-0-host-5": 1, "rack-0-host-6": 1})
    # The end of a small one would do by itself, and then nothing is in excess.
    nodes, small = rack(0, 9), Run(Job("small"), ("rack-0-host-7", "rack-0-host-8"))
    desk = Desk.of(world(nodes, [large, small], waiting))
    assert delayed(desk, on={"rack-0-host-4": 1})


def test_pods_of_others_may_go_at_any_time_so_nothing_is_in_excess_beside_them() -> None:
    nodes = [*rack(0, 6), Node("stranger", rack="rack-0", used_gpus=8)]
    large = Run(Job("large"), tuple(f"rack-0-host-{host}" for host in range(4)))
    desk = Desk.of(world(nodes, [large], [Job("head", workers=3), Job("other")]))
    assert delayed(desk, on={"rack-0-host-4": 1})


@pytest.mark.parametrize("ranks", [("a", "b", "b", "b"), ("b", "a", "b", "b"), ("b", "b", "a", "b")])
def test_what_an_end_gives_back_on_a_node_is_counted_once_wherever_the_ranks_lie(ranks: tuple[str, ...]) -> None:
    """A rank that was replaced lies on a node of others: what they give back together is bounded by the node's GPUs."""
    nodes = [Node("a", gpus=4, cores=8), Node("b", gpus=4, cores=8)]
    run = Run(Job("run", workers=4, gpus=0, cores=2), ranks)
    desk = Desk.of(world(nodes, [run], [Job("head", workers=4, gpus=2, cores=2), Job("other", gpus=1)]))
    assert delayed(desk, on={"b": 1}), "the head needs all GPUs of both nodes"


def test_an_end_before_the_reserved_start_keeps_the_reservation_but_not_every_future() -> None:
    runs = [Run(Job("a"), ("rack-0-host-0",), bound=500.0)]
    desk = Desk.of(world(rack(0, 2), runs, [Job("head", workers=2), Job("other")]))
    on = {"rack-0-host-1": 1}
    assert delayed(desk, on=on, until=NOW + 100.0)
    assert not delayed(desk, on=on, until=NOW + 500.0 + GRACE, proof=Proof.RESERVATION)
    assert delayed(desk, on=on, until=NOW + 501.0 + GRACE, proof=Proof.RESERVATION)


def test_a_job_that_would_have_to_yield_at_once_is_not_worth_starting() -> None:
    reservation = Reservation(NOW + 100.0, FOREVER, Basis.PROGRESS, None)
    ample, scarce = np.array([30.0]), np.array([60.0])
    unknown = np.array([FOREVER])
    assert worthwhile(reservation, NOW, unknown, ample, ample).all()
    assert not worthwhile(reservation, NOW, unknown, scarce, scarce).any()
    assert worthwhile(reservation, NOW, np.array([40.0]), scarce, scarce).all()
    assert worthwhile(replace(reservation, start=FOREVER), NOW, unknown, scarce, scarce).all()


def delayed(
    desk: Desk,
    index: int = 1,
    on: dict[str, int] | None = None,
    until: float = FOREVER,
    proof: Proof = Proof.EVERY_FUTURE,
) -> bool:
    """Whether the waiting job `index`, on these nodes, delays the first of the order."""
    gang, worker = desk.gang(0)
    timeline = Timeline(desk.world, desk.tree)
    watched = guard(timeline, desk.tree, desk.room, gang, worker, timeline.reserve(desk.room, gang, worker))
    names = [desk.world.nodes.names[node] for node in desk.tree.order]
    taken = np.array([(on or {}).get(name, 0) for name in names], dtype=np.int64)
    return delays(watched, desk.room, desk.gang(index)[1], Taken.of(taken), until=until, preemptible=False, proof=proof)


@thorough
@given(st.data())
def test_the_head_starts_no_later_than_without_backfill_in_any_future(data: st.DataObject) -> None:
    desk = Desk.of(data.draw(st.one_of(worlds(), large_runs())))
    free, (newcomers, _) = desk.room.free.copy(), backfill(data.draw, desk, Proof.EVERY_FUTURE)
    ends = actual_ends(data.draw, desk.world)
    gang, _ = desk.gang(0)
    without = first_start(desk, gang, free, ends, [])
    event(f"let in: {len(newcomers)}, {sum(newcomer.yields for newcomer in newcomers)} of them yield")
    assert first_start(desk, gang, free, ends, newcomers) <= without + GRACE


@thorough
@given(large_runs())
def test_nobody_stays_on_room_that_is_not_in_excess(world: Snapshot) -> None:
    desk = Desk.of(world)
    free, (gang, worker) = desk.room.free, desk.gang(0)
    timeline = Timeline(world, desk.tree)
    if fits(desk.tree, prefix_sums(desk.slots(gang, free)), gang):
        return
    watched = guard(timeline, desk.tree, desk.room, gang, worker, timeline.reserve(desk.room, gang, worker))
    running = range(len(world.jobs.uids) - len(desk.waiting))
    for other, kind in {desk.gang(index) for index in range(1, len(desk.waiting))}:
        slots = desk.slots(other, free)
        taken = place(desk.tree, slots, prefix_sums(slots), other, whole=slots > 0, spared=None)
        if taken is None or delays(watched, desk.room, kind, Taken.of(taken), until=FOREVER, preemptible=False):
            continue
        event("let in for good")
        took = np.zeros_like(free)
        for resource, amount in kind.asks:
            took[resource] = taken * amount
        for ended in (some for size in running for some in combinations(running, size + 1)):
            room = desk.given_back(free, ended)
            without, beside = (prefix_sums(desk.slots(gang, left)) for left in (room, room - took))
            assert fits(desk.tree, without, gang) == fits(desk.tree, beside, gang)


@thorough
@given(st.data())
def test_the_weaker_proof_keeps_the_reserved_start_in_any_future(data: st.DataObject) -> None:
    desk = Desk.of(data.draw(st.one_of(worlds(), large_runs())))
    free, (newcomers, reservation) = desk.room.free.copy(), backfill(data.draw, desk, Proof.RESERVATION)
    ends = actual_ends(data.draw, desk.world)
    gang, _ = desk.gang(0)
    without = first_start(desk, gang, free, ends, [])
    event(f"let in: {len(newcomers)}")
    assert first_start(desk, gang, free, ends, newcomers) <= max(without, reservation.start) + GRACE


def backfill(draw: st.DrawFn, desk: Desk, proof: Proof) -> tuple[list[Newcomer], Reservation]:
    """Let in whoever may, one after the other; each is judged beside those let in before."""
    timeline = Timeline(desk.world, desk.tree)
    gang, worker = desk.gang(0)
    reservation = timeline.reserve(desk.room, gang, worker)
    newcomers: list[Newcomer] = []
    if fits(desk.tree, prefix_sums(desk.slots(gang, desk.room.free)), gang):
        return newcomers, reservation
    for index in range(1, len(desk.waiting)):
        other, kind = desk.gang(index)
        slots = desk.slots(other, desk.room.free)
        taken = place(desk.tree, slots, prefix_sums(slots), other, whole=slots > 0, spared=None)
        if taken is None:
            continue
        row, limit = int(desk.waiting[index]), draw(st.sampled_from([20.0, 100.0, FOREVER]))
        desk.world.jobs.terms.limit[row] = limit
        watched = guard(timeline, desk.tree, desk.room, gang, worker, reservation)
        until, yields = timeline.until(row), draw(st.booleans())
        if not delays(watched, desk.room, kind, Taken.of(taken), until=until, preemptible=yields, proof=proof):
            free = desk.room.free.copy()
            desk.room.take(other.worker, Taken.of(taken))
            timeline.started(row, Taken.of(taken))
            runs_for = draw(st.sampled_from([1.0, 50.0, 300.0, FOREVER]))
            newcomers.append(Newcomer(free - desk.room.free, min(NOW + runs_for, until), yields))
    return newcomers, reservation


def first_start(desk: Desk, gang: Gang, free: Int, ends: Seconds, newcomers: list[Newcomer]) -> float:
    """When the head starts, in the one future where room comes back at `ends`: as soon as it fits, victims gone."""
    moments = sorted({NOW, *ends[np.isfinite(ends)].tolist(), *(one.ends for one in newcomers if one.ends < FOREVER)})
    for now in moments:
        room = desk.given_back(free, np.flatnonzero(ends <= now).tolist())
        stay = [newcomer for newcomer in newcomers if newcomer.ends > now]
        for victims, delay in (([], 0.0), ([one for one in stay if one.yields], GRACE)):
            left = room - sum((one.took for one in stay if one not in victims), np.zeros_like(room))
            if fits(desk.tree, prefix_sums(desk.slots(gang, left)), gang):
                return now + delay
    return FOREVER


def test_a_job_let_in_without_proof_would_be_caught() -> None:
    desk = Desk.of(world(rack(0, 2), [Run(Job("a"), ("rack-0-host-0",))], [Job("head", workers=2)]))
    gang, _ = desk.gang(0)
    took = np.zeros_like(desk.room.free)
    took[:, 1] = desk.room.free[:, 1]
    ends = np.array([NOW + 10.0, FOREVER])
    assert first_start(desk, gang, desk.room.free, ends, []) == NOW + 10.0
    assert first_start(desk, gang, desk.room.free, ends, [Newcomer(took, NOW + 90.0, False)]) == NOW + 90.0
    assert first_start(desk, gang, desk.room.free, ends, [Newcomer(took, NOW + 90.0, True)]) == NOW + 10.0 + GRACE
