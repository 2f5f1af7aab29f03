"""Pure: what a tracker is told of a run, and how what waits for it is kept."""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from muster_protocol import env, exits
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.launcher_status import Facts, Profiling
from muster_protocol.launcher_status import Tracking as Told
from muster_protocol.messages import StopReason
from muster_runtime import report
from muster_runtime.launch import config, tracked
from muster_runtime.launch.tracking import COMMAND, Tracking
from muster_runtime.session import described
from muster_runtime.session.points import STEPS_AT_ONCE, Points
from muster_runtime.telemetry.gpus import Gpu
from muster_runtime.tracking import wire
from muster_runtime.tracking.courier import PARTS_TRIED, Courier
from muster_runtime.tracking.tracker import BATCH, Point, Rejected, Run, RunStatus, TrackerError

pytestmark = pytest.mark.runtime

RUN = Run("own://", "uid", "research", "llama")


def test_options_of_a_command_line() -> None:
    words = ["python", "train.py", "--lr", "3e-4", "--bf16", "--batch=8", "data", "--", "-x"]
    assert tracked.arguments(words) == {"args/lr": "3e-4", "args/bf16": "true", "args/batch": "8"}
    assert tracked.arguments(["python", "x.py", "--bf16", "--lr", "-1"]) == {"args/bf16": "true", "args/lr": "-1"}


def test_secrets_of_a_command_line_are_not_told() -> None:
    words = ["x.py", "--api-key=abc", "--hf-token", "def", "--lr", "1", "-password", "ghi", "--tokens-last"]
    told = tracked.shown(words)
    assert not {"abc", "def", "ghi"} & {part for word in told for part in word.split("=")}
    assert told == (
        "x.py",
        "--api-key=***",
        "--hf-token",
        "***",
        "--lr",
        "1",
        "-password",
        "***",
        "--tokens-last",
    )


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("+wandb.api_key=abc", "+wandb.api_key=***"),
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ("https://data.example.com/set?token=abc", "https://data.example.com/set?token=***"),
        (
            "export HF_TOKEN='a b'; python x.py --lr=1 --api-key abc --seed 2",
            "export HF_TOKEN=***; python x.py --lr=1 --api-key *** --seed 2",
        ),
        ("--tokenizer=gpt2", "--tokenizer=gpt2"),
        ("data.max_tokens=4096", "data.max_tokens=4096"),
        ("secrets.py", "secrets.py"),
        ("echo my token is here", "echo my token is here"),
    ],
)
def test_secrets_are_hidden_wherever_a_name_tells_them_and_nothing_else(word: str, told: str) -> None:
    assert tracked.shown(["run", word, "next"]) == ("run", told, "next")


def test_what_counts_tokens_is_no_secret() -> None:
    words = ["x.py", "--max-tokens", "4096", "--tokenizer", "gpt2", "--tokens_per_batch", "8"]
    assert tracked.arguments(tracked.shown(words)) == {
        "args/max-tokens": "4096",
        "args/tokenizer": "gpt2",
        "args/tokens_per_batch": "8",
    }


def test_the_commit_comes_from_the_image_or_the_folder(tmp_path: Path) -> None:
    first, second, third = "a" * 40, "b" * 40, "c" * 40
    assert tracked.commit({}, tmp_path) == ""
    git = tmp_path / ".git"
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert tracked.commit({}, tmp_path) == ""
    (git / "packed-refs").write_text(f"# pack-refs\n{first} refs/heads/main\n")
    assert tracked.commit({}, tmp_path) == first
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text(f"{second}\n")
    assert tracked.commit({"GITHUB_SHA": "no commit"}, tmp_path) == second
    assert tracked.commit({"GIT_COMMIT": third}, tmp_path) == third


