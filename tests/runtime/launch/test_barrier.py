"""No user process starts before the whole gang has joined, and nobody joins who doesn't belong to it."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from muster_protocol import launcher_api as api
from muster_protocol.exits import EXIT_INFRASTRUCTURE, EXIT_PREEMPTED, Cause
from muster_protocol.launcher_status import Phase
from muster_protocol.messages import Member, Membership, Stop, StopReason
from muster_protocol.wire import encode

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]


def test_ranks_start_only_when_the_last_worker_has_joined(make_gang: MakeGang) -> None:
    gang = make_gang(3, 2)
    command = gang.script("mark('started')\n")
    first, second = gang.pod(1, command), gang.pod(0, command)
    gang.eventually(second.listens, "index 0 listens")
    gang.eventually(lambda: second.status().joined == 2, "two have joined")
    assert second.status().phase is Phase.JOINING
    assert gang.marks("started") == set()
    third = gang.pod(2, command)
    for pod in (first, second, third):
        assert pod.end().cause is Cause.SUCCEEDED, pod.log()
    assert gang.marks("started") == {f"mark-started-{rank}" for rank in range(6)}


def test_whoever_called_in_vain_says_that_it_tries_again_and_then_that_it_has_joined(make_gang: MakeGang) -> None:
    gang = make_gang(2)
    follower = gang.pod(1, ["true"])
    gang.eventually(lambda: "index 0 at " in follower.log(), "it calls index 0")
    leader = gang.pod(0, ["true"])
    for pod in (leader, follower):
        assert pod.end().cause is Cause.SUCCEEDED, pod.log()
    _, *vain, last = [line for line in follower.log().splitlines() if line.startswith("[muster]")]
    assert vain
    assert all(line.startswith("[muster] index 0 at ") and line.endswith("; trying again") for line in vain)
    assert last == "[muster] joined as index 1; all 2 workers are here"


def test_who_said_for_whom_it_waits_says_when_all_are_here(make_gang: MakeGang) -> None:
    gang = make_gang(2)
    leader = gang.pod(0, ["true"])
    gang.eventually(lambda: "waiting for index 1 (1 of 2 are here)" in leader.log(), "it says for whom it waits")
    for pod in (gang.pod(1, ["true"]), leader):
        assert pod.end().cause is Cause.SUCCEEDED, pod.log()
    assert "[muster] all 2 workers are here\n" in leader.log().partition("are here)")[2]


def test_a_missing_worker_ends_the_gang_at_ready_timeout_by_name(make_gang: MakeGang) -> None:
    gang = make_gang(3, MUSTER_READY_TIMEOUT="1.5")
    leader, follower = gang.pod(0, ["true"]), gang.pod(1, ["true"])
    facts = leader.end()
    assert facts.cause is Cause.RENDEZVOUS
    assert "index 2 did not join" in facts.message
    ended = follower.end()
    assert ended.exit_code == EXIT_INFRASTRUCTURE
    assert "index 2 did not join" in ended.message


def test_a_follower_without_a_leader_says_what_it_tried(make_gang: MakeGang) -> None:
    gang = make_gang(2, MUSTER_READY_TIMEOUT="1")
    facts = gang.pod(1, ["true"]).end()
    assert facts.cause is Cause.RENDEZVOUS
    assert f"{gang.net}.1:29400" in facts.message


def test_calls_without_the_right_token_are_refused(make_gang: MakeGang) -> None:
    gang = make_gang(2)
    leader = gang.pod(0, ["true"])
    gang.eventually(leader.listens, "index 0 listens")
    member = encode(Member(1, "uid-1-0", f"{gang.net}.2", 1))
    assert leader.ask("POST", api.JOIN_PATH, member, token="wrong")[0] == 401
    assert leader.ask("GET", api.STATUS_PATH, token=None)[0] == 401
    assert leader.ask("POST", api.STOP_PATH, b"{}", token="é")[0] == 401
    assert leader.status().joined == 1
    code, metrics = leader.ask("GET", api.METRICS_PATH, token=None)
    assert code == 200
    assert b"muster_worker_ranks_running" in metrics


def test_a_pod_outside_the_membership_is_refused_and_the_named_one_joins(make_gang: MakeGang) -> None:
    gang = make_gang(2)
    command = gang.script("mark('started')\n")
    leader = gang.pod(0, command)
    gang.eventually(leader.listens, "index 0 listens")
    members = (Member(0, "uid-0-0", f"{gang.net}.1", 1), Member(1, "uid-1-0", f"{gang.net}.2", 1))
    assert leader.ask("PUT", api.MEMBERSHIP_PATH, encode(Membership(1, 3, members)))[0] == 204
    assert leader.ask("PUT", api.MEMBERSHIP_PATH, encode(Membership(1, 2, members)))[0] == 409
    assert leader.ask("PUT", api.MEMBERSHIP_PATH, encode(Membership(2, 4, members)))[0] == 409
    stranger = gang.pod(1, command, uid="stranger", MUSTER_READY_TIMEOUT="1", MUSTER_BIND=f"{gang.net}.9")
    facts = stranger.end()
    assert facts.cause is Cause.RENDEZVOUS
    assert "belongs to pod uid-1-0, not to stranger" in facts.message
    assert gang.marks("started") == set()
    named = gang.pod(1, command)
    assert named.end().cause is Cause.SUCCEEDED
    assert leader.end().incarnation == 3


def test_a_newer_attempt_takes_the_place_of_the_older(make_gang: MakeGang) -> None:
    gang = make_gang(3)
    command = gang.script("mark('started')\n")
    leader, old = gang.pod(0, command), gang.pod(1, command)
    gang.eventually(leader.listens, "index 0 listens")
    gang.eventually(lambda: leader.status().joined == 2, "the old attempt has joined")
    new = gang.pod(1, command, attempt=1)
    gang.eventually(
        lambda: b"uid-1-1" in leader.ask("GET", api.MEMBERSHIP_PATH)[1], "the new attempt has taken the place"
    )
    last = gang.pod(2, command)
    for pod in (leader, new, last):
        assert pod.end().cause is Cause.SUCCEEDED, pod.log()
    assert old.process.poll() is None, "the replaced pod must not have started or ended well"
    assert gang.marks("started") == {f"mark-started-{rank}" for rank in range(3)}


def test_another_generation_is_refused(make_gang: MakeGang) -> None:
    gang = make_gang(2)
    leader = gang.pod(0, ["true"])
    gang.eventually(leader.listens, "index 0 listens")
    stale = gang.pod(1, ["true"], MUSTER_GENERATION="7", MUSTER_READY_TIMEOUT="1")
    facts = stale.end()
    assert facts.cause is Cause.RENDEZVOUS
    assert "generation" in facts.message
    assert leader.status().joined == 1


def test_a_stop_of_another_generation_stops_nobody(make_gang: MakeGang) -> None:
    """An address of the old gang may be a pod's of the new one, which has the same token."""
    gang = make_gang(2)
    leader = gang.pod(0, ["true"])
    gang.eventually(leader.listens, "index 0 listens")
    stale = gang.pod(1, ["true"], attempt=1, MUSTER_GENERATION="7")
    gang.eventually(lambda: "index 0 refuses this pod" in stale.log(), "it calls index 0")
    stale.signal(signal.SIGTERM)
    assert stale.end().cause is Cause.PREEMPTED
    assert "index 0 answered 409 to /v1/stop: this launcher is of generation 1, not 7" in stale.log()
    assert leader.status().phase is Phase.JOINING
    other = gang.pod(1, ["true"])
    assert {pod.end().cause for pod in (leader, other)} == {Cause.SUCCEEDED}


