"""Forgets jobs that are gone for long, with all that belongs to them, and pools that ended long ago."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import Connection, and_, delete, func, select

from muster.telemetry.history.schema import (
    attempts,
    checkpoints,
    failures,
    intervals,
    jobs,
    pools,
    preemptions,
    storage,
)

AT_ONCE: Final = 500
"""Jobs that one transaction forgets."""

_PARTS: Final = (intervals, attempts, preemptions, checkpoints, failures)


def expire(connection: Connection, before: datetime) -> int:
    """Forget up to AT_ONCE jobs whose objects were gone before, and all such pools. Returns the number of jobs: call it
    again while that is AT_ONCE."""
    connection.execute(delete(pools).where(and_(pools.c.ends.is_not(None), pools.c.ends < before)))
    old = and_(jobs.c.deleted_at.is_not(None), jobs.c.deleted_at < before)
    found = connection.execute(select(jobs.c.uid).where(old).limit(AT_ONCE)).scalars().all()
    for table in _PARTS:
        connection.execute(delete(table).where(table.c.job.in_(found)))
    # What a later job took over goes with that job: an earlier one's row would be the uri's last word again.
    of_these = select(storage.c.uri, func.max(storage.c.at)).where(storage.c.job.in_(found)).group_by(storage.c.uri)
    for uri, last in connection.execute(of_these).all():
        connection.execute(delete(storage).where(and_(storage.c.uri == uri, storage.c.at <= last)))
    connection.execute(delete(jobs).where(jobs.c.uid.in_(found)))
    return len(found)
