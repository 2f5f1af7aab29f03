"""A launcher with a real GPU: what it measures before and while a gang trains, profiles, and failures of CUDA's own.
`make test-gpu` runs these."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hack.s3server import S3Server
from test_profiles import ask, state

from muster_protocol import launcher_api as api
from muster_protocol.checkpoints.s3 import S3Store
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Profile, ProfilePhase
from muster_protocol.uris import parse_uri
from muster_runtime.telemetry.peaks import peak_flops

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU (make test-gpu)"),
]

MakeGang = Callable[..., Any]

TRAINS = """
import torch
import muster_runtime as muster
WIDTH, TOKENS, LAYERS = 4096, 8192, 8
session = muster.start(seed=1)
model = session.wrap(torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
session.track(model=model, optimizer=optimizer)
x = torch.randn(TOKENS, WIDTH, device=session.device)
for step in session.steps(10**6):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    session.report(loss=loss, tokens=TOKENS)
    if step == 3: mark("trains")
    if session.is_leader and (Path(__file__).parent / "end").exists():
        os.kill(os.getppid(), signal.SIGTERM)
"""


def metric(pod: Any, name: str) -> float | None:
    """The last sample of that name on the pod's /metrics."""
    code, body = pod.ask("GET", api.METRICS_PATH)
    assert code == 200
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", body.decode(), re.MULTILINE)
    return float(found[-1]) if found else None


def test_a_gang_of_one_gpu_is_measured_and_profiled(
    make_gang: MakeGang, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    gang = make_gang(1, 1, MUSTER_CHECKPOINT_URI="s3://models/on-a-gpu", MUSTER_CHECKPOINT_INTERVAL="3600")
    pod = gang.pod(0, gang.script(TRAINS), GLOO_SOCKET_IFNAME="lo")
    gang.eventually(lambda: gang.marks("trains") or pod.process.poll() is not None, "it trains or has ended", 200)
    assert gang.marks("trains"), pod.log()

    used = "muster_worker_gpu_memory_used_bytes"
    gang.eventually(lambda: (metric(pod, used) or 0) > 2**30, "the driver tells of the GPU", 60)
    assert 0 < (metric(pod, used) or 0) <= (metric(pod, "muster_worker_gpu_memory_total_bytes") or 0)
    gang.eventually(lambda: (metric(pod, "muster_worker_gpu_utilization_ratio") or 0) > 0.3, "it is busy", 60)
    assert (metric(pod, "muster_worker_gpu_power_watts") or 0) > 50
    assert 10 < (metric(pod, "muster_worker_gpu_temperature_celsius") or 0) < 100
    if peak_flops(torch.cuda.get_device_name()) is not None:
        gang.eventually(lambda: (metric(pod, "muster_worker_mfu_ratio") or 0) > 0.05, "its MFU is told", 60)
        assert (metric(pod, "muster_worker_mfu_ratio") or 0) < 1

    assert ask(pod, Profile(steps=3, memory=True)) == 202
    gang.eventually(lambda: state(pod).phase in (ProfilePhase.DONE, ProfilePhase.FAILED), "it is stored", 120)
    done = state(pod)
    assert (done.phase, done.text) == (ProfilePhase.DONE, "")
    assert set(done.stored) == {"rank-0.json.gz", "rank-0.memory.pickle.gz", "index.json"}
    store = S3Store(parse_uri(done.uri))
    trace = json.loads(gzip.decompress(store.get("rank-0.json.gz").content))  # type: ignore[union-attr]
    kernels = [one for one in trace["traceEvents"] if one.get("cat") == "kernel"]
    assert len(kernels) > 3 * 8, "each layer of each step runs one at least"
    snapshot = pickle.loads(gzip.decompress(store.get("rank-0.memory.pickle.gz").content))  # type: ignore[union-attr]
    assert snapshot["segments"]
    (gang.folder / "end").touch()
    assert pod.end().cause is Cause.PREEMPTED


FAILS = """
import torch
import muster_runtime as muster
session = muster.start()
"""


def end_of(gang: Any, body: str) -> Any:
    return gang.pod(0, gang.script(FAILS + body), MUSTER_RESTARTS_IN_PLACE="0").end(200)


def test_memory_that_the_gpu_does_not_have_is_the_scripts_failure_and_says_what_helps(make_gang: MakeGang) -> None:
    facts = end_of(make_gang(1, 1), "torch.empty(1 << 50, dtype=torch.uint8, device=session.device)")
    assert facts.cause is Cause.OUT_OF_MEMORY
    assert "use a smaller batch" in facts.message


def test_an_index_out_of_range_in_a_kernel_is_the_scripts_failure(make_gang: MakeGang) -> None:
    body = """
table = torch.nn.Embedding(4, 4).to(session.device)
table(torch.tensor([9], device=session.device)).sum().item()
"""
    facts = end_of(make_gang(1, 1), body)
    assert facts.cause is Cause.USER
    assert "device-side assert" in facts.message


def test_a_gang_whose_environment_hides_the_gpus_trains_without_them(make_gang: MakeGang) -> None:
    gang = make_gang(1, 1)
    pod = gang.pod(0, gang.script(FAILS + "mark('on-' + session.device.type)"), CUDA_VISIBLE_DEVICES="")
    assert pod.end(200).cause is Cause.SUCCEEDED
    assert gang.marks("on-cpu")
    assert "preflight" not in pod.log()
    assert os.path.exists("/dev/nvidiactl"), "or it proves nothing"
