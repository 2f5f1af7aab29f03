"""Metrics that are read where they stand, whenever somebody asks: the ranks' pulses and the GPUs.

What isn't there any more has no series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from muster_protocol import metrics as declared
from muster_protocol.metrics import Kind, Metric
from muster_runtime.pulse import STAGES, Beat
from muster_runtime.telemetry.gpus import Gpu

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

Sample = tuple[Metric, tuple[str, ...], float]
"""With the values of the labels behind those of the pod."""

GATHERED: Final = (
    declared.STEPS,
    declared.STAGE_SECONDS,
    declared.OWN_SECONDS,
    declared.GPU_UTILIZATION,
    declared.GPU_MEMORY_USED,
    declared.GPU_MEMORY_TOTAL,
    declared.GPU_POWER,
    declared.GPU_TEMPERATURE,
    declared.GPU_ECC,
    declared.GPU_XID,
)


def of_ranks(beats: Mapping[int, Beat]) -> Iterator[Sample]:
    """`beats` by rank."""
    for number, beat in beats.items():
        rank = str(number)
        yield declared.STEPS, (rank,), beat.steps
        yield declared.OWN_SECONDS, (rank,), beat.own
        for stage, seconds in zip(STAGES, beat.stages, strict=True):
            yield declared.STAGE_SECONDS, (rank, stage.name.lower()), seconds


def of_gpus(gpus: Iterable[Gpu]) -> Iterator[Sample]:
    for gpu in gpus:
        labels = (gpu.number, gpu.uuid, gpu.model)
        for metric, value in (
            (declared.GPU_UTILIZATION, gpu.utilization),
            (declared.GPU_MEMORY_USED, gpu.memory_used),
            (declared.GPU_MEMORY_TOTAL, gpu.memory_total),
            (declared.GPU_POWER, gpu.power),
            (declared.GPU_TEMPERATURE, gpu.temperature),
        ):
            if value is not None:
                yield metric, labels, value
        for kind, count in gpu.ecc.items():
            yield declared.GPU_ECC, (*labels, kind), count
        for xid, count in gpu.xids.items():
            yield declared.GPU_XID, (*labels, str(xid)), count


class Gathered:
    """A collector of prometheus-client. `read` gives what there is now; `pod` are the values of the pod's labels."""

    def __init__(self, pod: tuple[str, ...], read: Callable[[], Iterable[Sample]]) -> None:
        self._pod, self._read = pod, read

    def collect(self) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for metric, values, value in self._read():
            if metric.name not in families:
                kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
                families[metric.name] = kind(metric.name, metric.text, labels=metric.labels)
            families[metric.name].add_metric((*self._pod, *values), value)
        yield from families.values()

    def describe(self) -> Iterator[Family]:
        """Nothing is known before it is read."""
        return iter(())
