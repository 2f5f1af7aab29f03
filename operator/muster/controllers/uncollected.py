"""Ends the gangs of deleted jobs that Kubernetes' garbage collector leaves alone.

It is a part of the controller manager, takes up to minutes after the API server was away, and none while the controller
manager is: so long a deleted job would train on, for nobody, and keep its GPUs and its pods' names.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.executor import Executor
from muster.cluster.views import PodView
from muster.controllers.cache import Cache, Owner

log = logging.getLogger(__name__)

ROUND: Final = 5.0
"""Seconds between two looks."""
PATIENCE: Final = 20.0
"""Seconds that the garbage collector has, and between two tries for one job. It mostly takes less than one."""


class Uncollected:
    """Deletes pods whose job is gone, and which nobody has asked to go. `run` until cancelled."""

    def __init__(self, cache: Cache, executor: Executor) -> None:
        self._cache, self._executor = cache, executor
        self._since: dict[Owner, float] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND)
            await self.look(asyncio.get_running_loop().time())

    async def look(self, now: float) -> None:
        """Delete what has waited for long by `now`, of the loop's clock."""
        left = {owner: pods for owner in self._cache.bereft() if (pods := self._untouched(owner))}
        self._since = {owner: self._since.get(owner, now) for owner in left}
        for owner, pods in left.items():
            if now - self._since[owner] < PATIENCE:
                continue
            self._since[owner] = now
            try:
                await self._delete(owner, pods)
            except (ApiError, ApiUnreachable) as error:
                log.warning("the pods of TrainingJob %s/%s, which is gone: %s; trying again", *_named(pods), error)

    def _untouched(self, owner: Owner) -> list[PodView]:
        return [pod for pod in self._cache.pods_of(owner) if not pod.terminating]

    async def _delete(self, owner: Owner, pods: list[PodView]) -> None:
        # A job that can't be read is in no cache, and a watch may be late.
        namespace, uid = owner
        if await self._executor.find(namespace, pods[0].job, uid) is not None:
            return
        log.warning(
            "TrainingJob %s/%s is gone, and Kubernetes' garbage collector has left %d of its pods for %.0f s: deleting "
            "them; see how kube-controller-manager is",
            *(*_named(pods), len(pods), PATIENCE),
        )
        await self._executor.delete_pods(namespace, [(pod.name, pod.uid) for pod in pods])


def _named(pods: list[PodView]) -> tuple[str, str]:
    return pods[0].namespace, pods[0].job
