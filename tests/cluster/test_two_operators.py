"""Operators as whole processes: who leads, and what they do when the API server or the way to it fails."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hack.cluster import api as clusters
from hack.scheduling import GROUP

from .conftest import CRDS, ControlPlane
from .gangs import Corner, corner
from .operators import Running, holder, operator, until_holder, writes_of
from .wire import through, wire_to

pytestmark = pytest.mark.cluster

TAKE_OVER = 20.0
"""Seconds that a job may be without a leader."""
FROZEN = 30.0
"""Twice as long as a Lease lasts."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """An API server that writes an audit log."""
    name = f"test-{secrets.token_hex(3)}"
    made = clusters.up(clusters.Options(name=name, nodes=0, control_plane_only=True, audit_log=True))
    try:
        found = ControlPlane(made)
        apply_crds(found)
        yield found
    finally:
        clusters.down(name)


@pytest.fixture(autouse=True)
def no_lease(plane: ControlPlane) -> None:
    """A leader that the last test killed keeps nobody waiting."""
    plane.kubectl("delete", "lease", "muster-operator", "-n", "default", "--ignore-not-found")


def queue(name: str) -> dict[str, object]:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingQueue", "metadata": {"name": name}}


def apply_crds(plane: ControlPlane) -> None:
    plane.kubectl("apply", "--server-side", "-f", str(CRDS))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))


@pytest.fixture
async def place(plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(plane.kubeconfig)) as found:
        await found.add_nodes(4, gpus=32)
        yield found


async def until_pods(place: Corner, job: str, count: int, timeout: float = 45.0) -> None:
    async def look() -> bool:
        return len(await place.pods(job)) == count

    await place.until(f"{count} pods of {job}", look, timeout)


async def leading(running: Running) -> None:
    await running.until_told("planning begins")
    await running.until_probe("/readyz", 200)
    assert (await running.probe("/healthz"))[0] == 200


async def test_a_leader_frozen_past_its_lease_writes_nothing_when_it_wakes(
    plane: ControlPlane, place: Corner, tmp_path: Path
) -> None:
    assert plane.cluster.audit_log is not None
    async with (
        operator(plane.kubeconfig, tmp_path, "old") as old,
        operator(plane.kubeconfig, tmp_path, "new", http_port=0) as new,
    ):
        first, second = (old, new) if await _first(place, old, new) == "old" else (new, old)
        await leading(first)
        await second.until_probe("/readyz", 200)
        assert "muster_operator_leader 1" in (await first.probe("/metrics"))[1]
        assert "muster_operator_leader 0" in (await second.probe("/metrics"))[1]
        await place.submit("before", 4)
        await until_pods(place, "before", 4)

        # Stop it while it is in the middle of a burst of writes.
        for number in range(20):
            await place.submit(f"burst-{number}", 2)
        await until_writes(plane.cluster.audit_log, first)
        first.send(signal.SIGSTOP)
        stopped, wall = time.monotonic(), time.time()

        await until_holder(place.api, second.identity)
        took = time.monotonic() - stopped
        assert took <= TAKE_OVER, f"take-over took {took:.1f} s"
        await place.submit("after", 3)
        await until_pods(place, "after", 3)
        for number in range(20):
            await until_pods(place, f"burst-{number}", 2)

        await asyncio.sleep(max(0.0, stopped + FROZEN - time.monotonic()))
        first.send(signal.SIGCONT)
        woken = time.monotonic()
        assert await first.ended(15.0) == 1
        ended = time.monotonic() - woken
        await asyncio.sleep(1.0)

        by_first = writes_of(plane.cluster.audit_log, first.identity)
        late = [write for write in by_first if write.at > wall + 0.5]
        assert not late, late
        assert any(write.resource == "pods" for write in by_first)
        assert any(write.resource == "pods" for write in writes_of(plane.cluster.audit_log, second.identity))
        assert await holder(place.api) == second.identity
        pods = Counter(pod["metadata"]["labels"]["muster.dev/job"] for pod in await place.pods())
        assert pods == {"before": 4, "after": 3, **{f"burst-{number}": 2 for number in range(20)}}
        print(f"take-over {took:.1f} s; ended {ended:.2f} s after it was woken; {len(by_first)} writes before, 0 after")


async def until_writes(audit_log: Path, running: Running) -> None:
    """Wait for one more write of that operator."""
    before = now = len(writes_of(audit_log, running.identity))
    while now == before:
        assert running.process.returncode is None, f"{running.identity} ended:\n{running.told()}"
        await asyncio.sleep(0.01)
        now = len(writes_of(audit_log, running.identity))


async def _first(place: Corner, *candidates: Running) -> str:
    async def look() -> str:
        return await holder(place.api)

    found: str = await place.until("a leader", look)
    assert found in [one.identity for one in candidates]
    return found


async def test_a_leader_that_is_told_to_stop_hands_over_at_once(
    plane: ControlPlane, place: Corner, tmp_path: Path
) -> None:
    async with operator(plane.kubeconfig, tmp_path, "stopped") as first:
        await leading(first)
        async with operator(plane.kubeconfig, tmp_path, "heir") as second:
            await second.until_probe("/readyz", 200)
            first.send(signal.SIGTERM)
            took = await until_holder(place.api, "heir", 10.0)
            assert await first.ended(15.0) == 0
            assert took < 8.0, f"handing over took {took:.1f} s"
            await leading(second)
            second.send(signal.SIGTERM)
            assert await second.ended(15.0) == 0
            assert await holder(place.api) == ""
            print(f"handed over in {took:.1f} s")


async def test_a_leader_that_is_killed_is_replaced(plane: ControlPlane, place: Corner, tmp_path: Path) -> None:
    async with operator(plane.kubeconfig, tmp_path, "killed", lease_seconds=6) as first:
        await leading(first)
        async with operator(plane.kubeconfig, tmp_path, "successor", lease_seconds=6) as second:
            await second.until_probe("/readyz", 200)
            first.send(signal.SIGKILL)
            assert await until_holder(place.api, "successor") < 10.0
            await place.submit("job", 2)
            await until_pods(place, "job", 2)


async def test_connections_that_die_without_a_word_cost_seconds_not_the_lease(
    plane: ControlPlane, place: Corner, tmp_path: Path
) -> None:
    async with wire_to(plane.cluster.api_server).relaying() as wire:
        far = through(plane.kubeconfig, wire.port, tmp_path / "kubeconfig")
        async with operator(far, tmp_path, "far", watch_seconds=4) as running:
            await leading(running)
            await place.submit("first", 2)
            await until_pods(place, "first", 2)
            swallowed = wire.swallow()
            assert swallowed >= 5
            started = time.monotonic()
            await place.submit("second", 2)
            await until_pods(place, "second", 2, 60.0)
            took = time.monotonic() - started
            assert running.process.returncode is None
            assert await holder(place.api) == "far"
            assert (await running.probe("/healthz"))[0] == 200
            print(f"{swallowed} connections dead; a job submitted then had its pods after {took:.1f} s")


async def test_a_watch_without_life_turns_health_red_and_its_return_green(
    plane: ControlPlane, place: Corner, tmp_path: Path
) -> None:
    async with wire_to(plane.cluster.api_server).relaying() as wire:
        far = through(plane.kubeconfig, wire.port, tmp_path / "kubeconfig")
        async with operator(far, tmp_path, "deaf", watch_seconds=2, stale_seconds=6, lease_seconds=120) as running:
            await leading(running)
            await asyncio.sleep(5.0)
            assert (await running.probe("/healthz"))[0] == 200
            wire.deaf = True
            wire.swallow()
            await running.until_probe("/healthz", 503, "watch /api/v1/pods: no sign of life", 20.0)
            wire.deaf = False
            wire.cut()
            await running.until_probe("/healthz", 200)


async def test_the_api_server_may_be_restarted_under_a_running_operator(
    plane: ControlPlane, place: Corner, tmp_path: Path
) -> None:
    async with operator(plane.kubeconfig, tmp_path, "steady", lease_seconds=60) as running:
        await leading(running)
        await place.submit("before", 2)
        await until_pods(place, "before", 2)
        await asyncio.to_thread(plane.cluster.stop_apiserver)
        await asyncio.sleep(2.0)
        await asyncio.to_thread(plane.cluster.start_apiserver)
        await place.submit("after", 2)
        await until_pods(place, "after", 2)
        assert running.process.returncode is None
        assert await holder(place.api) == "steady"
        assert len(await place.pods("before")) == 2


async def test_an_api_server_that_stays_away_ends_the_leader_and_the_next_start_goes_on(
    plane: ControlPlane, place: Corner, tmp_path: Path
) -> None:
    async with operator(plane.kubeconfig, tmp_path, "gone", lease_seconds=6) as running:
        await leading(running)
        await asyncio.to_thread(plane.cluster.stop_apiserver)
        try:
            assert await running.ended(30.0) == 1
            assert "is lost" in running.told()
            async with operator(plane.kubeconfig, tmp_path, "next", lease_seconds=6) as successor:
                await successor.until_told("cannot be reached")
                assert (await successor.probe("/healthz"))[0] == 200
                assert (await successor.probe("/readyz"))[0] == 503
                await asyncio.to_thread(plane.cluster.start_apiserver)
                await leading(successor)
                await place.submit("job", 2)
                await until_pods(place, "job", 2, 60.0)  # nodes were silent too, and are ready again first
        finally:
            await asyncio.to_thread(plane.cluster.start_apiserver)


async def test_without_the_crds_it_says_what_to_apply_and_goes_on_when_they_are_there(
    plane: ControlPlane, place: Corner, tmp_path: Path
) -> None:
    plane.kubectl("delete", "--ignore-not-found", "-f", str(CRDS))
    try:
        async with operator(plane.kubeconfig, tmp_path, "early", watch_seconds=4) as running:
            await running.until_probe("/readyz", 503, "apply crds/")
            assert (await running.probe("/healthz"))[0] == 200
            apply_crds(plane)
            await leading(running)
            plane.kubectl("delete", "-f", str(CRDS))
            await running.until_probe("/readyz", 503, "apply crds/")
            apply_crds(plane)
            await running.until_told("the CRDs are back: going on")
            await place.api.create(f"{GROUP}/trainingqueues", queue(place.queue))
            await place.submit("job", 2)
            await until_pods(place, "job", 2)
    finally:
        apply_crds(plane)


async def test_without_the_leases_namespace_it_says_so(plane: ControlPlane, tmp_path: Path) -> None:
    async with operator(plane.kubeconfig, tmp_path, "homeless", namespace="nowhere") as running:
        await running.until_told("namespace nowhere of the Lease does not exist: make it")
        assert running.process.returncode is None
