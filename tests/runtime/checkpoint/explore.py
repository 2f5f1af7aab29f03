"""Goes through every order in which processes' calls can reach a store, with crashes and with requests that come late
or twice: a model checker whose model is the code itself.

A process is a function of a store. To know its next call it is run again on the answers that it has got, up to the
first call without one; so its state is that list of answers. Each call happens at once and whole, as S3 promises for
one object. Every state is visited once, by the fewest calls first, so the first violation has a shortest trace.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from muster_protocol.checkpoints.store import Body, Item, Unfinished
from muster_protocol.errors import MusterError, storage_error

NOW: Final = 1e9
"""The time of every call, in seconds; what lay there before is from 1970."""

Call = tuple[Any, ...]
"""Name and arguments."""
Objects = tuple[tuple[str, bytes, float], ...]
"""Key, content and time, sorted."""
Process = Callable[[Any], None]
"""Given its store. It may raise `MusterError`; an AssertionError is a violation."""

_WRITES: Final = ("put", "put_if", "delete")
_NO_ANSWER: Final = ("refused", "Network")


class _Waits(BaseException):
    """The process has asked something that has no answer yet."""


class Replayed:
    """A store that gives a process the answers it has got, and notes its next call."""

    def __init__(self, name: str, answers: tuple[Any, ...]) -> None:
        self.uri = "file:///explored"
        self.asked: Call | None = None
        self.told: tuple[str, ...] = ()
        self._answers = iter(answers)
        self._tokens = (f"{name}{number}" for number in itertools.count())

    def token(self, _bytes: int) -> str:
        return next(self._tokens)

    def tell(self, what: str) -> None:
        """The process has said to its user that `what` is committed."""
        self.told += (what,)

    def _ask(self, *call: Any) -> Any:
        if self.asked is not None:  # the process is on its way out
            raise _Waits
        for answer in self._answers:
            if isinstance(answer, tuple) and answer[:1] == ("refused",):
                raise storage_error(answer[1], f"{call[0]} {call[1]}")
            return answer
        self.asked = call
        raise _Waits

    def get(self, key: str) -> Body | None:
        content = self._ask("get", key)
        return None if content is None else Body(content, etag_of(content))

    def read(self, key: str, offset: int, length: int) -> bytearray:
        content = self._ask("get", key)
        if content is None or len(content) < offset + length:
            raise storage_error("NotFound", key)
        return bytearray(content[offset : offset + length])

    def put(self, key: str, content: bytes) -> None:
        self._ask("put", key, content)

    def put_if(self, key: str, content: bytes, etag: str | None) -> str:
        self._ask("put_if", key, content, etag)
        return etag_of(content)

    def objects(self, prefix: str) -> list[Item]:
        return [Item(*item) for item in self._ask("list", prefix)]

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._ask("delete", key)

    def unfinished(self) -> list[Unfinished]:
        return []

    def forget(self, unfinished: list[Unfinished]) -> None:
        pass


def etag_of(content: bytes) -> str:
    """Of equal contents it is the same, as with S3."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class State:
    """`store` and `at` are numbers of known objects and of known points in the processes; `late` are on their way."""

    store: int
    at: tuple[int, ...]
    alive: tuple[bool, ...]
    late: frozenset[Call]
    faults: int
    crashes: int


@dataclass(frozen=True)
class Point:
    """A process after some answers: its next call, None at its end; what it has told; what it found wrong."""

    answers: tuple[Any, ...]
    call: Call | None
    told: tuple[str, ...]
    wrong: str


