"""The client and the informer against a small server that misbehaves in ways a real one does only now and then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from muster.cli.scene import nobody_leads
from muster.cluster import client
from muster.cluster.answers import DEEPEST, Answer, document_of, event_of
from muster.cluster.client import Api
from muster.cluster.credentials import Credentials, CredentialsError, choice
from muster.cluster.errors import ApiError, ApiUnreachable, LeadershipLost
from muster.cluster.informer import Informer
from muster.cluster.lease import LEASE_NAME
from muster.cluster.server_clock import ServerClock
from muster.cluster.views import NamespaceView, VersionView

pytestmark = pytest.mark.unit

Object = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
NAMESPACES = "/api/v1/namespaces"


def namespace(name: str, version: str) -> Object:
    return {"metadata": {"name": name, "resourceVersion": version}, "status": {"phase": "Active"}}


def failure(code: int, reason: str, message: str = "no") -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)


def kubeconfig(folder: Path, port: int, user: Object | None = None) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": user or {"token": "first"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


@asynccontextmanager
async def served(folder: Path, handler: Handler, **options: Any) -> AsyncIterator[Api]:
    """A client of a server that answers everything by `handler`."""
    app = web.Application()

    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    credentials = Credentials(kubeconfig(folder, runner.addresses[0][1]))
    await credentials.load()
    api = Api(credentials, **options)
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


class Listing:
    """Answers lists with `items`, and watches with what `watches` says, one entry a watch."""

    def __init__(self, *watches: Callable[[web.StreamResponse], Awaitable[None]] | web.Response) -> None:
        self.items = [namespace("a", "1")]
        self.watches = list(watches)
        self.lists = 0
        self.versions: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"metadata": {"resourceVersion": str(100 * self.lists)}, "items": self.items})
        self.versions.append(request.query["resourceVersion"])
        turn = self.watches.pop(0) if self.watches else asyncio.sleep
        if isinstance(turn, web.Response):
            return turn
        stream = web.StreamResponse()
        await stream.prepare(request)
        if turn is asyncio.sleep:
            await asyncio.sleep(30)
        else:
            await turn(stream)
        return stream


def event(kind: str, found: Object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


@asynccontextmanager
async def informed(api: Api) -> AsyncIterator[Informer[NamespaceView]]:
    informer = Informer(api, NAMESPACES, NamespaceView.from_raw)
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.synced.wait(), 5)
        yield informer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], object]) -> None:
    end = asyncio.get_running_loop().time() + 10
    while not holds():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)


async def too_old(stream: web.StreamResponse) -> None:
    await stream.write(event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}))


@pytest.mark.parametrize("answer", [too_old, failure(410, "Expired")], ids=["as an event", "as an answer"])
async def test_a_version_that_is_too_old_means_a_fresh_list(tmp_path: Path, answer: Any) -> None:
    listing = Listing(answer)
    async with served(tmp_path, listing) as api, informed(api) as informer:
        listing.items = [namespace("b", "150")]
        await until(lambda: set(informer.items) == {"b"})
        await until(lambda: listing.versions == ["100", "200"])
        assert informer.lists == 2


async def test_bookmarks_move_the_version_that_the_next_watch_begins_with(tmp_path: Path) -> None:
    async def bookmark(stream: web.StreamResponse) -> None:
        await stream.write(event("BOOKMARK", namespace("", "170")))

    listing = Listing(bookmark)
    async with served(tmp_path, listing) as api, informed(api) as informer:
        await until(lambda: listing.versions == ["100", "170"])
        assert (informer.lists, listing.lists) == (1, 1)


async def test_an_event_may_be_large_and_come_in_pieces(tmp_path: Path) -> None:
    async def large(stream: web.StreamResponse) -> None:
        found = namespace("big", "170")
        found["metadata"]["annotations"] = {"x": "y" * 3_000_000}
        line = event("ADDED", found)
        for start in range(0, len(line), 700_000):
            await stream.write(line[start : start + 700_000])
            await asyncio.sleep(0)

    async with served(tmp_path, Listing(large)) as api, informed(api) as informer:
        await until(lambda: "big" in informer.items)


async def test_an_object_that_cannot_be_read_is_left_as_it_was(tmp_path: Path) -> None:
    async def odd(stream: web.StreamResponse) -> None:
        await stream.write(event("MODIFIED", {"metadata": {"name": "a", "resourceVersion": "3", "labels": [1]}}))
        await stream.write(event("ADDED", namespace("b", "4")))

    async with served(tmp_path, Listing(odd)) as api, informed(api) as informer:
        before = informer.items["a"]
        await until(lambda: "b" in informer.items)
        assert informer.items["a"] == before
        assert informer.failures >= 1


async def test_an_object_that_cannot_be_read_stays_in_a_new_list_and_goes_when_it_is_deleted(tmp_path: Path) -> None:
    """Taken for gone, a pod's room would be somebody else's; kept for ever, nobody's."""
    unreadable = {"metadata": {"name": "a", "resourceVersion": "150", "labels": [1]}}
    steps = [asyncio.Event(), asyncio.Event()]

    async def too_old(stream: web.StreamResponse) -> None:
        await steps[0].wait()
        await stream.write(event("ERROR", {"code": 410, "reason": "Expired", "message": "too old"}))

    async def deleted(stream: web.StreamResponse) -> None:
        await steps[1].wait()
        await stream.write(event("DELETED", unreadable))

    listing = Listing(too_old, deleted)
    async with served(tmp_path, listing) as api, informed(api) as informer:
        listing.items = [unreadable, namespace("b", "150")]
        steps[0].set()
        await until(lambda: "b" in informer.items)
        await until(lambda: informer.lists == 2)
        assert set(informer.items) == {"a", "b"}
        steps[1].set()
        await until(lambda: set(informer.items) == {"b"})


