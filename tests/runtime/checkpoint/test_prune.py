"""Pruning against crashes at every call, readers, other prunes and gangs: nothing that stays is ever lost."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from made import Cut, MadeRun, MemoryStore, WatchedStore, die, latest_key, read_whole

from muster_protocol import manifest as manifests
from muster_protocol.checkpoints.chain import Found, candidates
from muster_protocol.checkpoints.commit import claim_epoch, read_latest
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.checkpoints.holds import (
    HOLD_SECONDS,
    SKEW_SECONDS,
    held,
    read_holds,
    release,
    tag,
    tombstones,
)
from muster_protocol.checkpoints.inventory import choose, find_start, take
from muster_protocol.checkpoints.prune import Outcome, carry_out
from muster_protocol.checkpoints.retention import Plan, Retention, plan
from muster_protocol.checkpoints.store import Store
from muster_protocol.errors import CorruptCheckpointError, StaleEpochError, StateError, StorageError, storage_error
from muster_protocol.manifest import Hold
from muster_protocol.uris import CheckpointUri

if TYPE_CHECKING:
    from conftest import Opener

STEPS = (1, 2, 3, 4, 5, 6)
RULES = Retention(last=3, every=2)


def pruned(store: Store, rules: Retention = RULES, now: Callable[[], float] = time.time) -> Outcome:
    return carry_out(store, plan(take(store), rules, now()), now)


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def made(memory: MemoryStore) -> MadeRun:
    """A run with six checkpoints, of which RULES let 1 and 3 go."""
    run = MadeRun(memory)
    run.start()
    for step in STEPS:
        run.save(step)
    return run


def keys_of(run: MadeRun) -> dict[int, str]:
    return {int(key[5:13]): key for key in run.weights}


def assert_whole(run: MadeRun, store: Store, steps: tuple[int, ...]) -> None:
    for step in steps:
        key = keys_of(run)[step]
        assert read_whole(store, key) == run.weights[key], step


def names(store: Store) -> list[str]:
    return [item.key for item in store.objects("")]


def test_what_no_rule_keeps_is_gone_and_all_else_is_whole(made: MadeRun) -> None:
    outcome = pruned(made.store)
    assert sorted(removal.folder.step for removal in outcome.removed) == [1, 3]
    assert_whole(made, made.store, (2, 4, 5, 6))
    assert not [key for key in names(made.store) if key.startswith(("step-00000001", "step-00000003"))]
    assert not [key for key in names(made.store) if "TOMBSTONE" in key]
    assert pruned(made.store).removed == []


def test_what_is_kept_is_known_as_committed_when_its_neighbours_are_gone(made: MadeRun) -> None:
    pruned(made.store)
    pruned(made.store, Retention(last=3))
    assert [each.step for each in take(made.store).committed] == [6, 5, 4]
    made.start()
    for step in range(7, 14):
        made.save(step)
        pruned(made.store, Retention(last=1, every=4))
    assert sorted(each.step for each in take(made.store).committed) == [4, 8, 11, 12, 13]
    # and nothing of it is ever taken for an orphan, however old
    assert pruned(made.store, Retention(last=1, every=4), lambda: time.time() + 10**7).removed == []


def calls_of_a_prune(memory: MemoryStore, rules: Retention = RULES) -> int:
    watched: Any = WatchedStore(memory.copy())
    pruned(watched, rules)
    return int(watched.calls)


@pytest.mark.parametrize("when", ["at", "after"])
@pytest.mark.parametrize(("rules", "stay"), [(RULES, (2, 4, 5, 6)), (Retention(last=1), (4, 5, 6))], ids=str)
def test_cut_at_any_call_nothing_that_stays_is_lost_and_the_next_prune_ends_it(
    made: MadeRun, memory: MemoryStore, when: str, rules: Retention, stay: tuple[int, ...]
) -> None:
    """Also of several in a row: what goes first must not be all that leads to the others."""
    clean = memory.copy()
    pruned(clean, rules)
    calls = calls_of_a_prune(memory, rules)
    assert calls > 20
    for number in range(calls):
        store = memory.copy()
        watched: Any = WatchedStore(store, **{when: {number: die}})
        with pytest.raises(Cut):
            pruned(watched, rules)
        assert latest_key(store) == keys_of(made)[6]
        assert_whole(made, store, stay)
        for found in take(store).committed:  # what still looks like a checkpoint is one
            assert read_whole(store, found.key) == made.weights[found.key], (number, found.step)
        pruned(store, rules)
        assert names(store) == names(clean), number


def test_a_reader_that_got_its_hold_reads_all_whenever_it_comes(made: MadeRun, memory: MemoryStore) -> None:
    """The reader's two calls, its hold and its look for a tombstone, fall before any two calls of a prune."""
    victim = keys_of(made)[3]
    calls = calls_of_a_prune(memory)
    admitted = refused = 0
    for first in range(calls + 1):
        for second in range(first, min(first + 12, calls + 1)):
            store = memory.copy()
            reader = _Reader(store, victim)
            watched: Any = WatchedStore(store, at={first: reader.begin})
            reader.look_at = second
            if second == first:
                watched.at[first] = reader.both
            else:
                watched.at[second] = reader.look
            pruned(watched)
            reader.look() if reader.began and not reader.looked else None
            if reader.admitted:
                admitted += 1
                assert read_whole(store, victim) == made.weights[victim], (first, second)
            else:
                refused += 1
            assert_whole(made, store, (2, 4, 5, 6))
    assert admitted
    assert refused


