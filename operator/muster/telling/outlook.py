"""What becomes of a job next, of itself, and what its owner can do: two parts of what `muster explain` shows. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from muster.api.common import find_condition
from muster.api.effective import EffectiveSpec, effective_spec
from muster.api.names import ConditionType, Phase, Reason
from muster.api.placement import parse_indexes
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import TrainingJobStatus
from muster.api.trainingqueue import StopPolicy
from muster.cluster.hindrances import PODS_ARE_MADE, hinders, keeps_pods
from muster.cluster.status import is_false, reason_of
from muster.scheduling.plan import StayReason, WaitReason
from muster.telling.ends import first_ending
from muster.telling.scene import Scene
from muster.telling.wording import FINAL, below, runtime_left, seconds_left, standing_still, used_limits
from muster_protocol.durations import format_duration

_NO_BUCKET: Final = re.compile(r"the bucket '([^']*)' does not exist")
"""As `muster_protocol.storage_errors` says it."""


def follows(scene: Scene) -> str:
    """What Muster does next; "" where that isn't known."""
    job, status, spec = scene.job, scene.job.status, effective_spec(scene.job.spec, scene.job.status.defaults)
    resumes = _origin(status)
    if scene.unled is not None and (status.phase not in FINAL or spec.ttl is not None):
        ranks = "" if status.phase in FINAL else "; where its ranks run, they go on by themselves"
        return f"nothing, until an operator leads again{ranks}"
    if status.phase in FINAL:
        if spec.ttl is None or status.finished_at is None:
            left_over = {"its checkpoints": status.checkpoint is not None, "its ended pods": bool(scene.pods)}
            stay = " and ".join(what for what, there in left_over.items() if there)
            return f"nothing: the job has ended{f'; {stay} stay' if stay else ''}"
        left = max(0.0, spec.ttl - (scene.now - status.finished_at).total_seconds())
        stays = "; its checkpoints stay" if status.checkpoint else ""
        return f"the job is deleted in {format_duration(left)} (ttlAfterFinished){stays}"
    if status.phase is Phase.SUSPENDED and reason_of(status, ConditionType.SUSPENDED) == Reason.GPUS_IDLE.value:
        return f"nothing, until its spec changes; then it queues, and goes on {resumes}"
    if status.phase is Phase.SUSPENDED:
        return f"nothing, until spec.suspend is false; then it queues, and goes on {resumes}"
    if status.stop is not None and status.stop.reason == Reason.GPUS_IDLE.value:
        return f"the gang saves a checkpoint and stops; the job is suspended until its spec changes, to go on {resumes}"
    if status.stop is not None and status.stop.reason == Reason.SUSPENDED.value:
        until = "spec.suspend is false"
        return f"the gang saves a checkpoint and stops; the job is suspended until {until}, to go on {resumes}"
    if status.phase is Phase.PREEMPTING:
        return f"the gang saves a checkpoint and stops, and queues again with its first submit time, to go on {resumes}"
    if status.phase is Phase.RESTARTING:
        room = "on the nodes that it had" if status.promise is not None else "when there is room: it queues again"
        return f"the whole gang starts again {_when(scene)} {room}, {resumes}"
    reason = status.queue.reason if status.queue is not None else ""
    kept = keeps_pods(reason)
    if status.phase is Phase.STARTING and kept:
        return "the pods start once what stands under Why is mended; until then the gang is taken back and tried again"
    if status.phase is Phase.STARTING and reason == Reason.STORAGE_ERROR.value:
        return (
            "the ranks start once the checkpoint's storage can be used; the launchers try that again for some minutes, "
            "and then the gang starts anew where its restart limits allow it"
        )
    if status.phase is Phase.STARTING:
        return (
            f"{_of_pods(status)}the ranks start as soon as the launchers of all workers have joined; a gang that takes "
            f"longer than readyTimeout ({format_duration(spec.ready_timeout)}) is taken back whole and queues again"
        )
    if status.phase is Phase.RUNNING and status.placement is not None:
        return _trains(scene, spec)
    later = _next_kind(scene, spec)
    wait = _when(scene) if status.not_before is not None else ""
    if kept:
        again = wait or "when it has quota and room"
        return f"it is tried again {again}; it starts once what stands under Why is mended"
    if reason == WaitReason.QUEUE_CLOSED.value:
        return f"it waits until queue {job.spec.queue} is opened; then it starts when it has quota and room"
    if left := _stays_away(scene):
        return f"in {format_duration(left)} it may take a node again that it stays away from; then it may start"
    if asked := _asked_for_nodes(status):
        return f"{asked}; it starts when they have joined, and may start before where room comes free"
    if hinders(reason):
        changes = "what stands under Why has changed"
        looks = f"Muster looks again by itself{'' if later else ', and then the job has its turn'}"
        return f"{later}, unless {changes} before; {looks}" if later else f"nothing, until {changes}; {looks}"
    if unplanned(status):
        return "Muster tells what it waits for"
    opens = "its window is open and " if reason == WaitReason.WINDOW_CLOSED.value else ""
    starts = f"it starts {wait}{' ' if wait else ''}when {opens}it has quota and room"
    return f"{starts}{'; ' if later else ''}{later}" if job.status.phase else ""


