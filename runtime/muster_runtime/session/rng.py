"""Random states: saved per rank, restored bit by bit, or derived anew for another world size."""

from __future__ import annotations

import base64
import random
import sys
from typing import Any

import torch

from muster_runtime.checkpoint.tree import packed, unpacked
from muster_runtime.data.order import mix
from muster_runtime.data.seeded import seed_generators


def seed_all(seed: int) -> None:
    """Seeds Python, torch (all devices) and, if the script has imported it, NumPy."""
    seed_generators(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def derive(seed: int, step: int, rank: int) -> None:
    """The state that rank `rank` begins step `step` with when there is no saved one."""
    seed_all(mix(seed, "step", step, "rank", rank))


def states(device: torch.device) -> dict[str, Any]:
    """This rank's states, as `put_back` takes them."""
    found: dict[str, Any] = {"python": random.getstate(), "torch": _text(torch.get_rng_state())}
    if device.type == "cuda":
        found["cuda"] = _text(torch.cuda.get_rng_state(device))
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        found["numpy"] = [name, keys.tolist(), position, has_gauss, cached]
    return found


def capture(device: torch.device, epoch: dict[str, Any] | None = None) -> torch.Tensor:
    """This rank's states as bytes (uint8 tensor) for the checkpoint, with those at the epoch's begin."""
    now = states(device)
    return packed(now if epoch is None else {**now, "epoch": epoch})


def restore(saved: torch.Tensor, device: torch.device) -> None:
    """Sets what `capture` found."""
    put_back(unpacked(saved), device)


def at_epoch(saved: torch.Tensor) -> dict[str, Any] | None:
    """The states at the epoch's begin that `capture` was given."""
    found = unpacked(saved).get("epoch")
    return dict(found) if found is not None else None


def put_back(states: dict[str, Any], device: torch.device) -> None:
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(_tensor(states["torch"]))
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(_tensor(states["cuda"]), device)
    if "numpy" in states:
        import numpy

        name, keys, position, has_gauss, cached = states["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
