"""What the API says to users with odd rights, beside what the API server itself says to the same tokens.

The app runs in this process, on a real API server's reviews: no operator, so that many users and questions are quick.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx
import pytest
import yaml

from muster.api.trainingqueue import TrainingQueue
from muster.cluster.client import Api
from muster.cluster.credentials import Credentials
from muster.server.app import Context, build
from muster.server.board import Board
from muster.server.identity import Reviewer

from .conftest import ControlPlane

pytestmark = pytest.mark.cluster

Object = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
KEPT = 0.5
"""Seconds for which the API server's word is kept here."""
RULES: dict[str, Object] = {
    "lister": {"verbs": ["list"]},
    "getter": {"verbs": ["get"]},
    "named": {"verbs": ["get", "list"], "resourceNames": ["tiny"]},
    "watcher": {"verbs": ["watch", "create", "update", "patch", "delete"]},
    "status": {"verbs": ["get", "list"], "resources": ["trainingjobs/status"]},
    "core": {"verbs": ["get", "list"], "apiGroups": [""]},
}
"""Roles in `mine`, of one user each. Then there are `nobody`, `everybody`, and `member`: of a group alone."""
USERS = (*RULES, "nobody", "everybody", "member")


@dataclass(frozen=True)
class Place:
    """Two namespaces with a job each, `tiny` and `theirs`, and users of the one.

    Attributes:
        tokens: by user.
    """

    mine: str
    other: str
    queue: str
    tokens: Mapping[str, str]


@pytest.fixture(scope="module")
def place(control_plane: ControlPlane) -> Iterator[Place]:
    mark = secrets.token_hex(4)
    mine, other, queue = f"mine-{mark}", f"other-{mark}", f"queue-{mark}"
    documents = [*_namespaces(mine, other), *_jobs(mine, other), *_users(mine, other, mark), _queue(queue)]
    control_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    tokens = {
        user: control_plane.kubectl("create", "token", user, "-n", other if user == "member" else mine).stdout.strip()
        for user in USERS
    }
    yield Place(mine, other, queue, tokens)
    for kind in ("clusterrolebinding", "clusterrole"):
        control_plane.kubectl("delete", kind, f"everybody-{mark}")
    control_plane.kubectl("delete", "namespace", mine, other, "--wait=false")
    control_plane.kubectl("delete", "trainingqueue", queue)


def _namespaces(*names: str) -> list[Object]:
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]


def _jobs(mine: str, other: str) -> list[Object]:
    spec = {"image": "example/train:1", "command": ["python", "train.py"], "workers": {"replicas": 2}}
    kind = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "spec": spec}
    return [
        {**kind, "metadata": {"name": "tiny", "namespace": mine}},
        {**kind, "metadata": {"name": "theirs", "namespace": other}},
    ]


def _queue(name: str) -> Object:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingQueue", "metadata": {"name": name}, "spec": {}}


def _users(mine: str, other: str, mark: str) -> list[Object]:
    jobs = {"apiGroups": ["muster.dev"], "resources": ["trainingjobs"]}
    found: list[Object] = []
    for user in USERS:
        at = {"name": user, "namespace": other if user == "member" else mine}
        found.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": at})
        if user in RULES:
            subject = {"kind": "ServiceAccount", **at}
            found += _bound("Role", user, {**jobs, **RULES[user]}, subject, mine)
    group = {"kind": "Group", "apiGroup": RBAC, "name": f"system:serviceaccounts:{other}"}
    found += _bound("Role", "group", {**jobs, "verbs": ["list"]}, group, mine)
    everything = {
        "apiGroups": ["muster.dev"],
        "resources": ["trainingjobs", "trainingqueues"],
        "verbs": ["get", "list"],
    }
    subject = {"kind": "ServiceAccount", "name": "everybody", "namespace": mine}
    return found + _bound("ClusterRole", f"everybody-{mark}", everything, subject, "")


