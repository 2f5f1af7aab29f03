"""The read-only API: jobs, queues and the fleet, to whoever may read the same with kubectl."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Depends, FastAPI, Path, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ValidationError
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from muster import __version__
from muster.api.common import format_time
from muster.api.trainingqueue import with_below
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.jobs import LevelInput
from muster.cluster.topologies import detect
from muster.server import fleet, queues
from muster.server.board import Board, Shown
from muster.server.details import detail
from muster.server.identity import Kept, Reviewer, Right, User
from muster.server.listing import BadCursor, Filter, Lists, page, question_of
from muster.server.models import Fleet, JobDetail, JobPage, JobsQuery, QueueDetail, QueueList, QueueSummary, Told
from muster.server.parameters import bad_field, parameters
from muster.server.past_models import CostQuery, PastJobDetail, PastPage, PastQuery
from muster.server.problems import MEDIA_TYPE, Problem, ProblemBody, bad_parameter, unavailable
from muster.server.selectors import parse

if TYPE_CHECKING:
    from muster.server.past import Past

log = logging.getLogger(__name__)

OPENAPI: Final = "/v1/openapi.json"
LIST_QUEUES: Final = Right("list", "trainingqueues")
SUMS_SECONDS: Final = 2.0
"""For which sums over all nodes, pods and queues are kept, and the page of a job with many pods."""
MANY_PODS: Final = 500
"""More than come from the API server at once. To read and to tell those of a gang of 4,096 takes a processor for half a
second, and a whole team looks at its page."""
PAGES: Final = 16
"""Of jobs that are kept."""
ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": ProblemBody, "description": "A parameter can't be taken."},
    401: {"model": ProblemBody, "description": "No token, or one that the API server does not know (any more)."},
    403: {"model": ProblemBody, "description": "kubectl would not show it to this user either."},
    404: {"model": ProblemBody, "description": "It does not exist."},
    503: {"model": ProblemBody, "description": "No replica leads, or the API server is away; `Retry-After` says when."},
}
_bearer: Final = HTTPBearer(
    auto_error=False, description="A token of Kubernetes, as `kubectl create token SERVICEACCOUNT` makes it."
)


@dataclass
class Context:
    """What the routes work with; all of it belongs to the server's thread, but for the board's snapshots.

    Attributes:
        past: the history; None where none is kept.
    """

    board: Board
    api: Api
    reviewer: Reviewer
    past: Past | None = None
    lists: Lists = field(default_factory=Lists)
    sums: Kept[str, Any] = field(default_factory=Kept)
    pages: Kept[tuple[str, str, bool, bool, bool], bytes] = field(default_factory=lambda: Kept(most=PAGES))

    @property
    def shown(self) -> Shown:
        if self.board.shown is None:
            raise unavailable("the operator still fills its caches")
        return self.board.shown

    @property
    def history(self) -> Past:
        if self.past is None:
            raise Problem(404, "no history is kept here: set `history.database` in the chart")
        return self.past

    async def summed(self, name: str, make: Callable[[Shown], Any]) -> Any:
        """`make` of a snapshot, at most every SUMS_SECONDS, and in a thread: it may take a tenth of a second."""
        shown = self.shown

        async def work() -> tuple[Any, float]:
            return await asyncio.to_thread(make, shown), SUMS_SECONDS

        return await self.sums.get(name, work)


async def _context(request: Request) -> Context:
    found: Context = request.app.state.context
    return found


async def _user(
    request: Request,
    context: Annotated[Context, Depends(_context)],
    _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> User:
    return await context.reviewer.user(request.headers.get("authorization"))


Ctx = Annotated[Context, Depends(_context)]
SignedIn = Annotated[User, Depends(_user)]
Name = Annotated[str, Path(max_length=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


def build(context: Context) -> FastAPI:
    app = FastAPI(
        title="Muster",
        version=__version__,
        description="Jobs, queues and GPUs of this cluster, to whoever may read the same with kubectl.",
        openapi_url=OPENAPI,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(ApiUnreachable, _unreachable)
    app.add_exception_handler(Exception, _bug)
    app.router.add_api_route(
        "/v1/jobs", jobs, methods=["GET"], response_model=JobPage, responses=ERRORS, route_class_override=_JobsRoute
    )
    for path, route, model in (
        ("/v1/jobs/{namespace}/{name}", job, JobDetail),
        ("/v1/queues", all_queues, QueueList),
        ("/v1/queues/{name}", queue, QueueDetail),
        ("/v1/fleet", whole_fleet, Fleet),
        ("/v1/history/jobs", past_jobs, PastPage),
        ("/v1/history/jobs/{uid}", past_job, PastJobDetail),
        ("/v1/cost", cost, None),
    ):
        app.add_api_route(path, route, methods=["GET"], response_model=model, responses=ERRORS)
    described = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_problems(described())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


# -- routes ------------------------------------------------------------------------------------------------------------


async def jobs(context: Ctx, user: SignedIn, query: Annotated[JobsQuery, Query()]) -> Response:
    """Jobs of the namespaces that the user may list them in, a page at a time."""
    try:
        labels = parse(query.label_selector)
    except ValueError as error:
        raise bad_parameter("labelSelector", str(error)) from error
    shown, right = context.shown, Right("list", "trainingjobs", query.namespace)
    if query.namespace:
        await context.reviewer.demand(user, right)
        visible: frozenset[str] | None = frozenset({query.namespace})
    else:
        visible = await context.reviewer.namespaces(user, right, lambda: context.lists.namespaces(shown.jobs))
    wanted = Filter(
        visible,
        await _queues(context, user, query.queue) if query.queue else None,
        frozenset(phase.value for phase in query.phase),
        labels,
        query.sort,
    )
    question = question_of(**query.model_dump(exclude={"limit", "cursor"}))
    try:
        found = page(context.lists.rows(shown.jobs, wanted), wanted, query.cursor, query.limit, question)
    except BadCursor as error:
        raise bad_parameter("cursor", str(error)) from error
    tail = f'],"next":"{found.following}","total":{found.total},"asOf":"{format_time(shown.at)}"}}'
    return _json(b'{"items":[' + b",".join([row.document for row in found.rows]) + tail.encode())


class _JobsRoute(APIRoute):
    """Pages are what is asked for most, and FastAPI takes longer to read a question than `jobs` to answer it. So what
    is well asked is read here; FastAPI describes the route and says what is wrong with the rest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        slow = super().get_route_handler()

        async def handle(request: Request) -> Response:
            context = await _context(request)
            user = await context.reviewer.user(request.headers.get("authorization"))
            try:
                query = JobsQuery.model_validate(_asked(request.query_params))
            except ValidationError:
                return await slow(request)
            return await jobs(context, user, query)

        return handle


