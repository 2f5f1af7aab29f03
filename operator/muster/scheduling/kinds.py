"""Jobs that are alike to the planner, told apart once, so that ten thousand jobs of few kinds cost as much as a few.

A `Kind` is everything of a job but who it is: its queue, its rank and its own moments. It names the workers and gangs
(`muster.scheduling.gangs`) that the job could be: one gang for each choice of nodes and each size.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.scheduling.gangs import Gang, Worker, is_accelerator
from muster.scheduling.quota import Need
from muster.scheduling.snapshot import NONE, PLAIN, Index, Int, Mask, Shape, Snapshot, TopologyMode


@dataclass(frozen=True)
class Choice:
    """A kind of node that a job takes.

    Attributes:
        worker: index into `Kinds.workers`.
        flavour: whose quota it draws on.
    """

    worker: int
    flavour: int


@dataclass(frozen=True)
class Kind:
    """
    Attributes:
        choices: in order of preference; those only that the job takes by now.
        sizes: numbers of workers that it may start with, most first; one unless it is elastic or may start in part.
        step: what other sizes that it could be given differ by from these: whole replicas of its model.
        preemptible: False: it does not borrow quota and is never asked to go.
        reclaims: it may take room from those that it ranks before.
    """

    choices: tuple[Choice, ...]
    sizes: tuple[int, ...]
    step: int
    mode: TopologyMode
    level: int
    shape: Shape
    preemptible: bool
    reclaims: bool


class Kinds:
    """
    Attributes:
        workers: the different workers; `Gang.worker` is an index of this.
        kinds: the different kinds.
        of: J, the kind of each row that was asked for, NONE for the others; `numbers` is the same as an array.
    """

    def __init__(self, snapshot: Snapshot, rows: Int, *, elastic: bool = True) -> None:
        self._snapshot = snapshot
        self._accelerators = {index for index, name in enumerate(snapshot.resources) if is_accelerator(name)}
        self._elastic = elastic
        self.workers: list[Worker] = []
        self.of: list[int] = [NONE] * len(snapshot.jobs.uids)
        self._worker_index: dict[tuple[bytes, int], int] = {}
        self._gangs: dict[tuple[int, int, int], Gang] = {}
        self._needs: dict[tuple[int, int, int], Need] = {}
        self._limited_needs: dict[tuple[int, int, int, frozenset[int]], Need] = {}
        self._least_needs: dict[int, tuple[Int, Int]] = {}
        self._likes: dict[tuple[int, int], int] = {}
        self._like_index: dict[tuple[int, TopologyMode, int, Shape], int] = {}
        keys = _keys(snapshot, rows, self._others)
        number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        first = dict(zip(reversed(keys), reversed(rows.tolist()), strict=True))
        self.kinds = [self._kind(first[key], self._others(first[key])) for key in number]
        for row, key in zip(rows.tolist(), keys, strict=True):
            self.of[row] = number[key]
        self.numbers: Int = np.array(self.of, dtype=np.int64)

    def gang(self, kind: int, choice: int = 0, size: int = 0) -> Gang:
        """The gang that a job of this kind is with one of its choices, and one of its sizes (0: the largest)."""
        it = self.kinds[kind]
        key = (kind, choice, size or it.sizes[0])
        gang = self._gangs.get(key)
        if gang is None:
            mode, level = _closeness(it.mode, it.level)
            gang = self._gangs[key] = Gang(it.choices[choice].worker, key[2], mode, level, it.shape)
        return gang

    def limit_sizes(self, possible: Callable[[Gang], bool]) -> None:
        """Take from balanced gangs all sizes below the smallest that is possible: one may fit with more workers where
        it does not with fewer, while for all others the smallest is possible if any is. To be called before anything
        else is asked."""
        for kind, it in enumerate(self.kinds):
            if it.shape.balanced == NONE or len(it.sizes) == 1:
                continue
            # To try every size would take long: there may be hundreds of them.
            gangs = ([self.gang(kind, each, size) for each in range(len(it.choices))] for size in reversed(it.sizes))
            least = next((alike[0].size for alike in gangs if any(map(possible, alike))), it.sizes[-1])
            self.kinds[kind] = replace(it, sizes=tuple(size for size in it.sizes if size >= least))

    def like(self, kind: int, choice: int) -> int:
        """A number that is the same for gangs that differ in their size alone."""
        key = (kind, choice)
        like = self._likes.get(key)
        if like is None:
            gang = self.gang(kind, choice)
            alike = (gang.worker, gang.mode, gang.level, gang.shape)
            like = self._likes[key] = self._like_index.setdefault(alike, len(self._like_index))
        return like

    def need(self, kind: int, choice: int = 0, size: int = 0) -> Need:
        """Quota that such a gang asks for, spares included."""
        key = (kind, choice, size or self.kinds[kind].sizes[0])
        need = self._needs.get(key)
        if need is None:
            gang = self.gang(*key)
            asks = self.workers[gang.worker].asks
            need = self._needs[key] = tuple((resource, amount * gang.total) for resource, amount in asks)
        return need

    def limited_need(self, kind: int, choice: int, size: int, limited: frozenset[int]) -> Need:
        """The part of `need` that quota limits."""
        key = (kind, choice, size, limited)
        need = self._limited_needs.get(key)
        if need is None:
            need = tuple(ask for ask in self.need(kind, choice, size) if ask[0] in limited)
            self._limited_needs[key] = need
        return need

    def least_needs(self, choice: int) -> tuple[Int, Int]:
        """(kinds x R, quota that the smallest gang of each kind asks for with a choice; the flavour of it); zeros for
        kinds that have no such choice."""
        found = self._least_needs.get(choice)
        if found is None:
            needs = np.zeros((len(self.kinds), len(self._snapshot.resources)), dtype=np.int64)
            flavours = np.zeros(len(self.kinds), dtype=np.int64)
            for kind, it in enumerate(self.kinds):
                if choice < len(it.choices):
                    flavours[kind] = it.choices[choice].flavour
                    for resource, amount in self.need(kind, choice, it.sizes[-1]):
                        needs[kind, resource] = amount
            found = self._least_needs[choice] = needs, flavours
        return found

    def _others(self, row: int) -> tuple[tuple[int, int], ...]:
        """(filter, flavour) of the alternatives that the job takes by now."""
        alternatives = self._snapshot.jobs.terms.alternatives[row]
        return tuple((each.filter, each.flavour) for each in alternatives if each.since <= self._snapshot.now)

    def _choices(self, row: int, others: Sequence[tuple[int, int]]) -> tuple[Choice, ...]:
        jobs = self._snapshot.jobs
        own = (int(jobs.filters[row]), int(jobs.flavours[row]))
        return tuple(Choice(self.worker(row, filter_), flavour) for filter_, flavour in dict.fromkeys((own, *others)))

    def worker(self, row: int, filter_: int) -> int:
        """Index of a job's worker on the nodes of a filter."""
        request = self._snapshot.jobs.requests[row]
        key = (request.tobytes(), filter_)
        if key not in self._worker_index:
            self._worker_index[key] = len(self.workers)
            asks = tuple((resource, amount) for resource, amount in enumerate(request.tolist()) if amount > 0)
            accelerated = any(resource in self._accelerators for resource, _ in asks)
            self.workers.append(Worker(asks, filter_, accelerated))
        return self._worker_index[key]

    def _kind(self, row: int, others: Sequence[tuple[int, int]]) -> Kind:
        jobs = self._snapshot.jobs
        return Kind(
            choices=self._choices(row, others),
            sizes=self._sizes(row),
            step=max(1, int(jobs.sizes.step[row])),
            mode=TopologyMode(jobs.modes[row]),
            level=int(jobs.levels[row]),
            shape=jobs.terms.shapes[row],
            preemptible=bool(jobs.terms.preemptible[row]),
            reclaims=bool(jobs.terms.reclaims[row]),
        )

    def _sizes(self, row: int) -> tuple[int, ...]:
        jobs = self._snapshot.jobs
        wish, least, step = int(jobs.workers[row]), int(jobs.sizes.least[row]), max(1, int(jobs.sizes.step[row]))
        if not self._elastic or least >= wish or not jobs.sizes.partial[row]:
            return (wish,)
        return (wish, *reversed(range(least, wish, step)))


