"""`muster jobs` and `muster queues` before an API server that is a handful of lists."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from muster.cli import tables
from muster.cli.printing import Output
from muster.cli.scene import NotThere, look
from muster.cluster.errors import ApiError
from muster.cluster.server_clock import ServerClock

pytestmark = pytest.mark.unit

JOBS = "/apis/muster.dev/v1alpha1"


def job(name: str, namespace: str = "research", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": name},
        "spec": {"image": "i", "command": ["c"], "workers": {"replicas": 2}, "queue": "default", **spec},
        "status": {"phase": "Running", "gpus": 4, "progress": {"step": 7, "totalSteps": 9}},
    }


class Server:
    """Of the namespaces that there are, the user may see those in `mine`; of all where `mine` is None."""

    def __init__(self, *jobs: dict[str, Any], mine: Iterable[str] | None = None) -> None:
        self.jobs = jobs
        self.mine = None if mine is None else set(mine)
        self.credentials = type("Credentials", (), {"namespace": "research"})
        self.clock = ServerClock()
        self.leases: tuple[dict[str, Any], ...] = ()

    async def get(self, path: str) -> dict[str, Any]:
        if "/leases/" in path:
            self._refuse_others("muster-system")
            for lease in self.leases:
                if path.endswith("/{namespace}/leases/{name}".format(**lease["metadata"])):
                    return lease
            raise ApiError(404, "NotFound", "leases not found")
        name = path.rpartition("/")[2]
        if "/trainingjobs/" in path:
            raise ApiError(404, "NotFound", f"trainingjobs {name!r} not found")
        self._refuse_others(name)
        if name not in ("research", "vision", "idle"):
            raise ApiError(404, "NotFound", f"namespaces {name!r} not found")
        return {}

    async def list(self, path: str, fieldSelector: str = "") -> list[dict[str, Any]]:  # noqa: N803 - as it goes out
        if path.endswith("/leases"):
            self._refuse_others("muster-system")
            return list(self.leases)
        if path == "/api/v1/namespaces":
            self._refuse_others("")
            return [{"metadata": {"name": name}} for name in ("research", "vision", "idle")]
        if path == f"{JOBS}/trainingqueues":
            return [{"metadata": {"name": "default"}, "spec": {}}]
        *_, scope, _ = path.split("/")
        namespace = "" if scope == "v1alpha1" else scope
        self._refuse_others(namespace)
        name = fieldSelector.removeprefix("metadata.name=")
        found = [one for one in self.jobs if namespace in ("", one["metadata"]["namespace"])]
        return [one for one in found if name in ("", one["metadata"]["name"])]

    def _refuse_others(self, namespace: str) -> None:
        if self.mine is not None and namespace not in self.mine:
            raise ApiError(403, "Forbidden", "the user may not")


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    async def run(server: Server, namespace: str | None = None, queue: str | None = None, **more: Any) -> int:
        @asynccontextmanager
        async def connected(*_: Any) -> AsyncIterator[Server]:
            yield server

        monkeypatch.setattr(tables, "connected", connected)
        output = more.get("output", Output.TABLE)
        return await tables.jobs(namespace, queue, output, kubeconfig=None, context=None)

    return run


async def test_a_namespace_that_does_not_exist_is_told_with_the_one_that_was_meant(ask: Any) -> None:
    with pytest.raises(NotThere, match=r"no namespace 'reserach'; did you mean 'research'\? There are: idle, research"):
        await ask(Server(job("a")), "reserach")


async def test_a_namespace_without_jobs_is_no_error(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert await ask(Server(job("a")), "idle") == 0
    assert capsys.readouterr().out == "no TrainingJobs in namespace 'idle'\n"


async def test_nothing_is_claimed_of_a_namespace_that_one_may_not_see(
    ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    class Blind(Server):
        async def get(self, path: str) -> dict[str, Any]:
            raise ApiError(403, "Forbidden", "the user may not")

    assert await ask(Blind(mine=["hidden"]), "hidden") == 0
    assert capsys.readouterr().out == "no TrainingJobs in namespace 'hidden'\n"


async def test_who_may_see_one_namespace_gets_its_jobs_and_is_told(
    ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await ask(Server(job("mine"), job("theirs", "vision"), mine=["research"])) == 0
    told = capsys.readouterr()
    assert "mine" in told.out
    assert "theirs" not in told.out
    assert "these are those of 'research'" in told.err
    with pytest.raises(NotThere, match="the user may not; name a namespace of yours with -n"):
        await ask(Server(job("theirs", "vision"), mine=[]))


async def test_a_job_that_this_version_cannot_read_hides_no_other(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    odd = job("odd", workers={"replicas": "many"})
    assert await ask(Server(job("good"), odd)) == 0
    told = capsys.readouterr()
    assert "good" in told.out
    assert "research/odd is left out: spec.workers.replicas" in told.err


async def test_a_terminal_too_narrow_for_the_sentences_is_told_where_they_are(
    ask: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("TERM", "xterm")
    waits = job("a")
    waits["status"] = {"phase": "Queued", "queue": {"reason": "QuotaExceeded", "message": "8 GPUs are missing " * 3}}
    for columns, cut in ((80, True), (200, False)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert await ask(Server(waits)) == 0
        told = capsys.readouterr()
        assert "QuotaExceeded" in told.out
        assert ("8 GPUs are missing" in told.out) is not cut
        assert ("muster: WHY is one word: `muster status JOB` says all" in told.err) is cut
    short = {**waits, "metadata": {**waits["metadata"], "name": "b"}}
    short["status"] = {"phase": "Queued", "queue": {"reason": "QueueClosed", "message": "held"}}
    monkeypatch.setenv("COLUMNS", "90")
    assert await ask(Server(waits, short)) == 0
    told = capsys.readouterr()
    assert "QueueClosed: held" in told.out, "one that is too long hides no other"
    assert "8 GPUs are missing" not in told.out
    assert "WHY of 1 of 2 jobs is one word" in told.err
    monkeypatch.setenv("COLUMNS", "40")
    assert await ask(Server(job("runs"))) == 0
    assert capsys.readouterr().err == "", "nothing is left out"


async def test_json_has_the_fields_of_the_api(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [job("a"), job("elsewhere", queue="other")]
    assert await ask(Server(*jobs), None, "default", output=Output.JSON) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["queue"], row["phase"], row["step"], row["totalSteps"]) == (
        "a",
        "default",
        "Running",
        7,
        9,
    )
    with pytest.raises(NotThere, match="no TrainingQueue 'defualt'; did you mean 'default'"):
        await ask(Server(*jobs), None, "defualt")


async def test_of_a_queue_that_jobs_name_nothing_is_claimed_of_a_time_when_it_was_there(
    ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await ask(Server(job("a"), job("slip", queue="other")), None, "other") == 0
    told = capsys.readouterr()
    assert told.err.startswith("muster: there is no TrainingQueue 'other': what runs of it goes on, and what waits")
    assert "slip" in told.out


async def test_json_of_a_queue_has_the_order_of_its_table(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Who holds quota first, then who waits, in the queue's own order."""
    jobs = [job(name) for name in ("a-ended", "b-third", "c-first", "d-holds")]
    for one, phase, position in zip(
        jobs, ("Succeeded", "Queued", "Queued", "Running"), (None, 3, 1, None), strict=True
    ):
        one["status"] = {"phase": phase}
        if position is not None:
            one["status"]["queue"] = {"position": position, "reason": "QuotaExceeded", "message": "no"}
    jobs[3]["status"]["placement"] = {"generation": 1, "workers": 1, "nodes": [{"node": "n", "indexes": "0"}]}
    wanted = ["d-holds", "c-first", "b-third", "a-ended"]
    assert await ask(Server(*jobs), None, "default") == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]] == wanted
    assert await ask(Server(*jobs), None, "default", output=Output.JSON) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == wanted


