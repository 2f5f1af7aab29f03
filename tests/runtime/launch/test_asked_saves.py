"""A checkpoint that somebody asks for while the gang trains, whatever the interval; the wish outlives a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trained import ENDS, MARKS, TRAINS

from muster_protocol import launcher_api as api
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import SaveAsked
from muster_protocol.wire import decode
from muster_runtime.control import ControlReader, ControlWriter
from muster_runtime.launch.asked_saves import AskedSaves
from muster_runtime.launch.membership import Refused
from muster_runtime.report import CheckpointCommitted

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]

SCRIPT = TRAINS + MARKS + ENDS


def test_a_gang_saves_when_it_is_asked_and_trains_on(make_gang: MakeGang, tmp_path: Path) -> None:
    gang = make_gang(1, 2, MUSTER_CHECKPOINT_URI=f"file://{tmp_path}/run", MUSTER_CHECKPOINT_INTERVAL="3600")
    pod = gang.pod(0, gang.script(SCRIPT), GLOO_SOCKET_IFNAME="lo")
    gang.eventually(lambda: len(gang.marks("trains")) == 2, "it trains", 200)
    steps = []
    for _ in range(2):
        code, body = pod.ask("POST", api.SAVE_PATH, b"")
        assert code == 202
        asked = decode(SaveAsked, body)
        assert asked.session
        assert asked.step >= 3

        def landed(step: int = asked.step) -> bool:
            found = pod.status().checkpoint
            return found is not None and found.step >= step

        gang.eventually(landed, "it is committed", 60)
        found = pod.status().checkpoint
        assert found is not None
        steps.append(found.step)
    assert steps[0] < steps[1], "it trained on"
    (gang.folder / "end").touch()
    assert pod.end().cause is Cause.PREEMPTED


def asked_saves(*, leads: bool = True, uri: str = "s3://models/run", beats: dict[int, Any] | None = None) -> AskedSaves:
    config = SimpleNamespace(leads=leads, checkpoint_uri=uri, rank=lambda local: local)
    leader = SimpleNamespace(rank=0, session=True)
    ranks = SimpleNamespace(running=[leader], of_rank=lambda rank: leader)
    hangs = SimpleNamespace(beats=lambda: {0: SimpleNamespace(step=7)} if beats is None else beats)
    return AskedSaves(config, ranks, hangs)  # type: ignore[arg-type]  # they have all that is asked


def test_a_wish_outlives_a_restart_until_its_checkpoint_is_committed(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    first, second, third = map(ControlWriter, folders)
    saves = asked_saves()
    saves.begin(first)
    assert ControlReader(str(folders[0])).saves_asked() == 0
    assert saves.ask() == SaveAsked(7, session=True)
    assert ControlReader(str(folders[0])).saves_asked() == 1
    saves.heard(CheckpointCommitted(0, 6, "s3://models/run", 1.0, 1, 0.0))
    saves.end()
    saves.begin(second)
    assert ControlReader(str(folders[1])).saves_asked() == 1, "what was committed is of before"
    saves.heard(CheckpointCommitted(0, 8, "s3://models/run", 1.0, 1, 0.0))
    saves.end()
    saves.begin(third)
    assert ControlReader(str(folders[2])).saves_asked() == 0


def test_who_cannot_save_refuses(tmp_path: Path) -> None:
    def refused(saves: AskedSaves) -> int:
        answer = saves.ask()
        assert isinstance(answer, Refused)
        return answer.status

    assert refused(asked_saves()) == 409, "no ranks were started yet"
    assert refused(asked_saves(leads=False)) == 421
    assert refused(asked_saves(uri="")) == 400
