"""A real Prometheus scrapes operator and training pods by the chart's monitors; panels and rules find what they ask.

The GPUs are made up, and with them what DCGM and NVML would tell; all else is a cluster at work.
"""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest
from hack.demo import install
from hack.demo.kube import Json
from hack.monitoring import asked, beside, scene
from hack.monitoring.server import Prometheus
from hack.prometheus import program
from prometheus_client import CollectorRegistry, generate_latest

from muster_protocol.metrics import POD
from muster_runtime.launch.gathered import Gathered, of_gpus
from muster_runtime.telemetry.gpus import Gpu

if TYPE_CHECKING:
    from conftest import World

INTERVAL: Final = "5s"
WITH_DRIVER: Final = Gpu(
    "0", "GPU-1", "NVIDIA H100", 0.7, 2**30, 80 * 2**30, 500.0, 60.0, {"corrected": 1, "uncorrected": 0}, {13: 1}
)
"""A GPU as a launcher reads it by NVML, where there is a driver."""


def place(world: World) -> scene.Place:
    return scene.Place(world.namespace, world.namespace, world.storage(scene.STEADY, everySteps=100))


def background(world: World) -> list[Json]:
    here = place(world)
    return [*scene.queues(here), *(job for job in scene.before(here) if job["metadata"]["name"] != scene.FAILING)]


@pytest.fixture(scope="module")
def chart(world: World) -> list[Json]:
    return beside.chart(world.kube, INTERVAL)


@pytest.fixture(scope="module")
def dashboards(chart: list[Json]) -> list[Json]:
    return [*beside.dashboards(chart).values()]


