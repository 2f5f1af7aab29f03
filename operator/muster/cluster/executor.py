"""Carries out what was decided about one job: writes its status, makes its objects, deletes its pods.

Every call may be the last one: whoever runs the same code again, in this process or the next, ends in the same state.
Names are functions of (job, generation, index, attempt), so a pod is never made twice; the placement is written before
its pods, so none is ever without one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from muster.api import names
from muster.api.common import API_VERSION, Condition
from muster.api.placement import Placement
from muster.api.restarts import NO_RESTARTS, InPlace
from muster.api.topology import Topology, TopologyStatus
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import TrainingJobStatus
from muster.api.trainingqueue import TrainingQueue, TrainingQueueStatus
from muster.cluster import pods, volumes
from muster.cluster.chunks import Chunks
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.pods import Identity
from muster.cluster.reading import read_job
from muster.cluster.views import PodView
from muster.cluster.volumes import Reach
from muster_protocol.tokens import job_token

Object = dict[str, Any]
log = logging.getLogger(__name__)

PARALLEL: Final = 16
"""Requests in flight for one job."""
HURRIED_GRACE: Final = 2
"""Seconds that a pod gets which another has replaced. Without any, nobody would know whether its processes run on."""

_REFUSED: Final = frozenset({400, 403, 404, 413, 422})
"""Answers to a POST that will be the same next time."""


@dataclass(frozen=True)
class MadePod:
    """A pod that exists and is ours: made just now, or before a cut."""

    name: str
    uid: str
    index: int
    attempt: int
    requests: tuple[tuple[str, int], ...]


@dataclass
class Outcome:
    """What came of making a gang's objects.

    Attributes:
        refused: why the API server will not take a pod, or "".
        incomplete: some call failed in a way that may pass; try again soon.
    """

    made: list[MadePod] = field(default_factory=list)
    refused: str = ""
    incomplete: str = ""


class Executor:
    """Applies decisions through the API server."""

    def __init__(self, api: Api, token_key: bytes) -> None:
        self._api = api
        self._key = token_key
        self.chunks = Chunks(api)

    async def write_status(self, job: TrainingJob, status: TrainingJobStatus) -> TrainingJob:
        """Replace the job's status, if it is still the one that was read. Returns the job as the server has it now.

        Raises:
            ApiError: 409 when somebody wrote meanwhile: read again and decide again.
        """
        metadata = job.metadata
        packed = await self.chunks.pack(job, status)
        body = {
            "apiVersion": API_VERSION,
            "kind": "TrainingJob",
            "metadata": {
                "name": metadata.name,
                "namespace": metadata.namespace,
                "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
            },
            "status": packed.to_raw(),
        }  # without the spec, which the API server takes from what it has
        written = read_job(await self._api.update_status(job_path(metadata.namespace, metadata.name), body))
        await self.chunks.forget(job, job.status, status)
        return await self.chunks.fetch(written)

    async def write_book(
        self, plural: str, found: TrainingQueue | Topology, status: TrainingQueueStatus | TopologyStatus
    ) -> None:
        """Replace the status of a queue or the Topology, if it is still the one that was read."""
        body = {**found.to_raw(), "status": status.to_raw()}
        await self._api.update_status(f"/apis/{API_VERSION}/{plural}/{found.metadata.name}", body)

    async def tell_unreadable(self, path: str, raw: Mapping[str, Any], condition: Condition) -> None:
        """Say of an object that does not fit this version's model why it is left alone; its other conditions stay."""
        metadata, told = raw["metadata"], condition.to_raw()
        others = [item for item in (raw.get("status") or {}).get("conditions") or [] if item["type"] != told["type"]]
        # A merge patch replaces the whole list, so it holds only for the object that was read.
        patch = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "status": {"conditions": [*others, told]},
        }
        await self._api.merge_patch(f"{path}/status", patch)

    async def find(self, namespace: str, name: str, uid: str) -> Object | None:
        """A job as the server has it, or None when it is gone or another has its name.

        Raises ApiError, also while its kind is not served: that is answered by 404 as well, and its objects are there.
        """
        try:
            found = await self._api.get(job_path(namespace, name))
        except ApiError as error:
            if error.status != 404 or error.details.get("name") != name:
                raise
            return None
        return found if found["metadata"]["uid"] == uid else None

    async def read(self, job: TrainingJob) -> TrainingJob | None:
        """`find` of a job that is known, with its whole placement."""
        metadata = job.metadata
        raw = await self.find(metadata.namespace, metadata.name, metadata.uid)
        return None if raw is None else await self.chunks.fetch(read_job(raw))

    async def delete_job(self, job: TrainingJob) -> None:
        """Delete a job that has outlived its `ttlAfterFinished`; its pods follow."""
        await self._delete(job_path(job.metadata.namespace, job.metadata.name), job.metadata.uid)

    async def delete_pods(
        self, namespace: str, doomed: Iterable[tuple[str, str]], hurried: Container[str] = ()
    ) -> list[str]:
        """Delete pods (name, uid), each with its own grace, `hurried` ones with hardly any. Returns the names of those
        that were gone already."""
        gate = asyncio.Semaphore(PARALLEL)

        async def one(name: str, uid: str) -> str | None:
            async with gate:
                grace = HURRIED_GRACE if name in hurried else None
                return None if await self._delete(f"{pods_path(namespace)}/{name}", uid, grace) else name

        results = await asyncio.gather(*(one(name, uid) for name, uid in doomed))
        return [name for name in results if name is not None]

    async def _delete(self, path: str, uid: str, grace: int | None = None) -> bool:
        """False when the object is gone, or another one has its name."""
        try:
            await self._api.delete(path, uid=uid, grace=grace)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    async def rehearse(self, job: Identity, template: Object, *, strict: bool) -> Object:
        """What admission would make of a pod of `template`, by a server-side dry run. Raises as a POST does;
        `strict`: for fields, too, that a pod does not have and a POST leaves out."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            **template,
            "metadata": {
                **template["metadata"],
                "name": f"{job.name}-rehearsal-{job.uid[:8]}",
                "namespace": job.namespace,
            },
        }
        return await self._api.create(pods_path(job.namespace), body, dry_run=True, strict=strict)

    async def volumes(self, namespace: str, spec: Object) -> tuple[Reach, ...]:
        """From where the volumes of a pod of this `spec` can be used, as far as they are there by now."""
        found = []
        for claim in volumes.claims(spec):
            bound = await self._if_any(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
            if name := volumes.volume_of(bound):
                reach = volumes.reach(claim, await self._if_any(f"/api/v1/persistentvolumes/{name}"))
            elif name := volumes.class_of(bound):
                path = f"/apis/storage.k8s.io/v1/storageclasses/{name}"
                reach = volumes.reach_of_class(claim, await self._if_any(path))
            else:
                reach = None
            if reach is not None:
                found.append(reach)
        return tuple(found)

    async def _if_any(self, path: str) -> Object:
        """One object; empty where it is not there, or not for the operator: kube-scheduler has the last word."""
        try:
            return await self._api.get(path)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            if error.status == 403:
                log.warning(
                    "the operator may not read %s: %s; grant it by the chart's ClusterRole", path, error.message
                )
            return {}

    async def make(
        self,
        job: Identity,
        template: Object,
        placement: Placement,
        indexes: Sequence[int],
        *,
        max_runtime: int | None = None,
        in_place: InPlace = NO_RESTARTS,
        reached: int = 0,
    ) -> Outcome:
        """Make the Secret, the Service and the pods of `indexes`; those that exist are counted as made."""
        outcome = Outcome()
        try:
            await self._companions(job, outcome)
        except ApiError as error:
            _note(outcome, error, "Secret or Service")
        except ApiUnreachable as error:
            outcome.incomplete = f"{type(error).__name__} {error}"
        if outcome.refused or outcome.incomplete:
            return outcome
        gate, nodes = asyncio.Semaphore(PARALLEL), placement.node_of_index()

        async def one(index: int) -> None:
            async with gate:
                if outcome.refused:
                    return  # one refusal withdraws the whole gang: the rest need not be made
                body = pods.pod(
                    job,
                    template,
                    generation=placement.generation,
                    index=index,
                    attempt=placement.attempt_of(index),
                    node=nodes[index],
                    workers=placement.workers,
                    leader=placement.attempt_of(0),
                    max_runtime=max_runtime,
                    in_place=in_place,
                    reached=reached,
                )
                await self._make_pod(job, body, index, placement.attempt_of(index), nodes[index], outcome)

        await asyncio.gather(*(one(index) for index in indexes))
        return outcome

    async def _companions(self, job: Identity, outcome: Outcome) -> None:
        secret = pods.secret(job, job_token(self._key, job.uid), pods.token_tag(self._key))
        try:
            await self._api.create(f"/api/v1/namespaces/{job.namespace}/secrets", secret)
        except ApiError as error:
            # The name holds the UID, so it is ours: never read, and immutable.
            if not error.exists:
                raise
        service, path = pods.service(job), f"/api/v1/namespaces/{job.namespace}/services"
        try:
            await self._api.create(path, service)
        except ApiError as error:
            if not error.exists:
                raise
            await self._check_service(job, f"{path}/{service['metadata']['name']}", outcome)

    async def _check_service(self, job: Identity, path: str, outcome: Outcome) -> None:
        try:
            found = await self._api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            outcome.incomplete = "the Service of an earlier job of this name went away just now"
            return
        owners = found["metadata"].get("ownerReferences") or []
        if any(owner.get("uid") == job.uid for owner in owners):
            return
        if any(owner.get("kind") == "TrainingJob" for owner in owners):
            name = found["metadata"]["name"]
            outcome.incomplete = (
                "the Service of an earlier job of this name is not gone yet, which Kubernetes' garbage collector "
                "takes: where that goes on, see how kube-controller-manager is, or delete it:  "
                f"kubectl delete service {name} -n {job.namespace}"
            )
            return
        uid = (found["metadata"].get("labels") or {}).get(names.JOB_UID_LABEL)
        if uid and not owners:
            outcome.refused = (
                "a job of this name was deleted without what it had, as by --cascade=orphan: its Service is there, and "
                "its pods may still train. Delete these:  kubectl delete pods,services,secrets "
                f"-n {job.namespace} -l {names.JOB_UID_LABEL}={uid}"
            )
            return
        outcome.refused = (
            f"a Service {found['metadata']['name']!r} that is not Muster's stands in namespace {job.namespace!r}, and "
            "the job's workers need this name to find each other: rename the job or the Service"
        )

    async def _make_pod(
        self, job: Identity, body: Object, index: int, attempt: int, node: str, outcome: Outcome
    ) -> None:
        name = body["metadata"]["name"]
        try:
            found = await self._api.create(pods_path(job.namespace), body)
        except ApiError as error:
            if not error.exists:
                _note(outcome, error, f"pod {name}")
                return
            adopted = await self._adopt(job, name, node, outcome)
            if adopted is None:
                return
            found = adopted
        except ApiUnreachable as error:
            outcome.incomplete = f"pod {name}: {type(error).__name__} {error}"
            return
        view = PodView.from_raw(found)
        outcome.made.append(MadePod(name, view.uid, index, attempt, view.requests))

    async def _adopt(self, job: Identity, name: str, node: str, outcome: Outcome) -> Object | None:
        """The pod that has the name already, if it is ours and lives; else why not, in `outcome`."""
        try:
            found = await self._api.get(f"{pods_path(job.namespace)}/{name}")
        except ApiError as error:
            outcome.incomplete = f"pod {name}: {error}"
            return None
        except ApiUnreachable as error:
            outcome.incomplete = f"pod {name}: {type(error).__name__} {error}"
            return None
        view = PodView.from_raw(found)
        if view.owner_uid == job.uid and view.node == node and not view.terminating:
            return found
        owners = found["metadata"].get("ownerReferences") or []
        stale = any(owner.get("kind") == "TrainingJob" and owner.get("uid") != job.uid for owner in owners)
        if view.terminating or stale:
            outcome.incomplete = (
                f"an earlier pod {name} is not gone yet, which node {view.node} has to end; if that node does not come "
                f"back:  kubectl delete node {view.node}"
            )
        else:
            outcome.refused = f"a pod {name!r} that is not this gang's has the name; delete it"
        return None


def job_path(namespace: str, name: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/trainingjobs/{name}"


def pods_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def refusal(error: ApiError) -> bool:
    """Whether the API server has judged the object, and would judge it so again."""
    return error.status in _REFUSED


def _note(outcome: Outcome, error: ApiError, what: str) -> None:
    if refusal(error):
        outcome.refused = outcome.refused or f"the API server refused {what}: {error.message}"
    else:
        outcome.incomplete = f"{what}: {error}"
