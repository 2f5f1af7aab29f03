"""What a job's status holds, in words and sentences that several pages share. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from muster.api.common import find_condition
from muster.api.effective import effective_spec
from muster.api.names import ConditionType, Phase
from muster.api.placement import Placement, format_indexes
from muster.api.restarts import Group, used
from muster.api.terms import Usage
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import NumericsStatus, TrainingJobStatus, TrainingWarning
from muster.cluster.status import below_wish, held_of
from muster.cluster.views import PodView
from muster.controllers import devices
from muster.scheduling.plan import WaitReason
from muster.sizing.money import PLATFORM_PRICES
from muster.telling.scene import Scene
from muster_protocol import exits
from muster_protocol.counts import counted
from muster_protocol.durations import format_duration
from muster_protocol.goodput import PLAIN_AFTER_SECONDS

SILENT_SECONDS: Final = 300.0
"""The operator hears of a gang that trains, and writes down where its time goes, at least so often, also where it has
ten thousand to ask and where none of them makes a step."""
_PLACED_SECONDS: Final = 5.0
"""In which a lost worker gets another node and a pod there, where there is room for it."""
WARNINGS_SHOWN: Final = 3
"""Of those that a job's status has, on the page of `muster status`."""
FINAL: Final = (Phase.SUCCEEDED, Phase.FAILED)
PROMISED: Final = "promised"
ROUGH: Final = "queue"
BASES: Final = {
    PROMISED: ": room is being cleared for it",
    "limits": " at the latest, unless a job goes before it: by then the running jobs must have ended",
    "progress": ", by the running jobs' own progress",
    ROUGH: ", roughly: by the jobs ahead and how fast room comes back",
}
"""How sure an expected start is."""
AHEAD: Final = {"Held by": "holds", "Behind": "before"}
"""Of those for which a job waits; whom what it lacks is kept for stands in the message."""
DISRUPTED: Final = "disrupted"
"""`status.failure.cause` of pods that were drained, evicted or deleted."""
OF_A_RANK: Final = frozenset({exits.Cause.USER, exits.Cause.OUT_OF_MEMORY})
"""Causes of a launcher's end for which the exit code of a rank tells more than its own, which is 1."""
CAUSES: Final = {
    Group.SCRIPT: "of the script",
    Group.MEMORY: "for want of memory",
    Group.NETWORK: "of the network",
    Group.PLATFORM: "of nodes and the platform",
}
"""What follows the word failures."""


def one_line(job: TrainingJob) -> str:
    """Phase, progress and reason in one line."""
    status = job.status
    parts = [f"{job.metadata.namespace}/{job.metadata.name}", status.phase.value if status.phase else "not seen yet"]
    if status.placement is not None and status.placement.workers != job.spec.workers.replicas:
        parts.append(f"{held_of(status, job.spec.workers.replicas)} workers")
    if status.phase is Phase.RUNNING and (status.progress is None or not status.progress.step):
        parts.append("no step yet")
    elif status.progress is not None:
        total = f"/{status.progress.total_steps}" if status.progress.total_steps else ""
        parts.append(f"step {status.progress.step}{total}")
        if status.progress.loss:
            parts.append(f"loss {short(status.progress.loss)}")
    if status.checkpoint is not None:
        parts.append(f"checkpoint at step {status.checkpoint.step}")
    if status.restarts:
        parts.append(counted(status.restarts, "restart"))
    if status.placement is not None and status.placement.replacing is not None:
        parts.append(f"worker {status.placement.replacing.indexes} is lost and made anew")
    if status.queue is not None and status.queue.message:
        parts.append(status.queue.why)
    return ", ".join(parts)


def waiting(scene: Scene, *, changes: bool = True) -> Iterator[tuple[str, str]]:
    """What the planner knows of a job that waits, beyond the reason: when, where almost, and what would help."""
    place = scene.job.status.queue
    if place is None:
        return
    known = place.expected_start is not None and scene.unled is None
    left = (place.expected_start - scene.now).total_seconds() if known and place.expected_start is not None else 0.0
    if left >= 1:  # of a job that waits, a guess that has passed tells nothing
        shut = place.reason == WaitReason.WINDOW_CLOSED.value and place.basis == ROUGH
        basis = ", when its window opens, if there is room then" if shut else BASES.get(place.basis, "")
        yield "Starts", f"in {format_duration(left)}{basis}"
    elif place.basis == PROMISED:
        yield "Starts", f"now{BASES[PROMISED]}"
    if place.almost:
        yield (
            "Almost",
            "; ".join(f"{one.domain} has room for {one.placeable}, {one.lacking} lacking" for one in place.almost),
        )
    for title, why in AHEAD.items():
        if named := [one.job for one in place.ahead if one.why == why and one.job not in place.message]:
            yield title, ", ".join(named)
    if place.changes and changes:
        yield "Would help", "\n".join(change.text for change in place.changes)


