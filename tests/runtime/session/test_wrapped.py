"""Modules under a wrapper whose name the model's state leaves out, as activation checkpointing does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from muster_runtime.checkpoint.tree import split
from muster_runtime.parallel.gang import Gang
from muster_runtime.session import tracking
from muster_runtime.session.tracking import Tracked

pytestmark = pytest.mark.runtime


def model(*, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), cast(nn.Module, checkpoint_wrapper(nn.Linear(2, 2, bias=bias))))


@dataclass
class Follower:
    leads: bool = False


def test_its_parameters_are_replicas_that_every_rank_may_write() -> None:
    tracked = Tracked("model", model(), "here")
    _, tensors = split("model", tracked.state())
    assert sorted(tensors) == ["model.0.bias", "model.0.weight", "model.1.bias", "model.1.weight"]
    assert tracking._own_share(tracked, tensors, cast(Gang, Follower())).keys() == tensors.keys()


def test_one_that_the_checkpoint_lacks_is_told() -> None:
    tracked = Tracked("model", model(), "here")
    state: dict[str, Any] = model(bias=False).state_dict()
    with pytest.raises(ValueError, match=r"it has no 1\.bias"):
        tracking._load(tracked, tracked.thing, state)
    tracking._load(tracked, tracked.thing, {**state, "1.bias": torch.zeros(2)})
