"""Ctrl-C before a command has begun."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

# A module of the CLI's that says when it is imported, and then takes for ever.
SLOW = "import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n"
COMMAND = "import sys; sys.path.insert(0, {place!r}); from muster.cli.start import main; main()"


@pytest.mark.parametrize("ignored", [False, True])
def test_it_ends_the_imports_without_a_word_unless_it_is_ignored(tmp_path: Path, *, ignored: bool) -> None:
    tmp_path.joinpath("typer.py").write_text(SLOW)
    handler = "SIG_IGN" if ignored else "default_int_handler"  # a shell's background has SIG_IGN
    command = f"import signal; signal.signal(signal.SIGINT, signal.{handler}); {COMMAND.format(place=str(tmp_path))}"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", command], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        if ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            process.kill()
        told = process.communicate(timeout=20)[1]
    assert process.returncode == (-signal.SIGKILL if ignored else -signal.SIGINT)
    assert told == ""
