"""Whatever a tensor is like, it comes back bit for bit, on the same number of ranks or another."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from gangs import run_gang, whole_and_cut
from hack.needs_torch import SHARDS

pytestmark = pytest.mark.runtime

SCRIPT = """
import base64, json
import torch
from torch import nn
import muster_runtime as muster

ODD = {
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 4),
    "flags": lambda: torch.tensor([True, False, True]),
    "complex": lambda: torch.tensor([1 + 2j, 3j]),
    "bf16": lambda: torch.arange(7.0).bfloat16() / 3,
    "fp8": lambda: torch.arange(9.0).to(torch.float8_e4m3fn),
    "transposed": lambda: torch.arange(24.0).reshape(4, 6).t(),
    "every_second": lambda: torch.arange(10.0)[::2],
    "large": lambda: torch.tensor([2**62, -1]),
    "uint16": lambda: torch.tensor([1, 65535], dtype=torch.uint16),
    "unsound": lambda: torch.tensor([float("nan"), float("inf"), -0.0]),
    "expanded": lambda: torch.arange(3.0).expand(4, 3),
    "expanded_one": lambda: torch.tensor(2.0).expand(5),
}

if os.environ["MUSTER_STRATEGY"] == "ddp":  # its own broadcasts over gloo refuse these
    for name in ("complex", "fp8", "uint16", "expanded", "expanded_one"):
        del ODD[name]

