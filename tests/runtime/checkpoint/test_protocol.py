"""The commit protocol, in every order of its calls: gangs that claim, restore and commit, prunes and readers, with
crashes and with requests that get no answer, come late or come twice. What runs is the code itself, not a model of it.

Each rule of the protocol is then taken away in turn: without it there is an order of calls that loses something.

MUSTER_THOROUGH=1 allows more faults at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from explore import NOW, Explorer, Process, Replayed, etag_of
from made import MadeRun, MemoryStore, is_whole

from muster_protocol.checkpoints import chain, commit, holds, prune, retention
from muster_protocol.checkpoints.chain import Found, read_manifest
from muster_protocol.checkpoints.commit import Claim, LostRace, claim_epoch, read_latest
from muster_protocol.checkpoints.holds import held
from muster_protocol.checkpoints.inventory import Inventory, Link, take
from muster_protocol.checkpoints.prune import carry_out
from muster_protocol.checkpoints.retention import Removal, Retention, plan
from muster_protocol.checkpoints.store import Store
from muster_protocol.checkpoints.tensors import content, tensors_of
from muster_protocol.errors import CorruptCheckpointError, StaleEpochError
from muster_protocol.manifest import Latest

SAVED = 4
"""Checkpoints that lie there at the start; of them the prune may delete the first alone."""
RULES = Retention(last=1)
THOROUGH = bool(os.environ.get("MUSTER_THOROUGH"))
Objects = dict[str, bytes]


@pytest.fixture(autouse=True)
def _the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", secrets.token_hex)  # put back what `explore` changes
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(commit, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(commit, "_TRIES", 2)  # so that few faults are enough for a write to be given up


# ---------------------------------------------------------------------------------------------- who takes part


def gang(*steps: int) -> Process:
    """Claims the run, restores, then saves `steps`."""

    def run(store: Replayed) -> None:
        claim = claim_epoch(store, "job")
        with ExitStack() as hold:
            _save(store, claim, restored(store, claim.latest, hold), steps, hold)

    return run


def going_on(store: Store, *steps: int) -> Process:
    """A gang that holds the run already, and saves `steps`."""
    claim = read_latest(store)
    assert claim is not None
    held_now: Claim = claim
    return lambda store: _save(store, held_now, (held_now.latest.manifest, held_now.latest.sha256), steps, ExitStack())


def _save(store: Replayed, claim: Claim, parent: Link, steps: tuple[int, ...], fallback: ExitStack) -> None:
    made = MadeRun(store, claim=claim, parent=parent)
    try:
        for step in steps:
            store.tell(made.save(step))
            fallback.close()
    except StaleEpochError:
        now = read_latest(store)
        assert now is None or now.latest.epoch != claim.latest.epoch, "told that it was replaced, and it was not"
        raise


def restored(store: Replayed, latest: Latest, fallback: ExitStack) -> Link:
    """As a `Keeper` does it: the manifest that the run goes on from. What it fell back on stays held by `fallback`."""
    with ExitStack() as hold:
        hold.enter_context(held(store, "", "a restore", _quiet))
        for found in chain.restorable(store, latest):
            if isinstance(found, Found) and is_whole(store, found):
                if found.key != latest.manifest:
                    fallback.enter_context(hold.pop_all())
                return found.key, found.sha256
    raise CorruptCheckpointError("nothing is left to restore")


def _quiet(_: str) -> None:
    """Of a hold that could not be written; that is tried in many states."""


def pruner(store: Store, rules: Retention = RULES) -> Process:
    """A prune as a gang does it: what it knows already is not read again."""
    known = {each.key: each for each in take(store).committed}
    return lambda store: carry_out(store, plan(take(store, known), rules, NOW), lambda: NOW) and None


def reader(step: int) -> Process:
    """`verify`, `cp`, or another job's start from this checkpoint."""

    def run(store: Replayed) -> None:
        found = read_manifest(store, key_of(step))
        with held(store, found.key, "a reader", _quiet):
            assert is_whole(store, found), f"{found.key} was deleted under its reader"

    return run


