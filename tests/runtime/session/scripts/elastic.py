"""Trains on unequal shares and writes each step's loss with all its bits, and its samples in order; may be stopped.

Environment: FOLDER for the records, STEPS, MICROBATCH, STOP (a step at which one rank is told to stop), KILL (one at
which it is killed).
"""

import hashlib
import json
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import muster_runtime as muster
from muster_runtime.checkpoint.tree import local_part

FOLDER = Path(os.environ["FOLDER"])
STEPS = int(os.environ.get("STEPS", "60"))
MICROBATCH = int(os.environ.get("MICROBATCH", "0")) or None


class Points(Dataset):
    """Noisy on purpose: what the dataset draws must not depend on ranks, workers or restarts."""

    def __len__(self):
        return 203

    def __getitem__(self, index):
        x = torch.sin(torch.arange(16.0) * (index + 1)) + 0.1 * torch.randn(16)
        return x, x.sum().view(1), index


def main():
    session = muster.start(seed=3)
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.LayerNorm(48)) for _ in range(3))
    model = session.wrap(nn.Sequential(nn.Linear(16, 48), *blocks, nn.Linear(48, 1)))
    loader = session.loader(Points(), global_batch=32, microbatch=MICROBATCH, shuffle=True, num_workers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session.track(model=model, optimizer=optimizer, loader=loader)
    record = (FOLDER / f"record-{session.rank}.jsonl").open("a")
    for step, batch in session.steps(STEPS, loader):
        ids = []
        for x, y, index in batch:
            session.backward(nn.functional.mse_loss(model(x), y))
            ids += index[: session.samples].tolist()
        if session.rank == session.world_size - 1:
            if str(step) == os.environ.get("KILL"):
                os.kill(os.getpid(), signal.SIGKILL)
            if str(step) == os.environ.get("STOP"):
                os.kill(os.getpid(), signal.SIGTERM)
        optimizer.step()
        optimizer.zero_grad()
        loss, weight = session.run.gradients.loss()
        print(
            json.dumps({"step": step, "loss": loss.item(), "weight": weight, "ids": ids, "passes": len(batch)}),
            file=record,
            flush=True,
        )
    digest = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        digest.update(local_part(tensor).contiguous().numpy().tobytes())
    (FOLDER / f"final-{session.rank}").write_text(digest.hexdigest())


if __name__ == "__main__":
    main()
