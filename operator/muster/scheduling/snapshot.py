"""What the planner sees: the cluster at one moment, as arrays.

Axes, used in every shape below:
    N nodes, L topology levels (widest first), R resources, V flavours, Q queues, J jobs, F node filters.

Amounts are int64 in each resource's base unit: cpu in thousandths of a core, memory and ephemeral storage in bytes,
everything else in pieces. `pods` (a node's room for pods) is a resource like any other, and so is each host port in use
(`hostport/TCP/8080`) and the place of a gang that wants at most one worker a node (`apart/research/llama`), of which
each node has one, so that the planner needs no rule of its own for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
Index = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Seconds = npt.NDArray[np.float64]

UNLIMITED: Final = np.int64(2**62)
"""A quota or limit that does not bind."""

NONE: Final = -1
"""No queue, no parent, no domain: in index arrays."""


ONE_A_NODE: Final = ("hostport/", "apart/")
"""How the names of those resources begin of which every node has one, and which nobody competes for by quota."""


class TopologyMode(IntEnum):
    UNCONSTRAINED = 0
    PREFERRED = 1
    REQUIRED = 2


class JobState(IntEnum):
    PENDING = 0
    """Waits for a placement."""
    HOLDING = 1
    """Placed, or its pods are not all gone yet: holds quota."""
    RESERVED = 2
    """Waits, but its room is promised: `Runs.placed` says where it starts as soon as the victims are gone."""


FOREVER: Final = float("inf")
"""A moment that never comes, in arrays of seconds."""


@dataclass(frozen=True)
class Nodes:
    """
    Attributes:
        names: N.
        free: N x R, allocatable less everything that holds room there (see `muster.cluster.snapshot`); may be negative.
        allocatable: N x R.
        usable: N; ready and not cordoned.
        domains: N x L, index of the node's domain at each level, counted over the whole cluster per level;
            NONE where the node lacks the label of this level or of a wider one. Domains nest: one rack lies in one
            block, so racks of the same label value in two blocks have two indices.
        flavours: N, which flavour the node's accelerators are; NONE for a node without any.
        fixed: N x R, what of allocatable no job can ever have: DaemonSet and static pods. None: nothing known. Without
            it a job that asks for every last core of a node seems to fit an empty cluster, waits for ever and holds
            back those behind it.
    """

    names: tuple[str, ...]
    free: Int
    allocatable: Int
    usable: Mask
    domains: Index
    flavours: Index
    fixed: Int | None = None


@dataclass(frozen=True)
class Levels:
    """
    Attributes:
        names: L, widest first, as the Topology names them (zone, block, rack, host).
        domain_names: for each level the names of its domains, in the order of their indices.
    """

    names: tuple[str, ...]
    domain_names: tuple[tuple[str, ...], ...]


class Preempts(IntEnum):
    """Whom a job may ask for room, under one of its queue's policies."""

    NEVER = 0
    """Nobody."""
    LOWER_PRIORITY = 1
    """Jobs of lower priority."""
    ANY = 2
    """Jobs of any priority."""


