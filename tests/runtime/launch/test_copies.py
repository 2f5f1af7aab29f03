"""Launchers keep copies of each other's memory: real servers and sockets, ranks' memory written by the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import threading
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from muster_protocol import env
from muster_protocol import launcher_api as api
from muster_protocol.messages import Copy, Heartbeat, Member, Membership, Release, Stop, StopReason
from muster_runtime.checkpoint import records
from muster_runtime.checkpoint.frames import receive_frame, send_frame
from muster_runtime.launch import config, copies, copy_stream
from muster_runtime.launch.api_handler import ApiHandler
from muster_runtime.launch.asked_saves import AskedSaves
from muster_runtime.launch.copies import Copies
from muster_runtime.launch.hangs import Hangs
from muster_runtime.launch.http_server import Server
from muster_runtime.launch.leader import Leader
from muster_runtime.launch.membership import Roll
from muster_runtime.launch.node_hours import NodeHours
from muster_runtime.launch.profiles import Profiles
from muster_runtime.launch.rank_memory import agreed
from muster_runtime.launch.ranks import Ranks
from muster_runtime.launch.standing import Standing
from muster_runtime.launch.state import State
from muster_runtime.launch.tracking import Tracking

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(60)]

TOKEN = "t" * 64
PORT = 29400
RANKS = 2
LENGTH = 3 << 20


@dataclass
class Pod:
    """A launcher without ranks; `member` as it joined."""

    copies: Copies
    member: Member
    state: State

    @property
    def data(self) -> list[int]:
        return [self.copies.descriptors(rank)[0] for rank in range(RANKS)]

    def stage(self, step: int, *, slot: int = 0, incarnation: int = 1, seed: int = 0) -> None:
        """What the ranks of this pod would leave: a sealed step, agreed on by `incarnation`, and at index 0 a claim."""
        for rank in range(RANKS):
            data, *slots, claim = self.copies.descriptors(rank)
            content = random.Random(1000 * step + rank + seed).randbytes(LENGTH)
            base = slot * records.capacity(LENGTH)
            os.ftruncate(data, max(os.fstat(data).st_size, base + records.capacity(LENGTH)))
            os.pwrite(data, content, base)
            file = {"key": "k", "size": LENGTH, "crc32": f"{zlib.crc32(content):08x}"}
            body = {"epoch": 1, "step": step, "attempt": 0, "base": base, "length": LENGTH}
            records.write(slots[slot], {**body, "files": [{"file": file}], "starts": [0]})
            records.mark(slots[slot], incarnation)
            if self.member.index == 0 and rank == 0:
                records.write(claim, {"etag": f"of step {step}"})

    def content(self) -> list[bytes]:
        return [os.pread(data, LENGTH, 0) for data in self.data]

    async def look_until(self, other: Pod, step: int) -> None:
        """As the launcher looks, only oftener."""
        while other.copies.holding[2:3] != (step,):
            self.copies.look()
            await asyncio.sleep(0.01)

    def ask(self, other: Pod, path: str, copy: Copy) -> tuple[int, socket.socket]:
        connection = copy_stream.connect(other.member.address, PORT)
        return copy_stream.ask(connection, TOKEN, path, copy), connection

    def offer(self, step: int, incarnation: int = 1) -> Copy:
        return Copy(self.member.index, self.member.pod_uid, incarnation, (1, step, 0), RANKS * LENGTH)


@contextlib.asynccontextmanager
async def pods(count: int = 2, *, memory: str = "auto") -> AsyncIterator[list[Pod]]:
    net = f"127.{random.randint(10, 250)}.{random.randint(1, 250)}"
    made, servers = [], []
    for index in range(count):
        settings = {
            env.JOB: "probe",
            env.NAMESPACE: "research",
            env.GENERATION: "1",
            env.INDEX: str(index),
            env.WORKERS: str(count),
            env.PROCESSES_PER_WORKER: str(RANKS),
            env.LEADER_HOST: f"{net}.1",
            env.POD_UID: f"uid-{index}",
            env.POD_IP: f"{net}.{index + 1}",
            env.TOKEN: TOKEN,
            env.NODE_NAME: f"node-{index}",
            env.REPLACE_SECONDS: "60",
            env.CHECKPOINT_MEMORY: memory,
        }
        given = config.read(settings, ("true",))
        state, roll = State(), Roll(1, count)
        copies = Copies(given, roll, state)
        ranks = Ranks(state.tell)
        hangs = Hangs(given, ranks, state)
        gang = Leader(given, None, state, roll, Standing(), hangs)  # type: ignore[arg-type]
        answers = None  # nobody asks for the status here
        asked = AskedSaves(given, ranks, hangs)
        parts = copies, hangs, Profiles(given), Tracking(given, settings), NodeHours(given), asked
        handler = ApiHandler(given.member, TOKEN, state, roll, gang, answers, *parts)  # type: ignore[arg-type]
        servers.append(Server(handler, 100))
        await servers[-1].start(given.address, PORT)
        made.append(Pod(copies, given.member, state))
    yield made
    for pod in made:
        pod.copies.end()
    for server in servers:
        await server.close(patience=1.0)


async def begin(*those: Pod, incarnation: int = 1, keeper: Member | None = None, holder: Member | None = None) -> None:
    for pod in those:
        await pod.copies.begin(Release(incarnation, "127.0.0.1", 1, keeper=keeper, holder=holder))


async def copied(one: Pod, other: Pod) -> Member:
    """The other, which keeps a copy of step 10 of the one."""
    await begin(one, keeper=other.member)
    await begin(other)
    one.stage(10)
    await one.look_until(other, 10)
    return replace(other.member, copy=other.copies.holding)


async def fails(one: Pod, other: Pod) -> None:
    """The other is to keep a copy of step 10 of the one, until it is told why it has none."""
    await begin(one, keeper=other.member)
    await begin(other)
    one.stage(10)
    while not one.copies.trouble:
        one.copies.look()
        await asyncio.sleep(0.01)


def test_what_the_gang_agreed_on_is_copied_step_after_step() -> None:
    async def check() -> None:
        async with pods() as (first, second):
            await begin(first, keeper=second.member)
            await begin(second, keeper=first.member)
            first.stage(10)
            await first.look_until(second, 10)
            first.stage(20, slot=1)
            await first.look_until(second, 20)
            assert second.copies.holding == (0, 1, 20, 0)

    asyncio.run(check())


def test_a_new_pod_gets_its_bytes_records_and_claim() -> None:
    async def check() -> None:
        async with pods(3) as (first, second, third):
            holder = await copied(first, second)
            kept = first.content()
            for pod in (first, second):
                pod.copies.end()
            # The third plays the new pod of index 0: it has index 0's claim to fetch, too.
            third.copies._config = first.copies._config
            await begin(third, incarnation=2, holder=holder)
            assert third.content() == kept
            _, record, _, claim = third.copies.descriptors(0)
            assert records.extent(records.read(record) or {}).order == (1, 10, 0)
            assert records.read(claim) == {"etag": "of step 10"}

    asyncio.run(check())


def test_a_gang_that_resumed_from_the_store_keeps_its_claim() -> None:
    async def check() -> None:
        async with pods(3) as (first, second, third):
            holder = await copied(first, second)
            third.copies._config = first.copies._config  # leads
            claim = third.copies.descriptors(0)[3]
            # The restore has let go of what had been fetched, and taken a later epoch.
            records.write(claim, {"etag": "of the restore"})
            await begin(third, incarnation=3, holder=holder)
            assert records.read(claim) == {"etag": "of the restore"}
            assert all(memory.empty for memory in third.copies._memory)

    asyncio.run(check())


def test_a_gang_that_resumed_from_the_store_fetches_no_older_copies() -> None:
    async def check() -> None:
        async with pods(3) as (first, second, third):
            holder = await copied(first, second)
            third.copies._config = first.copies._config
            await begin(third, incarnation=2, holder=holder)
            for pod in (first, third):  # one has fetched its copy, the other had it made
                for memory in pod.copies._memory:
                    for record in memory.slots:
                        os.truncate(record, 0)  # as a restore from the store does
                os.truncate(pod.copies.descriptors(0)[3], 0)  # as at an index that doesn't lead
                await begin(pod, incarnation=3, holder=holder)
                assert all(memory.empty for memory in pod.copies._memory)

    asyncio.run(check())


def test_a_newer_claim_follows_without_the_bytes() -> None:
    async def check() -> None:
        async with pods() as (first, second):
            await copied(first, second)
            records.write(first.copies.descriptors(0)[3], {"etag": "committed"})
            held = second.copies._held
            assert held is not None
            while "committed" not in held.copy.claim:
                first.copies.look()
                await asyncio.sleep(0.01)
                held = second.copies._held
                assert held is not None, "the copy stays"

    asyncio.run(check())


def test_a_copy_that_is_cut_off_or_changed_does_not_count(capfd: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        async with pods() as (first, second):
            await begin(first, second)
            first.stage(10)
            pieces = agreed(first.copies._memory, 1)

            def cut() -> None:
                status, connection = first.ask(second, api.COPY_PATH, first.offer(10))
                assert status == 101
                with connection:
                    copy_stream.send(connection, pieces[:1])
                    send_frame(connection, {"length": LENGTH}, pieces[1].record)
                    connection.sendall(b"x" * 1000)

            def changed() -> str:
                os.pwrite(first.data[1], b"y", LENGTH - 1)
                status, connection = first.ask(second, api.COPY_PATH, first.offer(10))
                assert status == 101
                with connection:
                    copy_stream.send(connection, pieces)
                    answer = receive_frame(connection)
                assert answer is not None
                return str(answer[0]["wrong"])

            await asyncio.to_thread(cut)
            assert "CRC-32 differs" in await asyncio.to_thread(changed)
            assert second.copies.holding == ()

    asyncio.run(check())
    assert "is refused: part 1: " in capfd.readouterr().err


def test_while_a_copy_comes_in_over_another_there_is_none() -> None:
    async def check() -> None:
        async with pods() as (first, second):
            await copied(first, second)
            status, connection = await asyncio.to_thread(first.ask, second, api.COPY_PATH, first.offer(20))
            with connection:
                assert (status, second.copies.holding) == (101, ())

    asyncio.run(check())


@pytest.mark.parametrize("why", ["incarnation", "closed", "uid", "unknown", "memory"])
def test_what_is_refused(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> int:
        async with pods() as (first, second):
            await copied(first, second)
            path, copy = api.COPY_PATH, first.offer(20)
            if why == "incarnation":
                copy = first.offer(20, incarnation=2)
            elif why == "closed":
                second.copies.end()
            elif why == "uid":
                named = Member(0, "another", first.member.address, 1)
                second.copies._roll.push(Membership(1, 1, (named,)))
            elif why == "unknown":
                path, copy = api.FETCH_PATH, first.offer(30)
            else:
                monkeypatch.setattr(records, "free_memory", lambda _: 0)
                copy = Copy(0, "uid-0", 1, (1, 20, 0), 1 << 40)
            status, connection = await asyncio.to_thread(first.ask, second, path, copy)
            connection.close()
            assert second.copies.holding == (0, 1, 10, 0), "what was there stays"
            return status

    expected = {"incarnation": 409, "closed": 409, "uid": 403, "unknown": 404, "memory": 507}
    assert asyncio.run(check()) == expected[why]


def test_a_copy_that_keeps_failing_is_told_until_one_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_AGAIN_SECONDS", 0.0)
    free = [0]
    monkeypatch.setattr(records, "free_memory", lambda _: free[0])

    async def check() -> None:
        async with pods() as (first, second):
            await begin(first, keeper=second.member)
            await begin(second)
            first.stage(10)
            seen = []
            while not first.copies.trouble:
                first.copies.look()
                await asyncio.sleep(0.01)
                seen.append(first.copies._failures)
            assert {1, 2} < set(seen), "one failure alone is no trouble yet"
            told = "worker 0's memory is not copied to worker 1: it answered 507: it needs 0.01 GB more memory"
            assert first.copies.trouble.startswith(told)
            free[0] = 1 << 40
            await first.look_until(second, 10)
            while first.copies.trouble:
                first.copies.look()
                await asyncio.sleep(0.01)

    asyncio.run(check())


def test_a_copy_stands_as_long_as_it_took_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the network is as slow as saves are frequent, a copy would be replaced as soon as it is whole."""
    now = 1000.0
    send = copy_stream.send

    def slow(connection: socket.socket, pieces: list[copy_stream.Piece]) -> None:
        nonlocal now
        now += 30.0
        send(connection, pieces)

    monkeypatch.setattr(copy_stream, "send", slow)

    async def check() -> None:
        nonlocal now
        async with pods() as (first, second):
            await begin(second, keeper=first.member)
            await begin(first)
            second.state.clock = lambda: now
            second.stage(10)
            await second.look_until(first, 10)
            while second.copies._sending:  # noqa: ASYNC110 - until it has the answer
                await asyncio.sleep(0.01)
            second.stage(11, slot=1)
            now += 29.0
            second.copies.look()
            assert not second.copies._sending
            assert first.copies.holding[2:3] == (10,)
            now += 2.0
            await second.look_until(first, 11)

            await begin(first, keeper=second.member)
            first.state.clock = lambda: now
            first.stage(10)
            await first.look_until(second, 10)
            while first.copies._sending:  # noqa: ASYNC110 - until it has the answer
                await asyncio.sleep(0.01)
            records.write(first.copies.descriptors(0)[3], {"etag": "a newer claim"})
            first.copies.look()
            assert first.copies._sending, "a claim doesn't wait"

    asyncio.run(check())


