"""What the ranks agree on, with sums as doubles give them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from muster_runtime.errors import UsageError
from muster_runtime.parallel.gang import Gang
from muster_runtime.session.boundary import Votes, agree
from muster_runtime.session.norms import Norms


class Ranks(Gang):
    """This rank among `others`, whose vectors it knows."""

    def __init__(self, world_size: int, off: float = 0.0) -> None:
        super().__init__(0, world_size, None)
        object.__setattr__(self, "off", off)

    def sum(self, values: list[float]) -> list[float]:
        total = list(values)
        for _ in range(self.world_size - 1):  # one after another, as a ring adds them up
            total = [a + b for a, b in zip(total, values, strict=True)]
        total[3] += self.off  # type: ignore[attr-defined]
        return total


def votes(step: int) -> Votes:
    return Votes(step, save=True, stop=False, ends=False, tokens=2.0, losses=((3.0, 2.0), None))


@pytest.mark.parametrize("step", [0, 1, 4093, 9_999_991, 123_456_789, 2**52 - 1])
@pytest.mark.parametrize("ranks", [1, 3, 1000])
def test_long_and_large_runs_are_at_the_same_step(step: int, ranks: int) -> None:
    agreed = agree(votes(step), Ranks(ranks), "train.py:9")
    assert (agreed.save, agreed.stop, agreed.tokens, agreed.losses) == (True, False, 2.0 * ranks, (1.5, None))


def test_one_rank_a_step_ahead_is_told_with_the_true_step() -> None:
    told = r"train.py:9: the ranks are at different steps \(rank 0 goes on after 9999991"
    with pytest.raises(UsageError, match=told):
        agree(votes(9_999_991), Ranks(1000, off=1.0), "train.py:9")


def test_the_norm_is_that_of_all_ranks_shares() -> None:
    own = Votes(7, save=False, stop=False, ends=False, losses=((1.0, 1.0), None), squares=((2.25, 1.0), None))
    agreed = agree(own, Ranks(4), "train.py:9")
    assert (agreed.losses, agreed.norms) == ((1.0, None), (3.0, None))
    alone = agree(
        Votes(7, save=False, stop=False, ends=False, losses=(None,), squares=((float("nan"), 1.0),)), Gang(), ""
    )
    assert alone.losses == (None,)
    assert alone.norms[0] != alone.norms[0], "what isn't finite on one rank isn't in the sum"


class Parameters:
    """An optimizer as far as `Norms` looks: gradients of the norm 5."""

    def __init__(self, *gradient: float, **more: object) -> None:
        weight = torch.nn.Parameter(torch.zeros(len(gradient)))
        weight.grad = torch.tensor(gradient)
        self.param_groups = [{"params": [weight]}]
        self.__dict__.update(more)


def test_the_norm_for_people_is_looked_at_now_and_then_and_read_with_the_losses() -> None:
    now = 100.0
    norms, other = Norms(0, 2, lambda: now), Norms(1, 2, lambda: now)
    step: Any = Parameters(3.0, 4.0)
    assert norms.asks()
    assert not other.asks(), "one clock decides"
    norms.sees_update(6, step, closure=False)
    assert norms.take(read=True) is None, "nobody has agreed yet"
    norms.heard(asked=True)
    assert not norms.asks(), "it waits for that one"
    norms.sees_update(7, step, closure=True)
    norms.sees_update(7, Parameters(9.0, found_inf=0), closure=False)  # type: ignore[arg-type]
    norms.sees_update(7, step, closure=False)
    norms.sees_update(8, step, closure=False)
    assert norms.take(read=False) is None
    square = norms.take(read=True)
    assert square == (12.5, 1.0), "its share of two equal ones"
    assert norms.take(read=True) is None
    own = Votes(9, save=False, stop=False, ends=False, losses=((1.0, 1.0),), square=square, asks_norm=True)
    agreed = agree(own, Ranks(2), "train.py:9")
    assert (agreed.norm, agreed.norm_asked, agreed.losses) == (5.0, True, (1.0,))
    assert not norms.asks()
    now += 10
    assert norms.asks()
