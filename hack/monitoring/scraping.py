"""The chart's PodMonitor, ServiceMonitor and PrometheusRule as files of a Prometheus that has no operator. Pure.

The Prometheus operator makes the same of them; so what a test or `make dashboards` scrapes is what the chart's own
objects say, and not a copy. A field that is not translated here is an error, not silence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hack.monitoring import discovery

Json = dict[str, Any]

_NAMESPACE: Final = "__meta_kubernetes_namespace"
_ENDPOINT: Final = {"port", "path", "honorLabels", "interval", "relabelings"}
_RELABELING: Final = {
    "sourceLabels": "source_labels",
    "separator": "separator",
    "targetLabel": "target_label",
    "regex": "regex",
    "replacement": "replacement",
    "action": "action",
}


def config(
    objects: Iterable[Json],
    rules: Path,
    *,
    discovered: Mapping[str, str],
    interval: str,
    more: Sequence[Json] = (),
) -> Json:
    """prometheus.yml for the monitors among a chart's objects.

    Args:
        rules: file with what `rule_file` returned.
        discovered: by role (`discovery.PODS`, `discovery.SLICES`), the URL where its targets are fetched.
        interval: time between two looks at targets, and two evaluations of rules, for example `30s`.
        more: other scrape configurations.
    """
    monitors = [one for item in objects for one in _monitors(item, discovered, interval)]
    return {
        "global": {"evaluation_interval": interval},
        "rule_files": [str(rules)],
        "scrape_configs": [*monitors, *more],
    }


def page(address: str, path: str, labels: Mapping[str, str], interval: str, *, honor: bool) -> Json:
    """A scrape configuration for one page; `labels` are the target's. `honor`: those on the page go before them."""
    return {
        "job_name": path,
        "metrics_path": path,
        "honor_labels": honor,
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "static_configs": [{"targets": [address], "labels": dict(labels)}],
    }


def rule_file(objects: Iterable[Json]) -> Json:
    """The groups of all PrometheusRules among a chart's objects."""
    found = [item["spec"]["groups"] for item in objects if item["kind"] == "PrometheusRule"]
    return {"groups": [group for groups in found for group in groups]}


def _monitors(item: Json, discovered: Mapping[str, str], interval: str) -> list[Json]:
    spec = item.get("spec", {})
    if item["kind"] == "PodMonitor":
        role, endpoints, relabelings = discovery.PODS, "podMetricsEndpoints", _pods
    elif item["kind"] == "ServiceMonitor":
        role, endpoints, relabelings = discovery.SLICES, "endpoints", _services
    else:
        return []
    _only(spec, {"namespaceSelector", "selector", endpoints})
    name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
    there = _in_namespaces(spec.get("namespaceSelector", {}), namespace)
    where = [{"url": discovered[role], "refresh_interval": interval}]
    return [
        _scrape(f"{item['kind']}/{namespace}/{name}/{number}", endpoint, where, [*there, *relabelings(spec, endpoint)])
        for number, endpoint in enumerate(spec[endpoints])
    ]


def _scrape(name: str, endpoint: Json, where: list[Json], relabelings: list[Json]) -> Json:
    _only(endpoint, _ENDPOINT)
    return {
        "job_name": name,
        "metrics_path": endpoint.get("path", "/metrics"),
        "honor_labels": endpoint.get("honorLabels", False),
        "scrape_interval": endpoint["interval"],
        "scrape_timeout": endpoint["interval"],
        "http_sd_configs": where,
        "relabel_configs": [*relabelings, *map(_relabeling, endpoint.get("relabelings", []))],
    }


def _in_namespaces(selector: Json, own: str) -> list[Json]:
    _only(selector, {"any", "matchNames"})
    if selector.get("any"):
        return []
    names = "|".join(map(re.escape, selector.get("matchNames", [own])))
    return [{"action": "keep", "source_labels": [_NAMESPACE], "regex": names}]


def _pods(spec: Json, endpoint: Json) -> list[Json]:
    pod = "__meta_kubernetes_pod"
    return [
        {"action": "drop", "source_labels": [f"{pod}_phase"], "regex": "Failed|Succeeded"},
        *_selected(spec["selector"], "pod"),
        {"action": "keep", "source_labels": [f"{pod}_container_port_name"], "regex": endpoint["port"]},
        _copied(_NAMESPACE, "namespace"),
        _copied(f"{pod}_container_name", "container"),
        _copied(f"{pod}_name", "pod"),
        {"target_label": "endpoint", "replacement": endpoint["port"]},
    ]


def _services(spec: Json, endpoint: Json) -> list[Json]:
    service = "__meta_kubernetes_service_name"
    port = "__meta_kubernetes_endpointslice_port_name"
    return [
        *_selected(spec["selector"], "service"),
        {"action": "keep", "source_labels": [port], "regex": endpoint["port"]},
        _copied(_NAMESPACE, "namespace"),
        _copied(service, "service"),
        _copied(service, "job"),
        _copied("__meta_kubernetes_pod_name", "pod"),
        {"target_label": "endpoint", "replacement": endpoint["port"]},
    ]


def _selected(selector: Json, kind: str) -> list[Json]:
    """A label selector of pods or Services, by what discovery tells of labels."""
    _only(selector, {"matchLabels", "matchExpressions"})
    found = [_keep_label(kind, key, re.escape(str(value))) for key, value in selector.get("matchLabels", {}).items()]
    for expression in selector.get("matchExpressions", []):
        key, operator = expression["key"], expression["operator"]
        if operator == "Exists":
            found.append(_keep_label(kind, key, ".*"))
        elif operator == "In":
            found.append(_keep_label(kind, key, "|".join(map(re.escape, expression["values"]))))
        else:
            raise ValueError(f"the operator {operator} of a label selector is not translated: add it here")
    return found


def _keep_label(kind: str, key: str, regex: str) -> Json:
    sources = [discovery.label(f"{kind}_label", key), discovery.label(f"{kind}_labelpresent", key)]
    return {"action": "keep", "source_labels": sources, "regex": f"({regex});true"}


def _copied(source: str, target: str) -> Json:
    return {"source_labels": [source], "target_label": target}


def _relabeling(relabeling: Json) -> Json:
    _only(relabeling, _RELABELING)
    return {_RELABELING[key]: value for key, value in relabeling.items()}


def _only(found: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises ValueError for what the chart says and nobody here reads."""
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise ValueError(f"{', '.join(unknown)} of a monitor is not translated: add it to {Path(__file__).name}")
