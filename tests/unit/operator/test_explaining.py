"""What `muster explain` shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from rich.console import Console

from muster.api.names import Phase
from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import TrainingQueue
from muster.cli import explaining
from muster.cli.explaining import answer, page
from muster.cli.printing import Output
from muster.cli.scene import queues_of
from muster.cluster.errors import ApiError
from muster.telling.explaining import LINES_SHOWN, sections
from muster.telling.leading import Unled
from muster.telling.outlook import advice, follows
from muster.telling.scene import Scene
from muster.telling.wording import waiting
from muster_protocol import storage_errors

from .doors import pod

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
BOOM = "rank 3 exited with code 1: ValueError: a bad shape"
SUSPENDED_IDLE: dict[str, Any] = {
    "type": "Suspended",
    "status": "True",
    "reason": "GPUsIdle",
    "observedGeneration": 1,
    "lastTransitionTime": NOW.isoformat(),
}
REFUSED = {"reason": "SchedulingRefused", "message": 'persistentvolumeclaim "data" not found; make it'}
PLACED = {"generation": 1, "workers": 2, "nodes": [{"node": "a", "indexes": "0-1"}]}


def job(spec: dict[str, Any] | None = None, **status: Any) -> TrainingJob:
    return TrainingJob.from_raw(
        {
            "metadata": {"name": "train", "namespace": "research", "uid": "u"},
            "spec": {"image": "i", "command": ["c"], "workers": {"replicas": 2}, "queue": "vision", **(spec or {})},
            "status": status,
        }
    )


def failure(minute: int, cause: str = "user", **more: Any) -> dict[str, Any]:
    return {"at": f"2026-01-02T02:{minute:02}:00Z", "cause": cause, "message": BOOM, **more}


def event(reason: str, message: str, minute: int) -> dict[str, Any]:
    return {"reason": reason, "message": message, "type": "Warning", "lastTimestamp": f"2026-01-02T02:{minute:02}:20Z"}


def shown(job: TrainingJob, *events: dict[str, Any]) -> list[str]:
    """The page's lines, without what is only there for the eye."""
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(page(Scene(job, (), events, NOW)))
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_a_failed_job_tells_who_failed_where_and_when_what_was_tried_and_what_to_do() -> None:
    failed = job(
        phase="Failed",
        finishedAt="2026-01-02T03:03:05Z",
        queue={"reason": "IdenticalFailures", "message": f"it failed twice alike; {BOOM}"},
        restarts=1,
        checkpoint={"step": 1180, "uri": "s3://models/train"},
        failure={
            **failure(50),
            "rank": 3,
            "index": 1,
            "node": "gpu-17",
            "exitCode": 1,
            "step": 1200,
            "alike": 2,
            "traceback": 'Traceback (most recent call last):\n  File "train.py", line 17\nValueError: a bad shape',
        },
        recentFailures=[failure(10, step=1200), failure(50, step=1200, index=1)],
    )
    lines = shown(failed)
    for expected in (
        "research/train: Failed, for 1m",
        f"IdenticalFailures: it failed twice alike; {BOOM}",
        "where rank 3, worker 1, node gpu-17, exit code 1",
        "when step 1200, 14m5s ago",
        "alike 2 failures in a row, up to this one, were one and the same",
        'File "train.py", line 17',
        "within 1d 2 failures of the script; at most 3 are answered by a restart (restart.limit)",
        "nothing: the job has ended; its checkpoints stay",
        "- read what it wrote: muster logs train -n research --rank 3",
    ):
        assert expected in lines
    assert any("it goes on from step 1180" in line for line in lines)


def test_a_job_whose_time_is_over_is_to_be_applied_again_with_more_of_it() -> None:
    """An edit of a job that has ended is refused."""
    over = {"reason": "MaxRuntimeExceeded", "message": "maxRuntime is over"}
    assert "- raise spec.maxRuntime in what you apply" in shown(job(phase="Failed", queue=over))


SPENT = {
    "training": 10800,
    "dataWait": 360,
    "checkpoint": 240,
    "starting": 600,
    "restoring": 60,
    "recomputing": 840,
    "queued": 1440,
    "hung": 60,
}


def test_time_in_which_it_was_suspended_is_named_since_it_counts_for_nothing() -> None:
    known = {"ratio": "0.750", "seconds": SPENT, "until": "2026-01-02T03:04:00Z"}
    raw = job(phase="Running", placement=PLACED, goodput=known, submittedAt="2026-01-01T22:34:00Z")
    told = "since it was submitted, without 30m in which it was suspended, was training"
    assert f"goodput 75.0% of the time {told}, 83.3% of the time with GPUs" in shown(raw)


def test_a_running_job_of_which_nothing_is_heard_is_not_said_to_end_when_it_was_thought_to() -> None:
    progress = {"step": 35, "totalSteps": 100, "eta": "2026-01-02T04:11:05Z"}
    lines = shown(job(phase="Running", placement=PLACED, progress=progress, goodput={"until": "2026-01-02T02:57:05Z"}))
    told = "nothing was heard of its training for 7m, and what is told of it is as old"
    assert f"{told}: a long step, a hang, or the operator or worker 0 does not answer" in lines
    assert "it trains on" in lines


def test_a_gang_that_is_heard_of_and_does_no_step_is_said_to_stand_still() -> None:
    def lines(updated: str = "2026-01-02T02:57:00Z", since: str = "2026-01-02T02:50:00Z", **more: Any) -> list[str]:
        eta = {"eta": "2026-01-02T03:09:05Z", "stepsPerSecond": "5.01"}
        progress = {"step": 29, "totalSteps": 300, "updatedAt": updated, **eta, **more}
        known = {"goodput": {"until": "2026-01-02T02:57:00Z"}, "progress": progress}
        return shown(job(phase="Running", placement=PLACED, runningSince=since, **known))

    still = lines(standsStill=True)
    assert any("no step was done for 7m5s: an evaluation, a save of the script" in line for line in still)
    assert "it trains on with its next step; ranks that turn out to hang (spec.hang) are started again" in still
    assert not any("nothing was heard" in line for line in still)
    assert any("nothing was heard" in line for line in lines())
    for begins in (lines(standsStill=True, since="2026-01-02T03:02:00Z"), lines()):
        assert not any("no step was done" in line for line in begins)


