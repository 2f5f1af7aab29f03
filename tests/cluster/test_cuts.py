"""The operator dies at every write, one after the other, and by chance: the gang runs in the end, no pod twice.

Here only the scheduling side runs, as a process of its own that a fault point or a signal ends; API server,
kube-scheduler and garbage collector are real.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import ControlPlane
from .gangs import Corner, corner
from .processes import MOMENTS, Process, cut

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

WORKERS = 8


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        await found.add_nodes(4, gpus=WORKERS // 4)
        yield found


async def assert_whole(place: Corner, job: str, uid: str) -> None:
    """The gang runs: one living pod for each index, all of one placement, and no other pod of the job is left."""

    async def look() -> bool:
        found = await place.job(job)
        pods = [pod for pod in await place.pods(job) if "deletionTimestamp" not in pod["metadata"]]
        return found.get("status", {}).get("phase") == "Running" and len(pods) == WORKERS

    await place.until(f"{job} runs whole", look)
    generation = str((await place.job(job))["status"]["placement"]["generation"])
    pods = await place.pods(job)
    labels = [pod["metadata"]["labels"] for pod in pods]
    assert Counter(int(item["muster.dev/index"]) for item in labels) == Counter(range(WORKERS))
    assert {item["muster.dev/generation"] for item in labels} == {generation}
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods} == {uid}
    assert Counter(pod["spec"]["nodeName"] for pod in pods) == Counter(dict.fromkeys(place.nodes.names, WORKERS // 4))


async def finish(place: Corner, job: str) -> None:
    """Delete the job and wait for its pods to go, so that the room is free for the next."""
    await place.delete_job(job)

    async def none() -> bool:
        return not await place.pods(job)

    await place.until(f"the pods of {job} are gone", none)


async def recorded(place: Corner, log: Path) -> list[str]:
    """The writes that starting a gang takes when nothing goes wrong, in their order."""
    process = await Process.start(place, MUSTER_FAULT_LOG=str(log))
    try:
        made = await place.submit("reference", WORKERS)
        await assert_whole(place, "reference", made["metadata"]["uid"])
    finally:
        await process.kill()
    writes = await asyncio.to_thread(log.read_text)
    await finish(place, "reference")
    return writes.splitlines()


async def test_cut_at_every_write_the_gang_runs_in_the_end(place: Corner, tmp_path: Path) -> None:
    writes = await recorded(place, tmp_path / "writes")
    # its first word, the placement, Secret, Service, the pods, PodsReady, Running
    assert len(writes) >= WORKERS + 5, writes
    # Queues' books are written when their time comes, which is chance: each kind of the gang's own writes counts apart.
    kinds = Counter(line.split()[1] for line in writes if "trainingqueues" not in line and "topologies" not in line)
    assert kinds["create-pods"] == WORKERS, kinds
    for kind, count in kinds.items():
        for number in range(1, count + 1):
            for moment in MOMENTS:
                job = f"{moment}-{kind.replace('/', '-')}-{number}"
                reached = await _cut(place, job, f"{moment}:{kind}:{number}")
                # A slow machine may take one status write more or less; what is made is always the same.
                assert reached or not kind.startswith("create-"), f"{job}: the gang ran without this write"


async def _cut(place: Corner, job: str, fault: str) -> bool:
    """Whether the process came to its fault point, rather than to a running gang without it."""
    made: dict[str, Any] = await place.submit(job, WORKERS)

    async def runs() -> bool:
        return bool((await place.job(job)).get("status", {}).get("phase") == "Running")

    reached = await cut(place, fault, runs)
    place.start()  # a new one, within the test's own process
    await assert_whole(place, job, made["metadata"]["uid"])
    await place.stop()
    await finish(place, job)
    return reached


async def test_killed_at_twenty_random_moments_the_gang_runs_in_the_end(place: Corner) -> None:
    """One gang after the other: started, made to fail and start again, while the operator is killed again and again."""
    chance = random.Random(20260301)
    kills = 0
    for job in (f"chance-{number}" for number in range(100)):
        made = await place.submit(job, WORKERS)
        for _ in range(4):
            process = await Process.start(place)
            await asyncio.sleep(chance.uniform(1.0, 3.0))
            assert not process.ended
            await process.kill()
            kills += 1
        place.start()
        await assert_whole(place, job, made["metadata"]["uid"])
        await place.stop()
        await finish(place, job)
        if kills >= 20:
            return
