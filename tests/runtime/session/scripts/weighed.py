"""Gradients of padded sequences, weighed by tokens, as `session.backward` leaves them. FOLDER gets them, by step."""

import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import muster_runtime as muster

PADDING = -100
BY = os.environ.get("BY", "tokens")
MICROBATCH = int(os.environ.get("MICROBATCH", "0")) or None


class Sequences(Dataset):
    """Of 1 to 9 tokens, padded to 9; every sixth one is padding alone."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 11, (10,), generator=generator)
        targets = tokens[1:].clone()
        targets[0 if index % 6 == 5 else 1 + index * 5 % 9 :] = PADDING
        return tokens[:-1], targets


def make_model():
    torch.manual_seed(7)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]
    return nn.Sequential(nn.Embedding(11, 8), *layers, nn.Linear(8, 11)).double()


def loss_of(model, tokens, targets, by):
    """The mean over the tokens that aren't padding, which is not a number where there is none; or over samples."""
    reduction = "mean" if by == "tokens" else "sum"
    logits, wanted = model(tokens).flatten(0, 1), targets.flatten()
    loss = nn.functional.cross_entropy(logits, wanted, ignore_index=PADDING, reduction=reduction)
    return loss if by == "tokens" else loss / len(tokens)


def main():
    session = muster.start()
    whole = make_model()
    model = session.wrap(whole)
    loader = session.loader(Sequences(), global_batch=7, microbatch=MICROBATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    part = {"part": whole[1]} if "PART" in os.environ else {}
    session.track(model=model, optimizer=optimizer, loader=loader, **part)
    for step, batch in session.steps(3, loader):
        for tokens, targets in batch:
            weight = (targets != PADDING).sum() if BY == "tokens" else None
            session.backward(loss_of(model, tokens, targets, BY), weight)
        optimizer.step()
        gradients = [p.grad.full_tensor() if session.strategy != "ddp" else p.grad.clone() for p in model.parameters()]
        optimizer.zero_grad()
        session.report(seen=step)
        torch.save(gradients, Path(os.environ["FOLDER"]) / f"gradients-{session.rank}-{step}")


if __name__ == "__main__":
    main()
