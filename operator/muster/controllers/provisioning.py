"""Asks an autoscaler for the nodes of gangs that have quota and no room; one task beside the scheduling loop.

It looks at what the last plan said of each job and at the requests that there are, and makes the difference. When nodes
come, the planner sees them as it sees any others; nothing here starts a job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from muster.api.effective import EffectiveSpec
from muster.api.names import MANAGED_BY, MANAGED_BY_LABEL
from muster.cluster import pods, provisioning
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.overrides import TemplateRefused
from muster.cluster.pods import Identity, PodSettings
from muster.cluster.provisioning import Answer, Asking, Request
from muster.controllers.asking import FIRST_DELAY, Ask, Capacity, Wish, decide, lacks_nodes
from muster.controllers.cache import Cache
from muster.controllers.records import Record
from muster.controllers.work import utc_now
from muster.scheduling.plan import Wanted

log = logging.getLogger(__name__)

LOOK: Final = 5.0
"""Seconds between two looks at the requests."""
ABSENT: Final = 60.0
"""Seconds between two looks whether the API is there, while it is not."""
LINGER: Final = 30.0
"""Seconds that a request stays when a plan has other words for the job: it may lack nodes again in the next."""


@dataclass(frozen=True)
class _Order:
    """What one request asks for: a gang's nodes, its spares' among them."""

    job: Identity
    spec: EffectiveSpec
    wanted: Wanted

    @property
    def count(self) -> int:
        """Pods of the request."""
        return self.wanted.workers + self.spec.spares


class Provisioning:
    """Sets `Record.capacity` of each job that has a request. `run` until cancelled."""

    def __init__(self, api: Api, cache: Cache, asking: Asking, settings: PodSettings) -> None:
        self._api, self._cache = api, cache
        self._asking, self._settings = asking, settings
        self._lacking: dict[str, float] = {}
        self._lacked: dict[str, float] = {}
        self._refused: dict[str, tuple[str, Capacity]] = {}
        self._begins = True

    async def run(self, records: Mapping[str, Record]) -> None:
        """Look again and again; trouble with the API server is waited out."""
        absent = False
        while True:
            pause = LOOK
            try:
                await self.round(records)
                if absent:
                    log.info("ProvisioningRequests: the API is there now")
                absent = False
            except ApiError as error:
                if error.status == 404:
                    pause = ABSENT
                    if not absent:
                        log.warning(
                            "ProvisioningRequests: the cluster does not serve %s, so nobody is asked for nodes; let "
                            "the autoscaler bring the API, or leave provisioning.className out",
                            provisioning.ALL,
                        )
                    absent = True
                else:
                    log.warning("ProvisioningRequests: %s", error)
            except ApiUnreachable as error:
                log.info("ProvisioningRequests: %s", error)
            await asyncio.sleep(pause)

    async def round(self, records: Mapping[str, Record]) -> None:
        """One look. Raises ApiError, ApiUnreachable."""
        found = await self._api.list(provisioning.ALL, labelSelector=f"{MANAGED_BY_LABEL}={MANAGED_BY}")
        requests = [Request.from_raw(raw) for raw in found]
        now, wall = asyncio.get_running_loop().time(), utc_now()
        if self._begins:  # no plan has had a word on anybody yet: what an operator before this one asked for stays
            self._lacked = dict.fromkeys((request.job_uid for request in requests), now)
        orders = dict(self._orders(records, now))
        wishes = list(orders)
        pausing = {uid for uid, at in self._lacked.items() if now - at < LINGER}
        pausing = {uid for uid in pausing if (records[uid].waits if uid in records else self._begins)}
        self._begins = False
        decided = decide([wish for wish in wishes if not self._is_refused(wish, wall)], requests, pausing, wall)
        for request in decided.drop:
            try:
                await self._drop(request)
            except ApiError as error:  # a webhook may guard it, which is nobody else's concern
                log.warning("%s/%s: the request can't be deleted: %s", request.namespace, request.name, error)
        told = dict(decided.told)
        for ask in decided.make:
            told[ask.wish.uid] = await self._make(orders[ask.wish][ask.key], ask, wall)
        wished = {wish.uid: wish.keys for wish in wishes}
        self._refused = {uid: each for uid, each in self._refused.items() if each[0] in wished.get(uid, ())}
        told |= {uid: capacity for uid, (_, capacity) in self._refused.items() if uid not in told}
        for uid, record in records.items():
            if record.capacity != told.get(uid):
                record.capacity = told.get(uid)
                self._cache.mark(uid)

    def _orders(self, records: Mapping[str, Record], now: float) -> Iterator[tuple[Wish, dict[str, _Order]]]:
        """Of jobs that have lacked nodes for a while: what they wish, and what each request would ask for, by key."""
        lacking = [record for record in records.values() if record.waits and lacks_nodes(record.waiting)]
        self._lacking = {record.uid: self._lacking.get(record.uid, now) for record in lacking}
        self._lacked = {uid: at for uid, at in self._lacked.items() if now - at < LINGER}
        self._lacked |= dict.fromkeys(self._lacking, now)
        for record in lacking:
            if now - self._lacking[record.uid] >= self._asking.patience and record.waiting is not None:
                template, orders = record.template_key(self._settings), dict[str, _Order]()
                for wanted in record.waiting.wanted:
                    order = _Order(record.identity, record.spec, wanted)
                    key = provisioning.request_key(template, order.count, self._asking, wanted.flavour)
                    orders.setdefault(key, order)
                yield Wish(record.uid, tuple(orders), (record.waiting.rank, record.uid)), orders

    def _is_refused(self, wish: Wish, now: datetime) -> bool:
        """Whether the API server would not take it a moment ago."""
        key, capacity = self._refused.get(wish.uid, ("", None))
        return capacity is not None and key in wish.keys and capacity.retry_at is not None and capacity.retry_at > now

    async def _make(self, order: _Order, ask: Ask, now: datetime) -> Capacity:
        job, key, attempt = order.job, ask.key, ask.attempt
        name = provisioning.request_name(job, key, attempt)
        try:
            template = pods.template(job, order.spec, self._settings)
            selector = self._asking.selector(order.wanted.flavour)
            template_body = provisioning.pod_template(job, key, attempt, template, selector)
            await self._create(provisioning.template_path(job.namespace), template_body)
            body = provisioning.request(job, key, attempt, order.count, self._asking)
            await self._create(provisioning.path(job.namespace), body)
        except (ApiError, TemplateRefused) as error:
            told = f"the ProvisioningRequest can't be made: {error}"
            capacity = Capacity(name, Answer.FAILED, told, now + timedelta(seconds=FIRST_DELAY))
            self._refused[job.uid] = (key, capacity)
            return capacity
        self._refused.pop(job.uid, None)
        log.info("%s/%s: asked for nodes for %s workers: %s", job.namespace, job.name, order.count, name)
        return Capacity(name, Answer.NONE)

    async def _create(self, path: str, body: provisioning.Object) -> None:
        try:
            await self._api.create(path, body)
        except ApiError as error:
            if not error.exists:  # the name says whose it is and what it asks for
                raise

    async def _drop(self, request: Request) -> None:
        """The request first: one without its template would be called broken."""
        for path, uid in (
            (provisioning.path(request.namespace, request.name), request.uid),
            (provisioning.template_path(request.namespace, request.name), ""),
        ):
            try:
                await self._api.delete(path, uid=uid)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
