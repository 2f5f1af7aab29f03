"""How queues and fleet stand, by the last snapshot that the planner saw, as values of the operator's metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import numpy as np

from muster.api.trainingqueue import TrainingQueue
from muster.controllers.books import Tally, gpu_columns
from muster.controllers.queues import past_share
from muster.scheduling.hierarchy import by_depth
from muster.scheduling.snapshot import NONE, UNLIMITED, Index, Int, Seconds, Snapshot
from muster.telemetry import metrics_declared as declared
from muster.telemetry.exposition import Labels
from muster_protocol.metrics import Metric

Shown = dict[Metric, dict[Labels, float]]


def flavour(name: str) -> tuple[str, str]:
    """(GPU type, kind of capacity) of `H100/on-demand`; empty for nodes without GPUs."""
    gpu_type, _, capacity = name.partition("/")
    return gpu_type, capacity


def queues(tally: Tally | None, known: Mapping[str, TrainingQueue], now: datetime) -> Shown:
    """Quota and shares of the queues that exist."""
    shown: Shown = {
        metric: {}
        for metric in (
            declared.NOMINAL,
            declared.USED,
            declared.BORROWED,
            declared.LENT,
            declared.SHARE,
            declared.PAST_SHARE,
            declared.WEIGHT,
        )
    }
    if tally is None:
        return shown
    columns = gpu_columns(tally.snapshot)
    held = tally.held[:, :, columns].sum(axis=2)
    limited = np.any(tally.nominal[:, :, columns] < UNLIMITED, axis=2)
    nominal = np.where(tally.nominal < UNLIMITED, tally.nominal, 0)[:, :, columns].sum(axis=2)
    lent = lent_out(held, nominal, tally.snapshot.queues.parents)
    for name, queue in known.items():
        row = tally.rows.get(name, NONE)
        if row == NONE:
            continue
        shown[declared.SHARE][name,] = float(tally.shares[row])
        shown[declared.PAST_SHARE][name,] = past_share(queue, now)
        shown[declared.WEIGHT][name,] = queue.spec.weight
        for column in np.flatnonzero((held[row] > 0) | (nominal[row] > 0)).tolist():
            labels = (name, *flavour(tally.snapshot.flavours[column]))
            used, mine = int(held[row, column]), int(nominal[row, column])
            shown[declared.USED][labels] = used
            if limited[row, column]:
                shown[declared.NOMINAL][labels] = mine
                shown[declared.BORROWED][labels] = max(0, used - mine)
                shown[declared.LENT][labels] = float(lent[row, column])
    return shown


def owed(tally: Tally) -> dict[str, str]:
    """By uid of those who wait though unused quota would hold all they ask for: the queue whose quota that is, their
    own or the nearest above it that has one of what they ask for."""
    snapshot, jobs = tally.snapshot, tally.snapshot.jobs
    waiting = np.flatnonzero(jobs.pending & (jobs.queues != NONE))
    others = [(row, each.flavour) for row in waiting.tolist() for each in jobs.terms.alternatives[row]]
    rows = np.append(waiting, [row for row, _ in others]).astype(np.int64)
    flavours = np.append(jobs.flavours[waiting], [kind for _, kind in others]).astype(np.int64)
    spares = np.array([jobs.terms.shapes[row].spares for row in rows.tolist()], dtype=np.int64)
    least = np.where(jobs.sizes.partial, jobs.sizes.least, jobs.workers)[rows]
    needs = jobs.requests[rows] * (least + spares)[:, None]
    at, found = jobs.queues[rows].astype(np.int64), dict[str, str]()
    while len(rows):
        nominal = tally.nominal[at, flavours]
        counts = (nominal < UNLIMITED) & (needs > 0)
        fits = (~counts | (needs <= nominal - tally.held[at, flavours])).all(axis=1)
        speaks = counts.any(axis=1)
        for row, queue in zip(rows[speaks & fits].tolist(), at[speaks & fits].tolist(), strict=True):
            found.setdefault(jobs.uids[row], snapshot.queues.names[queue])
        on = ~speaks & (snapshot.queues.parents[at] != NONE)
        at, rows, flavours, needs = snapshot.queues.parents[at][on], rows[on], flavours[on], needs[on]
    return found


def lent_out(held: Int, nominal: Int, parents: Index) -> Seconds:
    """Q x V, what each queue's nominal is used for by others. `held` and `nominal` are sums with those below it.

    Among the queues below one, and its own jobs, those who hold more than their nominal use what others leave. How much
    of it comes from whom nobody decides, so each one's part is as large as what it leaves. A queue lends outside what
    its branch leaves in all; that is shared out within the branch in the same way.
    """
    own_held, own_nominal = held.copy(), nominal.copy()
    below = np.flatnonzero(parents != NONE)
    np.subtract.at(own_held, parents[below], held[below])
    np.subtract.at(own_nominal, parents[below], nominal[below])
    left, over = np.maximum(0, nominal - held), np.maximum(0, held - nominal)
    all_left, all_over = np.maximum(0, own_nominal - own_held), np.maximum(0, own_held - own_nominal)
    np.add.at(all_left, parents[below], left[below])
    np.add.at(all_over, parents[below], over[below])
    lent = np.zeros(held.shape)
    for rows in by_depth(parents)[1:]:
        above = parents[rows]
        taken = np.minimum(all_left, all_over)[above] + lent[above]
        part = np.divide(taken, all_left[above], out=np.zeros(taken.shape), where=all_left[above] > 0)
        lent[rows] = left[rows] * np.minimum(1.0, part)
    return lent


def fleet(snapshot: Snapshot) -> Shown:
    """GPUs that there are, that are free, and in what pieces."""
    nodes, columns = snapshot.nodes, gpu_columns(snapshot)
    there = nodes.allocatable[:, columns].sum(axis=1)
    free = np.where(nodes.usable, np.maximum(0, nodes.free[:, columns].sum(axis=1)), 0)
    shown: Shown = {
        metric: {}
        for metric in (declared.FLEET, declared.FREE, declared.UNUSABLE, declared.LARGEST, declared.FRAGMENTED)
    }
    for number, name in enumerate(snapshot.flavours):
        mine = np.flatnonzero(nodes.flavours == number)
        if not len(mine) or not name:
            continue
        labels = flavour(name)
        shown[declared.FLEET][labels] = int(there[mine].sum())
        shown[declared.FREE][labels] = int(free[mine].sum())
        shown[declared.UNUSABLE][labels] = int(there[mine][~nodes.usable[mine]].sum())
        for level, level_name in enumerate(snapshot.levels.names):
            largest, fragmented = _pieces(nodes.domains[mine, level], free[mine], there[mine])
            shown[declared.LARGEST][(level_name, *labels)] = largest
            shown[declared.FRAGMENTED][(level_name, *labels)] = fragmented
    return shown


def _pieces(domains: Index, free: Int, there: Int) -> tuple[int, float]:
    """Free GPUs of the domain with most of them, and the part of all that lies in domains that aren't wholly free."""
    inside = domains != NONE
    if not inside.any():
        return 0, 0.0
    free_of = np.bincount(domains[inside], weights=free[inside])
    all_of = np.bincount(domains[inside], weights=there[inside])
    whole = free_of.sum()
    return int(free_of.max()), float(free_of[free_of < all_of].sum() / whole) if whole else 0.0
