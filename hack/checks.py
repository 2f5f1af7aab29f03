"""Runs every check and test of the repository: `python -m hack.checks all`, which `make test` calls.

Each stage is a process of its own, says in one line what came out, and leaves its whole output in build/checks/. A test
that is skipped counts as a failure unless its reason is in ALLOWED_SKIPS, and so does anything that a stage leaves
running. The last line is always `N passed, N failed, N skipped`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from hack import leftovers
from hack.pytest_stage import PYTEST_STAGES, PYTHON, REPORTS, ROOT, Outcome, stage, tail


@dataclass(frozen=True)
class Stage:
    name: str
    run: Callable[[Mapping[str, str]], Outcome]
    needs_root: bool = False


# ------------------------------------------------------------------------------------------------------ static checks

NEEDED = ("pytest", "xdist", "pytest_timeout", "mypy", "muster")
"""Modules of the project's environment, without which the stages would fail one after the other in words of pytest."""

_BIN = Path(PYTHON).parent

STATIC: dict[str, tuple[str, ...]] = {
    "ruff check": (str(_BIN / "ruff"), "check"),
    "ruff format": (str(_BIN / "ruff"), "format", "--check"),
    "mypy": (PYTHON, "-m", "mypy"),
    "mypy of the benches": (PYTHON, "-m", "mypy", "bench"),
    "import-linter": (str(_BIN / "lint-imports"),),
    "generated files": (PYTHON, "-m", "muster.api.generate", "--check"),
    "generated docs and dashboards": (PYTHON, "-m", "hack.monitoring", "--check"),
    "lock file": ("uv", "lock", "--check", "--quiet"),
}


def static(environment: Mapping[str, str]) -> Outcome:
    """Linters, types, boundaries, generated files, and that every test belongs to exactly one stage."""

    def check(item: tuple[str, tuple[str, ...]]) -> Outcome:
        name, command = item
        return _command(name, [uv(), *command[1:]] if command[0] == "uv" else [*command], environment)

    with ThreadPoolExecutor(2) as pool:  # mypy alone takes half of the time
        markers = pool.submit(_unmarked, environment)
        return sum(pool.map(check, STATIC.items()), Outcome()) + markers.result()


def uv() -> str:
    """Where uv is: in PATH, or where hack/setup.sh has put it."""
    own = leftovers.cache_root() / "uv" / "bin" / "uv"
    return shutil.which("uv") or str(own)


def _command(name: str, command: Sequence[str], environment: Mapping[str, str]) -> Outcome:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return Outcome(passed=1)
    return Outcome(failed=1, trouble=f"--- {name}: {' '.join(command)}\n{tail(done.stdout + done.stderr)}")


def _unmarked(environment: Mapping[str, str]) -> Outcome:
    """A test without its folder's marker would never run, and neither would one in a folder of no stage."""
    known = tuple(ROOT / folder for folders in PYTEST_STAGES.values() for folder in folders)
    strays = [path for path in (ROOT / "tests").rglob("test_*.py") if not any(path.is_relative_to(f) for f in known)]
    outcome = Outcome(passed=1)
    if strays:
        outcome = Outcome(failed=1, trouble=f"--- tests in a folder of no stage: {', '.join(map(str, strays))}")
    for folder in sorted({folder for folders in PYTEST_STAGES.values() for folder in folders}):
        if _has_tests(folder):
            markers = [marker for marker, folders in PYTEST_STAGES.items() if folder in folders]
            outcome += _marked(markers, folder, environment)
    return outcome


def _marked(markers: Sequence[str], folder: str, environment: Mapping[str, str]) -> Outcome:
    command = [PYTHON, "-m", "pytest", "--collect-only", "-q", "-m", f"not ({' or '.join(markers)})", folder]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode == 5:  # nothing collected, as it should be
        return Outcome()
    hint = f"every test in {folder} needs the marker {' or '.join(markers)}"
    return Outcome(failed=1, trouble=f"--- markers: {hint}\n{tail(done.stdout + done.stderr)}")


# ------------------------------------------------------------------------------------------------------- preparation


def prepare(environment: Mapping[str, str]) -> Outcome:
    """Builds and fetches what clusters need, which takes a quarter of an hour with nothing cached: no test's time-out
    may depend on that."""
    command = [PYTHON, "-m", "hack.cluster", "prepare"]
    done = subprocess.run(command, cwd=ROOT, env=environment)
    if done.returncode == 0:
        return Outcome(passed=1)
    return Outcome(failed=1, trouble=f"--- {' '.join(command)} ended with {done.returncode}; its words are above")