@dataclass(frozen=True)
class Queues:
    """A forest of queues. The rows behind those of real queues are cohorts: roots without jobs and quota of their own.

    Attributes:
        names: Q.
        parents: Q, row of the queue that this one borrows from and lends to; NONE for a root. Never in a circle.
        nominal: Q x V x R, what the queue adds to what its own jobs and the queues below it may use; UNLIMITED where
            its quota names neither flavour nor resource: then it adds nothing, and sets no limit.
        borrowing: Q x V x R, how much above nominal (that of the queues below it included) it may use of what its
            parent has left.
        lending: Q x V x R, how much of nominal (that of the queues below it included) others may use while it does not.
        open: Q, False: nothing is admitted (deleted while its jobs run, or held, or a queue above it is held).
        weights: Q, above zero: a queue of weight 2 may use twice as much as its neighbour of weight 1.
        shares_used: Q, decayed mean of the dominant share of the cluster that the queue and those below it had, 0 to 1.
        priorities_max: Q, jobs of a higher priority count as of this one.
        within: Q, of Preempts: whom its jobs may ask in their own queue, NEVER or LOWER_PRIORITY.
        reclaim: Q, of Preempts: whom its jobs may ask elsewhere in the tree while they stay within nominal: jobs that
            borrow what is the queue's.
        borrower: Q, of Preempts: whom its jobs may ask elsewhere in the tree while they borrow, NEVER or
            LOWER_PRIORITY.
        drain: Q, its running jobs are to be stopped.
        shortest: Q, of its jobs that are equal otherwise the one that is expected to need least comes first, and may
            ask those that will need much more; False: the one that was submitted first.
        certain: Q, False: what it may use is not known, and nobody is stopped for what goes beyond it.
    """

    names: tuple[str, ...]
    parents: Index
    nominal: Int
    borrowing: Int
    lending: Int
    open: Mask
    weights: Seconds
    shares_used: Seconds
    priorities_max: Index
    within: Index
    reclaim: Index
    borrower: Index
    drain: Mask
    shortest: Mask
    certain: Mask

    @classmethod
    def plain(cls, names: tuple[str, ...], parents: Index, nominal: Int, borrowing: Int, lending: Int) -> Queues:
        """Open queues of equal weight with the default policies, that have used nothing yet."""
        count = len(names)
        return cls(
            names=names,
            parents=parents,
            nominal=nominal,
            borrowing=borrowing,
            lending=lending,
            open=np.ones(count, dtype=np.bool_),
            weights=np.ones(count),
            shares_used=np.zeros(count),
            priorities_max=np.full(count, np.iinfo(np.int32).max, dtype=np.int32),
            within=np.full(count, Preempts.LOWER_PRIORITY, dtype=np.int32),
            reclaim=np.full(count, Preempts.ANY, dtype=np.int32),
            borrower=np.full(count, Preempts.NEVER, dtype=np.int32),
            drain=np.zeros(count, dtype=np.bool_),
            shortest=np.zeros(count, dtype=np.bool_),
            certain=np.ones(count, dtype=np.bool_),
        )


@dataclass(frozen=True)
class Shape:
    """How a gang must lie, beyond its mode and level. Shared by all jobs that say the same.

    Attributes:
        slices: (workers, level) pairs, widest first: workers [k * size, (k + 1) * size) of the gang share one domain of
            the level. Each size divides the one before it, and each level is narrower than the one before it.
        balanced: level among whose domains the gang is spread in equal numbers; NONE: not asked for.
        spares: workers beyond the gang's size that are placed with it and stand idle until one is needed.
    """

    slices: tuple[tuple[int, int], ...] = ()
    balanced: int = NONE
    spares: int = 0


PLAIN: Final = Shape()


@dataclass(frozen=True)
class Alternative:
    """Another kind of node that a job takes when its first choice has no room.

    Attributes:
        since: seconds since the epoch from which on the job takes it.
    """

    filter: int
    flavour: int
    since: float = 0.0


@dataclass(frozen=True)
class Sizes:
    """How large a gang may be; J each. A gang that is not elastic has all three alike.

    Attributes:
        least: fewest workers that it may run with.
        most: most workers.
        step: it has `least` workers plus a multiple of this; whole data-parallel replicas.
        partial: it may start with fewer than `Jobs.workers`, but not with fewer than `least`.
    """

    least: Index
    most: Index
    step: Index
    partial: Mask

    @classmethod
    def fixed(cls, workers: Index) -> Sizes:
        """No gang is elastic."""
        count = len(workers)
        return cls(workers.copy(), workers.copy(), np.ones(count, dtype=np.int32), np.zeros(count, dtype=np.bool_))


@dataclass(frozen=True)
class Beyond:
    """What an elastic gang with a safe base may have beyond it: workers on other nodes, which it can do without.

    While there are any, they are a row of their own, as a gang that may shrink to nothing: see
    `muster.scheduling.beyond`.

    Attributes:
        filter, flavour: their nodes, and whose quota they draw on there.
        wish: with how many the gang starts, where there is room for them.
        most, step: how many there may be: a multiple of `step`.
        row: theirs, or that of those who are promised; NONE while there are none.
    """

    filter: int
    flavour: int
    wish: int
    most: int
    step: int
    row: int = NONE


