"""Debian packages that the cluster needs, installed by apt-get where they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from hack.cluster.errors import ClusterError
from hack.cluster.paths import cache_root, locked
from hack.cluster.processes import run_logged
from hack.cluster.progress import Progress


def ensure(packages: Iterable[tuple[str, str]], progress: Progress) -> None:
    """Installs those packages whose telltale file is missing.

    Raises ClusterError with the command to type where this cannot be done.
    """
    missing = _missing(packages)
    if not missing:
        return
    by_hand = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(missing)}"
    if shutil.which("apt-get") is None:
        raise ClusterError(f"missing: {', '.join(missing)}; this is no Debian, so install them by your own means")
    if os.geteuid() != 0:
        raise ClusterError(f"missing: {', '.join(missing)}; as root type: {by_hand}")
    with locked(cache_root() / "locks" / "apt.lock"), progress.part(f"install {', '.join(missing)} by apt-get"):
        missing = _missing(packages)
        if missing and not _try_install(missing):
            _apt(["update", "-q"], by_hand)
            _apt([*_INSTALL, *missing], by_hand)


def uv_command() -> list[str]:
    """uv, wherever it is: beside our Python, where hack/setup.sh puts it on a machine without one, or on PATH."""
    for candidate in (Path(sys.executable).parent / "uv", cache_root() / "uv" / "bin" / "uv"):
        if candidate.exists():
            return [str(candidate)]
    found = shutil.which("uv")
    return [found] if found else [sys.executable, "-m", "uv"]


_INSTALL = ["install", "-y", "-q", "--no-install-recommends"]


def _missing(packages: Iterable[tuple[str, str]]) -> list[str]:
    return [name for name, telltale in packages if not Path(telltale).exists()]


def _environment() -> dict[str, str]:
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}


def _try_install(names: list[str]) -> bool:
    """Installs with the package lists that are there; False when they are missing or too old to serve."""
    done = subprocess.run(["apt-get", *_INSTALL, *names], env=_environment(), capture_output=True, text=True)
    return done.returncode == 0


def _apt(arguments: list[str], by_hand: str) -> None:
    try:
        run_logged(["apt-get", *arguments], cache_root() / "log" / "apt.log", env=_environment())
    except ClusterError as error:
        raise ClusterError(f"{error}\n  mend what apt-get says, then type: {by_hand}") from None
