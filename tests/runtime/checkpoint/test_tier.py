"""Slots of the memory tier: what is kept isn't touched, what is torn isn't used."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from muster_protocol import env
from muster_protocol.checkpoints import commit as commits
from muster_protocol.checkpoints.checks import named
from muster_protocol.checkpoints.commit import Claim, claim_epoch, read_latest
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.checkpoints.inventory import find_start
from muster_protocol.checkpoints.retention import Retention
from muster_protocol.checkpoints.store import Body, Store
from muster_protocol.errors import StorageError
from muster_protocol.launcher_status import Kept, MemoryTier
from muster_protocol.manifest import Latest, ShardFile
from muster_protocol.uris import parse_uri
from muster_runtime.checkpoint import tier as tiers
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.layout import raw_bytes
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.records import free_memory
from muster_runtime.checkpoint.s3_store import Landed
from muster_runtime.checkpoint.store import open_store
from muster_runtime.checkpoint.tier import Part, Tier
from muster_runtime.parallel.gang import Gang

pytestmark = pytest.mark.runtime


class Memory:
    """What a launcher holds for one rank; each `rank` is another incarnation of it."""

    def __init__(self) -> None:
        self.descriptors = [os.memfd_create(f"test-{number}") for number in range(4)]
        self.tiers: list[Tier] = []

    @property
    def size(self) -> int:
        return os.fstat(self.descriptors[0]).st_size

    def rank(self, identity: str = "me", *, sharers: int | None = None, peer: int | str = "") -> Tier:
        data, first, second, claim = map(os.dup, self.descriptors)
        tier = Tier(
            SharedMemory(data), (first, second), claim, identity, sharers=sharers, peer=peer, warn=lambda _: None
        )
        self.tiers.append(tier)
        return tier

    def close(self) -> None:
        for tier in self.tiers:
            tier.memory.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    made.close()


def stage(tier: Tier, step: int, length: int = 1000, *, seal: bool = True, keep: bool = True) -> Part:
    base = tier.open(length)
    content = tier.memory.reserve(base + length)[base : base + length]
    content.copy_(torch.full((length,), step, dtype=torch.uint8))
    file = ShardFile(f"step-{step}/0.bin", length, named(zlib.crc32(raw_bytes(content))))
    part = Part(step, 1, 0, base, length, (Landed(file, {0: file.crc32}),), (0,), {"planner": {"step": step}})
    if seal:
        tier.seal(part)
    if seal and keep:
        tier.keep()
    return part


def whole(tier: Tier) -> list[int]:
    parts, _ = tier.parts()
    return sorted(part.step for _, part in parts.values() if not tier.wrong_with(part))


def test_the_next_incarnation_finds_what_was_sealed(memory: Memory) -> None:
    first = memory.rank()
    part = stage(first, 7)
    parts, damaged = memory.rank().parts()
    assert [found for _, found in parts.values()] == [part]
    assert not damaged
    assert whole(memory.rank()) == [7]
    assert memory.rank("somebody else").parts() == ({}, [])


def test_the_kept_step_stays_while_the_next_is_staged(memory: Memory) -> None:
    tier = memory.rank()
    for step in range(1, 6):
        stage(tier, step)
        stage(tier, 100 + step, seal=False)
        assert whole(memory.rank()) == [step], "half a step doesn't count, and the one before is untouched"


def test_a_step_that_not_all_ranks_have_does_not_take_the_place_of_the_kept_one(memory: Memory) -> None:
    tier = memory.rank()
    stage(tier, 1)
    stage(tier, 2, keep=False)
    assert whole(memory.rank()) == [1, 2], "the gang may take either"
    stage(tier, 3, keep=False)
    assert whole(memory.rank()) == [1, 3]


def test_after_a_restart_the_step_that_was_restored_is_the_kept_one(memory: Memory) -> None:
    stage(memory.rank(), 1)
    tier = memory.rank()
    ((slot, part),) = tier.parts()[0].values()
    tier.take_up(slot, part)
    stage(tier, 2, seal=False)
    assert whole(memory.rank()) == [1]


def test_two_slots_are_all_that_is_taken_and_small_changes_move_none(memory: Memory) -> None:
    tier = memory.rank()
    sizes = []
    for step in range(1, 9):
        stage(tier, step, 3_000_000 + 37 * step)
        sizes.append(memory.size)
    assert sizes[1:] == [sizes[1]] * 7
    assert sizes[1] <= 2 * (3_000_000 + (2 << 20))
    stage(tier, 9, 5_000_000)
    stage(tier, 10, 5_000_000)
    assert whole(memory.rank()) == [9, 10], "a state that grows finds room, too"


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_half_a_record_is_told_and_not_used(memory: Memory, cut: int) -> None:
    stage(memory.rank(), 1)
    os.truncate(memory.descriptors[1], cut)
    parts, damaged = memory.rank().parts()
    assert parts == {}
    assert len(damaged) == 1


def test_a_byte_that_changed_is_found(memory: Memory) -> None:
    stage(memory.rank(), 1)
    os.pwrite(memory.descriptors[0], b"x", 500)
    tier = memory.rank()
    ((_, part),) = tier.parts()[0].values()
    assert "CRC-32 differs" in tier.wrong_with(part)
    os.truncate(memory.descriptors[0], 100)
    assert tier.wrong_with(part) == "it is cut off"


def test_a_copy_that_has_come_is_not_asked_for_again(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made anew now and then: the first save of a run has no optimizer's state, for one."""
    length, free = 8 << 20, 30 << 20
    monkeypatch.setattr(tiers, "free_memory", lambda _: free - memory.size)
    rank = memory.rank(sharers=1, peer=0)

    def settled() -> Kept:
        local, peer = rank.room(length)
        rank.settle(length, local=local, peer=peer)
        return rank.kept

    assert settled() is Kept.PEER
    stage(rank, 1, length)
    stage(rank, 2, length)
    free -= length  # the other pod's copy
    assert settled() is Kept.PEER
    length += 8 << 20
    assert settled() is Kept.OFF, "what it grows by has to be there"


