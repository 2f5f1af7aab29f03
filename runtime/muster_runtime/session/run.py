"""The run under a session's loop: its step, and what all ranks do together between two steps."""

from __future__ import annotations

import sys
import weakref
from contextlib import nullcontext
from dataclasses import replace
from typing import NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from muster_protocol.exits import EXIT_PREEMPTED
from muster_runtime.control import ControlReader
from muster_runtime.data.elastic import ElasticLoader
from muster_runtime.data.foreign import fixed_size, is_foreign
from muster_runtime.data.loader import Loader
from muster_runtime.errors import NumericsError, UsageError, caller
from muster_runtime.parallel.gang import Gang
from muster_runtime.parallel.graphs import captures
from muster_runtime.pulse import Pulse, Section, Stage
from muster_runtime.reporter import Reporter
from muster_runtime.session import checks, pace
from muster_runtime.session.asked import Asked, asked, changes
from muster_runtime.session.attempts import Restored, RunState
from muster_runtime.session.boundary import Agreement, Square, Votes, agree
from muster_runtime.session.gradients import Gradients
from muster_runtime.session.guard import Guard, Unsound
from muster_runtime.session.norms import Norms
from muster_runtime.session.numerics import Action
from muster_runtime.session.points import Points
from muster_runtime.session.profiling import Profiler
from muster_runtime.session.progress import Progress
from muster_runtime.session.saves import Saves
from muster_runtime.session.settings import Settings
from muster_runtime.session.stopping import Stopping
from muster_runtime.session.tracking import Tracked
from muster_runtime.session.updates import Updates
from muster_runtime.telemetry.goodput import Part