@pytest.mark.parametrize(("minutes", "heard"), [(6, True), (14, True), (16, False)])
def test_a_run_that_has_told_of_no_step_is_not_taken_for_silent_while_nobody_knows_what_it_does(
    minutes: int, heard: bool
) -> None:
    """For ten minutes, until it is known that its script has no session, nothing of its time is told."""
    since = (NOW - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    lines = shown(job(phase="Running", placement=PLACED, runningSince=since, goodput={"until": since}))
    assert any(f"waiting for the first step for {minutes}m" in line for line in lines)
    assert any("nothing was heard" in line for line in lines) is not heard


def test_an_account_that_is_not_of_now_says_so() -> None:
    """It is brought up to date once a minute: of a job of 56 s it may have the first 8."""
    known = {"ratio": "0.000", "seconds": {"starting": 8}, "until": "2026-01-02T03:03:17Z"}
    raw: dict[str, Any] = {"goodput": known, "submittedAt": "2026-01-02T03:03:09Z"}
    lines = shown(job(phase="Running", placement=PLACED, **raw))
    assert "goodput 0.0% of the time since it was submitted, as it was known 48s ago, was training" in lines
    fresh = {**known, "until": "2026-01-02T03:03:57Z"}
    assert not any("known" in line for line in shown(job(phase="Running", placement=PLACED, goodput=fresh)))
    ended = job(phase="Succeeded", finishedAt="2026-01-02T03:03:17Z", **raw)
    assert "goodput 0.0% of the time since it was submitted was training" in shown(ended)


def test_a_script_that_told_of_no_step_and_failed_is_not_said_to_have_only_started() -> None:
    """It may have no session, and have done what it was to do."""
    known = {"ratio": "0.000", "seconds": {"starting": 66}, "until": "2026-01-02T03:04:00Z"}
    failed = {"message": "rank 0 exited with code 1: KeyError", "cause": "user", "at": "2026-01-02T03:03:05Z"}
    untold = "1m6s 100.0% starting, or at work without a word of a step"
    lines = shown(job(phase="Failed", goodput=known, failure=failed))
    assert untold in lines
    assert "goodput unknown its script failed and had told of no step" in lines
    assert not any("goodput 0.0%" in line for line in lines)
    evicted = {**failed, "cause": "disrupted"}
    assert "1m6s 100.0% starting, up to the first step" in shown(job(phase="Failed", goodput=known, failure=evicted))
    begins = shown(job(phase="Running", placement=PLACED, goodput=known))
    assert "1m6s 100.0% starting, up to the first step" in begins
    stepped = job(phase="Failed", goodput=known, failure=failed, progress={"step": 3})
    assert "1m6s 100.0% starting, up to the first step" in shown(stepped)


def test_a_gang_that_went_back_to_its_former_size_says_why() -> None:
    why = "with 3 workers its script failed 2 times alike, and it had trained with 2: ValueError"
    fixed = {"workers": 2, "failed": 3, "message": why}
    told = f"it keeps 2 workers until its spec is edited: {why}"
    assert told in shown(job(phase="Restarting", fixedSize=fixed))
    own = {"workers": 2, "message": "a loader of another library"}
    assert not any("keeps 2 workers" in line for line in shown(job(phase="Running", placement=PLACED, fixedSize=own)))


def test_a_script_that_was_stopped_and_told_of_no_step_may_have_trained() -> None:
    known = {"ratio": "0.000", "seconds": {"starting": 66}, "until": "2026-01-02T03:03:17Z"}
    lines = shown(job(phase="Queued", placements=1, goodput=known, submittedAt="2026-01-02T03:02:11Z"))
    assert "goodput unknown it was stopped and had told of no step" in lines
    assert "1m6s 57.9% starting, or at work without a word of a step" in lines
    failed = {"message": "the bucket 'nowhere' does not exist", "cause": "storage", "at": "2026-01-02T03:03:05Z"}
    ended = shown(job(phase="Failed", placements=1, goodput=known, failure=failed))
    assert "goodput unknown it has ended and had told of no step" in ended
    never = shown(job(phase="Queued", submittedAt="2026-01-02T03:02:11Z"))
    assert not any("goodput" in line for line in never)


def test_a_job_that_queues_again_waits_since_it_was_stopped() -> None:
    stopped = {"type": "Admitted", "status": "False", "reason": "Queued", "lastTransitionTime": "2026-01-02T03:03:40Z"}
    raw: dict[str, Any] = {"phase": "Queued", "submittedAt": "2026-01-02T03:02:00Z", "conditions": [stopped]}
    assert shown(job(**raw, placements=1))[0] == "research/train: Queued, for 25s"
    assert shown(job(**raw))[0] == "research/train: Queued, for 2m5s"


def test_it_is_told_where_the_time_went() -> None:
    """As docs/goodput.md shows it."""
    known = {"ratio": "0.750", "seconds": SPENT, "until": "2026-01-02T03:04:00Z"}
    lines = shown(job(phase="Running", placement=PLACED, goodput=known))
    begin = lines.index("Where the time went")
    assert lines[begin + 1 : begin + 10] == [
        "goodput 75.0% of the time since it was submitted was training, 83.3% of the time with GPUs",
        "3h 75.0% training",
        "6m 2.5% waiting for data",
        "4m 1.7% standing still for saves",
        "10m 4.2% starting, up to the first step",
        "1m 0.4% looking for a checkpoint, restoring it",
        "14m 5.8% computing lost steps again",
        "24m 10.0% waiting in the queue, or for a back-off",
        "1m 0.4% hung",
    ]


def test_the_queue_counts_while_a_job_waits_again() -> None:
    known = {"ratio": "0.750", "seconds": SPENT, "until": "2026-01-02T02:04:05Z"}
    lines = shown(job(phase="Queued", submittedAt="2026-01-01T02:04:05Z", goodput=known))
    assert "1h24m 28.0% waiting in the queue, or for a back-off" in lines
    assert not any("goodput" in line for line in shown(job(phase="Queued", submittedAt="2026-01-01T02:04:05Z")))


def test_the_history_is_in_order_of_time_and_tells_nothing_twice() -> None:
    running = job(
        phase="Running",
        submittedAt="2026-01-02T02:00:00Z",
        startedAt="2026-01-02T02:02:00Z",
        runningSince="2026-01-02T02:31:00Z",
        placement={**PLACED, "placedAt": "2026-01-02T02:30:00Z"},
        preemptedAt=["2026-01-02T02:20:00Z"],
        recentFailures=[failure(10, inPlace=True)],
    )
    lines = shown(
        running,
        event("RestartedInPlace", f"{BOOM}; the gang's processes were started again", 10),
        event("Moved", "to another rack", 40),
    )
    history = [line.split(" ago ")[1] for line in lines if " ago " in line and line.startswith("2026")]
    assert history == [
        "Submitted",
        "Running for the first time: all workers have joined",
        f"Failure user: {BOOM}; answered in the pods that were there",
        "Preempted its room was given to another",
        "Placed as generation 1 on its nodes",
        "Running the present run: all workers have joined",
        "Moved to another rack",
    ]


def condition(kind: str, status: str, reason: str, second: int) -> dict[str, Any]:
    moment = f"2026-01-02T03:00:{second:02}Z"
    return {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": moment}


def what_happened(lines: list[str]) -> list[str]:
    return [line.split(" ago ")[1] for line in lines if " ago " in line and line.startswith("2026")]


def test_a_condition_that_another_line_tells_of_is_not_told_again() -> None:
    placed = {**PLACED, "placedAt": "2026-01-02T03:00:01Z"}
    conditions = [
        condition("Admitted", "True", "Admitted", 1),
        condition("PodsReady", "True", "PodsReady", 5),
        condition("Running", "True", "Training", 6),
    ]
    times = {"startedAt": "2026-01-02T03:00:06Z", "runningSince": "2026-01-02T03:00:06Z"}
    assert what_happened(shown(job(phase="Running", placement=placed, conditions=conditions, **times))) == [
        "Placed as generation 1 on its nodes",
        "Condition PodsReady is True: PodsReady",
        "Running for the first time: all workers have joined",
    ]
    waits = [condition("Admitted", "False", "Restarting", 10)]
    told = event("Restarting", "a pod was evicted; the gang starts again", 50)
    assert what_happened(shown(job(phase="Restarting", conditions=waits), told)) == [
        "Restarting a pod was evicted; the gang starts again",
        "Condition Admitted is False: its reason now is Restarting",
    ], "another restart, by their times"
    close = {**told, "lastTimestamp": "2026-01-02T03:00:11Z"}
    assert what_happened(shown(job(phase="Restarting", conditions=waits), close)) == [
        "Restarting a pod was evicted; the gang starts again",
    ]


def test_of_a_job_that_has_ended_one_line_tells_the_end_and_the_checkpoint_is_said_to_be_the_newest() -> None:
    conditions = [
        condition("Admitted", "False", "Finished", 9),
        condition("PodsReady", "False", "Completed", 1),  # it never came about, and has the end's reason since then
        condition("Running", "False", "Completed", 9),
        condition("CheckpointStorageReady", "True", "StorageReady", 3),
        condition("Succeeded", "True", "Completed", 9),
    ]
    saved = {"step": 200, "committedAt": "2026-01-02T03:00:08Z"}
    ended = {"phase": "Succeeded", "finishedAt": "2026-01-02T03:00:09Z", "conditions": conditions, "checkpoint": saved}
    assert what_happened(shown(job(**ended))) == [
        "Condition CheckpointStorageReady is True: StorageReady",
        "Checkpoint of step 200, the newest; those before are not listed",
        "Condition Succeeded is True: Completed",
    ]


def test_what_followed_unsound_numbers_is_told() -> None:
    last = "the loss of the step after step 8 is nan; back to step 4, and on without batch 8 of epoch 0"
    lines = shown(job(phase="Running", numerics={"skipped": 1, "rollbacks": 2, "last": last}))
    start = lines.index("Unsound numbers")
    assert lines[start + 1 : start + 4] == [
        "since submission 1 update skipped",
        "since submission 2 rollbacks",
        f"the last {last}",
    ]
    assert "Unsound numbers" not in shown(job(phase="Running"))


def test_what_the_training_warns_of_is_told_once_and_outlives_its_event() -> None:
    said = "step 7 can't be restored: a shard is missing; trying an older checkpoint"
    warned = job(phase="Running", warnings=[{"at": "2026-01-02T02:04:05Z", "message": said}])
    for lines in (shown(warned), shown(warned, event("TrainingWarning", said, 4))):
        start = lines.index("Warnings of the training (UTC)")
        assert lines[start + 1] == f"2026-01-02 02:04:05 1h ago {said}"
        assert sum(said in line for line in lines) == 1
    assert not any("Warnings" in line for line in shown(job(phase="Running")))


def test_a_long_history_shows_its_end() -> None:
    lines = shown(job(phase="Running", recentFailures=[failure(minute) for minute in range(59)]))
    assert f"… {59 - LINES_SHOWN} earlier" in lines
    assert sum(line.startswith("2026") for line in lines) == LINES_SHOWN


ASKED = {
    "type": "CapacityRequested",
    "status": "True",
    "reason": "Requested",
    "message": "",
    "lastTransitionTime": NOW.isoformat(),
}


def test_a_waiting_job_tells_when_it_starts_and_what_would_help_once() -> None:
    waits = {
        "position": 3,
        "reason": "TopologyUnsatisfied",
        "message": "no rack has room",
        "expectedStart": "2026-01-02T04:04:05Z",
        "basis": "progress",
        "changes": ["1 worker instead of 2 would find room now"],
    }
    lines = shown(job(phase="Queued", queue=waits))
    assert "place 3 in the order of queue vision" in lines
    assert "starts in 1h, by the running jobs' own progress" in lines
    assert sum("1 worker instead of 2" in line for line in lines) == 1


def test_a_job_that_waits_for_its_window_alone_is_not_said_to_wait_for_others() -> None:
    waits = {"reason": "WindowClosed", "message": "", "expectedStart": "2026-01-02T04:04:05Z", "basis": "queue"}
    advised = shown(job(phase="Queued", queue=waits))
    assert any("change or leave out spec.window: kubectl edit tj" in line for line in advised)
    assert not any("who holds the queue's quota" in line for line in advised)
    assert dict(waiting(Scene(job(phase="Queued", queue=waits), (), (), NOW)))["Starts"] == (
        "in 1h, when its window opens, if there is room then"
    )


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({"phase": "Queued"}, "it starts when it has quota and room"),
        (
            {"phase": "Queued", "queue": {"reason": "ExceedsCluster"}, "conditions": [ASKED]},
            "an autoscaler was asked for its nodes (no answer yet); it starts when they have joined",
        ),
        ({"phase": "Queued", "notBefore": "2026-01-02T03:05:05Z"}, "it starts in 1m when it has quota and room"),
        ({"phase": "Starting"}, "launchers of all workers have joined"),
        ({"phase": "Starting", "queue": REFUSED}, "the pods start once what stands under Why is mended"),
        (
            {"phase": "Queued", "queue": REFUSED, "notBefore": "2026-01-02T03:05:05Z"},
            "it is tried again in 1m; it starts once what stands under Why is mended",
        ),
        ({"phase": "Queued", "queue": REFUSED}, "it is tried again when it has quota and room"),
        ({"phase": "Running", "placement": PLACED}, "it trains on"),
        (
            {"phase": "Running", "placement": {**PLACED, "replacing": {"indexes": "1", "since": NOW.isoformat()}}},
            "worker 1 gets a new pod",
        ),
        (
            {"phase": "Preempting", "checkpoint": {"step": 5}},
            "queues again with its first submit time, to go on from step 5",
        ),
        (
            {"phase": "Restarting", "promise": {"workers": 2}},
            "are gone on the nodes that it had",
        ),
        ({"phase": "Suspended"}, "until spec.suspend is false"),
        ({"phase": "Queued", "queue": {"reason": "WindowClosed"}}, "when its window is open and it has quota and room"),
        ({"phase": "Suspended", "conditions": [SUSPENDED_IDLE]}, "until its spec changes"),
        (
            {"phase": "Preempting", "stop": {"reason": "GPUsIdle", "requestedAt": NOW.isoformat()}},
            "suspended until its spec changes",
        ),
        ({"phase": "Succeeded"}, "nothing: the job has ended"),
    ],
)
def test_every_phase_says_what_follows(status: dict[str, Any], told: str) -> None:
    assert told in follows(Scene(job(**status), (), (), NOW))


