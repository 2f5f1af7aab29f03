"""A variable of the operator that sets nothing is told, where it looks like a slip of the pen."""

from __future__ import annotations

import pytest

from muster.cli.settings import misspelt

pytestmark = pytest.mark.unit


def test_a_misspelt_variable_is_told_with_what_was_meant() -> None:
    told = list(misspelt(["MUSTER_OPERATOR_LEESE_SECONDS", "MUSTER_OPERATOR_runtime_imagee", "PATH"]))
    assert told == [
        "MUSTER_OPERATOR_LEESE_SECONDS sets nothing; did you mean MUSTER_OPERATOR_LEASE_SECONDS?",
        "MUSTER_OPERATOR_runtime_imagee sets nothing; did you mean MUSTER_OPERATOR_RUNTIME_IMAGE?",
    ]


def test_what_is_known_and_what_kubernetes_makes_of_a_service_is_no_slip() -> None:
    own = ["MUSTER_OPERATOR_LEASE_SECONDS", "muster_operator_http_port", "MUSTER_OPERATOR_HTTP_PORT"]
    service = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8080_TCP", "PORT_8080_TCP_ADDR"]
    assert not list(misspelt([*own, *(f"MUSTER_OPERATOR_{name}" for name in service)]))
