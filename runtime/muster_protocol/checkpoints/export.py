"""A model out of a checkpoint, as safetensors in the layout of Hugging Face's hub; streamed, with bounded memory.

One file `model.safetensors`, or `model-00001-of-0000N.safetensors` and `model.safetensors.index.json`. A file is the
length of its header (8 bytes, little-endian), the header as JSON, and the tensors' bytes one after the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.store import Store, StreamingStore, whole_or_nothing
from muster_protocol.checkpoints.tensors import Tensor, content, tensors_of
from muster_protocol.errors import CorruptCheckpointError, StateError, StorageRefusedError

SHARD_BYTES: Final = 5_000_000_000
"""Tensors' bytes in one file at most, as transformers has it; a larger tensor gets a file of its own."""
WHOLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = re.compile(r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json")
_COMPILED: Final = re.compile(r"(?<![^.])_orig_mod\.")

_METADATA: Final = "__metadata__"
"""In a header: what isn't a tensor."""
_EXTRA: Final = "_extra_state"
"""As torch names what a module's get_extra_state() gives."""
_DICT: Final = "$dict"
"""Tags what is a list of keys and values, where a key could be taken for a tag."""

DTYPES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
    "complex64": "C64",
}
"""safetensors' name of each type, by torch's."""


def model_tensors(found: Found, name: str) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of the tracked object `name`, by their key in its state dict, without what torch.compile puts before
    the names of a module that is compiled inside the model. Tied ones are there once. And the keys that are left out:
    modules' extra states (`get_extra_state`) that are no tensors.

    StateError when there is no such object, or it isn't a flat state dict of tensors. CorruptCheckpointError.
    """
    trees: Mapping[str, Any] = found.manifest.planner.get("trees", {})
    if name not in trees:
        raise StateError(f"the checkpoint has no object {name!r}; it has: {', '.join(trees)}. Choose one by --object")
    tensors = tensors_of(found.manifest)
    chosen: dict[str, Tensor] = {}
    left_out: list[str] = []
    seen = set()
    for key, value in _entries(trees[name]):
        if not (isinstance(key, str) and isinstance(value, dict) and set(value) == {"$tensor"}):
            if str(key).rpartition(".")[2] == _EXTRA:
                left_out.append(key)
                continue
            raise StateError(
                f"{name}.{key} is no tensor: only a flat state dict of tensors can be exported, as a module's is; "
                "--object chooses another object"
            )
        tensor = tensors.get(str(value["$tensor"]))
        if tensor is None:
            raise CorruptCheckpointError(f"{found.key} has no tensor for {name}.{key}")
        if tensor.dtype not in DTYPES:
            raise StateError(f"{name}.{key} is of type {tensor.dtype}, which muster does not write as safetensors")
        if tensor.name not in seen:
            seen.add(tensor.name)
            own = _COMPILED.sub("", key)
            if own == _METADATA:
                raise StateError(f"{name} has a tensor {own}, a name that safetensors keeps for itself; rename it")
            if own in chosen:
                raise StateError(f"{name} has two tensors {own}, one of a part that is compiled; safetensors takes one")
            chosen[own] = tensor
    if not chosen:
        raise StateError(f"the object {name!r} has no tensors; choose another by --object")
    return chosen, left_out


def tree_of(entries: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict's tree in a manifest, where a key with a `$` would be taken for a tag (`muster_runtime`'s trees)."""
    if any(key.startswith("$") for key in entries):
        return {_DICT: [[key, entry] for key, entry in entries.items()]}
    return dict(entries)


def _entries(tree: Any) -> list[tuple[Any, Any]]:
    if not isinstance(tree, dict):
        return []
    return [(key, entry) for key, entry in tree[_DICT]] if set(tree) == {_DICT} else list(tree.items())


def exported_before(target: Store, *, force: bool) -> list[str]:
    """Keys of the model that lies there already. StateError when there is one, unless `force`."""
    there = [item.key for item in target.objects("model") if _WEIGHTS.fullmatch(item.key)]
    if there and not force:
        raise StateError(
            f"{target.uri} has a model already ({there[0]}); export it to another place, or replace that by --force"
        )
    return there


def export(
    source: Store,
    tensors: Mapping[str, Tensor],
    target: StreamingStore,
    *,
    shard_bytes: int = SHARD_BYTES,
    old: Collection[str] = (),
) -> list[str]:
    """Writes the files, the index as the last, and returns their names. CorruptCheckpointError when a chunk differs.

    What is not written anew of the files `old` goes in the end: loaders take `model.safetensors` before any index.
    """
    _free_cut(target)
    groups = list(_groups(tensors, shard_bytes))
    names = [WHOLE]
    if len(groups) > 1:
        names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
        if not set(names).isdisjoint(old):  # or, cut here, the old index would lead to files of both
            target.delete([INDEX])
    for name, group in zip(names, groups, strict=True):
        _write_file(source, group, target, name)
    if len(groups) > 1:
        weights = {key: name for name, group in zip(names, groups, strict=True) for key in group}
        index = {
            "metadata": {"total_size": sum(tensor.bytes for tensor in tensors.values())},
            "weight_map": dict(sorted(weights.items())),
        }
        names.append(INDEX)
        target.put(INDEX, (json.dumps(index, indent=2) + "\n").encode())
    target.delete(sorted(set(old) - set(names)))
    return names


def _free_cut(target: StreamingStore) -> None:
    """Gives up what an export that was killed has left half written: nobody sees that, and it is paid for."""
    with suppress(StorageRefusedError):  # S3 has a permission of its own to look for it, and some servers don't
        target.forget([each for each in target.unfinished("model") if _WEIGHTS.fullmatch(each.key)])


def header(tensors: Mapping[str, Tensor]) -> bytes:
    """The first bytes of a file with these tensors in this order."""
    entries: dict[str, Any] = {_METADATA: {"format": "pt"}}
    at = 0
    for key, tensor in tensors.items():
        offsets = [at, at + tensor.bytes]
        entries[key] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        at += tensor.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the first tensor is aligned
    return len(text).to_bytes(8, "little") + text


def _groups(tensors: Mapping[str, Tensor], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    group: dict[str, Tensor] = {}
    size = 0
    for key, tensor in tensors.items():
        if group and size + tensor.bytes > shard_bytes:
            yield group
            group, size = {}, 0
        group[key] = tensor
        size += tensor.bytes
    yield group


def _write_file(source: Store, tensors: Mapping[str, Tensor], target: StreamingStore, name: str) -> None:
    # widest items first, so that every tensor is aligned to its own items
    ordered = dict(sorted(tensors.items(), key=lambda entry: -entry[1].item_bytes))
    with whole_or_nothing(target.writer(name)) as writer:
        writer.write(memoryview(header(ordered)))
        for tensor in ordered.values():
            for piece in content(source, tensor):
                writer.write(piece)
        writer.close()
