"""What a waiting job is told, and whether the change is one that a person would notice. Pure.

Ten thousand jobs may wait, and each start moves all of them up by one place. So a job far down is told when its place
has changed by a tenth, one of the first ten at every change, and an expected start when it has moved by more than a
fifth of what is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Final

from muster.api.effective import EffectiveSpec
from muster.api.queue_position import Ahead, AlmostFits, Lacking, QueuePosition
from muster.api.queue_position import Change as ToldChange
from muster.api.trainingjob_status import Growth, TrainingJobStatus
from muster.cluster.hindrances import hinders
from muster.cluster.quantities import format_amount
from muster.controllers import terms
from muster.scheduling.plan import LACKS_NODES, Change, Stay, StayReason, Waiting
from muster.scheduling.snapshot import FOREVER

NEAR: Final = 10
"""Places from which on each one counts."""
MOVED: Final = 0.2
"""Share of the remaining wait by which an expected start has to move to be told anew."""
LEAST_MOVE: Final = 60.0
"""Seconds, at least."""
SHOWN: Final = 4
"""Domains in which it almost fits, and changes that would start it."""

_OF_QUOTA: Final = frozenset((StayReason.QUOTA_EXCEEDED, StayReason.QUOTA_AWAITED))
_LAST: Final = datetime(9999, 1, 1, tzinfo=timezone.utc).timestamp()


@dataclass(frozen=True)
class Word:
    """Why a job waits, for itself to tell.

    Attributes:
        message: with all names in it.
        position: 0 for a job that is not in the order.
        lacking, ahead, retry_at: they go with the message; a change in them alone is no news.
        expected: seconds since the epoch; FOREVER when unknown.
    """

    reason: str
    message: str
    position: int = 0
    expected: float = FOREVER
    basis: str = ""
    almost: tuple[AlmostFits, ...] = ()
    changes: tuple[Change, ...] = ()
    lacking: Lacking | None = field(default=None, compare=False)
    ahead: tuple[Ahead, ...] = field(default=(), compare=False)
    retry_at: datetime | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        waiting: Waiting,
        message: str,
        elsewhere: Change | None = None,
        ahead: tuple[Ahead, ...] = (),
        retry_at: datetime | None = None,
    ) -> Word:
        """
        Args:
            elsewhere: what is told of other nodes that have room for it.
            ahead: for whom it waits.
            retry_at: when it may take a node again that it stays away from.
        """
        changes = (*waiting.changes, elsewhere) if elsewhere is not None else waiting.changes
        return cls(
            waiting.reason.value,
            message,
            waiting.position,
            waiting.expected,
            waiting.basis.value if waiting.expected < _LAST else "",
            tuple(
                AlmostFits(domain=item.domain, placeable=item.placeable, lacking=item.lacking)
                for item in waiting.almost[:SHOWN]
            ),
            changes[:SHOWN],
            _lacking(waiting),
            ahead,
            retry_at,
        )

    def helped(self, waiting: Waiting, elsewhere: Change | None) -> Word:
        """With what would help: `waiting` is as `Plan.helped` gives it, `elsewhere` as for `of`."""
        changes = (*waiting.changes, elsewhere) if elsewhere is not None else waiting.changes
        return replace(self, changes=changes[:SHOWN])

    def told(self) -> QueuePosition:
        """As it stands in the status."""
        known = self.expected < _LAST
        moment = datetime.fromtimestamp(int(self.expected), timezone.utc) if known else None
        return QueuePosition(
            position=self.position or None,
            reason=self.reason,
            message=self.message,
            expected_start=moment,
            basis=self.basis,
            almost=self.almost,
            changes=tuple(
                ToldChange(kind=change.kind.value, value=change.value, text=change.text) for change in self.changes
            ),
            lacking=self.lacking,
            ahead=self.ahead,
            retry_at=self.retry_at,
        )


def _lacking(waiting: Waiting) -> Lacking | None:
    if not waiting.resource and not waiting.level:
        return None
    return Lacking(
        resource=waiting.resource,
        amount=format_amount(waiting.resource, waiting.missing) if waiting.missing else None,
        level=waiting.level,
        domain=waiting.domain,
        placeable=waiting.placeable if waiting.reason in LACKS_NODES else None,
    )


def growth_of(stay: Stay, names: Mapping[str, str]) -> Growth:
    """What a gang is told of why it is not larger. `names`: `namespace/name` by UID."""
    kept_for = names.get(stay.blocker, "")
    lacking = None
    if stay.resource or stay.level:
        lacking = Lacking(
            resource=stay.resource,
            amount=format_amount(stay.resource, stay.missing) if stay.missing else None,
            level=stay.level,
            domain=stay.domain,
            placeable=None if stay.reason in _OF_QUOTA else stay.placeable,
        )
    return Growth(
        reason=stay.reason.value,
        message=f"{stay.message} (kept for {kept_for})" if kept_for else stay.message,
        workers=stay.workers,
        not_before=datetime.fromtimestamp(math.ceil(stay.not_before), timezone.utc) if stay.not_before else None,
        lacking=lacking,
        kept_for=kept_for,
    )


def in_window(word: Word, spec: EffectiveSpec, start_seconds: float) -> Word:
    """The word with an expected start at which the job's window is open: the planner's is of room and quota alone.

    Args:
        start_seconds: what a start costs, from placement to training.
    """
    if spec.window is None or word.expected >= _LAST:
        return word
    expected = datetime.fromtimestamp(word.expected, timezone.utc)
    return replace(word, expected=max(expected, terms.may_start(spec, expected, start_seconds)).timestamp())


def hindered(status: TrainingJobStatus) -> bool:
    """Whether the job was told that its turn alone does not help it."""
    return status.queue is not None and hinders(status.queue.reason or "")


def noticeable(old: QueuePosition | None, new: Word, now: float) -> bool:
    """Whether a person would notice the difference. `now` in seconds since the epoch."""
    if old is None or old.reason != new.reason:
        return True
    before = old.position or 0
    if new.position <= NEAR:
        if before != new.position or old.message != new.message:
            return True
    elif abs(new.position - before) * 10 >= max(before, 1):
        return True
    if (old.expected_start is None) != (new.expected >= _LAST):
        return True
    if old.expected_start is None:
        return False
    moved = abs(new.expected - old.expected_start.timestamp())
    return moved > least_move(new.expected - now)


def least_move(wait: float) -> float:
    """Seconds by which the end of a wait has to move for a person to notice."""
    return max(LEAST_MOVE, MOVED * wait)
