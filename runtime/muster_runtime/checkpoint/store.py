"""The stores that a rank opens."""

from __future__ import annotations

from muster_protocol import uris
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.checkpoints.store import Store
from muster_runtime.checkpoint.memory import SharedMemory


def open_store(uri: str, memory: SharedMemory | None = None) -> Store:
    """The store for `s3://bucket/prefix` or `file:///folder`. ValueError when `uri` is neither.

    `memory` is what it moves shards through where a process of its own does that; otherwise one is made.
    """
    parsed = uris.parse_uri(uri)
    if parsed.scheme == "file":
        return FileStore(parsed)
    from muster_runtime.checkpoint.s3_store import S3Store

    return S3Store(parsed, memory)
