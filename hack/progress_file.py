"""A pytest plugin that appends the name of each finished test to the file in MUSTER_CHECKS_PROGRESS.

pytest's own output reaches a pipe in large blocks, too late to show how far a long stage is. Where several processes
run the tests of a stage, the one that leads them writes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest  # `hack.checks` says what is missing where there is none

VARIABLE = "MUSTER_CHECKS_PROGRESS"
_LED = "PYTEST_XDIST_WORKER" in os.environ


def pytest_runtest_logfinish(nodeid: str) -> None:
    if not _LED:
        with Path(os.environ[VARIABLE]).open("a") as progress:
            progress.write(f"{nodeid}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    if not _LED:
        with Path(os.environ[VARIABLE] + ".now").open("w") as now:
            now.write(nodeid)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _LED:
        Path(os.environ[VARIABLE] + ".now").unlink(missing_ok=True)
