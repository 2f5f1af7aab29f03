"""session.loader and session.backward: one global batch, whatever its share on each rank."""

from __future__ import annotations

import json
import re
import runpy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from gangs import SCRIPTS, Result, run_gang
from hack.needs_torch import SHARDS
from torch import nn

from muster_runtime.data.order import Microbatch
from muster_runtime.errors import UsageError
from muster_runtime.session.gradients import Gradients
from muster_runtime.session.tracking import Tracked

STEPS = 60
EPOCH = [32] * 6 + [11]  # 203 samples


def train(folder: Path, strategy: str, ranks: int, **more: str) -> Result:
    folder.mkdir(exist_ok=True)
    environment = {
        "FOLDER": str(folder),
        "STEPS": str(STEPS),
        "MUSTER_STRATEGY": strategy,
        "MUSTER_CHECKPOINT_URI": f"file://{folder}/run",
        **more,
    }
    return run_gang("elastic.py", folder, ranks, environment, kill_peers="KILL" in more)


def records(folder: Path, ranks: int) -> dict[int, list[dict[str, Any]]]:
    """step -> what each rank did, in rank order. Takes the files away."""
    found: dict[int, list[dict[str, Any]]] = {}
    for rank in range(ranks):
        path = folder / f"record-{rank}.jsonl"
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            found.setdefault(entry["step"], []).append(entry)
        path.unlink()
    return found


def ids(step: list[dict[str, Any]]) -> list[int]:
    return [sample for rank in step for sample in rank["ids"]]


def loss(step: list[dict[str, Any]]) -> float:
    mean: float = sum(rank["loss"] for rank in step) / sum(rank["weight"] for rank in step)
    return mean


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=SHARDS)])
def test_four_three_two_and_four_ranks_train_as_four_do(strategy: str, tmp_path: Path) -> None:
    train(tmp_path / "whole", strategy, 4, MICROBATCH="4").check()
    whole = records(tmp_path / "whole", 4)
    found: dict[int, list[dict[str, Any]]] = {}
    for ranks, stop in ((4, "4"), (3, "20"), (2, "33"), (4, "")):
        result = train(tmp_path / "cut", strategy, ranks, STOP=stop, MICROBATCH="4")
        assert result.codes == ([75] if stop else [0]) * ranks, result.output
        part = records(tmp_path / "cut", ranks)
        assert not part.keys() & found.keys()
        found |= part
    assert sorted(found) == list(range(STEPS))
    for step in range(STEPS):
        assert ids(found[step]) == ids(whole[step]), f"step {step}"
        assert loss(found[step]) == pytest.approx(loss(whole[step]), rel=1e-4), f"step {step}"
    for epoch in range(STEPS // len(EPOCH)):
        steps = [found[epoch * len(EPOCH) + number] for number in range(len(EPOCH))]
        assert [len(ids(step)) for step in steps] == EPOCH
        assert sorted(sample for step in steps for sample in ids(step)) == list(range(203))
    assert [rank["passes"] for rank in found[10]] == [3] * 3, "shares of 11, 11 and 10 in microbatches of at most 4"


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=SHARDS)])
def test_three_ranks_killed_and_resumed_have_every_bit(strategy: str, tmp_path: Path) -> None:
    settings = {"STEPS": "12", "MICROBATCH": "5", "MUSTER_CHECKPOINT_EVERY_STEPS": "4"}
    train(tmp_path / "whole", strategy, 3, **settings).check()
    whole = records(tmp_path / "whole", 3)
    killed = train(tmp_path / "cut", strategy, 3, KILL="8", MUSTER_CHECKPOINT_BLOCKING="1", **settings)
    assert -9 in killed.codes
    first = records(tmp_path / "cut", 3)
    train(tmp_path / "cut", strategy, 3, **settings).check()
    second = records(tmp_path / "cut", 3)
    assert min(second) == 8
    assert {**first, **second} == whole
    for rank in range(3):
        assert (tmp_path / "cut" / f"final-{rank}").read_text() == (tmp_path / "whole" / f"final-{rank}").read_text()


