"""Between the jobs and the planner: what goes into a snapshot, and what a plan means for a job's status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from muster.api import names
from muster.api.common import find_condition
from muster.api.effective import EffectiveSpec, is_elastic
from muster.api.jobparts import JobDefaults
from muster.api.jobparts import TopologyMode as SpecMode
from muster.api.names import ConditionType, Reason
from muster.api.placement import Placement, Promise, Stop, spares_by_index
from muster.api.queue_position import QueuePosition
from muster.api.topology import Topology
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import MAX_SIZES, Size, TrainingJobStatus
from muster.cluster.eligibility import NodeFilter
from muster.cluster.hindrances import PODS_ARE_MADE, keeps_pods
from muster.cluster.jobs import PLAIN_TERMS, AlternativeInput, BeyondInput, JobInput, TermsInput
from muster.cluster.snapshot import LevelInput
from muster.cluster.status import MOVES, Draft, reason_of
from muster.controllers.flavours import Choice
from muster.controllers.lifecycle.capacity import not_needed
from muster.controllers.lifecycle.turn import write_stop
from muster.controllers.telling import Word
from muster.controllers.terms import NO_BOUNDS, Bounds, length
from muster.scheduling.amounts import few
from muster.scheduling.plan import MoveReason, Waiting, WaitReason
from muster.scheduling.snapshot import FOREVER, NONE, Index, Snapshot, TopologyMode
from muster_protocol.counts import counted

HOST_ONLY: Final = (LevelInput("host", names.HOST_LABEL),)
"""The levels of a cluster without a Topology: every node has a name."""

_MODES: Final = {
    SpecMode.REQUIRED: TopologyMode.REQUIRED,
    SpecMode.PREFERRED: TopologyMode.PREFERRED,
    SpecMode.UNCONSTRAINED: TopologyMode.UNCONSTRAINED,
}
STARTED: Final = "Started"
"""Why a gang has its size that has waited for room."""
SIZE_FAILED: Final = "SizeFailed"
"""Why a gang has its size whose script failed with the one before."""
_STARTS_AGAIN: Final = frozenset({Reason.RESTARTING.value, Reason.BACKOFF.value})
_NODES_SHOWN: Final = 8
_HOLDERS_SHOWN: Final = 3


def levels_of(topology: Topology | None) -> tuple[LevelInput, ...]:
    """Widest first."""
    if topology is None:
        return HOST_ONLY
    return tuple(LevelInput(level.name, level.label) for level in topology.spec.levels)


def pending_input(
    job: TrainingJob,
    spec: EffectiveSpec,
    *,
    request: Mapping[str, int],
    node_filter: NodeFilter,
    choices: Sequence[Choice],
    priority: int,
    levels: Sequence[LevelInput],
    times: Bounds = NO_BOUNDS,
    avoided: Iterable[str] = (),
    promised: tuple[str, ...] = (),
    promised_base: int = 0,
    beyond: Choice | None = None,
    had: Placement | Promise | None = None,
) -> JobInput:
    """A job that waits, with what a dry run made of its pod.

    Args:
        choices: of a gang with a safe base those of that.
        promised_base: how many of the `promised` are on that.
        beyond: where its other workers run.
        had: the job's placement, or the promise to it.
    """
    mode, level = mode_and_level(spec, levels)
    avoid, since = frozenset(avoided), submitted(job)
    filters = [_filter(node_filter, spec, choice, avoid) for choice in choices]
    elastic, workers = spec.min_replicas < spec.max_replicas, spec.replicas
    fixed = job.status.fixed_size
    if elastic and fixed is not None and spec.min_replicas <= fixed.workers <= spec.max_replicas:
        elastic, workers = False, fixed.workers
    sizes, more = (spec.min_replicas, spec.max_replicas, spec.step) if elastic else None, None
    if beyond is not None and (elastic or (had is not None and base_of(had) < had.workers)):
        more = BeyondInput(_filter(node_filter, spec, beyond, avoid), beyond.flavour)
        more = _sized(more, spec, had) if elastic else more
    if elastic and more is not None:
        sizes, workers = None, spec.min_replicas
    if fixed is not None and job.status.placement is None:
        sizes = workers, workers, workers  # nor is it to be told that it would start with fewer: it would fail
    elif sizes is None and had is None and spec.step > 1:
        sizes = workers, workers, spec.step  # where fewer would help it, these are whole replicas of its model
    return JobInput(
        uid=job.metadata.uid,
        namespace=job.metadata.namespace,
        queue=spec.queue,
        workers=workers,
        request=request,
        node_filter=filters[0],
        flavour=choices[0].flavour,
        priority=priority,
        submitted=since,
        mode=mode,
        level=level,
        promised=promised,
        sizes=sizes,
        partial=spec.partial,
        beyond=more,
        promised_base=promised_base,
        terms=_terms(
            spec, levels, choices, filters, since, times, length(spec, job.status), saves=saves(spec, job.status)
        ),
    )


def base_of(had: Placement | Promise | None) -> int:
    """How many workers of a placement or promise are its base: all, where it says nothing else."""
    return 0 if had is None else had.workers if had.base is None else min(had.base, had.workers)


def _sized(beyond: BeyondInput, spec: EffectiveSpec, had: Placement | Promise | None) -> BeyondInput:
    """With how many there may be beyond the base of a gang: its spec may have been edited since it started."""
    base = base_of(had) or spec.min_replicas
    least = max(0, spec.min_replicas - base)
    most = least + max(0, spec.max_replicas - base - least) // spec.step * spec.step
    if had is not None and beyond.node_filter.capacity != (spec.beyond,):
        most = min(most, had.workers - base)  # on nodes of a kind that it does not ask for any more
    return replace(beyond, wish=spec.replicas - spec.min_replicas, least=least, most=most, step=spec.step)


def _filter(bare: NodeFilter, spec: EffectiveSpec, choice: Choice, avoided: frozenset[str]) -> NodeFilter:
    if not spec.gpus_per_worker:
        return replace(bare, capacity=choice.capacity, avoided=avoided)
    gpu_type = choice.flavour.partition("/")[0]
    product = spec.gpu_type if spec.gpu_type.lower() != gpu_type.lower() and not choice.renamed else ""
    return replace(bare, gpu_type=gpu_type, product=product, capacity=choice.capacity, avoided=avoided)


def _terms(
    spec: EffectiveSpec,
    levels: Sequence[LevelInput],
    choices: Sequence[Choice],
    filters: Sequence[NodeFilter],
    since: float,
    times: Bounds,
    expected: float,
    *,
    saves: bool,
) -> TermsInput:
    """What the job allows and demands. Levels that the cluster does not have are told by `admission`."""
    known = {level.name for level in levels}
    others = [
        AlternativeInput(node_filter, choice.flavour, since + spec.fallback_after * number)
        for number, (choice, node_filter) in enumerate(zip(choices, filters, strict=True))
    ]
    terms = TermsInput(
        preemptible=spec.preemptible,
        saves=saves,
        slices=tuple(item for item in spec.slices if item[1] in known),
        balanced=spec.balanced if spec.balanced in known else "",
        spares=spec.spares,
        alternatives=tuple(others[1:]),
        opens=times.opens,
        closes=times.closes,
        reopens=times.reopens,
        limit=times.limit,
        estimate=times.estimate,
        length=expected,
        deadline=FOREVER if spec.deadline is None else spec.deadline.timestamp(),
    )
    return PLAIN_TERMS if terms == PLAIN_TERMS else terms


def saves(spec: EffectiveSpec, status: TrainingJobStatus) -> bool:
    """Whether the job writes checkpoints: it says where to, or is seen to have committed one."""
    return spec.checkpoint is not None or status.checkpoint is not None


def mode_and_level(spec: EffectiveSpec, levels: Sequence[LevelInput]) -> tuple[TopologyMode, str]:
    """`preferred` without a level starts at the narrowest. A level that the cluster has no more is none: what runs
    stays where it is, for nothing tells which domain must hold it. What waits is told by `admission`."""
    mode = _MODES[spec.mode]
    if mode is TopologyMode.UNCONSTRAINED or not levels:
        return TopologyMode.UNCONSTRAINED, ""
    if spec.level in {level.name for level in levels}:
        return mode, spec.level
    return mode, levels[-1].name if mode is TopologyMode.PREFERRED else ""


def submitted(job: TrainingJob) -> float:
    moment = job.status.submitted_at or job.metadata.creation_timestamp
    return moment.timestamp() if moment else 0.0


def placement_of(
    snapshot: Snapshot, nodes: Index, generation: int, now: datetime, *, spares: int = 0, **fields: Any
) -> Placement:
    """The planner's choice as it is written down: the last `spares` nodes are the spares'; `fields` are the others of
    the model."""
    named = [snapshot.nodes.names[node] for node in nodes]
    workers = len(named) - spares
    return Placement.of(
        generation,
        named[:workers],
        spares=named[workers:],
        domain=domain_of(snapshot, nodes[:workers]),
        placed_at=now,
        **fields,
    )


def promised(
    job: TrainingJob,
    promise: Promise,
    victims: Mapping[str, str],
    stop: Stop | None,
    now: datetime,
    *,
    defaults: JobDefaults | None = None,
) -> TrainingJobStatus:
    """The status with `promise` in it, as it is written before anybody is asked to leave.

    Args:
        defaults: what the queue's template has filled in.
        victims: `namespace/name` by UID, for people.
        stop: set when the job itself runs, and stops to go on there.
    """
    draft = Draft(job, now)
    draft.set(promise=promise, defaults=defaults)
    if stop is not None:
        write_stop(draft, stop)
        return draft.done()
    message = promise_message(promise, victims)
    draft.set(queue=QueuePosition(position=1, reason=WaitReason.PREEMPTING.value, message=message))
    draft.condition(ConditionType.ADMITTED, False, WaitReason.PREEMPTING.value, message)
    return draft.done()


def promise_message(promise: Promise, victims: Mapping[str, str]) -> str:
    """One sentence: how much room is kept, who leaves it, and what that costs."""
    room = f"room for {counted(promise.workers, 'worker')} on {counted(len(promise.nodes), 'node')} is kept for the job"
    leaving = [victims.get(victim.uid, victim.uid) for victim in promise.victims]
    if not leaving:
        return room
    shown = ", ".join(leaving[:_NODES_SHOWN]) + (" and more" if len(leaving) > _NODES_SHOWN else "")
    lost = sum(victim.lost for victim in promise.victims)
    leave = "stops and leaves" if len(leaving) == 1 else "stop and leave"
    cost = f"this costs up to {lost} GPU-seconds, of lost work and restarts"
    return f"{room}; {counted(len(leaving), 'job')} {leave} it: {shown}; {cost}"


def domain_of(snapshot: Snapshot, nodes: Index) -> str:
    """The narrowest domain that holds all of `nodes`, like `rack rack-3`, or ""."""
    for level in reversed(range(len(snapshot.levels.names))):
        found = {int(snapshot.nodes.domains[node, level]) for node in nodes}
        if len(found) == 1 and NONE not in found:
            return f"{snapshot.levels.names[level]} {snapshot.levels.domain_names[level][found.pop()]}"
    return ""


def admitted(
    job: TrainingJob,
    placement: Placement,
    now: datetime,
    *,
    remark: str = "",
    defaults: JobDefaults | None = None,
    priority: int | None = None,
) -> TrainingJobStatus:
    """The status with `placement` in it, as it is written before any pod is made, with `remark` behind its sentence,
    what the queue's template has filled in, and the priority that counted."""
    draft = Draft(job, now)
    draft.set(
        sizes=_sizes(job, placement.workers, now),
        placement=placement,
        placements=placement.generation,
        stop=None,
        promise=None,
        queue=_last_try(job),
        not_before=None,
        replicas=placement.workers,
        ready=0,
        incarnation=None,
        nodes=nodes_in_short(placement),
        defaults=defaults,
        priority=priority,
    )
    draft.condition(ConditionType.ADMITTED, True, Reason.ADMITTED.value, f"{where(placement)}{remark}")
    not_needed(draft, "the job has its nodes")
    draft.condition(ConditionType.PODS_READY, False, Reason.PODS_STARTING.value, PODS_ARE_MADE)
    draft.condition(ConditionType.RUNNING, False, Reason.PODS_STARTING.value, PODS_ARE_MADE)
    return draft.done()


