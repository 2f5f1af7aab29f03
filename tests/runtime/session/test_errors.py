"""Mistakes in a script: each error names the line to change."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from gangs import Result, run_gang
from hack.needs_torch import SHARDS

HEAD = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
import muster_runtime as muster

session = muster.start()
net = nn.Linear(4, 1)
data = TensorDataset(torch.arange(48.0).view(12, 4))

def update(model, optimizer, x):
    loss = model(x).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    session.report(loss=loss)

"""

FINE = """
model = session.wrap(net)
loader = session.wrap(DataLoader(data, batch_size=4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
"""


def run(folder: Path, body: str, ranks: int = 2, strategy: str = "ddp", **more: str) -> Result:
    path = folder / "script.py"
    path.write_text(HEAD + body)
    uri = {"MUSTER_CHECKPOINT_URI": f"file://{folder}/run", "MUSTER_CHECKPOINT_EVERY_STEPS": "2"}
    return run_gang(path, folder, ranks, {"MUSTER_STRATEGY": strategy, **uri, **more}, distributed=ranks > 1)


def line_of(body: str, mark: str) -> int:
    """The number of the line that ends in `# mark`."""
    lines = (HEAD + body).splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return number


def last_line(result: Result, rank: int = 0) -> str:
    """The exception's own line of the traceback that rank `rank` ended with."""
    assert result.codes[rank] == 1, result.output
    found = [line for line in result.outputs[rank].splitlines() if re.match(r"^[\w.]+(Error|Exception): ", line)]
    assert found, result.output
    return found[-1]


