"""The planner's sentence about a waiting job, and what the planner does not know: names, labels, closed queues."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from textwrap import shorten
from typing import Final

from muster.api.common import format_time
from muster.api.names import QUARANTINE_TAINT
from muster.api.placement import AvoidedNode
from muster.api.queue_position import Ahead
from muster.api.trainingjob_status import TrainingJobStatus
from muster.api.trainingqueue import TrainingQueue
from muster.cluster import marks
from muster.cluster.eligibility import Matcher, NodeFilter
from muster.cluster.jobs import JobInput
from muster.cluster.snapshot import of_kind
from muster.cluster.views import NodeView
from muster.controllers import flavours, planning
from muster.controllers.accounts import Spent
from muster.controllers.queues import Standing, ceilings, priority_remark, standings, why_closed
from muster.controllers.records import Record
from muster.scheduling.amounts import few
from muster.scheduling.plan import LACKS_NODES, Change, ChangeKind, Waiting, WaitReason
from muster.scheduling.snapshot import Snapshot
from muster_protocol.counts import counted

NODES: Final = 2
"""Nodes in quarantine that are named."""
HOLDERS: Final = 4
"""Jobs that hold what one lacks, of which it is told."""
_AVOIDED_SHOWN: Final = 2


class Sentences:
    """Those of one plan. What several jobs are told is found once, and not before somebody is told it."""

    def __init__(
        self,
        snapshot: Snapshot,
        names: Mapping[str, str],
        nodes: Sequence[NodeView],
        queues: Mapping[str, TrainingQueue],
        errors: Mapping[str, str],
        spent: Mapping[str, Spent],
        now: datetime,
    ) -> None:
        """
        Args:
            names: `namespace/name` by UID.
            errors: what is wrong with a queue's spec, by its name.
            spent: of queues whose budget, or that of one above them, is used up.
        """
        self._names, self._queues, self._errors, self._spent = names, queues, errors, spent
        self._nodes, self._now, self._ceilings = nodes, now, ceilings(snapshot)
        self._misfits: dict[NodeFilter, str] = {}
        self._shut: dict[NodeFilter, str] = {}
        self._elsewhere: dict[tuple[NodeFilter, str], Change | None] = {}
        self._ahead: dict[tuple[tuple[str, ...], str, tuple[str, ...]], tuple[Ahead, ...]] = {}

    def of(self, record: Record, waiting: Waiting) -> str:
        """What the job is told."""
        told = planning.blockers(waiting, self._names)
        if waiting.reason is WaitReason.QUEUE_CLOSED:
            told = why_closed(record.spec.queue, self._standings.get(record.spec.queue)) or told
        elif waiting.reason is WaitReason.NO_ELIGIBLE_NODES and record.planned is not None:
            told += self._misfit(record.planned[1]) + self._later(record.planned[1])
        if waiting.reason in LACKS_NODES:
            told += self._in_quarantine(record.planned[1]) if record.planned is not None else ""
            told += avoiding(record.job.status, self._now, self._quarantined)
        told += planning.last_start(record.job)
        if record.planned is not None:
            told += _of_base(record.planned[1], waiting)
            told += priority_remark(record.planned[1], self._ceilings)
        return told

    def retry_at(self, record: Record, waiting: Waiting) -> datetime | None:
        """When a job that lacks nodes may take one again that it stays away from; None where that would not help."""
        away = _avoided(record.job.status, self._now, self._quarantined) if waiting.reason in LACKS_NODES else ()
        return min((each.until for each in away), default=None)

    def elsewhere(self, record: Record, waiting: Waiting) -> Change | None:
        """What a job is told of another kind of capacity that has room for it: with what keeps it from there, or None
        where that is its GPU."""
        if not waiting.elsewhere or record.planned is None:
            return None
        beyond = record.planned[1].beyond
        if beyond is not None and beyond.flavour == waiting.elsewhere:
            return None  # it takes that already, for the workers that it can do without
        anywhere = replace(record.planned[1].node_filter, capacity=())
        key = (anywhere, waiting.elsewhere)
        if key not in self._elsewhere:
            self._elsewhere[key] = self._on_flavour(*key)
        return self._elsewhere[key]

    def ahead(self, waiting: Waiting) -> tuple[Ahead, ...]:
        """The first of those for whom a job waits. One of several ways to be ahead is told."""
        key = (waiting.holders, waiting.blocker, waiting.before)
        if key not in self._ahead:
            ways = [(uid, "kept") for uid in (waiting.blocker,) if uid]
            ways += [(uid, "holds") for uid in waiting.holders[:HOLDERS]]
            ways += [(uid, "before") for uid in waiting.before]
            first = dict(reversed(ways))
            self._ahead[key] = tuple(
                Ahead(job=self._names[uid], why=first[uid]) for uid in dict(ways) if uid in self._names
            )
        return self._ahead[key]

    @cached_property
    def _of_flavour(self) -> Mapping[str, Sequence[NodeView]]:
        return flavours.by_flavour(self._nodes)

    def _on_flavour(self, node_filter: NodeFilter, flavour: str) -> Change | None:
        matcher = Matcher(node_filter)
        nodes = self._of_flavour.get(flavour, ())
        if any(matcher.allows(node) and of_kind(node_filter, node) for node in nodes):  # mostly, the first ones do
            return Change(ChangeKind.CAPACITY, flavour.partition("/")[2], f"there is room now on {flavour}")
        why = matcher.why_none([node for node in nodes if of_kind(node_filter, node)])
        text = f"there is room now on {flavour}, but {why}"
        return Change(ChangeKind.CAPACITY, flavour.partition("/")[2], text) if why else None

    def _misfit(self, job: JobInput) -> str:
        """What no node has of what the job demands, for each kind of node that it takes by now."""
        filters = [job.node_filter]
        filters += [other.node_filter for other in job.terms.alternatives if other.since <= self._now.timestamp()]
        for each in filters:
            if each not in self._misfits:
                self._misfits[each] = Matcher(each).why_none([node for node in self._nodes if of_kind(each, node)])
        found = {self._misfits[each] for each in filters} - {""}
        return f": {found.pop()}" if len(found) == 1 else ""

    @cached_property
    def _quarantined(self) -> Mapping[str, NodeView]:
        return {node.name: node for node in self._nodes if marks.tainted(node)}

    def _in_quarantine(self, job: JobInput) -> str:
        """The nodes that the job would take, if they were not in quarantine."""
        demands = job.node_filter
        if not self._quarantined:
            return ""
        if demands not in self._shut:
            matcher = Matcher(demands)
            kept = [
                node
                for node in self._quarantined.values()
                if of_kind(demands, node) and matcher.is_kept_by(QUARANTINE_TAINT, node)
            ]
            self._shut[demands] = _shut(kept)
        return self._shut[demands]

    def _later(self, job: JobInput) -> str:
        """From when on it takes nodes of another kind, too, where it does not take them all yet."""
        ahead = [other for other in job.terms.alternatives if other.since > self._now.timestamp()]
        if not ahead:
            return ""
        since = min(other.since for other in ahead)
        kinds = sorted({kind for other in ahead if other.since == since for kind in other.node_filter.capacity})
        moment = format_time(datetime.fromtimestamp(since, timezone.utc))
        return f"; from {moment} on it takes {' and '.join(kinds)} nodes, too" if kinds else ""

    @cached_property
    def _standings(self) -> Mapping[str, Standing]:
        return standings(self._queues, self._errors, self._spent)


def _shut(nodes: Sequence[NodeView]) -> str:
    """Nodes in quarantine, and until when, as a clause; "" for none."""
    if not nodes:
        return ""
    each = [
        f"{node.name} (until {node.quarantine_until or 'somebody lets it out'})"
        for node in sorted(nodes, key=lambda node: node.name)
    ]
    return f"; in quarantine, or it would suit: {few(each[:NODES], len(each))}"


def avoiding(status: TrainingJobStatus, now: datetime, quarantined: Collection[str] = ()) -> str:
    """What is told, behind the planner's sentence about nodes, of a job that stays away from some; "" for others. The
    planner knows them only as nodes that don't suit."""
    avoided = _avoided(status, now, quarantined)
    if not avoided:
        return ""
    each = [
        f"{item.node} until {format_time(item.until)} ({shorten(item.reason or 'it failed there', 160)})"
        for item in avoided
    ]
    more = len(avoided) - _AVOIDED_SHOWN
    nodes = "; ".join(each[:_AVOIDED_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return f"; the job stays away from {nodes}: suspend and resume it to try there at once"


def _avoided(status: TrainingJobStatus, now: datetime, quarantined: Collection[str]) -> list[AvoidedNode]:
    """Those that a job stays away from now. Of those in quarantine nothing is told: nobody could start there."""
    return [item for item in status.avoided if item.until > now and item.node not in quarantined]


def _of_base(job: JobInput, waiting: Waiting) -> str:
    """What a gang with a safe base is told behind the sentence, which speaks of that alone."""
    if job.beyond is None or waiting.reason not in (*LACKS_NODES, WaitReason.QUOTA_EXCEEDED, WaitReason.EXCEEDS_QUOTA):
        return ""
    workers = counted(job.workers, "worker")
    return f"; this is what it needs for its base, {workers} (workers.min) on the kind of nodes of capacity.base"