@pytest.mark.parametrize(
    ("cause", "reason", "by_signal", "status"),
    [
        (Cause.SUCCEEDED, None, False, RunStatus.FINISHED),
        (Cause.SUCCEEDED, StopReason.PREEMPT, False, RunStatus.FINISHED),
        (Cause.PREEMPTED, StopReason.PREEMPT, False, RunStatus.SCHEDULED),
        (Cause.PREEMPTED, StopReason.SUSPEND, False, RunStatus.SCHEDULED),
        (Cause.PREEMPTED, StopReason.PREEMPT, True, RunStatus.KILLED),
        (Cause.MAX_RUNTIME, StopReason.MAX_RUNTIME, False, RunStatus.KILLED),
        (Cause.USER, None, False, RunStatus.FAILED),
        (Cause.PEER, None, False, RunStatus.FAILED),
    ],
)
def test_how_a_run_stands_at_its_end(cause: Cause, reason: StopReason, by_signal: bool, status: RunStatus) -> None:
    assert tracked.status(ExitFacts(cause, exits.EXIT_OK, ""), reason, by_signal=by_signal) is status


@pytest.mark.parametrize(("total", "told"), [(4096, 4096), (0, 1024)])
def test_a_checkpoint_has_the_bytes_of_all_ranks(total: int, told: int) -> None:
    committed = report.CheckpointCommitted(0, 5, "s3://b/x", 1.5, 1024, 1e9, 0.1, total)
    news = tracked.of_report(committed, config.read({env.LEADER_HOST: "127.0.0.1"}, ("true",)), 0.0)
    assert news is not None
    assert {point.name: point.value for point in news.points}["muster/checkpoint_bytes"] == told


def test_what_the_operator_tells_goes_on_counting() -> None:
    facts = Facts({"muster.queue": "q"}, gpus=4, gpu_seconds=7200, cost="10", hourly=8.0, currency="USD", at=1000.0)
    assert tracked.readable(facts)
    points = {point.name: point.value for point in tracked.of_facts(facts, 5, 1000.0 + 1800).points}
    assert points == {"muster/gpu_hours": 4.0, "muster/cost": 14.0}
    assert not tracked.readable(Facts(hourly=math.nan))
    assert not tracked.readable(Facts(tags={"a": 1}))  # type: ignore[dict-item]
    assert not tracked.readable(Facts(gpu_seconds=10**400)), "an integer beyond every float"
    for cost in ("much", "9" * 5000, "inf"):
        assert not tracked.readable(Facts(cost=cost))


def test_gpus_have_the_names_of_mlflows_system_metrics() -> None:
    gpu = Gpu("0", "GPU-1", "H100", 0.5, 40 * 2**30, 80 * 2**30, 350.0)
    points = {point.name: point.value for point in tracked.of_machine([gpu], 7, 1.0).points}
    assert points == {
        "system/gpu_0_utilization_percentage": 50.0,
        "system/gpu_0_memory_usage_megabytes": 40960.0,
        "system/gpu_0_memory_usage_percentage": 50.0,
        "system/gpu_0_power_usage_watts": 350.0,
    }


# -- in the rank -------------------------------------------------------------------------------------------------------


def test_points_are_thinned_fit_and_survive_what_is_no_number() -> None:
    points = Points(0)
    many = {f"metric_{number:04}": 1.0 for number in range(300)}
    for step in range(1, 501):
        points.note(
            step, {"accuracy": torch.tensor(step / 2), "several": torch.ones(2), **(many if step == 500 else {})}
        )
    points.note(500, {"loss": math.inf})
    messages = list(points.take(499))
    told = {step: values for message in messages for step, _, values in message.points}
    assert len(told) == STEPS_AT_ONCE
    assert told[499] == {"accuracy": "249.5"}
    assert all(report.decode(report.encode(one)) is not None for one in messages)
    last = list(points.take(500))
    assert not list(points.take(500))
    parts = [values for message in last for step, _, values in message.points if step == 500]
    assert {name: value for values in parts for name, value in values.items()} == {
        **dict.fromkeys(many, "1.0"),
        "accuracy": "250.0",
        "loss": "inf",
    }
    assert len(parts) > 1, "one step may be more than a message takes"
    assert all(len(report.encode(message)) < report.DATAGRAM_LIMIT for message in last)
    points.note(9, {"x": 1.0})
    points.go_back(8)
    assert not list(points.take(10)), "what was not, is not told"


