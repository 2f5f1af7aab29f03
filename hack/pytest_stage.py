"""Runs the tests of one stage: in a pytest of its own, with its output in a log, and those that failed once more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hack import progress_file

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "build" / "checks"
PYTHON = sys.executable

ALLOWED_SKIPS = ("needs a CUDA GPU",)
"""A skipped test must give a reason that begins with one of these; it is then listed, not hidden."""

_SAY_AGAIN_S = 30.0
_STALLED_S = 1200.0
"""A stage in which no test has ended for so long is stopped. (Each test has its own, shorter limit, but pytest and what
spreads the tests over processes have none.)"""
SHOW = signal.SIGUSR1
"""Asks each process that runs tests where it stands: for what no alarm ends, such as a call that never comes back to
Python."""
_SHOWS_S = 5.0
_TAKES_AWAY_S = 90.0
_TAIL_LINES = 150


@dataclass(frozen=True)
class Outcome:
    """What one stage brought. A static check counts as one test."""

    passed: int = 0
    failed: int = 0
    skipped: tuple[str, ...] = ()
    trouble: str = ""
    """What to show when something failed."""
    second: tuple[str, ...] = ()
    """Tests that failed, and passed when they were run again alone."""

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            "\n".join(filter(None, (self.trouble, other.trouble))),
            self.second + other.second,
        )


# A stage collects its own folders only, so that a broken import elsewhere breaks nothing else.
PYTEST_STAGES = {
    "unit": ("tests/unit", "tests/scheduling", "tests/runtime"),
    "runtime": ("tests/runtime",),
    "cluster": ("tests/cluster",),
    "e2e": ("tests/e2e", "tests/cluster"),
    "web": ("tests/web",),
}

IN_PARALLEL = {
    "unit": ("-n", "2", "--dist", "worksteal"),
    "runtime": ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
    "cluster": ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
}
"""Stages in two processes. Those of `runtime` have an S3 server each, those of `cluster` an API server; both wait
longer than they work (for silences, graces, leases and watches that come late), and keep a file's tests together."""

SECOND_TRY = {"runtime": 2, "cluster": 2, "e2e": 2}
"""When no more tests of a stage failed than this, they are run again, alone. Such tests race processes, kubelets and
clocks on a machine that others may keep busy. One that passes then is named at the end, with its first failure shown in
full; one that is named there twice is to be mended."""


def stage(marker: str) -> Callable[[Mapping[str, str]], Outcome]:
    def run(environment: Mapping[str, str]) -> Outcome:
        arguments = [*IN_PARALLEL.get(marker, ()), *existing(PYTEST_STAGES[marker])]
        outcome, failed = once(marker, marker, arguments, environment)
        if not 0 < len(failed) == outcome.failed <= SECOND_TRY.get(marker, 0):
            return outcome
        print(f"  again   {marker}: {', '.join(failed)}", flush=True)
        again, _ = once(f"{marker}-again", marker, failed, environment)
        if again.failed or again.passed != len(failed):
            return replace(outcome, trouble=f"{outcome.trouble}\n--- and when run again:\n{again.trouble}")
        return replace(outcome, passed=outcome.passed + again.passed, failed=0, second=tuple(failed))

    return run


def once(name: str, marker: str, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Outcome, list[str]]:
    """What came out, and the failed tests as pytest takes them. Its files in build/checks/ begin with `name`."""
    report, log, progress = (REPORTS / f"{name}.{ending}" for ending in ("xml", "log", "progress"))
    report.unlink(missing_ok=True)
    progress.write_text("")
    options = ["-v", "-m", marker, "--durations=15", f"--junitxml={report}", "-p", "hack.progress_file"]
    told = {**environment, progress_file.VARIABLE: str(progress)}
    code = logged(name, [PYTHON, "-m", "pytest", *options, *arguments], told, log, progress)
    return read_report(report, code, log), failed_tests(report)


def failed_tests(report: Path) -> list[str]:
    if not report.exists():
        return []
    # One whose teardown went wrong as well stands there twice.
    wrong = dict.fromkeys((case.get("classname", ""), case.get("name", "")) for case in _cases(report) if _broken(case))
    return [f"{module.replace('.', '/')}.py::{test}" for module, test in wrong]


def _cases(report: Path) -> Iterator[ElementTree.Element]:
    return ElementTree.parse(report).getroot().iter("testcase")


def _broken(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def logged(name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, progress: Path) -> int:
    """Runs pytest with its output in `log`, and says every half minute how far it is."""
    started = moved = time.monotonic()
    done = 0
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while True:
                try:
                    return child.wait(_SAY_AGAIN_S)
                except subprocess.TimeoutExpired:
                    now, before, done = time.monotonic(), done, len(progress.read_text().splitlines())
                    moved = now if done > before else moved
                    print(f"  ...     {name}, {now - started:.0f} s: {done} tests done{_running(progress)}", flush=True)
                if time.monotonic() - moved > _STALLED_S:
                    print(f"  stalled {name}: no test has ended for {_STALLED_S:.0f} s", flush=True)
                    return _show_and_end(child)
        except BaseException:
            _end(child)
            raise


def _show_and_end(child: subprocess.Popen[bytes]) -> int:
    """Of a pytest that stalls: the log gets the stacks of its processes."""
    os.killpg(child.pid, SHOW)
    with suppress(subprocess.TimeoutExpired):
        return child.wait(_SHOWS_S)
    _end(child)
    return child.wait()


def _running(progress: Path) -> str:
    now = progress.with_name(progress.name + ".now")
    return f", now {now.read_text()}" if now.exists() else ""


def _end(child: subprocess.Popen[bytes]) -> None:
    os.killpg(child.pid, signal.SIGINT)  # so that fixtures take their clusters away
    try:
        child.wait(_TAKES_AWAY_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)


def read_report(report: Path, code: int, log: Path) -> Outcome:
    shown = f"--- the whole output is in {log.relative_to(ROOT)}\n"
    if code == 5:
        return Outcome(failed=1, trouble=f"{shown}no test was selected: the stage is empty")
    if not report.exists():
        return Outcome(failed=1, trouble=f"{shown}pytest ended with {code}\n{tail(log.read_text(errors='replace'))}")
    passed, failed, skipped, wrong = 0, len(failed_tests(report)), [], []
    for case in _cases(report):
        if _broken(case):
            continue
        name = f"{case.get('classname')}::{case.get('name')}"
        skip = case.find("skipped")
        if skip is None:
            passed += 1
        elif (reason := skip.get("message", "")).startswith(ALLOWED_SKIPS):
            skipped.append(f"{name}: {reason}")
        else:
            wrong.append(f"{name} was skipped, which only {', '.join(ALLOWED_SKIPS)!r} may excuse: {reason}")
    trouble = "\n".join(wrong)
    if failed or (code and not wrong):
        trouble = f"{shown}{tail(log.read_text(errors='replace'))}\n{trouble}"
        failed = failed or 1  # an error outside of any test, such as one while collecting
    return Outcome(passed, failed + len(wrong), tuple(skipped), trouble)


def existing(folders: Sequence[str]) -> list[str]:
    return [folder for folder in folders if (ROOT / folder).is_dir()]


def tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
