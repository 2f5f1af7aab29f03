"""Gangs that lose ranks and pods while their S3 is away, for the tests of the memory tier."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hack.s3server import BUCKET, S3Server

from muster_protocol.checkpoints.s3 import S3Store
from muster_protocol.exits import Cause
from muster_protocol.losses import decode, loss_curve
from muster_protocol.uris import parse_uri

sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoint"))
from proxy import Act, Proxy, error, forward

MakeGang = Callable[..., Any]
STEPS = 30

# Step 10 is committed; before step 20 the ranks wait for "away", and the save of step 20 is only in memory when rank
# VICTIM kills itself. In every incarnation but the first the ranks wait for "go" where they resume. Up to step PATIENT
# a save is over before the next begins. With LOOK the ranks wait for "seen" before any save.
SCRIPT = """
import torch, muster_runtime as muster
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
incarnation, here = int(os.environ["MUSTER_INCARNATION"]), Path(__file__).parent
calm, wide = "CALM" in os.environ, int(os.environ.get("WIDE", "64"))
kill_at = dict(enumerate(map(int, os.environ.get("KILL_AT", "22").split(",")), start=1)).get(incarnation)
def until(name):
    while not calm and not (here / name).exists(): time.sleep(0.01)
every = int(os.environ.get("EVERY", "10"))
session = muster.start(seed=3, checkpoint_every_steps=every)
data = TensorDataset(torch.randn(96, 32, generator=torch.Generator().manual_seed(1)), torch.arange(96.0)[:, None])
loader = session.wrap(DataLoader(data, batch_size=4, shuffle=True))
model = session.wrap(nn.Sequential(nn.Linear(32, wide), nn.ReLU(), nn.Dropout(0.2), nn.Linear(wide, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
session.track(model=model, optimizer=optimizer, loader=loader)
losses = (here / f"losses-{RANK}").open("a")
keeper = lambda: session.run.saves.persistence._keeper
for step, (x, y) in session.steps(30, loader):
    if step == session.resumed_from:
        mark(f"resumed-{incarnation}-at-{step}")
        until(f"go-{incarnation}")
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    session.report(loss=loss)
    losses.write(f"{step} {loss.item().hex()}\\n"); losses.flush()
    if calm: continue
    if step < int(os.environ.get("PATIENT", "19")) and step % every:  # what is copied late counts a step later
        while keeper().word().busy: time.sleep(0.01)
    if step == 3 and "LOOK" in os.environ: mark("at-3"); until("seen")
    if step == 18: mark("at-18"); until("away")
    if kill_at in (step, step + 1):  # before a boundary, where the gang can agree on it
        flight = keeper().saver.flight
        while flight and not flight.sealed.done(): time.sleep(0.01)
    if step == kill_at:
        mark(f"sealed-{incarnation}")
        until(f"strike-{incarnation}")
        if RANK == int(os.environ["VICTIM"]): os.kill(os.getpid(), signal.SIGKILL)
"""


class Outage(Proxy):
    """Answers every request with 503 while `away` is set."""

    def __init__(self, endpoint: str) -> None:
        self.away = threading.Event()
        super().__init__(endpoint)

    def act_for(self, request: str) -> Act:
        return error(503, "SlowDown") if self.away.is_set() else forward


class Run:
    """A gang of ranks that trains below `name`; its S3 is behind the proxy."""

    def __init__(
        self, make_gang: MakeGang, server: S3Server, proxy: Outage, name: str, workers: int, ranks: int
    ) -> None:
        self.proxy, self.ranks = proxy, workers * ranks
        self.uri = f"s3://{BUCKET}/{name}"
        self.gang = make_gang(
            workers,
            ranks,
            **server.environment(MUSTER_CHECKPOINT_URI=self.uri, AWS_ENDPOINT_URL_S3=proxy.endpoint),
            MUSTER_RESTARTS_IN_PLACE="3",
            MUSTER_JOB_UID="uid",
            OMP_NUM_THREADS="1",
        )
        self.pods: list[Any] = []

    def start(self, **more: str) -> None:
        self.pods = self.gang.all(self.gang.script(SCRIPT), **more)

    def reach(self, name: str) -> None:
        """Every rank has come to a mark."""
        self.gang.eventually(lambda: len(self.gang.marks(name + "-")) == self.ranks, f"{name}: {self.log()}", 240)

    def touch(self, name: str) -> None:
        (self.gang.folder / name).touch()

    def to_the_crash(self) -> None:
        """Until step 20 is in memory alone, and S3 is away."""
        self.reach("at-18")
        self.proxy.away.set()
        self.touch("away")
        self.reach("sealed-1")

    def log(self) -> str:
        return "\n".join(pod.log() for pod in self.pods)

    def ends_well(self) -> None:
        for pod in self.pods:
            assert pod.end(240).cause is Cause.SUCCEEDED, self.log()

    def losses(self) -> list[dict[str, str]]:
        """By rank: the loss of each step, as it was last computed."""
        lines = [(self.gang.folder / f"losses-{rank}").read_text().splitlines() for rank in range(self.ranks)]
        return [dict(line.split() for line in of_rank) for of_rank in lines]

    def committed(self) -> Any:
        store = S3Store(parse_uri(self.uri))
        body = store.get("LATEST")
        assert body is not None
        return json.loads(body.content)

    def curve(self) -> dict[int, float]:
        """As the store has it."""
        store = S3Store(parse_uri(self.uri))
        bodies = [store.get(item.key) for item in store.objects("metrics/")]
        return loss_curve(decode(body.content) for body in bodies if body is not None)

    def memory(self, pod: Any) -> list[Path]:
        """The launcher's descriptors of memory: data, record, record and claim of each of its ranks."""
        opened = sorted(Path(f"/proc/{pod.process.pid}/fd").iterdir(), key=lambda path: int(path.name))
        return [path for path in opened if _opens_tier(path)]


def _opens_tier(path: Path) -> bool:
    try:
        return "memfd:muster" in os.readlink(path)
    except FileNotFoundError:  # closed meanwhile
        return False


def memory_in_use(folder: Path) -> set[int]:
    """Inodes of all shared memory that a process of the gang with this folder has open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() not in (process / "environ").read_bytes():
                continue
            for path in (process / "fd").iterdir():
                if "memfd:muster" in os.readlink(path):
                    found.add(path.stat().st_ino)
        except OSError:
            continue  # it has ended meanwhile
    return found


def memory_of(pod: Any) -> int:
    """Bytes that all processes of a pod hold by themselves, and of shared memory, whether or not it is mapped."""
    own, shared = 0, {}
    said = {f"MUSTER_POD_UID={pod.uid}".encode(), f"MUSTER_POD_IP={pod.address}".encode()}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if not said <= set((process / "environ").read_bytes().split(b"\0")):
                continue
            own += sum(
                int(line.split()[1]) << 10
                for line in (process / "smaps_rollup").read_text().splitlines()
                if line.startswith("Pss_Anon:")
            )
            for path in (process / "fd").iterdir():
                if _opens_tier(path):
                    found = path.stat()
                    shared[found.st_ino] = found.st_blocks * 512
        except OSError:
            continue  # it has ended meanwhile
    return own + sum(shared.values())


def calm(make_gang: MakeGang, server: S3Server, proxy: Outage, name: str, workers: int, ranks: int, **more: str) -> Run:
    """The same run without any trouble."""
    run = Run(make_gang, server, proxy, f"{name}-calm", workers, ranks)
    run.start(CALM="1", **more)
    run.ends_well()
    return run