@pytest.mark.parametrize(
    ("phase", "where"),
    [("Starting", "in the cluster, or while it is suspended in the job"), ("Queued", "in the job or in the cluster")],
)
def test_who_is_kept_from_starting_is_told_to_mend_that(phase: str, where: str) -> None:
    told = [" ".join(line.split()) for line in advice(Scene(job(phase=phase, queue=REFUSED), (), (), NOW))]
    assert told[0] == f"mend what stands under Why, {where}: kubectl edit tj train -n research"
    assert any(line.startswith("suspend and resume it: muster suspend") for line in told) == (phase == "Starting")


def test_who_is_tried_again_later_is_told_how_to_have_it_tried_at_once() -> None:
    def told(moment: str) -> str:
        return " ".join(advice(Scene(job(phase="Queued", queue=REFUSED, notBefore=moment), (), (), NOW)))

    assert "once that is done, have it tried at once:  muster suspend train -n research" in told("2026-01-02T03:05:05Z")
    assert "at once" not in told("2026-01-02T03:03:05Z")


@pytest.mark.parametrize(
    ("phase", "where"),
    [("Starting", " while the job is suspended: kubectl edit tj train -n research"), ("Failed", " in what you apply")],
)
def test_who_names_a_bucket_that_there_is_not_is_not_sent_to_its_keys(phase: str, where: str) -> None:
    failed = {"type": "CheckpointStorageReady", "status": "False", "reason": "StorageError"}
    message = storage_errors.sentence(storage_errors.Kind.NO_SUCH_BUCKET, bucket="nope", endpoint="http://s3")
    conditions = [{**failed, "message": message, "lastTransitionTime": NOW.isoformat()}]
    spec = {"checkpoint": {"uri": "s3://nope/llama", "secretRef": {"name": "s3"}}}
    scene = Scene(job(spec, phase=phase, conditions=conditions), (), (), NOW)
    told = [" ".join(line.split()) for line in advice(scene)]
    assert f"make the bucket of s3://nope/llama ({message})" in told
    assert f"or correct spec.checkpoint.uri{where}" in told
    assert not any("edit secret" in line for line in told)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("Suspended", "the job is suspended until spec.suspend is false, to go on"),
        ("GPUsIdle", "the job is suspended until its spec changes, to go on"),
        ("Preempted", "and queues again with its first submit time, to go on"),
    ],
)
def test_what_becomes_of_a_gang_that_stops_depends_on_what_for(reason: str, told: str) -> None:
    stop = {"reason": reason, "message": "why", "requestedAt": NOW.isoformat()}
    checkpoint = {"step": 1400, "uri": "s3://models/llama"}
    scene = Scene(job(phase="Preempting", stop=stop, checkpoint=checkpoint, placement=PLACED), (), (), NOW)
    assert told in follows(scene)
    assert follows(scene).endswith("from step 1400, or from a later one that it has saved by then")


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_that_can_be_helped_says_how(phase: Phase) -> None:
    told = list(advice(Scene(job(phase=phase.value), (), (), NOW)))
    assert bool(told) is (phase is not Phase.SUCCEEDED)


