"""What `--help` of each command says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from muster.cli.app import app

pytestmark = pytest.mark.unit

WIDTH = 80


def commands(group: typer.core.TyperGroup, *path: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, *path, name)
        else:
            yield *path, name


GROUP = typer.main.get_group(app)
EVERY = [*commands(GROUP)]


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_says_what_it_does_and_shows_a_call(path: tuple[str, ...]) -> None:
    told = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(WIDTH)}).output
    lines = told.splitlines()
    assert max(map(len, lines)) <= WIDTH
    if path != ("version",):
        assert any(line.startswith(f"    muster {' '.join(path)}") for line in lines), told


@pytest.mark.parametrize("group", [(), ("checkpoint",), ("cost",), ("prices",)])
def test_no_list_of_commands_cuts_a_sentence_off(group: tuple[str, ...]) -> None:
    told = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": str(WIDTH)}).output
    assert "..." not in told.partition("Commands:")[2]
    assert ("Exit codes: 0 done" in told) is (not group)
