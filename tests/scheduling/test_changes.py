"""What would help: a change that a waiting job is told starts it, if it is made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.scheduling.plan import Change, ChangeKind, Waiting, WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import UNLIMITED, Alternative, Int, Mask, Preempts, Shape, Sizes, Snapshot, TopologyMode

from . import oracle
from .cases import GPU, Job, Node, Outcome, Queue, apply, rack, snapshot
from .crowded import crowded
from .worlds import contended, trees

pytestmark = pytest.mark.unit


def firm(world: Snapshot, *uids: str) -> Snapshot:
    """The world in which these jobs are not preemptible."""
    preemptible = np.array([uid not in uids for uid in world.jobs.uids], dtype=np.bool_)
    return replace(world, jobs=replace(world.jobs, terms=replace(world.jobs.terms, preemptible=preemptible)))


def helps(world: Snapshot, uid: str) -> tuple[str, ...]:
    made = plan(world)
    return tuple(change.text for change in made.helped(Outcome(world, made).waiting[uid]).changes)


def changed(world: Snapshot, waiting: Waiting, change: Change) -> Snapshot:
    """The world in which a job does what it was told would help."""
    row, jobs = world.jobs.uids.index(waiting.uid), world.jobs
    if change.kind is ChangeKind.WORKERS:
        workers, least, most = (each.copy() for each in (jobs.workers, jobs.sizes.least, jobs.sizes.most))
        workers[row] = least[row] = most[row] = int(change.value)
        return replace(world, jobs=replace(jobs, workers=workers, sizes=replace(jobs.sizes, least=least, most=most)))
    if change.kind is ChangeKind.SPARES:
        shapes = [*jobs.terms.shapes]
        shapes[row] = replace(shapes[row], spares=int(change.value))
        return replace(world, jobs=replace(jobs, terms=replace(jobs.terms, shapes=tuple(shapes))))
    if change.kind is ChangeKind.PREEMPTIBLE:
        preemptible = jobs.terms.preemptible.copy()
        preemptible[row] = change.value == "true"
        return replace(world, jobs=replace(jobs, terms=replace(jobs.terms, preemptible=preemptible)))
    modes, levels = jobs.modes.copy(), jobs.levels.copy()
    if change.kind is ChangeKind.MODE:
        modes[row] = TopologyMode[change.value.upper()]
    else:
        levels[row] = world.levels.names.index(change.value)
    return replace(world, jobs=replace(jobs, modes=modes, levels=levels))


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(contended(), trees()), st.integers(0, 2**32 - 1))
def test_whoever_does_what_would_help_starts(world: Snapshot, seed: int) -> None:
    draw = np.random.default_rng(seed)
    whoever_does_what_would_help_starts(firm(world, *(uid for uid in world.jobs.uids if draw.random() < 0.5)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1))
def test_so_do_elastic_gangs_and_those_with_spares_windows_limits_and_deadlines(seed: int) -> None:
    whoever_does_what_would_help_starts(crowded(np.random.default_rng(seed)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1))
def test_so_do_those_who_take_spot_nodes_where_there_are_no_others(seed: int) -> None:
    draw = np.random.default_rng(seed)
    world = crowded(draw)
    spot = draw.random(len(world.nodes.names)) < 0.4
    quota = draw.choice([0, 4, 8, int(UNLIMITED)], len(world.queues.names))
    whoever_does_what_would_help_starts(with_spot(world, spot, quota, draw.random(len(world.jobs.uids)) < 0.7))


def with_spot(world: Snapshot, spot: Mask, quota: Int, takes: Mask) -> Snapshot:
    """The world in which some nodes are spot nodes, and the jobs that take them by now take others before.

    Args:
        quota: of spot GPUs, by queue.
        takes: J.
    """
    queues, jobs, filters = world.queues, world.jobs, len(world.eligible)
    wide = [np.concatenate([each, each[:, 1:]], axis=1) for each in (queues.nominal, queues.borrowing, queues.lending)]
    wide[0][:, 2, GPU] = quota
    gpus = jobs.requests[:, GPU] > 0
    others = [
        (Alternative(filters + int(jobs.filters[row]), 2 if gpus[row] else 0),) if takes[row] else ()
        for row in range(len(jobs.uids))
    ]
    return replace(
        world,
        flavours=("", "H100/on-demand", "H100/spot"),
        nodes=replace(world.nodes, flavours=np.where(spot & (world.nodes.flavours == 1), 2, world.nodes.flavours)),
        queues=replace(queues, nominal=wide[0], borrowing=wide[1], lending=wide[2]),
        eligible=np.concatenate([world.eligible & ~spot, world.eligible & spot]),
        jobs=replace(jobs, terms=replace(jobs.terms, alternatives=tuple(others))),
    )


@pytest.mark.parametrize(
    ("free", "there", "quota", "reason", "message", "told"),
    [
        ((0, 3), (4, 4), 64, WaitReason.INSUFFICIENT_CAPACITY, "the 4 H100/spot nodes that suit have room for 3", 3),
        ((2, 1), (4, 4), 64, WaitReason.INSUFFICIENT_CAPACITY, "4 H100/on-demand nodes that suit have room for 2", 2),
        ((0, 3), (4, 4), 24, WaitReason.INSUFFICIENT_CAPACITY, "4 H100/on-demand nodes that suit have room for 0", 3),
        ((0, 3), (4, 3), 64, WaitReason.INSUFFICIENT_CAPACITY, "4 H100/on-demand nodes that suit have room for 0", 3),
        (
            (2, 3),
            (2, 3),
            64,
            WaitReason.EXCEEDS_CLUSTER,
            "the 3 H100/spot nodes that suit have room for 3 even when",
            3,
        ),
        (
            (0, 3),
            (0, 3),
            64,
            WaitReason.EXCEEDS_CLUSTER,
            "the 3 H100/spot nodes that suit have room for 3 even when",
            3,
        ),
        ((3, 0), (3, 0), 64, WaitReason.EXCEEDS_CLUSTER, "3 H100/on-demand nodes that suit have room for 3 even", 3),
    ],
)
def test_who_takes_two_kinds_of_node_is_told_of_the_one_that_comes_closest(
    free: tuple[int, int], there: tuple[int, int], quota: int, reason: WaitReason, message: str, told: int
) -> None:
    """It wants four nodes; the third and the fourth case are told what helps on the other kind."""
    nodes = [
        Node(f"{kind}-{index}", used_gpus=0 if index < free[kind] else 8)
        for kind in (0, 1)
        for index in range(there[kind])
    ]
    world = snapshot(nodes, [Job("a", workers=4)], [Queue(gpus=64)])
    world = with_spot(world, np.array([node.name[0] == "1" for node in nodes]), np.array([quota]), np.array([True]))
    made = plan(world)
    waiting = made.helped(Outcome(world, made).waiting["a"])
    assert waiting.reason is reason
    assert message in waiting.message
    assert [each.value for each in waiting.changes] == [str(told)]


@pytest.mark.parametrize(
    ("quota", "reason", "message", "told"),
    [
        ((0, 24), WaitReason.EXCEEDS_QUOTA, "H100/spot; queue research can never use more than 24 nvidia.com/gpu,", 3),
        ((24, 16), WaitReason.EXCEEDS_QUOTA, "H100/on-demand; queue research can never use more than 24 nvidia", 1),
        ((32, 24), WaitReason.QUOTA_EXCEEDED, "H100/on-demand; queue research uses 16 nvidia.com/gpu of its quota", 2),
        ((32, 40), WaitReason.QUOTA_EXCEEDED, "H100/spot; queue research uses 16 nvidia.com/gpu of its quota of 40", 3),
    ],
)
def test_who_takes_two_kinds_of_node_is_told_of_the_one_of_which_the_least_quota_is_missing(
    quota: tuple[int, int], reason: WaitReason, message: str, told: int
) -> None:
    """Others use 16 GPUs of each kind that there is quota for; where they could be enough one day, that one counts."""
    nodes = [Node(f"{kind}-{index}") for kind in (0, 1) for index in range(4)]
    others = [Job(f"on {kind}", workers=2, holding=True) for kind in (0, 1)]
    world = snapshot(nodes, [Job("a", workers=4), *others], [Queue(gpus=quota[0])])
    takes = np.array([True, False, False])
    world = with_spot(world, np.array([node.name[0] == "1" for node in nodes]), np.array([quota[1]]), takes)
    world.jobs.flavours[2] = 2
    if not quota[0]:
        world.jobs.held[1:] = 0
    made = plan(world)
    waiting = made.helped(Outcome(world, made).waiting["a"])
    assert waiting.reason is reason
    assert message in waiting.message
    assert [each.value for each in waiting.changes] == [str(told)]


def test_who_fits_only_nodes_of_one_kind_that_are_away_is_told_of_these() -> None:
    nodes = [Node("0-a"), *(Node(f"1-{index}", usable=index > 0) for index in range(4))]
    world = snapshot(nodes, [Job("a", workers=4)])
    world = with_spot(world, np.array([node.name[0] == "1" for node in nodes]), np.array([64]), np.array([True]))
    (waiting,) = plan(world).waiting
    assert waiting.message.endswith("; 1 suitable node is cordoned or not ready: 1-0")
    assert "the 3 H100/spot nodes that suit have room for 3" in waiting.message


def whoever_does_what_would_help_starts(world: Snapshot) -> None:
    made = plan(world)
    for waiting in map(made.helped, made.waiting):
        for change in waiting.changes:
            told = f"{waiting.uid} was told: {change}, waiting for {waiting.message}"
            assert starts(changed(world, waiting, change), waiting.uid), told


def starts(world: Snapshot, uid: str) -> bool:
    """At once; or, where owners are looked after first who start in the same plan, in the one that this brings about:
    see the docstring of `planner`."""
    made = plan(world)
    if any(each.uid == uid for each in made.admissions):
        return True
    then = plan(apply(world, made))
    return uid in oracle.starts_later(world, made, then)


def test_who_may_borrow_now_starts_when_owners_have_started_who_are_looked_after_first() -> None:
    queues = [Queue("borrower", gpus=0), Queue("owner", gpus=8, parent="borrower")]
    jobs = [Job("small", gpus=1, queue="borrower"), Job("runs", gpus=1, queue="borrower", holding=True)]
    sizes = {"a": (1, 2), "b": (2, 3), "c": (1, 1)}
    jobs += [Job(uid, workers, gpus, queue="owner") for uid, (workers, gpus) in sizes.items()]
    world = firm(snapshot([Node("large", gpus=1000, cores=1000)], jobs, queues), "small")
    made = plan(world)
    waiting = made.helped(Outcome(world, made).waiting["small"])
    (change,) = waiting.changes
    assert change.kind is ChangeKind.PREEMPTIBLE
    then = changed(world, waiting, change)
    assert "small" not in Outcome(then, plan(then)).admitted
    assert starts(then, "small")


def test_room_that_is_kept_for_a_job_ahead_is_no_help_to_one_that_would_not_give_it_back() -> None:
    jobs = [Job("head", workers=3), Job("behind", workers=3, submitted=1.0)]
    nodes = rack(0, 2) + rack(0, 1, first=2, used_gpus=8)
    assert helps(snapshot(nodes, jobs), "head") == ("2 workers instead of 3 would find room now",)
    assert helps(snapshot(nodes, jobs), "behind") == ("2 workers instead of 3 would find room now",), "it would yield"
    assert helps(firm(snapshot(nodes, jobs), "head", "behind"), "head") == (
        "2 workers instead of 3 would find room now",
    )
    assert helps(firm(snapshot(nodes, jobs), "behind"), "behind") == ()


def test_fewer_workers_help_one_that_has_no_quota_either_where_both_suffice() -> None:
    nodes = [Node("a"), Node("b")]
    alone = snapshot(nodes, [Job("large", workers=3)], [Queue(gpus=24)])
    assert helps(alone, "large") == ("2 workers instead of 3 would find room now",)
    short = snapshot(nodes, [Job("large", workers=3)], [Queue(gpus=8)])
    assert helps(short, "large") == ("1 worker instead of 3 would have quota and room now",)
    none = snapshot(nodes, [Job("large", workers=3)], [Queue(gpus=4)])
    assert helps(none, "large") == ()


@pytest.mark.parametrize(
    ("quota", "nodes", "shape", "told"),
    [
        (24, 4, Shape(), ("3 workers instead of 4 would have quota and room now",)),
        (31, 2, Shape(), ("2 workers instead of 4 would have quota and room now",)),  # room is what lacks then
        (24, 4, Shape(slices=((2, 1),)), ("2 workers instead of 4 would have quota and room now",)),
        (32, 5, Shape(spares=1), ("there is quota and room now without its spare",)),
        (24, 5, Shape(spares=1), ("2 workers instead of 4 would have quota and room now",)),
        (7, 4, Shape(), ()),
    ],
)
@pytest.mark.parametrize("ever", [True, False], ids=["in use", "never enough"])
def test_the_most_workers_that_the_quota_allows_are_told(
    quota: int, nodes: int, shape: Shape, told: tuple[str, ...], ever: bool
) -> None:
    """Whether the rest of the quota is in use, or it could never be enough."""
    used = [Job("holds", workers=8, gpus=5, holding=True)] if ever else []
    world = snapshot(rack(0, nodes), [Job("a", workers=4), *used], [Queue(gpus=quota + 40 * ever)])
    terms = replace(world.jobs.terms, shapes=(shape, *(Shape() for _ in used)))
    assert helps(replace(world, jobs=replace(world.jobs, terms=terms)), "a") == told


@pytest.mark.parametrize(("lent", "room", "told"), [(16, 2, True), (8, 2, False), (16, 1, False)])
def test_who_may_not_borrow_is_told_that_it_could_where_that_would_start_it(lent: int, room: int, told: bool) -> None:
    queues = [Queue("mine", gpus=0, cohort=0), Queue("lender", gpus=lent, cohort=0)]
    world = firm(snapshot(rack(0, room), [Job("a", workers=2, queue="mine")], queues), "a")
    text = "with preemptible: true it could borrow quota now, and there is room"
    assert (text in helps(world, "a")) is told


def test_who_may_not_borrow_is_not_told_to_where_an_owner_would_take_it_back() -> None:
    queues = [Queue("mine", gpus=0, cohort=0), Queue("lender", gpus=8, cohort=0)]
    jobs = [Job("a", queue="mine"), Job("owner", queue="lender", only_on=("full",))]
    nodes = [Node("idle"), Node("full", used_gpus=8)]
    assert not any("preemptible" in each for each in helps(firm(snapshot(nodes, jobs, queues), "a"), "a"))


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize(
    ("reclaim", "ahead", "told"),
    [
        (Preempts.LOWER_PRIORITY, 1, False),
        (Preempts.LOWER_PRIORITY, 0, True),
        (Preempts.ANY, 1, True),  # owners have their turn before a borrower then
        (Preempts.NEVER, 0, True),
    ],
)
def test_who_would_claim_less_of_its_own_is_told_so_only_where_no_borrower_ahead_would_start_then(
    reclaim: Preempts, ahead: int, told: bool, spares: int
) -> None:
    queues = [Queue("owner", gpus=4, cohort=0), Queue("borrower", gpus=0, cohort=0)]
    jobs = [Job("owner", workers=3 - spares, gpus=1, queue="owner")]
    jobs += [Job("borrower", gpus=2, queue="borrower", priority=ahead, submitted=1.0)]
    world = snapshot([Node("a", used_gpus=6)], jobs, queues)
    shapes = (Shape(spares=spares), Shape())
    world = replace(world, jobs=replace(world.jobs, terms=replace(world.jobs.terms, shapes=shapes)))
    world = replace(world, queues=replace(world.queues, reclaim=np.full(3, reclaim, dtype=np.int32)))
    assert len(helps(world, "owner")) == told
    whoever_does_what_would_help_starts(world)


@pytest.mark.parametrize(("wish", "told"), [(5, 0), (4, 1)])
def test_who_would_claim_less_is_told_so_only_where_no_borrower_ahead_would_start_with_more_then(
    wish: int, told: int
) -> None:
    """`ahead` leaves what it would borrow to `small`, for `large` before that one lacks quota: it would not for `large`
    with a single worker, which only finds room for one as well."""
    queues = [
        Queue("owner", gpus=8),
        Queue("lender", gpus=4, parent="owner"),
        Queue("borrower", gpus=8, lending=0, parent="owner"),
    ]
    jobs = [Job("runs", workers=3, gpus=2, queue="owner", holding=True)]
    jobs += [Job("ahead", workers=wish, gpus=2, queue="borrower", priority=2)]
    jobs += [Job("large", workers=3, gpus=4, queue="owner"), Job("small", gpus=1, queue="owner", submitted=1.0)]
    world = snapshot([Node("a", gpus=8), Node("b", gpus=4), Node("c", gpus=1)], jobs, queues)
    world.jobs.sizes.least[1], world.jobs.sizes.partial[1] = 1, True
    assert len(plan(world).admissions[0].nodes) == 4
    assert len(helps(world, "large")) == told
    whoever_does_what_would_help_starts(world)


def test_who_ranks_before_an_owner_with_a_reservation_is_told_nothing_that_rests_on_it() -> None:
    """`large` claims its queue's own before `small` waits for room, and would again in the next plan."""
    queues = [Queue("owner", gpus=8, cohort=0), Queue("borrower", gpus=0, cohort=0)]
    jobs = [Job("runs", workers=4, gpus=1, queue="owner", holding=True)]
    jobs += [Job("lent", gpus=1, queue="borrower", holding=True)]
    jobs += [Job("borrower", workers=2, gpus=1, queue="borrower", only_on=("idle",))]
    jobs += [Job("large", workers=4, gpus=1, queue="owner", submitted=1.0)]
    jobs += [Job("small", workers=2, gpus=1, queue="owner", submitted=2.0, only_on=("full",))]
    world = snapshot([Node("idle"), Node("full", used_gpus=7)], jobs, queues)
    assert helps(world, "borrower") == ()
    assert helps(world, "small") == ("1 worker instead of 2 would find room now",)
    whoever_does_what_would_help_starts(world)


