"""Runs the tests of the runtime under another torch than the locked one: `python -m hack.other_torch 2.6.0`.

An image brings the torch that fits its GPUs, from 2.6 on, and the lock has one of the newest. So there is an
environment for each in `build/torch/`, where all but torch, and what only torch needs, is at its locked version. With
torch come the CUDA libraries without which it isn't loaded, 5 GB; `UV_TORCH_BACKEND=cpu` has uv take a build without
them, where torch's own index can be reached.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from hack.checks import uv
from hack.pytest_stage import IN_PARALLEL, PYTEST_STAGES, PYTHON, ROOT

ENVIRONMENTS: Final = ROOT / "build" / "torch"


def with_torch(version: str) -> Path:
    """The Python of an environment that has torch `version`; quick when nothing is to be brought.

    CalledProcessError when uv can't make it, which uv has told by then.
    """
    folder = ENVIRONMENTS / version
    python = folder / "bin" / "python"
    if not python.exists():
        _uv("venv", "--quiet", "--clear", "--python", PYTHON, str(folder))
    wanted = folder / "requirements.txt"
    wanted.write_text(requirements(version))
    _uv("pip", "install", "--quiet", "--python", str(python), "-r", str(wanted))
    return python


def requirements(version: str) -> str:
    """What the locked environment has, the project itself included, with torch `version` in the place of its torch."""
    locked = _uv("export", "--quiet", "--locked", "--no-hashes", "--no-annotate", "--no-header", "--prune", "torch")
    return f"{locked}torch=={version}\n"


def _uv(*arguments: str) -> str:
    """What uv writes; its errors are on ours."""
    return subprocess.run([uv(), *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m hack.other_torch", description="Run the tests of the runtime under another torch."
    )
    parser.add_argument("version", help="as the package index names it: 2.6.0")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of pytest: -k resume")
    said = parser.parse_args()
    try:
        python = with_torch(said.version)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    # As in `make test`: gangs have more ranks than a machine has GPUs.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "CI": "true"}
    command = [str(python), "-m", "pytest", *IN_PARALLEL["runtime"], *PYTEST_STAGES["runtime"], *said.options]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
