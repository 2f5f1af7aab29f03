"""PyTorch for pods: a folder that every container sees at /opt/torch, read-only.

PyTorch's CUDA build takes 5 GB. Packed into an image it would be written to disk once for the image and once for each
node. Instead the nodes' containerd shows one folder in every container, as NVIDIA's container runtime shows the
driver's libraries. The folder has a virtual environment's shape for Debian 12's python3, which the base image carries,
and its files are hard links into uv's cache: it takes no room of its own. A GPU cluster's images bring their own
PyTorch, and nothing of Muster knows about this folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import tomllib

from hack.cluster import versions
from hack.cluster.errors import ClusterError
from hack.cluster.packages import uv_command
from hack.cluster.paths import cache_root, locked
from hack.cluster.processes import run_logged
from hack.cluster.progress import Progress

IN_CONTAINER = "/opt/torch"
_LOCK_FILE = Path(__file__).resolve().parents[2] / "uv.lock"


def locked_versions() -> dict[str, str]:
    """torch and numpy as uv.lock pins them, so that pods and the developer's environment agree."""
    if not _LOCK_FILE.exists():
        raise ClusterError(f"{_LOCK_FILE} is missing, and with it the version of torch: check the file out again")
    document = tomllib.loads(_LOCK_FILE.read_text())
    found: dict[str, str] = {}
    for package in document["package"]:
        if package["name"] in ("torch", "numpy"):
            # numpy may be pinned once per Python version; the oldest serves the pods' Python.
            found[package["name"]] = min(package["version"], found.get(package["name"], package["version"]))
    return found


def folder() -> Path:
    """Where the tree lies; an empty folder beside it serves clusters without PyTorch."""
    pins = locked_versions()
    return cache_root() / "torch" / "-".join(["py" + versions.POD_PYTHON, *(f"{k}-{v}" for k, v in pins.items())])


def empty_folder() -> Path:
    path = _none()
    path.mkdir(parents=True, exist_ok=True)
    return path


def entries() -> list[Path]:
    """The entries of the cache that today's clusters show their pods."""
    return [folder(), _none()]


def _none() -> Path:
    return cache_root() / "torch" / "none"


def ensure(progress: Progress) -> Path:
    """Fills the tree, from uv's cache where it has the wheels."""
    target = folder()
    if target.exists():
        return target
    with locked(target.parent / ".lock"):
        if not target.exists():
            with progress.part(f"torch {locked_versions()['torch']} for pods (5 GB to fetch unless uv has it)"):
                _fill(target)
    return target


def _fill(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".torch-") as name:
        fresh = Path(name) / "tree"
        packages = fresh / "lib" / f"python{versions.POD_PYTHON}" / "site-packages"
        packages.mkdir(parents=True)
        (fresh / "bin").mkdir()
        (fresh / "bin" / "python3").symlink_to("/usr/bin/python3")
        (fresh / "bin" / "python").symlink_to("python3")
        (fresh / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        pins = [f"{name}=={version}" for name, version in locked_versions().items()]
        # uv refuses a --python-version without an interpreter only when it must build; wheels need none.
        command = [*uv_command(), "pip", "install", "--target", str(packages), "--link-mode", "hardlink"]
        command += ["--python-version", versions.POD_PYTHON, "--only-binary", ":all:", "--no-config", *pins]
        run_logged(command, cache_root() / "log" / "torch.log", env={**os.environ})
        _compile(packages)
        fresh.chmod(0o755)
        fresh.rename(target)


def _compile(packages: Path) -> None:
    """Compiles the modules once, for pods cannot write to the folder: it saves each rank a second or more of its start.

    Only Python of the pods' own version can do it; without one the folder serves as it is.
    """
    python = shutil.which(f"python{versions.POD_PYTHON}")
    if python is not None:
        # Some packages carry files for other versions of Python, which do not compile: that is no error.
        # Pods look into the tree, wherever this process keeps what it compiles itself.
        own = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
        environment = {key: value for key, value in os.environ.items() if key not in own}
        compiler = [python, "-m", "compileall", "-q", "-q", "-j", "0", str(packages)]
        subprocess.run(compiler, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
