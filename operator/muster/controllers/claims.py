"""Which gangs are named as victims in other jobs' promises: an index over the records, kept as they change."""

from __future__ import annotations

from collections.abc import Callable

from muster.api.placement import Promise
from muster.cluster.status import finished
from muster.controllers.lifecycle.turn import Claim
from muster.controllers.records import Record


class Claims:
    """By victim's UID. A promise whose write is under way counts in `of`, and only a written one in `written`."""

    def __init__(self, mark: Callable[[str], None]) -> None:
        """`mark` is told the UID of each gang whose claim has changed, for it is to have a turn."""
        self._mark = mark
        self._promises: dict[str, tuple[Promise, bool]] = {}
        self._by_victim: dict[str, dict[str, Claim]] = {}

    def update(self, record: Record) -> None:
        """Take over what the record says now."""
        promise, written = record.promise, record.promise is record.job.status.promise
        if record.leaves_for_good or finished(record.job.status):
            promise = None
        before = self._promises.get(record.uid)
        if (before is None and promise is None) or (before is not None and before == (promise, written)):
            return
        if before is not None:
            for victim in before[0].victims:
                self._by_victim.get(victim.uid, {}).pop(record.uid, None)
            del self._promises[record.uid]
        if promise is not None:
            self._promises[record.uid] = (promise, written)
            name = f"{record.identity.namespace}/{record.identity.name}"
            for victim in promise.victims:
                self._by_victim.setdefault(victim.uid, {})[record.uid] = Claim(record.uid, name, victim)
        for victim in {*(before[0].victims if before else ()), *(promise.victims if promise else ())}:
            if not self._by_victim.get(victim.uid, True):
                del self._by_victim[victim.uid]
            self._mark(victim.uid)

    def of(self, uid: str, generation: int) -> Claim | None:
        """The claim on a gang's placement of that generation, or None."""
        found = self._by_victim.get(uid)
        if not found:
            return None
        return next((claim for claim in found.values() if claim.victim.generation == generation), None)

    def written(self, uid: str, generation: int) -> Claim | None:
        """As `of`, if the API server has the promise."""
        claim = self.of(uid, generation)
        return claim if claim is not None and self._promises[claim.beneficiary][1] else None