def _asked(given: QueryParams) -> dict[str, str | list[str]]:
    """Of what is given more than once the last counts, but of phases all."""
    asked: dict[str, str | list[str]] = dict(given)
    return asked | {"phase": given.getlist("phase")} if "phase" in asked else asked


async def job(context: Ctx, user: SignedIn, namespace: Name, name: Name) -> Response:
    """One job: the same as in the list, its pods, and what `muster explain` says."""
    reviewer = context.reviewer
    await reviewer.demand(user, Right("get", "trainingjobs", namespace, name))
    pods, events, listed = await asyncio.gather(
        *(reviewer.allows(user, Right("list", kind, namespace, group="")) for kind in ("pods", "events")),
        reviewer.allows(user, LIST_QUEUES),
    )
    shown = context.board.shown  # None while the caches fill: the page needs nothing else of them
    known = (shown.queues if shown is not None else ()) if listed else None

    async def work() -> tuple[bytes, float]:
        found = await detail(context.api, namespace, name, pods=pods, events=events, queues=known)
        return _bytes(found), SUMS_SECONDS if len(found.workers) > MANY_PODS else 0.0

    return _json(await context.pages.get((namespace, name, pods, events, listed), work))


async def all_queues(context: Ctx, user: SignedIn) -> Response:
    """All queues, with what each may use, uses and borrows."""
    await context.reviewer.demand(user, LIST_QUEUES)
    return _answer(await context.summed("queues", _queue_list))


async def queue(context: Ctx, user: SignedIn, name: Name) -> Response:
    """One queue."""
    await context.reviewer.demand(user, Right("get", "trainingqueues", name=name))
    shown = context.shown
    found = next((one for one in shown.queues if one.metadata.name == name), None)
    listed = await context.reviewer.allows(user, LIST_QUEUES)
    if listed:
        told: list[QueueSummary] = (await context.summed("queues", _queue_list)).items
    else:
        told = queues.summaries([found] if found is not None else [], shown.at)
    summary = next((one for one in told if one.name == name), None)
    if found is None or summary is None:
        raise Problem(404, f'trainingqueues.muster.dev "{name}" not found')
    share = found.status.fair_share
    conditions = [
        Told(type=c.type, status=c.status, reason=c.reason, message=c.message) for c in found.status.conditions
    ]
    return _answer(
        QueueDetail(
            queue=summary,
            below=[one.name for one in told if one.parent == name],
            fair_share=share.share if share else None,
            conditions=conditions,
            withheld=[] if listed else ["trainingqueues"],
            as_of=shown.at,
        )
    )


