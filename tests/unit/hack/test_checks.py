"""What counts as a failure of `make test`."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hack import checks, pytest_stage

pytestmark = pytest.mark.unit

PASSED = '<testcase classname="tests.a" name="test_one"/>'
FAILED = '<testcase classname="tests.a" name="test_two"><failure message="no"/></testcase>'
BROKEN = '<testcase classname="tests.a" name="test_three"><error message="no"/></testcase>'
SKIPPED = '<testcase classname="tests.a" name="test_four"><skipped type="pytest.skip" message="{}"/></testcase>'


def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *cases: str, code: int = 0) -> pytest_stage.Outcome:
    monkeypatch.setattr(pytest_stage, "ROOT", tmp_path)
    xml, log = tmp_path / "a.xml", tmp_path / "a.log"
    xml.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    log.write_text("what pytest wrote\n")
    return pytest_stage.read_report(xml, code, log)


def test_passed_failed_and_broken_tests_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torn_down_badly = FAILED.replace("failure", "error")
    outcome = report(tmp_path, monkeypatch, PASSED, FAILED, torn_down_badly, BROKEN, code=1)
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


def stage(
    monkeypatch: pytest.MonkeyPatch, *tries: tuple[pytest_stage.Outcome, list[str]]
) -> tuple[pytest_stage.Outcome, list[str]]:
    """The cluster stage whose pytest runs come out as said, and the names of those runs."""
    runs: list[str] = []

    def once(name: str, *_: object) -> tuple[pytest_stage.Outcome, list[str]]:
        runs.append(name)
        return tries[len(runs) - 1]

    monkeypatch.setattr(pytest_stage, "once", once)
    return pytest_stage.stage("cluster")({}), runs


def test_one_that_passes_when_run_again_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    first = pytest_stage.Outcome(passed=9, failed=1, trouble="why")
    outcome, runs = stage(monkeypatch, (first, ["a.py::test"]), (pytest_stage.Outcome(passed=1), []))
    assert outcome == pytest_stage.Outcome(passed=10, trouble="why", second=("a.py::test",))
    assert runs == ["cluster", "cluster-again"]


def test_one_that_fails_again_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    first = (pytest_stage.Outcome(passed=9, failed=1, trouble="why"), ["a.py::test"])
    outcome, _ = stage(monkeypatch, first, (pytest_stage.Outcome(failed=1, trouble="again"), ["a.py::test"]))
    assert (outcome.failed, outcome.second) == (1, ())
    assert "why" in outcome.trouble
    assert "again" in outcome.trouble


@pytest.mark.parametrize(
    ("failed", "names"), [(3, ["a.py::one", "a.py::two", "a.py::three"]), (1, [])], ids=["many", "outside of any test"]
)
def test_what_is_no_matter_of_chance_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, failed: int, names: list[str]
) -> None:
    outcome, runs = stage(monkeypatch, (pytest_stage.Outcome(failed=failed), names))
    assert outcome.failed == failed
    assert runs == ["cluster"]


def test_failed_tests_are_named_as_pytest_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text(f"<testsuites><testsuite>{PASSED}{FAILED}{BROKEN}</testsuite></testsuites>")
    assert pytest_stage.failed_tests(path) == ["tests/a.py::test_two", "tests/a.py::test_three"]


def test_a_stage_that_stalls_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pytest_stage, "_SAY_AGAIN_S", 0.05)
    monkeypatch.setattr(pytest_stage, "_STALLED_S", 0.5)
    log, progress = tmp_path / "a.log", tmp_path / "a.progress"
    progress.write_text("")
    works = "from pathlib import Path; import sys, time; " + "; ".join(
        ["time.sleep(0.3); Path(sys.argv[1]).open('a').write('a test\\n')"] * 3
    )
    assert pytest_stage.logged("works", [sys.executable, "-c", works, str(progress)], {}, log, progress) == 0
    assert "stalled" not in capfd.readouterr().out
    monkeypatch.setattr(pytest_stage, "_STALLED_S", 60.0)
    monkeypatch.setattr(pytest_stage, "_SHOWS_S", 0.5)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["hack.stuck"]')
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\nfrom threading import Event\n\ndef test_waits():\n"
        "    Path(__file__).with_name('began').touch()\n    Event().wait()\n"
    )

    def hurry() -> None:
        while not (tmp_path / "began").exists():
            time.sleep(0.05)
        monkeypatch.setattr(pytest_stage, "_STALLED_S", 0.0)

    threading.Thread(target=hurry, daemon=True).start()
    command = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", str(tmp_path)]
    told = {"PYTHONPATH": str(checks.ROOT)}
    assert pytest_stage.logged("waits", command, told, log, progress) != 0
    assert "stalled waits: no test has ended for" in capfd.readouterr().out
    assert 'test_it.py", line 6 in test_waits' in log.read_text(), "its stacks"
    assert "KeyboardInterrupt" in log.read_text(), "it was asked to end, and did"


def test_another_python_is_told_which_one_to_take() -> None:
    bare = [sys.executable, "-S", "-m", "hack.checks", "runtime", "cluster"]  # -S: without any environment's packages
    done = subprocess.run(bare, cwd=checks.ROOT, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 2
    assert "has no pytest, xdist" in done.stderr
    assert "`.venv/bin/python -m hack.checks runtime cluster`" in done.stderr


def test_make_names_the_stages_that_there_are() -> None:
    line = next(line for line in (checks.ROOT / "Makefile").read_text().splitlines() if line.startswith("test: "))
    told = line.partition("every check and test: ")[2].split(", ")
    assert told == [name for name in checks.STAGES if name not in ("prepare", "web")], (
        "prepare is told by its own words"
    )
