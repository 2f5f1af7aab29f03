"""A store that is in trouble for a while: reads that break off, a process that is killed, saves that are missed."""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from muster_protocol.losses import LossRecord
from muster_protocol.manifest import Manifest
from muster_runtime.checkpoint import reader
from muster_runtime.checkpoint.extents import Extent
from muster_runtime.checkpoint.keeper import Saved
from muster_runtime.checkpoint.reader import Reader
from muster_runtime.control import ControlReader
from muster_runtime.errors import StorageError, StorageRefusedError, storage_error
from muster_runtime.parallel.gang import Gang
from muster_runtime.reporter import Reporter
from muster_runtime.session import persistence, saves
from muster_runtime.session.attempts import RunState
from muster_runtime.session.persistence import Persistence
from muster_runtime.session.progress import Metrics, Progress
from muster_runtime.session.settings import read_settings
from muster_runtime.session.tracking import Tracked

CONTENT = b"some tensor's bytes"
FILE = Extent("shard", len(CONTENT), f"{zlib.crc32(CONTENT):08x}")


class Breaking:
    """Transfers whose first `times` fetches fail by an error of `kind`."""

    def __init__(self, kind: str, times: int) -> None:
        self.kind, self.times, self.fetches = kind, times, 0

    def fetch(self, file: Extent, at: int) -> Future[None]:
        self.fetches += 1
        future: Future[None] = Future()
        if self.fetches <= self.times:
            future.set_exception(storage_error(self.kind, "it broke off"))
        else:
            future.set_result(None)
        return future


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PAUSE_SECONDS", 0.0)


def settle(transfers: Any) -> None:
    made = Reader(transfers, Manifest(1, 1, 0, "", (), {"tensors": {}}, 1, 0.0), Gang())
    made._settle(transfers.fetch(FILE, 0), lambda: transfers.fetch(FILE, 0))


@pytest.mark.parametrize("kind", ["Network", "Busy", "Other"])
def test_a_file_is_read_again_when_the_server_is_in_trouble(kind: str) -> None:
    transfers = Breaking(kind, 3)
    settle(transfers)
    assert transfers.fetches == 4


def test_a_file_is_not_asked_for_for_ever() -> None:
    transfers = Breaking("Network", 100)
    with pytest.raises(StorageError, match="it broke off"):
        settle(transfers)
    assert transfers.fetches == 4


def test_what_is_denied_is_not_asked_for_again() -> None:
    transfers = Breaking("AccessDenied", 100)
    with pytest.raises(StorageRefusedError):
        settle(transfers)
    assert transfers.fetches == 1


class Told(Progress):
    """Progress whose warnings can be waited for."""

    @cached_property
    def warned(self) -> threading.Event:
        return threading.Event()

    def warn(self, message: str) -> None:
        super().warn(message)
        self.warned.set()


def test_a_store_that_is_silent_while_a_run_is_restored_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(saves, "SLOW", 0.05)
    settings = read_settings({}, seed=1, strategy=None, checkpoint=f"file://{tmp_path}/run", every_steps=1)
    cpu, reporter = torch.device("cpu"), Reporter()
    progress = Told(0, 1, cpu, reporter, None, is_saved=True)
    told = progress.warned
    made = saves.Saves(settings, Gang(), cpu, progress, reporter, ControlReader())
    monkeypatch.setattr(Persistence, "restore", lambda *_: None if told.wait(20) else pytest.fail("not told"))
    assert made.restore([]) is None
    assert f"file://{tmp_path}/run is not restored after 0.05 s, and is waited for" in capsys.readouterr().err
    told.clear()
    monkeypatch.setattr(saves, "SLOW", 3600.0)
    monkeypatch.setattr(Persistence, "restore", lambda *_: None)
    assert made.restore([]) is None
    assert not told.is_set()
    assert not [one for one in threading.enumerate() if isinstance(one, threading.Timer) and not one.finished.is_set()]


