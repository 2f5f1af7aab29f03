"""A round that is given the first few of each class decides as one that is given all."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from muster.cluster.jobs import JobInput
from muster.cluster.queues import QueueInput, QuotaInput
from muster.cluster.snapshot import LevelInput, build
from muster.cluster.views import NodeView
from muster.controllers.alarms import Alarms
from muster.controllers.roster import Roster, class_of, exhausted
from muster.scheduling.plan import Plan
from muster.scheduling.planner import plan
from muster.scheduling.policy import Policy
from muster.scheduling.snapshot import TopologyMode

pytestmark = pytest.mark.unit

HOST = (LevelInput("rack", "rack"), LevelInput("host", "kubernetes.io/hostname"))


def node(index: int) -> NodeView:
    labels = {"rack": f"r{index // 4}", "kubernetes.io/hostname": f"n{index}"}
    amounts = (("cpu", 8_000), ("memory", 2**36), ("pods", 110))
    return NodeView(f"n{index}", f"u{index}", labels, (), True, False, amounts)


def jobs_of(chosen: random.Random, count: int) -> list[JobInput]:
    return [
        JobInput(
            uid=f"{chosen.randrange(10**9):09d}",
            queue=f"q{chosen.randrange(3)}",
            workers=chosen.choice((1, 2, 4)),
            request={"cpu": chosen.choice((500, 2_000, 4_000)), "pods": 1},
            priority=chosen.choice((0, 10)),
            submitted=float(chosen.randrange(1_000)),
            mode=chosen.choice((TopologyMode.REQUIRED, TopologyMode.PREFERRED)),
            level="rack",
        )
        for _ in range(count)
    ]


def decide(jobs: list[JobInput]) -> Plan:
    queues = [QueueInput(f"q{index}", quotas=(QuotaInput("", "cpu", 20_000),), cohort="c") for index in range(3)]
    nodes = [node(index) for index in range(8)]
    snapshot = build(nodes=nodes, pods=(), jobs=jobs, queues=queues, levels=HOST, now=2_000.0)
    return plan(snapshot, Policy(explain=False))


@pytest.mark.parametrize("seed", range(40))
def test_first_of_each_class_decide_as_all_do(seed: int) -> None:
    chosen = random.Random(seed)
    jobs = jobs_of(chosen, 300)
    roster, by_uid = Roster(), {job.uid: job for job in jobs}
    roster.keep(jobs)
    count = 1
    while True:
        shown, cut = roster.first(count, by_uid.get)
        found = decide(shown)
        if not exhausted(cut, {one.uid for one in found.admissions}):
            break
        count *= 2
    wanted = decide(jobs)
    assert [(one.uid, one.nodes.tolist()) for one in found.admissions] == [
        (one.uid, one.nodes.tolist()) for one in wanted.admissions
    ]


def test_of_each_class_the_first_submitted_are_shown() -> None:
    jobs = jobs_of(random.Random(7), 300)
    roster, by_uid = Roster(), {job.uid: job for job in jobs}
    for job in jobs:
        roster.put(job)
    shown, cut = roster.first(2, by_uid.get)
    assert max(Counter(class_of(job) for job in shown).values()) == 2
    for job in shown:
        alike = sorted((one.submitted, one.uid) for one in jobs if class_of(one) == class_of(job))
        assert (job.submitted, job.uid) in alike[:2]
    assert all(len(uids) == 2 for uids in cut)


def test_job_that_no_longer_waits_makes_room_for_the_next() -> None:
    first, second = (JobInput(uid, "q", 1, {"cpu": 1}, submitted=at) for uid, at in (("a", 1.0), ("b", 2.0)))
    roster = Roster()
    roster.put(second)
    roster.put(first)
    both = {"a": first, "b": second}
    assert roster.first(1, both.get) == ([first], [["a"]])
    assert roster.first(1, {"b": second}.get) == ([second], [])
    roster.drop("a")
    assert roster.first(1, both.get) == ([second], [])
    roster.keep([])
    assert roster.first(1, both.get) == ([], [])


def test_class_that_started_all_shown_of_it_is_exhausted() -> None:
    assert exhausted([["a", "b"]], {"a", "b"})
    assert not exhausted([["a", "b"]], {"a"})
    assert not exhausted([], {"a"})


def test_alarms_ring_once() -> None:
    alarms = Alarms()
    alarms.at("a", 5.0)
    alarms.at("b", 3.0)
    assert alarms.next == 3.0
    assert alarms.ring(4.0) == {"b"}
    assert alarms.ring(4.0) == set()
    assert alarms.ring(9.0) == {"a"}
    assert alarms.next is None


def test_alarm_that_is_asked_for_again_and_again_takes_no_more_room_and_one_that_comes_sooner_rings_first() -> None:
    alarms = Alarms()
    for turn in range(10_000):
        alarms.at("a", 604_800.0 + turn % 7 / 1e6)  # the same end of a run, as each turn works it out
    assert len(alarms) == 1
    alarms.at("a", 10.0)
    assert alarms.ring(10.0) == {"a"}
    alarms.at("a", 604_800.0)
    assert alarms.ring(604_799.0) == set()
    assert alarms.ring(604_801.0) == {"a"}
    assert len(alarms) == 0
