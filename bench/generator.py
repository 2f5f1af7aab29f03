"""The load generator: submits the jobs, and finishes each when it has held its place for its runtime.

It sees what anybody sees by a watch, and marks a job finished as Muster does itself when the last pod has succeeded: by
one write of its status. The time counts afresh after a preemption. Where there are pods, kwok lets each of them succeed
after the job's runtime, and Muster finishes the job.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Final

from hack.cluster.kwok import COMPLETE_ANNOTATION

from load import Load, Submission, job, submissions
from muster.api import names
from muster.api.common import API_VERSION
from testbed import NAMESPACE
from wire import Refused, Wire
from witness import Witness

Object = dict[str, Any]

JOBS: Final = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/trainingjobs"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
CONNECTIONS: Final = 48


class Generator:
    """One run of a load. Times are of the monotonic clock.

    Attributes:
        submitted, placed, finished: moment by job; `placed` is the first placement.
        restarts: placements after the first.
        ended_bytes: JSON of the jobs that have ended, all added up.
        events: events of the watch so far.
    """

    def __init__(self, wire: Wire, load: Load, witness: Witness, *, pods: bool) -> None:
        self._wire = wire
        self._pods = pods
        self._witness = witness
        self._todo = submissions(load)
        self._kinds = {one.name: one.kind for one in self._todo}
        self._newest: dict[str, Object] = {}
        self._running: dict[str, tuple[int, asyncio.TimerHandle | None]] = {}
        self._writes: set[asyncio.Task[None]] = set()
        self._done = asyncio.Event()
        self.submitted: dict[str, float] = {}
        self.placed: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self.restarts = 0
        self.ended_bytes = 0
        self.events = 0
        self.began = 0.0

    async def run(self, timeout: float) -> None:
        """Until every job has finished. Raises TimeoutError, and whatever broke the watch or a submission."""
        watches = {asyncio.create_task(self._watch(JOBS, self._see_job))}
        if self._pods:
            watches.add(asyncio.create_task(self._watch(PODS, self._see_pod)))
        self.began = time.monotonic()
        submit = asyncio.create_task(self._submit())
        done = asyncio.create_task(self._done.wait())
        try:
            async with asyncio.timeout(timeout):
                # What ends too early has failed, and says why.
                ended, _ = await asyncio.wait({*watches, done, submit}, return_when=asyncio.FIRST_COMPLETED)
                if submit in ended:
                    submit.result()
                    ended, _ = await asyncio.wait({*watches, done}, return_when=asyncio.FIRST_COMPLETED)
                for watch in ended & watches:
                    watch.result()
        finally:
            for task in (*watches, submit, done):
                task.cancel()

    async def _submit(self) -> None:
        gate = asyncio.Semaphore(4 * CONNECTIONS)
        async with asyncio.TaskGroup() as posts:
            for one in self._todo:
                wait = self.began + one.at - time.monotonic()
                if wait > 0.001:
                    await asyncio.sleep(wait)
                await gate.acquire()
                self.submitted[one.name] = time.monotonic()
                posts.create_task(self._post(one)).add_done_callback(lambda _: gate.release())

    async def _post(self, one: Submission) -> None:
        try:
            until = {COMPLETE_ANNOTATION: f"{round(one.kind.run * 1e3)}ms"} if self._pods else {}
            await self._wire.call("POST", JOBS, job(one, until))
        except Refused as error:
            if error.status != 409:  # it is there: the first answer was lost with its connection
                raise

    async def _watch(self, path: str, see: Callable[[Object, bool, int], None]) -> None:
        page = json.loads(await self._wire.call("GET", f"{path}?limit=1"))
        resource_version = page["metadata"]["resourceVersion"]
        while True:  # the server ends watches when it takes over a changed CRD, for one
            async for line in self._wire.watch(path, resource_version):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ConnectionError(f"the watch of {path} failed: {event['object']}")
                resource_version = event["object"]["metadata"]["resourceVersion"]
                see(event["object"], event["type"] == "DELETED", len(line))

    def _see_pod(self, raw: Object, deleted: bool, _: int) -> None:
        job = (raw["metadata"].get("labels") or {}).get(names.JOB_LABEL)
        if job is not None:
            self._witness.see_pod(raw, self._kinds[job], deleted)

    def _see_job(self, raw: Object, deleted: bool, size: int) -> None:
        self.events += 1
        name, status = raw["metadata"]["name"], raw.get("status") or {}
        ended = deleted or status.get("phase") in ("Succeeded", "Failed")
        self._witness.see(raw, self._kinds[name], ended)
        self._newest[name] = raw
        placement = None if ended or status.get("stop") else status.get("placement")
        generation = placement["generation"] if placement else 0
        running = self._running.get(name)
        if running is not None and running[0] != generation:
            if running[1] is not None:
                running[1].cancel()
            del self._running[name]
            running = None
        if placement is not None and running is None:
            now = time.monotonic()
            self.restarts += name in self.placed
            self.placed.setdefault(name, now)
            self._running[name] = (generation, self._timer(name, generation))
        if ended and name not in self.finished:
            self.finished[name] = time.monotonic()
            self.ended_bytes += size
            if len(self.finished) == len(self._todo):
                self._done.set()

    def _timer(self, name: str, generation: int) -> asyncio.TimerHandle | None:
        if self._pods:
            return None
        return asyncio.get_running_loop().call_later(self._kinds[name].run, self._end, name, generation)

    def _end(self, name: str, generation: int) -> None:
        task = asyncio.create_task(self._finish(name, generation))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _finish(self, name: str, generation: int) -> None:
        """Write the end as Muster does, without the spec, unless the job was preempted meanwhile."""
        while self._running.get(name, (0,))[0] == generation:
            raw = self._newest[name]
            try:
                metadata = {field: raw["metadata"][field] for field in ("name", "namespace", "uid", "resourceVersion")}
                body = {"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": metadata}
                body["status"] = _ended(raw["status"])
                await self._wire.call("PUT", f"{JOBS}/{name}/status?fieldManager={names.FIELD_MANAGER}", body)
            except Refused as error:
                if error.status != 409:
                    raise
                await asyncio.sleep(0.01)  # somebody wrote in between: the watch will show it
            else:
                return

    def waits(self) -> dict[str, list[float]]:
        """Seconds from submit to the first placement, by size of job."""
        found: dict[str, list[float]] = defaultdict(list)
        for name, moment in self.placed.items():
            found[self._kinds[name].size].append(moment - self.submitted[name])
        return found


def _ended(status: Object) -> Object:
    """As Muster writes it when all pods have succeeded."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    generation = status.get("observedGeneration", 1)
    news = {
        "Succeeded": ("True", "Completed", "all workers ended with exit code 0"),
        "Admitted": ("False", "Finished", "the job has ended"),
        "PodsReady": ("False", "Completed", "the job has ended"),
        "Running": ("False", "Completed", "the job has ended"),
    }
    conditions = [
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastTransitionTime": now,
            "observedGeneration": generation,
        }
        for kind, (value, reason, message) in news.items()
    ]
    kept = [item for item in status.get("conditions", []) if item["type"] not in news]
    left = {key: value for key, value in status.items() if key not in ("placement", "queue", "stop")}
    return left | {
        "conditions": [*kept, *conditions],
        "phase": "Succeeded",
        "finishedAt": now,
        "replicas": 0,
        "ready": 0,
    }
