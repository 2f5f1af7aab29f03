"""The one error that a user of the local cluster meets."""

from __future__ import annotations

from pathlib import Path


class ClusterError(Exception):
    """Says what is wrong and how to mend it; the command line prints its text and exits 1."""


def log_tail(path: Path, lines: int = 12) -> str:
    """The last lines of a log, indented, to be quoted in an error. Empty text where there is no log yet."""
    if not path.exists():
        return f"    ({path} is not there)"
    with path.open("rb") as log:
        log.seek(0, 2)
        log.seek(max(0, log.tell() - 16_384))
        text = log.read().decode(errors="replace")
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