@pytest.mark.parametrize(
    ("name", "namespace", "told"),
    [
        ("llam-8b", "research", "no TrainingJob 'llam-8b' in namespace 'research'; did you mean 'llama-8b'?"),
        ("Llama-8B", "research", "no TrainingJob 'Llama-8B' in namespace 'research'; did you mean 'llama-8b'?"),
        ("../pods", "research", "no TrainingJob '../pods' in namespace 'research'; there are: llama-8b"),
        ("", "research", "no TrainingJob '' in namespace 'research'; there are: llama-8b"),
        ("llama-8b", "vision", "in namespace 'vision'; there is one in research: name it with -n"),
        ("x", "idle", "in namespace 'idle'; there are none; -n names another namespace"),
        ("x", "reserach", "there is no namespace 'reserach'; did you mean 'research'?"),
        ("x", "a/../b", "there is no namespace 'a/../b'; there are: idle, research, vision"),
        ("日本", "research", "no TrainingJob '日本' in namespace 'research'; there are: llama-8b"),
    ],
)
async def test_a_job_that_is_not_there_is_answered_with_what_was_meant(name: str, namespace: str, told: str) -> None:
    with pytest.raises(NotThere) as found:
        await look(Server(job("llama-8b"), job("other", "vision")), name, namespace)  # type: ignore[arg-type]
    assert told in str(found.value)


def lease(holder: str, minutes_ago: float, namespace: str = "muster-system") -> dict[str, Any]:
    renewed = (datetime.now(timezone.utc) - timedelta(minutes=minutes_ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "metadata": {"name": "muster-operator", "namespace": namespace},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed},
    }


@pytest.mark.parametrize(
    "leases",
    [
        [("", 5)],
        [("gone", 5)],
        [("gone", 5, "platform")],
        [("", 90), ("gone", 5, "platform")],
    ],
)
async def test_jobs_that_nobody_looks_after_are_told_to_be_old(
    leases: list[tuple[Any, ...]], ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(job("a"))
    server.leases = tuple(lease(*one) for one in leases)
    where = server.leases[-1]["metadata"]["namespace"]
    assert await ask(server) == 0
    told = capsys.readouterr()
    assert "a" in told.out
    assert "muster: no operator leads since " in told.err
    assert " ago): what is told here is of then, and nothing is decided until one does; look by  " in told.err
    assert f"kubectl get lease muster-operator -n {where}" in told.err
    assert await ask(server, output=Output.JSON) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "a"


@pytest.mark.parametrize(
    "leases",
    [
        [],
        [("leads", 0)],
        [("leads", 0.9)],  # clocks differ
        [("", 0.1)],  # another takes it at its next look
        [("", 90), ("leads", 0, "platform")],  # the operator has moved
    ],
)
async def test_nothing_is_said_of_the_operator_where_one_leads_or_none_is_known(
    leases: list[tuple[Any, ...]], ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(job("a"))
    server.leases = tuple(lease(*one) for one in leases)
    assert await ask(server) == 0
    assert capsys.readouterr().err == ""


async def test_who_may_not_read_the_lease_sees_the_jobs(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(job("a"), mine=["research"])
    server.leases = (lease("", 5),)
    assert await ask(server, "research") == 0
    assert capsys.readouterr().err == ""