# --------------------------------------------------------------------------------------------------------------- stages

STAGES = {
    "static": Stage("static", static),
    "unit": Stage("unit", stage("unit")),
    "runtime": Stage("runtime", stage("runtime")),
    "prepare": Stage("prepare", prepare, needs_root=True),
    "cluster": Stage("cluster", stage("cluster"), needs_root=True),
    "e2e": Stage("e2e", stage("e2e"), needs_root=True),
    "web": Stage("web", stage("web")),
}


def _in_all() -> list[str]:
    """Every stage; a pytest stage whose folder holds no test yet is left out."""
    own = ("static", "prepare")
    return [name for name in STAGES if name in own or any(_has_tests(f) for f in PYTEST_STAGES[name])]


def _has_tests(folder: str) -> bool:
    return any((ROOT / folder).rglob("test_*.py"))


def run(names: Sequence[str]) -> Outcome:
    """Runs the stages one after the other, each to its end whatever the others brought."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    total = Outcome()
    with tempfile.TemporaryDirectory(prefix="checks-", dir=leftovers.cache_root()) as state:
        # Clusters of this run live in a place of their own: what is left there at the end is ours, and nobody else's.
        mine = leftovers.Mark(secrets.token_hex(8), Path(state))
        # CI: hypothesis then draws the same examples each time; new ones are for who works on the code.
        fixed = {"CI": "true", "PYTHONUNBUFFERED": "1"}
        # Hundreds of processes load torch or the operator: what the first one compiles is there for the others.
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{state}/pycache"}
        # Most gangs of the tests have more ranks than a machine has GPUs, and NCCL wants one for each.
        without_gpus = {"CUDA_VISIBLE_DEVICES": ""}
        environment = {
            **os.environ,
            **fixed,
            **compiled,
            **without_gpus,
            "XDG_STATE_HOME": state,
            leftovers.TAG: mine.run,
        }
        before = leftovers.shared_things()
        try:
            for name in names:
                total += _timed(STAGES[name], environment)
        finally:
            left = leftovers.find(mine, before)
            if left:
                total += Outcome(failed=1, trouble="--- left behind:\n" + "\n".join(left))
                print(
                    f"  failed  clean-up: {len(left)} things were left behind", *left, sep="\n            ", flush=True
                )
                leftovers.remove(mine)
    return total


def _timed(stage: Stage, environment: Mapping[str, str]) -> Outcome:
    print(f"  runs    {stage.name}", flush=True)
    started = time.monotonic()
    outcome = stage.run(environment)
    word = "failed" if outcome.failed else "done"
    counts = f"{outcome.passed} passed, {outcome.failed} failed, {len(outcome.skipped)} skipped"
    print(f"  {word:<7} {stage.name}: {counts} ({time.monotonic() - started:.0f} s)", flush=True)
    for line in outcome.skipped:
        print(f"          skipped: {line}", flush=True)
    for line in outcome.second:
        print(f"          passed only when run again: {line}", flush=True)
    if outcome.trouble:
        print(outcome.trouble, flush=True)
    return outcome


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Taking clusters away takes a while; another signal must not cut it short.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.checks", description="Run the checks and tests.")
    parser.add_argument(
        "stages", nargs="+", choices=["all", *STAGES], metavar="STAGE", help=", ".join(["all", *STAGES])
    )
    chosen = parser.parse_args().stages
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"error: {PYTHON} has no {', '.join(missing)}: type `.venv/bin/python -m hack.checks {' '.join(chosen)}`;"
            " `make setup` brings .venv",
            file=sys.stderr,
        )
        return 2
    names = _in_all() if "all" in chosen else [name for name in STAGES if name in chosen]
    started = time.monotonic()
    rooted = [name for name in names if STAGES[name].needs_root]
    if rooted and os.geteuid() != 0:
        print(
            f"error: the stages {', '.join(rooted)} start a real cluster, which needs root: run this as root,"
            " or `make check test-unit` for what needs none",
            file=sys.stderr,
        )
        return 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)  # SIGINT too: a shell starts what runs in the background with it ignored
    try:
        outcome = run(names)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(f"  {', '.join(names)}: {time.monotonic() - started:.0f} s in all")
    for line in outcome.second:
        print(f"  passed only when run again: {line}")
    print(f"{outcome.passed} passed, {outcome.failed} failed, {len(outcome.skipped)} skipped", flush=True)
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
