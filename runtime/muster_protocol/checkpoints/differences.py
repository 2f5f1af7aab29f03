"""What differs between two checkpoints: by their manifests alone, or by reading where the manifests can't tell."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from muster_protocol.checkpoints.store import Store
from muster_protocol.checkpoints.tensors import Tensor, content

Side = tuple[Store, dict[str, Tensor]]


@dataclass(frozen=True)
class Difference:
    """One tensor. `kind`: added, removed, reshaped, changed, same, or unknown where the two are cut differently.

    `bytes` are those of the chunks that changed, None when only reading would tell.
    """

    name: str
    kind: str
    detail: str = ""
    bytes: int | None = None


def differences(before: Side, after: Side, *, read: bool) -> list[Difference]:
    """One for each tensor of either, by name. `read`: compare by content where the two are cut differently."""
    old, new = before[1], after[1]
    return [
        _compare(before[0], old.get(name), after[0], new.get(name), read) for name in sorted(old.keys() | new.keys())
    ]


def _compare(old_store: Store, old: Tensor | None, new_store: Store, new: Tensor | None, read: bool) -> Difference:
    if old is None:
        assert new is not None
        return Difference(new.name, "added", _form(new), new.bytes)
    if new is None:
        return Difference(old.name, "removed", _form(old), old.bytes)
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return Difference(new.name, "reshaped", f"{_form(old)} to {_form(new)}", new.bytes)
    if [(chunk.offsets, chunk.sizes) for chunk in old.chunks] == [(c.offsets, c.sizes) for c in new.chunks]:
        pairs = zip(old.chunks, new.chunks, strict=True)
        changed = sum(theirs.length for ours, theirs in pairs if ours.checksum != theirs.checksum)
        return Difference(new.name, "changed" if changed else "same", _form(new), changed)
    if not read:
        return Difference(new.name, "unknown", f"{_form(new)}, cut differently; --read compares it")
    same = _digest(old_store, old) == _digest(new_store, new)
    return Difference(new.name, "same" if same else "changed", _form(new), 0 if same else new.bytes)


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _digest(store: Store, tensor: Tensor) -> str:
    digest = hashlib.sha256()
    for piece in content(store, tensor):
        digest.update(piece)
    return digest.hexdigest()
