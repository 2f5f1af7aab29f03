"""Saving and restoring through a store: formats, hashes, damage, and the way back along the parents."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from proxy import NoUploadsListed

from muster_protocol import manifest, pieces
from muster_protocol.checkpoints import inventory
from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.commit import claim_epoch
from muster_protocol.checkpoints.holds import read_holds, tag
from muster_protocol.checkpoints.inventory import find_start, take
from muster_protocol.checkpoints.retention import Best, Retention
from muster_protocol.checkpoints.store import Store
from muster_runtime.checkpoint import saver
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.reader import Reader
from muster_runtime.checkpoint.s3_store import S3Store
from muster_runtime.checkpoint.store import open_store
from muster_runtime.checkpoint.tree import TensorTable
from muster_runtime.errors import CorruptCheckpointError, PathConflictError, StaleEpochError, StateError, StorageError
from muster_runtime.parallel.gang import Gang

if TYPE_CHECKING:
    from hack.s3server import S3Server

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int8,
    torch.bool,
    torch.complex64,
)


def content(step: int) -> TensorTable:
    table = {str(dtype): torch.arange(6).view(2, 3).add(step).to(dtype) for dtype in DTYPES}
    table |= {
        "scalar": torch.tensor(step * 0.1),
        "empty": torch.empty(0, 3),
        "turned": torch.arange(6.0).view(2, 3).t(),
    }
    return table


class Run:
    """One gang of one rank, and what it was warned of."""

    def __init__(
        self,
        store: Store,
        keep_last: int | None = None,
        keep_every: int | None = None,
        counted: Callable[[int], None] | None = None,
        best: Best | None = None,
        owner: str = "job",
        job: str = "job",
    ) -> None:
        self.store = store
        self.warnings: list[str] = []
        self.keeper = Keeper(
            store,
            Gang(),
            owner=owner,
            job=job,
            retention=Retention(keep_last, keep_every, best=best),
            warn=self.warnings.append,
            counted=counted,
        )
        self.keeper.claim()

    def save(self, step: int, finished: bool = False, **metrics: float) -> None:
        self.keeper.begin(
            content(step), step=step, trees={"model": {}}, run={"step": step}, metrics=metrics, finished=finished
        )
        self.keeper.wait()

    def restore(self) -> int | None:
        """The step that was restored, after looking at every tensor."""
        tables: list[TensorTable] = []

        def prepare(found: Found, reader: Reader) -> TensorTable:
            tables.append({name: torch.empty_like(t) for name, t in content(0).items()})
            return tables[-1]

        found = self.keeper.restore(prepare)
        if found is None:
            return None
        step = found.manifest.step
        for name, tensor in content(step).items():
            assert tables[-1][name].dtype == tensor.dtype
            assert tables[-1][name].equal(tensor), name
        return step


def shard_keys(store: Store, step: int) -> list[str]:
    return [item.key for item in store.objects(f"step-{step:08d}/") if item.key.endswith(".bin")]


def damage(store: Store, key: str) -> None:
    body = store.get(key)
    assert body is not None
    store.put(key, body.content[:-1] + bytes([body.content[-1] ^ 1]))


def test_everything_comes_back(store: Store) -> None:
    first = Run(store)
    assert first.restore() is None
    first.save(5)
    again = Run(store)
    assert again.restore() == 5
    assert again.warnings == []


@pytest.mark.parametrize("last", [None, 1])
def test_what_lies_in_the_store_is_told(store: Store, last: int | None) -> None:
    Run(store).save(5)
    told: list[int] = []
    run = Run(store, keep_last=last, counted=told.append)
    run.restore()
    for step in (10, 15, 20, 25):
        run.save(step)
        assert told[-1] == sum(checkpoint.bytes for checkpoint in take(store).committed)
    assert len(take(store).committed) == (5 if last is None else 3)


def test_no_pickle_is_written_or_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pickle was used")

    for module, name in (
        (pickle, "loads"),
        (pickle, "load"),
        (pickle, "dumps"),
        (pickle, "dump"),
        (pickle, "Unpickler"),
    ):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    run = Run(store)
    run.save(5)
    assert Run(store).restore() == 5
    monkeypatch.undo()
    for item in run.store.objects(""):
        key, body = item.key, run.store.get(item.key)
        assert body is not None
        assert not body.content.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK")), key
        with pytest.raises(Exception):  # noqa: B017 - whatever it says, it isn't a pickle
            pickle.load(io.BytesIO(body.content))


def test_the_manifest_names_every_byte(store: Store) -> None:
    run = Run(store)
    run.save(5)
    found = find_start(run.store, 5)
    for file in found.manifest.files:
        body = run.store.get(file.key)
        assert body is not None
        assert (len(body.content), f"{zlib.crc32(body.content):08x}") == (file.size, file.crc32)


def test_a_damaged_shard_is_told_and_the_parent_is_taken(store: Store) -> None:
    run = Run(store)
    for step in (5, 6, 7):
        run.save(step)
    damage(run.store, shard_keys(run.store, 7)[0])
    again = Run(store)
    assert again.restore() == 6
    assert "step 7 can't be restored" in again.warnings[0]
    assert "CRC-32 differs" in again.warnings[0]
    again.save(8)
    assert find_start(again.store, None).manifest.parent.startswith("step-00000006/")


def test_a_missing_shard_is_told_and_the_parent_is_taken(store: Store) -> None:
    run = Run(store)
    for step in (5, 6):
        run.save(step)
    run.store.delete(shard_keys(run.store, 6))
    again = Run(store)
    assert again.restore() == 5
    assert "does not exist" in again.warnings[0]


def test_a_damaged_manifest_is_not_believed_and_an_older_one_is_found(store: Store) -> None:
    run = Run(store)
    for step in (5, 6):
        run.save(step)
    key = run.keeper._parent[0]
    body = run.store.get(key)
    assert body is not None
    run.store.put(key, body.content.replace(b'"step": 6', b'"step": 9'))
    again = Run(store)
    assert again.restore() == 5
    assert "not the manifest that was committed" in again.warnings[0]


def test_where_the_chain_is_broken_twice_the_newest_that_is_tagged_is_taken(store: Store) -> None:
    """Only the damaged parent named those before it; a tag proves as much."""
    run = Run(store)
    for step in (5, 6, 7, 8, 9):
        run.save(step)
    for step in (5, 6):
        found = find_start(store, step)
        tag(store, found.key, found.sha256, f"good-{step}", "a test")
    store.put(find_start(store, 8).key, b"{}")
    damage(store, shard_keys(store, 9)[0])
    again = Run(store)
    assert again.restore() == 6
    assert len(again.warnings) == 2
    again.save(10)
    assert find_start(again.store, None).manifest.parent.startswith("step-00000006/")


def test_a_run_that_falls_back_again_lets_go_of_both_holds(store: Store) -> None:
    first = Run(store)
    first.save(5)
    first.save(10)
    damage(store, shard_keys(store, 10)[0])
    run = Run(store)
    assert run.restore() == 5
    assert run.restore() == 5  # as after a step that was not sound
    assert len(read_holds(store)) == 1
    run.save(15)
    assert read_holds(store) == []


def test_when_nothing_is_whole_the_run_fails_and_is_not_begun_anew(store: Store) -> None:
    run = Run(store)
    run.save(5)
    damage(run.store, shard_keys(run.store, 5)[0])
    with pytest.raises(CorruptCheckpointError, match=r"no checkpoint below .* is whole.*not begun anew"):
        Run(store).restore()


def test_a_gang_that_was_replaced_can_not_commit(store: Store) -> None:
    old = Run(store)
    old.save(5)
    new = Run(store)
    assert new.restore() == 5
    with pytest.raises(StaleEpochError):
        old.save(6)
    new.save(6)
    assert find_start(new.store, None).manifest.epoch == 2


def test_a_gang_that_lost_its_run_to_another_job_says_to_which(store: Store) -> None:
    old = Run(store)
    old.save(5)
    new = Run(store, owner="uid-2", job="research/second")
    assert new.restore() == 5, "what a job before it has left is there for the next one"
    with pytest.raises(PathConflictError, match=r"another job's \(owner 'uid-2'\) now"):
        old.save(6)
    new.save(6)
    with pytest.raises(
        PathConflictError, match=r"is job research/second's .* the checkpoint of step 7 was not committed"
    ):
        old.save(7)
    new.save(8)


def test_a_manifest_is_written_as_json_writes_it(store: Store) -> None:
    run = Run(store)
    run.save(5, loss=0.5)
    record = dataclasses.replace(find_start(store, 5).manifest, job='a "job"')
    assert manifest.encode(record) == json.dumps(dataclasses.asdict(record)).encode()
    for value in ({}, [], {"a": {}, "b": [], "c": [1, {"d": "é"}]}, {1: {"a": 2}}, ({"a": ()},), None):
        for depth in range(4):
            assert pieces.dumps(value, depth) == json.dumps(value).encode()


def test_what_a_gang_has_committed_is_not_read_again_by_its_prunes(store: Store) -> None:
    Run(store).save(1)
    run = Run(store, keep_last=2)
    run.restore()
    read: list[str] = []
    # with S3 the storage process reads them, not the rank
    place, name = (S3Store, "summary") if isinstance(store, S3Store) else (inventory, "read_manifest")
    before = getattr(place, name)

    def counted(store: Store, key: str, sha256: str) -> Any:
        read.append(key)
        return before(store, key, sha256)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, counted)
        if isinstance(store, S3Store):
            patch.setattr(manifest, "decode_manifest", None)
        for step in (2, 3, 4, 5):
            run.save(step)
    assert [key.split("/")[0] for key in read] == ["step-00000001"]
    committed = take(store).committed
    assert [checkpoint.step for checkpoint in committed] == [5, 4, 3]
    assert all(run.keeper._known[checkpoint.key] == checkpoint for checkpoint in committed)  # as if it had been read


@pytest.mark.parametrize("content", [None, b"{}"], ids=["missing", "another"])
def test_a_prune_is_told_of_a_manifest_that_is_not_what_was_committed(store: Store, content: bytes | None) -> None:
    run = Run(store)
    run.save(1)
    (committed,) = take(store).committed
    if content is None:
        store.delete([committed.key])
    else:
        store.put(committed.key, content)
    found = Run(store).keeper._take({}, unfinished=False)
    assert (found.committed, found.complete) == ((), False)
    assert [each.reason for each in found.damaged] == [each.reason for each in take(store).damaged]


def test_retention_keeps_what_a_resume_needs(store: Store) -> None:
    run = Run(store, keep_last=2)
    for step in (1, 2, 3, 4):
        run.save(step)
    assert [step for step in range(1, 5) if shard_keys(run.store, step)] == [2, 3, 4]  # LATEST's and its two ancestors
    again = Run(store, keep_last=2)
    assert again.restore() == 4
    again.save(5)
    assert [step for step in range(1, 6) if shard_keys(again.store, step)] == [3, 4, 5]
    damage(again.store, shard_keys(again.store, 5)[0])
    assert Run(store).restore() == 4


def test_starting_from_another_run(store: Store) -> None:
    run = Run(store)
    with pytest.raises(StateError, match="has no committed checkpoint"):
        find_start(run.store, None)
    for step in (5, 6):
        run.save(step)
    assert find_start(run.store, None).manifest.step == 6
    assert find_start(run.store, 5).manifest.step == 5
    with pytest.raises(StateError, match="has no committed checkpoint of step 7; it has: 5, 6"):
        find_start(run.store, 7)


def test_a_start_from_what_only_its_tag_has_kept(store: Store) -> None:
    run = Run(store, keep_last=3)
    for step in range(1, 4):
        run.save(step)
    second = find_start(store, 2)
    tag(store, second.key, second.sha256, "best-so-far", "a person")
    for step in range(4, 9):
        run.save(step)
    assert [step for step in range(1, 9) if shard_keys(store, step)] == [2, 6, 7, 8]
    assert find_start(store, 2) == second


def uncommitted(store: Store, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole checkpoint in the store whose commit did not succeed."""

    def refuse(*_: object, **__: object) -> None:
        raise StorageError("Network", "the server went away before LATEST was written")

    run = Run(store)
    run.restore()
    with monkeypatch.context() as patch:
        patch.setattr(saver, "commit", refuse)
        with pytest.raises(StorageError):
            run.save(step)
    assert any(folder.step == step and folder.manifest for folder in take(store).folders.values())