def _last_try(job: TrainingJob) -> QueuePosition | None:
    """What kept the pods of the placement before from starting, unless the spec has changed since: it is likely to come
    again, and a column that is empty in between tells of a change that there is not."""
    told = find_condition(job.status.conditions, ConditionType.PODS_READY.value)
    if told is None or not keeps_pods(told.reason) or told.observed_generation != job.metadata.generation:
        return None
    return QueuePosition(reason=told.reason, message=told.message)


def last_start(job: TrainingJob) -> str:
    """What is told, behind the planner's sentence, of a job whose last placement was taken back for what keeps its
    pods from starting; "" for others."""
    tried = _last_try(job) if job.status.withdrawals else None
    return f"; its last start was taken back: {tried.message}" if tried is not None else ""


def _sizes(job: TrainingJob, workers: int, now: datetime) -> tuple[Size, ...]:
    """The sizes of a job that is elastic, or was, once it is placed with so many workers."""
    sizes, asked = job.status.sizes, job.spec.workers
    if not (sizes or is_elastic(asked)) or (sizes and sizes[-1].workers == workers):
        return sizes
    why, reason = reason_of(job.status, ConditionType.ADMITTED), STARTED
    fixed = job.status.fixed_size
    if sizes and fixed is not None and fixed.failed == sizes[-1].workers:
        reason = SIZE_FAILED
    elif sizes and workers < sizes[-1].workers <= (asked.max or asked.replicas) and why in _STARTS_AGAIN:
        reason = MoveReason.WORKERS_LOST.value  # a whole restart found no nodes in place of those that are gone
    elif sizes and why in MOVES:
        reason = why
    return (*sizes, Size(workers=workers, since=now, reason=reason))[-MAX_SIZES:]


