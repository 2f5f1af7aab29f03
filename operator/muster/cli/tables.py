"""What `muster jobs` and `muster queues` show: one line for each, from the API server alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from muster.api.common import Resource
from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import TrainingQueue, with_below
from muster.cli.printing import (
    GAP,
    STYLES,
    UNSEEN,
    Cell,
    Output,
    PlainTable,
    natural_width,
    note,
    print_json,
    print_table,
    too_wide,
)
from muster.cli.scene import NotThere, connected, listed, nobody_leads, require_namespace
from muster.cluster.client import Api
from muster.cluster.errors import ApiError
from muster.cluster.status import held_of
from muster.scheduling.amounts import amount
from muster.server.queues import summaries
from muster.server.rows import summary
from muster.sizing.money import in_currency
from muster.telemetry.cost.periods import month_of
from muster.telling.budgets import budget_uses
from muster.telling.usage import Use, in_use, names_above, nominals, state
from muster.telling.wording import FINAL
from muster_protocol.spelling import there_are

_R = TypeVar("_R", bound=Resource)

JOBS: Final = "trainingjobs"
QUEUES: Final = "trainingqueues"
JOB_TITLES: Final = ("NAMESPACE", "NAME", "PHASE", "QUEUE", "WORKERS", "GPUS", "STEP", "WHY")
QUEUE_TITLES: Final = ("NAME", "PARENT", "STATE", "RUNNING", "WAITING", "GPUS", "USED OF NOMINAL")


async def jobs(
    namespace: str | None, queue: str | None, output: Output, *, kubeconfig: str | None, context: str | None
) -> int:
    """A table of all jobs, or of those of one queue and the queues below it: first who holds its quota, then who waits.

    Raises NotThere, ApiError, ApiUnreachable, CredentialsError.
    """
    async with connected(kubeconfig, context) as api:
        raws, namespace = await _jobs(api, namespace)
        within = _within(queue, readable(TrainingQueue, await listed(api, QUEUES)), raws) if queue else None
        if not raws and namespace:
            await require_namespace(api, namespace)
        await _warn_of_nobody(api)
    if within is not None:
        raws = _of_queues(within, raws)
    if output is Output.JSON:
        print_json(list(map(summary, raws)))
        return 0
    found = readable(TrainingJob, raws)
    where = f" in namespace {namespace!r}" if namespace else ""
    none = f"no TrainingJobs{where}" + (f" of queue {queue!r}" if queue else "")
    _print(JOB_TITLES, [job_row(job) for job in found], none, narrow=[job_row(job, brief=True) for job in found])
    return 0


async def _warn_of_nobody(api: Api) -> None:
    if (nobody := await nobody_leads(api)) is not None:
        note(nobody.told(api.clock.now()))


async def _jobs(api: Api, namespace: str | None) -> tuple[list[dict[str, Any]], str | None]:
    """The jobs, and of which namespace: None for all of them. Who may not see all of them gets those of the
    kubeconfig's namespace."""
    try:
        return await listed(api, JOBS, namespace), namespace
    except ApiError as error:
        if error.status != 403 or namespace:
            raise
        own = api.credentials.namespace
        try:
            found = await listed(api, JOBS, own)
        except ApiError as neither:
            if neither.status != 403:
                raise
            raise NotThere(
                f"the API server refused: {error.message}; name a namespace of yours with -n, or ask for the role view "
                "(docs/install.md, Rights)"
            ) from neither
        note(f"you may not list the jobs of all namespaces; these are those of {own!r} (-n names another)")
        return found, own


def readable(kind: type[_R], raws: Sequence[dict[str, Any]]) -> list[_R]:
    """One object that this version cannot read hides none of the others."""
    found = []
    for raw in raws:
        try:
            found.append(kind.from_raw(raw))
        except ValidationError as error:
            first, metadata = error.errors()[0], raw["metadata"]
            field = ".".join(str(part) for part in first["loc"])
            name = "/".join(filter(None, (metadata.get("namespace", ""), metadata["name"])))
            note(f"{name} is left out: {field}: {first['msg']}; correct the field, or upgrade muster")
    return found


