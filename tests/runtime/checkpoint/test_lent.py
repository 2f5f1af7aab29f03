"""A rank receives objects by itself, into the memory where they shall stay."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from hack.s3server import S3Server
from proxy import Act, Handler, Proxy, delay, drop, error, forward, half_in_chunks, in_chunks, until_closed

from muster_protocol.manifest import Manifest
from muster_runtime.checkpoint import lent, reader
from muster_runtime.checkpoint.extents import Extent
from muster_runtime.checkpoint.frames import receive_frame, send_frame
from muster_runtime.checkpoint.layout import raw_bytes
from muster_runtime.checkpoint.reader import Reader, Wanted
from muster_runtime.checkpoint.s3_store import S3Store
from muster_runtime.checkpoint.store import open_store
from muster_runtime.errors import CorruptCheckpointError, StorageError
from muster_runtime.parallel.gang import Gang

CONTENT = random.Random(0).randbytes(9_000_001)
CUTS = (0, 1, 1, 4097, 5_000_000, len(CONTENT))
"""Where the parts of the memory for it begin, and end; one of them has no bytes."""


def file(content: bytes = CONTENT, start: int | None = None) -> Extent:
    return Extent("shard", len(content), f"{zlib.crc32(content):08x}", start)


def memory() -> tuple[bytearray, list[memoryview]]:
    """Zeroes, and parts of it in another order than the object's, with a byte that is nobody's behind each."""
    whole = bytearray(len(CONTENT) + len(CUTS))
    parts, end = [], len(whole)
    for start, stop in pairwise(CUTS):
        end -= stop - start + 1
        parts.append(memoryview(whole)[end : end + stop - start])
    return whole, parts


@pytest.fixture(scope="module")
def proxy(s3_environment: S3Server) -> Iterator[Proxy]:
    made = Proxy(s3_environment.endpoint)
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture(scope="module")
def store(proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        made = open_store(f"s3://models/{tmp_path_factory.mktemp('lent').name}")
        assert isinstance(made, S3Store)
        made.put("shard", CONTENT)
        yield made
        made.close()


def receive(store: S3Store, wanted: Extent, parts: Sequence[memoryview]) -> None:
    work = store.receiver()
    assert work is not None
    work(wanted, parts)


def test_an_object_fills_its_parts_and_nothing_else(store: S3Store) -> None:
    for _ in range(3):
        whole, parts = memory()
        receive(store, file(), parts)
        assert b"".join(parts) == CONTENT
        assert sum(whole) == sum(CONTENT)


def test_a_part_of_an_object_is_read_as_the_whole_is(store: S3Store) -> None:
    part = file(CONTENT[70:500_000], 70)
    target = bytearray(part.size)
    receive(store, part, [memoryview(target)[:9], memoryview(target)[9:]])
    assert target == CONTENT[70:500_000]
    shared = store.memory.reserve(part.size + 5)
    store.fetch(part, 5).result()
    assert bytes(raw_bytes(shared)[5 : part.size + 5]) == target


def test_a_script_may_have_set_a_time_out_for_all_sockets() -> None:
    (ours, theirs), (connection, server) = socket.socketpair(), socket.socketpair()
    with ours, theirs, connection, server, ThreadPoolExecutor(1) as pool:
        send_frame(theirs, {}, CONTENT[:9], connection.fileno())
        _, parts = memory()
        socket.setdefaulttimeout(1e-6)
        try:
            receiving = pool.submit(lent.receive, ours, parts)
            server.sendall(CONTENT[9:])
            assert receive_frame(theirs) == ({"crc32": file().crc32}, bytearray())
        finally:
            socket.setdefaulttimeout(None)
        theirs.shutdown(socket.SHUT_RDWR)
        receiving.result()
    assert b"".join(parts) == CONTENT


def test_what_is_wrong_with_an_object_is_told(store: S3Store) -> None:
    for wanted, told in (
        (file(CONTENT[:-1] + b"?"), "is not what was saved"),
        (file(CONTENT[:-1]), "is 9000001 bytes, not 9000000"),
        (Extent("other", 1, "0" * 8), "does not exist"),
        (file(CONTENT[5:9] + b"?", 5), "is not what was saved"),
        (file(CONTENT[-9:] + b"?", len(CONTENT) - 9), "is 9 bytes, not 10"),
        (Extent("shard", 1, "0" * 8, len(CONTENT)), f"does not exist, or ends before its byte {len(CONTENT)}"),
    ):
        with pytest.raises(CorruptCheckpointError, match=told):
            receive(store, wanted, [memoryview(bytearray(wanted.size))])


def break_off(handler: Handler) -> None:
    """In the middle of the content, which the rank is receiving."""
    answer, content = handler.ask()
    handler.answer(answer.status, answer.getheaders(), content[: len(content) // 2], len(content))
    handler.hang_up()


@pytest.mark.parametrize("bad", [in_chunks, until_closed, half_in_chunks])
def test_an_answer_that_does_not_tell_its_length(store: S3Store, proxy: Proxy, bad: Act) -> None:
    for wanted in (file(), Extent("shard", len(CONTENT), "0" * 8)):
        for through_memory in (False, True):
            _, parts = memory()
            target = store.memory.reserve(len(CONTENT))
            proxy.arm(1, bad, "/shard")
            told = contextlib.nullcontext() if wanted == file() else pytest.raises(CorruptCheckpointError)
            with told:
                if through_memory:
                    store.fetch(wanted, 0).result()
                    assert bytes(raw_bytes(target)[: len(CONTENT)]) == CONTENT
                else:
                    receive(store, wanted, parts)
                    assert b"".join(parts) == CONTENT


@pytest.mark.parametrize("bad", [delay, drop, break_off, error(503, "SlowDown")])
def test_a_bad_network(store: S3Store, proxy: Proxy, bad: Act) -> None:
    _, parts = memory()
    proxy.arm(1, bad, "/shard")
    receive(store, file(), parts)
    assert b"".join(parts) == CONTENT


def test_a_storage_process_that_is_killed(store: S3Store, proxy: Proxy) -> None:
    def kill(handler: Handler) -> None:
        os.kill(store.process.pid, signal.SIGKILL)
        break_off(handler)

    _, parts = memory()
    proxy.arm(1, kill, "/shard")
    with pytest.raises(StorageError, match="was killed"):
        receive(store, file(), parts)
    proxy.arm(0, forward)
    receive(store, file(), parts)
    assert b"".join(parts) == CONTENT


class Lending:
    """Transfers of two objects; the first is damaged, and the other comes slowly."""

    def __init__(self) -> None:
        self.damaged, self.written = threading.Event(), False

    def receiver(self) -> object:
        return self._receive

    def _receive(self, wanted: Extent, parts: Sequence[memoryview]) -> None:
        if wanted.key == "damaged":
            self.damaged.set()
            raise CorruptCheckpointError("it is damaged")
        self.damaged.wait()
        parts[0][:] = b"x"
        self.written = True


def test_nothing_comes_any_more_when_a_restore_has_failed() -> None:
    """What is tried next has the tensors for itself."""
    files = tuple(Extent(key, 1, "0" * 8) for key in ("slow", "damaged", "damaged"))
    transfers = Lending()
    made = Reader(transfers, Manifest(1, 1, 0, "", (), {"tensors": {}}, 1, 0.0), Gang())  # type: ignore[arg-type]
    target = torch.zeros(1, dtype=torch.uint8)
    with pytest.raises(CorruptCheckpointError, match="it is damaged"):
        made._receive([(each, [Wanted(target, 0, lambda: None)]) for each in files], transfers._receive)
    assert transfers.written


@pytest.mark.parametrize("slot", [None, 25])
@pytest.mark.parametrize("spans", [[(3, 9)], [(12, 20), (0, 5), (5, 5), (6, 12)], [(0, 12), (4, 20)], [(0, 20)] * 2])
def test_targets_are_filled_in_any_order_with_gaps_and_twice(
    spans: list[tuple[int, int]], slot: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_SCRATCH", 2)
    content = bytes(range(100, 120))
    targets = [torch.zeros(end - start, dtype=torch.uint8) for start, end in spans]
    finished: list[int] = []
    wanted = [
        Wanted(target, start, lambda number=number: finished.append(number))  # type: ignore[misc]
        for number, (target, (start, _)) in enumerate(zip(targets, spans, strict=True))
    ]
    apart = reader._apart(wanted, len(content), None if slot is None else torch.zeros(slot, dtype=torch.uint8))
    at = 0
    for part in reader._parts(apart, len(content)):
        part[:] = content[at : at + len(part)]
        at += len(part)
    assert at == len(content)
    for each in apart:
        each.finish()
    assert sorted(finished) == list(range(len(spans)))
    for target, (start, end) in zip(targets, spans, strict=True):
        assert bytes(raw_bytes(target)) == content[start:end]
