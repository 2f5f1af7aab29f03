"""The two stores behave the same: folders and a real S3 server."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import botocore.auth
import botocore.exceptions
import pytest

from muster_protocol.checkpoints import s3
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.checkpoints.s3 import PART_BYTES
from muster_protocol.checkpoints.store import Store, StreamingStore, whole_or_nothing
from muster_protocol.uris import parse_uri
from muster_runtime.checkpoint import s3_process, s3_store
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.s3_store import Outgoing, S3Store
from muster_runtime.checkpoint.store import open_store
from muster_runtime.checkpoint.sums import Sums, sums
from muster_runtime.errors import CorruptCheckpointError, StorageError, StorageRefusedError

if TYPE_CHECKING:
    from hack.s3server import S3Server


@pytest.fixture(params=["file", "s3", "s3 without a process"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "file":
        yield open_store(f"file://{tmp_path}/run")
        return
    request.getfixturevalue("s3_environment")
    uri = f"s3://models/{tmp_path.name}-{time.monotonic_ns()}"
    opened = open_store(uri) if request.param == "s3" else s3.S3Store(parse_uri(uri))
    yield opened
    opened.close()


@pytest.fixture(params=["file", "s3 without a process"])
def streaming(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamingStore]:
    opened: StreamingStore
    if request.param == "file":
        opened = FileStore(parse_uri(f"file://{tmp_path}/run"))
    else:
        request.getfixturevalue("s3_environment")
        opened = s3.S3Store(parse_uri(f"s3://models/{tmp_path.name}-{time.monotonic_ns()}"))
    yield opened
    opened.close()


def kind_of(error: pytest.ExceptionInfo[StorageError]) -> str:
    return error.value.kind


def test_an_object_comes_back_whole_and_in_parts(store: Store) -> None:
    store.put("a/b", b"0123456789")
    body = store.get("a/b")
    assert body is not None
    assert body.content == b"0123456789"
    assert store.read("a/b", 3, 4) == b"3456"
    assert store.read("a/b", 0, 0) == b""


def test_what_is_absent_is_none_and_can_not_be_read(store: Store) -> None:
    assert store.get("nothing") is None
    with pytest.raises(StorageError) as error:
        store.read("nothing", 0, 1)
    assert kind_of(error) == "NotFound"
    store.put("short", b"123")
    with pytest.raises(StorageError) as error:
        store.read("short", 2, 5)
    assert kind_of(error) == "NotFound"


@pytest.mark.parametrize("size", [0, 5, PART_BYTES, 2 * PART_BYTES + 12345], ids=["empty", "small", "part", "parts"])
def test_a_stream_of_any_size(streaming: StreamingStore, size: int) -> None:
    content = os.urandom(size)
    writer = streaming.writer("streamed")
    for start in range(0, size, 3_000_000):
        writer.write(memoryview(content)[start : start + 3_000_000])
    file = writer.close()
    assert (file.key, file.size, file.crc32) == ("streamed", size, f"{zlib.crc32(content):08x}")
    body = streaming.get("streamed")
    assert body is not None
    assert body.content == content


def test_a_stream_whose_parts_grow_is_whole(
    s3_environment: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from 16 GB on."""
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(s3, "_PARTS_OF_A_SIZE", 2)
    store = s3.S3Store(parse_uri(f"s3://models/{tmp_path.name}"))
    content = os.urandom((50 << 20) + 1)
    with whole_or_nothing(store.writer("large")) as writer:
        for at in range(0, len(content), (3 << 20) + 7):
            writer.write(memoryview(content)[at : at + (3 << 20) + 7])
        writer.close()
    found = store.get("large")
    assert found is not None
    assert found.content == content
    store.close()


def test_an_aborted_stream_leaves_nothing(streaming: StreamingStore) -> None:
    writer = streaming.writer("half")
    writer.write(memoryview(bytes(PART_BYTES + 1)))
    writer.abort()
    assert streaming.get("half") is None
    assert streaming.objects("") == []