@dataclass(frozen=True)
class Terms:
    """What a job allows and demands; J each. Moments are seconds since the epoch, FOREVER for none.

    Attributes:
        preemptible: it may be asked to give its room back. What is not may not borrow either.
        saves: it writes checkpoints, so that a stop loses no more than what came after the last. What does not loses
            its whole run: it is stopped where somebody needs its room, but never moved.
        shapes: of Shape; PLAIN for most.
        alternatives: in order of preference, after `Jobs.filters` and `Jobs.flavours`; empty for most.
        opens: it may not start, or start again when it has stopped, before (off-peak windows).
        closes: it may not start from then on in the window that is open now; FOREVER where none is.
        reopens: from when on it may again, of one with `closes`: one that runs is stopped, and waits again then.
        limit: seconds that a run may take at most, enforced; FOREVER without `maxRuntime`.
        estimate: seconds that a run is expected to take; FOREVER when nobody knows.
        length: seconds that it was expected to run when it was placed, or would now; FOREVER when nobody knows. It is
            the same as long as a placement stands, or those who run would change places with those who wait.
        deadlines: moment by which it should be done.
        reclaims: it may take room from those that it ranks before; False for jobs of queues that never do.
    """

    preemptible: Mask
    saves: Mask
    shapes: tuple[Shape, ...]
    alternatives: tuple[tuple[Alternative, ...], ...]
    opens: Seconds
    limit: Seconds
    estimate: Seconds
    length: Seconds
    deadlines: Seconds
    reclaims: Mask
    closes: Seconds
    reopens: Seconds

    @classmethod
    def plain(cls, count: int) -> Terms:
        """Jobs that say nothing about any of it."""
        never = np.full(count, FOREVER)
        return cls(
            preemptible=np.ones(count, dtype=np.bool_),
            saves=np.ones(count, dtype=np.bool_),
            shapes=(PLAIN,) * count,
            alternatives=((),) * count,
            opens=np.zeros(count),
            limit=never,
            estimate=never.copy(),
            length=never.copy(),
            deadlines=never.copy(),
            reclaims=np.ones(count, dtype=np.bool_),
            closes=never.copy(),
            reopens=np.zeros(count),
        )


@dataclass(frozen=True)
class Runs:
    """What is known of the placements that stand (HOLDING) or are promised (RESERVED); J each unless said otherwise.

    Attributes:
        first: J + 1; job j's workers are on `placed[first[j]:first[j + 1]]`. Empty for PENDING jobs.
        placed: index of the node of each worker, in order of rank; NONE where the node is gone, and where the worker
            has ended, or has left while the others are still to leave.
        leaving: its placement is being ended already: its room comes back, and it is nobody's victim.
        started: when it was placed; 0 for jobs without a placement.
        saved: when its last checkpoint was committed; `started` before the first.
        restart: seconds from a new placement to the first new step.
        grace: seconds from being asked to stop until its pods are gone.
        ends: when it is expected to end by its own progress; FOREVER when unknown. An estimate, never proof.
        bound: when it ends at the latest, enforced (`maxRuntime`, window); FOREVER without.
        budget: preemptions that its disruption budget still allows now.
        stops: how often it was stopped for others so far.
        yields: it was let in before its turn, or will be, and gives way as soon as the one that waited could start.
        beneficiary: J, index of the RESERVED job for which it is being ended; NONE otherwise. Its own index: it is
            being moved or resized, or starts again, on its promised nodes; so also where it is RESERVED.
        promised_first, promised: like `first` and `placed`, for HOLDING jobs that are being moved or resized: nodes
            that they start on again. None: nobody is.
        lost: by row of a HOLDING job, the workers that are made anew while the others of the gang wait for them: they
            get another node where theirs is broken.
        shrinks: by row of those, the moment from which an elastic gang goes on without workers that get no node.
    """

    first: Int
    placed: Index
    leaving: Mask
    started: Seconds
    saved: Seconds
    restart: Seconds
    grace: Seconds
    ends: Seconds
    bound: Seconds
    budget: Index
    stops: Index
    yields: Mask
    beneficiary: Index
    promised_first: Int | None = None
    promised: Index | None = None
    lost: Mapping[int, Int] = field(default_factory=dict)
    shrinks: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def none(cls, count: int) -> Runs:
        """Nothing is known of any placement."""
        zeros, never = np.zeros(count), np.full(count, FOREVER)
        return cls(
            first=np.zeros(count + 1, dtype=np.int64),
            placed=np.empty(0, dtype=np.int32),
            leaving=np.zeros(count, dtype=np.bool_),
            started=zeros,
            saved=zeros.copy(),
            restart=zeros.copy(),
            grace=zeros.copy(),
            ends=never,
            bound=never.copy(),
            budget=np.full(count, np.iinfo(np.int32).max, dtype=np.int32),
            stops=np.zeros(count, dtype=np.int32),
            yields=np.zeros(count, dtype=np.bool_),
            beneficiary=np.full(count, NONE, dtype=np.int32),
        )

    def nodes_of(self, job: int) -> Index:
        """Nodes of the job's workers, in order of rank."""
        return self.placed[int(self.first[job]) : int(self.first[job + 1])]

    def promised_to(self, job: int) -> Index:
        """Nodes that are promised to a job which is being moved or resized, in order of rank; empty for all others."""
        if self.promised_first is None or self.promised is None:
            return np.empty(0, dtype=np.int32)
        return self.promised[int(self.promised_first[job]) : int(self.promised_first[job + 1])]


