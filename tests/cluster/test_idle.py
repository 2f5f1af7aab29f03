"""Gangs whose GPUs are idle, on a real API server: what a queue may say of them, how they stop, and how they go on.

Nodes and launchers are stand-ins (`launchers.py`); no GPU is needed to say that it is idle.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hack.scheduling import GROUP

from muster_protocol.idleness import Busy, Idleness
from muster_protocol.launcher_status import Checkpoint, Status

from .conftest import ROOT, ControlPlane
from .gangs import Corner, condition, corner
from .launchers import Launchers

pytestmark = pytest.mark.cluster

Object = dict[str, Any]

HOUR = Idleness(3600.0, (Busy(96, 3540.0), Busy(3, 60.0)))
"""Idle for 59 minutes."""


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        await found.add_nodes(2)
        yield found


@pytest.fixture
async def launchers(place: Corner) -> AsyncIterator[Launchers]:
    async with Launchers(place).answering() as found:
        yield found


@pytest.mark.parametrize(
    ("idle", "words"),
    [
        ({"after": "0s"}, "give some, like 30m"),
        ({"below": 0}, "greater than or equal to 1"),
        ({"below": 101}, "less than or equal to 100"),
        ({"action": "kill"}, '"none", "report", "suspend"'),
    ],
)
def test_what_cannot_be_meant_is_refused_with_words_that_help(
    control_plane: ControlPlane, idle: Object, words: str
) -> None:
    queue = next(yaml.safe_load_all((ROOT / "examples" / "queues" / "idle.yaml").read_text()))
    queue["spec"]["idle"] = idle
    assert words in control_plane.refusal(queue)


async def test_an_idle_gang_saves_gives_its_gpus_back_and_goes_on_when_its_spec_changes(
    place: Corner, launchers: Launchers
) -> None:
    def says(status: Status) -> Status:
        return replace(status, idleness=HOUR, step=40, checkpoint=Checkpoint(40, "s3://models/idle", 1.0))

    launchers.says = says
    await place.api.merge_patch(f"{GROUP}/trainingqueues/{place.queue}", {"spec": {"idle": {"action": "suspend"}}})
    place.start()
    first = await place.submit("idle", 2, checkpoint={"uri": "s3://models/idle"})
    stopped = await place.until_phase("idle", "Suspended", 120)
    told = condition(stopped, "Suspended")
    assert told is not None
    assert told["reason"] == stopped["status"]["queue"]["reason"] == "GPUsIdle"
    assert told["message"].startswith("for 59m the GPUs of all workers were at work for 3 % of a minute at most")
    assert stopped["spec"] == first["spec"], "the operator writes no spec"
    assert not await place.pods("idle")
    assert "placement" not in stopped["status"]
    await place.api.merge_patch(f"{place.jobs()}/idle", {"spec": {"health": {"idle": False}}})
    again = await place.until_phase("idle", "Running")
    assert again["status"]["placement"]["generation"] == 2
    for kind in ("Suspended", "GPUsIdle"):
        told = condition(again, kind)
        assert told is not None
        assert told["status"] != "True"
