"""Leadership by a Lease: of any number of operators, one writes.

The Lease is renewed in a thread with an event loop and connections of its own, so that a busy scheduling loop does not
lose it. `check` is asked before every write. It compares a clock that goes on while the process is stopped with the
moment until which the last renewal holds, counted from when the renewal was sent. So a leader that was frozen for a
minute writes nothing when it wakes, and when another takes over, nothing of the old one's is under way any more: its
right ends `margin` before the Lease does.

Clocks of different machines are never compared: a candidate takes a Lease when it has itself watched it stand still for
the Lease's duration.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from muster.api.names import ADDRESS_ANNOTATION
from muster.cluster.client import Api
from muster.cluster.credentials import CredentialsError
from muster.cluster.errors import ApiError, ApiUnreachable, LeadershipLost

Object = dict[str, Any]
log = logging.getLogger(__name__)

LEASE_NAME: Final = "muster-operator"
NAMESPACE: Final = "muster-system"
"""Where it is, unless the operator is told otherwise."""
LEASES: Final = "/apis/coordination.k8s.io/v1"
_NEVER: Final = float("-inf")
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds on a clock that counts while the process is stopped, and while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True)
class LeaseTimes:
    """In seconds.

    Attributes:
        duration: others take over when they have seen no renewal for so long.
        renew: between two renewals.
        retry: between two looks of a candidate, and after a renewal that failed.
        margin: the leader's right to write ends so long before the Lease does.
    """

    duration: float = 15.0
    renew: float = 4.0
    retry: float = 1.0
    margin: float = 5.0

    def __post_init__(self) -> None:
        if self.renew <= 0 or self.limit <= 0:
            raise ValueError(
                f"renewing every {self.renew} s cannot hold a lease of {self.duration} s, {self.margin} s margin"
            )

    @property
    def limit(self) -> float:
        """For one look and renewal. Two fit in before the right to write ends: the first may meet a dead connection."""
        return (self.duration - self.margin - self.renew - self.retry) / 2

    @classmethod
    def of(cls, duration: float) -> LeaseTimes:
        """Renewed and looked at often enough for a Lease of `duration` seconds."""
        return cls(duration, renew=duration * 4 / 15, retry=min(1.0, duration / 10), margin=duration / 3)


@dataclass(frozen=True)
class _Seen:
    """The Lease as last seen, and since when it has been so."""

    holder: str
    renewed: str
    since: float


class Leadership:
    """One candidate.

    Attributes:
        acquired: set when this process leads; of the event loop that called `start`.
        last_answer: `clock()` of the API server's last answer about the Lease.
        address: where this process answers HTTP, as `host:port`; written into the Lease when it leads.
        leader_address: that of who holds the Lease, as last seen; "" when nobody does.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Api]],
        *,
        namespace: str,
        identity: str,
        on_lost: Callable[[str], None],
        name: str = LEASE_NAME,
        times: LeaseTimes | None = None,
    ) -> None:
        """`on_lost` is called with a sentence, in the Lease's thread, and must end the process: nobody waits for it."""
        self._connect = connect
        self._path = f"{LEASES}/namespaces/{namespace}/leases"
        self._namespace, self._name, self.identity = namespace, name, identity
        self._times = times or LeaseTimes()
        self._on_lost = on_lost
        self._valid_until = _NEVER
        self._round_ends = _NEVER
        self._seen: _Seen | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.acquired = asyncio.Event()
        self.last_answer = clock()
        self.trouble = ""
        self.address = self.leader_address = ""

    @property
    def leading(self) -> bool:
        return clock() < self._valid_until

    def check(self) -> None:
        """Raises LeadershipLost unless this process leads at this very moment."""
        if not self.leading:
            raise LeadershipLost("the Lease is not held: this process may not write")

    def start(self) -> None:
        """Begin to compete, in a thread."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Give the Lease back, so that another takes over at once. No write passes `check` from then on."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 3 * self._times.margin)

    def _run(self) -> None:
        try:
            asyncio.run(self._campaign())
        except CredentialsError as error:
            self._on_lost(str(error))
        except Exception:
            log.exception("the Lease's thread failed")
            self._on_lost("the Lease's thread failed: nobody renews the Lease any more")
            raise

    async def _campaign(self) -> None:
        api = await self._connect()
        api.guard = self._in_time
        try:
            while not self._stop.is_set():
                went_well = await self._round(api)
                if self._valid_until > _NEVER and not self.leading:
                    self._on_lost(f"the Lease {self._namespace}/{self._name} is lost; {self.trouble or 'it ran out'}")
                    return
                pause = self._times.renew if self.leading and went_well else self._times.retry
                await asyncio.to_thread(self._stop.wait, pause)
            await self._release(api)
        finally:
            await api.close()

    async def _round(self, api: Api) -> bool:
        self._round_ends = clock() + self._times.limit
        try:
            async with asyncio.timeout(self._times.limit):
                await self._try(api)
        except ApiError as error:
            if error.status != 409:  # 409: another candidate was faster
                self._complain(self._sentence(error))
            return False
        except (ApiUnreachable, LeadershipLost) as error:
            self._complain(str(error))
            return False
        except TimeoutError:
            self._complain(f"the API server did not answer within {self._times.limit:.1f} s")
            return False
        self.trouble = ""
        self.last_answer = clock()
        return True

    def _in_time(self) -> None:
        """The guard of the Lease's own writes: what was looked at must not be old."""
        if clock() > self._round_ends:
            raise LeadershipLost("too much time has passed since the Lease was looked at")

    def _sentence(self, error: ApiError) -> str:
        if error.status == 404:
            return (
                f"namespace {self._namespace} of the Lease does not exist: make it, or give --namespace "
                "(MUSTER_OPERATOR_NAMESPACE)"
            )
        if error.status == 403:
            return f"{error.message}; the chart's Role in namespace {self._namespace} grants it"
        return str(error)

    def _complain(self, text: str) -> None:
        if text != self.trouble:
            log.warning("lease %s/%s: %s", self._namespace, self._name, text)
        self.trouble = text

    async def _try(self, api: Api) -> None:
        """Look, and renew or take the Lease if that is right. 409 when another candidate was faster."""
        lease = await self._read(api)
        now, spec = clock(), (lease or {}).get("spec") or {}
        holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
        annotations = (lease or {}).get("metadata", {}).get("annotations") or {}
        self.leader_address = annotations.get(ADDRESS_ANNOTATION, "") if holder else ""
        if lease is None and self._seen is not None and self._seen.holder:
            # Somebody deleted the Lease. Its holder learns that only at its next look, and writes until then.
            holder, renewed = self._seen.holder, "deleted"
        if self._seen is None or (self._seen.holder, self._seen.renewed) != (holder, renewed):
            self._seen = _Seen(holder, renewed, now)
        mine = holder == self.identity and self._valid_until > _NEVER
        if mine and not self.leading:
            return  # too late: another may count on our silence already
        if not mine and self._valid_until > _NEVER:
            self._valid_until = min(self._valid_until, now)  # somebody took or removed it: that was our reign
            return
        duration = float(spec.get("leaseDurationSeconds") or self._times.duration)
        if holder and not mine and now - self._seen.since < duration:
            return
        body = self._body(lease, spec, mine)
        sent = clock()
        if lease is None:
            await api.create(self._path, body)
        else:
            await api.replace(f"{self._path}/{self._name}", body)
        self._valid_until = sent + self._times.duration - self._times.margin
        if not mine:
            log.info("leading as %s", self.identity)
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self.acquired.set)

    async def _read(self, api: Api) -> Object | None:
        try:
            return await api.get(f"{self._path}/{self._name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def _body(self, lease: Object | None, spec: Object, mine: bool) -> Object:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata: Object = {"name": self._name, "namespace": self._namespace}
        if self.address:
            metadata["annotations"] = {ADDRESS_ANNOTATION: self.address}
        if lease is not None:
            # Only onto the Lease that was looked at: of several candidates one wins.
            metadata |= {key: lease["metadata"][key] for key in ("resourceVersion", "uid")}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": max(1, round(self._times.duration)),
                "acquireTime": (spec.get("acquireTime") if mine else None) or now,
                "renewTime": now,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if mine else 1),
            },
        }

    async def _release(self, api: Api) -> None:
        if not self.leading:
            return
        self._valid_until = _NEVER
        self._round_ends = clock() + self._times.margin
        try:
            lease = await self._read(api)
            if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                lease["spec"]["holderIdentity"] = ""
                await api.replace(f"{self._path}/{self._name}", lease)
        except (ApiError, ApiUnreachable, LeadershipLost) as error:
            log.warning("lease not given back, it runs out by itself: %s", error)
