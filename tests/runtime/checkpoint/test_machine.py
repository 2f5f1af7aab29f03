"""Save, crash, restart, prune and restore in any order, against a model of what must be there."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

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
from made import Cut, MadeRun, WatchedStore, die, latest_key, read_whole

from muster_protocol.checkpoints import file_store
from muster_protocol.checkpoints.chain import Found, candidates
from muster_protocol.checkpoints.commit import read_latest
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.checkpoints.holds import release, tag
from muster_protocol.checkpoints.inventory import take
from muster_protocol.checkpoints.prune import carry_out
from muster_protocol.checkpoints.retention import Retention, plan
from muster_protocol.uris import CheckpointUri

DAYS_LATER = 10**6


class Run(RuleBasedStateMachine):
    """`chain`: the manifests that were committed, newest first; `tags`: what each tag is on."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine-"))
        self.store = FileStore(CheckpointUri("file", "", str(self.folder)))
        self.run = MadeRun(self.store)
        self.chain: list[str] = []
        self.tags: dict[str, str] = {}
        self.tagged = self.step = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.run.start()

    @rule()
    def save(self) -> None:
        self.step += 1
        self.chain.insert(0, self.run.save(self.step))

    @rule(call=st.integers(0, 12), after=st.booleans())
    def crash_in_a_save(self, call: int, after: bool) -> None:
        """The gang dies at a call of a save; the next one starts."""
        self.step += 1
        self.run.store = WatchedStore(self.store, **{"after" if after else "at": {call: die}})  # type: ignore[assignment]
        with contextlib.suppress(Cut):
            self.run.save(self.step)
        self.run.store = self.store
        newest = latest_key(self.store)
        if newest and newest not in self.chain:
            self.chain.insert(0, newest)
        self.restart()

    @rule()
    def restart(self) -> None:
        self.run.start()

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
            assert read_whole(self.store, each.key) == self.run.weights[each.key]

    @invariant()
    def a_restore_falls_back_on_the_two_before(self) -> None:
        claim = read_latest(self.store)
        if claim is None or not self.chain:
            return
        found = [each.key for each in candidates(self.store, claim.latest) if isinstance(each, Found)]
        assert found[:3] == self.chain[:3]
        assert set(self.tags.values()) <= {each.key for each in take(self.store).committed}


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small files are written here, and no power is cut."""
    monkeypatch.setattr(file_store.os, "fsync", lambda _: None)


def test_any_order_of_saves_crashes_and_prunes() -> None:
    run_state_machine_as_test(
        Run,
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