@pytest.fixture(scope="module")
def prometheus(world: World, chart: list[Json], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It looks on while the owner of a quota takes it back from a borrower."""
    here = place(world)
    with ExitStack() as stack:
        stack.callback(_clear, world, here)
        world.apply(_quarantined(world))
        world.until(scene.BORROWER, "runs", lambda job: job["status"].get("phase") == "Running")
        pages = {"/nvml": ({"pod": "with-a-driver", "node": "without-dcgm"}, _by_nvml(world))}
        folder = tmp_path_factory.mktemp("prometheus")
        running = stack.enter_context(beside.prometheus(world.kube, chart, folder, INTERVAL, pages=pages))
        world.wait("the first scrape of the operator", lambda: running.query("muster_operator_leader == 1"), 60)
        world.apply(scene.failing(here, scene.FAILING))
        failures = f'muster_jobs_finished_total{{queue="{here.product}",outcome="Failed"}}'
        world.wait("the first failure is counted; the next is an increase", lambda: running.query(failures), 120)
        world.apply(*scene.then(here))
        world.until(scene.BORROWER, "makes room", lambda job: job["status"].get("preemptions"))
        yield running


def _quarantined(world: World) -> Json:
    """A node that is no machine: it takes no pod, and is there to be seen in quarantine."""
    taint = {"key": "muster.dev/quarantined", "effect": "NoSchedule"}
    name = f"{world.namespace}-quarantined"
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": [taint]}}


def _by_nvml(world: World) -> Callable[[], str]:
    """A launcher's own page, of a pod whose node has a driver and no DCGM exporter."""
    registry = CollectorRegistry()
    values = {"job_name": scene.STEADY, "namespace": world.namespace, "index": "7"}
    registry.register(Gathered(tuple(values[label] for label in POD), lambda: of_gpus([WITH_DRIVER])))
    return lambda: generate_latest(registry).decode()


def _clear(world: World, here: scene.Place) -> None:
    for job in scene.JOBS:
        world.delete(job, "--ignore-not-found", "--wait=false")
    for job in scene.JOBS:
        world.until_gone(job)
    world.kube.kubectl("delete", "trainingqueue", here.research, here.product, "--ignore-not-found")
    world.kube.kubectl("delete", "node", f"{world.namespace}-quarantined", "--ignore-not-found")


def until_none(what: str, left: Callable[[], list[str]], timeout_s: float = 180) -> None:
    """Waits until nothing is left; fails with what is."""
    until = time.monotonic() + timeout_s
    while missing := left():
        if time.monotonic() > until:
            pytest.fail(f"{what}:\n" + "\n".join(missing), pytrace=False)
        time.sleep(1)


def test_everything_that_serves_metrics_is_scraped(world: World, prometheus: Prometheus) -> None:
    pods = world.kube.items(f"/api/v1/namespaces/{install.SYSTEM}/pods?labelSelector=app.kubernetes.io%2Fname%3Dmuster")
    expected = {pod["metadata"]["name"] for pod in pods} | {
        pod["metadata"]["name"] for job in (scene.STEADY, scene.OWNER) for pod in world.pods(job)
    }
    assert len(expected) > 4

    def missing() -> list[str]:
        targets = prometheus.targets()
        up = {target["labels"].get("pod") for target in targets if target["health"] == "up"}
        return sorted(expected - up)

    until_none("not scraped", missing)


def test_every_query_of_every_panel_has_data(world: World, prometheus: Prometheus, dashboards: list[Json]) -> None:
    assert len(dashboards) == 5
    values = {
        "cluster": ".*",
        "namespace": world.namespace,
        "queue": f"{world.namespace}-.*",
        "job": scene.STEADY,
        "__rate_interval": "30s",
        "__range": "1h",
    }
    queries = [query for board in dashboards for query in asked.queries(board, values)]
    assert len(queries) > 60

    def empty() -> list[str]:
        now = time.time()
        return [
            query.name
            for query in queries
            if not prometheus.query(query.expression, asked.moment(query.expression, now))
        ]

    until_none("no data for", empty)
    now = time.time()
    nameless = [
        query.name
        for query in queries
        for series in prometheus.query(query.expression, asked.moment(query.expression, now))
        if query.legend != "__auto" and not asked.name_of(query.legend, series.labels)
    ]
    assert not nameless


def test_every_choice_of_a_dashboard_offers_what_there_is(
    world: World, prometheus: Prometheus, dashboards: list[Json]
) -> None:
    expected = {
        "namespace": world.namespace,
        "queue": place(world).research,
        "job": scene.STEADY,
        "currency": "USD",
    }
    every = {"cluster": ".*", "namespace": ".*", "queue": ".*"}
    for board in dashboards:
        for choice in asked.choices(board):
            offered = prometheus.label_values(asked.filled(choice.selector, every), choice.label)
            if choice.name == "cluster":
                assert not offered, "it is a Prometheus' external label, and this one has none"
            else:
                assert expected[choice.name] in offered


def test_every_recording_rule_records(prometheus: Prometheus) -> None:
    recorded = [rule["name"] for rule in prometheus.rules() if rule["type"] == "recording"]
    assert len(recorded) > 15
    until_none("nothing recorded as", lambda: [name for name in recorded if not prometheus.query(name)])


def test_every_alert_finds_what_it_watches(prometheus: Prometheus) -> None:
    alerts = [rule for rule in prometheus.rules() if rule["type"] == "alerting"]
    assert len(alerts) == 19
    watched = {
        f"{rule['name']}: {selector}": selector
        for rule in alerts
        for selector in asked.selectors(rule["query"])
        if not selector.startswith("muster_history_")  # this installation has no database for one
    }
    until_none("no series", lambda: [name for name, selector in watched.items() if not prometheus.query(selector)])


def test_rules_are_evaluated_without_errors_and_only_what_is_wrong_is_told(prometheus: Prometheus) -> None:
    until_none("not evaluated", lambda: [rule["name"] for rule in prometheus.rules() if rule["health"] == "unknown"])
    rules = prometheus.rules()
    assert not {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"}
    states = {rule["name"]: rule["state"] for rule in rules if rule["type"] == "alerting"}
    told = {name for name, state in states.items() if state != "inactive"}
    assert told >= {"MusterNodeQuarantined"}
    assert not told & {
        "MusterOperatorDown",
        "MusterOperatorErrors",
        "MusterCheckpointFailing",
        "MusterCheckpointOld",
        "MusterHistoryDown",
    }


@pytest.mark.parametrize("family", ["muster_operator_leader", "muster_worker_ranks_running"])
def test_promtool_has_nothing_to_say_about_what_is_served(prometheus: Prometheus, family: str) -> None:
    """Of the operator, and of a training pod at work."""
    (leader, *_) = prometheus.query(f"{family} == 1")
    target = next(found for found in prometheus.targets() if found["labels"].get("pod") == leader.labels["pod"])
    page = _fetched(target["scrapeUrl"])
    assert re.search(rf"^{family}\b", page, re.MULTILINE)
    done = subprocess.run([program("promtool"), "check", "metrics"], input=page, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def _fetched(url: str) -> str:
    direct: Any = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, timeout=10) as answer:
        body: bytes = answer.read()
    return body.decode()