def exporter(step: int) -> Process:
    """`muster checkpoint export`."""

    def run(store: Replayed) -> None:
        found = read_manifest(store, key_of(step))
        with held(store, found.key, "an export", _quiet):
            try:
                for tensor in tensors_of(found.manifest).values():
                    list(content(store, tensor))
            except CorruptCheckpointError as error:
                raise AssertionError(f"{found.key} was deleted under its export") from error

    return run


def key_of(step: int) -> str:
    return f"step-{step:08d}/1-0/manifest.json"


# ---------------------------------------------------------------------------------------------- what must hold


def nothing_is_half_there(objects: Objects) -> str:
    """LATEST's checkpoint and its two ancestors are whole, and whatever else `ls` shows."""
    store = MemoryStore(objects)
    inventory = take(store)
    if inventory.damaged:
        return inventory.damaged[0].reason
    if len(inventory.committed) < SAVED - 1:
        return "an ancestor of LATEST's checkpoint is gone"
    halves = [each.key for each in inventory.committed if not is_whole(store, read_manifest(store, each.key))]
    return f"{halves[0]} counts as committed and is not whole" if halves else ""


def one_history(before: Objects, after: Objects) -> str:
    """Epochs rise one by one, and who commits holds the epoch that LATEST has."""
    old, new = (read_latest(MemoryStore(objects)) for objects in (before, after))
    if new is None or old is None:
        return "LATEST is gone"
    claims = new.latest.manifest == old.latest.manifest and new.latest.epoch == old.latest.epoch + 1
    if new.latest.epoch != old.latest.epoch and not claims:
        return f"epoch {new.latest.epoch} commits {new.latest.manifest} over epoch {old.latest.epoch}"
    return ""


def nothing_is_lost(objects: Objects, told: frozenset[str]) -> str:
    """What a gang was told to be committed is what LATEST names, or an ancestor of it."""
    claim = read_latest(MemoryStore(objects))
    found = chain.candidates(MemoryStore(objects), claim.latest) if claim else ()
    missing = told - {each.key for each in found}
    return f"{min(missing)} was told to be committed, and LATEST does not lead to it" if missing else ""


def run_of(steps: int) -> MemoryStore:
    store = MemoryStore()
    made = MadeRun(store)
    made.start()
    for step in range(1, steps + 1):
        made.save(step)
    return store


def explored(
    store: MemoryStore,
    processes: dict[str, Process],
    holds: Callable[[Objects], str] = nothing_is_half_there,
    **more: Any,
) -> tuple[str, Explorer]:
    explorer = Explorer(processes, dict(store.everything), holds, one_history, nothing_is_lost, **more)
    return explorer.run(), explorer


# ---------------------------------------------------------------------------------------------- that it does

