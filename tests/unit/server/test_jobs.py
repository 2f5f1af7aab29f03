"""Pages of jobs over HTTP: filters, order, cursors, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from muster.server.models import JobPage

from .samples import Cluster, World, client, everything, job

pytestmark = pytest.mark.unit

JOBS = [
    job("vision", "a", phase="Running", labels={"team": "x"}, gpus=8, created="2026-01-05T00:00:00Z"),
    job("vision", "b", labels={"team": "y"}, gpus=64, created="2026-01-03T00:00:00Z", queue="nlp"),
    job("speech", "c", phase="Failed", gpus=8, created="2026-01-04T00:00:00Z"),
    job("speech", "d", labels={"team": "x", "old": ""}, gpus=1, created="2026-01-03T00:00:00Z", queue={"position": 2}),
]
JOBS[3]["spec"]["queue"] = "nlp"


async def names(query: str, jobs: list[Any] = JOBS, cluster: Cluster | None = None) -> list[str]:
    async with client(cluster or everything(), jobs) as http:
        answer = await http.get(f"/v1/jobs?{query}")
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in JobPage.model_validate(answer.json()).model_dump()["items"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", "cdab"),
        ("sort=-name", "badc"),
        ("sort=created", "dbca"),
        ("sort=-created", "acbd"),
        ("sort=gpus", "dcab"),
        ("sort=queue", "dbca"),
        ("namespace=vision", "ab"),
        ("phase=Running&phase=Failed", "ca"),
        ("sort=name&sort=-name", "badc"),
        ("queue=nlp", "db"),
        ("labelSelector=team%3Dx", "da"),
        ("labelSelector=team%20in%20(x,y),!old", "ab"),
        ("labelSelector=team!=x", "cb"),
        ("labelSelector=old", "d"),
    ],
)
async def test_jobs_are_filtered_and_sorted(query: str, found: str) -> None:
    assert await names(query) == list(found)


async def test_a_queue_means_those_below_it_too() -> None:
    from muster.api.trainingqueue import TrainingQueue

    tree = {
        name: TrainingQueue.from_raw({"metadata": {"name": name}, "spec": {"parent": parent} if parent else {}})
        for name, parent in (("company", None), ("nlp", "company"), ("other", None))
    }
    async with client(everything(), JOBS, World(queues=tree)) as http:
        found = (await http.get("/v1/jobs?queue=company")).json()
    assert [item["name"] for item in found["items"]] == ["d", "b"]


@pytest.mark.parametrize("sort", ["name", "-name", "created", "-created", "-gpus", "queue", "phase"])
async def test_pages_together_have_every_job_once_in_order(sort: str) -> None:
    many = [
        job(f"n{number % 3}", f"job-{number}", gpus=number % 5, created=f"2026-01-0{number % 4 + 1}T00:00:00Z")
        for number in range(23)
    ]
    async with client(everything(), many) as http:
        whole = (await http.get(f"/v1/jobs?sort={sort}&limit=500")).json()
        cursor, pages, found = "", 0, []
        while pages == 0 or cursor:
            answer = (await http.get(f"/v1/jobs?sort={sort}&limit=5&cursor={cursor}")).json()
            found += answer["items"]
            cursor, pages = answer["next"], pages + 1
            assert answer["total"] == 23
    assert pages == 5
    assert found == whole["items"]
    assert len({item["uid"] for item in found}) == 23


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=x", "limit"),
        ("sort=colour", "sort"),
        ("phase=Dancing", "phase"),
        ("quee=x", "quee"),
        ("namespace=" + "n" * 64, "namespace"),
        ("cursor=" + "x" * 3000, "cursor"),
        ("labelSelector=a%20b", "labelSelector"),
        ("labelSelector=a%3D%3D%3Db", "labelSelector"),
        ("labelSelector=" + "!a," * 40 + "b", "labelSelector"),
        ("cursor=x", "cursor"),
        ("cursor=" + "W1tb" * 500, "cursor"),  # [[[ without an end
        ("cursor=NQ", "cursor"),
        ("cursor=WzEsIDJd", "cursor"),
    ],
)
async def test_a_bad_parameter_is_named(query: str, wrong: str) -> None:
    async with client(everything(), JOBS) as http:
        answer = await http.get(f"/v1/jobs?{query}")
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert [one["name"] for one in answer.json()["errors"]] == [wrong]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("quee=x", "quee: there is no such parameter; did you mean queue?"),
        ("colour=x", "there are cursor, labelSelector, limit, namespace, phase, queue, sort"),
        ("limit=501", "501 is too much: give 500 or less"),
        ("limit=few", "'few' is no whole number"),
        ("phase=Dancing", "'Dancing' is none of 'Queued', "),
        ("sort=colour", "'colour' is none of 'name', '-name', "),
        ("namespace=" + "n" * 64, "it has 64 characters, and at most 63 are taken"),
    ],
)
async def test_a_bad_parameter_is_told_with_what_would_do(query: str, says: str) -> None:
    async with client(everything(), JOBS) as http:
        answer = await http.get(f"/v1/jobs?{query}")
    assert says in answer.json()["detail"]


async def test_whoever_may_not_list_queues_is_not_told_which_are_below_one() -> None:
    from muster.api.trainingqueue import TrainingQueue

    raw = [{"name": "company"}, {"name": "nlp", "parent": "company"}]
    quota = [{"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": 8}]}]
    world = World(
        queues={
            one["name"]: TrainingQueue.from_raw(
                {"metadata": {"name": one["name"]}, "spec": {"parent": one.get("parent"), "quotas": quota}}
            )
            for one in raw
        }
    )
    rights = {("jane", "list", "trainingjobs", ""), ("jane", "get", "trainingqueues", "")}
    async with client(Cluster({"t": {"username": "jane"}}, rights), JOBS, world) as http:
        assert (await http.get("/v1/jobs?queue=company")).json()["items"] == []
        told = (await http.get("/v1/queues/company")).json()
    async with client(everything(), JOBS, world) as http:
        whole = (await http.get("/v1/queues/company")).json()
    nominal = [one["queue"]["flavours"][0]["resources"][0]["nominal"] for one in (told, whole)]
    assert (told["below"], told["withheld"], nominal) == ([], ["trainingqueues"], [8, 16])
    assert (whole["below"], whole["withheld"]) == (["nlp"], [])


async def test_a_cursor_belongs_to_its_question() -> None:
    async with client(everything(), JOBS) as http:
        following = (await http.get("/v1/jobs?limit=1")).json()["next"]
        same = await http.get(f"/v1/jobs?limit=3&cursor={following}")
        other = await http.get(f"/v1/jobs?limit=1&sort=gpus&cursor={following}")
        forged = await http.get("/v1/jobs?cursor=" + _forged(following))
    assert [item["name"] for item in same.json()["items"]] == ["d", "a", "b"]
    assert same.json()["next"] == ""
    assert other.status_code == 400
    assert forged.status_code == 400


def _forged(cursor: str) -> str:
    import base64
    import json

    question = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))[0]
    return base64.urlsafe_b64encode(json.dumps([question, {"a": 1}, 5]).encode()).decode().rstrip("=")


async def test_a_job_that_says_little_is_shown() -> None:
    bare = {"metadata": {"namespace": "n", "name": "bare", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z"}}
    bare |= {"spec": {"workers": {"replicas": 1}}}
    async with client(everything(), [bare]) as http:
        item = (await http.get("/v1/jobs")).json()["items"][0]
    assert item["queue"] == "default"
    assert "phase" not in item


async def test_other_paths_are_problems() -> None:
    async with client(everything()) as http:
        answer = await http.get("/v1/nothing")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert "/v1/openapi.json" in answer.json()["detail"]
