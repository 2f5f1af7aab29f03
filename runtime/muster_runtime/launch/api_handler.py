"""The launcher's HTTP API: who may call, what is read, what is answered (see `muster_protocol.launcher_api`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from muster_protocol import launcher_api as api
from muster_protocol.launcher_status import Facts, Profile
from muster_protocol.messages import (
    Copy,
    Ended,
    GangState,
    Heartbeat,
    Member,
    Membership,
    Release,
    Reliability,
    Restart,
    Stop,
)
from muster_protocol.tokens import same_token
from muster_protocol.wire import decode, encode
from muster_runtime.launch.answers import Answers
from muster_runtime.launch.asked_saves import AskedSaves
from muster_runtime.launch.copies import Copies, Stream
from muster_runtime.launch.hangs import Hangs
from muster_runtime.launch.http_server import Request, Response
from muster_runtime.launch.membership import Refused, Roll
from muster_runtime.launch.node_hours import NodeHours
from muster_runtime.launch.profiles import Profiles
from muster_runtime.launch.state import State
from muster_runtime.launch.tracking import Tracking

_FENCED: Final = frozenset({api.STOP_PATH, api.RESTART_PATH})
"""What a pod may say only while it is of the gang: it would end the ranks of all."""


class Gang(Protocol):
    """What the API asks of a Leader or Follower."""

    def members(self) -> tuple[Member, ...]: ...

    def pushed(self) -> None: ...

    async def join(self, member: Member, gone: asyncio.Event) -> Release | Ended | Refused | None: ...

    def heartbeat(self, beat: Heartbeat) -> GangState | Refused: ...

    async def report(self, ended: Ended) -> GangState | None: ...

    def spread(self) -> None: ...


class ApiHandler:
    def __init__(
        self,
        own: Member,
        token: str,
        state: State,
        roll: Roll,
        gang: Gang,
        answers: Answers,
        copies: Copies,
        hangs: Hangs,
        profiles: Profiles,
        tracking: Tracking,
        node_hours: NodeHours,
        asked_saves: AskedSaves,
    ) -> None:
        self._own = own
        self._token = token
        self._state = state
        self._roll = roll
        self._gang = gang
        self._answers = answers
        self._copies = copies
        self._hangs = hangs
        self._profiles = profiles
        self._tracking = tracking
        self._node_hours = node_hours
        self._asked_saves = asked_saves
        self._routes: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("GET", api.STATUS_PATH): self._get_status,
            ("GET", api.MEMBERSHIP_PATH): self._get_membership,
            ("PUT", api.MEMBERSHIP_PATH): self._put_membership,
            ("POST", api.JOIN_PATH): self._join,
            ("POST", api.STOP_PATH): self._stop,
            ("POST", api.HEARTBEAT_PATH): self._heartbeat,
            ("POST", api.ENDED_PATH): self._ended,
            ("POST", api.RESTART_PATH): self._restart,
            ("POST", api.STACKS_PATH): self._stacks,
            ("GET", api.STACKS_PATH): self._show_stacks,
            ("POST", api.PROFILE_PATH): self._ask_profile,
            ("GET", api.PROFILE_PATH): self._get_profile,
            ("POST", api.SAVE_PATH): self._ask_save,
            ("PUT", api.FACTS_PATH): self._facts,
            ("PUT", api.RELIABILITY_PATH): self._reliability,
            ("POST", api.COPY_PATH): self._copy,
            ("POST", api.FETCH_PATH): self._fetch,
        }

    async def __call__(self, request: Request) -> Response:
        if request.method == "GET" and request.path == api.HEALTH_PATH:
            return Response(200, b"ok\n", "text/plain")
        if request.method == "GET" and request.path == api.METRICS_PATH:
            body, kind = self._answers.metrics_text()
            return Response(200, body, kind)
        if not self._allowed(request):
            return _text(401, "the job's token is missing or wrong")
        route = self._routes.get((request.method, request.path))
        if route is None:
            known = {path for _, path in self._routes}
            return _text(405 if request.path in known else 404, f"no {request.method} {request.path} here")
        generation = request.headers.get(api.GENERATION_HEADER.lower(), "")
        if generation not in ("", str(self._own.generation)):
            return _text(409, f"this launcher is of generation {self._own.generation}, not {generation}")
        caller = request.headers.get(api.POD_HEADER.lower(), "")
        if request.path in _FENCED and caller and self._roll.excludes(caller):
            return _text(403, f"pod {caller} is not of this gang any more")
        try:
            return await route(request)
        except (ValueError, TypeError) as error:  # TypeError: a field of the wrong type
            return _text(400, str(error))

    def _allowed(self, request: Request) -> bool:
        given = request.headers.get(api.TOKEN_HEADER.lower(), "")
        bearer = request.headers.get("authorization", "")
        if not given and bearer.startswith("Bearer "):
            given = bearer.removeprefix("Bearer ").strip()
        return same_token(given, self._token)

    async def _get_status(self, request: Request) -> Response:
        return _json(200, self._answers.status())

    async def _get_membership(self, request: Request) -> Response:
        incarnation = self._roll.held.incarnation if self._roll.held is not None else 0
        return _json(200, Membership(self._own.generation, incarnation, self._gang.members()))

    async def _put_membership(self, request: Request) -> Response:
        pushed = decode(Membership, request.body)
        refused = self._roll.push(pushed)
        if refused is not None:
            return _text(refused.status, refused.text)
        named = self._roll.of(self._own.index)
        if named is not None and named.pod_uid != self._own.pod_uid:
            self._state.exclude(f"pod {named.pod_uid} has taken this pod's place as index {self._own.index}")
        self._gang.pushed()
        return Response(204)

    async def _join(self, request: Request) -> Response:
        answer = await self._gang.join(decode(Member, request.body), request.gone)
        if answer is None:
            return _text(202, "not everyone is here yet; ask again")
        if isinstance(answer, Refused):
            return _text(answer.status, answer.text)
        return _json(410 if isinstance(answer, Ended) else 200, answer)

    async def _stop(self, request: Request) -> Response:
        stop = decode(Stop, request.body)
        if isinstance(stop.grace_seconds, bool) or not isinstance(stop.grace_seconds, (int, float)):
            raise ValueError("grace_seconds has to be a number")
        if stop.told is not None and not isinstance(stop.told, int):
            raise ValueError("told has to be an index, or null")
        if type(stop.incarnation) is not int:
            raise ValueError("incarnation has to be a number")
        if api.RELAYED_HEADER.lower() in request.headers:
            self._state.hear_stop(stop)
        elif self._state.ask_stop(stop):
            self._gang.spread()
        return Response(202)

    async def _restart(self, request: Request) -> Response:
        self._state.ask_restart(decode(Restart, request.body))
        return Response(202)

    async def _stacks(self, request: Request) -> Response:
        return _json(200, await self._hangs.examine())

    async def _show_stacks(self, request: Request) -> Response:
        return _json(200, await self._hangs.show())

    async def _ask_profile(self, request: Request) -> Response:
        answer = self._profiles.ask(decode(Profile, request.body))
        return _text(answer.status, answer.text) if isinstance(answer, Refused) else _json(202, answer)

    async def _get_profile(self, request: Request) -> Response:
        return _json(200, self._profiles.state)

    async def _ask_save(self, request: Request) -> Response:
        answer = self._asked_saves.ask()
        return _text(answer.status, answer.text) if isinstance(answer, Refused) else _json(202, answer)

    async def _facts(self, request: Request) -> Response:
        refused = self._tracking.know(decode(Facts, request.body))
        return Response(204) if refused is None else _text(refused.status, refused.text)

    async def _reliability(self, request: Request) -> Response:
        refused = self._node_hours.know(decode(Reliability, request.body))
        return Response(204) if refused is None else _text(refused.status, refused.text)

    async def _copy(self, request: Request) -> Response:
        return _stream(self._copies.offered(decode(Copy, request.body)))

    async def _fetch(self, request: Request) -> Response:
        return _stream(self._copies.wanted(decode(Copy, request.body)))

    async def _heartbeat(self, request: Request) -> Response:
        answer = self._gang.heartbeat(decode(Heartbeat, request.body))
        return _text(answer.status, answer.text) if isinstance(answer, Refused) else _json(200, answer)

    async def _ended(self, request: Request) -> Response:
        if self._own.index != 0:
            return _text(421, "ends are told to index 0")
        answer = await self._gang.report(decode(Ended, request.body))
        return _json(200, answer or GangState())


def _json(status: int, message: object) -> Response:
    return Response(status, encode(message))


def _stream(answer: Stream | Refused | None) -> Response:
    if isinstance(answer, Refused):
        return _text(answer.status, answer.text)
    return Response(204) if answer is None else Response(101, takes_over=answer)


def _text(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(), "text/plain")
