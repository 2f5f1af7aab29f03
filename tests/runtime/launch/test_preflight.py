"""Storage that can't serve is found before any rank starts, and named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import pytest

from muster_protocol import launcher_api as api
from muster_protocol.exits import EXIT_CONFIG, Cause
from muster_protocol.launcher_status import Phase
from muster_protocol.messages import Stop, StopReason
from muster_protocol.storage_errors import Kind
from muster_protocol.uris import parse_uri
from muster_protocol.wire import encode
from muster_runtime.launch.preflight import Trouble, check, check_patiently

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


def test_an_unreachable_server_is_tried_again_then_told(as_user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    told: list[str] = []
    found = check_patiently(parse_uri("s3://models/x"), told.append, retry_seconds=4)
    assert found is not None
    assert found.kind is Kind.NETWORK
    assert told, "an error that is tried again is shown meanwhile"


class _Unconditional(BaseHTTPRequestHandler):
    """An S3 server of the old kind: it takes every write, whatever its condition."""

    def do_HEAD(self) -> None:
        self._answer(200)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(200)

    def do_DELETE(self) -> None:
        self._answer(204)

    def _answer(self, status: int) -> None:
        body = b"<Error><Code>NotImplemented</Code></Error>" if status == 501 else b""
        self.send_response(status)
        self.send_header("ETag", '"abc"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def unconditional() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Unconditional)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_server_that_ignores_conditions_is_refused(
    as_user: Any, unconditional: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", unconditional)
    with pytest.raises(Trouble) as caught:
        check(parse_uri("s3://models/x"))
    assert "does not keep conditional writes" in caught.value.sentence


class _WithoutSums(_Unconditional):
    """An S3 server that takes no write with a sum of its own kind."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(501 if "x-amz-checksum-crc32" in self.headers else 200)


class _WithoutConditions(_Unconditional):
    """An S3 server that refuses conditions as not implemented."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(501 if "If-None-Match" in self.headers else 200)


@pytest.mark.parametrize(
    ("server", "kind", "said"),
    [
        (_WithoutSums, Kind.MISCONFIGURED, "x-amz-checksum-crc32: leave that out"),
        (_WithoutConditions, Kind.NO_CONDITIONS, "does not keep conditional writes"),
    ],
)
def test_what_a_server_has_not_implemented_is_told(
    as_user: Any, monkeypatch: pytest.MonkeyPatch, server: Any, kind: Kind, said: str
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), server) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{serving.server_address[1]}")
        with pytest.raises(Trouble) as caught:
            check(parse_uri("s3://models/x"))
        serving.shutdown()
    assert caught.value.kind is kind
    assert said in caught.value.sentence


@pytest.mark.parametrize("uri", ["s3://models//llama", "s3://models/team//llama"])
def test_a_prefix_that_the_server_keeps_as_another_is_told(as_user: Any, uri: str) -> None:
    with pytest.raises(Trouble, match="takes // for /") as caught:
        check(parse_uri(uri))
    assert caught.value.kind is Kind.MISCONFIGURED
    assert f"to s3://models/{'team/' if 'team' in uri else ''}llama perhaps" in caught.value.sentence
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
