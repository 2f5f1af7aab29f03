"""One job's turn: what the policies see, and what they decide. Pure data; the executor acts on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from muster.api import goodput
from muster.api.effective import EffectiveSpec
from muster.api.names import ConditionType, EventReason, Reason
from muster.api.placement import Stop, Victim
from muster.api.queue_position import QueuePosition
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import Goodput, TrainingJobStatus
from muster.cluster.pods import pod_name
from muster.cluster.status import Draft, is_true
from muster.cluster.views import PodView
from muster.controllers import devices, terms
from muster.controllers.asking import Capacity
from muster.controllers.idle_limits import IdleLimit
from muster.controllers.lifecycle.hindrance import Heard
from muster_protocol.goodput import Spent
from muster_protocol.launcher_status import Status as LauncherStatus
from muster_protocol.numerics import Numerics

TERMINAL: Final = frozenset({"Succeeded", "Failed"})

REPLACE_LIMIT: Final = 90.0
"""Seconds in which a gang has to come together again once a worker was lost; then it starts again whole. The others
wait for longer in their pods (`muster.cluster.pod_environment.REPLACE_SECONDS`)."""

BAD_NODE_AVOIDED: Final = 600.0
"""Seconds for which a job stays away from a node that is broken, or hurt it repeatedly; until it trains at most."""

_FARTHEST: Final = 30 * 86400.0
"""Seconds; a turn too many is harmless, and a moment beyond the calendar's end is an error."""


@dataclass(frozen=True)
class Made:
    """A pod that our POST made, `at` on the monotonic clock, and that the watch has not shown yet."""

    name: str
    uid: str
    generation: int
    index: int
    at: float = 0.0


@dataclass(frozen=True)
class Refusal:
    """The API server refused a pod, or its making can't go on; one sentence why."""

    generation: int
    message: str


@dataclass(frozen=True)
class Note:
    """An Event to tell once the status is written. `logged`: in the operator's log alone."""

    reason: EventReason
    message: str
    warning: bool = False
    logged: bool = False


@dataclass(frozen=True)
class Claim:
    """Somebody's written promise that names this job as one that leaves.

    Attributes:
        beneficiary: uid.
        name: `namespace/name` of the beneficiary, for people.
    """

    beneficiary: str
    name: str
    victim: Victim


@dataclass(frozen=True)
class Facts:
    """What ended launchers of the present placement have left in their termination messages, the newest of each."""

    step: int | None = None
    committed_step: int | None = None
    spent: tuple[int, Spent] | None = None
    """Of index 0: the number of its pod, and what its launcher has counted."""
    loss: tuple[int, str] | None = None
    """Of index 0: a step and its loss."""
    numerics: Numerics | None = None
    """Of index 0."""
    committed_by: datetime | None = None
    """When the first pod ended that knows of the checkpoint of `committed_step`: it is no younger."""
    stopped: str = ""
    """How it went, by a launcher that was asked to stop: the fullest message."""


NO_FACTS: Final = Facts()


@dataclass(frozen=True)
class Edit:
    """What the API server makes of the pods of a spec that a running gang was not placed for.

    Attributes:
        judged: whether it has been asked.
        reason, message: why it refuses them, or "".
    """

    judged: bool = True
    reason: str = ""
    message: str = ""


NO_EDIT: Final = Edit()


