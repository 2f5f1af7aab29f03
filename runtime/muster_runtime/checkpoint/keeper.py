"""Keeps a run's checkpoints: claims the epoch, restores, saves, commits, and deletes what is too old.

Unless they say otherwise, methods are collective: every rank calls them at the same step boundary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from muster_protocol.checkpoints import chain
from muster_protocol.checkpoints.chain import Damaged, Found
from muster_protocol.checkpoints.commit import Claim, claim_epoch
from muster_protocol.checkpoints.holds import held
from muster_protocol.checkpoints.inventory import Checkpoint, Inventory, take
from muster_protocol.checkpoints.prune import carry_out
from muster_protocol.checkpoints.retention import Retention, plan, unknown_metric
from muster_protocol.checkpoints.store import Store
from muster_protocol.manifest import Latest
from muster_protocol.storage_errors import PASSING, Kind
from muster_runtime.checkpoint.kept import Kept, KeptReader, newest
from muster_runtime.checkpoint.reader import Reader
from muster_runtime.checkpoint.s3_store import S3Store
from muster_runtime.checkpoint.saver import Heading, Saver, Word
from muster_runtime.checkpoint.tier import Tier
from muster_runtime.checkpoint.transfers import in_background, transfers
from muster_runtime.checkpoint.tree import TensorTable
from muster_runtime.errors import CorruptCheckpointError, MusterError, StorageError
from muster_runtime.parallel.gang import Gang

_ATTEMPTS: Final = 1000
"""Of one step under one claim. A gang that goes on under the same epoch counts from its incarnation's thousand on, so
that what an earlier one has sent, and what comes late, lies below other names."""

Restore = Callable[[Found, Reader], TensorTable]
"""Given a manifest, the tensors to read into. Called again for the next candidate when one is damaged."""


@dataclass(frozen=True)
class Saved:
    """A committed save.

    Attributes:
        total_bytes: of all ranks' shards; `own_bytes` is what this rank wrote.
        stall: seconds that training stood still on this rank.
        seconds: from the copy to the commit, as this rank saw it at its boundaries.
    """

    step: int
    total_bytes: int
    own_bytes: int
    stall: float
    seconds: float


class Keeper:
    def __init__(
        self,
        store: Store,
        gang: Gang,
        *,
        owner: str,
        job: str,
        retention: Retention,
        warn: Callable[[str], None],
        counted: Callable[[int], None] | None = None,
        tier: Tier | None = None,
    ) -> None:
        """`counted` hears on rank 0, perhaps from another thread, of the bytes that all committed checkpoints under the
        uri take now."""
        self._store, self._gang, self._job, self._retention, self._warn = store, gang, job, retention, warn
        self._owner = owner
        self._claim: Claim | None = None  # rank 0 alone, as is the next
        self._claiming: Future[Claim] | None = None
        self._parent: tuple[str, str] = ("", "")  # key and digest of the manifest that comes before
        self._milestone: tuple[str, str] = ("", "")  # of the newest that is kept for ever
        self._known: dict[str, Checkpoint] = {}  # committed, by manifest; rank 0's `_pruning` alone
        self._own: dict[str, Checkpoint] = {}  # what was committed since; rank 0
        self._attempts: dict[int, int] = {}
        self._first_attempt = 0
        self._tier = tier
        self._transfers = transfers(store, tier.memory if tier else None)
        self.saver = Saver(store, self._transfers, gang, tier)
        self._pruning: Future[None] | None = None  # rank 0 alone, as are the next
        self._counted = counted
        self._stored: int | None = None  # what `counted` has heard; None before
        self._recount = False
        self._best_told = False
        self._told_refused = False
        self._fallback = ExitStack()  # rank 0's hold on what it goes on from, until a commit of its own takes its place
        self.uri = store.uri
        self.latest = Latest(epoch=0, owner="", nonce="")

    def kept(self) -> Kept | None:
        """The newest step that the gang's memory holds whole, from before a restart in place.

        Rank 0 asks the store for the claim meanwhile: memory is read through, and the storage process starts.
        """
        if self._tier is None:
            return None
        if self._gang.leads:
            self._claiming = in_background(self._next_epoch, or_now=True)
        return newest(self._tier, self._gang)

    def claim(self, kept: Kept | None = None) -> tuple[Latest, bool]:
        """Takes the next epoch; what `LATEST` says then is what `restore` starts from. And whether `kept` is newer.

        With `kept`, and the store away, the gang goes on under the epoch that it holds.
        """

        def take() -> tuple[Latest, bool, int]:
            claiming, self._claiming, first = self._claiming, None, 0
            try:
                self._claim = claiming.result() if claiming else self._next_epoch()
            except StorageError as error:
                held = self._tier.claim() if self._tier and kept else None
                if held is None or self._tier is None or Kind(error.kind) not in PASSING:
                    raise
                self._claim, first = held, self._tier.incarnation * _ATTEMPTS
                self._warn(f"{error}; the gang goes on under epoch {held.latest.epoch}, which it holds")
            latest = self._claim.latest
            held = self._tier.claim() if self._tier and kept else None
            alone = held is not None and latest.nonce in (held.latest.nonce, *held.tried)  # nobody else's lies between
            # of a loop's last step memory doesn't say that it was the last; what is beyond it is of a loop after that
            newer = kept is not None and alone and kept.step >= (latest.step or 0) + latest.finished
            if self._tier:
                if not newer:  # before the claim is the gang's: should it fall now, nothing older may follow that
                    self._tier.clear()
                self._tier.hold(self._claim)
            return latest, newer, first

        self.latest, newer, self._first_attempt = self._gang.on_leader(take)
        return self.latest, newer

    def _next_epoch(self) -> Claim:
        """What is sent is written down before: should nobody live to hear the answer, it is the gang's own."""
        held = self._tier.claim() if self._tier else None

        def sends(nonce: str) -> None:
            assert self._tier is not None
            assert held is not None
            self._tier.hold(replace(held, tried=(*held.tried, nonce)))

        return claim_epoch(self._store, self._owner, held, sends=sends)

    def restore_kept(self, kept: Kept, prepare: Restore) -> Found:
        """Loads what the gang's memory holds. The next manifest's parent is the one that was committed last."""
        assert self._tier is not None
        self._load(KeptReader(self._transfers, self._gang, kept), kept.found, prepare)
        self.saver.make_room(kept.part.length)
        self._tier.take_up(kept.slot, kept.part)
        self._milestone = (kept.heading["milestone"][0], kept.heading["milestone"][1])
        if self.latest.manifest:
            self._follow(self.latest.manifest, self.latest.sha256, self.latest.step or 0)
        return kept.found

    def go_back(self, prepare: Restore) -> tuple[Found | None, Kept | None]:
        """Loads the newest checkpoint again: from memory where that has it whole (`Kept`), else what was committed.

        Under the claim that the gang holds, and with no save in flight. Nothing when there is none.
        """
        assert self.in_flight is None
        if self._pruning is not None:
            self._pruning.result()
        self.latest = self._gang.on_leader(lambda: self._claim.latest if self._claim is not None else self.latest)
        kept = newest(self._tier, self._gang) if self._tier is not None else None
        if kept is not None and kept.step >= (self.latest.step or 0):
            return self.restore_kept(kept, prepare), kept
        return self.restore(prepare), None

    def restore(self, prepare: Restore) -> Found | None:
        """Loads the best whole checkpoint into what `prepare` gives; None when nothing was committed yet.

        CorruptCheckpointError when something was committed and none of it is whole.
        """
        if self._tier:
            self._tier.clear()  # what is read passes through that memory
        if not self.latest.manifest:
            return None
        with ExitStack() as hold:
            who = f"a restore by {self._job or self._owner}"
            self._gang.on_leader(lambda: hold.enter_context(held(self._store, "", who, self._warn)))
            found = self._restore(prepare)
            if found.key != self.latest.manifest:
                self._fallback.close()  # of a restore before, since which nothing was committed
                self._fallback = hold.pop_all()
            return found

    def _restore(self, prepare: Restore) -> Found:
        tried = chain.restorable(self._store, self.latest) if self._gang.leads else iter(())
        reasons: list[str] = []
        while True:
            found = self._gang.on_leader(lambda: next(tried, None))
            if found is None:
                raise CorruptCheckpointError(
                    f"no checkpoint below {self.uri} is whole, so the run can't go on; it was not begun anew. "
                    "Put back what is missing, or start with another checkpoint.uri. " + " ".join(reasons)
                )
            if isinstance(found, Damaged):
                reasons.append(found.reason)
                self._warn(f"{found.reason}; trying an older checkpoint")
                continue
            try:
                self.load(self._store, found, prepare)
            except CorruptCheckpointError as error:
                reasons.append(str(error))
                self._warn(f"step {found.manifest.step} can't be restored: {error}; trying an older checkpoint")
                continue
            self._follow(found.key, found.sha256, found.manifest.step)
            if not self._retention.keeps_for_ever(found.manifest.step):
                self._milestone = (found.manifest.milestone, found.manifest.milestone_sha256)
            return found

    def _follow(self, key: str, sha256: str, step: int) -> None:
        """The next manifest's parent is this one."""
        self._parent = (key, sha256)
        if self._retention.keeps_for_ever(step):
            self._milestone = (key, sha256)

    def load(self, store: Store, found: Found, prepare: Restore) -> None:
        """Loads one checkpoint, of this or another run."""
        moving = self._transfers if store is self._store else transfers(store)
        try:
            self._load(Reader(moving, found.manifest, self._gang), found, prepare)
        finally:
            if moving is not self._transfers:
                moving.close()

    def hold_until_commit(self, hold: ExitStack) -> None:
        """Rank 0's `hold` on what the gang has started from, to be closed when it has a checkpoint of its own.

        Beside the training then: it is in another run's store, which may be away.
        """
        self._fallback.callback(in_background, hold.close, or_now=True)

    def _load(self, reader: Reader, found: Found, prepare: Restore) -> None:
        reader.read(self._gang.each(lambda: prepare(found, reader)))

    # ------------------------------------------------------------------ saving

    @property
    def in_flight(self) -> int | None:
        """The step of the save that isn't over yet. The same on every rank."""
        flight = self.saver.flight
        return flight.heading.step if flight else None

    def word(self) -> Word:
        """This rank's at a boundary, of the save in flight. Local."""
        return self.saver.word()

    def begin(
        self,
        table: TensorTable,
        *,
        step: int,
        trees: dict[str, Any],
        run: dict[str, Any],
        metrics: dict[str, float] | None = None,
        measured: dict[str, int] | None = None,
        finished: bool = False,
        beside: tuple[tuple[str, bytes], ...] = (),
        late: Collection[str] = (),
        since: float | None = None,
    ) -> None:
        """Stages the state and starts to write it; there must be no save in flight.

        `beside`: small objects (key, content), written before the manifest. `late`, `since`: see `Saver.begin`.
        """
        attempt = self._attempts.get(step, self._first_attempt)
        self._attempts[step] = attempt + 1
        heading = Heading(
            step=step,
            epoch=self.latest.epoch,
            attempt=attempt,
            world_size=self._gang.world_size,
            job=self._job,
            parent=self._parent[0],
            parent_sha256=self._parent[1],
            milestone=self._milestone[0],
            milestone_sha256=self._milestone[1],
            trees=trees,
            run=run,
            metrics=metrics or {},
            measured=measured or {},
            finished=finished,
            beside=beside,
        )
        self.saver.begin(heading, table, late, since=since)
        if (refused := self._transfers.memory.refused) and not self._told_refused:
            self._told_refused = True
            self._warn(
                f"CUDA does not register the memory that checkpoints are staged in ({refused}), so training waits for "
                "the whole of each copy to it. Where that is for want of memory, raise the workers' memory limit"
            )

    def advance(self, *, busy: bool, failed: bool, unsealed: bool) -> Saved | None:
        """The gang's word at a boundary: whether any rank is busy, has failed, or hasn't its part in memory. The save,
        if it is committed now.

        What made the save fail is raised on every rank; it is given up then.
        """
        return self._landed(lambda: self.saver.advance(busy=busy, failed=failed, unsealed=unsealed, claim=self._claim))

    def wait(self) -> Saved | None:
        """Until the save in flight is committed and pruned after. None when there is none; raises as `advance` does."""
        if self._pruning is not None:
            self._pruning.result()
        saved = self._landed(lambda: self.saver.wait(self._claim))
        if self._pruning is not None:
            self._pruning.result()
        return saved

    def _landed(self, progress: Callable[[], tuple[Checkpoint, Claim | None] | None]) -> Saved | None:
        flight = self.saver.flight
        done = progress()
        if done is None:
            return None
        assert flight is not None
        written, claim = done
        if self._gang.leads:
            self._claim = claim
            if self._tier and claim is not None:
                self._tier.hold(claim)
        self._fallback.close()
        self._follow(written.key, written.sha256, flight.heading.step)
        if self._gang.leads and not self._retention.keeps_all:
            self._own[written.key] = written
            self._start_prune()
        elif self._gang.leads and self._counted is not None:
            self._grown(written.bytes)
        own = sum(landed.file.size for landed in flight.files.result())
        return Saved(flight.heading.step, written.bytes, own, flight.stall, time.monotonic() - flight.began)

    def _start_prune(self) -> None:
        """Never two at once: while one takes longer than the next save, that save's prune is left to the one after."""
        if self._pruning is not None:
            if not self._pruning.done():
                return
            self._pruning.result()
        self._begin_pruning(self._prune)

    def _begin_pruning(self, work: Callable[[], None]) -> bool:
        """Whether `work` goes on now beside the training; else that is told."""
        begun = in_background(work)
        if begun.done() and isinstance(error := begun.exception(), StorageError):
            self._warn(f"old checkpoints are neither counted nor deleted before the next save: {error}")
            return False
        self._pruning = begun
        return True

    def _prune(self) -> None:
        """Deletes what retention doesn't keep. In a thread that mostly waits for the store, beside the training."""
        try:
            own, self._own = self._own, {}  # a manifest of many ranks takes long to read
            # what writers that died left behind changes when a gang starts, and not from save to save
            inventory = self._take({**self._known, **own}, unfinished=not self._known)
            self._known = {checkpoint.key: checkpoint for checkpoint in inventory.committed}
            if inventory.unlisted:
                self._warn(inventory.unlisted)
            planned = plan(inventory, self._retention, time.time())
            best = self._retention.best
            if best and planned.removals and not self._best_told and (unknown := unknown_metric(inventory, best)):
                self._best_told = True  # its name may be wrong, and all others go
                self._warn(f"{unknown}. Until one has, retention.best keeps none of them")
            carry_out(self._store, planned, time.time)
            self._count(sum(checkpoint.bytes for checkpoint, _ in planned.kept))
        except MusterError as error:
            self._warn(f"old checkpoints could not be deleted, will try again after the next save: {error}")

    def _grown(self, more: int) -> None:
        """Nothing is ever deleted: what lies there is looked up once, and grows with each save."""
        if self._pruning is not None and not self._pruning.done():
            self._recount = True  # whether this save was in it isn't known
        elif self._stored is None or self._recount:
            self._recount = not self._begin_pruning(self._look_up)
        else:
            self._count(self._stored + more)

    def _look_up(self) -> None:
        with suppress(MusterError):  # told when the next save meets it, and looked up again after it
            self._count(sum(checkpoint.bytes for checkpoint in self._take({}, unfinished=False).committed))

    def _take(self, known: Mapping[str, Checkpoint], *, unfinished: bool) -> Inventory:
        """Manifests are read by the storage process, where there is one: a rank trains beside this."""
        read = self._store.summary if isinstance(self._store, S3Store) else None
        return take(self._store, known, unfinished=unfinished, read=read)

    def _count(self, stored: int) -> None:
        if self._counted is not None and stored != self._stored:
            self._counted(stored)
        self._stored = stored

    def close(self) -> None:
        self._fallback.close()
        self._transfers.close()
        self._store.close()
