"""`plan(snapshot) -> Plan`: which waiting gangs start now, where, and why the others do not.

Promises come first: room and quota that an earlier plan promised are nobody else's (`muster.scheduling.promises`), and
where a node of theirs broke, another takes its place (`muster.scheduling.mending`).

Then jobs are taken one after the other, in the order of `muster.scheduling.order`. Each is

1. turned down, if its queue is closed, no node suits it, it would not fit the usable nodes when they are empty, it asks
   for more than its queue could ever use, or its window opens later; or
2. left waiting for quota, if its queue may not use that much more now: when it has waited for as long as age counts,
   and its queue has that much without borrowing, later jobs of the queue do not pass it any more, unless they yield.
   Where its queue may use that much as soon as those are gone who leave, it becomes a head (4); or
3. admitted whole, if a valid placement exists in room that no job ahead needs, or if it provably delays nobody; or
4. left waiting for room. The first few of each flavour are *heads*: they hold a reserved time and place, their quota is
   charged as if they ran, and room is kept for them (`muster.scheduling.heads`). One whose quota others would lend
   becomes a head only when it has waited for as long as age counts: until then nobody's quota stands idle for it. What
   those behind it have borrowed does not count: they yield (`muster.scheduling.letin`). Nor does one whose window is
   shut at the time that it would reserve.

Before a job borrows, the owners have their turn who would take it back (`muster.scheduling.owners`). Where one of these
would pass another, it has its own after all others (`muster.scheduling.deciding`).

Cases 1 and 2 hold nobody else back, and so do the jobs of case 4 behind the last head.

Why a plan applied to its own snapshot changes nothing: while a plan is made, open room only shrinks and charged quota
only grows, every later admission left both for each job ahead, and all tests of fit are exact. So each job that waits
meets no more room and no more quota the second time, and keeps the same room and the same quota for itself.

What is kept from a job for the sake of other queues may end, though, with what starts after its turn: an owner that was
counted on lacks quota, others of its queue start instead, and beside them it would have to borrow itself. Then who was
kept waiting starts in the next plan, which the admissions bring about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from muster.scheduling.beyond import join
from muster.scheduling.bystanders import Bystanders
from muster.scheduling.deciding import Deciding
from muster.scheduling.expected import Expected, Lacking, expected_starts, promised_starts
from muster.scheduling.explain import Told, Words, explain
from muster.scheduling.fallback import fallback_starts, other_starts
from muster.scheduling.growth import Growth
from muster.scheduling.heads import Heads
from muster.scheduling.improving import improve
from muster.scheduling.order import Ordering
from muster.scheduling.passed import ABLE, may_be_passed
from muster.scheduling.plan import Basis, Plan, as_it_is
from muster.scheduling.policy import DEFAULT, Policy
from muster.scheduling.preempting import Preempting, cleared
from muster.scheduling.promises import left_at
from muster.scheduling.ranks import FirstSubmitted, by_length, works
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import FOREVER, Snapshot
from muster.scheduling.starting import Starting
from muster.scheduling.verdicts import Fate, Verdict
from muster.scheduling.withdrawing import withdraw

_QUOTA = Fate.QUOTA
"""Read for every job that waits: a name's value is faster than an enum's member."""


def plan(snapshot: Snapshot, policy: Policy = DEFAULT) -> Plan:
    """Decide over one snapshot. Pure: the same snapshot and policy always give the same plan."""
    round_ = Round(snapshot, policy)
    heads = Heads(round_)
    withdraw(round_)
    starting = Starting(round_, heads)
    verdicts = improve(round_, heads, starting.owners, _start_in_order(round_, heads, starting))
    going = {each.uid for each in round_.evictions}
    told: Told | tuple[()] = ()
    growth: Growth | None = None
    if policy.explain:
        words = Words(round_, heads, starting.owners)
        told = explain(round_, words, verdicts, _expect(round_, heads, verdicts))
        growth = Growth(round_, heads, words) if round_.left is not None else None
    made = Plan(
        admissions=tuple(round_.admissions),
        waiting=told,
        promises=tuple(round_.promises),
        evictions=tuple(round_.evictions),
        # Nobody is to make a pod for a gang that stops in the same plan.
        replacements=tuple([each for each in round_.replacements if each.uid not in going]),
        reduced=round_.reduced,
        broken=round_.kept.broken,
        helped=told.helped if isinstance(told, Told) else as_it_is,
        stays=growth.of if growth is not None else None,
    )
    return _kept_alone(join(round_.snapshot, made, round_.beyond))


def _kept_alone(made: Plan) -> Plan:
    """Without other nodes for a promise that is broken nevertheless, for it lacks quota or its window has closed."""
    if not made.broken or not (made.replacements or made.reduced):
        return made
    broken = set(made.broken)
    return replace(
        made,
        replacements=tuple([each for each in made.replacements if each.uid not in broken]),
        reduced=tuple([each for each in made.reduced if each.uid not in broken]),
    )


def _start_in_order(round_: Round, heads: Heads, starting: Starting) -> list[Verdict]:
    """Admit who can start. Returns those who wait, first in rank first."""
    preempting = Preempting(round_, starting.owners, starting.choices)
    deciding = Deciding(round_, heads, starting, preempting, _order(round_))
    bystanders = Bystanders(round_, starting, preempting)
    alike, obstacles = _alike(round_), starting.obstacles
    verdicts: list[Verdict] = []
    # Where the shortest come first, one that is shorter may ask whom the others may not.
    work = np.where(by_length(round_.snapshot), works(round_.snapshot), 0.0).tolist()
    closes: list[float] = round_.snapshot.jobs.terms.closes.tolist()  # who may start for longer may be a head
    known: dict[int, Verdict] = {}
    state = round_.state
    for job in deciding.order:
        verdict = obstacles.get(job)
        if job in deciding.early:
            verdict = deciding.count(job)
        elif job in bystanders.rows:
            verdict = Verdict(job, _QUOTA)
        elif verdict is None:
            same = known.get(alike[job])
            if same is not None and work[job] >= work[same.job] and closes[job] <= closes[same.job]:
                verdict = Verdict(job, same.fate, same.choice)
            else:
                verdict = deciding.decide(job)
                if state != round_.state:
                    known.clear()
                    state = round_.state
                    if bystanders.rows:
                        bystanders.look_again()
                elif verdict is not None and verdict.common:
                    known[alike[job]] = verdict
        if verdict is not None:
            verdicts.append(verdict)
    return _ask_again(round_, heads, preempting, deciding.with_those_put_off(verdicts))


def _alike(round_: Round) -> list[int]:
    """J, a number that is the same for the waiting jobs of one queue, kind and priority."""
    jobs = round_.snapshot.jobs
    priorities = jobs.priorities.astype(np.int64)
    of_queue = jobs.queues * (np.ptp(priorities) + 1 if priorities.size else 1) + priorities
    numbers: list[int] = (of_queue * len(round_.kinds.kinds) + round_.kinds.numbers).tolist()
    return numbers


def _order(round_: Round) -> Ordering | FirstSubmitted:
    return Ordering(round_.snapshot) if round_.policy.fairness else FirstSubmitted(round_.snapshot.jobs)


def _ask_again(round_: Round, heads: Heads, preempting: Preempting, verdicts: list[Verdict]) -> list[Verdict]:
    """What victims leave over may be what a job ahead of their beneficiary waits for: it would ask in the next plan."""
    everybody = set(range(len(round_.queue_of)))
    found = bool(round_.evictions)
    while found:
        found = False
        for index, verdict in enumerate(verdicts):
            if preempting.exhausted:
                return verdicts
            waits = verdict.fate in (Fate.ROOM, Fate.QUOTA) and verdict.job not in heads.jobs
            if waits and preempting.clear(verdict, everybody):
                verdicts[index], found = cleared(verdict), True
    return verdicts


def _expect(round_: Round, heads: Heads, verdicts: Sequence[Verdict]) -> Expected:
    """When each of those who wait is expected to start."""
    able = [each for each in verdicts if each.fate in ABLE]
    found = _of_those_able(round_, heads, able, verdicts) if able else promised_starts(round_.snapshot)
    found = found.at_latest(fallback_starts(round_, verdicts)).at_latest(other_starts(round_, heads))
    cleared = [each.job for each in verdicts if each.fate is Fate.CLEARED]
    return found.promised(cleared, _cleared_at(round_, cleared)) if cleared else found


def _cleared_at(round_: Round, jobs: Sequence[int]) -> list[float]:
    """When those are gone who make room for jobs to which this plan promises some."""
    asked, left = round_.snapshot.now + round_.longest_grace(), left_at(round_.after_evictions(moves=False))
    nodes = {each.uid: each.nodes for each in round_.promises}
    return [float(left[nodes[round_.snapshot.jobs.uids[job]]].max(initial=asked)) for job in jobs]


def _of_those_able(round_: Round, heads: Heads, able: Sequence[Verdict], verdicts: Sequence[Verdict]) -> Expected:
    rows = np.array([each.job for each in able], dtype=np.int64)
    least = np.array([it.sizes[-1] + it.shape.spares for it in round_.kinds.kinds], dtype=np.int64)
    lacking = Lacking(
        jobs=rows,
        workers=least[round_.kinds.numbers[rows]],
        quota=np.array([each.fate is _QUOTA for each in able], dtype=np.bool_),
        pools=round_.used.circles,
        spare=round_.promised.left_by_queue(),
        own=round_.own_left_by_queue(),
    )
    # Quota that comes back with those who end is not there before they are gone: those whom this plan asks, or the
    # first of those who were asked before.
    leaving = round_.snapshot.jobs.runs.leaving & round_.snapshot.jobs.holding
    first = float(heads.timeline.likely[leaving].min(initial=FOREVER))
    back = max(round_.snapshot.now + round_.longest_grace(), first if first < FOREVER else 0.0)
    reserved = heads.expected()
    for each in able:
        if each.fate is _QUOTA and each.job in reserved:
            start, basis = reserved[each.job]
            reserved[each.job] = max(start, back), basis
    proven = {job: start for job, (start, basis) in reserved.items() if basis is Basis.LIMITS}
    for job in may_be_passed(round_, heads, verdicts, proven):
        reserved[job] = proven[job], Basis.QUEUE
    return expected_starts(round_.snapshot, heads.timeline, round_.tree, round_.room, lacking, reserved)
