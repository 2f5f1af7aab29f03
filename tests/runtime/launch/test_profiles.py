"""Profiles of a run that goes on: the same steps of all ranks, stored in S3; and what fails harms nobody."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hack.s3server import S3Server
from trained import ENDS, MARKS, TRAINS

from muster_protocol import launcher_api as api
from muster_protocol.checkpoints.s3 import S3Store
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Profile, ProfilePhase, Profiling
from muster_protocol.uris import parse_uri
from muster_protocol.wire import decode, encode
from muster_runtime import report
from muster_runtime.launch.membership import Refused
from muster_runtime.launch.profiles import Profiles

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]

FAILS = """
    from muster_runtime.session import profiling
    def fails(**options):
        raise RuntimeError("Profiler is already enabled on this thread")
    if (Path(__file__).parent / "fails").exists(): profiling.profile = fails
"""
SCRIPT = TRAINS + MARKS + FAILS + ENDS


def ask(pod: Any, wish: Profile) -> int:
    code, _ = pod.ask("POST", api.PROFILE_PATH, encode(wish))
    return int(code)


def state(pod: Any) -> Profiling:
    code, body = pod.ask("GET", api.PROFILE_PATH)
    assert code == 200
    return decode(Profiling, body)


def test_all_ranks_record_the_same_steps_and_a_profiler_that_fails_ends_nothing(
    make_gang: MakeGang, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    gang = make_gang(1, 2, MUSTER_CHECKPOINT_URI="s3://models/profiled", MUSTER_CHECKPOINT_INTERVAL="3600")
    pod = gang.pod(0, gang.script(SCRIPT), GLOO_SOCKET_IFNAME="lo")
    gang.eventually(lambda: len(gang.marks("trains")) == 2, "it trains", 200)
    assert state(pod).phase is ProfilePhase.NONE
    assert ask(pod, Profile(steps=0)) == 400
    assert ask(pod, Profile(steps=3, everybody=True)) == 202
    assert ask(pod, Profile()) == 409, "one at a time"
    gang.eventually(lambda: state(pod).phase in (ProfilePhase.DONE, ProfilePhase.FAILED), "it is stored", 60)
    done = state(pod)
    assert (done.phase, done.text) == (ProfilePhase.DONE, "")
    assert set(done.stored) == {"rank-0.json.gz", "rank-1.json.gz", "index.json"}
    store, folder = S3Store(parse_uri(done.uri)), done.uri.rpartition("/")[2]
    index = json.loads(store.get("index.json").content)  # type: ignore[union-attr]
    assert (index["steps"], folder.split("-")[0]) == (3, str(index["step"]))
    for rank in (0, 1):
        trace = json.loads(gzip.decompress(store.get(f"rank-{rank}.json.gz").content))  # type: ignore[union-attr]
        updates = [one for one in trace["traceEvents"] if str(one.get("name")).startswith("Optimizer.step#SGD.step")]
        assert len(updates) == 3
    (gang.folder / "fails").touch()
    before = pod.status().step
    gang.eventually(lambda: pod.status().step > before, "it has seen that")
    assert ask(pod, Profile()) == 202
    gang.eventually(lambda: state(pod).phase is ProfilePhase.FAILED, "it failed")
    assert state(pod).text == "PyTorch's profiler failed: RuntimeError: Profiler is already enabled on this thread"
    before = pod.status().step
    gang.eventually(lambda: pod.status().step > before, "and trains on")
    (gang.folder / "end").touch()
    assert pod.end().cause is Cause.PREEMPTED


async def test_a_profile_for_which_no_thread_can_be_started_is_given_up_and_the_next_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    (tmp_path / "run").mkdir()
    profiles = Profiles(config(f"file://{tmp_path}/store"))
    profiles.begin(tmp_path / "run", Control())  # type: ignore[arg-type]
    for crowded in (True, False):
        assert isinstance(profiles.ask(Profile()), Profiling)
        report.profile_file(tmp_path / "run", 0).write_text("{}")
        with monkeypatch.context() as patched:
            if crowded:
                patched.setattr(threading.Thread, "start", refuse)
            profiles.heard(report.Profiled(0, 5, 3, 1000.0))
        while profiles.state.phase is ProfilePhase.STORING:  # noqa: ASYNC110 - a thread stores it
            await asyncio.sleep(0.01)
        assert profiles.state.phase is (ProfilePhase.FAILED if crowded else ProfilePhase.DONE)
        assert profiles.state.text == ("it could not be stored: can't start new thread" if crowded else "")
        assert not os.listdir(tmp_path / "run"), "nothing is left behind"


def config(uri: str, **more: Any) -> Any:
    return SimpleNamespace(checkpoint_uri=uri, leads=True, processes=2, workers=1, rank=lambda local: local, **more)


class Control:
    def ask_profile(self, wish: object) -> None: ...


async def test_a_bucket_that_is_away_and_ranks_that_never_answer_leave_a_word(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    now = 1000.0
    profiles = Profiles(config("s3://not-there/run"), lambda: now)
    assert isinstance(profiles.ask(Profile()), Refused), "no ranks run"
    profiles.begin(tmp_path, Control())  # type: ignore[arg-type]
    assert isinstance(profiles.ask(Profile()), Profiling)
    assert isinstance(profiles.ask(Profile()), Refused)
    now += 600
    assert isinstance(profiles.ask(Profile()), Profiling), "nobody took up the first"
    report.profile_file(tmp_path, 0).write_text("{}")
    profiles.heard(report.Profiled(7, 5, 3, now))
    assert profiles.state.phase is ProfilePhase.ASKED, "no rank of this pod"
    profiles.heard(report.Profiled(0, 5, 3, now))
    assert profiles.state.phase is ProfilePhase.STORING
    while profiles.state.phase is ProfilePhase.STORING:  # noqa: ASYNC110 - a thread stores it
        await asyncio.sleep(0.01)
    assert profiles.state.phase is ProfilePhase.FAILED
    assert "not-there" in profiles.state.text
    assert not os.listdir(tmp_path), "nothing is left behind"
    assert isinstance(Profiles(config("")).ask(Profile()), Refused), "no place to store it"
