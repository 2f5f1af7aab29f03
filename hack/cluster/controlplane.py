"""etcd, kube-apiserver, kube-scheduler and kube-controller-manager, in the hub."""

from __future__ import annotations

from pathlib import Path

import yaml

from hack.cluster import build, network, processes
from hack.cluster.apiclient import ApiClient, wait_for
from hack.cluster.errors import ClusterError, log_tail
from hack.cluster.plan import API_PORT, Site
from hack.cluster.processes import Launcher, Process

READY_TIMEOUT_S = 90.0

# Numbers for a cluster that is there to be tested: clients are not throttled, and a dead node is noticed soon.
_CLIENT_QPS = ["--kube-api-qps=400", "--kube-api-burst=800"]


def start_etcd(site: Site) -> Process:
    """Starts etcd, which only the hub itself can reach. Nothing is synced to disk: a machine's crash may lose it."""
    return _start(
        site,
        "etcd",
        [
            f"--data-dir={site.directory / 'etcd'}",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=4294967296",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=30m",
            "--log-level=warn",
        ],
    )


def start_apiserver(site: Site) -> Process:
    """Starts the API server; `wait_ready` tells when it answers."""
    pki, plan, options = site.directory / "pki", site.addresses, site.options
    arguments = [
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={plan.hub}",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--token-auth-file={pki / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--kubelet-client-certificate={pki / 'apiserver-to-kubelet.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-to-kubelet.key'}",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'service-account.pub'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        f"--service-cluster-ip-range={plan.service_cidr}",
        "--allow-privileged=true",
        # The hub has no pods of its own; webhooks and aggregated APIs are called at their pods' addresses.
        "--enable-aggregator-routing=true",
        "--max-requests-inflight=1600",
        "--max-mutating-requests-inflight=800",
        "--profiling=false",
        "--shutdown-delay-duration=0s",
    ]
    if options.audit_log:
        arguments += [
            f"--audit-policy-file={_write_audit_policy(site)}",
            f"--audit-log-path={audit_log(site)}",
            "--audit-log-format=json",
            "--audit-log-mode=blocking",
        ]
    if options.feature_gates:
        arguments.append(f"--feature-gates={options.feature_gates}")
    if options.runtime_config:
        arguments.append(f"--runtime-config={options.runtime_config}")
    return _start(site, "kube-apiserver", arguments)


def start_scheduler(site: Site) -> Process:
    """Starts kube-scheduler with unthrottled clients."""
    config = site.directory / "scheduler.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "leaderElection": {"leaderElect": False},
                "clientConnection": {
                    "kubeconfig": str(site.kubeconfig_of("kube-scheduler")),
                    "qps": 400,
                    "burst": 800,
                },
            }
        )
    )
    arguments = [f"--config={config}", "--bind-address=127.0.0.1", *_authentication(site, "kube-scheduler")]
    if site.options.feature_gates:
        arguments.append(f"--feature-gates={site.options.feature_gates}")
    return _start(site, "kube-scheduler", arguments)


def start_controller_manager(site: Site) -> Process:
    """Starts kube-controller-manager, which takes a node for lost after 16 s without a sign of life; 40 s where
    simulated nodes share the processor, for kwok renews their leases every 10 s."""
    pki = site.directory / "pki"
    grace_s = 40 if site.options.kwok_nodes else 16
    arguments = [
        f"--kubeconfig={site.kubeconfig_of('kube-controller-manager')}",
        *_authentication(site, "kube-controller-manager"),
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--service-account-private-key-file={pki / 'service-account.key'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        f"--service-cluster-ip-range={site.addresses.service_cidr}",
        "--allocate-node-cidrs=false",
        "--node-monitor-period=2s",
        f"--node-monitor-grace-period={grace_s}s",
        *_CLIENT_QPS,
    ]
    if site.options.feature_gates:
        arguments.append(f"--feature-gates={site.options.feature_gates}")
    return _start(site, "kube-controller-manager", arguments)


def wait_ready(site: Site) -> None:
    """Returns when the API server says that it is ready and the `default` namespace is there."""
    client = ApiClient(site)

    def ready() -> bool:
        for name in ("etcd", "kube-apiserver"):
            if processes.find(site.directory, name) is None:
                raise ClusterError(f"{name} ended while it started:\n{log_tail(site.logs / (name + '.log'))}")
        return client.call("GET", "/readyz")[0] == 200 and client.get("/api/v1/namespaces/default") is not None

    def log() -> str:
        return log_tail(site.logs / "kube-apiserver.log")

    wait_for("the API server's getting ready", ready, READY_TIMEOUT_S, log)


def audit_log(site: Site) -> Path:
    """One JSON document a line for each request, when `audit_log` was asked for."""
    return site.logs / "audit.log"


def _authentication(site: Site, identity: str) -> list[str]:
    path = site.kubeconfig_of(identity)
    return [f"--authentication-kubeconfig={path}", f"--authorization-kubeconfig={path}"]


def _write_audit_policy(site: Site) -> Path:
    path = site.directory / "audit-policy.yaml"
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata"}],
    }
    path.write_text(yaml.safe_dump(policy))
    return path


def _start(site: Site, name: str, arguments: list[str]) -> Process:
    running = processes.find(site.directory, name)
    if running:
        return running
    launcher = Launcher(site.directory, site.slot, network.HUB)
    inside = network.anchor(site, network.HUB)
    return launcher.start(name, [str(build.program(name)), *arguments], inside=inside)
