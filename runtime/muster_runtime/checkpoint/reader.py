"""Reads a checkpoint back into tensors of any sharding. All that is read is checked against its CRC-32.

Of each file only those blocks come in that the node needs, a few extents at once. A rank that reads alone receives them
straight into the tensors' own memory, where the connections to the store allow that and the tensors are the host's: a
whole file in one, where nothing was resharded. Otherwise they come in smaller parts into a window of the shared memory,
and go on from there, to a GPU by one copy: what several ranks of one node need, one of them fetches; the others read it
in that one's window.
"""

from __future__ import annotations

import math
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

from muster_protocol.checkpoints.cuts import lies_together
from muster_protocol.manifest import Manifest
from muster_protocol.storage_errors import PASSING, Kind
from muster_runtime.checkpoint.extents import Extent, Run, extents
from muster_runtime.checkpoint.layout import raw_bytes
from muster_runtime.checkpoint.node import gang_of, node, read_into, windows
from muster_runtime.checkpoint.reads import Read, Saved, Sizes, reads, saved_tensor
from muster_runtime.checkpoint.spread import copy_into
from muster_runtime.checkpoint.transfers import PARTS_WANTED, Receive, Transfers, no_thread, piece_bytes
from muster_runtime.checkpoint.tree import TensorTable, local_boxes, local_part
from muster_runtime.errors import CorruptCheckpointError, StateError, StorageError
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

    def parted(self, end: int) -> tuple[Wanted, Wanted | None]:
        """What comes before byte `end`, and what from there on, which is to be taken after it."""
        length = end - self.at
        if self.target.numel() <= length:
            return self, None
        return Wanted(self.target[:length], self.at, _nothing), Wanted(self.target[length:], end, self.finish)

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
        self._saved: dict[str, Saved | None] = {}
        each = sum(file.size for file in manifest.files) // max(1, manifest.world_size)
        self._most = piece_bytes(each, PARTS_WANTED)  # bytes of an extent that comes into a window

    def saved(self, name: str) -> Saved | None:
        """The tensor of this name as it was saved. CorruptCheckpointError when the manifest makes no sense."""
        if name not in self._saved:
            self._saved[name] = saved_tensor(self._manifest, name)
        return self._saved[name]

    def read(self, table: TensorTable) -> None:
        """Fills the tensors of `table`. Collective; what a rank fails with is raised on all.

        Each rank plans for itself what it reads. torch's `load` would have rank 0 gather the plans of all and hand them
        out again, for ranks times tensors; but there is nothing to settle between them.
        """
        by_file = self._gang.each(lambda: self._plan(table))
        self._gang.each(lambda: self._fetch_with_neighbours(by_file))

    def _plan(self, table: TensorTable) -> dict[int, list[Wanted]]:
        """By number of the file, what fills `table`."""
        by_file: dict[int, list[Wanted]] = defaultdict(list)
        for (name, tensor), box in zip(table.items(), local_boxes(table), strict=True):
            saved = self.saved(name)
            if saved is None:
                raise StateError(f"the checkpoint lacks {name}")
            held = local_part(tensor).detach()
            content = _as_bytes(held) if held.dtype == saved.dtype and _is_its_bytes(held) else None
            for read in reads(self._manifest, saved, tensor.shape, box):
                by_file[read.file].append(_wanted(read, held, content, saved.dtype))
        return dict(sorted(by_file.items()))  # the only one: what has landed is let go of

    def _fetch_with_neighbours(self, by_file: dict[int, list[Wanted]]) -> None:
        """Collective. Alone where no other rank of this node needs one of the files."""
        here = node()
        everyone = enumerate(self._gang.gather((here, set(by_file))))
        ranks = [(rank, files) for rank, (there, files) in everyone if there == here]
        if len(set().union(*(files for _, files in ranks))) == sum(len(files) for _, files in ranks):
            return self._fetch(by_file)
        with gang_of([rank for rank, _ in ranks]) as neighbours:
            runs: dict[int, list[Run]] = defaultdict(list)
            own = [(i, extent.run) for i, wanted in by_file.items() for extent in self._extents(i, _runs(wanted))]
            for index, run in chain.from_iterable(neighbours.gather(own)):
                runs[index].append(run)
            needed = [(i, extent) for i in sorted(runs) for extent in self._extents(i, runs[i], self._most)]
            if _bytes(run for found in runs.values() for run in found) == _bytes(e.run for _, e in needed):
                return self._fetch(by_file)  # other parts of the same files
            slot = max(extent.size for _, extent in needed)
            self._transfers.memory.reserve(WINDOW * slot)
            with windows(self._transfers.memory, neighbours) as seen:
                if seen is None:
                    return self._fetch(by_file)
                return self._share(_pieces(needed, by_file), neighbours, seen, slot)

    def _extents(self, index: int, runs: list[Run], most: int | None = None) -> list[Extent]:
        return extents(self._manifest.files[index], runs, most)

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

    def _fetch(self, by_file: dict[int, list[Wanted]]) -> None:
        receive = self._transfers.receiver() if by_file else None

        def most(wanted: list[Wanted]) -> int | None:
            return self._most if receive is None or _goes_on(wanted) else None

        found = [(i, e) for i, wanted in by_file.items() for e in self._extents(i, _runs(wanted), most(wanted))]
        pieces = _pieces(found, by_file)
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
                begin = partial(_begun, pool, receive, extent, _parts(wanted, extent.size))
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


