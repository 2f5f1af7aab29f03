"""Values of declared metrics, and Prometheus' text format of them.

Written here, not by prometheus-client: that takes more processor time for four series of each of 10,000 jobs than a
scrape may cost (`make bench-metrics`), and it can't forget the series of a queue that is gone.

A counter that begins at 1 is no increase for Prometheus: the first failure of a queue would neither be drawn nor
alerted. Zeros for all that may happen in a thousand queues are more bytes than a scrape may have; so what is new stands
at 0 first, for NEW_SECONDS.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from muster_protocol.metrics import Kind, Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

NEW_SECONDS: Final = 60.0
"""For which a new series of a counter or a histogram is told as 0, from the first time that it is told: two scrapes of
the chart's 30 s, so that a second Prometheus sees it, too."""

Labels = tuple[str, ...]
"""Values in the order of the metric's label names."""

_ODD: Final = re.compile(r'["\\\n]')


@dataclass
class _Observed:
    """Of one histogram's series: how many fell into each bucket, those above all of them last."""

    counts: list[int]
    total: float = 0.0


@dataclass
class _Family:
    metric: Metric
    values: dict[Labels, float] = field(default_factory=dict)
    observed: dict[Labels, _Observed] = field(default_factory=dict)
    new: dict[Labels, float | None] = field(default_factory=dict)
    """Since when each of the new series is told; None: it was not told yet."""

    def told(self, now: float) -> Collection[Labels]:
        """It is told now. Those that stand at 0."""
        for labels, since in list(self.new.items()):
            if since is None:
                self.new[labels] = now
            elif now - since >= NEW_SECONDS:
                del self.new[labels]
        return self.new

    def forget(self, position: int, known: Collection[str]) -> None:
        self.values = {labels: value for labels, value in self.values.items() if labels[position] in known}
        self.observed = {labels: one for labels, one in self.observed.items() if labels[position] in known}
        self.new = {labels: since for labels, since in self.new.items() if labels[position] in known}


class Store:
    """The metrics of one process. A counter without labels is 0 from the start; all others have the series that were
    set: a gauge that nobody has set says nothing, and 0 might be an alarm."""

    def __init__(self, declared: Sequence[Metric], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._families = {metric.name: _Family(metric) for metric in declared}
        for metric in declared:
            if not metric.labels and metric.kind is Kind.COUNTER:
                self._families[metric.name].values[()] = 0

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        self._families[metric.name].values[labels] = value

    def replace(self, metric: Metric, values: Mapping[Labels, float]) -> None:
        """All series at once; those of others go."""
        self._families[metric.name].values = dict(values)

    def count(self, metric: Metric, amount: float, *labels: str) -> None:
        family = self._families[metric.name]
        if labels not in family.values:
            family.new[labels] = None
        family.values[labels] = family.values.get(labels, 0) + amount

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        family = self._families[metric.name]
        observed = family.observed
        if labels not in observed:
            family.new[labels] = None
            observed[labels] = _Observed([0] * (len(metric.buckets) + 1))
        observed[labels].counts[bisect_left(metric.buckets, value)] += 1
        observed[labels].total += value

    def forget(self, label: str, known: Collection[str]) -> None:
        """The series of what is gone: those whose value of `label` is none of `known`."""
        for family in self._families.values():
            if label in family.metric.labels:
                family.forget(family.metric.labels.index(label), known)

    def text(self) -> bytes:
        """Everything. May be called from another thread than the rest."""
        now = self._clock()
        return "".join(line for family in self._families.values() for line in _lines(family, now)).encode()


def _lines(family: _Family, now: float) -> Iterator[str]:
    metric, new = family.metric, family.told(now)
    yield f"# HELP {metric.name} {metric.text}\n# TYPE {metric.name} {metric.kind.value}\n"
    pattern = _pattern(metric.name, metric.labels)
    for labels, value in list(family.values.items()):
        yield pattern % (*_escaped(labels), "0" if labels in new else _number(value))
    for labels, one in list(family.observed.items()):
        yield from _buckets(metric, labels, _Observed([0] * len(one.counts)) if labels in new else one)


def _buckets(metric: Metric, labels: Labels, one: _Observed) -> Iterator[str]:
    bucket, below, escaped = _pattern(f"{metric.name}_bucket", (*metric.labels, "le")), 0, _escaped(labels)
    for bound, number in zip((*map(_number, metric.buckets), "+Inf"), list(one.counts), strict=True):
        below += number
        yield bucket % (*escaped, bound, below)
    yield _pattern(f"{metric.name}_count", metric.labels) % (*escaped, below)
    yield _pattern(f"{metric.name}_sum", metric.labels) % (*escaped, _number(one.total))


def _pattern(name: str, labels: Labels) -> str:
    braces = ",".join(f'{label}="%s"' for label in labels)
    return f"{name}{{{braces}}} %s\n" if labels else f"{name} %s\n"


def _escaped(values: Labels) -> Labels:
    if not _ODD.search("".join(values)):
        return values
    return tuple(value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for value in values)


def _number(value: float) -> str:
    if value == value and abs(value) < 1e15 and value == int(value):
        return str(int(value))
    return repr(float(value)).replace("inf", "Inf").replace("nan", "NaN")
