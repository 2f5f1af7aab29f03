"""`muster suspend` and `muster resume`: `spec.suspend`, without its YAML."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from muster.api.common import API_VERSION
from muster.api.names import ConditionType, Reason
from muster.api.trainingjob import TrainingJob
from muster.cli.printing import print_text
from muster.cli.scene import NotThere, connected, for_editors, read_job, warn_unasked
from muster.cluster.client import Api
from muster.cluster.status import nothing_saved, reason_of
from muster.telling.wording import UNSAVED

MANAGER: Final = "muster-cli"
"""A person's word, not the operator's."""

Write = Callable[[str], object]


async def suspend(
    name: str, namespace: str | None, *, kubeconfig: str | None, context: str | None, write: Write = print_text
) -> int:
    """Have the job's gang save and stop, or take it from the queue. Raises NotThere for one that has ended."""
    async with _told(name, namespace, kubeconfig, context) as (api, job):
        status = job.status
        again = f"`muster resume {name} -n {job.metadata.namespace}` queues it again, with its first submit time"
        if job.spec.suspend:
            write(f"{name} is suspended already; {again}\n")
            return 0
        await _set(api, job, suspended=True)
        if status.placement is None:
            write(f"{name} waits no more; {again}\n")
        elif job.spec.checkpoint is None:
            write(f"{name} stops; {UNSAVED}; {again}\n")
        elif nothing_saved(status, job.spec.checkpoint):
            so_far = "its script has told of no step so far, and saves where it has a session and is in its loop"
            write(f"{name} stops; {so_far} by then; {again}\n")
        else:
            write(f"{name} saves a checkpoint and stops; {again}\n")
        await warn_unasked(api)
        return 0


async def resume(
    name: str, namespace: str | None, *, kubeconfig: str | None, context: str | None, write: Write = print_text
) -> int:
    """Queue a suspended job again. Raises NotThere for one that has ended."""
    async with _told(name, namespace, kubeconfig, context) as (api, job):
        idle = reason_of(job.status, ConditionType.SUSPENDED) == Reason.GPUS_IDLE.value
        if not job.spec.suspend and not idle:
            write(f"{name} is not suspended\n")
            return 0
        if not job.spec.suspend:  # it goes on once its spec is another one
            await _set(api, job, suspended=True)
        await _set(api, job, suspended=False)
        write(f"{name} queues again, with its first submit time\n")
        await warn_unasked(api)
        return 0


@asynccontextmanager
async def _told(
    name: str, namespace: str | None, kubeconfig: str | None, context: str | None
) -> AsyncIterator[tuple[Api, TrainingJob]]:
    """The API server and the job, for whoever may edit it."""
    async with connected(kubeconfig, context) as api:
        job = await read_job(api, name, namespace or api.credentials.namespace)
        if job.status.finished_at is not None:
            raise NotThere(f"{name} has ended; only a job that has not can be suspended and resumed")
        with for_editors():
            yield api, job


async def _set(api: Api, job: TrainingJob, *, suspended: bool) -> None:
    meta = job.metadata
    path = f"/apis/{API_VERSION}/namespaces/{meta.namespace}/trainingjobs/{meta.name}"
    patch = {"metadata": {"uid": meta.uid}, "spec": {"suspend": suspended}}
    await api.merge_patch(path, patch, manager=MANAGER)