class Net(nn.Module):
    def __init__(self, *, zeros):
        super().__init__()
        self.line = nn.Linear(2, 2)
        self.again = nn.Linear(2, 2, bias=False)
        self.again.weight = self.line.weight
        for name, make in ODD.items():
            value = make()
            if zeros:
                whole = torch.zeros_like(value.as_strided((value.untyped_storage().size() // value.itemsize,), (1,), 0))
                value = whole.as_strided(value.shape, value.stride(), value.storage_offset())
            self.register_buffer(name, value)

    def forward(self, x):
        return self.again(self.line(x))

def told(tensor):
    return base64.b64encode(bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())).decode()

class Extra:
    kept = {}
    def state_dict(self): return self.kept
    def load_state_dict(self, state): self.kept = state

session = muster.start()
first = "RESUMES" not in os.environ
net, extra = Net(zeros=not first), Extra()
if first:
    extra.kept = {
        "none": None, "big": 2**70, 1: "an int", (1, 2): [1, {"x": torch.ones(2)}], "nan": float("nan"), "bytes": b"ab"
    }
model = session.wrap(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
session.track(model=model, optimizer=optimizer, extra=extra)
shown = False
for step in session.steps(4 if first else 6):
    if not shown:
        found = {name: told(getattr(net, name)) for name in ODD}
        tied = net.again.weight is net.line.weight
        found |= {"extra": repr(extra.kept), "tied": tied, "resumed": session.resumed_from}
        print("FOUND", session.rank, json.dumps(found), flush=True)
        shown = True
    loss = model(torch.ones(3, 2)).pow(2).sum()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    session.report(loss=loss)
"""


@pytest.mark.parametrize(
    ("strategy", "before", "after"), [("none", 1, 1), ("ddp", 2, 1), pytest.param("fsdp", 1, 2, marks=SHARDS)]
)
def test_odd_tensors_come_back_as_they_were(tmp_path: Path, strategy: str, before: int, after: int) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\n" + SCRIPT)
    environment = {
        "MUSTER_STRATEGY": strategy,
        "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run",
        "MUSTER_CHECKPOINT_EVERY_STEPS": "2",
    }
    found = []
    for ranks, more in ((before, {}), (after, {"RESUMES": "1"})):
        result = run_gang(script, tmp_path, ranks, environment | more, distributed=ranks > 1)
        assert set(result.codes) == {0}, result.output
        found.append([json.loads(line) for line in re.findall(r"^FOUND \d+ (.*)$", result.output, re.MULTILINE)])
    (saved, *_), restored = found
    assert saved.pop("resumed") is None
    assert len(restored) == after
    for each in restored:
        assert each.pop("resumed") == 4
        assert each == saved


ADAPTER = """
import torch
from torch import nn
import muster_runtime as muster

class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(2, 2).requires_grad_(False)
        self.added = nn.Linear(2, 2)

    def state_dict(self, *arguments, **more):
        return {key: value for key, value in super().state_dict(*arguments, **more).items() if "base" not in key}

session = muster.start()
model = session.wrap(Adapter())
session.track(model=model)
for step in session.steps(4):
    with torch.no_grad():
        model.added.bias.fill_(float(step))
    if step == 2 and session.resumed_from is None:
        session.run.stopping.signal()
    print("HAD", step, model.base.bias.tolist())
print("FOUND", model.added.bias.tolist())
"""


def test_what_a_models_own_state_leaves_out_is_not_missing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ADAPTER)
    environment = {"MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    first = run_gang(script, tmp_path, 1, environment, distributed=False)
    assert first.codes == [75], first.output
    again = run_gang(script, tmp_path, 1, environment, distributed=False).check()
    assert "FOUND [3.0, 3.0]" in again.output
    had = [line.split(" ", 2)[2] for run in (first, again) for line in run.output.splitlines() if "HAD" in line]
    assert len(had) == 4
    assert len(set(had)) == 1, "the script makes them, as before"
    script.write_text(ADAPTER.replace("self.added =", "self.more = nn.Linear(2, 2)\n        self.added ="))
    refused = run_gang(script, tmp_path, 1, environment, distributed=False)
    assert "doesn't fit the object tracked at" in refused.output
    assert ": it has no more.weight, more.bias. Make it as it was" in refused.output


GROWS = """
import os
import torch
from torch import nn
import muster_runtime as muster

class Net(nn.Linear):
    past = ()
    def get_extra_state(self): return {"past": torch.tensor(self.past), "longest": [torch.ones(len(self.past))] * 2}
    def set_extra_state(self, state): self.past = tuple(state["past"].tolist())

session = muster.start()
net = session.wrap(nn.Sequential(Net(2, 2)))
session.track(model=net)
for step in session.steps(5):
    net[0].past += (step,)
    if step == 2 and session.resumed_from is None and "CUT" in os.environ:
        session.run.stopping.signal()
print("PAST", net[0].past)
"""


COUNTS = """
import torch
from torch import nn
import muster_runtime as muster

class Metric(nn.Module):
    \"\"\"As torchmetrics' are, with `persistent(True)`: what they count is neither a parameter nor a buffer.\"\"\"

    def __init__(self):
        super().__init__()
        self.values = []
        for name in ("correct", "total", "hits", "misses"):
            setattr(self, name, torch.zeros(100))

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for name in ("correct", "total", "hits", "misses"):
            destination[prefix + name] = getattr(self, name)
        destination[prefix + "values"] = list(self.values)

    def _load_from_state_dict(self, state, prefix, *_):
        for name in ("correct", "total", "hits", "misses", "values"):
            setattr(self, name, state.pop(prefix + name))

session = muster.start()
model, metric = session.wrap(nn.Linear(2, 2)), Metric()
session.track(model=model, metric=metric)
for step in session.steps(4):
    for name in ("correct", "total", "hits", "misses"):
        if session.resumed_from is None:
            getattr(metric, name).fill_(float(10 + session.rank))
    metric.values.append(torch.full((step + 1,), float(session.rank)))
    if step == 2 and session.resumed_from is None:
        session.run.stopping.signal()
counted = {float(x) for name in ("correct", "total", "hits", "misses") for x in getattr(metric, name)}
print("COUNTED", counted, [len(value) for value in metric.values])
"""


def test_what_a_metric_counts_is_rank_0s_and_comes_back(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(COUNTS)
    environment = {"MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    assert run_gang(script, tmp_path, 2, environment).codes == [75, 75]
    result = run_gang(script, tmp_path, 2, environment).check()
    assert all("COUNTED {10.0} [1, 2, 3, 4]" in output for output in result.outputs), result.output


def test_the_extra_state_of_a_module_may_be_larger_than_that_of_a_fresh_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(GROWS)
    environment = {"MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    assert run_gang(script, tmp_path, 1, environment | {"CUT": "1"}, distributed=False).codes == [75]
    result = run_gang(script, tmp_path, 1, environment, distributed=False).check()
    assert "PAST (0, 1, 2, 3, 4)" in result.output


OBSERVED = """
import os
import torch
from torch import nn
import muster_runtime as muster

class Observed(nn.Module):
    \"\"\"As torch's observers for quantization are: what was seen has a shape after the first batch only.\"\"\"

    def __init__(self):
        super().__init__()
        self.register_buffer("most", torch.tensor([]))

    def forward(self, x):
        seen = x.detach().abs().amax(0)
        self.most = torch.maximum(self.most, seen) if len(self.most) else seen
        return x / self.most

    def _load_from_state_dict(self, state, prefix, *more):
        if prefix + "most" in state:
            self.most.resize_(state[prefix + "most"].shape)
        super()._load_from_state_dict(state, prefix, *more)

session = muster.start(seed=1)
model = session.wrap(nn.Sequential(nn.Linear(2, 3), Observed()))
session.track(model=model)
for step in session.steps(4):
    model(torch.randn(5, 2))
    if step == 1 and "CUT" in os.environ:
        session.run.stopping.signal()
print("FOUND", model[1].most.tolist())
"""


def test_a_module_that_loads_its_own_buffers_may_give_them_another_shape(tmp_path: Path) -> None:
    found = whole_and_cut(OBSERVED, tmp_path, "FOUND")
    assert found[2] == found[0]


CACHED = """
import torch
from torch import nn
import muster_runtime as muster

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.seen += 1 + session.rank
        if len(x) > len(self.cache):  # as rotary embeddings do: for the longest sequence of this rank
            self.register_buffer("cache", torch.arange(float(len(x))) + 100 * session.rank, persistent=False)
        return self.line(x)

session = muster.start()
model = session.wrap(Net())
session.track(model=model)
for step in session.steps(4):
    model(torch.ones(9 - 3 * session.rank + step, 4)).sum().backward()
print("FOUND", session.rank, len(model.cache), model.cache[1].item(), model.seen.item())
"""


@SHARDS
def test_a_cache_that_no_state_has_may_differ_from_rank_to_rank(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CACHED)
    environment = {"MUSTER_STRATEGY": "fsdp", "MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    result = run_gang(script, tmp_path, 2, {**environment, "MUSTER_CHECKPOINT_EVERY_STEPS": "2"}).check()
    assert "FOUND 0 12 1.0 4.0" in result.outputs[0]
    assert "FOUND 1 9 101.0 4.0" in result.outputs[1], "the count is stored, so it is rank 0's"


OWN_MESH = """
import json, os
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import muster_runtime as muster

session = muster.start()
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3), nn.LayerNorm(3))
mesh = init_device_mesh("cpu", tuple(json.loads(os.environ["MESH"])), mesh_dim_names=("data", "tensor"))
parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
session.track(model=model, optimizer=optimizer)
for step in session.steps(4):
    states = [each["exp_avg"] for each in optimizer.state.values()]
    print("HAD", step, [each.full_tensor().tolist() for each in (*model.parameters(), *states)], flush=True)
    model(torch.ones(2, 5) + step).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 and "CUT" in os.environ:
        session.run.stopping.signal()
"""


@SHARDS
@pytest.mark.parametrize("after", [[2, 2], [2, 1], [1, 2]])
def test_shards_of_a_scripts_own_come_back_on_another_mesh(tmp_path: Path, after: list[int]) -> None:
    """Of two dimensions, and not wrapped."""
    script = tmp_path / "script.py"
    script.write_text(OWN_MESH)
    had = []
    for name, code, mesh, more in (("whole", 0, [2, 2], {}), ("cut", 75, [2, 2], {"CUT": "1"}), ("cut", 0, after, {})):
        environment = {"MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/{name}", "MESH": json.dumps(mesh), **more}
        ranks = mesh[0] * mesh[1]
        result = run_gang(script, tmp_path, ranks, environment)
        assert result.codes == [code] * ranks, result.output
        had.append(re.findall(r"^HAD .*$", result.outputs[-1], re.MULTILINE))
    whole, _, resumed = had
    assert resumed[0] == whole[2]
    assert len(resumed) == 2
