"""What `muster status` shows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from rich.console import Console

from muster.api.trainingjob import TrainingJob
from muster.cli import look as commands
from muster.cli.look import page, render
from muster.cli.printing import print_page
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.views import PodView
from muster.controllers.progress import progressed
from muster.telling.leading import Unled
from muster.telling.scene import Scene
from muster.telling.wording import one_line
from muster_protocol.exits import Cause, ExitFacts, encode
from muster_protocol.launcher_status import Kept, MemoryTier, Saving, Status
from muster_protocol.launcher_status import Phase as LauncherPhase

from .loops import compressed

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def job(**status: Any) -> TrainingJob:
    return TrainingJob.from_raw(
        {
            "metadata": {"name": "train", "namespace": "research", "uid": "u"},
            "spec": {
                "image": "i",
                "command": ["c"],
                "workers": {"replicas": 2},
                "queue": "vision",
                "checkpoint": {"uri": "s3://models/train"},
            },
            "status": status,
        }
    )


def elastic(**status: Any) -> TrainingJob:
    """One that asks for 8 workers and may have fewer."""
    raw = job(**status).to_raw()
    raw["spec"]["workers"] = {"replicas": 8, "min": 2}
    return TrainingJob.from_raw(raw)


def pod(index: int, *, ready: bool = True, **status: Any) -> PodView:
    return PodView.from_raw(
        {
            "metadata": {
                "name": f"train-g1-{index}-0",
                "labels": {"muster.dev/index": str(index), "muster.dev/generation": "1", "muster.dev/attempt": "0"},
            },
            "spec": {"nodeName": f"node-{index}", "containers": []},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                **status,
            },
        }
    )


def shown(scene: Scene) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(scene))
    return console.export_text()


def test_a_waiting_job_says_what_it_waits_for() -> None:
    waiting = job(phase="Queued", queue={"position": 3, "reason": "QuotaExceeded", "message": "8 GPUs are missing"})
    text = shown(Scene(waiting, (), (), NOW))
    assert "research/train" in text
    rows = [line.strip("│ \n") for line in text.splitlines()]
    assert "Queue  vision, position 3" in rows
    assert "Why    QuotaExceeded: 8 GPUs are missing" in rows
    assert one_line(waiting) == "research/train, Queued, QuotaExceeded: 8 GPUs are missing"


def test_a_running_job_shows_progress_checkpoint_workers_and_events() -> None:
    running = job(
        phase="Running",
        progress={
            "step": 50,
            "totalSteps": 200,
            "loss": "1.25",
            "stepsPerSecond": "3.1",
            "eta": "2026-01-02T03:05:05Z",
        },
        checkpoint={"step": 40, "uri": "s3://b/p", "committedAt": "2026-01-02T03:03:35Z"},
        restarts=1,
    )
    event = {
        "reason": "Started",
        "message": "the ranks train",
        "type": "Normal",
        "lastTimestamp": "2026-01-02T03:04:00Z",
    }
    text = shown(Scene(running, (pod(0), pod(1, ready=False)), (event,), NOW))
    for expected in ("step 50 of 200", "loss 1.25", "steps/s 3.1", "1m left", "step 40, 30s ago", "s3://b/p"):
        assert expected in text
    assert "node-1" in text
    assert "Running, not ready" in text
    assert "5s ago" in text
    assert "the ranks train" in text


def test_the_rest_of_a_run_is_never_told_beyond_its_max_runtime() -> None:
    raw = job(
        phase="Running",
        runningSince="2026-01-02T03:03:55Z",
        progress={"step": 50, "totalSteps": 200, "eta": "2026-01-02T03:21:46Z", "updatedAt": "2026-01-02T03:04:01Z"},
    ).to_raw()
    assert "17m41s left" in shown(Scene(TrainingJob.from_raw(raw), (), (), NOW))
    raw["spec"]["maxRuntime"] = "40s"
    limited = shown(Scene(TrainingJob.from_raw(raw), (), (), NOW))
    assert "at most 30s left (maxRuntime)" in limited
    assert "17m41s" not in limited
    raw["spec"]["maxRuntime"] = "1h"
    assert "17m41s left" in shown(Scene(TrainingJob.from_raw(raw), (), (), NOW))


def ended(code: int, phase: str = "Failed", facts: ExitFacts | None = None) -> PodView:
    state = {"exitCode": code, "message": encode(facts) if facts is not None else ""}
    return pod(0, ready=False, phase=phase, containerStatuses=[{"name": "trainer", "state": {"terminated": state}}])


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (ended(1, facts=ExitFacts(Cause.USER, 1, "", rank=0, rank_exit_code=3)), "Failed, exit code 3 of a rank"),
        (ended(1, facts=ExitFacts(Cause.USER, 1, "", rank=0, rank_exit_code=-11)), "Failed, exit code -11 of a rank"),
        (ended(70, facts=ExitFacts(Cause.PEER, 70, "", rank=0, rank_exit_code=1)), "Failed, exit code 70 (peer)"),
        (ended(75, "Running", ExitFacts(Cause.MAX_RUNTIME, 75, "")), "Ending, exit code 75 (max-runtime)"),
        (ended(137), "Failed, exit code 137"),
    ],
)
def test_the_state_of_a_worker_that_has_ended_says_by_what(pod: PodView, state: str) -> None:
    assert f"  {state} " in shown(Scene(job(phase="Failed"), (pod,), (), NOW))


def test_a_pod_that_cannot_start_says_why() -> None:
    waiting = {"name": "trainer", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    text = shown(
        Scene(job(phase="Starting"), (pod(0, ready=False, phase="Pending", containerStatuses=[waiting]),), (), NOW)
    )
    assert "ImagePullBackOff no such image" in text


def test_what_all_containers_of_a_pod_wait_for_is_said_once() -> None:
    both = [{"name": name, "state": {"waiting": {"reason": "PodInitializing"}}} for name in ("trainer", "sidecar")]
    starting = pod(0, ready=False, phase="Pending", containerStatuses=both)
    assert shown(Scene(job(phase="Starting"), (starting,), (), NOW)).count("PodInitializing") == 1


def test_the_nodes_of_spares_are_told() -> None:
    placement = {
        "generation": 1,
        "workers": 1,
        "nodes": [{"node": "a", "indexes": "0"}],
        "spares": [{"node": "b", "indexes": "1"}, {"node": "c", "indexes": "2"}],
    }
    told = shown(Scene(job(phase="Running", placement=placement), (), (), NOW))
    assert "room for 2 more workers is kept on b, c" in told


def test_of_a_large_gang_those_with_trouble_come_first_and_the_rest_is_counted() -> None:
    pods = tuple(pod(index, ready=index != 77) for index in range(100))
    text = shown(Scene(job(phase="Running"), pods, (), NOW))
    assert "train-g1-77-0" in text
    assert "and 80 more" in text
    assert "80 Running" in text
    assert len(text.splitlines()) < 40


def test_a_failed_job_shows_its_failure() -> None:
    failed = job(
        phase="Failed",
        failure={"message": "rank 3: ValueError", "cause": "user", "traceback": "Traceback…", "index": 1},
    )
    text = shown(Scene(failed, (), (), NOW))
    assert "rank 3: ValueError" in text
    assert "Traceback…" in text


def test_a_drain_is_no_failure() -> None:
    drained = job(phase="Restarting", failure={"message": "pod a was evicted from node n", "cause": "disrupted"})
    text = shown(Scene(drained, (), (), NOW))
    assert "Last interruption  pod a was evicted from node n" in text
    assert "failure" not in text


def test_the_cause_of_a_failure_is_told_once() -> None:
    cause = "the bucket s3://nope does not exist; make it"
    told = f"worker 0 on node-1: {cause}"
    failed = job(
        phase="Failed",
        queue={"reason": "StorageError", "message": told},
        failure={"message": cause, "cause": "storage", "traceback": "Traceback…"},
    )
    event = {"reason": "Failed", "message": told, "type": "Warning", "lastTimestamp": "2026-01-02T03:04:00Z"}
    text = shown(Scene(failed, (), (event,), NOW))
    assert text.count(cause) == 1
    assert "Queue         vision" in text
    assert "Last failure  Traceback…" in text
    assert "5s ago  Failed  as above" in text
    silent = failed.status.model_copy(update={"failure": failed.status.failure.model_copy(update={"traceback": ""})})  # type: ignore[union-attr]
    assert "Last failure" not in shown(Scene(failed.model_copy(update={"status": silent}), (), (event,), NOW))


def test_a_job_that_no_operator_has_seen_says_so() -> None:
    assert "does the operator run?" in shown(Scene(job(), (), (), NOW))


def test_a_running_job_of_which_nothing_is_heard_says_that_its_numbers_are_old() -> None:
    progress = {"step": 35, "totalSteps": 100, "eta": "2026-01-02T04:11:05Z", "updatedAt": "2026-01-02T02:57:00Z"}
    since = {"progress": progress, "runningSince": "2026-01-02T02:00:00Z"}
    old = job(phase="Running", goodput={"until": "2026-01-02T02:57:05Z"}, **since)
    text = " ".join(shown(Scene(old, (), (), NOW)).replace("│", " ").split())
    assert "nothing was heard of its training for 7m, and what is told of it is as old: a long step, a hang" in text
    assert "left" not in text, "by numbers that are old"
    for fresh in (
        job(phase="Running", goodput={"until": "2026-01-02T03:03:00Z"}, **since),
        job(phase="Running", goodput={"until": "2026-01-02T02:57:05Z"}, **{**since, "runningSince": NOW.isoformat()}),
    ):
        assert "nothing was heard" not in shown(Scene(fresh, (), (), NOW)), "it trains, or has just begun"
    assert "1h7m left" in shown(Scene(job(phase="Running", goodput={"until": NOW.isoformat()}, **since), (), (), NOW))
    assert "nothing was heard" not in shown(Scene(job(phase="Succeeded", goodput=old.status.goodput), (), (), NOW))


def test_while_the_api_server_is_away_the_screen_says_that_it_is_old() -> None:
    assert "what is shown is old" in shown(Scene(job(phase="Running"), (), (), NOW, "no answer; what is shown is old"))


def test_numbers_are_told_as_people_read_them() -> None:
    running = job(phase="Running", restarts=1, progress={"step": 3, "loss": "3.1415926535897931"})
    assert one_line(running) == "research/train, Running, step 3, loss 3.14159, 1 restart"
    past = [{"at": "2026-01-02T03:00:00Z", "cause": cause} for cause in ("user", "network", "node")]
    old = {"at": "2026-01-01T03:00:00Z", "cause": "user"}
    text = shown(Scene(job(phase="Running", restarts=3, recentFailures=[old, *past]), (), (), NOW))
    told = (
        "3 with new pods; within 1d 1 failure of the script (at most 3 are answered by a restart), "
        "1 failure of the network (at most 10 are answered by a restart)"
    )
    assert told in " ".join(text.replace("│", " ").split())
    text = shown(Scene(job(phase="Running", restarts=1, restartsInPlace=2, recentFailures=past[:1] * 3), (), (), NOW))
    told = "1 with new pods, 2 in the pods that were there; within 1d 3 failures of the script (at most 3 are answered"
    assert told in " ".join(text.replace("│", " ").split())
    assert "Preempted" not in text
    text = shown(Scene(job(phase="Queued", preemptions=1, lostGpuSeconds=540), (), (), NOW))
    assert "Preempted  1 time, which cost up to 540 GPU-seconds, of lost work and restarts" in text
    assert "Restarts" not in text


def test_a_waiting_job_says_when_it_starts_and_what_would_help() -> None:
    place = {
        "position": 1,
        "reason": "TopologyUnsatisfied",
        "message": "no rack has room",
        "expectedStart": "2026-01-02T04:04:05Z",
        "basis": "progress",
        "almost": [{"domain": "rack-3", "placeable": 7, "lacking": 1}],
        "changes": ["7 workers instead of 8 would find room now", "level block instead of rack would find room now"],
    }
    text = shown(Scene(job(phase="Queued", queue=place), (), (), NOW))
    assert "in 1h, by the running jobs' own progress" in text
    assert "rack-3 has room for 7, 1 lacking" in text
    assert "level block instead of rack" in text


def test_a_guess_that_has_passed_is_not_told() -> None:
    place = {"reason": "BehindOthers", "message": "a job is ahead", "expectedStart": NOW.isoformat()}
    for basis in ("limits", "progress", "queue"):
        assert "Starts" not in shown(Scene(job(phase="Queued", queue={**place, "basis": basis}), (), (), NOW))
    promised = job(phase="Queued", queue={**place, "basis": "promised"})
    assert "now: room is being cleared for it" in shown(Scene(promised, (), (), NOW))


def test_a_lost_worker_that_is_made_anew_is_told_and_those_of_before_are_counted() -> None:
    placement = {"generation": 1, "workers": 2, "nodes": [{"node": "a", "indexes": "0-1"}]}
    replacing = {"indexes": "1", "since": "2026-01-02T03:03:53Z"}
    running = job(phase="Running", placement={**placement, "replacing": replacing}, replacements=2)
    text = shown(Scene(running, (), (), NOW))
    assert "worker 1, lost 12s ago and made anew; the others wait in their pods" in text
    text = shown(Scene(running, (pod(0),), (), NOW))
    assert "worker 1, lost 12s ago; there is no node to make it anew on yet; the others wait in their pods" in text
    text = shown(Scene(running, (pod(0), pod(1)), (), NOW))
    assert "worker 1, lost 12s ago and made anew; the others wait in their pods" in text
    assert "2 lost workers, while the others kept their pods" in text
    assert one_line(running) == "research/train, Running, no step yet, worker 1 is lost and made anew"
    assert one_line(job(phase="Running", placement=placement)) == "research/train, Running, no step yet"


@pytest.mark.parametrize(
    ("kept", "why", "told"),
    [
        (Kept.PEER, "", "Memory tier also in memory, with a copy in another worker's"),
        (
            Kept.PEER,
            "worker 1's memory is not copied to worker 0: timed out",
            "own memory, but a copy fails: worker 1's memory is not copied to worker 0: timed out",
        ),
        (Kept.LOCAL, "all its workers lie on one node", "also in each worker's own memory: all its workers lie on one"),
        (Kept.OFF, "memory doesn't suffice", "not kept in memory: memory doesn't suffice"),
    ],
)
def test_it_is_told_where_the_newest_checkpoint_stays_in_memory(kept: Kept, why: str, told: str) -> None:
    running = job(phase="Running")
    answer = Status(LauncherPhase.RUNNING, 1, 1, 0, memory_tier=MemoryTier(kept, why))
    status = progressed(running, answer, NOW)
    assert status is not None
    assert progressed(running.model_copy(update={"status": status}), answer, NOW) is None
    text = shown(Scene(running.model_copy(update={"status": status}), (), (), NOW))
    assert told in " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"skipped": 2}, "2 updates skipped; the last: here"),
        ({"rollbacks": 1}, "1 rollback; the last: here"),
        ({"skipped": 1, "rollbacks": 2}, "1 update skipped, 2 rollbacks; the last: here"),
    ],
)
def test_unsound_numbers_are_told(counts: dict[str, int], told: str) -> None:
    text = shown(Scene(job(phase="Running", numerics={**counts, "last": "here"}), (), (), NOW))
    assert f"Numerics {told}" in " ".join(text.replace("│", " ").split())


def test_the_newest_warnings_of_the_training_are_shown() -> None:
    warnings = [{"at": f"2026-01-02T0{hour}:04:05Z", "message": f"warning {hour}"} for hour in range(5)]
    text = " ".join(shown(Scene(job(phase="Running", warnings=warnings[:3]), (), (), NOW)).replace("│", " ").split())
    assert "warning 0" in text
    text = " ".join(shown(Scene(job(phase="Running", warnings=warnings), (), (), NOW)).replace("│", " ").split())
    assert "Warnings 2 earlier ones: muster explain" in text
    assert "warning 1" not in text
    assert "warning 4" in text
    events = [
        {"reason": "TrainingWarning", "message": message, "type": "Warning", "lastTimestamp": "2026-01-02T03:04:05Z"}
        for message in ("warning 1", "warning 4", "another")
    ]
    text = shown(Scene(job(phase="Running", warnings=warnings), (), tuple(events), NOW))
    told = [text.count(message) for message in ("warning 1", "warning 4", "another")]
    assert told == [0, 1, 1], "an Event says nothing that stands in the row of warnings, or that it has left out"


def test_it_is_told_how_often_checkpoints_are_taken() -> None:
    running, answer = job(phase="Running"), Status(LauncherPhase.RUNNING, 1, 1, 0)
    shows = []
    for saving in (Saving(0, 60.0), Saving(0, 720.4), Saving(0, 650.0), Saving(3, 590.0), Saving(0), Saving(2), None):
        status = progressed(running, replace(answer, saving=saving), NOW) or running.status
        running = running.model_copy(update={"status": status})
        rows = [line.strip("│ \n") for line in shown(Scene(running, (), (), NOW)).splitlines()]
        shows.append(next((row.removeprefix("Saves").strip() for row in rows if row.startswith("Saves")), ""))
    left_out = "left out while the one before was still being written"
    assert shows == [
        "every 1m (interval auto)",
        "every 12m (interval auto)",
        "every 12m (interval auto)",
        f"every 12m (interval auto); 3 {left_out}",
        "",
        f"2 {left_out}",
        f"2 {left_out}",
    ]


def test_the_size_of_an_elastic_gang_is_told_with_the_one_before() -> None:
    sizes = [
        {"workers": 8, "since": "2026-01-02T01:04:05Z", "reason": "Started"},
        {"workers": 7, "since": "2026-01-02T03:03:05Z", "reason": "WorkersLost"},
    ]
    placement = {"generation": 2, "workers": 7, "nodes": [{"node": "a", "indexes": "0-6"}]}
    placed = {"phase": "Running", "placement": placement}
    text = shown(Scene(elastic(**placed, sizes=sizes), (), (), NOW))
    assert "7/8 workers since 1m ago (WorkersLost); before 8 (Started)" in text
    grown = elastic(**placed, sizes=[{**sizes[0], "workers": 9, "reason": "Grown"}])
    told = "9/8 workers since 2h ago (Grown), more than it asks for, while nobody else needs them"
    assert told in shown(Scene(grown, (), (), NOW))
    assert "8 workers since 2h ago (Started)" in shown(Scene(elastic(**placed, sizes=sizes[:1]), (), (), NOW))
    suspended = shown(Scene(elastic(phase="Suspended", sizes=sizes), (), (), NOW))
    assert "Size" not in suspended, "it has no workers now"


def test_the_line_of_a_gang_that_has_not_the_size_it_asks_for_says_both() -> None:
    placement = {"generation": 2, "workers": 7, "nodes": [{"node": "a", "indexes": "0-6"}]}
    line = "research/train, Running, 7/8 workers, no step yet"
    assert one_line(elastic(phase="Running", placement=placement)) == line


FAILED = {
    "message": "rank 1 exited with code 1: ValueError: a bad shape",
    "cause": "user",
    "rank": 1,
    "step": 40,
    "at": "2026-01-02T03:00:05Z",
    "traceback": "Traceback…\n  a line",
}


@pytest.mark.parametrize(
    ("status", "past"),
    [
        ({"phase": "Running", "progress": {"step": 41, "updatedAt": "2026-01-02T03:02:00Z"}}, True),
        ({"phase": "Queued", "progress": {"step": 41, "updatedAt": "2026-01-02T03:02:00Z"}}, True),
        ({"phase": "Running", "progress": {"step": 40, "updatedAt": "2026-01-02T03:02:00Z"}}, False),
        ({"phase": "Restarting", "progress": {"step": 45, "updatedAt": "2026-01-02T02:59:00Z"}}, False),
        ({"phase": "Failed", "progress": {"step": 41, "updatedAt": "2026-01-02T03:02:00Z"}}, False),
        ({"phase": "Running", "runningSince": "2026-01-02T03:01:00Z"}, True),
        ({"phase": "Running", "runningSince": "2026-01-02T02:01:00Z"}, False),
    ],
)
def test_a_failure_is_whole_while_it_matters_and_a_line_once_it_is_survived(status: dict[str, Any], past: bool) -> None:
    text = shown(Scene(job(**status, failure=FAILED), (), (), NOW))
    told = (
        "Survived at step 40, 4m ago: rank 1 exited with code 1: ValueError: a bad shape; its traceback: "
        "muster explain train -n research"
    )
    assert (told in " ".join(text.replace("│", " ").split())) is past
    assert ("a line" in text) is not past
    assert ("Last failure" in text) is not past


def test_a_gang_that_runs_and_has_done_no_step_says_that_it_waits_for_the_first() -> None:
    since = {"phase": "Running", "runningSince": "2026-01-02T03:03:05Z"}
    assert "Progress  waiting for the first step for 1m: imports, the model" in shown(Scene(job(**since), (), (), NOW))
    begun = job(**since, progress={"step": 0, "totalSteps": 9, "updatedAt": "2026-01-02T03:03:55Z"})
    assert "waiting for the first step for 1m: imports, the model" in shown(Scene(begun, (), (), NOW))
    again = job(**since, progress={"step": 40, "updatedAt": "2026-01-02T03:00:00Z"})
    assert "waiting for the first step for 1m; step 40 was done before" in shown(Scene(again, (), (), NOW))
    anew = job(**since, failure={"message": "rank 1 exited with code 1", "at": "2026-01-02T03:03:48Z"})
    assert "waiting for the first step for 17s: imports, the model" in shown(Scene(anew, (), (), NOW))
    trains = job(**since, progress={"step": 41, "updatedAt": "2026-01-02T03:03:55Z"})
    assert "waiting for the first step" not in shown(Scene(trains, (), (), NOW))
    saved = {"step": 44, "uri": "s3://models/train"}
    waits = job(**since, progress={"step": 40, "updatedAt": "2026-01-02T03:00:00Z"}, checkpoint=saved)
    assert "waiting for the first step for 1m; step 44 was done before" in shown(Scene(waits, (), (), NOW))


def test_while_a_lost_worker_is_made_anew_and_up_to_the_next_step_nothing_is_told_of_the_old_pace() -> None:
    """The gang is asked for its first step until one is done after the new pod has joined."""
    placement = {"generation": 1, "workers": 2, "nodes": [{"node": "a", "indexes": "0-1"}]}
    replacing = {"indexes": "1", "since": "2026-01-02T03:03:53Z"}
    before: dict[str, Any] = {"step": 40, "totalSteps": 90, "stepsPerSecond": "2.1", "eta": "2026-01-02T03:09:05Z"}
    run: dict[str, Any] = {"phase": "Running", "runningSince": "2026-01-02T02:00:00Z"}
    old = {**before, "updatedAt": "2026-01-02T03:03:50Z"}
    text = shown(Scene(job(**run, placement={**placement, "replacing": replacing}, progress=old), (), (), NOW))
    assert "waiting for worker 1, lost 12s ago and made anew; step 40 was done before" in text
    joined = {"type": "PodsReady", "status": "True", "reason": "PodsReady", "observedGeneration": 1}
    run["conditions"] = [{**joined, "lastTransitionTime": "2026-01-02T03:04:00Z"}]
    again = shown(Scene(job(**run, placement=placement, progress=old), (), (), NOW))
    assert "waiting for the first step for 5s; step 40 was done before" in again
    for told in (text, again):
        assert "steps/s" not in told
        assert "left" not in told
    trains = job(**run, placement=placement, progress={**before, "updatedAt": "2026-01-02T03:04:02Z"})
    assert "steps/s 2.1   5m left" in shown(Scene(trains, (), (), NOW))


def test_of_a_gang_that_stands_still_no_pace_is_told() -> None:
    placement = {"generation": 1, "workers": 2, "nodes": [{"node": "a", "indexes": "0-1"}]}
    done: dict[str, Any] = {"step": 40, "totalSteps": 90, "stepsPerSecond": "2.1", "eta": "2026-01-02T03:09:05Z"}
    done |= {"updatedAt": "2026-01-02T03:01:05Z", "standsStill": True}
    run = {"phase": "Running", "runningSince": "2026-01-02T02:00:00Z", "placement": placement}
    text = shown(Scene(job(**run, progress=done), (), (), NOW))
    assert "no step was done for 3m: an evaluation" in text
    assert "muster stacks" in text
    assert "steps/s" not in text
    assert " left" not in text


def test_without_a_terminal_no_line_is_cut_wrapped_or_framed(capsys: pytest.CaptureFixture[str]) -> None:
    told = "no room: " + "word " * 60 + "end"
    waiting = job(phase="Queued", queue={"reason": "InsufficientCapacity", "message": told})
    print_page(Console(markup=False, width=60), page(Scene(waiting, (pod(0),), (), NOW)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "research/train"
    assert any(line.endswith(told) for line in lines)
    assert not any(line.endswith(" ") or "│" in line for line in lines)


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_script_said_commands_no_terminal(capsys: pytest.CaptureFixture[str], *, terminal: bool) -> None:
    failed = job(phase="Failed", failure={"message": "\x1b[2J\x1b]0;x\x07\x9b2Jgone\r", "cause": "user"})
    scene = Scene(failed, (), (), NOW)
    print_page(Console(markup=False, width=80, force_terminal=terminal, color_system=None), render(scene))
    told = capsys.readouterr().out
    assert "[2J]0;x2Jgone" in told
    assert all(character.isprintable() for character in told.replace("\n", ""))


def test_a_job_that_saves_nothing_is_told_so_while_it_runs() -> None:
    placed = {"generation": 1, "workers": 1, "gpusPerWorker": 8, "nodes": [{"node": "a", "indexes": "0"}]}
    told = "it names no checkpoint.uri: what stops it loses all of its work"
    for phase, placement in (("Running", placed), ("Queued", None)):
        saves = job(phase=phase, placement=placement)
        bare = saves.model_copy(update={"spec": saves.spec.model_copy(update={"checkpoint": None})})
        assert told not in shown(Scene(saves, (), (), NOW))
        assert (told in shown(Scene(bare, (), (), NOW))) is (phase == "Running")


def test_pods_of_a_long_name_can_be_told_apart_on_a_narrow_terminal() -> None:
    name = "a" * 60
    pods = tuple(replace(pod(index), name=f"{name}-g1-{index}-0") for index in range(2))
    console = Console(width=60, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(Scene(job(phase="Running"), pods, (), NOW)))
    text = console.export_text()
    assert "…" not in text
    assert all(f"g1-{index}-0"[-4:] in text for index in range(2))


@pytest.mark.parametrize("shape", [render, page])
def test_a_path_that_is_longer_than_the_terminal_is_told_to_its_end(shape: Any) -> None:
    path = f"/opt/{'deep/' * 20}serialization.py"
    failure = {"message": "it failed", "cause": "user", "traceback": f'File "{path}", line 7'}
    failed = job(phase="Failed", failure=failure)
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(shape(Scene(failed, (), (), NOW)))
    text = console.export_text()
    assert "…" not in text
    assert "serialization.py" in "".join(text.split())


def test_a_worker_that_has_ended_while_others_run_is_told_and_one_of_a_gang_that_ends_is_not() -> None:
    placed = {"generation": 1, "workers": 3, "nodes": [{"node": "a", "indexes": "0-2"}]}
    runs = job(phase="Running", placement=placed, runningSince="2026-01-02T02:04:05Z")
    told = "worker 1 has ended with exit code 0 already: whoever waits for it waits in vain"
    assert told in shown(Scene(runs, (pod(0), pod(1, phase="Succeeded"), pod(2)), (), NOW))
    many = (pod(0), pod(1, phase="Succeeded"), pod(2, phase="Succeeded"))
    assert "workers 1-2 have ended with exit code 0 already: whoever waits for them" in shown(
        Scene(runs, many, (), NOW)
    )
    for pods in ((pod(0), pod(1), pod(2)), tuple(pod(index, phase="Succeeded") for index in range(3))):
        assert "already" not in shown(Scene(runs, pods, (), NOW))
    earlier = job(phase="Running", placement={**placed, "generation": 2})
    assert "already" not in shown(Scene(earlier, many, (), NOW)), "they are of the placement before"


def test_what_a_job_has_used_is_told_up_to_now() -> None:
    usage = {"gpuSeconds": 1369, "cost": "2.3406"}
    ended = Scene(job(phase="Succeeded", usage=usage), (), (), NOW)
    assert "0.38 GPU hours, 2.34 at the platform's prices" in shown(ended)
    euros = Scene(job(phase="Succeeded", usage={**usage, "currency": "EUR"}), (), (), NOW)
    assert "0.38 GPU hours, 2.34 EUR" in shown(euros)
    placed = {
        "generation": 2,
        "workers": 2,
        "gpusPerWorker": 8,
        "placedAt": "2026-01-02T02:04:05Z",
        "nodes": [{"node": "a", "indexes": "0-1"}],
    }
    runs = Scene(job(phase="Running", usage=usage, placement=placed), (), (), NOW)
    assert "16.38 GPU hours, 2.34 at the platform's prices until the present placement" in shown(runs)
    rated = Scene(
        job(phase="Running", usage={**usage, "currency": "EUR", "hourly": "40"}, placement=placed), (), (), NOW
    )
    assert "16.38 GPU hours, 42.34 EUR" in shown(rated)
    assert "until the present placement" not in shown(rated)
    first = Scene(job(phase="Running", placement=placed), (), (), NOW)
    assert "16.00 GPU hours" in shown(first)
    assert "prices" not in shown(first)
    assert "Used" not in shown(Scene(job(phase="Queued"), (), (), NOW))


@pytest.mark.parametrize(
    ("workers", "flavour", "hours"),
    [
        ({"gpusPerWorker": 1, "gpuType": "A100-MIG-3g.20gb"}, "A100-MIG-3g.20gb/on-demand", "0.86"),
        ({"resources": {"limits": {"nvidia.com/mig-3g.20gb": 1}}}, "", "0.86"),
    ],
)
def test_what_a_job_uses_now_counts_slices_as_parts_of_a_gpu(workers: dict[str, Any], flavour: str, hours: str) -> None:
    """As what it has used does, once the placement has ended."""
    placed = {"generation": 1, "workers": 2, "placedAt": "2026-01-02T02:04:05Z", "flavour": flavour}
    raw = job(phase="Running", placement={**placed, "nodes": [{"node": "a", "indexes": "0-1"}]}).to_raw()
    raw["spec"]["workers"] |= workers
    told = shown(Scene(TrainingJob.from_raw(raw), (), (), NOW))
    assert f"{hours} GPU hours" in told


def test_a_gang_below_its_wish_says_why_it_is_not_larger_and_when_it_may_be() -> None:
    placement = {"generation": 2, "workers": 6, "nodes": [{"node": "a", "indexes": "0-5"}]}
    growth = {"reason": "Settling", "message": "there is room", "workers": 8, "notBefore": "2026-01-02T03:08:05Z"}
    running = elastic(phase="Running", placement=placement, growth=growth)
    told = "Not larger  6/8 workers: Settling: there is room; it grows in 4m at the soonest"
    assert told in shown(Scene(running, (), (), NOW))
    old = {**growth, "notBefore": "2026-01-02T03:00:05Z"}
    assert "soonest" not in shown(Scene(elastic(phase="Running", placement=placement, growth=old), (), (), NOW))
    fixed = {"workers": 6, "message": "the loader has state of its own"}
    kept = shown(Scene(elastic(phase="Running", placement=placement, growth=growth, fixedSize=fixed), (), (), NOW))
    assert "6/8 workers: the training can't go on with another number: the loader has state of its own" in kept


def test_the_workers_of_a_job_with_kinds_of_capacity_say_theirs_and_who_is_of_the_base() -> None:
    def rows(**placement: Any) -> list[list[str]]:
        nodes = [{"node": "a", "indexes": "0-1"}]
        running = job(phase="Running", placement={"generation": 1, "workers": 2, "nodes": nodes, **placement})
        lines = shown(Scene(running, (pod(0), pod(1)), (), NOW)).splitlines()
        first = next(number for number, line in enumerate(lines) if "WORKER" in line)
        return [line.strip("│ \n").split()[3:] for line in lines[first : first + 3]]

    assert rows() == [["STATE"], ["Running"], ["Running"]]
    assert rows(capacity="spot") == [["CAPACITY", "STATE"], ["spot", "Running"], ["spot", "Running"]]
    assert rows(capacity="on-demand", base=1, beyond="spot") == [
        ["CAPACITY", "STATE"],
        ["on-demand", "(base)", "Running"],
        ["spot", "Running"],
    ]


def test_a_pod_of_an_older_placement_claims_no_kind_of_capacity() -> None:
    nodes = [{"node": "a", "indexes": "0-1"}]
    running = job(phase="Running", placement={"generation": 2, "workers": 2, "nodes": nodes, "capacity": "spot"})
    assert "CAPACITY" in shown(Scene(running, (pod(0),), (), NOW))
    assert "spot" not in shown(Scene(running, (pod(0),), (), NOW))


@pytest.mark.parametrize(("each", "looks"), [(0.01, 59), (2.0, 6)])
def test_who_watches_a_gang_that_takes_long_to_read_reads_it_less_often(
    each: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a minute: a screen that stays open must not keep the API server busy with one job's pods."""
    scene, asked = Scene(job(phase="Running"), (), (), NOW), 0

    async def read(*_: object) -> Scene:
        nonlocal asked
        asked += 1
        await asyncio.sleep(each)
        return scene

    async def story() -> None:
        ends = asyncio.get_running_loop().time() + 60.0
        async for _ in commands._scenes(None, scene):  # type: ignore[arg-type]
            if asyncio.get_running_loop().time() >= ends:
                return

    monkeypatch.setattr(commands, "look", read)
    compressed(story())
    assert looks - 1 <= asked <= looks + 1


