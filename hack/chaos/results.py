"""What came of each run, kept in docs/reliability/runs.jsonl: one JSON object a line, the oldest first."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from hack.chaos.measure import Losses, Recovery

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "reliability" / "runs.jsonl"


class Outcome(str, Enum):
    MET = "met"
    MISSED = "missed"
    VOID = "void"
    """The fault did not hit while the gang trained: the run says nothing."""


@dataclass(frozen=True)
class Target:
    """What a row has to keep to; None: nothing is promised.

    Attributes:
        seconds: until the next new optimizer step.
        steps_lost: at most.
        new_pods: at most.
        losses: as `Losses`.
    """

    seconds: float | None = None
    steps_lost: int | None = None
    new_pods: int | None = None
    losses: Losses = Losses.BITWISE


@dataclass(frozen=True)
class Result:
    """One run of a row.

    Attributes:
        when: UTC, when the fault came, as ISO 8601.
        commit: of the checkout; `version`: of the images of operator and runtime that ran.
        machine: in plain words; `load`: processes that ran or wanted to, over the minute before the fault.
        fault: what was done to whom; `proof`: what was seen of it.
        step: the last one done before it.
        seconds, steps_lost, gpu_seconds_lost, new_pods: what it cost; see `measure.Recovery`.
        losses: as `Losses`, or "" when they were not compared.
        outcome: as `Outcome`; `why`: what was missed, or why the run is void.
    """

    row: str
    seed: int
    when: str
    commit: str
    version: str
    machine: str
    load: float
    fault: str = ""
    proof: str = ""
    step: int | None = None
    seconds: float | None = None
    steps_lost: int | None = None
    gpu_seconds_lost: float | None = None
    new_pods: int | None = None
    losses: str = ""
    outcome: str = Outcome.VOID.value
    why: str = ""

    @property
    def void(self) -> bool:
        return self.outcome == Outcome.VOID.value


def misses(target: Target, recovery: Recovery, new_pods: int, compared: Losses, difference: str) -> tuple[str, ...]:
    """What of the target was missed, in plain words."""
    found = []
    if target.seconds is not None and recovery.seconds > target.seconds:
        found.append(f"{recovery.seconds:.1f} s to the next new step, not {target.seconds:g} s")
    if target.steps_lost is not None and recovery.steps_lost > target.steps_lost:
        found.append(f"{recovery.steps_lost} steps lost, not {target.steps_lost}")
    if target.new_pods is not None and new_pods > target.new_pods:
        found.append(f"{new_pods} new pods, not {target.new_pods}")
    if compared is Losses.DIFFERENT or (target.losses is Losses.BITWISE and compared is not Losses.BITWISE):
        found.append(f"losses: {difference or compared.value}")
    return tuple(found)


def read(path: Path = FILE) -> list[Result]:
    """All results on record, the oldest first."""
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def append(result: Result, path: Path = FILE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as kept:
        kept.write(json.dumps(asdict(result)) + "\n")


def known(results: Iterable[Result], row: str, seed: int, version: str | None = None) -> Result | None:
    """The newest result of that run that is not void; with `version`, of those images alone."""
    found = [r for r in results if (r.row, r.seed) == (row, seed) and version in (None, r.version) and not r.void]
    return found[-1] if found else None


def newest(results: Iterable[Result], row: str) -> Sequence[Result]:
    """The newest result of each seed of a row, void ones left out, by seed."""
    by_seed = {result.seed: result for result in results if result.row == row and not result.void}
    return [by_seed[seed] for seed in sorted(by_seed)]


def void(results: Iterable[Result], row: str) -> Sequence[Result]:
    """The newest void result of each seed of a row that has no other, by seed."""
    found = [result for result in results if result.row == row]
    valid = {result.seed for result in found if not result.void}
    by_seed = {result.seed: result for result in found if result.seed not in valid}
    return [by_seed[seed] for seed in sorted(by_seed)]


def machine() -> str:
    """This machine, as one would tell it."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, no GPU"
