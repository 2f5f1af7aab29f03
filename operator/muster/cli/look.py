"""What `muster status` shows: one screen about a job, from the API server alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from muster.api.common import find_condition
from muster.api.effective import effective_spec
from muster.api.names import ConditionType, Phase, Reason
from muster.api.placement import spares_by_index
from muster.api.restarts import Group
from muster.api.trainingjob_status import Saving
from muster.cli.printing import STYLES, UNSEEN, Legible, print_page
from muster.cli.scene import connected, look
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable, away
from muster.cluster.status import is_false
from muster.cluster.views import PodView, parse_time
from muster.telling.scene import Scene, event_time
from muster.telling.wording import (
    CAUSES,
    FINAL,
    UNSAVED,
    ago,
    answered,
    before_the_first_step,
    below,
    capacity_of,
    ended_early,
    gpu_time,
    one_line,
    pod_state,
    replaced,
    runtime_left,
    seconds_left,
    short,
    silent,
    size_kept,
    standing_still,
    survived,
    told_of_ended,
    tracked,
    unsound,
    used_limits,
    waiting,
    warned,
    word_for,
)
from muster_protocol.counts import counted
from muster_protocol.durations import format_duration

REFRESH_SECONDS: Final = 1.0
REST: Final = 4
"""Times what a look took, at least, between two: of a gang of 4,096 one is 20 MB for the API server to send."""
WORKERS_SHOWN: Final = 20
ABOVE: Final = "as above"
"""In place of an Event's message that the row Why has already."""
IN_MEMORY: Final = {
    Reason.KEPT_BY_PEERS.value: "also in memory, with a copy in another worker's",
    Reason.COPY_FAILS.value: "also in each worker's own memory, but a copy fails",
    Reason.KEPT_LOCALLY.value: "also in each worker's own memory",
    Reason.NOT_KEPT.value: "not kept in memory",
}


async def status(name: str, namespace: str | None, *, watch: bool, kubeconfig: str | None, context: str | None) -> int:
    """Show one job; `namespace` None is the kubeconfig's. 0, or 1 when the job has failed.

    Raises NotThere, ApiError, ApiUnreachable, CredentialsError.
    """
    async with connected(kubeconfig, context) as api:
        scene = await look(api, name, namespace or api.credentials.namespace)
        console = Console(markup=False)  # messages have brackets of their own
        if not watch:
            print_page(console, render(scene) if console.is_terminal else page(scene))
        elif console.is_terminal:
            with Live(Legible(render(scene)), console=console, auto_refresh=False) as live:
                async for fresh in _scenes(api, scene):
                    scene = fresh
                    live.update(Legible(render(scene)), refresh=True)
        else:
            scene = await _follow(api, scene, console)
        return 1 if scene.job.status.phase is Phase.FAILED else 0


async def _scenes(api: Api, scene: Scene) -> AsyncIterator[Scene]:
    """The scene, and a fresh one every second until the job has ended; of a large gang less often. An API server that
    is away is waited for."""
    took = 0.0
    while True:
        yield scene
        if scene.job.status.phase in FINAL:
            return
        await asyncio.sleep(max(REFRESH_SECONDS, REST * took))
        began, took = asyncio.get_running_loop().time(), 0.0
        try:
            scene = await look(api, scene.job.metadata.name, scene.job.metadata.namespace)
            took = asyncio.get_running_loop().time() - began
        except (ApiError, ApiUnreachable) as error:
            if not away(error):
                raise
            scene = replace(scene, trouble=f"{error}; what is shown is old")


async def _follow(api: Api, scene: Scene, console: Console) -> Scene:
    """Without a terminal: a line whenever something has changed."""
    told, last = "", scene
    async for fresh in _scenes(api, scene):
        last = fresh
        old = f"no operator leads since {fresh.unled.moment}: " if fresh.unled is not None else ""
        line = fresh.trouble or f"{old}{one_line(fresh.job)}"
        if line != told:
            console.print(Legible(Text(line)), highlight=False, soft_wrap=True)
            told = line
    return last


def render(scene: Scene) -> RenderableType:
    """The screen."""
    return Panel(_body(scene), title=_title(scene), title_align="left")


def page(scene: Scene) -> RenderableType:
    """The same for what reads it line by line: no frame."""
    return Stack(Text(_title(scene)), _body(scene))


def _title(scene: Scene) -> str:
    return f"{scene.job.metadata.namespace}/{scene.job.metadata.name}"


def _body(scene: Scene) -> RenderableType:
    parts: list[RenderableType] = [Text(scene.trouble, "bold red")] if scene.trouble else []
    parts.append(_facts(scene))
    if scene.pods:
        parts += [Text(), _workers(scene)]
    if events := _not_told_above(scene):
        parts += [Text(), _events(scene, events)]
    return Stack(*parts)


