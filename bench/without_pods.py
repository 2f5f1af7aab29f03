"""Muster's own process, in which only the making of pods is replaced: they exist in the operator's cache alone.

Everything else is what production runs: `muster.controllers.process.Operator`, its watches, planner and writes.
Settings come from MUSTER_OPERATOR_*, as ever. With BENCH_PROFILE=FILE, cProfile writes there what the main thread did.
"""

from __future__ import annotations

import asyncio
import cProfile
import logging
import os
import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

from muster.api.placement import Placement
from muster.cli.settings import Settings
from muster.cluster.client import Api
from muster.cluster.executor import Executor, MadePod, Outcome
from muster.cluster.pods import Identity, pod_name
from muster.cluster.views import PodView
from muster.controllers.assembly import Scheduling
from muster.controllers.process import Operator

Object = dict[str, Any]


class WithoutPods(Executor):
    """Pods are shown to the cache at once, bound and not started; deleted ones are gone at once."""

    def __init__(self, api: Api, token_key: bytes, scheduling: Scheduling) -> None:
        super().__init__(api, token_key)
        self._scheduling = scheduling

    async def make(
        self, job: Identity, template: Object, placement: Placement, indexes: Sequence[int], **_: Any
    ) -> Outcome:
        like = replace(
            PodView.from_raw(template),
            namespace=job.namespace,
            owner_uid=job.uid,
            bound=True,
            generation=placement.generation,
        )
        nodes, outcome = placement.node_of_index(), Outcome()
        for index in indexes:
            attempt = placement.attempt_of(index)
            name = pod_name(job.name, placement.generation, index, attempt)
            uid = f"{job.uid}-{placement.generation}-{index}-{attempt}"
            pod = replace(like, name=name, uid=uid, node=nodes[index], index=index, attempt=attempt)
            self._show(pod.key, pod)
            outcome.made.append(MadePod(name, uid, index, attempt, pod.requests))
        return outcome

    async def delete_pods(
        self, namespace: str, doomed: Iterable[tuple[str, str]], hurried: Container[str] = ()
    ) -> list[str]:
        for name, _ in doomed:
            self._show(f"{namespace}/{name}", None)
        return []

    def _show(self, key: str, pod: PodView | None) -> None:
        items = self._scheduling.pods.items
        if pod is None:
            items.pop(key, None)
        else:
            items[key] = pod
        self._scheduling.cache.on_pod(key, pod)


class SchedulingWithoutPods(Scheduling):
    def __init__(self, api: Api, **given: Any) -> None:
        super().__init__(api, executor=lambda api, key: WithoutPods(api, key, self), **given)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for chatty in ("kopf", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

    async def serve() -> int:
        return await Operator(Settings(), assemble=SchedulingWithoutPods).run()

    profile = os.environ.get("BENCH_PROFILE")
    if not profile:
        return asyncio.run(serve())
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        return asyncio.run(serve())
    finally:
        profiler.disable()
        profiler.dump_stats(profile)


if __name__ == "__main__":
    sys.exit(main())