async def queues(output: Output, *, kubeconfig: str | None, context: str | None) -> int:
    """A table of all queues: whether they take jobs, how many run and wait, and what they use of which quota.

    Raises NotThere, ApiError, ApiUnreachable, CredentialsError.
    """
    async with connected(kubeconfig, context) as api:
        found = readable(TrainingQueue, await listed(api, QUEUES))
        await _warn_of_nobody(api)
    now = datetime.now(timezone.utc)
    if output is Output.JSON:
        print_json([each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in summaries(found, now)])
        return 0
    rows: list[tuple[str, ...]] = queue_rows(found)
    titles: tuple[str, ...] = QUEUE_TITLES
    if any(queue.spec.budgets for queue in found):
        titles = (*titles, f"BUDGET OF {month_of(now)}")
        rows = [(*row, budgets(queue, now)) for row, queue in zip(rows, found, strict=True)]
    _print(titles, rows, "no TrainingQueues")
    return 0


def _within(queue: str, every: Sequence[TrainingQueue], raws: Sequence[dict[str, Any]]) -> frozenset[str]:
    """The queues whose jobs are meant. One that jobs name is no slip, also where it was deleted, or was never made.

    Raises NotThere.
    """
    if any(each.metadata.name == queue for each in every) or all(summary(raw)["queue"] != queue for raw in raws):
        return below(queue, every)
    note(f"there is no TrainingQueue {queue!r}: what runs of it goes on, and what waits waits for it")
    return frozenset({queue})


def below(name: str, every: Sequence[TrainingQueue]) -> frozenset[str]:
    """The names of a queue and of all queues below it. Raises NotThere when there is no such queue."""
    names = [queue.metadata.name for queue in every]
    if name not in names:
        raise NotThere(f"no TrainingQueue {name!r}; {there_are(name, names)}")
    return with_below(name, every)