def test_the_claim_is_handed_on(memory: Memory) -> None:
    assert memory.rank().claim() is None
    claim = Claim(Latest(3, "uid", "nonce", step=10, manifest="m", sha256="s"), '"tag"')
    memory.rank().hold(claim)
    assert memory.rank().claim() == claim
    os.truncate(memory.descriptors[3], 9)
    assert memory.rank().claim() is None


def keeper_of(folder: Path, tier: Tier, store: Store | None = None) -> Keeper:
    store = store or open_store(f"file://{folder}")
    return Keeper(store, Gang(), owner="job", job="job", retention=Retention(), warn=lambda _: None, tier=tier)


def begin(keeper: Keeper, step: int, *, finished: bool = False) -> None:
    keeper.begin({"x": torch.full((3,), step)}, step=step, trees={}, run={"step": step}, finished=finished)


@pytest.mark.parametrize(("step", "newer"), [(10, False), (13, True)])
def test_a_crash_in_a_loop_after_one_that_has_ended_goes_on_from_memory(
    step: int, newer: bool, memory: Memory, tmp_path: Path
) -> None:
    """LATEST says that the run is finished until the next loop's first save is committed. That one's last step may lie
    in memory, too, and nothing of it says that it was the last."""
    first = keeper_of(tmp_path, memory.rank())
    first.claim()
    if step == 10:
        begin(first, 10)
        first.wait()
    begin(first, 10, finished=True)
    first.wait()
    if step > 10:
        begin(first, step)
        assert first.saver.flight is not None
        assert first.saver.flight.sealed.result(), "it lies in memory whole"
        first.advance(busy=True, failed=False, unsealed=False)  # and the store hasn't taken it
    again = keeper_of(tmp_path, memory.rank())
    kept = again.kept()
    assert kept is not None
    assert kept.step == step
    latest, taken = again.claim(kept)
    assert (latest.step, latest.finished, taken) == (10, True, newer)
    if taken:
        found = {"x": torch.zeros(3, dtype=torch.int64)}
        assert again.restore_kept(kept, lambda *_: found).manifest.step == step
        assert found["x"].tolist() == [step] * 3
        begin(again, 15)
        again.wait()
        assert find_start(open_store(f"file://{tmp_path}"), None).manifest.step == 15
    first.close()
    again.close()


