"""Storage that can't serve is found before any rank starts, and named."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from email.message import Message
from typing import Any

import boto3
import pytest
from made_store import MadeStore, served
from proxy import Act, Handler, Proxy, drop, drop_answer, duplicate, error, forward

from muster_protocol import launcher_api as api
from muster_protocol.exits import EXIT_CONFIG, Cause, ExitFacts
from muster_protocol.launcher_status import Phase
from muster_protocol.messages import Stop, StopReason
from muster_protocol.storage_errors import Kind
from muster_protocol.uris import parse_uri
from muster_protocol.wire import encode
from muster_runtime.launch import preflight
from muster_runtime.launch.preflight import Trouble, check, check_patiently
from muster_runtime.launch.state import Over

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]


@pytest.fixture
def as_user(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server


def client_of(server: Any) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )


def objects(server: Any) -> list[str]:
    return [entry["Key"] for entry in client_of(server).list_objects_v2(Bucket="models").get("Contents", [])]


def put(server: Any, key: str) -> None:
    client_of(server).put_object(Bucket="models", Key=key, Body=b"x")


def test_good_storage_passes_and_nothing_stays_in_it(as_user: Any) -> None:
    check(parse_uri("s3://models/llama"))
    check(parse_uri("s3://models"))
    assert not [key for key in objects(as_user) if "preflight" in key]


def test_a_missing_bucket_is_named(as_user: Any) -> None:
    with pytest.raises(Trouble) as caught:
        check(parse_uri("s3://not-there/x"))
    assert caught.value.kind is Kind.NO_SUCH_BUCKET
    assert "'not-there' does not exist" in caught.value.sentence
    assert "create it" in caught.value.sentence


@pytest.mark.parametrize(
    ("start_from", "said"),
    [
        ("s3://models/firts", "s3://models/firts has no committed checkpoint; is it some job's spec.checkpoint.uri?"),
        ("s3://models/base@6", "s3://models/base has no committed checkpoint of step 6; see which it has by muster"),
        ("s3://modles/base", "the bucket 'modles' does not exist at "),
        ("s3://models/base@six", "a step is a whole number"),
    ],
)
def test_a_start_from_nothing_is_found_before_any_rank_starts(as_user: Any, start_from: str, said: str) -> None:
    put(as_user, "base/step-00000005/1-0/manifest.json")
    found = check_patiently(parse_uri("s3://models/own"), print, start_from=start_from)
    assert found is not None
    assert found.sentence.startswith("checkpoint.from can't be taken: ")
    assert said in found.sentence
    assert "checkpoint.uri (" not in found.sentence, "that is right"
    assert (found.facts().cause, found.facts().exit_code) == (Cause.CONFIG, EXIT_CONFIG)


def test_a_start_that_is_there_or_does_not_count_passes(as_user: Any) -> None:
    put(as_user, "base/step-00000005/1-0/manifest.json")
    for start_from in ("s3://models/base", "s3://models/base@5", "file:///nowhere"):
        check(parse_uri("s3://models/own"), start_from)
    put(as_user, "resumed/LATEST")
    check(parse_uri("s3://models/resumed"), "s3://models/gone")


def test_wrong_keys_are_told_as_denied_access(as_user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Trouble) as caught:
        check(parse_uri("s3://models/x"))
    assert caught.value.kind is Kind.ACCESS_DENIED
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")  # whom this server answers by 404, as it does a missing bucket
    with pytest.raises(Trouble) as caught:
        check(parse_uri("s3://models/x"))
    assert caught.value.kind is Kind.ACCESS_DENIED
    assert "checkpoint.secretRef" in caught.value.sentence


class NothingListed(Proxy):
    """As for who may do everything but list."""

    def act_for(self, request: str) -> Act:
        return error(403, "AccessDenied") if "list-type" in request else forward


def test_keys_that_may_not_list_are_told_before_anything_is_written(
    as_user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", NothingListed(as_user.endpoint).endpoint)
    with pytest.raises(Trouble, match=r"access to s3://models/unlisted/step- at .* is denied.* may list") as caught:
        check(parse_uri("s3://models/unlisted"))
    assert caught.value.kind is Kind.ACCESS_DENIED
    assert not [key for key in objects(as_user) if key.startswith("unlisted")]


def answer(status: int, code: str, *headers: tuple[str, str]) -> Act:
    """As S3 does, whose answer to a HEAD has no room for the code; "" for a page of a proxy's."""

    def act(handler: Handler) -> None:
        page = f"<Error><Code>{code}</Code><Message>made up</Message></Error>" if code else "<html>made up</html>"
        content = b"" if handler.command == "HEAD" else page.encode()
        handler.answer(status, [("Content-Type", "text/html"), *headers], content)

    return act


