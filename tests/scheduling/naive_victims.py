"""Whose room a gang gets, by the words of docs/victims.md and docs/queues.md: every set of victims, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, combinations, permutations, product

from muster.scheduling.plan import MoveReason
from muster.scheduling.ranks import AGE_STEP, AGE_STEPS, STEP_AT_MOST
from muster.scheduling.snapshot import FOREVER, NONE, PLAIN, JobState, Preempts, Snapshot

from . import oracle
from .naive_places import Counts, Free, asks, reach, slots, suits

Use = dict[tuple[int, int, int], int]
"""By queue, flavour and resource."""


@dataclass(frozen=True)
class Way:
    """What is asked of one job: how many of its workers leave each node, and whether all of them go."""

    leave: tuple[int, ...]
    whole: bool


@dataclass(frozen=True)
class Choice:
    """
    Attributes:
        asked: by row of those who give room back.
        sites: the sets of nodes of which each could hold the gang then.
    """

    asked: dict[int, Way]
    sites: list[list[int]]


@dataclass(frozen=True)
class Claimant:
    """
    Attributes:
        size: workers and spares that it wants at least.
        open: what it may take without asking anybody, with what comes back from those who are leaving.
        use: what is promised; beside that, if it has to borrow, what owners want.
        gone: rows of those who are leaving.
        passed: rows of those who yield, but rank before it.
        kept: rows of those who yield, and whose room is kept for others.
        only: rows of those who alone may be asked; None: all.
    """

    job: int
    size: int
    open: Free
    use: Use
    gone: frozenset[int]
    passed: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    only: frozenset[int] | None = None


class Victims:
    def __init__(self, world: Snapshot, claimant: Claimant) -> None:
        self.world, self.jobs, self.its = world, world.jobs, claimant
        self.job, self.home = claimant.job, home(world, claimant.job)
        self.need = {resource: amount * claimant.size for resource, amount in asks(world, self.job).items()}
        self.limited = [r for r in self.need if oracle.limited(world, *self.home, r)]
        self.within = stays_within(world, claimant.use, self.job, self.need)
        rows = range(len(world.jobs.uids)) if claimant.only is None else sorted(claimant.only)
        rows = [row for row in rows if row not in claimant.gone | claimant.kept and self._may_be_asked(row)]
        found = {row: self._right(row) for row in rows}
        self.rights = {row: right for row, right in found.items() if right is not None}

    def cheapest(self) -> list[Choice]:
        """All choices that cost the least: what those lose who go, then those who shrink, then those who yield; then by
        how many leave."""
        found: list[Choice] = []
        if not self._sites(self._all_go()) or not self._has_quota(self._all_go()):
            return found
        best: tuple[float, ...] | None = None
        yielding = [row for row, right in self.rights.items() if right == "yields"]
        for gone in sorted(_subsets(row for row in self.rights if row not in yielding), key=self._lost):
            if best is not None and round(self._lost(gone), 6) > best[0]:
                break
            others = [row for row in self.rights if row not in (*gone, *yielding)]
            ways_of = [*([Way((0,) * len(self.its.open), whole=False), self._all_go()[row]] for row in yielding)]
            for ways in product(*ways_of, *(self._ways_to_shrink(row) for row in others)):
                asked = {row: self._all_go()[row] for row in gone}
                asked |= {row: way for row, way in zip([*yielding, *others], ways, strict=True) if any(way.leave)}
                weight = self._weight(asked)
                if best is not None and weight > best:
                    continue
                sites = self._sites(asked)
                if sites and self._has_quota(asked) and self._is_rightful(asked):
                    found = [*(found if weight == best else []), Choice(asked, sites)]
                    best = weight
        return found

    def reason(self, row: int) -> MoveReason:
        if self.rights[row] == "yields":
            return MoveReason.YIELDED
        return MoveReason.RECLAIMED if self.rights[row] == "borrowed" else MoveReason.PREEMPTED

    # What it costs

    def _weight(self, asked: dict[int, Way]) -> tuple[float, ...]:
        yielding = [row for row in asked if self.rights[row] == "yields"]
        go = [row for row, way in asked.items() if way.whole and row not in yielding]
        shrink = [row for row, way in asked.items() if not way.whole]
        leave = sum(sum(asked[row].leave) for row in shrink)
        return *(round(self._lost(rows), 6) for rows in (go, shrink, yielding)), leave

    def _lost(self, rows: Iterable[int]) -> float:
        """Each stop that a job has had makes its loss count once more."""
        return sum(lost(self.world, row) * (1 + int(self.jobs.runs.stops[row])) for row in rows)

    # What can be asked of one job

    def _all_go(self) -> dict[int, Way]:
        return {row: Way(tuple(self._placed(row)), whole=True) for row in self.rights}

    def _ways_to_shrink(self, row: int) -> list[Way]:
        """None of its workers leave, or those of some of its replicas, down to its least."""
        sizes, nodes = self.jobs.sizes, self.jobs.runs.nodes_of(row).tolist()
        least, step = int(sizes.least[row]), int(sizes.step[row])
        stays = Way((0,) * len(self.its.open), whole=False)
        may_start_again = goes_on(self.world, row) and all(
            self.world.nodes.usable[node] and suits(self.world, row, node) for node in nodes
        )
        more = len(nodes) - least
        if least >= sizes.most[row] or more % step or not may_start_again:
            return [stays]
        assert self.jobs.terms.shapes[row] is PLAIN, "no gang with a shape runs in these clusters"
        replicas = [nodes[at : at + step] for at in range(len(nodes) % step, len(nodes), step)]
        some = chain.from_iterable(combinations(replicas, size) for size in range(1, more // step + 1))
        left = [[node for replica in each for node in replica] for each in some]
        ways = [Way(tuple(each.count(node) for node in range(len(self.its.open))), whole=False) for each in left]
        return [stays, *dict.fromkeys(way for way in ways if sum(way.leave) < len(nodes))]

    def _placed(self, row: int) -> Counts:
        nodes = self.jobs.runs.nodes_of(row).tolist()
        return [nodes.count(node) for node in range(len(self.its.open))]

    # Whether it is enough

    def _sites(self, asked: dict[int, Way]) -> list[list[int]]:
        counts = slots(self.world, self.job, self.freed(asked))
        return [site for site in reach(self.world, self.job) if sum(counts[node] for node in site) >= self.its.size]

    def freed(self, asked: dict[int, Way]) -> Free:
        """What the claimant finds when these have left."""
        free = [list(each) for each in self.its.open]
        for row, way in asked.items():
            for node, count in enumerate(way.leave):
                for resource, amount in asks(self.world, row).items():
                    free[node][resource] += amount * count
        return free

    def _has_quota(self, asked: dict[int, Way]) -> bool:
        use = self._use_without(asked)
        if not all(oracle.may_add(self.world, use, *self.home, resource, need) for resource, need in self.need.items()):
            return False
        return bool(self.jobs.terms.preemptible[self.job]) or stays_within(self.world, use, self.job, self.need)

    def _use_without(self, asked: dict[int, Way]) -> Use:
        use = dict(self.its.use)
        for row, way in asked.items():
            for resource, amount in gives(self.world, row, way).items():
                use[(*home(self.world, row), resource)] -= amount
        return use

    # Who may be asked

    def _may_be_asked(self, row: int) -> bool:
        runs = self.jobs.runs
        stands = self.jobs.states[row] == JobState.HOLDING and not runs.leaving[row] and len(runs.nodes_of(row)) > 0
        in_time = self.world.now + runs.grace[row] < self.jobs.terms.closes[self.job]
        return bool(stands and self.jobs.queues[row] != NONE and self.jobs.terms.preemptible[row] and in_time)

    def _right(self, row: int) -> str | None:
        """The table "Who may be asked, for whom" of docs/victims.md."""
        first = self.jobs.priorities[row] <= self.jobs.priorities[self.job]
        if self.jobs.runs.yields[row] and row not in self.its.passed and first:
            return "yields"
        if not self.jobs.terms.reclaims[self.job]:
            return None
        queues, (mine, flavour), (other, of) = self.world.queues, self.home, home(self.world, row)
        lower = bool(self.jobs.priorities[row] < self.jobs.priorities[self.job])
        has_budget = bool(self.jobs.runs.budget[row] > 0)
        if other == mine:
            may = queues.within[mine] != Preempts.NEVER and has_budget and (lower or self._is_much_longer(row))
            return "lower" if may else None
        if not any(oracle.limited(self.world, other, of, resource) for resource in self.need):
            return "lower" if lower and has_budget else None
        if not any(self._borrowed(self.its.use, row, resource) > 0 for resource in self.need):
            return None
        if oracle.way_up(self.world, other)[-1] != oracle.way_up(self.world, mine)[-1]:
            return "surplus" if lower else None
        if self.within and queues.reclaim[mine] != Preempts.NEVER:
            may = lower or queues.reclaim[mine] == Preempts.ANY
            mine_is_lent = of == flavour and self._may_reclaim(self.its.use, row) and self._is_borrowed_use(row)
            return "borrowed" if may and mine_is_lent else None
        may = lower and not self.within and queues.borrower[mine] != Preempts.NEVER
        return "surplus" if may else None

    def _is_much_longer(self, row: int) -> bool:
        """ "Short jobs first" of docs/queues.md: of the same priority, with twice as many GPU-seconds to go, young
        enough, and it has run for 20 times as long as stopping and starting it takes."""
        if not by_length(self.world, row) or self.jobs.priorities[row] != self.jobs.priorities[self.job]:
            return False
        length, runs = float(self.jobs.terms.length[row]), self.jobs.runs
        ran = self.world.now - float(runs.started[row])
        may = length < FOREVER and age(self.world, row) < AGE_STEPS
        worth = ran >= 20 * float(runs.restart[row] + runs.grace[row])
        to_go = work(self.world, row) * max(0.0, 1 - ran / length) if may else 0.0
        return may and worth and to_go > 0 and to_go >= 2 * work(self.world, self.job)

    def _is_rightful(self, asked: dict[int, Way]) -> bool:
        """Whether each may be asked in some order, while its queue borrows that much beside those before it."""
        bound = [row for row in asked if self.rights[row] not in ("lower", "yields")]
        free = {row: way for row, way in asked.items() if row not in bound}
        return any(
            all(
                self._still(row, asked[row], self._use_without(free | {each: asked[each] for each in order[:at]}))
                for at, row in enumerate(order)
            )
            for order in permutations(bound)
        )

    def _still(self, row: int, way: Way, use: Use) -> bool:
        if self.rights[row] == "borrowed":
            return self._may_reclaim(use, row)
        given = {resource: amount for resource, amount in gives(self.world, row, way).items() if resource in self.need}
        return any(0 < amount <= self._borrowed(use, row, resource) for resource, amount in given.items())

    def _borrowed(self, use: Use, row: int, resource: int) -> int:
        """What its queue uses beyond its own nominal."""
        queue, flavour = home(self.world, row)
        if not oracle.limited(self.world, queue, flavour, resource):
            return 0
        return max(0, use.get((queue, flavour, resource), 0) - own(self.world, queue, flavour, resource))

    def _may_reclaim(self, use: Use, row: int) -> bool:
        """ "Whose use is whose?" of docs/queues.md: the branches of the two queues, up to where they part."""
        (queue, flavour), other = self.home, int(self.jobs.queues[row])
        ours, theirs = branches(self.world, queue, other)
        grown = dict(use)
        for resource in self.limited:
            grown[queue, flavour, resource] = grown.get((queue, flavour, resource), 0) + self.need[resource]

        def beyond(use: Use, branch: int, resource: int) -> bool:
            if branch < 0:
                return use.get((~branch, flavour, resource), 0) > own(self.world, ~branch, flavour, resource)
            drawn = oracle.draws_on(self.world, use, branch, flavour, resource)
            return drawn > oracle.has(self.world, branch, flavour, resource)

        if any(beyond(grown, ours[-1], resource) for resource in self.limited):
            return False
        return any(all(beyond(use, branch, resource) for branch in theirs) for resource in self.limited)

    def _is_borrowed_use(self, row: int) -> bool:
        """Whether it is what each queue of its branch has borrowed, of one of the resources."""
        _, theirs = branches(self.world, self.home[0], int(self.jobs.queues[row]))
        return any(
            all(row in borrowed_use(self.world, branch, self.home[1], resource) for branch in theirs)
            for resource in self.limited
        )


def home(world: Snapshot, job: int) -> tuple[int, int]:
    return int(world.jobs.queues[job]), int(world.jobs.flavours[job])


def own(world: Snapshot, queue: int, flavour: int, resource: int) -> int:
    nominal = int(world.queues.nominal[queue, flavour, resource])
    return nominal if nominal < 2**62 else 0


def stays_within(world: Snapshot, use: Use, job: int, need: dict[int, int]) -> bool:
    """Whether the job's queue stays within its own nominal with so much more."""
    queue, flavour = home(world, job)
    return all(
        use.get((queue, flavour, resource), 0) + amount <= own(world, queue, flavour, resource)
        for resource, amount in need.items()
        if oracle.limited(world, queue, flavour, resource)
    )


