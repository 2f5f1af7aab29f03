"""Why a job is where it is, what follows, what helps, and its history in order of time. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from muster.api import goodput
from muster.api.common import Condition, find_condition
from muster.api.effective import effective_spec
from muster.api.names import ConditionType, EventReason, Phase
from muster.api.trainingjob_status import Goodput, NodeFault, PastFailure, TrainingJobStatus
from muster.cluster.views import parse_time
from muster.telling.outlook import advice, follows, unplanned
from muster.telling.scene import Scene, event_time
from muster.telling.wording import (
    CAUSES,
    FINAL,
    UNSAVED,
    ago,
    answered,
    before_the_first_step,
    below,
    ended_early,
    gpu_time,
    silent,
    size_kept,
    standing_still,
    survived,
    told_of_ended,
    tracked,
    used_limits,
    waiting,
    word_for,
)
from muster_protocol.counts import counted
from muster_protocol.durations import format_duration

_TROUBLES: Final = (
    ConditionType.STRAGGLING,
    ConditionType.GPUS_IDLE,
    ConditionType.PRIORITY_CLASS_MISSING,
    ConditionType.EDIT_REFUSED,
)
"""Conditions that are worth a word while they are true."""
EVENTS_READ: Final = 100
"""Of a job's events, the newest."""
_UNCOUNTED_SECONDS: Final = 60.0
"""Less in which a job was suspended is not worth a word."""
_OLD_SECONDS: Final = 10.0
"""An account is of now where it is younger: a gang that trains is asked so often."""
PARTS: Final = {
    "training": "training",
    "data_wait": "waiting for data",
    "checkpoint": "standing still for saves",
    "starting": "starting, up to the first step",
    "restoring": "looking for a checkpoint, restoring it",
    "recomputing": "computing lost steps again",
    "queued": "waiting in the queue, or for a back-off",
    "hung": "hung",
}
UNTOLD: Final = "starting, or at work without a word of a step"
"""The same of a job that has told of no step at all: what its script did up to its end may have been either."""
OF_THE_SCRIPT: Final = ("user", "out-of-memory", "hang")
"""`status.failure.cause` of what the script brings about."""
_MANY: Final = "that takes a moment, or some minutes where thousands of jobs are new at once"
LINES_SHOWN: Final = 30
"""Of the history, the newest."""
LEAVING_SECONDS: Final = 600.0
"""From the Event that a gang was asked to leave to the end of its pods, at most: it saves, within its grace."""
REPEATED_SECONDS: Final = 60.0


def sections(scene: Scene) -> Iterator[tuple[str, tuple[tuple[str, ...], ...]]]:
    """(heading, rows of texts) of those in which there is something to tell."""
    for heading, rows in (
        ("Why", _why(scene)),
        (_failed(scene), _failure(scene)),
        ("Restarts", _restarts(scene)),
        ("Warnings of the training (UTC)", _warnings(scene)),
        ("Unsound numbers", _numerics(scene)),
        ("Tracking", ((("", tracked(scene.job.status)),) if scene.job.status.tracking is not None else ())),
        ("Sizes (UTC)", _sizes(scene)),
        ("Where the time went", _time(scene)),
        ("What follows", ((("", told),) if (told := follows(scene)) else ())),
        ("What you can do", (("-", told) for told in advice(scene))),
        ("History (UTC)", _lines(scene)),
    ):
        if found := tuple(rows):
            yield heading, found