class _Reader:
    """`holds.held` in two steps."""

    def __init__(self, store: Store, key: str) -> None:
        self.store, self.key, self.look_at = store, key, 0
        self.began = self.looked = self.admitted = False
        self._context: Any = None

    def begin(self) -> None:
        self.store.put("holds/reader.json", manifests.encode(Hold("reader", "a reader", time.time() + 60, self.key)))
        self.began = True

    def look(self) -> None:
        self.looked = True
        self.admitted = not tombstones(self.store, self.key) and self.store.get(self.key) is not None

    def both(self) -> None:
        self.begin()
        self.look()


def test_another_prune_at_any_call_changes_nothing_of_the_end(made: MadeRun, memory: MemoryStore) -> None:
    clean = memory.copy()
    pruned(clean)
    for number in range(calls_of_a_prune(memory)):
        store = memory.copy()
        watched: Any = WatchedStore(store, at={number: lambda store=store: pruned(store) and None})  # type: ignore[misc]
        pruned(watched)
        assert names(store) == names(clean), number
        assert_whole(made, store, (2, 4, 5, 6))


def test_a_gang_that_claims_at_any_call_stops_the_prune(made: MadeRun, memory: MemoryStore) -> None:
    calls = calls_of_a_prune(memory)
    stopped = 0
    for number in range(calls):
        store = memory.copy()
        watched: Any = WatchedStore(store, at={number: lambda store=store: claim_epoch(store, "b") and None})  # type: ignore[misc]
        with contextlib.suppress(StaleEpochError):
            pruned(watched)
            stopped -= 1
        stopped += 1
        assert_whole(made, store, (2, 4, 5, 6))
        pruned(store)
        assert not [key for key in names(store) if "TOMBSTONE" in key]
    assert stopped > calls / 2


def test_a_run_that_goes_back_to_what_is_being_deleted_keeps_it(made: MadeRun) -> None:
    store = made.store
    waiting = plan(take(store), RULES, time.time())
    assert [removal.folder.step for removal in waiting.removals] == [3, 1]
    claim = read_latest(store)
    assert claim is not None
    body = store.get(keys_of(made)[3])
    assert body is not None
    back = replace(claim.latest, manifest=keys_of(made)[3], step=3, parent="", parent_sha256="")
    store.put("LATEST", manifests.encode(back))
    outcome = carry_out(store, waiting, time.time)
    assert outcome.spared == [("step-00000003/1-0/", "LATEST names it now")]
    assert_whole(made, store, (3,))


