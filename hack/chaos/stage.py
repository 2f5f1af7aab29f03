"""Where the rows play: a cluster with Muster on it, a namespace, a bucket, and a folder that pods and host share."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from hack.chaos import clock, journal, recipe
from hack.chaos.recipe import SCRIPT, WORKERS, Place, Recipe
from hack.demo import install
from hack.demo.kube import JOBS, Json, Kube, KubeError, condition, holds
from muster_protocol import manifest

T = TypeVar("T")


class Stage:
    """Not for use by several threads at once, as its Kube is not: each takes one of its own."""

    def __init__(self, kube: Kube, namespace: str, bucket: str, version: str) -> None:
        """`version` is that of the images: each has a run without faults of its own to be compared with."""
        self.kube = kube
        self._reference = f"reference-{version}"
        self.namespace = namespace
        self.bucket = bucket
        self.s3 = install.s3_client(kube)
        self.folder = kube.cluster.directory / "chaos" / namespace

    def document(self, name: str, wanted: Recipe) -> Json:
        """The TrainingJob; what it needs on this machine is made: its folder with the script in it, and a library."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)  # the image's user writes there
        shutil.copy(SCRIPT, folder)
        if wanted.clock:
            clock.build(folder)
        uri, endpoint = f"s3://{self.bucket}/{name}", self.kube.cluster.s3_endpoint
        return recipe.training(wanted, Place(self.namespace, name, uri, endpoint, folder, self.queue_name(name)))

    def queue_name(self, name: str) -> str:
        return f"{self.namespace}-{name}"

    def start(self, name: str, wanted: Recipe) -> None:
        """Applies the job anew: nothing is left of an earlier one of that name, in the cluster, in S3 or on disk."""
        self.remove(name)
        extra = recipe.queue(self.queue_name(name)) if wanted.quota else ()
        self.kube.apply(*extra, self.document(name, wanted))

    def remove(self, name: str) -> None:
        """Takes the job and all that it made away."""
        for job in (name, self.urgent_name(name)):
            if self.kube.job(self.namespace, job) is not None:
                self.kube.kubectl("delete", "trainingjob", job, "-n", self.namespace, "--timeout=150s", timeout_s=180)
            self.kube.wait(f"the end of {job}'s pods", partial(self._has_no_pod, job), 150)
        if self.kube.get(f"{JOBS}/trainingqueues/{self.queue_name(name)}") is not None:
            for kind in ("trainingqueue", "priorityclass"):
                self.kube.kubectl("delete", kind, self.queue_name(name), "--ignore-not-found")
        install.empty(self.kube, self.bucket, f"{name}/")
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def _has_no_pod(self, name: str) -> bool:
        return not self.pods(name)

    def urgent(self, name: str, seconds: float, workers: int = WORKERS) -> str:
        """Applies a job of higher priority in the queue of `name`, which needs its room for some seconds."""
        job = self.urgent_name(name)
        self.kube.apply(recipe.urgent(self.namespace, job, self.queue_name(name), seconds, workers))
        return job

    def urgent_name(self, name: str) -> str:
        return f"{name}-urgent"

    # -- looks -------------------------------------------------------------------------------------------------------

    def lines(self, name: str) -> tuple[journal.Line, ...]:
        """The job's journal so far."""
        return journal.parse(path.read_text() for path in sorted((self.folder / name).glob("rank-*.jsonl")))

    def job(self, name: str) -> Json:
        """The job; raises KubeError when there is none."""
        found = self.kube.job(self.namespace, name)
        if found is None:
            raise KubeError(f"TrainingJob {name} is gone")
        return found

    def pods(self, name: str) -> list[Json]:
        return self.kube.pods(self.namespace, name)

    def living(self, name: str) -> list[Json]:
        """The job's pods that have not ended, by index."""
        found = [pod for pod in self.pods(name) if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        return sorted(found, key=lambda pod: int(pod["metadata"]["labels"]["muster.dev/index"]))

    def committed(self, name: str) -> int | None:
        """The step of the job's last committed checkpoint."""
        try:
            body = self.s3.get_object(Bucket=self.bucket, Key=f"{name}/{manifest.LATEST_KEY}")["Body"].read()
        except self.s3.exceptions.NoSuchKey:
            return None
        return manifest.decode_latest(body).step

    def wait(self, what: str, look: Callable[[], T | None], timeout_s: float, name: str) -> T:
        """Polls `look` until it is true. Raises KubeError, with all that is known of the job, when time is up."""
        return self.kube.wait(f"{name}: {what}", look, timeout_s, lambda: self.kube.describe(self.namespace, name))

    def until_stepped(self, name: str, step: int, timeout_s: float = 240) -> None:
        """Waits until the job has done that step (from 0) and committed a checkpoint."""

        def look() -> bool:
            if self.ended(name):
                raise KubeError(f"{name} ended before anything could be done to it")
            return journal.highest(self.lines(name)) >= step and self.committed(name) is not None

        self.wait(f"step {step}", look, timeout_s, name)

    def until_succeeded(self, name: str, timeout_s: float = 300) -> None:
        self.wait("its end", lambda: self.ended(name), timeout_s, name)
        failed = condition(self.job(name), "Failed")
        if failed and failed["status"] == "True":
            raise KubeError(f"{name} failed: {failed['reason']}: {failed.get('message', '')}")

    def ended(self, name: str) -> bool:
        """Whether the job has succeeded or failed."""
        job = self.job(name)
        return holds(job, "Succeeded") or holds(job, "Failed")

    # -- the run without faults --------------------------------------------------------------------------------------

    def reference_document(self, steps: int) -> Json:
        """The run without faults, which needn't wait between its steps."""
        return self.document(self._reference, Recipe(steps=steps, pace=0.0, every=steps))

    def reference(self, steps: int) -> tuple[journal.Line, ...]:
        """Its journal, of as many steps at least; it runs once in the life of the cluster."""
        if journal.highest(self.lines(self._reference)) < steps - 1:
            if self.kube.job(self.namespace, self._reference) is None:
                self.kube.apply(self.reference_document(steps))
            self.until_succeeded(self._reference)
        return self.lines(self._reference)


def now() -> float:
    """Seconds by the clock of the journals."""
    return time.monotonic()
