"""Launchers find each other while the cluster's DNS is away."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from muster_runtime.launch.addresses import Addresses
from muster_runtime.launch.http_client import Client, Unreachable

pytestmark = pytest.mark.runtime

SILENT = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


class Dns:
    """Answers what the test says. While it is `stuck`, a question isn't answered."""

    def __init__(self) -> None:
        self.says: str | OSError = "10.0.0.1"
        self.flows = threading.Event()
        self.flows.set()
        self.questions = 0

    def __call__(self, host: str) -> str:
        self.questions += 1
        self.flows.wait()
        if isinstance(self.says, OSError):
            raise self.says
        return self.says


@pytest.fixture
def dns() -> Iterator[Dns]:
    made = Dns()
    yield made
    made.flows.set()


def test_a_host_that_moved_is_found_at_its_new_address(dns: Dns) -> None:
    async def scene() -> None:
        addresses = Addresses(dns)
        assert await addresses.of("pod-1") == "10.0.0.1"
        dns.says = "10.0.0.2"
        assert await addresses.of("pod-1") == "10.0.0.2"

    asyncio.run(scene())


def test_while_dns_answers_nothing_a_host_is_where_it_was_and_dns_is_asked_once(dns: Dns) -> None:
    async def scene() -> None:
        addresses = Addresses(dns)
        await addresses.of("pod-1")
        dns.flows.clear()
        for _ in range(5):
            assert await addresses.of("pod-1") == "10.0.0.1"
        assert dns.questions == 2
        dns.says = "10.0.0.2"
        dns.flows.set()
        for thread in [thread for thread in threading.enumerate() if thread.name == "address of pod-1"]:
            await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)  # the thread's answer comes by the loop
        assert await addresses.of("pod-1") == "10.0.0.2"

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_dns_that_fails_is_not_one_that_denies_a_host(dns: Dns) -> None:
    async def scene() -> None:
        addresses = Addresses(dns)
        await addresses.of("pod-1")
        dns.says = SILENT
        assert await addresses.of("pod-1") == "10.0.0.1"
        dns.says = UNKNOWN
        with pytest.raises(socket.gaierror, match="not known"):
            await addresses.of("pod-1")

    asyncio.run(scene())


@pytest.mark.parametrize("error", [SILENT, UNKNOWN])
def test_a_host_that_was_never_found_is_told_as_dns_tells_it(dns: Dns, error: OSError) -> None:
    async def scene() -> None:
        dns.says = error
        with pytest.raises(socket.gaierror, match=str(error.strerror)):
            await Addresses(dns).of("pod-1")

    asyncio.run(scene())


def test_what_no_host_can_be_called_is_told_at_once() -> None:
    async def scene() -> None:
        with pytest.raises(Unreachable, match="label"):
            await Client(1, "token", "uid", 1).call("GET", "a" * 64 + ".svc", "/", timeout=30)

    asyncio.run(scene())


def test_without_room_for_a_thread_a_host_is_where_it_was_and_dns_is_asked_later(
    dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scene() -> None:
        addresses, client = Addresses(dns), Client(1, "token", "uid", 1)
        await addresses.of("pod-1")
        dns.says = "10.0.0.2"
        with monkeypatch.context() as crowded:
            crowded.setattr(threading.Thread, "start", refuse)
            assert await addresses.of("pod-1") == "10.0.0.1"
            with pytest.raises(Unreachable, match="DNS can't be asked for pod-1: can't start new thread"):
                await client.call("GET", "pod-1", "/", timeout=30)
        assert await addresses.of("pod-1") == "10.0.0.2"

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_launchers_reach_each_other_while_dns_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a real server on the loopback, with the system's resolver in place until it is away."""
    resolve: Callable[..., object] = socket.getaddrinfo

    def away(host: str | None, *args: object, **kwargs: object) -> object:
        if host == "localhost":
            raise SILENT
        return resolve(host, *args, **kwargs)

    async def scene() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
            writer.close()

        here = str(socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)[0][4][0])
        async with await asyncio.start_server(answer, here, 0) as server:
            client = Client(server.sockets[0].getsockname()[1], "token", "uid", 1)
            assert await client.call("GET", "localhost", "/", timeout=10) == (200, b"ok")
            monkeypatch.setattr(socket, "getaddrinfo", away)
            assert await client.call("GET", "localhost", "/", timeout=10) == (200, b"ok")

    asyncio.run(scene())


def test_a_connection_that_fails_as_its_caller_gives_up_leaves_nothing_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complaints: list[object] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        begun = asyncio.Event()

        async def refused(host: str, port: int) -> None:
            try:
                begun.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ConnectionRefusedError(111, f"Connect call failed ('{host}', {port})") from None

        monkeypatch.setattr(asyncio, "open_connection", refused)
        call = asyncio.create_task(Client(1, "token", "uid", 1).call("GET", "127.0.0.1", "/", timeout=30))
        await begun.wait()
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled() or isinstance(call.exception(), Unreachable)
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(scene())
    gc.collect()
    assert not complaints


def test_a_caller_that_gives_up_at_any_moment_of_a_refused_call_leaves_nothing_in_the_log() -> None:
    complaints: list[object] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        with socket.socket() as nobody_listens:
            nobody_listens.bind(("127.0.0.1", 0))
            client = Client(nobody_listens.getsockname()[1], "token", "uid", 1)
            for turns in range(500):  # of the loop; which of them meets the refusal depends on the machine
                call = asyncio.create_task(client.call("GET", "127.0.0.1", "/", timeout=30))
                for _ in range(turns % 50):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait({call})
                assert call.cancelled() or isinstance(call.exception(), Unreachable)

    asyncio.run(scene())
    gc.collect()
    assert not complaints