def test_a_checkpoint_that_was_never_committed_is_not_restored(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Run(store).save(5)
    uncommitted(store, 6, monkeypatch)
    damage(store, shard_keys(store, 5)[0])
    with pytest.raises(CorruptCheckpointError, match=r"no checkpoint below .* is whole"):
        Run(store).restore()


def test_a_checkpoint_that_was_never_committed_is_no_start(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Run(store).save(5)
    uncommitted(store, 6, monkeypatch)
    with pytest.raises(StateError, match="has no committed checkpoint of step 6; it has: 5"):
        find_start(store, 6)


def test_what_is_kept_for_ever_stays_in_the_chain_when_its_neighbours_are_deleted(store: Store) -> None:
    run = Run(store, keep_last=2, keep_every=3)
    for step in range(1, 6):
        run.save(step)
    again = Run(store, keep_last=2, keep_every=3)
    assert again.restore() == 5
    for step in range(6, 12):
        again.save(step)
    assert [step for step in range(1, 12) if shard_keys(store, step)] == [3, 6, 9, 10, 11]
    assert [find_start(store, step).manifest.step for step in (3, 6, 9, 10, 11)] == [3, 6, 9, 10, 11]
    for step in (9, 10, 11):
        damage(store, shard_keys(store, step)[0])
    assert Run(store).restore() == 6


def test_a_newer_format_is_refused_with_the_way_out(store: Store) -> None:
    latest = claim_epoch(store, "a").latest
    store.put(manifest.LATEST_KEY, manifest.encode(dataclasses.replace(latest, version=99)))
    with pytest.raises(CorruptCheckpointError, match="Use the Muster that wrote it, or a newer one"):
        claim_epoch(store, "a")


def test_a_checkpoint_tells_when_its_metrics_were_reported(store: Store) -> None:
    run = Run(store)
    for step, reported in ((10, 9), (20, 9), (30, 29)):
        metrics, measured = {"accuracy": 0.5, "loss": 1.0}, {"accuracy": reported}
        run.keeper.begin(
            content(step), step=step, trees={"model": {}}, run={"step": step}, metrics=metrics, measured=measured
        )
        run.keeper.wait()
    found = Run(store).keeper._take({}, unfinished=False)
    assert [(each.step, each.measured) for each in found.committed] == [
        (30, {"accuracy": 29}),
        (20, {"accuracy": 9}),
        (10, {"accuracy": 9}),
    ]


def test_a_best_by_a_metric_that_no_checkpoint_has_is_told_once(store: Store) -> None:
    run = Run(store, best=Best("accuracy", "max"))
    for step in range(1, 4):
        run.save(step, acc=0.5)
    assert run.warnings == [], "nothing was deleted yet"
    run.save(4, acc=0.5)
    run.save(5, acc=0.5)
    (told,) = run.warnings
    assert "has a metric 'accuracy'; they have acc. Until one has, retention.best keeps none of them" in told


def test_who_may_not_list_uploads_is_told_once_and_retention_works(
    s3_environment: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = NoUploadsListed(s3_environment.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
    store = open_store(f"s3://models/{tmp_path.name}-{time.monotonic_ns()}")
    run = Run(store, keep_last=1)
    for step in range(1, 7):
        run.save(step)
    (told,) = run.warnings
    assert "so they stay; S3 wants s3:ListBucketMultipartUploads for that: access to s3://models" in told
    assert sorted(each.step for each in take(store, unfinished=False).committed) == [4, 5, 6]
    run.keeper.close()
    proxy.shutdown()