def size_kept(scene: Scene) -> str:
    """What is told of a gang whose script has failed with another size; "" for any other."""
    fixed = scene.job.status.fixed_size
    if fixed is None or fixed.failed is None:
        return ""
    return f"it keeps {counted(fixed.workers, 'worker')} until its spec is edited: {fixed.message}"


def below(scene: Scene) -> str:
    """Why a gang that runs has fewer workers than it asks for, and when it may grow; "" for any other."""
    status, wish = scene.job.status, scene.job.spec.workers.replicas
    if not below_wish(status, wish):
        return ""
    held = f"{held_of(status, wish)} workers"
    if status.fixed_size is not None and status.fixed_size.failed is None:
        return f"{held}: the training can't go on with another number: {status.fixed_size.message}"
    growth = status.growth
    if growth is None:
        return ""
    left = (growth.not_before - scene.now).total_seconds() if growth.not_before is not None else 0.0
    soonest = f"; it grows in {format_duration(left)} at the soonest" if left >= 1 else ""
    return f"{held}: {growth.reason}: {growth.message}{soonest}"


def survived(status: TrainingJobStatus) -> bool:
    """Whether the run has got past its last failure: by steps after the one at which it failed or, where no steps are
    known, by a later start."""
    failure, progress = status.failure, status.progress
    if failure is None or failure.at is None or status.phase is Phase.FAILED:
        return False
    if progress is None or progress.updated_at is None:
        return status.running_since is not None and status.running_since > failure.at
    return progress.updated_at > failure.at and progress.step > (failure.step or 0)


def word_for(cause: str) -> str:
    """What an end by this cause is called: nobody failed where the pods were evicted or deleted, or told to stop."""
    return "interruption" if cause in (DISRUPTED, exits.Cause.PREEMPTED) else "failure"


def silent(scene: Scene) -> str:
    """What is told of a gang of which nothing was heard for long, so that its numbers are old; "" for any other."""
    status = scene.job.status
    if status.phase is not Phase.RUNNING or status.goodput is None or scene.unled is not None:
        return ""
    age = (scene.now - max(status.goodput.until, status.running_since or status.goodput.until)).total_seconds()
    first = before_the_first_step(scene)
    unknown = PLAIN_AFTER_SECONDS if first else 0  # it is told when it is known what it was
    if age < SILENT_SECONDS + unknown:
        return ""
    told = f"nothing was heard of its training for {format_duration(age)}, and what is told of it is as old"
    # What a step took is counted at its end: until then nobody but the launcher knows that it goes on.
    return f"{told}: a long {'start' if first else 'step'}, a hang, or the operator or worker 0 does not answer"


def standing_still(scene: Scene) -> str:
    """What is told of a gang whose launcher answers, and which has long done no step; "" for any other."""
    status, progress = scene.job.status, scene.job.status.progress
    if status.phase is not Phase.RUNNING or scene.unled is not None or before_the_first_step(scene):
        return ""
    if progress is None or progress.updated_at is None or not progress.stands_still:
        return ""
    named = f"{scene.job.metadata.name} -n {scene.job.metadata.namespace}"
    told = f"no step was done for {format_duration((scene.now - progress.updated_at).total_seconds())}"
    return f"{told}: an evaluation, a save of the script's own, or a rank that hangs:  muster stacks {named}"


def seconds_left(scene: Scene) -> float:
    """Until its last step, of a gang that trains; 0 where that isn't known now."""
    status = scene.job.status
    eta = status.progress.eta if status.progress is not None else None
    if status.phase is not Phase.RUNNING or eta is None or scene.unled is not None:
        return 0.0
    if silent(scene) or standing_still(scene) or before_the_first_step(scene):
        return 0.0
    return max(0.0, (eta - scene.now).total_seconds())


def runtime_left(scene: Scene) -> float:
    """Seconds until the `maxRuntime` of a run ends it, 0 or less once it has passed; infinite without one."""
    status, limit = scene.job.status, effective_spec(scene.job.spec, scene.job.status.defaults).max_runtime
    if limit is None or status.running_since is None:
        return math.inf
    return limit - (status.runtime_seconds or 0) - (scene.now - status.running_since).total_seconds()


