"""botocore's client as preflight, storage processes and tools all make it, and S3's errors by their codes."""

from __future__ import annotations

import base64
import os
import ssl
import time
import zlib
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import botocore.config
import botocore.exceptions
import botocore.session
from botocore.credentials import RefreshableCredentials

from muster_protocol import env

S3_ERRORS: Final = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)
ENCRYPTIONS: Final = ("AES256", "aws:kms")
ADDRESSINGS: Final = ("path", "virtual")
_FILES: Final = ("shared-credentials-file", "config-file")
"""Where botocore says that it has keys from, which it reads once."""
_REREAD_SECONDS: Final = 60
_TRUSTED_SECONDS: Final = 3600
"""So long keys count when their file can't be read any more."""
_WRITES: Final = ("PutObject", "CreateMultipartUpload")
"""The requests that say how an object is kept."""
_BODIES: Final = ("PutObject", "UploadPart")
"""The requests that bring bytes."""
_REGION: Final = "x-amz-bucket-region"
"""The header that tells where a bucket is."""


class NoAuthorityError(botocore.exceptions.BotoCoreError):
    """The file that is to vouch for the server has no certificate."""

    fmt = "{name} names {file!r}, which is no file with certificates in PEM form ({why})"


def endpoint_in_environment() -> str:
    """URL of the S3 server, or "" for AWS's own."""
    return os.environ.get(env.S3_ENDPOINT) or os.environ.get("AWS_ENDPOINT_URL") or ""


def make_client(endpoint: str, connections: int, *, attempts: int = 5, connect: float = 10, read: float = 60) -> Any:
    """A client as the environment's MUSTER_S3_ variables want it.

    Its retries wait by chance and share a budget, so that a server in trouble isn't asked ever more (botocore's mode
    `standard`).

    Args:
        endpoint: "": AWS's own.
        connections: to the server at once, at most.
        attempts: of a request, in all.
        connect: seconds until a connection stands.
        read: seconds until the next byte comes.

    Raises:
        ParamValidationError: a variable holds what it may not, or `endpoint` is no URL.
        NoAuthorityError: the file with authorities' certificates has none.
        NoCredentialsError: there are none yet. The client would never look again.
    """
    encryption = _chosen(env.S3_ENCRYPTION, ENCRYPTIONS)
    addressing: Any = _chosen(env.S3_ADDRESSING, ADDRESSINGS) or ("path" if endpoint else "auto")
    authority = os.environ.get(env.S3_CA_FILE, "")
    bundle = os.environ.get("AWS_CA_BUNDLE", "")
    if authority:
        _refuse_no_authority(env.S3_CA_FILE, authority)
    elif bundle and not endpoint.startswith("http:"):
        _refuse_no_authority("AWS_CA_BUNDLE", bundle)
    config = botocore.config.Config(
        connect_timeout=connect,
        read_timeout=read,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=connections,
        # The manifests' own checksums cover every byte; older servers refuse the newer headers, trailers above all.
        # What buckets with Object Lock want is `_sum`'s, where the environment doesn't say the same.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": addressing},
    )
    session = botocore.session.get_session()
    session.register_component("credential_provider", _Provider())
    if session.get_credentials() is None:
        raise botocore.exceptions.NoCredentialsError
    try:
        client = session.create_client(  # boto3 makes the same one, and imports twice as much
            "s3",
            endpoint_url=endpoint or None,
            # AWS_DEFAULT_REGION, or the profile's: in China and GovCloud no other has its keys
            region_name=os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1",
            verify=authority or None,
            config=config,
        )
    except ValueError as error:
        raise _wrong(str(error)) from error
    client.meta.events.register_first("needs-retry.s3.HeadBucket", _ask_no_further)
    if encryption:
        _encrypt(client, encryption, os.environ.get(env.S3_KMS_KEY, ""))
    sums = str(session.get_config_variable("request_checksum_calculation")).lower() != "when_required"
    for operation in _BODIES if sums else (*_BODIES, "CreateMultipartUpload"):
        client.meta.events.register(f"provide-client-params.s3.{operation}", _sum if sums else _leave_sums_out)
    return client


class _Provider:
    """The environment's own, with keys out of a file read anew again and again: what rotates them writes them there,
    and a storage process lives as long as its rank."""

    def load_credentials(self) -> Any:
        found = botocore.session.get_session().get_credentials()
        if found is None or found.method not in _FILES:
            return found
        keys = _keys()
        return RefreshableCredentials(
            keys["access_key"],
            keys["secret_key"],
            keys["token"],
            datetime.fromisoformat(keys["expiry_time"]),
            _keys,
            found.method,
            time_fetcher=_steady,
            advisory_timeout=_TRUSTED_SECONDS - _REREAD_SECONDS,
            mandatory_timeout=0,
        )