class Run:
    """One per session. The loops open and close its steps; at each close the ranks agree on saving and stopping."""

    def __init__(self, settings: Settings, gang: Gang, device: torch.device, pulse: Pulse) -> None:
        self.pulse = pulse
        self._gang, self._strategy, self._device = gang, settings.strategy, device
        reporter = Reporter()
        control = ControlReader()
        self.stopping = Stopping(control)
        points = Points(settings.rank) if settings.tracked and settings.rank == 0 else None
        self.progress = Progress(
            settings.rank, settings.world_size, device, reporter, points, is_saved=bool(settings.checkpoint)
        )
        self.saves = Saves(settings, gang, device, self.progress, reporter, control)
        self.seed = settings.seed
        self.step = 0
        """Steps done since the run began."""
        self.resumed_from: int | None = None
        self.tracked: list[Tracked] = []
        self.gradients = Gradients(settings.world_size, device, self.tracked, self.progress.warn)
        self.wrapped: list[tuple[weakref.ref[nn.Module], str]] = []
        self.loop = ""
        """file:line of the loop that runs now."""
        self.began = False
        self._loops = 0  # that have begun
        self._over = 0  # loops, the script's first ones, up to the last that it ended before its total
        self.driver: Loader | None = None
        """The loader whose batches are the loop's steps."""
        self._by_epochs = False
        self._found: Restored | None = None
        """What was restored, until it is told or trained on."""
        self.nothing_left = ""
        """Why the script has trained nothing, until a loop of it does."""
        self._total: int | None = None
        self._step_open = False
        self._updates = Updates(self.tracked)
        self.went_back = False
        """The last step ended with a return to a checkpoint, and nobody has gone on from there yet."""
        self._guard = Guard(settings.numerics, gang, self.progress) if settings.numerics is not None else None
        self._profiler = Profiler(settings.rank, device, control, reporter)
        self._norms = Norms(settings.rank, settings.world_size)
        self._samples = 0  # of the step that was done last, over the whole gang
        self._forwards: dict[tuple[int, int], int] = {}  # by optimizer and model, at the optimizer's last step
        self._steps_here = 0  # of this process
        self._asked: Asked = {}
        self.closed = False

    # ------------------------------------------------------------------ the loop's ends

    def begin(self, where: str, total: int, driver: Loader | None, *, by_epochs: bool) -> None:
        """A loop begins at `where`; the first one restores."""
        self.loop, self.driver, self._by_epochs = where, driver, by_epochs
        self._loops += 1
        self._total = self.progress.total_steps = total
        self.closed = self.went_back = False
        checks.refuse_untracked(self.tracked, self.wrapped, where)
        checks.refuse_undriven(self.tracked, driver, total, where)
        first = not self.began
        if first:
            self.began = True
            if self.saves.wanted:
                checks.refuse_unstorable(self.tracked)
            self._asked = asked(self.tracked)
            self.progress.count_flops([t.thing for t in self.tracked if isinstance(t.thing, nn.Module)])
            pace.follow(self.pulse, [one.thing for one in self.tracked], self._device)
            for one in self.tracked:
                if is_foreign(one.thing):
                    self.progress.fix_size(fixed_size(one.name, one.thing, one.where))
            with self.pulse.during(Section.CHECKPOINT, Part.RESTORING):
                restored = self.saves.restore(self.tracked)
            if restored is not None:
                run = restored.run
                self.step = self.resumed_from = run.step
                if told := changes(run.asked or {}, self._asked, seed=(run.seed, self.seed)):
                    self.progress.warn(told)
                for one in self.tracked:
                    if isinstance(one.thing, Loader) and one.thing.changed:
                        self.progress.warn(one.thing.changed)
                self._asked |= run.asked or {}  # it goes on with these
                self.seed = run.seed
                if self.saves.has_own:
                    self._over = run.over or int(restored.finished and run.ended_early)
                self._found = restored
                if self._guard is not None and run.numerics is not None:
                    self._guard.load(run.numerics, self.step)
        if isinstance(driver, ElasticLoader):
            self.gradients.watch()
        self.progress.begin(self.step)
        self.pulse.begin(self.step)
        self.saves.count_from_now()
        if self._guard is not None and self._guard.action is Action.ROLLBACK:
            checks.refuse_no_way_back(driver, self.saves.wanted, where)
            if not (first and self.saves.has_own):  # there has to be a checkpoint of this loop to go back to
                self.saves.resume_random(self.seed, self.step)
                self._save()

    @property
    def is_over(self) -> bool:
        """Whether this loop was ended before its total by the script, in a process before this one."""
        return self._loops <= self._over

    def end(self, *, early: bool) -> None:
        """Every rank is done: the last checkpoint is saved and marked finished. Leaves the process where a script has
        ended its loop `early` for a stop."""
        self._agree(save=False, stop=early and self.stopping.was_told, ends=True, soon=True)
        self.progress.tell(self.step, last=True)
        if early:
            self._over = self._loops
        with self.pulse.during(Section.CHECKPOINT):
            saved = self._save_now(self._state(ended_early=early), finished=True)
        if saved:
            self.progress.log("the run is finished")
        self.leave_loop()

    def leave_done(self) -> None:
        """The loop ends before its first step, since no step of it is left."""
        found, self._found = self._found, None
        if found is not None:
            self.nothing_left = self.saves.tell_done(found, self._total)
        self.leave_loop()

    def leave_loop(self) -> None:
        self.loop = ""
        self.closed = True
        self.pulse.leave()

    def last_word(self, *, fell: bool) -> None:
        """The process ends within the loop: its launcher learns the exact step, by which it knows a failure again.
        Where it didn't fall over an exception, the script has left the loop, and is told what that costs."""
        if self.loop:
            if self.saves.wanted and not fell:
                self.progress.warn(
                    f"the loop at {self.loop} was left after step {self.step} of {self._total}, and session.finish() "
                    "wasn't called: what came after the last committed checkpoint is lost, and the run begins there "
                    "again. Call session.finish() below the loop"
                )
            self.progress.tell(self.step, last=True, quiet=True)

    # ------------------------------------------------------------------ one step

    def loader_steps(self) -> bool:
        """Whether each batch of the tracked loader is a step, for its iterator."""
        return self._by_epochs and bool(self.loop)

    def before_first_batch(self) -> None:
        """Random states count from here."""
        self.saves.resume_random(self.seed, self.step)

    def epoch_begins(self) -> None:
        """Before an epoch's body, which a checkpoint may have cut."""
        assert self.driver is not None
        self.saves.epoch_begins(self.seed, self.step, resumed=self.driver.position > 0)

    def opens_step(self) -> None:
        self.pulse.step_opens()
        self._found, self.nothing_left = None, ""
        self._step_open = True
        self._updates.step_opens()
        self.gradients.open_step()

    def closes_step(self) -> None:
        # After an epoch's last batch its body has more to do, which a resume could not: votes wait for its end.
        at_end = self._by_epochs and self.driver is not None and self.driver.is_last
        self.close_step(votes=not at_end)

    def close_step(self, *, votes: bool) -> None:
        """The boundary: counts the step, agrees with the other ranks, saves and stops when that is due.

        `votes` is False where a save or a stop has to wait, the same on every rank.
        """
        if not self._step_open:
            return
        self._step_open = False
        self.step += 1
        self.saves.step_over(seen=self._updates.step_ends())
        if (loss := self.gradients.loss()) is not None:
            self.progress.note_loss(self.step, *loss)
        if self.driver is not None:
            if self._guard is not None:
                batch = self.driver.epoch, self.driver.number
                self._guard.trained(self.step - 1, batch, updated=self._updates.made)
            self._samples = self.driver.samples or 0
            self.driver.move_on()
        due = self._is_due()  # also where the save waits, or its turn would pass unseen
        save, stop = votes and due, votes and self._stops_here()
        agreed = self._agree(save=save, stop=stop, ends=False, soon=not votes)
        self._steps_here += 1
        if self._steps_here & (self._steps_here - 1) == 0:  # 1, 2, 4, ...: the first may have made no update
            checks.refuse_unrelated(self.tracked, self._gang)
        self.pulse.step_done(self.step)
        if agreed:
            self._save(updates_seen=self._updates.reliable)
        if self._profiler.at_boundary(self.step):
            with self.pulse.during(Section.EVALUATION):  # it may take longer than a step
                self._profiler.turn(self.step)
        if self.driver is not None and self.driver.is_over:
            self.pulse.enter(Section.EVALUATION)  # and whatever else stands between two epochs

    @property
    def leaves_rest(self) -> bool:
        """Whether the script has left an epoch's inner loop for a stop, with batches to come."""
        return self._step_open and self.stopping.was_told and self.driver is not None and not self.driver.is_last

    def close_last_step(self) -> None:
        """The script has left its loop in this step. Where it has done so for a stop and made no update, perhaps at the
        step's begin, its batch is the next run's."""
        if self.stopping.was_told and not self._updates.made:
            self._step_open = False
        self.close_step(votes=False)

    def between_epochs(self) -> None:
        """The boundary after an epoch's whole body. No step is counted here."""
        save, stop = self._is_due(), self._stops_here()
        if self._agree(save=save, stop=stop, ends=False, soon=False, counts=False):
            self._save()
        self.pulse.enter(Section.EVALUATION)  # until the next epoch's first batch is here

    def _save(self, *, updates_seen: bool = False) -> None:
        """`updates_seen`: every optimizer's update comes by `optimizer_steps`, one in each step or more."""
        with self.pulse.during(Section.CHECKPOINT):
            self.saves.save(self.tracked, self._state(), updates_seen=updates_seen)

    def _save_now(self, state: RunState, *, finished: bool) -> bool:
        def lives() -> None:
            self.pulse.enter(Section.CHECKPOINT)

        return self.saves.save_now(self.tracked, state, finished=finished, deadline=self.stopping.deadline, lives=lives)

    def optimizer_steps(self, optimizer: Optimizer, *, closure: bool = False) -> None:
        """Called before any optimizer's step. `closure`: it makes its gradients itself."""
        self.saves.before_update()
        names = self._updates.names()
        name = names.get(id(optimizer))
        captured = captures()
        if captured and name is not None:  # the update comes with each replay, and not now
            elastic = isinstance(self.driver, ElasticLoader)
            checks.refuse_hidden(
                guarded=self._guard is not None, early=self.saves.wanted and not self.began, elastic=elastic
            )
        if name is not None:
            self._updates.comes(optimizer, captured=captured)
        if not self._step_open:  # it takes the gradients that were left at an epoch's end
            return
        if name is None:
            raise UsageError(
                f"{caller()}: this {type(optimizer).__name__} isn't tracked, so a resume would lose its state; "
                "add it to session.track(...)"
            )
        if captured:
            return
        checks.refuse_bypassed(optimizer, self.tracked, self._forwards)
        if isinstance(self.driver, ElasticLoader):
            self.gradients.refuse_incomplete(self.driver, optimizer)
        if self._guard is not None:
            loss = self.gradients.loss() or self.progress.noted(self.step + 1)
            alone = "" if len(names) == 1 else name
            if (ends := self._guard.sees_update(self.step, optimizer, alone, loss, closure=closure)) is not None:
                self._give_up(ends)
        self._norms.sees_update(self.step, optimizer, closure=closure)
        self.pulse.owns(Stage.OPTIMIZER)

    # ------------------------------------------------------------------ what the ranks agree on

    def _is_due(self) -> bool:
        return self.saves.is_due(self.step) and self._updates.are_whole()

    def _stops_here(self) -> bool:
        return self.stopping.is_asked() and self._updates.are_whole()

    def _agree(self, *, save: bool, stop: bool, ends: bool, soon: bool, counts: bool = True) -> bool:
        """Whether to save now. Leaves the process when the gang stops. `counts`: one more step is done."""
        progress = self.progress
        read = progress.reads_now(self.step, soon)
        losses, tokens = progress.take_losses(self.step, read)
        norms, profiler = self._norms, self._profiler
        votes = Votes(
            self.step,
            save,
            stop,
            ends,
            tokens,
            losses,
            *self.saves.word(),
            squares=self._squares(read),
            asks_norm=norms.asks(),
            square=norms.take(read),
            profile=profiler.asks(),
        )
        self.pulse.enter(Section.BOUNDARY)
        agreed = agree(votes, self._gang, self.loop)
        norms.heard(asked=agreed.norm_asked)
        profiler.heard(agreed.profile)
        unsound = self._absorb(agreed, votes, read)
        with self.pulse.during(Section.CHECKPOINT) if self.saves.in_flight else nullcontext():
            self.saves.heard(writing=agreed.writing, failed=agreed.write_failed, unsealed=agreed.unsealed)
        if (agreed.save or agreed.stop) and not read:
            losses, _ = progress.take_losses(self.step, True)
            votes = Votes(self.step, False, False, ends, 0.0, losses, squares=self._squares(True))
            unsound = self._absorb(agree(votes, self._gang, self.loop), votes, True)
        if unsound is not None:
            self._go_back(unsound)
        if not ends:
            if counts:
                progress.count(agreed.tokens, self._samples)
            progress.tell(self.step, last=agreed.stop)
        if agreed.stop:
            self._stop()
        return agreed.save and unsound is None

    # ------------------------------------------------------------------ steps that are not sound

    def _squares(self, read: bool) -> tuple[Square | None, ...]:
        if self._guard is None:
            return ()
        return self._guard.take(self.progress.read_to, self.step, read, self.progress.read_every)

    def _absorb(self, agreed: Agreement, own: Votes, read: bool) -> Unsound | None:
        """The gang's word about the steps read now, and the first of them that calls for something."""
        first = self.progress.read_to
        self.progress.absorb(self.step, agreed, read)
        if agreed.norm is not None:
            self.progress.latest_norm = agreed.norm
        if self._guard is None:
            self.progress.warn_of_unsound(agreed.losses, first)
            return None
        return self._guard.hear(first, agreed, own) if read else None

    def _go_back(self, found: Unsound) -> None:
        """Everything as it was at the last checkpoint, but that the step's batches are left out from now on."""
        if found.ends:
            self._give_up(found)
        with self.pulse.during(Section.CHECKPOINT, Part.RESTORING):
            restored = self.saves.go_back(self.tracked)
        if restored is None:
            self._give_up(replace(found, ends="there is no checkpoint to go back to, since none could be saved yet"))
        assert self.driver is not None
        assert self._guard is not None
        self.step = restored.run.step
        self.driver.leave_out(found.batches)
        for one in self.tracked:
            if isinstance(one.thing, (nn.Module, Optimizer)):
                one.thing.zero_grad(set_to_none=True)
        self._guard.went_back(found, self.step, restored.run.numerics)
        self.went_back = True

    def go_on_from_there(self) -> None:
        """What a script has done since the return, in the body of an epoch that it could not know to be over, counts
        for nothing."""
        self.went_back = False
        with self.pulse.during(Section.CHECKPOINT, Part.RESTORING):
            self.saves.go_back(self.tracked)

    def _give_up(self, found: Unsound) -> NoReturn:
        self.saves.step_over(seen=self._updates.made)  # its hook has waited for all copies, and no other follows
        with self.pulse.during(Section.CHECKPOINT):
            self.saves.settle()
        raise NumericsError(f"{found.told}, and the run ends: {found.ends}")

    def _stop(self) -> None:
        if self.pulse.step < self.step:
            self.pulse.step_done(self.step)  # all that was done is kept
        self.pulse.enter(Section.CHECKPOINT)
        saved = self._save_now(self._state(), finished=False)
        kept = "the checkpoint is committed" if saved else "there is no checkpoint uri, so nothing was saved"
        self.progress.log(f"stopped after step {self.step}, as asked; {kept}")
        self.closed = True
        self.saves.close()
        self.progress.stopped(self.step)
        sys.exit(EXIT_PREEMPTED)

    def _state(self, *, ended_early: bool = False) -> RunState:
        return RunState(
            step=self.step,
            seed=self.seed,
            world_size=self._gang.world_size,
            threads=torch.get_num_threads(),
            strategy=self._strategy,
            total=self._total,
            ended_early=ended_early,
            over=self._over,
            numerics=self._guard.state() if self._guard is not None else None,
            asked=self._asked,
        )
