"""The same on a GPU: NCCL beside gloo, bf16 compute under FSDP2, resumes, staging beside queued kernels, CUDA graphs,
and what is measured of the device. `make test-gpu` runs these."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from gangs import Result, run_gang
from test_resume_bits import train

from muster_protocol.checkpoints.inventory import find_start
from muster_protocol.checkpoints.retention import Retention
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.staging import CAPTURED
from muster_runtime.checkpoint.store import open_store
from muster_runtime.errors import TornSaveError
from muster_runtime.launch import gpu_probe
from muster_runtime.parallel.gang import Gang
from muster_runtime.pulse import Stage
from muster_runtime.session.described import environment
from muster_runtime.session.flight import _recorder
from muster_runtime.session.pace import DeviceSpans
from muster_runtime.telemetry.peaks import peak_flops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU (make test-gpu)"),
]

GPU = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
LARGE = 64 << 20
"""Numbers: their copy to the host takes milliseconds."""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_resume_on_a_gpu(strategy: str, tmp_path: Path) -> None:
    train(tmp_path / "whole", strategy, ranks=1, **GPU).check()
    train(tmp_path / "cut", strategy, ranks=1, kill="11:backward:0", **GPU)
    train(tmp_path / "cut", strategy, ranks=1, **GPU).check()
    digests = [json.loads((tmp_path / run / "final-0.json").read_text())["digest"] for run in ("whole", "cut")]
    assert digests[0] == digests[1]


def test_two_ranks_on_one_gpu_are_told_so(tmp_path: Path) -> None:
    one = {**GPU, "CUDA_VISIBLE_DEVICES": GPU["CUDA_VISIBLE_DEVICES"].split(",")[0]}
    result = run_gang(EXAMPLES / "gpt/train.py", tmp_path, 2, one, arguments=("--steps", "2"))
    assert "rank 0 and rank 1 have one GPU together" in result.output, result.output


@pytest.mark.parametrize("strategy", ["none", "ddp", "fsdp", "hsdp"])
@pytest.mark.parametrize("script", ["gpt/train.py", "elastic/train.py"])
def test_the_examples_train_on_a_gpu(script: str, strategy: str, tmp_path: Path) -> None:
    environment = {"MUSTER_STRATEGY": strategy, "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run", **GPU}
    result = run_gang(EXAMPLES / script, tmp_path, 1, environment, arguments=("--steps", "12")).check()
    assert "checkpoint of step 12 committed" in result.output, result.output


@pytest.mark.parametrize("script", ["plain_loop.py", "plain_loop_resumable.py", "torchrun_ddp.py"])
def test_scripts_from_outside_train_on_a_gpu(script: str, tmp_path: Path) -> None:
    run_gang(EXAMPLES / "outside" / script, tmp_path, 1, GPU).check()


COMPILED = """
import os
import torch
from torch import nn
import muster_runtime as muster

session = muster.start(seed=5)
model = nn.Sequential(nn.Linear(64, 64), *(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(2)))
model = torch.compile(session.wrap(model))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cuda", enabled=session.strategy == "none")
session.track(model=model, optimizer=optimizer, scaler=scaler)
for step in session.steps(int(os.environ["STEPS"])):
    x = torch.randn(32, 64, device=session.device)
    with torch.autocast("cuda", torch.float16, enabled=scaler.is_enabled()):
        loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    session.report(loss=loss)
