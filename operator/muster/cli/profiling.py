"""`muster profile`: has ranks record their next steps, and says where the traces lie. It asks index 0's launcher."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from typing import Final

from muster.cli.doors import Asks, Door, gang_of, open_door, said
from muster.cli.logs import pods_of
from muster.cli.printing import print_text
from muster.cli.scene import NotThere
from muster.cluster.views import PodView
from muster_protocol import launcher_api
from muster_protocol.counts import counted
from muster_protocol.launcher_status import Profile, ProfilePhase, Profiling
from muster_protocol.wire import decode, encode

LOOK_SECONDS: Final = 1.0
OTHERS_SECONDS: Final = 120.0
"""How long the other workers may store after index 0 has."""
_OVER: Final = (ProfilePhase.DONE, ProfilePhase.FAILED)

Write = Callable[[str], object]


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
    over = "; a profile is of the steps of a run that trains"
    async with gang_of(name, namespace, kubeconfig, context, what="a profile is", over=over) as (api, scene):
        return await record(api, pods_of(scene, ()), Profile(steps, everybody, memory), write)


async def record(api: Asks, pods: list[PodView], wish: Profile, write: Write, every: float = LOOK_SECONDS) -> int:
    """`pods` are the gang's, index 0 first."""
    door = await open_door(api, pods[0], launcher_api.PROFILE_PATH)
    code, body = await door.ask("POST", encode(wish))
    if code != 202:
        raise NotThere(f"no profile: {said(body) or f'the launcher answers {code}'}")
    write(f"{counted(wish.steps, 'step')} of {'all ranks' if wish.everybody else 'rank 0'} will be recorded\n")
    try:
        while (led := await _state(door)).phase not in _OVER:  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(every)
    except asyncio.CancelledError:
        write("interrupted here; the gang goes on recording, and stores the traces beside its checkpoints\n")
        raise
    found = [led]
    if wish.everybody and led.uri:
        others = [Door(api, pod, door.port, door.token, door.path) for pod in pods[1:]]
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


async def _state(door: Door) -> Profiling:
    """Raises NotThere for a pod that doesn't answer."""
    return decode(Profiling, await door.read())


async def _other(door: Door, uri: str, every: float) -> Profiling:
    """Of a worker beside index 0, once it has stored its part."""
    for _ in range(max(1, int(OTHERS_SECONDS / max(every, 0.01)))):
        state = await _state(door)
        if state.uri == uri and state.phase in _OVER:
            return state
        await asyncio.sleep(every)
    return Profiling(ProfilePhase.FAILED, text=f"worker {door.pod.index} has stored nothing yet; see its log")
