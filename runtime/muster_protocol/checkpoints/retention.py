"""Which checkpoints may go. Pure; `prune` deletes what this names, for a running gang as for the command."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Final

from muster_protocol.checkpoints.chain import folder_of
from muster_protocol.checkpoints.holds import holders, is_over
from muster_protocol.checkpoints.inventory import Checkpoint, Folder, Inventory, record_key
from muster_protocol.checkpoints.store import Unfinished
from muster_protocol.durations import format_duration
from muster_protocol.losses import METRICS_PREFIX
from muster_protocol.manifest import HOLDS_PREFIX, KEPT_PREFIX, LATEST_KEY, Latest

ANCESTORS: Final = 2
"""So many parents of LATEST's checkpoint are never deleted: a restore falls back on them."""
ORPHAN_SECONDS: Final = 24 * 3600.0
"""What was never committed stays so long: a writer may be slow, and somebody may want to look."""
_OWN: Final = re.compile(rf"(step-\d+/\d+-\d+/|({HOLDS_PREFIX}|{KEPT_PREFIX}|{METRICS_PREFIX})[^/]+$|{LATEST_KEY}$)")
"""Begins the key of whatever a run writes."""


@dataclass(frozen=True)
class Best:
    """The `count` checkpoints with the smallest (`mode` min) or largest (max) value of a metric."""

    metric: str
    mode: str = "min"
    count: int = 1

    def __str__(self) -> str:
        return f"{self.metric}:{self.mode}:{self.count}"


def parse_best(text: str) -> Best:
    """`METRIC[:min|max[:COUNT]]`. ValueError says what is wrong."""
    metric, _, rest = text.partition(":")
    mode, _, count = rest.partition(":")
    if not metric or mode not in ("", "min", "max") or (count and not re.fullmatch("0*[1-9][0-9]*", count)):
        raise ValueError(f"{text!r} is not METRIC[:min|max[:COUNT]]; write it like loss, accuracy:max or loss:min:3")
    return Best(metric, mode or "min", int(count or 1))


@dataclass(frozen=True)
class Retention:
    """Which committed checkpoints are kept beside LATEST's and its two ancestors. No rule at all keeps every one.

    Attributes:
        last: the newest so many.
        every: for ever, those at multiples of so many steps.
        every_seconds: the first of each such span of time (counted from 1970).
        best: by a metric.
    """

    last: int | None = None
    every: int | None = None
    every_seconds: int | None = None
    best: Best | None = None

    def keeps_for_ever(self, step: int) -> bool:
        return self.every is not None and step % self.every == 0

    @property
    def keeps_all(self) -> bool:
        return self == Retention()


@dataclass(frozen=True)
class Removal:
    """One folder that may go. `manifest` is its key, or ""; `bytes` is what a listing says of it: a committed
    checkpoint's shards, and of anything else all that lies there. `record`: the key that says that it was committed, ""
    where it never was."""

    folder: Folder
    manifest: str
    why: str
    bytes: int
    record: str = ""