@pytest.mark.parametrize("by", ["tokens", "samples"])
@pytest.mark.parametrize(
    ("strategy", "ranks", "microbatch", "more"),
    [
        ("ddp", 3, "2", {}),
        ("ddp", 2, "2", {"PART": "tracked as well"}),
        pytest.param("fsdp", 3, "0", {}, marks=SHARDS),
        pytest.param("fsdp", 4, "1", {}, marks=SHARDS),
        pytest.param("hsdp", 4, "2", {}, marks=SHARDS),
    ],
)
def test_gradients_are_those_of_one_process_with_the_whole_batch(
    strategy: str, ranks: int, microbatch: str, more: dict[str, str], by: str, tmp_path: Path
) -> None:
    """Batches of 7, 7 and 2 samples: the last leaves ranks without any."""
    environment = {"FOLDER": str(tmp_path), "MUSTER_STRATEGY": strategy, "MICROBATCH": microbatch, "BY": by, **more}
    run_gang("weighed.py", tmp_path, ranks, environment, ranks_per_worker=2 if strategy == "hsdp" else None).check()
    script = runpy.run_path(str(SCRIPTS / "weighed.py"))
    data = script["Sequences"]()
    for step, places in enumerate((range(7), range(7, 14), range(14, 16))):
        model = script["make_model"]()
        tokens, targets = (torch.stack(column) for column in zip(*map(data.__getitem__, places), strict=True))
        script["loss_of"](model, tokens, targets, by).backward()
        for rank in range(ranks):
            found = torch.load(tmp_path / f"gradients-{rank}-{step}")
            for gradient, parameter in zip(found, model.parameters(), strict=True):
                torch.testing.assert_close(gradient, parameter.grad, rtol=1e-12, atol=1e-14)


HEAD = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import muster_runtime as muster

session = muster.start()
model = session.wrap(nn.Linear(4, 1))
data = TensorDataset(torch.arange(48.0).view(12, 4))
def make(**more):
    return session.loader(data, **{"global_batch": 4, **more})
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
def start(loader):
    session.track(model=model, optimizer=optimizer, loader=loader)
    return session.steps(3, loader)
"""


def run(folder: Path, body: str, ranks: int) -> Result:
    (folder / "script.py").write_text(HEAD + body)
    return run_gang(folder / "script.py", folder, ranks, {"MUSTER_STRATEGY": "ddp"}, distributed=ranks > 1)


PLAIN = """
for step, batch in start(make({more})):
    for (x,) in batch:
        loss = model(x).mean()
        loss.backward()
        session.report(loss=loss)
    optimizer.step()  # here
    optimizer.zero_grad()
    print("done", step, model.weight.tolist())
"""
WEIGHED = """
for step, batch in start(make({more})):
    for number, (x,) in enumerate(batch):
        {before}
        session.backward(model(x).mean(){weight})  # backward
        {after}
    optimizer.step()  # step
