"""What `muster checkpoint verify` reads, and what it finds wrong there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from muster.cli.checkpoint_stores import reading
from muster.cli.checkpoint_tables import Row
from muster.cli.printing import note
from muster_protocol.checkpoints.chain import Damaged
from muster_protocol.checkpoints.holds import refuse_if_doomed
from muster_protocol.checkpoints.inventory import Checkpoint, Inventory, choose
from muster_protocol.checkpoints.store import Store
from muster_protocol.checkpoints.verify import damage_at
from muster_protocol.errors import CorruptCheckpointError


def to_verify(
    inventory: Inventory, step: int | None, *, everything: bool
) -> tuple[Sequence[Damaged], Sequence[Checkpoint]]:
    """Those whose manifests can't be read, and the others. StateError when there is no such checkpoint."""
    readable = [each for each in inventory.committed if step in (None, each.step)]
    lost = [each for each in inventory.damaged if step in (None, each.step)]
    if not readable and not lost:
        choose(inventory, step)  # which says why
    if everything:
        return inventory.damaged, inventory.newest_first
    if readable:
        lost = [inventory.newest_lost] if inventory.newest_lost is not None else []
    return lost, readable[:1]


def verified(store: Store, lost: Sequence[Damaged], readable: Sequence[Checkpoint], *, by_name: bool) -> Iterator[Row]:
    """What was found, of each as soon as it is read. `by_name`: CorruptCheckpointError where a prune deletes it."""
    warn = _once()
    for damaged in lost:
        yield {"step": None, "key": damaged.key, "bytes": 0, "troubles": [damaged.reason], "leftOut": ""}
    for each in readable:
        troubles, left_out = [], ""
        try:
            with reading(store, each, "verify", warn):
                troubles = list(damage_at(store, each.key, each.sha256))
                if troubles:
                    refuse_if_doomed(store, each.key)  # it may be read without a hold
        except CorruptCheckpointError as error:
            if by_name:
                raise
            troubles, left_out = [], str(error)
        yield {"step": each.step, "key": each.key, "bytes": each.bytes, "troubles": troubles, "leftOut": left_out}


def _once() -> Callable[[str], None]:
    """A note of which the first says it for all that follow."""
    left = [note]

    def tell(text: str) -> None:
        if left:
            left.pop()(text)

    return tell