CASES = {
    "an optimizer made before the wrap": (
        "early = torch.optim.AdamW(net.parameters())\nmodel = session.wrap(net)  # here\n",
        r"script.py:{here}: this model's AdamW was made before session.wrap.*Move the optimizer's line below",
    ),
    "a tensor of partial sums": (
        "from torch.distributed.tensor import DTensor, Partial, init_device_mesh\n"
        "total = DTensor.from_local(torch.ones(2), init_device_mesh('cpu', (2,)), [Partial()])\n"
        "class Sums:\n    def state_dict(self): return {'total': total}\n    def load_state_dict(self, state): pass\n"
        + FINE
        + "session.track(sums=Sums(), model=model, optimizer=optimizer)  # here\n"
        "for step in session.steps(1):\n    pass\n",
        r"StateError: .*script.py:{here}: sums.total is a DTensor of partial sums; .*`redistribute`",
    ),
    "a model without values": (
        "model = session.wrap(nn.Linear(4, 1, device='meta'))  # here\n",
        r"script.py:{here}: the model is on the meta device.*above this line: model.to_empty\(device=session.device\)",
    ),
    "a model wrapped twice": (
        "model = session.wrap(net)  # first\nagain = session.wrap(model)  # here\n",
        r"script.py:{here}: (this model was wrapped at .*script.py:{first} already|.*remove that line)",
    ),
    "the user's own shards": (
        "from torch.distributed.tensor import init_device_mesh\n"
        "from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module\n"
        "parallelize_module(net, init_device_mesh('cpu', (2,)), ColwiseParallel())\n"
        "model = session.wrap(net)  # here\n",
        r"UsageError: .*script.py:{here}: the model is sharded already .*remove that line .*or leave session.wrap out",
    ),
    "the user's own DDP inside": (
        "import torch.distributed as dist\nmodel = session.wrap(DistributedDataParallel(net))  # here\n",
        r"script.py:{here}: the model is already in DistributedDataParallel; remove that line",
    ),
    "the user's own FSDP inside": (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "model = session.wrap(FSDP(net, device_id=torch.device('cpu')))  # here\n",
        r"script.py:{here}: the model is already in FullyShardedDataParallel; remove that line",
    ),
    "the user's own FSDP in a part": (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "net = nn.Sequential(FSDP(net, device_id=torch.device('cpu')))\nmodel = session.wrap(net)  # here\n",
        r"script.py:{here}: the model's '0' is already in FullyShardedDataParallel; remove that line",
    ),
    "the user's own FSDP alone": (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "model = FSDP(net, device_id=torch.device('cpu'))\nsession.track(model=model)  # here\n",
        r"script.py:{here}: 'model' is in FullyShardedDataParallel of your own.*use session.wrap, with strategy fsdp",
    ),
    "the user's own DDP compiled": (
        "model = session.wrap(torch.compile(DistributedDataParallel(net), backend='eager'))  # here\n",
        r"script.py:{here}: the model's '_orig_mod' is already in DistributedDataParallel; remove that line",
    ),
    "the user's own DDP outside": (
        "model = DistributedDataParallel(session.wrap(net))\nsession.track(model=model)  # here\n",
        r"script.py:{here}: 'model' is in DistributedDataParallel twice",
    ),
    "the user's own DDP alone": (
        "model = DistributedDataParallel(net)\nsession.track(model=model)  # here\n",
        r"script.py:{here}: 'model' is in DistributedDataParallel of your own; remove that line and use session.wrap",
    ),
    "an optimizer that isn't tracked": (
        FINE + "session.track(model=model, loader=loader)\n"
        "for step, (x,) in session.steps(3, loader):\n"
        "    loss = model(x).mean()\n    loss.backward()\n    optimizer.step()  # here\n",
        r"script.py:{here}: this SGD isn't tracked, so a resume would lose its state; add it to session.track",
    ),
    "a model that isn't tracked": (
        FINE.replace("wrap(net)", "wrap(net)  # wrap") + "session.track(loader=loader)\n"
        "for step, (x,) in session.steps(3, loader):  # here\n    pass\n",
        r"script.py:{here}: the model that was wrapped at .*script.py:{wrap} isn't tracked",
    ),
    "an optimizer of another model": (
        FINE
        + "session.track(model=model, loader=loader, optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters()))  # here\n"
        "for step, (x,) in session.steps(3, loader):\n    pass\n",
        r"script.py:{here}: 'optimizer' has parameters that no tracked model has. Make it from the model that ses",
    ),
    "track inside the loop": (
        FINE + "session.track(model=model, loader=loader)\n"
        "for step, (x,) in session.steps(3, loader):  # loop\n    session.track(optimizer=optimizer)  # here\n",
        r"script.py:{here}: track comes too late, the loop at .*script.py:{loop} has begun",
    ),
    "a name tracked twice": (
        FINE + "session.track(model=model)\nsession.track(model=optimizer)  # here\n",
        r"script.py:{here}: 'model' is tracked already",
    ),
    "something without a state": (
        FINE + "session.track(model=model, counter=3)  # here\n",
        r"script.py:{here}: 'counter' \(of int\) lacks state_dict\(\) and load_state_dict\(\)",
    ),
    "a set that a module keeps": (
        "class Keeps(nn.Linear):\n"
        "    def get_extra_state(self): return {'seen': {1}}\n"
        "    def set_extra_state(self, state): pass\n"
        "session.track(model=session.wrap(Keeps(4, 1)))  # here\nfor step in session.steps(1):\n    pass\n",
        r"StateError: .*script.py:{here}: model._extra_state.seen is a builtins.set, which a checkpoint can't hold",
    ),
    "a function among a group's options": (
        "model = session.wrap(net)\n"
        "optimizer = torch.optim.SGD([{'params': list(model.parameters()), 'scale': abs}], lr=1e-4)\n"
        "session.track(model=model, optimizer=optimizer)  # here\nfor step in session.steps(1):\n    pass\n",
        r"StateError: .*script.py:{here}: optimizer.param_groups.0.scale is a builtins.builtin_function_or_method",
    ),
    "a loss that is complex": (
        FINE + "session.track(model=model, optimizer=optimizer, loader=loader)\n"
        "for step, (x,) in session.steps(3, loader):\n    session.report(loss=torch.tensor(1j))  # here\n",
        r"UsageError: .*script.py:{here}: session.report\(loss=tensor\(0\.\+1\.j\)\): a metric is a number",
    ),
    "half a sample in a batch": (
        "loader = session.loader(data, global_batch=5 / 2)  # here\n",
        r"UsageError: .*script.py:{here}: global_batch=2.5: it is a whole number of 1 or more; a quotient is one by //",
    ),
    "a microbatch of no samples": (
        "loader = session.loader(data, global_batch=4, microbatch=0)  # here\n",
        r"UsageError: .*script.py:{here}: microbatch=0: it is a whole number of 1 or more",
    ),
    "a plain DataLoader in the loop": (
        FINE + "session.track(model=model)\nfor step, x in session.steps(3, DataLoader(data)):  # here\n    pass\n",
        r"script.py:{here}: the loader is a plain DataLoader; write loader = session.wrap\(loader\)",
    ),
    "a loader that isn't tracked": (
        FINE + "session.track(model=model)\nfor step, x in session.steps(3, loader):  # here\n    pass\n",
        r"script.py:{here}: the loader isn't tracked",
    ),
    "epochs without a loader": (
        FINE + "session.track(model=model)\nfor epoch in session.epochs(3):  # here\n    pass\n",
        r"script.py:{here}: epochs needs exactly one tracked loader",
    ),
    "a batch that can't be shared": (
        "loader = session.wrap(DataLoader(data, batch_size=3))  # here\n",
        r"ValueError: the global batch of 3 can't be shared equally by 2 data-parallel ranks; choose a multiple of 2,"
        r" say 2, or let session.loader share it unequally \(.*script.py:{here}\)",
    ),
    "a last batch that can't be shared": (
        "loader = session.wrap(DataLoader(TensorDataset(torch.zeros(7, 1)), batch_size=4))  # here\n",
        r"ValueError: the last batch of an epoch has 3 samples .*drop_last=True, or .*\(.*script.py:{here}\)",
    ),
    "an iterable dataset": (
        "class Stream(IterableDataset):\n    def __iter__(self): return iter([1])\n"
        "loader = session.wrap(DataLoader(Stream(), batch_size=4))  # here\n",
        r"TypeError: .*script.py:{here}: an IterableDataset has no positions",
    ),
    "a sampler that splits already": (
        "sampler = torch.utils.data.DistributedSampler(data)\n"
        "loader = session.wrap(DataLoader(data, batch_size=4, sampler=sampler))  # here\n",
        r"TypeError: .*script.py:{here}: leave the DistributedSampler out",
    ),
    "a second session": (
        "muster.start()  # here\n",
        r"script.py:{here}: the session was started at .*script.py:8 already",
    ),
    "a state that differs from rank to rank": (
        FINE + "class Meter:\n    def state_dict(self): return {'seen': session.rank}\n"
        "    def load_state_dict(self, state): pass\n"
        "session.track(model=model, optimizer=optimizer, loader=loader, meter=Meter())\n"
        "for step, (x,) in session.steps(3, loader):\n    update(model, optimizer, x)\n",
        r"StateError: the state of 'meter' on rank 1 differs from rank 0's",
    ),
    "a state that can't be stored": (
        FINE + "class Meter:\n    def state_dict(self): return {'seen': {1, 2}}\n"
        "    def load_state_dict(self, state): pass\n"
        "session.track(model=model, optimizer=optimizer, loader=loader, meter=Meter())  # here\n"
        "for step, (x,) in session.steps(3, loader):\n    raise SystemExit('a step was begun')\n",
        r"StateError: .*script.py:{here}: meter.seen is a builtins.set, which a checkpoint can't hold",
    ),
    "a metric that is no number": (
        FINE + "session.track(model=model, optimizer=optimizer)\n"
        "for step in session.steps(3):\n    session.report(loss='high')  # here\n",
        r"UsageError: .*script.py:{here}: session.report\(loss='high'\): a metric is a number",
    ),
    "a metric for each sample": (
        FINE + "session.track(model=model, optimizer=optimizer)\n"
        "for step in session.steps(3):\n    session.report(accuracy=torch.ones(3))  # here\n",
        r"UsageError: .*script.py:{here}: session.report\(accuracy=...\) has the shape \[3\]: a metric is a number",
    ),
    "a total that is text": (
        FINE + "session.track(model=model, optimizer=optimizer)\nfor step in session.steps('3'):  # here\n    pass\n",
        r"UsageError: .*script.py:{here}: session.steps\('3'\): the total is a whole number; write int\(",
    ),
    "a model that isn't wrapped": (
        "loader = session.wrap(DataLoader(data, batch_size=4))\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)\n"
        "session.track(model=net, optimizer=optimizer, loader=loader)  # here\n"
        "for step, (x,) in session.steps(4, loader):\n"
        "    net(x).mean().backward()\n"
        "    if step % 2:\n        optimizer.step()\n        optimizer.zero_grad()\n",
        r"UsageError: .*script.py:{here}: 'model' isn't wrapped, and its weight on rank 1 is not that of rank 0: each "
        r"of the 2 ranks .* Write model = session.wrap\(model\) above its optimizer",
    ),
    "a parameter that was frozen when the model was wrapped": (
        "net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))\nnet[0].requires_grad_(False)\n"
        "model = session.wrap(net)  # wrap\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)\n"
        "session.track(model=model, optimizer=optimizer)\n"
        "for step in session.steps(4):\n"
        "    net[0].requires_grad_(step > 1)\n"
        "    model(torch.ones(2, 4) * session.rank).mean().backward()\n"
        "    optimizer.step()  # here\n",
        r"UsageError: .*script.py:{here}: model.0.weight has a gradient, but it was frozen when session.wrap made "
        r"'model' data-parallel at .*script.py:{wrap}, .*Freeze it below that line",
    ),
    "an optimizer whose state is each rank's own": (
        "from torch.distributed.optim import ZeroRedundancyOptimizer\nmodel = session.wrap(net)\n"
        "optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)\n"
        "session.track(model=model, optimizer=optimizer)  # here\n",
        r"UsageError: .*script.py:{here}: 'optimizer' is a ZeroRedundancyOptimizer, .*strategy fsdp or hsdp",
    ),
    "a model whose shapes aren't known yet": (
        "model = session.wrap(nn.LazyLinear(1))  # here\n",
        r"UsageError: .*script.py:{here}: the model has parameters whose shapes its first batch decides",
    ),
    "ranks that take different numbers of steps": (
        FINE + "session.track(model=model, optimizer=optimizer)\n"
        "for step in session.steps(3 + session.rank):  # loop\n    pass\n",
        r"UsageError: .*script.py:{loop}: the ranks are at different steps \(rank 0 ends after 3, rank 1 goes on after",
    ),
}


