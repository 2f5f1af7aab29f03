"""`muster save` asks index 0, and waits for a checkpoint of what was trained when it asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.cli import saving
from muster.cli.scene import NotThere
from muster_protocol import launcher_api
from muster_protocol.launcher_status import Checkpoint, Phase, SaveAsked, Status
from muster_protocol.wire import encode

from .doors import Doors, pod

pytestmark = pytest.mark.unit

RUNNING = Status(Phase.RUNNING, generation=1, incarnation=1, index=0, step=41)
OLD = Checkpoint(40, "s3://models/run", 1000.0, 1.0, 500)


class Cluster(Doors):
    """With a launcher whose states come one after the other; the first is that before the wish."""

    def __init__(self, *states: Status, asked: tuple[int, bytes] = (202, encode(SaveAsked(41, session=True)))) -> None:
        self.states, self.asked = list(states), asked

    def answer(self, pod: str, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        if path == launcher_api.SAVE_PATH:
            assert method == "POST"
            return self.asked
        assert (method, path) == ("GET", launcher_api.STATUS_PATH)
        return 200, encode(self.states.pop(0))


async def test_it_waits_for_a_checkpoint_of_the_step_at_which_it_asked(capsys: pytest.CaptureFixture[str]) -> None:
    before, trouble = replace(RUNNING, checkpoint=OLD), "the checkpoint of step 42 was not saved: 503"
    of_before = replace(RUNNING, checkpoint=replace(OLD, step=40, committed_at=1010.0))
    failing = replace(of_before, storage_error=trouble)
    done = replace(RUNNING, checkpoint=Checkpoint(43, "s3://models/run", 1020.0, 2.5, 12_300_000))
    cluster, written = Cluster(before, before, of_before, failing, failing, done), list[str]()
    assert await saving.wait(cluster, pod(0), written.append, every=0.0) == 0
    assert written == [
        "step 41 is done; the gang saves at its next step's end, and trains on\n",
        "the checkpoint of step 43 is committed at s3://models/run: 12.30 MB in 2.5 s; "
        "muster checkpoint keep s3://models/run@43 keeps it for good\n",
    ]
    assert capsys.readouterr().err.count(trouble) == 1
    assert cluster.states == []


async def test_what_the_launcher_refuses_is_told() -> None:
    for code, body, told in (
        (400, b"the job has no checkpoint.uri, so there is no place to save to\n", "no checkpoint: the job has no"),
        (409, b"no ranks run now; ask again when the job trains\n", "no checkpoint: no ranks run now"),
        (404, b"no POST /v1/save here\n", "made before an upgrade"),
    ):
        with pytest.raises(NotThere, match=told):
            await saving.wait(Cluster(RUNNING, asked=(code, body)), pod(0), print)


async def test_a_script_without_a_session_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    done = replace(RUNNING, checkpoint=OLD)
    cluster = Cluster(RUNNING, done, asked=(202, encode(SaveAsked(0, session=False))))
    assert await saving.wait(cluster, pod(0), list[str]().append, every=0.0) == 0
    assert "rank 0 has started no session yet" in capsys.readouterr().err