@pytest.mark.parametrize(
    ("secret", "told"),
    [
        ({"secretRef": {"name": "s3"}}, ", or the keys and endpoint in its Secret:  kubectl edit secret s3 -n "),
        ({}, ", or the rights of the pods' service account"),
        ({"secretRef": {"name": "s3"}, "endpoint": "http://minio:9000"}, ", or the keys in its Secret:  kubectl edit "),
    ],
)
def test_a_gang_whose_storage_fails_says_what_failed_and_where_to_mend_it(secret: dict[str, Any], told: str) -> None:
    failed = {
        "type": "CheckpointStorageReady",
        "status": "False",
        "reason": "StorageError",
        "message": "403 AccessDenied",
        "lastTransitionTime": NOW.isoformat(),
    }
    checkpoint = {"checkpoint": {"uri": "s3://models/llama", **secret}}
    first, *more, again, _ = advice(Scene(job(checkpoint, phase="Starting", conditions=[failed]), (), (), NOW))
    assert first.startswith(f"mend the bucket of s3://models/llama (403 AccessDenied){told}")
    named = "or correct spec.checkpoint.endpoint (http://minio:9000):  kubectl edit tj train -n research"
    assert more == ([named] if "endpoint" in secret else [])
    ended = list(advice(Scene(job(checkpoint, phase="Failed", conditions=[failed]), (), (), NOW)))
    assert ended[0] == first
    assert ("or correct spec.checkpoint.endpoint (http://minio:9000) in what you apply" in ended) is (
        "endpoint" in secret
    )
    assert not any("new pods" in each for each in ended), "it has none any more"
    anew = "muster suspend train -n research  and then  muster resume train -n research"
    assert again == f"new keys and settings reach new pods alone:  {anew}"
    told = {"reason": "StorageError", "message": "403 AccessDenied"}
    scene = Scene(job(checkpoint, phase="Starting", conditions=[failed], queue=told), (), (), NOW)
    assert not any("403 AccessDenied" in each for each in advice(scene)), "it stands under Why"
    assert follows(scene).startswith(
        "the ranks start once the checkpoint's storage can be used; the launchers try that "
    )
    for tried, still in (("http://minio:9001", "endpoint" in secret), ("http://minio:9000/", False)):
        away = {**failed, "message": f"the S3 server at {tried} can't be reached for s3://models; check"}
        lines = list(advice(Scene(job(checkpoint, phase="Starting", conditions=[away]), (), (), NOW)))
        corrected = "its pods still try the endpoint that they were made with, not http://minio:9000"
        assert (corrected in lines) is still
    fine = job(checkpoint, phase="Starting", conditions=[{**failed, "status": "True", "reason": "StorageReady"}])
    assert not any("mend" in each for each in advice(Scene(fine, (), (), NOW)))


@pytest.mark.parametrize(
    ("limit", "eta", "told"),
    [
        ("1h", "2026-01-02T03:34:05Z", "it trains on; its maxRuntime ends it in 20m"),
        ("1h", None, "it trains on; its maxRuntime ends it in 20m"),
        ("2h", "2026-01-02T03:34:05Z", "it trains on; about 30m are left"),
        ("10s", "2026-01-02T03:34:05Z", "its maxRuntime has passed: it saves a checkpoint and is ended"),
    ],
)
def test_who_trains_is_told_what_its_maximum_runtime_leaves(limit: str, eta: str | None, told: str) -> None:
    """Half an hour since it ran again, and ten minutes before that."""
    runs = job(
        {"maxRuntime": limit},
        phase="Running",
        placement=PLACED,
        runningSince="2026-01-02T02:34:05Z",
        runtimeSeconds=600,
        progress={"step": 10, "eta": eta} if eta else {"step": 10},
    )
    assert follows(Scene(runs, (), (), NOW)) == told