@pytest.mark.parametrize("name", CASES, ids=lambda name: name.replace(" ", "-"))
def test_a_mistake_is_told_with_its_line(name: str, tmp_path: Path) -> None:
    body, pattern = CASES[name]
    for mark in ("here", "first", "wrap", "loop"):
        if f"# {mark}\n" in body:
            pattern = pattern.replace(f"{{{mark}}}", str(line_of(body, mark)))
    told = last_line(run(tmp_path, body))
    assert re.search(pattern, told), told


def test_a_model_that_a_script_averages_by_itself_may_be_unwrapped(tmp_path: Path) -> None:
    body, _ = CASES["a model that isn't wrapped"]
    averaged = "        for p in net.parameters(): torch.distributed.all_reduce(p.grad)\n        optimizer.step()\n"
    run(tmp_path, body.replace("        optimizer.step()\n", averaged)).check()


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=SHARDS)])
def test_what_is_frozen_below_the_wrap_may_be_trained_later(strategy: str, tmp_path: Path) -> None:
    body, _ = CASES["a parameter that was frozen when the model was wrapped"]
    below = body.replace("net[0].requires_grad_(False)\n", "", 1).replace(
        "session.wrap(net)", "session.wrap(net, ddp={'find_unused_parameters': True})"
    )
    run(tmp_path, below, strategy=strategy).check()


