"""The Lease among candidates of one process: at most one leads at any moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hack.scheduling import connect

from muster.cluster.lease import Leadership, LeaseTimes

from .conftest import ControlPlane

pytestmark = pytest.mark.cluster

NAME = "lease-test"


def candidate(plane: ControlPlane, identity: str) -> Leadership:
    return Leadership(
        lambda: connect(str(Path(plane.kubeconfig))),
        namespace="default",
        identity=identity,
        name=NAME,
        on_lost=lambda why: None,
        times=LeaseTimes.of(15.0),
    )


async def test_deleting_the_lease_never_makes_two_leaders(control_plane: ControlPlane) -> None:
    first, second = candidate(control_plane, "first"), candidate(control_plane, "second")
    first.start()
    await asyncio.wait_for(first.acquired.wait(), 20)
    second.start()
    try:
        for _ in range(2):
            await asyncio.to_thread(
                control_plane.kubectl, "delete", "lease", NAME, "-n", "default", "--ignore-not-found"
            )
            for _ in range(200):
                assert not (first.leading and second.leading)
                await asyncio.sleep(0.01)
        # Whose Lease was taken away gives up; the other waits for its time to run out.
        for _ in range(3000):
            assert not (first.leading and second.leading)
            if first.leading or second.leading:
                break
            await asyncio.sleep(0.01)
        assert first.leading or second.leading
    finally:
        await asyncio.gather(first.stop(), second.stop())
