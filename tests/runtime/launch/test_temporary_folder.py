"""A container whose root is read-only has no /tmp; ranks get the run's own folder instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_runtime.launch import environment

pytestmark = pytest.mark.unit


def _no_folder() -> str:
    raise FileNotFoundError("No usable temporary directory found")


def test_without_a_usable_folder_the_ranks_get_the_runs_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.gettempdir", _no_folder)
    assert environment.temporary_folder(tmp_path) == {"TMPDIR": str(tmp_path)}


def test_with_one_nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
    assert environment.temporary_folder(tmp_path) == {}