@dataclass(frozen=True)
class Situation:
    """Everything that a policy may look at.

    Attributes:
        pods: every pod of this job's UID that the watch shows.
        unshown: pods made by us that it doesn't show yet.
        shown: names of pods that it has shown at some time.
        lost_nodes: names of nodes that are gone or unreachable.
        unfit_nodes: names of the placement's nodes on which no pod of the gang can be made now.
        refusal: why a pod of the present placement could not be made, or None.
        unmade: the same where it may pass and is tried again, or "".
        stranded: with `unmade`, the highest generation of pods that lost nodes keep of an earlier job so named; else 0.
        launcher: the last answer of the gang's launcher in this placement, or None.
        answered_ago: seconds since it was given.
        unanswered_for: seconds between the first and the last question that the launcher has left unanswered; 0.0 while
            it answers, and before it was asked.
        missed: indexes whose launchers the gang has missed for a while, as the others say.
        told: the `placement.incarnation` whose members all launchers knew by then; 0 for none.
        silent_for: seconds that all pods have run without an answer from the launcher; 0.0 while it answers.
        whole_for: seconds since all pods of the placement were seen ready; 0.0 before.
        peers_wait: seconds since the first pod ended that names another pod as the cause.
        launcher_patience: seconds after which a gang whose launcher doesn't answer counts as running.
        replace_limit: seconds in which a gang has to come together again once a worker was lost.
        bad_node_avoided: seconds for which the job stays away from a node that is broken; 0: it doesn't.
        claim: the written promise of another job that counts on this one's room, or None.
        facts: what ended launchers have told.
        placement_hash, pods_hash, promise_hash: of the spec's fields that a placement, its pods and a promise stand
            for; see `muster.api.frozen`.
        edit: of the spec, where a running gang was placed for another one.
        namespace_ends: the job's namespace is being deleted: nothing can be made there.
        heard: what an Event says of a pod of the gang that is being created for long, or None.
        capacity: what became of the request for more nodes, or None.
        gpu_type: of the present placement's nodes; "" where that is not known.
        price: money for an hour of a whole one of these, in `currency`; 0 where it has no price.
        priority: value of the PriorityClass that the spec names; 0 where it names none or there is none.
        no_priority: what is wrong where there is none of that name, or "".
        idle: what the queue, or one above it, says of idle GPUs; None where none does, and without a placement.
        typical_start: seconds that a start of this cluster takes.
    """

    job: TrainingJob
    spec: EffectiveSpec
    now: datetime
    pods: tuple[PodView, ...] = ()
    unshown: tuple[Made, ...] = ()
    shown: frozenset[str] = frozenset()
    lost_nodes: frozenset[str] = frozenset()
    unfit_nodes: frozenset[str] = frozenset()
    refusal: Refusal | None = None
    unmade: str = ""
    stranded: int = 0
    launcher: LauncherStatus | None = None
    answered_ago: float = float("inf")
    unanswered_for: float = float("inf")
    missed: frozenset[int] = frozenset()
    told: int = 0
    silent_for: float = 0.0
    whole_for: float = 0.0
    peers_wait: float = 0.0
    launcher_patience: float = 60.0
    replace_limit: float = REPLACE_LIMIT
    bad_node_avoided: float = BAD_NODE_AVOIDED
    claim: Claim | None = None
    facts: Facts = NO_FACTS
    placement_hash: str = ""
    pods_hash: str = ""
    promise_hash: str = ""
    edit: Edit = NO_EDIT
    namespace_ends: bool = False
    heard: Heard | None = None
    capacity: Capacity | None = None
    gpu_type: str = ""
    price: float = 0.0
    currency: str = ""
    priority: int = 0
    no_priority: str = ""
    idle: IdleLimit | None = None
    typical_start: float = terms.START_SECONDS


@dataclass(frozen=True)
class Decision:
    """What is to be done, in this order: write the status if it changed, delete, make, tell.

    Attributes:
        status: the whole new status, or None when it stays.
        delete: pods to delete, (name, uid).
        make: indices whose pods are to be made.
        runtime_image: that the gang's other pods run; "" where it has none yet.
        delete_job: the job itself has outlived its `ttlAfterFinished`.
        plannable: the job may be given a placement now.
        wake_at: look again at this moment, whatever happens.
        hurried: names of the pods to delete that others have replaced.
    """

    status: TrainingJobStatus | None = None
    delete: tuple[tuple[str, str], ...] = ()
    make: tuple[int, ...] = ()
    notes: tuple[Note, ...] = ()
    delete_job: bool = False
    plannable: bool = False
    wake_at: datetime | None = None
    runtime_image: str = ""
    hurried: frozenset[str] = frozenset()