def unplanned(status: TrainingJobStatus) -> bool:
    """Whether the job queues and nobody has told yet what it waits for, a closed queue perhaps."""
    pending = reason_of(status, ConditionType.ADMITTED) == Reason.PENDING.value
    return status.phase is Phase.QUEUED and status.queue is None and pending


def _asked_for_nodes(status: TrainingJobStatus) -> str:
    """What became of the request for the nodes that a job lacks; "" where none is open."""
    asked = find_condition(status.conditions, ConditionType.CAPACITY_REQUESTED.value)
    if asked is None or asked.reason not in (Reason.REQUESTED.value, Reason.PROVISIONED.value):
        return ""
    answer = "no answer yet" if asked.reason == Reason.REQUESTED.value else "its answer stands in the history"
    return f"an autoscaler was asked for its nodes ({answer})"


def _of_pods(status: TrainingJobStatus) -> str:
    """What the pods of a gang that starts are about, where more is known than that they are made."""
    pods = find_condition(status.conditions, ConditionType.PODS_READY.value)
    if pods is None or pods.reason != Reason.PODS_STARTING.value or pods.message in ("", PODS_ARE_MADE):
        return ""
    return f"{pods.message}; "


def _next_kind(scene: Scene, spec: EffectiveSpec) -> str:
    """When a job that waits for the kinds of nodes that it prefers takes the next, too; "" where it takes them all."""
    since = scene.job.status.submitted_at
    if since is None:
        return ""
    waited = (scene.now - since).total_seconds()
    for number, kind in enumerate(spec.capacity[1:], start=1):
        left = number * spec.fallback_after - waited
        if left > 0:
            last = number == len(spec.capacity) - 1
            what = f"the {'dearest' if last else 'next cheapest'} kind of" if spec.cheapest else kind
            return f"in {format_duration(left)} it takes {what} nodes, too"
    return ""


def _trains(scene: Scene, spec: EffectiveSpec) -> str:
    status = scene.job.status
    replacing = status.placement.replacing if status.placement is not None else None
    if replacing is not None:
        again = f"the whole gang starts again, {_origin(status)}"
        base = status.placement.base if status.placement is not None else None
        whole = base is not None and parse_indexes(replacing.indexes)[0] < base  # no gang goes on without its base
        if spec.elastic and status.fixed_size is None and not whole:
            left = spec.shrink_after - (scene.now - replacing.since).total_seconds()
            when = f"in {format_duration(left)}" if left > 0 else "soon"
            again = f"where there is no node for it by then, {when} with fewer workers (workers.shrinkAfter)"
            return f"worker {replacing.indexes} gets a new pod, and all go on together; {again}"
        return f"worker {replacing.indexes} gets a new pod, and all go on together; where that takes too long, {again}"
    left = seconds_left(scene)
    reached = 0 < left <= runtime_left(scene)  # else not all of that is to come
    told = f"it trains on; about {format_duration(left)} are left" if reached else "it trains on"
    if standing_still(scene):
        told = "it trains on with its next step; ranks that turn out to hang (spec.hang) are started again"
    if below(scene) and status.fixed_size is None:
        told += "; it grows by itself, with a stop and a start, when nothing keeps it from that any more"
    end = first_ending(scene, spec)
    if end is None or 0 < left <= end.left:
        return told
    return f"{told}; {end.told}" if end.left > 0 else end.told


def _origin(status: TrainingJobStatus) -> str:
    if status.checkpoint is not None:
        later = ", or from a later one that it has saved by then" if status.stop is not None else ""
        return f"from step {status.checkpoint.step}{later}"
    return "from its checkpoint, where its script has one" if status.started_at is not None else "from the beginning"


def _when(scene: Scene) -> str:
    moment = scene.job.status.not_before
    left = (moment - scene.now).total_seconds() if moment is not None else 0.0
    return f"in {format_duration(left)}" if left >= 1 else "as soon as its old pods are gone"


