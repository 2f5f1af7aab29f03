"""A pod ends with its trainer, also where another container of it goes on.

Kubelet waits for every container of `podTemplate.spec.containers`, and for those that a mesh or a vault injects: a
proxy that nobody stops keeps the pod Running for ever, with its GPUs, and nobody would look at what became of the
trainer.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from muster.cluster.views import PodView
from muster.controllers.lifecycle.turn import Situation, Turn

PATIENCE: Final = 10.0
"""Seconds that the others have to end by themselves; then the pod stays, for its log."""


def begin(situation: Situation) -> Turn:
    """A turn that sees such pods as ended. What still runs in them is removed when the job has no more use for them."""
    turn = Turn(replace(situation, pods=tuple(_as_ended(pod, situation.now) for pod in situation.pods)))
    for pod in turn.s.pods:
        if pod.outlived_since is not None and pod.phase == "Running":
            turn.wake_in(PATIENCE - turn.since(pod.outlived_since))
    return turn


def _as_ended(pod: PodView, now: datetime) -> PodView:
    if pod.outlived_since is None or (now - pod.outlived_since).total_seconds() < PATIENCE:
        return pod
    return replace(pod, phase="Succeeded" if pod.exit_code == 0 else "Failed")