def test_so_it_is_while_a_run_starts_from_another_or_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(saves, "SLOW", 0.05)
    start = {"MUSTER_CHECKPOINT_FROM": f"file://{tmp_path}/other@7", "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    cpu, reporter = torch.device("cpu"), Reporter()
    progress = Told(0, 1, cpu, reporter, None, is_saved=True)
    told = progress.warned
    made = saves.Saves(read_settings(start), Gang(), cpu, progress, reporter, ControlReader())
    for name, ask, uri in (("start_from", made.restore, "other@7"), ("go_back", made.go_back, "run")):
        told.clear()
        monkeypatch.setattr(Persistence, name, lambda *_: None if told.wait(20) else pytest.fail("not told"))
        assert ask([]) is None
        assert f"{tmp_path}/{uri} is not restored after 0.05 s, and is waited for" in capsys.readouterr().err


def test_so_it_is_while_a_run_waits_for_its_last_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All steps are done then, and nothing else would tell why the job does not end."""
    monkeypatch.setattr(saves, "SLOW", 0.05)
    cpu, reporter = torch.device("cpu"), Reporter()
    progress = Told(0, 1, cpu, reporter, None, is_saved=True)
    settings = read_settings({"MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"})
    made = saves.Saves(settings, Gang(), cpu, progress, reporter, ControlReader())
    assert made.restore([]) is None

    def save_now(*_: Any, **__: Any) -> None:
        assert progress.warned.wait(20), "not told"

    monkeypatch.setattr(Persistence, "save_now", save_now)
    run = RunState(step=7, seed=1, world_size=1, threads=1)
    made.save_now([], run, finished=True, deadline=lambda: None, lives=lambda: None)
    assert "the checkpoint of step 7 is not saved after 0.05 s, and is waited for" in capsys.readouterr().err


SLOWLY = 0.2


class Slow:
    """Has a state that takes long to be told."""

    def state_dict(self) -> dict[str, int]:
        threading.Event().wait(SLOWLY)
        return {"count": 1}

    def load_state_dict(self, _: dict[str, int]) -> None: ...


def test_training_stands_still_for_all_of_a_save_that_it_waits_for(tmp_path: Path) -> None:
    """By that the interval `auto` is found: the walk over the state is in it, and of a blocking save its writing."""
    for blocking in ("0", "1"):
        landed: list[Saved] = []
        uri = f"file://{tmp_path}/{blocking}"
        began = time.monotonic()
        made = Persistence(
            read_settings({"MUSTER_CHECKPOINT_URI": uri, "MUSTER_CHECKPOINT_BLOCKING": blocking}),
            Gang(),
            torch.device("cpu"),
            warn=print,
            landed=landed.append,
            troubled=print,
            settled=print,
            counted=print,
        )
        made.restore([])
        made.save([Tracked("slow", Slow(), "here")], run_at(1), LossRecord(1, 0, ()), Metrics())
        made.settle()
        (saved,) = landed
        assert SLOWLY <= saved.stall <= saved.seconds <= time.monotonic() - began
        assert (saved.stall == saved.seconds) == (blocking == "1")
        made.close()


class AwayKeeper:
    """What a session's saves meet while the server is away. Each is over at the boundary after the one it began at."""

    def __init__(self) -> None:
        self.away, self.saves = True, 0
        self.error: StorageError = StorageError("Network", "the server is away; check the network")
        self.in_flight: int | None = None
        self.busy = self.failed = False

    def begin(self, *_: object, step: int, **__: object) -> None:
        assert self.in_flight is None
        self.saves += 1
        self.in_flight = step

    def wait(self) -> Saved | None:
        return self.advance(busy=False, failed=False, unsealed=True)

    def advance(self, *, busy: bool, failed: bool, unsealed: bool) -> Saved | None:
        step, self.in_flight = self.in_flight, None
        if self.away:
            raise self.error
        return Saved(step or 0, 1, 1, 0.0, 0.0)


class Persisting:
    """A session's persistence over an `AwayKeeper`, and what it told."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
        settings = read_settings(more, seed=1, strategy=None, checkpoint=f"file://{tmp_path}/run", every_steps=1)
        self.troubles: list[str] = []
        self.warnings: list[str] = []
        self.landed: list[int] = []
        self.pauses: list[float] = []
        self.made = Persistence(
            settings,
            Gang(),
            torch.device("cpu"),
            warn=self.warnings.append,
            landed=lambda saved: self.landed.append(saved.step),
            troubled=self.troubles.append,
            settled=lambda _: None,
            counted=lambda _: None,
            again=self.pauses.append,
        )
        self.keeper = AwayKeeper()
        monkeypatch.setattr(self.made, "_keeper", self.keeper)

    def save(self, step: int) -> None:
        self.made.save([], run_at(step), LossRecord(1, 0, ()), Metrics())

    def save_now(self, step: int, deadline: Callable[[], float | None] = lambda: None) -> None:
        self.made.save_now([], run_at(step), LossRecord(1, 0, ()), Metrics(), finished=True, deadline=deadline)

    def boundary(self) -> None:
        self.made.heard(writing=False, failed=False, unsealed=True)


def run_at(step: int) -> RunState:
    return RunState(step=step, seed=1, world_size=1, threads=1)


def test_saves_may_be_missed_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Persisting(tmp_path, monkeypatch)
    for step in range(1, 6):
        run.save(step)
        run.boundary()
    assert run.troubles[-1] == "the checkpoint of step 5 was not saved: the server is away; check the network"
    assert run.landed == []
    run.save(6)
    run.boundary()  # five are too many only when they were missed for long
    monkeypatch.setattr(persistence, "_MISSED_SECONDS", -1.0)
    run.save(7)
    with pytest.raises(StorageError, match="the server is away"):
        run.boundary()


def test_a_save_that_was_missed_is_made_up_for_after_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a short outage at the wrong minute puts two intervals of work at risk; but the store may still be away."""
    run = Persisting(tmp_path, monkeypatch)
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(persistence, "time", clock)
    for now in (0.0, 300.0, 3900.0):
        run.save(int(now))
        run.boundary()
    assert run.pauses == [300.0], "the others wait for the interval, or six would be missed within the hour"
    run.keeper.away = False
    run.save(7500)
    run.boundary()
    assert run.landed == [7500]


def test_keys_that_come_late_are_waited_for_and_a_lasting_refusal_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gang has claimed the run, so the store has taken its keys before."""
    run = Persisting(tmp_path, monkeypatch)
    run.keeper.error = storage_error("AccessDenied", "the keys are denied")
    monkeypatch.setattr(persistence, "time", SimpleNamespace(monotonic=lambda: now, sleep=lambda _: None))
    for now in (0.0, 120.0):
        run.save(int(now))
        run.boundary()
    assert run.pauses == [120.0, 120.0], "a file with keys is read once a minute"
    assert run.troubles[-1] == "the checkpoint of step 120 was not saved: the keys are denied"
    run.keeper.away = False
    run.save(240)
    run.boundary()
    assert run.landed == [240]
    run.keeper.away = True
    for now in (1000.0, 1120.0, 1600.0):
        run.save(int(now))
        run.boundary()
    now = 1601.0
    run.save(1601)
    with pytest.raises(StorageRefusedError, match="the keys are denied"):
        run.boundary()
    now = 2000.0
    with pytest.raises(StorageRefusedError):
        run.save_now(2000)


def test_a_save_that_succeeds_forgets_those_that_were_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Persisting(tmp_path, monkeypatch)
    for step in range(1, 8):
        run.keeper.away = step != 5
        run.save(step)
        run.boundary()
    assert run.landed == [5]
    assert len(run.troubles) == 6


def test_a_save_while_one_is_in_flight_is_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Persisting(tmp_path, monkeypatch)
    run.keeper.away = False
    for step in (1, 2, 3):
        run.save(step)
    assert (run.keeper.saves, run.made.skipped) == (1, 2)
    assert len(run.warnings) == 1, "each save that takes so long is told of once"
    assert "step 2 is left out, and so is each that is due until that of step 1 has been written" in run.warnings[0]
    run.boundary()
    for step in (4, 5):
        run.save(step)
    assert "step 5 is left out" in run.warnings[-1]
    assert "until that of step 4 has been written (3 left out so far)" in run.warnings[-1]
    run.boundary()
    assert run.landed == [1, 4]


class Clock:
    """Time that passes by sleeping alone; at `back` the server is there again."""

    def __init__(self, keeper: AwayKeeper, back: float = math.inf) -> None:
        self.now, self._keeper, self._back = 1000.0, keeper, 1000.0 + back

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._keeper.away = self.now < self._back


def test_the_last_save_waits_for_the_one_in_flight_and_for_a_store_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as saves may be missed in the loop: what was done since the last one would be lost."""
    run = Persisting(tmp_path, monkeypatch)
    monkeypatch.setattr(persistence, "time", Clock(run.keeper, back=1200.0))
    run.save(1)
    run.save_now(2)
    assert run.landed == [2]
    assert run.keeper.saves < 200
    assert run.troubles[-1].startswith("the checkpoint of step 2 was not saved, and is tried again: the server is away")
    run.keeper.away = False
    run.save(3)
    run.save_now(4)
    assert run.landed == [2, 3, 4]


def test_a_last_save_that_the_store_never_takes_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, seconds in ((StorageError("Network", "away"), 1800.0), (storage_error("AccessDenied", "denied"), 600.0)):
        run = Persisting(tmp_path, monkeypatch)
        run.keeper.error, clock = error, Clock(run.keeper)
        monkeypatch.setattr(persistence, "time", clock)
        with pytest.raises(StorageError, match=str(error)):
            run.save_now(2)
        assert seconds - 10 < clock.now - 1000 < seconds + 10


@pytest.mark.parametrize("back", [5.0, 18.0, 21.0])
def test_the_last_save_of_a_stop_is_tried_until_its_grace_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: float
) -> None:
    run = Persisting(tmp_path, monkeypatch)
    clock = Clock(run.keeper, back)
    monkeypatch.setattr(persistence, "time", clock)
    if back < 20:
        run.save_now(2, lambda: 1020.0)
        assert run.landed == [2]
    else:
        with pytest.raises(StorageError, match="the server is away"):
            run.save_now(2, lambda: 1020.0)
    assert clock.now <= 1020.0


def test_a_stop_that_comes_while_a_runs_end_waits_for_the_store_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Persisting(tmp_path, monkeypatch)
    clock = Clock(run.keeper)
    monkeypatch.setattr(persistence, "time", clock)
    with pytest.raises(StorageError, match="the server is away"):
        run.save_now(2, lambda: 1130.0 if clock.now > 1100 else None)
    assert 1120 < clock.now <= 1130


def test_a_blocking_save_is_over_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Persisting(tmp_path, monkeypatch, MUSTER_CHECKPOINT_BLOCKING="1")
    run.keeper.away = False
    run.save(1)
    assert run.landed == [1]
