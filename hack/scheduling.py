"""Runs the scheduling side of the operator alone: no Lease, no kopf, no metrics. For tests that cut it short.

python -m hack.scheduling KUBECONFIG [SECONDS]

SECONDS: how late it sees what others do to pods and nodes.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.cluster.client import Api
from muster.cluster.credentials import Credentials
from muster.cluster.events import News
from muster.cluster.informer import EVENT_DELAY, Informer
from muster.cluster.pods import PodSettings
from muster.cluster.provisioning import Asking
from muster.controllers.assembly import Scheduling
from muster.controllers.lifecycle.turn import Note
from muster.controllers.quarantine import Rules
from muster.controllers.records import Record
from muster.controllers.situations import Patience
from muster.telemetry.history.writer import Writer

GROUP = "/apis/muster.dev/v1alpha1"
TOKEN_KEY = b"only for tests, never elsewhere!"
HURRIED = Patience(launcher=0.5)
"""For gangs without launchers: they run half a second after their pods."""
log = logging.getLogger("hack.scheduling")


def tell(record: Record, note: Note) -> None:
    """Events go to the log."""
    log.info("%s/%s: %s: %s", record.identity.namespace, record.identity.name, note.reason.value, note.message)


async def schedule(
    api: Api,
    *,
    patience: Patience = HURRIED,
    priority_class: str = "",
    runtime_image: str = "localhost/muster/runtime:test",
    watch_delay: float = EVENT_DELAY,
    asking: Asking | None = None,
    quarantine: Rules | None = None,
    tell_node: Callable[[News], None] = lambda news: None,
    history: Writer | None = None,
) -> None:
    """Everything that plans and makes gangs, until cancelled. What others do to pods and nodes is seen `watch_delay` s
    late."""
    scheduling = Scheduling(
        api,
        settings=PodSettings(runtime_image, priority_class),
        token_key=TOKEN_KEY,
        tell=tell,
        patience=patience,
        event_delay=watch_delay,
        asking=asking,
        quarantine=quarantine,
        tell_node=tell_node,
        history=history,
    )
    own = [
        watched(api, "trainingqueues", scheduling.queue),
        watched(api, "topologies", scheduling.topology),
    ]
    ready = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as tasks:
            for informer in own:
                tasks.create_task(informer.run())
            tasks.create_task(scheduling.run(ready))
            for informer in own:
                await informer.synced.wait()
            ready.set()
    finally:
        await scheduling.close()


class Raw(dict[str, Any]):
    """An object as it came, with the key that informers want."""

    @property
    def key(self) -> str:
        return "/".join(self.pair)

    @property
    def pair(self) -> tuple[str, str]:
        return self["metadata"].get("namespace", ""), self["metadata"]["name"]


def watched(api: Api, plural: str, feed: Callable[[tuple[str, str], dict[str, Any] | None], None]) -> Informer[Raw]:
    """An informer that feeds queues or topologies; the operator has kopf for this."""
    informer = Informer(api, f"{GROUP}/{plural}", Raw)

    def tell(key: str) -> None:
        namespace, _, name = key.rpartition("/")
        feed((namespace, name), informer.items.get(key))

    informer.on_change(tell)
    return informer


async def connect(kubeconfig: str) -> Api:
    """A client without a guard."""
    credentials = Credentials(Path(kubeconfig))
    await credentials.load()
    return Api(credentials)


async def main(kubeconfig: str, watch_delay: float = EVENT_DELAY) -> None:
    api = await connect(kubeconfig)
    try:
        await schedule(api, watch_delay=watch_delay)
    finally:
        await api.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main(sys.argv[1], *map(float, sys.argv[2:])))
