"""Save, crash, restart at another size, prune and restore in any order, against a model of what must be there.

MUSTER_THOROUGH=1: more orders, and longer ones.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from made import Cut, WatchedStore, die, latest_key
from threads import Ranks, own, whole

from muster_protocol.checkpoints import file_store
from muster_protocol.checkpoints.chain import Found, candidates, read_manifest
from muster_protocol.checkpoints.commit import read_latest
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.checkpoints.holds import release, tag
from muster_protocol.checkpoints.inventory import Checkpoint, take
from muster_protocol.checkpoints.prune import carry_out
from muster_protocol.checkpoints.retention import Retention, plan
from muster_protocol.checkpoints.tensors import content, tensors_of
from muster_protocol.errors import StaleEpochError
from muster_protocol.uris import CheckpointUri
from muster_runtime.checkpoint import transfers
from muster_runtime.checkpoint.layout import raw_bytes
from muster_runtime.checkpoint.tree import TensorTable

EXAMPLES, STEPS = (300, 60) if os.environ.get("MUSTER_THOROUGH") else (30, 30)
DAYS_LATER = 10**6


class Lost(Exception):
    """Rank 0 died here."""


def lose() -> None:
    raise Lost


class Run(RuleBasedStateMachine):
    """`chain`: the manifests that were committed, newest first; `tags`: what each tag is on.

    A save is staged, then written, then committed, then known to be: everything else may happen between any two.
    """

    resharded: ClassVar[set[tuple[int, int]]] = set()
    """Sizes of gangs that saved, and of others that restored that."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine-"))
        self.store = self.open()
        self.chain: list[str] = []
        self.tags: dict[str, str] = {}
        self.tagged = self.step = 0
        self.ranks: Ranks | None = None
        self.zombies: list[Ranks] = []

    def open(self) -> FileStore:
        return FileStore(CheckpointUri("file", "", str(self.folder)))

    def teardown(self) -> None:
        for ranks in [*self.zombies, *([self.ranks] if self.ranks else [])]:
            ranks.close()
        shutil.rmtree(self.folder)

    @initialize(size=st.integers(1, 3))
    def begin(self, size: int) -> None:
        self.start([self.open() for _ in range(size)])

    def start(self, stores: list[Any]) -> None:
        """A gang claims the run and restores; the one before is not told."""
        if self.ranks is not None:
            self.zombies.append(self.ranks)
        self.ranks = Ranks(stores)
        found = self.ranks.restore()
        assert (found.key if found else "") == (self.chain[0] if self.chain else "")
        if found is not None and found.manifest.world_size != self.ranks.size:
            self.resharded.add((found.manifest.world_size, self.ranks.size))

    @property
    def gang(self) -> Ranks:
        assert self.ranks is not None
        return self.ranks

    @property
    def in_flight(self) -> bool:
        return self.gang.keepers[0].in_flight is not None

    @precondition(lambda self: not self.in_flight)
    @rule()
    def stage(self) -> None:
        self.step += 1
        self.gang.begin(self.step)

    @precondition(lambda self: self.in_flight)
    @rule()
    def write(self) -> None:
        self.gang.write()

    @precondition(lambda self: self.in_flight)
    @rule()
    def boundary(self) -> None:
        saved = self.gang.boundary()
        self.note_commit()
        if saved is not None:
            assert self.chain[0].startswith(f"step-{saved.step:08d}/{self.gang.epoch}-")

    def note_commit(self) -> None:
        """The gang's commit may have succeeded, and then it is of the save in flight."""
        newest = latest_key(self.store)
        if newest not in self.chain and newest:
            assert newest.startswith(f"step-{self.step:08d}/{self.gang.epoch}-")
            self.chain.insert(0, newest)

    @rule(size=st.integers(1, 3))
    def restart(self, size: int) -> None:
        """The gang is replaced by one of any size, at whatever it was."""
        self.start([self.open() for _ in range(size)])

    @rule(call=st.integers(0, 12), after=st.booleans(), size=st.integers(1, 3))
    def crash_in_a_save(self, call: int, after: bool, size: int) -> None:
        """Rank 0 dies at a call of a save; another gang starts."""
        if not self.in_flight:
            self.stage()
        watched = WatchedStore(self.store, **{"after" if after else "at": {call: lose}})  # type: ignore[arg-type]
        keeper = self.gang.keepers[0]
        keeper._store = keeper.saver._store = keeper._transfers._store = watched  # type: ignore[attr-defined]
        with contextlib.suppress(Lost):
            for _ in range(3):
                self.gang.write()
                self.gang.boundary()
        self.note_commit()
        watched.at, watched.after = {}, {}
        self.gang.close()
        self.ranks = None
        self.start([self.open() for _ in range(size)])

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def a_zombie_goes_on(self, data: st.DataObject) -> None:
        zombie = self.zombies.pop(data.draw(st.integers(0, len(self.zombies) - 1)))
        with contextlib.suppress(StaleEpochError):
            zombie.write()
            for _ in range(2):
                assert zombie.boundary() is None or latest_key(self.store) in self.chain
        zombie.close()

    @precondition(lambda self: self.chain)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        found = data.draw(st.sampled_from(take(self.store).committed))
        self.tagged += 1
        name = f"tag-{self.tagged}"
        if not take(self.store).folders[found.prefix].tombstones:
            tag(self.store, found.key, found.sha256, name, "me")
            self.tags[name] = found.key

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tags)))
        release(self.store, name)
        del self.tags[name]

    @rule(
        last=st.integers(1, 5),
        every=st.sampled_from([None, 2, 5]),
        cut=st.one_of(st.none(), st.integers(0, 60)),
        later=st.sampled_from([0, DAYS_LATER]),
    )
    def prune(self, last: int, every: int | None, cut: int | None, later: int) -> None:
        before = take(self.store)
        rules, now = Retention(last, every), time.time() + later
        watched: Any = WatchedStore(self.store, at={} if cut is None else {cut: die})
        with contextlib.suppress(Cut):
            carry_out(watched, plan(take(watched), rules, now), lambda: now)
        there = {each.key for each in take(self.store).committed}
        kept = {each.key for each in before.committed[: max(last, 3)]}
        kept |= {each.key for each in before.committed if every and each.step % every == 0}
        kept |= set(self.tags.values())
        assert kept <= there
        assert there <= {each.key for each in before.committed}
        if cut is None:
            assert there == kept

    @invariant()
    def latest_is_the_last_commit_and_what_is_committed_is_whole(self) -> None:
        assert latest_key(self.store) == (self.chain[0] if self.chain else "")
        for each in take(self.store).committed:
            self.check(each)

    def check(self, checkpoint: Checkpoint) -> None:
        """Every bit of it, as the tools read it."""
        found = read_manifest(self.store, checkpoint.key, checkpoint.sha256)
        expected: TensorTable = whole(checkpoint.step, checkpoint.epoch)
        for rank in range(found.manifest.world_size):
            expected[f"own.{rank}"] = own(checkpoint.step, checkpoint.epoch, rank)
        tensors = tensors_of(found.manifest)
        assert tensors.keys() == expected.keys()
        for name, tensor in tensors.items():
            assert b"".join(content(self.store, tensor)) == bytes(raw_bytes(expected[name]))

    @invariant()
    def a_restore_falls_back_on_the_two_before(self) -> None:
        claim = read_latest(self.store)
        if claim is None or not self.chain:
            return
        found = [each.key for each in candidates(self.store, claim.latest) if isinstance(each, Found)]
        assert found[:3] == self.chain[:3]
        assert set(self.tags.values()) <= {each.key for each in take(self.store).committed}


@pytest.fixture(autouse=True)
def _small_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors this small are cut, too. No power is cut here."""
    monkeypatch.setattr(transfers, "SMALLEST_PIECE", 1 << 12)
    monkeypatch.setattr(transfers, "LARGEST_PIECE", 1 << 12)
    monkeypatch.setattr(file_store.os, "fsync", lambda _: None)


@pytest.mark.timeout(1800)
def test_any_order_of_saves_crashes_and_prunes() -> None:
    Run.resharded.clear()
    run_state_machine_as_test(
        Run,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert len(Run.resharded) >= 4, f"sizes at a save and at its restore: {sorted(Run.resharded)}"
