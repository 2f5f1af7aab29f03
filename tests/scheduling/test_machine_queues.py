"""Any sequence of what may happen to queues while gangs run in them and wait: they move to another parent, are held,
drained, deleted and made again, at the same moment as jobs come, end and are asked to go. And slices of GPUs, which
only some quotas name, are taken by gangs beside whole ones.

Everything that `test_machine_gangs.py` says of a plan holds here as well. MUSTER_THOROUGH=1: 6,000 sequences.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from muster.scheduling.hierarchy import by_depth
from muster.scheduling.plan import MoveReason, Plan
from muster.scheduling.quota import Ledger
from muster.scheduling.snapshot import NONE, UNLIMITED, Preempts, Queues, Snapshot

from .cases import GIB, MEMORY, Job
from .gangs_operating import Cluster, Run
from .test_machine_gangs import AT_ONCE, Gangs, run_until_often

pytestmark = [pytest.mark.unit, pytest.mark.timeout(900)]

H100 = 1
SLICES = "nvidia.com/mig-1g.10gb"
"""In place of memory, in pieces of a GiB."""
ON_A_NODE = 4
SEQUENCES = 6_000 if os.environ.get("MUSTER_THOROUGH") else 40
SEEN = Counter[str]()


@dataclass(frozen=True)
class State:
    """What was made of a queue since it was built.

    Attributes:
        deleted: it is gone, and those below it can't have their parent.
        slices: its nominal; None where it names none.
    """

    held: bool = False
    drained: bool = False
    deleted: bool = False
    slices: int | None = None
    reclaim: Preempts = Preempts.ANY
    within: Preempts = Preempts.LOWER_PRIORITY


@dataclass
class Edited(Cluster):
    """
    Attributes:
        states: by name, of the queues that are not as they were built.
    """

    states: dict[str, State] = field(default_factory=dict)

    def snapshot(self) -> Snapshot:
        world = super().snapshot()
        allocatable, free = world.nodes.allocatable.copy(), world.nodes.free.copy()
        allocatable[:, MEMORY] = ON_A_NODE * GIB
        free[:, MEMORY] = [(ON_A_NODE - self.slices_on(name, staying=False)) * GIB for name in world.nodes.names]
        names = (*world.resources[:MEMORY], SLICES, *world.resources[MEMORY + 1 :])
        nodes = replace(world.nodes, allocatable=allocatable, free=free)
        return replace(world, resources=names, nodes=nodes, queues=self._queues(world.queues))

    def _queues(self, built: Queues) -> Queues:
        """As `muster.cluster.queues` makes of them: a queue that is gone is a closed root that names no quota, and so
        is one that can't have its parent, but for its quota."""
        states = [self.states.get(name, State()) for name in built.names]
        parents, nominal, borrowing, lending = (
            each.copy() for each in (built.parents, built.nominal, built.borrowing, built.lending)
        )
        deleted = np.array([state.deleted for state in states], dtype=np.bool_)
        certain = ~((parents != NONE) & deleted[parents] & ~deleted)
        for row, state in enumerate(states):
            if state.slices is not None:
                nominal[row, H100, MEMORY] = state.slices * GIB
        for table in (nominal, borrowing, lending):
            table[deleted] = UNLIMITED
        parents[deleted | ~certain] = NONE
        drain = np.array([state.drained and not state.deleted for state in states], dtype=np.bool_)
        open_ = ~deleted & certain & ~drain & np.array([not state.held for state in states], dtype=np.bool_)
        for rows in by_depth(parents)[1:]:
            open_[rows] &= open_[parents[rows]]
            drain[rows] |= drain[parents[rows]]
        return replace(
            built,
            parents=parents,
            nominal=nominal,
            borrowing=borrowing,
            lending=lending,
            open=open_,
            drain=drain,
            certain=certain,
            reclaim=np.array([state.reclaim for state in states], dtype=np.int32),
            within=np.array([state.within for state in states], dtype=np.int32),
        )

    def slices_on(self, name: str, *, staying: bool) -> int:
        """Of a node, what pods hold; `staying`: what those will who stay, or to whom it is promised."""
        return sum(
            run.job.gib * (run.promised.count(name) + (0 if run.leaving else run.on.count(name)))
            if staying
            else run.job.gib * run.on.count(name)
            for run in self.runs.values()
        )

    def fits(self, name: str) -> bool:
        return super().fits(name) and self.slices_on(name, staying=True) <= ON_A_NODE


