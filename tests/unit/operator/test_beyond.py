"""Gangs with a safe base: the first workers on one kind of nodes, those beyond on another that may be taken back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muster.cluster.eligibility import NodeFilter
from muster.cluster.jobs import BEYOND, BeyondInput, JobInput, RunInput, TermsInput
from muster.cluster.snapshot import LevelInput, QueueInput, QuotaInput, build
from muster.cluster.views import NodeView, PodView
from muster.controllers.books import Tally
from muster.scheduling.offers import lost_seconds
from muster.scheduling.plan import MoveReason, Plan, StayReason
from muster.scheduling.planner import plan
from muster.scheduling.policy import DEFAULT
from muster.scheduling.snapshot import JobState, Snapshot, TopologyMode

pytestmark = pytest.mark.unit

GPUS = "nvidia.com/gpu"
SURE, SPOT = "H100/on-demand", "H100/spot"
NOW = 1_000_000.0
LEVELS = (LevelInput("rack", "rack"), LevelInput("host", "kubernetes.io/hostname"))


def node(name: str, kind: str, rack: str = "r", *, cordoned: bool = False) -> NodeView:
    """One with room for one worker."""
    labels = {"kubernetes.io/hostname": name, "rack": rack, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    labels |= {"muster.dev/capacity": kind} if kind else {}
    allocatable = {"cpu": "64", "memory": "1Ti", "pods": "110", GPUS: "8"}
    return NodeView.from_raw(
        {
            "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
            "spec": {"unschedulable": cordoned},
            "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
        }
    )


def fleet(sure: int, spot: int, rack: str = "r") -> list[NodeView]:
    stays = [node(f"{rack}-d{index}", "on-demand", rack) for index in range(sure)]
    return stays + [node(f"{rack}-s{index}", "spot", rack) for index in range(spot)]


def only(kind: str) -> NodeFilter:
    return NodeFilter(gpu_type="H100", capacity=(kind,))


def plain(uid: str, workers: int, kind: str = "spot", **fields: object) -> JobInput:
    job = JobInput(
        uid=uid,
        queue="q",
        workers=workers,
        request={GPUS: 8, "pods": 1},
        node_filter=only(kind),
        flavour=f"H100/{kind}",
        submitted=NOW,
        run=RunInput(restart=10.0, grace=30.0),
    )
    return replace(job, **fields)  # type: ignore[arg-type]


def based(
    uid: str = "job", *, base: int = 2, wish: int = 4, most: int = 6, step: int = 1, **fields: object
) -> JobInput:
    more = BeyondInput(only("spot"), SPOT, wish - base, most - base, step)
    return plain(uid, base, "on-demand", beyond=more, **fields)


def running(job: JobInput, *on: str, since: float = 3_600.0, saved: float = 0.0) -> JobInput:
    """It runs on these nodes for so long, and has saved that many seconds ago."""
    run = replace(job.run, started=NOW - since, saved=NOW - saved)
    base = job.workers if job.beyond is not None else 0
    return replace(job, placed=on, base=base, workers=len(on), holding=True, generation=1, run=run)


def world(
    nodes: Iterable[NodeView],
    jobs: Iterable[JobInput],
    sure: int = 10**6,
    spot: int = 10**6,
    pods: Iterable[PodView] = (),
) -> Snapshot:
    """Quotas in GPUs."""
    quotas = tuple(QuotaInput(kind, GPUS, nominal=most, borrowing=0) for kind, most in ((SURE, sure), (SPOT, spot)))
    queues = [QueueInput("q", quotas=quotas)]
    return build(nodes=list(nodes), pods=pods, jobs=list(jobs), queues=queues, levels=LEVELS, now=NOW)


def names(snapshot: Snapshot, nodes: object) -> list[str]:
    return [snapshot.nodes.names[index] for index in np.asarray(nodes).tolist()]


def start(snapshot: Snapshot) -> list[str]:
    (admission,) = plan(snapshot).admissions
    assert admission.base == 2
    assert snapshot.flavours[admission.flavour] == SURE
    return names(snapshot, admission.nodes)


def test_a_gang_starts_on_its_base_with_what_it_wishes_beyond_it() -> None:
    found = start(world(fleet(4, 4), [based()]))
    assert [name[:3] for name in found] == ["r-d", "r-d", "r-s", "r-s"], "as many as `replicas`, and no more"


@pytest.mark.parametrize(("spot", "quota", "beyond"), [(0, 80, 0), (1, 80, 1), (2, 80, 2), (4, 8, 1), (4, 0, 0)])
def test_it_starts_without_what_there_is_no_room_or_quota_for(spot: int, quota: int, beyond: int) -> None:
    found = start(world(fleet(4, spot), [based()], spot=quota))
    assert [name[2] for name in found] == ["d", "d"] + ["s"] * beyond


@pytest.mark.parametrize(("sure", "quota"), [(1, 80), (4, 8)])
def test_it_waits_for_its_base_whatever_spot_capacity_there_is(sure: int, quota: int) -> None:
    decided = plan(world(fleet(sure, 8), [based()], sure=quota))
    assert not decided.admissions
    assert [each.uid for each in decided.waiting] == ["job"]


def test_workers_beyond_the_base_come_in_whole_steps() -> None:
    assert len(start(world(fleet(2, 3), [based(wish=6, most=6, step=2)]))) == 4


def test_one_domain_holds_the_base_and_what_is_beyond_it() -> None:
    there = [*fleet(2, 1, "a"), *fleet(1, 5, "b")]
    job = based(mode=TopologyMode.REQUIRED, level="rack")
    assert start(world(there, [job])) == ["a-d0", "a-d1", "a-s0"]


def test_a_plan_applied_to_its_own_snapshot_changes_nothing() -> None:
    there = fleet(3, 3)
    found = start(world(there, [based()]))
    again = plan(world(there, [running(based(), *found, since=0.0)]))
    assert (again.admissions, again.evictions, again.promises, list(again.waiting)) == ((), (), (), [])


def test_each_part_holds_quota_of_its_own_kind() -> None:
    shot = world(fleet(3, 3), [running(based(), "r-d0", "r-d1", "r-s0")])
    gpus = shot.resources.index(GPUS)
    held = {
        (uid, shot.flavours[flavour]): int(amount)
        for uid, flavour, amount in zip(shot.jobs.uids, shot.jobs.flavours, shot.jobs.held[:, gpus], strict=True)
    }
    assert held == {("job", SURE): 16, ("job" + BEYOND, SPOT): 8}
    assert lost_seconds(shot, np.array([0, 1])).tolist() == [10.0 * 24] * 2, "who leaves stops the whole gang"


def test_it_grows_beyond_its_base_and_beyond_what_it_has() -> None:
    for on in (("r-d0", "r-d1"), ("r-d0", "r-d1", "r-s1")):
        shot = world(fleet(4, 3), [running(based(), *on)])
        decided = plan(shot)
        (eviction,), (promise,) = decided.evictions, decided.promises
        assert (eviction.uid, eviction.reason, eviction.beneficiary) == ("job", MoveReason.GROWN, "job")
        assert names(shot, promise.nodes) == ["r-d0", "r-d1", "r-s0", "r-s1", "r-s2"]
        assert (promise.uid, promise.base, shot.flavours[promise.flavour]) == ("job", 2, SURE)


def test_it_never_grows_on_the_kind_of_its_base() -> None:
    assert not plan(world(fleet(8, 0), [running(based(), "r-d0", "r-d1")])).evictions


def test_who_ranks_before_takes_what_is_beyond_the_base_and_no_more_than_that() -> None:
    job = running(based(), "r-d0", "r-d1", "r-s0", "r-s1")
    for asked, left in ((1, ["r-d0", "r-d1", "r-s0"]), (2, ["r-d0", "r-d1"])):
        shot = world(fleet(2, 2), [job, plain("urgent", asked, priority=10)])
        decided = plan(shot)
        (eviction,) = decided.evictions
        assert (eviction.uid, eviction.reason, eviction.beneficiary) == ("job", MoveReason.SHRUNK, "urgent")
        promises = {each.uid: each for each in decided.promises}
        assert names(shot, promises["job"].nodes) == left
        assert promises["job"].base == 2
        assert len(promises["urgent"].nodes) == asked


def test_who_ranks_before_on_the_bases_kind_ends_the_whole_gang() -> None:
    job = running(based(), "r-d0", "r-d1", "r-s0", "r-s1")
    decided = plan(world(fleet(2, 2), [job, plain("urgent", 1, "on-demand", priority=10)]))
    (eviction,), (promise,) = decided.evictions, decided.promises
    assert (eviction.uid, eviction.reason) == ("job", MoveReason.PREEMPTED)
    assert promise.uid == "urgent"
    assert eviction.lost == 10.0 * 32, "all four workers start again"


def test_a_lowered_quota_of_spot_leaves_the_base_alone() -> None:
    shot = world(fleet(2, 2), [running(based(), "r-d0", "r-d1", "r-s0", "r-s1")], spot=8)
    decided = plan(shot)
    (eviction,), (promise,) = decided.evictions, decided.promises
    assert (eviction.reason, eviction.beneficiary) == (MoveReason.SHRUNK, "job")
    assert names(shot, promise.nodes) == ["r-d0", "r-d1", "r-s0"]


def test_a_spot_node_that_is_taken_back_costs_nothing_but_its_worker() -> None:
    """It is replaced by another spot node, or else the gang goes on without it. Nothing happens to the base."""
    job = running(based(), "r-d0", "r-d1", "r-s0", "r-s1")
    lost = replace(job, lost=(3,), shrinks=NOW)
    there = [each for each in fleet(3, 3) if each.name != "r-s1"]
    (replacement,) = plan(world(there, [lost])).replacements
    assert (replacement.uid, replacement.indexes.tolist()) == ("job", [3])
    assert names(world(there, [lost]), replacement.nodes) == ["r-s2"], "no node of the base's kind"
    shot = world(there[:-1], [lost])
    decided = plan(shot)
    assert not decided.replacements
    (eviction,), (promise,) = decided.evictions, decided.promises
    assert (eviction.reason, names(shot, promise.nodes)) == (MoveReason.WORKERS_LOST, ["r-d0", "r-d1", "r-s0"])


def test_a_base_keeps_its_room_while_its_gang_goes_on_with_fewer() -> None:
    job = replace(running(based(priority=2), "r-d0", "r-d1", "r-s0", "r-s1"), lost=(3,), shrinks=NOW)
    there = [each for each in fleet(3, 2) if each.name != "r-s1"]
    low = running(plain("low", 1, "on-demand"), "r-d2")
    shot = world(there, [job, low, plain("late", 2, "on-demand", priority=1)])
    (promise,) = plan(shot).promises
    assert (promise.uid, names(shot, promise.nodes)) == ("job", ["r-d0", "r-d1", "r-s0"])


def test_all_spot_nodes_may_go_at_once() -> None:
    lost = replace(running(based(), "r-d0", "r-d1", "r-s0", "r-s1"), lost=(2, 3), shrinks=NOW)
    shot = world(fleet(3, 0), [lost])
    decided = plan(shot)
    (eviction,), (promise,) = decided.evictions, decided.promises
    assert (eviction.reason, names(shot, promise.nodes)) == (MoveReason.WORKERS_LOST, ["r-d0", "r-d1"])


def test_a_lost_worker_of_the_base_goes_to_a_node_of_that_kind_and_to_no_other() -> None:
    lost = replace(running(based(), "r-d0", "r-d1", "r-s0"), lost=(1,), shrinks=NOW)
    there = [each for each in fleet(3, 3) if each.name != "r-d1"]
    shot = world(there, [lost])
    (replacement,) = plan(shot).replacements
    assert (replacement.indexes.tolist(), names(shot, replacement.nodes)) == ([1], ["r-d2"])
    decided = plan(world(fleet(1, 3), [lost]))
    assert (decided.replacements, decided.evictions) == ((), ()), "it waits, and then starts again whole"


def stopped(job: JobInput, *promised: str) -> JobInput:
    """It starts again on these nodes as soon as it can."""
    return replace(
        job, workers=len(promised), promised=promised, promised_base=2, run=replace(job.run, beneficiary=job.uid)
    )


def test_a_gang_starts_again_on_what_it_is_promised() -> None:
    shot = world(fleet(2, 2), [stopped(based(), "r-d0", "r-d1", "r-s1")])
    assert shot.jobs.states.tolist() == [JobState.RESERVED] * 2
    assert start(shot) == ["r-d0", "r-d1", "r-s1"]


def test_a_promise_whose_spot_node_is_gone_is_one_of_the_base() -> None:
    """With another spot node in its place, where there is one."""
    job = stopped(based(wish=3, most=3), "r-d0", "r-d1", "r-s1")
    shot = world([*fleet(2, 1), node("r-s2", "spot", cordoned=True)], [job])
    decided = plan(shot)
    assert [(each.uid, each.base, names(shot, each.nodes)) for each in decided.reduced] in (
        [],
        [("job", 2, ["r-d0", "r-d1"])],
    )
    (admission,) = decided.admissions
    assert names(shot, admission.nodes)[:2] == ["r-d0", "r-d1"]
    assert not decided.broken


def test_a_promise_waits_for_its_base() -> None:
    stranger = plain("other", 1, "on-demand", holding=True, placed=("r-d1",), generation=1)
    stranger = replace(stranger, run=replace(stranger.run, leaving=True, beneficiary="job"))
    decided = plan(world(fleet(2, 2), [stranger, stopped(based(), "r-d0", "r-d1", "r-s1")]))
    assert not decided.admissions
    assert [each.uid for each in decided.waiting] == ["job"], "it is one job to whoever looks"


def pod(index: int, on: str) -> PodView:
    """Of worker `index` of the gang `job`."""
    labels = {"muster.dev/job": "j", "muster.dev/generation": "1", "muster.dev/index": str(index)}
    owner = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "uid": "job", "controller": True}
    limits = {"requests": {GPUS: "8"}, "limits": {GPUS: "8"}}
    return PodView.from_raw(
        {
            "metadata": {
                "name": f"j-g1-{index}-0",
                "uid": f"u{index}",
                "labels": {**labels, "muster.dev/attempt": "0"},
                "ownerReferences": [owner],
            },
            "spec": {"nodeName": on, "containers": [{"name": "trainer", "resources": limits}]},
            "status": {"phase": "Running"},
        }
    )


def test_pods_hold_the_quota_of_their_part() -> None:
    job = replace(running(based(), "r-d0", "r-d1", "r-s0"), reserving=False)
    shot = world(fleet(2, 2), [job], pods=[pod(0, "r-d0"), pod(2, "r-s0")])
    gpus = shot.resources.index(GPUS)
    assert shot.jobs.held[:, gpus].tolist() == [8, 8]


def test_a_gang_keeps_what_it_is_promised_beyond_its_base_when_the_pods_of_that_are_gone_first() -> None:
    """One domain has to hold it, and the base tells which."""
    job = running(based(mode=TopologyMode.REQUIRED, level="rack"), "r-d0", "r-d1", "r-s0", "r-s1")
    job = replace(job, reserving=False, promised=("r-d0", "r-d1", "r-s0"), promised_base=2)
    job = replace(job, run=replace(job.run, leaving=True, beneficiary="job"))
    decided = plan(world(fleet(2, 2), [job], pods=[pod(3, "r-s1")]))
    assert (decided.reduced, decided.replacements, decided.broken) == ((), (), ())


def test_a_gang_with_workers_beyond_its_base_is_one_job_of_its_queue() -> None:
    shot = world(fleet(3, 3), [running(based(), "r-d0", "r-d1", "r-s0"), running(plain("other", 1), "r-s1")])
    assert Tally.of(shot, {}).running.tolist() == [2]


def test_who_lacks_quota_of_spot_is_told_of_the_gang_that_holds_it_beyond_its_base() -> None:
    job = running(based(), "r-d0", "r-d1", "r-s0", "r-s1")
    (waiting,) = plan(world(fleet(2, 4), [job, plain("late", 1, submitted=NOW + 1)], spot=16)).waiting
    assert waiting.holders == ("job",)


def test_who_waits_behind_the_promise_of_a_gang_is_told_its_name() -> None:
    """Of the spot nodes' quota, which the workers beyond the base hold."""
    there = [
        plain(on, 1, kind, holding=True, placed=(on,), run=RunInput(leaving=True, beneficiary="job"), request={GPUS: 1})
        for on, kind in (("r-d1", "on-demand"), ("r-s1", "spot"))
    ]
    late = plain("late", 2, submitted=NOW + 1)
    decided = plan(world(fleet(2, 4), [*there, stopped(based(), "r-d0", "r-d1", "r-s1"), late], spot=17))
    assert {each.uid: each.blocker for each in decided.waiting} == {"job": "", "late": "job"}


