"""Restoring from the gang's memory: the newest step of which every rank has its part, whole.

Each rank reads its own part where it lies. What another rank holds (replicas split what they write) comes from there,
over the gang's gloo group; no rank asks the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from muster_protocol.checkpoints.chain import Found
from muster_protocol.manifest import Manifest
from muster_runtime.checkpoint.layout import WithSums
from muster_runtime.checkpoint.reader import Reader, on_device
from muster_runtime.checkpoint.s3_store import Landed
from muster_runtime.checkpoint.spread import copy
from muster_runtime.checkpoint.tier import Part, Tier
from muster_runtime.checkpoint.transfers import Transfers
from muster_runtime.parallel.gang import Gang


@dataclass(frozen=True)
class Kept:
    """One step in the gang's memory. `owners` are the ranks that hold the manifest's files; `heading` is rank 0's."""

    found: Found
    owners: tuple[int, ...]
    slot: int
    part: Part
    heading: dict[str, Any]

    @property
    def step(self) -> int:
        return self.part.step


def newest(tier: Tier, gang: Gang) -> Kept | None:
    """The newest step that all ranks hold whole; None when there is none. Collective."""
    own, damaged = tier.parts()
    told = gang.gather((sorted(own), damaged))
    for rank, (_, reasons) in enumerate(told):
        for reason in reasons:
            tier.warn(f"rank {rank}: a checkpoint in memory is damaged ({reason}) and isn't used")
    for order in sorted(set.intersection(*(set(orders) for orders, _ in told)), reverse=True):
        slot, part = own[order]
        wrong = {rank: text for rank, text in enumerate(gang.gather(tier.wrong_with(part))) if text}
        if not wrong:
            return _kept(slot, part, gang)
        for rank, text in wrong.items():
            tier.warn(f"rank {rank}: the checkpoint of step {part.step} in memory is damaged ({text}) and isn't used")
    return None


def _kept(slot: int, part: Part, gang: Gang) -> Kept:
    parts: list[tuple[tuple[Landed, ...], dict[str, Any]]] = gang.gather((part.files, part.heading))
    heading = parts[0][1]
    landed = [each for files, _ in parts for each in files]
    owners = tuple(rank for rank, (files, _) in enumerate(parts) for _ in files)
    manifest = Manifest(
        step=part.step,
        epoch=part.epoch,
        attempt=part.attempt,
        parent="",
        files=tuple(each.file for each in landed),
        planner={**heading["planner"], "tensors": WithSums(heading["planner"]["tensors"], landed)},
        world_size=gang.world_size,
        created_at=0.0,
    )
    return Kept(Found(f"step {part.step} in memory", "", manifest), owners, slot, part, heading)


class KeptReader(Reader):
    """Every rank of the gang reads together."""

    def __init__(self, transfers: Transfers, gang: Gang, kept: Kept) -> None:
        super().__init__(transfers, kept.found.manifest, gang)
        self._kept = kept

    def _fetch_with_neighbours(self, by_file: dict[int, list[Any]]) -> None:
        kept, gang = self._kept, self._gang
        wanted = [set(numbers) for numbers in gang.gather(sorted(by_file))]
        memory = self._transfers.memory.reserve(kept.part.base + kept.part.length)
        own = []
        starts = iter(kept.part.starts)
        for number, (file, owner) in enumerate(zip(kept.found.manifest.files, kept.owners, strict=True)):
            takers = [rank for rank in range(gang.world_size) if rank != owner and number in wanted[rank]]
            content = None
            if owner == gang.rank:
                at = kept.part.base + next(starts)
                content = memory[at : at + file.size]
            elif gang.rank in takers:
                content = torch.empty(file.size, dtype=torch.uint8, device="cpu")
            if takers and file.size:
                _share(content, owner, takers, gang)
            for item in by_file.get(number, ()):
                assert content is not None
                if owner == gang.rank:
                    own.append((item, content))
                else:  # at once: what came from another rank takes memory
                    item.take(content)
        at_home = [(item, content) for item, content in own if not on_device(item.target)]
        copy((item.target, item.source(content)) for item, content in at_home)
        for item, _ in at_home:
            item.finish()
        for item, content in own:
            if on_device(item.target):  # by this thread: its stream is the script's
                item.take(content)


def _share(content: torch.Tensor | None, owner: int, takers: list[int], gang: Gang) -> None:
    """From `owner` to `takers`. Every rank calls this for the same files in the same order."""
    if len(takers) == gang.world_size - 1:
        dist.broadcast(content, src=owner, group=gang.group)  # type: ignore[arg-type]
    elif gang.rank == owner:
        for taker in takers:
            dist.send(content, dst=taker, group=gang.group)  # type: ignore[arg-type]
    elif gang.rank in takers:
        dist.recv(content, src=owner, group=gang.group)  # type: ignore[arg-type]
