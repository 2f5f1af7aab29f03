"""TrainingQueues as the planner needs them, and what is told of each: whether it works, and who is above it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Final

import numpy as np

from muster.api.names import Reason
from muster.api.terms import MonthlyBudget
from muster.api.trainingqueue import FairShare, JobOrder, OwnVictims, Quota, Reclaim, StopPolicy, TrainingQueue
from muster.cluster.gpus import named_type, named_types
from muster.cluster.quantities import limit
from muster.cluster.queues import ANY_PRIORITY, Lineage, QueueInput, QuotaInput, lineage
from muster.cluster.snapshot import NO_ACCELERATOR, JobInput
from muster.cluster.views import NodeView
from muster.controllers.accounts import Spent
from muster.scheduling.fairness import HALF_LIFE, decayed
from muster.scheduling.snapshot import NONE, Preempts, Snapshot
from muster.sizing.price_file import slip
from muster.telling.usage import way_up
from muster_protocol.durations import parse_duration
from muster_protocol.spelling import nearest

_PREEMPTS: Final = {
    OwnVictims.NEVER: Preempts.NEVER,
    OwnVictims.LOWER_PRIORITY: Preempts.LOWER_PRIORITY,
    Reclaim.NEVER: Preempts.NEVER,
    Reclaim.LOWER_PRIORITY: Preempts.LOWER_PRIORITY,
    Reclaim.ANY: Preempts.ANY,
}
_DEFAULTS: Final = QueueInput("")
_TAKES_NONE: Final = "takes no jobs: "
_DRAINED: Final = "what runs and is preemptible saves and stops"


@dataclass(frozen=True)
class Standing:
    """What a queue's conditions say.

    Attributes:
        ready, reason, message: of `Ready`, which `kubectl get` prints: what is wrong with a parent is told there, too.
        parent_reason, parent_message: of `ParentFound`; None for a queue that names no parent.
    """

    ready: bool
    reason: Reason
    message: str
    parent_reason: Reason | None
    parent_message: str


@dataclass(frozen=True)
class Ground:
    """What nodes have of what quotas and budgets name.

    Attributes:
        gpu_types: those that nodes have now.
        lacking: resources with a domain that quotas or jobs name, and no node has.
        resources: those with a domain that nodes have; empty when nothing is lacking.
    """

    gpu_types: tuple[str, ...] = ()
    lacking: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()

    @classmethod
    def of(cls, snapshot: Snapshot, nodes: Iterable[NodeView]) -> Ground:
        flavours = {snapshot.flavours[row] for row in np.unique(snapshot.nodes.flavours).tolist() if row != NONE}
        types = tuple(sorted({flavour.rpartition("/")[0] for flavour in flavours}))
        there: list[bool] = np.any(snapshot.nodes.allocatable, axis=0).tolist()
        named = zip(snapshot.resources, there, strict=True)
        lacking = frozenset(name for name, found in named if "/" in name and not found)
        if not lacking:
            return cls(types)
        known = {name for node in nodes for name, amount in node.allocatable if amount and "/" in name}
        return cls(types, lacking, frozenset(known))


def queue_inputs(
    queues: Iterable[TrainingQueue], now: datetime, gpu_types: Sequence[str] = ()
) -> tuple[list[QueueInput], dict[str, str]]:
    """For the planner, and by name what is wrong with a spec: such a queue takes no jobs.

    Args:
        gpu_types: those that nodes have now.
    """
    types = tuple(gpu_types)
    inputs, errors = [], {}
    for queue in queues:
        try:
            inputs.append(queue_input(queue, now, types))
        except ValueError as error:
            errors[queue.metadata.name] = f"{_TAKES_NONE}{error}"
            spec = queue.spec
            name, cohort, parent = queue.metadata.name, spec.cohort or "", spec.parent or ""
            inputs.append(QueueInput(name, cohort, parent=parent, open=False, certain=False))
    return inputs, errors


def queue_input(queue: TrainingQueue, now: datetime, gpu_types: tuple[str, ...] = ()) -> QueueInput:
    """Raises ValueError for a quantity that can't be read."""
    spec, preemption = queue.spec, queue.spec.preemption
    return QueueInput(
        queue.metadata.name,
        spec.cohort or "",
        _lines(spec.quotas or (), gpu_types),
        open=spec.stop_policy is StopPolicy.NONE,
        parent=spec.parent or "",
        weight=float(spec.weight),
        share_used=past_share(queue, now),
        priority_max=ANY_PRIORITY if spec.max_priority is None else spec.max_priority,
        within=_PREEMPTS[preemption.within_queue] if preemption else _DEFAULTS.within,
        reclaim=_PREEMPTS[preemption.reclaim] if preemption else _DEFAULTS.reclaim,
        borrower=_PREEMPTS[preemption.when_borrowing] if preemption else _DEFAULTS.borrower,
        drain=spec.stop_policy is StopPolicy.HOLD_AND_DRAIN,
        shortest=spec.order is JobOrder.SHORTEST_EXPECTED,
    )