class AllAnswered(Proxy):
    """Every request is answered so."""

    act: Act

    def act_for(self, request: str) -> Act:
        return self.act


@pytest.mark.parametrize(
    ("status", "code", "kind", "said"),
    [
        (400, "ExpiredToken", Kind.ACCESS_DENIED, "access to s3://models/x/step-"),
        (400, "TokenRefreshRequired", Kind.ACCESS_DENIED, "check the keys in checkpoint.secretRef"),
        (400, "AuthorizationHeaderMalformed", Kind.MISCONFIGURED, "and AWS_REGION"),
        (301, "PermanentRedirect", Kind.MISCONFIGURED, "and AWS_REGION"),
        (
            301,
            "",
            Kind.MISCONFIGURED,
            "301 with no word of S3's, as from a proxy; it sends who asks to https://s3/models)",
        ),
        (
            308,
            "",
            Kind.MISCONFIGURED,
            "308 with no word of S3's, as from a proxy; it sends who asks to https://s3/models)",
        ),
        (307, "", Kind.OTHER, "it sends who asks to https://s3/models)"),
        (403, "", Kind.ACCESS_DENIED, "HTTP status 403 with no word of S3's"),
        (403, "RequestTimeTooSkewed", Kind.CLOCK, "set the one that is wrong"),
    ],
)
def test_what_a_head_has_no_room_for_is_told(
    as_user: Any, monkeypatch: pytest.MonkeyPatch, status: int, code: str, kind: Kind, said: str
) -> None:
    """A look at a bucket is answered by a number alone, which may be a token's that has expired: for that the gang
    would start anew for ever."""
    between = AllAnswered(as_user.endpoint)
    between.act = answer(status, code, ("Location", "https://s3/models?list-type=2"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", between.endpoint)
    found = check_patiently(parse_uri("s3://models/x"), print, retry_seconds=0)
    assert found is not None
    assert (found.kind, said in found.sentence) == (kind, True), found.sentence
    assert (found.facts().cause is Cause.STORAGE) == (kind not in (Kind.OTHER, Kind.CLOCK))


class NothingDeleted(Proxy):
    """A server whose objects are for good."""

    def act_for(self, request: str) -> Act:
        return error(405, "MethodNotAllowed") if request.startswith("DELETE") else forward


def test_a_server_that_deletes_nothing_is_no_place_for_checkpoints(
    as_user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", NothingDeleted(as_user.endpoint).endpoint)
    found = check_patiently(parse_uri("s3://models/for-good"), print, retry_seconds=0)
    assert found is not None
    assert (found.kind, found.facts().cause) == (Kind.NOT_IMPLEMENTED, Cause.STORAGE)
    assert "doesn't know a request" in found.sentence
    for key in objects(as_user):
        client_of(as_user).delete_object(Bucket="models", Key=key)


def test_an_unreachable_server_is_tried_again_then_told(as_user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    told: list[str] = []
    found = check_patiently(parse_uri("s3://models/x"), told.append, retry_seconds=4)
    assert found is not None
    assert found.kind is Kind.NETWORK
    assert told, "an error that is tried again is shown meanwhile"


class _Unconditional(MadeStore):
    """An S3 server of the old kind: it takes every write, whatever its condition."""

    def holds(self, key: str, headers: Message) -> bool:
        return True


class _CreatesOnly(MadeStore):
    """It keeps If-None-Match and passes If-Match over, as S3 itself once did."""

    def holds(self, key: str, headers: Message) -> bool:
        return headers.get("If-None-Match") != "*" or not self.tag_of(key)


class _AnyKnownTag(MadeStore):
    """Each tag that the object has ever had will do, as from a replica that lags behind. An invented one is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[str] = set()

    def holds(self, key: str, headers: Message) -> bool:
        self.known.add(self.tag_of(key))
        return super().holds(key, headers) or headers.get("If-Match") in self.known


class _Unlocked(MadeStore):
    """It looks, and then it writes, and two may look before one writes."""

    at_once = "If-Match"

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2)

    def put(self, key: str, content: bytes, headers: Message) -> int:
        if not self.holds(key, headers):
            return 412
        if self.at_once in headers:
            with contextlib.suppress(threading.BrokenBarrierError):
                self.both.wait(0.2)
            if self.both.broken:
                self.both.reset()
        self.objects[key] = content
        return 200


class _UnlockedCreates(_Unlocked):
    at_once = "If-None-Match"


class _Quarrelsome(MadeStore):
    """Each write meets another one, as it says."""

    def put(self, key: str, content: bytes, headers: Message) -> int:
        return 409


class _Backwards(MadeStore):
    """It refuses each write that has a right tag."""

    def holds(self, key: str, headers: Message) -> bool:
        return "If-Match" not in headers and super().holds(key, headers)


class _Forgetful(MadeStore):
    """It takes a write, says so, and drops it."""

    def put(self, key: str, content: bytes, headers: Message) -> int:
        self.writes += 1
        before = dict(self.objects)
        status = super().put(key, content, headers)
        if self.writes == 3:
            self.objects = before
        return status


class _WithoutSums(MadeStore):
    """An S3 server that takes no write with a sum of its own kind."""

    def put(self, key: str, content: bytes, headers: Message) -> int:
        return 501 if "x-amz-checksum-crc32" in headers else super().put(key, content, headers)


class _WithoutConditions(MadeStore):
    """An S3 server that refuses conditions as not implemented."""

    def put(self, key: str, content: bytes, headers: Message) -> int:
        return 501 if "If-None-Match" in headers else super().put(key, content, headers)


class _WithoutIfMatch(MadeStore):
    def put(self, key: str, content: bytes, headers: Message) -> int:
        return 501 if "If-Match" in headers else super().put(key, content, headers)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (_Unconditional, "it took a write that was to create an object (If-None-Match: *) over one that was there"),
        (_CreatesOnly, "it took a write whose tag (If-Match) had been right once, after the object was overwritten"),
        (_AnyKnownTag, "it took a write whose tag (If-Match) had been right once, after the object was overwritten"),
        (_Unlocked, "it took both of two writes at once with the right If-Match"),
        (_UnlockedCreates, "it took both of two writes at once with If-None-Match: *"),
        (_Quarrelsome, "it refused a write whose condition held (with If-None-Match: *)"),
        (_Backwards, "it refused a write whose condition held (with the right If-Match)"),
        (_Forgetful, "an object that was read had not the content of the last write that it took"),
        (_WithoutConditions, "it answers a write with If-None-Match as not implemented"),
        (_WithoutIfMatch, "it answers a write with If-Match as not implemented"),
    ],
)
def test_a_server_that_does_not_keep_conditions_is_refused_and_told_what_it_did(
    as_user: Any, monkeypatch: pytest.MonkeyPatch, kind: type[MadeStore], said: str
) -> None:
    server = kind()
    with served(server, monkeypatch):
        found = check_patiently(parse_uri("s3://models/x"), print)
    assert found is not None
    assert found.sentence.startswith(f"the S3 server at http://127.0.0.1:{server.server_address[1]} does not keep")
    assert f"in bucket 'models': {said}" in found.sentence
    assert found.sentence.endswith("Two gangs could overwrite each other's checkpoints; use a server that keeps them")
    assert (found.kind, found.facts().cause) == (Kind.NO_CONDITIONS, Cause.STORAGE), "another try would not help"
    assert server.objects == {}, "nothing stays"


def test_a_server_that_takes_no_sums_is_told(as_user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(_WithoutSums(), monkeypatch), pytest.raises(Trouble) as caught:
        check(parse_uri("s3://models/x"))
    assert caught.value.kind is Kind.MISCONFIGURED
    assert "x-amz-checksum-crc32: leave that out" in caught.value.sentence


class _Conflicts(MadeStore):
    """It keeps conditions, and answers 409 to every second write, as AWS does to one that meets another."""

    def put(self, key: str, content: bytes, headers: Message) -> int:
        self.writes += 1
        return 409 if self.writes % 2 else super().put(key, content, headers)


class _Loses(MadeStore):
    """It keeps conditions. Every second answer to a write that was taken is lost: the HTTP library asks again, and is
    refused by its own write."""

    def put(self, key: str, content: bytes, headers: Message) -> int:
        status = super().put(key, content, headers)
        if status == 200:
            self.writes += 1
        return 500 if status == 200 and self.writes % 2 else status


@pytest.mark.parametrize("kind", [MadeStore, _Conflicts, _Loses])
def test_a_server_that_keeps_conditions_passes_however_it_answers(
    as_user: Any, monkeypatch: pytest.MonkeyPatch, kind: type[MadeStore]
) -> None:
    server = kind()
    with served(server, monkeypatch):
        assert check_patiently(parse_uri("s3://models/x"), print, retry_seconds=0) is None
    assert server.objects == {}


def test_no_single_mishap_makes_a_good_server_a_bad_one(as_user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    between = Proxy(as_user.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", between.endpoint)
    check(parse_uri("s3://models/x"))
    mishaps = (drop_answer, duplicate, drop)
    step = 1 if os.environ.get("MUSTER_THOROUGH") else 3
    for number, at in enumerate(range(1, len(between.seen) + 1, step)):
        between.arm(at, mishaps[number % len(mishaps)])
        found = check_patiently(parse_uri("s3://models/x"), print, retry_seconds=0)
        assert found is None, f"request {at}: {found.sentence}"
    between.shutdown()
    between.server_close()
    assert not [key for key in objects(as_user) if "preflight" in key]


def test_bad_storage_ends_the_gang_before_any_rank_starts(s3_server: Any, make_gang: MakeGang) -> None:
    gang = make_gang(2, **s3_server.environment(MUSTER_CHECKPOINT_URI="s3://not-there/x"))
    command = gang.script("mark('started')\n")
    follower = gang.pod(1, command)
    gang.eventually(lambda: "trying again" in follower.log(), "index 1 asks for its place")
    facts = gang.pod(0, command).end()  # it may end while index 1 pauses between two tries
    assert (facts.cause, facts.exit_code) == (Cause.STORAGE, EXIT_CONFIG)
    assert "'not-there' does not exist" in facts.message
    followed = follower.end()
    assert (followed.cause, followed.exit_code) == (Cause.PEER, EXIT_CONFIG)
    assert "'not-there' does not exist" in followed.message
    assert gang.marks("started") == set()


def test_a_start_from_nothing_ends_the_gang_before_any_rank_starts(s3_server: Any, make_gang: MakeGang) -> None:
    names = {"MUSTER_CHECKPOINT_URI": "s3://models/fresh", "MUSTER_CHECKPOINT_FROM": "s3://models/firts"}
    gang = make_gang(2, **s3_server.environment(**names))
    command = gang.script("mark('started')\n")
    follower = gang.pod(1, command)
    gang.eventually(lambda: "trying again" in follower.log(), "index 1 asks for its place")
    facts = gang.pod(0, command).end()
    assert (facts.cause, facts.exit_code) == (Cause.CONFIG, EXIT_CONFIG)
    assert "checkpoint.from can't be taken: s3://models/firts has no committed checkpoint" in facts.message
    assert follower.end().cause is Cause.PEER
    assert gang.marks("started") == set()


def test_an_unreachable_server_shows_in_the_status_and_a_stop_ends_the_wait(
    s3_server: Any, make_gang: MakeGang
) -> None:
    environment = s3_server.environment(MUSTER_CHECKPOINT_URI="s3://models/x", AWS_ENDPOINT_URL_S3="http://127.0.0.1:1")
    leader = make_gang(1, **environment).pod(0, ["true"])
    wait = make_gang(1).eventually
    wait(leader.listens, "index 0 listens")
    wait(lambda: "can't be reached" in leader.status().storage_error, "the error is shown")
    assert leader.status().phase is Phase.PREFLIGHT
    leader.ask("POST", api.STOP_PATH, encode(Stop(StopReason.SUSPEND, 30)))
    assert leader.end(10).cause is Cause.PREEMPTED


def test_good_storage_lets_the_gang_go(s3_server: Any, make_gang: MakeGang) -> None:
    gang = make_gang(2, **s3_server.environment(MUSTER_CHECKPOINT_URI="s3://models/run"))
    assert [pod.end().cause for pod in gang.all(["true"])] == [Cause.SUCCEEDED] * 2


async def _looked(uri: str) -> ExitFacts:
    """How a launcher ends that looks there."""
    with pytest.raises(Over) as over:
        await asyncio.wait_for(preflight.start(parse_uri(uri), "", lambda _: None), 20)
    return over.value.facts


def test_an_error_that_nobody_has_foreseen_ends_the_wait_for_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr(preflight, "check", fail)
    facts = asyncio.run(_looked("s3://models/llama"))
    assert facts.cause is Cause.INFRASTRUCTURE
    assert "KeyError('unforeseen')" in facts.message


def test_where_no_more_threads_can_be_started_nobody_waits_for_the_second_of_two_writes(
    as_user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, ""

    def refuse(thread: threading.Thread) -> None:
        if thread.name == refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    refused = "storage preflight_1"
    check(parse_uri("s3://models/llama"))
    refused = "storage preflight_0"
    assert "can't start new thread" in asyncio.run(_looked("s3://models/llama")).message
