"""Trains a causal language model of Hugging Face's transformers on text files: all of it, or a LoRA adapter beside it.

    python finetune.py                                     a small Llama from scratch, on Python's own sources
    python finetune.py --model FOLDER --lora 8 TEXT ...    an adapter for a model that you have
    kubectl apply -n research -f job.yaml                  as a gang: see README.md

The loop is the script's own, for transformers' Trainer brings one that can't be resumed at any step; the six lines
marked `# muster` make a gang of it.
"""

import argparse
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import muster_runtime as muster  # muster


def load(name: str | None) -> tuple[nn.Module, Callable[[str], list[int]]]:
    """A model with fp32 weights, and what makes tokens of a text for it. None: random weights, and bytes."""
    if name is None:
        shape = LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
        )
        return LlamaForCausalLM(shape), lambda text: list(text.encode())
    tokenizer = AutoTokenizer.from_pretrained(name)
    return AutoModelForCausalLM.from_pretrained(name).float(), lambda text: tokenizer(text)["input_ids"]


def windows(files: list[Path], encode: Callable[[str], list[int]], context: int) -> TensorDataset:
    """All of the texts, one behind the other, in pieces of `context` tokens."""
    tokens = torch.tensor([token for path in files for token in encode(path.read_text())])
    return TensorDataset(tokens[: len(tokens) // context * context].view(-1, context))


def leave_out_frozen(model: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """What is not trained is the same in each checkpoint, and `load` makes it anew."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            state.pop(f"{prefix}{name}", None)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="*", help="files to train on")
    parser.add_argument("--model", help="folder, or name on the hub; else a small one with random weights")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="train an adapter of this rank alone")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences in a global batch")
    parser.add_argument("--context", type=int, default=64, help="tokens in a sequence")
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    session = muster.start()  # muster

    model, encode = load(args.model)
    if args.lora:
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=args.lora, target_modules="all-linear"))
        model.register_state_dict_post_hook(leave_out_frozen)
    model = session.wrap(model)  # muster
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=args.lr)
    text = args.text or sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py"))
    loader = DataLoader(windows(text, encode, args.context), args.batch_size, shuffle=True, drop_last=True)
    loader = session.wrap(loader)  # muster
    session.track(model=model, optimizer=optimizer, loader=loader)  # muster

    for _, (tokens,) in session.steps(args.steps, loader):  # muster
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        session.report(loss=loss, tokens=tokens.numel())  # muster


if __name__ == "__main__":
    main()