def test_a_launcher_without_room_for_a_thread_says_so_to_whom_it_would_keep_a_copy_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "_AGAIN_SECONDS", 0.0)
    start = threading.Thread.start
    crowded = [True]

    def refuse(thread: threading.Thread) -> None:
        if crowded[0] and thread._target.__name__ == "take_over":  # type: ignore[attr-defined]
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)

    async def check() -> None:
        async with pods() as (first, second):
            await fails(first, second)
            assert first.copies.trouble.endswith("it answered 503: can't start new thread")
            crowded[0] = False
            await first.look_until(second, 10)

    asyncio.run(check())


def test_index_0_hears_of_copies_that_fail() -> None:
    given = config.read({env.LEADER_HOST: "127.0.0.1"}, ("true",))
    state, roll = State(), Roll(0, 2)
    standing = Standing()
    leader = Leader(given, None, state, roll, standing, Hangs(given, Ranks(state.tell), state))  # type: ignore[arg-type]
    told = []
    for error in ("", "worker 1's memory is not copied", ""):
        leader.heartbeat(Heartbeat(1, "uid-1", copy_error=error))
        told.append(leader.failing_copy)
    standing.copy_error = "worker 0's memory is not copied"
    assert [*told, leader.failing_copy] == ["", "worker 1's memory is not copied", "", standing.copy_error]


