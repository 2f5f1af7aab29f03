"""The chart's monitors as a Prometheus without an operator reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hack.monitoring import discovery, scraping

pytestmark = pytest.mark.unit

WHERE = {discovery.PODS: "http://here/pods", discovery.SLICES: "http://here/slices"}
POD_MONITOR: dict[str, Any] = {
    "kind": "PodMonitor",
    "metadata": {"name": "muster-training", "namespace": "muster-system"},
    "spec": {
        "namespaceSelector": {"any": True},
        "selector": {"matchExpressions": [{"key": "muster.dev/job", "operator": "Exists"}]},
        "podMetricsEndpoints": [
            {
                "port": "muster",
                "path": "/metrics",
                "honorLabels": True,
                "interval": "30s",
                "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
            }
        ],
    },
}
SERVICE_MONITOR: dict[str, Any] = {
    "kind": "ServiceMonitor",
    "metadata": {"name": "muster", "namespace": "muster-system"},
    "spec": {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "muster"}},
        "endpoints": [{"port": "http", "interval": "15s"}],
    },
}


def jobs(*objects: dict[str, Any]) -> list[dict[str, Any]]:
    made = scraping.config(objects, Path("/rules.yaml"), discovered=WHERE, interval="30s")
    found: list[dict[str, Any]] = made["scrape_configs"]
    return found


def test_pods_of_every_namespace_are_found_by_their_labels_and_their_port() -> None:
    (job,) = jobs(POD_MONITOR)
    assert job["http_sd_configs"] == [{"url": "http://here/pods", "refresh_interval": "30s"}]
    assert (job["honor_labels"], job["scrape_interval"], job["metrics_path"]) == (True, "30s", "/metrics")
    relabelings = job["relabel_configs"]
    label = "muster_dev_job"
    sources = [f"__meta_kubernetes_pod_label_{label}", f"__meta_kubernetes_pod_labelpresent_{label}"]
    assert {"action": "keep", "source_labels": sources, "regex": "(.*);true"} in relabelings
    port = ["__meta_kubernetes_pod_container_port_name"]
    assert {"action": "keep", "source_labels": port, "regex": "muster"} in relabelings
    assert relabelings[-1] == {"source_labels": ["__meta_kubernetes_pod_node_name"], "target_label": "node"}


def test_services_are_looked_for_in_the_monitors_own_namespace() -> None:
    (job,) = jobs(SERVICE_MONITOR)
    assert job["http_sd_configs"] == [{"url": "http://here/slices", "refresh_interval": "30s"}]
    namespace = ["__meta_kubernetes_namespace"]
    assert {"action": "keep", "source_labels": namespace, "regex": "muster\\-system"} in job["relabel_configs"]
    label = "app_kubernetes_io_name"
    sources = [f"__meta_kubernetes_service_label_{label}", f"__meta_kubernetes_service_labelpresent_{label}"]
    assert {"action": "keep", "source_labels": sources, "regex": "(muster);true"} in job["relabel_configs"]
    assert job["honor_labels"] is False


def test_what_is_not_translated_is_an_error() -> None:
    changed = {**POD_MONITOR, "spec": {**POD_MONITOR["spec"], "sampleLimit": 10}}
    with pytest.raises(ValueError, match="sampleLimit of a monitor is not translated"):
        jobs(changed)
    selector = {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}
    with pytest.raises(ValueError, match="operator NotIn"):
        jobs({**POD_MONITOR, "spec": {**POD_MONITOR["spec"], "selector": selector}})


def test_other_objects_of_the_chart_are_no_monitors() -> None:
    assert jobs({"kind": "Service", "metadata": {"name": "muster"}}) == []


def test_rules_are_those_of_the_chart() -> None:
    group = {"name": "g", "rules": [{"record": "a:b", "expr": "up"}]}
    rule = {"kind": "PrometheusRule", "metadata": {"name": "m"}, "spec": {"groups": [group]}}
    assert scraping.rule_file([POD_MONITOR, rule]) == {"groups": [group]}


POD: dict[str, Any] = {
    "metadata": {"name": "j-g1-0-0", "namespace": "ns", "labels": {"muster.dev/job": "j"}},
    "spec": {
        "nodeName": "node-0",
        "containers": [{"name": "trainer", "ports": [{"name": "muster", "containerPort": 7470}]}],
    },
    "status": {"podIP": "10.0.0.7", "phase": "Running"},
}
SERVICE: dict[str, Any] = {
    "metadata": {"name": "muster", "namespace": "muster-system", "labels": {"app.kubernetes.io/name": "muster"}}
}
SLICE: dict[str, Any] = {
    "metadata": {"namespace": "muster-system", "labels": {"kubernetes.io/service-name": "muster"}},
    "endpoints": [{"addresses": ["10.0.0.3"], "targetRef": {"kind": "Pod", "name": "muster-1"}}],
    "ports": [{"name": "http", "port": 8080}],
}


def test_discovery_tells_a_pods_ports_with_its_labels() -> None:
    waiting = {**POD, "status": {"phase": "Pending"}}
    (target,) = discovery.pods(lambda path: [POD, waiting])
    assert target["targets"] == ["10.0.0.7:7470"]
    assert target["labels"] == {
        "__meta_kubernetes_namespace": "ns",
        "__meta_kubernetes_pod_name": "j-g1-0-0",
        "__meta_kubernetes_pod_phase": "Running",
        "__meta_kubernetes_pod_node_name": "node-0",
        "__meta_kubernetes_pod_label_muster_dev_job": "j",
        "__meta_kubernetes_pod_labelpresent_muster_dev_job": "true",
        "__meta_kubernetes_pod_container_name": "trainer",
        "__meta_kubernetes_pod_container_port_name": "muster",
    }


def test_discovery_tells_a_services_endpoints_with_its_labels() -> None:
    (target,) = discovery.slices(lambda path: [SERVICE] if path.endswith("services") else [SLICE])
    assert target["targets"] == ["10.0.0.3:8080"]
    assert target["labels"] == {
        "__meta_kubernetes_namespace": "muster-system",
        "__meta_kubernetes_service_name": "muster",
        "__meta_kubernetes_service_label_app_kubernetes_io_name": "muster",
        "__meta_kubernetes_service_labelpresent_app_kubernetes_io_name": "true",
        "__meta_kubernetes_pod_name": "muster-1",
        "__meta_kubernetes_endpointslice_port_name": "http",
    }
