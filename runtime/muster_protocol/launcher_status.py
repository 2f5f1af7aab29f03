"""What a launcher tells of its run to whoever asks, from index 0 for the gang, and what it is told for the run's
tracker and profiles. `launcher_api` says where each belongs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from muster_protocol.exits import RESTARTS_END
from muster_protocol.goodput import Spent
from muster_protocol.idleness import Idleness
from muster_protocol.messages import Ended
from muster_protocol.numerics import Numerics

MOMENT_END: Final = 253_402_300_800.0
"""Seconds since the epoch; moments are before: no calendar here goes beyond the year 9999."""

WARNINGS_KEPT: Final = 8
"""Of what ranks warn of, a launcher and a job's status keep so many texts. Whoever reads a launcher's and keeps fewer
would tell some of them again and again."""


class Phase(str, Enum):
    """Where a launcher stands."""

    JOINING = "joining"
    PREFLIGHT = "preflight"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Kept(str, Enum):
    """Where the newest checkpoint stays beside the store."""

    OFF = "off"
    LOCAL = "local"
    PEER = "peer"


@dataclass(frozen=True)
class MemoryTier:
    """What became of `checkpoint.memory` in this run.

    `why`: one sentence where that isn't all that could be, or "". With `PEER`: which copy doesn't arrive.
    """

    kept: Kept
    why: str = ""


@dataclass(frozen=True)
class Straggler:
    """A rank that has been slower than the others for a while.

    Attributes:
        factor: its own time of a step over the gang's median.
        own, usual: seconds of a step: its own, and the median.
    """

    rank: int
    index: int
    factor: float
    own: float
    usual: float


@dataclass(frozen=True)
class Profile:
    """A wish to see what ranks do in their next steps, by PyTorch's profiler.

    Attributes:
        steps: how many, 1 to `PROFILE_STEPS`.
        everybody: all ranks record, not only rank 0.
        memory: each allocation on CUDA, too.
    """

    steps: int = 3
    everybody: bool = False
    memory: bool = False


PROFILE_STEPS: Final = 100
"""At most: a trace has megabytes a step."""


class ProfilePhase(str, Enum):
    NONE = "none"
    """None was asked for yet."""
    ASKED = "asked"
    """The ranks begin at their next step's end, or record."""
    STORING = "storing"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Profiling:
    """One pod's last profile.

    Attributes:
        uri: the folder that it lies in, once it is known.
        stored: names of files in it, of this pod's ranks.
        text: what went wrong, or is worth knowing, for people; or "".
        asked_at: when it was asked for, in seconds since the epoch.
    """

    phase: ProfilePhase = ProfilePhase.NONE
    uri: str = ""
    stored: tuple[str, ...] = ()
    text: str = ""
    asked_at: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """The last committed checkpoint. `committed_at` is in seconds since the epoch, `bytes` are of all ranks' shards."""

    step: int
    uri: str
    committed_at: float
    save_seconds: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class SaveAsked:
    """The ranks know that a checkpoint is wanted now.

    Attributes:
        step: steps that rank 0 had done then; the checkpoint is of that one or a later one.
        session: whether rank 0 has started a session, without which nobody saves.
    """

    step: int
    session: bool


@dataclass(frozen=True)
class Facts:
    """What only the operator knows of a job, for the tracker of its run.

    Attributes:
        tags: names and texts.
        gpus: that are held now, slices as parts of one.
        gpu_seconds: of all placements, up to `at`.
        cost: of those, in `currency`, as decimal text; "" where the GPUs have no price.
        hourly: what the GPUs that are held cost in an hour.
        at: seconds since the epoch.
    """

    tags: dict[str, str] = field(default_factory=dict)
    gpus: float = 0
    gpu_seconds: int = 0
    cost: str = ""
    hourly: float = 0.0
    currency: str = ""
    at: float = 0.0


@dataclass(frozen=True)
class Tracking:
    """How the run's tracker takes what it is told.

    Attributes:
        well: it took the last of it; None before it was asked.
        url: of the run there, or "".
        text: what went wrong, for people, or "".
        dropped: values that were given up.
    """

    well: bool | None = None
    url: str = ""
    text: str = ""
    dropped: int = 0


