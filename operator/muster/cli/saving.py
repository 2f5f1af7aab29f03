"""`muster save`: has a gang save a checkpoint now, and waits until it is committed. It asks index 0's launcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from muster.cli.checkpoint_tables import amount
from muster.cli.doors import Asks, Door, gang_of, open_door, said
from muster.cli.logs import pods_of
from muster.cli.printing import note, print_text
from muster.cli.scene import NotThere
from muster.cluster.views import PodView
from muster_protocol import launcher_api
from muster_protocol.launcher_status import Checkpoint, SaveAsked, Status
from muster_protocol.wire import decode

LOOK_SECONDS: Final = 1.0

Write = Callable[[str], object]


async def save(
    name: str, namespace: str | None, *, kubeconfig: str | None, context: str | None, write: Write = print_text
) -> int:
    """0 when the checkpoint is committed. Raises NotThere, ApiError."""
    over = "; only a run that trains can save a checkpoint"
    async with gang_of(name, namespace, kubeconfig, context, what="a checkpoint is", over=over) as (api, scene):
        return await wait(api, pods_of(scene, ())[0], write)


async def wait(api: Asks, pod: PodView, write: Write, every: float = LOOK_SECONDS) -> int:
    """`pod` is that of index 0."""
    status = await open_door(api, pod, launcher_api.STATUS_PATH)
    before = (await _status(status)).checkpoint
    code, body = await replace(status, path=launcher_api.SAVE_PATH).ask("POST")
    if code == 404:
        raise NotThere("its pods were made before an upgrade, and their launcher saves at the interval alone")
    if code != 202:
        raise NotThere(f"no checkpoint: {said(body) or f'the launcher answers {code}'}")
    asked = decode(SaveAsked, body)
    write(f"step {asked.step} is done; the gang saves at its next step's end, and trains on\n")
    if not asked.session:
        note("rank 0 has started no session yet: a script without one saves nothing when asked")
    try:
        saved = await _committed(status, asked.step, before, every)
    except asyncio.CancelledError:
        write("interrupted here; the gang saves all the same\n")
        raise
    write(
        f"the checkpoint of step {saved.step} is committed at {saved.uri}: {amount(saved.bytes)} in "
        f"{saved.save_seconds:.1f} s; muster checkpoint keep {saved.uri}@{saved.step} keeps it for good\n"
    )
    return 0


async def _committed(door: Door, step: int, before: Checkpoint | None, every: float) -> Checkpoint:
    """The first that came after `before`, of `step` or a later one. Says on the way what keeps the store from it."""
    told = ""
    while True:
        status = await _status(door)
        found = status.checkpoint
        if found is not None and found != before and found.step >= step:
            return found
        if status.storage_error not in ("", told):
            told = status.storage_error
            note(f"{told}; still waiting, for the run tries again")
        await asyncio.sleep(every)


async def _status(door: Door) -> Status:
    """Raises NotThere for a pod that doesn't answer."""
    return decode(Status, await door.read())