def goes_on(world: Snapshot, row: int) -> bool:
    """Whether its window is open, and will be when it has stopped, so that it starts again at once."""
    terms = world.jobs.terms
    gone = world.now + float(world.jobs.runs.grace[row])
    return bool(terms.opens[row] <= world.now and gone < terms.closes[row])


def lost(world: Snapshot, row: int) -> float:
    """GPU-seconds since the last checkpoint and until it trains again; a job without GPUs counts as one."""
    runs = world.jobs.runs
    gpus = int(world.jobs.requests[row, world.resources.index("nvidia.com/gpu")]) * len(runs.nodes_of(row))
    since = world.now - max(float(runs.saved[row]), float(runs.started[row]))
    return (since + float(runs.restart[row])) * max(1, gpus)


def gives(world: Snapshot, row: int, way: Way) -> dict[int, int]:
    """The quota that comes back."""
    return {resource: amount * sum(way.leave) for resource, amount in asks(world, row).items()}


def by_length(world: Snapshot, job: int) -> bool:
    """Whether the shortest come first in its queue."""
    queue = int(world.jobs.queues[job])
    return queue != NONE and bool(world.queues.shortest[queue])


def age(world: Snapshot, job: int) -> int:
    step, length = AGE_STEP, float(world.jobs.terms.length[job])
    if by_length(world, job) and length < FOREVER:
        step = min(max(length / AGE_STEPS, AGE_STEP), STEP_AT_MOST)
    return min(AGE_STEPS, int(max(0.0, world.now - float(world.jobs.submitted[job])) // step))


def work(world: Snapshot, job: int) -> float:
    """GPU-seconds that it is expected to need; a worker without GPUs counts as one."""
    gpus = int(world.jobs.requests[job, world.resources.index("nvidia.com/gpu")])
    return float(world.jobs.terms.length[job]) * (max(1, gpus) * int(world.jobs.workers[job]))


def branches(world: Snapshot, queue: int, other: int) -> tuple[list[int], list[int]]:
    """The ways up from the jobs of two queues, as far as they are apart. ~queue stands for the queue's own jobs."""
    ours, theirs = ([~each, *oracle.way_up(world, each)] for each in (queue, other))
    return [each for each in ours if each not in theirs], [each for each in theirs if each not in ours]


def borrowed_use(world: Snapshot, branch: int, flavour: int, resource: int) -> set[int]:
    """Rows of the jobs that a queue, or with ~queue the jobs of one, have borrowed: who came last borrows."""
    return {row for row, _, borrows in _drawn(world, branch, flavour, resource) if borrows}


def _drawn(world: Snapshot, branch: int, flavour: int, resource: int) -> list[tuple[int, int, bool]]:
    """(row, how much of what it holds the branch uses up, whether that is borrowed), in the order of counting."""
    jobs = world.jobs

    def placed(row: int) -> tuple[bool, float]:
        return bool(jobs.terms.preemptible[row]), float(jobs.runs.started[row])

    if branch < 0:
        rows = [row for row in range(len(jobs.uids)) if home(world, row) == (~branch, flavour)]
        there = [row for row in rows if jobs.states[row] == JobState.HOLDING and not jobs.runs.leaving[row]]
        limited = oracle.limited(world, ~branch, flavour, resource)
        below = [(row, int(jobs.held[row, resource]) * limited, True) for row in sorted(there, key=placed)]
        has = own(world, ~branch, flavour, resource)
    else:
        children = [child for child in range(len(world.queues.names)) if world.queues.parents[child] == branch]
        below = _drawn(world, ~branch, flavour, resource)
        for child in children:
            kept = oracle.keeps(world, child, flavour, resource)
            for row, amount, borrows in _drawn(world, child, flavour, resource):
                below.append((row, max(0, amount - kept), borrows))
                kept = max(0, kept - amount)
        below.sort(key=lambda each: (each[2], placed(each[0])))
        has = oracle.has(world, branch, flavour, resource)
    counted, total = [], 0
    for row, amount, borrows in below:
        total += amount
        counted.append((row, amount, borrows and amount > 0 and total > has))
    return counted


def _subsets(rows: Iterable[int]) -> Iterator[tuple[int, ...]]:
    rows = list(rows)
    return chain.from_iterable(combinations(rows, size) for size in range(len(rows) + 1))
