"""`muster hold` and `muster release`: a queue's `spec.stopPolicy`, without its YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from muster.api.common import API_VERSION
from muster.api.trainingqueue import StopPolicy, TrainingQueue, with_below
from muster.cli.printing import print_text
from muster.cli.scene import NotThere, connected, listed, warn_unasked
from muster.cli.suspending import MANAGER
from muster.cli.tables import QUEUES, readable
from muster.cluster.client import Api
from muster.cluster.errors import ApiError
from muster.telling.usage import way_up
from muster_protocol.counts import counted
from muster_protocol.spelling import there_are

OPEN: Final = StopPolicy.NONE


async def stop(
    names: Sequence[str],
    policy: StopPolicy,
    *,
    kubeconfig: str | None,
    context: str | None,
    write: Callable[[str], object] = print_text,
) -> int:
    """Set the policy of these queues. Raises NotThere, before anything is written, where one of them does not exist."""
    async with connected(kubeconfig, context) as api:
        known = {each.metadata.name: each for each in readable(TrainingQueue, await listed(api, QUEUES))}
        for name in names:
            if name not in known:
                raise NotThere(f"no TrainingQueue {name!r}; {there_are(name, known)}")
        then = known | {name: _with(known[name], policy) for name in names}
        for name in dict.fromkeys(names):
            changes = known[name].spec.stop_policy is not policy
            if changes:
                await _set(api, known[name], policy)
            write((_released if policy is OPEN else _stopped)(name, then, changes=changes) + "\n")
        await warn_unasked(api)
    return 0


def _with(queue: TrainingQueue, policy: StopPolicy) -> TrainingQueue:
    return queue.model_copy(update={"spec": queue.spec.model_copy(update={"stop_policy": policy})})


def _stopped(name: str, known: Mapping[str, TrainingQueue], *, changes: bool) -> str:
    queue = known[name]
    below = len(with_below(name, list(known.values()))) - 1
    where = f"it and {counted(below, 'queue')} below it" if below else "it"
    already = "" if changes else " already"
    holders = "" if queue.status.running is None else f" ({counted(queue.status.running, 'job')})"
    does = "is held" if queue.spec.stop_policy is StopPolicy.HOLD else "drains"
    if queue.status.running == 0:
        runs = "nothing runs there"
    elif queue.spec.stop_policy is StopPolicy.HOLD:
        runs = f"what runs{holders} goes on"
    else:
        runs = f"what runs{holders} saves a checkpoint, stops and waits, unless it says preemptible: false"
    return f"{name} {does}{already}: nothing new starts in {where}, and {runs}; `muster release {name}` ends that"


def _released(name: str, known: Mapping[str, TrainingQueue], *, changes: bool) -> str:
    told = f"{name} is released" if changes else f"{name} is not held"
    stopped = [each.metadata.name for each in way_up(name, known) if each.spec.stop_policy is not OPEN]
    if stopped:
        return f"{told}, but what is above it is held: `muster release {' '.join(stopped)}`"
    return f"{told}: its jobs start again" if changes else told


async def _set(api: Api, queue: TrainingQueue, policy: StopPolicy) -> None:
    meta = queue.metadata
    patch = {"metadata": {"uid": meta.uid}, "spec": {"stopPolicy": policy.value}}
    try:
        await api.merge_patch(f"/apis/{API_VERSION}/{QUEUES}/{meta.name}", patch, manager=MANAGER)
    except ApiError as error:
        if error.status != 403:
            raise
        raise NotThere(f"{error.message}; queues are held and released by who may edit them") from error
