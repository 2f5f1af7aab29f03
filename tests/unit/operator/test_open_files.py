"""The operator may open as many files as the system lets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit


def test_a_low_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    script = (
        "import resource\n"
        "from muster.controllers.process import allow_open_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048))\n"
        "allow_open_files()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.split() == ["2048", "2048"]
