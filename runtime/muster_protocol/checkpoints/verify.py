"""Is every byte of a checkpoint there, and the one that was saved? Parallel; holds one piece a thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.store import Store
from muster_protocol.checkpoints.tensors import Chunk, checked, tensors_of
from muster_protocol.errors import CorruptCheckpointError

THREADS: Final = 4


def damage(store: Store, found: Found) -> Iterator[str]:
    """One sentence for each object that is missing or of another size, and for each chunk that isn't what was saved."""
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
            chunks[chunk.file.key].append((tensor.name, chunk))

    def look(entry: tuple[str, Chunk]) -> str:
        name, chunk = entry
        try:
            for _ in checked(store, chunk):
                pass
        except CorruptCheckpointError as error:
            return f"{error}: {name}"
        return ""

    wanted = [entry for key in sorted(sound) for entry in sorted(chunks[key], key=lambda entry: entry[1].at)]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="muster-verify") as pool:
        yield from filter(None, pool.map(look, wanted))