def _why(scene: Scene) -> Iterator[tuple[str, str]]:
    job, status = scene.job, scene.job.status
    place = status.queue
    if scene.unled is not None and status.phase not in FINAL:
        yield "", scene.unled.told(scene.now)
    elif status.phase is None:
        yield (
            "",
            f"no operator has told of it yet: {_MANY}; else look whether one runs: kubectl get pods -n muster-system",
        )
    elif unplanned(status):
        yield "", f"what it waits for is not told yet: {_MANY}"
    if place is not None and place.why:
        yield "", place.why
    elif status.phase is Phase.STARTING and status.placement is not None:
        where = f" on {status.nodes}" if status.nodes else ""
        count = status.placement.workers
        made = f"{status.ready or 0} of {counted(count, 'pod')} {'is' if count == 1 else 'are'} ready"
        yield "", f"{'its worker starts' if count == 1 else f'all {count} workers start'}{where}: {made}"
    elif status.phase is Phase.RUNNING and status.placement is not None:
        where = f" on {status.nodes}" if status.nodes else ""
        first = before_the_first_step(scene)
        count, verb = status.placement.workers, "run" if first else "train"
        over = ended_early(scene)
        if over:
            yield "", f"{count - len(over)} of {count} workers still {verb}{where}; {told_of_ended(over)}"
        elif status.placement.replacing is None:
            yield "", (f"all {count} workers {verb}" if count > 1 else f"its worker {verb}s") + where
        if first:
            yield "", first
    if fewer := size_kept(scene) or below(scene):
        yield "", fewer
    if old := standing_still(scene) or silent(scene):
        yield "", old
    if place is not None and place.position:
        yield "", f"place {place.position} in the order of queue {job.spec.queue}"
    for kind in _TROUBLES:
        trouble = find_condition(status.conditions, kind.value)
        if trouble is not None and trouble.status == "True" and place is None:
            yield "", trouble.message
    for title, told in waiting(scene, changes=False):
        yield "", f"{title[0].lower()}{title[1:]}: {told}" if title != "Starts" else f"starts {told}"
    if status.progress is not None:
        total = f" of {status.progress.total_steps}" if status.progress.total_steps else ""
        yield "", f"step {status.progress.step}{total} is done{_checkpoint(scene)}"


def _checkpoint(scene: Scene) -> str:
    known = scene.job.status.checkpoint
    if known is None:
        return "; no checkpoint is committed" if scene.job.spec.checkpoint is not None else f"; {UNSAVED}"
    if known.committed_at is None:  # nobody has told when: it was there before the job was
        return f"; it resumed from the checkpoint of step {known.step}, and has committed none since"
    age = f", {ago(known.committed_at, scene.now)}"
    return f"; the last checkpoint is step {known.step}{age}"


def _failed(scene: Scene) -> str:
    status = scene.job.status
    word = word_for(status.failure.cause if status.failure is not None else "")
    return f"The last {word}{', survived' if survived(status) else ''}"


def _failure(scene: Scene) -> Iterator[tuple[str, str]]:
    failure = scene.job.status.failure
    if failure is None:
        return
    where = [f"rank {failure.rank}"] if failure.rank is not None else []
    where += [f"worker {failure.index}"] if failure.index is not None else []
    where += [f"node {failure.node}"] if failure.node else []
    where += [f"exit code {failure.exit_code}"] if failure.exit_code is not None else []
    when = [f"step {failure.step}"] if failure.step is not None else []
    when += [ago(failure.at, scene.now)] if failure.at else []
    yield "cause", failure.cause
    yield "where", ", ".join(where)
    yield "when", ", ".join(when)
    yield "what", failure.message
    if failure.alike:
        yield "alike", f"{failure.alike} failures in a row, up to this one, were one and the same"
    for number, line in enumerate(failure.traceback.splitlines()):
        yield ("traceback" if "Traceback" in failure.traceback else "stderr") if number == 0 else "", line


def _restarts(scene: Scene) -> Iterator[tuple[str, ...]]:
    """What is used of each limit, where anything is."""
    status, spec = scene.job.status, effective_spec(scene.job.spec, scene.job.status.defaults)
    window = format_duration(spec.restart_window)
    for group, used, limit in used_limits(scene):
        if used:
            told = f"{counted(used, 'failure')} {CAUSES[group]}; {answered(limit)} ({group.value})"
            yield f"within {window}", told
    for count, told in (
        (status.restarts, "of the whole gang, with new pods"),
        (status.restarts_in_place, "of the processes, in the pods that were there"),
    ):
        if count:
            yield "since submission", f"{counted(count, 'restart')} {told}"
    if status.replacements:
        told = f"{counted(status.replacements, 'lost worker')} replaced, while the others kept their pods"
        yield "since submission", told
    if status.preemptions:
        yield "since submission", counted(status.preemptions, "preemption")


def _numerics(scene: Scene) -> Iterator[tuple[str, ...]]:
    """What the watch over losses and gradients has done."""
    known = scene.job.status.numerics
    if known is not None:
        for count, told in ((known.skipped, "update"), (known.rollbacks, "rollback")):
            if count:
                yield "since submission", f"{counted(count, told)}{' skipped' if told == 'update' else ''}"
        yield "the last", known.last


