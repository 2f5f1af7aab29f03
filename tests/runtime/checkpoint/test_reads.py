"""Which bytes of which chunks a rank's part of a tensor consists of."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muster_protocol.manifest import Manifest, ShardFile
from muster_runtime.checkpoint.reads import Read, reads, saved_tensor
from muster_runtime.errors import CorruptCheckpointError, StateError

Box = tuple[tuple[int, ...], tuple[int, ...]]


def manifest_of(tensors: Any, size: int = 10**6) -> Manifest:
    return Manifest(7, 1, 0, "", (ShardFile("a.bin", size, ""),), {"tensors": tensors}, 1, 0.0)


def chunk(offsets: list[int], sizes: list[int], at: int = 0, file: int = 0) -> dict[str, Any]:
    return {"offsets": offsets, "sizes": sizes, "file": file, "at": at}


def box_of(tensor: torch.Tensor, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    return tensor[tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box], Box]:
    """A shape, boxes that make it up, in any order, and a box of it."""
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    cuts = [sorted({0, *draw(st.lists(st.integers(0, size), max_size=3)), size}) for size in shape]
    intervals = [list(itertools.pairwise(places)) or [(0, 0)] for places in cuts]
    boxes = [
        (tuple(low for low, _ in each), tuple(high - low for low, high in each))
        for each in itertools.product(*intervals)
    ]
    ends = [sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in shape]
    part = tuple(low for low, _ in ends), tuple(high - low for low, high in ends)
    return shape, draw(st.permutations(boxes)), part


@given(layouts())
def test_a_part_comes_together_from_chunks_of_any_other_cut(layout: tuple[tuple[int, ...], list[Box], Box]) -> None:
    shape, boxes, part = layout
    whole = torch.arange(math.prod(shape), dtype=torch.int64).reshape(shape)
    chunks, at = [], 0
    content: dict[int, torch.Tensor] = {}
    for offsets, sizes in boxes:
        chunks.append(chunk(list(offsets), list(sizes), at))
        content[at] = box_of(whole, offsets, sizes)
        at += 8 * math.prod(sizes) or 1  # each begins somewhere else
    manifest = manifest_of({"a": {"dtype": "int64", "shape": list(shape), "chunks": chunks}})
    saved = saved_tensor(manifest, "a")
    assert saved is not None
    found = torch.full(part[1], -1, dtype=torch.int64)
    for read in reads(manifest, saved, shape, part):
        assert content[read.at].shape == read.sizes
        target = box_of(found, read.into, read.lengths)
        assert bool((target == -1).all()), "no byte is read twice"
        target.copy_(box_of(content[read.at], read.within, read.lengths))
    assert found.equal(box_of(whole, *part))


WHOLE = {"dtype": "float32", "shape": [4, 2], "chunks": [chunk([0, 0], [3, 2]), chunk([3, 0], [1, 2], 24)]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"chunks": WHOLE["chunks"][:1]}, "the manifest of step 7 lacks chunks of a"),
        ({"chunks": [chunk([0, 0], [4, 2], 10**6 - 31)]}, r"a chunk of a lies beyond the end of a\.bin"),
        ({"chunks": [chunk([0, 0], [4, 2], -1)]}, r"a chunk of a lies beyond the end of a\.bin"),
        ({"chunks": [chunk([0, 0], [4, 2], file=1)]}, "the manifest of step 7 is damaged: IndexError"),
        ({"chunks": [chunk([0, 0], [4, 2], file=-1)]}, "the manifest of step 7 is damaged: IndexError"),
        ({"chunks": [{"offsets": [0, 0]}]}, "the manifest of step 7 is damaged: KeyError"),
        ({"chunks": [chunk([], [])]}, "the manifest of step 7 is damaged: IndexError"),
        ({"chunks": None}, "the manifest of step 7 is damaged: TypeError"),
        ({"shape": "no"}, "the manifest of step 7 is damaged: TypeError"),
        ({"dtype": 3}, "the manifest of step 7 is damaged: TypeError"),
        ({"dtype": "float999"}, "tensors of type 'float999', which torch .* lacks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_manifest_that_makes_no_sense_is_told(change: dict[str, Any], told: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=told):
        found_in(manifest_of({"a": WHOLE | change}))


def found_in(manifest: Manifest) -> list[Read]:
    saved = saved_tensor(manifest, "a")
    assert saved is not None
    return reads(manifest, saved, (4, 2), ((0, 0), (4, 2)))


def test_what_is_missing_or_of_another_shape_is_told() -> None:
    manifest = manifest_of({"a": WHOLE})
    assert saved_tensor(manifest, "b") is None
    saved = saved_tensor(manifest, "a")
    assert saved is not None
    with pytest.raises(StateError, match=r"a is \(4, 2\) in the checkpoint and \(2, 4\) here"):
        reads(manifest, saved, (2, 4), ((0, 0), (2, 4)))
    assert reads(manifest, saved, (4, 2), ((4, 0), (0, 2))) == []


def test_a_manifest_without_tensors_is_told() -> None:
    with pytest.raises(CorruptCheckpointError, match="the manifest of step 7 is damaged: KeyError"):
        saved_tensor(Manifest(7, 1, 0, "", (), {}, 1, 0.0), "a")
