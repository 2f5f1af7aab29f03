"""How the S3 server is spoken to: its certificate, encryption, addressing, and whose credentials."""

from __future__ import annotations

import contextlib
import datetime
import re
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import botocore.exceptions
import pytest
import trustme
from hack.s3server import ACCESS_KEY, SECRET_KEY, S3Server, serving
from proxy import Act, Handler, Proxy, error, forward

from muster_protocol.checkpoints import s3_client
from muster_protocol.checkpoints.s3 import PART_BYTES, forget_object
from muster_protocol.checkpoints.s3 import S3Store as ToolStore
from muster_protocol.checkpoints.s3_client import make_client
from muster_protocol.errors import MusterError, StorageRefusedError
from muster_protocol.storage_errors import Kind
from muster_protocol.uris import parse_uri
from muster_runtime.checkpoint.extents import whole
from muster_runtime.checkpoint.s3_store import Outgoing
from muster_runtime.checkpoint.s3_store import S3Store as RankStore
from muster_runtime.checkpoint.store import open_store
from muster_runtime.launch.preflight import Trouble, check

URI = parse_uri("s3://models/client")


def set_environment(monkeypatch: pytest.MonkeyPatch, server: S3Server, **more: str) -> None:
    for name, value in server.environment(**more).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def secure_server(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("certificate")
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    issued.private_key_pem.write_to_path(folder / "tls.key")
    with serving(tmp_path_factory.mktemp("s3"), certificate=(folder / "tls.crt", folder / "tls.key")) as server:
        yield server


def test_an_authority_of_our_own_is_trusted_by_rank_tool_and_launcher(
    authority: trustme.CA, secure_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    set_environment(monkeypatch, secure_server, MUSTER_S3_CA_FILE=str(tmp_path / "ca.crt"))
    check(URI)
    store = open_store(str(URI))
    try:
        store.put("word", b"hello")
        assert isinstance(store, RankStore)
        assert store.receiver() is None  # what TLS has made of it is the storage process's to read
    finally:
        store.close()
    tool = ToolStore(URI)
    assert bytes(tool.read("word", 0, 5)) == b"hello"
    tool.close()


def test_a_certificate_that_nobody_vouches_for_is_told_at_once(
    secure_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, secure_server)
    with pytest.raises(Trouble, match=r"isn't trusted; name its authority's in checkpoint\.caConfigMapRef") as told:
        check(URI)
    assert told.value.kind is Kind.CERTIFICATE
    store = open_store(str(URI))
    try:
        with pytest.raises(MusterError, match="isn't trusted"):
            store.get("word")
    finally:
        store.close()
    tool = ToolStore(URI)
    with pytest.raises(MusterError, match="isn't trusted; name its authority's in AWS_CA_BUNDLE"):
        tool.get("word")
    tool.close()


@pytest.mark.parametrize("name", ["MUSTER_S3_CA_FILE", "AWS_CA_BUNDLE"])
@pytest.mark.parametrize("kind", ["another format", "empty", "folder"])
def test_authorities_in_a_file_that_has_none_are_told_as_that_and_not_as_a_server_that_is_away(
    authority: trustme.CA,
    secure_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: str,
) -> None:
    path = tmp_path / "ca.crt"
    if kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"" if kind == "empty" else ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode()))
    set_environment(monkeypatch, secure_server, **{name: str(path)})
    told = f"{name} names '{path}', which is no file with certificates in PEM form"
    with pytest.raises(Trouble, match=re.escape(told)) as trouble:
        check(URI)
    assert trouble.value.kind is Kind.CERTIFICATE, "it lasts, and is tried by nobody again"
    for opened in (open_store(str(URI)), ToolStore(URI)):
        with contextlib.closing(opened) as store, pytest.raises(StorageRefusedError, match=re.escape(told)):
            store.get("word")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("MUSTER_S3_CA_FILE", "/nowhere/ca.crt", "which can't be read"),
        ("MUSTER_S3_ENCRYPTION", "rot13", "say AES256 or aws:kms"),
        ("MUSTER_S3_ADDRESSING", "by-name", "say path or virtual"),
    ],
)
def test_what_a_variable_may_not_hold_is_told(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    set_environment(monkeypatch, s3_server, **{name: value})
    with pytest.raises(Trouble, match=told) as trouble:
        check(URI)
    assert trouble.value.kind is Kind.MISCONFIGURED
    tool = ToolStore(URI)
    with pytest.raises(MusterError, match=told):
        tool.get("word")
    tool.close()


class Recording(Proxy):
    """Keeps the headers of each write that says how an object is kept."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.writes: list[dict[str, str]] = []
        self.arm_all()

    def arm_all(self) -> None:
        def note(handler: Handler) -> None:
            multipart = handler.command == "PUT" and "uploadId=" in handler.path
            if (handler.command == "PUT" and not multipart) or handler.path.endswith("?uploads"):
                self.writes.append({name.lower(): value for name, value in handler.headers.items()})
            forward(handler)

        self.act_for = lambda request: note  # type: ignore[method-assign]


def test_every_object_is_written_with_the_key_that_was_asked_for(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Recording(s3_server.endpoint)
    settings = {"MUSTER_S3_ENCRYPTION": "aws:kms", "MUSTER_S3_KMS_KEY": "arn:aws:kms:eu-1:1:key/2"}
    set_environment(monkeypatch, s3_server, AWS_ENDPOINT_URL_S3=proxy.endpoint, **settings)
    check(URI)
    store = open_store(str(URI))
    try:
        store.put("word", b"hello")
        store.put_if("once", b"hello", None)
    finally:
        store.close()
    tool = ToolStore(URI)
    writer = tool.writer("large")
    for _ in range(5):
        writer.write(memoryview(bytes(8 << 20)))
    writer.close()
    tool.close()
    proxy.shutdown()
    assert len(proxy.writes) >= 5
    for headers in proxy.writes:
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "arn:aws:kms:eu-1:1:key/2"


class Locked(Proxy):
    """A bucket with Object Lock: it takes no bytes without a sum in the request's head."""

    def act_for(self, request: str) -> Act:
        def take(handler: Handler) -> None:
            summed = "x-amz-checksum-crc32" in handler.headers
            (forward if summed or not handler.body else error(400, "InvalidRequest"))(handler)

        return take if request.startswith("PUT") else forward


def test_every_write_has_the_sum_that_a_bucket_with_object_lock_wants(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Locked(s3_server.endpoint)
    set_environment(monkeypatch, s3_server, AWS_ENDPOINT_URL_S3=proxy.endpoint)
    check(URI)
    rank, tool = open_store(str(URI)), ToolStore(URI)
    large = bytes(2 * PART_BYTES + 1)
    try:
        for key, store in (("rank", rank), ("tool", tool)):
            store.put(f"locked/{key}", b"hello")
            store.put_if(f"locked/{key}-once", b"hello", None)
        writer = tool.writer("locked/large")
        writer.write(memoryview(large))
        writer.close()
        assert tool.read("locked/large", 0, len(large)) == large
    finally:
        rank.close()
        tool.close()
        proxy.shutdown()


class Unsummed(Proxy):
    """A server that knows no sums in a request's head."""

    def act_for(self, request: str) -> Act:
        def take(handler: Handler) -> None:
            summed = any("checksum" in name.lower() for name in handler.headers)
            (error(501, "NotImplemented") if summed else forward)(handler)

        return take


def test_no_write_has_a_sum_where_the_environment_says_so(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Unsummed(s3_server.endpoint)
    set_environment(monkeypatch, s3_server, AWS_ENDPOINT_URL_S3=proxy.endpoint)
    with pytest.raises(Trouble, match=r"leave that out by AWS_REQUEST_CHECKSUM_CALCULATION=when_required in the job's"):
        check(URI)
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    check(URI)
    rank, tool = open_store(str(URI)), ToolStore(URI)
    assert isinstance(rank, RankStore)
    large = bytes(2 * PART_BYTES + 1)
    try:
        rank.memory.reserve(len(large))
        (landed,) = rank.upload([Outgoing("unsummed/shard", 0, len(large), ((0, len(large)),))]).result()
        rank.fetch(whole(landed.file), 0).result()
        rank.put_if("unsummed/once", b"hello", None)
        writer = tool.writer("unsummed/large")
        writer.write(memoryview(large))
        writer.close()
        assert tool.read("unsummed/large", 0, len(large)) == large
    finally:
        rank.close()
        tool.close()
        proxy.shutdown()


@pytest.mark.parametrize("code", ["KMS.NotFoundException", "KMS.DisabledException"])
def test_a_key_that_cannot_be_used_is_told_before_training(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    proxy = Proxy(s3_server.endpoint)
    proxy.arm(2, error(400, code))  # after the look at the bucket
    set_environment(monkeypatch, s3_server, AWS_ENDPOINT_URL_S3=proxy.endpoint, MUSTER_S3_ENCRYPTION="aws:kms")
    with pytest.raises(Trouble, match=r"can't be written encrypted .*check checkpoint\.encryption") as told:
        check(URI)
    proxy.shutdown()
    assert told.value.kind is Kind.ENCRYPTION


def test_the_bucket_stands_where_addressing_says(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> None:
    set_environment(monkeypatch, s3_server)

    def url(endpoint: str) -> str:
        asked = {"Bucket": "models", "Key": "a"}
        return str(make_client(endpoint, 1).generate_presigned_url("get_object", Params=asked)).partition("?")[0]

    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    assert url("https://s3.example.com") == "https://s3.example.com/models/a"
    assert url("") == "https://models.s3.amazonaws.com/a"
    monkeypatch.setenv("MUSTER_S3_ADDRESSING", "virtual")
    assert url("https://s3.example.com") == "https://models.s3.example.com/a"
    monkeypatch.setenv("MUSTER_S3_ADDRESSING", "path")
    assert urlsplit(url("")).path == "/models/a"


def test_the_region_is_the_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile cn]\nregion = cn-north-1\n")
    (tmp_path / "credentials").write_text("[cn]\naws_access_key_id = a\naws_secret_access_key = b\n")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "cn")
    client = make_client("", 1)
    assert (client.meta.region_name, client.meta.partition) == ("cn-north-1", "aws-cn")
    monkeypatch.setenv("AWS_REGION", "cn-northwest-1")
    assert make_client("", 1).meta.region_name == "cn-northwest-1"
    for name in ("AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert make_client("", 1).meta.region_name == "us-east-1"


def test_keys_that_are_rotated_in_their_file_are_taken_up(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_environment(monkeypatch, s3_server, AWS_SHARED_CREDENTIALS_FILE=str(tmp_path / "keys"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(s3_client, "_REREAD_SECONDS", 0)
    right = f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    tool = ToolStore(URI)
    for content, passes in ((right, True), (right.replace(ACCESS_KEY, "old"), False), (right, True), ("[def", True)):
        (tmp_path / "keys").write_text(content)
        with contextlib.nullcontext() if passes else pytest.raises(MusterError, match="is denied"):
            tool.put("rotated", b"hello")
    tool.close()


def test_a_clock_that_was_fast_when_keys_were_read_does_not_keep_new_ones_out(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As that of a machine that has just started, until it is set by the network's."""

    class Fast(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return datetime.datetime.now(tz) + datetime.timedelta(days=1)

    set_environment(monkeypatch, s3_server, AWS_SHARED_CREDENTIALS_FILE=str(tmp_path / "keys"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(s3_client, "_REREAD_SECONDS", 0)
    keys = f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    (tmp_path / "keys").write_text(keys)
    tool = ToolStore(URI)
    with monkeypatch.context() as fast:
        fast.setattr(s3_client, "datetime", Fast)
        tool.put("read", b"hello")
    (tmp_path / "keys").write_text(keys.replace(ACCESS_KEY, "new"))
    with pytest.raises(MusterError, match="is denied"):
        tool.put("read", b"hello")
    tool.close()


class TokenService(ThreadingHTTPServer):
    """AWS's STS as far as a web identity needs it: it gives the keys of the test's server, which knows no sessions."""

    daemon_threads = True

    def __init__(self) -> None:
        self.tokens: list[str] = []
        super().__init__(("127.0.0.1", 0), TokenHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class TokenHandler(BaseHTTPRequestHandler):
    server: TokenService

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.tokens += asked["WebIdentityToken"]
        body = (
            "<AssumeRoleWithWebIdentityResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'>"
            "<AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>{ACCESS_KEY}</AccessKeyId><SecretAccessKey>{SECRET_KEY}</SecretAccessKey>"
            "<SessionToken/><Expiration>2099-01-01T00:00:00Z</Expiration>"
            "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Not in the tests' output."""


def test_a_web_identity_gets_keys_and_none_of_them_is_written_down(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tokens = TokenService()
    (tmp_path / "token").write_text("who-i-am")
    set_environment(
        monkeypatch,
        s3_server,
        AWS_ROLE_ARN="arn:aws:iam::1:role/train",
        AWS_WEB_IDENTITY_TOKEN_FILE=str(tmp_path / "token"),
        AWS_ENDPOINT_URL_STS=f"http://127.0.0.1:{tokens.server_address[1]}",
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    store = open_store(str(URI))
    try:
        store.put("identity", b"hello")
        with pytest.raises(MusterError) as told:
            store.read("not there", 0, 5)
    finally:
        store.close()
    tokens.shutdown()
    assert tokens.tokens == ["who-i-am"]
    said = str(told.value) + "".join(capfd.readouterr())
    for secret in (SECRET_KEY, ACCESS_KEY, "who-i-am"):
        assert secret not in said


@pytest.mark.parametrize(("code", "passes"), [("NoSuchKey", True), ("NoSuchBucket", False), ("AccessDenied", False)])
def test_an_object_that_another_deletes_at_the_same_moment_is_deleted(code: str, passes: bool) -> None:
    class Client:
        def delete_object(self, **_: str) -> None:
            raise botocore.exceptions.ClientError({"Error": {"Code": code, "Message": ""}}, "DeleteObject")

    with contextlib.nullcontext() if passes else pytest.raises(botocore.exceptions.ClientError, match=code):
        forget_object(Client(), Bucket="models", Key="a")
