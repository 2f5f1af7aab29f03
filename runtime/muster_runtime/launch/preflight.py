"""Does the checkpoint's bucket exist, may we use it, and does it keep conditional writes? Is there a checkpoint to
start from, where the job names one? Asked before any rank starts, so that a run doesn't train for an hour and then find
that it can't save."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from muster_protocol import exits
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.manifest import LATEST_KEY
from muster_protocol.storage_errors import IN_A_JOB, LASTING, Kind, kind_of, sentence
from muster_protocol.uris import CheckpointUri, parse_uri_at_step
from muster_runtime import vendored
from muster_runtime.launch import conditions
from muster_runtime.launch.state import Over

RETRY_SECONDS: Final = 180.0
"""How long an S3 server that can't be reached, or is in trouble, is tried again."""
_PAUSES: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
_MET: Final = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
"""Codes of a write that has met another one, and is to be tried again."""


class Trouble(Exception):
    """What is wrong with the storage; `sentence` is for people."""

    def __init__(self, kind: Kind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.sentence = sentence

    def facts(self) -> ExitFacts:
        """The launcher's end by it. An outage isn't the job's fault: the operator tries the gang again."""
        if self.kind in LASTING:
            return ExitFacts(Cause.STORAGE, exits.EXIT_CONFIG, self.sentence)
        return ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, self.sentence)


class NoStart(Trouble):
    """There is no checkpoint where the job is to start from."""

    def __init__(self, kind: Kind, sentence: str) -> None:
        super().__init__(kind, f"checkpoint.from can't be taken: {sentence}")

    def facts(self) -> ExitFacts:
        return ExitFacts(Cause.CONFIG, exits.EXIT_CONFIG, self.sentence)


