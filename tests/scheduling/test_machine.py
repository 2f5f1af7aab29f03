"""Any sequence of arrivals, ends, failures and changes of quota: every invariant of scheduling holds at every plan.

The operator is `tests/scheduling/operating.py`. It shows the planner what it has carried out, victims that take their
time included; time passes between plans. MUSTER_THOROUGH=1: 6,000 sequences, each of up to 60 steps.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster.scheduling.plan import Eviction, MoveReason, Plan
from muster.scheduling.planner import plan
from muster.scheduling.policy import Policy
from muster.scheduling.snapshot import FOREVER, JobState, Snapshot, TopologyMode

from . import oracle
from .cases import Job, Node, Queue
from .operating import Live, Operating, room_of
from .test_bystanders import decisions

pytestmark = pytest.mark.unit

POLICY = Policy(backfill=True)
SILENT = replace(POLICY, explain=False)
LIMITS = st.sampled_from([None, 2, 4, 8])
SEQUENCES, STEPS = (6_000, 60) if os.environ.get("MUSTER_THOROUGH") else (60, 30)


class Scheduling(RuleBasedStateMachine):
    """One cluster from its first job on."""

    @initialize(
        racks=st.lists(st.sampled_from([2, 4]), min_size=2, max_size=5),
        gpus=st.lists(LIMITS, min_size=2, max_size=2),
        cohort=st.booleans(),
        shortest=st.booleans(),
    )
    def build(self, racks: list[int], gpus: list[int | None], cohort: bool, shortest: bool) -> None:
        nodes = [
            Node(f"node-{index}", rack=f"rack-{index % 2}", gpus=each, cores=8) for index, each in enumerate(racks)
        ]
        queues = [
            Queue(f"queue-{index}", each, cohort=0 if cohort else -1, shortest=shortest)
            for index, each in enumerate(gpus)
        ]
        self.world = Operating({node.name: node for node in nodes}, {queue.name: queue for queue in queues})
        self.count = 0

    @rule(
        workers=st.integers(1, 4),
        gpus=st.sampled_from([0, 1, 2]),
        queue=st.sampled_from(["queue-0", "queue-1"]),
        priority=st.integers(0, 2),
        required=st.sampled_from([None, None, "rack", "host"]),
        least=st.integers(1, 4),
        more=st.integers(0, 2),
        preemptible=st.sampled_from([True, True, True, False]),
        length=st.sampled_from([10.0, 1_000.0, 100_000.0, FOREVER]),
    )
    def submit(
        self,
        workers: int,
        gpus: int,
        queue: str,
        priority: int,
        required: str | None,
        least: int,
        more: int,
        preemptible: bool,
        length: float,
    ) -> None:
        self.count += 1
        job = Job(
            f"job-{self.count:03}", workers, gpus, 1, queue=queue, priority=priority, required=required, length=length
        )
        self.world.now += 1
        self.world.submit(Live(job, least=min(least, workers), most=workers + more, preemptible=preemptible))

    @precondition(lambda self: any(live.leaving for live in self.world.jobs.values()))
    @rule(data=st.data())
    def victim_goes(self, data: st.DataObject) -> None:
        self.world.gone(data.draw(st.sampled_from([uid for uid, live in self.world.jobs.items() if live.leaving])))

    @precondition(lambda self: any(live.on for live in self.world.jobs.values()))
    @rule(data=st.data())
    def job_ends(self, data: st.DataObject) -> None:
        self.world.finish(data.draw(st.sampled_from([uid for uid, live in self.world.jobs.items() if live.on])))

    @rule(data=st.data())
    def node_is_cordoned_or_comes_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.nodes)))
        self.world.nodes[name] = replace(self.world.nodes[name], usable=not self.world.nodes[name].usable)

    @rule(queue=st.sampled_from(["queue-0", "queue-1"]), gpus=LIMITS, opened=st.sampled_from([True, True, True, False]))
    def quota_changes(self, queue: str, gpus: int | None, opened: bool) -> None:
        self.world.queues[queue] = replace(self.world.queues[queue], gpus=gpus, open=opened)

    @rule(seconds=st.sampled_from([60.0, 1_000.0, 30_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def planned(self) -> None:
        before = self.world.snapshot()
        made = plan(before, POLICY)
        assert decisions(plan(before, SILENT)) == decisions(made), "a plan that tells nobody why decides something else"
        self.check(before, made)
        self.world.carry_out(made)
        again = plan(self.world.snapshot(), POLICY)
        # Nothing changes any more, but for what follows from what the first plan did, and what it could not see:
        # 1. A job whose promise broke was RESERVED in the snapshot of that plan, so it had no turn in it. It has its
        #    first one in the next, as a job that waits.
        if made.broken:
            return
        # 2. What comes back beyond what it was asked for is promised to the next who looks for room that others have,
        #    and nobody looks before there is anybody to ask. No one is asked to go for that, and who was kept from the
        #    room that was kept for the job until then may start.
        if again.promises and not again.evictions and any(live.leaving for live in self.world.jobs.values()):
            return
        # 3. A promise for which nobody has to go (a node was mended, or its pods went meanwhile) comes true at once;
        #    nobody else starts, but who was kept from quota that is not kept any more.
        later = {each.uid for each in again.admissions} - {each.uid for each in made.promises}
        assert later <= oracle.starts_later(before, made, again)
        if later:
            return
        assert not again.broken
        # 4. A promise protects its job until it comes true. Then it is a placement like others, and who came after
        #    the promise and ranks before its job may ask it.
        # 5. Who was told to go counts as coming back, so what is left over of it is somebody's to ask for, who needs
        #    fewer victims now. Only placements that nobody has asked yet are asked, so this ends: see `teardown`.
        kept = {each.uid for each in made.admissions if before.jobs.states[before.jobs.uids.index(each.uid)]}
        if made.evictions or kept & {each.uid for each in again.evictions}:
            return
        # 6. Owners have their turn before a borrower, and so before those of higher priority between the two. One of
        #    these that no quota limits may ask them, for it needs no right to what is theirs.
        # 7. A job that is not preemptible makes others of its queue borrow, where the first owner in line would borrow
        #    itself and so has no turn before it. Those behind that one may ask them. So they may when a promise to
        #    such a job comes true: until then it uses nothing, and nobody borrows for it.
        fresh = {each.uid for each in made.admissions}
        unlimited = {uid for uid, live in self.world.jobs.items() if not live.job.gpus}
        firm = {self.world.jobs[uid].job.queue for uid in fresh if not self.world.jobs[uid].preemptible}

        def is_known(asked: Eviction) -> bool:
            reclaimed = asked.reason is MoveReason.RECLAIMED and self.world.jobs[asked.uid].job.queue in firm
            return reclaimed or (asked.uid in fresh and asked.beneficiary in unlimited)

        if again.evictions and all(map(is_known, again.evictions)):
            return
        assert (again.promises, again.evictions) == ((), ()), "a plan applied to its own snapshot changes something"

    def check(self, before: Snapshot, made: Plan) -> None:
        jobs, uids = before.jobs, before.jobs.uids
        self._check_everybody_is_told(before, made)
        self._check_admissions(before, made)
        promised = {each.uid for each in made.promises}
        evicted = {each.uid for each in made.evictions}
        assert len(promised) == len(made.promises)
        assert len(evicted) == len(made.evictions)
        assert not (promised | evicted) & {each.uid for each in made.admissions}
        for eviction in made.evictions:
            victim = uids.index(eviction.uid)
            assert jobs.states[victim] == JobState.HOLDING
            assert not jobs.runs.leaving[victim], "told to go twice"
            assert jobs.terms.preemptible[victim] or eviction.reason is MoveReason.GROWN
            assert not eviction.beneficiary or eviction.beneficiary in promised, "nobody is evicted in vain"
            assert eviction.lost >= 0
        for promise in made.promises:
            job = uids.index(promise.uid)
            self._check_nodes(before, job, promise.nodes.tolist())
            assert (jobs.states[job] == JobState.PENDING) != (promise.uid in evicted)

    def _check_everybody_is_told(self, before: Snapshot, made: Plan) -> None:
        told = [each.uid for each in (*made.admissions, *made.waiting)] + list(made.broken)
        waits = [uid for uid, live in self.world.jobs.items() if live.state is not JobState.HOLDING]
        assert sorted(told) == sorted(waits)
        assert all(each.message for each in made.waiting)

    def _check_admissions(self, before: Snapshot, made: Plan) -> None:
        free, use = before.nodes.free.copy(), oracle.usage(before)
        held = {uid for uid, live in self.world.jobs.items() if live.state is JobState.RESERVED}
        for job in [index for index, uid in enumerate(before.jobs.uids) if uid in held]:
            for resource in range(len(before.resources)):
                key = (int(before.jobs.queues[job]), int(before.jobs.flavours[job]), resource)
                use[key] -= int(before.jobs.held[job, resource])
        names = sorted(self.world.nodes)
        for admission in made.admissions:
            job, nodes = before.jobs.uids.index(admission.uid), admission.nodes.tolist()
            self._check_nodes(before, job, nodes)
            if admission.uid in held:
                assert tuple(names[node] for node in nodes) == self.world.promised_by(made, admission.uid)
            for node in nodes:
                free[node] -= before.jobs.requests[job]
                assert (free[node][before.jobs.requests[job] > 0] >= 0).all(), "a node gives more than it has"
            grown = replace(before.jobs, workers=before.jobs.workers.copy())
            grown.workers[job] = len(nodes)
            assert oracle.quota_allows(replace(before, jobs=grown), use, job), "quota is passed"
            oracle.add(replace(before, jobs=grown), use, job)

    def _check_nodes(self, before: Snapshot, job: int, nodes: list[int]) -> None:
        jobs = before.jobs
        least, most = int(jobs.sizes.least[job]), int(jobs.sizes.most[job])
        assert least <= len(nodes) <= most, "a gang of a size that it may not have"
        assert before.nodes.usable[nodes].all()
        assert before.eligible[jobs.filters[job], nodes].all()
        again = jobs.states[job] == JobState.HOLDING or jobs.runs.beneficiary[job] == job
        assert before.queues.open[jobs.queues[job]] or again
        if jobs.modes[job] == TopologyMode.REQUIRED:
            domains = set(before.nodes.domains[nodes, jobs.levels[job]].tolist())
            assert len(domains) == 1, "required is broken"

    @invariant()
    def no_room_is_given_twice(self) -> None:
        """Those who stay and those to whom room is promised fit together on every node."""
        for name, node in getattr(self, "world", Operating({}, {})).nodes.items():
            gpus, cores = self.world.booked(name)
            assert gpus <= room_of(node)[0]
            assert cores <= room_of(node)[1]

    def teardown(self) -> None:
        """Victims go one after the other, nothing else happens: every promise comes true, and then there is rest."""
        if not hasattr(self, "world"):
            return
        for node in list(self.world.nodes.values()):
            self.world.nodes[node.name] = replace(node, usable=True)
        for _ in range(4 * len(self.world.jobs) + 4):
            made = plan(self.world.snapshot(), POLICY)
            self.check(self.world.snapshot(), made)
            self.world.carry_out(made)
            self.no_room_is_given_twice()
            leaving = [uid for uid, live in self.world.jobs.items() if live.leaving]
            if not leaving and not made.admissions and not made.broken:
                break
            for uid in leaving[:1]:
                self.world.gone(uid)
        assert not any(live.leaving or live.promised for live in self.world.jobs.values()), "no rest"


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(
    max_examples=SEQUENCES, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
)