@dataclass
class Turn:
    """The policies' common table: they read `s` and write the rest."""

    s: Situation
    draft: Draft = field(init=False)
    notes: list[Note] = field(default_factory=list)
    make: tuple[int, ...] = ()
    delete_job: bool = False
    plannable: bool = False
    _delete: dict[str, str] = field(default_factory=dict)
    _hurried: frozenset[str] = frozenset()
    _wake_at: datetime | None = None

    def __post_init__(self) -> None:
        self.draft = Draft(self.s.job, self.s.now)

    @property
    def status(self) -> TrainingJobStatus:
        """As edited so far."""
        return self.draft.status

    @property
    def generation(self) -> int:
        """Of the spec that is looked at."""
        return self.s.job.metadata.generation

    @property
    def gang(self) -> tuple[PodView, ...]:
        """Pods of the present placement."""
        placement = self.status.placement
        return tuple(pod for pod in self.s.pods if placement and pod.generation == placement.generation)

    def by_index(self) -> dict[int, PodView]:
        """The present placement's pods that hold their index's present attempt."""
        placement = self.status.placement
        return {pod.index: pod for pod in self.gang if placement and pod.attempt == placement.attempt_of(pod.index)}

    def name_of(self, index: int) -> str:
        """Name of the pod that the present placement wants at `index`."""
        placement = self.status.placement
        assert placement is not None
        return pod_name(self.s.job.metadata.name, placement.generation, index, placement.attempt_of(index))

    def wake_in(self, seconds: float) -> None:
        self.wake_at(self.s.now + timedelta(seconds=min(seconds, _FARTHEST)))

    def wake_at(self, moment: datetime) -> None:
        if self._wake_at is None or moment < self._wake_at:
            self._wake_at = moment

    def since(self, moment: datetime | None) -> float:
        """Seconds from `moment` to now; 0 for None."""
        return 0.0 if moment is None else (self.s.now - moment).total_seconds()

    def tell(self, reason: EventReason, message: str, *, warning: bool = False) -> None:
        self.notes.append(Note(reason, message, warning))

    def remove(self, pods: Iterable[PodView]) -> None:
        """Delete pods, but not twice."""
        self._delete |= {pod.name: pod.uid for pod in pods if not pod.terminating}

    def dismiss(self, pods: Iterable[PodView]) -> None:
        """Delete pods that others have replaced: nothing that they still save counts, and their GPUs are wanted."""
        replaced = tuple(pods)
        self.remove(replaced)
        self._hurried |= {pod.name for pod in replaced}

    def remove_unshown(self) -> None:
        """Delete what we made and the watch doesn't show; asked again until it is shown or known to be gone."""
        if self.s.unshown:
            self._delete |= {made.name: made.uid for made in self.s.unshown}
            self.wake_in(2.0)

    def waits(self, reason: str, message: str) -> None:
        """Say why the job holds nothing, or soon will: in the condition, and for `kubectl get`."""
        self.draft.condition(ConditionType.ADMITTED, False, reason, message)
        self.draft.set(queue=QueuePosition(reason=reason, message=message))

    def stop(self, reason: Reason, message: str) -> None:
        """Record the intent to end the placement, before anything is done about it."""
        self.record_stop(Stop(reason=reason.value, message=message, requested_at=self.s.now))

    def record_stop(self, stop: Stop) -> None:
        """As `stop`, with all that is to be said about it."""
        write_stop(self.draft, stop)
        self.remove(self.s.pods)
        self.remove_unshown()

    def end_run(self, reason: str, message: str) -> None:
        """Close the account of a run: its time is added up, and the gang no longer trains."""
        end_run(self.draft, self.s.now, reason, message)

    def decision(self) -> Decision:
        self._settle()
        status = self._with_rate(self.draft.done())
        return Decision(
            status=None if status == self.s.job.status else status,
            delete=tuple(self._delete.items()),
            hurried=self._hurried & self._delete.keys(),
            make=self.make,
            notes=tuple(self.notes),
            delete_job=self.delete_job,
            plannable=self.plannable,
            wake_at=self._wake_at,
            runtime_image=self._runtime_image() if self.make else "",
        )

    def _runtime_image(self) -> str:
        return next((pod.runtime_image for _, pod in sorted(self.by_index().items()) if pod.runtime_image), "")

    def _settle(self) -> None:
        """Book what a placement has used, once, when it is over."""
        before = self.s.job.status
        if before.placement is not None and self.status.placement is None:
            gpus = devices.held(before.placement, self.s.spec, self.s.gpu_type)
            if gpus:
                self.draft.set(usage=terms.used(before, gpus, self.s.price, self.s.now, self.s.currency))
        self._count_time(before)

    def _with_rate(self, status: TrainingJobStatus) -> TrainingJobStatus:
        """The status with what a placement that goes on costs an hour."""
        if self.s.job.status.placement is None or status == self.s.job.status:
            return status
        return terms.with_rate(status, self.s.spec, self.s.gpu_type, self.s.price, self.s.currency)

    def account(self) -> Goodput:
        """Where the job's time went, as far as it is known."""
        return goodput.account(self.status, self.status.submitted_at or self.submitted_at)

    @property
    def submitted_at(self) -> datetime:
        return self.s.job.metadata.creation_timestamp or self.s.now

    def _count_time(self, before: TrainingJobStatus) -> None:
        """Book the time that this turn closes: with a placement, the job, or a suspension's begin or end."""
        after, now = self.status, self.s.now
        placed, goes_on = before.placement is not None, after.placement is not None
        was, is_ = (is_true(status, ConditionType.SUSPENDED) for status in (before, after))
        ends = before.finished_at is None and after.finished_at is not None
        if goes_on or not (placed or was != is_ or ends):
            return
        left = before.model_copy(update={"goodput": after.goodput})
        known = goodput.account(left, before.submitted_at or self.submitted_at)
        if placed:
            known = goodput.ended(known, before.finished_at or now)
        elif was:
            known = goodput.resumed(known, now)
        else:
            known = goodput.up_to(known, goodput.QUEUED, now)
        self.draft.set(goodput=known)


