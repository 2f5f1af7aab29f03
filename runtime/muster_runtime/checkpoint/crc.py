"""CRC-32 with zlib's polynomial, by zlib-ng where that is at hand: the same sums for a fifth of the processor time.

Muster brings zlib-ng compiled for several Pythons and machines (`hack/vendor.py`); elsewhere Python's own zlib does it.
A rank must not have what Muster brings on its path, so the extension is loaded by its file, under a name of ours: a
zlib_ng that the user's code imports stays the user's.
"""

from __future__ import annotations

import zlib
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Final, Protocol, cast

from muster_runtime import vendored


class Crc32(Protocol):
    def __call__(self, data: bytes | bytearray | memoryview, value: int = 0, /) -> int:
        """The sum of `data`, or of what `value` is the sum of and `data` behind it. Lets go of the interpreter."""


def _fastest(brought: Path | None) -> Crc32:
    try:
        if brought is None:  # pip has installed the runtime, with its dependencies
            from zlib_ng import zlib_ng

            return zlib_ng.crc32
        # The last word is what the extension calls itself.
        spec = PathFinder.find_spec("muster_runtime.checkpoint.zlib_ng", [str(brought / "zlib_ng")])
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return cast(Crc32, module.crc32)
    except ImportError:
        pass
    return zlib.crc32


crc32: Final[Crc32] = _fastest(vendored.folder())
