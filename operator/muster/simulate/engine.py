"""Runs one policy over one workload: event by event, and a plan whenever something has changed.

Ends, failures and returns happen at their own moments. Policies decide at multiples of `interval`, the same for all:
whatever happened since the last one is coalesced into one decision, as the operator coalesces watch events. A moment at
which nothing has changed is skipped, except that waiting jobs are looked at every `REFRESH` seconds, since shares and
reservations change with time alone; and so are jobs that run, where the trace has some that may grow or move to nodes
that they prefer.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

import numpy as np

from muster.scheduling.plan import Plan
from muster.scheduling.snapshot import NONE
from muster.simulate.errors import SimulationError
from muster.simulate.faults import Faults
from muster.simulate.workload import Workload
from muster.simulate.world import HOPELESS, State, World, crowd, idle_gpus

REFRESH: Final = 900.0
PATIENCE: Final = 86_400.0
"""Seconds in which nothing is submitted, runs or starts, after which what still waits is given up."""
ABSENCES: Final = 6.0
"""It is given up no sooner than after so many mean absences of a node: one that it needs is back by then, but for one
time in four hundred."""
SAMPLE: Final = 600.0
SOONEST: Final = 0.001
LONGEST: Final = 86_400.0
"""Seconds between two decisions. One that never comes again would end no simulation."""


class Policy(Protocol):
    """What decides.

    Attributes:
        replaces: a gang that loses a node keeps the others, and the policy finds nodes for the workers that were there.
    """

    name: str
    replaces: bool

    def decide(self, world: World, now: float) -> Plan:
        """Must change nothing in the world."""
        ...

    def reasons(self, world: World, now: float) -> dict[int, str]:
        """Why jobs wait, as far as the policy can tell."""
        ...


class _Kind(IntEnum):
    """What happens; of events at one moment the first named comes first."""

    END = 0
    GONE = 1
    BACK = 2
    FAULT = 3
    LOST = 4
    TAKES_OTHERS = 5
    """A job that waits takes its next kind of nodes."""
    OPENS = 6
    """A window."""
    CLOSES = 7
    """The window of a job that runs, and has to stop."""


@dataclass
class Series:
    """State after each decision that is at least `SAMPLE` seconds after the one before, and what it was until then
    where that is long; each holds until the next. Parallel lists."""

    time: list[float] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    """GPUs that are given out."""
    usable: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    waiting_gpus: list[int] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    """Idle GPUs on nodes that are partly in use."""


@dataclass(frozen=True)
class Outcome:
    """
    Attributes:
        policy: its name.
        begins: from when on nodes fail, in the trace's seconds.
        away: (GPUs, from, to) of each time a node was not there; a reclaimed one is until its notice is over.
        idle, idle_broken: GPU-seconds that were idle behind decisions that left jobs waiting, until the next one; and
            those of them on nodes that were partly in use.
        never: jobs that never ended, with why they failed, or else the reason that the policy gave last ("" if it gives
            none).
        plans: decisions made; `planning` the processor seconds that they took, of `seconds` in all.
    """

    policy: str
    world: World
    begins: float
    series: Series
    away: tuple[tuple[int, float, float], ...]
    idle: float
    idle_broken: float
    never: tuple[tuple[int, str], ...]
    plans: int
    planning: float
    seconds: float


def simulate(workload: Workload, policy: Policy, *, seed: int = 1, interval: float = 60.0) -> Outcome:
    """Run until every job is done or has failed, or nothing that waits can ever start.

    Raises:
        SimulationError: the interval is not between `SOONEST` and `LONGEST`, or the policy broke a rule.
    """
    if not SOONEST <= interval <= LONGEST:
        raise SimulationError(
            f"the interval between decisions must be between {SOONEST:g} and {LONGEST:,.0f} seconds, not {interval:g}"
        )
    return _Simulation(workload, policy, seed, interval).run()


def _begins(workload: Workload) -> float:
    """From when on nodes fail: long enough before the first submission that as many are away then as later. A trace may
    count its seconds from 1970."""
    return max(0.0, float(workload.trace.submit[0]) - _patience(workload))


def _patience(workload: Workload) -> float:
    """Seconds after which who waits is given up: nodes that are away are waited for."""
    faults = workload.cluster.file.faults
    away = max(faults.repair if faults.failures else 0.0, faults.absence if faults.reclaims else 0.0)
    return max(PATIENCE, ABSENCES * away)


class _Simulation:
    def __init__(self, workload: Workload, policy: Policy, seed: int, interval: float) -> None:
        self._workload, self._policy, self._interval = workload, policy, interval
        self._world = World(workload, seed)
        self._faults = Faults(workload.cluster, seed)
        self._heap: list[tuple[float, int, int, int, float]] = []
        self._submit = workload.trace.submit.tolist()
        self._next = 0
        self._job = {uid: job for job, uid in enumerate(workload.uids)}
        self._series, self._sampled = Series(), -math.inf
        self._idle, self._idle_broken = 0.0, 0.0
        self._away: list[tuple[int, float, float]] = []
        self._plans, self._planning = 0, 0.0
        self._due = -math.inf
        """When is to be decided, though nothing happens before."""

    def run(self) -> Outcome:
        begun, begins = time.thread_time(), _begins(self._workload)
        for node in range(len(self._world.usable)):
            self._schedule_fault(node, begins)
        for which in range(len(self._workload.windows)):
            self._schedule_opening(which, self._submit[0])
        now, active_at, patience = 0.0, 0.0, _patience(self._workload)
        while self._world.done < len(self._submit):
            moment = min(self._upcoming(), max(now, self._due) if self._asks() else math.inf)
            if moment == math.inf:
                break
            # What rounding puts a hair behind a multiple happens then: at the multiple, before it, it would never come.
            before = now
            now = max(now, moment, math.ceil(moment / self._interval - 1e-9) * self._interval)
            self._passes(before, now)
            more_to_come = self._next < len(self._submit)
            changed = self._advance(now)
            if not self._asks() or not (changed or now >= self._due):
                self._sample(now)
                continue
            self._due = now + REFRESH
            if self._decide(now) or self._world.placed or more_to_come:
                active_at = now
            self._sample(now)
            if now - active_at > patience and self._windows_passed(active_at, now, patience):
                break
        return Outcome(
            policy=self._policy.name,
            world=self._world,
            begins=begins,
            series=self._series,
            away=tuple(self._away),
            idle=self._idle,
            idle_broken=self._idle_broken,
            never=self._never(now),
            plans=self._plans,
            planning=self._planning,
            seconds=time.thread_time() - begun,
        )

    def _windows_passed(self, since: float, now: float, patience: float) -> bool:
        """Whether who waits for a window has had one, and did not start."""
        waiting = self._world.jobs_in(State.PENDING, State.RESERVED).tolist()
        windows = {window for job in waiting if (window := self._workload.window_of(job)) is not None}
        return all(window.passed(since, now, patience) for window in windows)

    def _asks(self) -> bool:
        """Whether there is something to decide: somebody waits, or who runs may be better off."""
        world = self._world
        return len(world.present) > len(world.placed) or (self._workload.restless and bool(world.placed))

    def _upcoming(self) -> float:
        arrival = self._submit[self._next] if self._next < len(self._submit) else math.inf
        return min(arrival, self._heap[0][0] if self._heap else math.inf)

    def _advance(self, until: float) -> bool:
        """Let everything happen up to a moment, in order; returns whether anything did."""
        changed = False
        while (moment := self._upcoming()) <= until:
            if self._heap and self._heap[0][0] == moment:
                changed |= self._happen(*heapq.heappop(self._heap))
            else:
                self._world.submit(self._next, moment)
                self._await_others(self._next)
                self._next += 1
                changed = True
        return changed

    def _await_others(self, job: int) -> None:
        if self._workload.alternatives is not None:
            for other in self._workload.alternatives[job]:
                heapq.heappush(self._heap, (other.since, _Kind.TAKES_OTHERS, job, 0, 0.0))

    def _happen(self, now: float, kind: int, which: int, epoch: int, detail: float) -> bool:
        world = self._world
        if kind == _Kind.FAULT:
            self._fault(which, now, notice=bool(epoch), back=detail)
        elif kind == _Kind.LOST:
            self._crash_on(which, now)
        elif kind == _Kind.TAKES_OTHERS:
            return int(world.state[which]) == State.PENDING
        elif kind == _Kind.OPENS:
            self._schedule_opening(which, now)
            return self._awaits(which)
        elif kind == _Kind.BACK:
            world.usable[which] = True
            self._schedule_fault(which, now)
        elif world.epoch[which] != epoch or which not in world.placed:
            return False  # of a run that ended otherwise
        elif kind == _Kind.END:
            world.finish(which, now)
        elif kind == _Kind.CLOSES:
            if int(world.state[which]) == State.RUNNING:
                world.window_stops[which] += 1
                self._ask(which, NONE, now)
        else:
            world.leave(which, now)
        return True

    def _schedule_opening(self, which: int, now: float) -> None:
        """The next moment at which a window opens."""
        window = self._workload.windows[which]
        found = window.opening(now)
        opens = found.opens if found.opens > now or found.closes == math.inf else window.opening(found.closes).opens
        if opens > now:
            heapq.heappush(self._heap, (opens, _Kind.OPENS, which, 0, 0.0))

    def _awaits(self, which: int) -> bool:
        """Whether a job waits for this window."""
        windows = self._workload.window
        return windows is not None and bool((windows[self._world.jobs_in(State.PENDING)] == which).any())

    def _schedule_fault(self, node: int, now: float) -> None:
        fault = self._faults.next(node, now)
        if fault is not None:
            moment, notice, back = fault
            heapq.heappush(self._heap, (moment, _Kind.FAULT, node, int(notice), back))

    def _fault(self, node: int, now: float, *, notice: bool, back: float) -> None:
        world = self._world
        world.usable[node] = False
        lost = now + (self._workload.cluster.file.faults.notice if notice else 0.0)
        self._away.append((int(self._workload.cluster.gpus[node]), lost, back))
        heapq.heappush(self._heap, (back, _Kind.BACK, node, 0, 0.0))
        if not notice:
            self._crash_on(node, now)
            return
        for job in sorted(crowd(world, [node])):
            works_there = (world.placed[job][: int(world.workers[job])] == node).any()
            if int(world.state[job]) == State.RUNNING and works_there:
                self._ask(job, job if self._policy.replaces and world.keep_room(job) else NONE, now)
        heapq.heappush(self._heap, (lost, _Kind.LOST, node, 0, 0.0))

    def _crash_on(self, node: int, now: float) -> None:
        for job in sorted(crowd(self._world, [node])):
            self._world.crash(job, node, now, keeps=self._policy.replaces)

    def _ask(self, job: int, beneficiary: int, now: float) -> None:
        world = self._world
        world.ask_to_leave(job, beneficiary, now)
        gone = now + world.costs.grace
        heapq.heappush(self._heap, (gone, _Kind.GONE, job, int(world.epoch[job]), 0.0))

    def _decide(self, now: float) -> bool:
        """Ask the policy and carry out what it says; returns whether it changed anything."""
        begun = time.thread_time()
        plan = self._policy.decide(self._world, now)
        self._planning += time.thread_time() - begun
        self._plans += 1
        world, job = self._world, self._job
        for uid in plan.broken:
            self._break(job[uid], now)
        if self._policy.replaces:
            for replaced in plan.replacements:
                world.replace_workers(job[replaced.uid], replaced.indexes, replaced.nodes)
            for fewer in plan.reduced:
                world.promised[job[fewer.uid]] = fewer.nodes
        for promise in plan.promises:
            world.promised[job[promise.uid]] = promise.nodes
            if int(world.state[job[promise.uid]]) == State.PENDING:
                world.state[job[promise.uid]], world.yields[job[promise.uid]] = State.RESERVED, promise.yields
        onward = {promise.uid for promise in plan.promises}
        for eviction in plan.evictions:
            of = eviction.uid if eviction.uid in onward else eviction.beneficiary
            self._ask(job[eviction.uid], job.get(of, NONE), now)
        for admission in plan.admissions:
            started = job[admission.uid]
            end = world.start(started, admission.nodes, now, yields=admission.yields)
            epoch = int(world.epoch[started])
            heapq.heappush(self._heap, (end, _Kind.END, started, epoch, 0.0))
            if world.closes[started] < end:
                heapq.heappush(self._heap, (float(world.closes[started]), _Kind.CLOSES, started, epoch, 0.0))
        return bool(plan.broken or plan.promises or plan.evictions or plan.admissions)

    def _break(self, job: int, now: float) -> None:
        """A promise is not kept: who it was made to waits again as a whole."""
        world = self._world
        world.promised.pop(job, None)
        if int(world.state[job]) == State.RESERVED:
            world.state[job] = State.PENDING
            self._due = now + self._interval  # it has just lost its room, and may find some elsewhere
            world.beneficiary[job] = NONE

    def _passes(self, before: float, now: float) -> None:
        """Count what is idle from one moment to the next, before anything happens at that."""
        world = self._world
        if len(world.present) > len(world.placed):
            idle = idle_gpus(world)
            self._idle += float(idle.sum()) * (now - before)
            self._idle_broken += float(idle[idle < self._workload.cluster.gpus].sum()) * (now - before)
        if self._sampled > -math.inf and now >= self._sampled + 2 * SAMPLE:
            self._append(self._sampled + SAMPLE)  # what happened shortly after the last sample, for it has lasted

    def _sample(self, now: float) -> None:
        if now >= self._sampled + SAMPLE:
            self._sampled = now
            self._append(now)

    def _append(self, now: float) -> None:
        series, world = self._series, self._world
        idle, gpus = idle_gpus(world), self._workload.cluster.gpus
        waiting = world.jobs_in(State.PENDING, State.RESERVED)
        usable = int(gpus[world.usable].sum())
        series.time.append(now)
        series.busy.append(usable - int(idle.sum()))
        series.usable.append(usable)
        series.waiting.append(len(waiting))
        series.waiting_gpus.append(int(self._workload.trace.gpus[waiting].sum()))
        series.broken.append(int(idle[idle < gpus].sum()))

    def _never(self, now: float) -> tuple[tuple[int, str], ...]:
        """Jobs that were submitted, or would have been, and never ended."""
        undone = np.flatnonzero(self._world.state != State.DONE).tolist()
        reasons = self._policy.reasons(self._world, now) if undone else {}
        failed = {job: in_vain(self._world, job) for job in undone if self._world.state[job] == State.FAILED}
        return tuple((job, failed.get(job) or reasons.get(job, "")) for job in undone)


def in_vain(world: World, job: int) -> str:
    """Why a job has failed, and what would help it."""
    runs = world.runs
    mine = np.flatnonzero(np.array(runs.job) == job)[-HOPELESS:]
    lasted = float((np.array(runs.stop) - np.array(runs.start))[mine].mean())
    return (
        f"{HOPELESS} runs in a row, of {lasted:,.0f} seconds in the mean, were ended before any of their work was "
        f"saved; with costs.checkpoint at {world.costs.checkpoint:g} and costs.restart at {world.costs.restart:g} it "
        "gets no further: save more often, give it fewer nodes, or lower the faults"
    )