def test_nothing_is_sent_that_this_incarnation_has_not_agreed_on() -> None:
    async def check() -> None:
        async with pods() as (first, second):
            first.stage(10, incarnation=1)
            await begin(second, incarnation=2)
            await begin(first, incarnation=2, keeper=second.member)
            first.copies.look()
            assert not first.copies._sending
            first.stage(10, incarnation=2)
            await first.look_until(second, 10)

    asyncio.run(check())


def test_the_end_of_an_incarnation_cuts_off_what_is_on_its_way() -> None:
    async def check() -> None:
        async with pods() as (first, second):
            await begin(first, second)
            status, connection = await asyncio.to_thread(first.ask, second, api.COPY_PATH, first.offer(10))
            assert status == 101
            second.copies.end()
            with connection:
                told = await asyncio.to_thread(receive_frame, connection)
            assert told is None
            assert second.copies.holding == ()

    asyncio.run(check())


def test_a_copy_takes_no_more_than_it_needs_and_the_next_takes_its_place() -> None:
    async def check() -> None:
        async with pods() as (first, second):
            await begin(first, keeper=second.member)
            await begin(second)
            sizes = []
            for step in (10, 20, 30):
                first.stage(step, slot=step // 10 % 2)
                await first.look_until(second, step)
                sizes.append(second.copies._taken())
            assert sizes == [RANKS * records.capacity(LENGTH)] * 3
            assert json.loads(second.copies._held.copy.claim) == {"etag": "of step 30"}  # type: ignore[union-attr]

    asyncio.run(check())


class SlowCheck:
    """Stands between a launcher and its look through a copy that has come: the first is held up, when it is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on, self.calls = threading.Event(), threading.Event(), 0
        self._check = copy_stream.check
        monkeypatch.setattr(copy_stream, "check", self)

    def __call__(self, pieces: list[copy_stream.Piece], order: tuple[int, ...]) -> None:
        self.calls += 1
        first = self.calls == 1
        self._check(pieces, order)
        if first:
            self.begun.set()
            assert self.go_on.wait(30)


def test_a_copy_that_its_sender_has_given_up_never_counts_with_the_next_ones_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has been looked through when the next is offered, which goes to the same place."""
    slow = SlowCheck(monkeypatch)

    async def check() -> None:
        async with pods() as (first, second):
            await begin(first, second)

            def send(step: int) -> socket.socket:
                status, connection = first.ask(second, api.COPY_PATH, first.offer(step))
                assert status == 101
                copy_stream.send(connection, agreed(first.copies._memory, 1))
                return connection

            first.stage(10)
            early = await asyncio.to_thread(send, 10)
            assert await asyncio.to_thread(slow.begun.wait, 30)
            first.stage(20, slot=1)
            sending = asyncio.ensure_future(asyncio.to_thread(send, 20))
            with contextlib.suppress(asyncio.TimeoutError):  # what would come over the first needs no longer
                await asyncio.wait_for(first.look_until(second, 20), 2)
            slow.go_on.set()
            with early, contextlib.suppress(OSError):
                await asyncio.to_thread(receive_frame, early)
            with await sending as connection:
                answer = await asyncio.to_thread(receive_frame, connection)
            assert answer is not None
            assert answer[0] == {"wrong": ""}
            held = second.copies._held
            assert held is not None
            assert held.copy.order == (1, 20, 0)
            slow._check(held.pieces, held.copy.order)

    asyncio.run(check())


def test_whoever_keeps_a_copy_may_take_its_time_to_look_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_stream, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(copies, "_CHECKED_A_SECOND", 1e6)  # and it has 6 MB
    slow = SlowCheck(monkeypatch)

    async def check() -> None:
        async with pods() as (first, second):
            await begin(first, keeper=second.member)
            await begin(second)
            first.stage(10)
            first.copies.look()
            assert await asyncio.to_thread(slow.begun.wait, 30)
            assert not await asyncio.to_thread(slow.go_on.wait, 1.5)
            slow.go_on.set()
            await first.look_until(second, 10)
            assert (slow.calls, first.copies._failures) == (1, 0)

    asyncio.run(check())


def test_a_claim_that_is_being_written_does_not_end_the_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_AGAIN_SECONDS", 0.0)

    async def check() -> None:
        async with pods() as (first, second):
            await begin(first, keeper=second.member)
            await begin(second)
            first.stage(10)
            claim = first.copies.descriptors(0)[3]
            os.truncate(claim, os.fstat(claim).st_size - 1)
            while not first.copies._failures:
                first.copies.look()
                await asyncio.sleep(0.01)
            records.write(claim, {"etag": "whole"})
            await first.look_until(second, 10)

    asyncio.run(check())


@pytest.mark.parametrize(
    "given",
    [
        b"\r\n\r\n",
        b"HTTP/1.1 101 Go\r\n\r\n" + b"\xff" * 12,
        b"HTTP/1.1 101 Go\r\n\r\n" + bytes([0, 0, 0, 2, *[0] * 8]) + b"{}" + bytes(12),
        b"HTTP/1.1 101 Go\r\n\r\n" + bytes([0, 0, 0, 13, *[0] * 8]) + b'{"claim": ""}' + bytes([0, 0, 0, 2]),
        b"HTTP/1.1 101 Go\r\n\r\n" + bytes([0, 0, 0, 2, 0, 0, 0, 64, *[0] * 4]) + b"{}",
    ],
    ids=["no HTTP", "a frame of all memory", "no claim", "half a frame", "a frame of 256 GiB"],
)
def test_what_answers_nonsense_keeps_nobody_from_starting(given: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gang resumes from the store."""
    said: list[str] = []
    monkeypatch.setattr(copies, "say", said.append)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(given)
        await writer.drain()
        writer.close()

    async def check() -> None:
        async with pods() as (pod, _):
            address = f"127.{random.randint(10, 250)}.{random.randint(1, 250)}.9"
            async with await asyncio.start_server(answer, address, PORT):
                holder = Member(1, "uid-1", address, copy=(0, 1, 10, 0))
                await asyncio.wait_for(begin(pod, incarnation=2, holder=holder), 20)
                assert all(memory.empty for memory in pod.copies._memory)

    asyncio.run(check())
    assert ["could not be fetched, so the gang resumes from the store" in text for text in said] == [True]


@pytest.mark.parametrize("begun", ["", "record", "content"])
def test_a_fetch_that_hardly_moves_is_given_up(begun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something comes all the time, so the connection doesn't stall; and the gang would wait. A record of rank 0 is as
    large as a manifest."""
    monkeypatch.setattr(copy_stream, "STALL_SECONDS", 0.5)
    said: list[str] = []
    monkeypatch.setattr(copies, "say", said.append)

    def trickle(connection: socket.socket, pieces: list[copy_stream.Piece]) -> None:
        if begun == "record":
            connection.sendall(struct.pack("!IQ", 2, 1 << 20) + b"{}")
        elif begun == "content":
            send_frame(connection, {"length": LENGTH}, pieces[0].record)
        with contextlib.suppress(OSError):
            crawl(connection)

    async def check() -> None:
        async with pods(3) as (first, second, third):
            holder = await copied(first, second)
            third.copies._config = first.copies._config
            monkeypatch.setattr(copy_stream, "send", trickle)
            await asyncio.wait_for(begin(third, incarnation=2, holder=holder), 20)
            assert all(memory.empty for memory in third.copies._memory)

    asyncio.run(check())
    assert ["resumes from the store: only 0.0 MB came in" in text for text in said] == [True]


def crawl(connection: socket.socket) -> None:
    """Sends a byte now and then. OSError once the other side has hung up."""
    while True:
        connection.sendall(b"\0")
        threading.Event().wait(0.05)


def test_a_copy_that_crawls_is_given_up_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side would ever end it: the job's status would say for ever that a peer keeps this pod's memory."""
    monkeypatch.setattr(copy_stream, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(copies, "_AGAIN_SECONDS", 0.0)

    def trickle(connection: socket.socket, pieces: list[copy_stream.Piece]) -> None:
        send_frame(connection, {"length": LENGTH}, pieces[0].record)
        crawl(connection)

    monkeypatch.setattr(copy_stream, "send", trickle)

    async def check() -> None:
        async with pods() as (first, second):
            await fails(first, second)
            assert first.copies.trouble.startswith("worker 0's memory is not copied to worker 1: only 0.0 MB came in")

    asyncio.run(check())


def test_saves_that_come_faster_than_copies_are_told_as_that_and_not_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_AGAIN_SECONDS", 0.0)
    send = copy_stream.send

    async def check() -> None:
        async with pods() as (first, second):

            def overtaken(connection: socket.socket, pieces: list[copy_stream.Piece]) -> None:
                step = pieces[0].part.order[1]
                for each in (1, 2):
                    first.stage(step + each, slot=(step + each) % 2)
                send(connection, pieces)

            monkeypatch.setattr(copy_stream, "send", overtaken)
            await fails(first, second)
            told = "worker 0's memory is not copied to worker 1: the save after the next was staged where it lay"
            assert first.copies.trouble.startswith(told)

    asyncio.run(check())


def test_a_stop_waits_for_no_launcher_that_gives_no_answer() -> None:
    """The one that keeps the copy is stopped by a signal, say: its kernel takes the connection, and nothing follows."""

    async def check() -> None:
        asked = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await reader.read()  # until the other side hangs up
            writer.close()

        async with pods() as (pod, _):
            address = f"127.{random.randint(10, 250)}.{random.randint(1, 250)}.9"
            async with await asyncio.start_server(silent, address, PORT):
                holder = Member(1, "uid-1", address, copy=(0, 1, 10, 0))
                beginning = asyncio.ensure_future(begin(pod, incarnation=2, holder=holder))
                await asyncio.wait_for(asked.wait(), 5)
                pod.state.ask_stop(Stop(StopReason.PREEMPT, 30.0))
                await asyncio.wait_for(beginning, 5)
                assert all(memory.empty for memory in pod.copies._memory)

    asyncio.run(check())
