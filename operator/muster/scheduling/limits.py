"""What queues may use: what follows from their tree and their quotas alone, whoever uses what. See `quota`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from muster.scheduling.hierarchy import by_depth, roots
from muster.scheduling.snapshot import NONE, UNLIMITED, Int, Mask, Queues


@dataclass(frozen=True)
class Limits:
    """Q x V x R each. `cap` is what a queue may use in all, `most` what it could if nobody else used anything, `named`
    its own nominal, 0 where it names none."""

    named: Int
    has: Int
    own: Int
    cap: Int
    most: Int
    free: Mask


@dataclass(frozen=True)
class Allowed:
    """The tables of all queues. Shared by ledgers, so nobody may write into them.

    Attributes:
        ranks: rows of each depth, roots first, and the row above each.
        roots: Q, the root of the queue's tree.
        nominal, has, own, cap, most, free: flat, as `Limits` has them.
        limited: by queue and flavour, the resources that are not free; equal sets are one object.
    """

    ranks: list[tuple[Int, Int]]
    limits: Limits
    parents: list[int]
    roots: Int
    nominal: list[int]
    has: list[int]
    own: list[int]
    cap: list[int]
    most: list[int]
    free: list[bool]
    limited: list[frozenset[int]]


def allowed(queues: Queues) -> Allowed:
    """Kept from plan to plan, by content: quotas change far less often than their use."""
    tables = (np.asarray(table, dtype=np.int64) for table in (queues.nominal, queues.borrowing, queues.lending))
    parents = np.asarray(queues.parents, dtype=np.int32).tobytes()
    return _allowed(queues.nominal.shape, parents, *(table.tobytes() for table in tables))


@lru_cache(maxsize=2)
def _allowed(shape: tuple[int, ...], parents: bytes, nominal: bytes, borrowing: bytes, lending: bytes) -> Allowed:
    tables = (np.frombuffer(table, dtype=np.int64).reshape(shape) for table in (nominal, borrowing, lending))
    queues = Queues.plain(("",) * shape[0], np.frombuffer(parents, dtype=np.int32), *tables)
    ranks = by_depth(queues.parents)
    limits = _limits(queues, ranks)
    return Allowed(
        [(rows, queues.parents[rows].astype(np.int64)) for rows in ranks],
        limits,
        queues.parents.tolist(),
        roots(queues.parents).astype(np.int64),
        _flat(queues.nominal),
        _flat(limits.has),
        _flat(limits.own),
        _flat(limits.cap),
        _flat(limits.most),
        limits.free.ravel().tolist(),
        _limited(limits.free),
    )


def _limited(free: Mask) -> list[frozenset[int]]:
    patterns, of = np.unique(free.reshape(-1, free.shape[2]), axis=0, return_inverse=True)
    sets = [frozenset(np.flatnonzero(~pattern).tolist()) for pattern in patterns]
    return [sets[index] for index in of.ravel().tolist()]


def _limits(queues: Queues, ranks: list[Int]) -> Limits:
    parents, named = queues.parents, queues.nominal < UNLIMITED
    # This bound keeps sums over a tree from wrapping round; no cluster comes near it.
    bound = UNLIMITED // (2 * max(1, len(queues.names)))
    has = np.where(named, np.minimum(queues.nominal, bound), 0)
    limited = named.copy()
    for rows in ranks[1:]:
        limited[rows] |= limited[parents[rows]]
    for rows in reversed(ranks[1:]):
        np.add.at(has, parents[rows], np.minimum(has, queues.lending)[rows])
    root = (parents == NONE)[:, None, None]
    own = np.where(root, has, np.maximum(0, has - queues.lending))
    unbounded = queues.borrowing >= bound
    cap = np.where(unbounded, UNLIMITED, has + np.where(unbounded, 0, queues.borrowing))
    cap = np.where(root, has, cap)
    most = has.copy()
    for rows in ranks[1:]:
        most[rows] = own[rows] + np.minimum(cap[rows] - own[rows], most[parents[rows]])
    return Limits(np.where(named, queues.nominal, 0), has, own, cap, np.where(limited, most, UNLIMITED), ~limited)


def _flat(table: Int) -> list[int]:
    flat: list[int] = table.ravel().tolist()
    return flat
