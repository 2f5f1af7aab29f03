"""The planner's sentence about a waiting job, and what the planner can not know: names, why a queue is closed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property

from muster.api.trainingqueue import TrainingQueue
from muster.controllers import planning
from muster.controllers.accounts import Spent
from muster.controllers.queues import Standing, ceilings, priority_remark, standings, why_closed
from muster.controllers.records import Record
from muster.scheduling.plan import Waiting, WaitReason
from muster.scheduling.snapshot import Snapshot


class Sentences:
    """Those of one plan. What several jobs are told is found once, and not before somebody is told it."""

    def __init__(
        self,
        snapshot: Snapshot,
        names: Mapping[str, str],
        queues: Mapping[str, TrainingQueue],
        errors: Mapping[str, str],
        spent: Mapping[str, Spent],
        now: datetime,
    ) -> None:
        """
        Args:
            names: `namespace/name` by UID.
            errors: what is wrong with a queue's spec, by its name.
            spent: of queues whose budget, or that of one above them, is used up.
        """
        self._names, self._queues, self._errors, self._spent = names, queues, errors, spent
        self._now, self._ceilings = now, ceilings(snapshot)

    def of(self, record: Record, waiting: Waiting) -> str:
        """What the job is told."""
        told = planning.blockers(waiting, self._names)
        if waiting.reason is WaitReason.QUEUE_CLOSED:
            told = why_closed(record.spec.queue, self._standings.get(record.spec.queue)) or told
        told += planning.avoiding(record.job.status, waiting.reason, self._now)
        told += planning.last_start(record.job)
        if record.planned is not None:
            told += priority_remark(record.planned[1], self._ceilings)
        return told

    @cached_property
    def _standings(self) -> Mapping[str, Standing]:
        return standings(self._queues, self._errors, self._spent)
