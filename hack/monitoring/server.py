"""A Prometheus of its own on this machine, and questions to it."""

from __future__ import annotations

import json
import math
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import yaml

from hack.cluster.errors import ClusterError, log_tail
from hack.prometheus import program

Json = dict[str, Any]

_READY_S: Final = 60.0
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine


class QueryError(Exception):
    """Prometheus refused a query; the text is its own."""


@dataclass(frozen=True)
class Series:
    """
    Attributes:
        points: (seconds since the epoch, value), the oldest first; one, where an instant was asked for.
    """

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        return self.points[-1][1]


class Prometheus:
    """A context manager. Its files lie in `folder`, which must be empty or an earlier one's."""

    def __init__(self, folder: Path, config: Json, port: int | None = None) -> None:
        """`port`: where it listens, on 127.0.0.1; None: on a free one."""
        self.folder, self._config = folder, config
        self.url = f"http://127.0.0.1:{port or _free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(self._config, sort_keys=False))
        command = [
            str(program("prometheus")),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            self._until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """What it has scraped stays in its folder."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
            self._process = None

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """What an expression gives at one moment: `at` seconds since the epoch, or now. Raises QueryError."""
        more = {} if at is None else {"time": f"{at:.3f}"}
        return _series(self._ask("query", query=expression, **more))

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """The same at every `step` seconds from `start` to `end`. Raises QueryError."""
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return _series(self._ask("query_range", query=expression, **times))

    def label_values(self, selector: str, label: str) -> list[str]:
        """Values of a label in the series that a selector finds."""
        found: list[str] = self._ask(f"label/{label}/values", **{"match[]": selector})
        return found

    def targets(self) -> list[Json]:
        """What is scraped now."""
        found: list[Json] = self._ask("targets", state="active")["activeTargets"]
        return found

    def rules(self) -> list[Json]:
        """Every rule with how its last evaluation went."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    @property
    def _log(self) -> Path:
        return self.folder / "prometheus.log"

    def _until_ready(self) -> None:
        until = time.monotonic() + _READY_S
        while not self._ready():
            if self._process is None or self._process.poll() is not None or time.monotonic() > until:
                raise ClusterError(f"Prometheus did not start; its log {self._log} says:\n{log_tail(self._log)}")
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            with _DIRECT.open(f"{self.url}/-/ready", timeout=5):
                return True
        except OSError:  # it doesn't listen, or isn't ready
            return False

    def _ask(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with _DIRECT.open(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise QueryError(f"{json.load(error)['error']}: {parameters}") from None


def _series(data: Json) -> list[Series]:
    if data["resultType"] == "scalar":
        return [Series({}, _points([data["result"]]))]
    found = [
        Series(entry["metric"], _points(entry["values"] if "values" in entry else [entry["value"]]))
        for entry in data["result"]
    ]
    return [series for series in found if series.points]


def _points(values: Sequence[Sequence[Any]]) -> tuple[tuple[float, float], ...]:
    """Without NaN, which Prometheus gives for a ratio of nothing, and Grafana doesn't draw."""
    points = ((float(at), float(value)) for at, value in values)
    return tuple((at, value) for at, value in points if not math.isnan(value))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