def _warnings(scene: Scene) -> Iterator[tuple[str, ...]]:
    """What the training has warned of last, in its words."""
    for warning in scene.job.status.warnings:
        yield f"{warning.at:%Y-%m-%d %H:%M:%S}", ago(warning.at, scene.now), warning.message


def _sizes(scene: Scene) -> Iterator[tuple[str, ...]]:
    """Of an elastic gang: how many workers it had from when on, and why."""
    for size in scene.job.status.sizes:
        workers, moment = counted(size.workers, "worker"), f"{size.since:%Y-%m-%d %H:%M:%S}"
        yield moment, ago(size.since, scene.now), workers, size.reason


def _time(scene: Scene) -> Iterator[tuple[str, ...]]:
    """Goodput and the parts of the job's time, up to now for a job that waits."""
    status = scene.job.status
    known = status.goodput
    if status.submitted_at is not None and status.placement is None and status.finished_at is None:
        known = goodput.account(status, status.submitted_at)
        if status.phase is not Phase.SUSPENDED:
            known = goodput.up_to(known, goodput.QUEUED, scene.now)
    if known is None or known.ratio is None:
        return
    training, queued = known.seconds.training or 0, known.seconds.queued or 0
    held = goodput.whole_of(known.seconds) - queued
    if not held:
        return
    apart = f", {training / held:.1%} of the time with GPUs" if queued else ""
    untold = "" if training else _told_no_step(status)
    if untold:
        yield "goodput", "unknown", untold
    else:
        yield "goodput", f"{float(known.ratio):.1%}", f"of the time {_counted(scene, known)} was training{apart}"
    hours, money = gpu_time(scene)
    if hours:
        yield "used", hours, money
    for part, seconds, share in goodput.shares(known.seconds):
        told = UNTOLD if untold and part == goodput.STARTING else PARTS[part]
        yield format_duration(seconds), f"{share:.1%}", told


def _told_no_step(status: TrainingJobStatus) -> str:
    """Of a script that has failed, or was stopped, without a word of a step: it may have no session, and have done
    many. "" for any other, and while it runs."""
    if status.progress is not None:
        return ""
    if status.failure is not None and status.failure.cause in OF_THE_SCRIPT:
        return "its script failed and had told of no step"
    if not status.placements or status.placement is not None:
        return ""
    return f"it {'has ended' if status.phase in FINAL else 'was stopped'} and had told of no step"


def _counted(scene: Scene, known: Goodput) -> str:
    """Of which time the account is."""
    status, since = scene.job.status, "since it was submitted"
    if status.submitted_at is not None:
        uncounted = (known.until - status.submitted_at).total_seconds() - goodput.whole_of(known.seconds)
        if uncounted >= _UNCOUNTED_SECONDS:
            since += f", without {format_duration(uncounted)} in which it was suspended,"
    age = (scene.now - known.until).total_seconds()
    if age >= _OLD_SECONDS and status.placement is not None:
        since += f"{'' if since.endswith(',') else ','} as it was known {format_duration(age)} ago,"
    return since


@dataclass(frozen=True)
class _Line:
    at: datetime
    what: str
    told: str


def _lines(scene: Scene) -> Iterator[tuple[str, ...]]:
    """The history: what the status keeps for ever, and the Events of the last hour that say more."""
    found = sorted((*_remembered(scene), *_told(scene)), key=lambda line: line.at)
    if len(found) > LINES_SHOWN:
        yield "…", "", "", f"{len(found) - LINES_SHOWN} earlier"
    for line in found[-LINES_SHOWN:]:
        yield f"{line.at:%Y-%m-%d %H:%M:%S}", ago(line.at, scene.now), line.what, line.told


