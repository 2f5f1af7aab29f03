"""S3's error codes as kinds for programs and sentences for people.

The launcher's preflight and the ranks' checkpoints meet the same errors; they say the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(str, Enum):
    """What went wrong, coarsely enough to decide what to do."""

    NO_SUCH_BUCKET = "NoSuchBucket"
    ACCESS_DENIED = "AccessDenied"
    NO_CREDENTIALS = "NoCredentials"
    NOT_FOUND = "NotFound"
    PRECONDITION_FAILED = "PreconditionFailed"
    NO_CONDITIONS = "NoConditionalWrites"
    MISCONFIGURED = "Misconfigured"
    CERTIFICATE = "Certificate"
    ENCRYPTION = "Encryption"
    NOT_IMPLEMENTED = "NotImplemented"
    ARCHIVED = "Archived"
    FULL = "Full"
    CLOCK = "Clock"
    NETWORK = "Network"
    BUSY = "Busy"
    OTHER = "Other"


LASTING: Final = frozenset(
    {
        Kind.NO_SUCH_BUCKET,
        Kind.ACCESS_DENIED,
        Kind.NO_CREDENTIALS,
        Kind.NO_CONDITIONS,
        Kind.MISCONFIGURED,
        Kind.CERTIFICATE,
        Kind.ENCRYPTION,
        Kind.NOT_IMPLEMENTED,
        Kind.ARCHIVED,
    }
)
"""Somebody has to mend these; trying again does not help."""

PASSING: Final = frozenset({Kind.NETWORK, Kind.BUSY, Kind.FULL, Kind.CLOCK, Kind.OTHER})
"""May be gone a little later, so they are tried again. What we don't know is held for passing: an outage has many
faces, and failing a run for one of them can't be taken back."""


_KINDS: Final = {
    "NoSuchBucket": Kind.NO_SUCH_BUCKET,
    "AccessDenied": Kind.ACCESS_DENIED,
    "AllAccessDisabled": Kind.ACCESS_DENIED,
    "Forbidden": Kind.ACCESS_DENIED,
    "403": Kind.ACCESS_DENIED,
    "ExpiredToken": Kind.ACCESS_DENIED,
    "InvalidAccessKeyId": Kind.ACCESS_DENIED,
    "XAdminUserNotFound": Kind.ACCESS_DENIED,  # versitygw's, for keys that nobody has
    "InvalidToken": Kind.ACCESS_DENIED,
    "TokenRefreshRequired": Kind.ACCESS_DENIED,
    "ExpiredTokenException": Kind.ACCESS_DENIED,  # STS's
    "InvalidSecurity": Kind.ACCESS_DENIED,
    "AccountProblem": Kind.ACCESS_DENIED,
    "NotSignedUp": Kind.ACCESS_DENIED,
    "UserSuspended": Kind.ACCESS_DENIED,  # Ceph's
    "SignatureDoesNotMatch": Kind.ACCESS_DENIED,
    "NoCredentialsError": Kind.NO_CREDENTIALS,
    "PartialCredentialsError": Kind.NO_CREDENTIALS,
    "ProfileNotFound": Kind.NO_CREDENTIALS,
    "ConfigParseError": Kind.NO_CREDENTIALS,
    "SSOTokenLoadError": Kind.NO_CREDENTIALS,
    "UnauthorizedSSOTokenError": Kind.NO_CREDENTIALS,
    "NoSuchKey": Kind.NOT_FOUND,
    "NotFound": Kind.NOT_FOUND,
    "404": Kind.NOT_FOUND,
    "PreconditionFailed": Kind.PRECONDITION_FAILED,
    "ConditionalRequestConflict": Kind.PRECONDITION_FAILED,
    "412": Kind.PRECONDITION_FAILED,
    "InvalidBucketName": Kind.MISCONFIGURED,
    "KeyTooLongError": Kind.MISCONFIGURED,
    "ParamValidationError": Kind.MISCONFIGURED,
    "InvalidRegionError": Kind.MISCONFIGURED,
    "AuthorizationHeaderMalformed": Kind.MISCONFIGURED,
    "PermanentRedirect": Kind.MISCONFIGURED,
    "IllegalLocationConstraintException": Kind.MISCONFIGURED,
    "301": Kind.MISCONFIGURED,
    "308": Kind.MISCONFIGURED,
    "CertificateVerifyFailed": Kind.CERTIFICATE,
    "NoAuthorityError": Kind.CERTIFICATE,
    "KMS": Kind.ENCRYPTION,
    "EncryptionNotImplemented": Kind.ENCRYPTION,
    "NotImplemented": Kind.NOT_IMPLEMENTED,
    "MethodNotAllowed": Kind.NOT_IMPLEMENTED,
    "405": Kind.NOT_IMPLEMENTED,
    "InvalidObjectState": Kind.ARCHIVED,
    "QuotaExceeded": Kind.FULL,
    "XMinioAdminBucketQuotaExceeded": Kind.FULL,
    "XMinioStorageFull": Kind.FULL,
    "507": Kind.FULL,
    "RequestTimeTooSkewed": Kind.CLOCK,
    "EndpointConnectionError": Kind.NETWORK,
    "ConnectTimeoutError": Kind.NETWORK,
    "ReadTimeoutError": Kind.NETWORK,
    "ConnectionClosedError": Kind.NETWORK,
    "ConnectionError": Kind.NETWORK,
    "ProxyConnectionError": Kind.NETWORK,
    "ResponseStreamingError": Kind.NETWORK,
    "IncompleteReadError": Kind.NETWORK,
    "HTTPClientError": Kind.NETWORK,
    "SSLError": Kind.NETWORK,
    "ProtocolError": Kind.NETWORK,
    "ConnectionResetError": Kind.NETWORK,
    "TimeoutError": Kind.NETWORK,
    "RequestTimeout": Kind.NETWORK,
    "408": Kind.NETWORK,
    "InternalError": Kind.NETWORK,
    "ServiceUnavailable": Kind.NETWORK,
    "SlowDown": Kind.BUSY,
    "SlowDownRead": Kind.BUSY,
    "SlowDownWrite": Kind.BUSY,
    "Throttling": Kind.BUSY,
    "ThrottlingException": Kind.BUSY,
    "ThrottledException": Kind.BUSY,
    "RequestThrottled": Kind.BUSY,
    "RequestThrottledException": Kind.BUSY,
    "RequestLimitExceeded": Kind.BUSY,
    "BandwidthLimitExceeded": Kind.BUSY,
    "TooManyRequests": Kind.BUSY,
    "TooManyRequestsException": Kind.BUSY,
    "ServerBusy": Kind.BUSY,
    "OperationAborted": Kind.BUSY,
    "429": Kind.BUSY,
    "500": Kind.NETWORK,
    "502": Kind.NETWORK,
    "503": Kind.NETWORK,
    "504": Kind.NETWORK,
}


