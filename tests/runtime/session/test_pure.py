"""The session's pure parts: when to save, rates, MFU, the loss record."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muster_protocol import losses
from muster_protocol.losses import LossRecord
from muster_runtime.errors import UsageError
from muster_runtime.reporter import Reporter
from muster_runtime.session.checks import counted, refuse_uncountable, refuse_unreportable
from muster_runtime.session.gradients import Weight, times
from muster_runtime.session.progress import Metrics, Progress
from muster_runtime.session.schedule import FIRST_SECONDS, LONGEST_SECONDS, AutoInterval, Schedule
from muster_runtime.session.settings import read_settings
from muster_runtime.session.start import refuse_shared
from muster_runtime.telemetry.peaks import peak_flops
from muster_runtime.telemetry.throughput import Meter, model_flops_utilisation


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (10**400, r"session.report\(m=...\): the number is beyond a float's range; report its logarithm"),
        (10**5000, "beyond a float's range"),  # which has too many digits to be told
        (Fraction(10**400, 3), "beyond a float's range"),
        (Decimal("sNaN"), "this Decimal is none"),
        (np.array(["high"]), "this ndarray is none"),
        (torch.tensor(1.0, device="meta"), "a metric is a number"),
    ],
    ids=["int", "long", "Fraction", "Decimal", "text", "meta"],
)
def test_what_is_no_float_is_no_metric(value: Any, told: str) -> None:
    for name in ("m", "loss", "tokens"):
        with pytest.raises(UsageError, match=told.replace("m=", f"{name}=")):
            refuse_unreportable({name: value})


@pytest.mark.parametrize("tokens", [-1, math.nan, math.inf, np.int64(-2), torch.tensor(math.nan)])
def test_tokens_are_a_count(tokens: Any) -> None:
    with pytest.raises(UsageError, match=r"session.report\(tokens=.*\): it is a number of 0 or more"):
        refuse_uncountable(tokens)
    refuse_uncountable(0)


def test_numbers_of_any_library_are_metrics_and_counts() -> None:
    progress = Progress(0, 1, torch.device("cpu"), Reporter())
    numbers = (np.array([[2.0]]), np.float32(2), np.int64(2), Decimal(2), Fraction(2), torch.tensor([2]), 2, 2.0)
    for number in numbers:
        refuse_unreportable({"m": number})
        progress.note(1, number, number, {"m": number})
        assert progress.metrics().values == {"m": 2.0}
    assert progress.take_losses(1, read=True) == (((2.0, 1.0),), 2.0 * len(numbers))


def test_due_by_steps_until_saved() -> None:
    schedule = Schedule(4, None, 0.0)
    assert [step for step in range(1, 13) if schedule.is_due(step, 0.0) and not schedule.saved(0.0)] == [4, 8, 12]
    assert not schedule.is_due(3, 0.0)
    assert schedule.is_due(4, 0.0)
    assert schedule.is_due(5, 0.0), "a save that had to wait stays due"


def test_due_by_time_since_the_last_save() -> None:
    schedule = Schedule(None, 10.0, 100.0)
    assert not schedule.is_due(1, 109.9)
    assert schedule.is_due(2, 110.0)
    schedule.saved(111.0)
    assert not schedule.is_due(3, 120.9)


def test_a_save_that_came_to_nothing_is_made_up_for_once() -> None:
    schedule = Schedule(None, 3600.0, 0.0)
    assert schedule.is_due(1, 3600.0)
    schedule.again(4000.0)  # a blocking save has failed by now
    schedule.saved(3700.0)
    assert not schedule.is_due(2, 3999.0)
    assert schedule.is_due(3, 4000.0)
    schedule.saved(4001.0)
    assert not schedule.is_due(4, 7600.0)
    schedule.again(9000.0)
    assert schedule.is_due(5, 7601.0)
    schedule.saved(7602.0)
    assert not schedule.is_due(6, 9001.0), "the one before it has made up for it"


def test_the_automatic_interval_is_youngs() -> None:
    auto = AutoInterval(node_hours=96.0, workers=4)
    schedule = Schedule(None, None, 0.0, auto=auto)
    assert not schedule.is_due(1, FIRST_SECONDS - 1)
    assert schedule.is_due(1, FIRST_SECONDS)
    schedule.saved(FIRST_SECONDS)
    auto.measured(stall=2.0, durable=30.0)
    assert auto.seconds == pytest.approx((2 * 2.0 * 24 * 3600) ** 0.5)  # 588 s
    assert not schedule.is_due(2, FIRST_SECONDS + 587)
    assert schedule.is_due(2, FIRST_SECONDS + 588)


def test_the_automatic_interval_follows_what_saves_cost_now() -> None:
    auto = AutoInterval(24.0)
    auto.measured(8.0, 30.0)  # the first one plans, and zeroes fresh memory
    first = auto.seconds
    for _ in range(20):
        auto.measured(0.5, 3.0)
    assert auto.seconds == pytest.approx(first / 4, rel=1e-3)
    auto.node_hours = 96.0
    assert auto.seconds == pytest.approx(first / 2, rel=1e-3), "and what is known of nodes now"


@given(st.floats(0, 1e4), st.floats(0, 3000), st.floats(1, 1e10))
def test_the_automatic_interval_has_bounds(stall: float, durable: float, between: float) -> None:
    auto = AutoInterval(between)
    auto.measured(stall, durable)
    assert durable <= auto.seconds <= LONGEST_SECONDS
    auto.measured(stall, 2 * LONGEST_SECONDS)
    assert auto.seconds >= auto.durable, "never more often than a save takes to be durable"


def test_any_node_of_the_gang_may_fail() -> None:
    job = {"MUSTER_CHECKPOINT_INTERVAL": "auto", "MUSTER_CHECKPOINT_NODE_HOURS": "100", "MUSTER_WORKERS": "50"}
    found = read_settings(job)
    assert (found.node_hours, found.workers, found.interval_seconds) == (100.0, 50, None)
    assert AutoInterval(found.node_hours, found.workers).between_failures == 2 * 3600.0
    assert read_settings({"MUSTER_CHECKPOINT_INTERVAL": "90"}).node_hours is None
    with pytest.raises(UsageError, match="MUSTER_CHECKPOINT_NODE_HOURS is 'often'"):
        read_settings({**job, "MUSTER_CHECKPOINT_NODE_HOURS": "often"})


def test_rates_leave_saves_out() -> None:
    meter = Meter(0.0)
    assert meter.read(1.0) is None
    for _ in range(10):
        meter.add(100)
    meter.pause(3.0)
    rates = meter.read(5.0)
    assert rates is not None
    assert (rates.step_seconds, rates.tokens_per_second) == (0.2, 500.0)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H200 NVL", 835.5e12),
        ("Tesla T4", 65e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GeForce RTX 3090", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA RTX A4000", None),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA B300 SXM6 AC", 2250e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA GH200 480GB", 989.4e12),
        ("Tesla V100-SXM2-16GB", 125e12),
        ("AMD Instinct MI250X / MI250", 191.5e12),
    ],
)
def test_peaks_by_device_name(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak


def test_the_peak_is_what_the_script_says() -> None:
    progress = Progress(0, 1, torch.device("cpu"), Reporter())
    assert progress.peak() is None
    progress.peak_flops = 1e9
    assert progress.peak() == 1e9


def test_a_reported_tensor_does_not_keep_the_graph_that_it_came_from() -> None:
    progress = Progress(0, 1, torch.device("cpu"), Reporter())
    progress.note(1, None, None, {"accuracy": (torch.ones(3, requires_grad=True) * 2).mean()})
    assert not progress.reported["accuracy"].requires_grad
    assert progress.metrics().values == {"accuracy": 2.0}


def test_a_reported_tensor_that_the_script_goes_on_with_is_what_was_reported() -> None:
    """Losses on GPUs are read ten steps later, and metrics when a checkpoint is saved."""
    progress = Progress(0, 1, torch.device("cuda"), Reporter())
    running, hits = torch.tensor(2.0), np.array(3.0)
    progress.note(1, running, None, {"accuracy": running, "hits": hits})
    running.zero_()
    hits[...] = 0.0
    assert progress.metrics().values == {"accuracy": 2.0, "hits": 3.0}
    assert progress.take_losses(1, True)[0][0] == (2.0, 1.0)


def test_what_was_reported_of_steps_that_were_taken_back_is_no_metric_of_what_follows() -> None:
    progress = Progress(0, 1, torch.device("cpu"), Reporter())
    progress.note(10, None, None, {"accuracy": 0.5, "recall": 0.5})
    progress.note(12, None, None, {"accuracy": 0.9})
    progress.go_back(11)
    assert progress.metrics() == Metrics({"recall": 0.5}, measured={"recall": 10})


def test_a_metric_of_none_says_nothing() -> None:
    """As scripts write it that evaluate now and then: it ended the run at the next save."""
    progress = Progress(0, 1, torch.device("cpu"), Reporter())
    progress.note(1, None, None, {"accuracy": 0.5})
    progress.note(2, None, None, {"accuracy": None, "other": None})
    assert progress.metrics() == Metrics({"accuracy": 0.5}, measured={"accuracy": 1})


@pytest.mark.parametrize("total", [5, np.int64(5), torch.tensor(5)])
def test_a_total_is_a_plain_number(total: Any) -> None:
    """It stands in the manifest, as JSON."""
    assert type(counted("steps", total, "here.py:1")) is int


@pytest.mark.parametrize("total", ["5", 5.0, np.float64(5), torch.tensor(5.0), None])
def test_a_total_that_is_no_whole_number_is_refused(total: Any) -> None:
    with pytest.raises(UsageError, match=r"here.py:1: session.steps\(.*the total is a whole number"):
        counted("steps", total, "here.py:1")


def test_mfu() -> None:
    assert model_flops_utilisation(1000.0, 6e9, 312e12, 8) == pytest.approx(6e12 / (8 * 312e12))
    assert model_flops_utilisation(None, 6e9, 312e12, 8) is None
    assert model_flops_utilisation(1000.0, 6e9, None, 8) is None


@given(st.lists(st.floats(), max_size=5))
def test_a_loss_record_keeps_every_bit(values: list[float]) -> None:
    record = LossRecord(3, 10, tuple(enumerate(values, 10)))
    back = losses.decode(losses.encode(record))
    assert [(step, loss.hex()) for step, loss in back.losses] == [(step, loss.hex()) for step, loss in record.losses]
    assert (back.epoch, back.restored) == (3, 10)


def test_the_curve_is_the_run_as_it_went_in_the_end() -> None:
    def record(epoch: int, restored: int, first: int, *values: float) -> LossRecord:
        return LossRecord(epoch, restored, tuple(enumerate(values, first)))

    curve = losses.loss_curve(
        [
            record(2, 2, 4, 2.4),
            record(1, 0, 2, 1.2, 1.3),  # written, but step 4 was never committed: epoch 2 began at 2
            record(1, 0, 0, 1.0, 1.1),
            record(2, 2, 2, 2.2, 2.3),
        ]
    )
    assert curve == {0: 1.0, 1: 1.1, 2: 2.2, 3: 2.3, 4: 2.4}
    with pytest.raises(ValueError, match="not a loss record"):
        losses.decode(b"{}")


def test_what_the_job_says_wins_over_the_script() -> None:
    job = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MUSTER_STRATEGY": "fsdp", "MUSTER_SEED": "8"}
    found = read_settings(job, seed=3, strategy="ddp", checkpoint="file:///x", every_steps=5)
    assert (found.strategy, found.seed, found.checkpoint, found.every_steps) == ("fsdp", 8, "file:///x", 5)
    with pytest.raises(UsageError, match=r"no place for its own checkpoints, so it would begin anew"):
        read_settings({"MUSTER_CHECKPOINT_FROM": "s3://models/base"})
    laptop = read_settings({}, strategy="fsdp")
    assert (laptop.strategy, laptop.world_size, laptop.distributed) == ("none", 1, False)
    assert read_settings({"RANK": "0", "WORLD_SIZE": "2"}).strategy == "ddp"


@pytest.mark.parametrize(
    ("name", "value", "pattern"),
    [
        ("MUSTER_CHECKPOINT_EVERY_STEPS", "-1", "EVERY_STEPS is '-1'; it must be a whole number of 0 or more"),
        ("MUSTER_CHECKPOINT_KEEP_LAST", "-1", "KEEP_LAST is '-1'; it must be a whole number of 0 or more"),
        ("MUSTER_CHECKPOINT_INTERVAL", "nan", "INTERVAL is 'nan'; it is a number of seconds, or auto"),
        ("MUSTER_CHECKPOINT_INTERVAL", "-7", "INTERVAL is '-7'; it is a number of seconds, or auto"),
        ("MUSTER_CHECKPOINT_INTERVAL", "inf", "INTERVAL is 'inf'; it is a number of seconds, or auto"),
        ("MUSTER_SEED", str(2**64), f"the seed {2**64} is too large; torch takes"),
        ("MUSTER_CHECKPOINT_URI", "s3://models/run@6", "a run can't be named s3://models/run@6: .* write s3://models/"),
    ],
)
def test_what_a_setting_can_not_be_is_told(name: str, value: str, pattern: str) -> None:
    with pytest.raises(UsageError, match=pattern):
        read_settings({name: value})


def test_ranks_that_have_one_gpu_together_are_told_before_nccl_is_asked() -> None:
    refuse_shared(["GPU-a", "GPU-b", "GPU-c"], "train.py:3")
    with pytest.raises(UsageError, match=r"train.py:3: rank 1 and rank 3 have one GPU .*GPU-b.* start 3 ranks, as"):
        refuse_shared(["GPU-a", "GPU-b", "GPU-c", "GPU-b"], "train.py:3")
    with pytest.raises(UsageError, match="start 1 rank, as many"):
        refuse_shared(["GPU-a", "GPU-a"], "train.py:3")


@pytest.mark.parametrize("weight", [0, torch.tensor(0)], ids=["number", "tensor"])
@pytest.mark.parametrize("own", [False, True], ids=["cross_entropy", "clamped"])
def test_a_microbatch_without_tokens_has_no_gradient(own: bool, weight: Weight) -> None:
    scores = torch.randn(3, 5, requires_grad=True)
    targets = torch.full((3,), -100)
    if own:
        mask = targets != -100
        loss = (scores.logsumexp(1) * mask).sum() / mask.sum().clamp(min=1)
    else:
        loss = torch.nn.functional.cross_entropy(scores, targets)
        assert loss.isnan()
    weighed = times(loss, weight)
    weighed.backward()  # type: ignore[no-untyped-call]
    assert weighed == 0
    assert scores.grad is not None
    assert not scores.grad.any()
