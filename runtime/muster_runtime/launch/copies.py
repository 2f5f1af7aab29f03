"""This pod's part in keeping each other's memory: it sends a copy of its ranks' newest step to another launcher, keeps
that of a third, and fetches its own back when it is new.

A copy is one step of all ranks of a pod. It counts when all of it is here and its checksums are right; while the next
one comes in over it, there is none. Only what the gang has agreed on in this incarnation is sent, so nothing takes a
copy's place before those who need it have fetched it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from muster_protocol import env
from muster_protocol import launcher_api as api
from muster_protocol.checkpoints.pace import Pace
from muster_protocol.launcher_status import Kept
from muster_protocol.messages import Copy, Member, Release
from muster_runtime.checkpoint import records
from muster_runtime.checkpoint.frames import receive_frame, send_frame
from muster_runtime.checkpoint.niceness import give_way
from muster_runtime.checkpoint.records import Order
from muster_runtime.launch import copy_stream
from muster_runtime.launch.config import Config
from muster_runtime.launch.copy_stream import CopyError, Piece
from muster_runtime.launch.membership import Refused, Roll
from muster_runtime.launch.rank_memory import RankMemory, agreed, stand
from muster_runtime.launch.state import State
from muster_runtime.launch.termination import say

_AGAIN_SECONDS: Final = 5.0
"""After a copy that was not taken."""
_SLOWEST_FETCH: Final = 4e6
"""Bytes a second: where less comes, the gang had better not wait for the rest, and resume from the store."""
_SLOWEST_COPY: Final = 4e5
"""The same of a copy that comes to be kept, for which training's own exchanges leave less."""
_CHECKED_A_SECOND: Final = 20e6
"""Bytes, at the least: whoever keeps a copy sums it at the lowest priority, and says nothing meanwhile."""
_OVERTAKEN: Final = (
    "the save after the next was staged where it lay before all of it had come; save less often "
    "(spec.checkpoint.interval, everySteps), or put the two where the network between them is faster"
)
_FAILURES_TOLD: Final = 3
"""Tries in a row that fail before anybody but the log is told: the other launcher may only be late to begin."""

Seen = tuple[list[list[bytes]], bytes]
"""The heads of what each rank has marked, and of the claim."""
Stream = Callable[[socket.socket], None]
"""What becomes of the connection, in a thread of its own."""


@dataclass(frozen=True)
class _Held:
    copy: Copy
    pieces: tuple[Piece, ...]


