"""`muster profile`: has ranks record their next steps, and says where the traces lie.

It asks index 0's launcher through the API server's pod proxy, with the token in the job's Secret, both by the user's
own rights: who may read the namespace's Secrets and reach into its pods (Kubernetes' role `edit`) could do all of it by
hand. So the operator takes no part, and no right is added.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from muster.cli.logs import pods_of
from muster.cli.printing import print_text
from muster.cli.scene import NotThere, connected, look
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.launchers import ProxyCall
from muster.cluster.overrides import TRAINER
from muster.cluster.views import PodView
from muster_protocol import env, launcher_api
from muster_protocol.counts import counted
from muster_protocol.launcher_status import Profile, ProfilePhase, Profiling
from muster_protocol.wire import decode, encode

LOOK_SECONDS: Final = 1.0
OTHERS_SECONDS: Final = 120.0
"""How long the other workers may store after index 0 has."""
_OVER: Final = (ProfilePhase.DONE, ProfilePhase.FAILED)

Write = Callable[[str], object]


class Asks(Protocol):
    """Of `Api`."""

    async def get(self, path: str) -> dict[str, Any]: ...

    @property
    def proxy(self) -> ProxyCall: ...


async def profile(
    name: str,
    namespace: str | None,
    *,
    steps: int,
    everybody: bool,
    memory: bool,
    kubeconfig: str | None,
    context: str | None,
    write: Write = print_text,
) -> int:
    """0 when all that was asked for is stored, else 1. Raises NotThere, ApiError."""
    try:
        async with connected(kubeconfig, context) as api:
            scene = await look(api, name, namespace or api.credentials.namespace)
            if scene.job.status.finished_at is not None:
                raise NotThere(f"{name} has ended; a profile is of the steps of a run that trains")
            return await record(api, pods_of(scene, ()), Profile(steps, everybody, memory), write)
    except ApiError as error:
        if error.status != 403:
            raise
        raise NotThere(
            f"{error.message}; a profile is asked for with the token in the job's Secret, through its pods: ask for "
            "Kubernetes' role edit in that namespace"
        ) from error


async def record(api: Asks, pods: list[PodView], wish: Profile, write: Write, every: float = LOOK_SECONDS) -> int:
    """`pods` are the gang's, index 0 first."""
    door = await _door(api, pods[0])
    code, body = await door.ask("POST", encode(wish))
    if code != 202:
        raise NotThere(f"no profile: {_said(body) or f'the launcher answers {code}'}")
    write(f"{counted(wish.steps, 'step')} of {'all ranks' if wish.everybody else 'rank 0'} will be recorded\n")
    try:
        while (led := await door.state()).phase not in _OVER:  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(every)
    except asyncio.CancelledError:
        write("interrupted here; the gang goes on recording, and stores the traces beside its checkpoints\n")
        raise
    found = [led]
    if wish.everybody and led.uri:
        others = [Door(api, pod, door.port, door.token) for pod in pods[1:]]
        found += await asyncio.gather(*(_other(other, led.uri, every) for other in others))
    for path in sorted((f"{state.uri}/{file}" for state in found for file in state.stored), key=_by_rank):
        write(f"{path}\n")
    for text in dict.fromkeys(state.text for state in found if state.text):  # what all say is said once
        write(f"{text}\n")
    return 0 if all(state.phase is ProfilePhase.DONE for state in found) else 1


def _by_rank(path: str) -> tuple[int, str]:
    """Ranks in their order, and behind them what speaks of all."""
    rank = re.search(r"/rank-(\d+)\.[^/]*$", path)
    return int(rank[1]) if rank else sys.maxsize, path


@dataclass(frozen=True)
class Door:
    """The way to one pod's launcher."""

    api: Asks
    pod: PodView
    port: int
    token: str

    async def ask(self, method: str, body: bytes | None = None) -> tuple[int, bytes]:
        headers = {launcher_api.TOKEN_HEADER: self.token, "Content-Type": "application/json"}
        path = launcher_api.PROFILE_PATH
        try:
            return await self.api.proxy(self.pod.namespace, self.pod.name, self.port, method, path, body, headers)
        except ApiUnreachable as error:
            raise NotThere(
                f"worker {self.pod.index} does not answer ({error}); where the gang is moving to other pods, "
                "`muster status` says so: try again when it runs"
            ) from error

    async def state(self) -> Profiling:
        """Raises NotThere for a pod that doesn't answer."""
        code, body = await self.ask("GET")
        if code != 200:
            raise NotThere(f"worker {self.pod.index} does not answer ({code}): {_said(body)}")
        return decode(Profiling, body)


def _said(body: bytes) -> str:
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


async def _other(door: Door, uri: str, every: float) -> Profiling:
    """Of a worker beside index 0, once it has stored its part."""
    for _ in range(max(1, int(OTHERS_SECONDS / max(every, 0.01)))):
        state = await door.state()
        if state.uri == uri and state.phase in _OVER:
            return state
        await asyncio.sleep(every)
    return Profiling(ProfilePhase.FAILED, text=f"worker {door.pod.index} has stored nothing yet; see its log")


async def _door(api: Asks, pod: PodView) -> Door:
    """By what the pod's own environment says of port and token."""
    raw = await api.get(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}")
    trainer: dict[str, Any] = next((one for one in raw["spec"]["containers"] if one["name"] == TRAINER), {})
    said = {one["name"]: one for one in trainer.get("env", ())}
    try:
        kept = said[env.TOKEN]["valueFrom"]["secretKeyRef"]
        secret = await api.get(f"/api/v1/namespaces/{pod.namespace}/secrets/{kept['name']}")
        token = base64.b64decode(secret["data"][kept["key"]]).decode()
    except (KeyError, binascii.Error, UnicodeDecodeError) as error:
        raise NotThere(f"pod {pod.name} names no token of its launcher; was it made by Muster?") from error
    return Door(api, pod, int(said.get(env.PORT, {}).get("value") or env.DEFAULT_PORT), token)
