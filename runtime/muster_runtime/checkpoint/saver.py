"""Saves beside the training: staged at one step boundary, written in the background, committed at a later one.

At boundaries the ranks tell each other whether they are still writing (`Saver.word`). The order: every rank's shards,
then the manifest, then `LATEST`. Only the last makes the checkpoint committed.

    idle -- begin --> writing -- nobody writes any more --> committing -- rank 0 is done --> idle
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

import torch

from muster_protocol import manifest as manifests
from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.commit import Claim, commit
from muster_protocol.checkpoints.inventory import Checkpoint, summary
from muster_protocol.checkpoints.store import Store
from muster_protocol.manifest import MANIFEST_NAME, Manifest
from muster_runtime.checkpoint.layout import WithSums
from muster_runtime.checkpoint.plan import Planner
from muster_runtime.checkpoint.s3_store import Landed, Outgoing
from muster_runtime.checkpoint.staging import Move, Staging, can_wait
from muster_runtime.checkpoint.tier import Part, Tier
from muster_runtime.checkpoint.transfers import Transfers, in_background
from muster_runtime.checkpoint.tree import TensorTable
from muster_runtime.errors import StorageError, TornSaveError
from muster_runtime.parallel.gang import Gang

UNSEEN: Final = (
    "in the step after it an optimizer's update was not seen, so what was copied beside that step may have changed "
    "meanwhile"
)


@dataclass(frozen=True)
class Heading:
    """What rank 0 knows about the checkpoint beside its tensors.

    Attributes:
        finished: the run has reached its end with it.
        beside: small objects (key, content) that are written before the manifest.
    """

    step: int
    epoch: int
    attempt: int
    world_size: int
    job: str = ""
    parent: str = ""
    parent_sha256: str = ""
    milestone: str = ""
    milestone_sha256: str = ""
    trees: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    measured: dict[str, int] = field(default_factory=dict)
    finished: bool = False
    beside: tuple[tuple[str, bytes], ...] = ()

    @property
    def prefix(self) -> str:
        return manifests.step_prefix(self.step, self.epoch, self.attempt)

    def kept(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """What rank 0 keeps in memory of it, as JSON."""
        return {
            "planner": {"tensors": tensors, "trees": self.trees, "run": self.run},
            "milestone": [self.milestone, self.milestone_sha256],
            "beside": [[key, content.decode()] for key, content in self.beside],
        }


class Word(NamedTuple):
    """What a rank says at a boundary of the save in flight.

    Attributes:
        busy: it has still to do for it.
        failed: its part of it has failed.
        unsealed: its part isn't in memory whole, to stay there.
    """

    busy: bool
    failed: bool
    unsealed: bool


@dataclass
class Flight:
    """A save that isn't over yet.

    Attributes:
        stall: how long training stood still for it, in seconds.
        files: what was written.
        judged: why what was copied late can't be trusted, "" where it can; from the end of the next step on.
        sealed: whether this rank's part stays in memory.
        kept: whether all ranks' parts do.
    """

    heading: Heading
    began: float
    staging: Staging
    base: int
    stall: float = 0.0
    files: Future[list[Landed]] = field(default_factory=Future)
    judged: Future[str] = field(default_factory=Future)
    sealed: Future[bool] = field(default_factory=Future)
    kept: bool = False
    handed_over: bool = False
    commit: Future[tuple[Checkpoint, Claim]] | None = None
    committing: bool = False

    def judge(self, torn: str) -> None:
        """The first word counts."""
        if not self.judged.done():
            self.judged.set_result(torn)

    @property
    def written(self) -> bool:
        """Whether nothing reads what was staged any more, and it is known whether it counts."""
        return self.files.done() and self.judged.done() and self.sealed.done()

    @property
    def stays(self) -> bool:
        """Whether this rank's part stays in memory, once that is known."""
        if isinstance(self.sealed.exception(), StorageError):  # nobody could be set to it
            return False
        return self.sealed.result()

    @property
    def error(self) -> BaseException | None:
        """Why this rank's part failed, once it is `written`."""
        torn = self.judged.result()
        return TornSaveError(torn) if torn else self.files.exception()


