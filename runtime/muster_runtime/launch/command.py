"""`muster-launch [--nproc N] [--] COMMAND ...`"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from muster_protocol import env, exits
from muster_protocol.exits import Cause, ExitFacts
from muster_runtime.launch import config as launch_config
from muster_runtime.launch import termination
from muster_runtime.launch.config import ConfigError

if TYPE_CHECKING:
    from muster_runtime.launch.launcher import Launcher

USAGE = """usage: muster-launch [--nproc N] [--] COMMAND [ARGUMENT ...]

Starts COMMAND once for each rank, with torchrun's environment variables set. In a training pod the MUSTER_* variables
say who belongs to the gang; elsewhere it is a gang of one worker with N processes (1 unless given).
"""


def parse(arguments: Sequence[str]) -> tuple[int | None, tuple[str, ...]]:
    """(--nproc, command). Raises ConfigError."""
    rest, processes = list(arguments), None
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        name, equals, value = option.partition("=")
        if name not in ("--nproc", "--nproc-per-node"):
            raise ConfigError(f"unknown option {option}; write the command after `--`\n{USAGE}")
        if not equals:
            value = rest.pop(0) if rest else ""
        if not value.isdigit():
            raise ConfigError(f"--nproc needs a whole number, got {value!r}")
        processes = int(value)
    return processes, tuple(rest)


def run(asked_early: Callable[[], bool]) -> NoReturn:
    """Never returns: the process exits by the exit facts, whatever threads still wait for something.

    `asked_early`: has a stop been asked before the launcher could hear it?
    """
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        _exit(0)
    try:
        processes, command = parse(arguments)
        config = launch_config.read(os.environ, command, processes)
    except ConfigError as error:
        facts = ExitFacts(Cause.CONFIG, exits.EXIT_CONFIG, str(error))
        termination.say(facts.message)
        termination.write(_termination_log(), facts)
        _exit(facts.exit_code)
    try:
        from muster_runtime.launch.launcher import Launcher

        loop = asyncio.new_event_loop()
        facts = loop.run_until_complete(_run(lambda: Launcher(config, os.environ, asked_early)))
    except BaseException as error:  # noqa: BLE001 - the last place where an end can be explained
        traceback.print_exc()
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        facts = ExitFacts(
            Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, f"the launcher failed: {error!r}", traceback=text
        )
        termination.write(config.termination_log, facts)
    if facts.cause is not Cause.SUCCEEDED:
        termination.say(f"ended ({facts.cause.value}, exit code {facts.exit_code}): {facts.message}")
    _exit(facts.exit_code)


async def _run(make: Callable[[], Launcher]) -> ExitFacts:
    return await make().run()


def _termination_log() -> Path | None:
    named = os.environ.get(launch_config.TERMINATION_LOG)
    if named:
        return Path(named)
    return Path(exits.TERMINATION_MESSAGE_PATH) if os.environ.get(env.JOB) else None


def _exit(code: int) -> NoReturn:
    if sys.stdout is not None:  # it was closed
        with contextlib.suppress(OSError):  # nobody reads it, or the disk is full
            sys.stdout.flush()
    termination.flush(seconds=2.0)
    os._exit(code)