FILLS_THE_DISK = """
import resource, signal, sys
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.errors import StorageError
from muster_protocol.uris import parse_uri

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
store = FileStore(parse_uri(sys.argv[1]))
for size in (5000, 1 << 20):  # fails where its buffer is written, and at once
    try:
        store.put("step-1/large", bytes(size))
    except StorageError as error:
        print(error)
"""


def test_what_finds_no_room_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILLS_THE_DISK, f"file://{tmp_path}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.count("step-1/large: File too large") == 2
    assert list(tmp_path.iterdir()) == []


def test_a_conditional_write_needs_the_right_tag(store: Store) -> None:
    first = store.put_if("word", b"one", None)
    with pytest.raises(StorageError) as error:
        store.put_if("word", b"two", None)
    assert kind_of(error) == "PreconditionFailed"
    second = store.put_if("word", b"two", first)
    with pytest.raises(StorageError) as error:
        store.put_if("word", b"three", first)
    assert kind_of(error) == "PreconditionFailed"
    body = store.get("word")
    assert body is not None
    assert (body.content, body.etag) == (b"two", second)


def test_a_conditional_write_of_what_is_gone_fails(store: Store) -> None:
    etag = store.put_if("word", b"one", None)
    store.delete(["word"])
    with pytest.raises(StorageError) as error:
        store.put_if("word", b"two", etag)
    assert kind_of(error) == "PreconditionFailed"


def test_listing_and_deleting(store: Store) -> None:
    for key in ("step-1/a", "step-1/b", "step-2/a", "metrics/x"):
        store.put(key, key.encode())
    assert [(item.key, item.size) for item in store.objects("step-")] == [
        ("step-1/a", 8),
        ("step-1/b", 8),
        ("step-2/a", 8),
    ]
    store.delete(["step-1/a", "step-1/b", "never-there"])
    assert [item.key for item in store.objects("")] == ["metrics/x", "step-2/a"]


def test_what_a_writer_that_died_left_behind_is_found_and_freed(streaming: StreamingStore) -> None:
    streaming.put("step-1/whole", b"1")
    writer = streaming.writer("step-1/half")
    writer.write(memoryview(bytes(PART_BYTES + 1)))
    store = open_store(streaming.uri)
    left = store.unfinished()
    assert [each.key for each in left] == ["step-1/half"]
    assert abs(left[0].started - time.time()) < 60
    store.forget(left)
    store.forget(left)
    assert store.unfinished() == streaming.unfinished() == []
    assert [item.key for item in store.objects("")] == ["step-1/whole"]
    store.close()


def test_a_bucket_that_does_not_exist_is_told_in_words(s3_environment: S3Server) -> None:
    store = open_store("s3://no-such-bucket/run")
    try:
        with pytest.raises(StorageError, match=r"the bucket 'no-such-bucket' does not exist.*create it") as error:
            store.put("a", b"")
        assert kind_of(error) == "NoSuchBucket"
        with pytest.raises(StorageError, match="no-such-bucket") as error:
            store.get("a")
        assert kind_of(error) == "NoSuchBucket"
    finally:
        store.close()


@pytest.mark.parametrize("scheme", ["file", "s3"])
def test_a_folder_whose_name_is_too_long_is_told_as_a_wrong_uri(
    scheme: str, s3_environment: S3Server, tmp_path: Path
) -> None:
    store = open_store(f"{'s3://models' if scheme == 's3' else f'file://{tmp_path}'}/{'x' * 300}/run")
    with pytest.raises(StorageRefusedError, match="too long") as error:
        store.put("a", b"")
    assert kind_of(error) == "Misconfigured"
    assert "correct" in str(error.value)
    store.close()


