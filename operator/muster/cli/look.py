"""What `muster status` shows: one screen about a job, from the API server alone."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from muster.api.common import API_VERSION, find_condition
from muster.api.effective import effective_spec
from muster.api.names import JOB_UID_LABEL, ConditionType, Phase, Reason
from muster.api.restarts import Group, used
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import NumericsStatus, Saving
from muster.cluster.client import Api
from muster.cluster.credentials import Credentials
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.views import PodView, parse_time
from muster_protocol.durations import format_duration

REFRESH_SECONDS: Final = 1.0
EVENTS_SHOWN: Final = 6
WORKERS_SHOWN: Final = 20
FINAL: Final = (Phase.SUCCEEDED, Phase.FAILED)
STYLES: Final = {
    Phase.QUEUED: "yellow",
    Phase.STARTING: "cyan",
    Phase.RUNNING: "green",
    Phase.RESTARTING: "yellow",
    Phase.PREEMPTING: "yellow",
    Phase.SUSPENDED: "magenta",
    Phase.SUCCEEDED: "bold green",
    Phase.FAILED: "bold red",
}
PROMISED: Final = "promised"
BASES: Final = {
    PROMISED: ": room is being cleared for it",
    "limits": " at the latest, unless a job goes before it: by then the running jobs must have ended",
    "progress": ", by the running jobs' own progress",
    "queue": ", roughly: by the jobs ahead and how fast room comes back",
}
"""How sure an expected start is."""
ABOVE: Final = "as above"
"""In place of an Event's message that the row Why has already."""
CAUSES: Final = {
    Group.SCRIPT: "failures of the script",
    Group.MEMORY: "want of memory",
    Group.NETWORK: "the network",
    Group.PLATFORM: "nodes and the platform",
}
IN_MEMORY: Final = {
    Reason.KEPT_BY_PEERS.value: "also in memory, with a copy in another worker's",
    Reason.COPY_FAILS.value: "also in each worker's own memory, but a copy fails",
    Reason.KEPT_LOCALLY.value: "also in each worker's own memory",
    Reason.NOT_KEPT.value: "not kept in memory",
}
NO_KINDS: Final = (
    "this cluster does not know Muster's kinds: install the chart, or apply the CRDs (muster crds | kubectl apply -f -)"
)


class NotThere(Exception):
    """What was asked for does not exist; the message says what does."""


@dataclass(frozen=True)
class Scene:
    """A job and what belongs to it, at one moment."""

    job: TrainingJob
    pods: tuple[PodView, ...]
    events: tuple[dict[str, Any], ...]
    now: datetime
    trouble: str = ""


async def status(name: str, namespace: str | None, *, watch: bool, kubeconfig: str | None, context: str | None) -> int:
    """Show one job; `namespace` None is the kubeconfig's. 0, or 1 when the job has failed.

    Raises NotThere, ApiError, ApiUnreachable, CredentialsError.
    """
    api = await connect(kubeconfig, context)
    try:
        scene = await look(api, name, namespace or api.credentials.namespace)
        console = Console(markup=False)  # messages have brackets of their own
        if not watch:
            console.print(render(scene))
        elif sys.stdout.isatty():
            with Live(render(scene), console=console, auto_refresh=False) as live:
                async for fresh in _scenes(api, scene):
                    scene = fresh
                    live.update(render(scene), refresh=True)
        else:
            scene = await _follow(api, scene, console)
        return 1 if scene.job.status.phase is Phase.FAILED else 0
    finally:
        await api.close()


async def connect(kubeconfig: str | None, context: str | None) -> Api:
    credentials = Credentials(Path(kubeconfig) if kubeconfig else None, context or "")
    await credentials.load()
    return Api(credentials)


async def _scenes(api: Api, scene: Scene) -> AsyncIterator[Scene]:
    """The scene, and a fresh one every second until the job has ended. An API server that is away is waited for."""
    while True:
        yield scene
        if scene.job.status.phase in FINAL:
            return
        await asyncio.sleep(REFRESH_SECONDS)
        try:
            scene = await look(api, scene.job.metadata.name, scene.job.metadata.namespace)
        except ApiUnreachable as error:
            scene = replace(scene, trouble=f"{error}; what is shown is old")


