"""Why a TrainingJob waits, and where it stands in the order of its queue."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Len
from pydantic import model_validator

from muster.api.common import Count, Message, Model, ShortMessage, Timestamp


class AlmostFits(Model):
    """A domain in which the gang almost fits."""

    domain: Annotated[str, Len(0, 512)]
    """Its name."""
    placeable: Count
    """Workers of the gang that fit there now."""
    lacking: Count
    """Workers for which there is no room: of the gang, of its next slice there, or of its equal share."""


class Lacking(Model):
    """What the job lacks most of."""

    resource: Annotated[str, Len(0, 317)] = ""
    """The scarcest resource; empty where each would do alone."""
    amount: Annotated[str, Len(1, 32)] | None = None
    """How much of it is missing for the whole gang, as a quantity."""
    level: Annotated[str, Len(0, 63)] = ""
    """The level of the topology that it asks for."""
    domain: Annotated[str, Len(0, 512)] = ""
    """The domain of that level which comes closest."""
    placeable: Count | None = None
    """Workers that would fit there now, or in all places where no level is required; absent where it is quota
    that lacks."""


class Ahead(Model):
    """A job for which this one waits."""

    job: Annotated[str, Len(1, 512)]
    """NAMESPACE/NAME."""
    why: Annotated[str, Len(0, 32)] = ""
    """holds (it has what this one lacks), kept (what this one lacks is kept for it), before (it is before this one in
    the order of the queue)."""


class Change(Model):
    """Something that would let the job start now."""

    kind: Annotated[str, Len(0, 32)] = ""
    """What to change: workers (as many), spares (none), level (a wider one is required), mode (the level is preferred),
    capacity (another kind), preemptible (true, so that it may borrow quota)."""
    value: Annotated[str, Len(0, 512)] = ""
    """To what."""
    text: ShortMessage = ""
    """The same in words."""

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        # Operators before this one wrote the words alone, and what they wrote is read until the job is told anew.
        return {"text": value} if isinstance(value, str) else value


class QueuePosition(Model):
    """Why the job waits."""

    position: Count | None = None
    """Place in the order of its queue, from 1; absent when it is not in the order."""
    reason: Annotated[str, Len(0, 128)] = ""
    """One word for what it waits for, as in the Admitted condition."""
    message: Message = ""
    """The same in a sentence: which resource is missing, where, how much."""
    expected_start: Timestamp | None = None
    """When it is expected to start, as far as that is known."""
    basis: Annotated[str, Len(0, 64)] = ""
    """What that rests on, the surest first: promised (room is being cleared), limits (enforced ends of running jobs),
    progress (their own estimates), queue (the jobs ahead, and the rate at which room comes back)."""
    almost: Annotated[tuple[AlmostFits, ...], Len(0, 8)] = ()
    """Domains of the level asked for in which it almost fits, the best first."""
    changes: Annotated[tuple[Change, ...], Len(0, 8)] = ()
    """What would let it start now, the smallest change first."""
    lacking: Lacking | None = None
    """What it lacks."""
    ahead: Annotated[tuple[Ahead, ...], Len(0, 8)] = ()
    """The first of those for which it waits, as when the message was written."""
    retry_at: Timestamp | None = None
    """When it may take a node again of those in `status.avoided`, where it lacks nodes. Those in quarantine do not
    count."""

    @property
    def why(self) -> str:
        """`reason: message`, or what there is of both; a message that names the reason does not do so again."""
        message = self.message.replace(f": {self.reason}: ", ": ", 1) if self.reason else self.message
        return ": ".join(part for part in (self.reason, message) if part)