def _facts(scene: Scene) -> Table:
    job, status = scene.job, scene.job.status
    phase = status.phase
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold", no_wrap=True)
    head.add_column(overflow="fold")  # an URI, or a path in a traceback, is told to its end
    if scene.unled is not None and phase not in FINAL:
        head.add_row("Operator", Text(scene.unled.told(scene.now), "bold red"))
    head.add_row("Phase", Text(phase.value if phase else UNSEEN, STYLES.get(phase, "")))  # type: ignore[arg-type]
    place = status.queue
    head.add_row("Queue", job.spec.queue + (f", position {place.position}" if place and place.position else ""))
    why = place.why if place is not None else ""
    if why:
        head.add_row("Why", Text(why, "yellow"))
    if status.defaults is not None:
        head.add_row("Defaults", f"from the queue: {', '.join(status.defaults.to_raw())}")
    for title, told in waiting(scene):
        head.add_row(title, told)
    if still := standing_still(scene):
        head.add_row("Still", Text(still, "yellow"))
    elif old := silent(scene):
        head.add_row("Silent", Text(old, "yellow"))
    if over := told_of_ended(ended_early(scene)):
        head.add_row("Ended", Text(over, "yellow"))
    if first := before_the_first_step(scene):
        head.add_row("Progress", first)
    elif status.progress is not None:
        head.add_row("Progress", _progress(scene))
    if status.checkpoint is not None:
        age = f", {ago(status.checkpoint.committed_at, scene.now)}" if status.checkpoint.committed_at else ""
        head.add_row("Checkpoint", f"step {status.checkpoint.step}{age}  {status.checkpoint.uri or ''}")
    elif scene.job.spec.checkpoint is None and status.placement is not None and phase not in FINAL:
        head.add_row("Checkpoint", UNSAVED)
    if told := ", ".join(filter(None, gpu_time(scene))):
        head.add_row("Used", told)
    if status.saving is not None and phase not in FINAL:
        head.add_row("Saves", _saves(status.saving))
    kept = find_condition(status.conditions, ConditionType.CHECKPOINT_IN_MEMORY.value)
    if kept is not None and kept.reason in IN_MEMORY and phase not in FINAL:
        told = f"{IN_MEMORY[kept.reason]}{': ' if kept.message else ''}{kept.message}"
        lacking = kept.message and (kept.status == "False" or kept.reason == Reason.COPY_FAILS.value)
        head.add_row("Memory tier", Text(told, "yellow" if lacking else ""))
    if status.tracking is not None:
        head.add_row(
            "Tracking", Text(tracked(status), "yellow" if is_false(status, ConditionType.TRACKING_REACHABLE) else "")
        )
    if status.restarts or status.restarts_in_place:
        head.add_row("Restarts", _restarts(scene))
    for title, told in _replacements(scene):
        head.add_row(title, told)
    if status.placement is not None and status.placement.spares:
        nodes = spares_by_index(status.placement.spares).values()
        head.add_row("Spares", f"room for {counted(len(nodes), 'more worker')} is kept on {', '.join(nodes)}")
    if status.numerics is not None:
        head.add_row("Numerics", Text(unsound(status.numerics), "yellow"))
    if status.warnings:
        head.add_row("Warnings", Text(warned(status.warnings, scene), "yellow"))
    if status.sizes and status.placement is not None:  # without one it has none
        head.add_row("Size", _size(scene))
    if fixed := size_kept(scene):
        head.add_row("Size kept", Text(fixed, "yellow"))
    elif fewer := below(scene):
        head.add_row("Not larger", Text(fewer, "yellow"))
    if status.preemptions:
        times = counted(status.preemptions, "time")
        if status.lost_gpu_seconds:
            times += f", which cost up to {status.lost_gpu_seconds} GPU-seconds, of lost work and restarts"
        head.add_row("Preempted", times)
    for title, told, style in _failure(scene, why):
        head.add_row(title, Text(told, style))
    return head


def _failure(scene: Scene, why: str) -> Iterator[tuple[str, str, str]]:
    """(row, text, style): the last failure whole while it matters, in one line once the run has got past it. `why`
    stands above it already."""
    status, failure = scene.job.status, scene.job.status.failure
    if failure is None or status.phase is Phase.SUCCEEDED:
        return
    if survived(status):
        first, rank = failure.message.partition("\n")[0], f"rank {failure.rank}"
        where = [f"at step {failure.step}"] if failure.step is not None else []
        where += [rank] if failure.rank is not None and rank not in first else []
        where += [ago(failure.at, scene.now)] if failure.at is not None else []
        named = f"{scene.job.metadata.name} -n {scene.job.metadata.namespace}"
        more = f"; its traceback:  muster explain {named}" if failure.traceback else ""
        yield "Survived", f"{', '.join(where)}{': ' if where else ''}{first}{more}", ""
    elif told := f"{'' if failure.message in why else failure.message}\n{failure.traceback}".strip():
        word = word_for(failure.cause)
        yield f"Last {word}", told, "red" if word == "failure" else ""


def _saves(saving: Saving) -> Text:
    told = []
    if saving.interval_seconds is not None:
        told.append(f"every {format_duration(saving.interval_seconds)} (interval auto)")
    if saving.left_out:
        told.append(f"{saving.left_out} left out while the one before was still being written")
    return Text("; ".join(told), "yellow" if saving.left_out else "")


