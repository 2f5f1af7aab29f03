"""One run of a row: a gang trains, the fault comes, and what it cost is read off."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hack.chaos import results
from hack.chaos.measure import Recovery, compare, recovery, training
from hack.chaos.recipe import WORKERS
from hack.chaos.results import Outcome, Result
from hack.chaos.rows import REFERENCE_STEPS, Row
from hack.chaos.stage import Stage, now
from hack.chaos.victim import Hit, Victim, VoidRun, uid_of
from hack.demo.kube import KubeError

GPUS = WORKERS
"""Of a job: one for each worker."""


@dataclass(frozen=True)
class Struck:
    """A fault that a job came through."""

    hit: Hit
    recovery: Recovery
    new_pods: int

    @property
    def gpu_seconds_lost(self) -> float:
        """Of GPUs that the job held while no new step was done, a step's usual time left out."""
        away = (self.hit.again or self.hit.at) - self.hit.at - self.hit.idle
        return GPUS * max(0.0, away + self.recovery.seconds - self.recovery.usual)


class NotRecovered(Exception):
    """The fault hit, and the run did not come beyond it. Has the hit and what is known of the job."""

    def __init__(self, hit: Hit, told: str) -> None:
        super().__init__(told)
        self.hit = hit


def strike(stage: Stage, name: str, row: Row, dice: random.Random) -> Struck:
    """Does the row's fault to a job that trains, and waits until the job has done a new step.

    Raises VoidRun when the job did not train or the fault did not show, NotRecovered when no new step came.
    """
    if not training(stage.lines(name), now()):
        raise VoidRun(f"{name} did not train when the fault was due")
    before = {uid_of(pod) for pod in stage.living(name)}
    hit = row.fault(Victim(stage, name, dice))
    try:
        found = stage.wait("its next new step", lambda: _beyond(stage, name, hit), row.patience, name)
        new_pods = {uid_of(pod) for pod in stage.pods(name)} - before
        return Struck(hit, found, len(new_pods))
    except KubeError as error:
        raise NotRecovered(hit, str(error)) from error
    finally:
        hit.mend()


def _beyond(stage: Stage, name: str, hit: Hit) -> Recovery | None:
    return recovery(stage.lines(name), hit.at, hit.again or hit.at, hit.healed or hit.at)


@dataclass(frozen=True)
class Circumstances:
    """What is the same for all runs of a call."""

    commit: str
    version: str
    machine: str


def play(
    stage: Stage,
    row: Row,
    seed: int,
    circumstances: Circumstances,
    gate: AbstractContextManager[object],
    say: Callable[[str], None],
) -> Result:
    """Plays one run. `gate` is held from the job's start until it has come through the fault: another run waits for it,
    and disturbs no measurement."""
    name, dice = f"{row.name}-{seed}", random.Random(f"{row.name}/{seed}")
    blank = Result(
        row.name, seed, "", circumstances.commit, circumstances.version, circumstances.machine, os.getloadavg()[0]
    )
    with gate:
        stage.start(name, row.recipe)
        try:
            stage.until_stepped(name, dice.choice(row.steps))
            blank = replace(blank, when=_utc(), load=round(os.getloadavg()[0], 1))
            struck = strike(stage, name, row, dice)
        except NotRecovered as error:
            say(str(error))
            return replace(_of_hit(blank, error.hit), outcome=Outcome.MISSED.value, why="it did not train again")
        except (KubeError, VoidRun) as error:
            say(str(error))
            return replace(blank, when=blank.when or _utc(), why=str(error).splitlines()[0][:300])
    found = _of_hit(blank, struck.hit)
    found = replace(
        found,
        step=struck.recovery.reached,
        seconds=round(struck.recovery.seconds, 2),
        steps_lost=struck.recovery.steps_lost,
        gpu_seconds_lost=round(struck.gpu_seconds_lost, 1),
        new_pods=struck.new_pods,
    )
    try:
        stage.until_succeeded(name, 300 + row.recipe.steps * row.recipe.pace)
    except KubeError as error:
        say(str(error))
        return replace(
            found, outcome=Outcome.MISSED.value, why=f"it did not succeed: {str(error).splitlines()[0][:300]}"
        )
    compared, difference = compare(stage.lines(name), stage.reference(REFERENCE_STEPS), row.recipe.steps)
    missed = results.misses(row.target, struck.recovery, struck.new_pods, compared, difference)
    stage.remove(name)
    outcome = Outcome.MISSED if missed else Outcome.MET
    return replace(found, losses=compared.value, outcome=outcome.value, why="; ".join(missed))


def _of_hit(blank: Result, hit: Hit) -> Result:
    return replace(blank, fault=hit.what, proof=hit.proof)


def _utc() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