def needed(job: JobInput, least: int, most: int) -> JobInput:
    """Its spec was edited since, so that it may not do without so many of those beyond its base."""
    assert job.beyond is not None
    return replace(job, beyond=replace(job.beyond, least=least, most=most))


def test_a_gang_whose_fewest_workers_were_raised_gives_back_what_is_beyond_those() -> None:
    job = needed(running(based(), "r-d0", "r-d1", "r-s0", "r-s1"), 1, 4)
    shot = world(fleet(2, 2), [job, plain("urgent", 1, priority=10)])
    decided = plan(shot)
    assert {each.uid: names(shot, each.nodes) for each in decided.promises}["job"] == ["r-d0", "r-d1", "r-s0"]
    decided = plan(world(fleet(2, 2), [job, plain("urgent", 2, priority=10)]))
    (eviction,) = decided.evictions
    assert (eviction.uid, eviction.reason) == ("job", MoveReason.PREEMPTED)
    assert [each.uid for each in decided.promises] == ["urgent"], "its base alone is too few"


@pytest.mark.parametrize("most", [0, 2])
def test_a_gang_that_needs_all_its_workers_starts_again_with_none_fewer(most: int) -> None:
    job = needed(stopped(based(), "r-d0", "r-d1", "r-s0", "r-s1"), most, most)
    (admission,) = plan(world(fleet(2, 2), [job])).admissions
    assert len(admission.nodes) == 4
    decided = plan(world(fleet(2, 1), [job]))
    assert (decided.admissions, decided.reduced, decided.broken) == ((), (), ("job",))


