"""What tells that bytes are those that were saved: the one place that knows which checksum a manifest has."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any


def named(crc32: int) -> str:
    """As manifests have it: eight hex digits."""
    return f"{crc32:08x}"


class Check:
    """A checksum that is fed piece by piece."""

    def __init__(self, wanted: str) -> None:
        self._wanted, self._crc32 = wanted, 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._crc32 = zlib.crc32(data, self._crc32)

    def trouble(self) -> str:
        """What differs, or "" when the bytes are those that were saved."""
        return "" if named(self._crc32) == self._wanted else "CRC-32 differs"


def checksum_of(chunk: Mapping[str, Any]) -> str:
    """The checksum that a manifest has for a chunk; KeyError when it has none. Equal bytes have equal checksums."""
    return str(chunk["crc32"])


def check_of(checksum: str) -> Check:
    """A fresh check against what `checksum_of` gave."""
    return Check(checksum)
