"""The history of jobs that run, end and go while the operator is killed: a real API server, and SQLite."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from muster.cluster.views import parse_time
from muster.telemetry.cost.intervals import Interval
from muster.telemetry.history.database import parse
from muster.telemetry.history.reading import Filter, Reader
from muster.telemetry.history.writer import Writer

from .conftest import ControlPlane
from .gangs import Corner, corner
from .operators import operator

pytestmark = pytest.mark.cluster

LATE = timedelta(seconds=30)
"""What a busy machine may take to see and to write something."""


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        await found.add_nodes(2, gpus=4)
        yield found


def intervals(reader: Reader, uid: str) -> tuple[Interval, ...]:
    found = reader.job(uid)
    return found.intervals if found is not None else ()


async def test_an_operator_is_killed_and_jobs_go_meanwhile(
    control_plane: ControlPlane, place: Corner, tmp_path: Path
) -> None:
    """A job that goes while nobody looks is charged until it was last seen; one that ends, until its containers did."""
    url = parse(f"sqlite:///{tmp_path}/history.db")
    reader = Reader(url)
    async with operator(control_plane.kubeconfig, tmp_path, "killed", history_url=str(url)) as first:
        await first.until_probe("/readyz", 200)
        uids = {name: (await place.submit(name, 2))["metadata"]["uid"] for name in ("stays", "ends", "goes")}

        async def written() -> bool:
            return first.told().count("history: the database has the tables") == 1 and all(
                len(intervals(reader, uid)) == 2 for uid in uids.values()
            )

        await place.until("six workers in the history", written)
        first.send(signal.SIGKILL)
        await first.ended(20.0)
    killed_at = datetime.now(timezone.utc)
    control_plane.kubectl("delete", "lease", "muster-operator", "-n", "default")
    for pod in await place.pods("ends"):
        await place.nodes.finish(pod)
    await place.delete_job("goes")

    async def gone() -> bool:
        return not await place.pods("goes")

    await place.until("the pods are gone", gone)
    states = [pod["status"]["containerStatuses"][0]["state"] for pod in await place.pods("ends")]
    ends = {parse_time(state["terminated"]["finishedAt"]) for state in states}
    seen_at = reader.seen_at()
    assert seen_at is not None
    assert killed_at - LATE <= seen_at <= killed_at

    second = Writer(url, identity="second")
    second.start()
    place.start(history=second)

    async def ended() -> bool:
        return all(one.ends is not None for name in ("ends", "goes") for one in intervals(reader, uids[name]))

    await place.until("the intervals have ended", ended)
    assert {(one.ends, one.estimated) for one in intervals(reader, uids["goes"])} == {(seen_at, True)}
    assert {(one.ends, one.estimated) for one in intervals(reader, uids["ends"])} == {(end, False) for end in ends}
    assert {(one.ends, one.gpu_type, one.gpus) for one in intervals(reader, uids["stays"])} == {(None, "H100", 1)}
    (lost,) = reader.jobs(Filter(name="goes")).jobs
    assert (lost.deleted_at, lost.estimated) == (seen_at, True)
    assert all(one.begins <= seen_at for uid in uids.values() for one in intervals(reader, uid))
    pools = [one for one in reader.pools(killed_at, datetime.now(timezone.utc)) if one.gpu_type == "H100"]
    assert pools[-1].ends is None
    assert pools[-1].gpus >= 8
    await place.stop()
    second.close()
    reader.close()


async def test_a_database_that_is_not_there_holds_up_nobody(
    control_plane: ControlPlane, place: Corner, tmp_path: Path
) -> None:
    """The job runs and ends, and is in the history as soon as there is one."""
    url = parse(f"sqlite:///{tmp_path}/later/history.db")
    writer = Writer(url, identity="patient", first_wait=0.1)
    writer.start()
    place.start(history=writer)
    uid = (await place.submit("early", 2))["metadata"]["uid"]
    await place.until_phase("early", "Running")

    async def told() -> bool:
        return "unable to open database file" in writer.health.trouble

    await place.until("the writer says what is wrong", told)
    await place.succeed("early")
    await place.delete_job("early")
    (tmp_path / "later").mkdir()
    began = time.monotonic()
    reader = Reader(url)

    async def whole() -> bool:
        if writer.health.trouble or not (tmp_path / "later" / "history.db").exists():
            assert time.monotonic() - began < 60, writer.health
            return False
        found = reader.job(uid)
        return found is not None and found.job.deleted_at is not None

    await place.until("the job is in the history", whole)
    found = reader.job(uid)
    assert found is not None
    assert found.job.phase == "Succeeded"
    assert [(one.reason, one.estimated) for one in found.attempts] == [("Succeeded", False)]
    assert all(one.ends is not None and not one.estimated for one in found.intervals)
    await place.stop()
    writer.close()
    reader.close()


@pytest.mark.parametrize(
    "word",
    ["[" * 4096, '{"muster": 1, "cause": "user", "exit_code": 1, "message": "half a pair: \\ud83d"}'],
    ids=["more brackets than Python reads", "what no encoding has"],
)
async def test_no_last_word_of_a_script_ends_the_operator(
    word: str, control_plane: ControlPlane, place: Corner, tmp_path: Path
) -> None:
    """Anybody's script may write its own termination message, which goes into the history, a status and an Event."""
    url = f"sqlite:///{tmp_path}/history.db"
    async with operator(control_plane.kubeconfig, tmp_path, "heard", history_url=url) as process:
        await process.until_probe("/readyz", 200)
        await place.submit("odd", 2, restart={"limit": 0})
        await place.until_phase("odd", "Starting")

        async def runs() -> bool:
            pods = await place.pods("odd")
            return len(pods) == 2 and all(pod["status"]["phase"] == "Running" for pod in pods)

        await place.until("its pods run", runs)
        for pod in await place.pods("odd"):
            await place.nodes.finish(pod, exit_code=1, message=word)
        await place.until_phase("odd", "Failed")

        async def told() -> bool:
            events = await place.api.list(f"/api/v1/namespaces/{place.namespace}/events")
            return "Failed" in {event["reason"] for event in events if event["involvedObject"]["name"] == "odd"}

        await place.until("an Event says that it has failed", told)
        await place.submit("another", 2)
        await place.until_phase("another", "Starting")