@pytest.mark.parametrize(
    ("lost", "told"), [("1", "where that takes too long, the whole gang"), ("2", "with fewer workers")]
)
def test_a_gang_does_without_lost_workers_beyond_its_base_alone(lost: str, told: str) -> None:
    elastic = {"workers": {"replicas": 3, "min": 2}, "capacity": {"order": ["spot"], "base": "on-demand"}}
    placement = {
        "generation": 1,
        "workers": 3,
        "base": 2,
        "nodes": [{"node": "a", "indexes": "0-1"}, {"node": "s", "indexes": "2"}],
        "replacing": {"indexes": lost, "since": "2026-01-02T03:03:53Z"},
    }
    assert told in follows(Scene(job(elastic, phase="Running", placement=placement), (), (), NOW))


def trains(spec: dict[str, Any], eta: str = "2026-01-02T13:04:05Z", *queues: TrainingQueue) -> str:
    """What follows for a gang of 16 GPUs that was placed an hour ago."""
    runs = job(
        {"workers": {"replicas": 2, "gpusPerWorker": 8}, **spec},
        phase="Running",
        placement={**PLACED, "placedAt": "2026-01-02T02:04:05Z"},
        runningSince="2026-01-02T02:06:05Z",
        usage={"gpuSeconds": 16 * 3600},
        progress={"step": 10, "eta": eta},
    )
    return follows(Scene(runs, (), (), NOW, queues=queues))


NIGHT = {"start": "0 20 * * *", "duration": "10h"}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"window": NIGHT}, "; its window closes in 2h55m: it saves a checkpoint, stops, and goes on in the next one"),
        ({"window": {**NIGHT, "atEnd": "finish"}}, ""),
        ({"window": {**NIGHT, "duration": "23h"}}, ""),
        (
            {"budget": {"gpuHours": 80}},
            "; its budget of 80 GPU hours is used up in 3h: it saves a checkpoint, stops, and waits until "
            "budget.gpuHours is raised",
        ),
        ({"budget": {"gpuHours": 800}}, ""),
        (
            {"budget": {"gpuHours": 80, "cost": 1}},
            "; its budget of 80 GPU hours is used up in 3h: it saves a checkpoint, stops, and waits until "
            "budget.gpuHours is raised, unless its budget of 1 in money is used up before",
        ),
        ({"maxRuntime": "2h", "budget": {"gpuHours": 80}, "window": NIGHT}, "; its maxRuntime ends it in 1h2m"),
    ],
)
def test_who_trains_is_told_which_limit_ends_it_before_its_work_is_done(spec: dict[str, Any], told: str) -> None:
    rest = "" if "maxRuntime" in spec else "; about 10h are left"  # never more than its maxRuntime leaves
    assert trains(spec) == f"it trains on{rest}{told}"


def test_a_limit_that_has_come_is_told_as_that() -> None:
    past = {"start": "0 20 * * *", "duration": "7h"}
    closed = "the job's window has closed; it goes on when the next one opens, at 2026-01-02T20:00:00Z; it saves a "
    assert trains({"window": past}) == f"{closed}checkpoint and stops"
    spent = "its budget of 20 GPU hours is used up: it saves a checkpoint and stops"
    assert trains({"budget": {"gpuHours": 20}}) == spent


def queue(name: str, *budgets: dict[str, Any], until: str = "2026-01-02T03:04:05Z", **use: Any) -> TrainingQueue:
    uses = [{"gpuType": "H100", "gpuSeconds": 0, **use}]
    return TrainingQueue.from_raw(
        {
            "metadata": {"name": name},
            "spec": {"budgets": list(budgets)},
            "status": {"month": {"until": until, "uses": uses}},
        }
    )


def test_the_budget_of_a_queue_above_ends_a_run_where_it_drains() -> None:
    drains = {"gpuType": "H100", "gpuHours": 320, "atLimit": "drain"}
    company, team = queue("company", drains, gpus=64), queue("team", {"gpuHours": 1})
    told = (
        "it trains on; about 10h are left; the 320 GPU hours on H100 that TrainingQueue 'company' may use in 2026-01 "
        "are used up in 5h, at the present rate: it saves a checkpoint, stops, and waits for the next month"
    )
    eta = "2026-01-02T13:04:05Z"
    assert trains({}, eta, team, company) == told
    plain = "it trains on; about 10h are left"
    assert trains({}, eta, team) == plain, "it holds, and what runs goes on"
    assert trains({"preemptible": False}, eta, company) == plain, "a drain leaves it alone"
    assert trains({}, eta, queue("idle", drains)) == plain
    assert trains({}, "2026-01-02T07:04:05Z", company) == "it trains on; about 4h are left"
    money = queue("money", {"cost": 100, "atLimit": "drain"}, gpus=8, hourly="20", cost="60")
    assert "the 100 in money that TrainingQueue 'money' may use in 2026-01 are used up in 2h, at" in trains(
        {}, eta, money
    )
    slow = queue("slow", {"gpuHours": 10_000, "atLimit": "drain"}, gpus=8)
    assert trains({}, "2027-01-02T03:04:05Z", slow).endswith("about 365d are left"), "a new month opens before"
    spent = queue("spent", drains, gpus=8, gpuSeconds=320 * 3600)
    assert trains({}, eta, spent).startswith("the 320 GPU hours on H100 that TrainingQueue 'spent' may use in 2026-01 ")


class Queues:
    """An API server that has queues; what is no queue may not be read."""

    def __init__(self, **raws: Any) -> None:
        self.raws = raws

    async def get(self, path: str) -> dict[str, Any]:
        name = path.removeprefix("/apis/muster.dev/v1alpha1/trainingqueues/")
        if name not in self.raws:
            raise ApiError(403, "Forbidden", "no")
        return {"metadata": {"name": name}, "spec": self.raws[name]}


@pytest.mark.parametrize(
    ("raws", "found"),
    [
        ({"vision": {"parent": "company"}, "company": {}, "other": {}}, ["vision", "company"]),
        ({"vision": {"parent": "company"}}, ["vision"]),
        ({"vision": {"parent": "company"}, "company": {"parent": "vision"}}, ["vision", "company"]),
        ({"vision": {"parent": "company"}, "company": {"budgets": "of a newer Muster"}}, ["vision"]),
        ({}, []),
    ],
)
async def test_a_job_is_explained_with_those_of_its_queues_that_can_be_read(
    raws: dict[str, Any], found: list[str]
) -> None:
    read = await queues_of(Queues(**raws), job())  # type: ignore[arg-type]
    assert [one.metadata.name for one in read] == found


async def test_the_command_names_the_queue_to_release_to_who_waits_in_a_held_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = job(phase="Queued", queue={"reason": "QueueClosed", "message": "why"})

    @asynccontextmanager
    async def connected(*_: Any) -> AsyncIterator[Queues]:
        yield Queues(vision={"parent": "lab"}, lab={"stopPolicy": "hold"})

    async def look(*_: Any, **__: Any) -> Scene:
        return Scene(waits, (), (), NOW)

    monkeypatch.setattr(explaining, "connected", connected)
    monkeypatch.setattr(explaining, "look", look)
    assert await explaining.explain("train", "research", Output.TABLE, kubeconfig=None, context=None) == 0
    assert "as it stands under Why:  muster release lab\n" in capsys.readouterr().out


