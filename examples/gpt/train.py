"""A small GPT on the bytes of the Python standard library's own source files.

    python train.py                          on a laptop, one process
    kubectl apply -f trainingjob-fsdp.yaml   as a gang: see README.md

It knows nothing of DDP, FSDP, S3 or restarts: the six lines marked `# muster` make it all of that.
"""

import argparse
import math
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import muster_runtime as muster  # muster

VOCABULARY = 256  # bytes


class Corpus(Dataset):
    """Windows of `context` + 1 bytes that don't overlap, from the first `limit` bytes of the library's source files."""

    def __init__(self, context: int, limit: int) -> None:
        text, folder = bytearray(), Path(sysconfig.get_path("stdlib"))
        for path in sorted(folder.glob("*.py")) + sorted(folder.glob("[a-z]*/*.py")):
            if "site-packages" not in path.parts and "dist-packages" not in path.parts:
                text += path.read_bytes()
            if len(text) >= limit:
                break
        self.text = torch.frombuffer(text[:limit], dtype=torch.uint8)
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.context
        window = self.text[start : start + self.context + 1].long()
        return window[:-1], window[1:]


class Block(nn.Module):
    """One transformer layer: attention, then a two-layer perceptron, each added to its normalised input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, context, width = x.shape
        q, k, v = (
            part.view(batch, context, self.heads, -1).transpose(1, 2)
            for part in self.attention(self.norm1(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.projection(y.transpose(1, 2).reshape(batch, context, width))
        x = x + F.dropout(y, self.dropout, self.training)
        y = self.narrow(F.gelu(self.widen(self.norm2(x))))
        return x + F.dropout(y, self.dropout, self.training)


class GPT(nn.Module):
    def __init__(self, context: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight  # tied
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def learning_rate(step: int, steps: int, warmup: int) -> float:
    """Share of the peak: a linear warm-up, then half a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences in a global batch")
    parser.add_argument("--context", type=int, default=64, help="bytes in a sequence")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=20, help="steps")
    parser.add_argument("--corpus-bytes", type=int, default=2_000_000)
    parser.add_argument("--workers", type=int, default=0, help="processes that read the data")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    session = muster.start()  # muster

    model = GPT(args.context, args.width, args.layers, args.heads, args.dropout)
    loader = DataLoader(
        Corpus(args.context, args.corpus_bytes),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
    )
    model, loader = session.wrap(model), session.wrap(loader)  # muster
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, args.steps, args.warmup))

    session.track(model=model, optimizer=optimizer, schedule=schedule, loader=loader)  # muster
    for _, (tokens, targets) in session.steps(args.steps, loader):  # muster
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        session.report(loss=loss, tokens=tokens.numel())  # muster


if __name__ == "__main__":
    main()
