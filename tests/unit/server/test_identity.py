"""Who may see what: tokens and rights are the API server's word, kept for a while."""

from __future__ import annotations

import asyncio
import base64
import time

import pytest

from muster.cluster.errors import ApiError, ApiUnreachable
from muster.server.identity import NAMESPACES_ASKED, Kept, Reviewer, Right, User, expiry
from muster.server.problems import Problem

from .samples import Cluster, client, everything, job, jwt

pytestmark = pytest.mark.unit

JOBS = [job("vision", "a"), job("speech", "b")]


def only_in(namespace: str) -> Cluster:
    found = everything()
    found.rights = {("jane", verb, "trainingjobs", namespace) for verb in ("get", "list")}
    return found


async def test_without_a_token_the_answer_says_how_to_get_one() -> None:
    for header in ({}, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer "}):
        async with client(everything(), JOBS, token="") as http:
            answer = await http.get("/v1/jobs", headers=header)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == 'Bearer realm="muster"'
        assert "kubectl create token" in answer.json()["detail"]


async def test_a_wrong_token_and_an_expired_one_are_told_apart() -> None:
    for token, said in (("wrong", "does not know"), (jwt(time.time() - 5), "expired"), ("x" * 9000, "too long")):
        async with client(everything(), JOBS, token=token) as http:
            answer = await http.get("/v1/jobs")
        assert answer.status_code == 401
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
        assert said in answer.json()["detail"]


async def test_the_user_is_asked_for_with_groups_and_extras() -> None:
    cluster = everything()
    async with client(cluster, JOBS) as http:
        await http.get("/v1/jobs")
    asked = cluster.asked[-1]["spec"]
    assert (asked["user"], asked["groups"], asked["extra"]) == ("jane", ["research"], {"scopes": ["a"]})
    wanted = {"verb": "list", "group": "muster.dev", "resource": "trainingjobs"}
    assert asked["resourceAttributes"] == wanted


async def test_a_user_of_one_namespace_sees_that_one() -> None:
    async with client(only_in("vision"), JOBS) as http:
        every = (await http.get("/v1/jobs")).json()
        own = (await http.get("/v1/jobs?namespace=vision")).json()
        other = await http.get("/v1/jobs?namespace=speech")
        one = await http.get("/v1/jobs/speech/b")
        queues, fleet = await http.get("/v1/queues"), await http.get("/v1/fleet")
    assert [item["name"] for item in every["items"]] == ["a"]
    assert every["total"] == 1
    assert every["items"] == own["items"]
    for answer in (other, one, queues, fleet):
        assert answer.status_code == 403
    said = 'User "jane" cannot list resource "trainingjobs" in API group "muster.dev" in the namespace "speech"'
    assert said in other.json()["detail"]
    assert '"speech"' in one.json()["detail"]
    assert "at the cluster scope" in queues.json()["detail"]


async def test_who_may_see_nothing_is_refused() -> None:
    async with client(only_in("elsewhere"), JOBS) as http:
        assert (await http.get("/v1/jobs")).status_code == 403


async def test_a_user_is_not_asked_about_in_any_number_of_namespaces() -> None:
    cluster = only_in("n1")
    many = [job(f"n{number}", "a") for number in range(NAMESPACES_ASKED + 1)]
    async with client(cluster, many) as http:
        answer = await http.get("/v1/jobs")
    assert answer.status_code == 403
    assert "name one of them" in answer.json()["detail"]
    assert len(cluster.asked) == 2


async def test_where_a_user_has_no_right_is_not_asked_again_and_again_for_each_list() -> None:
    """People who look at their jobs every five seconds, each with jobs in one of 150 namespaces."""
    now, namespaces = 0.0, [f"n{number:03}" for number in range(150)]
    users = [User(f"user-{number}") for number in range(20)]
    own = {user: f"n{number % 150:03}" for number, user in enumerate(users)}
    cluster = Cluster(rights={(user.name, "list", "trainingjobs", name) for user, name in own.items()})
    reviewer, right = Reviewer(cluster, seconds=10, clock=lambda: now), Right("list", "trainingjobs")
    for moment in range(0, 125, 5):
        now = float(moment)
        for user in users:
            assert await reviewer.namespaces(user, right, lambda: namespaces) == frozenset({own[user]})
        if moment == 0:
            cluster.asked.clear()
    # The right in all namespaces, and that in the user's own, each every ten seconds.
    assert len(cluster.asked) == len(users) * 2 * 12
    cluster.rights |= {("user-0", "list", "trainingjobs", "n149")}
    cluster.rights -= {("user-0", "list", "trainingjobs", "n000")}
    now += 10.0
    with pytest.raises(Problem, match="nor in any"):
        await reviewer.namespaces(users[0], right, lambda: namespaces)
    now = 301.0
    assert await reviewer.namespaces(users[0], right, lambda: namespaces) == frozenset({"n149"})


async def test_the_same_question_is_asked_once() -> None:
    cluster = everything()
    async with client(cluster, JOBS) as http:
        for _ in range(3):
            await http.get("/v1/jobs")
    assert [body["kind"] for body in cluster.asked] == ["TokenReview", "SubjectAccessReview"]


async def test_an_api_server_that_is_away_or_refuses_is_503() -> None:
    for away in (ApiUnreachable("no answer"), ApiError(403, "Forbidden", "tokenreviews is forbidden")):
        cluster = everything()
        cluster.away = away
        async with client(cluster, JOBS) as http:
            answer = await http.get("/v1/jobs")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0


async def test_answers_are_kept_for_their_time_and_failures_are_not() -> None:
    now, asked = 0.0, 0

    async def ask() -> tuple[int, float]:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise RuntimeError
        return asked, 10.0

    kept: Kept[str, int] = Kept(clock=lambda: now)
    assert [await kept.get("a", ask), await kept.get("a", ask)] == [1, 1]
    now = 10.0
    with pytest.raises(RuntimeError):
        await kept.get("a", ask)
    assert await kept.get("a", ask) == 3


async def test_a_token_is_not_kept_past_its_end() -> None:
    token = jwt(time.time() + 0.5)
    cluster = Cluster({token: {"username": "jane"}})
    reviewer = Reviewer(cluster, seconds=60)
    assert (await reviewer.user(f"bearer {token}")).name == "jane"
    cluster.tokens.clear()
    await asyncio.sleep(expiry(token) - time.time() + 0.01)
    with pytest.raises(Problem, match="expired"):
        await reviewer.user(f"Bearer {token}")


async def test_rights_of_two_users_are_not_mixed() -> None:
    cluster = Cluster(rights={("a", "list", "pods", "")})
    reviewer, right = Reviewer(cluster, seconds=60), Right("list", "pods", group="")
    assert await reviewer.allows(User("a"), right)
    assert not await reviewer.allows(User("b"), right)
    assert len(cluster.asked) == 2


def test_the_end_of_a_token_is_read_where_it_says_one() -> None:
    assert expiry(jwt(12.5)) == 12.5
    nested = base64.urlsafe_b64encode(b"[" * 6000).decode()
    for other in ("opaque", "a.b.c", "..", "a.e30.c", "a.W10.c", jwt(10**400), f"a.{nested}.c"):
        assert expiry(other) == float("inf")
