"""Models of transformers and adapters of peft: whole runs of the example, and what comes out of their checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gangs import run_gang
from hack.needs_torch import SHARDS
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from muster.cli.app import app

FINETUNE = Path(__file__).resolve().parents[3] / "examples" / "transformers" / "finetune.py"
STRATEGIES = pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=SHARDS)])


def exported(strategy: str, folder: Path, *arguments: str) -> Path:
    """What is exported of a run that was cut after 7 of 12 steps, and has ended as one that was not."""
    losses = []
    for name, stops in (("whole", [12]), ("cut", [7, 12])):
        environment = {"MUSTER_STRATEGY": strategy, "MUSTER_CHECKPOINT_URI": f"file://{folder}/{name}"}
        for steps in stops:
            result = run_gang(FINETUNE, folder, 2, environment, arguments=("--steps", str(steps), *arguments)).check()
        line = next(line for line in result.outputs[0].splitlines() if "step 12/12" in line)
        losses.append(line.split("loss ")[1].split()[0])
    assert losses[0] == losses[1]
    told = CliRunner().invoke(app, ["checkpoint", "export", f"file://{folder}/cut", str(folder / "out")])
    assert told.exit_code == 0, told.output
    return folder / "out"


@STRATEGIES
def test_a_model_resumes_and_goes_back_to_where_it_is_from(strategy: str, tmp_path: Path) -> None:
    out = exported(strategy, tmp_path)
    LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    ).save_pretrained(out)
    model, found = LlamaForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(found.values()), found
    tensors = load_file(out / "model.safetensors")
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())


@STRATEGIES
def test_an_adapter_resumes_from_checkpoints_that_hold_nothing_else(strategy: str, tmp_path: Path) -> None:
    tensors = load_file(exported(strategy, tmp_path, "--lora", "4") / "model.safetensors")
    assert len(tensors) == 2 * 2 * 7, "an A and a B of each linear layer"
    assert all("lora_" in name for name in tensors)
    assert any(tensor.any() for name, tensor in tensors.items() if "lora_B" in name), "which are 0 before training"