class Copies:
    """Lives in the event loop's thread, but for the streams. Without memory of its own it does nothing."""

    def __init__(self, config: Config, roll: Roll, state: State) -> None:
        self._config, self._roll, self._state = config, roll, state
        self._memory = [RankMemory.make() for _ in range(config.processes)] if config.keeps_memory else []
        self._filled = False  # whether that memory has ever had a step
        self._room = os.memfd_create("muster-copy", os.MFD_CLOEXEC) if config.copies_memory else -1
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._open, self._turn = False, 0
        self._filling = threading.Lock()  # one connection at a time fills the room
        self._offers = 0  # the last of them counts
        self._incoming: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._incarnation = 0
        self._keeper: Member | None = None
        self._sending = False
        self._sent: Seen | None = None
        self._not_before = 0.0
        self._said, self._failures = "", 0
        self.trouble = ""
        """Why no other launcher gets a copy of this pod's memory, in one sentence; "" while it does, or soon may."""

    def descriptors(self, local_rank: int) -> tuple[int, ...]:
        """For the rank to inherit."""
        return self._memory[local_rank].descriptors if self._memory else ()

    def environment(self, local_rank: int) -> dict[str, str]:
        """What the rank's environment says of its memory tier in this incarnation."""
        if not self._memory:
            return {}
        return {env.MEMORY_TIER: ",".join(map(str, self.descriptors(local_rank))), env.MEMORY_PEER: self._peer()}

    def _peer(self) -> str:
        if self._config.memory == Kept.LOCAL.value:
            return ""
        if not self._config.copies_memory:
            return "lost workers of this job are not replaced alone"
        if self._keeper is None:
            return "all its workers lie on one node"
        return str(self._taken() // self._config.processes)

    def _taken(self) -> int:
        """Bytes that another pod's copy takes here."""
        return os.fstat(self._room).st_size

    @property
    def holding(self) -> tuple[int, ...]:
        """As a `Member` tells it. It doesn't change between `end` and `begin`."""
        held = self._held
        return (held.copy.index, *held.copy.order) if held is not None else ()

    # ------------------------------------------------------------------ from incarnation to incarnation

    async def begin(self, release: Release) -> None:
        """Before the ranks of this incarnation start. A pod that has nothing fetches what the one before it had."""
        self._incarnation, self._keeper = release.incarnation, release.keeper
        self._sent, self._not_before, self._said = None, 0.0, ""
        self._failures, self.trouble = 0, ""
        self._open = True
        holder = release.holder
        if holder is None or not self._memory or not self._new():
            return
        turn = self._turn
        fetching = asyncio.ensure_future(_in_thread(lambda: self._fetch(holder, turn)))
        fetching.add_done_callback(lambda _: self._state.tell())
        while not fetching.done():
            if self._state.stop is not None or self._state.ending or self._state.foreign or self._again(release):
                self.end()
            await self._state.wait(1.0)
        wrong = fetching.result()
        how = f"could not be fetched, so the gang resumes from the store: {wrong}" if wrong else "was fetched"
        say(f"the copy of this pod's memory at step {holder.copy[2]}, with index {holder.index}, {how}")

    def _new(self) -> bool:
        """Whether this pod's memory has never had anything. What is empty since was let go of when the gang resumed
        from the store, under a later claim; an older copy must not come in its place."""
        self._filled = self._filled or not all(memory.empty for memory in self._memory)
        claims = self._config.leads and records.head(self._memory[0].claim)
        return not (self._filled or claims)

    def _again(self, release: Release) -> bool:
        """Whether the gang has to start again already."""
        restart = self._state.restart
        return restart is not None and restart.incarnation > release.incarnation

    def end(self) -> None:
        """The incarnation is over, nothing of it may change what is here any more. What is on its way is given up."""
        with self._lock:
            self._open = False
            self._turn += 1
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------------ keeping another pod's

    def offered(self, copy: Copy) -> Stream | Refused | None:
        """What a launcher offers to be kept here. None: it is here already."""
        refused = self._refusal(copy)
        if refused is not None:
            return refused
        with self._lock:
            if not self._open or copy.incarnation != self._incarnation:
                return Refused(409, f"this launcher is not in incarnation {copy.incarnation}")
            if self._held is not None and _same(self._held.copy, copy):
                self._held = replace(self._held, copy=copy)
                return None
            growth = copy.size - self._taken()
            if self._config.memory != Kept.PEER.value and growth > records.free_memory(self._config.memory_request):
                return Refused(507, f"it needs {growth / 1e9:.2f} GB more memory than it has")
            self._held, turn = None, self._turn
            self._offers = number = self._offers + 1
            if self._incoming is not None:  # its sender has given it up
                with suppress(OSError):
                    self._incoming.shutdown(socket.SHUT_RDWR)
        return lambda connection: self._receive(connection, copy, turn, number)

    def wanted(self, copy: Copy) -> Stream | Refused:
        """What a launcher wants back. Its pod is so new that the membership which names it may not be here yet."""
        held, turn = self._held, self._turn
        if held is None or not _same(held.copy, copy):
            return Refused(404, f"index {self._config.index} has no such copy")
        return lambda connection: self._give_back(connection, held, turn)

    def _refusal(self, copy: Copy) -> Refused | None:
        if self._room < 0 or copy.index == self._config.index:
            return Refused(409, "this launcher keeps no copy of that")
        named = self._roll.of(copy.index)
        if named is not None and named.pod_uid != copy.pod_uid:
            return Refused(403, f"index {copy.index} belongs to pod {named.pod_uid}, not to {copy.pod_uid}")
        return None

    def _receive(self, connection: socket.socket, copy: Copy, turn: int, number: int) -> None:
        wrong = ""
        with self._passing(connection, turn), self._filling:
            try:
                give_way()
                with self._lock:
                    if number != self._offers:
                        raise CopyError("another was offered after it")
                    self._incoming = connection
                pace = Pace(_SLOWEST_COPY, copy_stream.STALL_SECONDS)
                pieces = copy_stream.receive(connection, self._config.processes, self._room, pace)
                copy_stream.check(pieces, copy.order)
                with self._lock:
                    if number != self._offers:
                        raise CopyError("another was offered meanwhile")
                    if turn == self._turn:
                        os.ftruncate(self._room, pieces[-1].base + records.capacity(pieces[-1].part.length))
                        self._held = _Held(copy, tuple(pieces))
            except (CopyError, OSError, ValueError) as error:
                wrong = str(error)
                say(f"the copy of index {copy.index}'s memory at step {copy.order[1]} is refused: {wrong}")
            finally:
                with self._lock:
                    self._incoming = None
            with suppress(OSError):
                send_frame(connection, {"wrong": wrong})

    def _give_back(self, connection: socket.socket, held: _Held, turn: int) -> None:
        with self._passing(connection, turn):
            try:
                send_frame(connection, {"claim": held.copy.claim})
                copy_stream.send(connection, held.pieces)
            except (CopyError, OSError) as error:
                say(f"the copy of index {held.copy.index}'s memory was not given back: {error}")

    # ------------------------------------------------------------------ having one kept, and fetching it

    def look(self) -> None:
        """Sends what the gang has agreed on since the last time. Call it every second or so."""
        if not self._open or self._keeper is None or self._sending:
            return
        marked = [
            [head for head in map(records.head, memory.slots) if records.marked(head) == self._incarnation]
            for memory in self._memory
        ]
        seen = (marked, records.head(self._memory[0].claim))
        self._filled = self._filled or all(marked)
        if not all(marked) or seen == self._sent:
            return
        if self._state.clock() < self._not_before and (self._sent is None or seen[1] == self._sent[1]):
            return  # a newer claim doesn't wait: whoever goes on under an older one would leave out what it committed
        self._sending = True
        self._state.keep(asyncio.ensure_future(self._send_seen(seen, self._keeper)))

    async def _send_seen(self, seen: Seen, keeper: Member) -> None:
        incarnation, turn, began = self._incarnation, self._turn, self._state.clock()
        wrong = await _in_thread(lambda: self._send(keeper, incarnation, turn))
        self._sending = False
        if turn != self._turn:
            return
        now = self._state.clock()
        # While the next comes in over it there is none: that would be always where it takes as long as saves are apart.
        self._sent, self._not_before = None if wrong else seen, now + (_AGAIN_SECONDS if wrong else now - began)
        told = f"worker {self._config.index}'s memory is not copied to worker {keeper.index}: {wrong}" if wrong else ""
        if told and told != self._said:
            say(told)
        self._said, self._failures = told, self._failures + 1 if wrong else 0
        self.trouble = told if self._failures >= _FAILURES_TOLD else ""

    def _send(self, keeper: Member, incarnation: int, turn: int) -> str:
        """Why there is no copy with `keeper`, or ""."""
        pieces = agreed(self._memory, incarnation)
        if not pieces:
            return ""
        order = pieces[0].part.order
        size = sum(records.capacity(piece.part.length) for piece in pieces)
        try:
            # It may be written anew just now, which is half of one.
            claim = records.read(self._memory[0].claim) if self._config.leads else None
            copy = replace(self._own(order), size=size, claim=json.dumps(claim) if claim else "")
            with self._passing(self._connect(keeper), turn) as connection:
                status = copy_stream.ask(connection, self._config.token, api.COPY_PATH, copy)
                if status == 204:
                    return ""
                if status != 101:
                    return f"it answered {status}: {_text(connection)}"
                give_way()
                try:
                    copy_stream.send(connection, pieces)
                except OSError as error:
                    return copy_stream.last_word(connection) or str(error)
                connection.settimeout(copy_stream.STALL_SECONDS + size / _CHECKED_A_SECOND)
                answer = receive_frame(connection)
                wrong = "it hung up" if answer is None else str(answer[0]["wrong"])
                return _OVERTAKEN if wrong and not stand(self._memory, pieces) else wrong
        except (CopyError, OSError, ValueError) as error:
            return str(error) or repr(error)

    def _fetch(self, holder: Member, turn: int) -> str:
        """Why this pod's copy didn't come from `holder`, or ""."""
        order = (holder.copy[1], holder.copy[2], holder.copy[3])
        try:
            with self._passing(self._connect(holder), turn) as connection:
                status = copy_stream.ask(connection, self._config.token, api.FETCH_PATH, self._own(order))
                if status != 101:
                    return f"it answered {status}: {_text(connection)}"
                pace = Pace(_SLOWEST_FETCH, copy_stream.STALL_SECONDS)
                first = receive_frame(connection, pace.count)
                if first is None:
                    return "it hung up"
                into = {number: memory.data for number, memory in enumerate(self._memory)}
                pieces = copy_stream.receive(connection, len(self._memory), into, pace)
            if first[0]["claim"] and self._config.leads:
                records.write(self._memory[0].claim, json.loads(first[0]["claim"]))
            for memory, piece in zip(self._memory, pieces, strict=True):
                records.put(memory.slots[0], piece.record)
            self._filled = True
        except (CopyError, OSError, ValueError) as error:
            return str(error) or repr(error)
        return ""

    def _own(self, order: Order) -> Copy:
        return Copy(self._config.index, self._config.pod_uid, self._incarnation, order, 0)

    def _connect(self, member: Member) -> socket.socket:
        return copy_stream.connect(member.address, self._config.port)

    @contextmanager
    def _passing(self, connection: socket.socket, turn: int) -> Iterator[socket.socket]:
        """While it is asked on, and bytes pass; `end` cuts it off. Nobody may answer, and a stop has only its grace."""
        with closing(connection):
            connection.settimeout(copy_stream.STALL_SECONDS)
            with self._lock:
                if turn != self._turn:
                    connection.shutdown(socket.SHUT_RDWR)
                self._connections.add(connection)
            try:
                yield connection
            finally:
                with self._lock:
                    self._connections.discard(connection)


async def _in_thread(work: Callable[[], str]) -> str:
    """What is wrong, or "": in a thread of its own, which doesn't keep this process from ending."""
    loop, outcome = asyncio.get_running_loop(), asyncio.Queue[str]()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the gang goes on without the copy, and must not wait for it
            traceback.print_exc(file=sys.stderr)
            result = repr(error)
        with suppress(RuntimeError):  # the launcher has ended meanwhile
            loop.call_soon_threadsafe(outcome.put_nowait, result)

    try:
        threading.Thread(target=run, daemon=True, name="muster-copy").start()
    except RuntimeError as error:  # the container may have no more of them
        return str(error)
    return await outcome.get()


def _same(one: Copy, other: Copy) -> bool:
    return one.index == other.index and tuple(one.order) == tuple(other.order)


def _text(connection: socket.socket) -> str:
    return connection.recv(300).decode(errors="replace").strip()