def test_what_lies_on_a_device_is_read_when_the_losses_are() -> None:
    points = Points(0)
    for step in (1, 2):
        points.note(step, {"x": torch.tensor(step / 2)})
    points.settle(1)
    assert [metrics["x"] for _, metrics in points._steps.values()] == ["0.5", torch.tensor(1.0)]
    (message,) = points.take(2)
    assert [values for _, _, values in message.points] == [{"x": "0.5"}, {"x": "1.0"}]


def test_a_graph_is_not_kept() -> None:
    points = Points(0)
    weight = torch.ones(1, requires_grad=True)
    value = (weight * 2).sum()
    points.note(1, {"x": value})
    ((_, (_, kept)),) = points._steps.items()
    assert kept["x"].grad_fn is None


def test_descriptions_fit() -> None:
    messages = list(described.messages(0, "params", {f"p{number}": "ü" * 5000 for number in range(40)}))
    assert all(len(report.encode(one)) <= report.DATAGRAM_LIMIT for one in messages)
    assert {name for one in messages for name in one.values} == {f"p{number}" for number in range(40)}


@pytest.mark.parametrize(
    "said",
    [
        {"kind": "Points", "rank": 0, "points": 3},
        {"kind": "Points", "rank": 0, "points": [[1, 2.0]]},
        {"kind": "Points", "rank": 0, "points": [["1", 2.0, {}]]},
        {"kind": "Points", "rank": 0, "points": [[1, 2.0, {"loss": "low"}]]},
        {"kind": "Points", "rank": 0, "points": [[2**63, 2.0, {"loss": "1"}]]},
        {"kind": "Points", "rank": 0, "points": [[-1, 2.0, {"loss": "1"}]]},
        {"kind": "Points", "rank": 0, "points": [[1, 1e12, {"loss": "1"}]]},
        {"kind": "Points", "rank": 0, "points": [[1, -1.0, {"loss": "1"}]]},
        {"kind": "Points", "rank": 0, "points": [[1, 2.0, {"x" * 101: "1"}]]},
        {"kind": "Points", "rank": 0, "points": [[1, float("nan"), {"loss": "1"}]]},
        {"kind": "Described", "rank": 0, "about": "params", "values": {"lr": 3}},
        {"kind": "Described", "rank": 0, "about": "params", "values": "lr"},
    ],
)
def test_what_is_no_message_is_refused(said: object) -> None:
    import json

    assert report.decode(json.dumps(said).encode()) is None


# -- what waits for the tracker ----------------------------------------------------------------------------------------


