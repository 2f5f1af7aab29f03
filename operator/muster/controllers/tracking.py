"""What the tracker of a job's run is told by the operator, and what the job is told of its tracker. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from muster.api.names import PROJECT_LABEL, USER_LABEL, ConditionType, Reason
from muster.api.tracking import TrackingStatus
from muster.cluster.status import Draft
from muster.cluster.views import PodView
from muster.controllers import devices, terms
from muster.controllers.records import Record
from muster_protocol.launcher_status import Facts
from muster_protocol.launcher_status import Tracking as Told

FACTS_EVERY: Final = 60.0
"""Seconds between two words on what a job has used; its launcher goes on counting by itself."""

_MOST: Final = 2**31 - 1


def facts(record: Record, leader: PodView, now: datetime) -> Facts:
    """What only the operator knows of a placed job."""
    job, spec, placement = record.job, record.spec, record.job.status.placement
    gpus = placement.gpus(spec.gpus_per_worker) if placement is not None else 0
    held = devices.held(placement, spec, record.gpu_type) if placement is not None else 0
    used = terms.used(job.status, held, record.price, now, record.currency)
    labels = {**job.metadata.annotations, **job.metadata.labels}
    tags = {
        "mlflow.user": labels.get(USER_LABEL, ""),
        "mlflow.docker.image.uri": spec.image,
        "mlflow.docker.image.id": leader.image,
        "muster.project": labels.get(PROJECT_LABEL, ""),
        "muster.queue": spec.queue,
        "muster.gpu_type": spec.gpu_type,
        "muster.gpus": str(gpus),
        "muster.workers": str(placement.workers) if placement is not None else "",
        "muster.nodes": job.status.nodes or "",
        "muster.restarts": str((job.status.restarts or 0) + (job.status.restarts_in_place or 0)),
        "muster.preemptions": str(job.status.preemptions or 0),
    }
    return Facts(
        tags={name: value for name, value in tags.items() if value},
        gpus=held if isinstance(held, int) else float(held),
        gpu_seconds=used.gpu_seconds,
        cost=str(used.cost or ""),
        hourly=float(held) * record.price,
        currency=used.currency or "",
        at=now.timestamp(),
    )


def tell(draft: Draft, told: Told) -> None:
    """Puts the launcher's word on the tracker into the status. It may be nonsense."""
    known = isinstance(told.url, str) and isinstance(told.text, str) and isinstance(told.dropped, int)
    if not known or not isinstance(told.well, bool):
        return
    url = told.url[:1024] if told.url.startswith(("https://", "http://")) else ""
    draft.set(tracking=TrackingStatus(url=url, dropped=min(max(told.dropped, 0), _MOST) or None))
    reason = Reason.TRACKED if told.well else Reason.TRACKER_FAILS
    draft.condition(ConditionType.TRACKING_REACHABLE, told.well, reason.value, told.text)
