"""What a restore brings lies on huge pages, where the kernel has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from muster_runtime.checkpoint.pages import ask_for_huge
from muster_runtime.checkpoint.tree import local_part

pytestmark = pytest.mark.runtime

KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
has_huge = pytest.mark.skipif(not KERNEL.exists(), reason="this kernel has no huge pages")


def areas(of: torch.Tensor) -> Iterator[str]:
    """The lines of /proc/self/smaps about the memory of a tensor."""
    at, inside = of.untyped_storage().data_ptr() + of.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        span, dash, _ = line.partition(" ")
        if dash and "-" in span and not span.endswith(":"):
            first, last = (int(each, 16) for each in span.split("-"))
            inside = first <= at < last
        elif inside:
            yield line


def asks_for_huge(tensor: torch.Tensor) -> bool:
    return any(line.startswith("VmFlags:") and " hg" in line for line in areas(tensor))


@has_huge
def test_a_large_tensor_asks_for_huge_pages_and_a_small_one_does_not() -> None:
    large, small = torch.empty(64 << 20, dtype=torch.uint8), torch.empty(1 << 20, dtype=torch.uint8)
    assert not asks_for_huge(large)
    ask_for_huge(large)
    ask_for_huge(small)
    assert asks_for_huge(large)
    assert not asks_for_huge(small)
    assert large.fill_(7).sum().item() == 7 * (64 << 20)


@has_huge
def test_a_part_of_a_tensor_is_asked_for_as_the_whole_of_its_memory() -> None:
    whole = torch.empty(32 << 20, dtype=torch.float16)
    ask_for_huge(local_part(whole)[: 16 << 20])
    assert asks_for_huge(whole)


def test_what_has_no_memory_here_is_left_alone() -> None:
    ask_for_huge(torch.empty(0))
    ask_for_huge(torch.empty(8 << 20, device="meta"))
