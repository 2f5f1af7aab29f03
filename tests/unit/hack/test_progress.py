"""What a start tells of its parts where no spinner can be shown."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from hack.cluster import progress
from hack.cluster.progress import Progress, format_seconds, usually

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = progress._record()
    assert tmp_path in path.parents
    return path


def test_a_part_says_soon_what_it_does_and_how_long_that_took_the_last_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], record: Path
) -> None:
    monkeypatch.setattr(progress, "_SOON_S", 0.0)
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"build all": 353.0}))
    told = threading.Event()
    say = Progress.say

    def heard(self: Progress, text: str) -> None:
        say(self, text)
        told.set()

    monkeypatch.setattr(Progress, "say", heard)
    with Progress().part("build all"):
        assert told.wait(10)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "  ...     build all, 0 s so far, usually 5 min 53 s"
    assert last.startswith("  done    build all (")
    assert usually("build all") != 353.0, "the next one is told how long this one took"


def test_a_part_that_failed_is_no_measure(record: Path) -> None:
    with pytest.raises(ValueError), Progress(quiet=True).part("build all"):
        raise ValueError
    assert usually("build all") is None


def test_a_new_machine_is_told_what_another_one_took(record: Path) -> None:
    assert usually("build etcd, kube-apiserver (kubernetes-1)") == 350.0
    assert usually("something new") is None
    record.parent.mkdir(parents=True)
    record.write_text("{ half a fi")
    assert usually("something new") is None
    assert format_seconds(59.7) == "1 min 0 s"


def test_what_took_no_second_the_last_time_has_no_usual_time() -> None:
    assert "usually" not in progress._Running("import", time.monotonic(), 0.3).__rich__()
    assert "usually 2 s" in progress._Running("import", time.monotonic(), 1.6).__rich__()