Case = Callable[[MemoryStore], dict[str, Process]]
CASES: dict[str, tuple[Case, dict[str, int], int]] = {
    # who takes part; what may go wrong; at least so many states (so that a test that looks at little is noticed)
    "two gangs that save twice": (lambda _: {"a": gang(5, 6), "b": gang(5)}, {"crashes": 1}, 3_000),
    "two gangs on a bad network": (
        lambda _: {"a": gang(5), "b": gang(5)}, {"faults": 1 + THOROUGH, "crashes": 1}, 20_000
    ),
    "a gang that was replaced": (
        lambda store: {"old": going_on(store, 5, 6), "new": gang(5)}, {"faults": 1 + THOROUGH, "crashes": 1}, 10_000
    ),
    "a prune beside a gang": (
        lambda store: {"gang": going_on(store, 5, 6), "prune": pruner(store)}, {"faults": 1, "crashes": THOROUGH}, 9000
    ),
    "a prune while a gang starts": (
        lambda store: {"gang": gang(5), "prune": pruner(store)}, {"faults": 1, "crashes": THOROUGH}, 9_000
    ),
    "a prune and a reader": (
        lambda store: {"reader": reader(1), "prune": pruner(store)}, {"faults": 1, "crashes": 1}, 1_000
    ),
    "a prune and an export": (
        lambda store: {"export": exporter(1), "prune": pruner(store)}, {"faults": 1, "crashes": 1}, 1_000
    ),
    "two prunes": (
        lambda store: {"one": pruner(store), "other": pruner(store)}, {"faults": THOROUGH, "crashes": 1}, 10_000
    ),
}  # fmt: skip
if THOROUGH:
    CASES["two prunes and a reader"] = (
        lambda store: {"one": pruner(store), "other": pruner(store), "reader": reader(1)}, {}, 100_000
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_in_every_order(name: str) -> None:
    who, bad, states = CASES[name]
    store = run_of(SAVED)
    trace, explorer = explored(store, who(store), **bad)
    print(f"{name}: {explorer.states:,} states, {len(explorer.ends):,} ends")
    assert not trace, trace
    assert explorer.states >= states


def fallen_back() -> MemoryStore:
    """All but the oldest checkpoint are damaged: a restore tries that one, which a prune would delete."""
    store = run_of(SAVED)
    for step in range(2, SAVED + 1):
        store.put(key_of(step).replace("manifest.json", "rank-00001.bin"), b"flipped")
    return store


def what_it_fell_back_on_stays(objects: Objects) -> str:
    """Once a gang has committed after a fallback, LATEST's checkpoint and the one before it are whole."""
    store = MemoryStore(objects)
    claim = read_latest(store)
    assert claim is not None
    if claim.latest.step == SAVED:
        return ""
    for each in (claim.latest.manifest, claim.latest.parent):
        if store.get(each) is None or not is_whole(store, read_manifest(store, each)):
            return f"{each} is not whole"
    return ""


def fallback(store: MemoryStore) -> dict[str, Process]:
    return {"gang": gang(5), "prune": pruner(store)}


def test_a_prune_while_a_gang_falls_back_on_what_would_go() -> None:
    store = fallen_back()
    trace, explorer = explored(store, fallback(store), what_it_fell_back_on_stays, faults=1, crashes=1)
    print(f"{explorer.states:,} states, {len(explorer.ends):,} ends")
    assert not trace, trace
    assert explorer.states >= 10_000


# ---------------------------------------------------------------------------------------------- that it would tell


def two_gangs(_: MemoryStore) -> dict[str, Process]:
    return {"a": gang(5, 6), "b": gang(5)}


def replaced(store: MemoryStore) -> dict[str, Process]:
    return {"old": going_on(store, 5, 6), "new": gang(5)}


def read_while_pruned(store: MemoryStore) -> dict[str, Process]:
    return {"reader": reader(1), "prune": pruner(store)}


def saved_while_pruned(store: MemoryStore) -> dict[str, Process]:
    return {"gang": going_on(store, 5), "prune": pruner(store)}


def _commit_unconditionally(patch: pytest.MonkeyPatch) -> None:
    put = Replayed.put
    patch.setattr(Replayed, "put_if", lambda self, key, content, _: put(self, key, content) or etag_of(content))


def _claim_without_writing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys.modules[__name__], "claim_epoch", lambda store, _: read_latest(store))


def _keep_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """A claim writes LATEST, but leaves its epoch."""

    def claim(store: Store, owner: str) -> Claim:
        while True:
            found = read_latest(store)
            assert found is not None
            with contextlib.suppress(LostRace):
                return commit._swap(store, found, replace(found.latest, owner=owner))

    patch.setattr(sys.modules[__name__], "claim_epoch", claim)


def _one_nonce(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replayed, "token", lambda *_: "same")


def _one_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("made.step_prefix", lambda step, *_: f"step-{step:08d}/1-0/")


def _believe_a_refusal(patch: pytest.MonkeyPatch) -> None:
    """Who is refused doesn't look whether the write that made LATEST another was its own."""

    def commit_once(store: Store, held: Claim, *, manifest_key: str, **more: Any) -> Claim:
        wanted = replace(held.latest, step=more["step"], manifest=manifest_key, sha256=more["sha256"], nonce="x")
        try:
            tag = store.put_if("LATEST", json.dumps(wanted.__dict__).encode(), held.etag)
        except Exception as error:
            raise StaleEpochError("refused") from error
        return Claim(wanted, tag)

    patch.setattr("made.commit", commit_once)


def _commit_first(patch: pytest.MonkeyPatch) -> None:
    """LATEST before what it names."""
    save = MadeRun.save

    def hasty(self: MadeRun, step: int) -> str:
        real, self.store = self.store, MemoryStore()
        link = self.write(step)
        self.store = real
        assert self.claim is not None
        self.claim = commit.commit(
            real, self.claim, step=step, manifest_key=link[0], sha256=link[1], finished=False, parent=self.parent
        )
        return save(self, step)

    patch.setattr(MadeRun, "save", hasty)


