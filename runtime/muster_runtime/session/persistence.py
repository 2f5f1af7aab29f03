"""What a checkpoint holds beside the tracked objects, and how a session saves and restores it."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import chain, repeat
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.holds import held
from muster_protocol.checkpoints.inventory import find_start
from muster_protocol.checkpoints.store import Store
from muster_protocol.launcher_status import MemoryTier
from muster_protocol.losses import LossRecord, decode, encode, metrics_key
from muster_protocol.storage_errors import LASTING, PASSING, Kind
from muster_protocol.uris import parse_uri_at_step
from muster_runtime.checkpoint.keeper import Keeper, Saved
from muster_runtime.checkpoint.kept import Kept
from muster_runtime.checkpoint.saver import Saver, Word
from muster_runtime.checkpoint.store import open_store
from muster_runtime.checkpoint.tier import Tier
from muster_runtime.checkpoint.tree import TensorTable
from muster_runtime.errors import CorruptCheckpointError, StartError, StateError, StorageError, TornSaveError
from muster_runtime.parallel.gang import Gang
from muster_runtime.session import rng
from muster_runtime.session.attempts import Attempt, Restored, RunState, rng_name
from muster_runtime.session.made_of import not_kept
from muster_runtime.session.places import Order, agreed_orders
from muster_runtime.session.progress import Metrics
from muster_runtime.session.settings import Settings
from muster_runtime.session.tracking import ANOTHER_RUN, Tracked, capture

_PAUSES: Final = (2.0, 4.0, 8.0)
"""Seconds between the tries of a run's last save, the last of them again and again."""
_LEFT_OUT: Final = ("numerics", "over", "asked", "parameters")
"""Of a `RunState`, where there is nothing to say."""
_MEMORY: Final = "the memory of its pods"
_AGAIN_SECONDS: Final = 300.0
"""After the first save that was missed comes the next one, at the latest: an hour's interval is not to become two. Not
after more of them, or that many would be missed too soon."""
_MISSED_AT_MOST: Final = 5
_MISSED_SECONDS: Final = 1800.0
"""A rank that has missed more saves in a row, for longer, had better start elsewhere. Many are missed in minutes for
which a store may be away, so the number alone says little."""
_REFUSED_SECONDS: Final = 600.0
_REFUSED_AGAIN_SECONDS: Final = 120.0
"""What a store refuses, though it let this gang claim the run, is tried again so long, and so often: keys that were
changed come to a pod by their file a minute or two late, and a person who is told can mend the rest meanwhile."""