async def whole_fleet(context: Ctx, user: SignedIn) -> Response:
    """Nodes and GPUs by type and level of the topology: total, used, free, and the domain with the most free."""
    reviewer, topology = context.reviewer, context.shown.topology
    await reviewer.demand(user, Right("list", "nodes", group=""))
    asked = {"pods": Right("list", "pods", group="")}
    if topology is not None:
        asked["topologies"] = Right("get", "topologies", name=topology.metadata.name)
    withheld = [what for what, right in asked.items() if not await reviewer.allows(user, right)]
    return _answer(await context.summed(f"fleet without {withheld}", lambda shown: _fleet(shown, withheld)))


async def past_jobs(context: Ctx, user: SignedIn, query: Annotated[PastQuery, Query()]) -> Response:
    """Jobs that are or were, those submitted last first, a page at a time."""
    return _answer(await context.history.jobs(context.reviewer, user, query))


async def past_job(
    context: Ctx, user: SignedIn, uid: Annotated[str, Path(max_length=64, pattern="^[-A-Za-z0-9]*$")]
) -> Response:
    """One job that is or was: its placements, what it held where, preemptions, checkpoints and failures."""
    return _answer(await context.history.job(context.reviewer, user, uid))


async def cost(context: Ctx, user: SignedIn, query: Annotated[CostQuery, Query()]) -> Response:
    """What a month cost, by team or otherwise; at most a minute old."""
    body = await context.history.cost(context.reviewer, user, query)
    return Response(body, media_type=query.format.media_type, headers={"Cache-Control": "no-store"})


async def _queues(context: Context, user: User, name: str) -> frozenset[str]:
    """A queue and those below it, as far as the user may know which they are."""
    if await context.reviewer.allows(user, LIST_QUEUES):
        return with_below(name, context.shown.queues)
    return frozenset({name})


# -- answers -----------------------------------------------------------------------------------------------------------


def _queue_list(shown: Shown) -> QueueList:
    items: list[QueueSummary] = queues.summaries(shown.queues, shown.at)
    return QueueList(items=items, as_of=shown.at)


def _fleet(shown: Shown, withheld: Sequence[str]) -> Fleet:
    levels: tuple[LevelInput, ...] = ()
    if shown.topology is None:
        levels = detect(shown.nodes)
    elif "topologies" not in withheld:
        levels = tuple(LevelInput(level.name, level.label) for level in shown.topology.spec.levels)
    return Fleet(
        nodes=fleet.counts(shown.nodes),
        pools=fleet.pools(shown.nodes, None if "pods" in withheld else shown.pods, levels),
        withheld=list(withheld),
        as_of=shown.at,
    )


def _answer(model: BaseModel) -> Response:
    return _json(_bytes(model))


def _bytes(model: BaseModel) -> bytes:
    return model.model_dump_json(by_alias=True, exclude_defaults=True).encode()


def _json(body: bytes) -> Response:
    # Whose answer it is depends on the token, so nobody between may keep it.
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = tuple(
        bad_field(item, parameters(request.app.openapi(), request.scope["route"].path)) for item in error.errors()
    )
    return Problem(400, "; ".join(f"{one.name}: {one.message}" for one in found), errors=found).response()


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return Problem(404, f"there is no {request.url.path} here; {OPENAPI} describes what there is").response()
    return Problem(error.status_code, str(error.detail), headers=error.headers).response()


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return unavailable(f"the API server refused the operator: {error.message}", seconds=10).response()


async def _unreachable(_: Request, error: Exception) -> Response:
    return unavailable(f"the API server gives no answer: {error}").response()


async def _bug(_: Request, error: Exception) -> Response:
    return Problem(500, f"a fault of Muster's ({type(error).__name__}); the operator's log has more").response()


def _with_problems(schema: dict[str, Any]) -> dict[str, Any]:
    """Errors have a media type of their own, and what FastAPI answers to bad parameters is not ours."""
    for path in schema["paths"].values():
        for operation in path.values():
            answers = operation["responses"]
            answers.pop("422", None)
            for status, answer in answers.items():
                if status >= "400":
                    answer["content"] = {MEDIA_TYPE: answer["content"].pop("application/json")}
    for unused in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(unused, None)
    return schema
