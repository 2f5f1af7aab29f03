"""What of a queue's quota gives way to a waiting job: what is held by those of the queue who were let in before it.

A queue whose first job waits for room may borrow for jobs behind it. These yield (`muster.scheduling.starting`), so it
is they who borrow, and not the first: it keeps its reservation, and its turn before those of other queues who would
take back what its queue has borrowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from muster.scheduling.plan import Eviction
from muster.scheduling.quota import Need
from muster.scheduling.ranks import ranked
from muster.scheduling.snapshot import Int, Snapshot


class LetIn:
    """The running jobs of a snapshot that yield and aren't ending yet, by queue and flavour.

    Attributes:
        anybody: whether there are any.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        jobs = snapshot.jobs
        self._snapshot = snapshot
        self._there: Int = np.flatnonzero(jobs.runs.yields & jobs.holding & ~jobs.runs.leaving)
        self._rows: dict[tuple[int, int], list[int]] = {}
        for row in self._there.tolist():
            self._rows.setdefault((int(jobs.queues[row]), int(jobs.flavours[row])), []).append(row)
        self.anybody = bool(self._rows)

    def without(self, job: int, flavour: int, need: Need, evictions: Sequence[Eviction]) -> Need | None:
        """What a waiting job's queue would use more if it had `need` in place of what gives way to the job.

        Args:
            evictions: of this plan; the quota of those is others' already.

        Returns:
            Amounts that may be negative. None if nothing gives way: mostly, so that is told first.
        """
        jobs = self._snapshot.jobs
        rows = self._rows.get((int(jobs.queues[job]), flavour))
        if rows is None:
            return None
        going = {each.uid for each in evictions}
        behind = [row for row in rows if self._places[row] > self._places[job] and jobs.uids[row] not in going]
        if not behind:
            return None
        held = jobs.held[behind].sum(axis=0).tolist()
        return [(resource, amount - held[resource]) for resource, amount in need]

    @cached_property
    def _places(self) -> list[int]:
        """J, the place of those that wait or are here in the order, shares aside."""
        places = np.zeros(len(self._snapshot.jobs.uids), dtype=np.int64)
        rows = ranked(self._snapshot, np.concatenate([np.flatnonzero(self._snapshot.jobs.pending), self._there]))
        places[rows] = np.arange(len(rows))
        found: list[int] = places.tolist()
        return found