def in_memory(folder: Path, memory: Memory, step: int) -> None:
    """A gang claims the run, and falls with `step` in its memory before the store has it."""
    first = keeper_of(folder, memory.rank())
    first.claim()
    begin(first, step)
    assert first.saver.flight is not None
    assert first.saver.flight.sealed.result()
    first.advance(busy=True, failed=False, unsealed=False)
    first.close()


def claims_and_falls(folder: Path, memory: Memory) -> None:
    """While memory is read through, which may take seconds."""
    falls = keeper_of(folder, memory.rank())
    assert falls.kept() is not None
    assert falls._claiming is not None
    falls._claiming.result()
    falls.close()


def test_a_gang_that_falls_again_right_after_its_claim_goes_on_from_memory(memory: Memory, tmp_path: Path) -> None:
    in_memory(tmp_path, memory, 7)
    claims_and_falls(tmp_path, memory)
    claims_and_falls(tmp_path, memory)
    again = keeper_of(tmp_path, memory.rank())
    latest, newer = again.claim(again.kept())
    assert (latest.epoch, newer) == (4, True), "all epochs since are the gang's own"
    again.close()


def test_a_claim_on_top_of_another_gangs_makes_memory_no_newer(memory: Memory, tmp_path: Path) -> None:
    in_memory(tmp_path, memory, 7)
    claim_epoch(open_store(f"file://{tmp_path}"), "job")
    claims_and_falls(tmp_path, memory)
    claims_and_falls(tmp_path, memory)
    for _ in range(2):  # it falls here, too
        again = keeper_of(tmp_path, memory.rank())
        assert not again.claim(again.kept())[1], "another gang had the run in between, whoever has claimed it since"
        again.close()


class Deaf(FileStore):
    """From its first conditional write on, which is done, no answers come until `hears`."""

    hears = True

    def get(self, key: str) -> Body | None:
        if not self.hears:
            raise StorageError("Network", "timed out")
        return super().get(key)

    def put_if(self, key: str, content: bytes, etag: str | None) -> str:
        if self.hears:
            super().put_if(key, content, etag)
            self.hears = False
        raise StorageError("Network", "timed out")