def test_a_gang_on_a_broken_base_is_not_moved_aside_for_others() -> None:
    """It could not go on there: its own replacement comes first."""
    there = [*fleet(2, 2, "a"), *fleet(0, 2, "b"), *fleet(0, 1, "c")]
    there = [replace(each, unschedulable=each.name == "a-d1") for each in there]
    job = running(based(), "a-d0", "a-d1", "a-s0")
    asks = plain("asks", 2, mode=TopologyMode.REQUIRED, level="rack", submitted=NOW + 1)
    other = running(plain("other", 1, submitted=NOW - 1), "b-s0", saved=3_000.0)
    decided = plan(world(there, [job, other, asks]))
    assert "job" not in {each.uid for each in decided.evictions}


def test_workers_beyond_a_base_take_no_quota_that_those_who_leave_still_hold() -> None:
    leaver = plain("leaver", 2, holding=True, placed=("r-s2", "r-s3"), generation=1, run=RunInput(leaving=True))
    there = fleet(2, 4)
    assert start(world(there, [based(), leaver], spot=24)) == ["r-d0", "r-d1", "r-s0"]
    job = running(based(most=4), "r-d0", "r-d1", since=36_000.0)
    assert not plan(world(there, [job, leaver], spot=16)).evictions, "it would start again without them"
    shot = world(there, [job, leaver], spot=32)
    (promise,) = plan(shot).promises
    assert names(shot, promise.nodes) == ["r-d0", "r-d1", "r-s0", "r-s1"]


