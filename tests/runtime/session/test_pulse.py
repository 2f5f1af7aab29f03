"""What a session tells its launcher of where it is, and what torch's own frames look like when a rank waits."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest
import torch
from gangs import run_gang

from muster_protocol import env
from muster_protocol.messages import Examined, RankSeen
from muster_runtime.control import ControlWriter
from muster_runtime.launch import captures, hang
from muster_runtime.pulse import PulseReader, Section
from muster_runtime.session import flight
from muster_runtime.telemetry.goodput import Part

BEGIN = """
import asyncio, json, os, threading, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import muster_runtime as muster
from muster_runtime import stacks
from muster_runtime.launch import captures, processes

folder = Path(os.environ["MUSTER_RUN_DIR"])
session = muster.start()
model = session.wrap(nn.Linear(4, 1))
class Slow(TensorDataset):
    def __getitem__(self, at):
        time.sleep(0.02)
        return super().__getitem__(at)
data = Slow(torch.arange(48.0).view(12, 4))
loader, held_out = (session.wrap(DataLoader(data, batch_size=4)) for _ in range(2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
session.track(model=model, optimizer=optimizer, loader=loader)
at = []
def note():
    at.append(session.run.pulse.section.name)
def train(x):
    loss = model(x).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    session.report(loss=loss)
"""

LOOP = """
note()
for epoch in session.epochs(2):
    for (x,) in loader:
        note()
        train(x)
        if session.step == 1:
            with session.evaluate():
                note()
            note()
    note()
    for _ in held_out:
        note()
        break
note()
for _ in held_out:
    pass
note()
record = asyncio.run(captures.flight({session.rank: os.getpid()}, folder)).get(session.rank, "")
(folder / f"at-{session.rank}").write_text(json.dumps([at, record]))
"""

STUCK = """
def look():
    time.sleep(1.0)
    seen = asyncio.run(captures.capture({session.rank: os.getpid()}, folder))[session.rank]
    (folder / f"seen-{session.rank}").write_text(captures.main_thread(seen))
    time.sleep(1.0)
    os._exit(0)
def loop_for_ever():
    while True:
        pass
for step, (x,) in session.steps(10, loader):
    if session.step == 2:
        threading.Thread(target=look).start()
        HANG
    train(x)
"""


def test_a_rank_without_room_for_a_thread_trains_without_the_flight_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setenv(env.RUN_DIR, str(tmp_path))
    monkeypatch.setattr(flight, "_recorder", lambda _: lambda: "{}")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    flight.show_when_asked(0, torch.device("cpu"))
    assert asyncio.run(captures.flight({0: os.getpid()}, tmp_path)) == {}


def run(tmp_path: Path, script: str, reached: int = 0, begin: str = BEGIN) -> tuple[Path, PulseReader]:
    folder, path = tmp_path / "run", tmp_path / "script.py"
    folder.mkdir()
    control, reader = ControlWriter(folder), PulseReader(folder, 2, reached)
    path.write_text(begin + script)
    environment = {"MUSTER_RUN_DIR": str(folder), "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/checkpoints"}
    environment |= {"TORCH_FR_BUFFER_SIZE": "2000"}  # newer torches have it so; that of 2.8 records nothing by itself
    run_gang(path, tmp_path / "out", 2, environment, seconds=60).check()
    control.close()
    return folder, reader


def test_a_session_tells_where_it_is(tmp_path: Path) -> None:
    folder, reader = run(tmp_path, LOOP, reached=2)
    for rank in (0, 1):
        at, record = json.loads((folder / f"at-{rank}").read_text())
        assert at[:5] == ["SETUP", "START", "STEP", "EVALUATION", "STEP"]
        assert at[5:8] == ["STEP", "EVALUATION", "EVALUATION"], "what follows an epoch is no step"
        assert at[8:] == ["STEP"] * 3 + ["EVALUATION"] * 2 + ["OUTSIDE"] * 2
        beat = reader.read(rank)
        assert beat is not None
        assert (beat.section, beat.step, beat.steps) == (Section.OUTSIDE, 6, 5)
        assert 0 < beat.seconds < 60
        told = reader.told(rank)
        assert told is not None
        assert told.plausible
        spent = dict(zip(Part, told.times, strict=True))
        assert spent.pop(Part.HUNG) == 0
        assert all(spent.values()), spent
        # 6 samples an epoch and rank, and 2 of an evaluation; the first two of the six steps had been done before
        assert spent[Part.DATA_WAIT] >= (8 + 2) * 0.02e9
        assert spent[Part.RECOMPUTING] >= 4 * 0.02e9
        if record:  # where this torch has a flight recorder for gloo
            shown = captures.collectives(record)
            assert shown
            assert all(line.startswith("collective ") and ": gloo:" in line for line in shown), shown


@pytest.mark.parametrize(
    "hangs",
    [
        "loop_for_ever() if session.rank == 1 else None",
        "torch.distributed.all_reduce(torch.ones(1)) if session.rank == 0 else loop_for_ever()",
        "train(x); loop_for_ever() if session.rank == 1 else None; continue",
    ],
    ids=["in the backward pass", "in a collective", "at the boundary"],
)
def test_who_waits_is_told_from_who_loops(tmp_path: Path, hangs: str) -> None:
    folder, reader = run(tmp_path, STUCK.replace("HANG", hangs))
    seen = []
    for rank in (0, 1):
        beat, stack = reader.read(rank), (folder / f"seen-{rank}").read_text()
        assert beat is not None
        seen.append(RankSeen(rank, beat.section.name.lower(), beat.step, 1.0, "step", "S", stack))
    assert [one.rank for one in hang.suspects(seen)] == [1], seen
    assert "in loop_for_ever" in seen[1].stack
    if seen[0].section == "step":
        assert [one.rank for one in hang.suspects([seen[1], seen[0]])] == [1]


LOADING = """
import multiprocessing
session.rank or os.mkfifo(folder / "away")
def read(self, at):
    if session.step >= 3 and session.rank == 1:
        (folder / "away").read_bytes()
    return TensorDataset.__getitem__(self, at)
Slow.__getitem__ = read
def look():
    while session.step < 3:
        time.sleep(0.01)
    time.sleep(1.0)
    seen = asyncio.run(captures.capture({session.rank: os.getpid()}, folder))[session.rank]
    (folder / f"seen-{session.rank}").write_text(processes.state(os.getpid()) + captures.main_thread(seen))
    while not all((folder / f"seen-{rank}").exists() for rank in (0, 1)):
        time.sleep(0.01)
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)
threading.Thread(target=look).start()
for step, (x,) in session.steps(12, loader):
    train(x)
"""


@pytest.mark.parametrize(("workers", "told"), [(1, ", where it waits for its data loader;"), (0, " in read;")])
def test_a_source_of_data_that_gives_nothing_twice_is_not_the_scripts_error(
    tmp_path: Path, workers: int, told: str
) -> None:
    """Torch's own frames: with workers they are the same, whatever holds these up."""
    begin = BEGIN.replace("batch_size=4", f"batch_size=4, num_workers={workers}")
    folder, reader = run(tmp_path, LOADING, begin=begin)
    seen = []
    for rank in (0, 1):
        beat, text = reader.read(rank), (folder / f"seen-{rank}").read_text()
        assert beat is not None
        seen.append(RankSeen(rank, beat.section.name.lower(), beat.step, 1.0, "step", text[:1], text[1:]))
    found = hang.judge([Examined(0, True, tuple(seen))])
    assert (found.rank, found.signature) == (1, ""), seen
    assert told in found.message