def advice(scene: Scene) -> Iterator[str]:
    """What its owner can do, a sentence or a command each."""
    job, status, failure, place = scene.job, scene.job.status, scene.job.status.failure, scene.job.status.queue
    named = f"{job.metadata.name} -n {job.metadata.namespace}"
    if status.phase is Phase.FAILED:
        if failure is not None and failure.index is not None:
            one = f"--rank {failure.rank}" if failure.rank is not None else f"--worker {failure.index}"
            yield f"read what it wrote:  muster logs {named} {one}"
        if is_false(status, ConditionType.CHECKPOINT_STORAGE_READY):
            yield from _mended_storage(job, " in what you apply")
        goes_on = ""
        if status.checkpoint is not None:
            goes_on = f"; with the same checkpoint.uri it goes on from step {status.checkpoint.step}"
        yield f"mend the cause, then:  kubectl delete tj {named}  and apply it again{goes_on}"
        if place is not None and place.reason == Reason.MAX_RUNTIME_EXCEEDED.value:
            yield "raise spec.maxRuntime in what you apply"
    elif status.phase is Phase.SUSPENDED:
        if reason_of(status, ConditionType.SUSPENDED) == Reason.GPUS_IDLE.value:
            yield f"mend what keeps its GPUs idle:  kubectl edit tj {named}  or, to go on as it is:"
        yield f"muster resume {named}"
    elif status.phase is Phase.QUEUED and place is not None and _stays_away(scene):
        yield f"to have it tried at once where it could not start:  {_anew(named)}"
        yield from (change.text for change in place.changes)
    elif status.phase is Phase.QUEUED and place is not None and hinders(place.reason):
        yield from _mending(named, scene, place.reason)
        if keeps_pods(place.reason) and status.not_before is not None and status.not_before > scene.now:
            yield f"once that is done, have it tried at once:  {_anew(named)}"
        yield from (change.text for change in place.changes)
    elif status.phase is Phase.QUEUED and place is not None and place.reason == WaitReason.WINDOW_CLOSED.value:
        yield f"to have it start before its window opens, change or leave out spec.window:  kubectl edit tj {named}"
        yield from (change.text for change in place.changes)
    elif status.phase is Phase.QUEUED:
        yield f"see who holds the queue's quota and who is ahead:  muster jobs --queue {job.spec.queue}"
        if place is not None and place.reason == WaitReason.QUOTA_EXCEEDED.value:
            yield "see which queues use what they share with it, and have borrowed of it:  muster queues"
        yield from (change.text for change in place.changes) if place is not None else ()
    elif status.phase is not None and status.phase is not Phase.SUCCEEDED:
        if status.phase is Phase.STARTING and place is not None and keeps_pods(place.reason):
            # An edit of what its pods are made from would be refused.
            where = "in the cluster, or while it is suspended in the job"
            yield f"mend what stands under Why, {where}:  kubectl edit tj {named}"
            yield f"suspend and resume it:  {_anew(named)}"
        if is_false(status, ConditionType.CHECKPOINT_STORAGE_READY):
            yield from _storage(job, named)
        growth = status.growth.reason if status.growth is not None and status.phase is Phase.RUNNING else ""
        if growth in (StayReason.SETTLING.value, StayReason.DOES_NOT_PAY.value):
            yield f"to have it grow now, whatever the stop and the start cost:  {_anew(named)}"
        yield f"follow it:  muster status {named} --watch  or  muster logs {named} --all -f"
    for group, used, limit in used_limits(scene):
        if status.phase not in FINAL and limit is not None and 0 < limit <= used:
            yield f"{group.value} ({limit}) is used up: the next such failure ends the job, unless you raise it"


def _storage(job: TrainingJob, named: str) -> Iterator[str]:
    """How storage is mended that can't be read or written. The launchers try it again and again, but with what their
    pods were made with."""
    if job.spec.checkpoint is not None:
        yield from _mended_storage(job, f":  kubectl edit tj {named}")
        if _tried_another(job):
            yield f"its pods still try the endpoint that they were made with, not {job.spec.checkpoint.endpoint}"
        yield f"new keys and settings reach new pods alone:  {_anew(named)}"


def _tried_another(job: TrainingJob) -> bool:
    """Whether what failed was tried at another server than the spec names by now."""
    told = find_condition(job.status.conditions, ConditionType.CHECKPOINT_STORAGE_READY.value)
    endpoint = (job.spec.checkpoint.endpoint or "").rstrip("/") if job.spec.checkpoint is not None else ""
    tried = re.findall(r"https?://[^\s;,'\")]+", told.message) if told is not None else []
    return bool(endpoint and tried) and not any(each.startswith(endpoint) for each in tried)


