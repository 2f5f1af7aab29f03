"""A reader gets each line as it comes, and one who leaves, as `head` does, ends a command quietly."""

from __future__ import annotations

import os
import select
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
from muster.cli import app as cli, logs, running
@cli.app.command()
def long():
    async def one():
        for _ in range(10_000): logs.print_text("x" * 70)
    async def all(): await asyncio.gather(one(), one())
    running.run(all())
cli.main()
"""
FOLLOWED = """
import sys
from muster.cli import app as cli, logs
@cli.app.command()
def short():
    logs.print_text("step 1\\n")
    sys.stdin.read()
    logs.print_text("step 2\\n")
cli.main()
"""

SPOKEN = """
from muster.cli import app as cli, logs, printing
from rich.console import Console
@cli.app.command()
def spoken():
    logs.print_text(TEXT + "\\n")
    printing.print_sentence(Console(), TEXT)
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


@pytest.mark.parametrize(
    ("code", "command"), [(COMMAND, "version"), (COMMAND, "--help"), (RICH, "long")], ids=["ours", "Typer's", "rich"]
)
def test_a_full_disk_below_the_output_is_told_in_a_sentence(code: str, command: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.stderr == "muster: what the command tells can't be written to where it goes: No space left on device\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [("simulate",), ("logs", "--no-such-option"), ("no-such-command",)],
    ids=["our own sentence", "Typer's word on an option", "Typer's word on a command"],
)
def test_an_error_that_nobody_reads_ends_the_command_quietly_too(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", COMMAND, *arguments], stdout=writing, stderr=writing, check=False)
    os.close(writing)
    assert done.returncode == LEFT


def test_a_line_reaches_its_reader_while_the_command_goes_on() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", FOLLOWED, "short"], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 60)[0], "the first line, before the command may end"
        assert process.stdout.readline() == "step 1\n"
        process.stdin.close()
        assert process.stdout.read() == "step 2\n"


def test_a_command_without_stdout_ends_well() -> None:
    closed = ["bash", "-c", 'exec "$0" "$@" >&-', sys.executable, "-c", COMMAND, "version"]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"PYTHONIOENCODING": "ascii"}, "4 \\xd7 8 \\u2026"),
        ({"PYTHONIOENCODING": "latin-1"}, "4 \xd7 8 \\u2026"),
        ({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, "4 \\xd7 8 \\u2026"),
        ({"PYTHONIOENCODING": "utf-8"}, "4 \xd7 8 \u2026"),
    ],
)
def test_what_the_terminals_encoding_lacks_is_written_by_its_number(variables: dict[str, str], shown: str) -> None:
    code = SPOKEN.replace("TEXT", ascii("4 \xd7 8 \u2026"))
    done = subprocess.run([sys.executable, "-c", code, "spoken"], env=os.environ | variables, capture_output=True)
    encoding = "utf-8" if shown == "4 \xd7 8 \u2026" else "latin-1"
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding).splitlines() == [shown, shown]
