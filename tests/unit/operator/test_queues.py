"""TrainingQueues on their way to the planner, and what their status says."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from muster.api.common import find_condition
from muster.api.names import QueueConditionType, Reason
from muster.api.trainingqueue import FairShare, TrainingQueue, TrainingQueueStatus
from muster.cluster.queues import QueueInput, lineage
from muster.cluster.snapshot import JobInput, LevelInput, build
from muster.cluster.views import NodeView
from muster.controllers.accounts import Spent
from muster.controllers.books import Tally, queue_status
from muster.controllers.queues import (
    Ground,
    ceilings,
    fair_share,
    past_share,
    priority_remark,
    queue_input,
    queue_inputs,
    standings,
)
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import NONE, UNLIMITED, Preempts, Snapshot
from muster.telling.usage import nominals

pytestmark = pytest.mark.unit

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
REQUEST = {"nvidia.com/gpu": 8, "cpu": 1500, "pods": 1}


def trainingqueue(name: str = "q", **spec: Any) -> TrainingQueue:
    return TrainingQueue.from_raw({"metadata": {"name": name, "generation": 1}, "spec": spec})


def gpus(nominal: int) -> list[dict[str, Any]]:
    return [{"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": nominal}]}]


def node(name: str) -> NodeView:
    return NodeView.from_raw(
        {
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
            "status": {
                "allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def job(uid: str, queue: str, *placed: str, priority: int = 0) -> JobInput:
    return JobInput(
        uid=uid,
        queue=queue,
        workers=len(placed) or 1,
        request=REQUEST,
        flavour="H100/on-demand",
        priority=priority,
        placed=placed,
        holding=bool(placed),
    )


def snapshot(queues: list[TrainingQueue], *jobs: JobInput) -> Snapshot:
    return build(
        nodes=[node("a"), node("b")],
        pods=[],
        jobs=jobs,
        queues=queue_inputs(queues, NOW)[0],
        levels=[LevelInput("host", "kubernetes.io/hostname")],
    )


def status_of(queue: TrainingQueue, queues: list[TrainingQueue], *jobs: JobInput) -> TrainingQueueStatus:
    _, errors = queue_inputs(queues, NOW)
    standing = standings({each.metadata.name: each for each in queues}, errors, {})[queue.metadata.name]
    tally = Tally.of(snapshot(queues, *jobs), {each.queue: 1 for each in jobs if not each.placed})
    return queue_status(queue, tally, standing, NOW)


def test_a_queue_without_anybody_beside_it_is_told_that_its_limits_do_nothing() -> None:
    quotas = [{"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": 8, "borrowingLimit": "4"}]}]

    def message(**spec: Any) -> str:
        queue = trainingqueue(quotas=quotas, **spec)
        return standings({queue.metadata.name: queue}, {}, {})[queue.metadata.name].message

    assert message() == "takes jobs; its quotas' borrowingLimit does nothing without spec.parent or spec.cohort"
    assert message(cohort="all") == "takes jobs"


def test_a_queue_is_told_what_no_node_has_of_what_its_quotas_and_budgets_name() -> None:
    def message(*nodes: NodeView, **spec: Any) -> str:
        queue = trainingqueue(**spec)
        inputs = queue_inputs([queue], NOW)[0]
        ground = Ground.of(build(nodes=nodes, pods=[], jobs=[], queues=inputs, levels=[]), nodes)
        return standings({"q": queue}, {}, {}, ground)["q"].message

    def quota(gpu_type: str, resource: str = "nvidia.com/gpu") -> list[dict[str, Any]]:
        return [{"gpuType": gpu_type, "resources": [{"name": resource, "nominal": 2}]}]

    assert message(node("a"), quotas=quota("H1000")) == (
        "takes jobs; no node has GPUs of type 'H1000' now (did you mean 'H100'?)"
    )
    assert message(node("a"), quotas=quota("H100", "nvidia/gpu")) == (
        "takes jobs; no node has the resource 'nvidia/gpu' now (did you mean 'nvidia.com/gpu'?)"
    )
    assert message(node("a"), quotas=quota("A100")) == "takes jobs; no node has GPUs of type 'A100' now", "another GPU"
    assert message(node("a"), budgets=[{"gpuType": "B200", "gpuHours": 8}]) == (
        "takes jobs; no node has GPUs of type 'B200' now"
    )
    assert message(quotas=quota("H100", "cpu")) == "takes jobs; no node has GPUs of type 'H100' now"
    assert message(node("a"), quotas=quota("H100") + quota("H100-NVL")) == (
        "takes jobs; no node has GPUs of type 'H100-NVL' now (did you mean 'H100'?)"
    )
    for named in ("H100", "h100", "NVIDIA-H100-80GB-HBM3", ""):
        assert message(node("a"), quotas=quota(named)) == "takes jobs"


def test_a_queue_tells_its_gpus_in_use_beside_those_of_its_quotas() -> None:
    def quota(gpu_type: str, nominal: int) -> dict[str, Any]:
        return {"gpuType": gpu_type, "resources": [{"name": "nvidia.com/gpu", "nominal": nominal}]}

    team = trainingqueue("team", quotas=[quota("H100", 6), quota("A100", 8)], parent="root")
    named, rest = trainingqueue("root", quotas=[quota("H100", 2)]), trainingqueue("rest")
    queues = [named, team, rest]
    jobs = job("1", "team", "a"), job("2", "rest", "b")

    assert {each.metadata.name: status_of(each, queues, *jobs).gpus for each in queues} == {
        "root": "8/16",
        "team": "8/14",
        "rest": "8",
    }
    cpus = trainingqueue("team", quotas=[{"gpuType": "H100", "resources": [{"name": "cpu", "nominal": 8}]}])
    assert status_of(cpus, [cpus], job("1", "team", "a")).gpus == "8", "no quota of GPUs"


# -- to the planner --


def test_quota_lines_name_flavours_and_base_units() -> None:
    queue = trainingqueue(
        cohort="all",
        quotas=[
            {
                "gpuType": "NVIDIA-H100-80GB-HBM3",
                "resources": [
                    {"name": "nvidia.com/gpu", "nominal": 8, "borrowingLimit": "4"},
                    {"name": "cpu", "nominal": "1500m", "lendingLimit": "1"},
                ],
            },
            {"gpuType": "", "resources": [{"name": "memory", "nominal": "1Gi"}]},
        ],
    )
    found = queue_input(queue, NOW)
    assert found.cohort == "all"
    lines = {(line.flavour, line.resource): (line.nominal, line.borrowing, line.lending) for line in found.quotas}
    assert lines == {
        ("H100/on-demand", "nvidia.com/gpu"): (8, 4, None),
        ("H100/on-demand", "cpu"): (1500, None, 1000),
        ("", "memory"): (2**30, None, None),
    }


def test_a_quota_between_two_whole_gpus_is_the_lower_one() -> None:
    line = {"name": "nvidia.com/gpu", "nominal": "1.5", "borrowingLimit": "2.5", "lendingLimit": "500m"}
    queue = trainingqueue(quotas=[{"gpuType": "H100", "resources": [line]}])
    (found,) = queue_input(queue, NOW).quotas
    assert (found.nominal, found.borrowing, found.lending) == (1, 2, 0)
    jobs = [replace(job(uid, "q"), request={"nvidia.com/gpu": 1}) for uid in ("a", "b")]
    assert len(plan(snapshot([queue], *jobs)).admissions) == 1
    assert nominals([queue])["q"]["H100", "on-demand"] == {"nvidia.com/gpu": 1}, "as `muster queues` shows it"


def test_a_queue_that_says_nothing_gets_the_documented_defaults() -> None:
    for spec in ({}, {"preemption": {}}):
        found = queue_input(trainingqueue(**spec), NOW)
        assert found == QueueInput("q")
    assert (found.within, found.reclaim, found.borrower) == (Preempts.LOWER_PRIORITY, Preempts.ANY, Preempts.NEVER)


def test_policies_reach_the_planner() -> None:
    company = trainingqueue("company", maxPriority=500)
    team = trainingqueue(
        "team",
        parent="company",
        weight=3,
        maxPriority=1000,
        order="submitTime",
        preemption={"withinQueue": "never", "reclaim": "lowerPriority", "whenBorrowing": "lowerPriority"},
    )
    shot = snapshot([company, team], job("j", "team", priority=2000), job("k", "company", priority=7))
    row = shot.queues.names.index("team")
    assert shot.queues.parents[row] == shot.queues.names.index("company")
    assert shot.queues.weights[row] == 3
    assert (shot.queues.within[row], shot.queues.reclaim[row], shot.queues.borrower[row]) == (
        Preempts.NEVER,
        Preempts.LOWER_PRIORITY,
        Preempts.LOWER_PRIORITY,
    )
    assert shot.queues.shortest.tolist() == [name != "team" for name in shot.queues.names]
    assert shot.jobs.priorities.tolist() == [500, 7], "the limit of a queue above binds, too"


def test_a_job_above_its_queues_highest_priority_says_so() -> None:
    queues = [trainingqueue("company", maxPriority=500), trainingqueue("team", parent="company"), trainingqueue("z")]
    highest = ceilings(snapshot(queues))
    assert highest == {"company": 500, "team": 500}
    assert priority_remark(job("j", "team", priority=2000), highest) == (
        "; its priority 2000 counts as 500, the highest that TrainingQueue 'team' allows"
    )
    assert priority_remark(job("j", "team", priority=500), highest) == ""
    assert priority_remark(job("j", "z", priority=2000), highest) == ""


@pytest.mark.parametrize(("policy", "drains"), [("hold", False), ("holdAndDrain", True)])
def test_a_held_queue_takes_its_branch_with_it(policy: str, drains: bool) -> None:
    queues = [trainingqueue("company", stopPolicy=policy), trainingqueue("team", parent="company"), trainingqueue("z")]
    shot = snapshot(queues)
    assert shot.queues.open.tolist() == [False, False, True]
    assert shot.queues.drain.tolist() == [drains, drains, False]


def test_cohorts_are_roots_that_weigh_as_much_as_their_queues() -> None:
    shot = snapshot([trainingqueue("a", cohort="all", weight=2), trainingqueue("b", cohort="all"), trainingqueue("c")])
    assert shot.queues.names == ("a", "b", "c", "cohort all")
    assert shot.queues.parents.tolist() == [3, 3, NONE, NONE]
    assert shot.queues.weights.tolist() == [2, 1, 1, 3]
    assert (shot.queues.nominal[3] == UNLIMITED).all()


def test_a_queue_whose_quota_cannot_be_read_is_closed_and_says_so() -> None:
    broken = trainingqueue(quotas=[{"resources": [{"name": "cpu", "nominal": "1Q"}]}])
    inputs, errors = queue_inputs([broken], NOW)
    assert not inputs[0].open
    assert "takes no jobs" in errors["q"]
    (ready,) = status_of(broken, [broken]).conditions
    assert (ready.status, ready.reason) == ("False", "InvalidSpec")


@pytest.mark.parametrize(("nominal", "stopped"), [("8", []), ("1Q", []), ("4", ["b"])])
@pytest.mark.parametrize("above", [{"cohort": "team"}, {"parent": "root"}])
def test_nobody_is_stopped_while_it_is_not_known_what_a_queue_lends(
    above: dict[str, str], nominal: str, stopped: list[str]
) -> None:
    quotas = [{"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": nominal}]}]
    queues = [trainingqueue("borrower", quotas=gpus(8), **above), trainingqueue("lender", quotas=quotas, **above)]
    queues += [trainingqueue("root", quotas=gpus(0))]
    made = plan(snapshot(queues, job("a", "borrower", "a"), job("b", "borrower", "b")))
    assert [each.uid for each in made.evictions] == stopped


def test_nobody_is_stopped_for_what_was_borrowed_from_a_parent_that_is_missing() -> None:
    lost = trainingqueue("lost", parent="nowhere", quotas=gpus(8))
    assert not plan(snapshot([lost], job("a", "lost", "a"), job("b", "lost", "b"))).evictions


# -- who is above whom --


def test_parents_that_do_not_exist_or_lead_in_a_circle_make_roots() -> None:
    found = lineage({"a": "b", "b": "c", "c": "a", "leaf": "a", "lost": "nowhere", "self": "self", "root": ""})
    assert dict(found.parents) == {"leaf": "a"}
    assert sorted(found.faults) == ["a", "b", "c", "lost", "self"]
    assert "a -> b -> c -> a" in found.faults["b"]
    assert "'nowhere', does not exist" in found.faults["lost"]
    assert "self -> self" in found.faults["self"]


def test_a_wrong_parent_is_a_condition_and_the_queue_takes_no_jobs() -> None:
    lost = trainingqueue("lost", parent="nowhere", quotas=gpus(8))
    status = status_of(lost, [lost], job("j", "lost", "a"))
    parent = find_condition(status.conditions, QueueConditionType.PARENT_FOUND.value)
    assert parent is not None
    assert (parent.status, parent.reason) == ("False", Reason.PARENT_NOT_FOUND.value)
    assert parent.message == (
        "its parent, TrainingQueue 'nowhere', does not exist. Make it, or name another one in spec.parent"
    )
    ready = find_condition(status.conditions, QueueConditionType.READY.value)
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "ParentNotFound"), "`kubectl get -o wide` prints this one"
    assert ready.message == f"takes no jobs: {parent.message}"
    below = trainingqueue("below", parent="lost")
    ready = find_condition(status_of(below, [below, lost]).conditions, QueueConditionType.READY.value)
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "ParentNotFound")
    assert ready.message == f"TrainingQueue 'lost' above it takes no jobs: {parent.message}"
    held = trainingqueue("lost", parent="nowhere", stopPolicy="hold")
    (ready,) = (one for one in status_of(held, [held]).conditions if one.type == "Ready")
    assert (ready.status, ready.reason) == ("False", "Held")
    assert ready.message.endswith("starts until it is set to none; " + parent.message)
    found = status_of(lost.model_copy(update={"status": status}), [lost, trainingqueue("nowhere")])
    parent = find_condition(found.conditions, QueueConditionType.PARENT_FOUND.value)
    assert parent is not None
    assert (parent.status, parent.reason) == ("True", "ParentFound")


def test_queues_that_cant_have_their_parent_are_closed_with_all_below_them() -> None:
    """Nobody knows what the parent would hold them to: its quota and hold must not end with a typing error."""
    above = {"lost": "nowhere", "below": "lost", "one": "two", "two": "one", "three": "two", "root": "", "leaf": "root"}
    queues = [trainingqueue(name, **({"parent": parent} if parent else {})) for name, parent in above.items()]
    found = snapshot(queues).queues
    assert [name for name, open_ in zip(found.names, found.open, strict=True) if open_] == ["leaf", "root"]


def test_a_root_has_no_word_about_parents() -> None:
    lost = trainingqueue("lost", parent="nowhere")
    told = trainingqueue("lost").model_copy(update={"status": status_of(lost, [lost])})
    assert [condition.type for condition in status_of(told, [told]).conditions] == ["Ready"]


@pytest.mark.parametrize(("types", "flavour"), [(["H100", "H100-NVL"], "H100-NVL"), (["H100"], "H100")])
def test_a_quota_is_for_the_gpus_that_the_site_calls_so(types: list[str], flavour: str) -> None:
    resources = [{"name": "nvidia.com/gpu", "nominal": 8}]
    nvl = trainingqueue("q", quotas=[{"gpuType": "H100-NVL", "resources": resources}])
    (found,), _ = queue_inputs([nvl], NOW, types)
    assert [line.flavour for line in found.quotas] == [f"{flavour}/on-demand"]


def two_quotas(first: str, second: str) -> TrainingQueue:
    amounts = {first: 16, second: 8}
    lines = {name: [{"name": "nvidia.com/gpu", "nominal": amount}] for name, amount in amounts.items()}
    return trainingqueue("q", quotas=[{"gpuType": name, "resources": line} for name, line in lines.items()])


@pytest.mark.parametrize("types", [["H100", "H100-NVL"], ["H100"], []])
def test_a_quota_of_gpus_that_no_node_has_now_does_not_become_another_ones(types: list[str]) -> None:
    (found,), errors = queue_inputs([two_quotas("H100", "H100-NVL")], NOW, types)
    amounts = [(line.flavour, line.nominal) for line in found.quotas]
    assert amounts == [("H100/on-demand", 16), ("H100-NVL/on-demand", 8)]
    assert not errors


def test_two_quotas_of_the_same_gpus_are_one_of_both() -> None:
    products = two_quotas("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe")
    (found,), errors = queue_inputs([products], NOW, ["H100"])
    assert (found.open, errors) == (True, {})
    (line,) = found.quotas
    assert (line.flavour, line.nominal) == ("H100/on-demand", 24)


def test_quotas_of_gpus_that_no_node_has_now_stay_apart() -> None:
    (found,), errors = queue_inputs([two_quotas("H100-NVL", "H100-PCIE")], NOW, ["A100"])
    assert errors == {}
    assert [line.flavour for line in found.quotas] == ["H100-NVL/on-demand", "H100-PCIE/on-demand"]


def test_conditions_say_who_holds_the_queue() -> None:
    company, team = trainingqueue("company", stopPolicy="holdAndDrain"), trainingqueue("team", parent="company")
    (ready, _) = status_of(team, [company, team]).conditions
    assert (ready.status, ready.reason) == ("False", "Drained")
    assert ready.message == (
        "TrainingQueue 'company' above it: its stopPolicy is holdAndDrain: what runs and is preemptible saves and "
        "stops, nothing starts until it is set to none"
    )


@pytest.mark.parametrize("below", ["hold", "none", "holdAndDrain"])
def test_a_queue_that_is_held_below_one_that_is_drained_does_not_say_that_what_runs_goes_on(below: str) -> None:
    company = trainingqueue("company", stopPolicy="holdAndDrain")
    team = trainingqueue("team", parent="company", stopPolicy=below)
    (ready, _) = status_of(team, [company, team]).conditions
    assert (ready.status, ready.reason) == ("False", "Drained")
    assert "what runs and is preemptible saves and stops" in ready.message
    assert "what runs goes on" not in ready.message
    assert ready.message.startswith("its" if below == "holdAndDrain" else "TrainingQueue 'company' above it: its")
    assert ready.message.endswith("; its stopPolicy is hold, too") is (below == "hold")


@pytest.mark.parametrize("drains", [True, False])
def test_a_queue_that_is_held_says_where_its_budget_stops_what_runs(drains: bool) -> None:
    team = trainingqueue("team", stopPolicy="hold")
    told = standings({"team": team}, {}, {"team": Spent("queue team has used its 1 GPU hours", drains)})["team"]
    assert (told.ready, told.reason) == (False, Reason.HELD)
    assert told.message == (
        "its stopPolicy is hold: what runs and is preemptible saves and stops, nothing new starts until it is set to "
        "none; queue team has used its 1 GPU hours"
        if drains
        else "its stopPolicy is hold: what runs goes on, nothing new starts until it is set to none"
    )


# -- books --


def test_a_queue_shows_what_its_jobs_hold_and_borrow() -> None:
    queue = trainingqueue(quotas=gpus(8))
    jobs = (job("u", "q", "a", "b"), job("w", "q"))
    status = status_of(queue, [queue], *jobs)
    assert (status.running, status.waiting, status.used_gpus) == (1, 1, 16)
    (use,) = status.usage
    assert (use.gpu_type, use.capacity.value) == ("H100", "on-demand")
    assert {item.name: (item.used, item.borrowed) for item in use.resources} == {
        "nvidia.com/gpu": ("16", "8"),
        "cpu": ("3", None),
    }
    again = queue.model_copy(update={"status": status})
    assert status_of(again, [again], *jobs) == status, "nothing new is no reason to write"


def test_a_parent_shows_what_its_whole_branch_holds() -> None:
    queues = [trainingqueue("company", quotas=gpus(8)), trainingqueue("team", parent="company", quotas=gpus(4))]
    jobs = (job("u", "team", "a"), job("v", "company", "b"), job("w", "team"))
    status = status_of(queues[0], queues, *jobs)
    assert (status.running, status.waiting, status.used_gpus) == (2, 1, 16)
    (use,) = status.usage
    assert use.resources[-1].borrowed == "4", "16 in use, 8 + 4 nominal"


# -- shares --


def test_the_past_is_worked_out_from_the_last_change_of_the_share() -> None:
    queue = trainingqueue(usageHalfLife="1h")
    assert past_share(queue, NOW) == 0
    first = fair_share(queue, 0.5, NOW)
    assert (first.share, first.mean) == ("0.5000", "0.000000")
    queue = queue.model_copy(update={"status": TrainingQueueStatus(fair_share=first)})
    later = NOW + timedelta(hours=1)
    assert past_share(queue, later) == pytest.approx(0.25)
    assert fair_share(queue, 0.5, later) is first, "nothing to write while the share is the same"
    second = fair_share(queue, 0.0, later)
    assert second == FairShare(share="0.0000", mean="0.250000", at=later)
    queue = queue.model_copy(update={"status": TrainingQueueStatus(fair_share=second)})
    assert past_share(queue, later + timedelta(hours=1)) == pytest.approx(0.125)
    assert queue_input(queue, later + timedelta(hours=2)).share_used == pytest.approx(0.0625)


@pytest.mark.parametrize("share", [0.00004, 0.0001, 0.0099, 0.01, 0.5, 1.0])
def test_the_past_of_a_small_team_in_a_large_cluster_counts_too(share: float) -> None:
    queue = TrainingQueue.from_raw({"metadata": {"name": "q"}, "spec": {"usageHalfLife": "1h"}})
    queue = queue.model_copy(update={"status": TrainingQueueStatus(fair_share=fair_share(queue, share, NOW))})
    assert past_share(queue, NOW + timedelta(days=2)) == pytest.approx(share, rel=0.02)


def test_a_status_carries_the_share_of_the_cluster() -> None:
    queue = trainingqueue()
    share = status_of(queue, [queue], job("u", "q", "a")).fair_share
    assert share is not None
    assert (share.share, share.at) == ("0.5000", NOW)
