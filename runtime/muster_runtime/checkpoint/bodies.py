"""Bytes of the shared memory as the body of a PUT, and back: without a copy in between."""

from __future__ import annotations

import io
from typing import Any, Final

from botocore.config import Config

_PIECE: Final = 1 << 20
"""Bytes that one call to the socket takes, whatever the HTTP library asks for: it means to save memory, and 128 KiB at
a time cost the interpreter more than they save. A connection's time-out counts for each."""


class Content(io.RawIOBase):
    """A file on top of memory. `read` gives views, not copies."""

    def __init__(self, memory: memoryview) -> None:
        self._memory, self._at = memory, 0

    def __len__(self) -> int:
        return len(self._memory)

    def read(self, size: int = -1) -> memoryview:
        piece = self._memory[self._at : self._at + _PIECE]
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._memory)}[whence]
        return self._at

    def tell(self) -> int:
        return self._at


def send_unsigned(client: Any) -> None:
    """Bodies that are `Content` are left out of the request's signature, which would want a SHA-256 of every byte.

    Their CRC-32 is a header, which is signed; what decides about a checkpoint (manifest, `LATEST`) is no `Content`.
    """
    config = client.meta.config
    settings: Any = {**(config.s3 or {}), "payload_signing_enabled": False}
    unsigned = config.merge(Config(s3=settings))

    def choose(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
        if isinstance(params["body"], Content):
            context["client_config"] = unsigned

    client.meta.events.register("before-call.s3.PutObject", choose)
