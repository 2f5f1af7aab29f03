"""What of a step is a rank's own work."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from gangs import run_gang

from muster_runtime import pulse as pulses
from muster_runtime.control import ControlWriter
from muster_runtime.pulse import STAGES, Beat, Pulse, PulseReader, Section, Stage
from muster_runtime.session.pace import DeviceSpans

pytestmark = pytest.mark.runtime


class Clock:
    """Stands in for `time` in the pulse."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(pulses, "time", found)
    return found


def step(pulse: Pulse, clock: Clock, number: int) -> None:
    """1 s for data, 2 forward, 4 backward, 8 for the optimizer, 16 at the boundary, 32 in a save."""
    with pulse.waits_for_data():
        clock.now += 1
    pulse.step_opens()
    pulse.owns(Stage.FORWARD)
    clock.now += 2
    pulse.shares(Stage.BACKWARD)
    clock.now += 4
    pulse.owns(Stage.OPTIMIZER)
    clock.now += 8
    pulse.enter(Section.BOUNDARY)
    clock.now += 16
    pulse.step_done(number)
    with pulse.during(Section.CHECKPOINT):
        clock.now += 32


def read(folder: Path, reader: PulseReader) -> Beat:
    beat = reader.read(0)
    assert beat is not None
    return beat


def test_own_are_data_forward_and_optimizer(tmp_path: Path, clock: Clock) -> None:
    reader = PulseReader(tmp_path, 1)
    pulse = Pulse(0, str(tmp_path))
    pulse.begin(0)
    for number in (1, 2, 3):
        step(pulse, clock, number)
    beat = read(tmp_path, reader)
    assert (beat.steps, beat.seconds, beat.own) == (2, 2 * 31.0, 2 * 11.0)
    assert beat.stages == tuple(2.0 * seconds for seconds in (1, 0, 2, 4, 8, 16, 32)), "by `STAGES`"


class Event:
    """As `torch.cuda.Event`, of a device that is done when the test says so."""

    made: ClassVar[list[Event]] = []
    done = 0

    def __init__(self) -> None:
        self.number = len(self.made)
        self.made.append(self)
        self.recorded = False

    def record(self) -> None:
        self.recorded = True

    def query(self) -> bool:
        return self.number < self.done

    def elapsed_time(self, end: Event) -> float:
        assert self.recorded
        assert end.recorded
        return 250.0 * (end.number - self.number)


def test_on_a_device_time_counts_there_and_nobody_waits_for_it(tmp_path: Path, clock: Clock) -> None:
    Event.made.clear()
    reader = PulseReader(tmp_path, 1)
    pulse = Pulse(0, str(tmp_path))
    pulse.timer = DeviceSpans(Event)
    pulse.begin(0)
    step(pulse, clock, 1)
    step(pulse, clock, 2)
    assert read(tmp_path, reader).own == 0.0, "nothing is done there yet"
    Event.done = len(Event.made)
    step(pulse, clock, 3)
    stages = read(tmp_path, reader).stages
    assert all(stages[stage] > 0 and stages[stage] % 0.25 == 0 for stage in STAGES if stage < Stage.BOUNDARY)
    assert stages[Stage.BOUNDARY] == 2 * 16.0, "nothing of it is on the device"
    assert read(tmp_path, reader).own > 0
    assert read(tmp_path, reader).own % 0.25 == 0, "by the device's clock"


SCRIPT = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import muster_runtime as muster

session = muster.start()
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(4))  # DDP shares it out before each forward pass
    def forward(self, x):
        time.sleep(SLEEP)
        return self.linear(x - self.mean)
model = session.wrap(Model())
loader = session.wrap(DataLoader(TensorDataset(torch.arange(96.0).view(24, 4)), batch_size=4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
session.track(model=model, optimizer=optimizer, loader=loader)
for step, (x,) in session.steps(12, loader):
    optimizer.zero_grad(); model(x).mean().backward(); optimizer.step()
"""


@pytest.mark.parametrize("slow", [0, 1])
def test_the_slow_rank_of_a_real_gang_is_known_by_its_own_time_alone(tmp_path: Path, slow: int) -> None:
    folder, path = tmp_path / "run", tmp_path / "script.py"
    folder.mkdir()
    control, reader = ControlWriter(folder), PulseReader(folder, 2)
    path.write_text(SCRIPT.replace("SLEEP", f"0.06 if session.rank == {slow} else 0.0"))
    run_gang(path, tmp_path / "out", 2, {"MUSTER_RUN_DIR": str(folder)}, seconds=60).check()
    control.close()
    beats = [reader.read(rank) for rank in (0, 1)]
    assert all(beat is not None and beat.steps == 11 for beat in beats)
    held, free = beats[slow], beats[1 - slow]
    assert held is not None
    assert free is not None
    assert held.own >= 11 * 0.06
    assert free.own < held.own / 2
    assert free.seconds > held.own / 2, "it waited as long"
    assert held.stages[Stage.FORWARD] >= 11 * 0.06, "the model is what is slow"
    assert all(held.stages[stage] > 0 for stage in (Stage.DATA, Stage.BACKWARD, Stage.OPTIMIZER, Stage.BOUNDARY))
    assert sum(held.stages[: Stage.CHECKPOINT]) == pytest.approx(held.seconds, rel=0.01)
