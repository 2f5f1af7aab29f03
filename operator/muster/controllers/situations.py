"""What one job's turn gets to see: its record, its pods and nodes, and what its launchers have said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from muster.api.names import ConditionType
from muster.cluster.status import is_true
from muster.cluster.views import PodView
from muster.controllers.cache import Cache
from muster.controllers.claims import Claims
from muster.controllers.idle_limits import idle_limit
from muster.controllers.inputs import Inputs
from muster.controllers.lifecycle.turn import BAD_NODE_AVOIDED, REPLACE_LIMIT, TERMINAL, Situation
from muster.controllers.progress import Progress
from muster.controllers.records import Record

MISSED_PATIENCE: Final = 5.0
"""Seconds for which the cluster is given the word on a launcher that its gang misses: kubelet tells more of its end."""

Pods = tuple[PodView, ...]


@dataclass(frozen=True)
class Patience:
    """
    Attributes:
        launcher: seconds after which a gang whose launcher doesn't answer counts as running.
        replace: seconds in which a gang has to come together again once a worker was lost.
        bad_node: seconds for which a job stays away from a node that failed under it; 0: it doesn't.
    """

    launcher: float = 60.0
    replace: float = REPLACE_LIMIT
    bad_node: float = BAD_NODE_AVOIDED


PATIENCE = Patience()


@dataclass(frozen=True)
class Situations:
    """Puts situations together."""

    cache: Cache
    progress: Progress
    claims: Claims
    inputs: Inputs
    patience: Patience

    def of(self, record: Record, pods: Pods, now: datetime, monotonic: float) -> Situation:
        """What the job's policies may look at now; `pods` are all of its UID."""
        placement, promise = record.job.status.placement, record.job.status.promise
        lost_nodes = self.cache.lost_nodes(pod.node for pod in pods)
        replacing = placement is not None and placement.replacing is not None
        record.doubt(replacing or bool(lost_nodes) or bool(record.missed), monotonic)
        if lost_nodes and self.cache.nowhere(gpus=bool(record.spec.gpus_per_worker)):
            record.silence = None  # the way to all nodes is cut, it seems; who stops now gains nothing
        return Situation(
            job=record.job,
            spec=record.spec,
            now=now,
            pods=pods,
            unshown=tuple(record.made.values()),
            shown=record.shown,
            lost_nodes=lost_nodes,
            unfit_nodes=self._unfit(record, pods, lost_nodes, now),
            refusal=record.refusal,
            unmade=record.unmade,
            stranded=self._stranded(record),
            launcher=self.progress.launcher_of(record),
            answered_ago=monotonic - record.launcher_at,
            unanswered_for=self.progress.unanswered_for(record),
            missed=_missed(record, monotonic),
            told=record.launcher_told,
            silent_for=self.progress.silent_for(record, monotonic),
            whole_for=_whole_for(record, pods, monotonic),
            peers_wait=_peers_wait(record, pods, monotonic),
            launcher_patience=self.patience.launcher,
            replace_limit=self.patience.replace,
            bad_node_avoided=self.patience.bad_node,
            claim=self.claims.written(record.uid, _claimed(record)),
            facts=record.facts,
            placement_hash=record.placement_hash if placement else "",
            pods_hash=record.pods_hash if placement else "",
            promise_hash=record.promise_hash if placement or promise else "",
            edit=record.edit,
            namespace_ends=self.cache.terminating(record.identity.namespace),
            heard=record.heard,
            capacity=record.capacity,
            gpu_type=record.gpu_type,
            price=record.price if placement else 0.0,
            currency=record.currency,
            priority=self.cache.priority(record.spec.priority_class) or 0,
            no_priority=self.inputs.no_priority_class(record),
            idle=idle_limit(record.spec.queue, self.cache.queues) if placement else None,
            typical_start=self.inputs.starts.typical,
        )

    def _stranded(self, record: Record) -> int:
        identity = record.identity
        return self.cache.stranded().get((identity.namespace, identity.name), 0) if record.unmade else 0

    def _unfit(self, record: Record, pods: Pods, lost_nodes: frozenset[str], now: datetime) -> frozenset[str]:
        """Nodes of a running gang on which no pod of it can be made now, of those where one may have to be made."""
        placement = record.job.status.placement
        if placement is None or not is_true(record.job.status, ConditionType.RUNNING):
            return frozenset()
        running = {pod.index for pod in _present(record, pods) if pod.phase == "Running" and pod.node not in lost_nodes}
        if len(running) == placement.workers:
            return frozenset()
        nodes = {node for index, node in enumerate(placement.node_of_index()) if index not in running}
        return frozenset(node for node in nodes if not self.inputs.suits(record, node, now))


def _missed(record: Record, monotonic: float) -> frozenset[int]:
    return frozenset(index for index, since in record.missed.items() if monotonic - since >= MISSED_PATIENCE)


def _claimed(record: Record) -> int:
    """The generation whose room others may have been promised: the placement's, or the last one's that is kept."""
    status = record.job.status
    if status.placement is not None:
        return status.placement.generation
    return (status.placements or 0) if status.promise is not None else 0


def _present(record: Record, pods: Iterable[PodView]) -> Iterator[PodView]:
    """Pods of the present placement that nothing has replaced in it."""
    placement = record.job.status.placement
    for pod in pods:
        if placement and pod.generation == placement.generation and pod.attempt == placement.attempt_of(pod.index):
            yield pod


def _peers_wait(record: Record, pods: Pods, monotonic: float) -> float:
    """Seconds since the first pod of the placement was seen ended; 0.0 before."""
    if not any(pod.phase in TERMINAL or pod.outlived_since for pod in _present(record, pods)):
        record.peers_since = None
        return 0.0
    record.peers_since = record.peers_since or monotonic
    return monotonic - record.peers_since


def _whole_for(record: Record, pods: Pods, monotonic: float) -> float:
    """Seconds since all pods of the placement were seen ready; 0.0 before."""
    placement = record.job.status.placement
    if placement is None or sum(pod.ready for pod in _present(record, pods)) < placement.workers:
        record.whole_at = None
        return 0.0
    if record.whole_at is None:
        record.whole_at = monotonic
    return monotonic - record.whole_at
