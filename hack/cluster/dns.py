"""Cluster DNS: CoreDNS as a process in the hub, behind the Service that pods' resolv.conf names."""

from __future__ import annotations

from hack.cluster import build, network
from hack.cluster.apiclient import ApiClient, Json
from hack.cluster.plan import Site
from hack.cluster.processes import Launcher, Process

# No cache and a short time to live: a gang's names must be seen the moment its pods have addresses. Names of the world
# outside do not exist here, and are said not to at once.
_COREFILE = """\
.:53 {{
    bind {address}
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig} {context}
        pods insecure
        ttl 2
        fallthrough in-addr.arpa ip6.arpa
    }}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""

_ROLE: Json = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "system:coredns"},
    "rules": [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ],
}


def start(site: Site, client: ApiClient) -> Process:
    """Starts CoreDNS and makes the `kube-dns` Service that leads to it."""
    bind_role(client, _ROLE, "system:coredns")
    corefile = site.directory / "Corefile"
    corefile.write_text(
        _COREFILE.format(
            address=site.addresses.hub,
            kubeconfig=site.kubeconfig_of("coredns"),
            context=f"muster-{site.options.name}",
        )
    )
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    service_to_hub(site, client, "kube-system", "kube-dns", ports, site.addresses.dns_service)
    launcher = Launcher(site.directory, site.slot, network.HUB)
    command = [str(build.program("coredns")), "-conf", str(corefile)]
    return launcher.start("coredns", command, inside=network.anchor(site, network.HUB))


def bind_role(client: ApiClient, role: Json, user: str) -> None:
    """Makes a cluster role and gives it to a user."""
    path = "/apis/rbac.authorization.k8s.io/v1"
    name = role["metadata"]["name"]
    client.apply(f"{path}/clusterroles", role)
    client.apply(
        f"{path}/clusterrolebindings",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        },
    )


def service_to_hub(
    site: Site, client: ApiClient, namespace: str, name: str, ports: list[Json], address: str | None = None
) -> None:
    """Makes a Service without selector whose one endpoint is the hub, where our own processes listen."""
    specification: Json = {"ports": ports} | ({"clusterIP": address} if address else {})
    client.apply(
        f"/api/v1/namespaces/{namespace}/services",
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": specification},
    )
    client.apply(
        f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{name}-hub", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [site.addresses.hub], "conditions": {"ready": True}}],
            "ports": ports,
        },
    )
