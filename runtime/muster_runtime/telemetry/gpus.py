"""What NVML tells of this pod's GPUs, looked at by a thread of the launcher's: never by a rank, and nobody waits.

`nvml` is the module `pynvml`, NVIDIA's own. What it can't tell (a MIG instance's utilisation, ECC on a GPU without it)
is None, and a GPU that is lost tells nothing but the errors that it had.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

EVERY_SECONDS: Final = 5.0
STALE_SECONDS: Final = 30.0
"""A driver may hang in the middle of a call. What was told longer ago isn't shown any more."""
AGAIN_SECONDS: Final = 60.0
"""Until a driver that can't be reached is tried again."""
_EVENTS_AT_ONCE: Final = 100
_EVENT_MILLISECONDS: Final = 1


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance.

    Attributes:
        number: in this pod, from 0; of a MIG instance `GPU:INSTANCE`.
        utilization: part of the last sample period in which a kernel ran, 0 to 1.
        memory_used, memory_total: bytes.
        power: watts.
        temperature: degrees Celsius.
        ecc: memory errors since the driver was loaded, by `corrected` and `uncorrected`.
        xids: errors of the driver since the launcher started, by their code.
    """

    number: str
    uuid: str
    model: str = ""
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power: float | None = None
    temperature: float | None = None
    ecc: Mapping[str, int] = field(default_factory=dict)
    xids: Mapping[int, int] = field(default_factory=dict)


class Nvml:
    """Reads all GPUs that `visible` (NVIDIA_VISIBLE_DEVICES) names, or all where it names none by UUID.

    Raises `nvml.NVMLError` where the driver can't be reached.
    """

    def __init__(self, nvml: Any, visible: str, log: Callable[[str], None]) -> None:
        self._nvml, self._log = nvml, log
        self._uuids = {name for name in visible.split(",") if name.startswith(("GPU-", "MIG-"))}
        self._said: set[str] = set()
        self._xids: dict[str, Counter[int]] = {}
        self._known: dict[int, Gpu] = {}
        self._uuid_of: dict[int | None, str] = {}  # by handle: a GPU that is lost doesn't tell its UUID any more
        nvml.nvmlInit()
        self._events = self._listen()

    def look(self) -> tuple[Gpu, ...]:
        self._hear()
        return tuple(
            gpu
            for number in range(self._nvml.nvmlDeviceGetCount())
            for gpu in self._gpus(number)
            if not self._uuids or gpu.uuid in self._uuids
        )

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # it is gone already
            self._nvml.nvmlShutdown()

    def _gpus(self, number: int) -> Iterator[Gpu]:
        """The GPU, or its MIG instances."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            mig = self._or_none(nvml.nvmlDeviceGetMigMode, handle)
            if mig is not None and mig[0]:
                self._once(f"GPU {number} is split by MIG: its instances tell their memory, and nothing else")
                yield from self._instances(number, handle)
                return
            gpu = Gpu(str(number), uuid, nvml.nvmlDeviceGetName(handle), **self._figures(handle))
        except nvml.NVMLError as error:
            self._once(f"GPU {number} tells nothing: {error}")
            if (known := self._known.get(number)) is not None:  # the errors that it had are the news
                yield Gpu(known.number, known.uuid, known.model, xids=dict(self._xids.get(known.uuid, {})))
            return
        self._known[number] = gpu
        yield gpu

    def _instances(self, number: int, handle: Any) -> Iterator[Gpu]:
        nvml = self._nvml
        for instance in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                one = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, instance)
            except nvml.NVMLError:
                continue  # a place without an instance
            name = self._or_none(nvml.nvmlDeviceGetName, one)
            uuid = nvml.nvmlDeviceGetUUID(one)
            yield Gpu(f"{number}:{instance}", uuid, name or "", **self._memory(one))

    def _figures(self, handle: Any) -> dict[str, Any]:
        """Raises NVMLError for a GPU that is lost; a figure that it doesn't have is None."""
        nvml = self._nvml
        utilization = self._or_none(nvml.nvmlDeviceGetUtilizationRates, handle)
        power = self._or_none(nvml.nvmlDeviceGetPowerUsage, handle)
        errors = {
            kind: self._or_none(nvml.nvmlDeviceGetTotalEccErrors, handle, code, nvml.NVML_VOLATILE_ECC)
            for kind, code in (
                ("corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
                ("uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            )
        }
        return {
            **self._memory(handle),
            "utilization": None if utilization is None else utilization.gpu / 100,
            "power": None if power is None else power / 1000,
            "temperature": self._or_none(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "ecc": {kind: count for kind, count in errors.items() if count is not None},
            "xids": dict(self._xids.get(nvml.nvmlDeviceGetUUID(handle), {})),
        }

    def _memory(self, handle: Any) -> dict[str, Any]:
        memory = self._or_none(self._nvml.nvmlDeviceGetMemoryInfo, handle)
        return {} if memory is None else {"memory_used": memory.used, "memory_total": memory.total}

    def _or_none(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """None where the GPU doesn't have it. Raises NVMLError for anything else."""
        nvml = self._nvml
        try:
            return read(*arguments)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission, nvml.NVMLError_FunctionNotFound):
            return None

    def _listen(self) -> Any:
        """A set of the driver's errors on all GPUs; None where it tells none."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for number in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                self._uuid_of[_address(handle)] = nvml.nvmlDeviceGetUUID(handle)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            self._once(f"the driver doesn't tell Xid errors here: {error}")
            return None
        return events

    def _hear(self) -> None:
        nvml = self._nvml
        for _ in range(_EVENTS_AT_ONCE if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, _EVENT_MILLISECONDS)
            except nvml.NVMLError:  # usually: there is none
                return
            if (uuid := self._uuid_of.get(_address(event.device))) is not None:
                self._xids.setdefault(uuid, Counter())[int(event.eventData)] += 1

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._log(text)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


class Watch:
    """The thread that looks. `load` imports `pynvml`."""

    def __init__(
        self, load: Callable[[], Any], visible: str, log: Callable[[str], None], every: float = EVERY_SECONDS
    ) -> None:
        self._load, self._visible, self._log, self._every = load, visible, log, every
        self._seen: tuple[float, tuple[Gpu, ...]] = (0.0, ())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)

    def start(self) -> None:
        """Where no thread can be started that is told, and there are no figures."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._log(f"no figures of GPUs: {error}; the pod or node has reached its limit of processes")

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """As they were seen last; nothing where that is long ago."""
        at, gpus = self._seen
        return gpus if time.monotonic() - at < STALE_SECONDS else ()

    def end(self) -> None:
        """Doesn't wait: a driver may hang."""
        self._over.set()

    def _run(self) -> None:
        nvml, said = self._load(), ""
        while not self._over.is_set():
            try:
                self._look(Nvml(nvml, self._visible, self._log))
            except nvml.NVMLError as error:
                self._seen = (0.0, ())
                if said != (said := f"no figures of GPUs: {error}"):
                    self._log(said)
            self._over.wait(AGAIN_SECONDS)

    def _look(self, reader: Nvml) -> None:
        """Until the end. Raises NVMLError."""
        try:
            while not self._over.is_set():
                self._seen = (time.monotonic(), reader.look())
                self._over.wait(self._every)
        finally:
            reader.close()
