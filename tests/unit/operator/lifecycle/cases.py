"""One job in a cluster that is a handful of values: decisions are carried out at once, pods change as a test says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from muster.api import names
from muster.api.common import find_condition
from muster.api.effective import effective_spec
from muster.api.frozen import OF_PLACEMENT, OF_PODS, OF_PROMISE, frozen_hash
from muster.api.placement import Placement, nodes_with_workers
from muster.api.trainingjob import TrainingJob
from muster.cluster.overrides import RUNTIME
from muster.cluster.pods import pod_name
from muster.cluster.views import PodView
from muster.controllers.asking import Capacity
from muster.controllers.idle_limits import IdleLimit
from muster.controllers.lifecycle.facts import told_by
from muster.controllers.lifecycle.hindrance import Heard
from muster.controllers.lifecycle.reconcile import reconcile
from muster.controllers.lifecycle.runtime import remaining_seconds
from muster.controllers.lifecycle.turn import (
    NO_EDIT,
    NO_FACTS,
    Claim,
    Decision,
    Edit,
    Facts,
    Made,
    Note,
    Refusal,
    Situation,
)
from muster.controllers.planning import admitted
from muster_protocol import env, exits
from muster_protocol.launcher_status import Phase, Status

RUNTIME_IMAGE = "runtime:1"

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)


def trainingjob(**spec: Any) -> TrainingJob:
    workers = spec.pop("workers", 2)
    if isinstance(workers, int):
        workers = {"replicas": workers, "gpusPerWorker": 1}
    return TrainingJob.from_raw(
        {
            "metadata": {
                "name": "llama",
                "namespace": "research",
                "uid": "0123456789abcdef",
                "generation": 1,
                "creationTimestamp": "2026-03-01T12:00:00Z",
            },
            "spec": {
                "image": "train:1",
                "command": ["python", "train.py"],
                "workers": workers,
                **spec,
            },
        }
    )


def pod_view(
    name: str,
    owner: str,
    *,
    node: str,
    generation: int,
    index: int,
    created: datetime,
    attempt: int = 0,
    max_runtime: int | None = None,
) -> PodView:
    """A pod as its POST leaves it."""
    own = [{"name": env.MAX_RUNTIME, "value": str(max_runtime)}] if max_runtime is not None else []
    labels = {
        names.JOB_LABEL: name.rpartition("-g")[0],
        names.GENERATION_LABEL: str(generation),
        names.INDEX_LABEL: str(index),
        names.ATTEMPT_LABEL: str(attempt),
    }
    reference = {"kind": "TrainingJob", "uid": owner, "controller": True, "apiVersion": "muster.dev/v1alpha1"}
    limits = {"nvidia.com/gpu": "1"}
    return PodView.from_raw(
        {
            "metadata": {
                "name": name,
                "namespace": "research",
                "uid": f"uid-{name}",
                "labels": labels,
                "ownerReferences": [reference],
                "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            },
            "spec": {
                "nodeName": node,
                "initContainers": [{"name": RUNTIME, "image": RUNTIME_IMAGE}],
                "containers": [{"name": "trainer", "env": own, "resources": {"requests": limits, "limits": limits}}],
            },
            "status": {"phase": "Pending"},
        }
    )


@dataclass
class Case:
    """The job and everything around it. `turn` lets the lifecycle decide once and carries the decision out.

    Attributes:
        mute: the gang's launchers never answer, so that nothing can be done but to restart it whole.
    """

    job: TrainingJob
    now: datetime = START
    pods: dict[str, PodView] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)
    unshown: tuple[Made, ...] = ()
    lost_nodes: frozenset[str] = frozenset()
    unfit_nodes: frozenset[str] = frozenset()
    refusal: Refusal | None = None
    unmade: str = ""
    launcher: Status | None = None
    answered_ago: float = float("inf")
    unanswered_for: float = float("inf")
    told: int = 0
    missed: frozenset[int] = frozenset()
    silent_for: float = 0.0
    whole_for: float = 0.0
    peers_wait: float = 0.0
    facts: Facts = NO_FACTS
    claim: Claim | None = None
    capacity: Capacity | None = None
    heard: Heard | None = None
    idle: IdleLimit | None = None
    priority: int = 0
    no_priority: str = ""
    judged: Edit = NO_EDIT
    namespace_ends: bool = False
    notes: list[Note] = field(default_factory=list)
    writes: int = 0
    deleted_job: bool = False
    mute: bool = False

    def decide(self) -> Decision:
        return reconcile(self.situation())

    def situation(self) -> Situation:
        return Situation(
            job=self.job,
            spec=effective_spec(self.job.spec),
            now=self.now,
            pods=tuple(self.pods.values()),
            unshown=self.unshown,
            shown=frozenset(self.shown),
            lost_nodes=self.lost_nodes,
            unfit_nodes=self.unfit_nodes | self.lost_nodes,
            refusal=self.refusal,
            unmade=self.unmade,
            launcher=self.launcher,
            answered_ago=self.answered_ago,
            unanswered_for=self.unanswered_for,
            told=self.told,
            missed=self.missed,
            silent_for=self.silent_for,
            whole_for=self.whole_for,
            peers_wait=self.peers_wait,
            launcher_patience=60.0,
            claim=self.claim,
            capacity=self.capacity,
            heard=self.heard,
            idle=self.idle,
            priority=self.priority,
            no_priority=self.no_priority,
            edit=self.judged,
            namespace_ends=self.namespace_ends,
            facts=told_by(self.gang(), self.facts),
            placement_hash=frozen_hash(self.job.spec, OF_PLACEMENT),
            pods_hash=frozen_hash(self.job.spec, OF_PODS),
            promise_hash=frozen_hash(self.job.spec, OF_PROMISE),
        )

    def remember(self) -> None:
        """What the record does at each turn: keep what ended launchers have told."""
        self.facts = told_by(self.gang(), self.facts)

    def turn(self) -> Decision:
        decision = self.decide()
        if decision.status is not None:
            # Through the wire, as the API server would give it back.
            raw = self.job.to_raw() | {"status": decision.status.to_raw()}
            self.job = TrainingJob.from_raw(raw)
            self.writes += 1
        self.notes += decision.notes
        for name, _ in decision.delete:
            if name in self.pods:
                self.change(name, terminating=True)
        for index in decision.make:
            self._make(index)
        self.deleted_job = self.deleted_job or decision.delete_job
        if self.job.status.placement is None:
            self.shown.clear()
            self.launcher, self.facts = None, NO_FACTS
        return decision

    def settle(self, turns: int = 10) -> Decision:
        """Turns until nothing is left to do. Fails when that does not come about."""
        for _ in range(turns):
            decision = self.turn()
            if not (decision.status or decision.delete or decision.make):
                return decision
        raise AssertionError(f"still busy after {turns} turns: {decision}")

    def place(self, *nodes: str) -> None:
        """What the loop does with the planner's choice."""
        generation = (self.job.status.placements or 0) + 1
        hash_, pods = (frozen_hash(self.job.spec, fields) for fields in (OF_PLACEMENT, OF_PODS))
        spares = nodes[self.job.spec.workers.replicas :] if self.job.spec.workers.spares else ()
        workers = nodes[: len(nodes) - len(spares)]
        each = self.job.spec.workers.gpus_per_worker or 0
        placement = Placement.of(
            generation, workers, spares=spares, placed_at=self.now, gpus_per_worker=each, spec=hash_, pods=pods
        )
        status = admitted(self.job, placement, self.now)
        self.job = TrainingJob.from_raw(self.job.to_raw() | {"status": status.to_raw()})
        self.refusal = None

    def start(self, *nodes: str) -> None:
        """To a gang that trains."""
        self.settle()
        self.place(*(nodes or [f"n{index}" for index in range(self.job.spec.workers.replicas)]))
        self.start_placed()

    def start_placed(self) -> None:
        """The pods of a placement come up, and the gang trains."""
        self.settle()
        self.run_pods()
        self.train()
        self.settle()
        assert self.is_true(names.ConditionType.RUNNING)

    def move(self, *nodes: str) -> None:
        """The planner gives the gang's workers these nodes, in the place of those that it had."""
        placement = self.job.status.placement
        assert placement is not None
        moved = placement.model_copy(update={"nodes": nodes_with_workers(nodes)})
        self.job = self.job.model_copy(update={"status": self.job.status.model_copy(update={"placement": moved})})

    def run_pods(self, *indexes: int) -> None:
        for pod in list(self.gang()):
            if not indexes or pod.index in indexes:
                self.change(pod.name, phase="Running", ready=True, ip=f"10.0.0.{pod.index}", bound=True)

    def train(self) -> None:
        placement = self.job.status.placement
        assert placement is not None
        if self.mute:
            self.silent_for = 60.0
        else:
            self.launcher = Status(Phase.RUNNING, placement.generation, 1, 0)

    def gang(self) -> Iterable[PodView]:
        placement = self.job.status.placement
        return [pod for pod in self.pods.values() if placement and pod.generation == placement.generation]

    def worker(self, index: int) -> PodView:
        """The pod of the index's present attempt."""
        placement = self.job.status.placement
        assert placement is not None
        return next(pod for pod in self.gang() if pod.index == index and pod.attempt == placement.attempt_of(index))

    def change(self, name: str, **fields: Any) -> None:
        self.pods[name] = replace(self.pods[name], **fields)

    def end(self, index: int, cause: exits.Cause, exit_code: int, **facts: Any) -> None:
        """The launcher of a worker ended and left its facts."""
        message = facts.pop("message", f"{cause.value} happened")
        told = exits.encode(exits.ExitFacts(cause, exit_code, message, **facts))
        phase = "Succeeded" if exit_code == 0 else "Failed"
        self.change(self.worker(index).name, phase=phase, ready=False, exit_code=exit_code, termination_message=told)

    def end_beside(self, index: int, cause: exits.Cause, exit_code: int) -> None:
        """As `end`, in a pod of which another container goes on."""
        self.end(index, cause, exit_code)
        self.change(self.worker(index).name, phase="Running", outlived_since=self.now)

    def vanish(self, *names_: str) -> None:
        """Pods are gone from the cluster; all terminating ones when none is named."""
        for name in names_ or [pod.name for pod in self.pods.values() if pod.terminating]:
            del self.pods[name]

    def wait(self, index: int, reason: str, message: str = "") -> None:
        state = {"waiting": {"reason": reason, "message": message}}
        seen = PodView.from_raw({"status": {"containerStatuses": [{"name": "trainer", "state": state}]}})
        self.change(self.worker(index).name, waiting=seen.waiting)

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def edit(self, **spec: Any) -> None:
        raw = self.job.to_raw()
        raw["spec"] |= spec
        raw["metadata"]["generation"] += 1
        self.job = TrainingJob.from_raw(raw)

    def is_true(self, kind: names.ConditionType) -> bool:
        found = find_condition(self.job.status.conditions, kind.value)
        return found is not None and found.status == "True"

    def reason(self, kind: names.ConditionType = names.ConditionType.ADMITTED) -> str:
        found = find_condition(self.job.status.conditions, kind.value)
        return found.reason if found else ""

    def message(self, kind: names.ConditionType = names.ConditionType.ADMITTED) -> str:
        found = find_condition(self.job.status.conditions, kind.value)
        return found.message if found else ""

    @property
    def phase(self) -> str:
        return self.job.status.phase.value if self.job.status.phase else ""

    def _make(self, index: int) -> None:
        placement = self.job.status.placement
        assert placement is not None
        attempt = placement.attempt_of(index)
        name = pod_name("llama", placement.generation, index, attempt)
        assert name not in self.pods, f"pod {name} is made twice"
        self.pods[name] = pod_view(
            name,
            self.job.metadata.uid,
            node=placement.node_of_index()[index],
            generation=placement.generation,
            index=index,
            attempt=attempt,
            created=self.now,
            max_runtime=remaining_seconds(effective_spec(self.job.spec), self.job.status),
        )
        self.shown.add(name)
