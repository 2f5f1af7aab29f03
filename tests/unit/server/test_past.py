"""The history and the cost report over HTTP: whose jobs are shown, pages, forms, and what is refused."""

from __future__ import annotations

import asyncio
import csv
import io
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import URL

from muster.server.listing import cursor_of, question_of
from muster.server.past import THREADS, Past
from muster.server.past_models import PastQuery
from muster.sizing.prices import catalogue
from muster.telemetry.cost.intervals import PoolInterval
from muster.telemetry.history import reading
from muster.telemetry.history.database import parse
from muster.telemetry.history.reading import Reader, Whole
from muster.telemetry.history.writer import Writer

from ..history.rows import at, attempt, interval, job
from .samples import Cluster, client, everything

pytestmark = pytest.mark.unit

ROWS = [
    job("a", goodput={"queued": 60, "starting": 60, "training": 3540}),
    job("b", namespace="vision", queue="vision", submitted_at=at(5), phase="Succeeded", deleted_at=at(65)),
    job("c", namespace="vision", queue="vision", submitted_at=at(5), gpus=8, workers=1, user="J. Müller <jm@x.org>"),
    attempt("a", goodput={"queued": 60, "starting": 60, "training": 3540}, ended_at=at(61)),
    interval("a", 0, ends=at(61)),
    interval("a", 1, ends=at(61)),
    interval("b", begins=at(5), ends=at(65)),
    PoolInterval("H100", "on-demand", 24, at(0), None, False),
]
NO_FILTER = question_of(**PastQuery().model_dump(exclude={"limit", "cursor"}))
ENDS = at(121)
"""Up to when the history reaches: the pool was there for 48.4 GPU-hours, of which 24 were held."""


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    url = parse(f"sqlite:///{tmp_path_factory.mktemp('history')}/history.db")
    writer = Writer(url, identity="me")
    writer.start()
    writer.put(ROWS)
    writer.picture(ENDS)
    writer.close(30)
    assert writer.health.written == len(ROWS)
    reader = Reader(url)
    past = Past(reader, catalogue({"H100/on-demand": 2.0}, defaults=False))
    yield past
    past.close()


def of_vision() -> Cluster:
    """One user, who may read jobs of one namespace."""
    rights = {("jane", verb, "trainingjobs", "vision") for verb in ("get", "list")}
    return Cluster({"t": {"username": "jane"}}, rights)


async def ask(past: Past | None, path: str, cluster: Cluster | None = None, status: int = 200) -> Any:
    async with client(cluster or everything(), past=past) as http:
        answer = await http.get(path)
    assert answer.status_code == status, answer.text
    return answer.text if answer.headers["content-type"].startswith("text/csv") else answer.json()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", "cba"),
        ("namespace=vision", "cb"),
        ("queue=research", "a"),
        ("phase=Succeeded", "b"),
        ("gone=true", "b"),
        ("gone=false", "ca"),
        ("name=run-a", "a"),
        ("ends=2026-11-20T12:05:00Z", "a"),
        ("begins=2026-11-20T13:05:00Z", "ca"),
        ("user=nobody", ""),
        ("user=J.+M%C3%BCller+%3Cjm%40x.org%3E", "c"),
        ("project=nothing%00+of+that", ""),
    ],
)
async def test_jobs_that_are_and_were(past: Past, query: str, found: str) -> None:
    page = await ask(past, f"/v1/history/jobs?{query}")
    assert "".join(item["uid"] for item in page["items"]) == found


async def test_pages_follow_each_other(past: Past) -> None:
    seen, cursor = "", ""
    for _ in range(3):
        page = await ask(past, f"/v1/history/jobs?limit=1&cursor={cursor}")
        seen, cursor = seen + page["items"][0]["uid"], page.get("next", "")
    assert (seen, cursor) == ("cba", "")
    first = await ask(past, "/v1/history/jobs?limit=1")
    other = await ask(past, f"/v1/history/jobs?limit=1&queue=vision&cursor={first['next']}", status=400)
    assert "other filters" in other["detail"]
    await ask(past, "/v1/history/jobs?cursor=nonsense", status=400)


async def test_a_user_sees_the_past_of_their_namespaces(past: Past) -> None:
    page = await ask(past, "/v1/history/jobs", of_vision())
    assert [item["uid"] for item in page["items"]] == ["c", "b"]
    await ask(past, "/v1/history/jobs?namespace=research", of_vision(), status=403)
    hidden = await ask(past, "/v1/history/jobs/a", of_vision(), status=404)
    unknown = await ask(past, "/v1/history/jobs/x", of_vision(), status=404)
    assert hidden["detail"].replace("'a'", "'x'") == unknown["detail"], "nothing tells that it exists"
    nobody = Cluster({"t": {"username": "joe"}})
    await ask(past, "/v1/history/jobs", nobody, status=403)
    await ask(past, "/v1/cost", nobody, status=403)


