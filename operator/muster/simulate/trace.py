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
    topology    optional, like `required:rack` or `preferred:block`; empty: unconstrained
    min, max    optional, GPUs: an elastic job, of which `gpus` is the size that it wishes; empty: `gpus`
    step        optional, GPUs: an elastic job has `min` and a multiple of this; empty: those of one worker
    spares      optional, workers whose room is kept beside the gang's own, idle until a node breaks; 0
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from muster.scheduling.snapshot import FOREVER, Index, Mask, Seconds
from muster.simulate.errors import SimulationError
from muster_protocol.spelling import nearest

REQUIRED: Final = ("submit", "gpus", "duration", "queue")
OPTIONAL: Final = ("priority", "user", "limit", "preemptible", "gpu_type", "capacity", "topology")
ELASTIC: Final = ("min", "max", "step")
SPARES: Final = ("spares",)
"""Optional as well; both are written only of traces in which jobs have them."""
CAPACITIES: Final = ("on-demand", "reserved", "spot")
MODES: Final = ("required", "preferred")
_SHORTEST: Final = 0.001
"""Seconds. Where time counts from 1970, less would be lost in rounding, and a job would never end."""
_LATEST: Final = 1e10
"""Seconds, three hundred years; what counts milliseconds from 1970 is above it."""
_MOST_GPUS: Final = 1_000_000
_MOST_SPARES: Final = 1_000


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
        spares: J, workers; elastic jobs have none. None: no job has any.
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
    spares: Index | None = None

    def __len__(self) -> int:
        return len(self.submit)

    def __str__(self) -> str:
        """The trace in one line."""
        users, queues = len(np.unique(self.user)), len(np.unique(self.queue))
        hours = float(self.submit[-1] - self.submit[0]) / 3600
        span = f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"
        return (
            f"{len(self):,} job{'s' * (len(self) != 1)} of {users} user{'s' * (users != 1)} in {queues} "
            f"queue{'s' * (queues != 1)}, submitted over {span}; {self.work / 3600:,.0f} GPU-hours of work"
        )

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
        spares=None if trace.spares is None else trace.spares[order],
    )


def read(path: Path) -> Trace:
    """Read a trace.

    Raises:
        SimulationError: the file is not there, or a line of it says something impossible.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
            return _parse(csv.DictReader(file, strict=True), path)
    except OSError as error:
        raise SimulationError(f"cannot read the trace {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SimulationError(f"{path} is not a CSV file in UTF-8: {error.reason} at byte {error.start}") from error


def _rows_of(rows: csv.DictReader[str], path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Each job's line, by its number in the file. A spreadsheet's empty rows are left out."""
    try:
        for row in rows:
            if any(row.values()):
                yield rows.line_num, row
    except csv.Error as error:
        raise SimulationError(
            f"{path}, line {rows.reader.line_num}: {error}; close every quotation mark that opens a value"
        ) from error


def _parse(rows: csv.DictReader[str], path: Path) -> Trace:
    header = tuple(rows.fieldnames or ())
    if not header:
        raise SimulationError(f"{path} is empty; its first line must name {', '.join(REQUIRED)}")
    doubled = next((name for name in header if header.count(name) > 1), None)
    if doubled is not None:
        raise SimulationError(f"{path} has more than one column {doubled!r}; leave one of them")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise SimulationError(f"{path} must separate its columns by commas, not by semicolons or tabs")
    known = REQUIRED + OPTIONAL + ELASTIC + SPARES
    missing = [name for name in REQUIRED if name not in header]
    unknown = [name for name in header if name not in known]
    if missing:
        meant = nearest(missing[0], unknown)
        raise SimulationError(
            f"{path} has no column {', '.join(missing)}{f' (is {meant!r} meant to be it?)' if meant else ''}; "
            f"its first line must name {', '.join(REQUIRED)} and may name {', '.join(OPTIONAL + ELASTIC + SPARES)}"
        )
    if unknown:
        meant = nearest(unknown[0], known)
        raise SimulationError(
            f"{path} has unknown columns {', '.join(unknown)}; {f'did you mean {meant!r}? K' if meant else 'k'}nown: "
            f"{', '.join(known)}"
        )
    queues, users = _Names(), _Names()
    kinds: dict[tuple[str, str, str], int] = {}
    numbers: list[tuple[float, float, float, int, int]] = []
    others: list[tuple[bool, int, int, int]] = []
    sizes: list[tuple[int, int, int]] = []
    spares: list[int] = []
    for line, row in _rows_of(rows, path):
        if None in row:
            raise SimulationError(f"{path}, line {line}: there are more values than the {len(header)} columns")
        cell = _Cells(row, f"{path}, line {line}")
        queue = cell.name("queue")
        kind = (cell.text("gpu_type"), cell.capacities(), cell.topology())
        numbers.append(
            (
                cell.number("submit", least=0.0, most=_LATEST),
                cell.number("duration", least=_SHORTEST, most=_LATEST),
                cell.number("limit", least=_SHORTEST, most=_LATEST, missing=FOREVER),
                cell.whole("gpus", least=1, most=_MOST_GPUS),
                cell.whole("priority", least=-(2**31), most=2**31 - 1, missing=0),
            )
        )
        preemptible = cell.one_of("preemptible", ("true", "false")) != "false"
        user = users(cell.text("user") or queue)
        others.append((preemptible, queues(queue), user, kinds.setdefault(kind, len(kinds))))
        sizes.append(cell.sizes(numbers[-1][3]))
        spares.append(cell.spares(sizes[-1]))
    if not numbers:
        raise SimulationError(f"{path} has no jobs; write one line for each below the header")
    submit, duration, limit, gpus, priority = zip(*numbers, strict=True)
    preemptible_, queue_, user_, kind_ = zip(*others, strict=True)
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
            spares=np.array(spares, dtype=np.int32) if any(spares) else None,
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