@dataclass
class Explorer:
    """`holds` says what is wrong with objects, `may_follow` with a change of them, `keeps` when something was told."""

    processes: dict[str, Process]
    begin: dict[str, bytes]
    holds: Callable[[dict[str, bytes]], str]
    may_follow: Callable[[dict[str, bytes], dict[str, bytes]], str]
    keeps: Callable[[dict[str, bytes], frozenset[str]], str]
    faults: int = 0
    crashes: int = 0
    ends: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)
    """Distinct ends: objects, and where each process stands."""

    def __post_init__(self) -> None:
        self._names = list(self.processes)
        self._points: list[Point] = []
        self._next: dict[tuple[int, int, Any], int] = {}
        self._stores: dict[Objects, int] = {}
        self._contents: list[Objects] = []
        self._done: dict[tuple[int, Call], tuple[int, Any]] = {}
        self._wrong: dict[tuple[int, frozenset[str]], str] = {}

    def run(self) -> str:
        """The trace to the nearest violation, or "" when there is none. `ends` and `states` tell how far it went."""
        store = self._store(tuple(sorted((key, content, 0.0) for key, content in self.begin.items())))
        roots = tuple(self._point(number, ()) for number in range(len(self._names)))
        first = State(store, roots, (True,) * len(roots), frozenset(), self.faults, self.crashes)
        came: dict[State, tuple[State, str] | None] = {first: None}
        queue = deque([first])
        self.states = 0
        while queue:
            state = queue.popleft()
            self.states += 1
            steps = list(self._steps(state))
            if not any(alive and self._points[at].call for alive, at in zip(state.alive, state.at, strict=True)):
                self.ends.add((state.store, state.at))
            for label, after in steps:
                if after in came:
                    continue
                came[after] = (state, label)
                wrong = self._trouble(state, after)
                if wrong:
                    return _trace(came, after) + f"\n=> {wrong}"
                queue.append(after)
        return ""

    def _steps(self, state: State) -> Any:
        for number, name in enumerate(self._names):
            call = self._points[state.at[number]].call
            if call is None or not state.alive[number]:
                continue
            label = f"{name}: {_shown(call)}"
            store, answer = self._do(state.store, call)
            yield label, self._moved(state, number, answer, store)
            if state.faults and call[0] in _WRITES:
                fewer = state.faults - 1
                late = state.late | {call}
                yield (
                    f"{label}  [no answer]",
                    self._moved(state, number, _NO_ANSWER, state.store, late=late, faults=fewer),
                )
                yield f"{label}  [sent twice]", self._moved(state, number, answer, store, late=late, faults=fewer)
            if state.crashes:
                alive = tuple(each and at != number for at, each in enumerate(state.alive))
                yield (
                    f"{name} dies",
                    State(state.store, state.at, alive, state.late, state.faults, state.crashes - 1),
                )
        for call in state.late:
            store, _ = self._do(state.store, call)
            rest = state.late - {call}
            yield (
                f"arrives late: {_shown(call)}",
                State(store, state.at, state.alive, rest, state.faults, state.crashes),
            )

    def _moved(
        self,
        state: State,
        number: int,
        answer: Any,
        store: int,
        *,
        late: frozenset[Call] | None = None,
        faults: int | None = None,
    ) -> State:
        at = list(state.at)
        key = (number, at[number], answer)
        if key not in self._next:
            self._next[key] = self._point(number, (*self._points[at[number]].answers, answer))
        at[number] = self._next[key]
        return State(
            store,
            tuple(at),
            state.alive,
            state.late if late is None else late,
            state.faults if faults is None else faults,
            state.crashes,
        )

    def _point(self, number: int, answers: tuple[Any, ...]) -> int:
        replayed, wrong = Replayed(self._names[number], answers), ""
        secrets.token_hex = replayed.token  # type: ignore[assignment] - put back by whoever explores
        try:
            self.processes[self._names[number]](replayed)
        except _Waits:
            pass
        except MusterError:
            replayed.asked = None
        except AssertionError as error:
            wrong = f"{self._names[number]}: {error}"
        self._points.append(Point(answers, replayed.asked, replayed.told, wrong))
        return len(self._points) - 1

    def _store(self, objects: Objects) -> int:
        if objects not in self._stores:
            self._stores[objects] = len(self._contents)
            self._contents.append(objects)
        return self._stores[objects]

    def _do(self, store: int, call: Call) -> tuple[int, Any]:
        """The store after a call, and its answer."""
        if (store, call) not in self._done:
            objects = {key: (content, at) for key, content, at in self._contents[store]}
            answer = self._change(objects, call)
            after = tuple(sorted((key, *value) for key, value in objects.items()))
            self._done[store, call] = self._store(after), answer
        return self._done[store, call]

    def _change(self, objects: dict[str, tuple[bytes, float]], call: Call) -> Any:
        name, key = call[:2]
        if name == "get":
            return objects[key][0] if key in objects else None
        if name == "list":
            return tuple((each, len(objects[each][0]), objects[each][1]) for each in objects if each.startswith(key))
        if name == "delete":
            objects.pop(key, None)
            return None
        if name == "put_if":
            tag = etag_of(objects[key][0]) if key in objects else None
            if tag != call[3]:
                return "refused", "PreconditionFailed"
        objects[key] = call[2], NOW
        return None

    def _trouble(self, before: State, after: State) -> str:
        wrong = next((self._points[at].wrong for at in after.at if self._points[at].wrong), "")
        told = frozenset(itertools.chain.from_iterable(self._points[at].told for at in after.at))
        new = self.objects(after.store)
        if (after.store, told) not in self._wrong:
            self._wrong[after.store, told] = self.holds(new) or self.keeps(new, told)
        wrong = wrong or self._wrong[after.store, told]
        if wrong or before.store == after.store:
            return wrong
        return self.may_follow(self.objects(before.store), new)

    def objects(self, store: int) -> dict[str, bytes]:
        return {key: content for key, content, _ in self._contents[store]}


def _shown(call: Call) -> str:
    name, key = call[:2]
    if name in ("put", "put_if") and key == "LATEST":
        latest = json.loads(call[2])
        return f"{name} LATEST (epoch {latest['epoch']}, {latest['manifest'] or 'nothing'}, nonce {latest['nonce']})"
    return f"{name} {key or 'everything'}"


def _trace(came: dict[State, tuple[State, str] | None], state: State) -> str:
    labels = []
    while (step := came[state]) is not None:
        state, label = step
        labels.append(label)
    return "\n".join(reversed(labels))