print("last loss", loss.item().hex())
"""


@pytest.mark.parametrize("strategy", ["none", "ddp", "fsdp"])
def test_a_compiled_model_with_a_scaler_goes_on_where_it_was(strategy: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(COMPILED)
    last = []
    for stops in (("12",), ("8", "12")):
        uri = f"file://{tmp_path}/run-{len(stops)}"
        environment = {"MUSTER_STRATEGY": strategy, "MUSTER_CHECKPOINT_URI": uri, **GPU}
        for steps in stops:
            result = run_gang(script, tmp_path / uri[-1], 1, {**environment, "STEPS": steps}, seconds=200).check()
        last += [line for line in result.outputs[0].splitlines() if line.startswith("last loss")]
    assert len(last) == 2
    assert last[0] == last[1]


@pytest.fixture
def keeper(tmp_path: Path) -> Any:
    store = open_store(f"file://{tmp_path}")
    made = Keeper(store, Gang(), owner="job", job="job", retention=Retention(), warn=lambda _: None)
    made.claim()
    yield made
    made.close()


def busy() -> None:
    """The device has work for some tenths of a second from here on."""
    work = torch.rand(8192, 8192, device="cuda")
    for _ in range(20):
        work = work @ work * 1e-4


def saved(keeper: Keeper, step: int) -> torch.Tensor:
    found = torch.empty(LARGE, device="cuda")
    keeper.load(keeper._store, find_start(keeper._store, step), lambda *_: {"state": found})
    return found


@pytest.mark.parametrize("late", [False, True])
def test_what_queued_kernels_do_later_is_not_in_the_checkpoint(late: bool, keeper: Keeper) -> None:
    state = torch.ones(LARGE, device="cuda")
    for step in (1, 2, 3):  # the first also pins the memory, which waits for the device by itself
        busy()
        state.fill_(step)  # queued behind the products, like the optimizer's step before a boundary
        keeper.begin({"state": state}, step=step, trees={}, run={}, late=("state",) if late else ())
        keeper.saver.before_update()
        state.zero_()  # queued behind the copy, like the next one
        keeper.wait()
        assert bool((saved(keeper, step) == step).all())


def test_the_host_waits_for_no_copy(keeper: Keeper) -> None:
    state = torch.ones(LARGE, device="cuda")
    for step in (1, 2):  # the first also pins the memory
        torch.cuda.synchronize()
        busy()
        done = torch.cuda.Event()
        done.record()
        keeper.begin({"state": state}, step=step, trees={}, run={}, late=("state",))
        keeper.saver.before_update()
        returned_early = not done.query()
        state.zero_()
        keeper.wait()
        state.fill_(1)
    assert returned_early, "it came back only when the device had done what was queued before"


def test_an_update_that_is_captured_into_a_graph_tears_no_copy(keeper: Keeper) -> None:
    state = torch.ones(LARGE, device="cuda")
    torch.cuda.synchronize()
    keeper.begin({"state": state}, step=1, trees={}, run={}, late=("state",))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        keeper.saver.before_update()
        state.add_(1)
    graph.replay()
    keeper.saver.step_over(seen=True)
    with pytest.raises(TornSaveError, match=CAPTURED):
        keeper.wait()
    keeper.begin({"state": state}, step=2, trees={}, run={})
    keeper.wait()
    assert bool((saved(keeper, 2) == 2).all())


def test_pinned_memory_grows_and_is_let_go() -> None:
    memory = SharedMemory()
    for size in (1 << 20, 3 << 20):
        tensor = memory.reserve(size, pinned=True)
        assert tensor.is_pinned()
        tensor[:size].copy_(torch.full((size,), 7, dtype=torch.uint8, device="cuda"), non_blocking=True)
        torch.cuda.synchronize()
        assert bool((tensor[:size] == 7).all())
    memory.close()
    del tensor
    for _ in range(3):  # the same addresses come again, whether or not anybody has closed what was there
        again = SharedMemory()
        assert again.reserve(3 << 20, pinned=True).is_pinned()
        os.close(again.descriptor)
        del again


def test_memory_that_cuda_refuses_is_used_unpinned_and_no_kernel_is_blamed() -> None:
    memory = SharedMemory()
    tensor = memory.reserve(1 << 20)
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(runtime.cudaHostRegister(tensor.data_ptr(), 1 << 20, 0))  # and so a second time fails
    memory.reserve(1 << 20, pinned=True)
    assert "already mapped" in memory.refused
    tensor.copy_(torch.full((1 << 20,), 7, dtype=torch.uint8, device="cuda"), non_blocking=True)
    torch.cuda.synchronize()
    assert bool((tensor == 7).all())
    torch.cuda.check_error(runtime.cudaHostUnregister(tensor.data_ptr()))
    memory.close()


GRAPHED = """
import hashlib, json, os
import torch
from torch import nn
import muster_runtime as muster
from muster_runtime.checkpoint.layout import raw_bytes

session = muster.start(seed=5)
model = session.wrap(nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.1), nn.Linear(256, 256)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2, capturable=True)
session.track(model=model, optimizer=optimizer)
x, graph, loss = torch.ones(64, 256, device=session.device), None, None

def work():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss

def digest():
    tensors = [*model.parameters(), *(t for state in optimizer.state.values() for t in state.values())]
    return hashlib.sha256(b"".join(bytes(raw_bytes(t.detach().cpu())) for t in tensors)).hexdigest()

