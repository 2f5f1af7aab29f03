"""One job with what `muster explain` says of it, read from the API server at that moment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Final

from pydantic import ValidationError

from muster.api.common import API_VERSION
from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.client import Api
from muster.cluster.errors import ApiError
from muster.cluster.job_pods import pods_of
from muster.cluster.views import PodView
from muster.server.models import JobDetail, JobSummary, Section, Worker
from muster.server.problems import Problem
from muster.server.rows import summary
from muster.telling.explaining import EVENTS_READ, sections
from muster.telling.scene import Scene, event_time
from muster.telling.usage import line_of
from muster.telling.wording import capacity_of, pod_state

JOB: Final = f"/apis/{API_VERSION}/namespaces/{{}}/trainingjobs/{{}}"


async def detail(
    api: Api, namespace: str, name: str, *, pods: bool, events: bool, queues: Sequence[TrainingQueue] | None
) -> JobDetail:
    """`pods`, `events`: whether the user may list them; `queues`: all of them, None where the user may not list them.

    Raises Problem 404, ApiError, ApiUnreachable.
    """
    try:
        raw = await api.get(JOB.format(namespace, name))
    except ApiError as error:
        if error.status != 404:
            raise
        raise Problem(404, f'trainingjobs.muster.dev "{name}" not found in namespace "{namespace}"') from error
    uid = raw["metadata"]["uid"]
    views = tuple(await pods_of(api, namespace, uid)) if pods else ()
    path = f"/api/v1/namespaces/{namespace}/events"
    told = await api.list(path, fieldSelector=f"involvedObject.uid={uid}") if events else []
    newest = tuple(sorted(told, key=event_time)[-EVENTS_READ:])
    job, explanation = _explained(raw, views, newest, queues or ())
    allowed = {"pods": pods, "events": events, "trainingqueues": queues is not None}
    return JobDetail(
        job=JobSummary.model_validate(summary(raw)),
        waiting=job.status.queue if job is not None else None,
        growth=job.status.growth if job is not None else None,
        explanation=explanation,
        workers=[_worker(job, pod) for pod in views],
        withheld=[what for what, may in allowed.items() if not may],
    )


def _worker(job: TrainingJob | None, pod: PodView) -> Worker:
    kind, of_base = capacity_of(job.status, pod) if job is not None else ("", None)
    return Worker(
        index=pod.index,
        pod=pod.name,
        node=pod.node,
        state=pod_state(pod),
        ready=pod.ready,
        capacity=kind,
        base=of_base,
    )


def _explained(
    raw: dict[str, Any],
    pods: tuple[PodView, ...],
    events: tuple[dict[str, Any], ...],
    queues: Sequence[TrainingQueue],
) -> tuple[TrainingJob | None, list[Section]]:
    """The job, None where it can't be read, and what is said of it."""
    try:
        job = TrainingJob.from_raw(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        told = f"this operator can't read the job: {where}: {first['msg']}"
        return None, [Section(heading="Why", rows=[["", told]])]
    scene = Scene(job, pods, events, datetime.now(timezone.utc), queues=line_of(job.spec.queue, queues))
    return job, [Section(heading=heading, rows=[list(row) for row in rows]) for heading, rows in sections(scene)]
