"""The simulated cluster: a YAML file of groups of nodes, queues, costs and faults.

    nodes:
    - {count: 256, gpus: 8, gpuType: H100, capacity: on-demand, nodesPerRack: 32, racksPerBlock: 4}
    queues:
    - {name: vision, gpus: {H100/on-demand: 512}, cohort: research}
    costs: {checkpoint: 1800, grace: 60, restart: 180}
    faults: {failures: 6.5, repair: 14400}
    windows:
      nights: {start: "0 20 * * MON-FRI", duration: 36000, timeZone: Europe/Berlin}

Without `queues` every queue of the trace gets the same share of every flavour, in one cohort without limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from muster.api.builtin import FALLBACK_SECONDS
from muster.api.effective_parts import EffectiveWindow
from muster.api.terms import UTC, AtWindowEnd
from muster.api.trainingqueue import JobOrder, OwnVictims, Reclaim
from muster.api.windows import window_error
from muster.scheduling.fairness import HALF_LIFE
from muster.scheduling.snapshot import Index, Int, Levels
from muster.simulate.errors import SimulationError
from muster.simulate.yamls import read_yaml
from muster_protocol.spelling import nearest, there_are

LEVELS: Final = ("block", "rack", "host")
RESOURCES: Final = ("cpu", "memory", "nvidia.com/gpu", "pods")
GPU: Final = RESOURCES.index("nvidia.com/gpu")
GIB: Final = 2**30
PODS: Final = 110

_MOMENT: Final = "it must be a moment like 2026-01-05T00:00:00Z"
_WHOLE: Final = "it must be a whole number"
_FIELDS: Final = "it must be fields with values, like {{count: 64, gpus: 8}}"
_UNKNOWN: Final = "extra_forbidden"
_PROBLEMS: Final = {
    _UNKNOWN: "there is no such field",
    "missing": "it is not there",
    "too_short": "at least one entry is needed",
    "tuple_type": "it must be a list, each entry on a line behind '- '",
    "model_type": _FIELDS,
    "model_attributes_type": _FIELDS,
    "string_type": "it must be text: put it into quotation marks",
    "string_too_short": "it is empty",
    "string_too_long": "it is longer than {max_length} characters",
    "string_pattern_mismatch": "it must be a short name such as H100, without the kind of capacity",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": "it must be a number",
    "float_parsing": "it must be a number",
    "finite_number": "it must be a number",
    "greater_than_equal": "it must be at least {ge:g}",
    "greater_than": "it must be above {gt:g}",
    "less_than_equal": "it must be at most {le:,.10g}",
    "less_than": "it must be below {lt:,.10g}",
    "enum": "it must be {expected}",
    "literal_error": "it must be {expected}",
    "dict_type": "it must be names with fields behind them, like {{nights: {{start: 0 20 * * *, duration: 36000}}}}",
    "datetime_type": _MOMENT,
    "datetime_parsing": _MOMENT,
    "datetime_from_date_parsing": _MOMENT,
    "datetime_object_invalid": _MOMENT,
    "value_error": "{error}",
}
"""Words for people, by pydantic's type of error, with what its context has."""
_NUMBER, _BY_FLAVOUR = "a number", "by flavour"
"""How pydantic calls the two ways to write a queue's GPUs, in where an error is."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AtLeastZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
_YEAR: Final = 366 * 86_400
Rate = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
"""Per 1,000 node-days: a thousand a day of each node at most, for a simulation has to come to an end."""
Absence = Annotated[float, Field(ge=1, le=_YEAR, allow_inf_nan=False)]
"""Seconds."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class NodeGroup(_Model):
    """Nodes that are alike. Racks and blocks hold nodes of one group."""

    count: Annotated[int, Field(ge=1, le=100_000)]
    gpus: Annotated[int, Field(ge=1, le=1024)] = 8
    gpu_type: Annotated[str, Field(min_length=1, max_length=63, pattern="^[^/]+$")] = "H100"
    capacity: Literal["on-demand", "reserved", "spot"] = "on-demand"
    nodes_per_rack: Annotated[int, Field(ge=1)] = 32
    racks_per_block: Annotated[int, Field(ge=1)] = 4

    @property
    def flavour(self) -> str:
        return f"{self.gpu_type}/{self.capacity}"


