"""A lost pod is replaced alone: the others end their ranks, wait in their pods, and go on with the new one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster_protocol import launcher_api as api
from muster_protocol.exits import EXIT_INFRASTRUCTURE, EXIT_PREEMPTED, Cause
from muster_protocol.launcher_status import Phase
from muster_protocol.messages import Member, Membership, Stop, StopReason
from muster_protocol.wire import encode
from muster_runtime.launch.liveness import SILENCE_BEATS, Silence
from muster_runtime.launch.membership import Roll

THOROUGH = bool(os.environ.get("MUSTER_THOROUGH"))

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(900)]

MakeGang = Callable[..., Any]
WAITING = {"MUSTER_REPLACE_SECONDS": "120", "MUSTER_HEARTBEAT_SECONDS": "0.2"}

# A rank that finds one of an older incarnation alive says so; FROZEN are the pods whose ranks nobody can end.
BEGIN = """
incarnation, here = int(os.environ["MUSTER_INCARNATION"]), Path(__file__).parent
def runs(pid):
    try: return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError: return False
for older in range(1, incarnation):
    for path in here.glob(f"mark-running-{older}-*"):
        if path.name.rpartition("-")[2] not in os.environ.get("FROZEN", "") and runs(path.read_text()): mark("overlap")
mark(f"running-{incarnation}")
def until(name):
    while not (here / name).exists(): time.sleep(0.01)
"""
PLAIN = BEGIN + "until('end')\n"

# At step 12 of the first incarnation the ranks of VICTIMS stand still, and the others wait for them in the all-reduce.
TRAINING = (
    BEGIN
    + """
