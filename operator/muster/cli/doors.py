"""The way from a terminal to a pod's launcher: through the API server's pod proxy, with the token in the job's Secret.

Both by the user's own rights: who may read the namespace's Secrets and reach into its pods (Kubernetes' role `edit`)
could do all of it by hand. So the operator takes no part, and no right is added.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from muster.cli.scene import NotThere, connected, for_editors, look
from muster.cluster.client import Api
from muster.cluster.errors import ApiUnreachable
from muster.cluster.launchers import ProxyCall
from muster.cluster.overrides import TRAINER
from muster.cluster.views import PodView
from muster.telling.scene import Scene
from muster_protocol import env, launcher_api


class Asks(Protocol):
    """Of `Api`."""

    async def get(self, path: str) -> dict[str, Any]: ...

    @property
    def proxy(self) -> ProxyCall: ...


@dataclass(frozen=True)
class Door:
    """The way to what one pod's launcher has at a path."""

    api: Asks
    pod: PodView
    port: int
    token: str
    path: str

    async def ask(self, method: str, body: bytes | None = None) -> tuple[int, bytes]:
        """The answer's status and body. Raises NotThere where there is none."""
        headers = {launcher_api.TOKEN_HEADER: self.token, "Content-Type": "application/json"}
        try:
            return await self.api.proxy(self.pod.namespace, self.pod.name, self.port, method, self.path, body, headers)
        except ApiUnreachable as error:
            raise NotThere(
                f"worker {self.pod.index} does not answer ({error}); where the gang is moving to other pods, "
                "`muster status` says so: try again when it runs"
            ) from error

    async def read(self) -> bytes:
        """The body of its answer to GET. Raises NotThere for any other answer than 200."""
        code, body = await self.ask("GET")
        if code != 200:
            raise NotThere(f"worker {self.pod.index} does not answer ({code}): {said(body)}")
        return body


@asynccontextmanager
async def gang_of(
    name: str, namespace: str | None, kubeconfig: str | None, context: str | None, *, what: str, over: str
) -> AsyncIterator[tuple[Api, Scene]]:
    """The API server, and a job whose launchers are to be asked. Raises NotThere for one that has ended.

    Args:
        what: is asked for, as in "a profile is": who lacks a right is told what that needs.
        over: what is told of a job behind "NAME has ended".
    """
    async with connected(kubeconfig, context) as api:
        with for_editors(f"{what} asked for with the token in the job's Secret, through its pods: "):
            scene = await look(api, name, namespace or api.credentials.namespace)
            if scene.job.status.finished_at is not None:
                raise NotThere(f"{name} has ended{over}")
            yield api, scene


def said(body: bytes) -> str:
    """What a launcher has answered in plain words, or the API server in its place, in a `Status`, when it can't reach
    the pod."""
    text = body.decode(errors="replace").strip()
    try:
        document = json.loads(text)
    except ValueError:
        return text
    if not isinstance(document, dict) or document.get("kind") != "Status":
        return text
    return (
        f"the pod cannot be reached through the API server: {document.get('message') or document.get('reason')}; "
        "`muster status` says how it is, try again when it runs"
    )


async def open_door(api: Asks, pod: PodView, path: str) -> Door:
    """By what the pod's own environment says of port and token. Raises NotThere, ApiError."""
    raw = await api.get(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}")
    trainer: dict[str, Any] = next((one for one in raw["spec"]["containers"] if one["name"] == TRAINER), {})
    said = {one["name"]: one for one in trainer.get("env", ())}
    try:
        kept = said[env.TOKEN]["valueFrom"]["secretKeyRef"]
        secret = await api.get(f"/api/v1/namespaces/{pod.namespace}/secrets/{kept['name']}")
        token = base64.b64decode(secret["data"][kept["key"]]).decode()
    except (KeyError, binascii.Error, UnicodeDecodeError) as error:
        raise NotThere(f"pod {pod.name} names no token of its launcher; was it made by Muster?") from error
    return Door(api, pod, int(said.get(env.PORT, {}).get("value") or env.DEFAULT_PORT), token, path)
