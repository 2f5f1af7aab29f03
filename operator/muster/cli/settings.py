"""Settings of the operator: from `MUSTER_OPERATOR_*` variables, overridden by the command line."""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, Final, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from muster.api.jobparts import CapacityKind
from muster.api.names import GANG_PRIORITY_CLASS
from muster.cluster.lease import NAMESPACE
from muster_protocol.durations import parse_duration
from muster_protocol.spelling import nearest

MIN_TOKEN_KEY: Final = 16


class BadNodes(str, Enum):
    """What is done about nodes on which runs fail."""

    IGNORE = "ignore"
    """Nothing; the faults are only told."""
    AVOID = "avoid"
    """A job stays away for a while from a node that is broken, or hurt it twice."""
    TAINT = "taint"
    """And a node that hurt several gangs is tainted, so that nobody gets it for a while."""


def _identity() -> str:
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"


_PREFIX: Final = "MUSTER_OPERATOR_"
_OF_SERVICES: Final = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP|SCTP)\w*)?$")


class Settings(BaseSettings):
    """What a platform team sets. Each can be given as MUSTER_OPERATOR_<NAME>."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore")

    kubeconfig: str | None = None
    """Path of a kubeconfig. None: the pod's service account, else KUBECONFIG or ~/.kube/config."""
    context: str | None = None
    """Context of the kubeconfig."""
    namespace: str = NAMESPACE
    """Namespace of the leadership Lease."""
    identity: str = Field(default_factory=_identity)
    """Name of this process in the Lease; unique."""
    runtime_image: str = ""
    """Image whose init container brings the launcher into training pods."""
    runtime_pull_policy: str = ""
    """imagePullPolicy of that init container; empty leaves it to Kubernetes."""
    priority_class: str = GANG_PRIORITY_CLASS
    """PriorityClass of training pods; empty for none. It must have preemptionPolicy Never."""
    token_key: SecretStr = SecretStr("")
    """Key from which the jobs' launcher tokens are derived; at least 16 characters, the same for all replicas."""
    through_proxy: bool = Field(default_factory=lambda: "KUBERNETES_SERVICE_HOST" not in os.environ)
    """Reach launchers through the API server's pod proxy. For an operator that can't reach pods by IP."""
    prices: dict[str, float] = Field(default_factory=dict)
    """Money for an hour of one GPU by flavour, as JSON: `{"H100/on-demand": 2.5}`."""
    catalogue: dict[str, Any] = Field(default_factory=dict)
    """A price file (docs/cost.md), as JSON. What is wrong in it is logged and left out."""
    price_region: str = ""
    """Whose prices of it, and of the public list prices, hold, like `aws/us-east-1`."""
    currency: str = ""
    """Of `prices`, as ISO 4217 has it."""
    list_prices: bool = True
    """Count GPUs without a price of yours at public list prices."""
    node_hours: dict[CapacityKind, float] = Field(default_factory=dict)
    """Hours that one node runs between two failures, by kind of capacity, as JSON: `{"spot": 24}`. For checkpoints with
    `interval: auto`."""
    provisioning_class: str = ""
    """Class of the ProvisioningRequests that ask an autoscaler for nodes; empty: it is not asked."""
    provisioning_parameters: dict[str, str] = Field(default_factory=dict)
    """Their parameters, as JSON."""
    provisioning_patience: float = Field(15.0, ge=0)
    """Seconds that a job lacks nodes before they are asked for."""
    provisioning_node_selectors: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Labels of the node groups to ask for, by flavour, as JSON: `{"H100/spot": {"pool": "h100-spot"}}`."""
    settle_after: str = "10m"
    """How long a placement stands at least before it moves or grows."""
    bad_nodes: BadNodes = BadNodes.AVOID
    """What is done about nodes on which runs fail: ignore, avoid or taint."""
    bad_nodes_threshold: int = Field(3, ge=1)
    """Gangs that a node has to hurt within the window before it is tainted."""
    bad_nodes_window: str = "1d"
    """Faults that are older count no more."""
    bad_nodes_forgive_after: str = "12h"
    """How long a node stays tainted."""
    bad_nodes_share: int = Field(10, ge=0, le=100)
    """Percent of the nodes of one kind that may be tainted at once; of a small pool always one, unless this is 0."""
    history_url: SecretStr = SecretStr("")
    """Database of the history: `postgresql://USER:PASSWORD@HOST/NAME`, or `sqlite:////PATH` for an operator that is
    alone. Empty: none is kept."""
    history_url_file: str = ""
    """File with that URL in place of `history_url`, read anew at each connection: a mounted Secret. Empty: none."""
    history_retention: str = "400d"
    """Jobs whose objects are gone for longer are forgotten; empty: never."""
    http_host: str = "0.0.0.0"
    """Address of the HTTP server for probes, metrics and the API."""
    http_port: int = Field(8080, ge=0, le=65535)
    """Its port; 0 takes a free one."""
    api: bool = True
    """Serve the read-only API under /v1."""
    api_host: str = ""
    """Host or IP by which the other replicas reach this one's HTTP. Empty: `http_host`, or the machine's name."""
    api_kept_seconds: float = Field(10.0, ge=0, le=300)
    """How long the API server's word about a token or a right is kept."""
    lease_seconds: float = Field(15.0, ge=3.0)
    """How long a leader that has gone silent keeps the others waiting."""
    watch_seconds: int = Field(60, ge=1)
    """How long one watch is held open. A connection that has died silently is noticed a quarter of that later."""
    stale_seconds: float = Field(180.0, gt=0)
    """The process is unhealthy when the loop or a watch has shown no life for so long."""
    log_format: Literal["text", "json"] = "text"
    """text or json."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    """In capitals or small letters."""

    @field_validator("settle_after", "bad_nodes_window", "bad_nodes_forgive_after", "history_retention")
    @classmethod
    def _a_duration(cls, value: str, field: ValidationInfo) -> str:
        if value or field.field_name != "history_retention":
            parse_duration(value)
        return value

    @field_validator("log_level", mode="before")
    @classmethod
    def _in_capitals(cls, value: str) -> str:
        return value.upper()

    @field_validator("token_key")
    @classmethod
    def _long_enough(cls, value: SecretStr) -> SecretStr:
        if value.get_secret_value() and len(value.get_secret_value()) < MIN_TOKEN_KEY:
            raise ValueError(f"shorter than {MIN_TOKEN_KEY} characters; make one with `openssl rand -hex 32`")
        return value


def misspelt(environment: Iterable[str]) -> Iterator[str]:
    """A sentence for each variable that sets nothing and is near one that does. Others of the prefix are left alone:
    Kubernetes makes some for each Service, such as MUSTER_OPERATOR_PORT."""
    known = {f"{_PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in sorted(environment):
        meant = nearest(name, known) if name.startswith(_PREFIX) and name.upper() not in known else None
        if meant is not None and not _OF_SERVICES.search(name):
            yield f"{name} sets nothing; did you mean {meant}?"
