"""The folder where a launcher and its ranks meet goes where there is room."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster_runtime.control import ControlReader, ControlWriter, Wish
from muster_runtime.launch import run_folder
from muster_runtime.launch.run_folder import RunFolder

pytestmark = pytest.mark.unit


def _full(root: Path) -> Callable[[Path], ControlWriter]:
    """A disk on which a folder can be made, but no file."""

    def write(folder: Path) -> ControlWriter:
        if root in folder.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return ControlWriter(folder)

    return write


@pytest.fixture
def roots() -> Iterator[tuple[Path, Path]]:
    """Short ones: pytest's are too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="roots-") as folder:
        full, room = Path(folder, "full"), Path(folder, "room")
        full.mkdir()
        room.mkdir()
        yield full, room


def _made(*roots: Path) -> Path:
    async def make() -> Path:
        folder = RunFolder(roots, 1, lambda: None)
        folder.close()
        return folder.path

    return asyncio.run(make())


def test_it_goes_below_the_next_root_where_the_disk_of_the_first_is_full(
    monkeypatch: pytest.MonkeyPatch, roots: tuple[Path, Path]
) -> None:
    full, room = roots
    monkeypatch.setattr(run_folder, "ControlWriter", _full(full))
    assert _made(full, room).parent == room
    assert not list(full.iterdir()), "nothing is left on the full one"
    with pytest.raises(OSError, match=f"{full}: No space left on device"):
        _made(full)


def test_each_profile_that_is_asked_for_is_seen(tmp_path: Path) -> None:
    writer, reader = ControlWriter(tmp_path), ControlReader(str(tmp_path))
    assert reader.wish() is None
    for number in (1, 255, 256, 257):
        wish = Wish(number, 5, everybody=True, memory=False, at=1e9)
        writer.ask_profile(wish)
        assert reader.wish() == wish
    writer.close()
