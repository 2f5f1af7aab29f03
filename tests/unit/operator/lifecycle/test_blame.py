"""What a job says against its nodes, and when it stays away from one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.api.trainingjob_status import NodeFault
from muster.controllers.lifecycle.reconcile import reconcile
from muster_protocol.exits import Cause
from muster_protocol.messages import Ended

from .cases import Case, trainingjob

pytestmark = pytest.mark.unit


def faults(case: Case) -> list[tuple[str, str, int]]:
    return [(one.node, one.cause, one.placement) for one in case.job.status.node_faults]


def shunned(case: Case) -> list[str]:
    return [item.node for item in case.job.status.avoided]


def again(case: Case, *nodes: str) -> None:
    """The gang's pods go and it trains again, on these nodes."""
    case.settle()
    case.vanish()
    case.settle()
    case.later(700)
    case.start(*nodes)


@pytest.mark.parametrize("cause", [Cause.USER, Cause.OUT_OF_MEMORY, Cause.NETWORK, Cause.INFRASTRUCTURE])
def test_what_is_not_the_nodes_doing_is_not_held_against_it(cause: Cause) -> None:
    case = Case(trainingjob())
    case.start()
    case.end(1, cause, 1, message="RuntimeError", rank=1)
    case.end(0, Cause.PEER, 70)
    case.settle()
    assert case.job.status.failure is not None
    assert (faults(case), shunned(case)) == ([], [])


def test_broken_hardware_is_shunned_at_once_unless_the_platform_says_ignore() -> None:
    case = Case(trainingjob())
    case.start()
    case.end(1, Cause.NODE, 70, message="CUDA error: uncorrectable ECC error")
    case.end(0, Cause.PEER, 70)
    ignored = reconcile(replace(case.situation(), bad_node_avoided=0.0)).status
    assert ignored is not None
    assert ignored.avoided == ()
    assert len(ignored.node_faults) == 1
    case.settle()
    assert (faults(case), shunned(case)) == ([("n1", "hardware", 1)], ["n1"])
    assert "ECC" in case.job.status.node_faults[0].message
    again(case, "n0", "n2")
    assert shunned(case) == [], "the gang trains: the job may have the node again"
    assert faults(case) == [("n1", "hardware", 1)], "the platform counts it on"


def test_a_rank_that_holds_up_the_others_twice_on_one_node_is_that_nodes_doing() -> None:
    case = Case(trainingjob())
    case.start("n0", "n1")
    for placement in (1, 2):
        case.end(1, Cause.HANG, 1, message="rank 1 hangs", rank=1, suspect=True, step=placement)
        case.end(0, Cause.PEER, 70)
        case.settle()
        assert shunned(case) == (["n1"] if placement == 2 else [])
        if placement == 1:
            again(case, "n0", "n1")
    assert faults(case) == [("n1", "hang", 1), ("n1", "hang", 2)]


def test_a_hang_in_which_nobody_stands_out_is_held_against_no_node() -> None:
    case = Case(trainingjob())
    case.start()
    case.end(0, Cause.HANG, 1, message="all 2 ranks hang", rank=0)
    case.end(1, Cause.PEER, 70)
    case.settle()
    assert faults(case) == []


def test_a_hang_that_the_launchers_answered_in_place_counts_once_in_a_placement() -> None:
    case = Case(trainingjob())
    case.start("n0", "n1")
    assert case.launcher is not None
    for restarts in (1, 2):
        first = Ended(1, 1, "hang", "rank 1 hangs", 1, crash=True, suspect=True)
        case.launcher = replace(case.launcher, incarnation=1 + restarts, restarts=restarts, restarted_by=first)
        case.settle()
    assert faults(case) == [("n1", "hang", 1)]
    assert case.job.status.restarts_in_place == 2


def test_a_lost_node_is_told_when_its_worker_alone_is_replaced() -> None:
    case = Case(trainingjob())
    case.start("n0", "n1")
    case.lost_nodes = frozenset({"n1"})
    case.settle()
    assert case.job.status.placement is not None
    assert case.job.status.placement.replaced == (1,)
    assert faults(case) == [("n1", "lost", 1)]


def test_a_job_remembers_the_newest_faults() -> None:
    case = Case(trainingjob())
    case.start()
    old = [NodeFault(node=f"x{number}", cause="lost", at=case.now, placement=number) for number in range(32)]
    status = case.job.status.model_copy(update={"node_faults": tuple(old)})
    case.job = case.job.model_copy(update={"status": status})
    case.end(1, Cause.NODE, 70)
    case.end(0, Cause.PEER, 70)
    case.settle()
    assert len(faults(case)) == 32
    assert faults(case)[-1] == ("n1", "hardware", 1)
