"""The S3 server: versitygw on a folder, reachable at one address from the host and from pods."""

from __future__ import annotations

import socket

from hack.cluster import build, network, processes
from hack.cluster.apiclient import ApiClient, wait_for
from hack.cluster.dns import service_to_hub
from hack.cluster.errors import ClusterError, log_tail
from hack.cluster.plan import S3_PORT, Site
from hack.cluster.processes import Launcher, Process

NAMESPACE = "muster-system"
REGION = "us-east-1"


def start(site: Site) -> Process:
    """Starts versitygw; objects are files under the cluster's `s3` folder and go with the cluster."""
    (site.directory / "s3").mkdir(exist_ok=True)
    return Launcher(site.directory, site.slot, network.HUB).start(
        "versitygw",
        [
            str(build.program("versitygw")),
            "--port",
            f"{site.addresses.hub}:{S3_PORT}",
            "--region",
            REGION,
            "--quiet",
            "--keep-alive",
            "posix",
            str(site.directory / "s3"),
        ],
        env={
            "ROOT_ACCESS_KEY": site.secrets["s3-access-key"],
            "ROOT_SECRET_KEY": site.secrets["s3-secret-key"],
        },
        inside=network.anchor(site, network.HUB),
    )


def announce(site: Site, client: ApiClient) -> None:
    """Gives the server a name in the cluster: http://s3.muster-system.svc:7070."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    client.create("/api/v1/namespaces", namespace)
    ports = [{"name": "s3", "port": S3_PORT, "protocol": "TCP"}]
    service_to_hub(site, client, NAMESPACE, "s3", ports)


def wait_ready(site: Site) -> None:
    """Returns when the server accepts connections from the host."""

    def accepts() -> bool:
        if processes.find(site.directory, "versitygw") is None:
            raise ClusterError(f"versitygw ended while it started:\n{log_tail(site.logs / 'versitygw.log')}")
        with socket.create_connection((site.addresses.hub, S3_PORT), timeout=1):
            return True

    wait_for("the S3 server's accepting calls", accepts, 20, lambda: log_tail(site.logs / "versitygw.log"))
