"""What a training script holds: one object that makes it data-parallel, resumable and visible."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from muster_protocol.counts import counted
from muster_runtime.data.elastic import ElasticLoader
from muster_runtime.data.foreign import endless, is_foreign
from muster_runtime.data.loader import Loader
from muster_runtime.errors import UsageError, caller
from muster_runtime.parallel.gang import Gang
from muster_runtime.parallel.wrap import unwrap, wrap_model
from muster_runtime.pulse import Pulse, Section
from muster_runtime.session import checks, described
from muster_runtime.session.run import Run
from muster_runtime.session.settings import Settings
from muster_runtime.session.tracking import Tracked

M = TypeVar("M", bound=nn.Module)


class Session:
    """Made by `muster.start()`. docs/session.md describes what scripts may use."""

    def __init__(self, settings: Settings, gang: Gang, device: torch.device, pulse: Pulse) -> None:
        self._settings, self._gang, self.device = settings, gang, device
        self.rank, self.local_rank, self.world_size = settings.rank, settings.local_rank, settings.world_size
        self.strategy = settings.strategy
        self.run = Run(settings, gang, device, pulse)

    # ------------------------------------------------------------------ what scripts read

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    @property
    def step(self) -> int:
        """Steps done since the run began, over all restarts."""
        return self.run.step

    @property
    def resumed_from(self) -> int | None:
        """The step that this process restored, None for a fresh start."""
        return self.run.resumed_from

    @property
    def epoch(self) -> int:
        """The tracked loader's epoch, from 0."""
        tracked = self.run.tracked
        loader = self.run.driver or next((t.thing for t in tracked if isinstance(t.thing, Loader)), None)
        return loader.epoch if loader else 0

    @property
    def samples(self) -> int:
        """Samples in the microbatch at hand that count: 0 where it stands in for a share of none."""
        return self.run.gradients.samples

    @property
    def flops_per_token(self) -> float | None:
        return self.run.progress.flops_per_token

    @flops_per_token.setter
    def flops_per_token(self, value: float | None) -> None:
        self.run.progress.flops_per_token = value

    @property
    def peak_flops(self) -> float | None:
        """FLOP/s that one GPU does at most, for MFU; None until it is said, or for a GPU that isn't known."""
        return self.run.progress.peak()

    @peak_flops.setter
    def peak_flops(self, value: float | None) -> None:
        self.run.progress.peak_flops = value

    def should_stop(self, *, together: bool = False) -> bool:
        """Whether this rank was asked to stop; the gang stops at the next boundary. Purely local, and ranks learn of it
        at different moments.

        `together`: whether any rank was, the same on all of them. Collective, so that all leave at the same batch.
        """
        stopping = self.run.stopping
        asked = stopping.is_asked()
        if together:
            asked = self._gang.sum([float(asked)])[0] > 0
        stopping.is_minded = True
        stopping.was_told |= asked
        return asked

    def evaluate(self) -> AbstractContextManager[None]:
        """Around an evaluation that is slower than a step: it has a time of its own before it counts as hung. Local."""
        return self.run.pulse.during(Section.EVALUATION)

    def log(self, message: str) -> None:
        """One line on rank 0's stderr."""
        self.run.progress.log(message)

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
        if is_foreign(thing):
            raise UsageError(
                f"{where}: this {type(thing).__name__} keeps its own place, so don't wrap it: give it each rank's part "
                "of the data, track it and write session.steps(TOTAL, loader); or use session.loader"
            )
        if isinstance(thing, DataLoader):
            split = Loader(
                thing, rank=self.rank, parts=self.world_size, seed=self.run.seed, device=self.device, where=where
            )
            split.untracked, split.waiting = self.run.pulse.evaluates, self.run.pulse.waits_for_data
            return split
        if not isinstance(thing, nn.Module):
            raise UsageError(f"{where}: session.wrap takes a model or a DataLoader, not this {type(thing).__name__}")
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
        self.run.wrapped.append((weakref.ref(unwrap(wrapped)), where))
        if precision == "bf16" and self.strategy in ("none", "ddp"):
            self.log(
                f"{where}: precision='bf16' is for fsdp and hsdp, and this model keeps fp32 under {self.strategy}; "
                "torch.autocast around the forward pass computes in bf16 under every strategy"
            )
        return wrapped

    def loader(
        self,
        dataset: Dataset[Any],
        *,
        global_batch: int,
        microbatch: int | None = None,
        shuffle: bool = False,
        sampler: Sampler[Any] | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> ElasticLoader:
        """Batches of `global_batch` samples over all ranks, for any number of them.

        Each rank goes through its part in microbatches of at most `microbatch` samples. `options` are DataLoader's:
        num_workers, collate_fn, pin_memory, ...
        """
        where = caller()
        if refused := {"batch_size", "batch_sampler", "generator"} & options.keys():
            raise UsageError(f"{where}: session.loader takes no {', '.join(sorted(refused))}; see docs/session.md")
        global_batch = checks.size("global_batch", global_batch, where)
        if microbatch is not None:
            microbatch = checks.size("microbatch", microbatch, where)
        source: DataLoader[Any] = DataLoader(
            dataset, global_batch, shuffle=shuffle, sampler=sampler, drop_last=drop_last, **options
        )
        loader = ElasticLoader(
            source,
            microbatch=microbatch,
            listener=self.run.gradients,
            rank=self.rank,
            parts=self.world_size,
            seed=self.run.seed,
            device=self.device,
            where=where,
        )
        loader.untracked, loader.waiting = self.run.pulse.evaluates, self.run.pulse.waits_for_data
        if loader.last_batch:
            self.log(
                f"the last of each epoch's {len(loader)} batches has {counted(loader.last_batch, 'sample')}, the "
                f"others have {global_batch} ({where}); drop_last=True leaves it out"
            )
        return loader

    def track(self, **objects: Any) -> None:
        """Names what a checkpoint holds."""
        where = caller()
        if self.run.began:
            raise UsageError(
                f"{where}: track comes too late, the loop at {self.run.loop} has begun and restored already; "
                "move it above"
            )
        for name, thing in objects.items():
            checks.refuse_untrackable(name, thing, self.run.tracked, where)
            if isinstance(thing, Loader):
                thing.stepper = self.run
            self.run.tracked.append(Tracked(name, thing, where))

    # ------------------------------------------------------------------ the loop

    @overload
    def steps(self, total: int) -> Iterator[int]: ...

    @overload
    def steps(self, total: int, loader: Loader | Iterable[Any]) -> Iterator[tuple[int, Any]]: ...

    def steps(self, total: int, loader: Any = None) -> Iterator[Any]:
        """The numbers of the steps still to do, from 0, with the loader's batches beside them when one is given."""
        where = caller()
        total = checks.counted("steps", total, where)
        if isinstance(loader, DataLoader) and not is_foreign(loader):
            raise UsageError(f"{where}: the loader is a plain DataLoader; write loader = session.wrap(loader) above")
        if loader is not None and all(tracked.thing is not loader for tracked in self.run.tracked):
            raise UsageError(
                f"{where}: the loader isn't tracked, so a resume would begin its data anew; "
                "add it to session.track(...)"
            )
        return self._steps(total, loader, where)

    def _steps(self, total: int, loader: Any, where: str) -> Iterator[Any]:
        run = self.run
        run.begin(where, total, loader if isinstance(loader, Loader) else None, by_epochs=False)
        if run.is_over or run.step >= total:
            run.leave_done()
            return
        batches = None
        if loader is not None:
            batches = (
                loader.endless()
                if isinstance(loader, Loader)
                else endless(loader, self.device, where, run.pulse.waits_for_data)
            )
        while run.step < total:
            run.before_first_batch()  # a foreign loader's batches may be drawn in this process
            batch = next(batches) if batches is not None else None
            run.opens_step()
            yield (run.step, batch) if batches is not None else run.step
            run.close_step(votes=run.step + 1 < total)
            if run.went_back:
                run.went_back, batches = False, loader.endless()
        run.end(early=False)

    def epochs(self, total: int) -> Iterator[int]:
        """The numbers of the epochs still to do, from 0. Each batch of the tracked loader is one step."""
        where = caller()
        total = checks.counted("epochs", total, where)
        loaders = [tracked.thing for tracked in self.run.tracked if isinstance(tracked.thing, Loader)]
        if len(loaders) != 1:
            raise UsageError(
                f"{where}: epochs needs exactly one tracked loader, whose batches are the steps, not {len(loaders)}. "
                "Write session.track(..., loader=loader) above, or use session.steps"
            )
        return self._epochs(total, loaders[0], where)

    def _epochs(self, total: int, loader: Loader, where: str) -> Iterator[int]:
        run = self.run
        run.begin(where, total * len(loader), loader, by_epochs=True)
        if loader.is_over:
            loader.next_epoch()  # the checkpoint is of a loop over steps
        if run.is_over or loader.epoch >= total:
            run.leave_done()
            return
        while loader.epoch < total:
            run.epoch_begins()
            yield loader.epoch
            if run.leaves_rest:  # what stands below the inner loop has run, so a resume can't go on within the epoch
                run.progress.warn(
                    f"epoch {loader.epoch} was left by a break after session.should_stop() had said so, and the rest "
                    "of its batches is not trained on. Leave that break out: the loop stops by itself after the batch"
                )
            run.close_step(votes=False)  # of an inner loop that was left by `break`
            if run.went_back:
                run.go_on_from_there()
                continue
            loader.next_epoch()
            if loader.epoch < total:
                run.between_epochs()
        run.end(early=False)

    def finish(self) -> None:
        """Saves and marks the run finished before its total. For after a `break`; does nothing after a whole loop.

        A script that `should_stop()` has told to leave isn't finished: it is saved, and the process exits 75.
        """
        where = caller()
        if not self.run.began:
            raise UsageError(f"{where}: session.finish() belongs after the loop, and none has begun yet")
        if not self.run.loop:
            return  # the loop reached its total, or had nothing left to do
        self.run.close_last_step()
        self.run.end(early=True)

    def backward(
        self,
        loss: torch.Tensor,
        weight: float | torch.Tensor | None = None,
        *,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Backward pass of one microbatch of `session.loader`: in the end the gradients are the global batch's.

        `loss` is a mean over the microbatch: over its samples, or over `weight` tokens (or anything else to count by).
        """
        self.run.gradients.backward(loss, weight, scaler.scale if scaler is not None else None)

    def params(self, **values: Any) -> None:
        """What the run was set up with, for its tracker (`spec.tracking`): hyperparameters, names of datasets, ..."""
        if self.run.progress.points is not None:
            for message in described.messages(self.rank, "params", values):
                self.run.progress.reporter.send(message)

    def report(self, *, loss: torch.Tensor | float | None = None, tokens: int | None = None, **metrics: float) -> None:
        """What this step did on this rank. Rank 0's last word of each metric is kept with the checkpoint, and its words
        of every step go to the run's tracker."""
        checks.refuse_unreportable({"loss": loss, "tokens": tokens, **metrics})
        if tokens is not None:
            checks.refuse_uncountable(tokens)
        if loss is not None:
            self.run.gradients.refuse_second_loss()
        self.run.progress.note(self.step + 1, loss, tokens, metrics)