def _ask_no_further(request_dict: dict[str, Any], response: Any, **_more: Any) -> None:
    """Where a server sends elsewhere and names no region, botocore looks for the bucket's by this very request. That is
    sent elsewhere, too, and so on for as long as Python's stack lasts."""
    if response is not None and _REGION not in response[1].get("ResponseMetadata", {}).get("HTTPHeaders", {}):
        request_dict["context"].setdefault("s3_redirect", {})["redirected"] = True


def _steady() -> datetime:
    """The time by a clock that nobody sets: after one of a wall was set back, keys would be read anew an hour late."""
    return datetime.fromtimestamp(time.monotonic(), timezone.utc)


def _keys() -> dict[str, Any]:
    """As a session that has read nothing yet finds them. A file that is just being written is read the next time."""
    found = botocore.session.get_session().get_credentials()
    if found is None:
        raise botocore.exceptions.NoCredentialsError
    until = _steady() + timedelta(seconds=_TRUSTED_SECONDS)
    return {
        "access_key": found.access_key,
        "secret_key": found.secret_key,
        "token": found.token,
        "expiry_time": until.isoformat(),
    }


def _chosen(name: str, known: tuple[str, ...]) -> str:
    value = os.environ.get(name, "")
    if value and value not in known:
        raise _wrong(f"{name}={value!r}: say {' or '.join(known)}")
    return value


def _refuse_no_authority(name: str, file: str) -> None:
    """Of a variable that names a file of certificates. botocore would tell it as a server that can't be reached, and
    try again."""
    if not os.access(file, os.R_OK):
        raise _wrong(f"{name} names {file!r}, which can't be read")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except OSError as error:  # OpenSSL's own, too; and that of a folder
        why = getattr(error, "reason", None) or error.strerror
        raise NoAuthorityError(name=name, file=file, why=why) from error


def _wrong(what: str) -> botocore.exceptions.ParamValidationError:
    return botocore.exceptions.ParamValidationError(report=what)


def _sum(params: dict[str, Any], **_more: Any) -> None:
    """A body's CRC-32 as a header, without which a bucket with Object Lock takes nothing."""
    if isinstance(params["Body"], bytes):
        params["ChecksumCRC32"] = base64.b64encode(zlib.crc32(params["Body"]).to_bytes(4, "big")).decode()


def _leave_sums_out(params: dict[str, Any], **_more: Any) -> None:
    """For servers that refuse them: AWS_REQUEST_CHECKSUM_CALCULATION=when_required, or the profile, says so."""
    for name in ("ChecksumCRC32", "ChecksumAlgorithm"):
        params.pop(name, None)


def _encrypt(client: Any, encryption: str, key: str) -> None:
    said = {"ServerSideEncryption": encryption, **({"SSEKMSKeyId": key} if key else {})}

    def say(params: dict[str, Any], **_more: Any) -> None:
        params.update(said)

    for operation in _WRITES:
        client.meta.events.register(f"provide-client-params.s3.{operation}", say)


def code_of(error: Exception) -> str:
    """S3's error code; for an error of the library its class or what is known of it, as in `storage_errors`."""
    if isinstance(error, botocore.exceptions.ClientError):
        found = error.response.get("Error", {})
        code, message = str(found.get("Code", "")), str(found.get("Message", ""))
        if code == "NotImplemented" and ("encrypt" in message.lower() or "KMS" in message):
            return "EncryptionNotImplemented"  # MinIO without a key server
        if not code:  # a proxy's, say, whose page is no XML of S3's
            return str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
        return "KMS" if code.startswith("KMS.") else code
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "CertificateVerifyFailed"
    return type(error).__name__


def detail_of(error: Exception) -> str:
    """The library's own message; and what it leaves out: whose answer it was, and where that sends who asks."""
    told = str(error) or repr(error)
    if not isinstance(error, botocore.exceptions.ClientError):
        return told
    answer = error.response.get("ResponseMetadata", {})
    status, place = answer.get("HTTPStatusCode"), answer.get("HTTPHeaders", {}).get("location", "")
    if not error.response.get("Error", {}).get("Code"):
        told = f"the answer to {error.operation_name} was HTTP status {status} with no word of S3's, as from a proxy"
    return f"{told}; it sends who asks to {place.partition('?')[0]}" if place and status in range(300, 400) else told