async def test_one_job_with_all_that_is_known_of_it(past: Past) -> None:
    whole = await ask(past, "/v1/history/jobs/a")
    assert whole["job"]["submittedAt"] == "2026-11-20T12:00:00Z"
    assert [one["endedAt"] for one in whole["attempts"]] == ["2026-11-20T13:01:00Z"]
    assert [(one["index"], one["node"], one["gpus"]) for one in whole["intervals"]] == [
        (0, "node-0", 8),
        (1, "node-1", 8),
    ]
    assert "leftOut" not in whole


async def test_of_a_job_with_more_than_is_told_the_rest_is_counted(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST_PART", 1)
    whole = await ask(past, "/v1/history/jobs/a")
    assert [one["index"] for one in whole["intervals"]] == [1]
    assert whole["leftOut"] == {"intervals": 1}


async def test_a_month_by_queue_with_what_was_idle(past: Past) -> None:
    told = await ask(past, "/v1/cost?month=2026-11")
    cost = {row["queue"]: Decimal(row["cost"]) for row in told["rows"]}
    # 16 GPUs and 8 GPUs for an hour each at 2.00, and the rest of 24 GPUs for 121 minutes
    assert cost == {"research": 32, "vision": 16, "(idle)": 2 * (24 * Decimal(121) / 60 - 24)}
    assert Decimal(told["total"]["cost"]) == sum(cost.values())
    assert Decimal(told["rows"][0]["waste"]["starting"]) == Decimal("0.533333")


async def test_who_sees_one_namespace_is_told_its_cost_alone(past: Past) -> None:
    told = await ask(past, "/v1/cost?month=2026-11", of_vision())
    assert [(row["queue"], Decimal(row["cost"])) for row in told["rows"]] == [("vision", 16)]


@pytest.mark.parametrize("form", ["csv", "focus"])
async def test_a_report_as_csv(past: Past, form: str) -> None:
    lines = list(csv.DictReader(io.StringIO(await ask(past, f"/v1/cost?month=2026-11&by=job&format={form}"))))
    name = "cost" if form == "csv" else "BilledCost"
    assert sum(Decimal(line[name]) for line in lines) == 48 + 2 * (24 * Decimal(121) / 60 - 24)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/cost?month=november", "'november' is no month"),
        ("/v1/cost?by=colour", "nothing is grouped by 'colour'"),
        ("/v1/cost?format=xls", "format"),
        ("/v1/history/jobs?begins=2026-11-20T12:00:00", "begins"),
        ("/v1/history/jobs?begins=0001-01-01T00:00:00%2B14:00", "begins: '0001-01-01"),
        ("/v1/history/jobs?ends=9999-12-31T23:59:59-12:00", "ends: '9999-12-31"),
        ("/v1/history/jobs?gone=perhaps", "gone"),
        ("/v1/history/jobs?limit=501", "limit"),
        ("/v1/history/jobs?name=a%00b", "name"),
        ("/v1/history/jobs/a%00b", "uid"),
        (f"/v1/history/jobs?cursor={cursor_of(('0001-01-01T00:00:00+14:00', 'a'), NO_FILTER)}", "cursor"),
    ],
)
async def test_what_cannot_be_asked(past: Past, path: str, says: str) -> None:
    assert says in (await ask(past, path, status=400))["detail"]


async def test_without_a_history_it_is_said_how_to_have_one() -> None:
    assert "history.database" in (await ask(None, "/v1/history/jobs", status=404))["detail"]


async def test_a_database_that_is_away_is_a_503(tmp_path: Path) -> None:
    past = Past(Reader(parse(f"sqlite:///{tmp_path}/nowhere/history.db")), catalogue(defaults=False))
    for path in ("/v1/history/jobs", "/v1/history/jobs/a", "/v1/cost"):
        assert "gives no answer" in (await ask(past, path, status=503))["detail"]


async def test_what_libpq_says_on_several_lines_is_told_on_one() -> None:
    past = Past(Reader(parse("postgresql://nobody@127.0.0.1:1/history")), catalogue(defaults=False))
    detail = (await ask(past, "/v1/cost", status=503))["detail"]
    assert "Connection refused; Is the server running" in detail


class Hanging(Reader):
    """Of a server that has taken the question, and answers when it is `free`."""

    def __init__(self, url: URL) -> None:
        super().__init__(url)
        self.asked, self.free = threading.Semaphore(0), threading.Event()

    def job(self, uid: str) -> Whole | None:
        self.asked.release()
        self.free.wait()
        return None


async def test_a_database_that_hangs_keeps_nobody_from_queues_and_gpus(tmp_path: Path) -> None:
    reader = Hanging(parse(f"sqlite:///{tmp_path}/history.db"))
    past = Past(reader, catalogue(defaults=False))
    async with client(everything(), past=past) as http:
        waiting = [asyncio.create_task(http.get(f"/v1/history/jobs/{number}")) for number in range(40)]
        try:
            async with asyncio.timeout(30):
                for _ in range(THREADS):
                    await asyncio.to_thread(reader.asked.acquire)
                for path in ("/v1/queues", "/v1/fleet"):
                    assert (await http.get(path)).status_code == 200
        finally:
            reader.free.set()
            answers = await asyncio.gather(*waiting)
    assert {answer.status_code for answer in answers} == {404}
    past.close()