def start(uri: CheckpointUri, start_from: str, trouble: Callable[[str], None]) -> asyncio.Future[None]:
    """Checks `uri` and `start_from` (`uri@step`, or "") in a thread of its own. The future ends well, or with Over.

    `trouble` is called in the event loop with each error, "" when it is over. The thread is a daemon: a stop doesn't
    wait for a server that gives no answer.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(found: Trouble | None) -> None:
        if done.done():
            return
        trouble(found.sentence if found else "")
        if found is None:
            done.set_result(None)
        else:
            done.set_exception(Over(found.facts()))

    def work() -> None:
        try:
            found = check_patiently(uri, lambda text: _tell(loop, trouble, text), start_from=start_from)
        except Exception as error:  # noqa: BLE001 - the gang waits for the answer, whatever it is
            traceback.print_exc()
            found = Trouble(Kind.OTHER, f"the look at the checkpoint's storage failed by itself: {error!r}")
        _tell(loop, finish, found)

    threading.Thread(target=work, daemon=True, name="storage preflight").start()
    return done


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[Any], None], value: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, value)


def check_patiently(
    uri: CheckpointUri,
    trouble: Callable[[str], None],
    *,
    start_from: str = "",
    retry_seconds: float = RETRY_SECONDS,
) -> Trouble | None:
    """`check`, tried again while the trouble may pass by itself."""
    until, pauses = time.monotonic() + retry_seconds, iter(_PAUSES)
    while True:
        try:
            check(uri, start_from)
        except Trouble as found:
            pause = next(pauses, _PAUSES[-1])
            if found.kind in LASTING or isinstance(found, NoStart) or time.monotonic() + pause > until:
                return found
            trouble(found.sentence)
            time.sleep(pause)
        else:
            return None


def check(uri: CheckpointUri, start_from: str = "") -> None:
    """Lists what lies below `uri`; tries conditional writes on scratch objects there, and deletes these; looks whether
    any checkpoint lies at `start_from`, which only counts while the run has none of its own. Raises Trouble."""
    calls = _Calls(uri)
    calls.look_at_bucket()
    calls.list_below(_below(uri, "step-"))
    key = _below(uri, f".muster-preflight-{secrets.token_hex(8)}")
    try:
        written = conditions.probe(calls, key)
    except conditions.NotKept as error:
        calls.clear(conditions.scratch(key))
        raise calls.no_conditions(str(error)) from error
    except Trouble:
        calls.clear(conditions.scratch(key))
        raise
    for each in written:
        calls.delete(each)
    if start_from.startswith("s3://") and not calls.has(uri.bucket, _below(uri, LATEST_KEY)):
        _look_at_start(calls, start_from)


def _look_at_start(calls: _Calls, start_from: str) -> None:
    """Raises NoStart where nothing can be there. Whether what is there is whole, the ranks find."""
    try:
        uri, step = parse_uri_at_step(start_from)
    except ValueError as error:
        raise NoStart(Kind.NOT_FOUND, str(error)) from error
    folder = "step-" if step is None else f"step-{step:08d}/"
    if not calls.has(uri.bucket, _below(uri, folder)):
        told = f"{uri} has no committed checkpoint; is it some job's spec.checkpoint.uri?"
        if step is not None:
            told = f"{uri} has no committed checkpoint of step {step}; see which it has by muster checkpoint ls {uri}"
        raise NoStart(Kind.NOT_FOUND, told)


def _below(uri: CheckpointUri, key: str) -> str:
    return f"{uri.prefix}/{key}" if uri.prefix else key


class _Calls:
    """S3 calls whose errors are Trouble."""

    def __init__(self, uri: CheckpointUri) -> None:
        vendored.use()
        from muster_protocol.checkpoints import s3, s3_client

        self._fetch, self._forget = s3.fetch, s3.forget_object
        self._errors = s3_client.S3_ERRORS
        self._code, self._detail = s3_client.code_of, s3_client.detail_of
        self._bucket = uri.bucket
        self._endpoint = s3_client.endpoint_in_environment()
        try:
            self._s3: Any = s3_client.make_client(self._endpoint, 2, attempts=2, connect=5, read=15)
        except self._errors as error:
            raise self._trouble(error, "") from error

    def look_at_bucket(self) -> None:
        try:
            self._s3.head_bucket(Bucket=self._bucket)
        except self._errors as error:
            code = self._code(error)
            if code in ("404", "NotFound"):
                raise self._not_found() from error
            if not re.fullmatch("[34]..", code) and code not in ("AccessDenied", "Forbidden"):
                raise self._trouble(error, "") from error
            # A policy may forbid to look at the bucket and still allow its objects. What else it is, a token that has
            # expired or another region, the next request tells: a HEAD's answer has no room for it.

    def _not_found(self) -> Trouble:
        """A HEAD's answer has no code, and some servers answer unknown keys by 404 too; a list's tells which it is."""
        try:
            self._s3.list_objects_v2(Bucket=self._bucket, MaxKeys=1)
        except self._errors as error:
            if kind_of(self._code(error)) is Kind.ACCESS_DENIED:
                return self._trouble(error, "")
        told = sentence(Kind.NO_SUCH_BUCKET, bucket=self._bucket, endpoint=self._endpoint)
        return Trouble(Kind.NO_SUCH_BUCKET, told)

    def list_below(self, prefix: str) -> None:
        """As the ranks do where they restore: a permission apart, which a policy may give for some prefixes alone."""
        try:
            self._s3.list_objects_v2(Bucket=self._bucket, Prefix=prefix, MaxKeys=1)
        except self._errors as error:
            raise self._trouble(error, prefix) from error

    def has(self, bucket: str, key: str) -> bool:
        """Whether an object's key begins so; True where nobody may look."""
        try:
            found = self._s3.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1)
        except self._errors as error:
            kind = kind_of(self._code(error))
            if kind is Kind.NO_SUCH_BUCKET:
                hints = replace(IN_A_JOB, uri="checkpoint.from")
                raise NoStart(kind, sentence(kind, bucket=bucket, endpoint=self._endpoint, hints=hints)) from error
            if kind is Kind.ACCESS_DENIED:
                return True
            raise self._trouble(error, key) from error
        return bool(found.get("Contents"))

    def put(self, key: str, content: bytes, tag: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            answer = self._s3.put_object(Bucket=self._bucket, Key=key, Body=content, **condition)
        except self._errors as error:
            code = self._code(error)
            if code in _MET:
                raise conditions.Met from error
            if kind_of(code) is Kind.PRECONDITION_FAILED or (tag is not None and kind_of(code) is Kind.NOT_FOUND):
                raise conditions.Refused from error
            if code != "NotImplemented":
                raise self._trouble(error, key) from error
            self._put_plainly(key, content)  # is it the condition, or any write?
            name = "If-None-Match" if tag is None else "If-Match"
            raise conditions.NotKept(f"it answers a write with {name} as not implemented") from error
        if not answer.get("ETag"):
            raise conditions.NotKept("it gives no tag (ETag) to what it has written")
        return str(answer["ETag"])

    def _put_plainly(self, key: str, content: bytes) -> None:
        try:
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=content)
        except self._errors as error:
            if self._code(error) == "NotImplemented":
                raise self._no_sums(error) from error
            raise self._trouble(error, key) from error

    def get(self, key: str) -> conditions.Found | None:
        try:
            found = self._fetch(self._s3, {}, Bucket=self._bucket, Key=key)
        except self._errors as error:
            raise self._trouble(error, key) from error
        return None if found is None else conditions.Found(*found)

    def delete(self, key: str) -> None:
        try:
            self._forget(self._s3, Bucket=self._bucket, Key=key)
        except self._errors as error:
            raise self._trouble(error, key) from error

    def clear(self, keys: Iterable[str]) -> None:
        """Deletes what there may be of them, as far as the store lets us: something else is to be told."""
        with contextlib.suppress(Trouble):
            for key in keys:
                self.delete(key)

    @property
    def _server(self) -> str:
        return f"the S3 server at {self._endpoint or 'AWS'}"

    def no_conditions(self, what: str) -> Trouble:
        """`what` it has done instead."""
        return Trouble(
            Kind.NO_CONDITIONS,
            f"{self._server} does not keep conditional writes (If-None-Match, If-Match) in bucket {self._bucket!r}: "
            f"{what}. Two gangs could overwrite each other's checkpoints; use a server that keeps them",
        )

    def _no_sums(self, error: Exception) -> Trouble:
        return Trouble(
            Kind.MISCONFIGURED,
            f"{self._server} refuses plain writes as not implemented; each has the CRC-32 of its content in the "
            "header x-amz-checksum-crc32: leave that out by AWS_REQUEST_CHECKSUM_CALCULATION=when_required in "
            f"the job's env, or use a server that takes it ({error})",
        )

    def _trouble(self, error: Exception, key: str) -> Trouble:
        kind = kind_of(self._code(error))
        detail = self._detail(error)
        return Trouble(kind, sentence(kind, bucket=self._bucket, key=key, endpoint=self._endpoint, detail=detail))
