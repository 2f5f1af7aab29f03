"""Steps whose loss or gradients are not sound: found alike on all ranks, and skipped, gone back from, or the end."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from gangs import Result, run_gang
from hack.needs_torch import SHARDS
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from muster_runtime.errors import UsageError
from muster_runtime.parallel.norms import own_square
from muster_runtime.session.checks import refuse_no_way_back
from muster_runtime.session.numerics import LEAST, LIMIT_STEPS, LOSS, NORM, Action, Rules, Watch
from muster_runtime.session.settings import read_settings

SOUND = st.floats(0.5, 2.0)


# ---------------------------------------------------------------------------------------------------- what is a spike


def rules(action: Action = Action.SKIP, **more: Any) -> Rules:
    return Rules(action, **{"loss_factor": 3.0, **more})


def watching(values: list[float], **more: Any) -> Watch:
    watch = Watch(rules(**more))
    for step, value in enumerate(values):
        assert watch.judge(step, {LOSS: value}) is None
    return watch


@given(st.lists(SOUND, min_size=LEAST, max_size=300), st.floats(0.01, 100.0))
def test_a_spike_is_what_exceeds_its_factor_times_the_median_of_late(values: list[float], value: float) -> None:
    watch = Watch(rules(loss_factor=4.5))  # of values from 0.5 to 2 none is 4.5 times their median
    assert all(watch.judge(step, {LOSS: one}) is None for step, one in enumerate(values))
    usual = median(values[-128:])
    found = watch.judge(len(values), {LOSS: value})
    assert (found is not None) == (value > 4.5 * usual)
    if found is not None:
        assert (found.anomaly.step, found.anomaly.value, found.anomaly.usual) == (len(values), value, usual)


@given(st.lists(SOUND, max_size=LEAST - 1), st.sampled_from(["nan", "inf", "-inf"]))
def test_what_is_not_finite_is_unsound_from_the_first_step_on(values: list[float], text: str) -> None:
    watch = watching(values, loss_factor=None)
    assert watch.judge(len(values), {LOSS: 1e30, NORM: 1e30}) is None
    for signal in (LOSS, NORM):
        found = watch.judge(len(values) + 1, {LOSS: 1.0, NORM: 1.0, signal: float(text)})
        assert found is not None
        assert (found.anomaly.signal, found.anomaly.usual, found.ends) == (signal, None, "")


def test_a_start_and_negative_losses_have_no_spikes() -> None:
    watch = Watch(rules())
    assert all(watch.judge(step, {LOSS: 10.0 ** (step % 2)}) is None for step in range(LEAST))
    watch = watching([-1.0] * 50)
    assert watch.judge(50, {LOSS: 100.0}) is None


def test_what_is_unsound_is_not_remembered_as_usual() -> None:
    watch = watching([1.0] * LEAST, limit=100)
    for step in range(LEAST, 3 * LEAST):
        found = watch.judge(step, {LOSS: 5.0, NORM: 1.0})
        assert found is not None
        assert found.anomaly.usual == 1.0
        watch.skip(found.anomaly, "")
    assert NORM not in watch.state()["usual"], "nor is what came with it"


def test_the_limit_counts_within_a_window_of_steps() -> None:
    watch = watching([1.0] * LEAST, limit=2)
    for step in (100, 200):
        found = watch.judge(step, {LOSS: 9.0})
        assert found is not None
        assert not found.ends
        watch.skip(found.anomaly, "told")
    third = watch.judge(300, {LOSS: 9.0})
    assert third is not None
    assert "spec.numerics.limit allows no more" in third.ends
    later = watch.judge(100 + LIMIT_STEPS, {LOSS: 9.0})
    assert later is not None
    assert not later.ends
    assert (watch.skipped, watch.last) == (2, "told")


def test_the_same_step_again_after_going_back_is_not_the_data() -> None:
    watch = watching([1.0] * LEAST, action=Action.ROLLBACK)
    saved = json.loads(json.dumps(watch.state()))
    assert watch.judge(LEAST, {LOSS: 2.0}) is None
    for text, ends in (("nan", False), ("nan", True)):
        found = watch.judge(LEAST + 5, {LOSS: float(text)})
        assert found is not None
        assert bool(found.ends) == ends
        watch.go_back(found.anomaly, "told", saved)
        assert watch.state()["usual"] == saved["usual"], "what came after the checkpoint was not"
    assert "it isn't the data" in found.ends
    assert watch.rollbacks == 2


@given(st.lists(SOUND, max_size=200), st.lists(SOUND, max_size=40))
def test_a_run_that_was_cut_judges_as_one_that_was_not(before: list[float], after: list[float]) -> None:
    whole = watching(before, loss_factor=4.5)
    whole.skip(whole.judge(len(before), {LOSS: float("nan")}).anomaly, "x")  # type: ignore[union-attr]
    cut = Watch(whole.rules)
    cut.load(json.loads(json.dumps(whole.state())))
    for step, value in enumerate([*after, 7.0, float("inf")], len(before) + 1):
        assert cut.judge(step, {LOSS: value}) == whole.judge(step, {LOSS: value})
    assert cut.state() == whole.state()


def test_the_job_says_what_is_watched() -> None:
    job = {"MUSTER_NUMERICS": "rollback", "MUSTER_NUMERICS_LOSS": "1.5", "MUSTER_NUMERICS_LIMIT": "4"}
    assert read_settings(job).numerics == Rules(Action.ROLLBACK, 1.5, None, 4)
    assert read_settings({}).numerics is None
    for name, value in (("MUSTER_NUMERICS", "pray"), ("MUSTER_NUMERICS_NORM", "0.5"), ("MUSTER_NUMERICS_LOSS", "x")):
        with pytest.raises(UsageError, match=f"{name} is '{value}'"):
            read_settings({"MUSTER_NUMERICS": "skip", name: value})


def test_the_norm_is_that_of_all_gradients() -> None:
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))]
    assert own_square(parameters, 1) is None
    parameters[0].grad = torch.tensor([1.0, 2.0, 2.0])
    parameters[1].grad = torch.sparse_coo_tensor([[1, 1]], [1.0, 3.0], (2,))
    for ranks in (1, 4):
        square = own_square(parameters, ranks)
        assert square is not None
        assert square.item() == pytest.approx((9 + 16) / ranks)


# ---------------------------------------------------------------------------------------------------------------- gangs


def train(folder: Path, ranks: int = 2, strategy: str = "ddp", **more: str) -> Result:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        "FOLDER": str(folder),
        "MUSTER_STRATEGY": strategy,
        "MUSTER_CHECKPOINT_URI": f"file://{folder}/run",
        "MUSTER_CHECKPOINT_EVERY_STEPS": "4",
        "MUSTER_CHECKPOINT_BLOCKING": "1",  # so that no save is left out for the one before
        **more,
    }
    return run_gang("unsound.py", folder, ranks, environment, distributed=ranks > 1)


def lines(folder: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"record-{rank}.jsonl").read_text().splitlines()]


def curve(folder: Path, ranks: int = 2) -> list[dict[int, Any]]:
    """By rank: what each step was in the end."""
    return [{line["step"]: line for line in lines(folder, rank) if "step" in line} for rank in range(ranks)]


def finals(folder: Path, ranks: int = 2) -> list[str]:
    return [(folder / f"final-{rank}").read_text() for rank in range(ranks)]


STEPS = {"STEPS": "14"}
ONE_RANK = {"BAD": "27"}  # in batch 6, in the half of rank 1


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=SHARDS)])
def test_what_one_rank_sees_all_skip(strategy: str, tmp_path: Path) -> None:
    result = train(tmp_path, strategy=strategy, MUSTER_NUMERICS="skip", **STEPS, **ONE_RANK).check()
    found = curve(tmp_path)
    assert [steps[6]["loss"] for steps in found].count("nan") == 1
    for steps in found:
        assert [step for step, entry in steps.items() if not entry["updated"]] == [6]
        assert all("nan" not in entry["loss"] for step, entry in steps.items() if step > 6)
    told = "WARNING: the loss of the step after step 6 is nan (by the loss on rank 1; the others' are finite)"
    assert f"{told}; its update was left out" in result.output
    samples = [number for entry in (found[0], found[1]) for step in entry.values() for number in step["ids"]]
    assert sorted(samples) == list(range(4 * 14)), "the batch was had all the same"


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run whose data has no batch 6, by strategy."""
    made: dict[str, Path] = {}

    def get(strategy: str) -> Path:
        if strategy not in made:
            made[strategy] = tmp_path_factory.mktemp(strategy)
            train(made[strategy], strategy=strategy, WITHOUT="24 25 26 27", **STEPS).check()
        return made[strategy]

    return get