class Log:
    """A tracker that fails where it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.points: list[Point] = []
        self.facts: dict[str, str] = {}
        self.status: RunStatus | None = None
        self.failing: list[Exception] = []

    def _fails(self) -> None:
        if self.failing:
            raise self.failing.pop(0)

    def begin(self, run: Run) -> str:
        self._fails()
        self.begun += 1
        return "log://"

    def params(self, values: Mapping[str, str]) -> None:
        self.facts |= values

    tags = params

    def metrics(self, points: Sequence[Point]) -> None:
        self._fails()
        assert len(points) <= BATCH
        self.points += points

    def end(self, status: RunStatus, at: float) -> None:
        self.status = status


def bring(log: Log, number: int, **options: int) -> list[Told]:
    told: list[Told] = []
    courier = Courier(lambda: log, RUN, told.append, **options)
    for first in range(0, number, 100):
        courier.add([Point("loss", 1.0, step, 0.0) for step in range(first, min(number, first + 100))])
    courier.know(params={"a": "1"}, tags={"b": "2"})
    courier.end(RunStatus.FINISHED, 1.0)
    courier.run()
    return told


def test_everything_arrives_in_order_and_in_batches() -> None:
    log = Log()
    told = bring(log, 2 * BATCH + 1)
    assert [point.step for point in log.points] == list(range(2 * BATCH + 1))
    assert (log.facts, log.status) == ({"a": "1", "b": "2"}, RunStatus.FINISHED)
    assert told[-1] == Told(True, "log://")


def test_the_oldest_make_room_and_are_counted() -> None:
    log = Log()
    told = bring(log, 500, points_kept=200)
    assert [point.step for point in log.points] == list(range(300, 500))
    assert told[-1].dropped == 300


def test_what_fails_is_tried_again_and_a_run_that_was_deleted_is_begun_anew() -> None:
    log = Log()
    log.failing = [TrackerError("away"), OSError("of somebody's own")]
    told = bring(log, 3)
    assert [one.text for one in told if one.well is False] == ["away", "of somebody's own"]
    assert len(log.points) == 3
    log = Log()
    log.failing = []
    told = []
    courier = Courier(lambda: log, RUN, told.append)
    courier.add([Point("loss", 1.0, 1, 0.0)])
    courier._flush()
    log.failing = [Rejected("deleted")]
    courier.add([Point("loss", 1.0, 2, 0.0)])
    courier._flush()
    assert (log.begun, len(log.points)) == (2, 2)


def test_a_run_that_is_refused_itself_loses_nothing_and_is_told() -> None:
    log = Log()
    log.failing = [Rejected("no such experiment"), Rejected("no such experiment")]
    told = bring(log, 3)
    assert [(one.well, one.text, one.dropped) for one in told[:1]] == [(False, "no such experiment", 0)]
    assert (told[-1].well, told[-1].dropped, len(log.points)) == (True, 0, 3)


class Picky(Log):
    """Refuses each call that has a bad value in it, as MLflow does."""

    def __init__(self, bad: set[int]) -> None:
        super().__init__()
        self.bad, self.requests = bad, 0

    def metrics(self, points: Sequence[Point]) -> None:
        self.requests += 1
        if any(point.step in self.bad for point in points):
            raise Rejected("Got invalid value")
        super().metrics(points)

    def params(self, values: Mapping[str, str]) -> None:
        if any(len(value) > 500 for value in values.values()):  # as MLflow before 2.8
            raise Rejected("Param value exceeded length at most 500")
        super().params(values)

    tags = params


def test_one_long_parameter_or_tag_costs_no_others() -> None:
    log = Picky(set())
    told: list[Told] = []
    courier = Courier(lambda: log, RUN, told.append)
    facts = {f"args/{number}": str(number) for number in range(40)}
    courier.know(params={**facts, "command": "x" * 501}, tags={"note": "y" * 501})
    courier.end(RunStatus.FINISHED, 1.0)
    courier.run()
    assert (log.facts, told[-1].dropped, told[-1].well) == (facts, 2, True)
    assert told[-1].text == "the tag 'note' was left out: Param value exceeded length at most 500"


def test_one_bad_value_costs_no_others() -> None:
    assert "the metric 'loss' was left out at step 0: Got invalid value" in bring(Picky({0}), 1)[-1].text
    for bad in ({417}, {0, 500, 999}):
        log = Picky(bad)
        told = bring(log, BATCH)
        assert {point.step for point in log.points} == set(range(BATCH)) - bad
        assert (told[-1].dropped, told[-1].well) == (len(bad), True)
        assert "'loss' was left out at step" in told[-1].text


def test_a_batch_of_bad_values_costs_a_bounded_number_of_requests() -> None:
    log = Picky(set(range(BATCH)))
    assert bring(log, BATCH)[-1].dropped == BATCH
    assert log.requests <= PARTS_TRIED + 3


def test_the_end_of_a_run_that_was_removed_is_told_to_a_new_one() -> None:
    class Removed(Log):
        def end(self, status: RunStatus, at: float) -> None:
            if self.begun == 1:
                raise Rejected("no such run")
            super().end(status, at)

    log = Removed()
    bring(log, 1)
    assert (log.begun, log.status) == (2, RunStatus.FINISHED)


def test_an_end_that_is_refused_again_is_told() -> None:
    class Endless(Log):
        def end(self, status: RunStatus, at: float) -> None:
            raise Rejected("no such status")

    told = bring(Endless(), 1)
    assert (told[-1].well, told[-1].text, told[-1].dropped) == (True, "no such status", 0)


@pytest.mark.parametrize(
    "packet", [b"", b"\xff", b"[]", b'{"points": [3]}', b'{"params": 3}', b'{"end": "?"}', b'{"end": "FAILED"}']
)
def test_a_packet_that_cannot_be_read_ends_no_listening(packet: bytes) -> None:
    courier = Courier(Log, RUN, lambda told: None)
    assert wire.take(packet, courier)
    assert wire.read_told(packet) is None
    assert wire.take(next(wire.facts("tags", {"a": "1"})), courier)
    assert courier._tags == {"a": "1"}


OWN = """
import os
class Mine:
    def __init__(self, uri): pass
    def begin(self, run): return ""
    def params(self, values): pass
    tags = metrics = params
    def end(self, status, at): open(os.environ["OWN_LOG"], "w").write(status.value)
