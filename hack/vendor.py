"""The runtime's image context: `opt/muster` with `bin`, `lib` and `vendor`, made from uv.lock alone.

    python -m hack.vendor FOLDER

One tree serves every training image: all in it is pure Python for 3.10 and later, but for zlib-ng, which lies there
compiled for several Pythons and machines; elsewhere the runtime does without. Botocore carries the descriptions of 400
services; only those that reach S3 and its credentials are kept.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PYTHON_VERSION: Final = "3.10"
COMPILED: Final = "zlib_ng"
"""The one library that is no pure Python. Each build's file has its Python and machine in its name."""
COMPILED_FOR: Final = [
    (python, f"{machine}-manylinux2014")
    for python in ("3.11", "3.12", "3.13", "3.14")  # what is locked has no more
    for machine in ("x86_64", "aarch64")
]
SERVICES: Final = frozenset({"s3", "sts", "sso", "sso-oidc", "signin"})
"""S3, and what botocore asks for credentials: roles, web identities, single sign-on."""
OWN: Final = ("muster_protocol", "muster_runtime")

_NATIVE: Final = (".so", ".pyd", ".dylib", ".dll")
_SKIPPED: Final = shutil.ignore_patterns("__pycache__", "*.pyc")


class VendorError(Exception):
    """The tree can't be built; says why."""


def write_context(context: Path) -> None:
    """Fills `context` for `images/runtime/Containerfile`."""
    runtime_tree(context / "opt" / "muster")


def runtime_tree(target: Path) -> None:
    """`bin`, `lib` and `vendor` below `target`, as the init container copies them."""
    (target / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "images" / "runtime" / "muster-launch", target / "bin" / "muster-launch")
    for package in OWN:
        shutil.copytree(ROOT / "runtime" / package, target / "lib" / package, ignore=_SKIPPED)
    shutil.copytree(vendor_tree(), target / "vendor")


def vendor_tree() -> Path:
    """The vendored libraries at their locked versions, built once for each lock in `build/vendor`."""
    requirements = _locked()
    key = hashlib.sha256(requirements.encode() + Path(__file__).read_bytes()).hexdigest()[:12]
    done = ROOT / "build" / "vendor" / key
    if done.is_dir():
        return done
    done.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=done.parent, prefix=".making-") as folder:
        tree = Path(folder) / "tree"
        compiled = _locked_of(COMPILED.replace("_", "-"), requirements)
        _install(requirements.replace(compiled, ""), tree)
        for number, (python, platform) in enumerate(COMPILED_FOR):
            build = Path(folder) / f"build-{number}"
            _install(compiled, build, python, f"--python-platform={platform}")
            shutil.copytree(build, tree, dirs_exist_ok=True)
        _trim(tree)
        tree.chmod(0o755)
        try:
            tree.rename(done)
        except OSError:
            if not done.is_dir():  # another process was quicker
                raise
    return done


def _locked() -> str:
    return _uv(
        "export",
        "--locked",
        "--package=muster-runtime",
        "--no-dev",
        "--no-emit-workspace",
        "--no-annotate",
        "--no-header",
    )


def _locked_of(library: str, requirements: str) -> str:
    """What is locked of this library alone: its version and the hashes below."""
    (found,) = re.findall(rf"^{library}==.*\n(?: .*\n)*", requirements, re.MULTILINE)
    return str(found)


def _install(requirements: str, tree: Path, python: str = PYTHON_VERSION, *more: str) -> None:
    listed = tree.with_name(f"{tree.name}.txt")
    listed.write_text(requirements)
    _uv(
        "pip",
        "install",
        f"--target={tree}",
        f"--python={sys.executable}",
        f"--python-version={python}",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--link-mode=copy",
        f"--requirement={listed}",
        *more,
    )


def _trim(tree: Path) -> None:
    """Takes away what is never used in a training pod. Raises VendorError for what must not be there."""
    for entry in (tree / "botocore" / "data").iterdir():
        if entry.is_dir() and entry.name not in SERVICES:
            shutil.rmtree(entry)
    for entry in (tree / "boto3" / "data").iterdir():
        if entry.is_dir() and entry.name not in SERVICES:
            shutil.rmtree(entry)
    for folder in ("boto3/examples", "bin"):
        shutil.rmtree(tree / folder, ignore_errors=True)
    (tree / "example.py").unlink(missing_ok=True)  # of nvidia-ml-py
    for entry in [*tree.rglob("__pycache__"), *tree.glob(".*")]:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for entry in tree.glob("*.dist-info"):
        _keep_licences(entry)
    native = [str(path.relative_to(tree)) for path in tree.rglob("*") if path.suffix in _NATIVE]
    native = [path for path in native if not path.startswith(f"{COMPILED}/")]
    if native:
        raise VendorError(f"not pure Python, so not for every training image: {', '.join(native)}")


def _keep_licences(info: Path) -> None:
    """Licences stay with the code; the rest of the metadata would make installed packages of it."""
    kept = info.with_name(info.name.replace(".dist-info", ".licences"))
    for path in sorted(info.rglob("*")):
        if path.is_file() and path.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE", "COPYING")):
            kept.mkdir(exist_ok=True)
            shutil.copyfile(path, kept / path.name)
    shutil.rmtree(info)


def _uv(*arguments: str) -> str:
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster" / "uv" / "bin" / "uv"
    command = [shutil.which("uv") or str(cached), *arguments, "--quiet"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise VendorError("uv is missing; `make setup` brings it") from error
    if done.returncode:
        raise VendorError(f"`{' '.join(command[:3])}` failed: {done.stderr.strip()}")
    return done.stdout


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m hack.vendor FOLDER", file=sys.stderr)
        return 2
    try:
        write_context(Path(sys.argv[1]))
    except (VendorError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
