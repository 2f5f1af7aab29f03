"""A small language model on lines of source code, trained the same by any number of processes.

    python train.py                                       on a laptop, one process
    torchrun --nproc-per-node 3 train.py                  three: the same batches, the same gradients, the same losses
    kubectl apply -f job.yaml                             as a gang that grows and shrinks: see README.md

Lines have different lengths, so gradients are weighed by characters. The lines marked `# elastic` make it so.
"""

import argparse
import random
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

import muster_runtime as muster

PADDING = 0
LONGEST = 40


class Lines(Dataset):
    """Lines of Python's own argparse module as bytes; of a long one a part is drawn, anew in each epoch."""

    def __init__(self) -> None:
        lines = Path(argparse.__file__).read_text().splitlines()
        self.lines = [torch.tensor(list(line.strip().encode())) for line in lines if len(line.strip()) > 1]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> torch.Tensor:
        line = self.lines[index]
        start = random.randrange(max(1, len(line) - LONGEST))  # seeded by (seed, epoch, index)
        return line[start : start + LONGEST]


def collate(lines: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(lines, batch_first=True, padding_value=PADDING)


class Model(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(256, width), nn.GRU(width, width, batch_first=True)
        self.guess = nn.Linear(width, 256)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        return self.guess(self.read(self.embed(characters))[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()

    session = muster.start()
    model = session.wrap(Model())
    loader = session.loader(  # elastic
        Lines(), global_batch=32, microbatch=8, shuffle=True, collate_fn=collate, num_workers=2
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    session.track(model=model, optimizer=optimizer, loader=loader)

    for _, batch in session.steps(args.steps, loader):
        for lines in batch:  # elastic: this rank's microbatches
            targets = lines[:, 1:]
            logits = model(lines[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING)
            characters = (targets != PADDING).sum()
            session.backward(loss, weight=characters)  # elastic
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
