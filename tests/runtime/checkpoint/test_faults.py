"""Something bad at each request of a save: the last committed state comes back bit by bit, and LATEST never dangles."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from muster_protocol.checkpoints import commit as commits
from muster_protocol.checkpoints.chain import Found, candidates, read_manifest
from muster_protocol.checkpoints.commit import read_latest
from muster_protocol.checkpoints.inventory import take
from muster_protocol.checkpoints.prune import carry_out
from muster_protocol.checkpoints.retention import Retention, plan
from muster_protocol.errors import StorageError
from muster_runtime.checkpoint import transfers
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.reader import Reader
from muster_runtime.checkpoint.s3_store import S3Store
from muster_runtime.checkpoint.store import open_store
from muster_runtime.checkpoint.tree import TensorTable
from muster_runtime.parallel.gang import Gang

sys.path.insert(0, str(Path(__file__).parent))
from proxy import Act, Handler, Proxy, delay, drop, drop_answer, duplicate, error, forward, truncate

if TYPE_CHECKING:
    from conftest import S3Server

ANCESTORS = 2
THOROUGH = bool(os.environ.get("MUSTER_THOROUGH"))
STRIDE = 1 if THOROUGH else 3
"""Of the requests of a prune at which the writer is killed: it takes a new one for each."""
REQUESTS = 20
"""That a prune has at least."""


def state(step: int) -> TensorTable:
    generator = torch.Generator().manual_seed(step)
    return {"a": torch.rand(1500, generator=generator), "b": torch.rand(7, 11, generator=generator)}


class Run:
    """One rank whose requests go through the proxy. A save has two files."""

    def __init__(self, proxy: Proxy, uri: str) -> None:
        self.proxy, self.step = proxy, 0
        store = open_store(uri)
        assert isinstance(store, S3Store)
        self.store = store
        self.keeper = self._keeper()
        self.keeper.claim()

    def _keeper(self) -> Keeper:
        return Keeper(self.store, Gang(), owner="job", job="job", retention=Retention(), warn=lambda _: None)

    def save(self, bad_at: int, act: Act) -> bool:
        """The next step, with `act` at the request `bad_at`; whether the saver says that it is committed."""
        self.step = step = self.step + 1
        self.proxy.arm(bad_at, act, f"/step-{step:08d}/")
        beside = (("metrics/x", b"losses"),)
        try:
            self.keeper.begin(state(step), step=step, trees={}, run={}, beside=beside)
            self.keeper.wait()
        except StorageError as error:
            print(f"step {step} after {self.proxy.seen}: {error}")  # shown when the test fails
            return False
        return True

    def check(self, *, committed: bool, before: int) -> int:
        """The step that LATEST names, after looking at every bit of it."""
        step = self.step
        self.proxy.arm(0, forward)
        claim = read_latest(self.store)
        assert claim is not None
        found = read_manifest(self.store, claim.latest.manifest, claim.latest.sha256)
        assert found.manifest.step in ((step,) if committed else (before, step))
        self.look(found)
        return found.manifest.step

    def look(self, found: Found) -> None:
        """At every bit of it."""
        tables: list[TensorTable] = []

        def prepare(_: Found, reader: Reader) -> TensorTable:
            tables.append({name: torch.zeros_like(tensor) for name, tensor in state(0).items()})
            return tables[-1]

        self.keeper.load(self.store, found, prepare)
        assert all(tables[-1][name].equal(tensor) for name, tensor in state(found.manifest.step).items())


@pytest.fixture(scope="module")
def run(s3_environment: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One for all tests, as starting a storage process takes longer than what is tried with it; steps rise."""
    proxy = Proxy(s3_environment.endpoint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfers, "SMALLEST_PIECE", 1 << 12)
        patch.setattr(commits, "_PAUSE_SECONDS", 0.01)
        patch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        made = Run(proxy, f"s3://models/{tmp_path_factory.mktemp('faults').name}")
        yield made
        made.store.close()
    proxy.shutdown()
    proxy.server_close()


