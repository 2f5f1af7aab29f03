"""Who looks at the pods of a corner all the time, whatever happens to its jobs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, Final

from .gangs import Corner

Object = dict[str, Any]
ENDED: Final = ("Succeeded", "Failed")
"""Phases, of jobs as of pods."""


class Witness:
    """Lists the pods again and again. `seen`: what must never be, each thing once."""

    def __init__(self, place: Corner, gpus: int, unbound: float) -> None:
        """`gpus`: of each node; `unbound`: seconds that a pod may wait for kube-scheduler."""
        self.seen: set[str] = set()
        self._place, self._gpus, self._patience = place, gpus, unbound
        self._waits: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._look([pod for pod in await self._place.pods() if lives(pod)], asyncio.get_running_loop().time())
            await asyncio.sleep(0.2)

    def _look(self, pods: list[Object], now: float) -> None:
        asked, workers, waits = defaultdict[str, int](int), defaultdict[tuple[str, ...], list[str]](list), {}
        for pod in pods:
            metadata, node = pod["metadata"], pod["spec"].get("nodeName")
            if node:
                asked[node] += int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
            if not ours(pod) or "deletionTimestamp" in metadata:
                continue
            labels = metadata["labels"]
            workers[labels["muster.dev/job-uid"], labels["muster.dev/index"]].append(metadata["name"])
            if not node:
                waits[metadata["uid"]] = self._waits.get(metadata["uid"], now)
                if now - waits[metadata["uid"]] > self._patience:
                    self.seen.add(f"{metadata['name']} is bound to no node: {pod['status'].get('conditions')}")
        self._waits = waits
        self.seen |= {f"{node} gives {gpus} GPUs" for node, gpus in asked.items() if gpus > self._gpus}
        self.seen |= {f"pods of one worker: {names}" for names in workers.values() if len(names) > 1}


def ours(pod: Object) -> bool:
    return "muster.dev/job" in pod["metadata"].get("labels", {})


def lives(pod: Object) -> bool:
    return pod["status"].get("phase") not in ENDED