def test_a_session_that_a_loaders_worker_would_begin_is_refused_there(tmp_path: Path) -> None:
    """Spawned workers import the script. Their session would report, and count its steps, as the rank itself."""
    path = tmp_path / "script.py"
    path.write_text(
        HEAD + "if __name__ == '__main__':\n"
        "    next(iter(DataLoader(data, num_workers=1, multiprocessing_context='spawn')))\n"
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert re.search(r"UsageError: \S+script.py:8: .* below `if __name__ == \"__main__\":`", done.stderr), done.stderr


def test_an_early_optimizer_is_told_on_a_laptop_too(tmp_path: Path) -> None:
    body = CASES["an optimizer made before the wrap"][0]
    assert "before session.wrap" in last_line(run(tmp_path, body, ranks=1))


TRAIN = (
    FINE
    + """
session.track(model=model, optimizer=optimizer, loader=loader)
for step, (x,) in session.steps(4, loader):
    update(model, optimizer, x)
"""
)


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (
            ("nn.Linear(4, 1)", "nn.Linear(4, 2)"),
            r"model.weight is \(1, 4\) in the checkpoint and \(2, 4\) in the model",
        ),
        (
            ("nn.Linear(4, 1)", "nn.Sequential(nn.Linear(4, 1))"),
            r"the checkpoint has model.weight, which the model tracked",
        ),
        (("nn.Linear(4, 1)", "nn.Linear(4, 1, bias=False)"), r"the checkpoint has model.bias, which the model tracked"),
        (
            ("optimizer=optimizer, l", "opt=optimizer, l"),
            r"the checkpoint has no 'opt', .*it has: model, optimizer, loader",
        ),
        (
            ("optim.SGD", "optim.AdamW"),
            r"'optimizer' doesn't fit .*another kind of optimizer has saved it, without betas.*another checkpoint.uri",
        ),
        (
            ("optimizer=optimizer, l", "optimizer=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1), l"),
            r"'optimizer' doesn't fit .*: it has no 'lr_lambdas'. Make it",
        ),
        (("batch_size=4", "batch_size=6"), r"counts in 12 samples an epoch and batches of 4, this loader has 12 and 6"),
        (("batch_size=4", "batch_size=4, shuffle=True"), r"within epoch 1, .*as the dataset has them.*come shuffled"),
    ],
    ids=["shape", "missing", "left-over", "name", "optimizer", "schedule", "data", "order"],
)
def test_a_checkpoint_that_does_not_fit_is_told(change: tuple[str, str], pattern: str, tmp_path: Path) -> None:
    run(tmp_path, TRAIN).check()
    (tmp_path / "script.py").write_text((HEAD + TRAIN).replace(*change))
    uri = {"MUSTER_STRATEGY": "ddp", "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    told = last_line(run_gang(tmp_path / "script.py", tmp_path, 2, uri))
    assert re.search("StateError: .*" + pattern, told), told


def test_a_gang_whose_run_another_job_took_ends_and_leaves_the_checkpoint_alone(tmp_path: Path) -> None:
    steal = TRAIN + (
        "    if step == 0 and session.is_leader:\n"
        "        from muster_protocol.checkpoints.commit import claim_epoch\n"
        "        from muster_runtime.checkpoint.store import open_store\n"
        f"        claim_epoch(open_store('file://{tmp_path}/run'), 'another')\n"
    )
    result = run(tmp_path, steal)
    for rank in range(2):
        assert "PathConflictError" in last_line(result, rank)
        assert "is another job's (owner 'another') now" in last_line(result, rank)
        assert "Two jobs may not share a checkpoint.uri" in last_line(result, rank)


@pytest.mark.parametrize(
    ("name", "value", "pattern"),
    [
        ("MUSTER_STRATEGY", "zero", "the strategy 'zero' is not one of none, ddp, fsdp, hsdp"),
        ("MUSTER_STRATEGY", "none", "would train 2 unrelated models"),
        (
            "MUSTER_CHECKPOINT_EVERY_STEPS",
            "often",
            "MUSTER_CHECKPOINT_EVERY_STEPS is 'often'; it must be a whole number",
        ),
        ("MUSTER_CHECKPOINT_URI", "/tmp/x", "'/tmp/x' is not a checkpoint uri"),
    ],
)
def test_bad_settings_are_told(name: str, value: str, pattern: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(HEAD + TRAIN)
    assert pattern in last_line(run_gang(path, tmp_path, 2, {name: value}))


@pytest.mark.parametrize(
    ("argument", "pattern"),
    [
        ("checkpoint='/tmp/ck'", "'/tmp/ck' is not a checkpoint uri; write s3://BUCKET/PREFIX"),
        ("checkpoint='s3:/models/x'", "'s3:/models/x' is not a checkpoint uri"),
        ("checkpoint_every_steps=0", "checkpoint_every_steps is 0; it is 1 or more"),
        ("strategy='zero3'", "the strategy 'zero3' is not one of none, ddp, fsdp, hsdp"),
        ("checkpoint='file:///proc/nope'", "/proc/nope: the folder can't be made"),
    ],
)
def test_a_wrong_argument_of_start_is_told_in_the_scripts_own_lines(
    argument: str, pattern: str, tmp_path: Path
) -> None:
    path = tmp_path / "script.py"
    path.write_text(HEAD.replace("muster.start()", f"muster.start({argument})") + TRAIN)
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 1
    told = ended.stderr.rstrip().splitlines()
    assert pattern in told[-1], "nothing is said after the sentence that matters"
    frames = [line for line in told if line.startswith("  File ")]
    assert frames
    assert all("script.py" in line for line in frames), frames


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=SHARDS)])
def test_a_precision_that_the_strategy_does_not_have_is_told(strategy: str, tmp_path: Path) -> None:
    result = run(tmp_path, 'session.wrap(net, precision="bf16")\n', ranks=2, strategy=strategy).check()
    assert ("precision='bf16' is for fsdp and hsdp" in result.output) == (strategy == "ddp")