def _bound(kind: str, name: str, rule: Object, subject: Object, namespace: str) -> list[Object]:
    """A role and its binding."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    role = {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": [rule]}
    to = {"apiGroup": RBAC, "kind": kind, "name": name}
    binding = {"apiVersion": f"{RBAC}/v1", "kind": f"{kind}Binding", "metadata": metadata}
    return [role, {**binding, "roleRef": to, "subjects": [subject]}]


@dataclass
class Asked:
    """Both servers, asked with the same token."""

    ours: httpx.AsyncClient
    theirs: aiohttp.ClientSession
    base: str

    async def us(self, path: str, token: str, **headers: str) -> httpx.Response:
        return await self.ours.get(path, headers={"Authorization": f"Bearer {token}", **headers})

    async def kubernetes(self, path: str, token: str) -> int:
        """Its status; a token is all that it gets."""
        headers = {"Authorization": f"Bearer {token}"}
        async with self.theirs.get(f"{self.base}/apis/muster.dev/v1alpha1{path}", headers=headers) as answer:
            return answer.status


@pytest.fixture
async def asked(control_plane: ControlPlane, place: Place) -> AsyncIterator[Asked]:
    credentials = Credentials(control_plane.kubeconfig)
    await credentials.load()
    cluster = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    api = Api(credentials)
    board = Board()
    try:
        for raw in await api.list("/apis/muster.dev/v1alpha1/trainingjobs"):
            board.job((raw["metadata"]["namespace"], raw["metadata"]["name"]), raw)
        queues = [TrainingQueue.from_raw(raw) for raw in await api.list("/apis/muster.dev/v1alpha1/trainingqueues")]
        board.publish(World({queue.metadata.name: queue for queue in queues}), "default")
        app = build(Context(board, api, Reviewer(api, seconds=KEPT)))
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        connector = aiohttp.TCPConnector(ssl=False)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://muster") as ours,
            aiohttp.ClientSession(trust_env=False, connector=connector) as theirs,
        ):
            yield Asked(ours, theirs, cluster["server"])
    finally:
        await api.close()


@dataclass
class World:
    """A cluster without nodes and pods."""

    queues: Mapping[str, TrainingQueue]

    @property
    def topologies(self) -> Mapping[str, Any]:
        return {}

    def nodes(self) -> list[Any]:
        return []

    def pods(self) -> list[Any]:
        return []


async def test_each_question_is_answered_to_whom_the_api_server_answers_it(asked: Asked, place: Place) -> None:
    mine, other = place.mine, place.other
    questions = {
        f"/v1/jobs?namespace={mine}": f"/namespaces/{mine}/trainingjobs",
        f"/v1/jobs?namespace={other}": f"/namespaces/{other}/trainingjobs",
        f"/v1/jobs?namespace={mine}-none": f"/namespaces/{mine}-none/trainingjobs",
        f"/v1/jobs/{mine}/tiny": f"/namespaces/{mine}/trainingjobs/tiny",
        f"/v1/jobs/{mine}/none": f"/namespaces/{mine}/trainingjobs/none",
        f"/v1/jobs/{other}/theirs": f"/namespaces/{other}/trainingjobs/theirs",
        f"/v1/jobs/{other}/none": f"/namespaces/{other}/trainingjobs/none",
        "/v1/queues": "/trainingqueues",
        f"/v1/queues/{place.queue}": f"/trainingqueues/{place.queue}",
        "/v1/queues/none": "/trainingqueues/none",
    }
    for user, token in place.tokens.items():
        for ours, theirs in questions.items():
            answer = await asked.us(ours, token)
            assert answer.status_code == await asked.kubernetes(theirs, token), (user, ours, answer.text)


async def test_a_list_over_all_namespaces_has_those_that_the_user_may_list(asked: Asked, place: Place) -> None:
    found = {}
    for user, token in place.tokens.items():
        answer = (await asked.us("/v1/jobs?limit=500", token)).json()
        items = [(item["namespace"], item["name"]) for item in answer.get("items", [])]
        assert answer.get("total", 0) == len(items)
        assert (place.other not in str(answer)) or user in ("everybody", "member"), (
            "nothing tells of the other namespace"
        )
        found[user] = {namespace for namespace, _ in items} & {place.mine, place.other}
    none: set[str] = set()
    assert found == dict.fromkeys(USERS, none) | {
        "lister": {place.mine},
        "member": {place.mine},
        "everybody": {place.mine, place.other},
    }


async def test_an_existing_job_and_one_that_is_not_there_are_refused_in_the_same_words(
    asked: Asked, place: Place
) -> None:
    told = [
        (await asked.us(f"/v1/jobs/{place.other}/{name}", place.tokens["getter"])).text.replace(name, "NAME")
        for name in ("theirs", "none")
    ]
    assert told[0] == told[1]


async def test_a_token_for_somebody_else_is_refused(control_plane: ControlPlane, asked: Asked, place: Place) -> None:
    wrong = control_plane.kubectl("create", "token", "everybody", "-n", place.mine, "--audience=vault").stdout.strip()
    tampered = place.tokens["everybody"][:-4] + "AAAA"
    for token in (wrong, tampered, place.tokens["everybody"] + "x", "system:admin", "x" * 9000):
        answer = await asked.us("/v1/jobs", token)
        assert (answer.status_code, answer.headers["www-authenticate"][:6]) == (401, "Bearer")


async def test_a_right_that_is_given_and_taken_is_noticed_as_soon_as_an_answer_is_not_kept_any_more(
    control_plane: ControlPlane, asked: Asked, place: Place
) -> None:
    async def until(status: int) -> None:
        async with asyncio.timeout(KEPT + 10):
            while True:
                if (await asked.us(f"/v1/jobs?namespace={place.mine}", token)).status_code == status:
                    return
                await asyncio.sleep(0.05)

    token = place.tokens["nobody"]
    await until(403)
    binding = ("rolebinding", "for-a-while", "-n", place.mine)
    control_plane.kubectl("create", *binding, "--role=lister", f"--serviceaccount={place.mine}:nobody")
    await until(200)
    control_plane.kubectl("delete", *binding)
    await until(403)