def test_a_base_moves_alone_unless_its_gang_needs_the_others() -> None:
    there = [*fleet(3, 0, "a"), *fleet(3, 1, "b")]
    asks = plain("asks", 3, "on-demand", mode=TopologyMode.REQUIRED, level="rack", submitted=NOW + 1)
    job = running(based(base=1, wish=2, most=3), "a-d0", "b-s0", since=36_000.0)
    other = running(plain("other", 1, "on-demand", terms=TermsInput(preemptible=False)), "b-d0")
    shot = world(there, [job, other, asks])
    (eviction,) = plan(shot).evictions
    assert (eviction.uid, eviction.reason, eviction.beneficiary) == ("job", MoveReason.DEFRAGMENTED, "asks")
    assert not plan(world(there, [needed(job, 1, 1), other, asks])).evictions


def test_a_gang_that_starts_again_in_a_closed_queue_gets_no_more_there() -> None:
    shot = world(fleet(2, 2), [stopped(based(), "r-d0", "r-d1")])
    assert len(start(shot)) == 4
    closed = np.zeros_like(shot.queues.open)
    assert start(replace(shot, queues=replace(shot.queues, open=closed))) == ["r-d0", "r-d1"]


def test_a_gang_that_ends_takes_no_room_to_grow() -> None:
    job = running(based(), "r-d0", "r-d1", "r-s0", since=36_000.0)
    other = running(plain("other", 1, sizes=(1, 2, 1)), "r-s1", since=36_000.0)
    shot = world(fleet(2, 3), [job, other], sure=8)
    decided = plan(shot)
    ends = {each.uid: each.reason for each in decided.evictions}
    assert ends == {"job": MoveReason.QUOTA_LOWERED, "other": MoveReason.GROWN}
    assert {each.uid: names(shot, each.nodes) for each in decided.promises} == {"other": ["r-s1", "r-s2"]}


