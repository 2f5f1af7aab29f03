"""The rows that present jobs are in the planner's arrays: one each, and for a gang with a safe base a second one for
the workers that it has, or is promised, beyond that (`muster.scheduling.beyond`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from muster.scheduling.snapshot import NONE, Beyond, Index, Int, Mask
from muster.simulate.workload import Workload
from muster.simulate.world import State, World

NOWHERE: Index = np.empty(0, dtype=np.int32)


@dataclass(frozen=True)
class Parts:
    """Those with nodes first, then those with promises alone, then those that wait.

    Attributes:
        jobs: the trace's job of each row.
        holding, reserved: how many of the first, and how many of the second there are.
        behind: whether a row is that of workers beyond a base; None: no job of the trace has one.
        row: the row of each present job, or of its base.
        row_behind: that of its workers beyond the base, where there are any.
    """

    jobs: Int
    holding: int
    reserved: int
    behind: Mask | None = None
    row: dict[int, int] = field(default_factory=dict)
    row_behind: dict[int, int] = field(default_factory=dict)

    @property
    def placed(self) -> int:
        """Rows with nodes or promises."""
        return self.holding + self.reserved

    @classmethod
    def of(cls, world: World) -> Parts:
        """Of the jobs that are present."""
        reserved = [job for job in world.promised if job not in world.placed]
        waiting = world.jobs_in(State.PENDING).tolist()
        if world.workload.beyond is None:
            jobs = np.array([*world.placed, *reserved, *waiting], dtype=np.int64)
            return cls(jobs, len(world.placed), len(reserved))
        more_held = [job for job in world.placed if _has_more(world, job)]
        more_promised = [job for job in reserved if _has_more(world, job)]
        groups = (list(world.placed), more_held, reserved, more_promised, waiting)
        jobs = np.array([job for group in groups for job in group], dtype=np.int64)
        behind = np.repeat([False, True, False, True, False], list(map(len, groups)))
        rows = {which: np.flatnonzero(behind == which) for which in (False, True)}
        row, row_behind = (dict(zip(jobs[at].tolist(), at.tolist(), strict=True)) for at in rows.values())
        held, promised = len(world.placed) + len(more_held), len(reserved) + len(more_promised)
        return cls(jobs, held, promised, behind, row, row_behind)

    def placed_nodes(self, world: World) -> list[Index]:
        """Nodes of each row that has some."""
        if self.behind is None:
            return list(world.placed.values())
        return self._nodes(world.placed, 0, self.holding, world.workload)

    def promised_nodes(self, world: World, first: int, last: int) -> list[Index]:
        """Nodes that are promised to each of these rows; none to many of those that have some."""
        return self._nodes(world.promised, first, last, world.workload)

    def _nodes(self, nodes: dict[int, Index], first: int, last: int, work: Workload) -> list[Index]:
        jobs = self.jobs[first:last].tolist()
        if self.behind is None:
            return [nodes.get(job, NOWHERE) for job in jobs]
        return [
            _part(work, job, nodes.get(job, NOWHERE), behind=behind)
            for job, behind in zip(jobs, self.behind[first:last].tolist(), strict=True)
        ]

    def beyond(self, work: Workload) -> dict[int, Beyond]:
        """What each gang with a base may have beyond it, by the row of its base."""
        if work.beyond is None or work.sizes is None:
            return {}
        found = {}
        for job, row in self.row.items():
            flavour, least = int(work.beyond[job]), int(work.sizes.least[job])
            if flavour != NONE:
                found[row] = Beyond(
                    filter=flavour,
                    flavour=flavour,
                    wish=int(work.workers[job]) - least,
                    most=int(work.sizes.most[job]) - least,
                    step=int(work.sizes.step[job]),
                    row=self.row_behind.get(job, NONE),
                )
        return found

    def beneficiaries(self, world: World) -> Index:
        """Row of the job for which each is leaving; its own where it starts again."""
        asked = world.beneficiary[self.jobs]
        found = np.full(len(self.jobs), NONE, dtype=np.int32)
        leaving = np.flatnonzero(asked != NONE)
        if not leaving.size:
            return found
        row = self.row or dict(zip(self.jobs.tolist(), range(len(self.jobs)), strict=True))
        for at, job in zip(leaving.tolist(), asked[leaving].tolist(), strict=True):
            own = self.behind is not None and self.behind[at] and job == self.jobs[at]
            found[at] = at if own else row.get(job, NONE)
        return found


def _has_more(world: World, job: int) -> bool:
    """Whether a job has workers beyond a base, or is promised some."""
    base = world.workload.base_of(job)
    return base > 0 and max(len(nodes.get(job, NOWHERE)) for nodes in (world.placed, world.promised)) > base


def _part(work: Workload, job: int, nodes: Index, *, behind: bool) -> Index:
    base = work.base_of(job)
    return nodes[base:] if behind else nodes[:base] if base else nodes
