"""What each waiting job is told: why it waits, for what, behind whom, since when it is expected to start, what helps.

Found after all admissions are made, and once for all jobs that are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.scheduling.changes import Changes
from muster.scheduling.heads import Heads
from muster.scheduling.plan import Almost, Basis, Waiting
from muster.scheduling.promises import victims_of
from muster.scheduling.ranks import positions
from muster.scheduling.reasons import Reasons, Why
from muster.scheduling.rounds import Fate, Round, Verdict
from muster.scheduling.snapshot import FOREVER

Expectation = Callable[[int], tuple[float, Basis]]
"""(moment, what it rests on) at which a waiting job is expected to start, by row."""


def explain(round_: Round, heads: Heads, verdicts: Sequence[Verdict], expected: Expectation) -> tuple[Waiting, ...]:
    """Everyone who waits: those with a promise first, then by rank.

    Args:
        verdicts: of all that wait for quota, room or anything else, first in rank first.
    """
    explaining = _Explaining(round_, heads, expected)
    queues = round_.queue_of
    places = positions([*(queues[job] for job in round_.kept.waiting), *(queues[each.job] for each in verdicts)])
    promised = len(round_.kept.waiting)
    first = [explaining.promised(job, place) for job, place in zip(round_.kept.waiting, places, strict=False)]
    rest = [explaining.waiting(each, place) for each, place in zip(verdicts, places[promised:], strict=True)]
    return tuple(first + rest)


class _Explaining:
    def __init__(self, round_: Round, heads: Heads, expected: Expectation) -> None:
        self._round, self._heads, self._expected = round_, heads, expected
        self._reasons = Reasons(round_.snapshot, round_.tree, round_.room, round_.kinds.workers)
        self._changes = Changes(round_)
        self._charged_first: dict[tuple[int, int], int] = {}
        flavours = round_.snapshot.jobs.flavours
        for job, flavour in (*((job, int(flavours[job])) for job in round_.kept.waiting), *round_.reserved_quota):
            self._charged_first.setdefault((round_.used.circle(round_.queue_of[job]), flavour), job)
        self._by_kind: dict[tuple[int, Fate, int], tuple[Why, str]] = {}
        self._by_quota: dict[tuple[int, int, int], tuple[Why, str]] = {}
        self._open: list[bool] = heads.open_to().tolist()
        self._helps: dict[tuple[int, int, bool], tuple[tuple[Almost, ...], tuple[str, ...]]] = {}
        self._grace = round_.snapshot.jobs.runs.grace

    def promised(self, job: int, position: int) -> Waiting:
        """A job whose room was promised by an earlier plan."""
        snapshot = self._round.snapshot
        victims = victims_of(snapshot, job)
        nodes = len(set(snapshot.jobs.runs.nodes_of(job).tolist()))
        why = self._reasons.promised(nodes, len(victims))
        expected = snapshot.now + float(self._grace[victims].max(initial=0.0))
        return self._told(job, position, why, "", expected, Basis.PROMISED)

    def waiting(self, verdict: Verdict, position: int) -> Waiting:
        why, blocker = self._why(verdict)
        almost: tuple[Almost, ...] = ()
        changes: tuple[str, ...] = ()
        has_quota = self._has_quota(verdict)
        if verdict.fate in (Fate.ROOM, Fate.TOO_LARGE, Fate.NODES_AWAY):
            kind, spare = self._round.kinds.of[verdict.job], not self._open[verdict.job]
            key = (kind, verdict.choice, spare)
            if key not in self._helps:
                self._helps[key] = self._changes.of(kind, verdict.choice, spare=spare)
            almost, changes = self._helps[key]
        if not has_quota:
            changes = ()
        expected, basis = self._expected(verdict.job)
        return self._told(verdict.job, position, why, blocker, expected, basis, almost, changes, has_quota)

    def _has_quota(self, verdict: Verdict) -> bool:
        """Whether the job lacks nothing but nodes."""
        if verdict.fate is Fate.ROOM:
            return True
        if verdict.fate not in (Fate.NO_NODES, Fate.TOO_LARGE, Fate.NODES_AWAY):
            return False
        kinds, kind = self._round.kinds, self._round.kinds.of[verdict.job]
        need = kinds.need(kind, verdict.choice, kinds.kinds[kind].sizes[-1])
        return self._round.shortage(verdict.job, verdict.choice, need) is None

    def _why(self, verdict: Verdict) -> tuple[Why, str]:
        """The reason, and the uid of the job that is in the way, or ""."""
        job, fate = verdict.job, verdict.fate
        if fate is Fate.CLOSED:
            return self._reasons.queue_closed(self._round.queue_of[job]), ""
        if fate is Fate.WINDOW:
            return self._reasons.window_closed(self._round.opens[job]), ""
        if fate is Fate.CLEARED:
            return self._cleared(job), ""
        kind = self._round.kinds.of[job]
        if fate in (Fate.QUOTA, Fate.NEVER):
            key = (self._round.queue_of[job], kind, verdict.choice)
            if key not in self._by_quota:
                self._by_quota[key] = self._quota(verdict)
            return self._by_quota[key]
        like = (kind, fate, verdict.choice)
        if like not in self._by_kind:
            self._by_kind[like] = self._placement(kind, fate, verdict.choice)
        return self._by_kind[like]

    def _cleared(self, job: int) -> Why:
        uid = self._round.snapshot.jobs.uids[job]
        promise = next(each for each in self._round.promises if each.uid == uid)
        victims = sum(each.beneficiary == uid for each in self._round.evictions)
        return self._reasons.promised(len(set(promise.nodes.tolist())), victims)

    def _quota(self, verdict: Verdict) -> tuple[Why, str]:
        round_, job = self._round, verdict.job
        queue, kind = round_.queue_of[job], round_.kinds.of[job]
        it = round_.kinds.kinds[kind]
        flavour = it.choices[verdict.choice].flavour
        need = round_.kinds.need(kind, verdict.choice, it.sizes[-1])
        never = round_.never(job, verdict.choice, need) if verdict.fate is Fate.NEVER else None
        if never is not None:
            return self._reasons.exceeds_quota(queue, flavour, never, firm=not it.preemptible), ""
        short = round_.used.shortage(queue, flavour, need)
        if short is None and not it.preemptible:
            short = round_.firm_shortage(job, verdict.choice, need)
            if short is not None:
                why = self._reasons.quota_exceeded(round_.used, queue, flavour, short, firm=True)
                return self._reasons.held_by(why, queue, flavour, short, firm=True), ""
        if short is not None:
            why = self._reasons.quota_exceeded(round_.used, queue, flavour, short)
            if not it.preemptible:
                why = self._reasons.held_by(why, queue, flavour, short, firm=False)
            return why, ""
        kept = round_.shortage(job, verdict.choice, need)
        if kept is None:
            return self._reasons.quota_is_owned(queue, flavour, need), ""
        # Promises that are in the way came before this job, so the first of all did.
        ahead = self._charged_first.get((round_.used.circle(queue), flavour))
        if ahead is None:  # a job that grows has it
            return self._reasons.quota_exceeded(round_.promised, queue, flavour, kept), ""
        jobs = round_.snapshot.jobs
        why = self._reasons.quota_is_kept(queue, flavour, kept, int(jobs.queues[ahead]), int(jobs.priorities[ahead]))
        return why, jobs.uids[ahead]

    def _placement(self, kind: int, fate: Fate, choice: int) -> tuple[Why, str]:
        round_ = self._round
        gang = round_.kinds.gang(kind, choice, round_.kinds.kinds[kind].sizes[-1])
        if fate is Fate.NO_NODES:
            return self._reasons.no_eligible_nodes(), ""
        if fate is Fate.TOO_LARGE:
            return self._reasons.exceeds_cluster(gang), ""
        if fate is Fate.NODES_AWAY:
            return self._reasons.nodes_away(gang), ""
        if not round_.fits_free(gang):
            return self._reasons.lacks_room(gang), ""
        ahead = self._heads.in_the_way(gang)
        jobs = round_.snapshot.jobs
        why = self._reasons.room_is_kept(gang, int(jobs.queues[ahead]), int(jobs.priorities[ahead]))
        return why, jobs.uids[ahead]

    def _told(
        self,
        job: int,
        position: int,
        why: Why,
        blocker: str,
        expected: float = FOREVER,
        basis: Basis = Basis.UNKNOWN,
        almost: tuple[Almost, ...] = (),
        changes: tuple[str, ...] = (),
        has_quota: bool = False,
    ) -> Waiting:
        return Waiting(
            self._round.snapshot.jobs.uids[job],
            why.reason,
            why.message,
            position,
            why.resource,
            why.missing,
            why.level,
            why.domain,
            why.placeable,
            blocker,
            expected,
            basis,
            almost,
            changes,
            has_quota,
            why.holders,
        )