class Saver:
    """One save at a time. Everything but `word` is collective, unless it says otherwise."""

    def __init__(self, store: Store, transfers: Transfers, gang: Gang, tier: Tier | None = None) -> None:
        self._store, self._transfers, self._gang, self._tier = store, transfers, gang, tier
        self.planner = Planner(gang)
        self.flight: Flight | None = None

    def word(self) -> Word:
        """This rank's, having begun what can go on by now. Local."""
        self._hand_over(wait=False)
        flight = self.flight
        if flight is None:
            return Word(busy=False, failed=False, unsealed=False)
        commits = flight.committing and flight.commit is not None and not flight.commit.done()
        return Word(
            busy=commits or not flight.written,
            failed=flight.written and flight.error is not None,
            unsealed=not (flight.sealed.done() and flight.stays),
        )

    def begin(
        self, heading: Heading, table: TensorTable, late: Collection[str] = (), *, since: float | None = None
    ) -> None:
        """Copies the state away and starts to write it. Training may go on when this returns.

        `late` names what nobody changes before an optimizer's next step: that may be copied beside what comes before
        it. Then `before_update` has to be called before each of the next step's updates, and `step_over` after it.
        `since`: when training has stopped for it, on the monotonic clock; None: now.
        """
        assert self.flight is None
        began = time.monotonic() if since is None else since
        planned_anew = self.planner.plan(table)
        if planned_anew and self._tier is not None and self._tier.enabled:
            self.make_room(self.planner.share.length)
        tier = self._tier if self._tier is not None and self._tier.enabled else None
        base = tier.open(self.planner.share.length) if tier is not None else 0
        self.flight = Flight(heading, began, self._stage(base, table, late), base)
        if not self.flight.staging.late:
            self.flight.judge("")
        self._hand_over(wait=False)
        self.flight.stall += time.monotonic() - began

    def before_update(self) -> None:
        """An optimizer is about to change what it has. Local, as is the next."""
        flight = self.flight
        if flight is None or flight.handed_over:
            return
        began = time.monotonic()
        flight.staging.before_update()
        self._hand_over(wait=False)
        flight.stall += time.monotonic() - began

    def step_over(self, *, seen: bool) -> None:
        """A training step is over; `seen`: `before_update` was called for each optimizer's update in it."""
        if self.flight is not None:
            self.flight.judge(self.flight.staging.torn or ("" if seen else UNSEEN))

    def make_room(self, length: int) -> None:
        """The gang finds out what there is memory for, where this rank's part of the state has `length` bytes."""
        assert self._tier is not None
        lacking = self._gang.sum([float(not enough) for enough in self._tier.room(length)])
        self._tier.settle(length, local=not lacking[0], peer=not lacking[1])

    def _stage(self, base: int, table: TensorTable, late: Collection[str]) -> Staging:
        share = self.planner.share
        sources = [(item.index.fqn, self.planner.resolve(item), at) for item, at in share.items]
        on_device = any(source.is_cuda for _, source, _ in sources)
        memory = self._transfers.memory.reserve(base + share.length, pinned=on_device)[base:]
        now: list[Move] = []
        beside: list[Move] = []
        watched: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # a DTensor's part has a version of its own
        for name, source, at in sources:
            if not source.nbytes:
                continue
            move = memory[at : at + source.nbytes].view(source.dtype).view(source.shape), source
            if name in late and can_wait(source):
                beside.append(move)
                watched[name] = table[name], source
            else:
                now.append(move)
        self.planner.forget()
        return Staging(now, beside, [tensor for pair in watched.values() for tensor in pair])

    def _hand_over(self, *, wait: bool) -> None:
        """Starts the writing, as soon as all of it is in memory."""
        flight, share = self.flight, self.planner.share
        if flight is None or flight.handed_over or not flight.staging.done(wait=wait):
            return
        flight.handed_over = True
        flight.stall += flight.staging.on_device
        if flight.staging.torn:
            flight.judge(flight.staging.torn)
        if flight.judged.done() and flight.judged.result():
            flight.files.set_result([])
            flight.sealed.set_result(False)
            return
        name = f"{flight.heading.prefix}rank-{self._gang.rank:05d}"
        files = [
            Outgoing(f"{name}.{number:04d}.bin", flight.base + file.start, file.length, file.chunks)
            for number, file in enumerate(share.files)
        ]
        if self._tier is not None and self._tier.enabled and not flight.heading.finished:
            flight.sealed = in_background(lambda: self._seal(flight, files))
        else:  # of a run's end, too: whoever resumed from memory there would never commit it
            flight.sealed.set_result(False)
        if files:
            flight.files = self._transfers.upload(files)
        else:
            flight.files.set_result([])

    def _seal(self, flight: Flight, files: list[Outgoing]) -> bool:
        """In a thread that mostly waits for the storage process."""
        assert self._tier is not None
        try:
            landed = self._transfers.sum(files).result() if files else []
        except StorageError:  # its process has ended; the upload tells it
            return False
        if flight.judged.result():
            return False
        heading, share = flight.heading, self.planner.share
        part = Part(
            step=heading.step,
            epoch=heading.epoch,
            attempt=heading.attempt,
            base=flight.base,
            length=share.length,
            files=tuple(landed),
            starts=tuple(file.start for file in share.files),
            heading=heading.kept(self.planner.tensors) if self._gang.leads else {},
        )
        try:
            self._tier.seal(part)
        except OSError as error:  # the training goes on, and the store gets the step all the same
            self._tier.warn(f"step {part.step} is not kept in memory, as its record can't be written there: {error}")
            return False
        return True

    def advance(
        self, *, busy: bool, failed: bool, unsealed: bool, claim: Claim | None
    ) -> tuple[Checkpoint, Claim | None] | None:
        """The gang's word at a boundary: whether any rank is busy, has failed, or hasn't its part in memory. What was
        committed, if it was now.

        Raises on every rank what made the save fail; it is given up then.

        Args:
            claim: what rank 0 holds.
        """
        flight = self.flight
        if flight is None:
            return None
        if self._tier is not None and not unsealed and not flight.kept:
            flight.kept = True
            self._tier.keep()
        if busy:
            return None
        if not flight.committing:
            if failed:
                self.flight = None
                raise next(error for error in self._gang.gather(flight.error) if error is not None)

            def begin(by_rank: list[list[Landed]]) -> list[None]:
                assert claim is not None
                flight.commit = in_background(lambda: self._commit(flight.heading, [*chain(*by_rank)], claim))
                return [None] * len(by_rank)

            self._gang.share_out(flight.files.result(), begin)
            flight.committing = True
            return None
        self.flight = None

        def outcome() -> tuple[Checkpoint, Claim]:
            assert flight.commit is not None
            return flight.commit.result()

        return self._gang.on_leader(outcome)

    def wait(self, claim: Claim | None) -> tuple[Checkpoint, Claim | None] | None:
        """Until the save in flight is over: what `advance` tells. None when there is none."""
        while self.flight is not None:
            self._hand_over(wait=True)
            flight = self.flight
            flight.judge("")  # no step was made since, or its end has judged
            pending = flight.commit if flight.committing else flight.files
            if pending is not None:
                pending.exception()
            flight.sealed.exception()
            _, failed, unsealed = map(bool, self._gang.sum([float(each) for each in self.word()]))
            done = self.advance(busy=False, failed=failed, unsealed=unsealed, claim=claim)
            if done is not None:
                return done
        return None

    def _commit(self, heading: Heading, landed: list[Landed], claim: Claim) -> tuple[Checkpoint, Claim]:
        """On rank 0, in a thread that mostly waits for the storage process."""
        for key, content in heading.beside:
            self._store.put(key, content)
        files = tuple(each.file for each in landed)
        record = Manifest(
            step=heading.step,
            epoch=heading.epoch,
            attempt=heading.attempt,
            parent=heading.parent,
            parent_sha256=heading.parent_sha256,
            milestone=heading.milestone,
            milestone_sha256=heading.milestone_sha256,
            files=files,
            planner={"tensors": WithSums(self.planner.tensors, landed), "trees": heading.trees, "run": heading.run},
            world_size=heading.world_size,
            created_at=time.time(),
            job=heading.job,
            metrics=heading.metrics,
            measured=heading.measured,
        )
        content = manifests.encode(record)
        written = summary(Found(heading.prefix + MANIFEST_NAME, hashlib.sha256(content).hexdigest(), record))
        self._store.put(written.key, content)
        held = commit(
            self._store,
            claim,
            step=heading.step,
            manifest_key=written.key,
            sha256=written.sha256,
            finished=heading.finished,
            parent=(heading.parent, heading.parent_sha256),
        )
        return written, held
