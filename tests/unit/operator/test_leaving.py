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
LOGS = """
import asyncio
from muster.cli import app as cli, logs
@cli.app.command()
def long():
    async def one():
        for _ in range(10_000): logs.print_text("x" * 70)
    async def all(): await asyncio.gather(one(), one())
    cli._run(all())
cli.main()
"""


@pytest.mark.parametrize(
    ("code", "command"),
    [(COMMAND, "crds"), (COMMAND, "version"), (COMMAND, "--help"), (RICH, "long"), (LOGS, "long")],
    ids=["more than a pipe holds", "less than a buffer", "Typer's own", "rich", "logs"],
)
def test_a_reader_who_has_left_ends_the_command_quietly(code: str, command: str) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, command], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == LEFT == 141


def test_a_command_without_stdout_ends_well() -> None:
    closed = ["bash", "-c", 'exec "$0" "$@" >&-', sys.executable, "-c", COMMAND, "version"]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