class _Cells:
    """One line, with errors that say where."""

    def __init__(self, row: dict[str, str], where: str) -> None:
        self._row, self._where = row, where

    def text(self, column: str) -> str:
        return (self._row.get(column) or "").strip()

    def name(self, column: str) -> str:
        return self.text(column) or self._fail(column, "is empty")

    def number(self, column: str, *, least: float, most: float, missing: float | None = None) -> float:
        text = self.text(column)
        if not text and missing is not None:
            return missing
        try:
            value = float(text)
        except ValueError:
            self._fail(column, f"is no number: {text!r}")
        if not least <= value <= most:  # nor nan
            self._fail(column, f"must be between {_plain(least)} and {_plain(most)}, not {text}")
        return value

    def whole(self, column: str, *, least: int, most: int, missing: int | None = None) -> int:
        value = self.number(column, least=least, most=most, missing=None if missing is None else float(missing))
        if value != int(value):
            self._fail(column, f"must be a whole number, not {self.text(column)}")
        return int(value)

    def one_of(self, column: str, allowed: Sequence[str]) -> str:
        value = self.text(column).lower()
        if value and value not in allowed:
            self._fail(column, f"must be {' or '.join(allowed)}, not {value!r}")
        return value

    def capacities(self) -> str:
        """Kinds of capacity in order of preference, "|" between them; "" for none."""
        value = self.text("capacity").lower()
        kinds = [kind.strip() for kind in value.split("|")] if value else []
        for kind in kinds:
            if kind not in CAPACITIES:
                told = f"must be {' or '.join(CAPACITIES)}, or several of them like spot|on-demand, not {value!r}"
                self._fail("capacity", told)
            if kinds.count(kind) > 1:
                self._fail("capacity", f"names {kind} twice: {value!r}; name each kind once, the best first")
        return "|".join(kinds)

    def sizes(self, gpus: int) -> tuple[int, int, int]:
        """Fewest and most GPUs, both `gpus` for a job that is not elastic, and the step; 0 for one worker's."""
        least = self.whole("min", least=1, most=_MOST_GPUS, missing=gpus)
        most = self.whole("max", least=1, most=_MOST_GPUS, missing=gpus)
        step = self.whole("step", least=1, most=_MOST_GPUS, missing=0) if self.text("step") else 0
        if least > gpus:
            self._fail("min", f"must be at most the job's gpus, {gpus}, not {least}")
        if most < gpus:
            self._fail("max", f"must be at least the job's gpus, {gpus}, not {most}")
        if step and least == most:
            self._fail("step", "is of elastic jobs: give min below max too, or leave step empty")
        for column, size in (("gpus", gpus), ("max", most)):
            if step and (size - least) % step:
                self._fail(column, f"must be min, {least}, and a multiple of step, {step}, not {size}")
        return least, most, step

    def spares(self, sizes: tuple[int, int, int]) -> int:
        spares = self.whole("spares", least=0, most=_MOST_SPARES, missing=0)
        if spares and sizes[0] < sizes[1]:
            self._fail("spares", "are of jobs of one size: an elastic one goes on with fewer workers; leave it empty")
        return spares

    def topology(self) -> str:
        value = self.text("topology")
        mode, colon, level = value.partition(":")
        if value and (mode not in MODES or not colon or not level):
            self._fail("topology", f"must be like required:rack or preferred:block, not {value!r}")
        return value

    def _fail(self, column: str, problem: str) -> str:
        raise SimulationError(f"{self._where}: {column} {problem}")


def _plain(bound: float) -> str:
    return f"{bound:,.0f}" if bound == int(bound) else f"{bound:g}"


def write(trace: Trace, path: Path) -> None:
    """Write what `read` reads."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(REQUIRED + OPTIONAL + _more(trace))
    writer.writerows(_rows(trace))
    path.write_text(text.getvalue(), encoding="utf-8", newline="")  # at once: half of it would read as a whole one


def _more(trace: Trace) -> tuple[str, ...]:
    return (*(ELASTIC if trace.sizes is not None else ()), *(SPARES if trace.spares is not None else ()))


def _rows(trace: Trace) -> Iterable[tuple[object, ...]]:
    columns = (trace.submit, trace.gpus, trace.duration, trace.queue, trace.priority, trace.user, trace.limit)
    sizes = [()] * len(trace) if trace.sizes is None else [_sizes(*each) for each in trace.sizes.tolist()]
    spares = [()] * len(trace) if trace.spares is None else [(spare or "",) for spare in trace.spares.tolist()]
    rows = zip(*(column.tolist() for column in (*columns, trace.preemptible, trace.kind)), sizes, spares, strict=True)
    for submit, gpus, duration, queue, priority, user, limit, preemptible, kind, elastic, spare in rows:
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
            *spare,
        )


def _sizes(least: int, most: int, step: int) -> tuple[object, ...]:
    """A job's values of the columns ELASTIC."""
    return ("", "", "") if least == most else (least, most, step or "")
