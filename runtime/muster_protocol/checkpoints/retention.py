"""Which checkpoints may go. Pure; the keeper deletes what this names, after a commit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from muster_protocol.checkpoints.chain import folder_of
from muster_protocol.manifest import MANIFEST_NAME, step_prefix


@dataclass(frozen=True)
class Retention:
    """Keep the newest `last` committed checkpoints (None: all), and for ever those at multiples of `every` steps."""

    last: int | None = None
    every: int | None = None

    def keeps_for_ever(self, step: int) -> bool:
        return self.every is not None and step % self.every == 0


def expired(keys: Iterable[str], committed: list[str], retention: Retention, epoch: int) -> list[str]:
    """The keys to delete.

    Args:
        keys: every object of the run.
        committed: prefixes (`step-.../E-A/`) of the committed chain, newest first.
        epoch: this gang's; what a newer one wrote is none of our business.
    """
    if retention.last is None:
        return []
    kept = set(committed[: max(1, retention.last)])
    whole = {key.removesuffix(MANIFEST_NAME) for key in keys if key.endswith("/" + MANIFEST_NAME)}
    gone = []
    for key in keys:
        folder = folder_of(key)
        if folder is None or folder[1] > epoch:
            continue
        prefix = step_prefix(*folder)
        for_ever = retention.keeps_for_ever(folder[0]) and prefix in whole
        if prefix not in kept and not for_ever:
            gone.append(key)
    # manifests first: a checkpoint that is half deleted must not look whole
    return sorted(gone, key=lambda key: not key.endswith("/" + MANIFEST_NAME))