class EditedQueues(Gangs):
    """One cluster from its first job on."""

    made_of = Edited
    world: Edited

    @rule(
        workers=st.integers(1, 3),
        slices=st.sampled_from([1, 2]),
        gpus=st.sampled_from([0, 0, 1]),
        queue=st.integers(0, 2),
        priority=st.integers(0, 2),
        more=st.integers(0, 2),
        preemptible=st.sampled_from([True, True, False]),
        at_once=AT_ONCE,
    )
    def submit_on_slices(
        self,
        workers: int,
        slices: int,
        gpus: int,
        queue: int,
        priority: int,
        more: int,
        preemptible: bool,
        at_once: bool,
    ) -> None:
        job = Job(self._name(), workers, gpus, 1, gib=slices, queue=f"queue-{queue}", priority=priority)
        self._add(Run(job, 1, workers + more, preemptible=preemptible), at_once)

    @rule(
        queue=st.integers(0, 2),
        parent=st.sampled_from([None, 0, 1, 2]),
        borrowing=st.sampled_from([None, 0, 2, 4]),
        lending=st.sampled_from([None, 0, 2]),
        at_once=AT_ONCE,
    )
    def queue_moves(
        self, queue: int, parent: int | None, borrowing: int | None, lending: int | None, at_once: bool
    ) -> None:
        name, above = f"queue-{queue}", None if parent is None else f"queue-{parent}"
        if above is None or name not in self._way_up(above):
            moved = replace(self.world.queues[name], parent=above, borrowing=borrowing, lending=lending)
            self.world.queues[name] = moved
        self._then(at_once)

    def _way_up(self, name: str) -> list[str]:
        above = self.world.queues[name].parent
        return [name] if above is None else [name, *self._way_up(above)]

    @rule(
        queue=st.integers(0, 2),
        state=st.sampled_from(
            [State(), State(slices=4), State(slices=0), State(held=True), State(drained=True), State(deleted=True)]
        ),
        reclaim=st.sampled_from([Preempts.NEVER, Preempts.LOWER_PRIORITY, Preempts.ANY]),
        within=st.sampled_from([Preempts.NEVER, Preempts.LOWER_PRIORITY]),
        at_once=AT_ONCE,
    )
    def queue_is_edited(self, queue: int, state: State, reclaim: Preempts, within: Preempts, at_once: bool) -> None:
        self.world.states[f"queue-{queue}"] = replace(state, reclaim=reclaim, within=within)
        self._then(at_once)

    @rule(queue=st.integers(0, 2))
    def a_queue_is_drained_and_opened_again(self, queue: int) -> None:
        """Those that are asked have not all gone by then."""
        self.queue_is_edited(queue, State(drained=True), Preempts.ANY, Preempts.NEVER, at_once=True)
        for uid in self._leave()[::2]:
            self.world.gone(uid)
        self.queue_is_edited(queue, State(), Preempts.ANY, Preempts.LOWER_PRIORITY, at_once=True)

    @rule(queue=st.integers(0, 2), gpus=st.sampled_from([0, 1, 2]), other=st.integers(0, 2))
    def a_quota_is_lowered_under_use(self, queue: int, gpus: int, other: int) -> None:
        """Of a queue in which gangs have just started; another moves meanwhile."""
        name = f"queue-{queue}"
        for above in self._way_up(name):
            self.world.states.pop(above, None)
        for _ in range(3):
            self._add(Run(Job(self._name(), 1, 1, 1, queue=name), 1, 2), at_once=False)
        self.planned()
        self.world.queues[name] = replace(self.world.queues[name], gpus=gpus, borrowing=0)
        self.queue_moves(other, None, None, None, at_once=True)

    def check_admissions(self, before: Snapshot, made: Plan) -> None:
        super().check_admissions(before, made)
        SEEN.update(each.reason.value for each in made.evictions)
        jobs = before.jobs
        for admission in made.admissions:
            job = jobs.rows[admission.uid]
            assert before.queues.open[jobs.queues[job]] or jobs.runs.beneficiary[job] == job, "its queue is closed"

    def teardown(self) -> None:
        super().teardown()
        if not hasattr(self, "world"):
            return
        world = self.world.snapshot()
        jobs, queues, ledger = world.jobs, world.queues, Ledger(world.queues, world.jobs)
        drained = jobs.holding & queues.drain[jobs.queues] & jobs.terms.preemptible
        assert not drained.any(), "a drained queue goes on"
        trees = np.array([ledger.circle(queue) for queue in jobs.queues.tolist()], dtype=np.int64)
        for queue, flavour, resource in ledger.exceeded():
            beyond = (trees == ledger.circle(queue)) & (jobs.flavours == flavour) & (jobs.held[:, resource] > 0)
            firm = not jobs.terms.preemptible[beyond].all()
            assert firm or not queues.certain[queue], "more is used than a queue may, and nobody is asked"


def test_queues_may_change_in_any_sequence() -> None:
    kinds = (MoveReason.DRAINED, MoveReason.QUOTA_LOWERED, MoveReason.RECLAIMED, MoveReason.GROWN)
    run_until_often(EditedQueues, SEEN, [kind.value for kind in kinds], SEQUENCES)
