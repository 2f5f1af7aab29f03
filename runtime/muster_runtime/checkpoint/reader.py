"""Reads a checkpoint back into tensors of any sharding. All that is read is checked against its CRC-32.

Of each file only those blocks come in that the node needs, a few extents at once: the whole file in one, where nothing
was resharded. A rank that reads alone receives them straight into the tensors' own memory, where the connections to the
store allow that and the tensors are the host's. Otherwise they come into a window of the shared memory, and go on from
there, to a GPU by one copy: what several ranks of one node need, one of them fetches; the others read it in that one's
window.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future as Task
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import Final

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from muster_protocol.checkpoints.cuts import lies_together
from muster_protocol.manifest import Manifest
from muster_protocol.storage_errors import PASSING, Kind
from muster_runtime.checkpoint.extents import Extent, Run, extents
from muster_runtime.checkpoint.layout import Place, metadata_from_json, raw_bytes
from muster_runtime.checkpoint.node import gang_of, node, read_into, windows
from muster_runtime.checkpoint.spread import copy_into
from muster_runtime.checkpoint.transfers import Receive, Transfers
from muster_runtime.checkpoint.tree import TensorTable, local_part
from muster_runtime.errors import CorruptCheckpointError, StorageError
from muster_runtime.parallel.gang import Gang

WINDOW: Final = 4
"""Extents on their way at once; their memory is all that a restore takes beside the tensors themselves."""
_SCRATCH: Final = 4 << 20
"""Bytes of memory for what nobody wants of a file that is received."""
_TRIES: Final = 4
_PAUSE_SECONDS: Final = 1.0
"""Before an extent is asked for again; doubled each time."""


@dataclass(frozen=True)
class Wanted:
    """Bytes of a file or an extent: `target` (uint8, of the host or a device) takes them from its byte `at`; then
    `finish` is called."""

    target: torch.Tensor
    at: int
    finish: Callable[[], None]

    @property
    def run(self) -> Run:
        return self.at, self.at + self.target.numel()

    def take(self, file: torch.Tensor) -> None:
        self.target.copy_(self.source(file))
        self.finish()

    def take_from(self, memory: int, start: int, scratch: torch.Tensor) -> None:
        """Of a file that begins at byte `start` of a rank's memory, a descriptor. `scratch`: on the way to a device."""
        if not on_device(self.target):
            read_into(self.target, memory, start + self.at)
        else:
            for at in range(0, self.target.numel(), _SCRATCH):
                part = self.target[at : at + _SCRATCH]
                read_into(scratch[: part.numel()], memory, start + self.at + at)
                part.copy_(scratch[: part.numel()])
        self.finish()

    def source(self, file: torch.Tensor) -> torch.Tensor:
        return file[self.at : self.at + self.target.numel()]


Piece = tuple[Extent, list[Wanted]]
"""What is fetched at once, and what this rank wants of it: `at` counts from the extent's first byte."""


