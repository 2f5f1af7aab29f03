"""A store that is in trouble for a while: reads that break off, a process that is killed, saves that are missed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from muster_protocol.losses import LossRecord
from muster_runtime.checkpoint import reader
from muster_runtime.checkpoint.keeper import Saved
from muster_runtime.checkpoint.layout import Place
from muster_runtime.checkpoint.reader import read_chunk
from muster_runtime.errors import StorageError, StorageRefusedError, storage_error
from muster_runtime.parallel.gang import Gang
from muster_runtime.session import persistence
from muster_runtime.session.persistence import Persistence, RunState
from muster_runtime.session.settings import read_settings

CONTENT = b"some tensor's bytes"
PLACE = Place("shard", 0, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


class Breaking:
    """A store whose first `times` reads fail by an error of `kind`."""

    uri = "s3://models/x"

    def __init__(self, kind: str, times: int) -> None:
        self.kind, self.times, self.reads = kind, times, 0

    def read(self, key: str, offset: int, length: int) -> bytearray:
        self.reads += 1
        if self.reads <= self.times:
            raise storage_error(self.kind, "it broke off")
        return bytearray(CONTENT)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PAUSE_SECONDS", 0.0)


@pytest.mark.parametrize("kind", ["Network", "Busy", "Other"])
def test_a_chunk_is_read_again_when_the_server_is_in_trouble(kind: str) -> None:
    store: Any = Breaking(kind, 3)
    assert read_chunk(store, PLACE) == CONTENT
    assert store.reads == 4


def test_a_chunk_is_not_asked_for_for_ever() -> None:
    store: Any = Breaking("Network", 100)
    with pytest.raises(StorageError, match="it broke off"):
        read_chunk(store, PLACE)
    assert store.reads == 4


def test_what_is_denied_is_not_asked_for_again() -> None:
    store: Any = Breaking("AccessDenied", 100)
    with pytest.raises(StorageRefusedError):
        read_chunk(store, PLACE)
    assert store.reads == 1


class AwayStore:
    """What a session's saves meet while the server is away."""

    uri = "s3://models/x"

    def __init__(self) -> None:
        self.away, self.saves = True, 0

    def save(self, *_: object, step: int, **__: object) -> Saved:
        self.saves += 1
        if self.away:
            raise StorageError("Network", "the server is away; check the network")
        return Saved(step, 1, 1, 0.0)


def persisting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Persistence, AwayStore]:
    monkeypatch.setattr(persistence, "_PAUSE_SECONDS", 0.0)
    settings = read_settings({}, seed=1, strategy=None, checkpoint=f"file://{tmp_path}/run", every_steps=1)
    made, away = Persistence(settings, Gang(), torch.device("cpu"), lambda _: None), AwayStore()
    monkeypatch.setattr(made, "_keeper", away)
    return made, away


def save(made: Persistence, step: int) -> Saved | None:
    run = RunState(step=step, seed=1, world_size=1, threads=1)
    return made.save([], run, LossRecord(1, 0, ()), {}, finished=False, must=False)


def test_saves_may_be_missed_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, away = persisting(tmp_path, monkeypatch)
    for step in range(1, 6):
        assert save(made, step) is None
    assert made.trouble == "the checkpoint of step 5 was not saved: the server is away; check the network"
    assert away.saves == 5
    with pytest.raises(StorageError, match="the server is away"):
        save(made, 6)
    assert away.saves == 9, "the last one is tried again before the run is given up"


def test_a_save_that_succeeds_forgets_those_that_were_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, away = persisting(tmp_path, monkeypatch)
    for step in range(1, 6):
        assert save(made, step) is None
    away.away = False
    assert save(made, 6) is not None
    away.away = True
    assert save(made, 7) is None
