"""The local cluster for programs: what `python -m hack.cluster` does, and what test fixtures call.

from hack.cluster import api
cluster = api.up(api.Options(name="mine", nodes=2))
try:
    ...  # cluster.kubeconfig, cluster.s3_endpoint, cluster.stop_node("node-1")
finally:
    api.down("mine")
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hack.cluster import (
    build,
    cache,
    controlplane,
    dns,
    images,
    kind,
    kwok,
    network,
    node,
    packages,
    pki,
    preflight,
    processes,
    seed,
    state,
    storage,
    teardown,
    torchtree,
    versions,
)
from hack.cluster.apiclient import ApiClient, wait_for
from hack.cluster.errors import ClusterError
from hack.cluster.paths import cache_root, locked
from hack.cluster.plan import Options, Site
from hack.cluster.progress import Progress

__all__ = ["Cluster", "ClusterError", "Options", "down", "get", "names", "program", "up"]


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    name: str
    kubeconfig: Path
    """The administrator's; valid from the host."""
    api_server: str
    nodes: tuple[str, ...]
    """Real nodes; simulated ones are named kwok-0000 and so on."""
    host_address: str
    """Where pods reach a process that listens on the host (on this address or on 0.0.0.0)."""
    pod_cidr: str
    service_cidr: str
    s3_endpoint: str = ""
    """One URL for the host and for pods; empty without an S3 server."""
    s3_access_key: str = ""
    s3_secret_key: str = field(default="", repr=False)
    s3_region: str = storage.REGION
    audit_log: Path | None = None
    directory: Path = Path()
    """State: logs/, s3/ (objects are plain files), nodes/."""

    @property
    def kubectl(self) -> Path:
        """kubectl of the cluster's version; give it --kubeconfig, or `environment()`."""
        return program("kubectl")

    @property
    def helm(self) -> Path:
        return program("helm")

    def environment(self) -> dict[str, str]:
        """Variables for tools that should use this cluster: kubectl, helm, boto3, the AWS command line."""
        variables = {"KUBECONFIG": str(self.kubeconfig)}
        if self.s3_endpoint:
            variables |= {
                "AWS_ENDPOINT_URL": self.s3_endpoint,
                "AWS_ACCESS_KEY_ID": self.s3_access_key,
                "AWS_SECRET_ACCESS_KEY": self.s3_secret_key,
                "AWS_REGION": self.s3_region,
                "AWS_DEFAULT_REGION": self.s3_region,
            }
        if any(name in os.environ for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")):
            direct = [
                os.environ.get("NO_PROXY", ""),
                self.pod_cidr,
                self.service_cidr,
                self.api_server.split("/")[2].split(":")[0],
            ]
            variables["NO_PROXY"] = variables["no_proxy"] = ",".join(filter(None, direct))
        return variables

    def stop_node(self, name: str) -> None:
        """A power cut of one node: kubelet, containerd, its containers and its network are gone at once."""
        site = self._site(name)
        with _busy(self.name):
            node.stop(site, name)

    def start_node(self, name: str) -> None:
        """Powers a stopped node on again and returns when it is Ready with its GPUs."""
        site = self._site(name)
        with _busy(self.name):
            if processes.find(site.directory, network.anchor_name(name)):
                raise ClusterError(f"{name} is running: stop it first")
            node.start_machine(site, name)
            node.join(site, name)
            node.wait_ready(site, ApiClient(site), name)

    def kill_agents(self, name: str) -> list[int]:
        """Kills one node's kubelet and containerd; its containers go on. Returns the pids."""
        return node.kill_agents(self._site(name), name)

    def start_agents(self, name: str) -> None:
        """Starts them again and returns when the node is Ready with its GPUs."""
        site = self._site(name)
        with _busy(self.name):
            node.start_containerd(site, name, network.anchor(site, name))
            node.join(site, name)
            node.wait_ready(site, ApiClient(site), name)

    def process(self, name: str) -> processes.Process:
        """A process of the control plane: etcd, kube-apiserver, coredns, versitygw and so on.

        Raises ClusterError when it does not run.
        """
        running = processes.find(self._site().directory, name)
        if running is None:
            raise ClusterError(f"{name} of cluster {self.name} does not run")
        return running

    def stop_apiserver(self) -> None:
        """Stops kube-apiserver; everything else goes on. It is killed when open watches keep it from ending soon."""
        site = self._site()
        running = processes.find(site.directory, "kube-apiserver")
        if running:
            processes.stop(running, timeout_s=2)

    def start_apiserver(self) -> None:
        """Starts kube-apiserver again and returns when it is ready."""
        site = self._site()
        controlplane.start_apiserver(site)
        controlplane.wait_ready(site)

    def announce_s3(self) -> None:
        """Names the S3 server in the cluster, http://s3.muster-system.svc:7070, as a start does: again where somebody
        has deleted that Service, or the namespace that it stands in. Nothing without an S3 server.

        Raises ClusterError with the API server's answer, and OSError where it can't be reached.
        """
        site = self._site()
        if site.options.wants_s3:
            storage.announce(site, ApiClient(site))

    def import_images(self, archives: list[Path], progress: Progress | None = None) -> None:
        """Imports OCI archives into every running node; images that are there already are skipped."""
        images.import_archives(self._site(), archives, progress or Progress(quiet=True))

    def build_image(
        self,
        name: str,
        containerfile: Path,
        context: Path,
        build_args: dict[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Builds an image and imports it into every node. `FROM localhost/muster/base:local` and
        `localhost/muster/torch:local` are there to start from; `name` needs a tag other than `latest`."""
        images.build_and_import(
            self._site(), name, containerfile, context, build_args or {}, progress or Progress(quiet=True)
        )

    def _site(self, node_name: str | None = None) -> Site:
        site = state.require(self.name)
        if node_name is not None and node_name not in site.options.node_names:
            raise ClusterError(f"no node {node_name}: there are {', '.join(site.options.node_names) or 'none'}")
        return site


def program(name: str) -> Path:
    """Path of one of the cluster's programs (kubectl, helm, ctr, ...), built when the cache lacks it."""
    build.ensure([name], Progress())
    return build.program(name)


def names() -> list[str]:
    """Every cluster of this user that is up, or whose remains are still to be taken down."""
    return sorted({*state.names(), *kind.names()})


def get(name: str = "muster") -> Cluster:
    """The running cluster of that name; raises ClusterError when there is none."""
    return _describe(state.require(name))


def options(name: str) -> Options:
    """Those of the running cluster of that name; raises ClusterError when there is none."""
    return state.require(name).options


def up(options: Options, progress: Progress | None = None) -> Cluster:
    """Starts a cluster, or returns the one that is up with the same options.

    Whatever goes wrong on the way, an interrupt included, the start is undone before the exception leaves.
    """
    progress = progress or Progress()
    options.check()
    if kind.docker_answers():
        return kind_cluster(options, progress)
    preflight.check(options, warm=_is_warm(options))
    with _busy(options.name):
        running = _reuse(options, progress)
        if running:
            return running
        prepare(options, progress)
        return _start(options, progress)


def kind_cluster(options: Options, progress: Progress) -> Cluster:
    """The same through kind, where Docker is."""
    kubeconfig = kind.up(options, progress)
    return Cluster(
        name=options.name,
        kubeconfig=kubeconfig,
        api_server=kind.api_server(kubeconfig),
        nodes=kind.node_names(options),
        host_address="host.docker.internal",
        pod_cidr=kind.POD_CIDR,
        service_cidr=kind.SERVICE_CIDR,
    )


def prepare(options: Options, progress: Progress) -> None:
    """Everything that can be done before anything runs: programs, packages, images, PyTorch. All of it is cached."""
    packages.ensure(versions.DEBIAN_CONTROL_PLANE, progress)
    wanted = [*versions.CONTROL_PLANE_PROGRAMS]
    if options.real_nodes:
        packages.ensure(versions.DEBIAN_NODE, progress)
        wanted += [*versions.NODE_PROGRAMS, "helm"]
    wanted += ["kwok"] if options.kwok_nodes else []
    wanted += ["versitygw"] if options.wants_s3 else []
    build.ensure(wanted, progress)
    if options.real_nodes:
        seed.ensure(progress)
        if options.torch:
            torchtree.ensure(progress)
    cache.mark_used()


def down(name: str) -> None:
    """Takes a cluster away; raises ClusterError that lists what could not be removed."""
    if kind.owns(name):
        kind.down(name)
        return
    with _busy(name):
        known = state.load(name)
        if known is not None:
            _remove(known[0])


def _is_warm(options: Options) -> bool:
    return all(build.program(name).exists() for name in versions.CONTROL_PLANE_PROGRAMS + versions.NODE_PROGRAMS)


def _busy(name: str) -> AbstractContextManager[None]:
    return locked(cache_root() / "locks" / f"cluster-{name}.lock")


def _reuse(options: Options, progress: Progress) -> Cluster | None:
    known = state.load(options.name)
    if known is None:
        return None
    site, phase = known
    if phase == "ready" and processes.find(site.directory, "kube-apiserver"):
        if site.options == options:
            return _describe(site)
        down = "make cluster-down"
        if options.name != Options.name:
            down = f".venv/bin/python -m hack.cluster down --name {options.name}"
        raise ClusterError(
            f"cluster `{options.name}` is up with other options, {site.options.beside(options)}: take it down first by"
            f" `{down}`, or start another beside it by `.venv/bin/python -m hack.cluster up --name NAME`"
        )
    progress.say(f"  removing what cluster {options.name} left when it crashed")
    _remove(site)
    return None


def _remove(site: Site) -> None:
    with suppress(FileNotFoundError):
        state.save(site, phase="stopping")
    left = teardown.remove(site)
    if left:
        raise ClusterError(f"cluster `{site.options.name}` is down, but left behind:\n  " + "\n  ".join(left))


def _start(options: Options, progress: Progress) -> Cluster:
    try:
        with progress.part(f"start cluster {options.name}"):
            site = state.create(options)
            _bring_up(site, progress)
            state.save(site, phase="ready")
    except BaseException:
        known = state.load(options.name)
        if known:
            progress.say("  undoing the start")
            _remove(known[0])
        raise
    return _describe(site)


def _bring_up(site: Site, progress: Progress) -> None:
    options = site.options
    if options.real_nodes:
        state.ensure_mount_points()
        (site.directory / "seed").symlink_to(seed.ensure(progress))
    network.start_anchor(site, network.HUB, {})
    network.connect_hub(site)
    pki.write(site)
    with ThreadPoolExecutor(max_workers=8) as pool, _cutting_short(site):
        machines = [pool.submit(node.start_machine, site, name) for name in options.node_names]
        controlplane.start_etcd(site)
        controlplane.start_apiserver(site)
        if options.wants_s3:
            storage.start(site)
        controlplane.wait_ready(site)
        controlplane.start_scheduler(site)
        controlplane.start_controller_manager(site)
        client = ApiClient(site)
        if options.wants_s3:
            storage.announce(site, client)
        _all(machines)
        for name in options.node_names:
            node.join(site, name)
        if options.node_names:
            dns.start(site, client)
            node.start_proxy(site, network.HUB, options.node_names[0], site.addresses.hub)
        if options.kwok_nodes:
            kwok.start(site, client)
        _all([pool.submit(node.wait_ready, site, ApiClient(site), name) for name in options.node_names])
    if options.kwok_nodes:
        kwok.wait_ready(site, client)
    if options.wants_s3:
        storage.wait_ready(site)
    _wait_service_account(client)


@contextmanager
def _cutting_short(site: Site) -> Iterator[None]:
    """When one part of a start fails, or we are interrupted, the others end with their processes instead of waiting."""
    try:
        yield
    except BaseException:
        processes.kill_all(site.directory, site.slot)
        raise


def _wait_service_account(client: ApiClient) -> None:
    """Pods are refused before the controller manager has made this."""
    path = "/api/v1/namespaces/default/serviceaccounts/default"
    wait_for("the default service account's appearing", lambda: client.get(path) is not None, 30, lambda: "")


def _all(futures: list[Future[None]]) -> None:
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()


def _describe(site: Site) -> Cluster:
    with_s3 = site.options.wants_s3
    return Cluster(
        name=site.options.name,
        kubeconfig=site.kubeconfig,
        api_server=site.addresses.api_url,
        nodes=site.options.node_names,
        host_address=site.addresses.host,
        pod_cidr=site.addresses.pod_cidr,
        service_cidr=site.addresses.service_cidr,
        s3_endpoint=site.addresses.s3_url if with_s3 else "",
        s3_access_key=site.secrets["s3-access-key"] if with_s3 else "",
        s3_secret_key=site.secrets["s3-secret-key"] if with_s3 else "",
        audit_log=controlplane.audit_log(site) if site.options.audit_log else None,
        directory=site.directory,
    )
