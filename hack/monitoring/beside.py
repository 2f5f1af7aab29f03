"""A Prometheus beside a local cluster, which scrapes it as the chart's own monitors say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from hack.demo import install
from hack.demo.kube import Kube
from hack.monitoring import discovery, gpus, scraping
from hack.monitoring.pages import Pages
from hack.monitoring.server import Prometheus

Json = dict[str, Any]


def chart(kube: Kube, interval: str) -> list[Json]:
    """The chart's objects with all monitoring switched on; what is scraped is scraped every `interval`, like `30s`."""
    values = (
        "metrics.serviceMonitor.enabled=true",
        f"metrics.serviceMonitor.interval={interval}",
        "monitoring.podMonitor.enabled=true",
        f"monitoring.podMonitor.interval={interval}",
        "monitoring.rules.enabled=true",
        "monitoring.dashboards.enabled=true",
    )
    settings = [word for value in values for word in ("--set", value)]
    rendered = kube.helm("template", install.RELEASE, str(install.CHART), "--namespace", install.SYSTEM, *settings)
    return [document for document in yaml.safe_load_all(rendered) if document]


def dashboards(objects: Sequence[Json]) -> dict[str, Json]:
    """Those among the chart's objects that Grafana's sidecar would find, by their file's name without `.json`."""
    boards = [item for item in objects if item["metadata"].get("labels", {}).get("grafana_dashboard")]
    return {
        name.removesuffix(".json"): yaml.safe_load(text) for board in boards for name, text in board["data"].items()
    }


@contextmanager
def prometheus(
    kube: Kube,
    objects: Sequence[Json],
    folder: Path,
    interval: str,
    *,
    pages: Mapping[str, tuple[Json, Callable[[], str]]] | None = None,
    port: int | None = None,
) -> Iterator[Prometheus]:
    """It runs, and scrapes operator, training pods and made-up GPUs.

    Args:
        folder: for its files, made if it isn't there.
        pages: what else is scraped: by path, the labels of the target and what it serves.
        port: where it listens, on 127.0.0.1; None: on a free one.
    """
    own = Kube(kube.cluster)  # for the thread that serves the pages
    made_up, others = gpus.MadeUpGpus(own), dict(pages or {})
    served = {
        "/dcgm": made_up.text,
        "/pods.json": lambda: json.dumps(discovery.pods(own.items)),
        "/slices.json": lambda: json.dumps(discovery.slices(own.items)),
        **{path: text for path, (_, text) in others.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    rules = folder / "rules.yaml"
    rules.write_text(yaml.safe_dump(scraping.rule_file(objects)))
    with ExitStack() as stack:
        address = stack.enter_context(Pages(served)).address
        exporter = scraping.page(address, "/dcgm", gpus.LABELS, interval, honor=False)
        more = [scraping.page(address, path, labels, interval, honor=True) for path, (labels, _) in others.items()]
        where = {discovery.PODS: f"http://{address}/pods.json", discovery.SLICES: f"http://{address}/slices.json"}
        config = scraping.config(objects, rules, discovered=where, interval=interval, more=[exporter, *more])
        yield stack.enter_context(Prometheus(folder, config, port))
