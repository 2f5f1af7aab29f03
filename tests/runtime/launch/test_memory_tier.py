"""A gang that crashed goes on from its own memory, also while S3 answers nothing but 503."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from hack.needs_torch import SHARDS
from hack.s3server import S3Server

from muster_protocol.launcher_status import Saving

sys.path.insert(0, str(Path(__file__).parent))
from memory_runs import STEPS, MakeGang, Outage, Run, calm, memory_in_use

THOROUGH = bool(os.environ.get("MUSTER_THOROUGH"))
STRATEGIES = [("ddp", 1), pytest.param("fsdp", 1, marks=SHARDS), pytest.param("hsdp", 2, marks=SHARDS)]

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("strategy", "ranks"), STRATEGIES if THOROUGH else STRATEGIES[:2])
def test_a_killed_rank_resumes_from_memory_while_s3_answers_503(
    make_gang: MakeGang, s3_server: S3Server, proxy: Outage, strategy: str, ranks: int
) -> None:
    """On two pods of so many ranks each: HSDP shards within a pod, and its pods are replicas."""
    undisturbed = calm(make_gang, s3_server, proxy, f"away-{strategy}", 2, ranks, MUSTER_STRATEGY=strategy)
    run = Run(make_gang, s3_server, proxy, f"away-{strategy}", 2, ranks)
    run.start(VICTIM="1", EVERY="5", KILL_AT="27", MUSTER_STRATEGY=strategy)
    run.to_the_crash()
    assert run.committed()["step"] == 15
    told = "the gang has left out the save of step 25, since that of step 20 doesn't end"
    run.gang.eventually(lambda: run.pods[0].status().saving == Saving(left_out=1), told)
    run.touch("strike-1")
    run.reach("resumed-2-at-20")
    assert all(pod.status().resumed_from == 20 for pod in run.pods)
    assert run.committed()["step"] == 15, "S3 was away all the time"
    proxy.away.clear()
    run.touch("go-2")
    run.ends_well()
    latest = run.committed()
    assert (latest["step"], latest["finished"], latest["epoch"]) == (STEPS, True, 1), "under the epoch that it held"
    assert run.losses() == undisturbed.losses()
    assert run.curve() == undisturbed.curve()
    assert len(run.curve()) == STEPS


def test_three_restarts_leak_no_memory(make_gang: MakeGang, s3_server: S3Server, proxy: Outage) -> None:
    run = Run(make_gang, s3_server, proxy, "leaks", 1, 2)
    run.start(VICTIM="0", EVERY="5", KILL_AT="12,17,22", PATIENT="99")
    run.touch("away")  # but S3 stays
    sizes, counts = [], []
    for incarnation, kept in ((1, 10), (2, 15), (3, 20)):
        run.reach(f"sealed-{incarnation}")
        sizes.append([path.stat().st_blocks * 512 for path in run.memory(run.pods[0])])
        counts.append(len(memory_in_use(run.gang.folder)))
        run.touch(f"strike-{incarnation}")
        run.touch(f"go-{incarnation + 1}")
        run.reach(f"resumed-{incarnation + 1}-at-{kept}")
    assert counts == [2 * 4] * 3, "no process has memory of its own"
    assert all(sum(size) <= sum(sizes[0]) + 4 * 4096 for size in sizes), "and it doesn't grow"
    run.ends_well()
    assert len(run.curve()) == STEPS
    assert not memory_in_use(run.gang.folder)


@pytest.mark.parametrize("damage", ["byte", "record"] if THOROUGH else ["byte"])
def test_a_torn_slot_is_refused_and_s3_taken(
    make_gang: MakeGang, s3_server: S3Server, proxy: Outage, damage: str
) -> None:
    run = Run(make_gang, s3_server, proxy, f"torn-{damage}", 2, 1)
    run.start(VICTIM="1")
    run.to_the_crash()
    data, first, second, _ = run.memory(run.pods[1])
    if damage == "byte":
        with data.open("r+b") as file:
            content = file.read()
            file.seek(0)
            file.write(bytes(byte ^ 1 for byte in content))
    else:
        for record in (first, second):
            if record.stat().st_size:
                os.truncate(record, 10)
    proxy.away.clear()
    run.touch("strike-1")
    run.reach("resumed-2-at-10")
    assert "in memory is damaged" in run.log()
    run.touch("go-2")
    run.ends_well()
    assert (run.committed()["step"], run.committed()["epoch"]) == (STEPS, 2)


def test_memory_off_means_the_store(make_gang: MakeGang, s3_server: S3Server, proxy: Outage) -> None:
    run = Run(make_gang, s3_server, proxy, "off", 1, 1)
    run.start(VICTIM="0", MUSTER_CHECKPOINT_MEMORY="off")
    run.reach("at-18")
    assert not run.memory(run.pods[0])
    run.touch("away")
    run.touch("go-2")
    run.reach("sealed-1")
    os.kill(int((run.gang.folder / "mark-sealed-1-0").read_text()), signal.SIGKILL)
    run.ends_well()
    assert run.gang.marks("resumed-2-at-")
