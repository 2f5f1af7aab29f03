"""An autoscaler is asked for the nodes of a whole gang: on a real API server, with a CRD of the same schema.

The test plays the autoscaler: it answers in the requests' conditions and adds nodes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from muster.cluster.errors import ApiError
from muster.cluster.provisioning import Asking

from .conftest import ControlPlane
from .gangs import Corner, condition, corner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

Object = dict[str, Any]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAME = "provisioningrequests.autoscaling.x-k8s.io"
CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
GROUPS = {"H100/on-demand": {"example.com/group": "h100"}, "H100/spot": {"example.com/group": "h100-spot"}}
ASKING = Asking(CLASS, (("ValidUntilSeconds", "60"),), patience=0.0, node_selectors=GROUPS)


def crd() -> Object:
    """As cluster-autoscaler has it: what is required, and that the spec never changes."""
    name = {
        "type": "string",
        "maxLength": 253,
        "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    }
    fixed = [{"rule": "self == oldSelf", "message": "Value is immutable"}]
    pod_set = {
        "type": "object",
        "required": ["count", "podTemplateRef"],
        "properties": {
            "count": {"type": "integer", "format": "int32", "minimum": 1},
            "podTemplateRef": {"type": "object", "required": ["name"], "properties": {"name": name}},
        },
    }
    condition_ = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "required": ["type"]}
    condition_["properties"] = {"type": {"type": "string"}}
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["podSets", "provisioningClassName"],
                "properties": {
                    "podSets": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": 32,
                        "items": pod_set,
                        "x-kubernetes-validations": fixed,
                    },
                    "provisioningClassName": {**name, "x-kubernetes-validations": fixed},
                    "parameters": {
                        "type": "object",
                        "maxProperties": 100,
                        "additionalProperties": {"type": "string", "maxLength": 255},
                        "x-kubernetes-validations": fixed,
                    },
                },
            },
            "status": {
                "type": "object",
                "properties": {
                    "conditions": {
                        "type": "array",
                        "items": condition_,
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["type"],
                    }
                },
            },
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    names = {"kind": "ProvisioningRequest", "listKind": "ProvisioningRequestList"}
    names |= {"plural": "provisioningrequests", "singular": "provisioningrequest"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": NAME,
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler"},
        },
        "spec": {"group": "autoscaling.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version]},
    }


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        yield found


@pytest.fixture
async def installed(place: Corner) -> AsyncIterator[None]:
    """The API is there."""
    await place.api.create(CRDS, crd())

    async def served() -> bool:
        with suppress(ApiError):
            await place.api.get(requests_path(place))
            return True
        return False

    async def gone() -> bool:
        try:
            await place.api.get(f"{CRDS}/{NAME}")
        except ApiError as error:
            return error.status == 404
        return False

    await place.until("the API is served", served)
    yield
    await place.api.delete(f"{CRDS}/{NAME}")
    await place.until("the API is gone, so that the next test can make it", gone)


def requests_path(place: Corner, name: str = "") -> str:
    path = f"/apis/autoscaling.x-k8s.io/v1/namespaces/{place.namespace}/provisioningrequests"
    return f"{path}/{name}" if name else path


async def requests(place: Corner) -> list[Object]:
    found: list[Object] = (await place.api.get(requests_path(place)))["items"]
    return found


async def templates(place: Corner) -> list[Object]:
    found: list[Object] = (await place.api.get(f"/api/v1/namespaces/{place.namespace}/podtemplates"))["items"]
    return found


async def answer(place: Corner, request: Object, kind: str, reason: str, message: str) -> None:
    told = {"type": kind, "status": "True", "reason": reason, "message": message}
    told["lastTransitionTime"] = request["metadata"]["creationTimestamp"]
    path = f"{requests_path(place, request['metadata']['name'])}/status"
    await place.api.merge_patch(path, {"status": {"conditions": [told]}})


async def told(place: Corner, job: str, reason: str) -> str:
    """The message of CapacityRequested once it has that reason."""

    def holds(found: Object) -> bool:
        item = condition(found, "CapacityRequested")
        return item is not None and item["reason"] == reason

    item = condition(await place.until_job(job, f"CapacityRequested {reason}", holds), "CapacityRequested")
    assert item is not None
    return str(item["message"])


async def test_a_gang_without_room_asks_for_its_nodes_and_starts_when_they_come(place: Corner, installed: None) -> None:
    place.start(asking=ASKING)
    await place.submit("gang", 3, workers={"gpusPerWorker": 4, "gpuType": "H100", "spares": 1})
    (request,) = await place.until("a request", lambda: requests(place))
    spec = request["spec"]
    assert (spec["provisioningClassName"], spec["parameters"]) == (CLASS, {"ValidUntilSeconds": "60"})
    assert [item["count"] for item in spec["podSets"]] == [4]
    (template,) = await templates(place)
    assert template["metadata"]["name"] == spec["podSets"][0]["podTemplateRef"]["name"]
    pod = template["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": place.name, "example.com/group": "h100"}
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert request["metadata"]["name"] in await told(place, "gang", "Requested")

    await answer(place, request, "Provisioned", "Provisioned", "4 nodes are there")
    assert "4 nodes are there" in await told(place, "gang", "Provisioned")
    await place.add_nodes(4)
    await place.until_phase("gang", "Running")
    for made in await place.pods("gang"):
        assert "example.com/group" not in made["spec"]["nodeSelector"], "the planner has chosen the nodes"

    async def gone() -> bool:
        return not await requests(place) and not await templates(place)

    await place.until("the request is gone", gone)
    await told(place, "gang", "NotNeeded")


async def test_a_failure_is_told_and_a_job_without_quota_asks_for_nothing(place: Corner, installed: None) -> None:
    quota = [{"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": "8"}]}]
    path = f"/apis/muster.dev/v1alpha1/trainingqueues/{place.queue}"
    await place.api.merge_patch(path, {"spec": {"quotas": quota}})
    place.start(asking=ASKING)
    await place.submit("over", 3, workers={"gpusPerWorker": 4, "gpuType": "H100"})
    await place.submit("within", 2, workers={"gpusPerWorker": 4, "gpuType": "H100"})
    (request,) = await place.until("a request", lambda: requests(place))
    assert request["metadata"]["labels"]["muster.dev/job"] == "within"
    await answer(place, request, "Failed", "OutOfResources", "the zone has no such GPUs")
    message = await told(place, "within", "ProvisioningFailed")
    assert "OutOfResources: the zone has no such GPUs; asked again at" in message
    assert len(await requests(place)) == 1
    await place.delete_job("within")
    await place.until("the request is gone", lambda: _none(place))


async def _none(place: Corner) -> bool:
    return not await requests(place)


async def test_without_the_api_jobs_wait_as_ever(place: Corner) -> None:
    place.start(asking=ASKING)
    await place.submit("gang", 1)
    await place.until_job("gang", "waits", lambda job: job.get("status", {}).get("queue"))
    assert condition(await place.job("gang"), "CapacityRequested") is None
    await place.add_nodes(1)
    await place.until_phase("gang", "Running")
