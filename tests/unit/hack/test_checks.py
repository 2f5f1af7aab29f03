"""What counts as a failure of `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hack import checks

pytestmark = pytest.mark.unit

PASSED = '<testcase classname="tests.a" name="test_one"/>'
FAILED = '<testcase classname="tests.a" name="test_two"><failure message="no"/></testcase>'
BROKEN = '<testcase classname="tests.a" name="test_three"><error message="no"/></testcase>'
SKIPPED = '<testcase classname="tests.a" name="test_four"><skipped type="pytest.skip" message="{}"/></testcase>'


def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *cases: str, code: int = 0) -> checks.Outcome:
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    xml, log = tmp_path / "a.xml", tmp_path / "a.log"
    xml.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    log.write_text("what pytest wrote\n")
    return checks._read_report(xml, code, log)


def test_passed_failed_and_broken_tests_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = report(tmp_path, monkeypatch, PASSED, FAILED, BROKEN, code=1)
    assert (outcome.passed, outcome.failed) == (1, 2)
    assert "what pytest wrote" in outcome.trouble


def test_an_allowed_skip_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = report(tmp_path, monkeypatch, PASSED, SKIPPED.format("needs a CUDA GPU: none is here"))
    assert (outcome.passed, outcome.failed) == (1, 0)
    assert len(outcome.skipped) == 1
    assert "needs a CUDA GPU" in outcome.skipped[0]


def test_any_other_skip_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = report(tmp_path, monkeypatch, PASSED, SKIPPED.format("not today"))
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 1, ())
    assert "not today" in outcome.trouble


def test_an_error_outside_of_any_test_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert report(tmp_path, monkeypatch, PASSED, code=2).failed == 1


def test_a_stage_without_a_test_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert report(tmp_path, monkeypatch, code=5).failed == 1