found = {}
aside = torch.cuda.Stream()
for step in session.steps(int(os.environ["STEPS"])):
    found[step] = digest()
    if step - (session.resumed_from or 0) < 3:  # as torch's documentation has it: some steps on a stream beside
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            loss = work()
        torch.cuda.current_stream().wait_stream(aside)
    else:
        if graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = work()
        graph.replay()
    session.report(loss=loss)
with open(os.environ["FOLDER"] + "/digests.json", "w") as file:
    json.dump(found, file)
"""


def graphed(folder: Path, steps: int, **more: str) -> Result:
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(GRAPHED)
    environment = {"FOLDER": str(folder), "STEPS": str(steps), "MUSTER_CHECKPOINT_EVERY_STEPS": "8", **GPU, **more}
    return run_gang(folder / "script.py", folder, 1, environment, seconds=200).check()


def test_steps_that_are_replayed_as_a_graph_are_saved_with_the_bits_of_their_boundary(tmp_path: Path) -> None:
    whole = graphed(tmp_path / "whole", 33, MUSTER_CHECKPOINT_URI=f"file://{tmp_path}/checkpoints")
    for step in (8, 16, 24, 32):
        assert f"checkpoint of step {step} committed" in whole.output, whole.output
    assert "given up" not in whole.output
    digests = json.loads((tmp_path / "whole" / "digests.json").read_text())
    for step in (16, 32):
        more = {"MUSTER_CHECKPOINT_FROM": f"file://{tmp_path}/checkpoints@{step}"}
        graphed(tmp_path / str(step), step + 1, MUSTER_CHECKPOINT_URI=f"file://{tmp_path}/{step}/own", **more)
        assert json.loads((tmp_path / str(step) / "digests.json").read_text()) == {str(step): digests[str(step)]}


def test_a_graph_hides_updates_from_numerics_and_that_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"an update inside a CUDA graph is never seen: capture the forward"):
        graphed(tmp_path, 9, MUSTER_NUMERICS="stop")


def test_spans_on_the_device_are_those_of_its_own_clock() -> None:
    spans = DeviceSpans(lambda: torch.cuda.Event(enable_timing=True))
    busy()
    torch.cuda.synchronize()
    begun = time.monotonic()
    spans.mark(Stage.FORWARD, True)
    busy()
    spans.mark(Stage.BACKWARD, False)
    assert time.monotonic() - begun < 0.05, "queued, not waited for"
    assert spans.take() == ([0.0] * len(Stage), 0.0)
    busy()
    spans.mark(Stage.BOUNDARY, False)
    torch.cuda.synchronize()
    passed = time.monotonic() - begun
    stages, own = spans.take()
    assert own == stages[Stage.FORWARD] > 0
    assert 0.5 * passed < stages[Stage.FORWARD] + stages[Stage.BACKWARD] <= passed
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        spans.mark(Stage.FORWARD, True)
    spans.mark(Stage.BACKWARD, False)
    spans.mark(Stage.BOUNDARY, False)
    torch.cuda.synchronize()
    stages, own = spans.take()
    assert (own, stages[Stage.FORWARD]) == (0.0, 0.0), "nothing was done while the graph was captured"
    assert stages[Stage.BACKWARD] > 0


def test_the_probe_tells_what_the_gpus_can_do() -> None:
    found = gpu_probe.found()
    assert (found["error"], len(found["gpus"])) == ("", torch.cuda.device_count())
    for number, gpu in enumerate(found["gpus"]):
        memory = torch.cuda.get_device_properties(number).total_memory
        peak = peak_flops(torch.cuda.get_device_name(number))
        assert 0 < gpu["free"] <= gpu["memory"]
        assert gpu["memory"] == pytest.approx(memory, rel=0.05)
        assert 0 < gpu["tflops"] < (1.1 * peak / 1e12 if peak is not None else float("inf"))


def test_a_tracker_hears_of_the_device() -> None:
    found = environment(torch.device("cuda", 0))
    assert found["gpu"] == torch.cuda.get_device_name(0)
    assert found["cuda"] == torch.version.cuda
    assert found["nccl"].count(".") == 2


def test_this_torch_has_a_flight_recorder_for_nccl() -> None:
    dump = _recorder(torch.device("cuda"))
    assert dump is not None
    assert "entries" in json.loads(dump()) or "version" in json.loads(dump())
