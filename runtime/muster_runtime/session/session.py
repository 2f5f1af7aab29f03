"""What a training script holds: one object that makes it data-parallel, resumable and visible."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar, overload

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from muster_protocol.exits import EXIT_PREEMPTED
from muster_protocol.losses import LossRecord
from muster_runtime import report as reports
from muster_runtime.checkpoint.keeper import Saved
from muster_runtime.control import ControlReader
from muster_runtime.data.loader import Loader
from muster_runtime.errors import UsageError, caller
from muster_runtime.parallel.gang import Gang
from muster_runtime.parallel.wrap import unwrap, wrap_model
from muster_runtime.session import checks, rng
from muster_runtime.session.boundary import Votes, agree
from muster_runtime.session.persistence import Persistence, Restored, RunState
from muster_runtime.session.progress import Progress
from muster_runtime.session.schedule import AutoInterval, Schedule
from muster_runtime.session.settings import Settings
from muster_runtime.session.tracking import Tracked

M = TypeVar("M", bound=nn.Module)


class Session:
    """Made by `muster.start()`. docs/session.md describes what scripts may use."""

    def __init__(self, settings: Settings, gang: Gang, device: torch.device) -> None:
        self._settings, self._gang, self.device = settings, gang, device
        self.rank, self.local_rank, self.world_size = settings.rank, settings.local_rank, settings.world_size
        self.strategy = settings.strategy
        self.step = 0
        self.resumed_from: int | None = None
        self._seed = settings.seed
        reporter = reports.Reporter()
        self._reporter = reporter
        self._control = ControlReader()
        self._progress = Progress(self.rank, self.world_size, device, reporter)
        self._schedule = Schedule(settings.every_steps, None, time.monotonic())
        if settings.rank == 0:  # one clock decides
            self._schedule.interval_seconds = settings.interval_seconds
            if settings.between_failures is not None:
                self._schedule.auto = AutoInterval(settings.between_failures)
        self._persistence: Persistence | None = None
        self._tracked: list[Tracked] = []
        self._wrapped: list[tuple[weakref.ref[nn.Module], str]] = []
        self._loop = ""  # file:line of the loop that runs now
        self._began = False
        self._by_epochs = False
        self._driver: Loader | None = None
        self._total: int | None = None
        self._step_open = False
        self._optimizer_stepped = False
        self._forwards: dict[tuple[int, int], int] = {}  # by optimizer and model, at the optimizer's last step
        self._random: torch.Tensor | None = None
        self._random_due = False
        self._no_more = False
        self._signalled = False
        self.closed = False

    # ------------------------------------------------------------------ what scripts read

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    @property
    def epoch(self) -> int:
        """The tracked loader's epoch, from 0."""
        loader = self._driver or next((t.thing for t in self._tracked if isinstance(t.thing, Loader)), None)
        return loader.epoch if loader else 0

    @property
    def flops_per_token(self) -> float | None:
        return self._progress.flops_per_token

    @flops_per_token.setter
    def flops_per_token(self, value: float | None) -> None:
        self._progress.flops_per_token = value

    def should_stop(self) -> bool:
        """Whether this rank was asked to stop. Purely local; the gang stops at the next boundary."""
        return self._signalled or self._control.stop_requested()

    def log(self, message: str) -> None:
        self._progress.log(message)

    # ------------------------------------------------------------------ set-up

    @overload
    def wrap(
        self,
        thing: M,
        *,
        precision: str = ...,
        ddp: dict[str, Any] | None = ...,
        fsdp: dict[str, Any] | None = ...,
    ) -> M: ...

    @overload
    def wrap(self, thing: DataLoader[Any]) -> Loader: ...

    def wrap(
        self,
        thing: Any,
        *,
        precision: str = "auto",
        ddp: dict[str, Any] | None = None,
        fsdp: dict[str, Any] | None = None,
    ) -> Any:
        """A model made data-parallel, or a DataLoader split over the ranks, as the job says."""
        where = caller()
        if isinstance(thing, DataLoader):
            return Loader(
                thing, rank=self.rank, parts=self.world_size, seed=self._seed, device=self.device, where=where
            )
        if not isinstance(thing, nn.Module):
            raise UsageError(f"{where}: session.wrap takes a model or a DataLoader, not a {type(thing).__name__}")
        wrapped = wrap_model(
            thing,
            strategy=self.strategy,
            device=self.device,
            world_size=self.world_size,
            ranks_per_worker=self._settings.ranks_per_worker,
            precision=precision,
            ddp=ddp or {},
            fsdp=fsdp or {},
            where=where,
        )
        self._wrapped.append((weakref.ref(unwrap(wrapped)), where))
        return wrapped

    def track(self, **objects: Any) -> None:
        """Names what a checkpoint holds."""
        where = caller()
        if self._began:
            raise UsageError(
                f"{where}: track comes too late, the loop at {self._loop} has begun and restored already; move it above"
            )
        for name, thing in objects.items():
            checks.refuse_untrackable(name, thing, self._tracked, where)
            if isinstance(thing, Loader):
                thing.stepper = self
            self._tracked.append(Tracked(name, thing, where))

    # ------------------------------------------------------------------ the loop

    @overload
    def steps(self, total: int) -> Iterator[int]: ...

    @overload
    def steps(self, total: int, loader: Loader) -> Iterator[tuple[int, Any]]: ...

    def steps(self, total: int, loader: Loader | None = None) -> Iterator[Any]:
        """The numbers of the steps still to do, from 0, with the loader's batches beside them when one is given."""
        where = caller()
        if isinstance(loader, DataLoader):
            raise UsageError(f"{where}: the loader is a plain DataLoader; write loader = session.wrap(loader) above")
        if loader is not None and all(tracked.thing is not loader for tracked in self._tracked):
            raise UsageError(
                f"{where}: the loader isn't tracked, so a resume would begin its data anew; "
                "add it to session.track(...)"
            )
        return self._steps(total, loader, where)

    def _steps(self, total: int, loader: Loader | None, where: str) -> Iterator[Any]:
        self._begin(where, total, loader, by_epochs=False)
        if self._no_more or self.step >= total:
            self._leave_loop()
            return
        batches = loader.endless() if loader else None
        while self.step < total:
            batch = next(batches) if batches else None
            self.before_first_batch()
            self.opens_step()
            yield (self.step, batch) if loader else self.step
            self._close_step(votes=self.step + 1 < total)
        self._end(early=False)

    def epochs(self, total: int) -> Iterator[int]:
        """The numbers of the epochs still to do, from 0. Each batch of the tracked loader is one step."""
        where = caller()
        loaders = [tracked.thing for tracked in self._tracked if isinstance(tracked.thing, Loader)]
        if len(loaders) != 1:
            raise UsageError(
                f"{where}: epochs needs exactly one tracked loader, whose batches are the steps, not {len(loaders)}. "
                "Write session.track(..., loader=loader) above, or use session.steps"
            )
        return self._epochs(total, loaders[0], where)

    def _epochs(self, total: int, loader: Loader, where: str) -> Iterator[int]:
        self._begin(where, total * len(loader), loader, by_epochs=True)
        if loader.position >= len(loader):
            loader.next_epoch()  # the checkpoint is of a loop over steps
        if self._no_more or loader.epoch >= total:
            self._leave_loop()
            return
        while loader.epoch < total:
            if loader.position == 0:
                self.before_first_batch()  # the whole body runs, and what it draws before its first batch counts
            yield loader.epoch
            self._close_step(votes=False)  # of an inner loop that was left by `break`
            loader.next_epoch()
            if loader.epoch < total:
                self._between_epochs()
        self._end(early=False)

    def finish(self) -> None:
        """Saves and marks the run finished before its total. For after a `break`; does nothing after a whole loop."""
        where = caller()
        if not self._began:
            raise UsageError(f"{where}: session.finish() belongs after the loop, and none has begun yet")
        if not self._loop:
            return  # the loop reached its total, or had nothing left to do
        self._close_step(votes=False)
        self._end(early=True)

    def report(self, *, loss: torch.Tensor | float | None = None, tokens: int | None = None, **metrics: float) -> None:
        """What this step did on this rank. Rank 0's last word of each metric is kept with the checkpoint."""
        self._progress.note(self.step + 1, loss, tokens, metrics)

    # ------------------------------------------------------------------ between the steps

    def loader_steps(self) -> bool:
        return self._by_epochs and bool(self._loop)

    def before_first_batch(self) -> None:
        """Random states count from here: what the script drew since the restore is forgotten."""
        if not self._random_due:
            return
        self._random_due = False
        if self._random is not None:
            rng.restore(self._random, self.device)
        else:
            rng.derive(self._seed, self.step, self.rank)
        self._random = None

    def opens_step(self) -> None:
        self._step_open, self._optimizer_stepped = True, False

    def closes_step(self) -> None:
        # After an epoch's last batch its body has more to do, which a resume could not: votes wait for its end.
        at_end = self._by_epochs and self._driver is not None and self._driver.position + 1 >= len(self._driver)
        self._close_step(votes=not at_end)

    def _close_step(self, *, votes: bool) -> None:
        """The boundary: counts the step, agrees with the other ranks, saves and stops when that is due.

        `votes` is False where a save or a stop has to wait, the same on every rank.
        """
        if not self._step_open:
            return
        self._step_open = False
        self.step += 1
        if self._driver is not None:
            self._driver.position += 1
        due = self._is_due()  # also where the save waits, or its turn would pass unseen
        save, stop = votes and due, votes and self._stops_here()
        if self._agree(save=save, stop=stop, ends=False, soon=not votes):
            self._save()

    def _between_epochs(self) -> None:
        """The boundary after an epoch's whole body. No step is counted here."""
        save, stop = self._is_due(), self._stops_here()
        if self._agree(save=save, stop=stop, ends=False, soon=False, counts=False):
            self._save()

    def _is_due(self) -> bool:
        due = self._schedule.is_due(self.step, time.monotonic())
        return due and self._persistence is not None and self._between_updates()

    def _stops_here(self) -> bool:
        return self.should_stop() and self._between_updates()

    def _agree(self, *, save: bool, stop: bool, ends: bool, soon: bool, counts: bool = True) -> bool:
        """Whether to save now. Leaves the process when the gang stops. `counts`: one more step is done."""
        progress = self._progress
        read = progress.reads_now(self.step, soon)
        losses, tokens = progress.take_losses(self.step, read)
        writing, failed = self._persistence.word() if self._persistence else (False, False)
        votes = Votes(self.step, save, stop, ends, tokens, losses, writing, failed)
        agreed = agree(votes, self._gang, self._loop)
        progress.absorb(self.step, agreed, read)
        if self._persistence is not None:
            self._persistence.heard(writing=agreed.writing, failed=agreed.write_failed)
        if (agreed.save or agreed.stop) and not read:
            losses, _ = progress.take_losses(self.step, True)
            again = agree(Votes(self.step, False, False, ends, 0.0, losses), self._gang, self._loop)
            progress.absorb(self.step, again, True)
        if not ends:
            if counts:
                progress.count(agreed.tokens)
            progress.tell(self.step, last=agreed.stop)
        if agreed.stop:
            self._stop()
        return agreed.save

    def _between_updates(self) -> bool:
        """False in the middle of gradient accumulation: gradients are in no checkpoint, so a save waits."""
        optimizers = [tracked.thing for tracked in self._tracked if isinstance(tracked.thing, Optimizer)]
        if self._optimizer_stepped or not optimizers:
            return True
        return not any(p.grad is not None for o in optimizers for group in o.param_groups for p in group["params"])

    def optimizer_steps(self, optimizer: Optimizer) -> None:
        """Called before any optimizer's step."""
        tracked = any(tracked.thing is optimizer for tracked in self._tracked)
        if not self._step_open:
            self._optimizer_stepped |= tracked  # of the gradients that were left at an epoch's end
            return
        if not tracked:
            raise UsageError(
                f"{caller()}: this {type(optimizer).__name__} isn't tracked, so a resume would lose its state; "
                "add it to session.track(...)"
            )
        checks.refuse_bypassed(optimizer, self._tracked, self._forwards)
        self._optimizer_stepped = True

    def _stop(self) -> None:
        if self._persistence is not None:
            self._save_now(finished=False, early=False)
            self.log(f"stopped after step {self.step}, as asked; the checkpoint is committed")
        else:
            self.log(f"stopped after step {self.step}, as asked; there is no checkpoint uri, so nothing was saved")
        self._close()
        sys.exit(EXIT_PREEMPTED)

    def _end(self, *, early: bool) -> None:
        self._agree(save=False, stop=False, ends=True, soon=True)
        self._progress.tell(self.step, last=True)
        self._save_now(finished=True, early=early)
        self._leave_loop()

    def _leave_loop(self) -> None:
        self._loop = ""
        self.closed = True

    # ------------------------------------------------------------------ saving and restoring

    def _begin(self, where: str, total: int, driver: Loader | None, *, by_epochs: bool) -> None:
        self._loop, self._driver, self._by_epochs = where, driver, by_epochs
        self._total = self._progress.total_steps = total
        self.closed = False
        checks.refuse_untracked(self._tracked, self._wrapped, where)
        checks.refuse_undriven(self._tracked, driver, total, where)
        if not self._began:
            self._began = True
            self._count_flops()
            self._random_due = True
            self._restore()
        self._progress.begin(self.step)
        self._schedule.last_save = time.monotonic()

    def _count_flops(self) -> None:
        if self._progress.flops_per_token is None:
            models = [t.thing for t in self._tracked if isinstance(t.thing, nn.Module)]
            # Forward 2, backward 4 FLOPs a parameter and token (Kaplan et al. 2020); the largest model counts
            self._progress.flops_per_token = max(
                (6.0 * sum(p.numel() for p in model.parameters()) for model in models), default=None
            )

    def _restore(self) -> None:
        if not self._settings.checkpoint:
            return
        self._persistence = Persistence(
            self._settings,
            self._gang,
            self.device,
            warn=self._progress.warn,
            landed=self._saved,
            troubled=self._not_saved,
        )
        began = time.monotonic()
        restored, source = self._persistence.restore(self._tracked), self._persistence.uri
        if restored is None and self._settings.start_from:
            restored, source = self._persistence.start_from(self._tracked), self._settings.start_from
            self.log(f"started from {source} ({self._settings.start_load})")
        if restored is not None:
            self._take_over(restored)
            source = restored.source or source
            self.log(f"resumed after step {self.step} from {source} in {time.monotonic() - began:.2f} s")
            self._reporter.send(reports.Resumed(self.rank, self.step, source))

    def _take_over(self, restored: Restored) -> None:
        run = restored.run
        self.step = self.resumed_from = run.step
        self._seed, self._random = run.seed, restored.random
        self._no_more = restored.finished and run.ended_early
        self._progress.recall(restored.losses)
        if self._random is None:
            self.log(
                f"the checkpoint was written by {run.world_size} ranks, this gang has {self.world_size}: random states "
                "are derived anew from (seed, step, rank)"
            )
        elif run.threads != torch.get_num_threads():
            self._progress.warn(
                f"this rank has {torch.get_num_threads()} threads, the checkpoint was written with {run.threads}: "
                "results may differ in their last bits. Set OMP_NUM_THREADS to fix the number"
            )

    def _save(self) -> None:
        """Begins a save; training goes on while it is written."""
        if self._persistence is not None:
            began = time.monotonic()
            self._persistence.save(self._tracked, self._run_state(), self._losses(), self._progress.metrics())
            self._progress.paused(time.monotonic() - began)
            self._schedule.saved(time.monotonic())

    def _save_now(self, *, finished: bool, early: bool) -> None:
        """Saves, and waits until that is committed."""
        if self._persistence is not None:
            self._persistence.save_now(
                self._tracked,
                self._run_state(ended_early=early),
                self._losses(),
                self._progress.metrics(),
                finished=finished,
            )
            if finished:
                self.log("the run is finished")

    def _run_state(self, *, ended_early: bool = False) -> RunState:
        return RunState(
            step=self.step,
            seed=self._seed,
            world_size=self.world_size,
            threads=torch.get_num_threads(),
            strategy=self.strategy,
            total=self._total,
            ended_early=ended_early,
        )

    def _losses(self) -> LossRecord:
        assert self._persistence is not None
        return self._persistence.loss_record(self._progress.record(0, 0))

    def _saved(self, saved: Saved) -> None:
        assert self._persistence is not None
        self._progress.saved(saved.step)
        following = ""
        if (auto := self._schedule.auto) is not None:
            auto.measured(saved.stall, saved.seconds)
            following = f"; the next is due {auto.seconds:,.0f} s after this one began (interval auto)"
        self.log(
            f"checkpoint of step {saved.step} committed: {saved.total_bytes / 1e6:.2f} MB in {saved.seconds:.2f} s, "
            f"training stood still for {saved.stall:.2f} s{following}"
        )
        self._reporter.send(
            reports.CheckpointCommitted(
                self.rank, saved.step, self._persistence.uri, saved.seconds, saved.own_bytes, time.time()
            )
        )

    def _not_saved(self, trouble: str) -> None:
        self._reporter.send(reports.StorageFailed(self.rank, trouble))

    def last_word(self) -> None:
        """The process ends within the loop: its launcher learns the exact step, by which it knows a failure again."""
        if self._loop:
            self._progress.tell(self.step, last=True)

    def signal_stop(self) -> None:
        """A signal asked this process to stop."""
        self._signalled = True

    def _close(self) -> None:
        self.closed = True
        if self._persistence is not None:
            self._persistence.close()
            self._persistence = None
