"""A containerd root with the standard images in it, from which each node's is made in a second.

Importing and unpacking the images takes some seconds of processor time a node. It is done once; a node then gets a
tree of hard links to the same layers (which containerd and overlayfs only ever read) and its own copy of the databases.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from hack.cluster import build, images, versions
from hack.cluster.errors import ClusterError
from hack.cluster.paths import cache_root, locked
from hack.cluster.processes import run, run_logged
from hack.cluster.progress import Progress

_CONFIG = """\
version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
  "io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/containerd.sock"
"""

# containerd, the imports, containerd's end.
_SCRIPT = """\
"$CONTAINERD" --config "$FOLDER/config.toml" --log-level warn &
pid=$!
trap 'kill $pid; wait $pid' EXIT
trap 'exit 130' INT TERM
until [ -S "$FOLDER/containerd.sock" ]; do kill -0 $pid || exit 1; sleep 0.05; done
for archive in $ARCHIVES; do
  "$CTR" --address "$FOLDER/containerd.sock" --namespace k8s.io images import "$archive" || exit 1
done
"""


def ensure(progress: Progress) -> Path:
    """Makes the seed for today's images when the cache lacks it, and returns its folder."""
    archives = images.archives(progress)
    target = folder_of(archives)
    if not target.exists():
        with locked(target.parent / ".lock"):
            if not target.exists():
                with progress.part("unpack the standard images for the nodes"):
                    _make(target, archives)
    return target


def folder_of(archives: list[Path]) -> Path:
    """Of the seed with these images."""
    text = " ".join([versions.CONTAINERD, *(str(path.relative_to(cache_root())) for path in archives)])
    return cache_root() / "seed" / hashlib.sha256(text.encode()).hexdigest()[:12]


def _make(target: Path, archives: list[Path]) -> None:
    for stale in target.parent.glob(".seed-*"):
        shutil.rmtree(stale, ignore_errors=True)  # we hold the lock: an interrupted start left it
    log = cache_root() / "log" / "seed.log"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".seed-") as folder:
        # A unix socket's path may not be long, so the work is done under a short name.
        with tempfile.TemporaryDirectory(prefix="muster-seed-", dir="/run") as short:
            (Path(short) / "root").symlink_to(Path(folder) / "root")
            (Path(folder) / "root").mkdir()
            (Path(short) / "config.toml").write_text(_CONFIG.format(folder=short))
            environment = {
                **os.environ,
                "FOLDER": short,
                "ARCHIVES": " ".join(str(archive) for archive in archives),
                "CONTAINERD": str(build.program("containerd")),
                "CTR": str(build.program("ctr")),
            }
            # In a mount namespace of its own, so that an interrupt leaves no mount.
            command = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _SCRIPT]
            run_logged(command, log, env=environment)
        (Path(folder) / "root").rename(target)


def plant(source: Path, root: Path) -> None:
    """Makes a node's containerd root from a seed."""
    root.mkdir(parents=True)
    started = time.monotonic()
    for entry in sorted(source.iterdir()):
        if not entry.is_dir():
            continue
        linked = os.stat(source).st_dev == os.stat(root).st_dev
        run(["cp", "--archive", *(["--link"] if linked else []), str(entry), str(root)])
    for database in [*source.rglob("*.db")]:
        copy = root / database.relative_to(source)
        copy.unlink()
        shutil.copy2(database, copy)
    if time.monotonic() - started > 60:
        raise ClusterError(
            f"copying the images of a node took over a minute: put the cache ({source}) and the state ({root}) on"
            " one file system"
        )