def test_a_gang_with_a_base_is_told_what_it_lacks_beyond_it() -> None:
    def stay(snapshot: Snapshot) -> tuple[StayReason, str, int]:
        found = plan(snapshot).stays
        told = found("job") if found is not None else None
        assert told is not None
        return told.reason, told.message, told.workers

    for on in (("r-d0", "r-d1"), ("r-d0", "r-d1", "r-s0")):
        job, size = running(based(), *on, since=36_000.0), len(on) + 1
        lacks, spot = StayReason.INSUFFICIENT_CAPACITY, len(on) - 2
        (reason, message, workers) = stay(world(fleet(4, spot), [job]))
        assert (reason, workers) == (lacks, size)
        assert message.startswith(f"for its next size, {size} workers, it needs 1 worker × 8 nvidia.com/gpu; ")
        (reason, message, _) = stay(world(fleet(4, 4), [job], spot=8 * spot))
        assert reason is StayReason.QUOTA_EXCEEDED
        assert "of H100/spot; queue q uses" in message


def test_who_waits_for_what_a_gang_gives_back_starts_when_that_is_gone() -> None:
    """Also where all that it has beyond its base goes."""
    job = running(based(), "r-d0", "r-d1", "r-s0", "r-s1")
    run = replace(job.run, leaving=True, beneficiary="job")
    job = replace(job, promised=("r-d0", "r-d1"), promised_base=2, run=run)
    urgent = plain("urgent", 2, promised=("r-s0", "r-s1"), promised_base=2)
    (waiting,) = plan(world(fleet(2, 2), [job, urgent])).waiting
    assert (waiting.uid, waiting.expected) == ("urgent", NOW + 30.0)


