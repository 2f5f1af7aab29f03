"""Nodes that aren't fit to train are found before the ranks start, and named with figures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster_protocol.exits import EXIT_INFRASTRUCTURE, Cause
from muster_protocol.messages import Figures, GpuFigures
from muster_runtime.launch import gpu_probe
from muster_runtime.launch.checkup import MEBIBYTE, judge
from muster_runtime.launch.figures import Machine, measure

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]
GPU = GpuFigures(memory=80_000 * MEBIBYTE, free=79_000 * MEBIBYTE, tflops=640.0)
GOOD = Figures("gpu-0", 2**33, 2**33, None, gpus_wanted=2, gpus=(GPU, GPU))
SLOW = (GPU, replace(GPU, tflops=300.0))


def messages(one: Figures, *others: Figures) -> list[str]:
    found = judge({0: GOOD, 1: one, **dict(enumerate(others, 2))}, factor=1.5)
    assert {finding.index for finding in found} <= {1}
    return [finding.message for finding in found]


def test_good_nodes_and_nodes_without_gpus_pass() -> None:
    assert messages(GOOD) == []
    assert judge({0: Figures(), 1: Figures()}, factor=1.5) == []
    assert messages(replace(GOOD, gpus=(GPU, replace(GPU, tflops=450.0)))) == [], "slower, but not by half"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"memory_free": 100 * MEBIBYTE}, "100 MiB of the node's memory are free, 256 MiB are needed at least"),
        ({"disk_free": 0}, "0 MiB of disk where the launcher keeps its files are free, 64 MiB are needed"),
        ({"shm_free": MEBIBYTE}, "1 MiB in /dev/shm are free, 16 MiB are needed at least"),
        ({"skew": -400.2}, "its clock is 400 s behind index 0's, at most 300 s are allowed; set it by NTP"),
        ({"gpu_error": "GPU 1: CUDA error: uncorrectable ECC", "gpus": ()}, "its GPUs can't be used: GPU 1: CUDA"),
        ({"gpus": (GPU,)}, "1 GPU can be used, 2 are given to the pod; look at nvidia-smi"),
        ({"gpus": (GPU, replace(GPU, free=MEBIBYTE))}, "1 MiB of GPU 1's 80000 MiB are free before any rank runs"),
        ({"gpus": SLOW}, "GPU 1 multiplies at 300 TFLOP/s, the gang's median is 640; look at its clocks"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_is_wrong_is_told_with_what_was_expected(wrong: dict[str, Any], told: str) -> None:
    (message,) = messages(replace(GOOD, **wrong))
    assert message.startswith(told)


def test_a_kind_of_gpu_that_is_slow_everywhere_is_nobodys_fault() -> None:
    slow = replace(GOOD, gpus=SLOW[1:] * 2)
    assert judge({0: slow, 1: slow, 2: slow}, factor=1.5) == []


def test_the_end_names_the_node_and_how_to_leave_the_check_out() -> None:
    (finding,) = judge({3: replace(GOOD, node="gpu-17", disk_free=0)}, factor=1.5)
    ended = finding.ended()
    assert (ended.index, ended.cause, ended.exit_code) == (3, Cause.NODE.value, EXIT_INFRASTRUCTURE)
    assert ended.message.startswith("preflight: node gpu-17 (worker 3): 0 MiB of disk")
    assert ended.message.endswith("or leave this check out with spec.health.preflight: false")


def machine(folder: Path, probe: str, **more: Any) -> Machine:
    (folder / "meminfo").write_text("MemTotal:  9 kB\nMemFree:  1 kB\nMemAvailable:    2048 kB\n")
    probed = (sys.executable, "-S", "-c", probe)
    given = {"visible": "GPU-1,GPU-2", "hidden": False, "gpu_control": folder, "probe": probed, **more}
    return Machine(folder / "meminfo", (folder / "none", folder), **given)


async def test_figures_are_measured_and_gpus_asked_in_a_process_of_their_own(tmp_path: Path) -> None:
    probe = """print('{"error": "", "gpus": [{"memory": 4, "free": 3, "tflops": 2.5}]}')"""
    found = await measure(machine(tmp_path, probe), "n1")
    assert (found.node, found.memory_free, found.gpus_wanted) == ("n1", 2048 * 1024, 2)
    assert found.gpus == (GpuFigures(4, 3, 2.5),)
    assert found.disk_free is not None
    without = await measure(replace(machine(tmp_path, "1 / 0"), gpu_control=tmp_path / "none"))
    assert (without.gpus, without.gpu_error) == ((), "")
    hidden = await measure(replace(machine(tmp_path, "1 / 0"), hidden=True))
    assert (hidden.gpus_wanted, hidden.gpus, hidden.gpu_error) == (0, (), ""), "the job wants none, by its environment"


async def test_a_driver_that_hangs_or_crashes_is_told(tmp_path: Path) -> None:
    hung = await measure(machine(tmp_path, "import time; time.sleep(60)", probe_seconds=0.2))
    assert hung.gpu_error == "they gave no answer within 0.2 s"
    crashed = await measure(machine(tmp_path, "1 / 0"))
    assert crashed.gpu_error.endswith("ended with exit code 1: ZeroDivisionError: division by zero")


def fake_torch(error: str) -> Any:
    def fails(*_: object) -> None:
        raise RuntimeError(f"{error}\nmore")

    cuda = SimpleNamespace(device_count=lambda: 1, mem_get_info=fails)
    return SimpleNamespace(version=SimpleNamespace(cuda="12.8"), cuda=cuda, device=lambda *words: words)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("CUDA error: an uncorrectable ECC error was encountered", "GPU 0: CUDA error: an uncorrectable ECC error was"),
        ("The NVIDIA driver on your system is too old (found version 11040)", ""),
        ("CUDA error: no kernel image is available for execution on the device", ""),
    ],
)
def test_what_the_image_brings_about_is_not_held_against_the_node(
    error: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(error))
    found = gpu_probe.found()
    assert found["error"].startswith(told)
    assert bool(found["error"]) == bool(told)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(cuda=None)))
    assert gpu_probe.found() == {"error": "", "gpus": []}


NO_DISK = """
import os
real = os.statvfs
os.statvfs = lambda path: os.statvfs_result((*real(path)[:3], 0, 0, *real(path)[5:]))
"""


def test_a_gang_does_not_start_on_a_node_without_disk_and_its_worker_tells_so(make_gang: MakeGang) -> None:
    gang = make_gang(3)
    (gang.folder / "full").mkdir()
    (gang.folder / "full" / "sitecustomize.py").write_text(NO_DISK)
    script = gang.script("mark('ran')")
    broken = gang.pod(2, script, PYTHONPATH=str(gang.folder / "full"), MUSTER_NODE_NAME="gpu-17")
    others = [gang.pod(index, script) for index in (0, 1)]
    facts = broken.end()
    assert (facts.cause, facts.exit_code) == (Cause.NODE, EXIT_INFRASTRUCTURE)
    assert facts.message.startswith("preflight: node gpu-17 (worker 2): 0 MiB of disk")
    for pod in others:
        followed = pod.end()
        assert followed.cause is Cause.PEER
        assert "preflight: node gpu-17 (worker 2)" in followed.message
    assert not gang.marks("ran")


def test_the_preflight_can_be_left_out(make_gang: MakeGang) -> None:
    gang = make_gang(1, MUSTER_PREFLIGHT="0")
    (gang.folder / "full").mkdir()
    (gang.folder / "full" / "sitecustomize.py").write_text(NO_DISK)
    assert gang.pod(0, gang.script("mark('ran')"), PYTHONPATH=str(gang.folder / "full")).end().cause is Cause.SUCCEEDED
    assert gang.marks("ran")


IN_A_POD = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, os.environ["MUSTER_LIB"])
from muster_runtime.launch.figures import Machine, measure
print(repr(asyncio.run(measure(Machine(gpu_control=Path("/dev/null")))).gpu_error))
"""


def test_the_probe_is_found_where_only_the_launcher_knows_the_runtime() -> None:
    """As `muster-launch` starts in a pod: the image's Python, which has nothing of Muster."""
    bare = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = {"MUSTER_LIB": str(Path(__file__).parents[3] / "runtime"), "PATH": os.environ["PATH"]}
    done = subprocess.run([bare, "-I", "-S", "-c", IN_A_POD], env=library, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "''\n"), done.stderr