class Persistence:
    """One run's checkpoints as its session sees them. Everything here is collective."""

    def __init__(
        self,
        settings: Settings,
        gang: Gang,
        device: torch.device,
        *,
        warn: Callable[[str], None],
        landed: Callable[[Saved], None],
        troubled: Callable[[str], None],
        settled: Callable[[MemoryTier], None],
        counted: Callable[[int], None],
        again: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`landed` hears of each committed save, `troubled` why one was missed and what mends it, `settled` what stays
        in memory, `counted` on rank 0 of the bytes that lie in the store, `again` after how many seconds a save is to
        be made again that came to nothing."""
        self._settings, self._gang, self._device = settings, gang, device
        self._warn, self._landed, self._troubled, self._again = warn, landed, troubled, again
        tier = Tier.inherited(os.environ, settings.identity, warn, settled)
        self._store: Store = open_store(settings.checkpoint, tier.memory if tier else None)
        self._keeper = Keeper(
            self._store,
            gang,
            owner=settings.job_uid or "no job",
            job=settings.job,
            retention=settings.retention,
            warn=warn,
            counted=counted,
            tier=tier,
        )
        self.uri = self._store.uri
        self._restored_step = 0
        self._orders: dict[str, Order] = {}  # of the optimizers' parameters
        self._compared: set[str] = set()
        """Tensors of which all ranks were found to have the same."""
        self._seen: frozenset[str] = frozenset()  # names of optimizers' tensors
        self._trusts_updates = True  # that each is told of before it is made
        self._missed, self._missed_since = 0, math.inf
        self.random_at_epoch: dict[str, Any] | None = None
        """This rank's random states where the epoch's body began; None for a loop over steps."""
        self.skipped = 0
        """Saves left out because the one before was still being written."""
        self._held_up_by: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch that this gang claimed."""
        return self._keeper.latest.epoch

    def restore(self, objects: list[Tracked]) -> Restored | None:
        """Claims the run and restores its newest whole checkpoint. None when it has none yet.

        After a restart in place that is the one in the gang's memory, unless another gang ran in between.
        """
        self._orders = agreed_orders(objects, self._gang)
        kept = self._keeper.kept()
        latest, newer = self._keeper.claim(kept)
        attempt = Attempt(objects, self._gang, self._settings.world_size)
        if kept is not None and newer:
            restored = attempt.finish(self._keeper.restore_kept(kept, attempt.prepare), finished=False)
            self._restored_step = restored.run.step
            return dataclasses.replace(restored, source=_MEMORY, losses=_losses(kept))
        found = self._keeper.restore(attempt.prepare)
        if found is None:
            return None
        restored = attempt.finish(found, latest.finished)
        self._restored_step = restored.run.step
        return dataclasses.replace(restored, older=found.key != self._keeper.latest.manifest)

    def go_back(self, objects: list[Tracked]) -> Restored | None:
        """Restores the newest checkpoint again, in this process; None when there is none. The save in flight is waited
        for."""
        self.settle()
        attempt = Attempt(objects, self._gang, self._settings.world_size)
        found, kept = self._keeper.go_back(attempt.prepare)
        if found is None:
            return None
        restored = attempt.finish(found, finished=False)
        if kept is not None:
            return dataclasses.replace(restored, source=_MEMORY, losses=_losses(kept))
        return dataclasses.replace(restored, older=found.key != self._keeper.latest.manifest)

    def start_from(self, objects: list[Tracked]) -> Restored | None:
        """Warm start from another run; None when only its models are wanted: those that it has, one at least."""
        uri, step = parse_uri_at_step(self._settings.start_from)
        models_only = self._settings.start_load == "model"
        wanted = [tracked for tracked in objects if not models_only or isinstance(tracked.thing, nn.Module)]
        store = open_store(str(uri))
        hold = ExitStack()  # rank 0's, by a store of its own: that of the restore has memory to give back
        try:
            found = self._gang.on_leader(lambda: self._held_start(str(uri), step, hold))
            attempt = Attempt(wanted, self._gang, self._settings.world_size, some=models_only)
            self._keeper.load(store, found, attempt.prepare)
            restored = attempt.finish(found, finished=False)
            if self._gang.leads:
                self._keeper.hold_until_commit(hold.pop_all())
        except CorruptCheckpointError as error:
            raise StartError(
                f"checkpoint.from can't be taken: {error}. Name another checkpoint, as {uri}@STEP; muster checkpoint "
                f"verify {uri} --all tells which are whole"
            ) from None
        except StartError:
            raise
        except StateError as error:  # the run's own uri is another one already
            another = f"let checkpoint.from name another checkpoint than {uri}@{found.manifest.step}"
            raise StateError(str(error).replace(ANOTHER_RUN, another)) from None
        finally:
            hold.close()
            store.close()
        if attempt.lacking:
            names = ", ".join(repr(name) for name in attempt.lacking)
            self._warn(f"the checkpoint at {uri} has no {names}: left as the script made it")
        return None if models_only else restored

    def _held_start(self, uri: str, step: int | None, hold: ExitStack) -> Found:
        """The checkpoint to start from, which no prune takes away until `hold` is closed.

        The run that it is of may go on meanwhile: where a prune was quicker, it is looked for once more, and what has
        become the newest by then is taken.
        """
        store = open_store(uri)
        hold.callback(store.close)
        who, missed = f"the start of {self._settings.job or 'a run'}", ""
        while True:
            found = find_start(store, step)
            try:
                hold.enter_context(held(store, found.key, who, self._warn))
            except CorruptCheckpointError:
                if found.key == missed:
                    raise
                missed = found.key
            else:
                return found

    # ------------------------------------------------------------------ saving

    def save(
        self,
        objects: list[Tracked],
        run: RunState,
        record: LossRecord,
        metrics: Metrics,
        *,
        updates_seen: bool = False,
    ) -> None:
        """Copies the state away; it is written while training goes on, and committed at a later boundary.

        Where a save is still in flight, this one is left out. Blocking where the settings say so.

        Args:
            updates_seen: `saver.before_update` is called before each step of these optimizers, and `saver.step_over`
                after each step of the training. Their state may then be copied beside the next one.
        """
        if self._settings.blocking_saves:
            self._begin(objects, run, record, metrics, finished=False)
            self._wait(must=False)
        elif self._keeper.in_flight is not None:
            self._leave_out(run.step, self._keeper.in_flight)
        else:
            late = updates_seen and self._trusts_updates
            self._begin(objects, run, record, metrics, finished=False, late=late)

    def _leave_out(self, step: int, in_flight: int) -> None:
        """Told once for each save that takes so long; the others that it keeps from being made are counted."""
        self.skipped += 1
        if self._held_up_by == in_flight:
            return
        self._held_up_by = in_flight
        self._warn(
            f"the checkpoint of step {step} is left out, and so is each that is due until that of step {in_flight} has "
            f"been written ({self.skipped} left out so far). Storage is slower than the interval between checkpoints"
        )

    @property
    def saver(self) -> Saver:
        """Who is told of updates and steps."""
        return self._keeper.saver

    def save_now(
        self,
        objects: list[Tracked],
        run: RunState,
        record: LossRecord,
        metrics: Metrics,
        *,
        finished: bool,
        deadline: Callable[[], float | None] = lambda: None,
        lives: Callable[[], None] = lambda: None,
    ) -> None:
        """Saves and commits, after the save in flight. StorageError when that doesn't succeed.

        What the store doesn't take is tried again until `deadline`, on the monotonic clock; None: for as long as saves
        may be missed while the run trains, since all that was done after the last one would be lost. It is asked anew
        each time, for a stop may come meanwhile. `lives` is called with each try.
        """
        self._wait(must=False)
        began = time.monotonic()
        for usual in chain(_PAUSES, repeat(_PAUSES[-1])):
            lives()
            pause = self._gang.on_leader(partial(_pause, usual, began, deadline))
            self._begin(objects, run, record, metrics, finished=finished)
            if self._wait(must=pause is None, more=pause is not None):
                return
            time.sleep(pause or 0.0)

    def settle(self) -> None:
        """Waits for the save in flight, whether it succeeds or not."""
        self._wait(must=False)

    def word(self) -> Word:
        """For the vote at a boundary. Local."""
        return self._keeper.word()

    @property
    def in_flight(self) -> bool:
        return self._keeper.in_flight is not None

    def heard(self, *, writing: bool, failed: bool, unsealed: bool) -> None:
        """The gang's word: whether any of these is true of any rank."""
        step = self._keeper.in_flight
        if step is None:
            return
        self._land(step, lambda: self._keeper.advance(busy=writing, failed=failed, unsealed=unsealed))

    def _begin(
        self,
        objects: list[Tracked],
        run: RunState,
        record: LossRecord,
        metrics: Metrics,
        *,
        finished: bool,
        late: bool = False,
    ) -> None:
        since = time.monotonic()
        run = dataclasses.replace(run, parameters=self._orders)
        table, trees = capture(objects, self._gang, self._compared)
        states = _states_of_optimizers(objects, table)
        self._tell_of_classes(table, states)
        table[rng_name(self._gang.rank)] = rng.capture(self._device, self.random_at_epoch)
        losses = ((metrics_key(record.epoch, run.step), encode(record)),) if record.losses else ()
        self._keeper.begin(
            table,
            step=run.step,
            trees=trees,
            run={name: value for name, value in dataclasses.asdict(run).items() if name not in _LEFT_OUT or value},
            metrics=metrics.values,
            measured=metrics.measured,
            finished=finished,
            beside=losses,
            late=states if late else (),
            since=since,
        )

    def _tell_of_classes(self, table: TensorTable, states: frozenset[str]) -> None:
        """Of the tensors in `table` that are optimizers' `states`, each looked at once."""
        names = not_kept(table[name] for name in states - self._seen)
        self._seen |= states
        if names:
            self._warn(
                f"an optimizer's state has tensors of the class {', '.join(names)}, which a checkpoint does not keep "
                "here, as where parameters are sharded: it holds the numbers that they stand for. After a resume they "
                "are plain tensors, which take more memory; with strategy ddp or none the class is kept"
            )

    def _wait(self, *, must: bool, more: bool = False) -> bool:
        """Waits for the save in flight. Whether it succeeded. `more`: it is tried again when it doesn't."""
        step = self._keeper.in_flight
        return step is None or self._land(step, self._keeper.wait, must=must, more=more)

    def _land(self, step: int, progress: Callable[[], Saved | None], *, must: bool = False, more: bool = False) -> bool:
        """Takes over what `progress` says of the save of `step`; False where that has failed."""
        try:
            saved = progress()
        except StorageError as error:
            self._miss(step, error, must=must, more=more)
            return False
        except TornSaveError as error:
            self._give_up(step, error)
            return False
        if saved is not None:
            self._missed, self._missed_since = 0, math.inf
            blocking = self._settings.blocking_saves
            self._landed(dataclasses.replace(saved, stall=saved.seconds) if blocking else saved)
        return True

    def _miss(self, step: int, error: StorageError, *, must: bool, more: bool = False) -> None:
        """A save that the store did not take. Raises `error` when it may not be missed."""
        seconds, refused = time.monotonic() - self._missed_since, Kind(error.kind) in LASTING
        too_many = not more and self._missed >= _MISSED_AT_MOST
        over = seconds > _REFUSED_SECONDS if refused else too_many and seconds > _MISSED_SECONDS
        if Kind(error.kind) not in PASSING | LASTING or must or over:
            raise error
        self._missed += not more
        self._missed_since = min(self._missed_since, time.monotonic())
        if refused:
            self._again(_REFUSED_AGAIN_SECONDS)
        elif self._missed == 1:
            self._again(_AGAIN_SECONDS)
        trouble = f"the checkpoint of step {step} was not saved{', and is tried again' if more else ''}: {error}"
        self._warn(trouble)
        self._troubled(trouble)

    def _give_up(self, step: int, error: TornSaveError) -> None:
        """A save whose copies can't be trusted. The next one copies all of it at once."""
        self._trusts_updates = False
        self._warn(
            f"the checkpoint of step {step} is given up, and another made at once: {error}. From now on the whole "
            "state is copied before training goes on"
        )
        self._again(0.0)

    def loss_record(self, losses: LossRecord) -> LossRecord:
        return dataclasses.replace(losses, epoch=self.epoch, restored=self._restored_step)

    def close(self) -> None:
        self._keeper.close()


def _pause(usual: float, began: float, deadline: Callable[[], float | None]) -> float | None:
    """Seconds from a try that fails to the next; None where there is no time for another."""
    until = deadline()
    left = (began + _MISSED_SECONDS if until is None else until) - time.monotonic()
    return min(usual, max(left / 2, _PAUSES[0])) if left > _PAUSES[0] else None


def _losses(kept: Kept) -> tuple[tuple[int, float], ...]:
    """By step: those that were to be written beside a checkpoint that is in memory."""
    records = [decode(content.encode()) for _, content in kept.heading["beside"]]
    return tuple(loss for record in records for loss in record.losses)


def _states_of_optimizers(objects: list[Tracked], table: TensorTable) -> frozenset[str]:
    """The names of what nobody but an optimizer's step changes."""
    prefixes = tuple(f"{tracked.name}.state." for tracked in objects if isinstance(tracked.thing, Optimizer))
    return frozenset(name for name in table if name.startswith(prefixes))
