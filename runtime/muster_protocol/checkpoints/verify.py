"""Is every byte of a checkpoint there, and the one that was saved? Parallel; holds one piece a thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from muster_protocol.checkpoints.chain import Found, read_manifest
from muster_protocol.checkpoints.checks import check_of
from muster_protocol.checkpoints.pools import each_in
from muster_protocol.checkpoints.store import Store
from muster_protocol.checkpoints.tensors import Chunk, Passage, tensors_of
from muster_protocol.errors import CorruptCheckpointError
from muster_protocol.manifest import ShardFile

THREADS: Final = 4


def damage_at(store: Store, key: str, sha256: str) -> Iterator[str]:
    """`damage` of the checkpoint with this manifest, and what is wrong with the manifest itself."""
    try:
        found = read_manifest(store, key, sha256)
    except CorruptCheckpointError as error:
        yield str(error)
        return
    yield from damage(store, found)


def damage(store: Store, found: Found) -> Iterator[str]:
    """One sentence for each object that is missing or of another size, and for each chunk or object that isn't what was
    saved."""
    folder = found.key.rpartition("/")[0] + "/"
    there = {item.key: item.size for item in store.objects(folder)}
    try:
        tensors = tensors_of(found.manifest)
    except CorruptCheckpointError as error:
        yield str(error)
        return
    sound = set()
    for file in found.manifest.files:
        if file.key not in there:
            yield f"{store.uri}/{file.key} is missing"
        elif there[file.key] != file.size:
            yield f"{store.uri}/{file.key} has {there[file.key]:,} bytes, the manifest says {file.size:,}"
        else:
            sound.add(file.key)
    chunks: dict[str, list[tuple[str, Chunk]]] = defaultdict(list)
    for tensor in tensors.values():
        for chunk in tensor.chunks:
            if chunk.length:
                chunks[chunk.file.key].append((tensor.name, chunk))
    files = [file for file in found.manifest.files if file.key in sound]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="muster-verify") as pool:
        for told in each_in(pool, lambda file: list(_of_file(store, file, chunks[file.key])), files):
            yield from told


def _of_file(store: Store, file: ShardFile, chunks: list[tuple[str, Chunk]]) -> Iterator[str]:
    """Reads one object once, for the sums of its chunks and its own."""
    whole, passage, damaged = check_of(file.crc32), Passage(store, file), False
    where = f"{store.uri}/{file.key}"
    try:
        for name, chunk in sorted(chunks, key=lambda entry: entry[1].at):
            for piece in passage.up_to(chunk.at):
                whole.update(piece)
            own, end = check_of(chunk.checksum), chunk.at + chunk.length
            for piece in passage.up_to(end):
                own.update(piece)
                whole.update(piece)
            if own.trouble():
                damaged = True
                span = f"bytes {chunk.at} to {end}"
                yield f"{where}: {span} are not those that were saved ({own.trouble()}): {name}"
        for piece in passage.up_to(file.size):
            whole.update(piece)
    except CorruptCheckpointError as error:
        yield str(error)
        return
    if whole.trouble() and not damaged:
        yield f"{where} is not what was saved ({whole.trouble()}), though its tensors are: a restore refuses it"