def test_one_whose_gpus_were_idle_is_shown_both_ways_on() -> None:
    mending, going_on, *_ = advice(Scene(job(phase="Suspended", conditions=[SUSPENDED_IDLE]), (), (), NOW))
    assert "kubectl edit tj" in mending
    assert going_on == "muster resume train -n research", "it suspends first where the spec does not say so"


def test_idle_gpus_of_a_gang_that_runs_are_told() -> None:
    idle = {
        **SUSPENDED_IDLE,
        "type": "GPUsIdle",
        "reason": "HardlyUsed",
        "message": "for 32m the GPUs were at work for 4 %",
    }
    lines = shown(job(phase="Running", placement=PLACED, conditions=[idle]))
    assert any("for 32m the GPUs were at work" in line for line in lines)


def test_a_straggler_is_named_and_what_nodes_did_is_in_the_history() -> None:
    slow: dict[str, Any] = {"type": "Straggling", "status": "True", "reason": "SlowRank", "observedGeneration": 1}
    slow |= {"lastTransitionTime": NOW.isoformat(), "message": "rank 5, worker 1 on node n1 is slow"}
    fault = {"node": "n1", "cause": "straggler", "at": NOW.isoformat(), "placement": 1, "message": "rank 5 is slow"}
    lines = shown(job(phase="Running", placement=PLACED, conditions=[slow], nodeFaults=[fault]))
    assert any("rank 5, worker 1 on node n1 is slow" in line for line in lines)
    assert any("n1: straggler: rank 5 is slow" in line for line in lines)
    slow["status"] = "False"
    lines = shown(job(phase="Running", placement=PLACED, conditions=[slow]))
    assert not any("worker 1 on node n1" in line for line in lines)


def test_what_a_node_did_is_told_once_and_hides_nothing_else() -> None:
    fault = {"node": "n1", "cause": "straggler", "at": "2026-01-02T02:50:20Z", "message": "rank 5 is slow"}
    bare = {**fault, "node": "n2", "cause": "lost", "message": ""}
    runs = job(phase="Running", placement=PLACED, nodeFaults=[fault, bare])
    lines = shown(runs, event("Straggler", "rank 5 is slow", 50), event("Saved", "step 7", 50))
    assert sum("rank 5 is slow" in line for line in lines) == 1
    assert any("Saved" in line for line in lines)


def test_a_limit_that_is_used_up_is_a_warning() -> None:
    used = job({"restart": {"limit": 1}}, phase="Running", placement=PLACED, recentFailures=[failure(1)])
    assert "restart.limit (1) is used up: the next such failure ends the job" in " ".join(shown(used))


def test_a_job_that_no_operator_has_seen_says_so() -> None:
    assert any("look whether one runs" in line for line in shown(job()))


def test_the_sizes_of_an_elastic_gang_are_told_over_time() -> None:
    sizes = [
        {"workers": 8, "since": "2026-01-02T01:04:05Z", "reason": "Started"},
        {"workers": 7, "since": "2026-01-02T03:03:05Z", "reason": "WorkersLost"},
    ]
    lines = shown(job(phase="Running", placement=PLACED, sizes=sizes))
    at = lines.index("Sizes (UTC)")
    assert lines[at + 1 : at + 3] == [
        "2026-01-02 01:04:05 2h ago 8 workers Started",
        "2026-01-02 03:03:05 1m ago 7 workers WorkersLost",
    ]


def test_a_failure_that_was_survived_is_told_as_past() -> None:
    past = job(
        phase="Running",
        placement=PLACED,
        progress={"step": 41, "updatedAt": "2026-01-02T02:55:00Z"},
        failure={**failure(50), "step": 40, "traceback": "Traceback\n  a line"},
    )
    lines = shown(past)
    assert "The last failure, survived" in lines
    assert "a line" in lines


def test_an_event_that_stands_for_several_says_since_when() -> None:
    once = {**event("Admitted", "2 workers on n0", 50), "eventTime": "2026-01-02T02:40:10.000000Z"}
    twice = {**once, "series": {"count": 2, "lastObservedTime": "2026-01-02T02:50:20.000000Z"}}
    assert any("2 workers on n0 (2 times since 02:40:10)" in line for line in shown(job(phase="Running"), twice))
    assert not any("times since" in line for line in shown(job(phase="Running"), once))


def test_a_drain_is_no_failure() -> None:
    drained = failure(
        50, cause="disrupted", message="pod llama-g1-0-0 was evicted from node n0, as `kubectl drain` does"
    )
    lines = shown(job(phase="Restarting", failure=drained, recentFailures=[drained]))
    assert "The last interruption" in lines
    assert [line.split(" ago ")[1].split()[0] for line in lines if line.startswith("2026")] == ["Interruption"]


def test_a_checkpoint_from_before_the_job_is_told_as_what_it_resumed_from() -> None:
    progress = {"step": 563, "totalSteps": 3000, "updatedAt": NOW.isoformat()}
    run: dict[str, Any] = {"phase": "Running", "placement": PLACED, "progress": progress}
    spec = {"checkpoint": {"uri": "s3://models/train"}}
    told = "step 563 of 3000 is done; it resumed from the checkpoint of step 550, and has committed none since"
    assert told in shown(job(spec, **run, checkpoint={"step": 550, "uri": "s3://models/train"}))
    assert "step 563 of 3000 is done; no checkpoint is committed" in shown(job(spec, **run))


def test_before_the_first_step_nobody_is_said_to_train() -> None:
    lines = shown(job(phase="Running", placement=PLACED, runningSince="2026-01-02T03:03:05Z"))
    assert "all 2 workers run" in lines
    assert any(line.startswith("waiting for the first step for 1m") for line in lines)
    assert "all 2 workers train" in shown(job(phase="Running", placement=PLACED))
    begun, done = "2026-01-02T02:00:00Z", {"step": 50, "updatedAt": "2026-01-02T03:02:05Z"}
    again = {"cause": "disrupted", "message": "pod deleted", "at": "2026-01-02T03:03:05Z"}
    lost = job(phase="Running", placement=PLACED, runningSince=begun, progress=done, failure=again)
    assert "waiting for the first step for 1m; step 50 was done before" in shown(lost)
    eta = {**done, "eta": "2026-01-02T03:09:05Z"}
    lost = job(phase="Running", placement=PLACED, runningSince=begun, progress=eta, failure=again)
    assert "it trains on; about 5m are left" not in shown(lost)
    replacing = {**PLACED, "replacing": {"indexes": "1", "since": "2026-01-02T03:03:05Z"}}
    lines = shown(job(phase="Running", placement=replacing, runningSince=begun, progress=eta))
    assert "waiting for worker 1, lost 1m ago and made anew; step 50 was done before" in lines
    assert not any("all 2 workers" in line or "are left" in line for line in lines)
    alone = {"generation": 1, "workers": 1, "nodes": [{"node": "a", "indexes": "0"}]}
    assert "its worker trains" in shown(job(phase="Running", placement=alone))


