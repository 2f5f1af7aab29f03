"""What becomes of a job in its history, as the lifecycle makes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from muster.api.effective import effective_spec
from muster.api.names import Phase as JobPhase
from muster.api.placement import Stop
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import CommittedCheckpoint
from muster.cluster.views import NodeView
from muster.controllers.chronicle import Chronicle
from muster.controllers.records import Record
from muster.controllers.sight import End, PodOf, Sight
from muster.controllers.sightings import Seen, gone, look
from muster.controllers.stored import Left, left_by, stored
from muster.telemetry.cost.intervals import Interval, PoolInterval
from muster.telemetry.history.rows import Attempt, Checkpoint, Failure, Job, Preemption, Row, Storage
from muster.telemetry.history.upserts import Key, key_of
from muster_protocol import exits
from muster_protocol.launcher_status import Checkpoint as Saved
from muster_protocol.launcher_status import Phase, Status

from .lifecycle.cases import START, Case, trainingjob

pytestmark = pytest.mark.unit


@dataclass
class Story:
    """A case, looked at after each thing that happens, and the rows of it that are newest."""

    case: Case
    seen: Seen | None = None
    finished: dict[PodOf, End] = field(default_factory=dict)
    left: Left | None = None
    rows: dict[Key, Row] = field(default_factory=dict)
    put: int = 0
    deleted: bool = False

    def sight(self) -> Sight:
        case = self.case
        pods = tuple(case.pods.values())
        for pod in pods:
            self.left = left_by(pod) or self.left
            if pod.finished is not None:
                self.finished.setdefault((pod.generation, pod.index, pod.attempt), End(pod.finished, case.now))
        return Sight(
            case.job,
            effective_spec(case.job.spec),
            case.now,
            pods,
            self.finished,
            lambda node: ("H100", "spot" if node.startswith("s") else "on-demand"),
            case.launcher,
            self.deleted,
            self.left,
        )

    def look(self) -> None:
        self.seen, rows = look(self.seen, self.sight())
        self._take(rows)

    def gone(self) -> None:
        assert self.seen is not None
        self._take(gone(self.seen, self.sight()))

    def _take(self, rows: list[Row]) -> None:
        self.rows |= {key_of(row): row for row in rows}
        self.put += len(rows)

    def settle(self) -> None:
        """Turns, each with a look before it as in the loop."""
        for _ in range(10):
            self.look()
            decision = self.case.turn()
            if not (decision.status or decision.delete or decision.make):
                break
        self.look()

    def finish(
        self, index: int, at: datetime, cause: exits.Cause = exits.Cause.SUCCEEDED, code: int = 0, **facts: Any
    ) -> None:
        self.case.end(index, cause, code, **facts)
        self.case.change(self.case.worker(index).name, finished=at)

    def of(self, kind: type[Any]) -> list[Any]:
        return [row for row in self.rows.values() if isinstance(row, kind)]

    def intervals(self) -> list[tuple[int, int, int, str, float, float | None, bool]]:
        """Attempt, index, replacement, node, begin and end in seconds since START, estimated."""
        return sorted(
            (
                one.attempt,
                one.index,
                one.replacement,
                one.node,
                (one.begins - START).total_seconds(),
                None if one.ends is None else (one.ends - START).total_seconds(),
                one.estimated,
            )
            for one in self.of(Interval)
        )


def running(*nodes: str, **spec: Any) -> Story:
    """A gang that was placed 10 s after START, and trains."""
    story = Story(Case(trainingjob(**spec)))
    story.settle()
    story.case.later(10)
    story.case.place(*(nodes or ("a", "b")))
    story.settle()
    story.case.run_pods()
    story.case.train()
    story.settle()
    return story


def test_a_run_that_succeeds() -> None:
    story = running()
    assert story.intervals() == [(1, 0, 0, "a", 10, None, False), (1, 1, 0, "b", 10, None, False)]
    story.case.later(100)
    story.finish(0, START + timedelta(seconds=105))
    story.finish(1, START + timedelta(seconds=107))
    story.settle()
    assert story.intervals() == [(1, 0, 0, "a", 10, 105, False), (1, 1, 0, "b", 10, 107, False)]
    (job,), (attempt,) = story.of(Job), story.of(Attempt)
    assert (job.phase, job.gpus, job.finished_at) == ("Succeeded", 2, story.case.now)
    assert (attempt.reason, attempt.cause, attempt.gpus, attempt.ended_at) == ("Succeeded", "", 2, story.case.now)
    assert {one.gpu_type for one in story.of(Interval)} == {"H100"}


def test_nothing_new_is_nothing_put() -> None:
    story = running()
    put = story.put
    story.case.later(60)
    story.settle()
    assert story.put == put


def test_the_flavour_is_the_nodes_own() -> None:
    story = running("s1", "b")
    assert [one.capacity for one in sorted(story.of(Interval), key=lambda one: one.index)] == ["spot", "on-demand"]


def test_slices_of_gpus_are_held_by_their_own_type() -> None:
    resources = {"limits": {"nvidia.com/mig-1g.10gb": "2"}}
    story = running(workers={"replicas": 2, "gpusPerWorker": 0, "resources": resources})
    assert {(one.gpu_type, one.gpus) for one in story.of(Interval)} == {("H100-MIG-1g.10gb", 2)}


def test_pods_that_vanish_end_when_they_were_last_seen() -> None:
    story = running()
    story.case.later(50)
    story.case.vanish(story.case.worker(1).name)
    story.look()
    assert story.intervals()[1] == (1, 1, 0, "b", 10, 60, True)


def test_an_end_that_the_turn_did_not_see() -> None:
    """The pod is gone by the time of the turn, and the watch had shown its end."""
    story = running()
    story.case.later(50)
    story.finished[1, 1, 0] = End(START + timedelta(seconds=55), story.case.now)
    story.case.vanish(story.case.worker(1).name)
    story.look()
    assert story.intervals()[1] == (1, 1, 0, "b", 10, 55, False)


def test_a_worker_is_replaced_alone() -> None:
    story = running("a", "b")
    story.case.later(50)
    lost = story.case.worker(1).name
    story.case.change(lost, phase="Failed", ready=False, finished=START + timedelta(seconds=58), exit_code=137)
    story.settle()
    assert story.intervals() == [
        (1, 0, 0, "a", 10, None, False),
        (1, 1, 0, "b", 10, 58, False),
        (1, 1, 1, "b", 60, None, False),
    ]
    assert story.of(Attempt)[0].replacements == 1
    placement = story.case.job.status.placement
    assert placement is not None
    moved = placement.of(1, ("a", "c"), attempts={1: 1}, placed_at=placement.placed_at)
    status = story.case.job.status.model_copy(update={"placement": moved})
    story.case.job = TrainingJob.from_raw(story.case.job.to_raw() | {"status": status.to_raw()})
    story.case.later(5)
    story.look()
    assert story.intervals()[2] == (1, 1, 1, "c", 60, None, False)


def test_a_gang_that_starts_again_is_another_attempt() -> None:
    story = running()
    story.case.later(50)
    story.finish(0, story.case.now, exits.Cause.USER, 1)
    story.finish(1, story.case.now, exits.Cause.USER, 1)
    story.settle()
    story.case.later(5)
    story.case.vanish()
    story.settle()
    (failure,) = story.of(Failure)
    assert (failure.cause, failure.at) == ("user", START + timedelta(seconds=60))
    (first,) = story.of(Attempt)
    assert (first.cause, first.reason, first.ended_at is not None) == ("user", "Restarting", True)
    story.case.later(30)
    story.case.place("a", "b")
    story.settle()
    assert [one.attempt for one in story.of(Attempt)] == [1, 2]
    assert [row[:2] for row in story.intervals()] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [row[5] for row in story.intervals()] == [60, 60, None, None]


def test_a_gang_that_never_ran_is_charged_for_its_room() -> None:
    story = Story(Case(trainingjob()))
    story.settle()
    story.case.place("a", "b")
    story.settle()
    story.case.later(7)
    story.case.edit(suspend=True)
    story.settle()
    story.case.vanish()
    story.settle()
    assert story.intervals() == [(1, 0, 0, "a", 0, 7, False), (1, 1, 0, "b", 0, 7, False)]
    assert story.of(Attempt)[0].reason == "Suspended"


def test_spares_hold_room_too() -> None:
    story = running("a", "b", "s", workers={"replicas": 2, "gpusPerWorker": 4, "spares": 1})
    assert story.intervals()[2] == (1, 2, 0, "s", 10, None, False)
    assert story.of(Attempt)[0].gpus == story.of(Job)[0].gpus == 12


def test_a_preemption_is_told_once() -> None:
    story = running()
    stop = Stop(reason="Reclaimed", message="x", requested_at=story.case.now, beneficiary="other", lost=77)
    status = story.case.job.status.model_copy(update={"stop": stop})
    story.case.job = TrainingJob.from_raw(story.case.job.to_raw() | {"status": status.to_raw()})
    story.look()
    assert story.of(Preemption) == [Preemption("0123456789abcdef", 1, story.case.now, "other", "Reclaimed", 77, "x")]
    put = story.put
    story.look()
    assert story.put == put


def test_checkpoints_with_what_the_launcher_says_of_them() -> None:
    story = running()
    for step, told in ((100, 100), (200, 300)):
        saved = CommittedCheckpoint(step=step, uri="s3://models/a", committed_at=story.case.now)
        status = story.case.job.status.model_copy(update={"checkpoint": saved})
        story.case.job = TrainingJob.from_raw(story.case.job.to_raw() | {"status": status.to_raw()})
        said = Saved(told, "s3://models/a", story.case.now.timestamp(), 1.5, 4096)
        story.case.launcher = replace(Status(Phase.RUNNING, 1, 1, 0), checkpoint=said)
        story.look()
    assert [(one.step, one.attempt, one.bytes, one.save_seconds) for one in story.of(Checkpoint)] == [
        (100, 1, 4096, 1.5),
        (200, 0, 0, 0.0),
    ]


def test_a_checkpoint_that_was_there_before_the_job_is_none_that_it_has_committed() -> None:
    story = running()
    status = story.case.job.status.model_copy(update={"checkpoint": CommittedCheckpoint(step=550)})
    story.case.job = TrainingJob.from_raw(story.case.job.to_raw() | {"status": status.to_raw()})
    story.look()
    assert not list(story.of(Checkpoint))


def test_what_checkpoints_take_is_told_when_it_changes() -> None:
    story = running(checkpoint={"uri": "s3://models/a/"})
    for size in (None, 100, 100, 300, -1, 2**70, 0):
        story.case.later(10)
        story.case.launcher = replace(Status(Phase.RUNNING, 1, 1, 0), stored=size)
        story.look()
    told = [(one.uri, (one.at - START).total_seconds(), one.bytes) for one in story.of(Storage)]
    assert told == [("s3://models/a", at, size) for at, size in ((30, 100), (50, 300), (70, 2**62), (80, 0))]


def told_of_storage(story: Story) -> list[tuple[float, int]]:
    return [((one.at - START).total_seconds(), one.bytes) for one in story.of(Storage)]


def test_a_bucket_is_told_apart_from_that_of_another_server() -> None:
    told = set[str]()
    for endpoint in ({}, {"endpoint": "http://one:9000"}, {"endpoint": "https://two/"}):
        story = running(checkpoint={"uri": "s3://models/a/", **endpoint})
        story.case.launcher = replace(Status(Phase.RUNNING, 1, 1, 0), stored=1)
        story.look()
        told |= {one.uri for one in story.of(Storage)}
    assert told == {f"s3://models/a{server}" for server in ("", "?endpoint=http://one:9000", "?endpoint=https://two")}


def test_what_the_last_save_took_is_told_by_the_pods_end() -> None:
    """The launcher is asked every ten seconds: of a short run perhaps never after a save."""
    story = running(checkpoint={"uri": "s3://models/a"})
    story.case.launcher = replace(Status(Phase.RUNNING, 1, 1, 0), stored=100)
    story.look()
    story.case.later(30)
    story.finish(1, story.case.now, incarnation=1, stored=1)
    story.finish(0, story.case.now, incarnation=1, stored=300)
    story.look()
    assert told_of_storage(story) == [(10, 100), (40, 300)], "rank 0 tells it, on index 0"
    story.settle()
    story.case.later(30)
    story.deleted = True
    story.gone()
    assert told_of_storage(story) == [(10, 100), (40, 300)], "once"


def test_another_operator_dates_what_an_ended_pod_left_at_its_end() -> None:
    """The pods of a finished job stay, for their logs. Meanwhile `muster cost reconcile` may have told what a prune has
    left of its checkpoints, or another job gone on from them: their rows are newer, and stay the last word."""
    story = running(checkpoint={"uri": "s3://models/a"})
    story.case.later(30)
    for index in (1, 0):
        story.finish(index, story.case.now, incarnation=1, stored=300)
    story.settle()
    assert story.case.job.status.finished_at is not None
    story.case.later(3600)
    again = Story(story.case)
    again.look()
    again.case.later(60)
    again.deleted = True
    again.gone()
    assert told_of_storage(again) == [(40, 300)]


def test_what_a_lost_pod_left_is_no_word_on_those_that_go_on() -> None:
    story = running(checkpoint={"uri": "s3://models/a"})
    story.case.later(30)
    story.finish(0, story.case.now, exits.Cause.USER, 1, incarnation=1, stored=300)
    again = Story(story.case)
    again.case.later(30)
    again.look()
    again.case.later(10)
    again.case.launcher = replace(Status(Phase.RUNNING, 1, 2, 0), stored=300)
    again.look()
    assert told_of_storage(again) == [(40, 300), (80, 300)], "it may have told another number to the operator before"


def test_a_job_that_is_deleted_while_it_saves_leaves_its_last_word() -> None:
    story = running(checkpoint={"uri": "s3://models/a"})
    story.case.later(30)
    story.finish(0, story.case.now, exits.Cause.PREEMPTED, 75, incarnation=1, stored=300)
    story.deleted = True
    story.gone()
    assert [size for _, size in told_of_storage(story)] == [300]


@pytest.mark.parametrize(
    ("generation", "incarnation", "counts"), [(1, 2, 300), (1, 3, 300), (1, 1, 500), (0, 9, 500), (2, 1, 300)]
)
def test_the_newest_word_on_storage_counts(generation: int, incarnation: int, counts: int) -> None:
    launcher, left = replace(Status(Phase.RUNNING, 1, 2, 0), stored=500), Left(generation, incarnation, 300)
    assert stored(launcher, left) == counts
    assert stored(replace(launcher, stored=None), left) == stored(None, left) == 300


def test_what_an_operator_finds_without_a_pod_is_left_as_it_was() -> None:
    """It went while nobody looked: the database knows when it was seen last. Or its pod is not made yet."""
    story = running()
    story.case.vanish(story.case.worker(1).name)
    again = Story(story.case)
    again.look()
    again.case.later(5)
    again.look()
    assert again.intervals() == [(1, 0, 0, "a", 10, None, False)]
    lost = story.case.job.status.placement
    assert lost is not None
    again.case._make(1)
    again.look()
    assert again.intervals() == [(1, 0, 0, "a", 10, None, False), (1, 1, 0, "b", 10, None, False)]


def test_an_end_that_kubelet_tells_late_goes_before_a_guess() -> None:
    story = running()
    story.case.later(50)
    story.case.vanish(story.case.worker(1).name)
    story.look()
    assert story.intervals()[1] == (1, 1, 0, "b", 10, 60, True)
    story.case.later(5)
    story.finished[1, 1, 0] = End(START + timedelta(seconds=57), story.case.now)
    story.look()
    assert story.intervals()[1] == (1, 1, 0, "b", 10, 57, False)


@pytest.mark.parametrize(
    ("says", "ends", "estimated"), [(9, 10, False), (58, 58, False), (62, 60, False), (5, 60, True), (900, 60, True)]
)
def test_a_node_whose_clock_is_wrong_is_not_believed(says: int, ends: int, estimated: bool) -> None:
    story = running()
    story.case.later(50)
    story.finish(1, START + timedelta(seconds=says))
    story.look()
    assert story.intervals()[1] == (1, 1, 0, "b", 10, ends, estimated)
    story.case.later(1_000)
    story.finish(0, story.case.now)
    story.look()
    assert story.intervals() == [(1, 0, 0, "a", 10, 1_060, False), (1, 1, 0, "b", 10, ends, estimated)], "nor later"


def test_a_job_that_is_deleted() -> None:
    story = running()
    story.case.later(50)
    story.deleted = True
    story.look()
    story.case.later(5)
    story.case.pods.clear()
    story.gone()
    (job,), (attempt,) = story.of(Job), story.of(Attempt)
    assert (job.deleted_at, job.estimated) == (START + timedelta(seconds=60), False)
    assert job.gpu_seconds == 2 * 55, "as much as its intervals"
    assert (attempt.reason, attempt.ended_at) == ("Deleted", START + timedelta(seconds=65))
    assert [row[5:] for row in story.intervals()] == [(65, True), (65, True)]


def test_a_job_that_is_deleted_when_it_has_ended() -> None:
    story = running()
    story.case.later(50)
    ended = {"phase": JobPhase.SUCCEEDED, "finished_at": story.case.now}
    status = story.case.job.status.model_copy(update=ended)
    story.case.job = TrainingJob.from_raw(story.case.job.to_raw() | {"status": status.to_raw()})
    story.deleted = True
    story.gone()
    (attempt,) = story.of(Attempt)
    assert attempt.reason == "Succeeded"


def test_a_look_after_a_restart_says_the_same() -> None:
    """Of what goes on, and of ends that can still be seen."""
    story = running()
    story.case.later(50)
    story.finish(1, START + timedelta(seconds=58))
    story.look()
    again = Story(story.case)
    again.case.later(100)
    again.look()
    assert again.intervals() == story.intervals()
    assert again.intervals()[1] == (1, 1, 0, "b", 10, 58, False)
    assert again.of(Attempt) == story.of(Attempt)
    assert again.of(Job) == story.of(Job)


def test_progress_alone_is_put_every_ten_minutes() -> None:
    story = running()
    put = story.put
    for step in range(1, 31):
        story.case.later(60)
        raw = story.case.job.to_raw()
        raw["status"] = {**raw["status"], "progress": {"step": step}}
        story.case.job = TrainingJob.from_raw(raw)
        story.look()
    assert story.put == put + 3
    assert story.of(Job)[0].step in (28, 29, 30)


def test_who_pays_by_label_or_annotation() -> None:
    job = trainingjob()
    labels = {"muster.dev/project": "llm", "team": "blue"}
    metadata = job.metadata.model_copy(update={"labels": labels, "annotations": {"muster.dev/user": "ada@example.com"}})
    story = Story(Case(job.model_copy(update={"metadata": metadata})))
    story.look()
    (row,) = story.of(Job)
    assert (row.user, row.project, row.labels) == ("ada@example.com", "llm", labels)


class NoNodes:
    """A cache that knows of none."""

    def node(self, name: str) -> None:
        return None


@dataclass
class OneNode:
    """A cache that knows of one."""

    only: NodeView

    def nodes(self) -> tuple[NodeView, ...]:
        return (self.only,)


class Put:
    """A writer that keeps what it gets."""

    wants_picture = False

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def put(self, rows: Any) -> None:
        self.rows += rows

    def seen(self, moment: datetime) -> None:
        """Nothing is made of it."""


def test_the_slices_that_nodes_have_are_pools_of_their_own() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    room = {"nvidia.com/gpu": "4", "nvidia.com/mig-3g.20gb": "6", "nvidia.com/mig-1g.5gb": "0", "cpu": "8"}
    node = NodeView.from_raw({"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": room}})
    cache, writer = OneNode(node), Put()
    chronicle = Chronicle(cache, writer)  # type: ignore[arg-type]
    chronicle.all_seen()
    chronicle.write(START)
    assert {(row.gpu_type, row.gpus) for row in writer.rows if isinstance(row, PoolInterval)} == {
        ("A100", 4),
        ("A100-MIG-3g.20gb", 6),
    }


def test_what_a_pod_left_is_remembered_when_it_is_gone() -> None:
    """Its end was on the watch, and its job had no turn before it went."""
    story, writer = running(checkpoint={"uri": "s3://models/a"}), Put()
    record = Record.of(story.case.job)
    chronicle = Chronicle(NoNodes(), writer)  # type: ignore[arg-type]
    story.finish(0, story.case.now, incarnation=1, stored=300)
    chronicle.on_pod(story.case.worker(0), story.case.now)
    chronicle.forget_ended("another", story.case.now)
    chronicle.see(record, (), story.case.now)
    assert [row.bytes for row in writer.rows if isinstance(row, Storage)] == [300]
    chronicle.forget(record, story.case.now)
    assert not chronicle._left
    assert not chronicle._finished


def test_nothing_stays_of_pods_whose_job_is_gone_nor_of_placements_that_are_over() -> None:
    story, writer = running(), Put()
    record, now = Record.of(story.case.job), story.case.now
    chronicle = Chronicle(NoNodes(), writer)  # type: ignore[arg-type]
    chronicle.all_seen()
    chronicle._nodes_changed = False
    chronicle.see(record, (), now)
    story.finish(0, now)
    chronicle.on_pod(story.case.worker(0), now)
    record.job = record.job.model_copy(update={"status": record.job.status.model_copy(update={"placement": None})})
    chronicle.see(record, (), now)
    assert not any(chronicle._finished.values()), "its placement is over"
    chronicle.forget(record, now)
    chronicle.on_pod(story.case.worker(0), now)  # kubelet writes once more before the pod is removed
    chronicle.write(now + timedelta(minutes=1))
    assert chronicle._finished, "its job may be about to be seen"
    chronicle.write(now + timedelta(minutes=12))
    assert not chronicle._finished
    assert not chronicle._left
