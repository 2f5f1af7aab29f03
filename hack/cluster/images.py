"""Images without a registry: built by buildah, carried as OCI archives, imported into each node's containerd."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hack.cluster import build, network, ociarchive, packages, processes, versions
from hack.cluster.errors import ClusterError
from hack.cluster.paths import cache_root, locked
from hack.cluster.plan import Site
from hack.cluster.processes import Process, run, run_in, run_logged
from hack.cluster.progress import Progress

PAUSE = "localhost/muster/pause:local"
BASE = "localhost/muster/base:local"
TORCH = "localhost/muster/torch:local"

_OURS = "localhost/"
_APART = ("unshare", "--mount", "--propagation", "private", "--")
"""buildah's storage makes itself a mount point; in a namespace of its own that leaves with it."""

_RECIPES = Path(__file__).resolve().parents[2] / "images" / "base"
_ROOTFS_PACKAGES = ("python3", "python3-venv", "ca-certificates")


def archives(progress: Progress) -> list[Path]:
    """OCI archives of the images that every node has from the start: pause, base and torch; built when missing."""
    return [_pause(), *_base_and_torch(progress)]


def standard_archives() -> list[Path]:
    """Where `archives` keeps them, of the programs that are built; empty before that."""
    program = build.program("pause")
    return (
        [_pause_archive(program), *(_family_folder() / name for name in ("base.tar", "torch.tar"))]
        if program.exists()
        else []
    )


def entries() -> list[Path]:
    """The entries of the cache that today's images are made of and kept in."""
    return [_rootfs_archive(), _family_folder(), *standard_archives()[:1]]


def _pause_archive(program: Path) -> Path:
    return cache_root() / "images" / f"pause-{_key(program.read_bytes())}.tar"


def _pause() -> Path:
    program = build.program("pause")
    archive = _pause_archive(program)
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        fresh = archive.with_suffix(f".{os.getpid()}")
        architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        ociarchive.write_single_program(fresh, PAUSE, program, architecture)
        fresh.replace(archive)
    return archive


def _base_and_torch(progress: Progress) -> list[Path]:
    base_recipe, torch_recipe = _RECIPES / "Containerfile", _RECIPES / "Containerfile.torch"
    base, torch = _family() / "base.tar", _family() / "torch.tar"
    if base.exists() and torch.exists():
        return [base, torch]
    packages.ensure(versions.DEBIAN_IMAGE_BUILD, progress)
    with locked(cache_root() / "locks" / "base-image.lock"):
        if not base.exists():
            rootfs = _rootfs(progress)
            with (
                progress.part(f"image {BASE}"),
                tempfile.TemporaryDirectory(dir=_family(), prefix=".context-") as context,
            ):
                os.link(rootfs, Path(context) / "rootfs.tar")
                shutil.copy(base_recipe, context)
                build_archive(BASE, base_recipe, Path(context), {}, base)
        if not torch.exists():
            with (
                progress.part(f"image {TORCH}"),
                tempfile.TemporaryDirectory(dir=_family(), prefix=".context-") as context,
            ):
                build_archive(TORCH, torch_recipe, Path(context), {"BASE": BASE}, torch)
    return [base, torch]


def _rootfs_archive() -> Path:
    names = ",".join(_ROOTFS_PACKAGES)
    return cache_root() / "rootfs" / f"debian-{versions.DEBIAN_SUITE}-{_key(names.encode())}.tar"


def _rootfs(progress: Progress) -> Path:
    """A minimal Debian with Python as a tar, by debootstrap."""
    target = _rootfs_archive()
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    log = cache_root() / "log" / "debootstrap.log"
    with (
        progress.part(f"Debian {versions.DEBIAN_SUITE} with Python, by debootstrap"),
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".debootstrap-") as fresh,
    ):
        tree = Path(fresh) / "tree"
        # In a mount namespace of its own: debootstrap mounts /proc and /sys, and may be interrupted.
        run_logged(
            [
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "--",
                "debootstrap",
                "--variant=minbase",
                f"--include={','.join(_ROOTFS_PACKAGES)}",
                versions.DEBIAN_SUITE,
                str(tree),
            ],
            log,
        )
        shutil.rmtree(tree / "var" / "cache" / "apt", ignore_errors=True)
        for lists in (tree / "var" / "lib" / "apt" / "lists").iterdir():
            shutil.rmtree(lists) if lists.is_dir() else lists.unlink()
        pack = ["tar", "--create", "--numeric-owner", "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*"]
        run_logged([*pack, "--sort=name", f"--file={fresh}/rootfs.tar", f"--directory={tree}", "."], log)
        (Path(fresh) / "rootfs.tar").rename(target)
    return target


