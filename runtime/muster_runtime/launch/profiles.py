"""Profiles on demand: index 0 passes a wish on to rank 0, and every launcher stores what its ranks have recorded.

They go beside the checkpoints, under `profiles/STEP-TIME/`, by a thread of their own: training waits for none of it,
and when the storage fails the files are given up.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from muster_protocol.checkpoints.store import StreamingStore, whole_or_nothing
from muster_protocol.errors import StorageError
from muster_protocol.launcher_status import PROFILE_STEPS, Profile, ProfilePhase, Profiling
from muster_protocol.uris import parse_uri
from muster_runtime import report, vendored
from muster_runtime.control import ControlWriter, Wish
from muster_runtime.launch.config import Config
from muster_runtime.launch.membership import Refused
from muster_runtime.launch.termination import say

WAIT_SECONDS: Final = 600.0
"""A wish that no rank has answered by then is given up, and another one may come."""
BYTES_AT_MOST: Final = 2 * 1024**3
"""Of one file, before it is packed; what is larger is not stored."""
_PIECE: Final = 1024 * 1024
_GZIP: Final = 31
"""zlib's word for gzip's format."""


class Profiles:
    """`clock` gives monotonic seconds."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self._control: ControlWriter | None = None
        self._folder = Path()
        self._number = 0
        self._asked_at = 0.0
        self.state = Profiling()
        """Of this pod's last profile."""
        self._storing: set[int] = set()  # ranks

    def begin(self, folder: Path, control: ControlWriter) -> None:
        """Ranks start, with this run folder."""
        self._folder, self._control = folder, control
        if self.state.phase is ProfilePhase.ASKED:
            self._settle(ProfilePhase.FAILED, "the ranks were started again before they recorded anything")

    def end(self) -> None:
        self._control = None

    def ask(self, wish: Profile) -> Refused | Profiling:
        """Index 0's part."""
        if not self._config.leads:
            return Refused(421, "profiles are asked of index 0")
        if type(wish.steps) is not int or not 1 <= wish.steps <= PROFILE_STEPS:
            return Refused(400, f"steps is {wish.steps!r}; it has to be 1 to {PROFILE_STEPS}")
        if not self._config.checkpoint_uri:
            return Refused(400, "the job has no checkpoint.uri, so there is no place to store a profile")
        if self._control is None:
            return Refused(409, "no ranks run now; ask again when the job trains")
        if self._busy():
            return Refused(409, "a profile is under way already; wait until it is stored")
        self._number, self._asked_at, at = self._number + 1, self._clock(), float(int(time.time()))
        self.state = Profiling(ProfilePhase.ASKED, asked_at=at)
        self._control.ask_profile(Wish(self._number, wish.steps, bool(wish.everybody), bool(wish.memory), at))
        return self.state

    def _busy(self) -> bool:
        if self.state.phase is ProfilePhase.STORING:
            return True
        return self.state.phase is ProfilePhase.ASKED and self._clock() - self._asked_at < WAIT_SECONDS

    def heard(self, told: report.Profiled) -> None:
        """A rank has recorded, or couldn't. Call it in the event loop."""
        local = told.rank - self._config.rank(0)
        if not 0 <= local < self._config.processes or not 0 <= told.at < 1e11 or told.rank in self._storing:
            return
        files = [report.profile_file(self._folder, told.rank), report.memory_file(self._folder, told.rank)]
        taken = [taken for file in files if (taken := _taken(file)) is not None]
        if not taken or not self._config.checkpoint_uri:
            self._settle(ProfilePhase.FAILED, told.text or "the rank left no trace")
            return
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(told.at))
        folder = f"profiles/{told.step}-{moment}"
        uri = f"{parse_uri(self._config.checkpoint_uri)}/{folder}"
        before = self.state.stored if self.state.uri == uri else ()
        self.state = Profiling(ProfilePhase.STORING, uri, before, told.text, told.at)
        self._storing.add(told.rank)
        loop = asyncio.get_running_loop()

        def work() -> None:
            stored, trouble = self._store(folder, told, taken)
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._stored, told, stored, trouble)

        storing = threading.Thread(target=work, daemon=True, name="profile")
        try:
            storing.start()
        except RuntimeError as error:  # the container may have no more of them
            for file in taken:
                file.unlink(missing_ok=True)
            self._stored(told, (), f"it could not be stored: {error}")

    def _stored(self, told: report.Profiled, stored: tuple[str, ...], trouble: str) -> None:
        self._storing.discard(told.rank)
        state = self.state
        self.state = replace(state, stored=(*state.stored, *stored), text=trouble or state.text)
        if not self._storing:
            failed = bool(trouble) and not self.state.stored
            self._settle(ProfilePhase.FAILED if failed else ProfilePhase.DONE, self.state.text)

    def _settle(self, phase: ProfilePhase, text: str) -> None:
        self.state = replace(self.state, phase=phase, text=text)
        where = f" at {self.state.uri}" if self.state.uri else ""
        say(f"profile {phase.value}{where}{f': {text}' if text else ''}")

    def _store(self, folder: str, told: report.Profiled, files: list[Path]) -> tuple[tuple[str, ...], str]:
        """In a thread. Names of what was stored, and what went wrong."""
        stored: list[str] = []
        try:
            store = self._open()
            for file in files:
                if file.stat().st_size > BYTES_AT_MOST:
                    return tuple(stored), f"{file.name} has {file.stat().st_size / 1e9:.1f} GB: record fewer steps"
                name = f"rank-{told.rank}{file.name.removeprefix(f'profile-{told.rank}').removesuffix('.taken')}.gz"
                _pack(file, store, f"{folder}/{name}")
                stored.append(name)
            if told.rank == 0:
                index = {"step": told.step, "steps": told.steps, "asked_at": told.at, "workers": self._config.workers}
                store.put(f"{folder}/index.json", json.dumps(index).encode())
                stored.append("index.json")
        except (StorageError, OSError) as error:
            return tuple(stored), f"it could not be stored: {error}"
        finally:
            for file in files:
                file.unlink(missing_ok=True)
        return tuple(stored), ""

    def _open(self) -> StreamingStore:
        vendored.use()
        uri = parse_uri(self._config.checkpoint_uri)
        if uri.scheme == "file":
            from muster_protocol.checkpoints.file_store import FileStore

            return FileStore(uri)
        from muster_protocol.checkpoints.s3 import S3Store

        return S3Store(uri)


def _taken(file: Path) -> Path | None:
    """The file under another name, which the ranks don't write to any more; None where there is none."""
    taken = file.with_name(f"{file.name}.taken")
    try:
        return file.rename(taken)
    except OSError:
        return None


def _pack(file: Path, store: StreamingStore, key: str) -> None:
    """Raises StorageError, OSError."""
    packer = zlib.compressobj(wbits=_GZIP)
    with whole_or_nothing(store.writer(key)) as writer:
        with file.open("rb") as source:
            while piece := source.read(_PIECE):
                writer.write(memoryview(packer.compress(piece)))
        writer.write(memoryview(packer.flush()))
        writer.close()