@lru_cache(maxsize=4096)
def _lines(quotas: tuple[Quota, ...], gpu_types: tuple[str, ...]) -> tuple[QuotaInput, ...]:
    """Kept, for a thousand queues are looked at for each plan, and their quotas hardly ever change."""
    types = named_types((quota.gpu_type for quota in quotas), gpu_types)
    lines: dict[tuple[str, str], QuotaInput] = {}
    for quota in quotas:
        flavour = f"{types[quota.gpu_type]}/{quota.capacity.value}" if quota.gpu_type else NO_ACCELERATOR
        for resource in quota.resources:
            line = QuotaInput(
                flavour=flavour,
                resource=resource.name,
                nominal=limit(resource.name, resource.nominal),
                borrowing=_limit(resource.name, resource.borrowing_limit),
                lending=_limit(resource.name, resource.lending_limit),
            )
            before = lines.get((flavour, resource.name))
            lines[flavour, resource.name] = line if before is None else _together(before, line)
    return tuple(lines.values())


def _together(one: QuotaInput, other: QuotaInput) -> QuotaInput:
    """Two products of one GPU type count as that type: the queue has what both lines give."""

    def both(first: int | None, second: int | None) -> int | None:
        return None if first is None or second is None else first + second

    return replace(
        one,
        nominal=one.nominal + other.nominal,
        borrowing=both(one.borrowing, other.borrowing),
        lending=both(one.lending, other.lending),
    )


def _limit(resource: str, quantity: str | None) -> int | None:
    return None if quantity is None else limit(resource, quantity)


def half_life(queue: TrainingQueue) -> float:
    """Seconds after which the queue's past use counts half."""
    said = queue.spec.usage_half_life
    return HALF_LIFE if said is None else max(1.0, parse_duration(said))


def past_share(queue: TrainingQueue, now: datetime) -> float:
    """The decayed mean of the queue's share up to now. Its status has the mean up to the last change of its share, and
    the share since then, so that nothing needs to be written while the share stays the same."""
    found = queue.status.fair_share
    if found is None:
        return 0.0
    return decayed(float(found.mean), float(found.share), (now - found.at).total_seconds(), half_life(queue))


def fair_share(queue: TrainingQueue, share: float, now: datetime) -> FairShare:
    """What the status should say when the queue and those below it hold `share`; unchanged while that is the same."""
    # Four GPUs of a hundred thousand are 0.00004, and have a past, too.
    found, text = queue.status.fair_share, f"{share:.{6 if 0 < share < 0.01 else 4}f}"
    if found is not None and found.share == text:
        return found
    return FairShare(share=text, mean=f"{past_share(queue, now):.6f}", at=now)


def standings(
    queues: Mapping[str, TrainingQueue],
    errors: Mapping[str, str],
    spent: Mapping[str, Spent],
    ground: Ground | None = None,
) -> dict[str, Standing]:
    """By name. `errors`: what is wrong with a queue's spec. `spent`: of queues whose budget, or that of one above them,
    is used up. `ground`: left out, nothing is told of what nodes lack."""
    line = lineage({name: queue.spec.parent or "" for name, queue in queues.items()})
    return {
        name: _standing(
            queues[name], queues, _ready(name, queues, errors, line, spent.get(name), ground), line.faults.get(name)
        )
        for name in queues
    }


def _standing(
    queue: TrainingQueue, queues: Mapping[str, TrainingQueue], ready: tuple[Reason, str], fault: str | None
) -> Standing:
    reason, message = ready
    open_, parent = reason is Reason.READY, queue.spec.parent
    if parent is None:
        return Standing(open_, reason, message, None, "")
    if fault is None:
        return Standing(open_, reason, message, Reason.PARENT_FOUND, f"lends to {parent} and borrows from it")
    found = _fault(parent, queues)
    return Standing(open_, reason, message if reason is found else f"{message}; {fault}", found, fault)


def _fault(parent: str, queues: Mapping[str, TrainingQueue]) -> Reason:
    return Reason.PARENT_NOT_FOUND if parent not in queues else Reason.PARENT_CIRCLE


