"""What `muster jobs` and `muster queues` show: one line for each, from the API server alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.api.common import API_VERSION
from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import Quota, TrainingQueue, with_below
from muster.cli.look import FINAL, NO_KINDS, STYLES, NotThere, connect, print_plainly
from muster.cluster.errors import ApiError
from muster.cluster.quantities import amount as in_units
from muster.scheduling.amounts import amount

Cell = str | Text
Use = dict[tuple[str, str], dict[str, int]]
"""By flavour (GPU type, capacity) and resource, in base units."""

JOB_TITLES: Final = ("NAMESPACE", "NAME", "PHASE", "QUEUE", "WORKERS", "GPUS", "STEP", "WHY")
QUEUE_TITLES: Final = ("NAME", "PARENT", "STATE", "RUNNING", "WAITING", "GPUS", "USED OF NOMINAL")


async def jobs(namespace: str | None, queue: str | None, *, kubeconfig: str | None, context: str | None) -> int:
    """A table of all jobs, or of those of one queue and the queues below it: first who holds its quota, then who waits.

    Raises NotThere, ApiError, ApiUnreachable, CredentialsError.
    """
    scope = f"/namespaces/{namespace}" if namespace else ""
    paths = [f"/apis/{API_VERSION}{scope}/trainingjobs"]
    if queue is not None:
        paths.append(f"/apis/{API_VERSION}/trainingqueues")
    listed, *queues_listed = await _lists(paths, kubeconfig, context)
    found = [TrainingJob.from_raw(raw) for raw in listed]
    if queue is not None:
        within = below(queue, [TrainingQueue.from_raw(raw) for raw in queues_listed[0]])
        found = sorted((job for job in found if job.spec.queue in within), key=_standing)
    where = f" in namespace {namespace!r}" if namespace else ""
    none = f"no TrainingJobs{where}" + (f" of queue {queue!r}" if queue else "")
    _print(JOB_TITLES, [job_row(job) for job in found], none, narrow=[job_row(job, brief=True) for job in found])
    return 0


async def queues(*, kubeconfig: str | None, context: str | None) -> int:
    """A table of all queues: whether they take jobs, how many run and wait, and what they use of which quota.

    Raises NotThere, ApiError, ApiUnreachable, CredentialsError.
    """
    (listed,) = await _lists([f"/apis/{API_VERSION}/trainingqueues"], kubeconfig, context)
    _print(QUEUE_TITLES, queue_rows([TrainingQueue.from_raw(raw) for raw in listed]), "no TrainingQueues")
    return 0


def below(name: str, every: Sequence[TrainingQueue]) -> frozenset[str]:
    """The names of a queue and of all queues below it. Raises NotThere when there is no such queue."""
    names = sorted(queue.metadata.name for queue in every)
    if name not in names:
        raise NotThere(f"no TrainingQueue {name!r}; there {'are: ' + ', '.join(names) if names else 'are none'}")
    return with_below(name, every)


def _standing(job: TrainingJob) -> tuple[bool, bool, str, int]:
    """Those that hold quota come first, those that have ended last; those that wait in the order of their queue."""
    place = job.status.queue.position if job.status.queue is not None else None
    holds = job.status.placement is not None
    return job.status.phase in FINAL, not holds, "" if holds else job.spec.queue, place or 2**31


def job_row(job: TrainingJob, *, brief: bool = False) -> tuple[Cell, ...]:
    """`brief`: one word for why it waits; `muster status` has the sentence."""
    status, progress = job.status, job.status.progress
    step = ""
    if progress is not None:
        step = f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step)
    why = ""
    if status.queue is not None:
        why = status.queue.reason if brief else status.queue.why
    return (
        job.metadata.namespace,
        job.metadata.name,
        Text(status.phase.value if status.phase else "", STYLES.get(status.phase, "") if status.phase else ""),
        job.spec.queue,
        _workers(job),
        str(status.gpus or 0),
        step,
        why,
    )


def _workers(job: TrainingJob) -> str:
    """`8`, or `6 of 8` of an elastic gang that has not the size it asks for."""
    wish, placement = job.spec.workers.replicas, job.status.placement
    return str(wish) if placement is None or placement.workers == wish else f"{placement.workers} of {wish}"


def queue_rows(every: Sequence[TrainingQueue]) -> list[tuple[str, ...]]:
    """One row a queue. What a queue has is its own nominal and that of all queues below it, as its use is."""
    parents = {queue.metadata.name: queue.spec.parent for queue in every}
    has = nominals(every)
    limited = {queue.metadata.name for queue in every if queue.spec.quotas}
    return [
        _queue_row(
            queue, has[queue.metadata.name], limited=not limited.isdisjoint(_above(queue.metadata.name, parents))
        )
        for queue in every
    ]


def nominals(every: Sequence[TrainingQueue]) -> dict[str, Use]:
    """By queue: its own nominal and that of all queues below it."""
    parents = {queue.metadata.name: queue.spec.parent for queue in every}
    has: dict[str, Use] = {name: {} for name in parents}
    for queue in every:
        for name in (queue.metadata.name, *_above(queue.metadata.name, parents)):
            _add(has[name], queue.spec.quotas or ())
    return has


def _queue_row(queue: TrainingQueue, has: Use, *, limited: bool) -> tuple[str, ...]:
    status = queue.status
    return (
        queue.metadata.name,
        queue.spec.parent or (f"cohort {queue.spec.cohort}" if queue.spec.cohort else ""),
        state(queue),
        *("" if number is None else str(number) for number in (status.running, status.waiting, status.used_gpus)),
        _quota(queue, has, limited=limited),
    )


def state(queue: TrainingQueue) -> str:
    """`open`, or in one word each what is wrong; empty while no operator has seen the queue."""
    faults = [condition.reason for condition in queue.status.conditions if condition.status == "False"]
    return ", ".join(faults) or ("open" if queue.status.conditions else "")


def _quota(queue: TrainingQueue, has: Use, *, limited: bool) -> str:
    """`H100 on-demand: 80 of 64 nvidia.com/gpu, 16 borrowed`. `limited`: a queue above has a quota."""
    used, borrowed = in_use(queue)
    told = []
    for flavour in {**has, **used}:
        nominal, held = has.get(flavour, {}), used.get(flavour, {})
        over = borrowed.get(flavour, {})
        parts = [_told(name, held.get(name, 0), nominal.get(name), over.get(name, 0)) for name in {**nominal, **held}]
        told.append(f"{_flavour(flavour)}: {', '.join(parts)}")
    if not has:
        told.append("no quota of its own" if limited else "unlimited")
    return "; ".join(told)


def _told(resource: str, used: int, nominal: int | None, borrowed: int) -> str:
    text = amount(resource, used)
    if nominal is not None:
        text = f"{text.rpartition(' ')[0]} of {amount(resource, nominal)}"
    return f"{text}, {amount(resource, borrowed).rpartition(' ')[0]} borrowed" if borrowed else text


def _add(total: Use, quotas: Sequence[Quota]) -> None:
    for quota in quotas:
        amounts = total.setdefault((quota.gpu_type, quota.capacity.value if quota.gpu_type else ""), {})
        for item in quota.resources:
            amounts[item.name] = amounts.get(item.name, 0) + in_units(item.name, item.nominal)


def in_use(queue: TrainingQueue) -> tuple[Use, Use]:
    """(in use, borrowed of that)."""
    used: Use = {}
    borrowed: Use = {}
    for each in queue.status.usage:
        key = (each.gpu_type, each.capacity.value if each.gpu_type else "")
        used[key] = {item.name: in_units(item.name, item.used) for item in each.resources}
        borrowed[key] = {item.name: in_units(item.name, item.borrowed or 0) for item in each.resources}
    return used, borrowed


def _above(name: str, parents: Mapping[str, str | None]) -> list[str]:
    """The names of the queues above one; of a circle, each once."""
    found: list[str] = []
    parent = parents[name]
    while parent is not None and parent in parents and parent not in (name, *found):
        found.append(parent)
        parent = parents[parent]
    return found


def _flavour(key: tuple[str, str]) -> str:
    return " ".join(key) if key[0] else "without GPUs"


async def _lists(paths: Sequence[str], kubeconfig: str | None, context: str | None) -> list[list[dict[str, object]]]:
    api = await connect(kubeconfig, context)
    try:
        return [await api.list(path) for path in paths]
    except ApiError as error:
        if error.status != 404:
            raise
        raise NotThere(NO_KINDS) from error
    finally:
        await api.close()


def _print(
    titles: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    none: str,
    *,
    narrow: Sequence[Sequence[Cell]] | None = None,
) -> None:
    """A table, a line for each row, as wide as it is: what reads it line by line is not to meet half a word. `narrow`
    is shown instead where the terminal is too narrow for `rows`."""
    console = Console(markup=False)
    if not rows:
        console.print(none, highlight=False)
        return
    table = plain_table(titles, rows)
    if narrow is not None and console.is_terminal and natural_width(console, table) > console.width:
        table = plain_table(titles, narrow)
    print_table(console, table)


def print_table(console: Console, table: Table) -> None:
    """As wide as it is. Without a terminal no line ends in spaces: the longest cell pads none of the others."""
    console.width = natural_width(console, table)
    print_plainly(console, table)


def natural_width(console: Console, table: Table) -> int:
    """Columns that the table takes when nothing limits it."""
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum


def plain_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
