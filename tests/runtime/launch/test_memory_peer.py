"""A lost pod goes on from the copy of its memory that another pod keeps, also while S3 answers nothing but 503."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hack.s3server import S3Server

from muster_protocol import launcher_api as api

sys.path.insert(0, str(Path(__file__).parent))
from memory_runs import SCRIPT, STEPS, MakeGang, Outage, Run, memory_in_use

THOROUGH = bool(os.environ.get("MUSTER_THOROUGH"))

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(900)]


class PeerRun(Run):
    """Every pod is on a node of its own. The test is the operator."""

    incarnation = 1

    def start(self, **more: str) -> None:
        self._more = {"MUSTER_REPLACE_SECONDS": "240", **more}
        self._command = self.gang.script(SCRIPT)
        self.pods = [self._pod(index, 0) for index in range(self.gang.workers)]
        self._push()

    def _pod(self, index: int, attempt: int) -> Any:
        node = f"node-{index}-{attempt}"
        return self.gang.pod(index, self._command, attempt=attempt, MUSTER_NODE_NAME=node, **self._more)

    def _push(self) -> None:
        members = tuple(api.Member(pod.index, pod.uid, pod.address, 1, _attempt(pod)) for pod in self.pods)
        body = api.encode(api.Membership(1, self.incarnation, members))
        for pod in self.pods:
            self.gang.eventually(pod.listens, f"index {pod.index} listens", 60)
            assert pod.ask("PUT", api.MEMBERSHIP_PATH, body)[0] == 204

    def copied(self, step: int) -> None:
        """Each pod keeps another one's copy of that step."""
        self.gang.eventually(
            lambda: all(pod.status().copy[2:3] == (step,) for pod in self.pods), f"copies of step {step}", 60
        )

    def replace(self, *indexes: int) -> None:
        """These pods die as by a power cut, and others come in their places."""
        for index in indexes:
            self.pods[index].process.kill()
        for index in indexes:
            self.pods[index].process.wait()
            self.pods[index] = self._pod(index, _attempt(self.pods[index]) + 1)
        self.incarnation += 1
        self._push()

    def trained(self) -> list[dict[str, set[str]]]:
        """By rank: the losses of each step, of all incarnations that came to it."""
        found: list[dict[str, set[str]]] = []
        for rank in range(self.ranks):
            found.append({})
            for line in (self.gang.folder / f"losses-{rank}").read_text().splitlines():
                step, loss = line.split()
                found[rank].setdefault(step, set()).add(loss)
        return found


def _attempt(pod: Any) -> int:
    return int(pod.uid.rpartition("-")[2])


@pytest.mark.parametrize("victim", [0, 1] if THOROUGH else [0])
def test_a_lost_pod_resumes_from_memory_while_s3_answers_503(
    make_gang: MakeGang, s3_server: S3Server, proxy: Outage, victim: int
) -> None:
    run = PeerRun(make_gang, s3_server, proxy, f"lost-{victim}", 2, 1)
    run.start()
    run.to_the_crash()
    run.copied(20)
    run.replace(victim)
    run.reach("resumed-2-at-20")
    assert run.committed()["step"] == 10, "S3 was away all the time"
    assert "was fetched" in run.pods[victim].log()
    proxy.away.clear()
    run.touch("go-2")
    run.ends_well()
    latest = run.committed()
    assert (latest["step"], latest["finished"], latest["epoch"]) == (STEPS, True, 1), "under the epoch that it held"
    assert len(run.curve()) == STEPS
    for rank, of_rank in enumerate(run.trained()):
        assert len(of_rank) == STEPS
        assert all(len(losses) == 1 for losses in of_rank.values()), f"rank {rank}: what was trained again differs"
    assert not memory_in_use(run.gang.folder)
