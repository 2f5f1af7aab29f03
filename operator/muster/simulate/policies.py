"""The policies by name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

from muster.scheduling.policy import DEFAULT
from muster.simulate.baselines import Baseline
from muster.simulate.cluster import queue_shares
from muster.simulate.engine import Policy
from muster.simulate.errors import SimulationError
from muster.simulate.planned import Planned
from muster.simulate.workload import Workload
from muster_protocol.spelling import there_are

NAMES: Final = {
    "fifo": "strictly by priority and submission; the first that does not fit stops all behind it",
    "easy": "EASY backfill: FIFO, and others in between where the limits say that they do not delay the first",
    "muster": "Muster's planner, as the operator runs it",
}

WITHOUT: Final = "muster-no-"
"""`muster-no-preemption` is Muster with that part off; the parts are the switches of `muster.scheduling.policy`, and
REPLACEMENT."""

REPLACEMENT: Final = "replacement"
"""Off: a gang that loses a node waits again as a whole, as under the other policies."""


def parts() -> tuple[str, ...]:
    """The parts of Muster's planner that can be switched off."""
    switches = (field.name for field in fields(DEFAULT) if isinstance(getattr(DEFAULT, field.name), bool))
    return (*(name for name in switches if name != "explain"), REPLACEMENT)


def policy_named(name: str, workload: Workload) -> Policy:
    """Make the policy.

    Raises:
        SimulationError: there is none of that name, or the trace names queues that the cluster file lacks.
    """
    if name == "fifo":
        return Baseline(name, workload, backfill=False)
    if name == "easy":
        return Baseline(name, workload, backfill=True)
    if name == "muster" or name.startswith(WITHOUT):
        off = name.removeprefix(WITHOUT).split("-no-") if name != "muster" else []
        unknown = [part for part in off if part not in parts()]
        if unknown:
            raise SimulationError(f"Muster has no part {unknown[0]!r} to leave out; {there_are(unknown[0], parts())}")
        switches = replace(DEFAULT, **{part: False for part in off if part != REPLACEMENT})
        shares = queue_shares(workload.cluster, workload.trace.queues)
        return Planned(name, workload, shares, switches, replaces=REPLACEMENT not in off)
    raise SimulationError(f"there is no policy {name!r}; {there_are(name, NAMES)}, and {WITHOUT}PART")
