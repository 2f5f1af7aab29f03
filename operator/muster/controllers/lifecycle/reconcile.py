"""One job's turn: a straight list of policies, each of which may end the turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from muster.controllers.lifecycle import outlived
from muster.controllers.lifecycle.capacity import tell_capacity
from muster.controllers.lifecycle.completion import complete
from muster.controllers.lifecycle.elsewhere import leave_run
from muster.controllers.lifecycle.facts import learn
from muster.controllers.lifecycle.failure import recover
from muster.controllers.lifecycle.idle import stay_suspended, watch_gpus
from muster.controllers.lifecycle.limits import keep_terms
from muster.controllers.lifecycle.preemption import drop_promise, give_way, hand_over
from muster.controllers.lifecycle.priority import watch_priority
from muster.controllers.lifecycle.renewal import confirm, renew
from muster.controllers.lifecycle.replacement import replace_lost
from muster.controllers.lifecycle.resized import free_size
from muster.controllers.lifecycle.runtime import limit_runtime, run_longer
from muster.controllers.lifecycle.start import follow, make_pods
from muster.controllers.lifecycle.stopping import clean_finished, continue_stop, remove_strays
from muster.controllers.lifecycle.stragglers import name_stragglers
from muster.controllers.lifecycle.suspend import suspend
from muster.controllers.lifecycle.turn import Decision, Situation, Turn
from muster.controllers.lifecycle.waiting import wait
from muster.controllers.lifecycle.warned import pass_on_warnings
from muster.controllers.lifecycle.withdraw import withdraw

Policy = Callable[[Turn], bool]
"""Edits the turn; True ends it."""

POLICIES: Final[tuple[Policy, ...]] = (
    clean_finished,
    remove_strays,
    drop_promise,
    hand_over,
    continue_stop,
    stay_suspended,
    suspend,
    leave_run,
    watch_priority,
    free_size,
    renew,
    confirm,
    keep_terms,
    tell_capacity,
    wait,
    learn,
    complete,
    replace_lost,
    run_longer,
    recover,
    give_way,
    withdraw,
    limit_runtime,
    name_stragglers,
    pass_on_warnings,
    watch_gpus,
    follow,
    make_pods,
)


def reconcile(situation: Situation) -> Decision:
    """What is to be done about one job now. Pure: the same situation always gives the same decision."""
    turn = outlived.begin(situation)
    if situation.job.metadata.deletion_timestamp is not None:
        # The garbage collector waits for the object to go, and a finalizer of somebody else's may hold it for ever: the
        # pods go now. Until they are gone they hold their room.
        turn.remove(turn.s.pods)
        turn.remove_unshown()
        return turn.decision()
    for policy in POLICIES:
        if policy(turn):
            break
    return turn.decision()