def test_a_claim_whose_answer_was_lost_is_the_gangs_own(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gang goes on under the epoch that it knows of, and saves when the store is there again."""
    monkeypatch.setattr(commits, "_PAUSE_SECONDS", 0.01)
    in_memory(tmp_path, memory, 7)
    store = open_store(f"file://{tmp_path}")
    again = keeper_of(tmp_path, memory.rank(), Deaf(parse_uri(f"file://{tmp_path}")))
    latest, newer = again.claim(again.kept())
    assert (latest.epoch, newer) == (1, True)
    claim = read_latest(store)
    assert claim is not None
    assert claim.latest.epoch == 2, "its claim is there all the same"
    monkeypatch.setattr(Deaf, "put_if", FileStore.put_if)
    monkeypatch.setattr(Deaf, "get", FileStore.get)
    for step in (8, 9):
        begin(again, step)
        assert again.wait() is not None
    claim = read_latest(store)
    assert claim is not None
    assert (claim.latest.epoch, claim.latest.step) == (2, 9)
    assert find_start(store, None).manifest.step == 9
    again.close()
    claims_and_falls(tmp_path, memory)
    last = keeper_of(tmp_path, memory.rank())
    assert last.claim(last.kept())[1]
    last.close()


def test_free_memory_is_the_containers_and_the_machines(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:   2000000 kB\n")
    assert free_memory(None, tmp_path, meminfo) == 2_000_000 << 10
    for name, text in {
        "memory.max": "max",
        "memory.current": "700",
        "memory.stat": "anon 5\ninactive_file 50\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert free_memory(None, tmp_path, meminfo) == 2_000_000 << 10
    (tmp_path / "memory.max").write_text("1000\n")
    assert free_memory(None, tmp_path, meminfo) == 350


def test_free_memory_is_the_containers_with_cgroups_of_version_1_too(tmp_path: Path) -> None:
    meminfo, folder = tmp_path / "meminfo", tmp_path / "memory"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:   2000000 kB\n")
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("700\n")
    (folder / "memory.stat").write_text("inactive_file 5\ntotal_inactive_file 50\n")
    assert free_memory(None, tmp_path, meminfo) == 350
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert free_memory(None, tmp_path, meminfo) == 2_000_000 << 10


def test_without_a_limit_the_request_is_what_may_be_taken(tmp_path: Path) -> None:
    """The rest of the machine is for other pods to request, whoever uses it now."""
    meminfo, folder = tmp_path / "meminfo", tmp_path / "memory"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:   2000000 kB\n")
    assert free_memory(900, tmp_path, meminfo) == 900
    for name, text in {"memory.max": "max", "memory.current": "700", "memory.stat": "inactive_file 50"}.items():
        (tmp_path / name).write_text(text)
    assert free_memory(900, tmp_path, meminfo) == 250
    assert free_memory(0, tmp_path, meminfo) == 0, "who requests nothing has nothing for a second copy"
    assert free_memory(1 << 50, tmp_path, meminfo) == 2_000_000 << 10
    (tmp_path / "memory.max").write_text("1000")
    assert free_memory(900, tmp_path, meminfo) == 350, "a limit says how much may be taken at most"
    for name in ("memory.max", "memory.current", "memory.stat"):
        (tmp_path / name).unlink()
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (folder / "memory.usage_in_bytes").write_text("700\n")
    (folder / "memory.stat").write_text("inactive_file 5\ntotal_inactive_file 50\n")
    assert free_memory(900, tmp_path, meminfo) == 250


def test_auto_keeps_what_the_request_has_room_for(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a rank is told by its environment, on a machine with plenty of memory and in a container without a limit."""
    monkeypatch.setattr(tiers, "free_memory", lambda requested: 1 << 40 if requested is None else requested)

    warned: list[str] = []
    settled: list[MemoryTier] = []

    def kept(**more: str) -> Kept:
        given = ",".join(str(os.dup(each)) for each in memory.descriptors)
        told = {env.MEMORY_TIER: given, env.MEMORY_PEER: "0", "LOCAL_WORLD_SIZE": "2", **more}
        rank = Tier.inherited(told, "me", warned.append, settled.append)
        assert rank is not None
        memory.tiers.append(rank)
        local, peer = rank.room(10 << 20)
        rank.settle(10 << 20, local=local, peer=peer)
        return rank.kept

    assert kept() is Kept.PEER, "nobody requests anything on a laptop"
    assert kept(MUSTER_MEMORY_REQUEST="0") is Kept.OFF
    assert settled[-1].why.startswith("the workers request no memory, so there is none to count on")
    assert not warned, "most small jobs request none, and lose nothing by that"
    assert [kept(MUSTER_MEMORY_REQUEST=str(each << 20)) for each in (0, 40, 50, 70)] == [
        Kept.OFF, Kept.OFF, Kept.LOCAL, Kept.PEER
    ]  # fmt: skip
    assert len(warned) == 1
    assert "doesn't suffice" in warned[0]
    assert kept(MUSTER_MEMORY_REQUEST="0", MUSTER_CHECKPOINT_MEMORY="peer") is Kept.PEER, "whoever asks for it gets it"
