"""Someone's script with its own arguments and configuration file, made resumable.

python configured.py --config configured.json --set optimizer.lr=0.01
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import muster_runtime as muster


class Sequences(Dataset):
    """Noisy waves; the next value is to be predicted from `window` values before it."""

    def __init__(self, count, window):
        self.count, self.window = count, window

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        phase = index * 0.37
        wave = torch.sin(torch.arange(self.window + 1) * 0.3 + phase) + 0.02 * torch.randn(self.window + 1)
        return wave[:-1, None], wave[-1:]


class Forecaster(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.cells = nn.GRU(1, width, layers, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, sequence):
        return self.head(self.cells(sequence)[0][:, -1])


def read_config(path, changes):
    config = json.loads(Path(path).read_text())
    for change in changes:
        name, _, value = change.partition("=")
        *sections, last = name.split(".")
        place = config
        for section in sections:
            place = place[section]
        place[last] = json.loads(value)
    return config


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=Path(__file__).with_name("configured.json"))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    arguments = parser.parse_args()
    config = read_config(arguments.config, arguments.set)

    session = muster.start(seed=config["seed"])
    model = session.wrap(Forecaster(**config["model"]))
    data = Sequences(**config["data"])
    loader = session.wrap(DataLoader(data, batch_size=config["batch_size"], shuffle=True, drop_last=True))
    optimizer = torch.optim.SGD(model.parameters(), **config["optimizer"])
    session.track(model=model, optimizer=optimizer, loader=loader)

    for step, (sequence, target) in session.steps(config["steps"], loader):
        loss = nn.functional.mse_loss(model(sequence), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config["clip"])
        optimizer.step()
        session.report(loss=loss)
        if step % config["print_every"] == 0:
            session.log(f"step {step}: this rank's loss is {loss.item():.4f}")


if __name__ == "__main__":
    main()
