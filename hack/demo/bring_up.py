"""The local cluster with Muster on it, as `make install` leaves it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hack import images
from hack.cluster import api, build
from hack.cluster.errors import ClusterError
from hack.cluster.progress import Progress
from hack.demo import install
from hack.demo.kube import Kube

NAMESPACE = "research"
BUCKET = "models"


def bring_up(name: str, **wanted: Any) -> Kube:
    """Cluster, images, chart, namespace, bucket. What is there already stays; what is started is told.

    `wanted`: some of `api.Options`. ClusterError where a cluster of that name is up with others.
    """
    progress = Progress()
    if not build.program("kube-apiserver").exists():
        progress.say("the first time: Kubernetes is built from its sources, which takes up to 20 minutes on 2 cores")
    if name in api.names() and _is_ready(name):
        cluster = api.up(replace(api.options(name), **wanted), progress) if wanted else api.get(name)
    else:
        down = f".venv/bin/python -m hack.cluster down --name {name}"
        progress.say(f"cluster {name} is not up: it is started now, and stays until `{down}`")
        cluster = api.up(api.Options(name=name, **wanted), progress)
    if not cluster.nodes:
        raise ClusterError(
            f"cluster {name} has no real nodes: take it down by `make cluster-down`, then run this again"
        )
    built = images.build_all(cluster, progress)
    kube = Kube(cluster)
    install.operator(kube, built, progress)
    # It lies in the operator's namespace, and goes with it when somebody takes Muster away by hand.
    cluster.announce_s3()
    install.bucket(kube, BUCKET)
    install.namespace(kube, NAMESPACE)
    return kube


def _is_ready(name: str) -> bool:
    try:
        api.get(name)
    except ClusterError:
        return False
    return True
