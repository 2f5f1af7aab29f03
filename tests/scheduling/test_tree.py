"""Trees of queues: what a queue may use, lend and take back, against plain loops over the same rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.scheduling.hierarchy import by_depth
from muster.scheduling.plan import WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.quota import Ledger
from muster.scheduling.snapshot import NONE, UNLIMITED, Snapshot

from . import oracle
from .cases import GPU, Job, Outcome, Queue, rack, snapshot
from .worlds import trees

pytestmark = pytest.mark.unit
thorough = settings(max_examples=300, deadline=None)

H100 = 1
ENOUGH = 40
"""More GPUs than any quota of a small tree comes to."""

COMPANY = Queue("company", gpus=8)
RESEARCH = Queue("research", gpus=16, parent="company")
PRODUCT = Queue("product", gpus=16, parent="company")
VISION = Queue("vision", gpus=8, parent="research")
SPEECH = Queue("speech", gpus=8, parent="research")
FOREST = [COMPANY, RESEARCH, PRODUCT, VISION, SPEECH]


def planned(queues: list[Queue], *jobs: Job) -> Outcome:
    shot = snapshot(rack(0, 12), jobs, queues)
    return Outcome(shot, plan(shot))


def ledger(queues: list[Queue], *jobs: Job) -> Ledger:
    shot = snapshot(rack(0, 12), jobs, queues)
    return Ledger(shot.queues, shot.jobs)


def test_a_queue_may_use_what_its_whole_tree_leaves() -> None:
    assert ledger(FOREST).available(3, H100, GPU) == 8 + 16 + 16 + 8 + 8
    busy = ledger(FOREST, Job("a", workers=2, queue="product", holding=True))
    assert busy.available(3, H100, GPU) == 40


def test_a_limit_on_the_way_up_binds_everyone_below_it_together() -> None:
    queues = [COMPANY, Queue("research", gpus=0, borrowing=8, parent="company"), *(VISION, SPEECH)]
    outcome = planned(queues, *(Job(f"{n}", queue=name) for n, name in enumerate(["vision", "speech"] * 2)))
    assert sorted(outcome.admitted) == ["0", "1", "2"]
    assert outcome.waiting["3"].reason is WaitReason.QUOTA_EXCEEDED


def test_what_is_not_lent_stays_in_the_branch() -> None:
    queues = [COMPANY, Queue("research", gpus=16, lending=4, parent="company"), PRODUCT, VISION, SPEECH]
    assert ledger(queues).available(2, H100, GPU) == 8 + 16 + 4
    assert ledger(queues).available(3, H100, GPU) == 56
    # Research has 32 with its teams and lends 4: the other 28 are theirs, whatever product does.
    greedy = Job("greedy", workers=7, gpus=4, queue="product", holding=True)
    assert ledger(queues, greedy).available(3, H100, GPU) == 28


def test_jobs_of_a_queue_with_queues_below_it_draw_on_the_same_pot() -> None:
    queues = [Queue("company", gpus=8), Queue("team", gpus=8, parent="company")]
    busy = ledger(queues, Job("own", workers=2, queue="company", holding=True))
    assert busy.available(1, H100, GPU) == 0
    assert busy.borrowed(0, H100, GPU) == 8, "the team lends it"
    assert busy.shortage(1, H100, [(GPU, 1)]) is not None


def test_a_queue_without_quota_is_bounded_by_those_above_it() -> None:
    queues = [Queue("company", gpus=8), Queue("team", parent="company"), Queue("person", parent="team")]
    outcome = planned(queues, Job("a", queue="person"), Job("b", queue="person"))
    assert list(outcome.admitted) == ["a"]
    assert outcome.waiting["b"].reason is WaitReason.QUOTA_EXCEEDED
    assert outcome.waiting["b"].message == (
        "needs 8 nvidia.com/gpu of H100; queue person uses 8 nvidia.com/gpu, has no quota of its own and can use "
        "0 nvidia.com/gpu more now, borrowing included; queue company above it has no more to give"
    )


def test_a_queue_with_queues_below_it_is_told_what_all_of_them_use_and_have() -> None:
    queues = [Queue("company", gpus=8), Queue("team", gpus=8, parent="company")]
    running = Job("running", queue="team", holding=True)
    pool = planned(queues, running, Job("a", workers=2, queue="company")).waiting["a"].message
    assert pool == (
        "needs 16 nvidia.com/gpu of H100; queue company, with those below it, uses 8 nvidia.com/gpu of its quota of "
        "16 nvidia.com/gpu and can use 8 nvidia.com/gpu more now, borrowing included"
    )


def test_where_nobody_names_quota_nothing_is_limited() -> None:
    queues = [Queue("company"), Queue("team", parent="company"), Queue("other", gpus=0, parent="company")]
    outcome = planned(queues, Job("a", workers=10, queue="team"), Job("b", queue="other"))
    assert list(outcome.admitted) == ["a"]


def test_the_limit_that_binds_is_named() -> None:
    queues = [COMPANY, Queue("research", gpus=0, borrowing=4, parent="company"), Queue("vision", parent="research")]
    assert ledger(queues).limiting(2, H100, GPU) == 1
    assert ledger([COMPANY, Queue("vision", parent="company")]).limiting(1, H100, GPU) == 0
    assert ledger([COMPANY, Queue("vision", gpus=4, borrowing=2, parent="company")]).limiting(1, H100, GPU) == 1


def test_a_job_that_cannot_give_back_may_not_borrow() -> None:
    books = ledger(FOREST, Job("a", gpus=6, queue="vision", holding=True))
    assert books.shortage(3, H100, [(GPU, 2)], borrowing=False) is None
    short = books.shortage(3, H100, [(GPU, 3)], borrowing=False)
    assert short is not None
    assert (short.needed, short.available) == (3, 2)
    assert books.never(3, H100, [(GPU, 8)], borrowing=False) is None
    assert books.never(3, H100, [(GPU, 9)], borrowing=False) is not None


def test_who_may_take_back_what() -> None:
    borrower = Job("borrower", workers=3, queue="vision", holding=True)
    books = ledger(FOREST, borrower, Job("modest", queue="speech", holding=True))
    product, vision, speech = 2, 3, 4
    assert books.borrowed(vision, H100, GPU) == 16
    assert books.may_reclaim(speech, vision, H100, [(GPU, 1)]) is False, "speech would borrow itself"
    # Research (vision and speech) has 32 and uses 32: nothing of it is product's.
    assert not books.may_reclaim(product, vision, H100, [(GPU, 8)])
    more = ledger(FOREST, Job("borrower", workers=5, queue="vision", holding=True))
    assert more.may_reclaim(product, vision, H100, [(GPU, 16)])
    assert not more.may_reclaim(product, vision, H100, [(GPU, 17)]), "beyond its own nominal"
    assert more.may_reclaim(speech, vision, H100, [(GPU, 8)])
    assert not more.may_reclaim(product, speech, H100, [(GPU, 8)]), "speech uses nothing"
    assert not more.may_reclaim(vision, product, H100, [(GPU, 8)])


def test_queues_within_their_nominal_are_safe_however_much_their_team_borrows() -> None:
    books = ledger(
        FOREST,
        Job("borrower", workers=4, queue="vision", holding=True),
        Job("modest", queue="speech", holding=True),
    )
    assert books.used(1, H100, GPU) - books.has(1, H100, GPU) == 8, "research uses 40 of its 32"
    assert books.borrowed(1, H100, GPU) == 0, "it is vision that borrows"
    assert books.may_reclaim(2, 3, H100, [(GPU, 8)])
    assert not books.may_reclaim(2, 4, H100, [(GPU, 8)])


def test_a_queue_above_takes_back_only_what_is_its_own() -> None:
    books = ledger(FOREST, Job("borrower", workers=5, queue="vision", holding=True))
    assert books.may_reclaim(0, 3, H100, [(GPU, 8)])
    assert books.within(0, H100, [(GPU, 8)])
    assert not books.may_reclaim(0, 3, H100, [(GPU, 9)]), "the rest is of the queues below it"
    assert not books.within(0, H100, [(GPU, 9)])


def test_a_queue_takes_back_from_the_jobs_of_one_above_it() -> None:
    books = ledger(FOREST, Job("own", workers=6, queue="company", holding=True))
    assert books.borrowed(0, H100, GPU) == 40
    assert books.may_reclaim(3, 0, H100, [(GPU, 8)])
    assert not books.may_reclaim(3, 0, H100, [(GPU, 33)]), "beyond what research has"
    modest = ledger(FOREST, Job("own", queue="company", holding=True))
    assert not modest.may_reclaim(3, 0, H100, [(GPU, 8)])


def test_jobs_of_a_queue_above_that_cannot_give_back_leave_the_others_theirs() -> None:
    books = ledger(FOREST)
    assert books.shortage(0, H100, [(GPU, 8)], borrowing=False) is None
    short = books.shortage(0, H100, [(GPU, 9)], borrowing=False)
    assert short is not None
    assert short.available == 8
    assert ledger([COMPANY, Queue("team", parent="company")]).never(1, H100, [(GPU, 1)], borrowing=False) is not None


def test_other_trees_take_nothing_back() -> None:
    queues = [*FOREST, Queue("alone", gpus=8)]
    books = ledger(queues, Job("borrower", workers=5, queue="vision", holding=True))
    assert not books.may_reclaim(5, 3, H100, [(GPU, 8)])
    trees = [books.circle(queue) for queue in range(6)]
    assert [queue for queue in range(6) if trees[queue] == trees[5]] == [5]
    assert [queue for queue in range(6) if trees[queue] == trees[3]] == [0, 1, 2, 3, 4]


def test_use_beyond_a_lowered_limit_is_counted() -> None:
    books = ledger([Queue("a", gpus=4)], Job("old", queue="a", holding=True))
    assert (books.excess(0, H100, GPU), books.available(0, H100, GPU)) == (4, 0)


def test_a_circle_of_parents_is_refused() -> None:
    with pytest.raises(ValueError, match="circle"):
        by_depth(np.array([1, 0, NONE], dtype=np.int32))


@thorough
@given(trees(), st.data())
def test_a_queue_may_use_exactly_what_the_rules_leave(world: Snapshot, data: st.DataObject) -> None:
    """After any sequence of charges and discharges, also one that a lowered quota would not allow."""
    books, use = Ledger(world.queues, world.jobs), oracle.usage(world)
    queues = range(len(world.queues.names))
    for _ in range(data.draw(st.integers(0, 6))):
        queue, amount = data.draw(st.sampled_from(queues)), data.draw(st.integers(1, 6))
        key = (queue, H100, GPU)
        if data.draw(st.booleans()):
            books.charge(queue, H100, [(GPU, amount)])
            use[key] = use.get(key, 0) + amount
        elif use.get(key, 0) >= amount:
            books.discharge(queue, H100, [(GPU, amount)])
            use[key] -= amount
    for queue in queues:
        assert books.available(queue, H100, GPU) == _largest(world, use, queue)
        assert books.most(queue, H100, GPU) == _largest(world, {}, queue)
        if oracle.limited(world, queue, H100, GPU):
            assert books.used(queue, H100, GPU) == oracle.draws_on(world, use, queue, H100, GPU)


def _largest(world: Snapshot, use: dict[tuple[int, int, int], int], queue: int) -> int:
    """The largest amount that may be added, by trying one after the other."""
    if not oracle.limited(world, queue, H100, GPU):
        return 2**62
    amount = 0
    while oracle.may_add(world, use, queue, H100, GPU, amount + 1):
        amount += 1
        assert amount < ENOUGH * 10
    return amount


@thorough
@given(trees())
def test_who_waits_within_nominal_meets_borrowers_that_it_may_ask(world: Snapshot) -> None:
    """Unless a limit on the way up is used up: by its own branch, or since it was lowered under use."""
    books, use = Ledger(world.queues, world.jobs), oracle.usage(world)
    for queue in range(len(world.queues.names)):
        nominal = int(world.queues.nominal[queue, H100, GPU])
        if nominal >= UNLIMITED or use.get((queue, H100, GPU), 0) >= nominal or books.available(queue, H100, GPU) > 0:
            continue
        others = range(len(world.queues.names))  # it may ask nobody of another tree
        asked = [other for other in others if books.may_reclaim(queue, other, H100, [(GPU, 1)])]
        assert asked or any(
            oracle.draws_on(world, use, one, H100, GPU) >= oracle.may_draw(world, one, H100, GPU)
            for one in oracle.way_up(world, queue)[:-1]
        )


@thorough
@given(trees())
def test_no_admission_passes_a_limit_anywhere_in_the_tree(world: Snapshot) -> None:
    """Also of ancestors, and no lender lends more than it said: what others use of its quota is at most its limit."""
    use = oracle.usage(world)
    before = dict(use)
    for job, _ in oracle.admitted(world, plan(world)):
        assert oracle.quota_allows(world, use, job)
        oracle.add(world, use, job)
    for queue in range(len(world.queues.names)):
        drawn = oracle.draws_on(world, use, queue, H100, GPU)
        if drawn > oracle.draws_on(world, before, queue, H100, GPU):
            assert drawn <= oracle.may_draw(world, queue, H100, GPU)


@thorough
@given(trees())
def test_what_a_lender_keeps_is_always_there_for_it(world: Snapshot) -> None:
    use = oracle.usage(world)
    for job, _ in oracle.admitted(world, plan(world)):
        oracle.add(world, use, job)
    books = Ledger(world.queues, world.jobs)
    for job, _ in oracle.admitted(world, plan(world)):
        need = [(GPU, int(world.jobs.requests[job, GPU]) * int(world.jobs.workers[job]))]
        books.charge(int(world.jobs.queues[job]), H100, need)
    for queue in range(len(world.queues.names)):
        if oracle.limited(world, queue, H100, GPU):
            kept = oracle.keeps(world, queue, H100, GPU) - oracle.draws_on(world, use, queue, H100, GPU)
            assert books.available(queue, H100, GPU) >= kept