class Reader:
    """One restore of one manifest."""

    def __init__(self, transfers: Transfers, manifest: Manifest, gang: Gang) -> None:
        self._transfers, self._manifest, self._gang = transfers, manifest, gang
        self.metadata, self._places = metadata_from_json(manifest)

    def read(self, table: TensorTable) -> None:
        """Fills the tensors of `table`. Collective; what a rank fails with is raised on all.

        Each rank plans for itself what it reads. torch's `load` would have rank 0 gather the plans of all and hand them
        out again, for ranks times tensors; but there is nothing to settle between them.
        """
        by_file = self._gang.each(lambda: self._plan(table))
        self._gang.each(lambda: self._fetch_with_neighbours(by_file))

    def _plan(self, table: TensorTable) -> dict[int, list[Wanted]]:
        """By number of the file, what fills `table`."""
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(dict(table), self.metadata, self._gang.leads)
        parts = {name: local_part(tensor).detach() for name, tensor in table.items()}
        by_file: dict[int, list[Wanted]] = defaultdict(list)
        for item in planner.create_local_plan().items:
            place = self._places[item.storage_index]
            if place.length:
                by_file[place.file].append(self._wanted(item, parts[item.dest_index.fqn], place))
        return dict(sorted(by_file.items()))  # the only one: what has landed is let go of

    def _wanted(self, item: ReadItem, held: torch.Tensor, place: Place) -> Wanted:
        """`held`: this rank's part of the tensor, of which the item fills some."""
        entry = self.metadata.state_dict_metadata[item.storage_index.fqn]
        assert isinstance(entry, TensorStorageMetadata)
        dtype, sizes = entry.properties.dtype, place.sizes
        target = narrow_tensor_by_index(held, item.dest_offsets, item.lengths)
        together = lies_together(tuple(item.lengths), tuple(sizes))
        at = place.at + (_index(item.storage_offsets, sizes) * dtype.itemsize if together else 0)
        if together and target.dtype == dtype and _is_its_bytes(target):
            return Wanted(_as_bytes(target), at, _nothing)
        read = torch.empty(item.lengths if together else sizes, dtype=dtype, device="cpu")

        def copy() -> None:
            part = read if together else narrow_tensor_by_index(read, item.storage_offsets, item.lengths)
            copy_into(target, part)

        return Wanted(_as_bytes(read), at, copy)

    def _fetch_with_neighbours(self, by_file: dict[int, list[Wanted]]) -> None:
        """Collective. Alone where no other rank of this node needs one of the files."""
        here = node()
        everyone = enumerate(self._gang.gather((here, set(by_file))))
        ranks = [(rank, files) for rank, (there, files) in everyone if there == here]
        own = self._extents({index: [each.run for each in wanted] for index, wanted in by_file.items()})
        if len(set().union(*(files for _, files in ranks))) == sum(len(files) for _, files in ranks):
            return self._fetch(_pieces(own, by_file))
        with gang_of([rank for rank, _ in ranks]) as neighbours:
            runs: dict[int, list[Run]] = defaultdict(list)
            for index, run in chain.from_iterable(neighbours.gather([(i, e.run) for i, e in own])):
                runs[index].append(run)
            needed = self._extents(dict(sorted(runs.items())))
            if _bytes(run for found in runs.values() for run in found) == _bytes(e.run for _, e in needed):
                return self._fetch(_pieces(own, by_file))  # other parts of the same files
            slot = max(extent.size for _, extent in needed)
            self._transfers.memory.reserve(WINDOW * slot)
            with windows(self._transfers.memory, neighbours) as seen:
                if seen is None:
                    return self._fetch(_pieces(own, by_file))
                return self._share(_pieces(needed, by_file), neighbours, seen, slot)

    def _extents(self, runs: dict[int, list[Run]]) -> list[tuple[int, Extent]]:
        """What is fetched for `runs` of each file, with the file's number."""
        files = self._manifest.files
        return [(index, extent) for index, wished in runs.items() for extent in extents(files[index], wished)]

    def _share(self, pieces: list[Piece], neighbours: Gang, seen: list[int], slot: int) -> None:
        """In batches, which use one half of the windows and the other in turn: while one is read, the next comes in."""
        width = neighbours.world_size
        deep = WINDOW // 2
        batches = [pieces[at : at + deep * width] for at in range(0, len(pieces), deep * width)]

        def place(number: int, position: int) -> int:
            return (number % 2 * deep + position // width) * slot

        def begin(number: int) -> list[tuple[Extent, int, Task[None]]]:
            positions = range(neighbours.rank, len(batches[number]), width)
            own = [(batches[number][position][0], place(number, position)) for position in positions]
            return [(extent, at, self._transfers.fetch(extent, at)) for extent, at in own]

        under_way = begin(0)
        scratch = torch.empty(_SCRATCH, dtype=torch.uint8, device="cpu")  # its pages come when it is used
        for number, batch in enumerate(batches):
            # From here on the batch is in the windows, and nobody reads the one before any more.
            failures = [each for each in neighbours.gather(self._settle_all(under_way)) if each is not None]
            if failures:
                raise failures[0]
            under_way = begin(number + 1) if number + 1 < len(batches) else []
            for position, (_, wanted) in enumerate(batch):
                at = place(number, position)
                for each in wanted:
                    each.take_from(seen[position % width], at, scratch)
                wanted.clear()
        neighbours.gather(None)  # nobody reads in this rank's memory any more

    def _settle_all(self, under_way: list[tuple[Extent, int, Task[None]]]) -> Exception | None:
        failure: Exception | None = None
        for extent, at, task in under_way:
            try:
                self._settle(task, partial(self._transfers.fetch, extent, at))
            except (StorageError, CorruptCheckpointError) as error:
                failure = failure or error
        return failure

    def _fetch(self, pieces: list[Piece]) -> None:
        receive = self._transfers.receiver() if pieces else None
        if receive is None:
            self._fetch_through_window(pieces)
        else:
            self._receive(pieces, receive)

    def _receive(self, pieces: list[Piece], receive: Receive) -> None:
        under_way: deque[tuple[Callable[[], Task[None]], Task[None], list[Wanted], torch.Tensor | None]] = deque()
        pool = ThreadPoolExecutor(WINDOW, thread_name_prefix="muster-restore")
        free = self._slots(pieces)

        def land() -> None:
            begin, task, wanted, slot = under_way.popleft()
            self._settle(task, begin)
            for each in wanted:
                each.finish()
            if slot is not None:
                free.append(slot)

        try:
            for extent, wished in pieces:
                goes_on = _goes_on(wished)
                while len(under_way) == 2 * WINDOW or (goes_on and not free):
                    land()
                slot = free.pop() if goes_on else None
                wanted = _apart(wished, extent.size, slot)
                wished.clear()
                begin = partial(pool.submit, receive, extent, _parts(wanted, extent.size))
                under_way.append((begin, begin(), wanted, slot))
            while under_way:
                land()
        finally:  # whoever tries another checkpoint needs the tensors for himself
            pool.shutdown(cancel_futures=True)

    def _slots(self, pieces: list[Piece]) -> list[torch.Tensor]:
        """Memory of the host through which the pieces that go on to a device come; one beyond those on their way."""
        size = max((extent.size for extent, wanted in pieces if _goes_on(wanted)), default=0)
        if not size:
            return []
        memory = self._transfers.memory.reserve((WINDOW + 1) * size, pinned=_pins(pieces))
        return [memory[number * size : (number + 1) * size] for number in range(WINDOW + 1)]

    def _fetch_through_window(self, pieces: list[Piece]) -> None:
        slot = max((extent.size for extent, _ in pieces), default=0)
        memory = self._transfers.memory.reserve(WINDOW * slot, pinned=_pins(pieces))
        under_way: list[tuple[Piece, int, Task[None]]] = []  # with where it comes to lie

        def land() -> int:
            (extent, wanted), at, task = under_way.pop(0)
            self._settle(task, partial(self._transfers.fetch, extent, at))
            for each in wanted:
                each.take(memory[at : at + extent.size])
            wanted.clear()
            return at

        free = [number * slot for number in range(WINDOW)]
        for piece in pieces:
            at = free.pop() if free else land()
            under_way.append((piece, at, self._transfers.fetch(piece[0], at)))
        while under_way:
            land()

    def _settle(self, task: Task[None], again: Callable[[], Task[None]]) -> None:
        """The library repeats requests for a while; a large restore must outlive more than that."""
        for attempt in range(_TRIES):
            try:
                return task.result()
            except StorageError as error:
                if error.kind == Kind.NOT_FOUND.value:
                    raise CorruptCheckpointError(str(error)) from error
                if Kind(error.kind) not in PASSING or attempt + 1 == _TRIES:
                    raise
            time.sleep(_PAUSE_SECONDS * 2**attempt)
            task = again()
        raise AssertionError("unreachable")


def _pieces(found: list[tuple[int, Extent]], by_file: dict[int, list[Wanted]]) -> list[Piece]:
    """Each extent with what this rank wants of it. Empties `by_file`."""
    pieces: list[Piece] = []
    for index, parts in groupby(found, key=itemgetter(0)):
        left = deque(sorted(by_file.pop(index, ()), key=lambda each: each.at))
        for _, extent in parts:
            start, end = extent.run
            wanted: list[Wanted] = []
            while left and left[0].at < end:
                each = left.popleft()
                wanted.append(replace(each, at=each.at - start))
            pieces.append((extent, wanted))
    return pieces


def _nothing() -> None:
    """Left to do for bytes that came to where they belong."""


def _bytes(runs: Iterable[Run]) -> int:
    return sum(end - start for start, end in runs)


def _index(offsets: Sequence[int], sizes: Sequence[int]) -> int:
    """Of an item in a box of `sizes`, in C order."""
    found = 0
    for offset, size in zip(offsets, sizes, strict=True):
        found = found * size + offset
    return found


def _is_its_bytes(tensor: torch.Tensor) -> bool:
    """Whether what is written to its memory, in order, is its content: no subclass's, and no mark that turns signs."""
    plain = type(tensor) is torch.Tensor and tensor.device.type in ("cpu", "cuda") and tensor.is_contiguous()
    return plain and not (tensor.is_conj() or tensor.is_neg())


def on_device(target: torch.Tensor) -> bool:
    return target.device.type != "cpu"


def _goes_on(wanted: list[Wanted]) -> bool:
    """To a device, which nobody receives into."""
    return any(on_device(each.target) for each in wanted)


def _pins(pieces: list[Piece]) -> bool:
    """Whether memory on their way is worth its registration with CUDA, which the next save wants, too."""
    return any(each.target.is_cuda for _, wanted in pieces for each in wanted)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _apart(wanted: list[Wanted], size: int, slot: torch.Tensor | None) -> list[Wanted]:
    """In the file's order. Where two want the same bytes, or `slot` is there to receive them, one that has the whole
    file for all of them."""
    ordered = sorted(wanted, key=lambda each: each.at)
    if slot is None and all(one.at + one.target.numel() <= other.at for one, other in pairwise(ordered)):
        return ordered
    file = torch.empty(size, dtype=torch.uint8, device="cpu") if slot is None else slot[:size]

    def share_out() -> None:
        for each in ordered:
            each.take(file)

    return [Wanted(file, 0, share_out)]


def _parts(wanted: list[Wanted], size: int) -> list[memoryview]:
    """The memory for each byte of a file, in its order: that of the targets, and scratch for what lies between them."""
    spans = [(each.at, each.at + each.target.numel()) for each in wanted]
    ends, starts = [0, *(end for _, end in spans)], [*(start for start, _ in spans), size]
    gaps = [start - end for end, start in zip(ends, starts, strict=True)]
    scratch = memoryview(bytearray(min(max(gaps), _SCRATCH)))
    parts: list[memoryview] = []
    for gap, target in zip(gaps, [*(raw_bytes(each.target) for each in wanted), memoryview(b"")], strict=True):
        parts += [*(scratch[: gap - at] for at in range(0, gap, _SCRATCH)), target]
    return [part for part in parts if part]
