"""`muster explain`: why a job is where it is, what follows, what helps, and its history in order of time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.api.common import find_condition
from muster.api.names import ConditionType, Phase
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cli.printing import STYLES, Output, print_json, print_page
from muster.cli.scene import connected, look, queues_of
from muster.telling.explaining import EVENTS_READ, sections
from muster.telling.scene import Scene
from muster_protocol.durations import format_duration


async def explain(
    name: str, namespace: str | None, output: Output, *, kubeconfig: str | None, context: str | None
) -> int:
    """Explain one job; `namespace` None is the kubeconfig's. 0, or 1 when the job has failed.

    Raises NotThere, ApiError, ApiUnreachable, CredentialsError.
    """
    async with connected(kubeconfig, context) as api:
        scene = await look(api, name, namespace or api.credentials.namespace, events=EVENTS_READ)
        if scene.job.status.finished_at is None:  # a budget of its queues may end its run, or one is held
            scene = replace(scene, queues=await queues_of(api, scene.job))
    if output is Output.JSON:
        print_json(answer(scene))
    else:
        print_page(Console(markup=False, highlight=False), page(scene))
    return 1 if scene.job.status.phase is Phase.FAILED else 0


def answer(scene: Scene) -> dict[str, Any]:
    """The same for programs, with the names of `/v1/jobs/NAMESPACE/NAME`."""
    job, waiting, growth = scene.job, scene.job.status.queue, scene.job.status.growth
    found: dict[str, Any] = {"job": {"namespace": job.metadata.namespace, "name": job.metadata.name}}
    if job.status.phase is not None:
        found["job"]["phase"] = job.status.phase.value
    if waiting is not None:
        found["waiting"] = waiting.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if growth is not None:
        found["growth"] = growth.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    found["explanation"] = [{"heading": heading, "rows": rows} for heading, rows in sections(scene)]
    return found


def page(scene: Scene) -> RenderableType:
    """The whole page."""
    job, status = scene.job, scene.job.status
    phase = status.phase.value if status.phase else "not seen yet"
    title = Text(f"{job.metadata.namespace}/{job.metadata.name}: ", "bold")
    title.append(phase, STYLES.get(status.phase, "") if status.phase else "")
    title.append(_since(scene))
    parts: list[RenderableType] = [title]
    for heading, rows in sections(scene):
        parts += [Text(), Text(heading, "bold"), _grid(rows)]
    return Group(*parts)


def _grid(rows: tuple[tuple[str, ...], ...]) -> Table:
    """Rows beside each other, without a column that nothing stands in."""
    used = [number for number in range(len(rows[0])) if any(row[number] for row in rows)]
    grid = Table.grid(padding=(0, 2))
    grid.add_column("")
    for number in used:
        grid.add_column(no_wrap=number != used[-1], overflow="fold")
    for row in rows:
        grid.add_row("", *(Text(row[number]) for number in used))
    return grid


def _since(scene: Scene) -> str:
    status = scene.job.status
    moments = {
        Phase.RUNNING: status.running_since,
        Phase.FAILED: status.finished_at,
        Phase.SUCCEEDED: status.finished_at,
        Phase.QUEUED: status.submitted_at if not status.placements else _stopped_at(status),
        Phase.STARTING: status.placement.placed_at if status.placement else None,
    }
    moment = moments.get(status.phase) if status.phase else None
    return f", for {format_duration((scene.now - moment).total_seconds())}" if moment else ""


def _stopped_at(status: TrainingJobStatus) -> datetime | None:
    """When a job that queues again was last asked to give up what it held."""
    held = find_condition(status.conditions, ConditionType.ADMITTED.value)
    return held.last_transition_time if held is not None and held.status == "False" else None