def kind_of(code: str) -> Kind:
    """`code` is S3's error code, an HTTP status as text, or the name of a botocore exception class."""
    return _KINDS.get(code, Kind.OTHER)


@dataclass(frozen=True)
class Hints:
    """What somebody is to look at: where the uri was given, and the other settings."""

    uri: str
    credentials: str
    no_credentials: str
    endpoint: str
    authority: str
    encryption: str


IN_A_JOB: Final = Hints(
    "checkpoint.uri",
    "the keys in checkpoint.secretRef, or the pod's service account,",
    "name a Secret that has them in checkpoint.secretRef, or give the pod's service account a role; on a laptop set "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "checkpoint.endpoint, or AWS_ENDPOINT_URL_S3 in its place,",
    "checkpoint.caConfigMapRef",
    "checkpoint.encryption",
)
BY_HAND: Final = Hints(
    "the uri",
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE, or the role of this machine)",
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role",
    "--endpoint, or AWS_ENDPOINT_URL_S3 in its place,",
    "AWS_CA_BUNDLE",
    "MUSTER_S3_ENCRYPTION and MUSTER_S3_KMS_KEY",
)


def sentence(
    kind: Kind, *, bucket: str, key: str = "", endpoint: str = "", detail: str = "", hints: Hints = IN_A_JOB
) -> str:
    """What to tell people: what is wrong, where, how to mend it.

    `endpoint` is the S3 endpoint's URL, or "" for AWS itself; `detail` is the library's own message.
    """
    where = f"s3://{bucket}/{key}" if key else f"s3://{bucket}"
    at = f" at {endpoint}" if endpoint else ""
    # botocore's own goes over two lines where a parameter is wrong
    detail = " ".join(detail.removeprefix("Parameter validation failed:").split())
    tail = f" ({detail})" if detail else ""
    if kind is Kind.NO_SUCH_BUCKET:
        return f"the bucket {bucket!r} does not exist{at}; create it, or correct {hints.uri}{tail}"
    if kind is Kind.ACCESS_DENIED:
        return (
            f"access to {where}{at} is denied; check {hints.credentials} "
            f"and that they may list, read, write and delete there{tail}"
        )
    if kind is Kind.NO_CREDENTIALS:
        return f"no credentials were found for {where}{at}; {hints.no_credentials}{tail}"
    if kind is Kind.NOT_FOUND:
        return f"{where} does not exist{at}{tail}"
    if kind is Kind.PRECONDITION_FAILED:
        return f"{where} was changed by another writer{tail}"
    if kind is Kind.NETWORK:
        return f"the S3 server{at} can't be reached for {where}; check {hints.endpoint} and the network{tail}"
    if kind is Kind.BUSY:
        return f"the S3 server{at} is too busy for {where}; raise its limits, or save less often{tail}"
    if kind is Kind.CERTIFICATE:
        return f"the certificate of the S3 server{at} isn't trusted; name its authority's in {hints.authority}{tail}"
    if kind is Kind.ENCRYPTION:
        return f"{where} can't be written encrypted{at}; check {hints.encryption} and the key's policy{tail}"
    if kind is Kind.NOT_IMPLEMENTED:
        return f"the S3 server{at} doesn't know a request that {where} needs; use a server that does{tail}"
    if kind is Kind.ARCHIVED:
        return (
            f"{where} lies in an archive{at}, as by a lifecycle rule of the bucket, where it can't be read; bring back "
            f"all that lies beside it (aws s3api restore-object), and leave the run's prefix out of that rule{tail}"
        )
    if kind is Kind.FULL:
        return f"there is no room left for {where}{at}; raise its quota, or delete what nobody needs there{tail}"
    if kind is Kind.CLOCK:
        return (
            f"the clocks of this machine and of the S3 server{at} are too far apart, so it refuses requests for "
            f"{where}; set the one that is wrong, and let NTP keep it{tail}"
        )
    if kind is Kind.MISCONFIGURED and detail.startswith("Invalid endpoint"):
        return (
            f"{endpoint!r} is no URL of an S3 server, so {where} can't be used; correct {hints.endpoint} to one like "
            "https://s3.example.com"
        )
    if kind is Kind.MISCONFIGURED:
        return f"{where} can't be used{at} as it is set; correct {hints.uri}, {hints.endpoint} and AWS_REGION{tail}"
    return f"S3 failed for {where}{at}{tail}"
