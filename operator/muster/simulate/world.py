"""The simulated world: where jobs are, what nodes have free, and what each run did. Only the engine changes it.

A run starts when its placement does. A job that ran before spends `restart` seconds first; then it works. What it has
worked is safe when it ends by itself, when it is asked to stop and its last checkpoint succeeds, and up to its last
periodic checkpoint when its node fails. All other seconds on its GPUs are lost, and counted as such. A job that loses
all of `HOPELESS` runs in a row so has failed.

An elastic job works in proportion to its workers: with half of those that it asks for it takes twice as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from muster.scheduling.snapshot import NONE, Index, Int, Mask
from muster.simulate.cluster import GPU
from muster.simulate.errors import SimulationError
from muster.simulate.workload import Workload


class State(IntEnum):
    FUTURE = 0
    PENDING = 1
    RUNNING = 2
    LEAVING = 3
    """Asked to stop; still holds its nodes."""
    RESERVED = 4
    """Its nodes are promised."""
    DONE = 5
    FAILED = 6
    """Given up: it never gets past its next stop."""


HOPELESS: Final = 100
"""Runs in a row that faults end without a second of work kept, after which a job has failed. The operator starts such a
job again as often as `restart.causes.platform` says, by default for ever; a simulation would then have no end.
Where one run in ten gets anything done, a hundred in vain follow each other once in forty thousand times."""


@dataclass
class Runs:
    """Every run that has ended, for the figures: parallel lists, times in seconds."""

    job: list[int] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    stop: list[float] = field(default_factory=list)
    working: list[float] = field(default_factory=list)
    """When its first useful second began."""
    kept: list[float] = field(default_factory=list)
    """Useful seconds, from `working` on."""
    gpus: list[int] = field(default_factory=list)
    """That it had, those of spares included, and how many of them worked."""
    worked: list[int] = field(default_factory=list)


class World:
    """
    Attributes:
        free: N x R, allocatable less what runs there.
        usable: N.
        state: J, of State.
        left: J, seconds of work that are still to be done and not yet safe, with the workers that a job asks for.
        workers: J, of the present run, or of the next one as far as it is known: those that the job asks for.
        started, working: J, of the present run: its placement, and when work began or begins.
        epoch: J, number of runs begun; events of older runs are void.
        first_start, ended: J; NaN until then.
        closes: J, when the window of the present run closes, and stops it; infinite where none does.
        queued: J, seconds spent without a placement, `waiting_since` the last time it began; `shut`: those of them in
            which its window was not open.
        evictions, crashes: J; `stops` are the evictions for another job, `window_stops` those by a window.
        fruitless: J, runs that a fault has ended, one after the other, without a second of work kept.
        asked: J, when the present run was asked to stop; infinite where it was not.
        beneficiary: J, the job for which it is leaving; its own number where it starts again on nodes that are kept for
            it; NONE.
        yields: J, it was let in before its turn, or will be by its promise.
        placed, promised: nodes by worker.
        present: jobs that are submitted and not done, in order of submission.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        count = len(workload.trace)
        self.workload = workload
        self.costs = workload.cluster.file.costs
        self.free: Int = workload.cluster.allocatable.copy()
        self.usable: Mask = np.ones(len(self.free), dtype=np.bool_)
        self.state: Index = np.full(count, State.FUTURE, dtype=np.int32)
        self.left = workload.trace.duration.copy()
        self.workers: Index = workload.workers.copy()
        self.started = np.zeros(count)
        self.working = np.zeros(count)
        self.epoch: Index = np.zeros(count, dtype=np.int32)
        self.first_start = np.full(count, np.nan)
        self.ended = np.full(count, np.nan)
        self.closes = np.full(count, np.inf)
        self.asked = np.full(count, np.inf)
        self.queued = np.zeros(count)
        self.shut = np.zeros(count)
        self.waiting_since = np.zeros(count)
        self.evictions: Index = np.zeros(count, dtype=np.int32)
        self.stops: Index = np.zeros(count, dtype=np.int32)
        self.window_stops: Index = np.zeros(count, dtype=np.int32)
        self.crashes: Index = np.zeros(count, dtype=np.int32)
        self.fruitless: Index = np.zeros(count, dtype=np.int32)
        self.beneficiary: Index = np.full(count, NONE, dtype=np.int32)
        self.yields: Mask = np.zeros(count, dtype=np.bool_)
        self.placed: dict[int, Index] = {}
        self.promised: dict[int, Index] = {}
        self.present: dict[int, None] = {}
        self.on_node: list[set[int]] = [set() for _ in range(len(self.free))]
        self.runs = Runs()
        self.done = 0
        # One draw a job and eviction, whatever the order in which they come: the same luck under every policy.
        self._seed = seed

    def submit(self, job: int, now: float) -> None:
        self.state[job] = State.PENDING
        self.waiting_since[job] = now
        self.present[job] = None

    def start(self, job: int, nodes: Index, now: float, *, yields: bool = False) -> float:
        """Begin a run; returns when it ends if nothing disturbs it.

        Raises:
            SimulationError: a policy placed it where there is no room: a bug of the policy.
        """
        if int(self.state[job]) not in (State.PENDING, State.RESERVED):
            raise SimulationError(f"the policy started {self.workload.uids[job]}, which is not waiting: this is a bug")
        if not self.workload.may_have(job, len(nodes)):
            raise SimulationError(
                f"the policy started {self.workload.uids[job]} with a part of its gang: this is a bug"
            )
        self._give(job, nodes, -1)
        if (self.free[nodes] < 0).any() or not self.usable[nodes].all():
            raise SimulationError(f"the policy placed {self.workload.uids[job]} where there is no room: this is a bug")
        self._check_kinds(job, nodes)
        self._enter_window(job, now)
        self.promised.pop(job, None)
        self.placed[job] = nodes
        self.workers[job] = self.workload.working(job, len(nodes))
        self.beneficiary[job] = NONE
        self.yields[job] = yields
        for node in nodes.tolist():
            self.on_node[node].add(job)
        self.state[job] = State.RUNNING
        self.asked[job] = np.inf
        self.queued[job] += now - self.waiting_since[job]
        self.started[job] = now
        self.working[job] = now + self.start_takes(job)
        self.epoch[job] += 1
        if np.isnan(self.first_start[job]):
            self.first_start[job] = now
        return float(self.working[job] + self.left[job] / self.speed(job))

    def _check_kinds(self, job: int, nodes: Index) -> None:
        """A safe base is on its kind of nodes; those beyond it are so, too, under policies that know of no other."""
        work, base = self.workload, self.workload.base_of(job)
        if not base or work.beyond is None:
            return
        kinds = work.cluster.flavour[nodes]
        allowed = (work.flavour[job], work.beyond[job])
        if (kinds[:base] != work.flavour[job]).any() or not np.isin(kinds[base:], allowed).all():
            raise SimulationError(f"the policy put workers of {work.uids[job]} on nodes of another kind: this is a bug")

    def goes_on(self, job: int) -> bool:
        """Whether a job that waits has run, and starts again on nodes that are kept for it."""
        return int(self.state[job]) == State.RESERVED and int(self.beneficiary[job]) == job

    def start_takes(self, job: int) -> float:
        """Seconds from a new placement until it works."""
        return self.costs.restart if self.epoch[job] else 0.0

    def _enter_window(self, job: int, now: float) -> None:
        window = self.workload.window_of(job)
        if window is None:
            return
        if window.may_start(now, self.start_takes(job)) > now and (window.stops or not self.goes_on(job)):
            raise SimulationError(f"the policy started {self.workload.uids[job]} outside of its window: this is a bug")
        self.shut[job] += window.shut(float(self.waiting_since[job]), now)
        self.closes[job] = window.opening(now).closes if window.stops else np.inf

    def speed(self, job: int) -> float:
        """Of its present run: 1 with the workers that it asks for."""
        return float(self.workers[job] / self.workload.workers[job])

    def finish(self, job: int, now: float) -> None:
        """All its work is done."""
        self._stop(job, now, float(self.left[job]) / self.speed(job))
        self.left[job] = 0.0
        self.ended[job] = now
        self._over(job, State.DONE)

    def ask_to_leave(self, job: int, beneficiary: int, now: float) -> None:
        self.state[job], self.asked[job] = State.LEAVING, now
        self.beneficiary[job] = beneficiary
        self.evictions[job] += 1
        if beneficiary not in (NONE, job):
            self.stops[job] += 1

    def leave(self, job: int, now: float) -> None:
        """The grace is over: its checkpoint is saved (or was not), its nodes are free."""
        worked = self._worked(job, now)
        kept = worked if self._saves(job) else self._safe(worked)
        for_another = int(self.beneficiary[job]) not in (NONE, job)
        self._stop(job, now, kept)
        self._wait_again(job, now, kept)
        if not for_another:
            self._despair(job, kept)

    def crash(self, job: int, node: int, now: float, *, keeps: bool = False) -> None:
        """A node under it failed. With `keeps` its room is kept for it, and it starts again when the policy has given
        other nodes to the workers that were there. Where only spares were there, it goes on without them."""
        nodes, working = self.placed[job], int(self.workers[job])
        if not (nodes[:working] == node).any():
            self.put_spares(job, nodes[nodes != node])
            return
        kept = self._safe(self._worked(job, now))
        self.crashes[job] += 1
        if keeps and int(self.state[job]) == State.RUNNING:
            self.keep_room(job)
        self._stop(job, now, kept)
        self._wait_again(job, now, kept)
        self._despair(job, kept)

    def keep_room(self, job: int) -> bool:
        """Promise a running job the nodes that it is on, for it starts again; where none of its workers can stay it
        waits as any other does. Returns whether it did."""
        nodes = self.placed[job]
        if not self.usable[nodes[: int(self.workers[job])]].any():
            return False
        self.promised[job], self.beneficiary[job] = nodes, job
        return True

    def replace_workers(self, job: int, indexes: Index, nodes: Index) -> None:
        """Other nodes for some workers of a promise, or for spares of a job that runs. NONE: for none."""
        before = self.promised.get(job, self.placed.get(job, nodes))
        after = np.full(max(len(before), int(indexes.max()) + 1), NONE, dtype=np.int32)
        after[: len(before)] = before
        after[indexes] = nodes
        after = after[after != NONE]
        if job in self.promised:
            self.promised[job] = after
        else:
            self.put_spares(job, after)

    def put_spares(self, job: int, nodes: Index) -> None:
        """A job that runs has its workers where they are, and its spares on what else is in `nodes`."""
        before = self.placed[job]
        self._give(job, before, 1)
        self._give(job, nodes, -1)
        if (self.free[nodes] < 0).any():
            raise SimulationError(f"the policy put spares of {self.workload.uids[job]} where there is no room: a bug")
        self.placed[job] = nodes
        for node in before.tolist():
            self.on_node[node].discard(job)
        for node in nodes.tolist():
            self.on_node[node].add(job)

    def safe_until(self, jobs: Int, now: float) -> np.ndarray:
        """When the last periodic checkpoint of each running job was committed; its start before the first."""
        periods = np.floor(np.maximum(0.0, now - self.working[jobs]) / self.costs.checkpoint)
        saved: np.ndarray = np.where(
            periods > 0, self.working[jobs] + periods * self.costs.checkpoint, self.started[jobs]
        )
        return saved

    def jobs_in(self, *states: State) -> Int:
        """Jobs in these states, at least one, in order of submission."""
        present = np.fromiter(self.present, dtype=np.int64, count=len(self.present))
        state = self.state[present]
        there = state == int(states[0])
        for other in states[1:]:
            there |= state == int(other)
        chosen: Int = present[there]
        return chosen

    def _worked(self, job: int, now: float) -> float:
        """Seconds of the present run; who is asked to stop works no more."""
        return max(0.0, min(now, float(self.asked[job])) - float(self.working[job]))

    def _safe(self, worked: float) -> float:
        return worked // self.costs.checkpoint * self.costs.checkpoint

    def _saves(self, job: int) -> bool:
        luck = np.random.default_rng([self._seed, job, int(self.evictions[job])]).random()
        return bool(luck >= self.costs.unsaved)

    def _stop(self, job: int, now: float, kept: float) -> None:
        nodes = self.placed.pop(job)
        self._give(job, nodes, 1)
        for node in nodes.tolist():
            self.on_node[node].discard(job)
        self.runs.job.append(job)
        self.runs.start.append(float(self.started[job]))
        self.runs.stop.append(now)
        self.runs.working.append(float(self.working[job]))
        self.runs.kept.append(kept)
        self.runs.gpus.append(len(nodes) * int(self.workload.each[job]))
        self.runs.worked.append(int(self.workers[job]) * int(self.workload.each[job]))

    def _give(self, job: int, nodes: Index, sign: int) -> None:
        """Room of the job's workers comes back to these nodes, or with a sign of -1 is taken."""
        request = sign * self.workload.requests[job]
        if len(nodes) == 1:
            self.free[nodes[0]] += request
        else:
            np.add.at(self.free, nodes, request)

    def _wait_again(self, job: int, now: float, kept: float) -> None:
        self.left[job] -= kept * self.speed(job)
        self.workers[job] = self.workload.workers[job]
        self.state[job] = State.RESERVED if job in self.promised else State.PENDING
        if job not in self.promised or int(self.beneficiary[job]) != job:
            self.beneficiary[job] = NONE
        self.waiting_since[job] = now

    def _despair(self, job: int, kept: float) -> None:
        """A fault has ended a run: the job fails when that was in vain too often."""
        self.fruitless[job] = 0 if kept > 0 else self.fruitless[job] + 1
        if self.fruitless[job] >= HOPELESS:
            self._over(job, State.FAILED)

    def _over(self, job: int, state: State) -> None:
        self.state[job] = state
        self.promised.pop(job, None)
        del self.present[job]
        self.done += 1


def idle_gpus(world: World) -> Int:
    """N, free GPUs of usable nodes."""
    free: Int = np.where(world.usable, world.free[:, GPU], 0)
    return free


def crowd(world: World, nodes: Iterable[int]) -> set[int]:
    """Jobs with a worker on one of the nodes."""
    return {job for node in nodes for job in world.on_node[node]}