def at_every_request(run: Run, make: Callable[[], Act]) -> list[bool]:
    """A save with something bad at its first request, one at its second, and so on; which of them succeeded."""
    assert run.save(0, forward)
    before, outcomes = run.step, []
    while True:
        number = len(outcomes) + 1
        committed = run.save(number, make())
        if len(run.proxy.seen) < number:
            assert committed
            return outcomes
        outcomes.append(committed)
        before = run.check(committed=committed, before=before)


def kill(run: Run, *, after: bool) -> Act:
    def act(handler: Handler) -> None:
        if after:
            handler.ask()
        os.kill(run.store.process.pid, signal.SIGKILL)
        handler.hang_up()

    return act


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_writer_is_killed_at_every_request(run: Run, after: bool) -> None:
    outcomes = at_every_request(run, lambda: kill(run, after=after))
    # two files, the losses, the manifest; then LATEST, whose fate is read back by another process
    assert outcomes[:5] == [False] * 4 + [True]


BAD = {
    "delay": delay,
    "500": error(500, "InternalError"),
    "503": error(503, "SlowDown"),
    "409": error(409, "ConditionalRequestConflict"),
    "drop": drop,
    "drop the answer": drop_answer,
    "duplicate": duplicate,
    "truncate": truncate,
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_network_at_every_request(run: Run, bad: str) -> None:
    outcomes = at_every_request(run, lambda: BAD[bad])
    assert len(outcomes) >= 5
    if bad != "409":  # nothing but LATEST's conditional write is answered so
        assert all(outcomes), "one bad answer is no reason to miss a save"


def prune_at_every_request(run: Run, make: Callable[[], Act], first: int = 1, stride: int = 1) -> list[bool]:
    """As `at_every_request`, with prunes of one checkpoint each. What stays is whole after each, bit by bit."""
    for _ in range(ANCESTORS + 1):
        assert run.save(0, forward)
    prune(run)
    outcomes: list[bool] = []
    while True:
        assert run.save(0, forward)
        number = first + len(outcomes) * stride
        run.proxy.arm(number, make())
        try:
            prune(run)
            done = True
        except StorageError as error:
            print(f"request {number} of {run.proxy.seen}: {error}")  # shown when the test fails
            done = False
        seen = len(run.proxy.seen)
        run.proxy.arm(0, forward)
        claim = read_latest(run.store)
        assert claim is not None
        found = [each for each in candidates(run.store, claim.latest) if isinstance(each, Found)][: ANCESTORS + 1]
        assert [each.manifest.step for each in found] == [run.step, run.step - 1, run.step - 2]
        for each in found:
            run.look(each)
        prune(run)
        left = take(run.store, unfinished=False)
        assert len(left.committed) == ANCESTORS + 1
        assert not [folder for folder in left.orphans if folder.tombstones], "the next prune ends what was cut"
        if seen < number:
            assert done
            return outcomes
        outcomes.append(done)


@pytest.fixture(scope="module")
def other(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """On a prefix of its own, where nothing lies that other tests have left."""
    run.proxy.arm(0, forward)  # the test before may have left something bad for a request that it did not make
    made = Run(run.proxy, f"s3://models/{tmp_path_factory.mktemp('prunes').name}")
    yield made
    made.store.close()


def prune(run: Run) -> None:
    now = time.time()
    carry_out(run.store, plan(take(run.store, unfinished=False), Retention(last=1), now), lambda: now)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_writer_is_killed_at_every_request_of_a_prune(other: Run, after: bool) -> None:
    first = 1 + after * (STRIDE > 1)  # after each is before the next, which the other tries then
    outcomes = prune_at_every_request(other, lambda: kill(other, after=after), first, STRIDE)
    assert len(outcomes) >= REQUESTS // STRIDE


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_network_at_every_request_of_a_prune(other: Run, bad: str) -> None:
    outcomes = prune_at_every_request(other, lambda: BAD[bad])
    assert len(outcomes) >= REQUESTS
    if bad != "409":
        assert all(outcomes), "one bad answer is no reason to give up a prune"
