"""What jobs leave behind: objects in the cluster, objects in S3, memory in the operator."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hack.chaos.on_platform import LEASE, operators
from hack.chaos.stage import Stage
from hack.demo import install, strike
from hack.demo.kube import KubeError
from muster_protocol.checkpoints import inventory, retention
from muster_protocol.checkpoints.s3 import S3Store
from muster_protocol.uris import CheckpointUri

GROWTH = 1.1
"""Times the memory of the first third of all looks, by which that of the last may be larger."""
WARM_UP = 3
"""Looks that don't count: caches fill at first."""


def in_storage(stage: Stage, names: Sequence[str]) -> list[str]:
    """Objects under the jobs' prefixes that no committed checkpoint accounts for, and no prune would ever delete."""
    wrong = []
    for name in names:
        with _store(stage, name) as store:
            found = inventory.take(store)
        pruned = retention.plan(found, retention.Retention(), time.time() + 2 * retention.ORPHAN_SECONDS)
        folders = {removal.folder.prefix for removal in pruned.removals}
        orphans = [folder.prefix for folder in found.orphans if folder.prefix not in folders]
        uploads = [one.key for one in found.unfinished if one not in pruned.unfinished]
        wrong += [f"s3://{stage.bucket}/{name}: {damaged}" for damaged in found.damaged]
        wrong += [f"s3://{stage.bucket}/{name}: {prefix} is of no checkpoint" for prefix in orphans]
        wrong += [f"s3://{stage.bucket}/{name}: an upload of {key} was never ended" for key in uploads]
    return wrong


@contextmanager
def _store(stage: Stage, name: str) -> Iterator[S3Store]:
    """The job's checkpoints, as a user's tools open them: credentials come from the environment."""
    cluster = stage.kube.cluster
    os.environ["AWS_ACCESS_KEY_ID"] = cluster.s3_access_key
    os.environ["AWS_SECRET_ACCESS_KEY"] = cluster.s3_secret_key
    os.environ["AWS_REGION"] = cluster.s3_region
    store = S3Store(CheckpointUri("s3", stage.bucket, name), cluster.s3_endpoint)
    try:
        yield store
    finally:
        store.close()


def delete_jobs(stage: Stage, names: Sequence[str]) -> None:
    stage.kube.kubectl("delete", "trainingjob", *names, "-n", stage.namespace, "--timeout=150s", timeout_s=180)


def in_cluster(stage: Stage) -> list[str]:
    """Objects of Muster's that are there though their jobs are gone."""
    wrong = []
    for kind in ("pods", "services", "secrets", "configmaps"):
        path = f"/api/v1/namespaces/{stage.namespace}/{kind}?labelSelector=muster.dev%2Fjob"
        try:
            stage.kube.wait(f"the end of {kind}", partial(_nobody, stage, path), 60)
        except KubeError:
            wrong += [f"{kind}/{name} is left" for name in _strangers(stage, path)]
    for namespace in (stage.namespace, install.SYSTEM):
        leases = stage.kube.items(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
        ours = {lease["metadata"]["name"] for lease in leases} - {LEASE.rpartition("/")[2]}
        wrong += [f"lease {namespace}/{name} is left" for name in sorted(ours)]
    return wrong


def _nobody(stage: Stage, path: str) -> bool:
    return not _strangers(stage, path)


def _strangers(stage: Stage, path: str) -> list[str]:
    """Names of what belongs to a job that does not exist."""
    left = stage.kube.items(path)
    jobs = {label for item in left if (label := item["metadata"]["labels"]["muster.dev/job"])}
    gone = {job for job in jobs if stage.kube.job(stage.namespace, job) is None}
    return [item["metadata"]["name"] for item in left if item["metadata"]["labels"]["muster.dev/job"] in gone]


class Growth:
    """The operator's resident memory, in MiB, over time."""

    def __init__(self) -> None:
        self.looks: list[float] = []

    def look(self, stage: Stage) -> None:
        """Adds what the operator's pods hold now, all together."""
        pids = [pid for pod in operators(stage) for one in strike.container_ids(pod) for pid in strike.processes(one)]
        self.looks.append(sum(_resident_mib(pid) for pid in pids))

    @property
    def first_and_last(self) -> tuple[float, float] | None:
        """Medians of the first and the last third; None before there are nine looks."""
        looks = self.looks[WARM_UP:]
        third = len(looks) // 3
        return (statistics.median(looks[:third]), statistics.median(looks[-third:])) if third >= 3 else None

    def verdict(self) -> list[str]:
        found = self.first_and_last
        if found is None:
            return ["too few looks at the operator's memory"]
        first, last = found
        return [f"the operator's memory grew from {first:.0f} to {last:.0f} MiB"] if last > GROWTH * first else []

    def __str__(self) -> str:
        found = self.first_and_last
        return (
            "operator's memory unknown" if found is None else f"operator's memory {found[0]:.0f} to {found[1]:.0f} MiB"
        )


def _resident_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0)
