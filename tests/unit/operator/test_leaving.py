"""A reader who leaves, as `head` does, ends a command quietly."""

from __future__ import annotations

import subprocess
import sys

import pytest

from muster.cli.pipes import LEFT

pytestmark = pytest.mark.unit

COMMAND = "from muster.cli.start import main; main()"
RICH = """
from muster.cli import app as cli
from rich.console import Console
@cli.app.command()
def long():
    for _ in range(10_000): Console().print("x" * 70)
cli.main()
"""


@pytest.mark.parametrize(
    ("code", "command"),
    [(COMMAND, "crds"), (COMMAND, "version"), (COMMAND, "--help"), (RICH, "long")],
    ids=["more than a pipe holds", "less than a buffer", "Typer's own", "rich"],
)
def test_a_reader_who_has_left_ends_the_command_quietly(code: str, command: str) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, command], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == LEFT == 141
