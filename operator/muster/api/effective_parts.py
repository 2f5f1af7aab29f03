"""The parts of an effective spec (see `effective`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from muster.api.numerics import NumericsAction
from muster.api.trainingjob import Load
from muster_protocol.checkpoints.retention import Retention


@dataclass(frozen=True)
class EffectiveCheckpoint:
    """Where and how often. Durations in seconds.

    Attributes:
        interval: None: not by time. AUTO: by what a save costs and how often nodes fail.
        every_steps: None: not by steps.
        secret: name of the Secret with credentials, or "".
        endpoint: URL, or "" for AWS's own.
        addressing: "path", "virtual", or "" for the usual.
        ca: ConfigMap and key of the certificates to trust, or None.
        encryption: "AES256", "aws:kms", or "" for the bucket's.
        kms_key: "" for the account's own.
        memory: "off", "local", or "" for auto.
        from_uri: `uri` or `uri@step` to warm-start from, or "".
    """

    uri: str
    interval: int | Literal["auto"] | None
    every_steps: int | None
    retention: Retention
    secret: str
    endpoint: str
    addressing: str
    ca: tuple[str, str] | None
    encryption: str
    kms_key: str
    memory: str
    from_uri: str
    load: Load


@dataclass(frozen=True)
class EffectiveHang:
    """Seconds that ranks may be at one thing; AUTO, or 0 for ever."""

    start: int | Literal["auto"]
    step: int | Literal["auto"]
    evaluation: int | Literal["auto"]
    checkpoint: int | Literal["auto"]


@dataclass(frozen=True)
class EffectiveNumerics:
    """What follows unsound steps. Factors as decimal text, "" where no spikes are looked for."""

    action: NumericsAction
    loss: str
    gradient_norm: str
    limit: int


@dataclass(frozen=True)
class EffectiveTracking:
    """Where the run is tracked. `experiment` and `run_name` are "" for the namespace's and the job's; `secret`: name of
    the Secret with credentials, or ""."""

    uri: str
    experiment: str
    run_name: str
    tags: tuple[tuple[str, str], ...]
    secret: str


@dataclass(frozen=True)
class EffectiveWindow:
    """When the gang may run.

    Attributes:
        start: cron expression of five fields.
        duration: seconds.
        time_zone: name in the IANA database.
        stops: a gang that runs when the window closes saves and stops.
    """

    start: str
    duration: int
    time_zone: str
    stops: bool