def _keys(snapshot: Snapshot, rows: Int, others: Callable[[int], tuple[tuple[int, int], ...]]) -> list[bytes]:
    """Bytes that are the same for jobs that are alike. `others`: the alternatives that a job takes by now."""
    jobs = snapshot.jobs
    columns: list[Int | Index | Mask] = [jobs.filters, jobs.flavours, jobs.workers, jobs.modes, jobs.levels]
    columns += [jobs.sizes.least, jobs.sizes.step, jobs.sizes.partial, jobs.terms.preemptible, jobs.terms.reclaims]
    width = jobs.requests.shape[1]
    table = np.empty((len(rows), width + len(columns) + 2), dtype=np.int64)
    table[:, :width] = jobs.requests[rows]
    for index, column in enumerate(columns):
        table[:, width + index] = column[rows]
    table[:, -2:] = 0
    if jobs.terms.shapes.count(PLAIN) < len(jobs.terms.shapes):
        table[:, -2] = _numbered([jobs.terms.shapes[row] for row in rows.tolist()])
    if any(jobs.terms.alternatives):
        table[:, -1] = _numbered([others(row) for row in rows.tolist()])
    return row_keys(table)


def row_keys(table: Int) -> list[bytes]:
    """Of each row its bytes: what equal rows share, and can be looked up by."""
    whole, size = table.tobytes(), table.shape[1] * table.itemsize
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def _numbered(values: Sequence[Hashable]) -> list[int]:
    """The same number for equal values. Most are the same object, and few objects are hashed."""
    objects = {id(value): value for value in values}
    of_value = {value: index for index, value in enumerate(dict.fromkeys(objects.values()))}
    of_object = {key: of_value[value] for key, value in objects.items()}
    return [of_object[id(value)] for value in values]


def _closeness(mode: TopologyMode, level: int) -> tuple[TopologyMode, int]:
    """PREFERRED without a level is the same as UNCONSTRAINED."""
    if mode == TopologyMode.UNCONSTRAINED or (mode == TopologyMode.PREFERRED and level == NONE):
        return TopologyMode.UNCONSTRAINED, NONE
    return mode, level
