"""A lost pod goes on from the copy of its memory that another pod keeps, also while S3 answers nothing but 503."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hack.s3server import S3Server

from muster_protocol import launcher_api as api
from muster_protocol.messages import Member, Membership
from muster_protocol.wire import encode

sys.path.insert(0, str(Path(__file__).parent))
from memory_runs import SCRIPT, STEPS, MakeGang, Outage, Run, calm, memory_in_use, memory_of

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
        members = tuple(Member(pod.index, pod.uid, pod.address, 1, _attempt(pod)) for pod in self.pods)
        body = encode(Membership(1, self.incarnation, members))
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

    def tier_memory(self) -> list[int]:
        """Bytes of the memory tier by pod, that of another's copy included."""
        return [sum(path.stat().st_blocks * 512 for path in self.memory(pod)) for pod in self.pods]


def _attempt(pod: Any) -> int:
    return int(pod.uid.rpartition("-")[2])


def test_three_lost_pods_resume_from_memory_while_s3_answers_503_and_leak_nothing(
    make_gang: MakeGang, s3_server: S3Server, proxy: Outage
) -> None:
    undisturbed = calm(make_gang, s3_server, proxy, "lost", 2, 1)
    run = PeerRun(make_gang, s3_server, proxy, "lost", 2, 1)
    run.start(EVERY="5", KILL_AT="22,27,28")
    run.reach("at-18")
    proxy.away.set()
    run.touch("away")
    taken = []
    for incarnation, victim, step in ((1, 1, 20), (2, 0, 25), (3, 1, 25)):
        run.reach(f"sealed-{incarnation}")
        run.copied(step)
        taken.append(run.tier_memory())
        run.replace(victim)
        run.reach(f"resumed-{incarnation + 1}-at-{step}")
        assert all(pod.status().resumed_from == step for pod in run.pods), run.log()
        if incarnation < 3:
            run.touch(f"go-{incarnation + 1}")
    assert run.committed()["step"] == 15, "S3 was away all the time"
    run.copied(25)
    taken.append(run.tier_memory())
    assert all(sum(now) <= sum(taken[0]) + (1 << 16) for now in taken), taken
    assert len(memory_in_use(run.gang.folder)) == 2 * (4 + 1), "a rank's memory and a copy in each pod, nothing else"
    proxy.away.clear()
    run.touch("go-4")
    run.ends_well()
    latest = run.committed()
    assert (latest["step"], latest["finished"], latest["epoch"]) == (STEPS, True, 1), "under the epoch that it held"
    assert run.losses() == undisturbed.losses()
    assert run.curve() == undisturbed.curve()
    assert not memory_in_use(run.gang.folder)


WIDE = 250_000
STATE = (34 * WIDE + 1) * 12
"""Bytes of parameters and Adam's state."""
ALLOWANCE = 8 << 20
"""Bytes that a pod may take for a save of any size: buffers of connections, slots that are rounded up."""
KEPT = [("off", 1.2), ("local", 2.2), ("peer", 3.2)]


@pytest.mark.parametrize(("kept", "times"), KEPT if THOROUGH else KEPT[2:])
def test_what_a_pod_holds_of_the_state_while_it_is_saved(
    make_gang: MakeGang, s3_server: S3Server, proxy: Outage, kept: str, times: float
) -> None:
    """Above the training itself, when a second save is under way, and the pod has another one's copy of it."""
    run = PeerRun(make_gang, s3_server, proxy, f"held-{kept}", 2, 1)
    # What the training itself lets go of goes back to the kernel at once, and so isn't taken for the save's.
    run.start(WIDE=str(WIDE), LOOK="1", MUSTER_CHECKPOINT_MEMORY=kept, MALLOC_MMAP_THRESHOLD_=str(1 << 20))
    run.reach("at-3")
    before = [memory_of(pod) for pod in run.pods]
    run.touch("seen")
    run.to_the_crash()
    if kept == "peer":
        run.copied(20)
    share = STATE / len(run.pods)
    held = [memory_of(pod) - was for pod, was in zip(run.pods, before, strict=True)]
    print(f"{kept}: {[each / share for each in held]} x {share / 1e6:.0f} MB")
    assert all(share * (times - 0.3) <= each <= share * times + ALLOWANCE for each in held), held


def test_a_torn_copy_is_refused_and_s3_taken(make_gang: MakeGang, s3_server: S3Server, proxy: Outage) -> None:
    run = PeerRun(make_gang, s3_server, proxy, "torn-copy", 2, 1)
    run.start()
    run.to_the_crash()
    run.copied(20)
    (copy,) = [path for path in run.memory(run.pods[0]) if "muster-copy" in os.readlink(path)]
    with copy.open("r+b") as file:
        content = file.read()
        file.seek(0)
        file.write(bytes(byte ^ 1 for byte in content))
    proxy.away.clear()
    run.replace(1)
    run.reach("resumed-2-at-10")
    assert "rank 1: the checkpoint of step 20 in memory is damaged" in run.log()
    run.touch("go-2")
    run.ends_well()
    assert (run.committed()["step"], run.committed()["epoch"]) == (STEPS, 2)


def test_a_pod_that_is_lost_with_the_keeper_of_its_copy_resumes_from_s3(
    make_gang: MakeGang, s3_server: S3Server, proxy: Outage
) -> None:
    run = PeerRun(make_gang, s3_server, proxy, "both", 4, 1)
    run.start()
    run.to_the_crash()
    run.copied(20)
    assert [pod.status().copy[0] for pod in run.pods] == [2, 3, 0, 1]
    proxy.away.clear()
    run.replace(1, 3)
    run.reach("resumed-2-at-10")
    run.touch("go-2")
    run.ends_well()
    assert (run.committed()["step"], run.committed()["epoch"]) == (STEPS, 2)
