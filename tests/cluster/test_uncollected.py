"""Deleted jobs whose gangs Kubernetes' garbage collector does not take, for the controller manager stands still."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hack.cluster import processes, state

from .conftest import ControlPlane
from .gangs import Corner, corner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@contextmanager
def frozen(control_plane: ControlPlane, program: str) -> Iterator[None]:
    """A process of the control plane gets no time meanwhile."""
    known = state.load(control_plane.cluster.name)
    process = processes.find(known[0].directory, program) if known is not None else None
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


async def test_their_gangs_end_and_give_their_room_to_others(control_plane: ControlPlane) -> None:
    """One is deleted while an operator looks, the other while there is none."""
    async with corner(str(control_plane.kubeconfig)) as place:
        await place.add_nodes(1)
        place.start()
        for name in ("seen", "unseen"):
            await place.submit(name, 2)
            await place.until_phase(name, "Running")
        await place.submit("next", 4)
        with frozen(control_plane, "kube-controller-manager"):
            await place.delete_job("seen")
            await place.until("its pods go", lambda: gone(place, "seen"))
            await place.stop()
            await place.delete_job("unseen")
            place.start()
            await place.until_phase("next", "Running")
        assert not await place.pods("unseen")


async def gone(place: Corner, job: str) -> bool:
    return not await place.pods(job)