def write_stop(draft: Draft, stop: Stop) -> None:
    """Record the intent to end the placement."""
    draft.set(stop=stop, ready=0)
    draft.condition(ConditionType.ADMITTED, False, Reason.STOPPING.value, stop.message)
    draft.set(queue=QueuePosition(reason=stop.reason, message=stop.message))
    end_run(draft, stop.requested_at, stop.reason, stop.message)


def end_run(draft: Draft, now: datetime, reason: str, message: str) -> None:
    """Close the account of a run: its time and its restarts in place are added up, and the gang no longer trains."""
    placement = draft.status.placement
    if placement is not None and placement.restarts:
        draft.set(failures=draft.status.restarts_used, placement=placement.settled())
    since, before = draft.status.running_since, draft.status.runtime_seconds
    trained = int(max(0.0, (now - since).total_seconds())) if since else 0
    draft.set(running_since=None, runtime_seconds=(before or 0) + trained or before)
    for kind in (ConditionType.PODS_READY, ConditionType.RUNNING):
        draft.condition(kind, False, reason, message)
    for kind in (ConditionType.STRAGGLING, ConditionType.CHECKPOINT_IN_MEMORY, ConditionType.EDIT_REFUSED):
        if is_true(draft.status, kind):
            draft.condition(kind, False, reason, message)
    if is_true(draft.status, ConditionType.GPUS_IDLE) and reason != Reason.GPUS_IDLE.value:
        draft.condition(ConditionType.GPUS_IDLE, False, reason, message)
