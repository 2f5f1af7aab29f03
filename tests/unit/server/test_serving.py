"""The HTTP server in its thread: probes, limits, signals, its end; and a replica that stands by."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from muster.server import serving
from muster.server.board import Board
from muster.server.forwarding import FORWARDED
from muster.server.probes import Probes
from muster.server.replica import Replica, app_of, reached_at
from muster.server.serving import Server

from .samples import Cluster, World, everything, job

pytestmark = pytest.mark.unit


@dataclass
class State:
    ages: float = 0.0
    trouble: str = ""
    leader: str = ""
    leading: bool = False


class FakeApi(Cluster):
    async def close(self) -> None:
        pass


@asynccontextmanager
async def served(state: State, board: Board | None, cluster: Cluster | None = None) -> AsyncIterator[httpx.AsyncClient]:
    async def connect() -> Any:
        known = cluster or everything()
        return FakeApi(known.tokens, known.rights)

    probes = Probes(lambda: b"muster 1\n" * 1000, lambda: {"loop": state.ages}, lambda: state.trouble, 10.0)
    replica = board and Replica(board, "me", connect, lambda: state.leading, lambda: state.leader, 10.0)
    server = Server(app_of(probes, replica))
    await server.start("127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.port}"
    try:
        async with httpx.AsyncClient(base_url=base, trust_env=False, headers={"Authorization": "Bearer t"}) as client:
            yield client
    finally:
        await server.stop()


def full_board() -> Board:
    board = Board()
    board.job(("vision", "a"), job("vision", "a"))
    board.publish(World(), "default")
    return board


async def test_probes_say_what_the_operator_says_and_need_no_token() -> None:
    state = State()
    async with served(state, None) as client:
        del client.headers["authorization"]
        assert [(await client.get(path)).text for path in ("/healthz", "/readyz")] == ["ok", "ok"]
        state.ages, state.trouble = 11.0, "syncing"
        health, ready = await client.get("/healthz"), await client.get("/readyz")
        assert (health.status_code, ready.status_code, ready.text) == (503, 503, "syncing")
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=")
        assert metrics.headers["content-encoding"] == "gzip"
        assert metrics.text.startswith("muster 1\n")
        assert (await client.get("/v1/jobs")).status_code == 404  # the API is turned off


async def test_signals_stay_the_operators() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with served(State(), full_board()):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_a_port_that_is_taken_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = Server(app_of(Probes(lambda: b"", dict, str, 1.0), None))
        with pytest.raises(OSError, match="in use"):
            await server.start("127.0.0.1", taken.getsockname()[1])


async def test_heads_bodies_and_other_methods() -> None:
    async with served(State(), full_board()) as client:
        whole, head = await client.get("/v1/jobs"), await client.head("/v1/jobs")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
        posted = await client.post("/v1/jobs", json={})
        assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
        assert (await client.request("GET", "/v1/jobs", content=b"x")).status_code == 413


async def test_headers_have_a_limit() -> None:
    async with served(State(), None) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: " + b"x" * 2 * serving.HEADER_BYTES)
        async with asyncio.timeout(20):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_a_client_that_never_ends_its_headers_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEADER_SECONDS", 0.1)
    async with served(State(), None) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_a_question_whose_body_is_nonsense_writes_nothing_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with served(State(), full_board()) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n")
        async with asyncio.timeout(20):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        assert (await client.get("/healthz")).text == "ok"
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_crowd_of_clients_does_not_keep_kubelet_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would restart the operator, again and again for as long as they stay."""
    monkeypatch.setattr(serving, "CONNECTIONS", 3)
    async with served(State(), full_board()) as client:
        crowd = [await asyncio.open_connection("127.0.0.1", client.base_url.port) for _ in range(3)]
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 503), ("/v1/jobs", 503)):
            answer = await client.get(path, headers={"Connection": "close"})
            assert answer.status_code == status, path
        assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
        for _, writer in crowd:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(20):
            while (await client.get("/v1/jobs", headers={"Connection": "close"})).status_code != 200:
                pass


async def test_a_replica_that_stands_by_passes_questions_on_to_the_leader() -> None:
    leading, standing_by = State(leading=True), State()
    async with served(leading, full_board()) as leader, served(standing_by, Board()) as other:
        nobody = await other.get("/v1/jobs")
        assert (nobody.status_code, nobody.headers["retry-after"]) == (503, "2")
        standing_by.leader = f"127.0.0.1:{leader.base_url.port}"
        for path in ("/v1/jobs?limit=1&namespace=vision", "/v1/jobs?limit=0", "/v1/queues"):
            direct, passed = await leader.get(path), await other.get(path)
            assert direct.status_code == passed.status_code
            assert {**direct.json(), "asOf": ""} == {**passed.json(), "asOf": ""}
        assert (await other.head("/v1/jobs")).content == b""
        refused = await other.get("/v1/jobs", headers={"Authorization": "Bearer wrong"})
        assert (refused.status_code, refused.headers["www-authenticate"][:6]) == (401, "Bearer")
        assert (await other.get("/v1/openapi.json")).status_code == 200
        twice = await other.get("/v1/jobs", headers={FORWARDED: "another"})
        assert twice.status_code == 503


async def test_no_target_takes_a_question_elsewhere_than_to_the_leader() -> None:
    met = asyncio.Event()

    async def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.set()
        writer.close()

    stranger = await asyncio.start_server(meet, "127.0.0.1", 0)
    port = stranger.sockets[0].getsockname()[1]
    state = State(leader="127.0.0.1:9")  # nobody is there
    async with stranger, served(state, Board()) as client:
        for target in (f"@127.0.0.1:{port}/v1/jobs", f"http://127.0.0.1:{port}/v1/jobs", f"//127.0.0.1:{port}/v1/jobs"):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            status = (await reader.read()).split()[1]
            assert status == (b"503" if target.startswith("/") else b"400")
            writer.close()
    assert not met.is_set()


async def test_nobody_is_impersonated() -> None:
    async with served(State(), full_board()) as client:
        answer = await client.get("/v1/jobs", headers={"Impersonate-User": "joe"})
    assert (answer.status_code, "impersonate-user" in answer.json()["detail"]) == (400, True)


async def test_a_leader_that_is_gone_and_one_that_fills_its_caches_are_503() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    state = State(leader=f"127.0.0.1:{port}")
    async with served(state, Board()) as client:
        gone = await client.get("/v1/jobs")
        assert gone.status_code == 503
        assert f"127.0.0.1:{port}" in gone.json()["detail"]
        state.leading = True
        assert "caches" in (await client.get("/v1/jobs")).json()["detail"]


def test_where_a_replica_is_reached() -> None:
    assert reached_at("10.0.0.7", 8080) == "10.0.0.7:8080"
    assert reached_at("fd00::7", 8080) == "[fd00::7]:8080"
    assert reached_at("0.0.0.0", 1) == f"{socket.gethostname()}:1"