def _do_not_look_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prune._Deletion, "_needed", lambda _: "")


def _look_before_the_tombstone(patch: pytest.MonkeyPatch) -> None:
    run, needed = prune._Deletion.run, prune._Deletion._needed

    def early(self: Any) -> str:
        reason = needed(self)
        if reason != "another prune has taken it over":  # there is no tombstone yet
            return reason
        return run(self)

    patch.setattr(prune._Deletion, "run", early)
    patch.setattr(prune._Deletion, "_needed", lambda self: needed(self) if _is_called_by(early) else "")


def _is_called_by(function: Callable[..., Any]) -> bool:
    return sys._getframe(2).f_code is function.__code__


def _do_not_look_for_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prune, "holders", lambda *_: [])


def _read_without_a_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys.modules[__name__], "held", lambda *_: contextlib.nullcontext())


def _hold_without_a_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(holds, "refuse_if_doomed", lambda *_: None)


def _restore_without_a_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chain, "tombstones", lambda *_: [])


def _let_go_of_a_fallback(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExitStack, "pop_all", lambda _: ExitStack())


def _look_at_latest_first(patch: pytest.MonkeyPatch) -> None:
    """LATEST, then the holds."""
    needed = prune._Deletion._needed

    def swapped(self: Any) -> str:
        latest = read_latest(self._store)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(prune, "read_latest", lambda _: latest)
            return needed(self)

    patch.setattr(prune._Deletion, "_needed", swapped)


def _shards_first(patch: pytest.MonkeyPatch) -> None:
    run = prune._Deletion.run

    def backwards(self: Any) -> str:
        self._store.delete([key for key in self._left() if key.endswith(".bin")])
        return run(self)

    patch.setattr(prune._Deletion, "run", backwards)


def _delete_ancestors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention, "ANCESTORS", 0)


def _delete_what_is_under_way(patch: pytest.MonkeyPatch) -> None:
    def all_orphans(inventory: Inventory, *_: float) -> list[Removal]:
        return [Removal(folder, folder.manifest, "not committed", folder.bytes) for folder in inventory.orphans]

    patch.setattr(retention, "_orphans", all_orphans)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Case, dict[str, int]]] = {
    "LATEST is written unconditionally": (_commit_unconditionally, two_gangs, {}),
    "a gang starts without a claim": (_claim_without_writing, two_gangs, {}),
    "a claim takes no new epoch": (_keep_the_epoch, replaced, {}),
    "no nonce": (_one_nonce, two_gangs, {}),
    "attempts share their objects' names": (_one_name, replaced, {}),
    "a refusal is believed": (_believe_a_refusal, saved_while_pruned, {"faults": 1}),
    "LATEST before what it names": (_commit_first, two_gangs, {}),
    "a prune does not look again": (_do_not_look_again, read_while_pruned, {}),
    "the tombstone is not the first": (_look_before_the_tombstone, read_while_pruned, {}),
    "holds are not looked for": (_do_not_look_for_holds, read_while_pruned, {}),
    "a reader takes no hold": (_read_without_a_hold, read_while_pruned, {}),
    "a reader looks for no tombstone": (_hold_without_a_look, read_while_pruned, {}),
    "shards before their manifest": (_shards_first, saved_while_pruned, {}),
    "ancestors may go": (_delete_ancestors, saved_while_pruned, {}),
    "what is under way may go": (_delete_what_is_under_way, saved_while_pruned, {}),
    "a restore looks for no tombstone": (_restore_without_a_look, fallback, {}),
    "what a gang fell back on is not held": (_let_go_of_a_fallback, fallback, {}),
    "LATEST is looked at before the holds": (_look_at_latest_first, fallback, {}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_without_this_rule_something_is_lost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, who, bad = MUTANTS[name]
    falls_back = who is fallback
    store = fallen_back() if falls_back else run_of(SAVED)
    processes = who(store)
    mutate(monkeypatch)
    must_hold = what_it_fell_back_on_stays if falls_back else nothing_is_half_there
    trace, explorer = explored(store, processes, must_hold, **bad)
    assert trace, f"{explorer.states:,} states, and nothing is lost"
    print(trace)