def _mended_storage(job: TrainingJob, edit: str) -> Iterator[str]:
    checkpoint = job.spec.checkpoint
    if checkpoint is None:
        return
    told = find_condition(job.status.conditions, ConditionType.CHECKPOINT_STORAGE_READY.value)
    shown = job.status.queue is not None and told is not None and job.status.queue.message == told.message
    why = f" ({told.message})" if told is not None and told.message and not shown else ""
    if checkpoint.secret_ref is not None:
        what = "the keys" if checkpoint.endpoint else "the keys and endpoint"  # the spec's endpoint wins
        where = f"{what} in its Secret:  kubectl edit secret {checkpoint.secret_ref.name} -n {job.metadata.namespace}"
    else:
        where = "the rights of the pods' service account, for spec.checkpoint.secretRef names no Secret"
    missing = _NO_BUCKET.search(told.message) if told is not None else None
    if missing is not None and f"{checkpoint.uri}/".startswith(f"s3://{missing[1]}/"):  # no key and no right makes one
        suspended = "" if job.status.phase in FINAL else " while the job is suspended"
        yield f"make the bucket of {checkpoint.uri}{why}"
        yield f"or correct spec.checkpoint.uri{suspended}{edit}"
    else:
        yield f"mend the bucket of {checkpoint.uri}{why}, or {where}"
    if checkpoint.endpoint:
        yield f"or correct spec.checkpoint.endpoint ({checkpoint.endpoint}){edit}"


def _patch(named: str, field: str, value: str | dict[str, str]) -> str:
    """The command that gives a field of the job's spec another value."""
    return f"kubectl patch tj {named} --type=merge -p '{json.dumps({'spec': {field: value}})}'"


def _anew(named: str) -> str:
    """The commands that suspend a job and resume it."""
    return f"muster suspend {named}  and then  muster resume {named}"


def _stays_away(scene: Scene) -> float:
    """Seconds until a job that lacks nodes may take one again on which it could not start; 0 for others."""
    place = scene.job.status.queue
    if place is None or place.retry_at is None:
        return 0.0
    return max(0.0, (place.retry_at - scene.now).total_seconds())


def _mending(named: str, scene: Scene, reason: str) -> Iterator[str]:
    """How what keeps a job from the queues' order is mended."""
    job = scene.job
    another, queue, alone = _patch(named, "queue", "NAME"), job.spec.queue, job.spec.workers.replicas == 1
    if reason == Reason.QUEUE_NOT_FOUND.value:
        yield "see which queues there are:  muster queues"
        yield f"ask for one of them:  {another}"
    elif reason == WaitReason.QUEUE_CLOSED.value:
        held = [each.metadata.name for each in scene.queues if each.spec.stop_policy is not StopPolicy.NONE]
        opens = f"muster release {' '.join(held)}" if held else f"kubectl edit tq {queue}"
        yield f"have the queue opened, as it stands under Why:  {opens}"
        yield f"or see which others there are:  muster queues  and ask for one of them:  {another}"
    elif reason == Reason.BUDGET_EXHAUSTED.value:
        own = f"kubectl edit tj {named}  or  " if job.spec.budget is not None else ""
        yield f"raise the budget that stands under Why:  {own}kubectl edit tq {queue}"
    elif reason == WaitReason.EXCEEDS_QUOTA.value:
        yield f"ask for less, or raise the queue's quota:  kubectl edit tj {named}  or  kubectl edit tq {queue}"
    elif reason == Reason.NAMESPACE_NOT_ALLOWED.value:
        yield "have the namespace labelled as it stands under Why, or see which queues there are:  muster queues"
        yield f"and ask for one that is open to it:  {another}"
    elif reason == WaitReason.EXCEEDS_CLUSTER.value:
        other = "more but smaller workers" if alone else "fewer or smaller workers, or for a wider topology.level"
        yield f"ask for {other}:  kubectl edit tj {named}"
    elif reason == WaitReason.NO_ELIGIBLE_NODES.value:
        what = "workers.gpuType, capacity, nodeSelector, tolerations, podTemplate"
        yield f"change what it demands of its nodes ({what}), or the nodes:  kubectl edit tj {named}"
    elif reason == Reason.PRIORITY_CLASS_NOT_FOUND.value:
        yield "see which classes there are:  kubectl get priorityclass"
        yield f"ask for one of them:  {_patch(named, 'priorityClassName', 'NAME')}"
    elif reason == Reason.UNKNOWN_GPU_TYPE.value:
        yield f"ask for a type that stands under Why:  {_patch(named, 'workers', {'gpuType': 'TYPE'})}"
        yield "or have nodes added that have this one: the job starts then"
    elif reason == Reason.CHECKPOINT_PATH_CONFLICT.value:
        yield "wait for the job that stands under Why, or end it"
        yield f"or give this one a spec.checkpoint.uri of its own:  kubectl edit tj {named}"
    elif reason == Reason.POD_REFUSED.value:
        yield f"have the namespace admit its pods, as it stands under Why, or ask for less:  kubectl edit tj {named}"
    else:
        yield f"mend what stands under Why, in the job or in the cluster:  kubectl edit tj {named}"
