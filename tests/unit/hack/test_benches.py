"""The benchmarks of the planner run to their end and tell what they have measured. Whether a target is met is no matter
of a test: it says how fast the machine is today."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "command",
    [
        "simulate.py --jobs 80 --nodes 4 --seeds 1 2 --loads 0.9",
        "attainable.py --jobs 100 --seeds 1 --loads 0.9",
        "planner.py --nodes 2000 --jobs 400 --repeats 1",
        "planner.py --small --repeats 1",
        "preemption.py --only few --repeats 1 --nodes 512",
        "queues.py --repeats 1",
        "reservations.py --nodes 256 --running 40 --waiting 20",
    ],
)
def test_a_benchmark_tells_what_it_has_measured(command: str) -> None:
    name, *options = command.split()
    run = subprocess.run(
        [sys.executable, str(ROOT / "bench" / name), *options], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert run.returncode in (0, 1), run.stderr
    assert run.stdout, run.stderr
    told = json.loads(run.stdout.splitlines()[-1])
    assert told["bench"] == name.removesuffix(".py")
    assert told["met"] is (run.returncode == 0)
    assert told["figures"]
