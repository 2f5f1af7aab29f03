"""Passes on what the training warns of, as index 0's launcher has heard it from the ranks: each text is an Event once,
and the newest few stay in the status. Rank 0's log alone would be read by nobody until the job is lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from muster.api.names import EventReason
from muster.api.trainingjob_status import TrainingWarning
from muster.controllers.lifecycle.turn import Turn
from muster_protocol.launcher_status import WARNINGS_KEPT

_CHARACTERS: Final = 500


def pass_on_warnings(turn: Turn) -> bool:
    """Tell those that the status doesn't have yet.

    It keeps all of the present launcher's, and what others said before while there is room: so none is told twice,
    whatever the launcher says and however often the operator starts.
    """
    if turn.s.launcher is None or not turn.s.launcher.warnings:
        return False
    said = _plain(turn.s.launcher.warnings)
    known = {one.message: one for one in turn.status.warnings}
    fresh = [text for text in said if text not in known]
    if not fresh:
        return False
    before = [one for one in turn.status.warnings if one.message not in said]
    now = [known.get(text) or TrainingWarning(at=turn.s.now, message=text) for text in said]
    kept = (before + now)[-WARNINGS_KEPT:]
    turn.draft.set(warnings=tuple(sorted(kept, key=lambda one: one.at)))
    for text in fresh:
        turn.tell(EventReason.TRAINING_WARNING, text, warning=True)
    return False


def _plain(warnings: Iterable[str]) -> list[str]:
    """The newest of them, each once, on one line and not long. They are the job's own words, so anything may come."""
    printable = ("".join(c if c.isprintable() else " " for c in text[: 2 * _CHARACTERS]) for text in warnings)
    texts = [" ".join(text.split())[:_CHARACTERS] for text in printable]
    return list(dict.fromkeys(text for text in texts if text))[-WARNINGS_KEPT:]