def before_the_first_step(scene: Scene) -> str:
    """What is told of a gang that has done no step that is known since its ranks were started last, or whose ranks wait
    for a lost worker; "" for any other."""
    status = scene.job.status
    progress, done = status.progress, _done_before(status)
    before = f"; step {done} was done before" if done else ""
    if status.phase is not Phase.RUNNING:
        return ""
    if status.placement is not None and status.placement.replacing is not None:
        return f"waiting for {replaced(scene, status.placement)}{before}"
    since = _started_since(status)
    if since is None:
        return ""
    if progress is not None and progress.step and (progress.updated_at is None or progress.updated_at >= since):
        return ""
    waits = (scene.now - since).total_seconds()
    none = "reports none" if scene.job.spec.checkpoint is None else "reports none, and saves no checkpoint"
    if not done and waits >= PLAIN_AFTER_SECONDS and _counts_as_training(status):
        return f"no step was told of for {format_duration(waits)}: a script without a session {none}"
    told = f"waiting for the first step for {format_duration(waits)}"
    return f"{told}{before or f': imports, the model, its first batch; a script without a session {none}'}"


def _counts_as_training(status: TrainingJobStatus) -> bool:
    """Whether the launcher takes the time of the present ranks for training, though it knows of no step."""
    known = status.goodput.launcher if status.goodput is not None else None
    return known is not None and bool(known.seconds.training)


def ended_early(scene: Scene) -> tuple[int, ...]:
    """Indexes of workers that have ended with exit code 0 while others of their gang run."""
    placement = scene.job.status.placement
    if placement is None:
        return ()
    gang = [
        pod
        for pod in scene.pods
        if pod.generation == placement.generation
        and pod.index < placement.workers
        and pod.attempt == placement.attempt_of(pod.index)
    ]
    over = tuple(sorted(pod.index for pod in gang if pod.phase == "Succeeded"))
    return over if any(pod.phase == "Running" and not pod.terminating for pod in gang) else ()


def told_of_ended(over: Sequence[int]) -> str:
    """What is told of those; "" where there are none."""
    if not over:
        return ""
    who, has, them = ("workers", "have", "them") if len(over) > 1 else ("worker", "has", "it")
    return f"{who} {format_indexes(over)} {has} ended with exit code 0 already: whoever waits for {them} waits in vain"


def replaced(scene: Scene, placement: Placement) -> str:
    """Which workers are replaced, since when they are lost, and whether there are pods in their places."""
    lost = placement.replacing
    assert lost is not None
    several = "," in lost.indexes or "-" in lost.indexes
    who = f"worker{'s' if several else ''} {lost.indexes}, lost {ago(lost.since, scene.now)}"
    there = {(pod.generation, pod.index, pod.attempt) for pod in scene.pods}
    missing = [
        index for index in placement.replaced if (placement.generation, index, placement.attempt_of(index)) not in there
    ]
    if not (missing and scene.pods) or (scene.now - lost.since).total_seconds() < _PLACED_SECONDS:
        return f"{who} and made anew"
    which = "" if len(missing) == len(placement.replaced) else f"worker {format_indexes(missing)}: "
    return f"{who}; {which}there is no node to make {'them' if len(missing) > 1 else 'it'} anew on yet"


def _started_since(status: TrainingJobStatus) -> datetime | None:
    """When the ranks that run now were started, or a little before: with the run, after its last failure in their pods,
    or when a lost worker's new pod had joined."""
    if status.running_since is None:
        return None
    moments = [status.running_since]
    if status.failure is not None and status.failure.at is not None:
        moments.append(status.failure.at)
    ready = find_condition(status.conditions, ConditionType.PODS_READY.value)
    if ready is not None and ready.status == "True":
        moments.append(ready.last_transition_time)
    return max(moments)


def _done_before(status: TrainingJobStatus) -> int:
    """The last step that is known to have been done; the launcher is asked for it now and then only."""
    steps = [status.progress.step] if status.progress is not None and status.progress.step else []
    if steps and status.checkpoint is not None:
        steps.append(status.checkpoint.step)
    return max(steps, default=0)


def unsound(numerics: NumericsStatus) -> str:
    """What followed steps whose numbers were not sound, and the newest of them."""
    told = [f"{counted(numerics.skipped, 'update')} skipped"] if numerics.skipped else []
    told += [counted(numerics.rollbacks, "rollback")] if numerics.rollbacks else []
    return f"{', '.join(told)}; the last: {numerics.last}"