async def test_a_forbidden_watch_says_what_grants_it(tmp_path: Path) -> None:
    listing = Listing(failure(403, "Forbidden", "user x cannot watch namespaces"))
    async with served(tmp_path, listing) as api, informed(api) as informer:
        await until(lambda: informer.trouble)
        assert "ClusterRole" in informer.trouble


@pytest.mark.parametrize(
    "nonsense",
    [
        "<html>Sign in</html>",
        '{"metadata": {"resourceVersion": "7"}, "items": [{"meta',
        "[]",
        "null",
        "{}",
    ],
)
async def test_a_proxys_page_in_place_of_a_list_or_object_ends_nothing(tmp_path: Path, nonsense: str) -> None:
    listing, answers = Listing(), [nonsense] * 9

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text=answers.pop()) if answers else await listing(request)

    async with served(tmp_path, handler) as api:
        if nonsense != "{}":
            told = r"POST /api/v1/namespaces: what came is no answer of an API server: b'.*proxy"
            with pytest.raises(ApiUnreachable, match=told):
                await api.create(NAMESPACES, {})
        async with informed(api) as informer:
            assert set(informer.items) == {"a"}
            assert informer.failures >= 2
    assert not answers


async def test_a_redirect_is_no_answer(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "https://login"})

    async with served(tmp_path, handler) as api:
        with pytest.raises(ApiError, match="302"):
            await api.get("/x")
        with pytest.raises(ApiError, match="302"):
            await anext(api.watch(NAMESPACES, resource_version="1"))