class Preemption(_Model):
    """Whom a queue's jobs may ask for room, as a TrainingQueue's `preemption` says it."""

    within_queue: OwnVictims = OwnVictims.LOWER_PRIORITY
    reclaim: Reclaim = Reclaim.ANY
    when_borrowing: OwnVictims = OwnVictims.NEVER


class QueueShare(_Model):
    """What a queue may use: GPUs by flavour, or one number for the first flavour.

    Attributes:
        parent: the queue above it; one with a parent has no cohort.
        max_priority: highest priority that counts, here and in the queues below; None: any.
        order, half_life: None: the file's.
    """

    name: Annotated[str, Field(min_length=1)]
    gpus: Annotated[
        Annotated[Count, Tag(_NUMBER)] | Annotated[dict[str, Count], Tag(_BY_FLAVOUR)],
        Discriminator(lambda given: _BY_FLAVOUR if isinstance(given, dict) else _NUMBER),
    ]
    cohort: str = ""
    borrowing_limit: Count | None = None
    lending_limit: Count | None = None
    weight: Positive = 1.0
    order: JobOrder | None = None
    parent: str = ""
    preemption: Preemption = Preemption()
    max_priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    half_life: Positive | None = None


class Costs(_Model):
    """What stopping and starting takes, in seconds, the same for every policy.

    Attributes:
        checkpoint: between two periodic checkpoints; what came after the last is lost when a node fails.
        grace: from being asked to stop until the checkpoint is saved and the pods are gone. No work is done meanwhile.
        restart: from a new placement to the first new step, for jobs that ran before.
        unsaved: share of evictions in which the last checkpoint does not succeed: the work since the periodic one is
            lost.
    """

    checkpoint: Positive = 1800.0
    grace: AtLeastZero = 60.0
    restart: AtLeastZero = 180.0
    unsaved: Annotated[float, Field(ge=0, le=1)] = 0.02


class Faults(_Model):
    """
    Attributes:
        failures: per 1,000 node-days; a failed node's jobs end at once. 6.5 in A. Kokolis et al., HPCA '25.
        repair: mean seconds until it is back (exponential).
        reclaims: of spot nodes, per 1,000 node-days; their jobs are told `notice` seconds before.
        absence: mean seconds until a reclaimed node is back.
    """

    failures: Rate = 6.5
    repair: Absence = 4 * 3600.0
    reclaims: Rate = 500.0
    notice: Annotated[float, Field(ge=0, le=_YEAR, allow_inf_nan=False)] = 120.0
    absence: Absence = 2 * 3600.0


class WindowTimes(_Model):
    """When jobs of the trace that name it may run, as a TrainingJob's `window` says it; `duration` in seconds."""

    start: Annotated[str, Field(min_length=1, max_length=256)]
    duration: Annotated[int, Field(gt=0, le=_YEAR)]
    time_zone: str = UTC
    at_end: AtWindowEnd = AtWindowEnd.STOP

    @property
    def rule(self) -> EffectiveWindow:
        """In the operator's terms."""
        return EffectiveWindow(self.start, self.duration, self.time_zone, self.at_end is AtWindowEnd.STOP)

    @model_validator(mode="after")
    def _comes(self) -> WindowTimes:
        wrong = window_error(self.rule)
        if wrong:
            raise ValueError(wrong.replace("window.", "", 1))
        return self


def _aware(moment: datetime) -> datetime:
    if not 1970 <= moment.year <= 2100:
        raise ValueError(f"it must be between 1970 and 2100, not in {moment.year}")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


