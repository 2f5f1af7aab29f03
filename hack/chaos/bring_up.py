"""The cluster that faults are played on, with Muster on it."""

from __future__ import annotations

import hashlib
import subprocess

from hack import images
from hack.chaos import results
from hack.chaos.recipe import GROWS_AFTER_S, SCRIPT
from hack.chaos.rows import REFERENCE_STEPS
from hack.chaos.run import Circumstances
from hack.chaos.stage import Stage
from hack.cluster import api
from hack.cluster.progress import Progress
from hack.demo import install
from hack.demo.kube import Kube

NAMESPACE = BUCKET = "chaos"
OPTIONS = api.Options(name="chaos", nodes=4, gpus=4, racks=4)
"""Two nodes for a gang, and two that can take their place."""


def bring_up() -> tuple[api.Cluster, Circumstances]:
    """The cluster with Muster on it, and what is the same for all runs."""
    progress = Progress()
    cluster = api.up(OPTIONS, progress)
    built = images.build_all(cluster, progress)
    kube = Kube(cluster)
    install.operator(kube, built, progress, (f"moves.settleAfter={GROWS_AFTER_S}s",))
    install.bucket(kube, BUCKET)
    install.namespace(kube, NAMESPACE)
    parts = [*sorted(built.values()), SCRIPT.read_text()]
    version = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=results.ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    with progress.part(f"a run of {REFERENCE_STEPS} steps without faults"):
        Stage(kube, NAMESPACE, BUCKET, version).reference(REFERENCE_STEPS)
    return cluster, Circumstances(commit, version, results.machine())
