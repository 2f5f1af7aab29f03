"""A job whose run had come to its end before, under another job: it says so, over a real S3 server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hack.s3server import BUCKET, S3Server

from muster_protocol.exits import Cause, ExitFacts

pytestmark = pytest.mark.runtime

SCRIPT = """
import torch, muster_runtime as muster
session = muster.start(seed=3)
model = session.wrap(torch.nn.Linear(2, 1))
session.track(model=model)
for loop in os.environ["LOOPS"].split(","):
    for step in session.steps(int(loop)):
        model(torch.ones(1, 2)).sum().backward()
        if step == int(os.environ.get("BREAK", "-1")): break
    session.finish()
"""


def test_a_job_says_that_its_run_had_ended_before(make_gang: Callable[..., Any], s3_server: S3Server) -> None:
    uri = f"s3://{BUCKET}/ended"
    logs = []

    def job(name: str, loops: str, **more: str) -> ExitFacts:
        environment = s3_server.environment(MUSTER_CHECKPOINT_URI=uri, MUSTER_JOB=name, MUSTER_JOB_UID=f"uid-{name}")
        gang = make_gang(1, **environment, LOOPS=loops, OMP_NUM_THREADS="1", **more)
        pod = gang.pod(0, gang.script(SCRIPT))
        facts: ExitFacts = pod.end(90)
        assert facts.cause is Cause.SUCCEEDED
        logs.append(pod.log())
        return facts

    def told(step: int, by: str) -> str:
        return (
            f"the run at {uri} had finished already, at step {step}, saved by job {by}: nothing is left to train. For "
            f"a fresh run take another checkpoint.uri; with checkpoint.from: {uri} and load: model it begins with this "
            "run's weights"
        )

    assert not job("first", "4").nothing_left

    ended = job("second", "4")
    assert (ended.nothing_left, ended.step, ended.committed_step) == (True, 4, None)
    assert ended.message == f"{told(4, 'first')}; to train on, let the script ask for more steps"
    assert logs[-1].count(ended.message) == 1

    more = job("third", "4,9", BREAK="6")
    assert (more.nothing_left, more.message, more.committed_step) == (False, "all ranks ended well", 7)

    assert "nothing is left to train" not in logs[-1], "its second loop had something"

    left = job("fourth", "9")
    assert (left.nothing_left, left.message) == (True, told(7, "third")), "asking for more steps would not help"
