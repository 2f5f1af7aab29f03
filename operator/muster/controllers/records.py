"""What the operator remembers of each job beside its status. All of it can be lost: a restart finds it anew."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final

from muster.api.defaults import used
from muster.api.effective import EffectiveSpec, effective_spec
from muster.api.frozen import OF_PLACEMENT, OF_PODS, OF_PROMISE, frozen_hash
from muster.api.jobparts import JobDefaults
from muster.api.names import ConditionType, Phase
from muster.api.placement import Placement, Promise
from muster.api.trainingjob import TrainingJob, TrainingJobSpec
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster.eligibility import NodeFilter
from muster.cluster.jobs import JobInput
from muster.cluster.pods import Identity, PodSettings, spec_hash
from muster.cluster.reading import Once
from muster.cluster.snapshot import TERMINAL
from muster.cluster.status import is_true
from muster.cluster.views import PodView
from muster.controllers import terms
from muster.controllers.admission import Obstacle
from muster.controllers.asking import Capacity
from muster.controllers.cache import Owner
from muster.controllers.lifecycle.facts import told_by
from muster.controllers.lifecycle.hindrance import Heard
from muster.controllers.lifecycle.turn import NO_EDIT, NO_FACTS, Edit, Facts, Made, Refusal
from muster.controllers.quarantine import Fault, faults_of
from muster.controllers.questions import Silence, at_doubt
from muster.controllers.reliability import Stay, stay_of
from muster.scheduling.plan import Waiting
from muster_protocol.launcher_status import Status as LauncherStatus
from muster_protocol.messages import Membership

Requests = tuple[tuple[str, int], ...]

MADE_PATIENCE: Final = 30.0
"""Seconds that the watch may take to show a pod that was made."""

ASK_AGAIN: Final = 5.0
"""Seconds between two requests to delete the same object."""


def _all_hashes(spec: TrainingJobSpec) -> tuple[str, str, str]:
    return frozen_hash(spec, OF_PLACEMENT), frozen_hash(spec, OF_PROMISE), frozen_hash(spec, OF_PODS)


def _used_of(template: JobDefaults | None) -> Once[TrainingJobSpec, JobDefaults | None]:
    return Once(lambda spec: used(spec, template))


def _effective_with(defaults: JobDefaults | None) -> Once[TrainingJobSpec, EffectiveSpec]:
    return Once(lambda spec: effective_spec(spec, defaults))


# Jobs whose specs say the same share what is made of them, in each queue's template.
_used: Final = Once(_used_of)
_effective: Final = Once(_effective_with)
_hashes: Final = Once(_all_hashes)


@lru_cache(maxsize=8)
def _template_key(settings: PodSettings) -> Once[EffectiveSpec, str]:
    return Once(lambda spec: spec_hash(spec, settings))


@dataclass(frozen=True)
class Judgement:
    """What admission made of the job's pod in a dry run.

    Attributes:
        key: hash of what the pod was made from.
        requests: of one pod, as the server would store it.
        node_filter: the pod's demands on its node, as the server would store them.
        obstacle: set instead when the pod was refused.
        retry_at: monotonic time of the next try: after a refusal, or where such a pod fits nowhere.
        tries: refusals in a row.
    """

    key: str
    requests: Requests = ()
    node_filter: NodeFilter = field(default_factory=NodeFilter)
    obstacle: Obstacle | None = None
    retry_at: float = field(default=0.0, compare=False)
    tries: int = 0


@dataclass(slots=True)
class Record:
    """One live job.

    Attributes:
        job: the newest state known: by the watch, or by the answer to our own write.
        assumed: a placement whose write is under way; it holds its room already.
        assumed_promise: a promise whose write is under way; its room is kept already.
        leaving: the planner has asked for the gang's end, and the write of that is under way.
        made: pods our POSTs made and the watch has not shown, by name.
        shown: names of this generation's pods that the watch has shown.
        gone: UIDs of pods that the watch has shown to go since the last turn: some in the time of one task.
        facts: what ended launchers of the present placement have told.
        tracker_knows: index 0's pod UID and image, as its run's tracker was told, at `tracker_told_at` (monotonic).
        node_hours_told: index 0's pod UID, and how often nodes fail as it knows, told at `node_hours_told_at`.
        task: the work under way; the job has no turn until it is over.
        plannable: the last turn left the job to the planner.
        waiting: the last word of a plan that explains.
        planned: what was made of the job for the last snapshot, and from what.
        steady: by what `planned` is known to hold still; None where time alone may change it.
        told: reason, message, position and avoided nodes as last told to the job.
        pace: steps a second, as last told: it still holds while the gang's processes start again.
        edit: of its spec, while the gang runs and was placed for another one.
        stand: what the last plan depended on in this job; a change makes a new plan necessary.
        told_at: monotonic time of the last status write that said why the job waits.
        growth_seen_at: monotonic time of the last look at why its gang is not larger.
        seen_at: monotonic time of the first turn of a job without a status.
        whole_at: monotonic time at which the last pod of the present placement was seen ready; None before.
        wake_at: monotonic time of the next turn, as the policies want it; each turn sets it anew.
        retry_at: monotonic time of another turn, asked for beside the policies; stays until it has come.
        asked: monotonic time at which the deletion of each UID was last asked for.
        unmade: why pods of the present placement could not be made at the last try, where that may pass; else "".
        vain: the last status that was written, and the other one that it came to; None where it is as it was to be.
        unsure: a status write may have been done or not; the job is read again before anything else.
        errors: turns in a row that failed.
        template: the queue's `defaultTemplate` as last seen.
        defaults: what of it the job has got in `spec`.
        heard: what an Event says of a pod of the gang that is being created for long.
        capacity: what became of the request for more nodes; None where none is made.
        gpu_type: of the nodes of the placement; "" while that is not known.
        price: money for an hour of a whole one of these, in `currency`; 0 while that is not known.
        launcher: the last answer of the launcher of index 0, given in the placement `launcher_generation` at
            `launcher_at` (monotonic), when all launchers had the membership of incarnation `launcher_told` (0: none).
        membership: the last one that was pushed, and the UIDs of the pods that have it (`members_told`).
        missed: since when (monotonic) launchers have said that they miss those of these indexes.
        silence: the questions that the present placement's leader has left unanswered since its last answer.
        refused: the pod of index 0 whose answers are not heeded, as the log has told.
        doubtful: a worker is lost or may be: the launchers are asked before those of others.
        ring: told the UID and the moment of each turn that is asked for.
    """

    job: TrainingJob
    spec: EffectiveSpec
    assumed: Placement | None = None
    assumed_promise: Promise | None = None
    leaving: bool = False
    made: dict[str, Made] = field(default_factory=dict)
    shown: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    refusal: Refusal | None = None
    unmade: str = ""
    judgement: Judgement | None = None
    task: asyncio.Task[None] | None = None
    judging: asyncio.Task[None] | None = None
    plannable: bool = False
    obstacle: Obstacle | None = None
    waiting: Waiting | None = None
    pace: float = 0.0
    edit: Edit = NO_EDIT
    told: tuple[object, ...] = ()
    told_at: float = float("-inf")
    growth_seen_at: float = float("-inf")
    stand: tuple[object, ...] = ()
    seen_at: float | None = None
    whole_at: float | None = None
    wake_at: float | None = None
    retry_at: float | None = None
    asked: dict[str, float] = field(default_factory=dict)
    vain: tuple[TrainingJobStatus, TrainingJobStatus] | None = None
    unsure: bool = False
    errors: int = 0
    template: JobDefaults | None = None
    defaults: JobDefaults | None = None
    heard: Heard | None = None
    capacity: Capacity | None = None
    gpu_type: str = ""
    price: float = 0.0
    currency: str = ""
    ring: Callable[[str, float], None] = lambda uid, moment: None
    launcher: LauncherStatus | None = None
    launcher_generation: int = 0
    launcher_at: float = float("-inf")
    launcher_told: int = 0
    whole_since: float | None = None
    peers_since: float | None = None
    membership: Membership | None = None
    members_told: frozenset[str] = frozenset()
    missed: dict[int, float] = field(default_factory=dict)
    silence: Silence | None = None
    refused: str = ""
    doubtful: bool = False
    deleted: bool = False
    planned: tuple[tuple[object, ...], JobInput] | None = None
    steady: tuple[object, ...] | None = None
    identity: Identity = field(init=False)
    facts: Facts = NO_FACTS
    tracker_knows: tuple[str, str] = ("", "")
    tracker_told_at: float = float("-inf")
    node_hours_told: tuple[str, float] = ("", 0.0)
    node_hours_told_at: float = float("-inf")
    _filled: tuple[JobDefaults | None] | None = None

    def __post_init__(self) -> None:
        metadata = self.job.metadata
        self.identity = Identity(metadata.namespace, metadata.name, metadata.uid)

    @classmethod
    def of(cls, job: TrainingJob) -> Record:
        record = cls(job, _effective(None)(job.spec), pace=terms.pace(job.status))
        record.fill(None)
        return record

    @property
    def uid(self) -> str:
        return self.job.metadata.uid

    @property
    def owner(self) -> Owner:
        """As its pods name it."""
        return self.identity.namespace, self.uid

    def template_key(self, settings: PodSettings) -> str:
        """Hash of what the job's pods are made from."""
        return _template_key(settings)(self.spec)

    @property
    def placement(self) -> Placement | None:
        """The placement that holds room: the written one, or the one being written."""
        return self.assumed or self.job.status.placement

    @property
    def promise(self) -> Promise | None:
        """The promise that keeps room for the job: the written one, or the one being written."""
        return self.assumed_promise or self.job.status.promise

    @property
    def leaves_for_good(self) -> bool:
        """Whether the job is deleted, or will be once whoever has a finalizer on it lets it go: that may be never, and
        what its status says of a placement or a promise holds no room meanwhile. Its pods do until they are gone."""
        return self.deleted or self.job.metadata.deletion_timestamp is not None

    @property
    def suspended(self) -> bool:
        """Whether the job neither runs nor waits, by its owner's wish or because its GPUs were idle."""
        return self.spec.suspend or is_true(self.job.status, ConditionType.SUSPENDED)

    @property
    def waits(self) -> bool:
        """Whether the job would run if it could."""
        ended = self.job.status.finished_at is not None
        return self.placement is None and not ended and not self.suspended and not self.leaves_for_good

    def holds(self, pods: tuple[PodView, ...]) -> bool:
        """Whether the job's placement or promise stands, or a pod of it lives."""
        return bool(self.placement or self.promise or self.made or any(pod.phase not in TERMINAL for pod in pods))

    @property
    def placement_hash(self) -> str:
        """Of the spec's fields that a placement stands for."""
        return _hashes(self.job.spec)[0]

    @property
    def promise_hash(self) -> str:
        """Of the spec's fields that a promise stands for."""
        return _hashes(self.job.spec)[1]

    @property
    def pods_hash(self) -> str:
        """Of the spec's fields that may be edited while a gang runs whose pods are made from them."""
        return _hashes(self.job.spec)[2]

    def take(self, job: TrainingJob) -> bool:
        """Accept a state of the job, unless it is older than the known one. True if it was taken."""
        if int(job.metadata.resource_version or 0) < int(self.job.metadata.resource_version or 0):
            return False
        edited = job.metadata.generation != self.job.metadata.generation
        self.job, self.pace = job, terms.pace(job.status) or self.pace
        if edited:
            self._filled = None
            self.fill(self.template)
            self.told_at = float("-inf")  # who has edited it looks for what that changes
        return True

    def fill(self, template: JobDefaults | None) -> None:
        """Take over the queue's present template where the job leaves something to it; a job that has a placement or a
        promise keeps what it got with it."""
        self.template, status = template, self.job.status
        held = status.placement is not None or status.promise is not None
        defaults = status.defaults if held else _used(template)(self.job.spec)
        if self._filled == (defaults,):
            return
        self._filled, self.defaults = (defaults,), defaults
        self.spec = _effective(defaults)(self.job.spec)

    @property
    def due_at(self) -> float | None:
        """Monotonic time of the next turn without any change, or None."""
        return min((moment for moment in (self.wake_at, self.retry_at) if moment is not None), default=None)

    def ask(self, moment: float) -> None:
        """Have a turn at `moment` at the latest.

        An earlier turn takes the place of a later one, so each turn asks anew for all that it still waits for.
        """
        if self.retry_at is None or moment < self.retry_at:
            self.retry_at = moment
            self.ring(self.uid, moment)

    def doubt(self, doubtful: bool, now: float) -> None:
        """A worker is lost or may be (`doubtful`), or all are known to live."""
        if doubtful and not self.doubtful:
            self.silence = at_doubt(self.silence, now)
        self.doubtful = doubtful

    def see(self, pods: tuple[PodView, ...], now: float) -> None:
        """Note which pods the watch shows, so that one that goes later is known to have been there.

        A pod of ours that came and went between two turns is in `gone`; one of which it has shown neither for
        MADE_PATIENCE came and went while it was away, or it is far behind. Both are forgotten. Making one again is
        harmless, for its name is taken if it is there.
        """
        placement = self.placement
        self.made = {
            name: made
            for name, made in self.made.items()
            if made.uid not in self.gone and now - made.at < MADE_PATIENCE
        }
        self.gone = frozenset()
        self.asked = {uid: at for uid, at in self.asked.items() if now - at < 10 * ASK_AGAIN}
        for pod in pods:
            self.made.pop(pod.name, None)
        if placement is not None:
            self.shown |= {pod.name for pod in pods if pod.generation == placement.generation}
            self.facts = told_by((pod for pod in pods if pod.generation == placement.generation), self.facts)
        if placement is None:
            self.shown = frozenset()
            self.facts = NO_FACTS
            self.launcher, self.silence, self.whole_since, self.peers_since = None, None, None, None
            self.launcher_at, self.launcher_told, self.missed = float("-inf"), 0, {}
            self.refusal = None


def deadline(moment: datetime | None, now: datetime, monotonic: float) -> float | None:
    """`moment` of the wall clock on the monotonic clock."""
    return None if moment is None else monotonic + max(0.0, (moment - now).total_seconds())


@dataclass(frozen=True, slots=True)
class Ended:
    """What is kept of a job that has ended and holds nothing.

    Attributes:
        version: resourceVersion of its end: what the watch shows of it later may be older.
        faults: what its nodes have done to it.
    """

    version: int
    queue: str
    phase: Phase | None
    stay: Stay
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, record: Record, now: datetime) -> Ended:
        job, version = record.job, int(record.job.metadata.resource_version or 0)
        stay = stay_of(job, record.spec.kinds, now)
        return cls(version, sys.intern(job.spec.queue), job.status.phase, stay, faults_of(job))
