"""The operator's history, for commands that read it: where it is named, and what is said of one that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from muster.cli.printing import fail

if TYPE_CHECKING:
    from sqlalchemy import URL

    from muster.telemetry.history.reading import Reader

HISTORY_URL: Final = "MUSTER_HISTORY_URL"
"""Where commands find the database's URL: as an argument its password stands in `ps` and in the shell's history."""
_WHERE: Final = f"--database, or {HISTORY_URL}"


@contextmanager
def history(database: str) -> Iterator[tuple[URL, Reader]]:
    """The database of this URL, until the block ends. What is wrong with it is said, and ends the command."""
    # Here, since the other commands do without a database's libraries.
    from sqlalchemy.exc import SQLAlchemyError

    from muster.telemetry.history.database import BadUrl, OldTables, parse, sentence, shown
    from muster.telemetry.history.reading import Reader

    try:
        url = parse(database)
        reader = Reader(url)
    except BadUrl as error:
        fail(f"{_WHERE}: {error}")
    try:
        reader.check()
        yield url, reader
    except OldTables as error:
        fail(f"cannot read the history: {error}")
    except SQLAlchemyError as error:
        fail(f"cannot use the history at {shown(url)}: {sentence(error)}; check {_WHERE}")
    finally:
        reader.close()
