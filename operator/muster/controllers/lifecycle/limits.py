"""Windows, budgets and deadlines: a gang stops when its time or money is up, and its owner is told beforehand."""

from __future__ import annotations

from datetime import datetime

from muster.api.common import find_condition
from muster.api.names import ConditionType, EventReason, Reason
from muster.api.placement import Stop
from muster.api.windows import window_error
from muster.controllers import deadlines, devices, terms
from muster.controllers.lifecycle.turn import Turn
from muster.controllers.telling import least_move
from muster.scheduling.plan import WaitReason


def keep_terms(turn: Turn) -> bool:
    """End a placement whose window has closed or whose budget is spent; hold a job back that may not start at all."""
    wrong = window_error(turn.s.spec.window) if turn.s.spec.window else ""
    if not wrong:
        _deadline(turn)
    if turn.status.placement is None:
        return _hold_back(turn, wrong)
    return _stop(turn, windowed=not wrong)


def _hold_back(turn: Turn, wrong: str) -> bool:
    spent = terms.budget_spent(turn.s.spec, turn.status.usage) if turn.status.usage else ""
    for reason, message in ((Reason.INVALID_WINDOW, wrong), (Reason.BUDGET_EXHAUSTED, spent)):
        if message:
            turn.draft.set(promise=None)  # room that a gang keeps which may not start is kept from others
            known = find_condition(turn.status.conditions, ConditionType.ADMITTED.value)
            if known is None or (known.reason, known.message) != (reason.value, message):
                turn.waits(reason.value, message)
                turn.tell(EventReason.QUEUED, message, warning=True)
            return True
    if terms.runs_to_its_end(turn.s.spec, turn.status):
        return False
    opens = terms.may_start(turn.s.spec, turn.s.now, terms.start_seconds(turn.status, turn.s.typical_start))
    if opens > turn.s.now:
        turn.draft.set(promise=None)
        turn.wake_at(opens)
        return False
    until = terms.may_start_until(turn.s.spec, turn.s.now, terms.start_seconds(turn.status, turn.s.typical_start))
    if turn.status.promise is not None and until is not None:
        turn.wake_at(until)
    return False


def _stop(turn: Turn, *, windowed: bool) -> bool:
    """`windowed`: its window, if it has one, can be read; one that can't ends nothing, and the budget still does."""
    spec, status, placement = turn.s.spec, turn.status, turn.status.placement
    assert placement is not None
    gpus = devices.held(placement, spec, turn.s.gpu_type)
    ends: list[tuple[datetime, str, str]] = []
    if windowed and placement.placed_at is not None:
        window = terms.window_end(spec, placement.placed_at, turn.s.now)
        if window is not None:
            ends.append((window.at, WaitReason.WINDOW_CLOSED.value, window.message))
    budget = terms.budget_end(spec, status, gpus, turn.s.price)
    if budget is not None:
        usage = terms.used(status, gpus, turn.s.price, turn.s.now, turn.s.currency)
        message = terms.budget_spent(spec, usage)
        ends.append((budget, Reason.BUDGET_EXHAUSTED.value, message))
    for at, reason, message in sorted(ends):
        if at > turn.s.now:
            turn.wake_at(at)
        elif message:
            told = f"{message}; the gang saves a checkpoint and stops"
            turn.tell(EventReason.TIME_IS_UP, told)
            turn.record_stop(Stop(reason=reason, message=message, requested_at=turn.s.now))
            return True
        else:
            turn.wake_in(1.0)  # by whole GPU-seconds it is not spent yet
    return False


def _deadline(turn: Turn) -> None:
    """Say whether the deadline can be met; written when the answer changes, for the times in it always do."""
    known = find_condition(turn.status.conditions, ConditionType.DEADLINE_REACHABLE.value)
    found = deadlines.outlook(
        turn.s.spec, turn.status, turn.s.now, terms.start_seconds(turn.status, turn.s.typical_start)
    )
    if found is None:
        if known is not None:
            turn.draft.condition(ConditionType.DEADLINE_REACHABLE, None, Reason.NO_DEADLINE.value, "no deadline is set")
        return
    if found.changes is not None:
        turn.wake_at(found.changes)
    late = Reason.DEADLINE_PASSED if found.passed else Reason.TOO_LATE
    unknown = Reason.CANNOT_START if found.stuck else Reason.LENGTH_UNKNOWN
    reason = {True: Reason.IN_TIME, False: late, None: unknown}[found.met]
    if known is not None and known.observed_generation == turn.generation:
        # An expected start moves with each job that ends; what was late is in time when it is so for sure.
        wavers = known.reason == Reason.TOO_LATE.value and reason is Reason.IN_TIME
        if known.reason == reason.value or (wavers and found.waits and found.spare < least_move(found.waits)):
            return
    turn.draft.condition(ConditionType.DEADLINE_REACHABLE, found.met, reason.value, found.message)
    if found.met is False:
        turn.tell(EventReason.DEADLINE_AT_RISK, found.message, warning=True)
