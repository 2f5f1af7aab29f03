"""Pods and Services as Prometheus' Kubernetes discovery tells them: Debian builds its Prometheus without that.

What is served here has the discovery's own labels, so that relabelings keep and name targets as they would anywhere; a
Prometheus fetches it by `http_sd_configs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Json = dict[str, Any]
Items = Callable[[str], list[Json]]
"""All objects of an API path."""

PODS: Final = "pod"
SLICES: Final = "endpointslice"

_META: Final = "__meta_kubernetes"
_SERVICE: Final = "kubernetes.io/service-name"


def label(prefix: str, key: str) -> str:
    """`pod_label` and `muster.dev/job`: the name of that label."""
    return f"{_META}_{prefix}_{re.sub(r'[^a-zA-Z0-9_]', '_', key)}"


def pods(items: Items) -> list[Json]:
    """Role `pod`: a target for each port of each container."""
    return [target for pod in items("/api/v1/pods") if pod["status"].get("podIP") for target in _ports(pod)]


def slices(items: Items) -> list[Json]:
    """Role `endpointslice`: a target for each port of each endpoint of a Service."""
    services = {_key(service): service for service in items("/api/v1/services")}
    found = []
    for one in items("/apis/discovery.k8s.io/v1/endpointslices"):
        name = one["metadata"].get("labels", {}).get(_SERVICE, "")
        service = services.get((one["metadata"]["namespace"], name))
        if service is not None:
            found += list(_endpoints(one, service))
    return found


def _ports(pod: Json) -> Iterable[Json]:
    metadata, address = pod["metadata"], pod["status"]["podIP"]
    labels = {
        f"{_META}_namespace": metadata["namespace"],
        f"{_META}_pod_name": metadata["name"],
        f"{_META}_pod_phase": pod["status"].get("phase", ""),
        f"{_META}_pod_node_name": pod["spec"].get("nodeName", ""),
        **_labelled("pod", metadata.get("labels", {})),
    }
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", []):
            own = {
                f"{_META}_pod_container_name": container["name"],
                f"{_META}_pod_container_port_name": port.get("name", ""),
            }
            yield _target(address, port["containerPort"], {**labels, **own})


def _endpoints(one: Json, service: Json) -> Iterable[Json]:
    labels = {
        f"{_META}_namespace": service["metadata"]["namespace"],
        f"{_META}_service_name": service["metadata"]["name"],
        **_labelled("service", service["metadata"].get("labels", {})),
    }
    for endpoint in one.get("endpoints") or []:
        behind = endpoint.get("targetRef") or {}
        pod = {f"{_META}_pod_name": behind["name"]} if behind.get("kind") == "Pod" else {}
        for port in one.get("ports") or []:
            name = {f"{_META}_endpointslice_port_name": port.get("name", "")}
            for address in endpoint["addresses"]:
                yield _target(address, port["port"], {**labels, **pod, **name})


def _labelled(kind: str, labels: Mapping[str, str]) -> Json:
    values = {label(f"{kind}_label", key): value for key, value in labels.items()}
    return values | {label(f"{kind}_labelpresent", key): "true" for key in labels}


def _target(address: str, port: int, labels: Json) -> Json:
    return {"targets": [f"{address}:{port}"], "labels": labels}


def _key(item: Json) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]
