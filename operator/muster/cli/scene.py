"""Reads a job and what belongs to it from the API server, for every command that is about one job."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from muster.api.common import API_VERSION
from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import TrainingQueue
from muster.cli.printing import note
from muster.cluster.client import Api
from muster.cluster.credentials import Credentials
from muster.cluster.errors import ApiError
from muster.cluster.job_pods import pods_of
from muster.cluster.lease import LEASE_NAME, LEASES, NAMESPACE
from muster.telling.leading import Unled, unled
from muster.telling.scene import Scene, event_time
from muster_protocol.spelling import there_are

EVENTS_SHOWN: Final = 6
ELSEWHERE_SHOWN: Final = 5
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""What an object may be called."""
NO_KINDS: Final = (
    "this cluster does not know Muster's kinds: install the chart, or apply the CRDs (muster crds | kubectl apply -f -)"
)


class NotThere(Exception):
    """What was asked for does not exist; the message says what does."""


@asynccontextmanager
async def connected(kubeconfig: str | None, context: str | None) -> AsyncIterator[Api]:
    """The API server, until the block ends. Raises CredentialsError."""
    credentials = Credentials(Path(kubeconfig) if kubeconfig else None, context or "")
    await credentials.load()
    api = Api(credentials)
    try:
        yield api
    finally:
        await api.close()


@contextmanager
def for_editors(why: str = "") -> Iterator[None]:
    """Tells who lacks a right what to ask for. `why`: before that."""
    try:
        yield
    except ApiError as error:
        if error.status != 403:
            raise
        raise NotThere(f"{error.message}; {why}ask for Kubernetes' role edit in that namespace") from error


async def listed(
    api: Api, plural: str, namespace: str | None = None, *, name: str | None = None
) -> list[dict[str, Any]]:
    """All objects of one of Muster's kinds, of one namespace or of all, or those of a name. Raises NotThere where the
    kind or the namespace does not exist."""
    scope, only = "", {}
    if namespace is not None:
        if not _NAME.fullmatch(namespace):
            raise NotThere(f"there is no namespace {namespace!r}{await _others(api, namespace)}")
        scope = f"/namespaces/{namespace}"
    if name is not None:
        only["fieldSelector"] = f"metadata.name={name}"
    try:
        return await api.list(f"/apis/{API_VERSION}{scope}/{plural}", **only)
    except ApiError as error:
        if error.status != 404:
            raise
        raise NotThere(NO_KINDS) from error


async def look(api: Api, name: str, namespace: str, *, events: int = EVENTS_SHOWN) -> Scene:
    """Read the job, its pods and so many of its newest events. Raises NotThere, ApiError, ApiUnreachable."""
    job = await read_job(api, name, namespace)
    uid = job.metadata.uid
    views = await pods_of(api, namespace, uid)
    told = await api.list(f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.uid={uid}")
    newest = sorted(told, key=event_time)[-events:]
    return Scene(job, tuple(views), tuple(newest), api.clock.now(), unled=await nobody_leads(api))


async def read_job(api: Api, name: str, namespace: str) -> TrainingJob:
    """The job alone. Raises as `look`."""
    if not (_NAME.fullmatch(name) and _NAME.fullmatch(namespace)):  # in a path it might name something else
        raise NotThere(await _absent(api, name, namespace))
    try:
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/trainingjobs/{name}"
        return TrainingJob.from_raw(await api.get(path))
    except ApiError as error:
        if error.status != 404:
            raise
        raise NotThere(await _absent(api, name, namespace)) from error


async def nobody_leads(api: Api) -> Unled | None:
    """Whether no operator leads, as far as the user may read the Lease: in the namespace that the docs name, else
    wherever it is. One that is left from before says nothing where another is held."""
    leases: list[dict[str, Any]] = []
    try:
        leases = [await api.get(f"{LEASES}/namespaces/{NAMESPACE}/leases/{LEASE_NAME}")]
    except ApiError as error:
        if error.status != 404:
            return None
    if leases and unled(leases, api.clock.now()) is None:
        return None
    with suppress(ApiError):
        leases = await api.list(f"{LEASES}/leases", fieldSelector=f"metadata.name={LEASE_NAME}")
    return unled(leases, api.clock.now())


async def warn_unasked(api: Api) -> None:
    """After something was asked for: nobody is there who would do it."""
    if (nobody := await nobody_leads(api)) is not None:
        note(nobody.asked)


async def queues_of(api: Api, job: TrainingJob) -> tuple[TrainingQueue, ...]:
    """The job's queue and those above it, the nearest first, as far as the user may read them and they can be read."""
    found: dict[str, TrainingQueue] = {}
    name = job.spec.queue
    while name and name not in found:
        try:
            found[name] = TrainingQueue.from_raw(await api.get(f"/apis/{API_VERSION}/trainingqueues/{name}"))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            break
        except ValidationError:
            break
        name = found[name].spec.parent or ""
    return tuple(found.values())


async def _absent(api: Api, name: str, namespace: str) -> str:
    there = [raw["metadata"]["name"] for raw in await listed(api, "trainingjobs", namespace)]
    if not there:
        await require_namespace(api, namespace)
    told = f"no TrainingJob {name!r} in namespace {namespace!r}; "
    if elsewhere := await _elsewhere(api, name):
        return f"{told}there is one in {', '.join(elsewhere[:ELSEWHERE_SHOWN])}: name it with -n"
    if not there:
        return f"{told}there are none; -n names another namespace, and `muster jobs` lists all jobs"
    return f"{told}{there_are(name, there)}"


async def _elsewhere(api: Api, name: str) -> list[str]:
    """Namespaces that have a job of this name, for who may list the jobs of all."""
    if not _NAME.fullmatch(name):
        return []
    try:
        return sorted(raw["metadata"]["namespace"] for raw in await listed(api, "trainingjobs", name=name))
    except ApiError as error:
        if error.status != 403:
            raise
        return []


async def require_namespace(api: Api, namespace: str) -> None:
    """Raises NotThere where the API server says that there is no such namespace. Whoever may not see it is told
    nothing: it may be there."""
    try:
        await api.get(f"/api/v1/namespaces/{namespace}")
    except ApiError as error:
        if error.status == 404:
            raise NotThere(f"there is no namespace {namespace!r}{await _others(api, namespace)}") from error
        if error.status != 403:
            raise


async def _others(api: Api, namespace: str) -> str:
    """The namespaces that there are, for who may list them."""
    try:
        return f"; {there_are(namespace, [raw['metadata']['name'] for raw in await api.list('/api/v1/namespaces')])}"
    except ApiError as error:
        if error.status != 403:
            raise
        return "; see what -n, or the kubeconfig's context, names"
