"""What tells that bytes are those that were saved: the one place that knows which checksum a manifest has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


class Check:
    """A checksum that is fed piece by piece."""

    def __init__(self, wanted: str) -> None:
        self._wanted, self._digest = wanted, hashlib.sha256()

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._digest.update(data)

    def trouble(self) -> str:
        """What differs, or "" when the bytes are those that were saved."""
        return "" if self._digest.hexdigest() == self._wanted else "SHA-256 differs"


def checksum_of(chunk: Mapping[str, Any]) -> str:
    """The checksum that a manifest has for a chunk; KeyError when it has none. Equal bytes have equal checksums."""
    return str(chunk["sha256"])


def check_of(checksum: str) -> Check:
    """A fresh check against what `checksum_of` gave."""
    return Check(checksum)