def _of_queues(names: frozenset[str], raws: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The jobs of these queues, in the order in which they stand."""
    found = [(row, raw) for raw in raws if (row := summary(raw))["queue"] in names]
    return [raw for _, raw in sorted(found, key=lambda one: _standing(one[0]))]


def _standing(row: Mapping[str, Any]) -> tuple[bool, bool, str, int]:
    """Of a job's summary. Those that hold quota come first, those that have ended last; those that wait in the order of
    their queue."""
    holds = "placedWorkers" in row
    return row.get("phase") in FINAL, not holds, "" if holds else row["queue"], row.get("position") or 2**31


def job_row(job: TrainingJob, *, brief: bool = False) -> tuple[Cell, ...]:
    """`brief`: one word for why it waits; `muster status` has the sentence."""
    status, progress = job.status, job.status.progress
    step = ""
    if progress is not None:
        step = f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step)
    why = "" if status.phase else "not seen yet" if brief else UNSEEN
    if status.queue is not None:
        why = status.queue.reason if brief else status.queue.why
    return (
        job.metadata.namespace,
        job.metadata.name,
        Text(status.phase.value if status.phase else "", STYLES.get(status.phase, "") if status.phase else ""),
        job.spec.queue,
        held_of(status, job.spec.workers.replicas),
        str(status.gpus or 0) if status.phase else "",
        step,
        why,
    )


def queue_rows(every: Sequence[TrainingQueue]) -> list[tuple[str, ...]]:
    """One row a queue. What a queue has is its own nominal and that of all queues below it, as its use is."""
    parents = {queue.metadata.name: queue.spec.parent for queue in every}
    has = nominals(every)
    limited = {queue.metadata.name for queue in every if queue.spec.quotas}
    return [
        _queue_row(
            queue, has[queue.metadata.name], limited=not limited.isdisjoint(names_above(queue.metadata.name, parents))
        )
        for queue in every
    ]


def _queue_row(queue: TrainingQueue, has: Use, *, limited: bool) -> tuple[str, ...]:
    status = queue.status
    return (
        queue.metadata.name,
        queue.spec.parent or (f"cohort {queue.spec.cohort}" if queue.spec.cohort else ""),
        state(queue),
        *("" if number is None else str(number) for number in (status.running, status.waiting, status.used_gpus)),
        _quota(queue, has, limited=limited),
    )


def _quota(queue: TrainingQueue, has: Use, *, limited: bool) -> str:
    """`H100 on-demand: 80 of 64 nvidia.com/gpu, 16 borrowed`, or `no limit; in use: H100 on-demand: 8 nvidia.com/gpu`.
    A queue that can borrow from nobody uses it beyond its quota: that was lowered. `limited`: a queue above has one."""
    used, borrowed = in_use(queue)
    how = "borrowed" if queue.spec.parent or queue.spec.cohort else "beyond it"
    told = []
    for flavour in {**has, **used}:
        nominal, held = has.get(flavour, {}), used.get(flavour, {})
        over = borrowed.get(flavour, {})
        parts = [
            _told(name, held.get(name, 0), nominal.get(name), over.get(name, 0), how) for name in {**nominal, **held}
        ]
        if parts:
            told.append(f"{_flavour(flavour)}: {', '.join(parts)}")
    if has:
        return "; ".join(told)
    return f"{'no quota of its own' if limited else 'no limit'}{'; in use: ' if told else ''}{'; '.join(told)}"


def budgets(queue: TrainingQueue, now: datetime) -> str:
    """`312.5 of 1,000 GPU hours H100, 80 of 200 in money, then hold`; of each budget."""
    told = []
    for use in budget_uses(queue, now):
        budget, parts = use.budget, []
        if budget.gpu_hours is not None:
            kind = f" {budget.gpu_type}" if budget.gpu_type else ""
            parts.append(f"{float(use.gpu_seconds) / 3600:,.1f} of {budget.gpu_hours:,} GPU hours{kind}")
        if budget.cost is not None:
            kind = f" {budget.gpu_type}" if budget.gpu_type and budget.gpu_hours is None else ""
            parts.append(f"{use.cost:,.2f} of {in_currency(budget.cost, use.currency)}{kind}")
        told.append(f"{', '.join(parts)}, then {'drain' if use.drains else 'hold'}")
    return "; ".join(told)


def _told(resource: str, used: int, nominal: int | None, over: int, how: str) -> str:
    text = amount(resource, used)
    if nominal is not None:
        text = f"{text.rpartition(' ')[0]} of {amount(resource, nominal)}"
    return f"{text}, {amount(resource, over).rpartition(' ')[0]} {how}" if over else text


def _flavour(key: tuple[str, str]) -> str:
    return " ".join(key) if key[0] else "without GPUs"


def _print(
    titles: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    none: str,
    *,
    narrow: Sequence[Sequence[Cell]] | None = None,
) -> None:
    """A table, a line for each row, as wide as it is: what reads it line by line is not to meet half a word. Of
    `narrow` come the rows that are too long for the terminal."""
    console = Console(markup=False)
    if not rows:
        console.print(none, highlight=False)
        return
    table = PlainTable(titles, rows)
    if narrow is None or not too_wide(console, table):
        print_table(console, table)
        return
    # All columns but the last, which nothing stands behind.
    left = console.width - natural_width(console, PlainTable(titles[:-1], [row[:-1] for row in rows])) - GAP
    fitting = [row if cell_len(str(row[-1])) <= left else short for row, short in zip(rows, narrow, strict=True)]
    print_table(console, PlainTable(titles, fitting))
    cut = sum(row[-1] != shown[-1] for row, shown in zip(rows, fitting, strict=True))
    if cut:
        wide = natural_width(console, table)
        of = f" of {cut} of {len(rows)} jobs" if len(rows) > 1 else ""
        note(f"{titles[-1]}{of} is one word: `muster status JOB` says all, as does a terminal of {wide} columns")