def _ready(
    name: str,
    queues: Mapping[str, TrainingQueue],
    errors: Mapping[str, str],
    line: Lineage,
    spent: Spent | None,
    ground: Ground | None,
) -> tuple[Reason, str]:
    """Of the first on the way up that does not work; they take their whole branch with them. One that is drained comes
    before those below that are held, for it stops what runs. A budget that is used up comes last: it mends itself."""
    one, held = name, ""
    while one:
        whose = "its" if one == name else f"TrainingQueue {one!r} above it: its"
        policy = queues[one].spec.stop_policy
        if one in errors and not held:
            return Reason.INVALID_SPEC, errors[one] if one == name else f"TrainingQueue {one!r} above it {errors[one]}"
        if policy is StopPolicy.HOLD_AND_DRAIN and one not in errors:
            also = f"; {held} stopPolicy is hold, too" if held else ""
            told = f"{whose} stopPolicy is holdAndDrain: {_DRAINED}, nothing starts until it is set to none"
            return Reason.DRAINED, f"{told}{also}"
        if policy is StopPolicy.HOLD:
            held = held or whose
        elif one in line.faults and not held:
            who = "" if one == name else f"TrainingQueue {one!r} above it "
            return _fault(queues[one].spec.parent or "", queues), f"{who}{_TAKES_NONE}{line.faults[one]}"
        one = line.parents.get(one, "")
    if held:
        drains = spent is not None and spent.drains
        runs = _DRAINED if drains else "what runs goes on"
        told = f"{held} stopPolicy is hold: {runs}, nothing new starts until it is set to none"
        return Reason.HELD, f"{told}; {spent.message}" if spent is not None and drains else told
    if spent is not None:
        runs = _DRAINED if spent.drains else "what runs goes on"
        return Reason.BUDGET_EXHAUSTED, f"{spent.message}; {runs}"
    quotas, budgets = queues[name].spec.quotas or (), queues[name].spec.budgets or ()
    unknown = _unknown(quotas, budgets, ground) if ground is not None else ""
    return Reason.READY, f"takes jobs{_idle_limits(queues[name])}{unknown}"


@lru_cache(maxsize=4096)
def _unknown(quotas: tuple[Quota, ...], budgets: tuple[MonthlyBudget, ...], ground: Ground) -> str:
    """What is told of GPU types and resources that no node has: a typing error switches a quota off, or shuts the
    queue. No more than that, for a cluster may grow from nothing."""
    types = named_types((quota.gpu_type for quota in quotas), ground.gpu_types)
    types |= {
        each.gpu_type: named_type(each.gpu_type, ground.gpu_types) for each in budgets if each.gpu_type not in types
    }
    lacking = dict.fromkeys(resource.name for quota in quotas for resource in quota.resources)
    told = [
        f"no node has GPUs of type {name!r} now{_did_you_mean(slip(name), ground.gpu_types)}"
        for name, meant in types.items()
        if name and meant not in ground.gpu_types
    ]
    told += [
        f"no node has the resource {name!r} now{_did_you_mean(name, ground.resources)}"
        for name in lacking
        if name in ground.lacking
    ]
    return "".join(f"; {one}" for one in told)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    meant = nearest(name, known)
    return f" (did you mean {meant!r}?)" if meant is not None else ""


def _idle_limits(queue: TrainingQueue) -> str:
    """What is told of a queue whose limits of borrowing and lending limit nothing: nobody is beside it."""
    if queue.spec.parent or queue.spec.cohort:
        return ""
    lines = [resource for quota in queue.spec.quotas or () for resource in quota.resources]
    borrowing = any(line.borrowing_limit is not None for line in lines)
    lending = any(line.lending_limit is not None for line in lines)
    names = " and ".join(["borrowingLimit"] * borrowing + ["lendingLimit"] * lending)
    return f"; its quotas' {names} does nothing without spec.parent or spec.cohort" if names else ""


def why_closed(name: str, standing: Standing | None) -> str:
    """What a job of a queue that takes no jobs is told; "" of one that does, or is not known."""
    if standing is None or standing.ready:
        return ""
    return f"queue {name} takes no new jobs: {standing.message.removeprefix(_TAKES_NONE)}"


def why_drained(name: str, queues: Mapping[str, TrainingQueue], spent: Spent | None) -> str:
    """The cause for which what runs in a queue is stopped, and what ends it; "" where none is known any more."""
    for queue in way_up(name, queues):
        one = queue.metadata.name
        if queue.spec.stop_policy is StopPolicy.HOLD_AND_DRAIN:
            above = "" if one == name else f" above its queue {name!r}"
            whose = f"the stopPolicy of TrainingQueue {one!r}{above}"
            return f"{whose} is holdAndDrain: nothing starts until it is set to none"
    return spent.message if spent is not None and spent.drains else ""


def ceilings(snapshot: Snapshot) -> dict[str, int]:
    """The highest priority that counts, by name of the queues that have one."""
    limits = snapshot.queues.priorities_max
    return {snapshot.queues.names[row]: int(limits[row]) for row in np.flatnonzero(limits < ANY_PRIORITY).tolist()}


def priority_remark(job: JobInput, highest: Mapping[str, int]) -> str:
    """What is told, behind a sentence, of a job whose priority is above the highest of its queue; "" for others."""
    ceiling = highest.get(job.queue)
    if ceiling is None or job.priority <= ceiling:
        return ""
    return f"; its priority {job.priority} counts as {ceiling}, the highest that TrainingQueue {job.queue!r} allows"