@dataclass(frozen=True)
class Saving:
    """How the saves of these processes do.

    Attributes:
        left_out: saves that were due while the one before was still being written.
        interval_seconds: what `interval: auto` has chosen; None where the interval is given.
    """

    left_out: int = 0
    interval_seconds: float | None = None


@dataclass(frozen=True)
class Status:
    """What a launcher knows about its run.

    Attributes:
        step, total_steps: progress as rank 0 reports it; None before the first report.
        loss: last reported loss, as a decimal string (JSON has no NaN).
        steps_per_second: over the last minute.
        resumed_from: the step that this incarnation restored, or None for a fresh start.
        resumed_uri: the run's uri where that lay there; else where it was, in words or as another uri; "" as for None.
        storage_error: what the preflight or a save found wrong with the checkpoint's storage, or "".
        fixed_size: why the run can't go on with another number of ranks, or "" when it can.
        warnings: what ranks have warned of, one text each, the oldest first: the newest WARNINGS_KEPT.
        restarts: how often the gang's processes were started again in these pods.
        failures: of those, how many followed a failure of the script; None: all.
        memory_failures: of `failures`, how many were for want of memory.
        restarted_after: the failure that led to the last of them, or "".
        restarted_by: that failure, as index 0 knows it.
        lost: the indexes whose pods were lost and that this launcher waits for, its phase being `joining`: of index 0
            all that are lost; of the others index 0, where it is.
        memory_tier: None until it is known, at the first save.
        copy: what it has of another's memory, as a `Member` tells it.
        stored: bytes that all committed checkpoints under the run's uri take; None until rank 0 has told it.
        saving: None until rank 0 has told it.
        numerics: None where nothing was unsound, or nobody looks.
        spent: where this launcher's time went, from index 0.
        stragglers: the slowest first; index 0 knows them.
        idleness: of all workers' GPUs, from index 0; None where that of one isn't known.
        tracking: None where nothing is tracked.
        profile: the last one of index 0's ranks, once one was asked for.
    """

    phase: Phase
    generation: int
    incarnation: int
    index: int
    joined: int = 0
    workers: int = 0
    step: int | None = None
    total_steps: int | None = None
    loss: str | None = None
    steps_per_second: float | None = None
    tokens_per_second: float | None = None
    checkpoint: Checkpoint | None = None
    resumed_from: int | None = None
    resumed_uri: str = ""
    storage_error: str = ""
    fixed_size: str = ""
    warnings: tuple[str, ...] = field(default=())
    restarts: int = 0
    failures: int | None = None
    memory_failures: int = 0
    restarted_after: str = ""
    restarted_by: Ended | None = None
    lost: tuple[int, ...] = ()
    memory_tier: MemoryTier | None = None
    copy: tuple[int, ...] = ()
    stored: int | None = None
    saving: Saving | None = None
    numerics: Numerics | None = None
    spent: Spent | None = None
    stragglers: tuple[Straggler, ...] = ()
    idleness: Idleness | None = None
    tracking: Tracking | None = None
    profile: Profiling | None = None


def implausible(status: Status) -> str:
    """What of it no launcher can have seen, and what it may be, or "": whoever may send it isn't trusted."""
    committed = status.checkpoint or Checkpoint(0, "", 0.0)
    failures = status.restarts if status.failures is None else status.failures
    bounds: tuple[tuple[str, float | None, float], ...] = (
        ("generation", status.generation, 2**31),
        ("incarnation", status.incarnation, 2**31),
        ("index", status.index, 2**31),
        ("joined", status.joined, 2**31),
        ("workers", status.workers, 2**31),
        ("restarts", status.restarts, RESTARTS_END),
        ("failures", failures, status.restarts + 1),
        ("memory_failures", status.memory_failures, failures + 1),
        ("step", status.step, 2**63),
        ("total_steps", status.total_steps, 2**63),
        ("resumed_from", status.resumed_from, 2**63),
        ("stored", status.stored, 2**63),
        ("steps_per_second", status.steps_per_second, math.inf),
        ("checkpoint.step", committed.step, 2**63),
        ("checkpoint.committed_at", committed.committed_at, MOMENT_END),
    )
    for name, value, end in bounds:
        if value is not None and not 0 <= value < end:
            return f"{name} is {value}; it has to be at least 0 and below {end}"
    return ""