@pytest.mark.parametrize(
    ("strategy", "read", "found_after"), [("ddp", "1", 7), pytest.param("fsdp", "10", 8, marks=SHARDS)]
)
def test_after_a_rollback_every_bit_is_that_of_a_run_without_the_batch(
    strategy: str, read: str, found_after: int, tmp_path: Path, without: Any
) -> None:
    """Where losses are read every 10 steps, as on GPUs, it is found before the next save."""
    result = train(tmp_path, strategy=strategy, MUSTER_NUMERICS="rollback", READ=read, **STEPS, **ONE_RANK).check()
    assert "back to step 4, and on without batch 6 of epoch 0" in result.output
    assert curve(tmp_path) == curve(without(strategy))
    assert finals(tmp_path) == finals(without(strategy))
    trained = [entry["step"] for entry in lines(tmp_path, 0)]
    assert trained == [*range(found_after), *range(4, 14)]


def test_a_restart_before_the_batch_that_is_left_out_knows_it(tmp_path: Path, without: Any) -> None:
    """Stopped between the checkpoint that the run went back to and the batch."""
    watched = {"MUSTER_NUMERICS": "rollback", **STEPS, **ONE_RANK}
    stopped = train(tmp_path, **watched, STOP="5")
    assert stopped.codes == [75, 75], stopped.output
    again = train(tmp_path, **watched).check()
    assert "resumed after step 6" in again.output
    assert "back to step" not in again.output
    assert curve(tmp_path) == curve(without("ddp"))
    assert finals(tmp_path) == finals(without("ddp"))


