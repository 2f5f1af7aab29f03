"""One cluster as a user sees it: kubectl and helm for what people type, one HTTP connection for what is polled."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

import yaml

from hack.cluster import api, state
from hack.cluster.apiclient import ApiClient

Json = dict[str, Any]
T = TypeVar("T")

JOBS = "/apis/muster.dev/v1alpha1"


class KubeError(Exception):
    """kubectl, helm or the cluster said no; the text is theirs."""


class Kube:
    """Not for use by several threads at once: each takes one of its own."""

    def __init__(self, cluster: api.Cluster) -> None:
        self.cluster = cluster
        self._client = ApiClient(state.require(cluster.name))
        self._environment = {**os.environ, **cluster.environment()}

    # -- what people type ------------------------------------------------------------------------------------------

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        """Runs kubectl and returns its output. Raises KubeError with what it wrote to stderr."""
        return self._run([str(self.cluster.kubectl), *arguments], stdin, timeout_s)

    def helm(self, *arguments: str, timeout_s: float = 300) -> str:
        """Runs helm and returns its output. Raises KubeError with what it wrote to stderr."""
        return self._run([str(self.cluster.helm), *arguments], None, timeout_s)

    def apply(self, *documents: Json) -> str:
        """`kubectl apply` of the documents."""
        return self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))

    def _run(self, command: list[str], stdin: str | None, timeout_s: float) -> str:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=self._environment, timeout=timeout_s
        )
        if done.returncode:
            raise KubeError((done.stderr.strip() or done.stdout.strip())[-4000:])
        return done.stdout

    # -- what is polled --------------------------------------------------------------------------------------------

    def get(self, path: str) -> Json | None:
        """The object at an API path, or None. A connection that broke is made anew once."""
        try:
            return self._client.get(path)
        except (OSError, http.client.HTTPException):
            return self._client.get(path)

    def items(self, path: str) -> list[Json]:
        """All objects of a list path."""
        found: list[Json] = (self.get(path) or {}).get("items", [])
        return found

    def job(self, namespace: str, name: str) -> Json | None:
        return self.get(f"{JOBS}/namespaces/{namespace}/trainingjobs/{name}")

    def pods(self, namespace: str, job: str) -> list[Json]:
        """A job's pods, those that end included, by name."""
        found = self.items(f"/api/v1/namespaces/{namespace}/pods?labelSelector=muster.dev%2Fjob%3D{job}")
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def events(self, namespace: str, name: str) -> list[Json]:
        """Events about objects of that name, the oldest first."""
        found = self.items(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
        about = [event for event in found if event.get("regarding", {}).get("name") == name]
        return sorted(about, key=lambda event: str(event.get("eventTime") or event["metadata"]["creationTimestamp"]))

    def wait(
        self, what: str, look: Callable[[], T | None], timeout_s: float, why: Callable[[], str] | None = None
    ) -> T:
        """Polls `look` until it returns something true. Raises KubeError with what `why` knows when time is up."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > deadline:
                raise KubeError(f"{what} did not happen within {timeout_s:.0f} s\n{why() if why else ''}")
            time.sleep(0.3)

    def describe(self, namespace: str, name: str) -> str:
        """Everything about a job that helps to see why it does not do what it should."""
        job = self.job(namespace, name)
        lines = [f"TrainingJob {namespace}/{name}: {json.dumps((job or {}).get('status'), indent=1)}"]
        for pod in self.pods(namespace, name):
            lines.append(f"pod {pod['metadata']['name']}: {json.dumps(pod.get('status'))[:3000]}")
            if (pod.get("status") or {}).get("containerStatuses"):
                lines.append(self.logs(namespace, pod["metadata"]["name"]))
        lines += [f"event {event.get('reason')}: {event.get('note')}" for event in self.events(namespace, name)]
        return "\n".join(lines)

    def logs(self, namespace: str, pod: str, lines: int = 40) -> str:
        """The end of a pod's log, or why there is none."""
        try:
            return self.kubectl("logs", "-n", namespace, pod, "-c", "trainer", f"--tail={lines}")
        except KubeError as error:
            return f"(no log of {pod}: {error})"


def condition(job: Json, kind: str) -> Json | None:
    """A condition of a job by its type."""
    found: list[Json] = job.get("status", {}).get("conditions", [])
    return next((item for item in found if item["type"] == kind), None)


def holds(job: Json, kind: str) -> bool:
    """Whether a condition is True."""
    found = condition(job, kind)
    return found is not None and found["status"] == "True"
