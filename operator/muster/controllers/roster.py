"""Who waits for the planner, by what they ask for, and who holds room: what a round looks at, kept as jobs change.

Ten thousand jobs may wait, and while a round looks at all of them room stays idle. Jobs of one queue that ask for the
same are served in the order of their submission: while the first few of them cannot all start, no later one can. So a
round that only decides is given the first few of each class, and one that also says why each job waits is given all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable
from typing import Final

from muster.cluster.jobs import JobInput

FIRST: Final = 8
"""Jobs of each class that a round looks at; more than the planner has heads."""

Class = tuple[object, ...]
Place = tuple[float, str]
"""(first submit, UID)."""


class Roster:
    """Jobs that wait, in classes, and the UIDs of those that may hold room.

    Attributes:
        touched: UIDs of jobs about which something may have changed since they were last put or dropped.
        holders: UIDs of jobs that have a placement, a promise or pods; some have them no more.
    """

    def __init__(self) -> None:
        self.touched: set[str] = set()
        self.holders: set[str] = set()
        self._members: dict[Class, list[Place]] = {}
        self._known: dict[str, tuple[JobInput, Class, Place]] = {}

    def put(self, job: JobInput) -> None:
        """The job waits, and asks for that."""
        known = self._known.get(job.uid)
        if known is not None:
            if known[0] is job:
                return
            self.drop(job.uid)
        found, place = class_of(job), (job.submitted, job.uid)
        self._known[job.uid] = job, found, place
        insort(self._members.setdefault(found, []), place)

    def drop(self, uid: str) -> None:
        """The job does not wait."""
        known = self._known.pop(uid, None)
        if known is None:
            return
        members = self._members[known[1]]
        del members[bisect_left(members, known[2])]
        if not members:
            del self._members[known[1]]

    def keep(self, jobs: Iterable[JobInput]) -> None:
        """These wait, and no others."""
        waiting = set()
        for job in jobs:
            self.put(job)
            waiting.add(job.uid)
        for uid in self._known.keys() - waiting:
            self.drop(uid)

    def first(self, count: int, look: Callable[[str], JobInput | None]) -> tuple[list[JobInput], list[list[str]]]:
        """The first `count` of each class that `look` lets pass, and the UIDs of those of each class that has more."""
        shown: list[JobInput] = []
        cut: list[list[str]] = []
        for members in self._members.values():
            begun = len(shown)
            for _, uid in members:
                if len(shown) - begun == count:
                    cut.append([job.uid for job in shown[begun:]])
                    break
                job = look(uid)
                if job is not None:
                    shown.append(job)
        return shown, cut


def exhausted(cut: Iterable[Iterable[str]], started: Collection[str]) -> bool:
    """Whether a class of which only the first were shown has started them all: the next one might have started, too."""
    return any(all(uid in started for uid in shown) for shown in cut)


def class_of(job: JobInput) -> Class:
    """Equal for jobs between which only their age decides."""
    return (
        job.queue,
        job.priority,
        job.flavour,
        job.workers,
        job.mode,
        job.level,
        job.sizes,
        job.partial,
        job.node_filter,
        tuple(job.request.items()),
        job.terms,
        job.promised,
        job.beyond,
    )
