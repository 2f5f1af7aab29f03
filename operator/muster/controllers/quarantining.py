"""Carries out what `quarantine` decides: taints nodes and lets them out; one task beside the scheduling loop.

What is to be done follows from the nodes and the jobs as they are, so it is looked at again and again, and a cut
between any two calls is mended by the next look. The faults of a deleted job are remembered until they are too old, or
the operator ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from muster.api.common import format_time
from muster.api.names import NodeEventReason
from muster.cluster import marks
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.events import About, News
from muster.cluster.gpus import flavour_of
from muster.cluster.views import NodeView
from muster.controllers.cache import Cache
from muster.controllers.quarantine import Fault, Rules, Sentence, Suspect, decide
from muster.controllers.work import utc_now

log = logging.getLogger(__name__)

LOOK: Final = 5.0
"""Seconds between two looks."""


class Quarantining:
    """`run` until cancelled.

    Attributes:
        held: nodes that are in quarantine, by our word or somebody's.
        spared: nodes that failed often enough and stay in service.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        rules: Rules,
        faults: Callable[[], Iterable[Fault]],
        tell: Callable[[News], None],
    ) -> None:
        self._api, self._cache, self._rules = api, cache, rules
        self._faults, self._tell = faults, tell
        self._remembered: dict[tuple[str, str, str, int], Fault] = {}
        self.held: tuple[str, ...] = ()
        self.spared: tuple[str, ...] = ()

    async def run(self) -> None:
        """Look again and again; trouble with the API server is waited out."""
        while True:
            try:
                await self.round()
            except ApiUnreachable as error:
                log.warning("quarantine of nodes: %s", error)
            await asyncio.sleep(LOOK)

    def faults_by_cause(self) -> Mapping[str, int]:
        """How many of each cause are remembered."""
        return Counter(fault.cause for fault in self._remembered.values())

    async def round(self) -> None:
        """One look. Raises ApiUnreachable."""
        now, nodes = utc_now(), self._cache.nodes()
        for fault in self._faults():
            self._remembered[fault.node, fault.cause, fault.job, fault.placement] = fault
        self._remembered = {
            key: fault
            for key, fault in self._remembered.items()
            if (now - fault.at).total_seconds() < self._rules.window
        }
        suspects = [_suspect(node) for node in nodes]
        self.held = tuple(sorted(node.name for node in suspects if node.tainted))
        guarded: set[str] = set()
        while True:
            faults = [fault for fault in self._remembered.values() if fault.node not in guarded]
            decided = decide(faults, suspects, self._rules, now)
            refused = {one.node for one in decided.quarantine if not await self._quarantine(one)}
            if not refused:
                break
            guarded |= refused  # what can't be tainted takes no other's place in the share of its kind
        for name in set(decided.spared) - set(self.spared):
            log.warning("node %s fails often, but too many of its kind are in quarantine already", name)
        self.spared = decided.spared
        for name, why in decided.lift:
            await self._change(name, partial(marks.lifted, now=now), NodeEventReason.QUARANTINE_LIFTED, why)

    async def _quarantine(self, sentence: Sentence) -> bool:
        """False where the API server refuses it."""
        reason, until = sentence.reason, sentence.until
        told = f"{reason}; it takes no new pods until {format_time(until)}"
        patch = partial(marks.quarantined, reason=reason, until=until)
        return await self._change(sentence.node, patch, NodeEventReason.QUARANTINED, told)

    async def _change(
        self,
        name: str,
        patch_of: Callable[[Mapping[str, Any]], dict[str, Any] | None],
        reason: NodeEventReason,
        told: str,
    ) -> bool:
        """Read the node, patch it as it is now, and tell it. Who else writes to it meanwhile is let by: 409.

        Returns:
            False where the API server refuses it, as by a webhook that guards the node. That keeps no other node from
            its turn; the next look tries again.
        """
        path = f"/api/v1/nodes/{name}"
        try:
            raw = await self._api.get(path)
            patch = patch_of(raw)
            if patch is None:
                return True
            await self._api.merge_patch(path, patch)
        except ApiError as error:
            if error.status in (404, 409):
                return True
            log.warning("quarantine of node %s: %s", name, error)
            return False
        about = About("v1", "Node", "", name, raw["metadata"]["uid"])
        self._tell(News(about, reason.value, told, warning=reason is NodeEventReason.QUARANTINED))
        return True


def _suspect(node: NodeView) -> Suspect:
    moments = (node.created, marks.moment(node.quarantine_lifted))
    return Suspect(
        node.name,
        flavour_of(node.labels),
        marks.tainted(node),
        marks.moment(node.quarantine_until),
        max((one for one in moments if one is not None), default=None),
    )