@pytest.mark.parametrize("every", ["5", "7"], ids=["in the epoch before", "in the same epoch"])
def test_over_epochs_whole_bodies_run_again(every: str, tmp_path: Path) -> None:
    """Epochs of 6 batches; batch 2 of epoch 1 is step 8."""
    epochs = {"EPOCHS": "3", "SAMPLES": "24", "MUSTER_CHECKPOINT_EVERY_STEPS": every}
    train(tmp_path / "without", 1, LEFT_OUT="1:2", **epochs).check()
    back = train(tmp_path / "back", 1, MUSTER_NUMERICS="rollback", BAD="10", EPOCH="1", **epochs).check()
    assert f"back to step {every}, and on without batch 2 of epoch 1" in back.output
    assert curve(tmp_path / "back", 1) == curve(tmp_path / "without", 1)
    assert finals(tmp_path / "back", 1) == finals(tmp_path / "without", 1)
    back_bodies, bodies = (
        {line["epoch"]: line for line in lines(tmp_path / name, 0) if "epoch" in line} for name in ("back", "without")
    )
    assert back_bodies == bodies
    assert sorted(bodies) == [0, 1, 2]
    assert len(curve(tmp_path / "back", 1)[0]) == 17


def test_a_spike_is_gone_back_from_before_the_first_checkpoint_by_time(tmp_path: Path) -> None:
    spike = {"BAD": "82", "TIMES": "1000", "STEPS": "22", "MUSTER_CHECKPOINT_EVERY_STEPS": ""}
    ids = "80 81 82 83"  # batch 20
    train(tmp_path / "without", 1, WITHOUT=ids, **spike | {"BAD": ""}).check()
    watched = {"MUSTER_NUMERICS": "rollback", "MUSTER_NUMERICS_LOSS": "30"}
    back = train(tmp_path / "back", 1, **watched, **spike).check()
    assert "the loss of the step after step 20 is" in back.output
    assert "back to step 0, and on without batch 20 of epoch 0" in back.output
    assert curve(tmp_path / "back", 1) == curve(tmp_path / "without", 1)
    assert finals(tmp_path / "back", 1) == finals(tmp_path / "without", 1)


def test_the_same_step_again_ends_the_run_in_clear_words(tmp_path: Path) -> None:
    result = train(tmp_path, 1, MUSTER_NUMERICS="rollback", BAD="25 31", **STEPS)
    assert result.codes == [1], result.output
    assert "on without batch 6 of epoch 0" in result.output
    last = result.output.strip().splitlines()[-1]
    assert last.startswith("muster_runtime.errors.NumericsError: the loss of the step after step 6 is nan, and the run")
    assert "with another batch, so it isn't the data" in last
    assert sorted(path.name.split("-e")[0] for path in (tmp_path / "run").glob("step-*")) == [
        "step-00000000",
        "step-00000004",
    ]


def test_stop_ends_the_run_at_the_step(tmp_path: Path) -> None:
    result = train(tmp_path, 1, MUSTER_NUMERICS="stop", **STEPS, **ONE_RANK)
    assert result.codes == [1], result.output
    told = "NumericsError: the loss of the step after step 6 is nan, and the run ends: spec.numerics.action is stop"
    assert result.output.strip().endswith(told)
    assert len(lines(tmp_path, 0)) == 7


def test_an_unsound_loss_that_nothing_watches_is_told_once(tmp_path: Path) -> None:
    """The run ends well otherwise, and its sound checkpoints may be pruned by then."""
    result = train(tmp_path, 1, **STEPS, **ONE_RANK)
    assert result.codes == [0], result.output
    told = "WARNING: the loss of the step after step 6 is nan, and training goes on: nothing watches losses"
    assert result.output.count("WARNING: the loss of the step") == result.output.count(told) == 1


def test_a_loss_that_comes_too_late_to_skip_its_step_is_said(tmp_path: Path) -> None:
    result = train(tmp_path, 1, MUSTER_NUMERICS="skip", LATE="1", STEPS="3").check()
    assert result.output.count("call session.report(loss=) above it") == 1
    assert "above it" not in train(tmp_path / "early", 1, MUSTER_NUMERICS="skip", STEPS="3").check().output


def test_a_way_back_needs_a_loader_and_a_checkpoint() -> None:
    with pytest.raises(UsageError, match=r"write session.steps\(TOTAL, loader\), or choose skip or stop"):
        refuse_no_way_back(None, True, "train.py:3")
    with pytest.raises(UsageError, match=r"there is no checkpoint\.uri to go back to"):
        refuse_no_way_back(object(), False, "train.py:3")  # type: ignore[arg-type]
