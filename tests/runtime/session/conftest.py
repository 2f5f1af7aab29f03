from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The ranks' processes import `gangs` by name.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.runtime)
