"""`muster checkpoint`, on folders and on a real S3 server."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch
import torch
from hack.needs_torch import needs_torch
from hack.s3server import serving
from made import MadeRun, MemoryStore, WatchedStore, read_whole
from proxy import Act, Archived, Full, NothingDeleted, NoUploadsListed, Proxy, error, forward
from typer.testing import CliRunner

from muster.cli.app import app
from muster.cli.checkpoint_stores import open_store
from muster_protocol.checkpoints import s3
from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.commit import claim_epoch, commit, read_latest
from muster_protocol.checkpoints.copy import copy
from muster_protocol.checkpoints.export import export, header, model_tensors
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.checkpoints.inventory import find_start, take
from muster_protocol.checkpoints.prune import carry_out
from muster_protocol.checkpoints.retention import Retention, plan
from muster_protocol.checkpoints.store import Store
from muster_protocol.checkpoints.tensors import Chunk, Tensor, content
from muster_protocol.checkpoints.verify import damage
from muster_protocol.errors import CorruptCheckpointError, PathConflictError, StaleEpochError, StartError, StateError
from muster_protocol.manifest import Manifest, ShardFile
from muster_protocol.uris import parse_uri

if TYPE_CHECKING:
    from hack.s3server import S3Server


def muster(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["checkpoint", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def begun(store: Store, steps: int) -> MadeRun:
    """A gang that has saved steps 1 to `steps`."""
    run = MadeRun(store)
    run.start()
    for step in range(1, steps + 1):
        run.save(step)
    return run


@pytest.fixture
def s3_uri(s3_environment: S3Server, tmp_path: Path) -> str:
    return f"s3://models/{tmp_path.name}-{time.monotonic_ns()}"


@pytest.fixture(params=["file", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/run" if request.param == "file" else str(request.getfixturevalue("s3_uri"))


@pytest.fixture
def made(uri: str) -> Iterator[MadeRun]:
    store = open_store(parse_uri(uri), None)
    run = MadeRun(store, clock=itertools.count(1_760_000_000, 3600).__next__)
    run.start()
    for step in range(1, 7):
        run.save(step, metrics={"loss": 1 / step})
    yield run
    store.close()


def test_what_a_deleted_job_left_uncommitted_goes_at_once_and_nothing_late_counts(made: MadeRun, uri: str) -> None:
    made.write(7)
    made.write(8, whole=False)
    latest, before = made.store.get("LATEST"), made.store.objects("")
    assert json.loads(muster("prune", uri, "-o", "json"))["remove"] == [], "its gang may yet commit them"
    planned = json.loads(muster("prune", uri, "--job-gone", "-o", "json"))
    assert [each["step"] for each in planned["remove"]] == [7, 8]
    assert "a job that still trains there starts again from it" in muster("prune", uri, "--job-gone")
    assert (made.store.get("LATEST"), made.store.objects("")) == (latest, before), "only told"
    done = json.loads(muster("prune", uri, "--job-gone", "--yes", "-o", "json"))
    assert done["remove"] == planned["remove"]
    assert {each.step for each in take(made.store).committed} == {1, 2, 3, 4, 5, 6}
    assert not [item.key for step in (7, 8) for item in made.store.objects(f"step-{step:08d}/")]
    with pytest.raises(StaleEpochError, match=r"claimed by muster checkpoint prune by .* Another start") as late:
        made.save(9)
    assert not isinstance(late.value, PathConflictError), "no other job has it, so this one may start again"
    again = MadeRun(made.store)
    again.start()
    again.save(10)
    assert take(made.store).committed[0].step == 10, "a job that starts there goes on"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_whoever_asks_a_command_to_end_is_left_neither_a_hold_nor_an_upload(
    end: signal.Signals, s3_uri: str, s3_server: S3Server
) -> None:
    """As Kubernetes does with a pod, a CI system with a job that takes too long, and a terminal that is closed."""
    store, there = open_store(parse_uri(s3_uri), None), open_store(parse_uri(f"{s3_uri}-model"), None)
    begun(store, 1)
    asked, free = threading.Event(), threading.Event()

    class Slow(Proxy):
        def act_for(self, request: str) -> Act:
            if request.startswith("PUT") and "uploadId=" in request:
                asked.set()
                free.wait(60)
            return forward

    proxy = Slow(s3_server.endpoint)
    small = "from muster_protocol.checkpoints import s3; s3.PART_BYTES = 100; from muster.cli.app import main; main()"
    command = [sys.executable, "-c", small, "checkpoint", "export", s3_uri, f"{s3_uri}-model"]
    try:
        with subprocess.Popen(command, env={**os.environ, "AWS_ENDPOINT_URL_S3": proxy.endpoint}) as process:
            assert asked.wait(60)
            assert store.objects("holds/"), "it reads"
            process.send_signal(end)
            process.send_signal(end)  # by the kernel, and once more by the shell
            free.set()
            assert process.wait(60) == 128 + end
    finally:
        free.set()
        proxy.shutdown()
        proxy.server_close()
    assert not store.objects("holds/")
    assert not there.unfinished()
    assert not there.objects("")
    for each in (store, there):
        each.close()


@pytest.mark.parametrize("spared", [0, 1])
def test_where_no_more_threads_can_be_started_the_tools_do_without(
    made: MadeRun, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spared: int
) -> None:
    model = {"wide": torch.rand(2000, 800)}  # some parts of an upload
    safetensors.torch.save_file(model, tmp_path / "model.safetensors")
    monkeypatch.setattr("muster_protocol.checkpoints.s3.PART_BYTES", 5 << 20)
    start, left = threading.Thread.start, spared

    def refuse(thread: threading.Thread) -> None:
        nonlocal left
        left -= thread.name != "muster-hold"
        if left < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    def crowded(*arguments: str) -> str:
        nonlocal left
        left = spared
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            return muster(*arguments)

    crowded("import", str(tmp_path), f"{uri}-hub")
    crowded("export", f"{uri}-hub", f"{uri}-out")
    crowded("cp", f"{uri}-hub", f"{uri}-copy")
    assert "6 of 6 checkpoints are whole" in crowded("verify", uri, "--all")
    assert "deleted  1" in crowded("prune", uri, "--last", "1", "--yes")
    assert "3 of 3 checkpoints are whole" in muster("verify", uri, "--all")
    assert "1 of 1 checkpoint is whole" in muster("verify", f"{uri}-copy")
    muster("export", f"{uri}-hub", str(tmp_path / "out"))
    exported = open_store(parse_uri(f"{uri}-out"), None)
    found = exported.get("model.safetensors")
    assert found is not None
    assert found.content == (tmp_path / "out/model.safetensors").read_bytes()
    assert not exported.unfinished()
    exported.close()


def test_prune_claims_nothing_where_no_run_is(tmp_path: Path) -> None:
    muster("prune", f"file://{tmp_path}", "--job-gone", "--yes", code=2)
    assert not list(tmp_path.iterdir())


def shards(store: Store, step: int) -> list[str]:
    return [item.key for item in store.objects(f"step-{step:08d}/") if item.key.endswith(".bin")]


def test_the_list_tells_what_keeps_each(made: MadeRun, uri: str) -> None:
    muster("keep", f"{uri}@2", "--name", "best")
    rows = json.loads(muster("ls", uri, "-o", "json"))
    assert [(row["step"], row["keptBy"]) for row in rows] == [
        (6, ["LATEST"]),
        (5, ["ancestor"]),
        (4, ["ancestor"]),
        (3, []),
        (2, ["tag best"]),
        (1, []),
    ]
    table = [line.split() for line in muster("ls", uri, "--metric", "loss").splitlines()]
    assert table[0] == ["STEP", "CLAIM", "SAVED", "SIZE", "RANKS", "LOSS", "KEPT", "BY"]
    assert [row[6] for row in table[1:]] == ["0.166667", "0.2", "0.25", "0.333333", "0.5", "1"]
    assert "none of these has a metric los; did you mean 'loss'?" in muster("ls", uri, "--metric", "los")
    made.write(7)
    assert "never committed" not in muster("ls", uri)
    assert "never committed" in muster("ls", uri, "--all")
    assert "step      2" in muster("show", f"{uri}@2")
    assert "step      6" in muster("show", uri)
    assert "claim     1, attempt 0" in muster("show", uri)  # no word for it that is the data's, too
    for listing in (muster("ls", uri), muster("prune", uri)):
        assert "STEP  CLAIM  S" in listing.splitlines()[0]


def test_the_list_of_a_place_above_runs_names_them(made: MadeRun, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    muster("cp", uri, f"{uri}/team/tuned")
    muster("cp", uri, f"{uri}/team/more/first")
    told = muster("cp", uri, f"{uri}/team", code=2)
    assert f"{uri}/team has runs below it, such as more/first, and 1 more; name a prefix of its own" in told
    made.store.put("team/tuned/inner/LATEST", b"lies in a run: nobody looks there")
    made.store.put("team/data/shard/0", b"no run")
    assert muster("ls", f"{uri}/team").splitlines() == [
        f"{uri}/team has no checkpoints of its own; the runs below it:",
        f"  {uri}/team/more/first",
        f"  {uri}/team/tuned",
    ]
    assert json.loads(muster("ls", f"{uri}/team", "-o", "json")) == []
    assert muster("ls", f"{uri}/team/data") == f"{uri}/team/data has no checkpoints\n"
    for output in ("table", "json"):  # a misspelt uri in somebody's script is no empty list
        told = muster("ls", f"{uri}/team/tunde", "-o", output, code=2)
        assert told == f"muster: nothing lies at {uri}/team/tunde; did you mean {uri}/team/tuned?\n"
    told = muster("ls", f"{uri}/team/dtaa", code=2)
    assert told == f"muster: nothing lies at {uri}/team/dtaa\n", "what is near is no run"
    monkeypatch.setattr("muster_protocol.checkpoints.inventory.FOLDERS_LOOKED_INTO", 1)
    assert "not all folders were looked into" in muster("ls", f"{uri}/team")


def test_a_list_that_is_cut_does_not_say_that_there_is_no_run(s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(parse_uri(s3_uri), None)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"data/{number:05d}", b""), range(1000)))
    store.put("data/run/LATEST", b"")
    for above, run in ((s3_uri, "data/run"), (f"{s3_uri}/data", "run")):
        assert muster("ls", above).splitlines()[1:] == [f"  {above}/{run}"]
    monkeypatch.setattr("muster_protocol.checkpoints.s3._LEVEL_PAGES", 1)
    for above in (s3_uri, f"{s3_uri}/data"):
        assert "not all folders were looked into" in muster("ls", above)
    store.close()


def test_a_list_passes_over_folders_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lost+found", "team/run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "team/run/LATEST").touch()
    real = os.scandir

    def refused(path: str) -> Any:
        if str(path).rstrip("/").endswith("lost+found"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    told = muster("ls", f"file://{tmp_path}")
    assert f"file://{tmp_path}/team/run" in told
    assert "not all folders were looked into" in told
    told = muster("ls", f"file://{tmp_path}/lost+found", code=2)
    assert "lost+found: no permission; check the folder's owner" in told


def test_verify_tells_a_flipped_byte_a_truncated_and_a_missing_shard(made: MadeRun, uri: str) -> None:
    assert "6 of 6 checkpoints are whole" in muster("verify", uri, "--all")
    store = made.store
    flipped, truncated, missing = (shards(store, step)[0] for step in (6, 5, 4))
    for key, change in ((flipped, lambda old: bytes([old[0] ^ 1]) + old[1:]), (truncated, lambda old: old[:-1])):
        body = store.get(key)
        assert body is not None
        store.put(key, change(body.content))
    store.delete([missing])
    assert f"{flipped}: bytes 0 to 24 are not those that were saved" in muster("verify", uri, code=1)
    told = muster("verify", uri, "--all", code=1)
    assert "model.weight" in told
    assert f"{truncated} has 23 bytes, the manifest says 24" in told
    assert f"{missing} is missing" in told
    assert "3 of 6 checkpoints are whole" in told
    assert take(store).holds == ()
    store.put(list(made.weights)[5], b"{")
    assert "not the manifest that was committed" in muster("verify", uri, code=1)


def test_a_manifest_that_is_damaged_is_named_with_what_it_led_to(made: MadeRun, uri: str) -> None:
    key = list(made.weights)[2]
    made.store.put(key, b"{}")
    damaged = f"{uri}/{key} is not the manifest that was committed (SHA-256 differs)"
    for everything in ((), ("--all",)):
        told = muster("verify", f"{uri}@3", *everything, code=1)
        assert f"{key}: DAMAGED" in told
        assert damaged in told
    assert f"{damaged}, so the checkpoint of step 3 can't be read; these can: 4, 5, 6" in muster(
        "show", f"{uri}@3", code=2
    )
    told = muster("keep", f"{uri}@1", code=2)
    assert f"{uri} has a checkpoint of step 1, but whether it was committed is not known any more: {damaged}" in told
    assert "has no committed checkpoint of step 9; it has: 4, 5, 6" in muster("verify", f"{uri}@9", code=2)
    told = muster("ls", uri, "--all")
    assert "never committed" not in told, "that isn't known"
    assert told.count("a link to it may be lost") == 2
    with pytest.raises(StartError, match=r"can't be taken: .* is not the manifest that was committed"):
        find_start(made.store, 3)


def test_what_is_listed_and_pruned_is_so_by_its_age_whatever_leads_to_it(uri: str) -> None:
    store = open_store(parse_uri(uri), None)
    run = MadeRun(store)
    run.start()
    for step in range(1, 13):
        run.save(step)
        if step % 4 == 0:  # as a job with retention.every
            run.milestone = run.parent
    for step in (6, 2):
        muster("keep", f"{uri}@{step}")
    muster("prune", uri, "--every", "4", "--yes")
    for step in (6, 2):
        muster("keep", f"{uri}@{step}", "--release")
    assert [row["step"] for row in json.loads(muster("ls", uri, "-o", "json"))] == [12, 11, 10, 8, 6, 4, 2]
    planned = json.loads(muster("prune", uri, "--last", "5", "-o", "json"))
    assert [row["step"] for row in planned["keep"]] == [12, 11, 10, 8, 6]
    store.close()


def test_what_is_deleted_while_it_is_read_without_a_hold_is_no_damage(
    s3_environment: S3Server, s3_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever may only read, beside a job that prunes."""
    store = open_store(parse_uri(s3_uri), None)
    run = begun(store, 8)

    class ReadOnly(Proxy):
        doomed = 5

        def act_for(self, request: str) -> Act:
            if f"/step-{self.doomed:08d}/1-0/rank-00000.bin" in request:
                self.doomed = 0
                carry_out(store, plan(take(store), Retention(last=3), time.time()), time.time)
            return error(403, "AccessDenied") if request.startswith(("PUT", "DELETE")) else forward

    proxy = ReadOnly(s3_environment.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
    told = muster("verify", s3_uri, "--all")
    assert "3 of 3 checkpoints are whole, 5 left out" in told
    assert "step-00000005/1-0/manifest.json was deleted meanwhile" in told
    assert told.count("reading without a hold") == 1, "once says it for all"
    commands = (["verify"], ["export", f"{tmp_path}/model"], ["cp", f"file://{tmp_path}/copy"])
    for step, (command, *target) in enumerate(commands, 9):
        run.save(step)
        proxy.doomed = step - 3
        told = muster(command, f"{s3_uri}@{proxy.doomed}", *target, code=2)
        assert "was deleted meanwhile; choose another step" in told
    proxy.shutdown()
    store.close()


def test_verify_leaves_out_what_a_prune_deletes_and_reads_the_rest(made: MadeRun, uri: str) -> None:
    made.store.put("step-00000005/1-0/TOMBSTONE-0", b"{}")
    told = muster("verify", uri, "--all")
    assert "step 5: left out, 48 B" in told
    assert "is being deleted by a prune" in told
    assert "5 of 5 checkpoints are whole, 1 left out" in told
    made.store.delete(shards(made.store, 2))
    results = json.loads(muster("verify", uri, "--all", "-o", "json", code=1))
    assert [each["step"] for each in results if each["troubles"]] == [2]
    assert [each["step"] for each in results if each["leftOut"]] == [5]
    assert "is being deleted by a prune" in muster("verify", f"{uri}@5", code=2)


def test_prune_says_what_would_go_and_does_it_with_yes(made: MadeRun, uri: str) -> None:
    rules = ("--last", "1", "--every", "2", "--best", "loss:max")
    before = [item.key for item in made.store.objects("")]
    dry = json.loads(muster("prune", uri, *rules, "--price", "1000000", "-o", "json"))
    sizes = {row["step"]: row["bytes"] for row in json.loads(muster("ls", uri, "-o", "json"))}
    assert {each["step"]: each["bytes"] for each in dry["remove"]} == {3: sizes[3]}
    assert dry["dollarsPerMonth"] == pytest.approx(dry["bytes"] / 1e9 * 1e6, abs=1e-4)
    assert "Nothing was deleted" in muster("prune", uri, *rules)
    assert [item.key for item in made.store.objects("")] == before
    assert "freed" in muster("prune", uri, *rules, "--yes")
    assert [row["step"] for row in json.loads(muster("ls", uri, "-o", "json"))] == [6, 5, 4, 2, 1]
    assert "contradict" in muster("prune", uri, "--yes", "--dry-run", code=2)
    misspelled = muster("prune", uri, "--best", "lose", "--yes", code=2)
    assert "has a metric 'lose'; they have loss" in misspelled
    twice = muster("prune", uri, "--best", "loss:max", "--best", "loss:min", "--yes", code=2)
    assert "one --best, not 2; keep the best by loss:max by a tag" in twice
    assert len(json.loads(muster("ls", uri, "-o", "json"))) == 5


def test_prune_goes_on_without_the_right_to_list_uploads(
    s3_environment: S3Server, s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = NoUploadsListed(s3_environment.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
    store = open_store(parse_uri(s3_uri), None)
    run = begun(store, 5)
    told = muster("prune", s3_uri, "--last", "1", "--yes")
    assert "uploads that nobody ended can't be listed" in told
    assert "s3:ListBucketMultipartUploads" in muster("ls", s3_uri, "--all")
    assert [each.step for each in take(store, unfinished=False).committed] == [5, 4, 3]
    for step in range(6, 9):
        run.save(step)
    proxy.refusal = 501, "NotImplemented"
    told = muster("prune", s3_uri, "--last", "1", "--yes")
    assert "uploads that nobody ended can't be listed, so they stay: the S3 server at http" in told
    assert [each.step for each in take(store, unfinished=False).committed] == [8, 7, 6]
    store.close()
    proxy.shutdown()


@pytest.mark.parametrize("kept", ["", "manifest.json"], ids=["nothing", "no manifest"])
def test_a_prune_that_may_not_delete_leaves_all_to_be_read(
    s3_environment: S3Server, s3_uri: str, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    store = open_store(parse_uri(s3_uri), None)
    begun(store, 5)
    proxy = NothingDeleted(s3_environment.endpoint)
    proxy.name = kept
    with monkeypatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        assert "is denied; check AWS_ACCESS_KEY_ID" in muster("prune", s3_uri, "--last", "1", "--yes", code=2)
    proxy.shutdown()
    assert not [item.key for item in store.objects("step-") if "TOMBSTONE" in item.key]
    assert "5 of 5 checkpoints are whole" in muster("verify", s3_uri, "--all")
    store.close()


def test_what_a_rule_of_the_bucket_has_archived_is_told_as_that(
    s3_environment: S3Server, s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(parse_uri(s3_uri), None)
    begun(store, 5)
    proxy = Archived(s3_environment.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
    told = "lies in an archive at http"
    proxy.name = "step-00000005/1-0/rank"
    verified = muster("verify", s3_uri, code=2)
    assert (told in verified, "DAMAGED" in verified) == (True, False), verified
    proxy.name = "step-00000002/1-0/manifest.json"
    listed = muster("ls", s3_uri, "--all")
    assert [line.split()[0] for line in listed.splitlines() if "ancestor" in line or "LATEST" in line] == [
        "5",
        "4",
        "3",
    ]
    assert told in listed
    assert "restore-object" in muster("show", f"{s3_uri}@2", code=2)
    muster("prune", s3_uri, "--last", "1", "--yes")
    store.close()
    proxy.shutdown()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_environment.endpoint)
    assert "5 of 5 checkpoints are whole" in muster("verify", s3_uri, "--all"), "brought back, it is what it was"


def test_a_bucket_with_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("objects", "versions"):
        (tmp_path / name).mkdir()
    with serving(tmp_path / "objects", versions=tmp_path / "versions") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        store = s3.S3Store(parse_uri("s3://models/run"))
        store.client.put_bucket_versioning(Bucket="models", VersioningConfiguration={"Status": "Enabled"})
        begun(store, 5)
        muster("prune", "s3://models/run", "--last", "1", "--yes")
        assert "3 of 3 checkpoints are whole" in muster("verify", "s3://models/run", "--all")
        store.delete([item.key for item in store.objects("")])
        assert muster("ls", "s3://models/run") == "s3://models/run has no checkpoints\n"
        other = MadeRun(FileStore(parse_uri(f"file://{tmp_path}/other")))
        other.start()
        other.save(1)
        # AWS takes a marker for nothing, versitygw 1.8 for an object
        told = muster("cp", f"file://{tmp_path}/other", "s3://models/run", code=2)
        assert "LATEST does not exist, and the store refuses to create it as if it did" in told
        store.close()


def test_a_full_bucket_is_read_without_a_hold_and_pruned_once_there_is_room_for_marks(
    s3_environment: S3Server, s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(parse_uri(s3_uri), None)
    begun(store, 5)
    store.close()
    proxy = Full(s3_environment.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
    told = muster("verify", s3_uri)
    assert "1 of 1 checkpoint is whole" in told
    assert "reading without a hold" in told
    told = muster("prune", s3_uri, "--last", "1", "--yes", code=2)
    assert "there is no room left for s3://models/" in told
    first = f"{s3_uri}/step-00000001/1-0/"
    assert f"delete {first} by hand, and prune again" in " ".join(told.split())
    proxy.shutdown()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_environment.endpoint)
    by_hand = open_store(parse_uri(s3_uri), None)
    by_hand.delete([item.key for item in by_hand.objects("step-00000001/")])
    by_hand.close()
    muster("prune", s3_uri, "--last", "1", "--yes")
    assert "3 of 3 checkpoints are whole" in muster("verify", s3_uri, "--all")


def test_many_small_tensors_are_verified_and_copied_by_few_requests(tmp_path: Path) -> None:
    """As many as tensors would take minutes for some megabytes."""
    (tmp_path / "hub").mkdir()
    model = {f"layers.{number}": torch.full((3,), number) for number in range(500)}
    safetensors.torch.save_file(model, tmp_path / "hub" / "model.safetensors")
    muster("import", f"{tmp_path}/hub", f"file://{tmp_path}/run")

    class Counting(FileStore):
        reads = 0

        def read(self, key: str, offset: int, length: int) -> bytearray:
            self.reads += 1
            return super().read(key, offset, length)

    store = Counting(parse_uri(f"file://{tmp_path}/run"))
    found = find_start(store, None)
    assert list(damage(store, found)) == []
    assert store.reads == 1
    copy(store, found, FileStore(parse_uri(f"file://{tmp_path}/copy")))
    assert store.reads == 2
    assert "1 of 1 checkpoint is whole" in muster("verify", f"file://{tmp_path}/copy")
    key = found.manifest.files[0].key
    changed = bytearray(store.read(key, 0, found.manifest.files[0].size))
    changed[24 * 7] ^= 1
    store.put(key, bytes(changed))
    (told,) = damage(store, found)
    assert told.endswith(f"{key}: bytes 168 to 192 are not those that were saved (CRC-32 differs): model.layers.104")
    with pytest.raises(CorruptCheckpointError, match="bytes 168 to 192 are not those that were saved"):
        copy(store, found, FileStore(parse_uri(f"file://{tmp_path}/another")))


def test_a_copy_is_a_run_of_its_own(made: MadeRun, uri: str, tmp_path: Path) -> None:
    target = f"{uri}-copy"
    muster("cp", f"{uri}@3", target)
    (row,) = json.loads(muster("ls", target, "-o", "json"))
    assert (row["step"], row["epoch"], row["keptBy"]) == (3, 1, ["LATEST"])
    muster("verify", target)
    there = open_store(parse_uri(target), None)
    assert read_whole(there, row["manifest"]) == made.weights["step-00000003/1-0/manifest.json"]
    assert "has a checkpoint of step 3 already" in muster("cp", uri, target, code=2)
    muster("cp", target, f"file://{tmp_path}/elsewhere")
    muster("verify", f"file://{tmp_path}/elsewhere")
    there.close()


def test_the_server_that_a_copy_cannot_reach_is_named_by_its_own_option(made: MadeRun, uri: str) -> None:
    assert "check --target-endpoint and the network" in muster(
        "cp", uri, "s3://models/copy", "--target-endpoint", "http://127.0.0.1:1", code=2
    )


def test_who_has_begun_a_run_without_checkpoints_is_named(tmp_path: Path) -> None:
    for owner, named in (("muster checkpoint cp", "muster checkpoint cp"), ("5f1c", "a job")):
        uri = f"file://{tmp_path}/{named.replace(' ', '-')}"
        claim_epoch(FileStore(parse_uri(uri)), owner)
        assert f"{uri} has no checkpoints yet; {named} has claimed it" in muster("ls", uri)
        safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
        assert f"been claimed by {named} already" in muster("import", str(tmp_path), uri, code=2)


def test_a_copy_takes_no_run_from_a_job_that_comes_meanwhile(tmp_path: Path) -> None:
    source = FileStore(parse_uri(f"file://{tmp_path}/source"))
    made = MadeRun(source)
    made.start()
    made.save(3)
    found = find_start(source, None)
    moment, told = 0, set()
    while True:
        there = FileStore(parse_uri(f"file://{tmp_path}/target-{moment}"))
        job = MadeRun(there)
        target = WatchedStore(there, after={moment: job.start})
        try:
            copy(source, found, target)
        except (StateError, StaleEpochError) as error:
            told.add("claimed by a job" in str(error))
            job.save(9)
        if job.claim is None:
            break  # the copy was over before
        claim = read_latest(there)
        assert claim is not None
        assert claim.latest.owner == "job"
        moment += 1
    assert moment > 5
    assert told == {True}


def test_of_two_copies_to_one_place_the_later_is_committed_and_the_other_says_why(tmp_path: Path) -> None:
    source, uri = FileStore(parse_uri(f"file://{tmp_path}/source")), f"file://{tmp_path}/target"
    made = MadeRun(source)
    made.start()
    made.save(3)
    found, there = find_start(source, None), FileStore(parse_uri(uri))
    first = WatchedStore(there, after={4: lambda: copy(source, found, there)})
    with pytest.raises(
        StaleEpochError, match=f"{uri} was claimed by muster checkpoint cp while muster checkpoint cp wrote"
    ):
        copy(source, found, first)
    assert "1 of 1 checkpoint is whole" in muster("verify", uri)


@pytest.mark.parametrize("command", ["cp", "export"])
def test_what_finds_no_room_at_its_end_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    source, target = (FileStore(parse_uri(f"file://{tmp_path}/{name}")) for name in ("run", "target"))
    run = MadeRun(source)
    run.start()
    run.save(1)
    real = os.fsync

    def full(descriptor: int) -> None:  # file servers tell it only there
        if any(name in os.readlink(f"/proc/self/fd/{descriptor}") for name in (".bin.", ".safetensors.")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device; delete what nobody needs there" in muster(command, source.uri, target.uri, code=2)
    assert target.unfinished() == []


def test_a_damaged_checkpoint_is_not_copied(made: MadeRun, uri: str) -> None:
    key = shards(made.store, 6)[1]
    made.store.put(key, b"\0" * 24)
    assert "are not those that were saved" in muster("cp", uri, f"{uri}-copy", code=2)
    assert "has no checkpoints yet" in muster("ls", f"{uri}-copy")
    muster("cp", f"{uri}@5", f"{uri}-copy")


def test_a_damaged_checkpoint_is_not_exported_and_no_empty_folder_is_left(
    made: MadeRun, uri: str, tmp_path: Path
) -> None:
    for key in shards(made.store, 6):
        made.store.put(key, b"\0" * 24)
    (tmp_path / "mine").mkdir()
    for folder in ("new/model", "mine"):
        assert "are not those that were saved" in muster("export", uri, str(tmp_path / folder), code=2)
    assert [path.name for path in tmp_path.iterdir() if path.name != "run"] == ["mine"]
    assert list((tmp_path / "mine").iterdir()) == []


def test_differences(made: MadeRun, uri: str) -> None:
    (changed,) = json.loads(muster("diff", f"{uri}@3", "@4", "-o", "json"))
    assert (changed["name"], changed["kind"], changed["bytes"]) == ("model.weight", "changed", 48)
    assert "1 of 1 tensor is the same" in muster("diff", f"{uri}@3", "@3")
    mine = f"{uri}/me@corp/run"
    muster("cp", f"{uri}@3", mine)
    assert "1 of 1 tensor is the same" in muster("diff", mine, "@3"), "an @ in the prefix is no step"
    assert "1 of 1 tensor is the same" in muster("diff", f"{mine}@3", "@3")
    made.rows, made.columns = 8, 3
    made.save(7)
    assert "reshaped" in muster("diff", f"{uri}@6", "@7")


def test_tags_are_released_by_name_or_step(made: MadeRun, uri: str) -> None:
    muster("keep", f"{uri}@2")
    assert "tag step-2" in muster("ls", uri)
    muster("keep", f"{uri}@2", "--release")
    assert "tag" not in muster("ls", uri)
    assert "has no tag 'step-2'; it has none" in muster("keep", f"{uri}@2", "--release", code=2)
    assert "is no name for a tag" in muster("keep", uri, "--name", "a/b", code=2)
    assert "is no name for a tag" in muster("keep", uri, "--name", "paper\n", code=2)


def test_errors_say_how_to_mend_them(made: MadeRun, uri: str) -> None:
    assert "write s3://BUCKET/PREFIX" in muster("ls", "models/run", code=2)
    assert "ends in @abc, and a step is a whole number" in muster("show", f"{uri}@abc", code=2)
    assert "no committed checkpoint of step 99; it has: 1, 2, 3, 4, 5, 6" in muster("show", f"{uri}@99", code=2)
    assert "is it some job's spec.checkpoint.uri?" in muster("show", f"{uri}-none", code=2)
    assert "write it like loss" in muster("prune", uri, "--best", "loss:most", code=2)
    assert "write it like loss" in muster("prune", uri, "--last", "1", "--best", "", code=2), "of a variable not set"
    assert "has no object 'net'; it has: model" in muster("export", uri, "/nowhere", "--object", "net", code=2)


def test_a_store_that_refuses_is_told(s3_environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the bucket 'no-such-bucket' does not exist" in muster("ls", "s3://no-such-bucket/run", code=2)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in muster("ls", "s3://models/run", code=2)


def test_a_shell_without_keys_is_told_so_and_not_that_they_are_refused(
    s3_environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    told = muster("ls", "s3://models/run", code=2)
    assert "no credentials were found for s3://models/run" in told
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" in told


def test_what_a_newer_muster_wrote_is_not_called_damaged(made: MadeRun, uri: str) -> None:
    body = made.store.get("LATEST")
    assert body is not None
    made.store.put("LATEST", json.dumps({**json.loads(body.content), "version": 99}).encode())
    for arguments in (("ls",), ("verify",), ("prune", "--last", "1", "--yes")):
        told = muster(*arguments, uri, code=2)
        assert f"{uri}/LATEST can't be read: LATEST has format version 99" in told
        assert "put back" not in told


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"AWS_PROFILE": "nobody"}, "no credentials were found for s3://models/run"),
        ({"AWS_ENDPOINT_URL_S3": "foo"}, "correct --endpoint, or AWS_ENDPOINT_URL_S3 in its place, to one"),
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}, "check --endpoint, or AWS_ENDPOINT_URL_S3 in its place, and"),
        (
            {"AWS_CA_BUNDLE": "/nowhere.pem", "AWS_ENDPOINT_URL_S3": "https://127.0.0.1:1"},
            "(AWS_CA_BUNDLE names '/nowhere.pem', which can't be read)",
        ),
        ({"AWS_REGION": "the moon"}, "(Provided region_name 'the moon' doesn't match a supported format.)"),
    ],
)
def test_wrong_settings_are_told_on_one_line(
    s3_environment: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], says: str
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    told = muster("ls", "s3://models/run", code=2)
    assert says in told
    assert told.count("\n") == 1


def test_an_export_is_what_the_real_library_reads(made: MadeRun, uri: str, tmp_path: Path) -> None:
    muster("export", f"{uri}@4", str(tmp_path / "out"))
    found = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    expected = struct.unpack("<12f", made.weights["step-00000004/1-0/manifest.json"])
    assert found["weight"].flatten().tolist() == list(expected)
    assert list(found["weight"].shape) == [4, 3]


@pytest.mark.parametrize(
    "name",
    [
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        pytest.param("float8_e8m0fnu", marks=needs_torch("2.7", "the first with numbers that are exponents alone")),
    ],
)
def test_eight_bits_of_any_kind_are_exported(name: str, tmp_path: Path) -> None:
    kind = getattr(torch, name)
    source, tensor = MemoryStore(), torch.arange(12, dtype=torch.uint8).view(4, 3).view(kind)
    described = {"scale": grid(source, "scale", tensor, ((2,), ()))}
    export(source, described, open_store(parse_uri(f"file://{tmp_path}"), None))
    (file,) = tmp_path.iterdir()
    found = safetensors.torch.load_file(file)["scale"]
    assert found.dtype == kind
    assert found.view(torch.uint8).equal(tensor.view(torch.uint8))


def with_tensors(*keys: str) -> Found:
    """A checkpoint whose model has an empty tensor of each of these names."""
    chunk = {"offsets": [0], "sizes": [0], "file": 0, "at": 0, "crc32": ""}
    record = Manifest(
        step=1,
        epoch=1,
        attempt=0,
        parent="",
        files=(ShardFile("x", 0, ""),),
        planner={
            "tensors": {f"m.{key}": {"dtype": "uint8", "shape": [0], "chunks": [chunk]} for key in keys},
            "trees": {"model": {key: {"$tensor": f"m.{key}"} for key in keys}},
        },
        world_size=1,
        created_at=0.0,
    )
    return Found("x", "", record)


def test_names_in_compiled_parts_of_a_model_are_its_own() -> None:
    named = with_tensors("block._orig_mod.weight", "_orig_mod.head.weight", "teacher_orig_mod.weight")
    assert list(model_tensors(named, "model")[0]) == ["block.weight", "head.weight", "teacher_orig_mod.weight"]
    with pytest.raises(StateError, match=r"has two tensors block\.weight"):
        model_tensors(with_tensors("block._orig_mod.weight", "block.weight"), "model")


def test_a_tensor_named_as_what_a_header_keeps_for_itself_is_told() -> None:
    with pytest.raises(StateError, match="has a tensor __metadata__, a name that safetensors keeps for itself"):
        model_tensors(with_tensors("a", "__metadata__"), "model")


def test_an_extra_state_that_is_no_tensor_is_left_out_of_an_export_and_named(
    made: MadeRun, uri: str, tmp_path: Path
) -> None:
    link = made.write(7)
    record = json.loads(made.store.get(link[0]).content)
    record["planner"]["trees"]["model"]["norm._extra_state"] = None
    record["planner"]["trees"]["lists"] = {"a": [1]}
    text = json.dumps(record).encode()
    made.store.put(link[0], text)
    commit(
        made.store,
        made.claim,
        step=7,
        manifest_key=link[0],
        sha256=hashlib.sha256(text).hexdigest(),
        finished=False,
        parent=made.parent,
    )
    told = muster("export", uri, str(tmp_path / "out"))
    assert "left out, since safetensors takes tensors alone: norm._extra_state" in told
    assert list(safetensors.torch.load_file(tmp_path / "out/model.safetensors")) == ["weight"]
    assert "lists.a is no tensor: only a flat" in muster(
        "export", uri, str(tmp_path / "x"), "--object", "lists", code=2
    )


def test_an_export_replaces_another_only_when_told_and_leaves_nothing_of_it(made: MadeRun, uri: str) -> None:
    target = f"{uri}-exported"
    there = open_store(parse_uri(target), None)
    for mine in ("config.json", "modelling.py", "model/model.safetensors"):
        there.put(mine, b"mine")
    there.put("model-00001-of-00002.safetensors", b"another export, cut")
    told = muster("export", f"{uri}@3", target, code=2)
    assert "has a model already (model-00001-of-00002.safetensors)" in told
    assert "replace that by --force" in told
    muster("export", f"{uri}@3", target, "--force")
    written = there.get("model.safetensors")
    muster("export", f"{uri}@4", target, code=2)
    assert there.get("model.safetensors") == written
    muster("export", f"{uri}@4", target, "--force")
    assert there.get("model.safetensors") != written
    left = [item.key for item in there.objects("")]
    assert left == ["config.json", "model.safetensors", "model/model.safetensors", "modelling.py"]
    made.store.put(shards(made.store, 5)[0], b"\0" * 24)
    before = there.get("model.safetensors")
    muster("export", f"{uri}@5", target, "--force", code=2)
    assert there.get("model.safetensors") == before, "a damaged checkpoint doesn't cost the export that is there"
    there.close()


def test_what_a_killed_export_has_left_goes_with_the_next(
    made: MadeRun, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, killed = (open_store(parse_uri(f"{uri}-exported"), None) for _ in range(2))
    with monkeypatch.context() as small:
        small.setattr(s3, "PART_BYTES", 100)
        for key in ("model.safetensors", "model-00001-of-00002.safetensors", "model.bin", "models/model.safetensors"):
            killed.writer(key).write(memoryview(bytes(200)))  # and neither closed nor aborted
    killed.close()
    assert len(there.unfinished()) == 4
    assert [each.key for each in there.unfinished("models/")] == ["models/model.safetensors"]
    muster("export", f"{uri}@3", f"{uri}-exported")
    assert {each.key for each in there.unfinished()} == {"model.bin", "models/model.safetensors"}
    assert [item.key for item in there.objects("")] == ["model.safetensors"]
    there.close()


def test_an_export_to_where_no_file_can_be_made_says_so(tmp_path: Path) -> None:
    run = MadeRun(open_store(parse_uri(f"file://{tmp_path}/run"), None))
    run.start()
    run.save(1)
    told = muster("export", run.store.uri, "/proc/exported", code=2)
    assert "/proc/exported: no file can be made in that folder; name another" in told
    assert "the folder is empty; name one, or write . for this one" in muster("export", run.store.uri, "", code=2)


def grid(store: Store, name: str, tensor: torch.Tensor, cuts: tuple[tuple[int, ...], ...]) -> Tensor:
    """A tensor cut along several dimensions; `cuts` has the borders of each."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    chunks = []
    spans = [list(itertools.pairwise((0, *cut, size))) for cut, size in zip(cuts, tensor.shape, strict=True)]
    for number, box in enumerate(itertools.product(*spans)):
        part = tensor[tuple(slice(*span) for span in box)].contiguous()
        data = bytes(part.view(torch.uint8).flatten().tolist())
        key = f"{name}-{number}.bin"
        store.put(key, data)
        offsets, sizes = tuple(low for low, _ in box), tuple(part.shape)
        checksum = f"{zlib.crc32(data):08x}"
        chunks.append(Chunk(offsets, sizes, ShardFile(key, len(data), checksum), 0, len(data), checksum))
    return Tensor(name, dtype, tuple(tensor.shape), tuple(chunks))


@pytest.mark.parametrize("piece", [1, 40, 8 << 20])
def test_tensors_of_any_cut_and_type_are_consolidated(
    tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_protocol.checkpoints.tensors.PIECE", piece)
    source = MemoryStore()
    tensors = {
        "deep": torch.arange(2 * 6 * 5 * 4, dtype=torch.float32).view(2, 6, 5, 4),
        "half": torch.arange(35, dtype=torch.bfloat16).view(7, 5),
        "flags": torch.tensor([[True, False], [False, True]]),
        "long": torch.arange(9, dtype=torch.int64),
    }
    cuts: dict[str, tuple[tuple[int, ...], ...]] = {
        "deep": ((1,), (2, 3), (), (1,)),
        "half": ((3,), (2, 4)),
        "flags": ((), (1,)),
        "long": ((4,),),
    }
    described = {name: grid(source, name, tensor, cuts[name]) for name, tensor in tensors.items()}
    target = open_store(parse_uri(f"file://{tmp_path}/out"), None)
    names = export(source, described, target, shard_bytes=500)
    assert names[-1] == "model.safetensors.index.json"
    index = json.loads((tmp_path / "out" / names[-1]).read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    for name, tensor in tensors.items():
        found = safetensors.torch.load_file(tmp_path / "out" / index["weight_map"][name])[name]
        assert found.dtype == tensor.dtype
        assert found.equal(tensor), name
    assert export(source, described, target, old=names) == ["model.safetensors"]
    assert [item.key for item in target.objects("")] == ["model.safetensors"]
    again = export(source, described, target, shard_bytes=500, old=["model.safetensors"])
    assert [item.key for item in target.objects("")] == sorted(names) == sorted(again)
    source.put("half-1.bin", bytes(len(source.read("half-1.bin", 0, 1000))))
    with pytest.raises(CorruptCheckpointError, match=r"half-1\.bin: bytes 0 to 12 are not those that were saved"):
        list(content(source, described["half"]))
    with pytest.raises(CorruptCheckpointError):
        export(source, described, target, shard_bytes=500, old=names)
    assert target.get("model.safetensors.index.json") is None, "it would lead to files of two exports"


def test_the_header_is_aligned() -> None:
    for name in ("a", "ab", "abc"):
        text = header({name: Tensor(name, "float32", (1,), ())})
        assert len(text) % 8 == 0
        assert int.from_bytes(text[:8], "little") == len(text) - 8


def test_a_run_below_whose_name_is_like_a_steps_is_none_of_this_one(made: MadeRun, uri: str) -> None:
    muster("cp", f"{uri}@3", f"{uri}/step-5/1-0")
    muster("cp", f"{uri}@3", f"{uri}/above/step-5/1-0")
    assert "never committed" not in muster("ls", uri, "--all")
    assert "has runs below it, such as step-5/1-0" in muster("cp", uri, f"{uri}/above", code=2)
    muster("prune", uri, "--last", "1", "--job-gone", "--yes")
    for below in ("step-5/1-0", "above/step-5/1-0"):
        muster("verify", f"{uri}/{below}")


def test_a_checkpoints_own_folder_is_no_place_of_a_run_and_is_told_by_the_runs_name(made: MadeRun, uri: str) -> None:
    """`show` tells where the manifest lies, so that is what somebody passes on."""
    manifest = json.loads(muster("show", f"{uri}@3", "-o", "json"))["manifest"]
    folder = f"{uri}/{manifest.rpartition('/')[0]}"
    for place in (folder, f"{folder}/"):
        assert f"own folder: write {uri}@3" in muster("show", place, code=2)
    before = made.store.objects("")
    for place in (folder, f"{folder}/other"):
        assert f"lies in the folder of the checkpoint {uri}@3" in muster("cp", f"{uri}@1", place, code=2)
    assert made.store.objects("") == before


@pytest.mark.parametrize("name", ["holds", "kept", "metrics"])
def test_a_run_below_with_the_name_of_one_of_this_ones_folders_loses_nothing(name: str, tmp_path: Path) -> None:
    """Read as holds that are long over, its manifests went with this run's next prune."""
    uri, below = f"file://{tmp_path}/run", tmp_path / "run" / name
    store = open_store(parse_uri(uri), None)
    begun(store, 5)
    muster("cp", f"{uri}@3", f"{uri}/{name}")
    half_written = below / "step-00000003" / "2-0" / ".muster-rank-00000.0000.bin.f00"
    half_written.parent.mkdir()
    half_written.touch()
    before = {path for path in below.rglob("*") if path.is_file()}
    long_ago = time.time() - 3 * 24 * 3600
    for path in before:
        os.utime(path, (long_ago, long_ago))
    assert not take(store).holds
    muster("prune", uri, "--last", "1", "--job-gone", "--yes")
    assert before <= set(below.rglob("*"))
    assert "1 of 1 checkpoint is whole" in muster("verify", f"{uri}/{name}")
    store.close()


def test_where_latest_is_missing_that_is_told_and_not_that_nothing_lies_there(made: MadeRun, uri: str) -> None:
    made.store.delete(["LATEST"])
    before = made.store.objects("")
    for command, code in (("ls", 0), ("show", 2), ("verify", 2), ("prune", 0)):
        more = ("--last", "1", "--yes") if command == "prune" else ()
        told = muster(command, uri, *more, code=code)
        assert "/LATEST is missing, though checkpoints lie there" in told
        assert "has no checkpoints" not in told
    assert made.store.objects("") == before


def test_an_older_checkpoint_is_not_taken_for_the_newest_without_a_word(
    made: MadeRun, uri: str, tmp_path: Path
) -> None:
    lost = "step-00000006/1-0/manifest.json"
    made.store.delete([lost])
    told = f"{uri}/{lost} is missing, though LATEST names it; step 5 is taken, the newest that can be read"
    for command in (("show", uri), ("keep", uri), ("cp", uri, f"{uri}-copy"), ("export", uri, str(tmp_path / "model"))):
        assert told in muster(*command)
    assert told not in muster("show", f"{uri}@5")


def test_verify_tells_damage_where_nothing_else_is_left(made: MadeRun, uri: str) -> None:
    """With exit code 1, as any damage: 2 is for what could not be looked at."""
    made.store.delete([item.key for item in made.store.objects("step-") if item.key.endswith("manifest.json")])
    for more in ((), ("--all",)):
        assert "DAMAGED" in muster("verify", uri, *more, code=1)
    assert json.loads(muster("verify", uri, "-o", "json", code=1))[0]["troubles"]
    assert "has no committed checkpoint" in muster("verify", f"{uri}@3", code=2)


@pytest.mark.parametrize(
    "uri",
    ["s3://models/a/../run", "s3://models/./run", "s3://models/..", "s3://models//run", "s3://models/a//run/"],
)
def test_a_prefix_has_no_way_out_of_it_and_one_name(uri: str) -> None:
    for command in ("ls", "show", "prune"):
        assert "no '//', and no folder '.' or '..'" in muster(command, uri, code=2)
    assert parse_uri("s3://models/.hidden/a..b/...").prefix == ".hidden/a..b/..."
    assert parse_uri("s3://models/").prefix == ""


def test_a_new_run_is_not_named_like_a_step_of_another(made: MadeRun, uri: str, tmp_path: Path) -> None:
    for command, source in (("cp", uri), ("import", str(tmp_path))):
        assert f"can't be named {uri}-copy@7" in muster(command, source, f"{uri}-copy@7", code=2)
    assert "a step is a whole number" in muster("show", f"{uri}@²", code=2)


def test_what_takes_a_whole_run_says_so_of_a_step(made: MadeRun, uri: str) -> None:
    for command in ("ls", "prune"):
        assert f"takes @3 for a step; write {uri}" in muster(command, f"{uri}@3", code=2)


def test_a_file_system_that_may_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeRun(FileStore(parse_uri(f"file://{tmp_path}/run")))
    made.start()
    made.save(1)

    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", read_only)
        told = muster("verify", f"file://{tmp_path}/run")
        assert "1 of 1 checkpoint is whole" in told
        assert "reading without a hold" in told
        assert "may only be read" in muster("keep", f"file://{tmp_path}/run", code=2)


def test_what_would_be_freed_is_what_is_freed(tmp_path: Path) -> None:
    made = MadeRun(FileStore(parse_uri(f"file://{tmp_path}/run")))
    made.start()
    made.save(1)
    half = made.store.writer("step-00000002/1-0/rank-00000.bin")
    half.write(memoryview(b"half"))
    half._file.flush()
    for path in (tmp_path / "run/step-00000002/1-0").iterdir():
        os.utime(path, (1e9, 1e9))
    made.start()
    would = json.loads(muster("prune", f"file://{tmp_path}/run", "-o", "json"))
    done = json.loads(muster("prune", f"file://{tmp_path}/run", "--yes", "-o", "json"))
    assert would["bytes"] == 4
    assert {**would, "done": True} == done