async def test_who_watches_waits_for_an_api_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it starts it answers 500, and a balancer before it 503."""
    over = Scene(job(phase="Succeeded"), (), (), NOW)
    answers: list[Exception | Scene] = [ApiUnreachable("refused"), ApiError(503, "ServiceUnavailable", "starts"), over]

    async def read(*_: object) -> Scene:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(commands, "look", read)
    monkeypatch.setattr(commands, "REFRESH_SECONDS", 0.0)
    scene = Scene(job(phase="Running"), (), (), NOW)
    told = [fresh.trouble async for fresh in commands._scenes(None, scene)]  # type: ignore[arg-type]
    said = "what is shown is old"
    assert told == ["", f"refused; {said}", f"503 ServiceUnavailable: starts; {said}", ""]


UNLED = Unled(datetime(2026, 1, 2, 3, 1, 5, tzinfo=timezone.utc), "muster-system", "muster-operator")


def test_without_an_operator_no_time_is_counted_down() -> None:
    progress = {"step": 50, "totalSteps": 200, "eta": "2026-01-02T03:05:05Z"}
    scene = Scene(job(phase="Running", progress=progress), (), (), NOW)
    assert "1m left" in shown(scene)
    text = " ".join(shown(replace(scene, unled=UNLED)).replace("│", " ").split())
    assert "left" not in text
    assert "no operator leads since 2026-01-02 03:01:05 UTC (3m ago): what is told here is of then" in text
    assert "kubectl get pods -n muster-system and kubectl get lease muster-operator -n muster-system" in text
    expected = {"reason": "QuotaExceeded", "message": "full", "expectedStart": "2026-01-02T03:05:05Z"}
    queued = Scene(job(phase="Queued", queue=expected), (), (), NOW)
    assert "in 1m" in shown(queued)
    assert "in 1m" not in shown(replace(queued, unled=UNLED))
