"""Which nodes are put into quarantine and which let out. Pure: facts in, decisions out.

A node is judged by the gangs that it hurt, not by how often: a job that fails ten times in one placement says no more
than one failure does. What a script could bring about (a hang, a slow rank) counts once for each job. And only a share
of the nodes of a kind may be in quarantine at once: an image that hangs everywhere must not empty the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from muster.api.nodefaults import SURE
from muster.api.trainingjob import TrainingJob

_SHOWN: Final = 3
"""Faults that are told one by one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One job's word against a node. `job` is its UID, `name` is `namespace/name`."""

    node: str
    cause: str
    at: datetime
    job: str
    placement: int
    name: str = ""
    message: str = ""


def faults_of(job: TrainingJob) -> tuple[Fault, ...]:
    """What the job says against its nodes."""
    name = f"{job.metadata.namespace}/{job.metadata.name}"
    return tuple(
        Fault(one.node, one.cause, one.at, job.metadata.uid, one.placement, name, one.message)
        for one in job.status.node_faults
    )


@dataclass(frozen=True)
class Rules:
    """When a node is put into quarantine, and for how long. Seconds.

    Attributes:
        threshold: gangs hurt within `window` that are enough.
        share: percent of the nodes of one kind that may be in quarantine at once; of a small pool always one.
    """

    threshold: int = 3
    window: float = 86400.0
    forgive_after: float = 43200.0
    share: int = 10


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node, as far as it matters here.

    Attributes:
        pool: nodes of one pool stand in for one another: GPU type and kind of capacity.
        tainted: it has the taint, whoever put it there.
        until: when our quarantine of it ends; None: none is ours.
        since: what failed before this moment counts no more: it was made, or let out, then.
    """

    name: str
    pool: str = ""
    tainted: bool = False
    until: datetime | None = None
    since: datetime | None = None


@dataclass(frozen=True)
class Sentence:
    """A node that goes into quarantine."""

    node: str
    reason: str
    until: datetime


@dataclass(frozen=True)
class Decided:
    """
    Attributes:
        lift: nodes whose quarantine ends, and why, for people.
        spared: nodes that failed often enough and stay in service, for too many of their kind are out already.
    """

    quarantine: tuple[Sentence, ...] = ()
    lift: tuple[tuple[str, str], ...] = ()
    spared: tuple[str, ...] = ()


def decide(faults: Iterable[Fault], nodes: Sequence[Suspect], rules: Rules, now: datetime) -> Decided:
    """What is to be done about the nodes now."""
    lift = tuple((node.name, why) for node in nodes if (why := _why_lift(node, now)))
    let_out = {name for name, _ in lift}
    sizes = Counter(node.pool for node in nodes)
    out = Counter(node.pool for node in nodes if node.tainted and node.name not in let_out)
    against: dict[str, list[Fault]] = {}
    for fault in faults:
        against.setdefault(fault.node, []).append(fault)
    guilty = []
    for node in nodes:
        if node.tainted or node.until is not None:
            continue
        counted = [fault for fault in against.get(node.name, ()) if _counts(fault, node, rules, now)]
        weight = _gangs(counted)
        if weight >= rules.threshold:
            guilty.append((weight, node, counted))
    sentences, spared = [], []
    for weight, node, counted in sorted(guilty, key=lambda one: (-one[0], one[1].name)):
        if out[node.pool] < _most(sizes[node.pool], rules.share):
            out[node.pool] += 1
            until = now + timedelta(seconds=rules.forgive_after)
            sentences.append(Sentence(node.name, _reason(weight, counted), until))
        else:
            spared.append(node.name)
    return Decided(tuple(sentences), lift, tuple(spared))


def _gangs(faults: Sequence[Fault]) -> int:
    """How many gangs speak against a node. Of a job's, each placement that surely failed for it, or else one."""
    sure = Counter(job for job, _ in {(fault.job, fault.placement) for fault in faults if fault.cause in SURE})
    return sum(max(1, sure[job]) for job in {fault.job for fault in faults})


def _why_lift(node: Suspect, now: datetime) -> str:
    if node.until is None:
        return ""
    if not node.tainted:
        return "somebody took the taint away"
    return "its time is over" if node.until <= now else ""


def _counts(fault: Fault, node: Suspect, rules: Rules, now: datetime) -> bool:
    recent = (now - fault.at).total_seconds() < rules.window
    return recent and (node.since is None or fault.at > node.since)


def _most(nodes: int, share: int) -> int:
    return max(1, nodes * share // 100) if share else 0


def _reason(weight: int, faults: Sequence[Fault]) -> str:
    """`3 gangs failed here: ...`, the newest faults first."""
    newest = sorted(faults, key=lambda fault: fault.at, reverse=True)
    told = [f"{fault.cause} ({fault.name}): {fault.message}" for fault in newest[:_SHOWN]]
    more = f"; and {len(newest) - _SHOWN} more" if len(newest) > _SHOWN else ""
    return f"{weight} gangs failed here: {'; '.join(told)}{more}"
