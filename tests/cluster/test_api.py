"""The API on a real API server, asked by real users: service accounts with tokens, and what RBAC lets them see."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from muster.server.models import JobDetail, JobPage

from .conftest import ControlPlane
from .operators import Running, operator

pytestmark = pytest.mark.cluster

KEPT = 1.0
"""Seconds for which the operators here keep the API server's word."""
READER = "api-reader"


@dataclass(frozen=True)
class Answer:
    status: int
    document: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def names(self) -> list[tuple[str, str]]:
        page = JobPage.model_validate(self.document)
        return [(item.namespace, item.name) for item in page.items]


@pytest.fixture
def elsewhere(control_plane: ControlPlane) -> Iterator[str]:
    """Another namespace with a job `tiny`."""
    name = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def token(control_plane: ControlPlane, namespace: str) -> str:
    """Of a service account that may read jobs, pods and Events in `namespace`, and nothing elsewhere."""
    rules = [
        {"apiGroups": ["muster.dev"], "resources": ["trainingjobs"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    metadata = {"name": READER, "namespace": namespace}
    subject = {"kind": "ServiceAccount", **metadata}
    role = {"apiGroup": rbac, "kind": "Role", "name": READER}
    documents = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [subject],
        },
    ]
    control_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    return control_plane.kubectl("create", "token", READER, "-n", namespace).stdout.strip()


def ending(token: str, plane: ControlPlane, seconds: int) -> str:
    """`token` as the API server signs it when it ends in so many seconds; negative: when it has ended."""
    head, body, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    end = int(time.time()) + seconds
    claims |= {"iat": end - 3600, "nbf": end - 3600, "exp": end}
    signed = f"{head}.{_encoded(json.dumps(claims).encode())}"
    pem = (plane.cluster.kubeconfig.parent / "pki" / "service-account.key").read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    pair = utils.decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_encoded(b''.join(number.to_bytes(32, 'big') for number in pair))}"


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


async def ask(running: Running, path: str, token: str = "", *, until: Callable[[Answer], bool] | None = None) -> Answer:
    """GET; asked again until `until` is true of the answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    deadline = time.monotonic() + 60
    async with aiohttp.ClientSession(trust_env=False) as session:
        while True:
            async with session.get(f"{running.address}{path}", headers=headers) as answer:
                found = Answer(answer.status, json.loads(await answer.text()), answer.headers)
            if until is None or until(found):
                return found
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.1)


async def test_users_see_what_kubectl_would_show_them_on_every_replica(
    control_plane: ControlPlane, namespace: str, elsewhere: str, job: dict[str, Any], token: str, tmp_path: Path
) -> None:
    theirs = {**job, "metadata": {"name": "theirs", "namespace": elsewhere}}
    control_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([job, theirs]))
    at = control_plane.kubeconfig, tmp_path
    settings = {"api_kept_seconds": KEPT, "history_url": f"sqlite:///{tmp_path}/history.db"}
    async with operator(*at, "one", **settings) as one, operator(*at, "two", **settings) as two:
        await asyncio.gather(one.until_probe("/healthz", 200), two.until_probe("/healthz", 200))
        mine = await ask(one, "/v1/jobs", token, until=lambda answer: answer.status == 200)
        assert mine.names == [(namespace, "tiny")]
        assert (await ask(two, "/v1/jobs", token)).names == mine.names  # one of the two stands by
        detail = await ask(two, f"/v1/jobs/{namespace}/tiny", token)
        assert JobDetail.model_validate(detail.document).withheld == ["trainingqueues"]

        was = await ask(two, "/v1/history/jobs", token, until=lambda found: bool(found.document.get("items")))
        assert [(item["namespace"], item["name"]) for item in was.document["items"]] == mine.names
        assert (await ask(one, f"/v1/history/jobs/{was.document['items'][0]['uid']}", token)).status == 200
        # It held nothing, and what is idle isn't for its owner.
        assert (await ask(two, "/v1/cost", token)).document["rows"] == []

        other = await ask(one, f"/v1/jobs?namespace={elsewhere}", token)
        said = f'cannot list resource "trainingjobs" in API group "muster.dev" in the namespace "{elsewhere}"'
        assert (other.status, said in other.document["detail"]) == (403, True)
        for path in (f"/v1/jobs/{elsewhere}/theirs", f"/v1/jobs/{elsewhere}/none", "/v1/fleet", "/v1/queues"):
            assert (await ask(two, path, token)).status == 403

        past = ending(token, control_plane, -60)
        assert (await ask(one, "/v1/jobs", ending(token, control_plane, 60))).status == 200
        for wrong, words in (("", "no bearer token"), ("wrong", "does not know"), (past, "has expired")):
            for running in (one, two):
                refused = await ask(running, "/v1/jobs", wrong)
                assert (refused.status, words in refused.document["detail"]) == (401, True)
                assert refused.headers["WWW-Authenticate"].startswith("Bearer")

        control_plane.kubectl("delete", "rolebinding", READER, "-n", namespace)
        await ask(one, "/v1/jobs", token, until=lambda answer: answer.status == 403)
        control_plane.kubectl("delete", "serviceaccount", READER, "-n", namespace)
        await ask(two, "/v1/jobs", token, until=lambda answer: answer.status == 401)
