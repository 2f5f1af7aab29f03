"""A run's checkpoints: when one is due, what is told of each, and what a restore brings back."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import torch

from muster_protocol.launcher_status import MemoryTier
from muster_protocol.losses import LossRecord
from muster_runtime import report as reports
from muster_runtime.checkpoint.keeper import Saved
from muster_runtime.checkpoint.saver import Word
from muster_runtime.control import ControlReader
from muster_runtime.parallel.gang import Gang
from muster_runtime.reporter import Reporter
from muster_runtime.session import rng
from muster_runtime.session.attempts import Restored, RunState
from muster_runtime.session.persistence import Persistence
from muster_runtime.session.progress import Progress
from muster_runtime.session.schedule import AutoInterval, Schedule
from muster_runtime.session.settings import Settings
from muster_runtime.session.tracking import Tracked

SLOW: Final = 60.0
"""Seconds after which a restore, or a last save, that goes on is told. Requests that nobody answers are given up
minutes later."""


class Saves:
    """Everything here is collective unless it says otherwise. Without a uri nothing is saved."""

    def __init__(
        self,
        settings: Settings,
        gang: Gang,
        device: torch.device,
        progress: Progress,
        reporter: Reporter,
        control: ControlReader,
    ) -> None:
        self._settings, self._gang, self._device = settings, gang, device
        self._progress, self._reporter, self._control = progress, reporter, control
        self._schedule = Schedule(settings.every_steps, None, time.monotonic())
        if gang.leads:  # one clock decides
            self._schedule.interval_seconds = settings.interval_seconds
            if settings.node_hours is not None:
                self._schedule.auto = AutoInterval(control.node_hours() or settings.node_hours, settings.workers)
        self._opened = self._open() if settings.checkpoint else None
        self.persistence: Persistence | None = None
        """None before the loop begins, and for a run without a uri."""
        self._random: torch.Tensor | None = None
        self._random_due = False
        self._asked_for = 0  # saves that people asked for, and that were due
        self.has_own = False
        """Whether there was a checkpoint of this run itself when the loop began."""

    def _open(self) -> Persistence:
        """As soon as the session begins, so that the storage process comes up while the script builds its model."""
        return Persistence(
            self._settings,
            self._gang,
            self._device,
            warn=self._progress.warn,
            landed=self._landed,
            troubled=self._troubled,
            settled=self._settled,
            counted=self._counted,
            again=self._again,
        )

    @property
    def wanted(self) -> bool:
        """Whether there is a uri to save to."""
        return bool(self._settings.checkpoint)

    # ------------------------------------------------------------------ restoring

    def restore(self, tracked: list[Tracked]) -> Restored | None:
        """Claims the run and restores its newest checkpoint, or that of the run which it starts from."""
        self._random_due = True
        self.persistence = persistence = self._opened
        if persistence is None:
            return None
        began = time.monotonic()
        with self._told_when_slow(f"{persistence.uri} is not restored", "read"):
            restored, source = persistence.restore(tracked), persistence.uri
        self.has_own = restored is not None
        if restored is None and self._settings.start_from:
            source = self._settings.start_from
            with self._told_when_slow(f"{source} is not restored", "read"):
                restored = persistence.start_from(tracked)
            self._progress.log(f"started from {source} ({self._settings.start_load})")
        if restored is not None:
            self._take_over(restored)
            step, source = restored.run.step, restored.source or source
            self._progress.log(f"resumed after step {step} from {source} in {time.monotonic() - began:.2f} s")
            self._reporter.send(reports.Resumed(self._gang.rank, step, source))
        return restored

    @contextmanager
    def _told_when_slow(self, what: str, to: str) -> Iterator[None]:
        """Without a word a store that is silent looks like a script that is slow, or hangs. Not collective."""
        told = (
            f"{what} after {SLOW:g} s, and is waited for: the store answers slowly or not at all, or there is much to "
            f"{to}"
        )
        slow = threading.Timer(SLOW, self._progress.warn, (told,))
        slow.daemon = True
        if self._gang.leads:
            with suppress(RuntimeError):  # the container may have no more threads: then nothing is told
                slow.start()
        try:
            yield
        finally:
            slow.cancel()

    def go_back(self, tracked: list[Tracked]) -> Restored | None:
        """Restores the newest checkpoint again, within the loop; None where there is none."""
        began, persistence = time.monotonic(), self.persistence
        if persistence is None:
            return None
        with self._told_when_slow(f"{persistence.uri} is not restored", "read"):
            restored = persistence.go_back(tracked)
        if restored is None:
            return None
        self._random_due = True
        self._progress.go_back(restored.run.step)
        self._take_over(restored)
        step, source = restored.run.step, restored.source or persistence.uri
        self._progress.log(f"back at step {step}, from {source}, in {time.monotonic() - began:.2f} s")
        self._schedule.saved(time.monotonic())
        return restored

    def tell_done(self, found: Restored, total: int | None) -> str:
        """The loop of `total` steps has none left to do: what was restored is of its end, or beyond. What is to be
        logged where no other loop of the script has anything to do either, or ""."""
        assert self.persistence is not None
        uri = self.persistence.uri if self.has_own else self._settings.start_from
        step, by = found.run.step, f", saved by job {found.job}" if found.job else ""
        if found.finished:
            what = f"the run at {uri} had finished already, at step {step}{by}"
        elif total is not None and step < total:
            what = f"the run at {uri} is at step {step}{by}, beyond this loop, which the script had ended early"
        else:
            what = f"the run at {uri} is at step {step} already{by}, and this loop ends at step {total}"
        nothing = ": nothing is left to train" if found.finished else ""
        more = "" if found.run.ended_early else "; to train on, let the script ask for more steps"
        told = (
            f"{what}{nothing}. For a fresh run take another checkpoint.uri; with checkpoint.from: {uri} and load: "
            f"model it begins with this run's weights{more}"
        )
        self._progress.log(what)
        self._reporter.send(reports.NothingLeft(self._gang.rank, step, told))
        return told if found.finished else ""

    def settle(self) -> None:
        """Waits for the save in flight."""
        if self.persistence is not None:
            self.persistence.settle()

    def _take_over(self, restored: Restored) -> None:
        run, self._random = restored.run, restored.random
        if restored.older and self._gang.rank == 0:
            self._reporter.send(reports.FellBack(0, run.step))
        self._progress.recall(restored.losses)
        if restored.untracked:
            names = ", ".join(map(repr, sorted(restored.untracked)))
            self._progress.warn(
                f"the checkpoint has {names}, which the script does not track: left out, and in no checkpoint from now "
                "on. Track what the run tracked before, unless this is meant"
            )
        if restored.gathered:
            first, more = restored.gathered[0], len(restored.gathered) - 1
            self._progress.warn(
                f"the checkpoint has {first}{f' and {more} more' if more else ''} in shards, and the script has no "
                "sharded tensor there yet: each rank is given the whole of it, as a plain tensor on the CPU. Make it "
                "above the loop (a clone of its parameter), for then it comes back sharded as that is"
            )
        if self._random is None:
            self._progress.log(
                f"the checkpoint was written by {run.world_size} rank{'s' * (run.world_size != 1)}, this gang has "
                f"{self._gang.world_size}: random states are derived anew from (seed, step, rank)"
            )
        elif run.threads != torch.get_num_threads():
            self._progress.warn(
                f"this rank has {torch.get_num_threads()} threads, the checkpoint was written with {run.threads}: "
                "results may differ in their last bits. Set OMP_NUM_THREADS to fix the number"
            )

    def resume_random(self, seed: int, step: int) -> None:
        """Before the first batch: what the script drew since the restore is forgotten. Local."""
        if not self._random_due:
            return
        self._random_due = False
        if self._random is not None:
            rng.restore(self._random, self._device)
        else:
            rng.derive(seed, step, self._gang.rank)
        self._random = None

    def epoch_begins(self, seed: int, step: int, *, resumed: bool) -> None:
        """Before an epoch's body. What it draws before its first batch is what it drew there before the cut, where that
        is known; random states then go on as `resume_random` has it. Local."""
        persistence = self.persistence
        if not resumed:
            self.resume_random(seed, step)
            if persistence is not None:
                persistence.random_at_epoch = rng.states(self._device)
        elif persistence is not None:
            persistence.random_at_epoch = rng.at_epoch(self._random) if self._random is not None else None
            if persistence.random_at_epoch is not None:
                rng.put_back(persistence.random_at_epoch, self._device)

    # ------------------------------------------------------------------ saving

    def count_from_now(self) -> None:
        """The time until the next save begins to run."""
        self._schedule.last_save = time.monotonic()
        self._tell()

    def is_due(self, step: int) -> bool:
        """Whether this rank votes to save. Local, as is the next."""
        if (auto := self._schedule.auto) is not None:
            self._heed_failures(auto)
        self._heed_people()
        return self._schedule.is_due(step, time.monotonic()) and self.persistence is not None

    def _heed_people(self) -> None:
        """Somebody wants a save now. It waits for the one in flight, which may be of a step before the wish."""
        if self._gang.leads and not self.in_flight and (number := self._control.saves_asked()) != self._asked_for:
            self._asked_for = number
            self._schedule.wanted()

    def _heed_failures(self, auto: AutoInterval) -> None:
        """The operator learns while the gang trains how often nodes fail."""
        hours, before = self._control.node_hours() or auto.node_hours, auto.seconds
        if hours == auto.node_hours:
            return
        known, auto.node_hours = auto.node_hours, hours
        if (now := f"{auto.seconds:,.0f}") != f"{before:,.0f}":
            self._progress.log(
                f"checkpoints are due every {now} s now, not every {before:,.0f} s (interval auto): nodes of this "
                f"cluster run {hours:,.4g} hours between two failures, not {known:,.4g}"
            )
        self._tell()

    def word(self) -> Word:
        """For the vote at a boundary."""
        return self.persistence.word() if self.persistence is not None else Word(False, False, False)

    @property
    def in_flight(self) -> bool:
        """Whether a save has begun that isn't committed yet."""
        return self.persistence is not None and self.persistence.in_flight

    def heard(self, *, writing: bool, failed: bool, unsealed: bool) -> None:
        """The gang's word about the save in flight."""
        if self.persistence is not None:
            self.persistence.heard(writing=writing, failed=failed, unsealed=unsealed)

    def before_update(self) -> None:
        """An optimizer is about to change what it has. Local, as is the next."""
        if self.persistence is not None:
            self.persistence.saver.before_update()

    def step_over(self, *, seen: bool) -> None:
        """A step is over; `seen`: `before_update` was called for each optimizer's update in it."""
        if self.persistence is not None:
            self.persistence.saver.step_over(seen=seen)

    def save(self, tracked: list[Tracked], run: RunState, *, updates_seen: bool) -> None:
        """Begins a save; training goes on while it is written. `updates_seen`: see `Persistence.save`."""
        if self.persistence is not None:
            began = time.monotonic()
            losses, metrics = self._losses(self.persistence), self._progress.metrics()
            self._schedule.again_at = math.inf  # this is it
            self.persistence.save(tracked, run, losses, metrics, updates_seen=updates_seen)
            self._progress.paused(time.monotonic() - began)
            self._schedule.saved(time.monotonic())
            self._tell()

    def save_now(
        self,
        tracked: list[Tracked],
        run: RunState,
        *,
        finished: bool,
        deadline: Callable[[], float | None],
        lives: Callable[[], None],
    ) -> bool:
        """Saves, and waits until that is committed (`Persistence.save_now`). False for a run without checkpoints."""
        if self.persistence is None:
            return False
        losses = self._losses(self.persistence)
        metrics = self._progress.metrics()
        with self._told_when_slow(f"the checkpoint of step {run.step} is not saved", "write"):
            self.persistence.save_now(tracked, run, losses, metrics, finished=finished, deadline=deadline, lives=lives)
        return True

    def _losses(self, persistence: Persistence) -> LossRecord:
        return persistence.loss_record(self._progress.record(0, 0))

    def _landed(self, saved: Saved) -> None:
        assert self.persistence is not None
        self._progress.saved(saved.step)
        following = ""
        if (auto := self._schedule.auto) is not None:
            auto.measured(saved.stall, saved.seconds)
            following = f"; the next is due {auto.seconds:,.0f} s after this one began (interval auto)"
            self._tell()
        self._progress.log(
            f"checkpoint of step {saved.step} committed: {saved.total_bytes / 1e6:.2f} MB in {saved.seconds:.2f} s, "
            f"training stood still for {saved.stall:.2f} s{following}"
        )
        self._reporter.send(
            reports.CheckpointCommitted(
                self._gang.rank,
                saved.step,
                self.persistence.uri,
                saved.seconds,
                saved.own_bytes,
                time.time(),
                saved.stall,
                saved.total_bytes,
            )
        )

    def _tell(self) -> None:
        if self.persistence is not None and self._gang.leads:
            auto = self._schedule.auto
            seconds = auto.seconds if auto is not None else None
            self._reporter.send(reports.Saving(self._gang.rank, self.persistence.skipped, seconds))

    def _again(self, pause: float) -> None:
        if self._gang.leads:  # one clock decides
            self._schedule.again(time.monotonic() + pause)

    def _troubled(self, trouble: str) -> None:
        self._reporter.send(reports.StorageFailed(self._gang.rank, trouble))

    def _settled(self, tier: MemoryTier) -> None:
        self._reporter.send(reports.KeptInMemory(self._gang.rank, tier.kept.value, tier.why))

    def _counted(self, stored: int) -> None:
        self._reporter.send(reports.Stored(self._gang.rank, stored))

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = self.persistence = None
