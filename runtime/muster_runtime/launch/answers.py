"""What this launcher answers to who asks: its status, for the operator, and its metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from muster_protocol.goodput import Spent
from muster_protocol.idleness import Idleness
from muster_protocol.launcher_status import Kept, MemoryTier, Phase, ProfilePhase, Status, Straggler
from muster_runtime.launch.config import Config
from muster_runtime.launch.copies import Copies
from muster_runtime.launch.gathered import Sample, of_gpus, of_ranks
from muster_runtime.launch.hangs import Hangs
from muster_runtime.launch.metrics import Metrics
from muster_runtime.launch.profiles import Profiles
from muster_runtime.launch.progress import Progress
from muster_runtime.launch.ranks import Ranks
from muster_runtime.launch.spending import Spending
from muster_runtime.launch.standing import Standing
from muster_runtime.launch.state import State
from muster_runtime.launch.tracking import Tracking
from muster_runtime.telemetry.gpus import Watch


class Gang(Protocol):
    """What a Leader or Follower knows of the gang."""

    @property
    def joined(self) -> int: ...

    @property
    def lost(self) -> tuple[int, ...]: ...

    @property
    def storage_errors(self) -> dict[int, str]:
        """What other workers found wrong with the checkpoint's storage, by index."""

    @property
    def failing_copy(self) -> str:
        """Why a worker's memory has no copy with another one, or ""."""

    @property
    def stragglers(self) -> tuple[Straggler, ...]: ...

    @property
    def idleness_of_all(self) -> Idleness | None:
        """Of all workers' GPUs; None where that of one isn't known."""


@dataclass(frozen=True)
class Answers:
    """The parts of a launcher that know them."""

    config: Config
    standing: Standing
    state: State
    gang: Gang
    ranks: Ranks
    progress: Progress
    copies: Copies
    hangs: Hangs
    spending: Spending
    profiles: Profiles
    tracking: Tracking
    metrics: Metrics

    def status(self) -> Status:
        last, progress, restart = self.progress.last, self.progress, self.state.restart
        lost, tally = self.gang.lost, self.standing.tally
        return Status(
            phase=self._phase(lost),
            generation=self.config.generation,
            incarnation=self.standing.incarnation,
            index=self.config.index,
            joined=self.gang.joined,
            workers=self.config.workers,
            step=progress.step,
            total_steps=last.total_steps if last else None,
            loss=last.loss if last else None,
            steps_per_second=progress.steps_per_second(),
            tokens_per_second=last.tokens_per_second if last else None,
            checkpoint=progress.checkpoint,
            resumed_from=progress.resumed_from,
            resumed_uri=progress.resumed_uri,
            storage_error=progress.storage_error or next(iter(self.gang.storage_errors.values()), ""),
            fixed_size=progress.fixed_size,
            warnings=tuple(progress.warned),
            restarts=tally.restarts,
            failures=tally.failures,
            memory_failures=tally.memory_failures,
            restarted_after=self.standing.restarted_after,
            restarted_by=restart.first if restart is not None and restart.first.crash else None,
            memory_tier=self._memory_tier(),
            copy=self.copies.holding,
            lost=lost,
            stored=progress.stored,
            saving=progress.saving,
            numerics=progress.numerics,
            spent=self.spent(),
            stragglers=self.gang.stragglers,
            idleness=self.gang.idleness_of_all,
            tracking=self.tracking.told,
            profile=self.profiles.state if self.profiles.state.phase is not ProfilePhase.NONE else None,
        )

    def spent(self) -> Spent | None:
        """Where the time went; index 0 counts it for the gang."""
        return self.spending.spent() if self.config.leads else None

    def metrics_text(self) -> tuple[bytes, str]:
        """(body, content type)"""
        metrics, last, progress = self.metrics, self.progress.last, self.progress
        metrics.processes(len(self.ranks.running), self.standing.incarnation)
        if (spent := self.spent()) is not None:
            metrics.spent(spent)
        metrics.stragglers(self.gang.stragglers)
        metrics.tracking(self.tracking.told)
        metrics.pace(progress.step, last.total_steps if last else None, progress.steps_per_second())
        return metrics.text()

    def _phase(self, lost: tuple[int, ...]) -> Phase:
        phase, stops = self.standing.phase, self.state.stop is not None
        if phase is Phase.RUNNING and stops:
            return Phase.STOPPING
        if phase in (Phase.RUNNING, Phase.STOPPING) and not stops and lost:
            return Phase.JOINING  # soon: its ranks are being ended
        return phase

    def _memory_tier(self) -> MemoryTier | None:
        if not self.config.keeps_memory:
            chosen = self.config.memory == Kept.OFF.value
            return MemoryTier(Kept.OFF, "" if chosen else "no restart of this job would come back to it")
        tier, failing = self.progress.memory_tier, self.gang.failing_copy
        return replace(tier, why=failing) if failing and tier is not None and tier.kept is Kept.PEER else tier


def samples(hangs: Hangs, gpus: Watch | None) -> Iterator[Sample]:
    """What is read anew for each scrape: the ranks' pulses, and this pod's GPUs."""
    yield from of_ranks(hangs.beats())
    if gpus is not None:
        yield from of_gpus(gpus.gpus)