def test_what_is_held_when_its_turn_comes_is_still_known_as_committed(made: MadeRun, memory: MemoryStore) -> None:
    """A job that starts from it may start again before it has saved anything."""
    planned = plan(take(memory), Retention(last=1), time.time())
    with held(memory, keys_of(made)[2], "a start", warn=pytest.fail):
        outcome = carry_out(memory, planned, time.time)
        assert [why for _, why in outcome.spared] == ["held by a start"]
        assert find_start(memory, 2).manifest.step == 2
    assert [each.folder.step for each in pruned(memory, Retention(last=1)).removed] == [2]
    assert not [key for key in names(memory) if key.startswith(("step-00000002", "kept/00000002"))]


def test_a_tag_is_kept_until_it_is_released(made: MadeRun) -> None:
    found = choose(take(made.store), 1)
    tag(made.store, found.key, found.sha256, "first", "me")
    assert [removal.folder.step for removal in pruned(made.store).removed] == [3]
    made.start()
    made.save(7)
    assert sorted(each.step for each in take(made.store).committed) == [1, 2, 4, 5, 6, 7]
    with pytest.raises(StateError, match="has no tag 'frist'; it has first"):
        release(made.store, "frist")
    with pytest.raises(StateError, match="on step-00000001/1-0 already"):
        tag(made.store, keys_of(made)[6], "", "first", "me")
    release(made.store, "first")
    assert 1 in [removal.folder.step for removal in pruned(made.store).removed]


def test_what_is_being_deleted_can_be_neither_tagged_nor_held(made: MadeRun) -> None:
    key = keys_of(made)[3]
    made.store.put("step-00000003/1-0/TOMBSTONE-1", b"{}")
    with pytest.raises(CorruptCheckpointError, match="is being deleted by a prune"):
        tag(made.store, key, "", "mine", "me")
    with pytest.raises(CorruptCheckpointError, match="is being deleted by a prune"), held(made.store, key, "me", print):
        pass
    assert read_holds(made.store) == []


def test_a_hold_is_renewed_and_removed(made: MadeRun) -> None:
    key = keys_of(made)[3]
    with held(made.store, key, "a test", print, seconds=0.06):
        (item,) = made.store.objects("holds/")
        first, until = made.store.get(item.key), time.monotonic() + 20
        while made.store.get(item.key) == first:
            assert time.monotonic() < until, "never renewed"
        assert read_holds(made.store)[0].manifest == key
    assert read_holds(made.store) == []


def test_a_hold_that_is_left_behind_does_nothing_when_it_is_collected(made: MadeRun) -> None:
    """A killed gang's: it expires. Requests from within a collection would come in the middle of anything."""
    stack = contextlib.ExitStack()
    stack.enter_context(held(made.store, "", "one that dies", print))
    del stack
    gc.collect()
    assert [hold.who for hold in read_holds(made.store)] == ["one that dies"]


def test_where_nothing_may_be_written_it_is_read_without_a_hold(tmp_path: Path) -> None:
    class ReadOnly(FileStore):
        def put(self, key: str, content: bytes) -> None:
            raise storage_error("AccessDenied", "no")

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_bytes(b"")
    store, told = ReadOnly(CheckpointUri("file", "", f"{tmp_path}/run")), list[str]()
    with held(store, "a", "me", told.append):
        pass
    assert "without a hold" in told[0]
    with pytest.raises(CorruptCheckpointError, match="b was deleted meanwhile"), held(store, "b", "me", told.append):
        pass


@pytest.mark.parametrize(
    ("readers", "pruners"), [(-7200, 0), (0, 7200), (-7200, 7200), (7200, -7200), (0, 1e6), (-1e6, 1e6), (1e6, -1e6)]
)
def test_what_is_read_stays_though_clocks_are_hours_or_days_off(made: MadeRun, readers: float, pruners: float) -> None:
    hold = Hold("reader", "a reader", time.time() + readers + HOLD_SECONDS, keys_of(made)[3])
    made.store.put("holds/reader.json", manifests.encode(hold))
    for _ in range(3):  # its hold stays, too
        pruned(made.store, now=lambda: time.time() + pruners)
        assert_whole(made, made.store, (3,))