class ClusterFile(_Model):
    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1)]
    queues: tuple[QueueShare, ...] = ()
    order: JobOrder = JobOrder.SHORTEST_EXPECTED
    half_life: Positive = HALF_LIFE
    """Seconds after which past use of a queue counts half."""
    fallback_after: AtLeastZero = float(FALLBACK_SECONDS)
    """Seconds until a job that names several kinds of capacity takes the second, and from then until the third."""
    costs: Costs = Costs()
    faults: Faults = Faults()
    windows: dict[Annotated[str, Field(min_length=1)], WindowTimes] = {}
    begins: Annotated[datetime, AfterValidator(_aware)] = datetime(2024, 1, 1, tzinfo=timezone.utc)
    """The moment from which the trace counts its seconds: a Monday, as in synthetic traces."""


_PARTS: Final[dict[str, type[_Model]]] = {
    "nodes": NodeGroup,
    "queues": QueueShare,
    "costs": Costs,
    "faults": Faults,
    "windows": WindowTimes,
}


@dataclass(frozen=True)
class Cluster:
    """The cluster as arrays.

    Attributes:
        names: N.
        gpus: N.
        allocatable: N x R.
        domains: N x L, as `muster.scheduling.snapshot.Nodes.domains`.
        flavours: V, index 0 the one without accelerators.
        flavour: N.
        per_gpu: R, what a job takes of each resource for each GPU: no node runs out of anything before its GPUs.
    """

    file: ClusterFile
    names: tuple[str, ...]
    gpus: Int
    allocatable: Int
    domains: Index
    levels: Levels
    flavours: tuple[str, ...]
    flavour: Index
    per_gpu: Int

    @property
    def gpus_of_flavours(self) -> Int:
        """V."""
        return np.bincount(self.flavour, self.gpus, len(self.flavours)).astype(np.int64)


def read(path: Path) -> Cluster:
    """Read a cluster file.

    Raises:
        SimulationError: it is not there, or says something impossible.
    """
    raw = read_yaml(path, "the cluster file")
    if not isinstance(raw, dict):
        raise SimulationError(
            f"{path} must name the nodes, like `nodes: [{{count: 64, gpus: 8}}]`; see docs/simulator.md"
        )
    try:
        return build(ClusterFile.model_validate(raw))
    except ValidationError as error:
        raise SimulationError(f"{path}: {_told(error)}; docs/simulator.md lists the fields") from error


def _told(error: ValidationError) -> str:
    """Where the first thing that is wrong stands, what is wrong with it, and what stands there."""
    errors = error.errors()
    first = next((one for one in errors if one["type"] == _UNKNOWN), errors[0])  # what is missing may stand there so
    where = ".".join(str(part) for part in first["loc"] if part not in (_NUMBER, _BY_FLAVOUR)) or "the file"
    words = _PROBLEMS.get(first["type"])
    problem = words.format(**first.get("ctx", {})) if words else first["msg"]
    given = first["input"]
    shown = f", not {given!r}" if "must be" in problem and isinstance(given, str | int | float) else ""
    return f"{where}: {problem}{shown}{_meant(first['loc']) if first['type'] == _UNKNOWN else ''}"


def _meant(place: tuple[int | str, ...]) -> str:
    """The field that was meant by one that there is not, in parentheses; "" where none is near."""
    model = _PARTS[str(place[0])] if len(place) > 1 else ClusterFile
    if "preemption" in place[:-1]:
        model = Preemption
    near = nearest(str(place[-1]), (field.alias or name for name, field in model.model_fields.items()))
    return f" (did you mean {near}?)" if near is not None else ""


