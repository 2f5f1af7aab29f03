"""What Muster's telemetry costs a training step: the same loop with it and without it, in turns, in processor time.

    python bench/telemetry.py [--steps 200] [--rounds 41]

The loop is a session's own, on one rank, without a model's arithmetic, which would only hide the difference; it tells
what a loader and DDP tell of a step's stages. Steps here are as short as can be, so what goes by the clock happens as
often as in steps of 100 ms: a report each 10th step, a line each 20th, the gradient's norm each 100th. "Without" leaves
out the pulse, the stages, the reports, the norm and what the run's tracker is told, two metrics of each step; the rest
of a session's boundary is in both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from muster_protocol import env
from muster_runtime.parallel.gang import Gang
from muster_runtime.parallel.norms import own_square
from muster_runtime.pulse import Pulse, PulseReader, Section, Stage
from muster_runtime.session.session import Session
from muster_runtime.session.settings import read_settings

STEP_SECONDS: Final = 0.1
TARGET: Final = 0.001
"""Of a step."""
REPORT_EACH: Final = 10
LINE_EACH: Final = 20
NORM_EACH: Final = 100

LISTEN: Final = """
import select, sys
from pathlib import Path
from muster_runtime import report, reporter
socket = reporter.listen(Path(sys.argv[1]))
print("ready", flush=True)
while select.select([socket, sys.stdin], [], [])[0] == [socket]:
    socket.recv(report.DATAGRAM_LIMIT)
"""


class Silent:
    """In place of a pulse, of reports and of norms: everything that it is asked to do is nothing."""

    section, step, timer = Section.NONE, 0, None

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    @contextlib.contextmanager
    def during(self, *_: Any) -> Iterator[None]:
        yield

    waits_for_data = during


class Loop:
    """One session and its loop."""

    def __init__(self, pulse: Any, steps: int, uri: str = "") -> None:
        settings = read_settings({env.TRACKING_URI: uri}, seed=1, strategy=None, checkpoint=None, every_steps=None)
        self.session = session = Session(settings, Gang(), torch.device("cpu"), pulse)
        self.model = torch.nn.Linear(16, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        session.track(model=self.model, optimizer=self.optimizer)
        self.steps = session.steps(steps)
        self.done = 0

    def run(self, steps: int) -> float:
        """Microseconds of processor time a step."""
        run, pulse = self.session.run, self.session.run.pulse
        began = time.process_time()
        for _ in range(steps):
            self.done += 1
            if self.done % REPORT_EACH == 0:
                run.progress._sent_at = 0.0
            if self.done % LINE_EACH == 0:
                run.progress._printed_at = 0.0
            if self.done % NORM_EACH == 0:
                run._norms._asked_at = float("-inf")
            next(self.steps)
            with pulse.waits_for_data():
                pass
            pulse.shares(Stage.FORWARD)
            pulse.owns(Stage.FORWARD)
            pulse.shares(Stage.BACKWARD)
            run.optimizer_steps(self.optimizer)
            self.session.report(loss=1.0, tokens=1, accuracy=0.5)
        return (time.process_time() - began) / steps * 1e6


def silenced(loop: Loop) -> Loop:
    run: Any = loop.session.run
    run.progress.tell = run.progress.count = lambda *_, **__: None
    norms: Any = Silent()
    norms.asks, norms.take = (lambda: False), (lambda _: None)
    run._norms = norms
    return loop


def norm_seconds(parameters: int) -> float:
    """Processor time of one look at the gradient's norm."""
    weight = torch.nn.Parameter(torch.zeros(parameters))
    weight.grad = torch.ones(parameters)
    own_square([weight], 1)
    began = time.process_time()
    own_square([weight], 1)
    return time.process_time() - began


def measure(steps: int, rounds: int, folder: Path) -> dict[str, float]:
    reader = PulseReader(folder, 1)
    listener = subprocess.Popen(
        [sys.executable, "-c", LISTEN, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert listener.stdout is not None
    listener.stdout.readline()
    (folder / "control").write_bytes(bytes(64))
    os.environ[env.RUN_DIR] = str(folder)
    total = steps * (rounds + 1) + 1
    told = Loop(Pulse(0, str(folder)), total, "https://mlflow.example.com")
    del os.environ[env.RUN_DIR]
    untold = silenced(Loop(Silent(), total))
    spent: dict[str, list[float]] = {"with": [], "without": []}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        for number in range(rounds + 1):
            for name, loop in (("with", told), ("without", untold)):
                taken = loop.run(steps)
                if number:  # the first round warms up
                    spent[name].append(taken)
    beat = reader.read(0)
    assert beat is not None
    assert beat.step >= steps * rounds, "the pulse was written"
    listener.communicate(b"\n")
    medians = {name: statistics.median(values) for name, values in spent.items()}
    differences = sorted(a - b for a, b in zip(spent["with"], spent["without"], strict=True))
    return {
        "with_us": round(medians["with"], 1),
        "without_us": round(medians["without"], 1),
        "telemetry_us": round(statistics.median(differences), 1),
        "telemetry_us_least": round(differences[0], 1),
        "telemetry_us_most": round(differences[-1], 1),
        "of_a_100_ms_step": round(statistics.median(differences) * 1e-6 / STEP_SECONDS, 6),
        "norm_of_10m_parameters_ms": round(norm_seconds(10_000_000) * 1e3, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=41)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="telemetry-") as folder:
        figures = measure(options.steps, options.rounds, Path(folder))
    print(f"{'a step with telemetry':<42}{figures['with_us']:>8.1f} us")
    print(f"{'without':<42}{figures['without_us']:>8.1f} us")
    spread = f"{figures['telemetry_us_least']:.1f} to {figures['telemetry_us_most']:.1f}"
    print(f"{'telemetry, median of the rounds':<42}{figures['telemetry_us']:>8.1f} us ({spread})")
    print(f"{'of a step of 100 ms':<42}{figures['of_a_100_ms_step'] * 100:>8.3f} %")
    print(f"{'one look at the norm of 10 M gradients':<42}{figures['norm_of_10m_parameters_ms']:>8.2f} ms")
    met = figures["of_a_100_ms_step"] <= TARGET
    targets = {"of_a_100_ms_step": TARGET}
    print(json.dumps({"bench": "telemetry", "figures": figures, "targets": targets, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