import torch, muster_runtime as muster
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
session = muster.start(seed=3, checkpoint_every_steps=5)
data = TensorDataset(torch.randn(96, 32, generator=torch.Generator().manual_seed(1)), torch.arange(96.0)[:, None])
loader = session.wrap(DataLoader(data, batch_size=6, shuffle=True))
model = session.wrap(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
session.track(model=model, optimizer=optimizer, loader=loader)
losses = (here / f"losses-{RANK}").open("a")
for step, (x, y) in session.steps(20, loader):
    if step == session.resumed_from: mark(f"resumed-{incarnation}-at-{step}")
    if step == 12 and incarnation == 1:
        mark("at-12")
        if str(RANK) in os.environ["VICTIMS"]: until("end")
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    session.report(loss=loss)
    losses.write(f"{step} {loss.item().hex()}\\n"); losses.flush()
"""
)


class Operator:
    """Its part: pushes who belongs to the gang, and makes new pods in the places of lost ones."""

    def __init__(self, gang: Any, command: list[str], **more: str) -> None:
        self.gang, self._command, self._more = gang, command, more
        self.pods = {pod.index: pod for pod in gang.all(command, **more)}
        self.incarnation = 1
        self.push()

    def push(self) -> None:
        members = tuple(
            Member(pod.index, pod.uid, pod.address, 1, int(pod.uid.rpartition("-")[2])) for pod in self.pods.values()
        )
        body = encode(Membership(1, self.incarnation, members))
        for pod in self.pods.values():
            self.gang.eventually(pod.listens, f"index {pod.index} listens")
            assert pod.ask("PUT", api.MEMBERSHIP_PATH, body)[0] == 204

    def replace(self, *indexes: int) -> None:
        for index in indexes:
            attempt = int(self.pods[index].uid.rpartition("-")[2]) + 1
            self.pods[index] = self.gang.pod(index, self._command, attempt=attempt, **self._more)
        self.incarnation += 1
        self.push()

    def runs(self, incarnation: int) -> None:
        found = f"all ranks of incarnation {incarnation} run"
        count = self.gang.workers
        self.gang.eventually(lambda: len(self.gang.marks(f"running-{incarnation}-")) == count, found, 60)

    def loses(self, *indexes: int) -> None:
        """Those that are left say so; index 0 tells of all, the others of index 0."""
        for pod in self.pods.values():
            if pod.index not in indexes and (pod.index == 0 or 0 in indexes):
                expected = indexes if pod.index == 0 else (0,)
                self.gang.eventually(lambda: pod.status().lost == expected, f"index {pod.index} misses {expected}")  # noqa: B023
                assert pod.status().phase is Phase.JOINING

    def all_end(self, cause: Cause, seconds: float = 60) -> None:
        for pod in self.pods.values():
            assert pod.end(seconds).cause is cause, pod.log()
        assert not self.gang.marks("overlap"), "ranks of two incarnations lived at the same time"


def kill(*pods: Any) -> None:
    """As the kernel or a power cut does; the ranks die with their launcher."""
    for pod in pods:
        pod.process.kill()
    for pod in pods:
        pod.process.wait()


def pid_of(gang: Any, incarnation: int, rank: int) -> int:
    return int((gang.folder / f"mark-running-{incarnation}-{rank}").read_text())


def dies(gang: Any, pid: int) -> None:
    gang.eventually(lambda: not Path(f"/proc/{pid}").exists(), f"process {pid} is gone")


def end(gang: Any) -> None:
    (gang.folder / "end").touch()


def losses(gang: Any, rank: int) -> dict[str, str]:
    """The loss of each step, bit by bit, as it was last computed."""
    return dict(line.split() for line in (gang.folder / f"losses-{rank}").read_text().splitlines())


def training(gang: Any, **more: str) -> Operator:
    store = gang.folder / "store"
    store.mkdir()
    return Operator(
        gang,
        gang.script(TRAINING),
        MUSTER_CHECKPOINT_URI=f"file://{store}",
        MUSTER_CHECKPOINT_BLOCKING="1",
        MUSTER_JOB_UID="uid",
        OMP_NUM_THREADS="1",
        **more,
    )


@pytest.fixture(scope="module")
def undisturbed(make_shared_gang: MakeGang) -> list[dict[str, str]]:
    """By rank: the losses of a run without any fault."""
    gang = make_shared_gang(3)
    training(gang, VICTIMS="").all_end(Cause.SUCCEEDED, 240)
    return [losses(gang, rank) for rank in range(3)]


@pytest.mark.parametrize("victims", [(0, 2), (1,)] if THOROUGH else [(0, 2)])
def test_only_the_lost_pods_are_new_and_every_bit_of_the_run_is_the_same(
    make_gang: MakeGang, undisturbed: list[dict[str, str]], victims: tuple[int, ...]
) -> None:
    gang = make_gang(3, **WAITING)
    operator = training(gang, VICTIMS=str(victims))
    gang.eventually(lambda: len(gang.marks("at-12-")) == 3, "all are at step 12", 240)
    left = [pod for index, pod in operator.pods.items() if index not in victims]
    kill(*(operator.pods[index] for index in victims))
    operator.loses(*victims)
    operator.replace(*victims)
    gang.eventually(lambda: len(gang.marks("resumed-2-at-10-")) == 3, "all go on from the last commit", 240)
    operator.all_end(Cause.SUCCEEDED, 240)
    assert [losses(gang, rank) for rank in range(3)] == undisturbed
    for pod in left:
        facts = pod.end()
        assert (facts.incarnation, facts.restarts) == (2, 0), "a loss counts for nobody's limit"


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stop_goes_with_the_only_pod_that_was_told_of_it(
    make_gang: MakeGang, undisturbed: list[dict[str, str]], victim: int
) -> None:
    """As with `kubectl delete pod --grace-period=0 --force`: it is killed before the gang could save."""
    gang = make_gang(3, **WAITING | {"MUSTER_GRACE_SECONDS": "120"})
    operator = training(gang, VICTIMS=str((victim,)))
    gang.eventually(lambda: len(gang.marks("at-12-")) == 3, "all are at step 12", 240)
    operator.pods[victim].signal(signal.SIGTERM)
    for pod in operator.pods.values():
        gang.eventually(lambda: pod.phase_is(Phase.STOPPING), f"index {pod.index} stops")  # noqa: B023
    kill(operator.pods[victim])
    operator.loses(victim)
    operator.replace(victim)
    gang.eventually(lambda: len(gang.marks("resumed-2-at-10-")) == 3, "all go on from the last commit", 240)
    operator.all_end(Cause.SUCCEEDED, 240)
    assert [losses(gang, rank) for rank in range(3)] == undisturbed


@pytest.mark.parametrize("victim", [0, 1])
def test_a_pod_that_nobody_replaces_ends_the_others_by_its_name(make_gang: MakeGang, victim: int) -> None:
    gang = make_gang(3, **WAITING | {"MUSTER_REPLACE_SECONDS": "1.5"})
    operator = Operator(gang, gang.script(PLAIN))
    operator.runs(1)
    kill(operator.pods.pop(victim))
    for pod in operator.pods.values():
        facts = pod.end()
        assert facts.exit_code == EXIT_INFRASTRUCTURE
        assert f"index {victim} (pod uid-{victim}-0) is lost: " in facts.message
        assert "within 1.5 s" in facts.message
        assert facts.cause is (Cause.INFRASTRUCTURE if victim == 0 or pod.index == 0 else Cause.PEER)
    assert not gang.marks("running-2-")


@pytest.mark.parametrize("victim", [0, 1] if THOROUGH else [0])
def test_who_was_replaced_and_comes_back_is_refused(make_gang: MakeGang, victim: int) -> None:
    gang = make_gang(3, **WAITING)
    operator = Operator(gang, gang.script(PLAIN), FROZEN=str(victim))
    operator.runs(1)
    old = operator.pods[victim]
    old.signal(signal.SIGSTOP)
    operator.loses(victim)
    operator.replace(victim)
    operator.runs(2)
    old.signal(signal.SIGCONT)
    if victim:
        facts = old.end()
        assert facts.exit_code == EXIT_INFRASTRUCTURE
        assert "index 1 belongs to pod uid-1-1, not to uid-1-0" in facts.message
    else:
        gang.eventually(lambda: old.status().lost == (1, 2), "the old index 0 hears from nobody")
        old.signal(signal.SIGTERM)
        assert old.end().cause is Cause.PREEMPTED
    dies(gang, pid_of(gang, 1, victim))
    assert all(pod.status().incarnation == 2 and not pod.status().lost for pod in operator.pods.values())
    assert all(pod.phase_is(Phase.RUNNING) for pod in operator.pods.values()), "its stop was not for this gang"
    end(gang)
    operator.all_end(Cause.SUCCEEDED)


@pytest.mark.parametrize("victim", [0, 1] if THOROUGH else [1])
def test_who_was_only_away_and_not_replaced_is_taken_back(make_gang: MakeGang, victim: int) -> None:
    gang = make_gang(3, **WAITING)
    operator = Operator(gang, gang.script(PLAIN), FROZEN=str(victim))
    operator.runs(1)
    operator.pods[victim].signal(signal.SIGSTOP)
    operator.loses(victim)
    operator.pods[victim].signal(signal.SIGCONT)
    operator.runs(2)
    end(gang)
    operator.all_end(Cause.SUCCEEDED)
    assert {pod.end().incarnation for pod in operator.pods.values()} == {2}


@pytest.mark.parametrize(("victim", "asked"), [(1, 0), (1, 2), (0, 1)])
@pytest.mark.parametrize("how", ["signal", "suspend"] if THOROUGH else ["signal"])
def test_a_stop_ends_the_wait_at_once(make_gang: MakeGang, victim: int, asked: int, how: str) -> None:
    gang = make_gang(3, MUSTER_GRACE_SECONDS="60", **WAITING)
    operator = Operator(gang, gang.script(PLAIN))
    operator.runs(1)
    kill(operator.pods.pop(victim))
    operator.loses(victim)
    began = time.monotonic()
    if how == "signal":
        operator.pods[asked].signal(signal.SIGTERM)
    else:
        stop = encode(Stop(StopReason.SUSPEND, 60))
        assert operator.pods[asked].ask("POST", api.STOP_PATH, stop)[0] == 202
    for pod in operator.pods.values():
        facts = pod.end()
        assert (facts.cause, facts.exit_code) == (Cause.PREEMPTED, EXIT_PREEMPTED), pod.log()
    assert time.monotonic() - began < 30, "neither the grace nor the wait was used up"


def test_a_pod_whose_place_the_operator_gives_away_is_lost_though_it_lives(make_gang: MakeGang) -> None:
    """The old pod hears of it only at its next heartbeat; until then its rank runs, and nobody listens to it."""
    gang = make_gang(2, **WAITING | {"MUSTER_HEARTBEAT_SECONDS": "1000"})
    operator = Operator(gang, gang.script(PLAIN), FROZEN="1")
    operator.runs(1)
    old = operator.pods[1]
    operator.replace(1)
    assert operator.pods[0].ask("POST", api.JOIN_PATH, encode(Member(1, old.uid, old.address, 1)))[0] == 403
    operator.runs(2)
    old.process.kill()
    end(gang)
    operator.all_end(Cause.SUCCEEDED)


def test_without_an_operators_word_a_newer_attempt_may_come(make_gang: MakeGang) -> None:
    """And losses leave the limit of restarts in place as it is."""
    gang = make_gang(2, MUSTER_RESTARTS_IN_PLACE="1", **WAITING)
    command = gang.script(PLAIN)
    leader, lost = gang.all(command)
    for incarnation in (1, 2):
        gang.eventually(lambda: len(gang.marks(f"running-{incarnation}-")) == 2, f"incarnation {incarnation}")  # noqa: B023
        kill(lost)
        gang.eventually(lambda: leader.status().lost == (1,), "it is missed")
        lost = gang.pod(1, command, attempt=incarnation)
    gang.eventually(lambda: len(gang.marks("running-3-")) == 2, "incarnation 3")
    os.kill(pid_of(gang, 3, 0), signal.SIGKILL)
    gang.eventually(lambda: len(gang.marks("running-4-")) == 2, "a crash is still answered in place")
    assert leader.status().restarts == 1
    end(gang)
    assert [pod.end().cause for pod in (leader, lost)] == [Cause.SUCCEEDED] * 2
    assert not gang.marks("overlap")


def test_a_new_index_0_goes_on_counting_restarts_in_place(make_gang: MakeGang) -> None:
    gang = make_gang(2, MUSTER_RESTARTS_IN_PLACE="2", MUSTER_MEMORY_RESTARTS_IN_PLACE="1", **WAITING)
    short = "until(f'short-{incarnation}')\nif RANK: raise MemoryError\nuntil('end')\n"
    operator = Operator(gang, gang.script(BEGIN + short))
    operator.runs(1)
    (gang.folder / "short-1").touch()
    operator.runs(2)
    kill(operator.pods[0])
    operator.loses(0)
    operator.replace(0)
    operator.runs(3)
    status = operator.pods[0].status()
    assert (status.restarts, status.failures, status.memory_failures) == (1, 1, 1)
    (gang.folder / "short-3").touch()
    first, second = (operator.pods[index].end() for index in (0, 1))
    assert (first.restarts, second.restarts) == (1, 1)
    assert "the gang was restarted in place once before" in first.message, "the limit is used up"


def test_a_roll_excludes_who_is_not_named_and_who_was_given_up() -> None:
    roll = Roll(1, 2)
    assert not roll.excludes("a")
    roll.give_up("a")
    assert roll.excludes("a")
    roll.take_back("a")
    roll.push(Membership(1, 1, (Member(0, "a", "10.0.0.1", 1), Member(1, "b", "10.0.0.2", 1))))
    assert [roll.excludes(uid) for uid in ("a", "b", "c")] == [False, False, True]


def test_silence_counts_from_the_last_word_and_not_while_this_process_slept() -> None:
    silence = Silence(1.0, 0.0)
    assert silence.pass_to(1000.0, [1]) == {}, "our own pause"
    silence.heard(1)
    lost = [silence.pass_to(1000.0 + second, [1, 2]) for second in range(1, SILENCE_BEATS + 2)]
    assert [sorted(found) for found in lost] == [[]] * SILENCE_BEATS + [[1, 2]]