"""


def weighed(more: str = "", weight: str = "", before: str = "pass", after: str = "pass") -> str:
    return WEIGHED.format(more=more, weight=weight, before=before, after=after)


MISTAKES = {
    "unequal shares and loss.backward()": (3, PLAIN.format(more=""), "here: .*3 ranks share batches of 4 unequally"),
    "several microbatches and loss.backward()": (
        1,
        PLAIN.format(more="microbatch=2"),
        r"here: .*or in several microbatches; write session.backward\(loss\) instead",
    ),
    "optimizer.step() among the microbatches": (
        1,
        weighed("microbatch=1", after="optimizer.step()  # here"),
        r"here: 1 of this step's 4 microbatches had session.backward.*Call optimizer.step\(\) after the loop",
    ),
    "a microbatch left out": (
        1,
        weighed("microbatch=1", before="if number == 3: break"),
        "step: 3 of this step's 4 microbatches had session.backward",
    ),
    "a weight in some microbatches": (
        1,
        weighed("microbatch=1", weight=", [None, 3][number]"),
        "backward: session.backward has a weight in some microbatches of this step and none in others",
    ),
    "two weighed losses": (
        1,
        weighed(weight=", 2", after="session.backward(model(x).mean(), 2)  # here"),
        "here: session.backward was called twice with a weight for one microbatch",
    ),
    "gradients left over": (1, weighed(weight=", 2"), "backward: there are gradients already"),
    "backward outside of its microbatch": (
        1,
        "for step, batch in start(make()):\n    ((x,),) = list(batch)\n    session.backward(model(x).mean())  # here\n",
        "here: session.backward belongs in the loop over the microbatches",
    ),
    "backward in an evaluation": (
        1,
        "for (x,) in next(iter(make())):\n    session.backward(model(x).mean())  # here\n",
        "here: .*of a loader that session.loader made and session.track names",
    ),
    "a loss beside backward": (
        1,
        weighed(after="session.report(loss=1.0)  # here"),
        "here: session.backward has the step's loss already, .*remove loss= from this line",
    ),
    "a loss before backward": (
        1,
        weighed(before="session.report(loss=1.0)  # here"),
        "here: session.backward has the step's loss already",
    ),
    "a second backward pass": (
        1,
        weighed(after="model(x).square().mean().backward()  # here"),
        "here: this step has gradients of a backward pass beside session.backward",
    ),
    "a second loop over a batch": (
        1,
        "for step, batch in start(make(microbatch=2)):\n"
        "    for (x,) in batch: session.backward(model(x).mean())\n"
        "    for (x,) in batch: session.backward(model(x).mean())  # here\n",
        "here: the microbatches of this batch were gone through already.* in one loop",
    ),
    "a negative weight": (1, weighed(weight=", -1"), "backward: the weight is -1; it must not be negative"),
    "a batch size": (1, "make(batch_size=4)\n", "session.loader takes no batch_size"),
    "no global batch": (
        1,
        "make(global_batch=0)\n",
        "script.py:[0-9]+: global_batch=0: it is a whole number of 1 or more",
    ),
}


@pytest.mark.parametrize("name", MISTAKES, ids=lambda name: name.replace(" ", "-"))
def test_a_mistake_is_told_with_its_line(name: str, tmp_path: Path) -> None:
    ranks, body, pattern = MISTAKES[name]
    for number, line in enumerate((HEAD + body).splitlines(), 1):
        for mark in ("here", "backward", "step"):
            if line.endswith(f"# {mark}"):
                pattern = re.sub(rf"^{mark}: ", f"script.py:{number}: ", pattern)
    result = run(tmp_path, body, ranks)
    assert 0 not in result.codes, result.output
    assert re.search(pattern, result.output), result.output


@pytest.mark.parametrize("order", ["before", "before, and zeroed", "after", "after the optimizer's step"])
def test_a_backward_pass_of_the_scripts_own_may_not_add_to_ours(order: str) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = Gradients(1, torch.device("cpu"), [Tracked("model", model, "here.py:1")], print)
    gradients.watch()
    gradients.open_step()
    with gradients.microbatch(Microbatch(range(4), 4, 4), trained=True):
        if order.startswith("before"):
            model(torch.ones(4, 4)).sum().backward()
        if order.endswith("zeroed"):
            optimizer.zero_grad()
        gradients.backward(model(torch.ones(4, 4)).mean(), None, None)
        if order == "after":
            model(torch.ones(4, 4)).sum().backward()
    wrong = order in ("before", "after")
    with pytest.raises(UsageError, match=r"test_elastic.py:\d+: .* beside") if wrong else nullcontext():
        gradients.refuse_incomplete(None, optimizer)  # type: ignore[arg-type]
    if order.endswith("step"):
        model(torch.ones(4, 4)).sum().backward()
        gradients.open_step()
        assert not gradients._beside, "each step is looked at by itself"


def test_equal_shares_may_call_loss_backward_and_are_told_of_other_sizes(tmp_path: Path) -> None:
    alone, together = tmp_path / "1", tmp_path / "2"
    for folder, ranks in ((alone, 1), (together, 2)):
        folder.mkdir()
        result = run(folder, PLAIN.format(more=""), ranks).check()
        told = "loss.backward() is right for {} ranks, which share each batch equally, but not for every number"
        assert result.outputs[0].count(told.format(ranks)) == 1, result.output
    done = [
        [line for line in (folder / "output-0").read_text().splitlines() if line.startswith("done")]
        for folder in (alone, together)
    ]
    assert len(done[0]) == 3
    weights = [[json.loads(line.split(" ", 2)[2])[0] for line in lines] for lines in done]
    assert weights[0] == [pytest.approx(step, rel=1e-6) for step in weights[1]]


def test_an_evaluation_counts_each_sample_once(tmp_path: Path) -> None:
    body = """
import torch.distributed as dist
seen = 0
for batch in make(global_batch=5):  # 5, 5 and 2 samples for three ranks
    for (x,) in batch:
        with torch.no_grad(): model(x)
        seen += session.samples
        assert len(x) == max(1, session.samples)
total = torch.tensor(seen)
dist.all_reduce(total)
print("seen", seen, total.item(), session.samples)
"""
    result = run(tmp_path, body, 3).check()
    assert [line for output in result.outputs for line in output.splitlines() if line.startswith("seen")] == [
        "seen 5 12 0",
        "seen 5 12 0",
        "seen 2 12 0",
    ]
    assert "the last of each epoch's 3 batches has 2 samples, the others have 5" in result.outputs[0]


def test_the_loss_shown_is_the_global_batchs(tmp_path: Path) -> None:
    """Shares of 2, 1 and 1 samples: a mean of the ranks' means would be another number."""
    body = weighed(after="optimizer.zero_grad() if step < 0 else None").replace(
        "model(x).mean()", "model(x).sum() * 0 + x.mean()"
    )
    outputs = [run(tmp_path, body, ranks).check().outputs[0] for ranks in (1, 3)]
    for output in outputs:
        assert "step 3/3  loss 39.500000" in output, output