def test_a_script_that_trains_without_a_session_is_not_said_to_wait_for_its_first_step() -> None:
    spec, begun = {"checkpoint": {"uri": "s3://models/train"}}, "2026-01-02T02:34:05Z"
    counted = {"attempt": 0, "seconds": {"training": 1200}}
    goodput = {"seconds": {"training": 1200}, "until": NOW.isoformat(), "launcher": counted}
    lines = shown(job(spec, phase="Running", placement=PLACED, runningSince=begun, goodput=goodput))
    told = "no step was told of for 30m: a script without a session reports none, and saves no checkpoint"
    assert told in lines
    unknown = {**goodput, "launcher": {"attempt": 0, "seconds": {"starting": 1200}}}
    lines = shown(job(spec, phase="Running", placement=PLACED, runningSince=begun, goodput=unknown))
    assert any(line.startswith("waiting for the first step for 30m: ") for line in lines)


def test_a_gang_that_starts_says_how_many_of_its_pods_are_there() -> None:
    assert "all 2 workers start on a: 1 of 2 pods are ready" in shown(
        job(phase="Starting", placement=PLACED, nodes="a", ready=1)
    )
    alone = {"generation": 1, "workers": 1, "nodes": [{"node": "a", "indexes": "0"}]}
    assert "its worker starts: 0 of 1 pod is ready" in shown(job(phase="Starting", placement=alone))


def test_of_a_gang_only_those_are_said_to_run_that_do() -> None:
    runs = Scene(job(phase="Running", placement=PLACED), (pod(0), pod(1, "Succeeded")), (), NOW)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(page(runs))
    told = console.export_text()
    assert "1 of 2 workers still train; worker 1 has ended with exit code 0 already" in told
    assert "all 2 workers" not in told


def test_a_preemption_is_told_once_by_its_event_and_in_few_words_without_it() -> None:
    told = job(phase="Queued", preemptedAt=["2026-01-02T02:20:00Z", "2026-01-02T02:50:30Z"])
    rows = [
        line
        for line in shown(told, event("Preempted", "the gang gives its room to research/big", 50))
        if " ago Preempted" in line
    ]
    assert len(rows) == 2, rows
    assert "its room was given to another" in rows[0]
    assert "gives its room to research/big" in rows[1]


@pytest.mark.parametrize(
    ("workers", "helps"),
    [(1, "ask for more but smaller workers"), (2, "ask for fewer or smaller workers, or for a wider topology.level")],
)
def test_what_helps_a_job_that_no_cluster_holds_depends_on_its_size(workers: int, helps: str) -> None:
    waits = job(
        {"workers": {"replicas": workers}}, phase="Queued", queue={"reason": "ExceedsCluster", "message": "why"}
    )
    assert helps in " ".join(" ".join(advice(Scene(waits, (), (), NOW))).split())


@pytest.mark.parametrize(
    ("reason", "helps"),
    [
        ("QueueNotFound", "see which queues there are: muster queues"),
        (
            "UnknownGpuType",
            """kubectl patch tj train -n research --type=merge -p '{"spec": {"workers": {"gpuType": "TYPE"}}}'""",
        ),
        (
            "PriorityClassNotFound",
            "see which classes there are: kubectl get priorityclass ask for one of them: kubectl patch tj train -n "
            """research --type=merge -p '{"spec": {"priorityClassName": "NAME"}}'""",
        ),
        ("LevelNotFound", "kubectl edit tj train -n research"),
        ("ExceedsQuota", "kubectl edit tj train -n research or kubectl edit tq"),
        ("CheckpointPathConflict", "wait for the job that stands under Why, or end it"),
        ("NamespaceNotAllowed", "have the namespace labelled as it stands under Why, or see which queues there are"),
        ("ExceedsCluster", "ask for fewer or smaller workers"),
        ("NoEligibleNodes", "change what it demands of its nodes (workers.gpuType, capacity, nodeSelector"),
        ("PodRefused", "have the namespace admit its pods, as it stands under Why"),
        ("BudgetExhausted", "raise the budget that stands under Why: kubectl edit tq vision"),
    ],
)
def test_a_job_whose_turn_cannot_come_is_not_told_to_wait(reason: str, helps: str) -> None:
    scene = Scene(job(phase="Queued", queue={"reason": reason, "message": "why"}), (), (), NOW)
    told = " ".join(" ".join(advice(scene)).split())
    assert follows(scene).startswith("nothing, until what stands under Why has changed")
    assert helps in told
    assert "muster jobs --queue" not in told


def test_who_waits_for_quota_is_told_where_those_stand_who_share_it() -> None:
    """Who has borrowed it is of another queue, and not among the jobs of this one."""
    waiting = {
        reason: list(advice(Scene(job(phase="Queued", queue={"reason": reason, "message": "why"}), (), (), NOW)))
        for reason in ("QuotaExceeded", "InsufficientCapacity")
    }
    first, second = waiting["QuotaExceeded"]
    assert first.endswith("muster jobs --queue vision")
    assert second.endswith("muster queues")
    assert waiting["InsufficientCapacity"] == [first]


@pytest.mark.parametrize("reason", ["NoEligibleNodes", "ExceedsCluster", "InsufficientCapacity"])
def test_a_job_that_stays_away_from_nodes_is_told_when_it_takes_them_again(reason: str) -> None:
    away = [{"node": name, "until": "2026-01-02T03:09:05Z", "reason": "r"} for name in ("a", "b")]
    place = {"reason": reason, "message": "why"}
    shut = {"phase": "Queued", "queue": place}
    assert "stays away" not in follows(Scene(job(avoided=away, **shut), (), (), NOW)), "they are in quarantine"
    waits = {"phase": "Queued", "queue": {**place, "retryAt": "2026-01-02T03:06:05Z"}}
    scene = Scene(job(avoided=away, **waits), (), (), NOW)
    assert follows(scene).startswith("in 2m it may take a node again that it stays away from")
    assert next(iter(advice(scene))).startswith(
        "to have it tried at once where it could not start:  muster suspend train -n research"
    )
    past = Scene(job(**{**waits, "queue": {**place, "retryAt": "2026-01-02T03:00:05Z"}}), (), (), NOW)
    assert "stays away" not in follows(past)
    assert not any("tried at once" in each for each in advice(past))