@dataclass
class Gang:
    """As the operator keeps it."""

    job: JobInput
    on: list[str] = field(default_factory=list)
    base: int = 0
    then: list[str] = field(default_factory=list)
    then_base: int = 0
    leaving: bool = False
    beneficiary: str = ""
    lost: set[int] = field(default_factory=set)

    def input(self) -> JobInput:
        run = replace(self.job.run, started=NOW - 3_600, saved=NOW, leaving=self.leaving, beneficiary=self.beneficiary)
        return replace(
            self.job,
            workers=len(self.on or self.then) or self.job.workers,
            placed=tuple(self.on),
            base=self.base,
            promised=tuple(self.then),
            promised_base=self.then_base,
            holding=bool(self.on),
            generation=int(bool(self.on)),
            lost=tuple(sorted(self.lost)) if self.on and not self.leaving else (),
            shrinks=NOW,
            run=run,
        )


TIMES = st.integers(0, 3)


class Gangs(RuleBasedStateMachine):
    """Any sequence of arrivals, ends, lost nodes and plans: spot nodes never hold any of a base, and a gang that runs
    has all of its base."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = {each.name: each for each in [*fleet(4, 3, "a"), *fleet(2, 4, "b")]}
        self.gangs: dict[str, Gang] = {}
        self.spot = 48
        self.number = 0

    def snapshot(self) -> Snapshot:
        return world(self.nodes.values(), [each.input() for each in self.gangs.values()], sure=48, spot=self.spot)

    @rule(
        base=st.integers(1, 3),
        more=st.integers(0, 3),
        extra=st.integers(1, 3),
        priority=st.integers(0, 2),
        mode=st.sampled_from(list(TopologyMode)),
        times=TIMES,
    )
    def submit(self, base: int, more: int, extra: int, priority: int, mode: TopologyMode, times: int) -> None:
        self.number += 1
        level = "" if mode is TopologyMode.UNCONSTRAINED else "rack"
        job = based(f"g{self.number}", base=base, wish=base + more, most=base + more + extra, priority=priority)
        self.gangs[job.uid] = Gang(replace(job, mode=mode, level=level, submitted=NOW + self.number))
        self.decide(times)

    @rule(
        workers=st.integers(1, 3), kind=st.sampled_from(["spot", "on-demand"]), priority=st.integers(0, 3), times=TIMES
    )
    def submit_plain(self, workers: int, kind: str, priority: int, times: int) -> None:
        self.number += 1
        job = plain(f"p{self.number}", workers, kind, priority=priority, submitted=NOW + self.number)
        self.gangs[job.uid] = Gang(job)
        self.decide(times)

    @rule(which=st.integers(0, 20), times=TIMES)
    def finish(self, which: int, times: int) -> None:
        for uid in sorted(self.gangs)[which : which + 1]:
            del self.gangs[uid]
        self.decide(times)

    @rule(which=st.integers(0, 12), gone=st.booleans(), times=TIMES)
    def node_breaks(self, which: int, gone: bool, times: int) -> None:
        name = sorted(self.nodes)[which % len(self.nodes)]
        rack, kind = name[0], "spot" if name[2] == "s" else "on-demand"
        if gone and len(self.nodes) > 6:
            del self.nodes[name]
        else:
            self.nodes[name] = node(name, kind, rack, cordoned=True)
        for gang in self.gangs.values():
            gang.lost |= {index for index, on in enumerate(gang.on) if on == name}
        self.decide(times)

    @rule(which=st.integers(0, 12), times=TIMES)
    def nodes_come(self, which: int, times: int) -> None:
        for each in [*fleet(4, 3, "a"), *fleet(2, 4, "b")][which:]:
            self.nodes[each.name] = each
        self.decide(times)

    @rule(quota=st.sampled_from([16, 48, 48]), times=TIMES)
    def limit(self, quota: int, times: int) -> None:
        self.spot = quota
        self.decide(times)

    def leave(self) -> None:
        """Pods of all who were asked to go are gone."""
        for gang in self.gangs.values():
            if gang.leaving:
                gang.on, gang.base, gang.leaving, gang.lost = [], 0, False, set()
                gang.beneficiary = gang.job.uid if gang.then else ""

    def decide(self, times: int) -> None:
        """So many plans, each carried out to its end but for the last."""
        for number in range(times):
            if number:
                self.leave()
            snapshot = self.snapshot()
            self.carry_out(snapshot, plan(snapshot, DEFAULT))
            self.bases_are_safe()
            self.no_room_is_taken_twice()

    def carry_out(self, snapshot: Snapshot, decided: Plan) -> None:
        uids = [each.uid for each in (*decided.admissions, *decided.evictions, *decided.promises, *decided.reduced)]
        assert not [uid for uid in (*uids, *decided.broken) if uid.endswith(BEYOND)]
        for uid in decided.broken:
            self.gangs[uid].then, self.gangs[uid].beneficiary = [], ""
        for each in decided.replacements:
            gang = self.gangs[each.uid]
            where = gang.then or gang.on
            for index, name in zip(each.indexes.tolist(), names(snapshot, each.nodes), strict=True):
                where[index] = name
                gang.lost.discard(index)
        for each in decided.reduced:
            self.gangs[each.uid].then = names(snapshot, each.nodes)
            self.gangs[each.uid].then_base = each.base
        for each in decided.promises:
            self.gangs[each.uid].then = names(snapshot, each.nodes)
            self.gangs[each.uid].then_base = each.base
        for each in decided.evictions:
            gang = self.gangs[each.uid]
            assert gang.on
            assert not gang.leaving
            if gang.job.beyond is not None:
                event(f"{each.reason.value}{', goes on' if gang.then else ''}")
            gang.leaving = True
            gang.beneficiary = each.uid if gang.then else each.beneficiary
        for each in decided.admissions:
            gang = self.gangs[each.uid]
            assert not gang.on
            if each.base:
                event(f"starts with its base{' and more' if each.base < len(each.nodes) else ''}")
            gang.on, gang.base, gang.then, gang.beneficiary = names(snapshot, each.nodes), each.base, [], ""

    @invariant()
    def bases_are_safe(self) -> None:
        for gang in self.gangs.values():
            more = gang.job.beyond
            for on, base in ((gang.on, gang.base), (gang.then, gang.then_base)):
                if not on:
                    continue
                kinds = [name[2] for name in on]
                if more is None:
                    assert len(on) == gang.job.workers
                    continue
                assert base == gang.job.workers
                assert kinds == ["d"] * base + ["s"] * (len(on) - base)
                assert len(on) - base <= more.most
                if gang.job.mode is TopologyMode.REQUIRED:
                    assert all(one[0] == other[0] for one, other in pairwise(on))

    @invariant()
    def no_room_is_taken_twice(self) -> None:
        taken: list[str] = []
        for gang in self.gangs.values():
            taken += gang.on
        assert len(taken) == len(set(taken))
        kept = [name for gang in self.gangs.values() for name in gang.then]
        assert len(kept) == len(set(kept))

    @invariant()
    def quotas_hold(self) -> None:
        used = sum(8 for gang in self.gangs.values() for name in gang.on if name[2] == "d")
        assert used <= 48


TestGangs = Gangs.TestCase
TestGangs.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
