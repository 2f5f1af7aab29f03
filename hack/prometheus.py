"""Prometheus' own programs, for tests: the machine's, or else Debian's package, unpacked in the cache.

It is not installed, for that would start a server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from hack.cluster.errors import ClusterError
from hack.cluster.paths import cache_root, locked

_PACKAGE: Final = "prometheus"


def program(name: str) -> Path:
    """`promtool` or `prometheus`. Raises ClusterError where it is missing and can't be brought."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    folder = cache_root() / _PACKAGE
    with locked(cache_root() / "locks" / "prometheus.lock"):
        if not folder.exists():
            _bring(folder)
    return folder / "usr" / "bin" / name


def _bring(folder: Path) -> None:
    if shutil.which("apt-get") is None:
        raise ClusterError(f"{_PACKAGE} is missing, and this is no Debian: install it by your own means")
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    if not _run(["apt-get", "download", _PACKAGE], new):  # the package lists are missing, or too old
        _run(["apt-get", "-q", "update"], new)
        if not _run(["apt-get", "download", _PACKAGE], new):
            raise ClusterError(f"{_PACKAGE} is missing: type apt-get install {_PACKAGE}")
    (archive,) = new.glob("*.deb")
    if not _run(["dpkg-deb", "-x", str(archive), str(new)], new):
        raise ClusterError(f"{archive} can't be unpacked")
    archive.unlink()
    new.rename(folder)


def _run(command: list[str], folder: Path) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True).returncode == 0
