"""A board with jobs, and an API server that knows some users and what they may."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from muster.api.trainingqueue import TrainingQueue
from muster.cluster.client import Api
from muster.cluster.errors import ApiError
from muster.cluster.views import NodeView, PodView
from muster.server.app import Context, build
from muster.server.board import Board
from muster.server.identity import TOKENS, Reviewer
from muster.server.past import Past

Object = dict[str, Any]


def job(namespace: str, name: str, **fields: Any) -> Object:
    """A TrainingJob as the API server gives it; `fields` are of its status, but for labels, queue and created."""
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": fields.pop("created", "2026-01-02T03:04:05Z"),
            "labels": fields.pop("labels", {}),
        },
        "spec": {
            "queue": fields.pop("queue", "research"),
            "image": "i",
            "command": ["c"],
            "workers": {"replicas": 2, "gpusPerWorker": 8, "gpuType": "H100"},
        },
        "status": {"phase": "Queued", "gpus": 16, **fields},
    }


@dataclass
class World:
    queues: dict[str, TrainingQueue] = field(default_factory=dict)
    topologies: dict[str, Any] = field(default_factory=dict)
    held_nodes: list[NodeView] = field(default_factory=list)
    held_pods: list[PodView] = field(default_factory=list)

    def nodes(self) -> Iterable[NodeView]:
        return self.held_nodes

    def pods(self) -> Iterable[PodView]:
        return self.held_pods


@dataclass
class Cluster:
    """Attributes:
    rights: (user, verb, resource, namespace) that are allowed; "" for all namespaces.
    asked: bodies of the reviews so far.
    away: what every call raises.
    """

    tokens: dict[str, Object] = field(default_factory=dict)
    rights: set[tuple[str, str, str, str]] = field(default_factory=set)
    asked: list[Object] = field(default_factory=list)
    away: Exception | None = None
    objects: dict[str, Object] = field(default_factory=dict)

    async def create(self, path: str, body: Object) -> Object:
        if self.away is not None:
            raise self.away
        self.asked.append(body)
        spec = body["spec"]
        if path == TOKENS:
            user = self.tokens.get(spec["token"])
            return {"status": {"authenticated": user is not None, "user": user or {}}}
        wanted = spec["resourceAttributes"]
        namespace = wanted.get("namespace", "")
        found = {(spec["user"], wanted["verb"], wanted["resource"], place) for place in (namespace, "")}
        return {"status": {"allowed": bool(found & self.rights)}}

    async def get(self, path: str) -> Object:
        if path not in self.objects:
            raise ApiError(404, "NotFound", f"{path} not found")
        return self.objects[path]

    async def list(self, path: str, **_: str) -> list[Object]:
        found: list[Object] = self.objects.get(path, {}).get("items", [])
        return found

    async def pages(self, path: str, _: Mapping[str, str]) -> AsyncIterator[Object]:
        yield self.objects.get(path, {})


def client(
    cluster: Cluster,
    jobs: Iterable[Object] = (),
    world: World | None = None,
    token: str = "t",
    past: Past | None = None,
    *,
    published: bool = True,
) -> httpx.AsyncClient:
    """Talks to the API, with a token; not `published`: of an operator that still fills its caches."""
    board = Board()
    for raw in jobs:
        board.job((raw["metadata"]["namespace"], raw["metadata"]["name"]), raw)
    if published:
        board.publish(world or World(), "default")
    api: Api = cluster  # type: ignore[assignment]
    app = build(Context(board, api, Reviewer(cluster, seconds=60), past))
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app, raise_app_exceptions=False),
        base_url="http://muster",
        headers={"Authorization": f"Bearer {token}"} if token else {},
    )


def everything() -> Cluster:
    """One user, who may read all."""
    kinds = ("trainingjobs", "trainingqueues", "topologies", "nodes", "pods", "events")
    rights = {("jane", verb, kind, "") for verb in ("get", "list") for kind in kinds}
    return Cluster({"t": {"username": "jane", "groups": ["research"], "extra": {"scopes": ["a"]}}}, rights)


def jwt(expires: float) -> str:
    """A token that ends at `expires`, unsigned."""
    parts = ({"alg": "none"}, {"exp": expires})
    return ".".join(
        [*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), "x"]
    )
