"""What ranks tell their launcher: JSON datagrams, which `reporter` brings there.

A launcher that takes none for long misses some, and without one (a laptop) nobody hears them. It treats them as news,
never as truth that must not be missed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from muster_protocol.launcher_status import MOMENT_END

DATAGRAM_LIMIT: Final = 16 * 1024
"""Bytes; a longer message is lost."""
PART_BYTES: Final = DATAGRAM_LIMIT // 2
"""Of what may be too much for one message: so much goes into each, by an estimate that may be too low."""
NAME_LIMIT: Final = 100
"""Characters of the name of a metric or parameter."""
WHOLE_LIMIT: Final = 2**63
"""Whole numbers are below: Kubernetes and trackers hold no greater ones."""


@dataclass(frozen=True)
class Hello:
    """A session started in this rank: it hears the control word, so it needs no SIGTERM."""

    rank: int
    pid: int


@dataclass(frozen=True)
class Progress:
    """After a step. `loss` and `grad_norm` are decimal strings, since JSON has no NaN; rates are per second and of the
    whole gang."""

    rank: int
    step: int
    total_steps: int | None = None
    loss: str | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    mfu: float | None = None
    grad_norm: str | None = None


@dataclass(frozen=True)
class CheckpointCommitted:
    """`committed_at` is in seconds since the epoch; `bytes` is what this rank wrote, `stall` how long its training
    stood still, `total` what all ranks wrote (0: not told)."""

    rank: int
    step: int
    uri: str
    seconds: float
    bytes: int
    committed_at: float
    stall: float = 0.0
    total: int = 0


@dataclass(frozen=True)
class Stored:
    """What all of the run's committed checkpoints take in the store (`launcher_api.Status.stored`)."""

    rank: int
    bytes: int


@dataclass(frozen=True)
class Resumed:
    """The rank restored `step` from `uri`."""

    rank: int
    step: int
    uri: str


@dataclass(frozen=True)
class FellBack:
    """The rank restored `step`, an older checkpoint: the newest that was committed is not whole."""

    rank: int
    step: int


@dataclass(frozen=True)
class Stopped:
    """The rank ends after `step` steps because it was asked to, whatever exit code its launcher will see."""

    rank: int
    step: int


@dataclass(frozen=True)
class NothingLeft:
    """What the rank restored, of `step`, leaves its loop nothing to train; `text` says so, and what to do."""

    rank: int
    step: int
    text: str


@dataclass(frozen=True)
class Warned:
    """One sentence for people."""

    rank: int
    text: str


@dataclass(frozen=True)
class FixedSize:
    """Why the run can't go on with another number of ranks."""

    rank: int
    text: str


@dataclass(frozen=True)
class StorageFailed:
    """A save or a restore met an error of the storage."""

    rank: int
    text: str


@dataclass(frozen=True)
class KeptInMemory:
    """Where the newest checkpoint stays beside the store (`launcher_api.Kept`), and why there."""

    rank: int
    kept: str
    why: str


@dataclass(frozen=True)
class Saving:
    """How saves do (`launcher_api.Saving`)."""

    rank: int
    left_out: int
    interval_seconds: float | None


@dataclass(frozen=True)
class Numerics:
    """Steps that were not sound, since the run began (`launcher_api.Numerics`). `step` are done now."""

    rank: int
    step: int
    skipped: int
    rollbacks: int
    text: str


@dataclass(frozen=True)
class Profiled:
    """The steps behind `step` were recorded, in `profile_file` and perhaps `memory_file`; or they were not, and `text`
    says why. `at` is when it was asked for, in seconds since the epoch, the same on all ranks."""

    rank: int
    step: int
    steps: int
    at: float
    text: str = ""


@dataclass(frozen=True)
class Points:
    """Values of metrics, for the tracker of the run: for each step its number, the time in seconds since the epoch, and
    its metrics by name, as decimal strings."""

    rank: int
    points: Sequence[tuple[int, float, Mapping[str, str]]]


@dataclass(frozen=True)
class Described:
    """What the run was set up with (`params`), or what it runs on (`environment`), for its tracker."""

    rank: int
    about: str
    values: Mapping[str, str]


@dataclass(frozen=True)
class Lost:
    """So many `reports` were given up, the launcher having taken nothing for long, and with them so many `figures`,
    values of metrics; since it was told last."""

    rank: int
    reports: int
    figures: int


def profile_file(run_dir: Path, rank: int) -> Path:
    """PyTorch's trace of a rank."""
    return run_dir / f"profile-{rank}.json"


def memory_file(run_dir: Path, rank: int) -> Path:
    """Its allocations on CUDA."""
    return run_dir / f"profile-{rank}.memory.pickle"


Message = (
    Hello
    | Progress
    | CheckpointCommitted
    | Stored
    | Resumed
    | FellBack
    | Stopped
    | NothingLeft
    | Warned
    | FixedSize
    | StorageFailed
    | KeptInMemory
    | Saving
    | Numerics
    | Profiled
    | Points
    | Described
    | Lost
)
KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in get_args(Message)}


_WHOLE: Final = frozenset(
    {
        "rank",
        "pid",
        "step",
        "steps",
        "total_steps",
        "bytes",
        "total",
        "left_out",
        "skipped",
        "rollbacks",
        "reports",
        "figures",
    }
)
_MOMENT: Final = frozenset({"at", "committed_at"})
_TEXT: Final = frozenset({"uri", "text", "kept", "why", "about"})
_DECIMAL: Final = frozenset({"loss", "grad_norm"})
_OPTIONAL: Final = _DECIMAL | {
    "total_steps",
    "step_seconds",
    "tokens_per_second",
    "samples_per_second",
    "mfu",
    "interval_seconds",
}


def encode(message: Message) -> bytes:
    return json.dumps({"kind": type(message).__name__, **vars(message)}).encode()


def decode(datagram: bytes) -> Message | None:
    """None for anything that is not one of ours: any process of the user's may write to the socket."""
    try:
        raw = json.loads(datagram)
        kind = KINDS[raw.pop("kind")]
        values = {f.name: raw[f.name] for f in dataclasses.fields(kind) if f.name in raw}
        if not all(_fits(name, value) for name, value in values.items()):
            return None
        message: Message = kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return message


def _fits(name: str, value: Any) -> bool:
    if value is None:
        return name in _OPTIONAL
    if name in _TEXT:
        return isinstance(value, str)
    if name == "values":
        return _maps(value, str)
    if name == "points":
        return isinstance(value, list) and all(_is_step(*one) for one in value)  # TypeError when it is no triple
    if name in _DECIMAL:
        return isinstance(value, str) and float(value) is not None  # ValueError when it is no number
    if name in _WHOLE:
        return type(value) is int and 0 <= value < WHOLE_LIMIT
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value < MOMENT_END if name in _MOMENT else math.isfinite(value)


def _is_step(step: Any, at: Any, values: Any) -> bool:
    return _fits("step", step) and _fits("at", at) and _maps(values, float)


def _maps(value: Any, fits: Callable[[Any], object]) -> bool:
    """Whether it maps names to strings that `fits` takes; ValueError where it doesn't."""
    return isinstance(value, dict) and all(
        len(name) <= NAME_LIMIT and isinstance(one, str) and fits(one) is not None for name, one in value.items()
    )
