"""A trace: which jobs are submitted when, what they ask for, and how long they would run.

A CSV file with a header. Columns, in any order:

    submit      seconds from the start of the trace
    gpus        GPUs of the whole job; above one node's they are spread over workers of equal size
    duration    seconds of work when nothing disturbs it
    queue       name of its queue
    priority    optional, integer, higher first; 0
    user        optional; the queue's name
    limit       optional, seconds: its `maxRuntime`, known to every policy and enforced; empty: none
    preemptible optional, true or false; true
    gpu_type    optional; the first type of the cluster
    capacity    optional, on-demand, reserved or spot; on-demand. Several in order of preference, like spot|on-demand
    base        optional, kind of capacity of the first `min` GPUs of an elastic job, the others being on `capacity`
    topology    optional, like `required:rack` or `preferred:block`; empty: unconstrained
    min, max    optional, GPUs: an elastic job, of which `gpus` is the size that it wishes; empty: `gpus`
    step        optional, GPUs: an elastic job has `min` and a multiple of this; empty: those of one worker
    spares      optional, workers whose room is kept beside the gang's own, idle until a node breaks; 0
    deadline    optional, by when it should be done: a moment, counted as `submit` is; empty: none
    window      optional, the name of one of the cluster file's windows, in which alone it may run; empty: at any time
    slices      optional, GPUs that share a domain, like rack:32|host:8, the widest first; empty: none
    balanced    optional, the level among whose domains it lies in equal numbers; empty: none
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from muster.api.handwritten import undecoded
from muster.scheduling.snapshot import FOREVER, NONE, Index, Mask, Seconds
from muster.simulate.cells import CAPACITIES, LATEST, MOST_GPUS, SHORTEST, Cells, Form
from muster.simulate.errors import SimulationError
from muster_protocol.spelling import nearest

REQUIRED: Final = ("submit", "gpus", "duration", "queue")
OPTIONAL: Final = ("priority", "user", "limit", "preemptible", "gpu_type", "capacity", "topology")
ELASTIC: Final = ("min", "max", "step")
BASES: Final = ("base",)
SPARES: Final = ("spares",)
TIMES: Final = ("deadline", "window")
SHAPES: Final = ("slices", "balanced")
"""Optional as well; each of these groups is written only of traces in which jobs have some of it."""
EVERY: Final = REQUIRED + OPTIONAL + ELASTIC + BASES + SPARES + TIMES + SHAPES


@dataclass(frozen=True)
class Trace:
    """Jobs in order of submission; J each, names by index into the tuples.

    Attributes:
        submit, duration, limit: seconds; limit FOREVER without one. No duration is longer than its limit.
        gpus: of the whole job.
        kinds: the different (gpu type, capacity, topology) that jobs ask for, "" for what they leave out. The capacity
            may be an order of several, with "|" between them.
        sizes: J x 3, GPUs: fewest, most and step of elastic jobs; the step is 0 where the trace names none, and a job
            that is not elastic has `gpus` twice. None: no job is elastic.
        base: J, index into `CAPACITIES`, the kind of the first GPUs, `min`, of those with a safe base; NONE for the
            others. None: no job has one.
        spares: J, workers; elastic jobs have none. None: no job has any.
        deadline: J, seconds, FOREVER without one. None: no job has any.
        window: J, index into `windows`; NONE for a job that may run at any time. None: all may.
        form: J, index into `forms`, how the gang must lie beyond its topology. None: no job has slices or is balanced.
        line: J, the job's line in `path`, for what is found wrong later. None: it was not read.
    """

    submit: Seconds
    duration: Seconds
    limit: Seconds
    gpus: Index
    priority: Index
    preemptible: Mask
    queue: Index
    user: Index
    kind: Index
    queues: tuple[str, ...]
    users: tuple[str, ...]
    kinds: tuple[tuple[str, str, str], ...] = (("", "", ""),)
    sizes: Index | None = None
    base: Index | None = None
    spares: Index | None = None
    deadline: Seconds | None = None
    window: Index | None = None
    windows: tuple[str, ...] = ()
    form: Index | None = None
    forms: tuple[Form, ...] = ()
    line: Index | None = None
    path: str = ""

    def __len__(self) -> int:
        return len(self.submit)

    def __str__(self) -> str:
        """The trace in one line."""
        users, queues = len(np.unique(self.user)), len(np.unique(self.queue))
        hours = float(self.submit[-1] - self.submit[0]) / 3600
        span = f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"
        span = span if hours >= 1 else f"{hours * 60:.1f} minutes"
        return (
            f"{len(self):,} job{'s' * (len(self) != 1)} of {users} user{'s' * (users != 1)} in {queues} "
            f"queue{'s' * (queues != 1)}, submitted over {span}; {self.work / 3600:,.0f} GPU-hours of work"
        )

    def told(self, job: int) -> str:
        """Which job, for people: by its line where it has one."""
        if self.line is not None:
            return f"{self.path}, line {self.line[job]}"
        gpus = int(self.gpus[job])
        return f"the job with submit {float(self.submit[job]):.10g} and {gpus:,} GPU{'s' * (gpus != 1)}"

    @property
    def work(self) -> float:
        """GPU-seconds of all jobs."""
        return float((self.duration * self.gpus).sum())


def in_order(trace: Trace) -> Trace:
    """The same jobs, sorted by submission, none longer than its limit."""
    order = np.argsort(trace.submit, kind="stable")
    return replace(
        trace,
        submit=trace.submit[order],
        duration=np.minimum(trace.duration, trace.limit)[order],
        limit=trace.limit[order],
        gpus=trace.gpus[order],
        priority=trace.priority[order],
        preemptible=trace.preemptible[order],
        queue=trace.queue[order],
        user=trace.user[order],
        kind=trace.kind[order],
        sizes=None if trace.sizes is None else trace.sizes[order],
        base=None if trace.base is None else trace.base[order],
        spares=None if trace.spares is None else trace.spares[order],
        deadline=None if trace.deadline is None else trace.deadline[order],
        window=None if trace.window is None else trace.window[order],
        form=None if trace.form is None else trace.form[order],
        line=None if trace.line is None else trace.line[order],
    )


def read(path: Path) -> Trace:
    """Read a trace.

    Raises:
        SimulationError: the file is not there, or a line of it says something impossible.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
            rows = csv.DictReader(file, strict=True)
            try:
                return _parse(rows, path)
            except csv.Error as error:  # of the header, too
                told = f"{path}, line {rows.reader.line_num}: {error}; close every quotation mark that opens a value"
                raise SimulationError(told) from error
    except OSError as error:
        raise SimulationError(f"cannot read the trace {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SimulationError(undecoded(path)) from error


def _rows_of(rows: csv.DictReader[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Each job's line, by its number in the file. A spreadsheet's empty rows are left out."""
    for row in rows:
        if any(value.strip() if isinstance(value, str) else value for value in row.values()):
            yield rows.line_num, row


def _header(rows: csv.DictReader[str], path: Path) -> tuple[str, ...]:
    """The names of the columns, without the spaces around them, as values are read."""
    header = tuple(name.strip() for name in rows.fieldnames or ())
    rows.fieldnames = header
    if not any(header):
        raise SimulationError(f"{path} is empty; its first line must name {', '.join(REQUIRED)}")
    if "" in header:
        raise SimulationError(
            f"{path}: column {header.index('') + 1} has no name in the first line; name it, or take it out"
        )
    doubled = next((name for name in header if header.count(name) > 1), None)
    if doubled is not None:
        raise SimulationError(f"{path} has more than one column {doubled!r}; leave one of them")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        raise SimulationError(f"{path} must separate its columns by commas, not by semicolons, tabs or bars")
    missing = [name for name in REQUIRED if name not in header]
    unknown = [name for name in header if name not in EVERY]
    if missing:
        meant = nearest(missing[0], unknown)
        raise SimulationError(
            f"{path} has no column {', '.join(missing)}{f' (is {meant!r} meant to be it?)' if meant else ''}; "
            f"its first line must name {', '.join(REQUIRED)} and may name {', '.join(EVERY[len(REQUIRED) :])}"
        )
    if unknown:
        meant = nearest(unknown[0], EVERY)
        raise SimulationError(
            f"{path} has unknown columns {', '.join(unknown)}; {f'did you mean {meant!r}? K' if meant else 'k'}nown: "
            f"{', '.join(EVERY)}"
        )
    return header


def _parse(rows: csv.DictReader[str], path: Path) -> Trace:
    header = _header(rows, path)
    queues, users = _Names(), _Names()
    kinds: dict[tuple[str, str, str], int] = {}
    numbers: list[tuple[float, float, float, int, int]] = []
    others: list[tuple[bool, int, int, int]] = []
    sizes: list[tuple[int, int, int]] = []
    bases: list[str] = []
    spares: list[int] = []
    windows, forms = _Names(), dict[Form, int]()
    times: list[tuple[float, int]] = []
    form: list[int] = []
    lines: list[int] = []
    for line, row in _rows_of(rows):
        if None in row:
            raise SimulationError(f"{path}, line {line}: there are more values than the {len(header)} columns")
        cell = Cells(row, f"{path}, line {line}")
        queue = cell.name("queue")
        kind = (cell.text("gpu_type"), cell.capacities(), cell.topology())
        numbers.append(
            (
                cell.number("submit", least=0.0, most=LATEST),
                cell.number("duration", least=SHORTEST, most=LATEST),
                cell.number("limit", least=SHORTEST, most=LATEST, missing=FOREVER),
                cell.whole("gpus", least=1, most=MOST_GPUS),
                cell.whole("priority", least=-(2**31), most=2**31 - 1, missing=0),
            )
        )
        preemptible = cell.one_of("preemptible", ("true", "false")) != "false"
        user = users(cell.text("user") or queue)
        others.append((preemptible, queues(queue), user, kinds.setdefault(kind, len(kinds))))
        sizes.append(cell.sizes(numbers[-1][3]))
        bases.append(cell.base(sizes[-1]))
        spares.append(cell.spares(sizes[-1]))
        window = cell.text("window")
        times.append((cell.deadline(numbers[-1][0]), windows(window) if window else NONE))
        form.append(forms.setdefault(cell.form(sizes[-1], numbers[-1][3]), len(forms)))
        lines.append(line)
    if not numbers:
        raise SimulationError(f"{path} has no jobs; write one line for each below the header")
    submit, duration, limit, gpus, priority = zip(*numbers, strict=True)
    preemptible_, queue_, user_, kind_ = zip(*others, strict=True)
    deadline, window_ = zip(*times, strict=True)
    return in_order(
        Trace(
            submit=np.array(submit),
            duration=np.array(duration),
            limit=np.array(limit),
            gpus=np.array(gpus, dtype=np.int32),
            priority=np.array(priority, dtype=np.int32),
            preemptible=np.array(preemptible_, dtype=np.bool_),
            queue=np.array(queue_, dtype=np.int32),
            user=np.array(user_, dtype=np.int32),
            kind=np.array(kind_, dtype=np.int32),
            queues=queues.all,
            users=users.all,
            kinds=tuple(kinds),
            sizes=np.array(sizes, dtype=np.int32) if any(least < most for least, most, _ in sizes) else None,
            base=np.array([CAPACITIES.index(base) if base else NONE for base in bases], dtype=np.int32)
            if any(bases)
            else None,
            spares=np.array(spares, dtype=np.int32) if any(spares) else None,
            deadline=np.array(deadline) if min(deadline) < FOREVER else None,
            window=np.array(window_, dtype=np.int32) if windows.all else None,
            windows=windows.all,
            form=np.array(form, dtype=np.int32) if any(each != Form() for each in forms) else None,
            forms=tuple(forms),
            line=np.array(lines, dtype=np.int32),
            path=str(path),
        )
    )


class _Names:
    """Numbers names in the order in which they are first met."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self._index.setdefault(name, len(self._index))

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._index)


def write(trace: Trace, path: Path) -> None:
    """Write what `read` reads."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(REQUIRED + OPTIONAL + _more(trace))
    writer.writerows(_rows(trace))
    path.write_text(text.getvalue(), encoding="utf-8", newline="")  # at once: half of it would read as a whole one


def _more(trace: Trace) -> tuple[str, ...]:
    there = (
        (ELASTIC, trace.sizes is not None),
        (BASES, trace.base is not None),
        (SPARES, trace.spares is not None),
        (TIMES, trace.deadline is not None or trace.window is not None),
        (SHAPES, trace.form is not None),
    )
    return tuple(column for columns, some in there if some for column in columns)


def _rows(trace: Trace) -> Iterable[tuple[object, ...]]:
    columns = (trace.submit, trace.gpus, trace.duration, trace.queue, trace.priority, trace.user, trace.limit)
    sizes = [()] * len(trace) if trace.sizes is None else [_sizes(*each) for each in trace.sizes.tolist()]
    spares = [()] * len(trace) if trace.spares is None else [(spare or "",) for spare in trace.spares.tolist()]
    late = zip(_bases(trace), spares, _times(trace), _forms(trace), strict=True)
    rows = zip(*(column.tolist() for column in (*columns, trace.preemptible, trace.kind)), sizes, late, strict=True)
    for submit, gpus, duration, queue, priority, user, limit, preemptible, kind, elastic, others in rows:
        yield (
            f"{submit:.3f}",
            gpus,
            f"{duration:.3f}",
            trace.queues[queue],
            priority,
            trace.users[user],
            "" if limit == FOREVER else f"{limit:.3f}",
            "true" if preemptible else "false",
            *trace.kinds[kind],
            *elastic,
            *chain(*others),
        )


def _bases(trace: Trace) -> Iterable[tuple[object, ...]]:
    """The jobs' values of the columns BASES."""
    if trace.base is None:
        return [()] * len(trace)
    return [("" if base == NONE else CAPACITIES[base],) for base in trace.base.tolist()]


def _times(trace: Trace) -> Iterable[tuple[object, ...]]:
    """The jobs' values of the columns TIMES."""
    if trace.deadline is None and trace.window is None:
        return [()] * len(trace)
    deadlines = [FOREVER] * len(trace) if trace.deadline is None else trace.deadline.tolist()
    windows = [NONE] * len(trace) if trace.window is None else trace.window.tolist()
    return [
        ("" if deadline == FOREVER else f"{deadline:.3f}", "" if window == NONE else trace.windows[window])
        for deadline, window in zip(deadlines, windows, strict=True)
    ]


def _forms(trace: Trace) -> Iterable[tuple[object, ...]]:
    """The jobs' values of the columns SHAPES."""
    if trace.form is None:
        return [()] * len(trace)
    forms = [("|".join(f"{level}:{gpus}" for level, gpus in form.slices), form.balanced) for form in trace.forms]
    return [forms[form] for form in trace.form.tolist()]


def _sizes(least: int, most: int, step: int) -> tuple[object, ...]:
    """A job's values of the columns ELASTIC."""
    return ("", "", "") if least == most else (least, most, step or "")
