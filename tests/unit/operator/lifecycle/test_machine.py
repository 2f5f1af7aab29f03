"""What happens to a running gang, in any sequence: workers and nodes are lost, scripts fail, people suspend and edit,
others ask for the room. Whatever came before, a job in a cluster that is whole again runs, or has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster.api.names import ConditionType
from muster.cluster.views import PodView
from muster.controllers.lifecycle.turn import Decision
from muster.scheduling.plan import MoveReason
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Phase, Status

from .cases import Case, trainingjob
from .test_preemption import claim

pytestmark = pytest.mark.unit

NODES = tuple(f"n{number}" for number in range(6))
PATIENCE = 60
"""Looks at a whole cluster within which a job runs again, each as long after the one before as it asks for."""


class Gang(RuleBasedStateMachine):
    """A job, the nodes, and the parts of kubelet, launchers and planner that its lifecycle sees."""

    @initialize(workers=st.integers(1, 3), limit=st.sampled_from([0, 2, 32]))
    def begin(self, workers: int, limit: int) -> None:
        self.case = Case(trainingjob(workers=workers, restart={"limit": limit}, checkpoint={"uri": "s3://b/p"}))
        self.formed: frozenset[str] = frozenset()
        self.heal()

    # What happens to it.

    @rule(index=st.integers(0, 2), how=st.sampled_from(["killed", "gone", "deleted", "evicted"]))
    def lose(self, index: int, how: str) -> None:
        for pod in self.living(index):
            if how == "killed":
                self.case.change(pod.name, phase="Failed", ready=False, exit_code=137, exit_reason="Error")
            elif how == "gone":
                self.case.vanish(pod.name)
            elif how == "deleted":
                self.case.change(pod.name, terminating=True)
            else:
                self.case.change(pod.name, phase="Failed", ready=False, status_reason="Evicted")
        self.decide()

    @rule(index=st.integers(0, 2), cause=st.sampled_from([Cause.USER, Cause.NODE, Cause.NETWORK, Cause.STORAGE]))
    def fail(self, index: int, cause: Cause) -> None:
        for pod in self.living(index):
            if pod.phase == "Running":
                self.case.end(index, cause, 1)
        self.decide()

    @rule()
    def finish(self) -> None:
        """The script of all workers ends well."""
        placement = self.case.job.status.placement
        pods = [pod for index in range(placement.workers) for pod in self.living(index)] if placement else []
        if placement is not None and len(pods) == placement.workers and all(pod.phase == "Running" for pod in pods):
            for pod in pods:
                self.case.end(pod.index, Cause.SUCCEEDED, 0)
        self.decide()

    @rule()
    def start_again_in_place(self) -> None:
        """A rank crashed, and the launchers start all of them again in their pods."""
        launcher = self.case.launcher
        if launcher is not None and launcher.phase is Phase.RUNNING:
            self.incarnation += 1
            again = replace(launcher, incarnation=self.incarnation, restarts=launcher.restarts + 1, failures=None)
            self.case.launcher = replace(again, restarted_after="rank 0 crashed")
        self.decide()

    @rule(node=st.sampled_from(NODES))
    def lose_node(self, node: str) -> None:
        self.case.lost_nodes |= {node}
        self.decide()

    @rule()
    def nodes_come_back(self) -> None:
        self.case.lost_nodes = frozenset()
        self.decide()

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self.case.edit(suspend=suspend)
        self.decide()

    @rule(change=st.sampled_from([{"maxRuntime": "9d"}, {"command": ["python", "other.py"]}, {"image": "train:2"}]))
    def edit(self, change: dict[str, object]) -> None:
        self.case.edit(**change)
        self.decide()

    @rule(reason=st.sampled_from([MoveReason.PREEMPTED, MoveReason.RECLAIMED, MoveReason.YIELDED]))
    def ask_for_its_room(self, reason: MoveReason) -> None:
        placement = self.case.job.status.placement
        if placement is not None:
            self.case.claim = claim(placement.generation, reason)
        self.decide()

    @rule(seconds=st.sampled_from([1, 31, 95, 3600]))
    def time_passes(self, seconds: int) -> None:
        self.case.later(seconds)
        self.decide()

    @rule()
    def operator_starts_anew(self) -> None:
        """It knows what it sees, and has asked nobody yet."""
        self.case.shown, self.case.launcher, self.case.told = set(self.case.pods), None, 0
        self.decide()

    @rule()
    def kubelets(self) -> None:
        """What was deleted goes, and what was made runs, on nodes that are there."""
        for pod in list(self.case.pods.values()):
            if pod.node in self.case.lost_nodes:
                continue
            if pod.terminating:
                self.case.vanish(pod.name)
            elif pod.phase == "Pending":
                self.case.change(pod.name, phase="Running", ready=True, ip=f"10.0.0.{pod.index}", bound=True)
        self.decide()

    @rule()
    def launchers(self) -> None:
        """Those of all workers meet; only one that was there before knows how often they have."""
        placement = self.case.job.status.placement
        if placement is None:
            return
        pods = [pod for index in range(placement.workers) for pod in self.living(index) if pod.phase == "Running"]
        if len(pods) < placement.workers:
            if self.case.launcher is not None:
                lost = tuple(sorted(set(range(placement.workers)) - {pod.index for pod in pods}))
                self.case.launcher = replace(self.case.launcher, phase=Phase.JOINING, lost=lost)
        else:
            members = frozenset(pod.uid for pod in pods)
            known = self.incarnation if self.formed & members else 0
            self.incarnation = known if self.formed == members else known + 1
            restarts = self.case.launcher.restarts if self.case.launcher is not None else 0
            self.case.launcher = Status(Phase.RUNNING, placement.generation, self.incarnation, 0, restarts=restarts)
            self.case.told, self.formed = placement.incarnation or 1, members
        self.decide()
        if len(pods) == placement.workers:
            status = self.case.job.status
            waits = status.placement is not None and status.placement.replacing is not None
            assert status.stop is not None or not waits, "a gang that has come together waits for nobody"

    @rule()
    def planner(self) -> None:
        """It places who waits, and gives lost workers another node."""
        case, free = self.case, [node for node in NODES if node not in self.case.lost_nodes]
        placement, wanted = case.job.status.placement, case.job.spec.workers.replicas
        if placement is None:
            if case.decide().plannable and len(free) >= wanted:
                promise = case.job.status.promise
                assert promise is None or not promise.victims, "nobody else runs who could make room"
                case.place(*free[:wanted])
        elif lost := [index for index in placement.replaced if placement.node_of_index()[index] in case.lost_nodes]:
            nodes = list(placement.node_of_index())
            for index in lost:
                other = [node for node in free if node not in nodes]
                if other:
                    nodes[index] = other[0]
            case.move(*nodes)
        self.decide()

    # What holds.

    @invariant()
    def no_index_has_two_pods(self) -> None:
        placement = self.case.job.status.placement
        for index in range(placement.workers if placement else 0):
            assert len(self.living(index)) <= 1

    @invariant()
    def conditions_agree_with_the_phase(self) -> None:
        case = self.case
        assert not (case.phase == "Running" and not case.is_true(ConditionType.RUNNING))
        assert not (case.is_true(ConditionType.SUCCEEDED) and case.is_true(ConditionType.FAILED))
        if case.job.status.finished_at is not None:
            assert case.phase in ("Succeeded", "Failed")

    @precondition(lambda self: not self.healing)
    @rule()
    def heal(self) -> None:
        """The cluster is whole, and nobody wants anything: the job runs, or has ended."""
        self.healing = True
        case = self.case
        case.lost_nodes = frozenset()
        if case.job.spec.suspend:
            case.edit(suspend=False)
        for _ in range(PATIENCE):
            self.decide()
            self.kubelets()
            self.planner()
            self.kubelets()
            self.launchers()
            if self.runs() or case.job.status.finished_at is not None:
                break
            decision = case.decide()
            case.now = max(case.now, decision.wake_at or case.now)
            case.later(1)
        else:
            raise AssertionError(f"it neither runs nor has ended: {case.job.status}")
        self.healing = False

    def teardown(self) -> None:
        if not self.healing:
            self.heal()

    healing = False
    incarnation = 0

    def runs(self) -> bool:
        """A whole gang of the spec as it is now."""
        placement = self.case.job.status.placement
        if placement is None or self.case.claim is not None or self.case.phase != "Running":
            return False
        each = [self.living(index) for index in range(placement.workers)]
        return placement.replacing is None and all(len(pods) == 1 and pods[0].ready for pods in each)

    def living(self, index: int) -> list[PodView]:
        """Pods of an index in the present placement that have neither ended nor are about to."""
        pods = self.case.gang()
        return [pod for pod in pods if pod.index == index and not pod.over and not pod.terminating]

    def decide(self) -> Decision:
        self.case.remember()
        decision = self.case.settle(20)
        claim, placement = self.case.claim, self.case.job.status.placement
        if claim is not None and (placement is None or placement.generation != claim.victim.generation):
            self.case.claim = None  # its beneficiary starts
            decision = self.case.settle(20)
        return decision


TestGang = Gang.TestCase
TestGang.settings = settings(
    max_examples=300, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