async def _follow(api: Api, scene: Scene, console: Console) -> Scene:
    """Without a terminal: a line whenever something has changed."""
    told, last = "", scene
    async for fresh in _scenes(api, scene):
        last = fresh
        line = fresh.trouble or one_line(fresh.job)
        if line != told:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
            told = line
    return last


async def look(api: Api, name: str, namespace: str, *, events: int = EVENTS_SHOWN) -> Scene:
    """Read the job, its pods and so many of its newest events."""
    base = f"/apis/{API_VERSION}/namespaces/{namespace}/trainingjobs"
    try:
        job = TrainingJob.from_raw(await api.get(f"{base}/{name}"))
    except ApiError as error:
        if error.status != 404:
            raise
        raise NotThere(await _absent(api, base, name, namespace)) from error
    uid = job.metadata.uid
    pods = await api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"{JOB_UID_LABEL}={uid}")
    told = await api.list(f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.uid={uid}")
    newest = sorted(told, key=event_time)[-events:]
    views = sorted((PodView.from_raw(raw) for raw in pods), key=lambda pod: (pod.generation, pod.index))
    return Scene(job, tuple(views), tuple(newest), datetime.now(timezone.utc))


async def _absent(api: Api, base: str, name: str, namespace: str) -> str:
    try:
        there = sorted(raw["metadata"]["name"] for raw in await api.list(base))
    except ApiError as error:
        if error.status != 404:
            raise
        return NO_KINDS
    known = ", ".join(there[:10]) + (", …" if len(there) > 10 else "")
    told = f"are: {known}" if there else "are none; -n names another namespace, and `muster jobs` lists all jobs"
    return f"no TrainingJob {name!r} in namespace {namespace!r}; there {told}"


def one_line(job: TrainingJob) -> str:
    """Phase, progress and reason in one line."""
    status = job.status
    parts = [f"{job.metadata.namespace}/{job.metadata.name}", status.phase.value if status.phase else "not seen yet"]
    if status.progress is not None:
        total = f"/{status.progress.total_steps}" if status.progress.total_steps else ""
        parts.append(f"step {status.progress.step}{total}")
        if status.progress.loss:
            parts.append(f"loss {_short(status.progress.loss)}")
    if status.checkpoint is not None:
        parts.append(f"checkpoint at step {status.checkpoint.step}")
    if status.restarts:
        parts.append(counted(status.restarts, "restart"))
    if status.placement is not None and status.placement.replacing is not None:
        parts.append(f"worker {status.placement.replacing.indexes} is lost and made anew")
    if status.queue is not None and status.queue.message:
        parts.append(status.queue.why)
    return ", ".join(parts)


def render(scene: Scene) -> RenderableType:
    """The screen."""
    job, status = scene.job, scene.job.status
    phase = status.phase
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold", no_wrap=True)
    head.add_column()
    head.add_row("Phase", Text(phase.value if phase else "not seen yet: does the operator run?", STYLES.get(phase, "")))  # type: ignore[arg-type]
    place = status.queue
    head.add_row("Queue", job.spec.queue + (f", position {place.position}" if place and place.position else ""))
    why = place.why if place is not None else ""
    if why:
        head.add_row("Why", Text(why, "yellow"))
    if status.defaults is not None:
        head.add_row("Defaults", f"from the queue: {', '.join(status.defaults.to_raw())}")
    for title, told in waiting(scene):
        head.add_row(title, told)
    if status.progress is not None:
        head.add_row("Progress", _progress(scene))
    if status.checkpoint is not None:
        age = f", {ago(status.checkpoint.committed_at, scene.now)}" if status.checkpoint.committed_at else ""
        head.add_row("Checkpoint", f"step {status.checkpoint.step}{age}  {status.checkpoint.uri or ''}")
    if status.saving is not None and phase not in FINAL:
        head.add_row("Saves", _saves(status.saving))
    kept = find_condition(status.conditions, ConditionType.CHECKPOINT_IN_MEMORY.value)
    if kept is not None and phase not in FINAL:
        told = f"{IN_MEMORY.get(kept.reason, kept.reason)}{': ' if kept.message else ''}{kept.message}"
        lacking = kept.message and (kept.status == "False" or kept.reason == Reason.COPY_FAILS.value)
        head.add_row("Memory tier", Text(told, "yellow" if lacking else ""))
    if status.tracking is not None:
        head.add_row("Tracking", tracked(scene))
    if status.restarts or status.restarts_in_place:
        head.add_row("Restarts", _restarts(scene))
    for title, told in _replacements(scene):
        head.add_row(title, told)
    if status.numerics is not None:
        head.add_row("Numerics", Text(unsound(status.numerics), "yellow"))
    if status.sizes:
        head.add_row("Size", _size(scene))
    if status.preemptions:
        lost = f", {status.lost_gpu_seconds} GPU-seconds of work lost" if status.lost_gpu_seconds else ""
        head.add_row("Preempted", f"{counted(status.preemptions, 'time')}{lost}")
    if status.failure is not None and phase is not Phase.SUCCEEDED:
        told = "" if status.failure.message in why else status.failure.message
        failed = f"{told}\n{status.failure.traceback}".strip()
        if failed:
            head.add_row("Last failure", Text(failed, "red"))
    parts: list[RenderableType] = [Text(scene.trouble, "bold red"), head] if scene.trouble else [head]
    if scene.pods:
        parts += [Text(), _workers(scene)]
    if scene.events:
        parts += [Text(), _events(scene)]
    return Panel(Stack(*parts), title=f"{job.metadata.namespace}/{job.metadata.name}", title_align="left")


def waiting(scene: Scene, *, changes: bool = True) -> Iterator[tuple[str, str]]:
    """What the planner knows of a job that waits, beyond the reason: when, where almost, and what would help."""
    place = scene.job.status.queue
    if place is None:
        return
    left = (place.expected_start - scene.now).total_seconds() if place.expected_start is not None else 0.0
    if left >= 1:  # of a job that waits, a guess that has passed tells nothing
        yield "Starts", f"in {format_duration(left)}{BASES.get(place.basis, '')}"
    elif place.basis == PROMISED:
        yield "Starts", f"now{BASES[PROMISED]}"
    if place.almost:
        yield (
            "Almost",
            "; ".join(f"{one.domain} has room for {one.placeable}, {one.lacking} lacking" for one in place.almost),
        )
    if place.changes and changes:
        yield "Would help", "\n".join(place.changes)


def unsound(numerics: NumericsStatus) -> str:
    """What followed steps whose numbers were not sound, and the newest of them."""
    told = [f"{counted(numerics.skipped, 'update')} skipped"] if numerics.skipped else []
    told += [counted(numerics.rollbacks, "rollback")] if numerics.rollbacks else []
    return f"{', '.join(told)}; the last: {numerics.last}"


def tracked(scene: Scene) -> Text:
    """The run in its tracker, and what is wrong with that."""
    status = scene.job.status
    known = find_condition(status.conditions, ConditionType.TRACKING_REACHABLE.value)
    told = [status.tracking.url] if status.tracking is not None and status.tracking.url else []
    if status.tracking is not None and status.tracking.dropped:
        told.append(f"{counted(status.tracking.dropped, 'value')} given up")
    if known is not None and known.message:
        told.append(known.message)
    return Text("\n".join(told), "yellow" if known is not None and known.status == "False" else "")


def _saves(saving: Saving) -> Text:
    told = []
    if saving.interval_seconds is not None:
        told.append(f"every {format_duration(saving.interval_seconds)} (interval auto)")
    if saving.left_out:
        told.append(f"{saving.left_out} left out while the one before was still being written")
    return Text("; ".join(told), "yellow" if saving.left_out else "")


def used_limits(scene: Scene) -> Iterator[tuple[Group, int, int | None]]:
    """Of each limit of `restart` how many failures within its window there were, and how many restarts it allows."""
    spec = effective_spec(scene.job.spec, scene.job.status.defaults)
    for group, limit in spec.restart_limits.items():
        yield group, used(scene.job.status.recent_failures, group, spec.restart_window, scene.now), limit


def _restarts(scene: Scene) -> str:
    """What is used of the script's limit, and of others where anything is; then all restarts."""
    status, parts = scene.job.status, []
    for group, count, limit in used_limits(scene):
        if limit is not None and (count or group is Group.SCRIPT):
            parts.append(f"{count} of at most {limit} used by {CAUSES[group]}")
    ways = ((status.restarts, "with new pods"), (status.restarts_in_place, "in the pods that were there"))
    told = ", ".join(f"{count} {how}" for count, how in ways if count)
    return "; ".join((*parts, told))


def _replacements(scene: Scene) -> Iterator[tuple[str, str]]:
    """Workers that are replaced now in the living gang, and those that were."""
    status = scene.job.status
    replacing = status.placement.replacing if status.placement is not None else None
    if replacing is not None:
        told = f"worker {replacing.indexes}, lost {ago(replacing.since, scene.now)}; the others wait in their pods"
        yield "Replacing", told
    if status.replacements:
        yield "Replaced", f"{counted(status.replacements, 'lost worker')}, while the others kept their pods"


def _size(scene: Scene) -> str:
    """What an elastic gang has, since when and why; and what it had before."""
    *before, last = scene.job.status.sizes
    told = f"{counted(last.workers, 'worker')} since {ago(last.since, scene.now)} ({last.reason})"
    return f"{told}; before {before[-1].workers} ({before[-1].reason})" if before else told


def _progress(scene: Scene) -> RenderableType:
    progress = scene.job.status.progress
    assert progress is not None
    grid = Table.grid(padding=(0, 1))
    told = f"step {progress.step}"
    if progress.total_steps:
        told += f" of {progress.total_steps}"
    for name, value in (("loss", progress.loss), ("steps/s", progress.steps_per_second)):
        if value:
            told += f"   {name} {_short(value)}"
    if progress.eta is not None and progress.eta > scene.now and scene.job.status.phase is Phase.RUNNING:
        told += f"   {format_duration((progress.eta - scene.now).total_seconds())} left"
    if progress.total_steps:
        grid.add_row(ProgressBar(total=progress.total_steps, completed=progress.step, width=30), told)
    else:
        grid.add_row(told)
    return grid


def _short(number: str) -> str:
    """Six digits of a number that is told as text; other text as it is."""
    try:
        return f"{float(number):.6g}"
    except ValueError:
        return number


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _workers(scene: Scene) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("WORKER", "POD", "NODE", "STATE"):
        table.add_column(title)
    # Of a large gang those that have trouble are shown, then as many as fit on a screen.
    order = sorted(scene.pods, key=lambda pod: (pod.ready, -pod.generation, pod.index))
    shown = scene.pods if len(scene.pods) <= WORKERS_SHOWN else order[:WORKERS_SHOWN]
    for pod in shown:
        waiting = "; ".join(f"{item.reason} {item.message}".strip() for item in pod.waiting if item.reason)
        extra = pod.unschedulable or (waiting if pod.phase == "Pending" else "") or pod.status_message
        table.add_row(str(pod.index), pod.name, pod.node, f"{pod_state(pod)}  {extra}".strip())
    if len(scene.pods) > len(shown):
        rest = Counter(pod_state(pod) for pod in order[WORKERS_SHOWN:])
        table.add_row(
            "…", f"and {len(scene.pods) - len(shown)} more", "", ", ".join(f"{n} {s}" for s, n in rest.items())
        )
    return table


def pod_state(pod: PodView) -> str:
    if pod.terminating:
        return "Terminating"
    if pod.exit_code:
        return f"{pod.phase}, exit code {pod.exit_code}"
    return pod.phase if pod.ready or pod.phase != "Running" else "Running, not ready"


def _events(scene: Scene) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("SEEN", "EVENT", "MESSAGE"):
        table.add_column(title)
    place = scene.job.status.queue
    for event in scene.events:
        told = event.get("message", "")
        if place is not None and told and told == place.message:
            told = ABOVE
        style = "yellow" if event.get("type") == "Warning" else ""
        seen = ago(parse_time(event_time(event)), scene.now)
        table.add_row(seen, Text(event.get("reason", ""), style), Text(told))
    return table


def print_plainly(console: Console, what: RenderableType) -> None:
    """Without a terminal no line ends in spaces."""
    if console.is_terminal:
        console.print(what)
        return
    with console.capture() as captured:
        console.print(what)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), highlight=False, soft_wrap=True)


def event_time(event: dict[str, Any]) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or "")


def ago(moment: datetime | None, now: datetime) -> str:
    return f"{format_duration(max(0.0, (now - moment).total_seconds()))} ago" if moment else ""
