"""State dicts as trees and tensors: everything plain comes back exactly, anything else is named."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, MultiStepLR, SequentialLR

from muster_runtime.checkpoint.tree import join, split
from muster_runtime.errors import StateError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.booleans() | st.none() | st.tuples(st.integers()), inner)
    ),
    max_leaves=30,
)


def same(left: Any, right: Any) -> bool:
    """Equal with equal types; NaN equals NaN, and 0.0 differs from -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return left.hex() == right.hex()
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    return bool(left == right)


def through_json(state: Any) -> Any:
    tree, table = split("x", state)
    assert not table
    return join(json.loads(json.dumps(tree, allow_nan=False)), lambda path, name: table[name])


@settings(max_examples=200, deadline=None)
@given(PLAIN)
def test_plain_values_come_back_exactly(state: Any) -> None:
    assert same(through_json(state), state)


def test_dicts_that_look_like_tags_come_back() -> None:
    for state in ({"$tensor": "x"}, {"$dict": [1]}, {"a": {"$float": "nan"}}):
        assert through_json(state) == state


def test_tensors_go_into_the_table_under_their_paths() -> None:
    state = {"state": {0: {"step": torch.tensor(3.0)}}, "groups": [{"lr": 0.1, "w": (torch.ones(2),)}]}
    tree, table = split("opt", state)
    assert list(table) == ["opt.state.0.step", "opt.groups.0.w.0"]
    back = join(json.loads(json.dumps(tree)), lambda path, name: table[name], "opt")
    assert back["groups"][0]["w"][0].equal(torch.ones(2))
    assert list(back["state"]) == [0]


@pytest.mark.parametrize(
    "state",
    [
        {1: torch.tensor(1.0), "1": torch.tensor(2.0)},
        {"a.b": torch.tensor(1.0), "a": {"b": torch.tensor(2.0)}},
        {"a": [torch.tensor(1.0)], "a.0": torch.tensor(2.0), "a.0#2": torch.tensor(3.0)},
    ],
    ids=["types", "dots", "list"],
)
def test_tensors_whose_keys_have_one_path_are_all_there(state: Any) -> None:
    tree, table = split("x", state)
    assert repr(join(json.loads(json.dumps(tree)), lambda path, name: table[name])) == repr(state)


def test_a_tie_to_what_is_in_no_state_has_its_own_tensor() -> None:
    """As a buffer that is saved has, beside one that is the same and isn't persistent."""
    value = torch.arange(3.0)
    tree, table = split("x", {"saved": value}, {"x.saved": "x.passing"})
    assert tree == {"saved": {"$tensor": "x.saved"}}
    assert table["x.saved"] is value


def test_the_paths_are_the_same_both_ways() -> None:
    state = {"a.b": [torch.ones(1)], 3: {"c": (torch.ones(1), torch.ones(1))}}
    tree, table = split("n", state)
    seen = []
    join(tree, lambda path, name: seen.append((path, name)) or table[name], "n")
    assert [path for path, _ in seen] == [name for _, name in seen] == list(table)


def test_a_counter_stays_one() -> None:
    for state in (Counter({4: 1, 8: 2}), Counter(), Counter(a=3), Counter({"$x": 1})):
        assert same(through_json({"milestones": state}), {"milestones": state})


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_schedule_goes_on_past_its_milestones() -> None:
    def made() -> tuple[Optimizer, LRScheduler]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], 0.1)
        parts = [LinearLR(optimizer, 0.1, total_iters=3), MultiStepLR(optimizer, [1, 4])]
        return optimizer, SequentialLR(optimizer, parts, [3])

    def rates(optimizer: Optimizer, schedule: LRScheduler) -> list[float]:
        found = []
        for _ in range(8):
            optimizer.step()
            schedule.step()
            found.extend(schedule.get_last_lr())
        return found

    optimizer, schedule = made()
    again, resumed = made()
    again.load_state_dict(through_json(optimizer.state_dict()))
    resumed.load_state_dict(through_json(schedule.state_dict()))
    assert rates(again, resumed) == rates(optimizer, schedule)


def test_numpy_numbers_and_odd_dicts_become_plain() -> None:
    state = OrderedDict(count=np.int64(3), mean=np.float32(0.5), ok=np.bool_(True))
    assert through_json(state) == {"count": 3, "mean": 0.5, "ok": True}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        (lambda: 0, "function"),
        (np.ones(2), "ndarray"),
        (np.datetime64(1, "ns"), "datetime64"),
        (np.timedelta64(1, "ns"), "timedelta64"),
    ],
)
def test_anything_else_is_an_error_that_names_the_key(value: Any, kind: str) -> None:
    with pytest.raises(StateError, match=rf"^meter\.deep\.1 is a .*{kind}"):
        split("meter", {"deep": [0, value]})


def test_a_state_that_holds_itself_is_told() -> None:
    state: dict[str, Any] = {"parts": []}
    state["parts"].append(state)
    with pytest.raises(StateError, match=r"^meter has a list or dict that holds itself"):
        split("meter", state)


def test_tensors_without_values_are_refused_by_name() -> None:
    with pytest.raises(StateError, match=r"m\.grid is on the meta device.*to_empty"):
        split("m", {"grid": torch.empty(2, device="meta")})


@pytest.mark.parametrize("kind", [torch.uint4, torch.int2, torch.bits8])
def test_types_whose_items_torch_does_not_measure_are_refused_by_name(kind: torch.dtype) -> None:
    with pytest.raises(StateError, match=rf"m\.grid is of type {kind}, which a checkpoint can't hold.*torch.uint8"):
        split("m", {"grid": torch.zeros(2, dtype=torch.uint8).view(kind)})


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("sparse_coo", lambda: torch.eye(2).to_sparse()),
        ("nested", lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
        ("nested", lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)),
    ],
)
def test_tensors_that_are_not_dense_are_refused_by_name(kind: str, made: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(StateError, match=rf"m\.grid is a {kind} tensor"):
        split("m", {"grid": made()})


def test_a_number_too_long_for_a_text_is_refused_by_name() -> None:
    """Python makes none of more than 4,300 digits, which would be a bare ValueError at the first save."""
    for number in ((1 << 14_000) - 1, -((1 << 14_000) - 1)):
        assert through_json(number) == number
    with pytest.raises(StateError, match=r"^keys\.modulus is a number of 20,001 bits.*to_bytes"):
        split("keys", {"modulus": 1 << 20_000})


def test_infinities_are_kept() -> None:
    assert through_json([math.inf, -math.inf]) == [math.inf, -math.inf]


@pytest.mark.parametrize("tree", [{"a": [{"$newer": 1}]}, {"a": [{"$newer": {"$tensor": "x"}}]}])
def test_a_form_that_a_newer_version_wrote_is_not_taken_for_a_dict(tree: Any) -> None:
    with pytest.raises(StateError, match=r"has s\.a\.0 in a form \(\$newer\) .* resume with the one that wrote it"):
        join(tree, lambda path, name: torch.ones(1), "s")