def test_what_nobody_reads_any_more_goes_by_the_stores_clock(made: MadeRun, memory: MemoryStore) -> None:
    over = HOLD_SECONDS + SKEW_SECONDS + 1
    hold = Hold("reader", "a reader that died", time.time() - over, keys_of(made)[3])
    made.store.put("holds/reader.json", manifests.encode(hold))
    assert [removal.folder.step for removal in pruned(made.store).removed] == [1]
    memory.written["holds/reader.json"] -= over
    assert [removal.folder.step for removal in pruned(made.store).removed] == [3]


def test_a_hold_that_can_not_be_read_holds_everything(made: MadeRun, memory: MemoryStore) -> None:
    """A reader's for as long as others; what is no hold at all, such as the folder that a console makes, too."""
    for key in ("holds/1760000000-0123abcd.json", "holds/", "holds/.DS_Store"):
        made.store.put(key, b'{"version": 99}')
        assert pruned(made.store).removed == []
        made.store.put(key, b"{")
        assert pruned(made.store).removed == []
        memory.written[key] -= 3600
    assert len(pruned(made.store).removed) == 2


def test_a_tag_that_can_not_be_read_holds_everything_until_it_is_released(made: MadeRun, memory: MemoryStore) -> None:
    found = take(made.store).committed[0]
    made.store.put("holds/paper.json", b'{"version": 99}')
    memory.written["holds/paper.json"] -= 30 * 24 * 3600
    outcome = pruned(made.store)
    assert (outcome.removed, outcome.spared) == ([], [])
    assert "held by holds/paper.json, which can't be read" in str(plan(take(made.store), RULES, time.time()).kept)
    with pytest.raises(StateError, match="'paper' is there, though it can't be read, already; release it first"):
        tag(made.store, found.key, found.sha256, "paper", "me")
    release(made.store, "paper")
    assert len(pruned(made.store).removed) == 2


@pytest.mark.parametrize("folder", ["holds", "kept", "step-00000002"])
def test_a_folder_that_can_not_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """What a prune spares may be named, or lie, just there."""
    made = MadeRun(FileStore(CheckpointUri("file", "", str(tmp_path))))
    made.start()
    for step in STEPS:
        made.save(step)
    pruned(made.store)
    found = take(made.store).committed[-1]
    tag(made.store, found.key, found.sha256, "paper", "me")
    before, real = names(made.store), os.scandir

    def stale(path: str) -> Any:
        if folder in str(path):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", stale)
        with pytest.raises(StorageError, match=f"{folder}.*: Stale file handle"):
            pruned(made.store, Retention(last=1))
    assert names(made.store) == before


def test_a_hold_that_calls_itself_otherwise_frees_nothing_but_itself(tmp_path: Path) -> None:
    made = MadeRun(FileStore(CheckpointUri("file", "", str(tmp_path / "run"))))
    made.start()
    made.save(1)
    (tmp_path / "other.json").touch()
    made.store.put("holds/mine.json", manifests.encode(Hold("../../other", "somebody", 0.0)))
    days_ago = time.time() - 2 * 24 * 3600
    os.utime(tmp_path / "run/holds/mine.json", (days_ago, days_ago))
    pruned(made.store)
    assert (tmp_path / "other.json").exists()
    assert made.store.objects("holds/") == []


