"""`LATEST`: one winner a round, no stale commit, and writes that time out are looked up."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from muster_protocol import manifest
from muster_protocol.checkpoints import commit as commits
from muster_protocol.checkpoints.commit import Claim, claim_epoch, commit, read_latest
from muster_protocol.checkpoints.store import Body, Store
from muster_runtime.errors import CorruptCheckpointError, PathConflictError, StaleEpochError, StorageError

if TYPE_CHECKING:
    from conftest import Opener

WRITERS = 8
ROUNDS = 5


def save(store: Store, claim: Claim, step: int, finished: bool = False) -> Claim:
    return commit(store, claim, step=step, manifest_key=f"step-{step}/m", sha256="0" * 64, finished=finished)


def test_eight_at_once_have_one_winner_each_round(opener: Opener) -> None:
    stores = [opener(), opener()] * (WRITERS // 2)  # each takes several requests at once
    etag = None
    with ThreadPoolExecutor(WRITERS) as pool:
        for number in range(ROUNDS):
            start = threading.Barrier(WRITERS)

            def write(who: int, number: int = number, etag: str | None = etag, start: Any = start) -> str | None:
                start.wait()
                try:
                    return stores[who].put_if("LATEST", f"{number} {who}".encode(), etag)
                except StorageError as error:
                    if error.kind != "PreconditionFailed":
                        raise
                    return None

            wins = [(who, tag) for who, tag in enumerate(pool.map(write, range(WRITERS))) if tag]
            assert len(wins) == 1, wins
            body = stores[0].get("LATEST")
            assert body is not None
            assert (body.content, body.etag) == (f"{number} {wins[0][0]}".encode(), wins[0][1])
            etag = wins[0][1]


def test_eight_gangs_claim_eight_epochs_and_the_last_alone_may_commit(opener: Opener) -> None:
    stores = [opener(), opener()] * (WRITERS // 2)  # each takes several requests at once
    with ThreadPoolExecutor(WRITERS) as pool:
        claims = list(pool.map(lambda who: claim_epoch(stores[who], f"job-{who}"), range(WRITERS)))
    assert sorted(claim.latest.epoch for claim in claims) == list(range(1, WRITERS + 1))
    for store, claim in zip(stores, claims, strict=True):
        if claim.latest.epoch == WRITERS:
            save(store, claim, 10)
        else:
            with pytest.raises(PathConflictError, match=r"another job's .* has taken over the run"):
                save(store, claim, 10)
    final = read_latest(stores[0])
    assert final is not None
    assert (final.latest.epoch, final.latest.step) == (WRITERS, 10)


def test_a_claim_keeps_what_was_committed(store: Store) -> None:
    save(store, claim_epoch(store, "a"), 7, finished=True)
    latest = claim_epoch(store, "b").latest
    assert (latest.epoch, latest.owner, latest.step, latest.finished) == (2, "b", 7, True)


def test_a_gang_of_the_same_job_that_was_replaced_is_in_no_conflict(store: Store) -> None:
    old = claim_epoch(store, "a")
    claim_epoch(store, "a", old)
    with pytest.raises(StaleEpochError, match="another gang has taken over") as caught:
        save(store, old, 10)
    assert not isinstance(caught.value, PathConflictError), "its job goes on"


def test_a_gang_that_lives_does_not_take_the_run_back_from_another_job(store: Store) -> None:
    held = claim_epoch(store, "a")
    assert claim_epoch(store, "b").latest.epoch == 2, "a job goes on from what one before it has left"
    with pytest.raises(PathConflictError, match=r"epoch 2, and this gang holds epoch 1\..* so it does not go on"):
        claim_epoch(store, "a", held)
    assert claim_epoch(store, "b").latest.epoch == 3
    assert claim_epoch(store, "a").latest.epoch == 4, "a new gang may: the other will find itself in conflict"


def test_a_latest_that_was_deleted_is_not_told_as_another_gangs(store: Store) -> None:
    claim = save(store, claim_epoch(store, "job"), 1)
    store.delete(["LATEST"])
    with pytest.raises(StaleEpochError, match=r"LATEST is gone: somebody has deleted it, .* step 2 was not committed"):
        save(store, claim, 2)
    assert store.get("LATEST") is None


def test_a_damaged_latest_is_no_fresh_start(store: Store) -> None:
    store.put("LATEST", b"{")
    with pytest.raises(CorruptCheckpointError, match="LATEST is damaged"):
        claim_epoch(store, "a")


class Flaky:
    """A store whose conditional writes may be done or not, but always seem to time out, `times` times."""

    def __init__(self, store: Store, times: int, done: bool) -> None:
        self._store, self._times, self._done = store, times, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_if(self, key: str, content: bytes, etag: str | None) -> str:
        if self._times:
            self._times -= 1
            if self._done:
                self._store.put_if(key, content, etag)
            raise StorageError("Network", "timed out")
        return self._store.put_if(key, content, etag)

    def get(self, key: str) -> Body | None:
        return self._store.get(key)


@pytest.mark.parametrize("done", [True, False], ids=["it was done", "it was not done"])
def test_a_write_that_timed_out(store: Store, done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_PAUSE_SECONDS", 0.01)
    claim = claim_epoch(Flaky(store, 1, done), "a")  # type: ignore[arg-type]
    assert claim.latest.epoch == 1
    claim = save(Flaky(store, 2 if not done else 1, done), claim, 3)  # type: ignore[arg-type]
    assert claim == read_latest(store)
    assert save(store, claim, 4).latest.step == 4


def test_a_write_of_ours_that_arrives_late_is_not_taken_for_another_gang(store: Store) -> None:
    held = claim_epoch(store, "a")
    save(store, held, 3)  # done, but the gang never learnt it and still holds the older tag
    assert save(store, held, 6).latest.step == 6


def test_a_store_that_stays_away_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_PAUSE_SECONDS", 0.01)
    with pytest.raises(StorageError, match="timed out"):
        claim_epoch(Flaky(store, 100, False), "a")  # type: ignore[arg-type]
    assert store.get(manifest.LATEST_KEY) is None