def build(file: ClusterFile) -> Cluster:
    """Lay the nodes out: each group fills its own racks and blocks."""
    flavours = ["", *dict.fromkeys(group.flavour for group in file.nodes)]
    gpus: list[int] = []
    flavour: list[int] = []
    domains: list[tuple[int, int, int]] = []
    racks = blocks = 0
    for group in file.nodes:
        for index in range(group.count):
            rack = index // group.nodes_per_rack
            domains.append((blocks + rack // group.racks_per_block, racks + rack, len(domains)))
        racks, blocks = domains[-1][1] + 1, domains[-1][0] + 1
        gpus += [group.gpus] * group.count
        flavour += [flavours.index(group.flavour)] * group.count
    names = tuple(f"node-{index}" for index in range(len(gpus)))
    per_gpu = np.array([16_000, 128 * GIB, 1, 0], dtype=np.int64)
    allocatable = np.outer(gpus, per_gpu).astype(np.int64)
    allocatable[:, RESOURCES.index("pods")] = PODS
    levels = Levels(
        LEVELS,
        (_numbered("block", blocks), _numbered("rack", racks), tuple(f"host-{index}" for index in range(len(gpus)))),
    )
    return Cluster(
        file=file,
        names=names,
        gpus=np.array(gpus, dtype=np.int64),
        allocatable=allocatable,
        domains=np.array(domains, dtype=np.int32),
        levels=levels,
        flavours=tuple(flavours),
        flavour=np.array(flavour, dtype=np.int32),
        per_gpu=per_gpu,
    )


def _numbered(word: str, count: int) -> tuple[str, ...]:
    return tuple(f"{word}-{index}" for index in range(count))


def _equal_share(cluster: Cluster, at: int, of: int) -> dict[str, int]:
    """GPUs by flavour of queue number `at` of so many. The first get what is left over: all have the whole cluster
    together, or a job that needs all of it could never start."""
    there = zip(cluster.flavours[1:], cluster.gpus_of_flavours[1:].tolist(), strict=True)
    return {name: gpus // of + (at < gpus % of) for name, gpus in there}


def queue_shares(cluster: Cluster, wanted: Sequence[str]) -> tuple[QueueShare, ...]:
    """The queues of the file, or equal shares for all that the trace names.

    Raises:
        SimulationError: the trace names a queue that the file lacks, a queue names a flavour that no node has, two
            queues have one name, or their parents are no tree.
    """
    if not cluster.file.queues:
        return tuple(
            QueueShare(name=name, gpus=_equal_share(cluster, at, len(wanted)), cohort="all")
            for at, name in enumerate(wanted)
        )
    names = [queue.name for queue in cluster.file.queues]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise SimulationError(f"the cluster file has more than one queue {doubled}; leave one of them")
    _check_parents(cluster.file.queues)
    known = set(names)
    missing = sorted(set(wanted) - known)
    if missing:
        raise SimulationError(
            f"the trace's queue {missing[0]} is not among the cluster file's queues ({', '.join(sorted(known))}); "
            "add it there, or leave `queues` out for equal shares"
        )
    for queue in cluster.file.queues:
        for flavour in queue.gpus if isinstance(queue.gpus, dict) else ():
            if flavour not in cluster.flavours[1:]:
                there_are = ", ".join(cluster.flavours[1:])
                raise SimulationError(f"queue {queue.name} has GPUs of {flavour}, which no node has; name {there_are}")
    return cluster.file.queues


def _check_parents(queues: Sequence[QueueShare]) -> None:
    parents = {queue.name: queue.parent for queue in queues}
    for queue in queues:
        if queue.parent and queue.cohort:
            raise SimulationError(
                f"queue {queue.name} has a parent and a cohort; a queue has one place: keep one of them"
            )
        if queue.parent and queue.parent not in parents:
            raise SimulationError(
                f"queue {queue.name} has the parent {queue.parent}; {there_are(queue.parent, parents)}"
            )
        way = [queue.name]
        while above := parents.get(way[-1], ""):
            if above in way:
                circle = " -> ".join([*way[way.index(above) :], above])
                raise SimulationError(f"the queues' parents lead in a circle ({circle}); take one of them out")
            way.append(above)
