"""Which launchers of the gang still live: by the heartbeats that they send or answer, and by asking them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from muster_protocol import launcher_api as api
from muster_runtime.launch.http_client import Client, Unreachable

SILENCE_BEATS: Final = 10
"""Who was silent for so many intervals is lost."""
_PROBE_SECONDS: Final = 2.0
_PROBES: Final = 2
PROBING_SECONDS: Final = _PROBES * _PROBE_SECONDS
"""`silent` takes so long at most."""


class Silence:
    """For how long each of some launchers was silent. Pure: the time is given, in monotonic seconds.

    `interval` is the time between two heartbeats. What this process sleeps through itself isn't the others' silence.
    """

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._last = now
        self._seconds: dict[int, float] = {}

    def heard(self, index: int) -> None:
        self._seconds[index] = 0.0

    def pass_to(self, now: float, indexes: Iterable[int]) -> dict[int, float]:
        """Lets time go on for `indexes`; those that are lost, with the seconds of their silence."""
        passed, self._last = min(now - self._last, 2 * self._interval), now
        lost = {}
        for index in indexes:
            self._seconds[index] = self._seconds.get(index, 0.0) + passed
            if self._seconds[index] > SILENCE_BEATS * self._interval:
                lost[index] = self._seconds[index]
        return lost


async def silent(client: Client, hosts: Mapping[int, str]) -> dict[int, str]:
    """Of the launchers at `hosts`, by index, those that don't answer when they are asked twice, and why."""

    async def ask(host: str) -> str:
        why = ""
        for _ in range(_PROBES):
            try:
                await client.call("GET", host, api.HEALTH_PATH, timeout=_PROBE_SECONDS)
            except Unreachable as error:
                why = str(error)
            else:
                return ""
        return why

    answers = await asyncio.gather(*map(ask, hosts.values()))
    return {index: why for index, why in zip(hosts, answers, strict=True) if why}
