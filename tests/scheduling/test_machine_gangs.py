"""Any sequence of what may happen to gangs of every kind: slices, balance, spares, spot, windows, lost workers.

Beside `test_machine.py`, which says when a plan's own snapshot gives no further change; here each plan is checked word
by word against `brute.py` and `oracle.py`, and in the end there is rest. Decisions are counted by kind: sequences in
which nobody shrinks or is promoted say nothing of that. MUSTER_THOROUGH=1: 6,000 sequences.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from muster.scheduling.gangs import Gang
from muster.scheduling.plan import MoveReason, Plan
from muster.scheduling.planner import plan
from muster.scheduling.policy import Policy
from muster.scheduling.snapshot import FOREVER, NONE, PLAIN, Int, JobState, Shape, Snapshot, TopologyMode

from . import brute, oracle
from .cases import LEVELS, Job, Node, Queue
from .gangs_operating import ON_DEMAND, Cluster, Run
from .test_bystanders import decisions

pytestmark = [pytest.mark.unit, pytest.mark.timeout(900)]

POLICY = Policy()
SILENT = replace(POLICY, explain=False)
LIMITS = st.sampled_from([None, None, None, 4, 8])
AT_ONCE = st.sampled_from([True, True, True, False])
"""Whether a plan is made before anything else happens."""
RACK, HOST = LEVELS.index("rack"), LEVELS.index("host")
SHAPES = (
    (2, Shape(slices=((2, HOST),))),
    (4, Shape(slices=((2, RACK),))),
    (4, Shape(slices=((4, RACK), (2, HOST)))),
    (4, Shape(balanced=RACK)),
    (2, Shape(spares=1)),
    (4, Shape(slices=((2, RACK),), spares=1)),
)
"""(Workers, what they ask for)."""
KINDS = ("start", "replacement", *(reason.value for reason in MoveReason if reason is not MoveReason.DRAINED))
OFTEN = 4
"""So many decisions of each kind at least: seventy sequences have about five of the rarest."""
COUNTED = Counter[str]()
SEQUENCES, STEPS = (6_000, 60) if os.environ.get("MUSTER_THOROUGH") else (70, 30)
TRIES = 6


class Gangs(RuleBasedStateMachine):
    """One cluster from its first job on."""

    made_of: type[Cluster] = Cluster

    @initialize(
        gpus=st.lists(st.sampled_from([2, 4, 4]), min_size=4, max_size=8),
        spot=st.integers(0, 2),
        limits=st.lists(LIMITS, min_size=3, max_size=3),
        weights=st.lists(st.sampled_from([1.0, 3.0]), min_size=3, max_size=3),
        shortest=st.booleans(),
        jobs=st.integers(0, 4),
    )
    def build(
        self, gpus: list[int], spot: int, limits: list[int | None], weights: list[float], shortest: bool, jobs: int
    ) -> None:
        nodes = [
            Node(f"node-{index}", block=f"b{index // 4}", rack=f"r{index // 2}", gpus=each, cores=8)
            for index, each in enumerate(gpus)
        ]
        above = [None, "queue-0", "queue-0"]
        queues = [
            Queue(f"queue-{index}", gpus=limits[index], parent=above[index], weight=weights[index], shortest=shortest)
            for index in range(3)
        ]
        names = [node.name for node in nodes]
        self.world = self.made_of(
            {node.name: node for node in nodes}, {queue.name: queue for queue in queues}, frozenset(names[:spot])
        )
        self.count = 0
        for index in range(jobs):
            workers, shape = (*SHAPES, (3, PLAIN))[(index + len(gpus)) % (len(SHAPES) + 1)]
            job = Job(self._name(), workers, 1 + index % 2, 1, queue=f"queue-{index % 3}")
            self._add(Run(job, workers, workers, shape), at_once=False)
        self.planned()

    def _add(self, run: Run, at_once: bool) -> None:
        self.world.now += 1
        self.world.submit(run)
        self._then(at_once)

    def _then(self, at_once: bool) -> None:
        if at_once:
            self.planned()

    def _name(self) -> str:
        self.count += 1
        return f"job-{self.count:03}"

    @rule(
        workers=st.integers(1, 4),
        gpus=st.sampled_from([0, 1, 2]),
        queue=st.integers(0, 2),
        priority=st.integers(0, 2),
        required=st.sampled_from([None, None, "rack", "host"]),
        least=st.integers(1, 4),
        more=st.integers(0, 2),
        spot=st.sampled_from([None, 0.0, 600.0]),
        opens=st.sampled_from([0.0] * 5 + [500.0]),
        preemptible=st.sampled_from([True, True, True, False]),
        at_once=AT_ONCE,
    )
    def submit(
        self,
        workers: int,
        gpus: int,
        queue: int,
        priority: int,
        required: str | None,
        least: int,
        more: int,
        spot: float | None,
        opens: float,
        preemptible: bool,
        at_once: bool,
    ) -> None:
        job = Job(self._name(), workers, gpus, 1, queue=f"queue-{queue}", priority=priority, required=required)
        run = Run(job, min(least, workers), workers + more, preemptible=preemptible)
        run.spot = None if spot is None else self.world.now + spot
        run.opens = self.world.now + opens if opens else 0.0
        self._add(run, at_once)

    @rule(
        kind=st.sampled_from(SHAPES),
        gpus=st.sampled_from([1, 2]),
        queue=st.integers(0, 2),
        priority=st.integers(0, 2),
        required=st.sampled_from([None, "block"]),
        spot=st.sampled_from([None, 0.0]),
        at_once=AT_ONCE,
    )
    def submit_shaped(
        self,
        kind: tuple[int, Shape],
        gpus: int,
        queue: int,
        priority: int,
        required: str | None,
        spot: float | None,
        at_once: bool,
    ) -> None:
        workers, shape = kind
        job = Job(self._name(), workers, gpus, 1, queue=f"queue-{queue}", priority=priority, required=required)
        self._add(Run(job, workers, workers, shape, spot), at_once)

    def _some(self, data: st.DataObject, of: list[str]) -> str:
        return data.draw(st.sampled_from(sorted(of)))

    def _stay(self) -> list[str]:
        return [uid for uid, run in self.world.runs.items() if run.on and not run.leaving]

    def _leave(self) -> list[str]:
        return [uid for uid, run in self.world.runs.items() if run.leaving]

    @precondition(lambda self: self._leave())
    @rule(data=st.data(), at_once=AT_ONCE)
    def victim_goes(self, data: st.DataObject, at_once: bool) -> None:
        self.world.gone(self._some(data, self._leave()))
        self._then(at_once)

    @precondition(lambda self: self._stay())
    @rule(data=st.data(), at_once=AT_ONCE)
    def job_ends(self, data: st.DataObject, at_once: bool) -> None:
        del self.world.runs[self._some(data, self._stay())]
        self._then(at_once)

    @precondition(lambda self: self._stay())
    @rule(data=st.data(), keeps=st.booleans(), at_once=AT_ONCE)
    def gang_starts_again(self, data: st.DataObject, keeps: bool, at_once: bool) -> None:
        self.world.fails(self._some(data, self._stay()), keeps=keeps)
        self._then(at_once)

    @precondition(lambda self: self._stay())
    @rule(data=st.data(), at=st.integers(0, 3), patience=st.sampled_from([FOREVER, 0.0]), at_once=AT_ONCE)
    def worker_is_lost(self, data: st.DataObject, at: int, patience: float, at_once: bool) -> None:
        run = self.world.runs[self._some(data, self._stay())]
        run.lost.add(at % (len(run.on) - run.shape.spares))
        run.shrinks = self.world.now + patience
        self._then(at_once)

    @rule()
    def lost_workers_are_back(self) -> None:
        """Those whose nodes are there."""
        nodes = self.world.nodes
        for run in self.world.runs.values():
            if run.on and all(run.on[index] in nodes and nodes[run.on[index]].usable for index in run.lost):
                run.lost = set()

    @precondition(lambda self: len(self.world.nodes) > 1)
    @rule(data=st.data(), at_once=AT_ONCE)
    def node_vanishes(self, data: st.DataObject, at_once: bool) -> None:
        self.world.vanish(self._some(data, list(self.world.nodes)))
        self._then(at_once)

    @precondition(lambda self: self.world.away)
    @rule(data=st.data(), at_once=AT_ONCE)
    def node_comes_back(self, data: st.DataObject, at_once: bool) -> None:
        self.world.comes_back(self._some(data, list(self.world.away)))
        self._then(at_once)

    @rule(data=st.data(), at_once=AT_ONCE)
    def node_is_cordoned_or_comes_back(self, data: st.DataObject, at_once: bool) -> None:
        name = self._some(data, list(self.world.nodes))
        self.world.nodes[name] = replace(self.world.nodes[name], usable=not self.world.nodes[name].usable)
        self._then(at_once)

    @rule()
    def all_nodes_are_well(self) -> None:
        for name in list(self.world.away):
            self.world.comes_back(name)
        for node in list(self.world.nodes.values()):
            self.world.nodes[node.name] = replace(node, usable=True)
        self.planned()

    @rule(queue=st.integers(0, 2), gpus=LIMITS, weight=st.sampled_from([1.0, 3.0]), at_once=AT_ONCE)
    def quota_changes(self, queue: int, gpus: int | None, weight: float, at_once: bool) -> None:
        name = f"queue-{queue}"
        self.world.queues[name] = replace(self.world.queues[name], gpus=gpus, weight=weight)
        self._then(at_once)

    @rule(seconds=st.sampled_from([60.0, 1_000.0, 30_000.0]), at_once=AT_ONCE)
    def time_passes(self, seconds: float, at_once: bool) -> None:
        self.world.now += seconds
        self._then(at_once)

    # Scenes, for what single steps hardly come to

    @rule(
        count=st.integers(2, 4),
        workers=st.integers(1, 3),
        gpus=st.sampled_from([1, 2]),
        queue=st.integers(0, 2),
        more=st.integers(0, 2),
        spot=st.sampled_from([None, 0.0]),
        at_once=AT_ONCE,
    )
    def a_crowd_comes(
        self, count: int, workers: int, gpus: int, queue: int, more: int, spot: float | None, at_once: bool
    ) -> None:
        """Elastic gangs that fill what is free: what comes next has to ask somebody."""
        for _ in range(count):
            run = Run(Job(self._name(), workers, gpus, 1, queue=f"queue-{queue}"), 1, workers + more)
            run.spot = None if spot is None else self.world.now
            self._add(run, at_once=False)
        self._then(at_once)

    @rule(workers=st.integers(1, 4), gpus=st.sampled_from([2, 4]), queue=st.integers(0, 2), priority=st.integers(0, 1))
    def others_make_room(self, workers: int, gpus: int, queue: int, priority: int) -> None:
        """Those whom a gang asks are gone before anything else happens."""
        job = Job(self._name(), workers, gpus, 1, queue=f"queue-{queue}", priority=3 * priority)
        self._add(Run(job, workers, workers), at_once=True)
        self._all_go()
        self.planned()

    @precondition(lambda self: self._stay())
    @rule(data=st.data(), ends=st.integers(0, 3))
    def quiet_hours(self, data: st.DataObject, ends: int) -> None:
        """Some end, and it pays for the others to grow."""
        for _ in range(min(ends, len(self._stay()))):
            del self.world.runs[self._some(data, self._stay())]
        self._hours_pass()

    @rule(queue=st.integers(0, 2), workers=st.integers(1, 2), more=st.integers(0, 1))
    def first_choices_come_free(self, queue: int, workers: int, more: int) -> None:
        """Gangs take their second choice, for the first is full; then all who are on that end."""
        for _ in range(4):
            self._add(Run(Job(self._name(), 2, 2, 1, queue=f"queue-{queue}"), 1, 2), at_once=False)
        second = Run(Job(self._name(), workers, 1, 1, queue=f"queue-{queue}"), workers, workers + more)
        second.spot = self.world.now
        self._add(second, at_once=True)
        for uid, run in list(self.world.runs.items()):
            if run is not second and not run.leaving and not run.promised and run.flavour == ON_DEMAND:
                del self.world.runs[uid]
        self._hours_pass()

    @rule(gpus=st.sampled_from([2, 4]), queue=st.integers(0, 2))
    def room_is_free_in_pieces(self, gpus: int, queue: int) -> None:
        """Single workers on all nodes, of which every other one ends; then comes one that needs more than a piece."""
        pieces = [self._name() for _ in range(2 * len(self.world.nodes))]
        for uid in pieces:
            self._add(Run(Job(uid, 1, 1, 1, queue=f"queue-{queue}"), 1, 1), at_once=False)
        self.planned()
        stay = self._stay()
        for index, uid in enumerate(pieces):
            if index % 2 or uid not in stay:
                del self.world.runs[uid]
        self._hours_pass()
        self._add(Run(Job(self._name(), 1, gpus, 1, queue=f"queue-{queue}"), 1, 1), at_once=True)
        for uid in set(pieces[::2]) & set(self._stay()[1:]):
            del self.world.runs[uid]

    @rule(queue=st.integers(0, 2), small=st.integers(1, 3))
    def some_start_before_their_turn(self, queue: int, small: int) -> None:
        """Small ones beside a large one that waits, until it can start with what they hold."""
        before = self._stay()
        self._add(Run(Job(self._name(), 4, 2, 1, queue=f"queue-{queue}"), 4, 4), at_once=True)
        for _ in range(small):
            self._add(Run(Job(self._name(), 1, 1, 1, queue=f"queue-{queue}"), 1, 1), at_once=True)
        for uid in before:
            self.world.runs.pop(uid, None)
        self.planned()

    @rule(data=st.data(), workers=st.integers(2, 4), queue=st.integers(0, 2), waits=st.booleans())
    def a_node_goes_for_good(self, data: st.DataObject, workers: int, queue: int, waits: bool) -> None:
        """Elastic gangs go on without those of their workers that were on it, at once or where nothing else is free."""
        for _ in range(2):
            self._add(Run(Job(self._name(), workers, 2, 1, queue=f"queue-{queue}"), 1, workers + 2), at_once=False)
        self.planned()
        elastic = [run for run in (self.world.runs[uid] for uid in self._stay()) if run.least < len(set(run.on))]
        names = {name for run in elastic for name in run.on if name in self.world.nodes}
        if not names or len(self.world.nodes) == 1:
            return
        self.world.vanish(self._some(data, list(names)))
        for run in elastic:
            run.shrinks = self.world.now if run.lost and not waits else FOREVER
        whole = [uid for uid in self._stay() if not self.world.runs[uid].lost]
        if waits and whole:
            del self.world.runs[self._some(data, whole)]
        self.planned()

    def _hours_pass(self) -> None:
        """All save, and have stood for so long that it pays to move."""
        self.world.now += 4_000.0
        self.world.save()
        self.planned()

    def _all_go(self) -> None:
        for uid in self._leave():
            self.world.gone(uid)

    @rule()
    def planned(self) -> None:
        before = self.world.snapshot()
        made = plan(before, POLICY)
        assert decisions(plan(before, SILENT)) == decisions(made), "a plan that tells nobody why decides something else"
        self.check(before, made)
        COUNTED.update(kinds_of(made))
        self.world.carry_out(made)
        self.check_gangs()

    def check(self, before: Snapshot, made: Plan) -> None:
        jobs, uids = before.jobs, before.jobs.uids
        promised = {each.uid: each for each in made.promises}
        evicted = {each.uid for each in made.evictions}
        started = {each.uid for each in made.admissions}
        told = [*started, *(each.uid for each in made.waiting), *made.broken]
        waits = [uid for uid, run in self.world.runs.items() if run.state is not JobState.HOLDING]
        assert sorted(told) == sorted(waits)
        assert len(promised) == len(made.promises)
        assert len(evicted) == len(made.evictions)
        assert not (set(promised) | evicted) & started
        for eviction in made.evictions:
            victim = uids.index(eviction.uid)
            assert jobs.states[victim] == JobState.HOLDING
            assert not jobs.runs.leaving[victim], "told to go twice"
            assert not eviction.beneficiary or eviction.beneficiary in promised, "nobody is evicted in vain"
        for uid, promise in promised.items():
            job = uids.index(uid)
            assert (jobs.states[job] == JobState.PENDING) != (uid in evicted)
            self.check_place(before, job, promise.nodes.tolist(), promise.flavour, None)
        self.check_admissions(before, made)

    def check_admissions(self, before: Snapshot, made: Plan) -> None:
        jobs, free, use = before.jobs, before.nodes.free.copy(), oracle.usage(before)
        reserved = [job for job, state in enumerate(jobs.states.tolist()) if state == JobState.RESERVED]
        for job in reserved:
            for resource in range(len(before.resources)):
                use[int(jobs.queues[job]), int(jobs.flavours[job]), resource] -= int(jobs.held[job, resource])
        for admission in made.admissions:
            job, nodes = jobs.uids.index(admission.uid), admission.nodes.tolist()
            self.check_place(before, job, nodes, admission.flavour, free)
            np.subtract.at(free, nodes, jobs.requests[job])
            assert (free[nodes][:, jobs.requests[job] > 0] >= 0).all(), "a node gives more than it has"
            assert job in reserved or jobs.terms.opens[job] <= before.now, "its window is not open"
            grown = replace(jobs, workers=jobs.workers.copy(), flavours=jobs.flavours.copy())
            grown.workers[job] = len(nodes)
            if admission.flavour != NONE:
                grown.flavours[job] = admission.flavour
            assert oracle.quota_allows(replace(before, jobs=grown), use, job), "quota is passed"
            oracle.add(replace(before, jobs=grown), use, job)

    def check_place(self, before: Snapshot, job: int, nodes: list[int], flavour: int, free: Int | None) -> None:
        """Usable nodes of one kind that it takes by now, in the shape that it asks for. `free`: None, if others go."""
        jobs, run = before.jobs, self.world.runs[before.jobs.uids[job]]
        assert before.nodes.usable[nodes].all()
        kinds = [int(jobs.filters[job]), *(other.filter for other in jobs.terms.alternatives[job])]
        assert any(before.eligible[kind, nodes].all() for kind in kinds), "nodes of two kinds, or of a wrong one"
        starts_anew = jobs.states[job] == JobState.PENDING
        if starts_anew and not before.eligible[kinds[0], nodes].all():
            assert jobs.terms.alternatives[job][0].since <= before.now, "spot before its time"
        if jobs.requests[job, before.resources.index("nvidia.com/gpu")] and flavour != NONE:
            assert set(before.nodes.flavours[nodes].tolist()) == {flavour}
        spares = run.shape.spares
        size = len(nodes) - spares if starts_anew else min(len(nodes), run.job.workers) if spares else len(nodes)
        assert run.least <= size <= run.most
        assert size == run.job.workers or run.shape is PLAIN
        shape = replace(run.shape, spares=len(nodes) - size)
        gang = Gang(0, size, TopologyMode(int(jobs.modes[job])), int(jobs.levels[job]), shape)
        slots = [99] * len(before.nodes.names)
        if free is not None:
            eligible = np.ones_like(before.eligible)
            slots = oracle.slots_of(replace(before, eligible=eligible), job, free)
        assert brute.is_valid(brute.Ground.of(before.nodes.domains, slots), gang, nodes), "not the shape asked for"

    def check_gangs(self) -> None:
        """Wherever a gang runs or is promised to run on nodes that are all there, it lies as it asks to."""
        world = self.world.snapshot()
        names = world.nodes.names
        for uid, run in self.world.runs.items():
            job = world.jobs.uids.index(uid)
            for places in (run.on, run.promised):
                workers = places[: run.job.workers] if run.shape.spares else places
                if not workers or not all(name in names for name in workers):
                    continue
                nodes = [names.index(name) for name in workers]
                mode, level = TopologyMode(int(world.jobs.modes[job])), int(world.jobs.levels[job])
                gang = Gang(0, len(nodes), mode, level, replace(run.shape, spares=0))
                assert brute.is_valid(brute.Ground.of(world.nodes.domains, [99] * len(names)), gang, nodes), uid

    @invariant()
    def no_room_is_given_twice(self) -> None:
        """Those who stay and those to whom room is promised fit together on every node."""
        world = getattr(self, "world", None)
        for name in world.nodes if world is not None else ():
            assert world.fits(name), f"{name} is booked for {world.booked(name)}"

    def teardown(self) -> None:
        """All nodes are back, victims go one after the other, nothing else happens: in the end there is rest."""
        if not hasattr(self, "world"):
            return
        self.all_nodes_are_well()
        self.lost_workers_are_back()
        for _ in range(6 * len(self.world.runs) + 6):
            self.planned()
            self.no_room_is_given_twice()
            leaving = self._leave()
            if not leaving and not any(run.promised for run in self.world.runs.values()):
                break
            for uid in leaving[:1]:
                self.world.gone(uid)
        assert not any(run.leaving or run.promised for run in self.world.runs.values()), "no rest"


def kinds_of(made: Plan) -> Iterator[str]:
    """What a plan decides, by kind."""
    yield from ("start" for _ in made.admissions)
    yield from (each.reason.value for each in made.evictions)
    yield from ("replacement" for _ in made.replacements)
    yield from ("broken" for _ in made.broken)


def run_until_often(
    machines: type[RuleBasedStateMachine], counted: Counter[str], kinds: Iterable[str], sequences: int
) -> None:
    """As many sequences as it takes until each kind of decision was often made; far more than that is a failure."""
    often = settings(
        max_examples=sequences, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
    )
    counted.clear()
    for number in range(TRIES):
        # Where Hypothesis derives its draws from the test, as it does in CI, each batch would be the first once more.
        machine = seed(number)(machines) if often.derandomize else machines
        run_state_machine_as_test(machine, settings=often)
        rare = {kind: counted[kind] for kind in kinds if counted[kind] < OFTEN}
        if not rare:
            break
    assert not rare, f"these decisions are hardly ever made, so the sequences prove little of them: {rare}"


def test_gangs_are_kept_in_any_sequence() -> None:
    run_until_often(Gangs, COUNTED, KINDS, SEQUENCES)
