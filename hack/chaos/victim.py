"""What a fault is given, what it gives back, and the looks that prove a fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hack.chaos.stage import Stage
from hack.cluster.processes import start_ticks
from hack.demo import strike
from hack.demo.kube import Json, KubeError

PROOF_S = 20.0
"""A fault shows within this time, or the run is void."""


class VoidRun(Exception):
    """The fault did not hit, or hit something that did not train. One sentence."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Hit:
    """A fault that was done.

    Attributes:
        at: when, in seconds of the journals' clock.
        what: what was done to whom.
        proof: what was seen of it.
        again: from when on the run could train again, where the fault itself keeps it from that; None: at once.
        healed: when the fault was over, of one that lasts; None: at once.
        idle: seconds in which the job held no GPU.
        mend: puts right what outlives the run.
    """

    at: float
    what: str
    proof: str
    again: float | None = None
    healed: float | None = None
    idle: float = 0.0
    mend: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Victim:
    """A job that trains, and the dice by which a fault chooses."""

    stage: Stage
    name: str
    dice: random.Random

    def pod(self, index: int | None = None) -> Json:
        """The living pod of that index, or any."""
        pods = self.stage.living(self.name)
        found = [pod for pod in pods if index is None or pod["metadata"]["labels"]["muster.dev/index"] == str(index)]
        if not found:
            raise VoidRun(f"no pod of {self.name} lives that could be hit")
        return self.dice.choice(found)

    def until(self, what: str, look: Callable[[], object], timeout_s: float = PROOF_S) -> None:
        """Waits for the sign of a fault. Raises VoidRun when it doesn't come."""
        try:
            self.stage.kube.wait(what, lambda: bool(look()), timeout_s)
        except KubeError as error:
            raise VoidRun(f"no sign of the fault: {error}") from error

    def until_ended(self, pid: int, timeout_s: float = PROOF_S) -> None:
        born = start_ticks(pid)
        self.until(f"the end of process {pid}", lambda: start_ticks(pid) != born or born is None, timeout_s)


def name_of(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def uid_of(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


def node_of(pod: Json) -> str:
    return str(pod["spec"]["nodeName"])


def rank_of(pod: Json) -> int:
    """Pid of the pod's rank. Raises VoidRun when none runs."""
    found = strike.ranks(pod)
    if not found:
        raise VoidRun(f"no rank runs in {name_of(pod)}")
    return found[0]


def inside(pid: int, path: str) -> Path:
    """A path as a process in a container sees it, from here."""
    return Path(f"/proc/{pid}/root{path}")
