"""Everything that can be tracked: tied and frozen weights, two optimizers, EMA, GradScaler, BatchNorm."""

import copy
import json
import os
import random
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import muster_runtime as muster
from muster_runtime.checkpoint.tree import local_part

FOLDER = Path(os.environ["FOLDER"])
CUT, STEPS = int(os.environ.get("CUT", "0")), 9


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(32, 16)
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(2))
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.words.weight
        self.calls = 0

    def forward(self, x):
        x = self.norm(self.frozen(self.words(x)))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


class Shadow:
    """An EMA as people write them: plain tensors in a dict."""

    def __init__(self, model):
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model):
        for name, p in model.named_parameters():
            self.values[name].lerp_(p.detach(), 0.1)

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = state["values"]


class Meter:
    """Plain values of all kinds."""

    def __init__(self):
        self.state = {"best": float("inf"), "history": [], "pair": (1, None), 7: {"on": True}}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def main():
    session = muster.start()
    bare = Net()
    model = session.wrap(bare)
    average = AveragedModel(model) if session.strategy == "ddp" else None
    assert model.calls == 0, "attributes of the model are reached through the wrap"
    data = TensorDataset(torch.arange(64) % 32)
    loader = session.wrap(DataLoader(data, batch_size=8, shuffle=True))
    slow = torch.optim.SGD(model.blocks.parameters(), lr=0.05, momentum=0.9)
    others = [p for name, p in model.named_parameters() if "blocks" not in name and p.requires_grad]
    fast = torch.optim.AdamW([{"params": others, "lr": 0.01}], betas=(0.8, 0.9))
    schedule = torch.optim.lr_scheduler.OneCycleLR(slow, max_lr=0.1, total_steps=STEPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) if session.strategy == "ddp" else None
    shadow, meter = Shadow(model), Meter()
    copied = copy.deepcopy(model).requires_grad_(False) if session.strategy == "ddp" else None
    more = {"average": average, "scaler": scaler, "copied": copied} if scaler else {}
    session.track(
        model=model, slow=slow, fast=fast, schedule=schedule, loader=loader, shadow=shadow, meter=meter, **more
    )
    for step, (x,) in session.steps(STEPS, loader):
        if step == CUT and session.resumed_from is None and CUT:
            os._exit(9)
        model.calls += 1
        loss = nn.functional.cross_entropy(model(x), x) * (1 + 0.1 * random.random())
        slow.zero_grad()
        fast.zero_grad()
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(slow)
            scaler.step(fast)
            scaler.update()
            average.update_parameters(model)
            for mine, theirs in zip(copied.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs.detach(), 0.1)
        else:
            loss.backward()
            slow.step()
            fast.step()
        schedule.step()
        shadow.update(model)
        meter.state["history"].append(step)
        session.report(loss=loss)
    facts = {
        "model": {name: texts(t) for name, t in model.state_dict().items()},
        "tied": model.head.weight is model.words.weight,
        "frozen": not model.frozen.weight.requires_grad,
        "slow": texts(slow.state_dict()),
        "fast": texts(fast.state_dict()),
        "schedule": texts(schedule.state_dict()),
        "shadow": texts(shadow.state_dict()),
        "meter": repr(meter.state),
        "more": {name: texts(thing.state_dict()) for name, thing in more.items()},
        "random": [random.random(), torch.rand(1).item()],
    }
    (FOLDER / f"facts-{session.rank}.json").write_text(json.dumps(facts, indent=1))


def texts(value):
    """Any state as text that shows every bit."""
    if isinstance(value, torch.Tensor):
        return str([float(x).hex() for x in local_part(value).flatten().tolist()])
    if isinstance(value, dict):
        return {str(key): texts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [texts(item) for item in value]
    return repr(value)


if __name__ == "__main__":
    main()