@pytest.mark.parametrize("reclaim", [Preempts.LOWER_PRIORITY, Preempts.ANY])
@pytest.mark.parametrize("seed", [154, 1151, 2533, 3894, 3988])
def test_a_change_is_told_only_where_it_helps_beside_those_who_borrow(seed: int, reclaim: Preempts) -> None:
    world = crowded(np.random.default_rng(seed))
    policies = np.full(len(world.queues.names), reclaim, dtype=np.int32)
    whoever_does_what_would_help_starts(replace(world, queues=replace(world.queues, reclaim=policies)))


def almost(world: Snapshot) -> list[tuple[str, int, int]]:
    (waiting,) = plan(world).waiting
    return [(each.domain.rpartition("/")[2], each.placeable, each.lacking) for each in waiting.almost]


@pytest.mark.parametrize("mode", ["preferred", "unconstrained"])
@pytest.mark.parametrize(
    ("shape", "nodes", "told"),
    [
        (
            Shape(slices=((4, 1),)),
            rack(0, 7) + rack(1, 3) + rack(2, 1),
            [("rack-0", 7, 1), ("rack-1", 3, 1), ("rack-2", 1, 3)],
        ),
        (Shape(slices=((4, 1), (2, 2))), rack(0, 3, gpus=16) + rack(1, 3), [("rack-0", 6, 2)]),
        (Shape(balanced=1), rack(0, 9) + rack(1, 5), [("rack-1", 5, 1)]),
        (Shape(), rack(0, 9), []),
    ],
)
def test_a_gang_in_slices_or_balanced_is_told_where_the_next_almost_fits(
    mode: str, shape: Shape, nodes: list[Node], told: list[tuple[str, int, int]]
) -> None:
    job = Job("a", workers=12, preferred="block" if mode == "preferred" else None)
    assert almost(shaped(snapshot(nodes, [job]), shape)) == told