def test_a_stop_before_the_gang_is_complete_ends_every_pod_as_preempted(make_gang: MakeGang) -> None:
    gang = make_gang(3)
    leader, follower = gang.pod(0, ["true"]), gang.pod(1, ["true"])
    gang.eventually(leader.listens, "index 0 listens")
    gang.eventually(lambda: leader.status().joined == 2, "two have joined")
    stop = encode(Stop(StopReason.SUSPEND, 5))
    assert leader.ask("POST", api.STOP_PATH, stop)[0] == 202
    for pod in (leader, follower):
        facts = pod.end(10)
        assert (facts.cause, facts.exit_code) == (Cause.PREEMPTED, EXIT_PREEMPTED)


def test_a_caller_that_hangs_up_at_the_barrier_is_absent(make_gang: MakeGang) -> None:
    gang = make_gang(2)
    leader = gang.pod(0, ["true"])
    gang.eventually(leader.listens, "index 0 listens")
    body = encode(Member(1, "uid-1-0", f"{gang.net}.2", 1))
    head = (
        f"POST {api.JOIN_PATH} HTTP/1.1\r\n{api.TOKEN_HEADER}: {'t' * 64}\r\n"
        f"Content-Length: {len(body)}\r\nHost: x\r\n\r\n"
    )
    before = leader.status().joined
    with socket.create_connection((leader.address, 29400)) as caller:
        caller.sendall(head.encode() + body[:-1])
        assert leader.status().joined == before, "half a request has joined"
    assert leader.status().phase is Phase.JOINING
    # a gang of two is released by a whole call; so watch a gang that still lacks one
    gang = make_gang(3)
    leader = gang.pod(0, ["true"])
    gang.eventually(leader.listens, "index 0 listens")
    with socket.create_connection((leader.address, 29400)) as caller:
        caller.sendall(head.encode() + body)
        gang.eventually(lambda: leader.status().joined == 2, "the caller has joined")
    gang.eventually(lambda: leader.status().joined == 1, "the caller that hung up is absent")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"POST /v1/stop HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /v1/stop HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST /v1/stop HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
    ],
)
def test_broken_requests_get_an_answer_and_harm_nobody(make_gang: MakeGang, sent: bytes, status: int) -> None:
    gang = make_gang(2)
    leader = gang.pod(0, ["true"])
    gang.eventually(leader.listens, "index 0 listens")
    with socket.create_connection((leader.address, 29400), timeout=5) as caller:
        caller.sendall(sent)
        assert caller.recv(100).startswith(f"HTTP/1.1 {status} ".encode())
    for body in (b"", b"[]", b"{", json.dumps({"index": "x", "pod_uid": 1, "address": 2}).encode()):
        assert leader.ask("POST", api.JOIN_PATH, body)[0] in (400, 409)
    started = time.monotonic()
    assert leader.listens()
    assert time.monotonic() - started < 5
