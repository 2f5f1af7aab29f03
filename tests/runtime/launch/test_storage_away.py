"""S3 that is away while jobs start: nothing fails for it, and all go on when it is back."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hack.s3server import BUCKET, S3Server, serving
from trained import MARKS, TRAINS

from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Phase
from muster_protocol.uris import parse_uri
from muster_runtime.launch.preflight import check_patiently

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(400)]

MakeGang = Callable[..., Any]
MANY = 50


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[S3Server]:
    """A server of this test's own, which it may stop."""
    folder = tmp_path / "s3"
    folder.mkdir()
    with serving(folder) as server:
        yield server


def test_a_gang_that_starts_while_the_storage_is_away_goes_on_when_it_is_back(
    own_server: S3Server, make_gang: MakeGang
) -> None:
    own_server.stop()
    gang = make_gang(2, **own_server.environment(MUSTER_CHECKPOINT_URI=f"s3://{BUCKET}/run"))
    follower, leader = (gang.pod(index, gang.script("mark('started')\n")) for index in (1, 0))
    gang.eventually(leader.listens, "index 0 listens")
    gang.eventually(lambda: leader.status().storage_error, "the trouble is told")
    assert leader.status().phase is Phase.PREFLIGHT
    assert gang.marks("started") == set(), "no rank runs before the storage can be used"
    own_server.start()
    assert [pod.end(60).cause for pod in (leader, follower)] == [Cause.SUCCEEDED] * 2
    assert gang.marks("started") == {"mark-started-0", "mark-started-1"}


def test_many_jobs_that_wait_for_the_storage_all_go_on_and_leave_nothing_in_it(
    own_server: S3Server, make_gang: MakeGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many at once as a night's queue starts; what each of them writes to try the storage is gone again."""
    for name, value in own_server.environment().items():
        monkeypatch.setenv(name, value)
    own_server.stop()
    troubled: set[int] = set()

    def start(job: int) -> object:
        return check_patiently(parse_uri(f"s3://{BUCKET}/job-{job}"), lambda _: troubled.add(job), retry_seconds=600.0)

    with ThreadPoolExecutor(MANY) as pool:
        checks = [pool.submit(start, job) for job in range(MANY)]
        make_gang(1).eventually(lambda: len(troubled) == MANY, "every job is told of the trouble", 150.0)
        assert not any(check.done() for check in checks)
        own_server.start()
        assert [check.result(timeout=150.0) for check in checks] == [None] * MANY
    assert not [path for path in (own_server.folder / BUCKET).rglob("*") if path.is_file()]


@pytest.mark.parametrize("away", [False, True])
def test_the_end_of_a_stop_tells_whether_its_last_step_was_saved(
    *, away: bool, own_server: S3Server, make_gang: MakeGang
) -> None:
    """By this the operator says that a last save failed: the pods, and their logs, are gone by then."""
    run = {"MUSTER_CHECKPOINT_URI": f"s3://{BUCKET}/run", "MUSTER_CHECKPOINT_INTERVAL": "3600"}
    gang = make_gang(2, GLOO_SOCKET_IFNAME="lo", MUSTER_GRACE_SECONDS="12", **own_server.environment(**run))
    pods = gang.all(gang.script(TRAINS + MARKS))
    gang.eventually(lambda: len(gang.marks("trains")) == 2, "it trains", 200)
    if away:
        own_server.stop()
    for pod in pods:
        pod.signal(signal.SIGTERM)
    facts = [pod.end() for pod in pods]
    assert {one.cause for one in facts} == {Cause.PREEMPTED}
    steps = [one.step for one in facts]
    committed = [one.committed_step for one in facts if one.committed_step is not None]
    assert min(step for step in steps if step is not None) >= 3
    assert committed == [] if away else max(committed) == max(step for step in steps if step is not None)
    assert not away or any("S3" in one.message or "grace" in one.message for one in facts), facts