@pytest.mark.parametrize(
    ("workers", "least", "step", "told"),
    [
        (12, 6, 2, ("4 workers instead of 6 would find room now",)),
        (12, 6, 3, ("3 workers instead of 6 would find room now",)),
        (12, 6, 6, ()),  # they are one replica of the model
        (7, 7, 2, ("5 workers instead of 7 would find room now",)),
        (7, 7, 7, ()),  # its training can go on with as many only
    ],
)
def test_fewer_workers_are_told_in_whole_steps(workers: int, least: int, step: int, told: tuple[str, ...]) -> None:
    world = snapshot(rack(0, 5), [Job("a", workers=workers)])
    sizes = [np.array([each], dtype=np.int32) for each in (least, workers, step)]
    world = replace(world, jobs=replace(world.jobs, sizes=Sizes(*sizes, partial=np.ones(1, dtype=np.bool_))))
    assert helps(world, "a") == told


def shaped(world: Snapshot, shape: Shape) -> Snapshot:
    """The world in which all jobs have one shape."""
    terms = replace(world.jobs.terms, shapes=(shape,) * len(world.jobs.uids))
    return replace(world, jobs=replace(world.jobs, terms=terms))


@pytest.mark.parametrize(
    ("shape", "nodes", "told"),
    [
        (Shape(balanced=1), rack(0, 9) + rack(1, 3), ("9 workers instead of 12 would find room now",)),
        (Shape(balanced=1), rack(0, 5) + rack(1, 5), ("10 workers instead of 12 would find room now",)),
        (
            Shape(balanced=1, slices=((2, 1),)),
            rack(0, 5) + rack(1, 5),
            ("8 workers instead of 12 would find room now",),
        ),
        (Shape(slices=((4, 1),), spares=1), rack(0, 5) + rack(1, 4), ("8 workers instead of 12 would find room now",)),
        (Shape(slices=((4, 1),), spares=3), rack(0, 5) + rack(1, 4), ("4 workers instead of 12 would find room now",)),
        (Shape(slices=((4, 1),)), rack(0, 6) + rack(1, 5), ("8 workers instead of 12 would find room now",)),
        (Shape(spares=2), rack(0, 10), ("8 workers instead of 12 would find room now",)),
        (Shape(slices=((6, 1),)), rack(0, 5) + rack(1, 5), ()),
    ],
)
def test_fewer_workers_are_told_in_the_shape_that_the_gang_has_to_have(
    shape: Shape, nodes: list[Node], told: tuple[str, ...]
) -> None:
    assert helps(shaped(snapshot(nodes, [Job("a", workers=12)]), shape), "a") == told


def test_the_most_workers_are_told_for_which_there_is_quota_and_an_equal_share_everywhere() -> None:
    """Neither 14 nor 13 nor 7 can be shared out among three racks of five."""
    nodes = rack(0, 5) + rack(1, 5) + rack(2, 5)
    world = shaped(snapshot(nodes, [Job("a", workers=15)], [Queue(gpus=8 * 14)]), Shape(balanced=1))
    assert helps(world, "a") == ("12 workers instead of 15 would have quota and room now",)


def test_a_wider_level_is_told_to_a_gang_with_slices() -> None:
    nodes = rack(0, 3) + rack(1, 3)
    world = shaped(snapshot(nodes, [Job("a", workers=4, required="rack")]), Shape(slices=((2, 2),)))
    assert helps(world, "a") == ()
    world = shaped(snapshot(nodes, [Job("a", workers=8, gpus=4, required="rack")]), Shape(slices=((2, 2),)))
    assert helps(world, "a") == (
        "6 workers instead of 8 would find room now",
        "there is room now if block were required instead of rack",
    )
