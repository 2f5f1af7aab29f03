"""What can be wrong with what a user gives the simulator."""

from __future__ import annotations

from pathlib import Path


class SimulationError(Exception):
    """A sentence for the user: what is wrong, where, and how to mend it."""


def undecoded(path: Path) -> SimulationError:
    """Of a file that is not in UTF-8. It is read again as a whole: where that was done in parts, the error met counts
    from the last of these."""
    content = path.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        content = content[: error.start + 1]
    return SimulationError(f"{path}, line {len(content.splitlines())}: it is not in UTF-8; save it in UTF-8")
