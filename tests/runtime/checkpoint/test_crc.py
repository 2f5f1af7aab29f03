"""One sum, whoever makes it: checkpoints of zlib's are read by zlib-ng, and the other way round."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_runtime.checkpoint import crc
from muster_runtime.checkpoint.crc import crc32

pytestmark = pytest.mark.runtime


def test_the_quick_one_is_used_where_the_runtime_is_installed() -> None:
    assert crc32 is not zlib.crc32


@settings(deadline=None)
@given(st.binary(max_size=5000), st.integers(0, 15), st.integers(0, 5000))
def test_it_is_zlibs_sum_from_any_byte_on_and_in_any_pieces(content: bytes, start: int, cut: int) -> None:
    view = memoryview(content)[start:]
    assert crc32(view) == zlib.crc32(view)
    assert crc32(view[cut:], crc32(view[:cut])) == zlib.crc32(view)


@pytest.mark.parametrize("length", [(1 << 22) - 1, 1 << 22, (1 << 22) + 67])
def test_it_is_zlibs_sum_of_what_a_read_brings(length: int) -> None:
    content = bytearray(range(256)) * (length // 256 + 1)
    assert crc32(memoryview(content)[:length]) == zlib.crc32(memoryview(content)[:length])


def test_every_single_flipped_bit_changes_it() -> None:
    content = bytearray(range(200))
    whole = crc32(content)
    for bit in range(8 * len(content)):
        content[bit // 8] ^= 1 << bit % 8
        assert crc32(content) != whole
        content[bit // 8] ^= 1 << bit % 8


def test_an_image_for_which_nothing_is_compiled_has_pythons_own(tmp_path: Path) -> None:
    (tmp_path / "zlib_ng").mkdir()
    (tmp_path / "zlib_ng" / "zlib_ng.cpython-39-riscv64-linux-gnu.so").write_bytes(b"of another machine")
    assert crc._fastest(tmp_path) is zlib.crc32


def test_a_build_that_does_not_load_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "zlib_ng").mkdir()
    (tmp_path / "zlib_ng" / "zlib_ng.so").write_bytes(b"half a download")
    assert crc._fastest(tmp_path) is zlib.crc32
