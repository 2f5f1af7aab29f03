"""What NVML tells of GPUs, and what doesn't harm. There is no GPU here: `Driver` stands in for NVIDIA's library."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from muster_runtime.launch.gathered import of_gpus
from muster_runtime.telemetry.gpus import Gpu, Nvml, Watch

pytestmark = pytest.mark.runtime

GIB = 2**30


class Driver:
    """As the module `pynvml`, with its own errors and names; GPU i has the handle i + 1, its MIG instances more."""

    NVMLError = pynvml.NVMLError
    NVMLError_NotSupported = pynvml.NVMLError_NotSupported
    NVMLError_NoPermission = pynvml.NVMLError_NoPermission
    NVMLError_FunctionNotFound = pynvml.NVMLError_FunctionNotFound
    NVML_MEMORY_ERROR_TYPE_CORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    NVML_VOLATILE_ECC = pynvml.NVML_VOLATILE_ECC
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    nvmlEventTypeXidCriticalError = pynvml.nvmlEventTypeXidCriticalError  # noqa: N815

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.lost: set[int] = set()
        self.mig: set[int] = set()
        self.ecc = True
        self.events: list[tuple[int, int]] = []
        self.failing: int | None = None
        self.begun = self.ended = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        return lambda handle, *more: self._device(name.removeprefix("nvmlDeviceGet"), handle, *more)

    def nvmlInit(self) -> None:  # noqa: N802
        self._check()
        self.begun += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.ended += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._check()
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, number: int) -> ctypes.c_void_p:  # noqa: N802
        if number in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return ctypes.c_void_p(number + 1)

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        return object()

    def nvmlDeviceRegisterEvents(self, handle: ctypes.c_void_p, kind: int, events: object) -> None:  # noqa: N802
        pass

    def nvmlEventSetWait_v2(self, events: object, milliseconds: int) -> SimpleNamespace:  # noqa: N802
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        number, xid = self.events.pop(0)
        return SimpleNamespace(device=ctypes.c_void_p(number + 1), eventData=xid)

    def _check(self) -> None:
        if self.failing is not None:
            raise pynvml.NVMLError(self.failing)

    def _device(self, what: str, handle: ctypes.c_void_p, *more: Any) -> Any:
        assert handle.value is not None
        number, instance = (handle.value - 1) % 100, handle.value > 100
        if number in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if what == "MigDeviceHandleByIndex":
            if more[0] == 1:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            return ctypes.c_void_p(101 + number + 100 * more[0])
        if what == "TotalEccErrors" and not self.ecc:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return {
            "UUID": f"MIG-{number}-{handle.value}" if instance else f"GPU-{number}",
            "Name": "NVIDIA H100 80GB HBM3",
            "MigMode": (int(number in self.mig), 0),
            "MaxMigDeviceCount": 3,
            "UtilizationRates": SimpleNamespace(gpu=75 + number, memory=1),
            "MemoryInfo": SimpleNamespace(used=10 * GIB, total=80 * GIB),
            "PowerUsage": 650_500,
            "Temperature": 61,
            "TotalEccErrors": 3 if more and more[0] == pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED else 0,
        }[what]


def test_a_gpu_tells_its_figures_in_plain_units() -> None:
    said: list[str] = []
    first, second = Nvml(Driver(2), "all", said.append).look()
    assert first == Gpu(
        number="0",
        uuid="GPU-0",
        model="NVIDIA H100 80GB HBM3",
        utilization=0.75,
        memory_used=10 * GIB,
        memory_total=80 * GIB,
        power=650.5,
        temperature=61,
        ecc={"corrected": 3, "uncorrected": 0},
    )
    assert (second.number, second.utilization) == ("1", 0.76)
    assert not said


def test_only_the_pods_own_gpus_are_told_where_they_are_named() -> None:
    (only,) = Nvml(Driver(8), "GPU-5,GPU-not-there", print).look()
    assert only.uuid == "GPU-5"


def test_what_a_gpu_does_not_have_has_no_series() -> None:
    driver = Driver(1)
    driver.ecc = False
    series = {metric.name for metric, _, _ in of_gpus(Nvml(driver, "", print).look())}
    assert "muster_worker_gpu_power_watts" in series
    assert not any("ecc" in name or "xid" in name for name in series)


def test_a_lost_gpu_leaves_the_error_that_it_was_lost_by_and_one_line() -> None:
    driver, said = Driver(2), list[str]()
    reader = Nvml(driver, "", said.append)
    assert len(reader.look()) == 2
    driver.events = [(1, 79), (1, 79), (0, 31)]
    driver.lost = {1}
    for _ in range(3):
        whole, lost = reader.look()
        assert (whole.xids, whole.power) == ({31: 1}, 650.5)
        assert lost == Gpu("1", "GPU-1", "NVIDIA H100 80GB HBM3", xids={79: 2})
    assert said == ["GPU 1 tells nothing: GPU is lost"]
    driver.lost = set()
    assert reader.look()[1].power == 650.5


def test_mig_instances_tell_their_memory_alone() -> None:
    driver, said = Driver(1), list[str]()
    driver.mig = {0}
    reader = Nvml(driver, "", said.append)
    for _ in range(2):
        found = reader.look()
        assert [(one.number, one.memory_used, one.utilization, one.power) for one in found] == [
            ("0:0", 10 * GIB, None, None),
            ("0:2", 10 * GIB, None, None),
        ]
    assert said == ["GPU 0 is split by MIG: its instances tell their memory, and nothing else"]
    assert [one.number for one in Nvml(driver, found[1].uuid, print).look()] == ["0:2"]


def eventually(holds: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_the_thread_goes_on_when_the_driver_goes_and_shows_nothing_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_runtime.telemetry.gpus.AGAIN_SECONDS", 0.01)
    driver, said = Driver(1), list[str]()
    driver.failing = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    watch = Watch(lambda: driver, "", said.append, every=0.01)
    watch.start()
    eventually(lambda: said)
    assert (watch.gpus, said) == ((), ["no figures of GPUs: Driver Not Loaded"])
    driver.failing = None
    eventually(lambda: watch.gpus)
    driver.failing = pynvml.NVML_ERROR_UNKNOWN
    eventually(lambda: not watch.gpus)
    monkeypatch.setattr("muster_runtime.telemetry.gpus.STALE_SECONDS", -1.0)
    driver.failing = None
    eventually(lambda: driver.begun == 2)
    assert not watch.gpus, "what is too old is not shown"
    watch.end()
    eventually(lambda: driver.ended == 2)
    assert len(said) == 2


def test_without_room_for_its_thread_there_are_no_figures_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    said: list[str] = []
    watch = Watch(lambda: Driver(1), "", said.append)
    watch.start()
    assert watch.gpus == ()
    assert said == ["no figures of GPUs: can't start new thread; the pod or node has reached its limit of processes"]


def test_nvidias_own_module_without_a_driver_is_one_line() -> None:
    said: list[str] = []
    watch = Watch(lambda: pynvml, "", said.append)
    watch.start()
    eventually(lambda: said)
    watch.end()
    assert said == ["no figures of GPUs: NVML Shared Library Not Found"]