def _remembered(scene: Scene) -> Iterator[_Line]:
    status, placement, checkpoint = scene.job.status, scene.job.status.placement, scene.job.status.checkpoint
    where = f"as generation {placement.generation} on {status.nodes or 'its nodes'}" if placement else ""
    saved = f"of step {checkpoint.step}, the newest; those before are not listed" if checkpoint else ""
    again = status.running_since if status.running_since != status.started_at else None
    for at, what, told in (
        (status.submitted_at, "Submitted", ""),
        (placement.placed_at if placement else None, "Placed", where),
        (status.started_at, "Running", "for the first time: all workers have joined"),
        (again, "Running", "the present run: all workers have joined"),
        (checkpoint.committed_at if checkpoint else None, "Checkpoint", saved),
    ):
        if at is not None:
            yield _Line(at, what, told)
    for past in status.recent_failures:
        yield _Line(past.at, word_for(past.cause).capitalize(), _short(past))
    for fault in status.node_faults:
        yield _Line(fault.at, "Node", f"{fault.node}: {fault.cause}: {fault.message}")
    for moment in status.preempted_at:
        if not _has_an_event(scene, moment):
            yield _Line(moment, "Preempted", "its room was given to another")
    for condition in status.conditions:
        if not _said_otherwise(scene, condition):
            # Why it is False becomes another without a change of it, and nobody keeps what it was then.
            why = condition.reason if condition.status == "True" else f"its reason now is {condition.reason}"
            told = f"{condition.type} is {condition.status}: {why}"
            yield _Line(condition.last_transition_time, "Condition", told)


def _has_an_event(scene: Scene, gone_at: datetime) -> bool:
    """Whether an Event says for whom the gang that was gone at that moment gave its room."""
    reasons = {EventReason.PREEMPTED.value, EventReason.MOVED.value}
    return any(0 <= (gone_at - at).total_seconds() < LEAVING_SECONDS for at in _moments(scene, reasons))


def _moments(scene: Scene, reasons: Container[str]) -> Iterator[datetime]:
    """When there were Events of these reasons."""
    found = (parse_time(event_time(event)) for event in scene.events if event.get("reason", "") in reasons)
    return (moment for moment in found if moment is not None)


_OF_A_RUN: Final = frozenset(
    each.value for each in (ConditionType.ADMITTED, ConditionType.PODS_READY, ConditionType.RUNNING)
)
"""False at the end of every job, for the reason of that."""


def _said_otherwise(scene: Scene, condition: Condition) -> bool:
    """Whether another line of the history tells of a condition's change: those of the present run, the end that it
    came with or whose reason it has got since, or an Event of its reason."""
    status, at, holds = scene.job.status, condition.last_transition_time, condition.status == "True"
    if condition.type in (ConditionType.SUCCEEDED.value, ConditionType.FAILED.value):
        return False
    if condition.type == ConditionType.ADMITTED.value and holds and status.placement is not None:
        return True
    if condition.type == ConditionType.RUNNING.value and holds and status.running_since is not None:
        return True
    if status.finished_at is not None and not holds and (at >= status.finished_at or condition.type in _OF_A_RUN):
        return True
    return any(abs((moment - at).total_seconds()) < REPEATED_SECONDS for moment in _moments(scene, {condition.reason}))


def _told(scene: Scene) -> Iterator[_Line]:
    status = scene.job.status
    known: tuple[PastFailure | NodeFault, ...] = (*status.recent_failures, *status.node_faults)
    for event in scene.events:
        if event.get("reason") == EventReason.TRAINING_WARNING.value:
            continue  # these have a section of their own, which outlives their Events
        at, message = parse_time(event_time(event)), event.get("message", "")
        if at is not None and not any(_repeats(message, at, past) for past in known):
            yield _Line(at, event.get("reason", ""), f"{message}{_again(event)}")


def _again(event: dict[str, Any]) -> str:
    """Of one that stands for several: how many, and since when."""
    count, first = (event.get("series") or {}).get("count"), parse_time(event.get("eventTime") or "")
    return f" ({count} times since {first:%H:%M:%S})" if isinstance(count, int) and count > 1 and first else ""


def _repeats(message: str, at: datetime, past: PastFailure | NodeFault) -> bool:
    """Whether an Event tells of a failure, or of a fault of a node, that the history has already."""
    return (
        past.message != "" and past.message[:100] in message and abs((at - past.at).total_seconds()) < REPEATED_SECONDS
    )


def _short(past: PastFailure) -> str:
    where = [f"worker {past.index}"] if past.index is not None else []
    where += [f"node {past.node}"] if past.node else []
    where += [f"step {past.step}"] if past.step is not None else []
    after = "; answered in the pods that were there" if past.in_place else ""
    return f"{past.cause}: {past.message}{f' ({told})' if (told := ', '.join(where)) else ''}{after}"
