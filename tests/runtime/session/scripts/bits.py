"""Trains a small network and writes each step's loss and samples with all their bits; may be told to die somewhere.

Environment: FOLDER for the records, STEPS, DROPOUT, WIDTH, PIECE (bytes of a file), KILL=step:place:rank.
STRATEGY comes from Muster's own.
"""

import hashlib
import json
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import muster_runtime as muster
from muster_runtime.checkpoint import saver, transfers
from muster_runtime.checkpoint.tree import local_part

FOLDER = Path(os.environ["FOLDER"])
RANK = os.environ.get("RANK", "0")
STEPS = int(os.environ.get("STEPS", "24"))
DROPOUT = float(os.environ.get("DROPOUT", "0.1"))
WIDTH = int(os.environ.get("WIDTH", "192"))
# So that tensors this small are cut, too.
transfers.SMALLEST_PIECE = transfers.LARGEST_PIECE = int(os.environ.get("PIECE", str(1 << 18)))
KILL_STEP, KILL_PLACE, KILL_RANK = os.environ.get("KILL", "-1:nowhere:0").split(":")


class Points(Dataset):
    """Noisy on purpose: what the dataset draws must not depend on ranks, workers or restarts."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        x = torch.sin(torch.arange(16.0) * (index + 1)) + 0.1 * torch.randn(16)
        return x, x.sum().view(1), index


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.widen, self.narrow = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
        )
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x):
        return x + self.dropout(self.narrow(torch.relu(self.widen(self.norm(x)))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 1)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def die(place, step):
    if (place, str(step), RANK) == (KILL_PLACE, KILL_STEP, KILL_RANK):
        os.kill(os.getpid(), signal.SIGKILL)


def die_in_a_save():
    """After the shards, and after the manifest: rank 0 does both."""
    put_together, commit = saver.Saver._commit, saver.commit

    def put_together_or_die(self, heading, *more):
        die("before-manifest", heading.step)
        return put_together(self, heading, *more)

    def commit_or_die(*args, step, **more):
        die("before-latest", step)
        return commit(*args, step=step, **more)

    saver.Saver._commit, saver.commit = put_together_or_die, commit_or_die


def main():
    session = muster.start(seed=3)
    die_in_a_save()
    model = session.wrap(Net(), ddp={"bucket_cap_mb": 1})
    loader = session.wrap(
        DataLoader(
            Points(), batch_size=16, shuffle=True, drop_last=True, num_workers=int(os.environ.get("WORKERS", "0"))
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    session.track(model=model, optimizer=optimizer, schedule=schedule, loader=loader)
    record = (FOLDER / f"record-{RANK}.jsonl").open("a")
    for step, (x, y, ids) in session.steps(STEPS, loader):
        die("forward", step)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        die("backward", step)
        optimizer.step()
        schedule.step()
        session.report(loss=loss)
        print(json.dumps({"step": step, "loss": loss.item().hex(), "ids": ids.tolist()}), file=record, flush=True)
        die("step", step)
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + local_part(tensor).contiguous().view(torch.uint8).cpu().numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        for name, tensor in sorted(state.items()):
            digest.update(
                name.encode() + local_part(tensor).contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes()
            )
    buckets = ""
    if session.strategy == "ddp" and session.world_size > 1:
        data = model._get_ddp_logging_data()
        buckets = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
    held = sum(local_part(p).numel() * p.element_size() for p in model.parameters())
    facts = {"digest": digest.hexdigest(), "buckets": buckets, "held": held, "random": torch.rand(2).tolist()}
    (FOLDER / f"final-{RANK}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