def _begun(pool: ThreadPoolExecutor, receive: Receive, extent: Extent, parts: Sequence[memoryview]) -> Task[None]:
    try:
        return pool.submit(receive, extent, parts)
    except RuntimeError as error:
        raise no_thread(error) from error


def _pieces(found: list[tuple[int, Extent]], by_file: dict[int, list[Wanted]]) -> list[Piece]:
    """Each extent with what this rank wants of it. Empties `by_file`."""
    pieces: list[Piece] = []
    for index, parts in groupby(found, key=itemgetter(0)):
        left = deque(sorted(by_file.pop(index, ()), key=lambda each: each.at))
        for _, extent in parts:
            start, end = extent.run
            wanted: list[Wanted] = []
            rest: list[Wanted] = []
            while left and left[0].at < end:
                each, later = left.popleft().parted(end)
                wanted.append(replace(each, at=each.at - start))
                if later is not None:
                    rest.append(later)
            left.extendleft(rest)
            pieces.append((extent, wanted))
    return pieces


def _wanted(read: Read, held: torch.Tensor, content: torch.Tensor | None, dtype: torch.dtype) -> Wanted:
    """`held`: this rank's part of the tensor, some of which is to be filled, and its bytes, where it consists of these
    as they were saved; `dtype`: that of what was saved."""
    together = lies_together(read.lengths, read.sizes)
    at = read.at + (_index(read.within, read.sizes) * dtype.itemsize if together else 0)
    if together and content is not None and lies_together(read.lengths, held.shape):
        start = _index(read.into, held.shape) * dtype.itemsize
        return Wanted(content[start : start + math.prod(read.lengths) * dtype.itemsize], at, _nothing)
    memory = torch.empty(read.lengths if together else read.sizes, dtype=dtype, device="cpu")

    def copy() -> None:
        part = memory if together else _narrowed(memory, read.within, read.lengths)
        copy_into(_narrowed(held, read.into, read.lengths), part)

    return Wanted(_as_bytes(memory), at, copy)


def _narrowed(tensor: torch.Tensor, offsets: Sizes, sizes: Sizes) -> torch.Tensor:
    for dimension, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dimension, start, size)
    return tensor


def _nothing() -> None:
    """Left to do for bytes that came to where they belong."""


def _runs(wanted: list[Wanted]) -> list[Run]:
    return [each.run for each in wanted]


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
