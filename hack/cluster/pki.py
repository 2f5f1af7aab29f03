"""Certificates, tokens and kubeconfigs of one cluster."""

from __future__ import annotations

from pathlib import Path

import yaml

from hack.cluster.paths import write_atomically
from hack.cluster.plan import Site
from hack.cluster.processes import run

# Identity -> user name and groups. Kubernetes' own bootstrap roles know all of these but the last two, for which
# dns.py and kwok.py make roles.
_USERS = {
    "admin": ("admin", "system:masters"),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-proxy": ("system:kube-proxy", ""),
    "coredns": ("system:coredns", ""),
    "kwok": ("system:kwok", ""),
}


def write(site: Site) -> None:
    """Writes everything under the cluster's `pki` folder, and the administrator's kubeconfig."""
    folder = site.directory / "pki"
    folder.mkdir(mode=0o700, exist_ok=True)
    _authority(folder)
    names = "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
    plan = site.addresses
    _certificate(folder, "apiserver", "/CN=kube-apiserver", f"{names},IP:{plan.hub},IP:{plan.api_service},IP:127.0.0.1")
    _certificate(folder, "apiserver-to-kubelet", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    _key(folder / "service-account.key")
    run(
        [
            "openssl",
            "ec",
            "-in",
            str(folder / "service-account.key"),
            "-pubout",
            "-out",
            str(folder / "service-account.pub"),
        ]
    )
    rows = []
    for identity in (*_USERS, *site.options.node_names):
        user, groups = _USERS.get(identity, (f"system:node:{identity}", "system:nodes"))
        rows.append(f'{site.secrets[identity]},{user},{user},"{groups}"')
        path = site.kubeconfig if identity == "admin" else site.kubeconfig_of(identity)
        write_atomically(path, _kubeconfig(site, identity))
    write_atomically(folder / "tokens.csv", "\n".join(rows) + "\n")


def _kubeconfig(site: Site, identity: str) -> str:
    name = f"muster-{site.options.name}"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": name,
                    "cluster": {
                        "server": site.addresses.api_url,
                        "certificate-authority": str(site.directory / "pki" / "ca.crt"),
                    },
                }
            ],
            "users": [{"name": identity, "user": {"token": site.secrets[identity]}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": identity, "namespace": "default"}}],
            "current-context": name,
        },
        sort_keys=False,
    )


def _key(path: Path) -> None:
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(path)])
    path.chmod(0o600)


def _authority(folder: Path) -> None:
    _key(folder / "ca.key")
    run(
        [
            "openssl",
            "req",
            "-x509",
            "-new",
            "-key",
            str(folder / "ca.key"),
            "-days",
            "3650",
            "-sha256",
            "-subj",
            "/CN=muster-local-cluster",
            "-out",
            str(folder / "ca.crt"),
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        ]
    )


def _certificate(folder: Path, name: str, subject: str, alternative_names: str = "") -> None:
    _key(folder / f"{name}.key")
    run(
        [
            "openssl",
            "req",
            "-new",
            "-key",
            str(folder / f"{name}.key"),
            "-subj",
            subject,
            "-out",
            str(folder / f"{name}.csr"),
        ]
    )
    extensions = ["keyUsage=critical,digitalSignature,keyEncipherment", "extendedKeyUsage=serverAuth,clientAuth"]
    if alternative_names:
        extensions.append(f"subjectAltName={alternative_names}")
    (folder / f"{name}.ext").write_text("\n".join(extensions) + "\n")
    run(
        [
            "openssl",
            "x509",
            "-req",
            "-in",
            str(folder / f"{name}.csr"),
            "-days",
            "3650",
            "-sha256",
            "-CA",
            str(folder / "ca.crt"),
            "-CAkey",
            str(folder / "ca.key"),
            "-CAcreateserial",
            "-extfile",
            str(folder / f"{name}.ext"),
            "-out",
            str(folder / f"{name}.crt"),
        ]
    )