async def test_an_error_of_a_proxys_own_has_the_codes_of_http(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        told = {"code": "ServiceUnavailable", "message": "the agent is away", "details": "see the log"}
        return web.json_response(told, status=503)

    async with served(tmp_path, handler) as api:
        with pytest.raises(ApiError, match="the agent is away") as raised:
            await api.get("/x")
    assert (raised.value.status, raised.value.details) == (503, {})


async def test_watches_that_end_at_once_come_with_pauses_and_count_as_no_word(tmp_path: Path) -> None:
    """A load balancer or proxy that closes them; the next at once would be thousands a second."""
    watches = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        if "watch" not in request.query:
            return await listing(request)
        watches += 1
        return web.Response()

    listing = Listing()
    async with served(tmp_path, handler) as api, informed(api) as informer:
        heard = informer.last_event_at
        await until(lambda: watches >= 4)
        assert watches < 8
        assert informer.last_event_at == heard
        assert "ended at once, without an event" in informer.trouble


async def test_pages_whose_token_expires_are_read_from_the_start_by_the_informer(tmp_path: Path) -> None:
    calls: list[str] = []

    async def paged(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            await asyncio.sleep(30)
        calls.append(request.query.get("continue", ""))
        if len(calls) == 2:
            return failure(410, "Expired")
        more = {} if "continue" in request.query else {"continue": "t"}
        name = "b" if "continue" in request.query else "a"
        return web.json_response({"metadata": {"resourceVersion": "9", **more}, "items": [namespace(name, "1")]})

    async with served(tmp_path, paged) as api, informed(api) as informer:
        assert set(informer.items) == {"a", "b"}
        assert calls == ["", "t", "", "t"]


async def test_a_kind_that_went_and_came_back_is_listed_afresh(tmp_path: Path) -> None:
    listing = Listing(failure(404, "NotFound", "the server could not find the requested resource"))
    async with served(tmp_path, listing) as api, informed(api) as informer:
        listing.items = [namespace("b", "150")]
        await until(lambda: listing.versions == ["100", "200"])
        assert set(informer.items) == {"b"}


async def test_objects_are_passed_on_whole_and_one_that_is_not_taken_stops_nobody(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []

    def take(key: str, raw: Any) -> None:
        told.append((key, "" if raw is None else raw["metadata"]["resourceVersion"]))
        if told[-1] == ("n/a", "3"):
            raise ValueError("it makes no sense")

    def job(name: str, version: str) -> Object:
        return {"metadata": {"namespace": "n", "name": name, "resourceVersion": version}}

    async def changes(stream: web.StreamResponse) -> None:
        for kind, found in (("MODIFIED", job("a", "3")), ("ADDED", job("b", "4")), ("DELETED", job("a", "5"))):
            await stream.write(event(kind, found))

    listing = Listing(changes)
    listing.items = [job("a", "1")]
    async with served(tmp_path, listing) as api:
        informer = Informer(api, NAMESPACES, VersionView.from_raw)
        informer.on_object(take)
        task = asyncio.create_task(informer.run())
        await until(lambda: len(told) == 4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert told == [("n/a", "1"), ("n/a", "3"), ("n/b", "4"), ("n/a", "")]
    assert set(informer.items) == {"n/b"}


async def test_errors_have_the_servers_words(tmp_path: Path) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return failure(409, "AlreadyExists", "pods x already exists")

    async with served(tmp_path, refuse) as api:
        with pytest.raises(ApiError, match="already exists") as caught:
            await api.create("/api/v1/namespaces/n/pods", {})
    assert (caught.value.status, caught.value.reason, caught.value.gone) == (409, "AlreadyExists", False)


async def test_an_answer_that_is_no_status_is_told_as_it_is(tmp_path: Path) -> None:
    async def gateway(request: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="bad gateway")

    async with served(tmp_path, gateway) as api:
        with pytest.raises(ApiError, match="bad gateway"):
            await api.get("/api")


async def test_reads_are_tried_again_and_creations_are_not(tmp_path: Path) -> None:
    methods: list[str] = []

    async def broken(request: web.Request) -> web.StreamResponse:
        methods.append(request.method)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with served(tmp_path, broken) as api:
        with pytest.raises(ApiUnreachable, match="cannot be reached"):
            await api.get("/api")
        assert len(methods) >= 3
        methods.clear()
        with pytest.raises(ApiUnreachable):
            await api.create("/api/v1/namespaces/n/pods", {})
        assert methods == ["POST"], "a pod must not be asked for twice"


@pytest.mark.parametrize("header", ["1", "Thu, 26 Nov 2026 10:00:00 GMT"])
async def test_what_a_busy_server_turns_away_is_sent_again_when_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    monkeypatch.setattr(client, "LONGEST_RETRY_AFTER", 0.01)
    methods: list[str] = []

    def busy() -> web.Response:
        answer = failure(429, "TooManyRequests", "storage is (re)initializing")
        answer.headers["Retry-After"] = header
        return answer

    async def twice(request: web.Request) -> web.StreamResponse:
        methods.append(request.method)
        return web.json_response({"ok": True}) if len(methods) % 3 == 0 else busy()

    async def always(request: web.Request) -> web.StreamResponse:
        methods.append(request.method)
        return busy()

    async with served(tmp_path, twice) as api:
        assert await api.get("/api/v1/pods/a") == {"ok": True}
        assert await api.create("/api/v1/namespaces/n/pods", {}) == {"ok": True}
        assert methods == ["GET"] * 3 + ["POST"] * 3
    methods.clear()
    async with served(tmp_path, always) as api:
        with pytest.raises(ApiError, match="429 TooManyRequests: storage is"):
            await api.create("/api/v1/namespaces/n/pods", {})
        assert methods == ["POST"] * client.BUSY_TRIES
        methods.clear()
        # What a pod answers is for the caller, and comes from no API server.
        assert (await api.proxy("n", "p", 80, "GET", "/", None, {}))[0] == 429
        assert methods == ["GET"]


async def test_who_is_turned_away_without_a_time_is_told_at_once(tmp_path: Path) -> None:
    async def refuses(request: web.Request) -> web.StreamResponse:
        return failure(429, "TooManyRequests", "a disruption budget forbids it")

    async with served(tmp_path, refuses) as api, asyncio.timeout(1.0):
        with pytest.raises(ApiError, match="forbids it"):
            await api.get("/api/v1/pods/a")


async def test_a_silent_server_is_given_up(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async with served(tmp_path, silent, timeout=0.2) as api:
        with pytest.raises(ApiUnreachable, match="in time"):
            await api.create("/api/v1/namespaces/n/pods", {})


async def test_who_may_not_write_writes_nothing_but_reads(tmp_path: Path) -> None:
    methods: list[str] = []

    async def count(request: web.Request) -> web.StreamResponse:
        methods.append(request.method)
        return web.json_response({})

    def lost() -> None:
        raise LeadershipLost("no")

    async with served(tmp_path, count, guard=lost) as api:
        for write in (
            api.create("/api/v1/pods", {}),
            api.replace("/api/v1/pods/a", {}),
            api.update_status("/api/v1/pods/a", {}),
            api.merge_patch("/api/v1/pods/a", {}),
            api.delete("/api/v1/pods/a"),
            api.proxy("n", "p", 80, "POST", "/", b"", {}),
        ):
            with pytest.raises(LeadershipLost):
                await write
        await api.get("/api")
        assert methods == ["GET"]


async def test_writes_are_counted_by_what_they_write_and_dry_runs_apart(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({})

    seen: list[tuple[str, str]] = []
    async with served(tmp_path, handler, wrote=lambda verb, resource: seen.append((verb, resource))) as api:
        job, path = "/apis/muster.dev/v1alpha1/namespaces/n/trainingjobs/a", f"{NAMESPACES}/n"
        await api.get(job)
        await api.update_status(job, {})
        await api.create(f"{path}/pods", {}, dry_run=True)
        await api.create(f"{path}/pods", {})
        await api.merge_patch(f"{path}/events/e", {})
        await api.delete(f"{path}/pods/p")
    assert seen == [
        ("update", "trainingjobs/status"),
        ("rehearse", "pods"),
        ("create", "pods"),
        ("patch", "events"),
        ("delete", "pods"),
    ]


@pytest.mark.parametrize("asked", [2, 3], ids=["before the connection is used", "before the bytes leave"])
@pytest.mark.parametrize("warm", [False, True], ids=["new connection", "kept connection"])
async def test_the_right_to_write_is_looked_at_once_more_when_only_the_sending_is_left(
    tmp_path: Path, warm: bool, asked: int
) -> None:
    methods: list[str] = []
    answers: list[bool] = []

    async def count(request: web.Request) -> web.StreamResponse:
        methods.append(request.method)
        return web.json_response({})

    def guard() -> None:
        answers.append(len(answers) + 1 < asked)
        if not answers[-1]:
            raise LeadershipLost("lost while the connection was made")

    async with served(tmp_path, count) as api:
        if warm:
            await api.get("/api")
            methods.clear()
        api.guard = guard
        with pytest.raises(LeadershipLost):
            await api.create("/api/v1/namespaces/n/pods", {})
        assert answers == [True] * (asked - 1) + [False]
        assert methods == []


async def test_refused_credentials_are_read_again_once(tmp_path: Path) -> None:
    tokens: list[str] = []

    async def picky(request: web.Request) -> web.StreamResponse:
        tokens.append(request.headers.get("Authorization", ""))
        return web.json_response({}) if tokens[-1] == "Bearer second" else failure(401, "Unauthorized")

    async with served(tmp_path, picky) as api:
        port = int(api.credentials.server.rpartition(":")[2])
        kubeconfig(tmp_path, port, {"token": "second"})
        await api.create("/api/v1/namespaces/n/pods", {})
        assert tokens == ["Bearer first", "Bearer second"]
        kubeconfig(tmp_path, port, {"token": "second"})
        tokens.clear()
        await api.get("/api")
        assert tokens == ["Bearer second"]


async def test_whom_a_user_acts_as_is_told_with_every_call_and_all_of_his_groups(tmp_path: Path) -> None:
    seen: list[list[tuple[str, str]]] = []

    async def asked(request: web.Request) -> web.StreamResponse:
        seen.append([(name, value) for name, value in request.headers.items() if name.startswith("Impersonate-")])
        return web.json_response({})

    async with served(tmp_path, asked) as api:
        port = int(api.credentials.server.rpartition(":")[2])
        kubeconfig(tmp_path, port, {"token": "t", "as": "jane", "as-groups": ["a", "b"]})
        await api.credentials.load()
        await api.get("/api")
        await api.merge_patch("/api/v1/namespaces/n/pods/p", {})
        await api.proxy("n", "p", 1, "GET", "/", None, {"X-Muster-Token": "t"})
    assert seen == [[("Impersonate-User", "jane"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b")]] * 3


async def test_a_pod_is_reached_through_the_proxy_with_its_own_headers(tmp_path: Path) -> None:
    seen: list[tuple[str, str, bytes]] = []

    async def proxy(request: web.Request) -> web.StreamResponse:
        seen.append((request.path_qs, request.headers["X-Muster-Token"], await request.read()))
        return web.Response(status=418, body=b"short")

    async with served(tmp_path, proxy) as api:
        answer = await api.proxy("n", "p", 8476, "PUT", "/v1/membership?x=1", b"{}", {"X-Muster-Token": "t"})
    assert answer == (418, b"short")
    assert seen == [("/api/v1/namespaces/n/pods/http:p:8476/proxy/v1/membership?x=1", "t", b"{}")]


async def test_a_missing_or_broken_kubeconfig_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CredentialsError, match="there is no kubeconfig"):
        await Credentials(tmp_path / "none").load()
    (tmp_path / "bad").write_text("a: 1\nb: [")
    with pytest.raises(CredentialsError, match=r"bad:2 is no YAML: expected [^\n]*; give --kubeconfig"):
        await Credentials(tmp_path / "bad").load()
    (tmp_path / "half").write_text("contexts: [{name: x, context: 1}]\ncurrent-context: x\n")
    with pytest.raises(CredentialsError, match="an entry of its contexts is not of the form"):
        await Credentials(tmp_path / "half").load()
    (tmp_path / "empty").write_text("{}")
    with pytest.raises(CredentialsError, match="cannot be used"):
        await Credentials(tmp_path / "empty").load()
    (tmp_path / "words").write_text("not at all")
    with pytest.raises(CredentialsError, match="words is no kubeconfig"):
        await Credentials(tmp_path / "words").load()
    path = kubeconfig(tmp_path, 1)
    with pytest.raises(CredentialsError, match="there is no context 'nowhere'; there are: x; give"):
        await Credentials(path, "nowhere").load()
    for old, new, said in (
        ("cluster: c", "cluster: y", "context 'x' names cluster 'y', which is not there; there are: c; give"),
        ("user: u", "user: y", "context 'x' names user 'y', which is not there"),
        ("server: http://", "server: ", "context 'x' has no URL as its server, like https://HOST:6443: '127.0.0.1:1'"),
    ):
        text = path.read_text()
        assert old in text
        (tmp_path / "broken").write_text(text.replace(old, new))
        with pytest.raises(CredentialsError, match=said):
            await Credentials(tmp_path / "broken").load()
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "installHint": "install it"}
    path = kubeconfig(tmp_path, 1, {"exec": {**plugin, "command": "/bin/false", "args": ["login"]}})
    with pytest.raises(CredentialsError, match=r"plugin `/bin/false login` gives no credentials.*\(install it\)"):
        await Credentials(path).load()
    path.write_text(path.read_text().replace("current-context: x", "current-context: ''"))
    with pytest.raises(CredentialsError, match="it names no current-context; give --context, there are: x"):
        await Credentials(path).load()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(CredentialsError, match="KUBECONFIG names"):
        await Credentials().load()


def test_a_kubeconfig_path_may_have_empty_parts_and_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = kubeconfig(tmp_path, 1)
    monkeypatch.setenv("HOME", str(written.parent))
    for path in (f":{written}", f"{written}:", f"~/{written.name}"):
        assert choice(Path(path), "") == choice(written, "")


@pytest.mark.parametrize("levels", [10, 9_000])
def test_an_object_with_more_levels_than_can_be_read_does_not_take_the_others_with_it(levels: int) -> None:
    deep = '[{"\\"}]": ' * (levels // 2) + '"\\\\"' + "}]" * (levels // 2)
    item = f'{{"spec": {{"is": {deep}, "other": {deep}, "name": "a[{{"}}}}'
    whole = f'{{"items": [{item}, {{"spec": {{"name": "b"}}}}]}}'.encode()
    found = document_of(Answer(200, whole, "OK"), "GET /x")
    assert [one["spec"]["name"] for one in found["items"]] == ["a[{", "b"]
    event = event_of(f'{{"type": "ADDED", "object": {item}}}'.encode())
    assert event.object["spec"]["name"] == "a[{"
    for part in (event.object["spec"]["is"], event.object["spec"]["other"]):
        depth = 0
        while isinstance(part, (list, dict)):
            part, depth = part[0] if isinstance(part, list) else part['"}]'], depth + 1
        assert (part, depth) == (("\\", levels) if levels < DEEPEST else (None, DEEPEST - 3))


@pytest.mark.parametrize("off", [timedelta(0), timedelta(minutes=10), timedelta(minutes=-10)], ids=str)
@pytest.mark.parametrize("leads", [True, False])
async def test_whether_an_operator_leads_is_judged_by_the_clusters_clock(
    tmp_path: Path, off: timedelta, leads: bool
) -> None:
    """A laptop whose clock had stood still, or ran ahead, would say so at each command, or never."""

    async def lease(request: web.Request) -> web.Response:
        clusters = datetime.now(timezone.utc) - off
        renewed = clusters - timedelta(seconds=5 if leads else 300)
        spec = {"holderIdentity": "operator-1", "leaseDurationSeconds": 15}
        found = {
            "metadata": {"name": LEASE_NAME, "namespace": "muster-system"},
            "spec": {**spec, "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
        }
        many = {"metadata": {}, "items": [found]}
        by_name = request.path.endswith(LEASE_NAME)
        return web.json_response(found if by_name else many, headers={"Date": format_datetime(clusters, usegmt=True)})

    async with served(tmp_path, lease) as api:
        unled = await nobody_leads(api)
        assert (unled is None) is leads
        if unled is not None:
            assert abs((api.clock.now() - unled.since).total_seconds() - 300) < 5


@pytest.mark.parametrize("date", ["", "yesterday", "Fri, 99 Foo 2026 10:00:00 GMT"])
def test_a_server_that_tells_no_time_leaves_this_machines(date: str) -> None:
    clock = ServerClock()
    clock.heard(date)
    assert abs(clock.now() - datetime.now(timezone.utc)) < timedelta(seconds=5)