def test_orphans_and_uploads_of_a_gang_that_died_go_a_day_later(tmp_path: Path) -> None:
    store = FileStore(CheckpointUri("file", "", str(tmp_path)))
    made = MadeRun(store)
    made.start()
    for step in STEPS:
        made.save(step)
    made.write(7)
    made.write(8, whole=False)
    writer = store.writer("step-00000009/1-0/rank-00000.bin")
    writer.write(memoryview(b"half"))
    tomorrow = lambda: time.time() + 25 * 3600  # noqa: E731
    assert pruned(made.store, now=tomorrow).forgotten == ()
    made.start()
    made.save(10)
    assert [removal.why for removal in pruned(made.store).removed if removal.folder.step in (7, 8)] == []
    outcome = pruned(made.store, now=tomorrow)
    assert {removal.folder.step for removal in outcome.removed} == {7, 8}
    assert len(outcome.forgotten) == 1
    assert made.store.unfinished() == []


def test_what_a_run_that_is_over_never_committed_goes_a_day_later(tmp_path: Path) -> None:
    """Nobody claims another epoch then, so its last one is over with its end."""
    made = MadeRun(FileStore(CheckpointUri("file", "", str(tmp_path))))
    made.start()
    made.write(7)
    writer = made.store.writer("step-00000008/1-0/rank-00000.bin")
    writer.write(memoryview(b"half"))
    tomorrow = lambda: time.time() + 25 * 3600  # noqa: E731
    made.save(9)
    assert pruned(made.store, now=tomorrow).removed == []
    made.save(10, finished=True)
    assert pruned(made.store).removed == []
    outcome = pruned(made.store, now=tomorrow)
    assert [removal.folder.step for removal in outcome.removed] == [7]
    assert len(outcome.forgotten) == 1


def test_a_lost_link_makes_no_orphans_of_what_was_committed(made: MadeRun) -> None:
    """Somebody has deleted step 4 by hand before the first prune: 1 to 3 can't be told from uncommitted ones."""
    for item in made.store.objects("step-00000004/"):
        made.store.delete([item.key])
    made.start()
    made.save(10)
    pruned(made.store, now=lambda: time.time() + 10**7)
    assert_whole(made, made.store, (1, 2, 3, 5, 6, 10))


def test_a_damaged_manifest_makes_no_orphans_of_its_parents(made: MadeRun) -> None:
    made.store.put(keys_of(made)[4], b"{")
    made.start()
    made.save(10)
    pruned(made.store, now=lambda: time.time() + 10**7)
    assert_whole(made, made.store, (1, 2, 3, 5, 6, 10))


def test_many_at_once_on_a_real_server(opener: Opener) -> None:
    """Two prunes, readers and a gang that saves, at the same time: every reader that was let in read all."""
    run = MadeRun(opener())
    run.start()
    for step in range(1, 4):
        run.save(step)
    done = threading.Event()
    rules = Retention(last=3, every=5)

    def prune() -> int:
        store, removed, last = opener(), 0, False
        while not last:
            last = done.is_set()
            removed += len(pruned(store, rules).removed)
        return removed

    def read() -> int:
        store, whole, last = opener(), 0, False
        while not last:
            last = done.is_set()
            for found in take(store, unfinished=False).committed:
                with contextlib.suppress(CorruptCheckpointError), held(store, found.key, "a reader", print):
                    if store.get(found.key) is None:
                        continue  # deleted before it was held
                    assert read_whole(store, found.key) == run.weights[found.key]
                    whole += 1
        return whole

    with ThreadPoolExecutor(4) as pool:
        prunes = [pool.submit(prune) for _ in range(2)]
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for step in range(4, 16):
                run.save(step)
        finally:
            done.set()
        assert sum(reader.result() for reader in readers)
        removed = sum(each.result() for each in prunes)
    assert removed + len(pruned(run.store, rules).removed) >= 8
    step = 16
    assert_whole(run, run.store, tuple(range(step - 3, step)))
    assert_whole(run, run.store, tuple(range(5, step, 5)))
    claim = read_latest(run.store)
    assert claim is not None
    first = next(iter(candidates(run.store, claim.latest)))
    assert isinstance(first, Found)
    assert first.manifest.step == step - 1


def test_a_plan_without_removals_writes_nothing(made: MadeRun) -> None:
    before = names(made.store)
    assert carry_out(made.store, Plan(1), time.time).removed == []
    assert names(made.store) == before
