"""`muster profile` asks index 0 by what the pod and its Secret say, and names what lies where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.cli.profiling import record
from muster.cli.scene import NotThere
from muster.cluster.errors import ApiError
from muster.cluster.overrides import TRAINER
from muster_protocol import launcher_api
from muster_protocol.launcher_status import Profile, ProfilePhase, Profiling
from muster_protocol.wire import decode, encode

from .doors import Doors, pod

pytestmark = pytest.mark.unit

URI = "s3://models/run/profiles/7-20260102T030405Z"


class Cluster(Doors):
    """With launchers whose states come one after the other."""

    def __init__(self, *states: list[Profiling], refuses: str = "") -> None:
        self.states, self.refuses = states, refuses
        self.asked: list[tuple[str, str, str, bytes | None]] = []

    def answer(self, pod: str, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        assert path == launcher_api.PROFILE_PATH
        self.asked.append((pod, method, path, body))
        if method == "POST":
            return (409, self.refuses.encode()) if self.refuses else (202, encode(Profiling()))
        states = self.states[int(pod.split("-")[2])]
        return 200, encode(states.pop(0) if len(states) > 1 else states[0])


async def test_it_waits_for_all_workers_and_names_their_files() -> None:
    asked, done = Profiling(ProfilePhase.ASKED), Profiling(ProfilePhase.DONE, URI, ("rank-0.json.gz", "index.json"))
    old = Profiling(ProfilePhase.DONE, "s3://models/run/profiles/1-20250101T000000Z", ("rank-1.json.gz",))
    other = Profiling(ProfilePhase.DONE, URI, ("rank-10.json.gz", "rank-9.json.gz"), "no CUDA")
    done = replace(done, text="no CUDA")
    cluster, written = Cluster([asked, asked, done], [old, other]), list[str]()
    wish = Profile(5, everybody=True, memory=True)
    assert await record(cluster, [pod(0), pod(1)], wish, written.append, every=0.001) == 0
    assert decode(Profile, cluster.asked[0][3] or b"") == wish
    assert written == [
        "5 steps of all ranks will be recorded\n",
        f"{URI}/rank-0.json.gz\n",
        f"{URI}/rank-9.json.gz\n",
        f"{URI}/rank-10.json.gz\n",
        f"{URI}/index.json\n",
        "no CUDA\n",
    ]


async def test_what_went_wrong_is_told() -> None:
    failed = Profiling(ProfilePhase.FAILED, URI, (), "it could not be stored: bucket away")
    cluster, written = Cluster([failed]), list[str]()
    assert await record(cluster, [pod(0)], Profile(), written.append, every=0.001) == 1
    assert written == ["3 steps of rank 0 will be recorded\n", "it could not be stored: bucket away\n"]
    with pytest.raises(NotThere, match="no profile: a profile is under way already"):
        await record(Cluster([failed], refuses="a profile is under way already\n"), [pod(0)], Profile(), print)


async def test_a_pod_out_of_reach_is_told_in_a_sentence() -> None:
    status = '{"kind":"Status","status":"Failure","message":"error trying to reach service: refused","code":503}'
    with pytest.raises(NotThere) as told:
        await record(Cluster(refuses=status), [pod(0)], Profile(), print)
    assert "through the API server: error trying to reach service: refused; `muster status` says" in str(told.value)
    assert "{" not in str(told.value)


async def test_a_pod_without_a_token_is_not_ours() -> None:
    class Foreign(Cluster):
        async def get(self, path: str) -> dict[str, Any]:
            return {"spec": {"containers": [{"name": TRAINER}]}}

    with pytest.raises(NotThere, match="names no token"):
        await record(Foreign([]), [pod(0)], Profile(), print)


async def test_who_may_not_read_the_secret_is_told_by_the_api_server() -> None:
    class Forbidden(Cluster):
        async def get(self, path: str) -> dict[str, Any]:
            if "/secrets/" in path:
                raise ApiError(403, "Forbidden", "secrets is forbidden")
            return await super().get(path)

    with pytest.raises(ApiError, match="forbidden"):
        await record(Forbidden([]), [pod(0)], Profile(), print)