def test_a_job_of_a_closed_queue_is_told_to_have_it_opened_or_to_ask_for_another() -> None:
    scene = Scene(job(phase="Queued", queue={"reason": "QueueClosed", "message": "why", "position": 1}), (), (), NOW)
    told = [" ".join(line.split()) for line in advice(scene)]
    assert follows(scene) == "it waits until queue vision is opened; then it starts when it has quota and room"
    assert told[0] == "have the queue opened, as it stands under Why: kubectl edit tq vision"
    assert told[1].endswith("""kubectl patch tj train -n research --type=merge -p '{"spec": {"queue": "NAME"}}'""")
    assert not any("quota" in line for line in told)
    above = TrainingQueue.from_raw({"metadata": {"name": "lab"}, "spec": {"stopPolicy": "hold"}})
    below = TrainingQueue.from_raw({"metadata": {"name": "vision"}, "spec": {"parent": "lab"}})
    (first, *_) = advice(replace(scene, queues=(below, above)))
    assert first.endswith("as it stands under Why:  muster release lab")


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("NoEligibleNodes", "in 6m it takes on-demand nodes, too, unless what stands under Why has changed before"),
        ("InsufficientCapacity", "it starts when it has quota and room; in 6m it takes on-demand nodes, too"),
    ],
)
def test_a_job_that_waits_for_its_first_kind_of_nodes_is_told_when_it_takes_the_next(reason: str, told: str) -> None:
    spot_first = {"capacity": {"order": ["spot", "on-demand"], "fallbackAfter": "10m"}}
    waits = {"phase": "Queued", "queue": {"reason": reason, "message": "why"}}
    recent = job(spot_first, **waits, submittedAt="2026-01-02T03:00:05Z")
    assert follows(Scene(recent, (), (), NOW)).startswith(told)
    for other in (job(spot_first, **waits, submittedAt="2026-01-02T02:54:05Z"), job(None, **waits, submittedAt=None)):
        assert "on-demand" not in follows(Scene(other, (), (), NOW))


@pytest.mark.parametrize(
    ("since", "listed", "cheapest"),
    [
        (
            "2026-01-02T03:00:05Z",
            "in 6m it takes spot nodes, too",
            "in 6m it takes the next cheapest kind of nodes, too",
        ),
        (
            "2026-01-02T02:50:05Z",
            "in 6m it takes on-demand nodes, too",
            "in 6m it takes the dearest kind of nodes, too",
        ),
        ("2026-01-02T02:40:05Z", "it starts when it has quota and room", "it starts when it has quota and room"),
    ],
)
def test_each_kind_of_nodes_has_its_own_wait(since: str, listed: str, cheapest: str) -> None:
    order = {"order": ["reserved", "spot", "on-demand"], "fallbackAfter": "10m"}
    waits = {"phase": "Queued", "queue": {"reason": "NoEligibleNodes", "message": "why"}, "submittedAt": since}
    if since.endswith("02:40:05Z"):
        waits["queue"] = {"reason": "InsufficientCapacity", "message": "why"}
    for capacity, told in ((order, listed), ({**order, "prefer": "cheapest"}, cheapest)):
        assert follows(Scene(job({"capacity": capacity}, **waits), (), (), NOW)).startswith(told)


def test_a_reason_that_its_message_names_is_told_once() -> None:
    told = {"reason": "CreateContainerConfigError", "message": "pod a can't start: CreateContainerConfigError: no key"}
    assert "CreateContainerConfigError: pod a can't start: no key" in shown(job(phase="Starting", queue=told))


def test_programs_are_told_what_a_job_lacks_who_is_ahead_and_what_would_start_it() -> None:
    change = {"kind": "level", "value": "block", "text": "there is room now if block were required instead of rack"}
    waiting = {
        "position": 4,
        "reason": "TopologyUnsatisfied",
        "message": "needs 8 workers in one rack (kept for research/kept)",
        "changes": [change],
        "lacking": {"resource": "nvidia.com/gpu", "amount": "8", "level": "rack", "domain": "rack-3", "placeable": 7},
        "ahead": [
            {"job": "research/kept", "why": "kept"},
            {"job": "research/held", "why": "holds"},
            {"job": "research/first", "why": "before"},
        ],
    }
    queued = job(phase="Queued", queue=waiting)
    found = answer(Scene(queued, (), (), NOW))
    assert found["job"] == {"namespace": "research", "name": "train", "phase": "Queued"}
    assert found["waiting"] == waiting
    why = found["explanation"][0]
    assert why["heading"] == "Why"
    assert ("", "held by: research/held") in why["rows"]
    assert ("", "behind: research/first") in why["rows"]
    assert "- there is room now if block were required instead of rack" in shown(queued)
    assert "waiting" not in answer(Scene(job(phase="Running"), (), (), NOW))


def test_a_gang_below_its_wish_is_told_why_and_that_it_grows_by_itself() -> None:
    growth = {"reason": "QuotaExceeded", "message": "for its next size, 4 workers, it needs 16 GPUs", "workers": 4}
    wish = {"workers": {"replicas": 4, "min": 2}}
    lines = shown(job(wish, phase="Running", placement=PLACED, growth=growth))
    assert "2/4 workers: QuotaExceeded: for its next size, 4 workers, it needs 16 GPUs" in lines
    grows = "it trains on; it grows by itself, with a stop and a start, when nothing keeps it from that any more"
    assert grows in lines
    assert answer(Scene(job(wish, phase="Running", placement=PLACED, growth=growth), (), (), NOW))["growth"] == growth
    assert not any("grows" in line for line in shown(job(phase="Running", placement=PLACED)))


@pytest.mark.parametrize("reason", ["Settling", "DoesNotPay", "InsufficientCapacity"])
def test_whoever_has_room_to_grow_into_is_told_how_to_grow_now(reason: str) -> None:
    growth = {"reason": reason, "message": "there is room", "workers": 4}
    running = job({"workers": {"replicas": 4, "min": 2}}, phase="Running", placement=PLACED, growth=growth)
    told = [line for line in advice(Scene(running, (), (), NOW)) if line.startswith("to have it grow now")]
    assert len(told) == (reason != "InsufficientCapacity")
    assert all("muster suspend train -n research" in line for line in told)


def test_what_a_job_does_without_an_operator_is_not_told_as_if_one_led() -> None:
    unled = Unled(datetime(2026, 1, 2, 3, 1, 5, tzinfo=timezone.utc), "muster-system", "muster-operator")
    progress = {"step": 50, "totalSteps": 200, "eta": "2026-01-02T03:05:05Z"}
    running = Scene(job(phase="Running", placement=PLACED, progress=progress), (), (), NOW)
    assert follows(running) == "it trains on; about 1m are left"
    assert follows(replace(running, unled=unled)) == (
        "nothing, until an operator leads again; where its ranks run, they go on by themselves"
    )
    (why,) = (rows for heading, rows in sections(replace(running, unled=unled)) if heading == "Why")
    assert why[0][1].startswith("no operator leads since 2026-01-02 03:01:05 UTC (3m ago)")
    ended = Scene(job(phase="Succeeded", finishedAt="2026-01-02T03:03:05Z"), (), (), NOW, unled=unled)
    assert follows(ended) == "nothing: the job has ended"
    assert follows(replace(ended, pods=(pod(0),))) == "nothing: the job has ended; its ended pods stay"


def test_a_job_that_was_not_told_yet_what_it_waits_for_is_not_said_to_start() -> None:
    """Its queue may be held. Nor is the operator said to be gone while it has thousands of others to tell."""
    pending = {
        **SUSPENDED_IDLE,
        "type": "Admitted",
        "status": "False",
        "reason": "Pending",
        "message": "waits to be planned",
    }
    for waits in (job(), job(phase="Queued", conditions=[pending])):
        text = " ".join(shown(waits))
        assert "thousands of jobs are new at once" in text
        assert "it starts when" not in text
