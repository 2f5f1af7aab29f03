"""Builds the project's own images for the local cluster: `python -m hack.images`, which `make images` calls.

    localhost/muster/operator:local   the operator, from wheels that the host brought: the build itself needs no network
    localhost/muster/runtime:local    what the init container copies into training pods
    localhost/muster/examples:local   the examples on the PyTorch image, with nothing of Muster in it

An image is built only when something that goes into it has changed, and a node gets it only when it lacks it.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hack import vendor
from hack.cluster import api, packages, versions
from hack.cluster import images as cluster_images
from hack.cluster.errors import ClusterError
from hack.cluster.paths import cache_root, locked
from hack.cluster.processes import run_logged
from hack.cluster.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
OPERATOR = "localhost/muster/operator:local"
RUNTIME = "localhost/muster/runtime:local"
EXAMPLES = "localhost/muster/examples:local"

_SKIPPED = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


@dataclass(frozen=True)
class Recipe:
    """One image: what it is built from, and how its build context is filled."""

    name: str
    containerfile: str
    base: str
    inputs: tuple[str, ...]
    """Files and folders of the repository; when one changes, the image is built anew."""
    fill: Callable[[Path, Progress], None]


def build_all(cluster: api.Cluster, progress: Progress) -> dict[str, str]:
    """Builds what changed and gives every node of `cluster` all images. Returns name -> key of what is in it."""
    built = {recipe.name: archive(recipe, progress) for recipe in RECIPES}
    cluster.import_images([*built.values()], progress)
    return {name: path.stem for name, path in built.items()}


def archive(recipe: Recipe, progress: Progress) -> Path:
    """The image as an OCI archive in the cache, built when missing."""
    base = next(path for path in cluster_images.archives(progress) if path.stem == recipe.base)
    name = recipe.name.rsplit("/", 1)[-1].split(":")[0]
    target = cache_root() / "images" / "built" / f"{name}-{_key(f'{base.parent.name}/{base.name}', recipe)}.tar"
    with locked(cache_root() / "locks" / f"image-{name}.lock"):
        if target.exists():
            return target
        packages.ensure(versions.DEBIAN_IMAGE_BUILD, progress)
        with progress.part(f"build image {recipe.name}"), tempfile.TemporaryDirectory(prefix="muster-image-") as folder:
            context = Path(folder)
            recipe.fill(context, progress)
            arguments = {"BASE": f"localhost/muster/{recipe.base}:local"}
            cluster_images.build_archive(recipe.name, ROOT / recipe.containerfile, context, arguments, target)
        for older in target.parent.glob(f"{name}-*.tar"):
            if older != target:
                older.unlink()
    return target


# ------------------------------------------------------------------------------------------------------------- contexts


def _operator_context(context: Path, progress: Progress) -> None:
    """`wheels/` has every dependency at its locked version, `own/` the operator and the protocol it shares."""
    wheels, own = context / "wheels", context / "own"
    shutil.copytree(_locked_wheels(progress), wheels)
    log = cache_root() / "log" / "wheels.log"
    for package in ("muster", "muster-runtime"):
        run_logged([_uv(), "build", "--quiet", "--wheel", "--package", package, "--out-dir", str(own)], log, cwd=ROOT)
    (own / ".gitignore").unlink(missing_ok=True)


def _locked_wheels(progress: Progress) -> Path:
    """The dependencies' wheels for the base image's Python, fetched with the host's own pip and uv settings."""
    command = [_uv(), "export", "--quiet", "--locked", "--no-dev", "--no-emit-workspace", "--no-annotate"]
    done = subprocess.run([*command, "--no-header"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"`uv export` failed: {done.stderr.strip()}")
    key = hashlib.sha256(f"{versions.POD_PYTHON} {platform.machine()}\n{done.stdout}".encode()).hexdigest()[:10]
    target = cache_root() / "wheels" / key
    with locked(cache_root() / "locks" / "wheels.lock"):
        if not target.exists():
            with progress.part("fetch the operator's dependencies"):
                _download(done.stdout, target)
    return target


def _download(requirements: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".wheels-") as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text(requirements)
        fresh = Path(folder) / "wheels"
        platforms = [f"--platform=manylinux_2_{minor}_{platform.machine()}" for minor in (36, 34, 28, 17)]
        platforms.append(f"--platform=manylinux2014_{platform.machine()}")
        pip = [
            _uv(),
            "run",
            "--quiet",
            "--no-project",
            "--with",
            "pip",
            "--python",
            sys.executable,
            "python",
            "-m",
            "pip",
        ]
        choice = ["--no-deps", "--require-hashes", "--only-binary=:all:", f"--python-version={versions.POD_PYTHON}"]
        fetch = [*pip, "download", "--quiet", *choice, *platforms, "-r", str(listed), "-d", str(fresh)]
        run_logged(fetch, cache_root() / "log" / "pip-download.log")
        fresh.rename(target)


def _runtime_context(context: Path, progress: Progress) -> None:
    try:
        vendor.write_context(context)
    except vendor.VendorError as error:
        raise ClusterError(f"the runtime's libraries cannot be brought: {error}") from error


def _examples_context(context: Path, progress: Progress) -> None:
    shutil.copytree(ROOT / "examples", context / "examples", ignore=shutil.ignore_patterns(*_SKIPPED))


_PACKAGE = ("pyproject.toml", "uv.lock", "README.md", "LICENSE", "runtime/pyproject.toml", "runtime/muster_protocol")
RECIPES = (
    Recipe(
        OPERATOR,
        "images/operator/Containerfile",
        "base",
        (*_PACKAGE, "operator", "runtime/muster_runtime", "images/operator"),
        _operator_context,
    ),
    Recipe(
        RUNTIME,
        "images/runtime/Containerfile",
        "base",
        (*_PACKAGE, "runtime/muster_runtime", "images/runtime", "hack/vendor.py"),
        _runtime_context,
    ),
    Recipe(
        EXAMPLES,
        "images/examples/Containerfile",
        "torch",
        ("examples", "images/examples", "images/base/Containerfile.torch"),
        _examples_context,
    ),
)


# ----------------------------------------------------------------------------------------------------------------- keys


def _key(base: str, recipe: Recipe) -> str:
    """Ten hex digits that change with anything that goes into the image."""
    digest = hashlib.sha256(f"{base} {recipe.containerfile}\0".encode())
    digest.update(Path(__file__).read_bytes())
    for path in _files(ROOT / name for name in recipe.inputs):
        digest.update(f"{path.relative_to(ROOT)} {path.stat().st_mode & 0o111:o}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:10]


def _files(paths: Iterable[Path]) -> list[Path]:
    found: set[Path] = set()
    for path in paths:
        if path.is_file():
            found.add(path)
        elif path.is_dir():
            found |= {f for f in path.rglob("*") if f.is_file() and not _SKIPPED.intersection(f.parts)}
        else:
            raise ClusterError(f"{path} is missing: check the repository out again")
    return sorted(found)


def _uv() -> str:
    return shutil.which("uv") or str(cache_root() / "uv" / "bin" / "uv")


def write_contexts(folder: Path, progress: Progress) -> None:
    """Fill `folder/operator` and `folder/runtime` with all that docker or buildah needs to build the two images."""
    for recipe in (recipe for recipe in RECIPES if recipe.name in (OPERATOR, RUNTIME)):
        context = folder / Path(recipe.containerfile).parent.name
        if context.exists():
            raise ClusterError(f"{context} exists already: remove it, or give another folder")
        context.mkdir(parents=True)
        recipe.fill(context, progress)
        shutil.copy(ROOT / recipe.containerfile, context / "Containerfile")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.images", description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="muster", help="the cluster (default: %(default)s)")
    parser.add_argument("--contexts", type=Path, help="build nothing: write the two build contexts into this folder")
    arguments = parser.parse_args()
    try:
        if arguments.contexts:
            write_contexts(arguments.contexts, Progress())
        else:
            build_all(api.get(arguments.name), Progress())
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
