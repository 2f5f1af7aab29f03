"""What of a job its history looks at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from muster.api.effective import EffectiveSpec
from muster.api.trainingjob import TrainingJob
from muster.cluster.views import PodView
from muster.controllers.stored import Left
from muster_protocol.launcher_status import Status as LauncherStatus

Worker = tuple[int, int]
"""Index and number of its pod."""
PodOf = tuple[int, int, int]
"""Generation, index and number of a pod."""
Flavour = tuple[str, str]
"""GPU type and kind of capacity."""


@dataclass(frozen=True, slots=True)
class End:
    """When a pod's containers ended by its node's clock, and when that was first heard by ours. A clock that is fast
    stays wrong: what it said is judged by when it said it, not by when a job is looked at again."""

    at: datetime
    heard: datetime


@dataclass(frozen=True)
class Sight:
    """One look at a job.

    Attributes:
        finished: when the containers of pods ended that were seen to; some of these pods may be gone.
        flavour: of a node by its name; empty words for one that is gone.
        launcher: the last answer of the present placement's leader, or None.
        deleted: the job's object is gone.
        left: the last word of index 0's pods that have ended on what checkpoints take.
    """

    job: TrainingJob
    spec: EffectiveSpec
    now: datetime
    pods: tuple[PodView, ...] = ()
    finished: Mapping[PodOf, End] = field(default_factory=dict)
    flavour: Callable[[str], Flavour] = lambda node: ("", "")
    launcher: LauncherStatus | None = None
    deleted: bool = False
    left: Left | None = None
