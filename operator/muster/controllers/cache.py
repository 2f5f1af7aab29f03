"""What the loop reads: the informers' items and our own kinds, by job, and what has changed since last asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from muster.api.jobparts import JobDefaults
from muster.api.topology import Topology
from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.eligibility import UNREACHABLE
from muster.cluster.gpus import gpu_type_of
from muster.cluster.snapshot import TERMINAL
from muster.cluster.views import NamespaceView, NodeView, PodView, PriorityClassView

T_co = TypeVar("T_co", covariant=True)

Key = tuple[str, str]
"""(namespace, name) of one of our own kinds; the namespace is empty for those that have none."""

Owner = tuple[str, str]
"""(namespace, UID) of a pod's job. Whoever may make pods may name any owner, but one of another namespace owns
nothing."""


class Items(Protocol[T_co]):
    """The part of an informer that is read here."""

    @property
    def items(self) -> Mapping[str, T_co]: ...


class Cache:
    """Fed by callbacks, read by the loop; both on the same thread.

    Attributes:
        wake: set whenever something has changed.
        dirty: UIDs of jobs that are to have a turn.
        unreadable: names of the queues that do not fit this operator's version, and were never seen as ones that do.
        grows: an autoscaler may bring nodes of a kind that there is none of.
    """

    def __init__(
        self,
        *,
        pods: Items[PodView],
        nodes: Items[NodeView],
        namespaces: Items[NamespaceView],
        priority_classes: Items[PriorityClassView],
    ) -> None:
        self._pods, self._nodes = pods, nodes
        self._namespaces, self._priority_classes = namespaces, priority_classes
        self._owner_of: dict[str, Owner] = {}
        self._owned: dict[Owner, dict[str, PodView]] = {}
        self._on_node: dict[str, set[str]] = {}  # keys of owned pods
        self._gone: dict[Owner, set[str]] = {}
        self._room: dict[str, object] = {}
        self._jobs: dict[Key, str] = {}  # UIDs
        self._changed: dict[str, TrainingJob] = {}
        self._deleted: set[str] = set()
        self._ready: frozenset[bool] | None = None
        self._world_changed = True
        self._new_templates: set[str] = set()
        self.queues: dict[str, TrainingQueue] = {}
        self.unreadable: frozenset[str] = frozenset()
        self.topologies: dict[str, Topology] = {}
        self.wake = asyncio.Event()
        self.dirty: set[str] = set()
        self.grows = False

    # -- fed -------------------------------------------------------------------------------------------------------

    def mark(self, uid: str) -> None:
        """The job is to have a turn."""
        self.dirty.add(uid)
        self.wake.set()

    def on_pod(self, key: str, pod: PodView | None) -> None:
        """A pod has come, changed or (None) gone."""
        before = self._owner_of.pop(key, None)
        if before is not None:
            owned = self._owned.get(before, {})
            left = owned.pop(key, None)
            if left is not None:
                self._on_node[left.node].discard(key)
                if not self._on_node[left.node]:
                    del self._on_node[left.node]
                if pod is None or pod.uid != left.uid:
                    self._gone.setdefault(before, set()).add(left.uid)
            if not owned:
                self._owned.pop(before, None)
            self.dirty.add(before[1])
        if pod is not None and pod.owner_uid and pod.job:
            owner = self._owner_of[key] = (pod.namespace, pod.owner_uid)
            self._owned.setdefault(owner, {})[key] = pod
            self._on_node.setdefault(pod.node, set()).add(key)
            self.dirty.add(pod.owner_uid)
        room = None if pod is None else (pod.uid, pod.node, pod.phase in TERMINAL, pod.requests)
        if room != self._room.get(key):
            # A gang's pod that comes takes what its placement took before: a gang of 512 would be 512 plans.
            expected = key in self._owner_of and key not in self._room
            self._world_changed = self._world_changed or not expected
            if room is None:
                self._room.pop(key, None)
            else:
                self._room[key] = room
        self.wake.set()

    def on_node(self, name: str, node: NodeView | None) -> None:
        """A node has come, changed or (None) gone; jobs with pods there are to have a turn when it is lost."""
        self._ready = None
        if node is None or _lost(node):
            self.dirty |= {self._owner_of[key][1] for key in self._on_node.get(name, ())}
        self.on_world()

    def on_world(self, *_: object) -> None:
        """Something that planning depends on has changed."""
        self._world_changed = True
        self.wake.set()

    def on_uid(self, key: Key, uid: str) -> None:
        """A TrainingJob of this UID has the name: another that had it is gone, whether this one can be read or not."""
        if self._jobs.get(key, uid) != uid:
            self.on_job(key, None)

    def on_job(self, key: Key, job: TrainingJob | None) -> None:
        """A TrainingJob was seen, or (None) is gone."""
        before = self._jobs.pop(key, None)
        if before is not None and (job is None or job.metadata.uid != before):
            self._deleted.add(before)
            self._changed.pop(before, None)
        if job is not None:
            self._jobs[key] = job.metadata.uid
            self._changed[job.metadata.uid] = job
        self.wake.set()

    def on_queue(self, name: str, queue: TrainingQueue | None) -> None:
        """A TrainingQueue was seen, or (None) is gone."""
        template, before = self.template_of(name), self.queues.pop(name, None)
        self.unreadable -= {name}
        if queue is not None:
            self.queues[name] = queue
        if self.template_of(name) != template:
            self._new_templates.add(name)
        if queue is None or before is None or before.metadata.uid != queue.metadata.uid or before.spec != queue.spec:
            self.on_world()  # its status is our own word

    def on_unreadable_queue(self, name: str) -> None:
        """A TrainingQueue that can't be read was seen: one that was known stays as it was."""
        if name not in self.queues:
            self.unreadable |= {name}
            self.on_world()

    def on_topology(self, name: str, topology: Topology | None) -> None:
        """A Topology was seen, or (None) is gone."""
        if topology is None:
            self.topologies.pop(name, None)
        else:
            self.topologies[name] = topology
        self.on_world()

    # -- read ------------------------------------------------------------------------------------------------------

    def take_jobs(self) -> list[TrainingJob]:
        """Jobs seen since the last call."""
        changed, self._changed = list(self._changed.values()), {}
        return changed

    def take_deleted(self) -> set[str]:
        """UIDs of jobs gone since the last call."""
        deleted, self._deleted = self._deleted, set()
        return deleted

    def take_gone(self) -> dict[Owner, set[str]]:
        """UIDs of pods gone since the last call, by the job that owned them."""
        gone, self._gone = self._gone, {}
        return gone

    def take_new_templates(self) -> set[str]:
        """Queues whose `defaultTemplate` has changed since the last call."""
        changed, self._new_templates = self._new_templates, set()
        return changed

    def take_world_changed(self) -> bool:
        """Whether anything changed since the last call that planning depends on."""
        changed, self._world_changed = self._world_changed, False
        return changed

    def template_of(self, queue: str) -> JobDefaults | None:
        """The queue's `defaultTemplate`."""
        found = self.queues.get(queue)
        return None if found is None else found.spec.default_template

    def pods(self) -> Iterable[PodView]:
        return self._pods.items.values()

    def pods_of(self, owner: Owner) -> tuple[PodView, ...]:
        """Pods whose controlling owner is that job."""
        return tuple(self._owned.get(owner, {}).values())

    def owners(self) -> list[Owner]:
        """The jobs that own pods, as these say."""
        return list(self._owned)

    def bereft(self) -> list[Owner]:
        """Those of `owners` that are not there, or that can't be read."""
        living = set(self._jobs.values())
        return [owner for owner in self._owned if owner[1] not in living]

    def stranded(self) -> dict[Key, int]:
        """By name of jobs that are gone: the highest generation of pods that lost nodes keep of them, perhaps for days,
        and with them the names that pods of a new job of that name would have."""
        found = dict[Key, int]()
        for owner in self.bereft():
            pods = self.pods_of(owner)
            lost = self.lost_nodes(pod.node for pod in pods)
            for pod in pods:
                if pod.node in lost:
                    key = (pod.namespace, pod.job)
                    found[key] = max(found.get(key, 0), pod.generation)
        return found

    def nodes(self) -> list[NodeView]:
        return list(self._nodes.items.values())

    def node(self, name: str) -> NodeView | None:
        return self._nodes.items.get(name)

    def lost_nodes(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that are gone, or whose kubelet is silent."""
        lost = set()
        for name in set(names) - {""}:
            node = self.node(name)
            if node is None or _lost(node):
                lost.add(name)
        return frozenset(lost)

    def nowhere(self, *, gpus: bool) -> bool:
        """Whether no node (with GPUs) is ready, and no autoscaler brings one: who stops now can start nowhere."""
        if self._ready is None:
            self._ready = frozenset(bool(gpu_type_of(node.labels)) for node in self._nodes.items.values() if node.ready)
        return not self.grows and (True not in self._ready if gpus else not self._ready)

    def namespaces(self) -> dict[str, NamespaceView]:
        return {view.name: view for view in self._namespaces.items.values()}

    def terminating(self, namespace: str) -> bool:
        """Whether the namespace is being deleted or gone: nothing can be made there."""
        view = self._namespaces.items.get(namespace)
        return view is None or view.terminating

    def priorities(self) -> dict[str, int]:
        """Value by name of PriorityClass."""
        return {view.name: view.value for view in self._priority_classes.items.values()}

    def priority(self, name: str) -> int | None:
        """Value of the PriorityClass of that name; None where there is none."""
        view = self._priority_classes.items.get(name)
        return None if view is None else view.value


def _lost(node: NodeView) -> bool:
    return not node.ready and any(taint.key == UNREACHABLE for taint in node.taints)
