"""Someone's training loop for one process, made data-parallel and resumable: compare with plain_loop.py."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import muster_runtime as muster

EPOCHS = 6


def spirals(count):
    """Points of two intertwined spirals, and which one each belongs to."""
    label = torch.arange(count) % 2
    radius = torch.rand(count, generator=torch.Generator().manual_seed(1)) * 3
    angle = radius * 2 + label * math.pi
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label)


def main():
    torch.manual_seed(0)
    session = muster.start()
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Dropout(0.05), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    loader = DataLoader(spirals(2048), batch_size=64, shuffle=True)
    model, loader = session.wrap(model), session.wrap(loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    session.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)

    for epoch in session.epochs(EPOCHS):
        model.train()
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.report(loss=loss)
        scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