@dataclass(frozen=True)
class Jobs:
    """
    Attributes:
        uids: J.
        states: J, of JobState.
        queues: J.
        flavours: J, the flavour whose quota the job draws on; index 0 is the flavour without accelerators.
        priorities: J, higher first.
        submitted: J, seconds since the epoch, first submit.
        workers: J, size of the gang; all or none.
        requests: J x R, of one worker, `pods` = 1 included.
        filters: J, index into `Snapshot.eligible`.
        modes: J, of TopologyMode.
        levels: J, index of the level that `modes` speaks of; NONE with UNCONSTRAINED.
        held: J x R, quota that a HOLDING job holds in all; zeros for a PENDING one. A RESERVED one holds quota for its
            whole gang from the moment of the promise.
        beyond: by row of those gangs that may have workers beyond a safe base: their row is the base alone.
    """

    uids: tuple[str, ...]
    states: Index
    queues: Index
    flavours: Index
    priorities: Index
    submitted: Seconds
    workers: Index
    requests: Int
    filters: Index
    modes: Index
    levels: Index
    held: Int
    sizes: Sizes
    terms: Terms
    runs: Runs
    beyond: Mapping[int, Beyond] = field(default_factory=dict)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """By uid."""
        return {uid: row for row, uid in enumerate(self.uids)}

    @cached_property
    def bases(self) -> Mapping[int, int]:
        """The row of the base, by that of the workers beyond it."""
        return {each.row: row for row, each in self.beyond.items() if each.row != NONE}

    @cached_property
    def gangs(self) -> tuple[str, ...]:
        """J, the uid of the gang that each is, or is a part of."""
        uids = list(self.uids)
        for row, base in self.bases.items():
            uids[row] = self.uids[base]
        return tuple(uids)

    @cached_property
    def pending(self) -> Mask:
        """J, those that wait."""
        return self._in(JobState.PENDING)

    @cached_property
    def holding(self) -> Mask:
        """J, those that have a placement."""
        return self._in(JobState.HOLDING)

    @cached_property
    def reserved(self) -> Mask:
        """J, those whose room is promised."""
        return self._in(JobState.RESERVED)

    def _in(self, state: JobState) -> Mask:
        there: Mask = self.states == int(state)  # with a member of an enum it takes several times as long
        there.flags.writeable = False
        return there


@dataclass(frozen=True)
class Snapshot:
    """
    Attributes:
        resources: R, names as Kubernetes writes them.
        flavours: V, for people: "" for index 0, else like "H100/on-demand".
        eligible: F x N, whether a node's labels, taints and the job's own avoidance let the job's pods run there.
            Room, readiness and cordons are not in it.
        now: seconds since the epoch: the planner has no clock of its own.
        prices: V, money an hour of one accelerator; None: unknown.
    """

    resources: tuple[str, ...]
    flavours: tuple[str, ...]
    levels: Levels
    nodes: Nodes
    queues: Queues
    jobs: Jobs
    eligible: Mask
    now: float = 0.0
    prices: Seconds | None = None
