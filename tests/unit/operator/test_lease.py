"""One candidate's rules, with a clock and a Lease in the test's hands."""

from __future__ import annotations

import asyncio
import copy
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from muster.cli.settings import Settings
from muster.cluster import lease as lease_module
from muster.cluster.errors import ApiError, ApiUnreachable, LeadershipLost
from muster.cluster.lease import Leadership, LeaseTimes

pytestmark = pytest.mark.unit

Object = dict[str, Any]
INSTALL = Path(__file__).resolve().parents[3] / "docs" / "install.md"


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(lease_module, "clock", lambda: self.now)


class Server:
    """Holds one Lease, with optimistic locking, and asks the guard as the client does."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.version = 0
        self.writes = 0
        self.trouble: Exception | None = None

    def candidate(self, name: str, lost: list[str]) -> tuple[Leadership, Any]:
        made = Leadership(self._never, namespace="n", identity=name, on_lost=lost.append)
        made._loop = asyncio.get_running_loop()
        return made, _Client(self, made)

    async def _never(self) -> Any:
        raise AssertionError("these tests drive the rounds themselves")


class _Client:
    def __init__(self, server: Server, owner: Leadership) -> None:
        self._server, self._owner = server, owner
        self.before_write = lambda: None

    async def get(self, path: str) -> Object:
        if self._server.trouble is not None:
            raise self._server.trouble
        if self._server.lease is None:
            raise ApiError(404, "NotFound", "no lease")
        return copy.deepcopy(self._server.lease)

    async def create(self, path: str, body: Object) -> Object:
        if self._server.lease is not None:
            raise ApiError(409, "AlreadyExists", "there is one")
        return self._store(body)

    async def replace(self, path: str, body: Object) -> Object:
        assert self._server.lease is not None
        if body["metadata"]["resourceVersion"] != self._server.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "it was changed")
        return self._store(body)

    def _store(self, body: Object) -> Object:
        self.before_write()
        self._owner._in_time()
        self._server.version += 1
        self._server.writes += 1
        stored = copy.deepcopy(body)
        stored["metadata"] |= {"resourceVersion": str(self._server.version), "uid": "u"}
        self._server.lease = stored
        return stored


async def test_the_first_takes_the_lease_and_the_second_waits_until_it_has_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, server = Clock(monkeypatch), Server()
    (a, to_a), (b, to_b) = server.candidate("a", []), server.candidate("b", [])
    assert await a._round(to_a)
    a.check()
    for _ in range(5):
        clock.now += 4.0
        assert await a._round(to_a)
        await b._round(to_b)
        assert a.leading
        assert not b.leading
    clock.now += 14.9
    await b._round(to_b)
    assert not b.leading
    assert not a.leading, "the right to write ends before the Lease does"
    clock.now += 0.2
    await b._round(to_b)
    b.check()
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 2


async def test_the_right_to_write_ends_by_the_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, server = Clock(monkeypatch), Server()
    a, to_a = server.candidate("a", [])
    await a._round(to_a)
    clock.now += 9.9
    a.check()
    clock.now += 0.2
    with pytest.raises(LeadershipLost):
        a.check()


async def test_one_that_comes_too_late_to_renew_does_not_renew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, server = Clock(monkeypatch), Server()
    a, to_a = server.candidate("a", [])
    await a._round(to_a)
    clock.now += 60.0
    await a._round(to_a)
    assert server.writes == 1
    assert not a.leading


async def test_a_renewal_that_was_frozen_between_look_and_write_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, server = Clock(monkeypatch), Server()
    a, to_a = server.candidate("a", [])
    await a._round(to_a)
    clock.now += 4.0

    def freeze() -> None:
        clock.now += 60.0

    to_a.before_write = freeze
    assert not await a._round(to_a)
    assert server.writes == 1
    assert not a.leading


async def test_of_two_that_see_a_free_lease_one_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    server = Server()
    (a, to_a), (b, to_b) = server.candidate("a", []), server.candidate("b", [])
    server.lease = {"metadata": {"resourceVersion": "0", "uid": "u"}, "spec": {"holderIdentity": ""}}
    seen_by_b = await to_b.get("")
    await a._round(to_a)

    async def stale(path: str) -> Object:
        return seen_by_b

    to_b.get = stale
    assert not await b._round(to_b)
    assert (a.leading, b.leading) == (True, False)


async def test_a_lease_that_somebody_else_took_ends_the_reign_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, server = Clock(monkeypatch), Server()
    a, to_a = server.candidate("a", [])
    await a._round(to_a)
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = "thief"
    clock.now += 1.0
    await a._round(to_a)
    assert not a.leading


async def test_an_api_server_that_is_away_for_a_moment_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, server = Clock(monkeypatch), Server()
    a, to_a = server.candidate("a", [])
    await a._round(to_a)
    server.trouble = ApiUnreachable("away")
    clock.now += 4.0
    assert not await a._round(to_a)
    assert a.trouble == "away"
    server.trouble = None
    clock.now += 4.0
    assert await a._round(to_a)
    assert a.trouble == ""


async def test_what_is_given_back_is_free_at_once_and_ends_the_right_to_write_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Clock(monkeypatch)
    server = Server()
    (a, to_a), (b, to_b) = server.candidate("a", []), server.candidate("b", [])
    await a._round(to_a)
    await b._round(to_b)
    leading: list[bool] = []
    to_a.before_write = lambda: leading.append(a.leading)
    await a._release(to_a)
    assert leading == [False]
    await b._round(to_b)
    b.check()


async def test_a_lease_that_is_given_back_too_late_runs_out_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server was slow: an end in order is none that somebody has to look into."""
    clock, server = Clock(monkeypatch), Server()
    a, to_a = server.candidate("a", [])
    await a._round(to_a)

    def slow() -> None:
        clock.now += 60

    to_a.before_write = slow
    await a._release(to_a)
    assert server.writes == 1
    assert not a.leading


async def test_a_new_process_under_an_old_name_does_not_take_the_lease_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, server = Clock(monkeypatch), Server()
    (old, to_old), (new, to_new) = server.candidate("pod-0", []), server.candidate("pod-0", [])
    await old._round(to_old)
    clock.now += 1.0
    await new._round(to_new)
    assert not new.leading


@pytest.mark.parametrize(
    "times",
    [
        {"duration": 15.0, "renew": 10.0, "margin": 5.0},
        {"duration": 5.0, "margin": 5.0},
        {"renew": 0.0},
    ],
)
def test_times_that_cannot_hold_a_lease_are_refused(times: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cannot hold a lease"):
        LeaseTimes(**times)


@pytest.mark.parametrize("duration", [3.0, 6.0, 15.0, 120.0])
def test_two_tries_fit_between_a_renewal_and_the_end_of_the_right_to_write(duration: float) -> None:
    times = LeaseTimes.of(duration)
    assert times.renew + 2 * times.limit + times.retry <= times.duration - times.margin + 1e-9
    assert times.limit > 0.2


def test_the_holders_name_tells_its_pod() -> None:
    """docs/install.md cuts the Lease's holder at the last dash, to reach the replica that leads."""
    line = next(line for line in INSTALL.read_text().splitlines() if "${leader%-*}" in line)
    assert "pod/" in line
    cut = subprocess.run(
        ["sh", "-c", 'echo "${leader%-*}"'], env={"leader": Settings().identity}, capture_output=True, text=True
    )
    assert cut.stdout.strip() == socket.gethostname()