def _restarts(scene: Scene) -> str:
    """All restarts; then the failures of the script that count, and others that have a limit where there are any."""
    status, spec = scene.job.status, effective_spec(scene.job.spec, scene.job.status.defaults)
    ways = ((status.restarts, "with new pods"), (status.restarts_in_place, "in the pods that were there"))
    told = ", ".join(f"{count} {how}" for count, how in ways if count)
    failures = ", ".join(
        f"{counted(count, 'failure')} {CAUSES[group]} ({answered(limit)})"
        for group, count, limit in used_limits(scene)
        if limit is not None and (count or group is Group.SCRIPT)
    )
    return f"{told}; within {format_duration(spec.restart_window)} {failures}"


def _replacements(scene: Scene) -> Iterator[tuple[str, str]]:
    """Workers that are replaced now in the living gang, and those that were."""
    status = scene.job.status
    if status.placement is not None and status.placement.replacing is not None:
        yield "Replacing", f"{replaced(scene, status.placement)}; the others wait in their pods"
    if status.replacements:
        yield "Replaced", f"{counted(status.replacements, 'lost worker')}, while the others kept their pods"


def _size(scene: Scene) -> str:
    """What an elastic gang has of what it asks for, since when and why; and what it had before."""
    *before, last = scene.job.status.sizes
    wish = scene.job.spec.workers.replicas
    held = counted(last.workers, "worker") if last.workers == wish else f"{last.workers}/{wish} workers"
    told = f"{held} since {ago(last.since, scene.now)} ({last.reason})"
    if last.workers > wish:
        told += ", more than it asks for, while nobody else needs them"
    return f"{told}; before {before[-1].workers} ({before[-1].reason})" if before else told


def _progress(scene: Scene) -> RenderableType:
    progress = scene.job.status.progress
    assert progress is not None
    grid = Table.grid(padding=(0, 1))
    told = f"step {progress.step}"
    if progress.total_steps:
        told += f" of {progress.total_steps}"
    pace = "" if standing_still(scene) else progress.steps_per_second
    for name, value in (("loss", progress.loss), ("steps/s", pace)):
        if value:
            told += f"   {name} {short(value)}"
    if left := seconds_left(scene):
        limit = max(0.0, runtime_left(scene))
        told += f"   {'at most ' if limit < left else ''}{format_duration(min(left, limit))} left"
        told += " (maxRuntime)" if limit < left else ""
    if progress.total_steps:
        grid.add_row(ProgressBar(total=progress.total_steps, completed=progress.step, width=30), told)
    else:
        grid.add_row(told)
    return grid


def _workers(scene: Scene) -> Table:
    kinds = bool(scene.job.status.placement and scene.job.status.placement.capacity)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("WORKER", "POD", "NODE", *(("CAPACITY",) if kinds else ()), "STATE"):
        table.add_column(title, overflow="fold")  # pods of a long name differ at its end alone
    # Of a large gang those that have trouble are shown, then as many as fit on a screen.
    order = sorted(scene.pods, key=lambda pod: (pod.ready, -pod.generation, pod.index))
    shown = scene.pods if len(scene.pods) <= WORKERS_SHOWN else order[:WORKERS_SHOWN]
    for pod in shown:
        # A pod's containers mostly wait for the same.
        waiting = "; ".join(dict.fromkeys(f"{it.reason} {it.message}".strip() for it in pod.waiting if it.reason))
        extra = pod.unschedulable or (waiting if pod.phase == "Pending" else "") or pod.status_message
        kind = (_capacity(scene, pod),) if kinds else ()
        table.add_row(str(pod.index), pod.name, pod.node, *kind, f"{pod_state(pod)}  {extra}".strip())
    if len(scene.pods) > len(shown):
        rest = Counter(pod_state(pod) for pod in order[WORKERS_SHOWN:])
        table.add_row(
            "…",
            f"and {len(scene.pods) - len(shown)} more",
            *("" for _ in range(1 + kinds)),
            ", ".join(f"{n} {s}" for s, n in rest.items()),
        )
    return table


def _capacity(scene: Scene, pod: PodView) -> str:
    """`spot`, or `on-demand (base)` of a worker of the safe base."""
    kind, of_base = capacity_of(scene.job.status, pod)
    return f"{kind} (base)" if of_base else kind


def _not_told_above(scene: Scene) -> list[dict[str, Any]]:
    """The Events without those of the warnings, which have a row of their own."""
    warnings = {each.message for each in scene.job.status.warnings}
    return [event for event in scene.events if event.get("message", "") not in warnings]


def _events(scene: Scene, events: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("SEEN", "EVENT", "MESSAGE"):
        table.add_column(title, overflow="fold")
    place = scene.job.status.queue
    for event in events:
        told = event.get("message", "")
        if place is not None and told and told == place.message:
            told = ABOVE
        style = "yellow" if event.get("type") == "Warning" else ""
        seen = ago(parse_time(event_time(event)), scene.now)
        table.add_row(seen, Text(event.get("reason", ""), style), Text(told))
    return table
