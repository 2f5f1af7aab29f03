"""Memory that is registered with CUDA, by a CUDA that only keeps books; `tests/runtime/session/test_cuda.py` has the
real one."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import pytest
import torch
from test_saver import land

from muster_protocol.checkpoints.retention import Retention
from muster_runtime.checkpoint import memory as module
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.errors import StateError
from muster_runtime.parallel.gang import Gang

if TYPE_CHECKING:
    from conftest import Opener

pytestmark = pytest.mark.runtime

SIZE = 1 << 20


class RefusedError(torch.cuda.CudaError):
    def __init__(self) -> None:
        RuntimeError.__init__(self, "already mapped (712)")  # CUDA's own has no words without a CUDA


class Books:
    """What is registered, by first byte. As CUDA, it doesn't see that memory is unmapped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.registered: dict[int, int] = {}
        self.asked = 0
        self.refuses = False
        monkeypatch.setattr(module, "_cudart", lambda: self)
        monkeypatch.setattr(torch.cuda, "check_error", self._check)

    def cudaHostRegister(self, address: int, size: int, flags: int) -> bool:  # noqa: N802 - CUDA's name
        self.asked += 1
        overlaps = any(address < start + length and start < address + size for start, length in self.registered.items())
        if not (overlaps or self.refuses):
            self.registered[address] = size
        return not (overlaps or self.refuses)

    def cudaHostUnregister(self, address: int) -> bool:  # noqa: N802 - CUDA's name
        return self.registered.pop(address, None) is not None

    @staticmethod
    def _check(done: bool) -> None:
        if not done:
            raise RefusedError


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    return Books(monkeypatch)


def test_what_is_registered_is_what_is_mapped(books: Books) -> None:
    memory = SharedMemory()
    memory.reserve(SIZE)
    assert not books.registered, "nobody has asked for it"
    for size in (SIZE, SIZE, 3 * SIZE):
        assert books.registered.keys() <= {memory.reserve(size, pinned=True).data_ptr()}
        assert list(books.registered.values()) == [size]
    assert books.asked == 2, "what grows is registered anew, nothing else"
    memory.close()
    assert not books.registered


def test_memory_that_nobody_closed_is_not_registered_for_ever(books: Books) -> None:
    for _ in range(3):  # at the same place, as a rule
        memory = SharedMemory()
        memory.reserve(SIZE, pinned=True)
        assert not memory.refused
        assert len(books.registered) == 1
        os.close(memory.descriptor)
        del memory
        assert not books.registered


def test_a_save_goes_on_in_memory_that_cuda_refuses_and_says_so_once(books: Books, opener: Opener) -> None:
    books.refuses = True
    said: list[str] = []
    keeper = Keeper(opener(), Gang(), owner="job", job="job", retention=Retention(), warn=said.append)
    keeper.claim()
    for step in (1, 2):
        keeper._transfers.memory.reserve(SIZE, pinned=True)  # as for tensors of a GPU
        keeper.begin({"state": torch.ones(100)}, step=step, trees={}, run={})
        assert land(keeper) == step
    assert books.asked == 1
    assert len(said) == 1
    assert "already mapped (712)" in said[0]
    keeper.close()


def test_a_limit_of_file_sizes_is_told_with_what_it_forbids() -> None:
    memory, limits = SharedMemory(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, limits[1]))
    try:
        memory.reserve(SIZE)
        with pytest.raises(StateError, match=r"3\.1 MB of .* above 1\.0 MB; .*ulimit -f"):
            memory.reserve(3 * SIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(memory.reserve(3 * SIZE)) == 3 * SIZE
    memory.close()