"""


def test_the_end_is_told_though_the_process_has_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies at once, in a working directory that is gone, and the run ends before it would be started again."""
    (tmp_path / "mine.py").write_text(OWN)
    log, died = tmp_path / "log", tmp_path / "died"
    line = f"test -e {died} && exec {shlex.join(COMMAND)}; touch {died}"
    environ = {**os.environ, env.TRACKING_URI: "python://mine:Mine", "PYTHONPATH": str(tmp_path), "OWN_LOG": str(log)}
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    tracking = Tracking(config.read(environ, ("python", "x.py"), 1), environ, command=("sh", "-c", line))
    tracking.begin()
    until = time.monotonic() + 30
    while tracking.told == Told() and time.monotonic() < until:
        tracking.look((), Profiling())
    assert tracking.told is not None
    assert "its process has ended" in tracking.told.text
    done = ExitFacts(Cause.SUCCEEDED, exits.EXIT_OK, "")
    asyncio.run(tracking.end(done, None, by_signal=False, seconds=30))
    assert log.read_text() == "FINISHED"


def test_a_clock_that_is_set_back_keeps_a_process_that_died_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_runtime.launch.tracking._AGAIN_SECONDS", 0.01)
    starts, now = tmp_path / "starts", time.time()
    environ = {**os.environ, env.TRACKING_URI: "python://mine:Mine"}
    given = config.read(environ, ("python", "x.py"), 1)
    tracking = Tracking(given, environ, lambda: now, command=("sh", "-c", f"echo >> {starts}"))
    tracking.begin()
    until = time.monotonic() + 30
    while (not starts.exists() or len(starts.read_text()) < 3) and time.monotonic() < until:
        now -= 3600
        tracking.look((), Profiling())
    assert len(starts.read_text()) >= 3


def test_values_that_never_reached_the_launcher_count_as_dropped() -> None:
    environ = {env.TRACKING_URI: "http://127.0.0.1:9"}
    tracking = Tracking(config.read(environ, ("python", "x.py"), 1), environ)
    for rank, figures in ((0, 200), (1, 7), (0, 50)):  # only rank 0 tells of metrics
        tracking.hear(report.Lost(rank, 3, figures))
    assert tracking.told == Told(dropped=250)


def test_packets_keep_their_bounds() -> None:
    facts = {f"name-{number}": "\u20ac" * 10_000 for number in range(50)}
    packets = [
        *wire.facts("tags", facts),
        *(packet for packet, _ in wire.points([Point("x" * 250, 1.0, 1, 1.0)] * 999)),
    ]
    assert max(map(len, packets)) <= wire.PACKET_LIMIT
    courier = Courier(Log, RUN, lambda told: None)
    ours, its = wire.pair()
    with ours, its:
        for packet in packets:
            ours.send(packet)
            assert wire.take(its.recv(wire.PACKET_LIMIT), courier)
        ours.send(wire.end(RunStatus.FAILED, 1.0))
        assert not wire.take(its.recv(wire.PACKET_LIMIT), courier)
    assert courier._tags.keys() == facts.keys()
    assert len(courier._points) == 999