def warned(warnings: Sequence[TrainingWarning], scene: Scene) -> str:
    """The newest of what the training has warned of; where the others are."""
    told = [f"{ago(each.at, scene.now)}: {each.message}" for each in warnings[-WARNINGS_SHOWN:]]
    if left := len(warnings) - len(told):
        named = f"{scene.job.metadata.name} -n {scene.job.metadata.namespace}"
        told.insert(0, f"{counted(left, 'earlier one')}:  muster explain {named}")
    return "\n".join(told)


def tracked(status: TrainingJobStatus) -> str:
    """The run in its tracker, and what is wrong with that."""
    known = find_condition(status.conditions, ConditionType.TRACKING_REACHABLE.value)
    told = [status.tracking.url] if status.tracking is not None and status.tracking.url else []
    if status.tracking is not None and status.tracking.dropped:
        told.append(f"{counted(status.tracking.dropped, 'value')} given up")
    if known is not None and known.message:
        told.append(known.message)
    return "\n".join(told)


def used_limits(scene: Scene) -> Iterator[tuple[Group, int, int | None]]:
    """Of each limit of `restart` how many failures within its window there were, and how many restarts it allows."""
    spec = effective_spec(scene.job.spec, scene.job.status.defaults)
    for group, limit in spec.restart_limits.items():
        yield group, used(scene.job.status.recent_failures, group, spec.restart_window, scene.now), limit


def answered(limit: int | None) -> str:
    """How many of such failures are followed by a restart. The one that follows them ends the job, so there may be one
    more of them than of restarts."""
    if limit is None:
        return "each is answered by a restart"
    return f"{f'at most {limit}' if limit else 'none'} {'are' if limit > 1 else 'is'} answered by a restart"


def short(number: str) -> str:
    """Six digits of a number that is told as text; other text as it is."""
    try:
        return f"{float(number):.6g}"
    except ValueError:
        return number


def capacity_of(status: TrainingJobStatus, pod: PodView) -> tuple[str, bool | None]:
    """The kind of capacity that a worker is on, "" where its job names none; and whether it is of the safe base, None
    where there is no such thing."""
    placement = status.placement
    if placement is None or pod.generation != placement.generation or not placement.capacity:
        return "", None
    if placement.base is None:
        return placement.capacity, None
    of_base = pod.index < placement.base
    return placement.capacity if of_base else placement.beyond, of_base


def pod_state(pod: PodView) -> str:
    """Its phase, and by which exit code its launcher ended and why; of a rank that failed by itself that one's."""
    if pod.terminating:
        return "Terminating"
    if not pod.exit_code:
        return pod.phase if pod.ready or pod.phase != "Running" else "Running, not ready"
    phase = "Ending" if pod.phase == "Running" else pod.phase  # its container has ended, and its kubelet says so soon
    facts = exits.decode(pod.termination_message)
    if facts is None:
        return f"{phase}, exit code {pod.exit_code}"
    if facts.rank_exit_code is not None and facts.cause in OF_A_RANK:
        return f"{phase}, exit code {facts.rank_exit_code} of a rank"
    return f"{phase}, exit code {pod.exit_code} ({facts.cause.value})"


UNSAVED: Final = "it names no checkpoint.uri: what stops it loses all of its work"


def gpu_time(scene: Scene) -> tuple[str, str]:
    """(GPU hours that the job has used, slices as parts of a GPU; what they cost); "" for nothing.

    What the present placement costs is counted at its end; until then it is reckoned by the rate in the status.
    """
    spec, status = effective_spec(scene.job.spec, scene.job.status.defaults), scene.job.status
    usage, placement = status.usage or Usage(), status.placement
    seconds, cost = float(usage.gpu_seconds), Decimal(usage.cost or 0)
    begins = placement.counts_from if placement is not None else None
    if placement is not None and begins is not None:
        since = max(0.0, (scene.now - begins).total_seconds())
        seconds += float(devices.held_as_written(placement, spec)) * since
        cost += Decimal(usage.hourly or 0) * Decimal(since) / 3600
    hours = f"{seconds / 3600:,.2f} GPU hours" if seconds else ""
    apart = " until the present placement" if begins is not None and not usage.hourly else ""
    return hours, f"{cost:,.2f} {usage.currency or PLATFORM_PRICES}{apart}" if cost else ""


def ago(moment: datetime | None, now: datetime) -> str:
    return f"{format_duration(max(0.0, (now - moment).total_seconds()))} ago" if moment else ""