def build_archive(name: str, recipe: Path, context: Path, build_args: dict[str, str], archive: Path) -> None:
    """Builds an image by buildah and writes it as an OCI archive that appears whole or not at all."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    log = cache_root() / "log" / f"image-{name.replace('/', '_').replace(':', '_')}.log"
    arguments = [word for key, value in build_args.items() for word in ("--build-arg", f"{key}={value}")]
    common = _buildah()
    bud = [*common, "bud", "--isolation", "chroot", "--layers", "--format", "oci", "--tag", name]
    bud += [*arguments, "--file", str(recipe), str(context)]
    fresh = archive.with_name(f".{archive.name}.{os.getpid()}")
    push = [*common, "push", "--quiet", name, f"oci-archive:{fresh}:{name}"]
    script = f"{shlex.join(bud)} && {shlex.join(push)}"
    try:
        run_logged([*_APART, "sh", "-c", script], log, what=f"the build of image {name} from {recipe}")
        fresh.replace(archive)
    finally:
        fresh.unlink(missing_ok=True)


def build_and_import(
    site: Site, name: str, recipe: Path, context: Path, build_args: dict[str, str], progress: Progress
) -> None:
    """Builds an image and gives it to every node. `name` is a full name with a tag, like localhost/me/train:1."""
    if "/" not in name or ":" not in name.rsplit("/", 1)[-1]:
        short = name.split(":")[0]
        raise ClusterError(f"image name {name}: give the full name with a tag, like localhost/{short}:local")
    if not recipe.is_file():
        raise ClusterError(f"--containerfile {recipe}: there is no such file")
    if not context.is_dir():
        raise ClusterError(f"--context {context}: there is no such folder")
    packages.ensure(versions.DEBIAN_IMAGE_BUILD, progress)
    _base_and_torch(progress)
    there = run([*_APART, *_buildah(), "images", "--format", "{{.Name}}:{{.Tag}}"]).splitlines()
    if unknown := unknown_bases(recipe.read_text(errors="replace"), there):
        known = ", ".join(sorted(image for image in there if image.startswith(_OURS)))
        raise ClusterError(f"{recipe}: FROM {unknown[0]}: there is no such image; there are {known or 'none'}")
    archive = _family() / "built" / f"{name.replace('/', '_').replace(':', '_')}.tar"
    with locked(archive.with_suffix(".lock")):
        with progress.part(f"build image {name}"):
            build_archive(name, recipe, context, build_args, archive)
        import_archives(site, [archive], progress)


def unknown_bases(recipe: str, there: Collection[str]) -> list[str]:
    """Images of no registry that a Containerfile starts from, and that are not `there`: buildah would look for a
    registry of that name on this machine."""
    stages, unknown = set[str](), []
    for words in (line.split() for line in recipe.splitlines()):
        if words and words[0].upper() == "FROM":
            image, *alias = [word for word in words[1:] if not word.startswith("--")] or [""]
            if image.startswith(_OURS) and "$" not in image and image not in stages:
                tagged = image if ":" in image or "@" in image else f"{image}:latest"
                unknown += [image] if tagged not in there and "@" not in tagged else []
            stages.update(alias[1:])
    return unknown


def import_archives(site: Site, files: list[Path], progress: Progress) -> None:
    """Imports archives into every running node, in parallel; images that a node has already are skipped."""
    wanted = {path: ociarchive.manifest_digests(path) for path in files}
    with (
        progress.part(f"import {', '.join(name for names in wanted.values() for name in names)}"),
        ThreadPoolExecutor(max_workers=4) as pool,
    ):
        holders = [network.anchor(site, node) for node in site.options.node_names if _runs(site, node)]
        for done in [pool.submit(_import_into, holder, wanted) for holder in holders]:
            done.result()


def _runs(site: Site, node: str) -> bool:
    return processes.find(site.directory, f"{node}-containerd") is not None


def _import_into(holder: Process, wanted: dict[Path, dict[str, str]]) -> None:
    present = images_on(holder)
    for path, names in wanted.items():
        if any(present.get(name) != digest for name, digest in names.items()):
            run_in(holder, [*ctr(), "images", "import", str(path.resolve())])


def images_on(holder: Process) -> dict[str, str]:
    """Image name -> manifest digest of all images on a node."""
    rows = run_in(holder, [*ctr(), "images", "ls"]).splitlines()[1:]
    return {row.split()[0]: row.split()[2] for row in rows if row.strip()}


def ctr() -> list[str]:
    """containerd's client, for the namespace that kubelet's images live in."""
    return [str(build.program("ctr")), "--namespace", "k8s.io"]


def _buildah() -> list[str]:
    """buildah, on the storage of this checkout's images."""
    storage = _family() / "buildah"
    return ["buildah", "--root", str(storage / "storage"), "--runroot", str(storage / "run")]


def _family() -> Path:
    """The folder of the base image that today's recipes make, of buildah's storage and of all that is built on it: one
    image named `base:local` is never mistaken for another checkout's."""
    path = _family_folder()
    path.mkdir(parents=True, exist_ok=True)
    return path


def _family_folder() -> Path:
    recipes = [path.read_bytes() for path in sorted(_RECIPES.glob("Containerfile*"))]
    key = _key(*recipes, versions.DEBIAN_SUITE.encode(), *(name.encode() for name in _ROOTFS_PACKAGES))
    return cache_root() / "images" / f"on-base-{key}"


def _key(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:10]
