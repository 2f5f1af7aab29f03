"""The pods of one job, read once: for who looks at it and keeps no watch."""

from __future__ import annotations

from muster.api.names import JOB_UID_LABEL
from muster.cluster.client import Api
from muster.cluster.views import PodView


async def pods_of(api: Api, namespace: str, uid: str) -> list[PodView]:
    """By generation and index; without copies that somebody has made of them, labels and all. Raises ApiError,
    ApiUnreachable.

    Only what is told of them is held: the pods of a gang of 12,500 as they come are 300 MB.
    """
    path, selector = f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": f"{JOB_UID_LABEL}={uid}"}
    found = [PodView.from_raw(raw) async for page in api.pages(path, selector) for raw in page.get("items") or ()]
    return sorted((pod for pod in found if pod.owner_uid == uid), key=lambda pod: (pod.generation, pod.index))