def where(placement: Placement) -> str:
    """One sentence: how many workers are on which nodes."""
    alone = len(placement.nodes) == 1 and placement.domain.endswith(f" {placement.nodes[0].node}")
    within = f" in {placement.domain}" if placement.domain and not alone else ""  # a host says no more than its node
    kept = ", ".join(spares_by_index(placement.spares).values())
    spares = f"; room for {counted(placement.held - placement.workers, 'spare')} is kept on {kept}" if kept else ""
    workers, nodes = counted(placement.workers, "worker"), counted(len(placement.nodes), "node")
    return f"{workers} on {nodes}{within}: {nodes_in_short(placement)}{spares}{_base(placement)}"


def _base(placement: Placement) -> str:
    if placement.base is None:
        return ""
    kind = placement.flavour.partition("/")[2]
    more = placement.workers - placement.base
    beyond = f"{counted(more, 'worker')} beyond it can be taken back" if more else "there is none beyond it"
    first = "the first is" if placement.base == 1 else f"the first {placement.base} are"
    return f"; {first} its base{f' on {kind} nodes' if kind else ''}, {beyond}"


def nodes_in_short(placement: Placement) -> str:
    """The first nodes of a placement."""
    used = [item.node for item in placement.nodes]
    return few(used[:_NODES_SHOWN], len(used))[:1024]


def waiting_status(
    job: TrainingJob, word: Word, now: datetime, *, defaults: JobDefaults | None = None
) -> TrainingJobStatus:
    """The status of a job that waits, with the reason in the condition and for people in `status.queue`."""
    draft = Draft(job, now)
    avoided = tuple(item for item in job.status.avoided if item.until > now)
    draft.set(queue=word.told(), avoided=avoided, not_before=None, defaults=defaults)
    draft.condition(ConditionType.ADMITTED, False, word.reason, word.message)
    return draft.done()


def blockers(waiting: Waiting, names_by_uid: Mapping[str, str]) -> str:
    """The planner's message with the names in it: of the job that is in the way, or of those that hold the quota."""
    if waiting.names_holders:
        known = [names_by_uid[uid] for uid in waiting.holders[:_HOLDERS_SHOWN] if uid in names_by_uid]
        more = len(waiting.holders) - len(known)
        return (
            f"{waiting.message}: {', '.join(known)}{f' and {more} more' if more else ''}" if known else waiting.message
        )
    blocker = names_by_uid.get(waiting.blocker, "")
    if not blocker or blocker in waiting.message:
        return waiting.message
    return f"{waiting.message} (kept for {blocker})"
