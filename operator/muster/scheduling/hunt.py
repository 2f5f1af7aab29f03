"""The search for the cheapest offers over all domains, tier by tier; see `muster.scheduling.victims`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from muster.scheduling.claims import Right
from muster.scheduling.clearing import Effort, Pull, cheapest, knapsack, weigh
from muster.scheduling.demand import Demand
from muster.scheduling.ground import Ground
from muster.scheduling.ladder import Rise, least_sums, rises_of, whole
from muster.scheduling.offers import ELSEWHERE, Offers, Tier
from muster.scheduling.snapshot import NONE, Int, Mask, Seconds
from muster.scheduling.topology import prefix_sums

_FEW, _BRANCHES_FEW, _BRANCHES_MANY = 10, 2_048, 256
"""With so few jobs on offer the search may go through all sets; with more it makes so many branches in all."""


@dataclass(frozen=True)
class Cleared:
    """What is taken in one domain so that the gang fits there.

    Attributes:
        decisive: cost of the offers of the last tier that was needed.
        lower: cost of what is taken of the tiers below that, the later ones first.
        bound: no choice in any domain has a lower `decisive`.
    """

    domain: int
    taken: tuple[int, ...]
    decisive: float
    lower: tuple[float, ...]
    bound: float

    @property
    def costs(self) -> tuple[float, ...]:
        """By tier, from the last one down."""
        return (self.decisive, *self.lower)


class Hunt:
    """One search; the demand's ledger is as it was after each call."""

    def __init__(self, demand: Demand, offers: Offers, most: float = math.inf) -> None:
        """`most`: what `bound` may be; domains of which the bound is higher are not looked at."""
        self._demand, self._offers, self._most = demand, offers, most
        self._owners = offers.owners
        self._domains = demand.domain_of[offers.places]
        # An entry counts only in the domain that its offer is made for.
        made_for = offers.domains[self._owners]
        self._counts: Mask = demand.eligible[offers.places] & (self._domains != NONE)
        self._counts &= (made_for == NONE) | (made_for == self._domains)
        self._tiers = offers.tiers[self._owners]
        ledger, jobs = demand.ledger, demand.snapshot.jobs
        self._short = ledger.shortage(demand.queue, demand.flavour, demand.need, borrowing=demand.borrowing) is not None
        self._quota = self._short or bool((offers.rights >= int(Right.RECLAIM)).any())
        circles = ledger.circles
        # Offers that give quota back to the claimant's tree.
        self._helps: Mask = circles[jobs.queues[offers.rows]] == ledger.circle(demand.queue)
        self._helps &= jobs.flavours[offers.rows] == demand.flavour

    def search(self) -> Cleared | None:
        """Ask tier by tier, until what may be asked for is enough; None if it never is."""
        for top in sorted(set(self._offers.tiers.tolist())) or [int(Tier.YIELD)]:
            cleared = self._best(top)
            if cleared is not None:
                return cleared
        return None

    def _best(self, top: int) -> Cleared | None:
        """The cheapest domain when tiers up to `top` may be asked, in the order of bounds until none is lower."""
        bounds = self._bounds(top)
        few = len(set(self._offers.rows[self._offers.tiers <= top].tolist())) <= _FEW
        effort = Effort(_BRANCHES_FEW if few else _BRANCHES_MANY)
        best: Cleared | None = None
        bound = float("inf")
        for domain in np.argsort(bounds, kind="stable").tolist():
            # Of domains that are cleared at the same price the one is better in which less is asked for before that.
            done = best is not None and bounds[domain] >= best.decisive
            if done and best is not None and few and any(best.lower):
                done = bounds[domain] > best.decisive
            if done or not np.isfinite(bounds[domain]) or bounds[domain] > self._most:
                bound = min(bound, float(bounds[domain]))
                break
            cleared, least = self._clear(domain, top, float(bounds[domain]), effort)
            bound = min(bound, least)
            if cleared is not None and (
                best is None or (cleared.decisive, *cleared.lower) < (best.decisive, *best.lower)
            ):
                best = cleared
        if best is None:
            return None
        return Cleared(best.domain, best.taken, best.decisive, best.lower, min(bound, best.decisive))

    def _clear(self, domain: int, top: int, bound: float, effort: Effort) -> tuple[Cleared | None, float]:
        """The cheapest offers in one domain, and a lower bound on their cost.

        What lower tiers give back counts first. But where a queue gives back so much that it borrows no more, others of
        it may not be asked, so it is tried without as well.
        """
        ground = Ground(self._demand, self._offers, domain, quota=self._quota)
        tiers = self._by_tier(domain, top)
        lower = [offer for tier in tiers[:top] for offer in tier]
        cleared, least = self._clear_down(ground, tiers, lower, bound, effort)
        if lower and self._quota:
            other, other_least = self._clear_down(ground, tiers, [], bound, effort)
            least = min(least, other_least)
            if other is not None and (cleared is None or other.decisive < cleared.decisive):
                return other, least
        return cleared, least

    def _clear_down(
        self, ground: Ground, tiers: list[list[int]], first: list[int], bound: float, effort: Effort
    ) -> tuple[Cleared | None, float]:
        """From the last tier down, each beside all that is taken of those below it; `first` is taken to begin with."""
        for offer in first:
            if ground.may_take(offer):
                ground.take(offer)
        top, decisive = len(tiers) - 1, 0.0
        for tier in range(top, -1, -1):
            before = list(ground.taken)
            mine = self._open_offers(ground, tiers[tier], tier)
            for offer in mine:
                if offer in ground.taken:
                    ground.give_back(offer)
            found, proven = self._choose(ground, np.array(mine, dtype=np.int64), effort)
            if found is None and tier == top:
                ground.clear()
                return None, float("inf") if proven else bound
            ground.set(before if found is None else [*ground.taken, *found])
            if tier == top and found is not None:
                decisive = float(self._offers.costs[found].sum())
                bound = decisive if proven else min(bound, decisive)
        taken = tuple(ground.taken)
        ground.clear()
        return Cleared(ground.domain, taken, decisive, self._lower(taken, top), bound), bound

    def _open_offers(self, ground: Ground, offers: list[int], tier: int) -> list[int]:
        """Those of a tier that are still a choice, given what is taken of other tiers."""
        rows, tiers = self._offers.rows, self._offers.tiers
        evict, shrink = int(Tier.EVICT), int(Tier.SHRINK)
        if tier == shrink:
            evicted = {int(rows[each]) for each in ground.taken if tiers[each] == evict}
            return [offer for offer in offers if int(rows[offer]) not in evicted]
        if tier == evict:
            shrunk = {int(rows[each]) for each in ground.taken if tiers[each] == shrink}
            return [offer for offer in offers if not self._offers.rests[offer] or int(rows[offer]) in shrunk]
        return offers

    def _by_tier(self, domain: int, top: int) -> list[list[int]]:
        """The offers that stand in a domain and may help there, by tier."""
        offers = self._offers
        here: Mask = offers.domains == domain
        here[self._owners[self._counts & (self._domains == domain)]] = True
        made = np.isin(offers.rows, offers.rows[offers.domains == domain])
        stands = (offers.domains == NONE) | (offers.domains == domain) | ((offers.domains == ELSEWHERE) & ~made)
        if self._short:
            here |= stands & self._helps
        # Of an elastic job both offers stand, or the rest of it could not go.
        rests = offers.rows[here & offers.rests]
        here |= (offers.tiers == int(Tier.SHRINK)) & stands & np.isin(offers.rows, rests)
        return [np.flatnonzero(here & (offers.tiers == tier)).tolist() for tier in range(top + 1)]

    def _choose(self, ground: Ground, mine: Int, effort: Effort) -> tuple[list[int] | None, bool]:
        if ground.holds():
            return [], True
        return cheapest(ground, mine, self._offers.costs[mine], self._pull(ground, mine), effort)

    def _pull(self, ground: Ground, mine: Int) -> Pull:
        """What each offer adds at most to what is lacking in one domain."""
        demand, measure = self._demand, ground.measure
        parts = [ground.part(offer) for offer in mine.tolist()]
        sizes = np.array([len(columns) for columns, _ in parts], dtype=np.int64)
        owners = np.repeat(np.arange(len(mine)), sizes)
        places = np.concatenate([columns for columns, _ in parts]) if parts else owners
        amounts = np.concatenate([amount for _, amount in parts], axis=1) if parts else ground.free[:, :0]
        most = ground.free.copy()
        for row, amount in zip(most, amounts, strict=True):
            np.add.at(row, places, amount)
        weights = weigh(ground.free, ground.slots, most, demand.divisors, places, amounts)
        needed = float(demand.gang.total - ground.total)
        rises: tuple[Rise, ...] = ()
        sums = _sums(owners, weights, len(mine))
        if measure.steps and (lacking := measure.needed - measure.count(ground.slots)) > 0:
            final = (most // demand.divisors).min(axis=0)
            final = np.where(ground.eligible, np.maximum(final, 0), 0)
            _, holders, added = measure.weights(ground.slots, final, places, owners, weights)
            sums, needed, rises = _sums(holders, added, len(mine)), float(lacking), rises_of(measure, ground.slots)
        quota = False
        if needed <= 0:
            short = demand.ledger.shortage(demand.queue, demand.flavour, demand.need, borrowing=demand.borrowing)
            if short is not None:
                sums = self._quota_weights(mine, short.resource)
                needed, quota = float(short.needed - short.available), True
        return Pull(sums, needed, quota, places, owners, weights, rises)

    def _bounds(self, top: int) -> Seconds:
        """For each domain the least cost of offers of tier `top` with all lower tiers' taken; infinite: not even so."""
        demand, offers, measure = self._demand, self._offers, self._demand.measure
        start, most = (self._with(self._counts & (self._tiers < limit)) for limit in (top, top + 1))
        slots, final = demand.slots(start), demand.slots(most)
        entries = np.flatnonzero(self._counts & (self._tiers == top))
        owners, places, domain_of = self._owners[entries], offers.places[entries], demand.domain_of
        weights = weigh(start, slots, most, demand.divisors, places, offers.given[:, entries])
        lacking = demand.gang.total - self._by_domain(slots)
        never = self._by_domain(final) < demand.gang.total
        sums, pairs, pair_of = self._by_pair(domain_of[places], owners, weights)
        shares = weights / np.maximum(sums, 1e-12)[pair_of] * offers.costs[owners]
        pieces = whole(places, weights, shares, rises_of(measure, slots))
        if measure.steps:
            units, owners, weights = measure.weights(slots, final, places, owners, weights)
            at, there, reach = measure.anchors(), measure.counts(slots), measure.counts(final)
            domain_of, lacking, never = self._in_slices(at, there, reach, never)
            sums, pairs, _ = self._by_pair(domain_of[units], owners, weights)
        domains, holders = np.divmod(pairs, max(1, len(offers.rows)))
        bounds = _knapsacks(domains, offers.costs[holders], sums, lacking)
        bounds = np.maximum(bounds, least_sums(pieces, domain_of, lacking))
        bounds[never] = np.inf
        return np.maximum(bounds, self._quota_bound(top))

    def _by_pair(self, domains: Int, owners: Int, weights: Seconds) -> tuple[Seconds, Int, Int]:
        """Sums of weights for each pair of domain and offer; the pairs, and the pair of each entry."""
        pairs, pair_of = np.unique(domains * max(1, len(self._offers.rows)) + owners, return_inverse=True)
        return _sums(pair_of, weights, len(pairs)), pairs, pair_of

    def _in_slices(self, anchors: Int, counts: Int, final: Int, never: Mask) -> tuple[Int, Int, Mask]:
        """The domain of each slice's domain, whole slices that are lacking in each, and where they always are."""
        domain_of, needed = self._demand.domain_of[anchors], self._demand.measure.needed
        inside = domain_of != NONE
        there, reach = np.zeros(len(never), dtype=np.int64), np.zeros(len(never), dtype=np.int64)
        np.add.at(there, domain_of[inside], counts[inside])
        np.add.at(reach, domain_of[inside], final[inside])
        return domain_of, needed - there, never | (reach < needed)

    def _quota_bound(self, top: int) -> float:
        """Least cost of the quota that lacks even when all lower tiers give theirs back."""
        if not self._short:
            return 0.0
        offers, demand = self._offers, self._demand
        # Offers for one domain and for all others give back the same quota: count each job's once.
        whole = offers.domains < 0
        lower = np.flatnonzero(whole & (offers.tiers < top)).tolist()
        for offer in lower:
            demand.ledger.discharge(*offers.homes[offer], offers.need(offer))
        short = demand.ledger.shortage(demand.queue, demand.flavour, demand.need, borrowing=demand.borrowing)
        for offer in lower:
            demand.ledger.charge(*offers.homes[offer], offers.need(offer))
        if short is None:
            return 0.0
        mine = np.flatnonzero(whole & (offers.tiers == top))
        weights = self._quota_weights(mine, short.resource)
        return knapsack(offers.costs[mine], weights, float(short.needed - short.available))

    def _quota_weights(self, offers: Int, resource: int) -> Seconds:
        """How much quota of a resource each offer gives back to the claimant's tree."""
        weights: Seconds = np.where(self._helps[offers], self._offers.held[offers, resource], 0).astype(np.float64)
        return weights

    def _lower(self, taken: tuple[int, ...], top: int) -> tuple[float, ...]:
        """Cost of each tier below the top, downwards. Of an elastic job that is evicted both offers are taken."""
        offers, sums = self._offers, [0.0] * (top + 1)
        tiers = {int(offers.rows[each]): int(offers.tiers[each]) for each in sorted(taken, key=offers.tiers.item)}
        for offer in taken:
            if offers.tiers[offer] == tiers[int(offers.rows[offer])]:
                sums[int(offers.tiers[offer])] += float(offers.costs[offer])
        return tuple(sums[:top][::-1])

    def _with(self, entries: Mask) -> Int:
        """Asked resources x places, when these entries have come back."""
        free: Int = self._demand.base.copy()
        chosen = np.flatnonzero(entries)
        for row in range(len(free)):
            np.add.at(free[row], self._offers.places[chosen], self._offers.given[row, chosen])
        return free

    def _by_domain(self, counts: Int) -> Int:
        prefix = prefix_sums(counts)
        sums: Int = prefix[self._demand.ends] - prefix[self._demand.starts]
        return sums


def _knapsacks(domains: Int, costs: Seconds, weights: Seconds, needed: Int) -> Seconds:
    """`clearing.knapsack` for each domain at once; infinite where all its items are not enough."""
    order = np.lexsort((costs / np.maximum(weights, 1e-12), domains))
    domains, costs, weights = domains[order], costs[order], weights[order]
    running = np.cumsum(weights)
    first = np.searchsorted(domains, np.arange(len(needed)))
    before = np.concatenate([[0.0], running])[first]
    left = needed[domains] - (running - weights - before[domains])
    part = np.clip(left / np.maximum(weights, 1e-12), 0.0, 1.0)
    bounds = _sums(domains, costs * part, len(needed))
    bounds[_sums(domains, weights, len(needed)) < needed * (1 - 1e-9)] = np.inf
    return bounds


def _sums(groups: Int, values: Seconds, count: int) -> Seconds:
    """Sum of the values of each group."""
    sums = np.zeros(count)
    np.add.at(sums, groups, values)
    return sums
