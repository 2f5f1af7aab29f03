"""Looks at training jobs from outside: the API server for what the operator tells, the launchers for what is newer."""

from __future__ import annotations

import base64
import http.client
from dataclasses import dataclass, replace

from hack.demo.kube import Json, Kube, condition, holds
from muster_protocol import env, launcher_api
from muster_protocol.launcher_status import Status
from muster_protocol.wire import decode


@dataclass(frozen=True)
class PodView:
    name: str
    node: str
    phase: str


@dataclass(frozen=True)
class JobView:
    """One job at one moment. `step` counts steps done; None means that it isn't known yet. `live`: a launcher told it,
    so it is newer than what the operator writes. One whose ranks start again has none to tell."""

    name: str
    phase: str = "?"
    reason: str = ""
    step: int | None = None
    total: int | None = None
    loss: str | None = None
    committed: int | None = None
    resumed_from: int | None = None
    incarnation: int = 0
    restarts: int = 0
    pods: tuple[PodView, ...] = ()
    succeeded: bool = False
    failed: bool = False
    live: bool = False

    @property
    def ended(self) -> bool:
        return self.succeeded or self.failed


def look(kube: Kube, namespace: str, name: str) -> JobView:
    """The job as it is now."""
    job = kube.job(namespace, name)
    if job is None:
        return JobView(name, phase="missing")
    pods = kube.pods(namespace, name)
    status = job.get("status", {})
    progress = status.get("progress") or {}
    live = _ask_leader(kube, namespace, pods)
    told = live if live is not None and live.step is not None else None
    checkpoint = (status.get("checkpoint") or {}).get("step")
    ended = holds(job, "Succeeded") or holds(job, "Failed")
    return JobView(
        name=name,
        phase=status.get("phase", "new"),
        reason=_reason(job),
        step=told.step if told else progress.get("step"),
        total=_first(live.total_steps if live else None, progress.get("totalSteps")),
        loss=told.loss if told else progress.get("loss"),
        committed=_first(live.checkpoint.step if live and live.checkpoint else None, checkpoint),
        resumed_from=live.resumed_from if live else None,
        incarnation=live.incarnation if live else 0,
        restarts=status.get("restarts") or 0,
        pods=() if ended else tuple(_pod_view(pod) for pod in pods),
        succeeded=holds(job, "Succeeded"),
        failed=holds(job, "Failed"),
        live=told is not None,
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _reason(job: Json) -> str:
    """Why it does not train, or how it failed."""
    for kind, bad in (("Failed", "True"), ("CheckpointStorageReady", "False"), ("Admitted", "False")):
        found = condition(job, kind)
        if found and found["status"] == bad:
            return f"{found['reason']}: {found.get('message', '')}"
    return ""


def _pod_view(pod: Json) -> PodView:
    status = pod.get("status", {})
    phase = "Terminating" if pod["metadata"].get("deletionTimestamp") else status.get("phase", "Pending")
    return PodView(pod["metadata"]["name"], pod["spec"].get("nodeName", ""), phase)


def _ask_leader(kube: Kube, namespace: str, pods: list[Json]) -> Status | None:
    """What index 0's launcher knows; None while it does not answer."""
    leaders = [pod for pod in pods if pod["metadata"]["labels"].get("muster.dev/index") == "0"]
    return next(iter(statuses(kube, namespace, leaders)), None)


def statuses(kube: Kube, namespace: str, pods: list[Json]) -> list[Status]:
    """What the launchers of these pods know, those that answer."""
    found = []
    for pod in pods:
        address = pod.get("status", {}).get("podIP")
        token = _token(kube, namespace, pod) if address and not pod["metadata"].get("deletionTimestamp") else None
        status = ask(address, token) if token else None
        if status is not None:
            found.append(status)
    return found


def ask(address: str, token: str, port: int = env.DEFAULT_PORT) -> Status | None:
    """A launcher's status; None while it does not answer."""
    connection = http.client.HTTPConnection(address, port, timeout=1)
    try:
        connection.request("GET", launcher_api.STATUS_PATH, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read()
        return decode(Status, body) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _token(kube: Kube, namespace: str, pod: Json) -> str | None:
    """The job's token, from the Secret that the pod names. An administrator may read it."""
    for container in pod["spec"]["containers"]:
        for entry in container.get("env", []):
            if entry["name"] == env.TOKEN:
                key = entry["valueFrom"]["secretKeyRef"]
                secret = kube.get(f"/api/v1/namespaces/{namespace}/secrets/{key['name']}")
                return base64.b64decode(secret["data"][key["key"]]).decode() if secret else None
    return None


def since(view: JobView, earlier: JobView) -> JobView:
    """The view, with what an earlier one knew better: the operator writes progress every few seconds, so where no
    launcher answers (it ends, or starts again) its words are older than what the last launcher told."""
    total = _first(view.total, earlier.total)
    if view.live or (earlier.step or 0) <= (view.step or 0):
        return replace(view, total=total)
    return replace(view, total=total, step=earlier.step, loss=earlier.loss)
