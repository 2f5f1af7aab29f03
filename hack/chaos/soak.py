"""`python -m hack.chaos.soak`: many gangs at once, and a fault every few seconds, until all of them have ended.

All jobs are applied at the start; Muster runs as many at once as fit. Faults hit whoever trains, by seed. At the end
every job must have succeeded with the losses of a run without faults, nothing may be left in the cluster or in S3, and
the operator may have no more memory than at first.
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from hack.chaos import leftover, on_jobs
from hack.chaos.bring_up import BUCKET, NAMESPACE, bring_up
from hack.chaos.leftover import Growth
from hack.chaos.measure import Losses, compare, training
from hack.chaos.recipe import Recipe
from hack.chaos.rows import REFERENCE_STEPS
from hack.chaos.stage import Stage, now
from hack.chaos.victim import Hit, Victim, VoidRun
from hack.cluster import api
from hack.cluster.errors import ClusterError
from hack.demo.kube import Kube, KubeError

FAULTS: Final[dict[str, Callable[[Victim], Hit]]] = {
    "rank-sigkill": on_jobs.rank_ended(signal.SIGKILL, "SIGKILL"),
    "rank-exception": on_jobs.rank_ended(signal.SIGUSR1, "an exception"),
    "rank-sigstop": on_jobs.rank_stopped,
    "launcher-sigkill": on_jobs.launcher_killed,
    "pod-deleted": on_jobs.pod_deleted(),
    "pod-deleted-by-force": on_jobs.pod_deleted("--grace-period=0", "--force"),
    "suspend": on_jobs.suspended,
    "straggler": on_jobs.throttled,
}
"""Those of `make chaos` that hit one job and leave the others alone. The operator is not killed: its memory counts."""

_PASSING: Final = (KubeError, VoidRun, OSError, http.client.HTTPException)
"""What keeps a fault from hitting: its victim ended, or was hit by another meanwhile."""


@dataclass(frozen=True)
class Plan:
    """What is played: so many jobs of so many steps, a fault every so many seconds, for so many seconds at most."""

    jobs: int
    steps: int
    every: float
    limit: float
    seed: int

    @property
    def names(self) -> list[str]:
        return [f"soak-{self.seed}-{number:02}" for number in range(self.jobs)]

    @property
    def recipe(self) -> Recipe:
        """Jobs that are hit again and again, on purpose: the script's own limit of failures is not what is shown."""
        return Recipe(steps=self.steps, pace=0.5, spec={"restart": {"limit": 32, "backoff": "1s"}})


class Soak:
    """The faults that are under way and those that are over."""

    def __init__(self, cluster: api.Cluster, version: str, plan: Plan) -> None:
        self._cluster, self._version, self._plan = cluster, version, plan
        self._dice = random.Random(f"soak/{plan.seed}")
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self.hits: list[str] = []
        self.voids: list[str] = []

    def stage(self) -> Stage:
        """One for the thread that asks."""
        return Stage(Kube(self._cluster), NAMESPACE, BUCKET, self._version)

    def play(self, stage: Stage, operator: Growth) -> float:
        """Faults until all jobs have ended, or time is up. Returns the seconds."""
        began, left = time.monotonic(), list(self._plan.names)
        with ThreadPoolExecutor(len(left)) as pool:
            under_way: list[Future[None]] = []
            while left and time.monotonic() - began < self._plan.limit:
                due = time.monotonic() + self._plan.every
                fault, victim = self._choose(stage, left)
                if victim:
                    under_way.append(pool.submit(self._strike, fault, victim, self._dice.random()))
                operator.look(stage)
                while left and time.monotonic() < due:
                    left = [name for name in left if not stage.ended(name)]
                    time.sleep(min(1.0, max(0.0, due - time.monotonic())))
            for one in under_way:
                one.result()
        return time.monotonic() - began

    def _choose(self, stage: Stage, names: Sequence[str]) -> tuple[str, str]:
        """A fault, and the job that it hits: one that trains and isn't being hit; "" when there is none."""
        fault = self._dice.choice(sorted(FAULTS))
        with self._lock:
            idle = [name for name in names if name not in self._busy]
            able = [name for name in idle if training(stage.lines(name), now())]
            victim = self._dice.choice(able) if able else ""
            self._busy |= {victim} - {""}
        return fault, victim

    def _strike(self, fault: str, name: str, luck: float) -> None:
        try:
            hit = FAULTS[fault](Victim(self.stage(), name, random.Random(luck)))
            hit.mend()
            self._note(self.hits, f"{name}: {hit.what}: {hit.proof}")
        except _PASSING as error:
            self._note(self.voids, f"{name}: {fault} did not hit: {str(error).splitlines()[0][:200]}")
        finally:
            with self._lock:
                self._busy.discard(name)

    def _note(self, where: list[str], text: str) -> None:
        with self._lock:
            where.append(text)
            print(f"  {text}", flush=True)


def _verdict(stage: Stage, plan: Plan) -> list[str]:
    """What is wrong with the jobs, in a sentence each."""
    wrong = []
    reference = stage.reference(REFERENCE_STEPS)
    for name in plan.names:
        try:
            stage.until_succeeded(name, timeout_s=1.0)
        except KubeError as error:
            wrong.append(str(error).splitlines()[0][:300])
            continue
        compared, difference = compare(stage.lines(name), reference, plan.steps)
        if compared is not Losses.BITWISE:
            wrong.append(f"{name}: {difference or compared.value}")
    return wrong


def soak(plan: Plan) -> int:
    cluster, circumstances = bring_up()
    play = Soak(cluster, circumstances.version, plan)
    stage = play.stage()
    for name in plan.names:
        stage.start(name, plan.recipe)
    operator = Growth()
    seconds = play.play(stage, operator)
    wrong = _verdict(stage, plan)
    wrong += leftover.in_storage(stage, plan.names)
    leftover.delete_jobs(stage, plan.names)
    wrong += leftover.in_cluster(stage)
    wrong += operator.verdict()
    print(
        f"{plan.jobs} jobs, {len(play.hits)} faults hit and {len(play.voids)} did not, in {seconds:.0f} s; {operator}"
    )
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    if not wrong:
        print("every job succeeded with the losses of a run without faults, and nothing is left of them")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.chaos.soak", description="Many gangs and many faults.")
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=760, help="of each job, half a second each")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two faults")
    parser.add_argument("--minutes", type=float, default=45.0, help="after which jobs that have not ended are wrong")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.steps > REFERENCE_STEPS:
        parser.error(f"--steps: the run without faults has {REFERENCE_STEPS}")
    os.environ.setdefault("MUSTER_CLUSTER", "native")
    try:
        return soak(Plan(chosen.jobs, chosen.steps, chosen.every, 60 * chosen.minutes, chosen.seed))
    except (ClusterError, KubeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
