"""Muster's own process, whose questions to launchers are answered with silence at once: kwok's pods have none.

Outside a cluster, as in a benchmark, each of them would be a request of the API server's, which it serves in vain.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from muster.cli.settings import Settings
from muster.cluster.launchers import Launcher, LauncherError
from muster.controllers.assembly import Scheduling
from muster.controllers.process import Operator


async def silence(launcher: Launcher, method: str, path: str, body: bytes | None, token: str) -> tuple[int, bytes]:
    raise LauncherError(f"nobody plays the launcher of pod {launcher.namespace}/{launcher.pod}")


def assemble(*given: Any, **named: Any) -> Scheduling:
    return Scheduling(*given, carry=silence, **named)


async def serve() -> int:
    return await Operator(Settings(), assemble=assemble).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for chatty in ("kopf", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    sys.exit(asyncio.run(serve()))