@dataclass(frozen=True)
class Plan:
    """What goes and what stays.

    Attributes:
        epoch: LATEST's; when it has changed, the plan is void.
        kept: each committed checkpoint that stays, and by what.
        records: those of them that have no record yet: nothing else may name them when the rest is gone.
        stale: tombstones on what stays, left by a prune that died.
        leftovers: keys of holds that had expired a day before the newest object was written, and of records of what is
            gone.
    """

    epoch: int
    removals: tuple[Removal, ...] = ()
    kept: tuple[tuple[Checkpoint, tuple[str, ...]], ...] = ()
    records: tuple[Checkpoint, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()
    stale: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(removal.bytes for removal in self.removals) + sum(each.size for each in self.unfinished)


def plan(inventory: Inventory, retention: Retention, now: float, patience: float = ORPHAN_SECONDS) -> Plan:
    """What may be deleted at `now` (seconds since the epoch). Nothing, without a LATEST: then no epoch is over.

    `patience`: seconds that what was never committed stays.
    """
    if inventory.latest is None:
        return Plan(0)
    reasons = kept_by(inventory, retention, now)
    removals = [
        Removal(
            inventory.folders[checkpoint.prefix],
            checkpoint.key,
            "no rule keeps it",
            checkpoint.bytes,
            record_key(checkpoint),
        )
        for checkpoint in inventory.newest_first
        if not reasons[checkpoint.key]
    ]
    removals += _orphans(inventory, now, patience)
    stay = [checkpoint for checkpoint in inventory.newest_first if reasons[checkpoint.key]]
    stale = [
        item.key
        for checkpoint in stay
        for item in inventory.folders[checkpoint.prefix].tombstones
        if item.modified + ORPHAN_SECONDS < now
    ]
    staying = {checkpoint.key for checkpoint in stay} | {damaged.key for damaged in inventory.damaged}
    # Not at once, and not by our clock alone: if that is fast, one that somebody goes on renewing would be over.
    by_store = max((folder.modified for folder in inventory.folders.values()), default=now)
    long_ago = min(now, by_store) - ORPHAN_SECONDS
    leftovers = [f"holds/{hold.id}.json" for hold in inventory.holds if is_over(hold, long_ago)]
    leftovers += [key for key, link in inventory.kept.items() if link[0] not in staying]
    return Plan(
        inventory.latest.epoch,
        tuple(removals),
        tuple((checkpoint, tuple(reasons[checkpoint.key])) for checkpoint in stay),
        tuple(checkpoint for checkpoint in stay if record_key(checkpoint) not in inventory.kept),
        tuple(each for each in inventory.unfinished if _is_abandoned(inventory, each, now, patience)),
        tuple(stale),
        tuple(leftovers),
    )


def claimed_anew(inventory: Inventory) -> Inventory:
    """The inventory as if somebody had claimed the run's next epoch: what is not committed by now never will be."""
    latest = inventory.latest
    return inventory if latest is None else replace(inventory, latest=replace(latest, epoch=latest.epoch + 1))


def kept_by(inventory: Inventory, retention: Retention, now: float) -> dict[str, list[str]]:
    """By the manifest's key: why each committed checkpoint is kept. An empty list: it may go."""
    committed = inventory.committed
    reasons: dict[str, list[str]] = {checkpoint.key: [] for checkpoint in committed}
    for key, why in protected(inventory).items():
        reasons[key].append(why)
    for checkpoint in committed:
        for hold in holders(inventory.holds, checkpoint.key, now):
            is_tag = hold.expires is None and hold.manifest
            reasons[checkpoint.key].append(f"tag {hold.id}" if is_tag else f"held by {hold.who}")
    if retention.keeps_all:
        for checkpoint in committed:
            reasons[checkpoint.key].append("all stay without a rule")
        return reasons
    for checkpoint in inventory.newest_first[: retention.last or 0]:
        reasons[checkpoint.key].append(f"last {retention.last}")
    steps: set[int] = set()
    for checkpoint in committed:
        if retention.keeps_for_ever(checkpoint.step) and checkpoint.step not in steps:
            steps.add(checkpoint.step)
            reasons[checkpoint.key].append(f"every {'step' if retention.every == 1 else f'{retention.every} steps'}")
    if retention.every_seconds:
        spans: dict[int, Checkpoint] = {}
        for checkpoint in sorted(committed, key=lambda each: each.created_at):
            spans.setdefault(int(checkpoint.created_at // retention.every_seconds), checkpoint)
        for checkpoint in spans.values():
            reasons[checkpoint.key].append(f"every {format_duration(retention.every_seconds)}")
    if retention.best:
        for checkpoint in best(inventory, retention.best):
            reasons[checkpoint.key].append(f"best {retention.best.metric}")
    return reasons


def protected(inventory: Inventory) -> dict[str, str]:
    """By the manifest's key: LATEST's checkpoint and its two ancestors, which no rule may delete."""
    if inventory.latest is None:
        return {}
    by_key = {checkpoint.key: checkpoint for checkpoint in inventory.committed}
    names = {inventory.latest.manifest: "LATEST", inventory.latest.parent: "ancestor"}
    found = {key: why for key, why in names.items() if key in by_key}
    for checkpoint in inventory.committed:  # the chain of LATEST comes first, newest first
        if len(found) > ANCESTORS:
            break
        found.setdefault(checkpoint.key, "ancestor")
    return found


def unknown_metric(inventory: Inventory, rule: Best) -> str:
    """Why no checkpoint can be the best by this rule, or "": a misspelled metric would let all of them go."""
    known = sorted({name for checkpoint in inventory.committed for name in checkpoint.metrics})
    if not inventory.committed or rule.metric in known:
        return ""
    there = f"they have {', '.join(known)}" if known else "they have none: the script gives session.report() no loss"
    return f"no checkpoint of {inventory.uri} has a metric {rule.metric!r}; {there}"


def best(inventory: Inventory, rule: Best) -> list[Checkpoint]:
    """The best first; those without the metric, or where it isn't a number, are none of them.

    A metric that is found seldom, by an evaluation, is in all checkpoints until the next, which are of other weights
    than those that were evaluated. So of equal values the oldest counts first, and such a repeat after all others.
    Where no checkpoint says when it was reported, one with the value of that before is taken for a repeat.
    """
    sign = 1 if rule.mode == "min" else -1
    committed = inventory.newest_first
    words = [
        (checkpoint.metrics.get(rule.metric, math.nan), checkpoint.measured.get(rule.metric))
        for checkpoint in committed
    ]
    rated = [
        (word == before, sign * word[0], -place)
        for place, (word, before) in enumerate(zip(words, [*words[1:], None], strict=True))
        if math.isfinite(word[0])
    ]
    return [committed[-place] for _, _, place in sorted(rated)[: rule.count]]


def _orphans(inventory: Inventory, now: float, patience: float) -> list[Removal]:
    assert inventory.latest is not None
    found = []
    for folder in inventory.orphans:
        if folder.tombstones and not folder.manifest:
            found.append(Removal(folder, "", "half deleted", folder.bytes))
        elif inventory.may_be_committed(folder):
            continue
        elif _is_over(folder.epoch, inventory.latest) and folder.modified + patience < now:
            found.append(Removal(folder, folder.manifest, "never committed", folder.bytes))
    return found


def _is_over(epoch: int, latest: Latest) -> bool:
    """Whether no gang commits in that epoch any more: another was claimed, or the run has reached its end."""
    return epoch < latest.epoch or (epoch == latest.epoch and latest.finished)


def _is_abandoned(inventory: Inventory, unfinished: Unfinished, now: float, patience: float) -> bool:
    assert inventory.latest is not None
    if not _OWN.match(unfinished.key):
        return False  # below the run's prefix, and not the run's: that of another run, say
    folder = folder_of(unfinished.key)
    live = folder is not None and not _is_over(folder[1], inventory.latest)
    return not live and unfinished.started + patience < now
