"""One cluster for all end-to-end tests, with the operator installed by its chart, as an administrator would.

A module may have a function `background(world)` that returns TrainingJobs which need nobody's attention: they are
applied when the session starts and train while other tests run. MUSTER_E2E_CLUSTER=NAME uses a cluster that is up
already, and leaves it up, which saves time while one works on a test.
"""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack import images
from hack.cluster import api
from hack.cluster.progress import Progress
from hack.demo import install
from hack.demo.kube import Json, Kube, KubeError, condition, holds

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(600))


class World:
    """The cluster, a namespace and a bucket, and the words that the tests speak."""

    VALUES = ("badNodes.policy=taint", "badNodes.threshold=100")
    """Of the chart: faults of nodes are counted, and none is tainted for them."""

    def __init__(self, kube: Kube, built: Mapping[str, str], namespace: str, bucket: str) -> None:
        self.kube = kube
        self.built = built
        self.namespace = namespace
        self.bucket = bucket
        self.s3 = install.s3_client(kube)

    # -- documents ---------------------------------------------------------------------------------------------------

    def gpt(self, name: str, *, strategy: str = "fsdp", **spec: Any) -> Json:
        """examples/gpt under another name; `spec` replaces whole fields."""
        document: Json = yaml.safe_load((ROOT / "examples" / "gpt" / "job.yaml").read_text())
        document["metadata"] = {"name": name, "namespace": self.namespace}
        document["spec"]["checkpoint"]["uri"] = self.uri(name)
        document["spec"]["parallelism"] = {"strategy": strategy}
        document["spec"].update(copy.deepcopy(spec))
        return document

    def plain(self, name: str, *command: str, replicas: int = 1, gpus: int = 1, **spec: Any) -> Json:
        """A job that runs a command on the examples' image and saves nothing."""
        return {
            "apiVersion": "muster.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "image": images.EXAMPLES,
                "command": list(command),
                "workers": {"replicas": replicas, "gpusPerWorker": gpus},
                "restart": {"limit": 0},
                **copy.deepcopy(spec),
            },
        }

    def uri(self, name: str) -> str:
        return f"s3://{self.bucket}/{name}"

    def storage(self, name: str, **more: Any) -> Json:
        """`spec.checkpoint` for a job of that name."""
        secret, endpoint = {"name": install.S3_SECRET}, self.kube.cluster.s3_endpoint
        return {"uri": self.uri(name), "secretRef": secret, "endpoint": endpoint, **more}

    # -- deeds -------------------------------------------------------------------------------------------------------

    def apply(self, *documents: Json) -> str:
        return self.kube.apply(*documents)

    def delete(self, name: str, *flags: str) -> None:
        self.kube.kubectl("delete", "trainingjob", name, "-n", self.namespace, *flags)

    def patch(self, name: str, patch: str) -> str:
        return self.kube.kubectl("patch", "trainingjob", name, "-n", self.namespace, "--type=merge", "-p", patch)

    # -- looks -------------------------------------------------------------------------------------------------------

    def job(self, name: str) -> Json:
        found = self.kube.job(self.namespace, name)
        assert found is not None, f"TrainingJob {name} is gone"
        return found

    def pods(self, name: str) -> list[Json]:
        return self.kube.pods(self.namespace, name)

    def until(self, name: str, what: str, holds_for: Callable[[Json], Any], timeout_s: float = 300) -> Json:
        """Waits until the job is as `holds_for` wants it; a failure tells all that is known of the job."""

        def look() -> Json | None:
            job = self.job(name)
            return job if holds_for(job) else None

        return self.wait(f"{name}: {what}", look, timeout_s, name)

    def wait(self, what: str, look: Callable[[], Any], timeout_s: float, name: str = "") -> Any:
        try:
            return self.kube.wait(what, look, timeout_s, lambda: self.kube.describe(self.namespace, name))
        except KubeError as error:
            pytest.fail(str(error), pytrace=False)

    def until_succeeded(self, name: str, timeout_s: float = 420) -> Json:
        """Waits for the job's end; a job that failed is told at once."""
        job = self.until(name, "ends", lambda job: holds(job, "Succeeded") or holds(job, "Failed"), timeout_s)
        if not holds(job, "Succeeded"):
            pytest.fail(f"{name} failed:\n{self.kube.describe(self.namespace, name)}", pytrace=False)
        return job

    def until_failed(self, name: str, timeout_s: float = 300) -> Json:
        """The Failed condition of the job, once it has failed."""
        job = self.until(name, "ends", lambda job: holds(job, "Succeeded") or holds(job, "Failed"), timeout_s)
        failed = condition(job, "Failed")
        assert failed, f"{name} did not fail: {job['status']}"
        assert failed["status"] == "True", f"{name} did not fail: {job['status']}"
        return failed

    def until_gone(self, name: str, timeout_s: float = 150) -> None:
        """Waits until no pod of the job is left."""
        self.wait(f"the end of {name}'s pods", lambda: not self.pods(name), timeout_s, name)

    def keys(self, name: str) -> list[str]:
        """Keys of the job's objects in S3, below its uri."""
        found = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=f"{name}/").get("Contents", [])
        return [str(entry["Key"]).removeprefix(f"{name}/") for entry in found]


@pytest.fixture(scope="session")
def cluster() -> Iterator[api.Cluster]:
    kept = os.environ.get("MUSTER_E2E_CLUSTER")
    if kept:
        yield api.get(kept)
        return
    name = f"e2e-{secrets.token_hex(3)}"
    try:
        yield api.up(api.Options(name=name, nodes=2, gpus=8, racks=2), Progress())
    finally:
        api.down(name)


@pytest.fixture(scope="session")
def world(cluster: api.Cluster, request: pytest.FixtureRequest) -> World:
    built = images.build_all(cluster, Progress())
    kube = Kube(cluster)
    install.operator(kube, built, Progress(), World.VALUES)
    run = secrets.token_hex(3)
    made = World(kube, built, f"e2e-{run}", f"e2e-{run}")
    install.namespace(kube, made.namespace)
    install.bucket(kube, made.bucket)
    modules = {item.module: None for item in request.session.items if isinstance(item, pytest.Function)}
    jobs = [job for module in modules if hasattr(module, "background") for job in module.background(made)]
    if jobs:
        made.apply(*jobs)
    return made