def test_wrong_keys_are_told_in_words(s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = open_store("s3://models/run")
    try:
        with pytest.raises(
            StorageError, match=r"access to s3://models/run/a at http://.* is denied.*secretRef"
        ) as error:
            store.put("a", b"")
        assert kind_of(error) == "AccessDenied"
    finally:
        store.close()


def test_a_folder_that_is_gone_while_a_file_is_written_is_told_in_words(tmp_path: Path) -> None:
    """And not by what giving the file up meets, which is no error of a store."""
    store = FileStore(parse_uri(f"file://{tmp_path}/run"))
    (tmp_path / "other").touch()

    def written() -> None:
        with whole_or_nothing(store.writer("a")) as writer:
            writer.write(memoryview(b"1"))
            (tmp_path / "run").rename(tmp_path / "elsewhere")
            (tmp_path / "other").rename(tmp_path / "run")
            writer.close()

    with pytest.raises(StorageRefusedError, match="Not a directory"):
        written()


@pytest.mark.parametrize("reason", [KeyboardInterrupt, CorruptCheckpointError])
def test_giving_an_object_up_hides_no_reason(
    reason: type[BaseException], s3_environment: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the server is away when it is asked to forget the upload."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store = s3.S3Store(parse_uri(f"s3://models/{tmp_path.name}-{time.monotonic_ns()}"))

    def cut() -> None:
        with whole_or_nothing(store.writer("a")) as writer:
            writer.write(memoryview(bytes(PART_BYTES + 1)))
            monkeypatch.setattr(store.client, "abort_multipart_upload", refused)
            raise reason

    def refused(**_: object) -> None:
        raise botocore.exceptions.EndpointConnectionError(endpoint_url="http://nowhere")

    with pytest.raises(reason):
        cut()
    monkeypatch.undo()
    assert [each.key for each in store.unfinished()] == ["a"], "a prune finds it"
    store.close()


def test_a_clock_that_is_wrong_is_told_in_words(s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    right = botocore.auth.get_current_datetime
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: right() + timedelta(hours=1))
    store = s3.S3Store(parse_uri("s3://models/run"))
    with pytest.raises(
        StorageError, match=r"clocks of this machine and of the S3 server at .*let NTP keep it"
    ) as error:
        store.get("a")
    assert kind_of(error) == "Clock"
    store.close()


def test_a_server_that_is_away_is_told_in_words(monkeypatch: pytest.MonkeyPatch, s3_environment: S3Server) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store = open_store("s3://models/run")
    try:
        with pytest.raises(
            StorageError, match=r"can't be reached.*check checkpoint\.endpoint, or AWS_ENDPOINT_URL_S3"
        ) as error:
            store.get("a")
        assert kind_of(error) == "Network"
    finally:
        store.close()


def test_an_s3_process_that_was_killed_fails_what_it_was_asked_and_another_takes_over(
    s3_environment: S3Server,
) -> None:
    store = open_store("s3://models/run")
    assert isinstance(store, S3Store)
    store.put("a", b"1")
    for _ in range(2):
        killed = store.process
        killed.send_signal(signal.SIGSTOP)  # so that the request is under way when it dies
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(store.get, "a")
            killed.kill()
            with pytest.raises(StorageError, match="was killed, probably for want of memory") as error:
                asked.result(20)
        assert kind_of(error) == "Other"
        body = store.get("a")
        assert body is not None
        assert body.content == b"1"
        assert store.process.pid != killed.pid
    store.close()


def test_a_signal_to_the_whole_process_group_leaves_the_s3_process_to_its_rank(s3_environment: S3Server) -> None:
    """A stop, or what a script has a handler for: Slurm sends SIGUSR1 ahead of a time limit, for a last save."""
    store = open_store("s3://models/run")
    assert isinstance(store, S3Store)
    store.put("a", b"1")
    process = store.process
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)
        body = store.get("a")
        assert body is not None
        assert body.content == b"1"
    assert store.process is process
    store.close()


@pytest.mark.parametrize("what", ["process", "thread"])
def test_a_machine_without_room_for_another_s3_process_fails_what_needs_it_and_no_more(
    s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """At the limit of a pod's processes a save is missed, and its training goes on."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more") if what == "process" else RuntimeError("can't start new thread")

    store = S3Store(parse_uri("s3://models/crowded"))
    store.put("key", b"content")
    store.memory.reserve(8)
    files = [Outgoing("shard", 0, 8, ())]
    store.process.send_signal(signal.SIGSTOP)
    under_way = store.upload(files)
    store.process.kill()
    with pytest.raises(StorageError, match="was killed"):
        under_way.result(20)
    with monkeypatch.context() as crowded:
        place = (subprocess, "Popen") if what == "process" else (threading.Thread, "start")
        crowded.setattr(*place, refuse)
        with pytest.raises(StorageError, match=r"can't be started .*limit of processes") as error:
            store.upload(files).result(20)
    assert kind_of(error) == "Other"
    assert store.get("key") is not None
    store.close()


def test_an_s3_process_that_can_start_no_threads_is_not_told_as_one_without_boto3(s3_environment: S3Server) -> None:
    limits = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 47, limits[1]))  # of each thread's stack: more than there can be
    try:
        store = S3Store(parse_uri("s3://models/crowded"))
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, limits)
    with pytest.raises(StorageError, match=r"can't start its threads: .*limit of processes") as error:
        store.put("key", b"content")
    assert "boto3" not in str(error.value)
    store.put("key", b"content")
    store.close()


def test_an_s3_process_whose_rank_died_with_an_answer_unread_ends_without_a_word() -> None:
    """What it wrote would be taken for the rank's last words."""
    rank, own = socket.socketpair()
    own.sendall(b"an answer")
    rank.close()
    with own:
        s3_process.Server(own, -1, "bucket", "").serve()


def test_an_s3_process_remembers_the_sums_of_one_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is kept in memory, nobody asks for them again."""
    summed = []

    def counted(memory: memoryview, chunks: list[tuple[int, int]]) -> Sums:
        summed.append(len(memory))
        return sums(memory, chunks)

    monkeypatch.setattr(s3_process, "sums", counted)
    memory = os.memfd_create("test")
    os.truncate(memory, 4096)
    rank, own = socket.socketpair()
    with rank, own:
        server = s3_process.Server(own, memory, "bucket", "")
        server._client = SimpleNamespace(put_object=lambda **_: None)
        for save in range(1, 10):
            files = [(f"step-{save:08d}/1-0/rank-00000.{n:04d}.bin", 1024 * n, 1024, [(0, 512)]) for n in range(4)]
            told, _ = server._upload({"files": files}, bytearray())
            assert server._sum({"files": files}, bytearray()) == (told, b"")
            assert len(summed) == 4 * save, "once for both"
            assert len(server._summed[1]) == 4
    os.close(memory)


def test_an_s3_process_that_never_answers_asks_for_boto3(
    s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "_BOOTSTRAP", "raise ModuleNotFoundError('boto3')")
    store = open_store("s3://models/run")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"did not start \(exit code 1\).*Is boto3 installed"):
            store.get("a")
    store.close()


def test_an_s3_process_has_the_environment_of_its_first_request(
    s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started as soon as a session begins, and a script may set its credentials after that."""
    with monkeypatch.context() as early:
        early.setenv("AWS_SECRET_ACCESS_KEY", "not yet")
        store = open_store(f"s3://models/late-{time.monotonic_ns()}")
        first = store.process.pid
    store.put("a", b"1")
    second = store.process.pid
    assert second != first
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "too late")
    assert store.get("a") is not None
    assert store.process.pid == second
    store.close()


_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def test_an_s3_process_stays_when_torch_sets_variables_of_its_own(
    s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"s3://models/stays-{time.monotonic_ns()}")
    first = store.process.pid
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/inductor")
    store.put("a", b"1")
    assert store.process.pid == first
    store.close()


def test_an_s3_process_finds_credentials_that_a_script_wrote_after_it_came_up(
    s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = s3_environment.environment()
    written = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(written))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in _KEYS:
        monkeypatch.delenv(name)
    store = open_store(f"s3://models/written-{time.monotonic_ns()}")
    first = store.process.pid
    with pytest.raises(StorageError, match="credentials"):
        store.get("a")
    written.write_text("[default]\n" + "".join(f"{name.lower()} = {keys[name]}\n" for name in _KEYS))
    store.put("a", b"1")
    assert store.process.pid == first
    store.close()


_SESSION = """
import os
from pathlib import Path
import muster_runtime as muster
muster.start(checkpoint="s3://models/session")
children = [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
print(children[0], "s3_process" in Path(f"/proc/{children[0]}/cmdline").read_text())
"""


def test_the_s3_process_comes_up_with_the_session_and_ends_with_a_script_that_has_no_loop(
    s3_environment: S3Server, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SESSION)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    pid, there = ran.stdout.split()
    assert there == "True"
    until = time.monotonic() + 10
    while _alive(int(pid)):
        assert time.monotonic() < until, "the S3 process outlived its script"
        time.sleep(0.02)


_CHILD = """
import sys
from muster_runtime.checkpoint.store import open_store
store = open_store("s3://models/child")
store.put("a", b"1")
assert not {name.split(".")[0] for name in sys.modules} & {"boto3", "botocore", "s3transfer", "jmespath"}, sys.modules
print(store.process.pid, flush=True)
sys.stdin.read()
"""


def test_what_uploads_and_sums_leaves_a_core_to_the_training_at_once(s3_environment: S3Server) -> None:
    memory = SharedMemory()
    memory.reserve(1 << 20)
    store = S3Store(parse_uri("s3://models/run"), memory)
    outgoing = [Outgoing(key, 0, 1 << 20, ((0, 1 << 20),)) for key in ("a", "b")]
    store.upload(outgoing).result(20)
    store.sum(outgoing).result(20)
    policies = [os.sched_getscheduler(int(task.name)) for task in Path(f"/proc/{store.process.pid}/task").iterdir()]
    assert policies.count(os.SCHED_IDLE) >= 2, "an upload and a sum"
    assert os.SCHED_OTHER in policies, "what is asked for is answered as ever"
    store.close()


def test_boto3_stays_out_of_the_rank_and_its_process_dies_with_it(s3_environment: S3Server, tmp_path: Path) -> None:
    # modules of these names in the script's folder must not reach our process either
    for name in ("boto3", "botocore", "json", "socket"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the user has a module of this name')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "user")}
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "botocore.py").write_text("raise RuntimeError('found on PYTHONPATH')")
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    os.kill(pid, signal.SIGTERM)  # a stop reaches the whole process group; the last save still needs this process
    child.kill()
    child.wait()
    until = time.monotonic() + 10
    while _alive(pid):
        assert time.monotonic() < until, "the S3 process outlived its rank"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("name", ["file", "file/run", "x" * 300])
def test_a_place_that_is_no_folder_is_told_as_a_wrong_uri(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    store = FileStore(parse_uri(f"file://{tmp_path}/{name}"))
    for ask in (lambda: store.objects("step-"), lambda: store.put_if("LATEST", b"1", None)):
        with pytest.raises(StorageRefusedError, match="correct the uri"):
            ask()


HOLDS_AND_FORKS = """
import os, sys
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.uris import parse_uri

with FileStore(parse_uri(sys.argv[1]))._locked("LATEST"):
    worker = os.fork()
    if worker == 0:  # lives on, as a data loader's worker does for a while
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)
    os.waitpid(worker, 0)
"""


def test_a_lock_goes_with_the_process_that_took_it_though_its_workers_live(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS_AND_FORKS, f"file://{tmp_path}"]
    rank = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "held\n"
        rank.kill()
        store = FileStore(parse_uri(f"file://{tmp_path}"))
        writing = threading.Thread(target=store.put_if, args=("LATEST", b"1", None), daemon=True)
        writing.start()
        writing.join(20)
        assert not writing.is_alive(), "the dead rank's worker keeps the lock"
    finally:
        rank.kill()
        rank.communicate()
