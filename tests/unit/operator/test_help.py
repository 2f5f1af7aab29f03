"""What `--help` of each command says, and what it says to what it does not take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def options(path: tuple[str, ...]) -> Iterator[typer.core.TyperOption]:
    command: Any = GROUP
    for name in path:
        command = command.commands[name]
    yield from (one for one in command.params if isinstance(one, typer.core.TyperOption))


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


SHORT = {"namespace": "-n", "output": "-o", "follow": "-f", "watch": "-w"}


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_an_option_is_called_the_same_everywhere(path: tuple[str, ...]) -> None:
    flags = {flag for one in options(path) for flag in one.opts}
    assert flags.isdisjoint({"--json", "--format"}), "that is -o"
    assert ("--kubeconfig" in flags) == ("--context" in flags)
    for name, short in SHORT.items():
        if f"--{name}" in flags and path != ("operator",):  # its namespace is that of a Lease
            assert short in flags


def test_the_version_is_told_either_way() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.stdout) == (0, CliRunner().invoke(app, ["version"]).stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["jobs", "-o", "xml"], "'--output' / '-o': 'xml' is not one of 'table', 'json'."),
        (["cost", "report", "-o", "xml"], "'--output' / '-o': 'xml' is not one of 'table', 'csv'"),
        (["logs", "a", "--rank", "x"], "'--rank': Input should be a valid integer"),
        (["stauts"], "Did you mean 'status', 'stacks'?"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words_and_ends_with_2(arguments: list[str], said: str) -> None:
    found = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert (found.exit_code, found.stdout, said in found.stderr) == (2, "", True), found.stderr


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PRICES", "{", 'no JSON: error parsing value for field "prices"'),
        ("PRICES", '{"H100/spot": "x"}', "MUSTER_OPERATOR_PRICES.H100/spot: Input should be a valid number"),
        ("TOKEN_KEY", "abc", "muster: MUSTER_OPERATOR_TOKEN_KEY: shorter than 16"),
        ("HTTP_PORT", "x", "--http-port, MUSTER_OPERATOR_HTTP_PORT: Input should be"),
        ("SETTLE_AFTER", "soon", "MUSTER_OPERATOR_SETTLE_AFTER: 'soon' is not a duration; write it like 90s, 10m"),
        ("SETTLE_AFTER", "", "MUSTER_OPERATOR_SETTLE_AFTER: '' is not a duration"),
        ("HISTORY_RETENTION", "", "no runtime image"),
        ("LOG_LEVEL", "loud", "MUSTER_OPERATOR_LOG_LEVEL: Input should be 'DEBUG'"),
        ("LOG_FORMAT", "xml", "MUSTER_OPERATOR_LOG_FORMAT: Input should be 'text'"),
        ("LOG_LEVEL", "debug", "no runtime image"),
    ],
)
def test_a_setting_that_cannot_be_is_named_by_its_variable(name: str, value: str, said: str) -> None:
    found = CliRunner().invoke(app, ["operator"], env={f"MUSTER_OPERATOR_{name}": value})
    assert (found.exit_code, found.stdout, said in found.stderr) == (2, "", True), found.output


def test_a_bucket_that_none_can_be_called_is_told_why() -> None:
    found = CliRunner().invoke(app, ["checkpoint", "ls", "s3://b/x"])
    assert (found.exit_code, "buckets have 3 to 63 of a-z" in found.stderr) == (2, True), found.stderr


def test_pruning_where_nothing_is_fails(tmp_path: Path) -> None:
    """A misspelt uri in somebody's nightly script."""
    found = CliRunner().invoke(app, ["checkpoint", "prune", f"file://{tmp_path}", "--yes"])
    assert (found.exit_code, found.stdout) == (2, "")
    assert f"file://{tmp_path} has no checkpoints; is it some job's spec.checkpoint.uri?" in found.stderr
