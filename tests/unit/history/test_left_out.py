"""Who keeps no history does without a database's libraries, which take 24 MiB."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

_SCRIPT = """
import sys
import muster.controllers.process, muster.server.app
print(sorted({"alembic", "sqlalchemy"} & set(sys.modules)))
"""


def test_an_operator_with_its_api_imports_no_database() -> None:
    told = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "[]"
