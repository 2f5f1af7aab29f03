"""What ended launchers left in their termination messages: the last step and the last committed checkpoint.

A launcher is asked every ten seconds; what happened after the last answer is only told here. While a gang is being
stopped its pods end one after the other and are gone soon, so the record collects what they tell, and it is written
once, with the end of the placement.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from muster.api import goodput
from muster.api.names import EventReason
from muster.api.trainingjob_status import CommittedCheckpoint, NumericsStatus, Progress
from muster.cluster.views import PodView
from muster.controllers.lifecycle.turn import TERMINAL, Facts, Turn
from muster_protocol import exits
from muster_protocol.numerics import Numerics

_ASKED: Final = frozenset({exits.Cause.PREEMPTED, exits.Cause.MAX_RUNTIME})


def told_by(pods: Iterable[PodView], known: Facts) -> Facts:
    """`known`, and what ended pods tell beyond it."""
    ended = [pod for pod in pods if (pod.phase in TERMINAL or pod.outlived_since) and pod.termination_message]
    found = [(pod, facts) for pod in ended if (facts := exits.decode(pod.termination_message)) is not None]
    steps = [known.step, *(facts.step for _, facts in found)]
    committed = [(known.committed_step, known.committed_by)]
    committed += [(facts.committed_step, pod.finished) for pod, facts in found]
    newest = max((step for step, _ in committed if step is not None), default=None)
    spent = [known.spent, *((pod.attempt, facts.spent) for pod, facts in found if pod.index == 0 and facts.spent)]
    of_steps = ((facts.step, facts.loss) for pod, facts in found if pod.index == 0)
    losses = [known.loss, *((step, loss[:32]) for step, loss in of_steps if step is not None and loss)]
    unsound = [known.numerics, *(facts.numerics for pod, facts in found if pod.index == 0)]
    stopped = [known.stopped, *(facts.message for _, facts in found if facts.cause in _ASKED)]
    return Facts(
        max((step for step in steps if step is not None), default=None),
        newest,
        max((told for told in spent if told is not None), key=lambda told: told[0], default=None),
        max((told for told in losses if told is not None), default=None),
        max((told for told in unsound if told is not None), key=_unsound_steps, default=None),
        min((ended_at for step, ended_at in committed if step == newest and ended_at is not None), default=None),
        max(stopped, key=len),
    )


def _unsound_steps(said: Numerics) -> int:
    return said.skipped + said.rollbacks


def learn(turn: Turn) -> bool:
    """Take over newer steps from the present placement's ended pods."""
    if turn.status.placement is not None:
        take_facts(turn)
    return False


def take_facts(turn: Turn) -> None:
    """Take over newer steps."""
    facts = turn.s.facts
    if facts.step is not None:
        _progress(turn, facts.step, facts.loss)
    if facts.committed_step is not None:
        _checkpoint(turn, facts.committed_step, facts.committed_by or turn.s.now)
    if facts.spent is not None:
        turn.draft.set(goodput=goodput.told(turn.account(), *facts.spent, turn.s.now))
    if facts.numerics is not None and _unsound_steps(facts.numerics) > _known_unsound(turn):
        tell_numerics(turn, facts.numerics)


def tell_unsaved(turn: Turn) -> None:
    """Say that a gang that was asked to stop has left no checkpoint of its last step: its pods are gone, their log with
    them, and its next start would only seem to go backwards."""
    facts, known = turn.s.facts, turn.status.checkpoint
    # Where the pod of index 0 is lost, the others may not have heard of its last commit.
    steps = (facts.committed_step, known.step if known is not None else None)
    kept = max((step for step in steps if step is not None), default=None)
    if turn.s.spec.checkpoint is None or not facts.stopped or facts.step is None or facts.step <= (kept or 0):
        return
    goes_on = f"the last is of step {kept}" if kept is not None else "nor any before"
    told = f"the gang stopped after step {facts.step} and left no checkpoint of it, {goes_on}: {facts.stopped}"
    turn.tell(EventReason.LAST_SAVE_FAILED, told, warning=True)


def _known_unsound(turn: Turn) -> int:
    known = turn.status.numerics or NumericsStatus()
    return (known.skipped or 0) + (known.rollbacks or 0)


def tell_numerics(turn: Turn, said: Numerics | None) -> None:
    """Say that steps were not sound, and what the ranks have done about it. A launcher's word may be nonsense."""
    old = turn.status.numerics or NumericsStatus()
    if said is None or (said.skipped, said.rollbacks) == (old.skipped or 0, old.rollbacks or 0):
        return
    try:
        new = NumericsStatus(
            skipped=said.skipped or None, rollbacks=said.rollbacks or None, last=said.last, at=turn.s.now
        )
    except ValidationError:
        return
    if _unsound_steps(said) > _known_unsound(turn):
        turn.tell(EventReason.UNSOUND_NUMBERS, new.last, warning=True)
    turn.draft.set(numerics=new)


def _progress(turn: Turn, step: int, told: tuple[int, str] | None) -> None:
    old = turn.status.progress
    loss = told[1] if told is not None and told[0] == step else None  # an older step's would be taken for this one's
    if old is not None and (old.step > step or (old.step == step and (loss is None or old.loss is not None))):
        return  # nothing new; but another worker's pod may have ended before that of index 0, which tells the loss
    update = {"step": step, "loss": loss, "updated_at": turn.s.now, "eta": None}
    turn.draft.set(progress=(old or Progress(step=step, updated_at=turn.s.now)).model_copy(update=update))


def reach(turn: Turn, step: int | None) -> None:
    """A failure that was answered in the pods tells how far the ranks were. Of those that run now nothing is known by
    that: when progress was told last stays what it was."""
    old = turn.status.progress
    if step is not None and old is not None and old.step < step:
        turn.draft.set(progress=old.model_copy(update={"step": step, "loss": None, "eta": None}))


def _checkpoint(turn: Turn, step: int, by: datetime) -> None:
    """Committed `by` then at the latest. Nobody may have looked for hours since; a node's clock may be wrong."""
    old, spec = turn.status.checkpoint, turn.s.spec.checkpoint
    if spec is None or (old is not None and old.step >= step):
        return
    placement = turn.status.placement
    placed_at = placement.placed_at if placement is not None else None
    moment = min(turn.s.now, max(by, placed_at or by))
    turn.draft.set(checkpoint=CommittedCheckpoint(step=step, uri=spec.uri, committed_at=moment))
