"""`muster logs` finds the pods of a job's workers by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from typing import Any

import pytest

from muster.api.trainingjob import TrainingJob
from muster.cli import logs as printing
from muster.cli.logs import pods_of, worker_of
from muster.cli.scene import NotThere
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.views import PodView
from muster.telling.scene import Scene

pytestmark = pytest.mark.unit


def pod(index: int, generation: int, attempt: int = 0) -> PodView:
    labels = {"index": str(index), "generation": str(generation), "attempt": str(attempt), "job": "train"}
    name = f"train-g{generation}-{index}-{attempt}"
    return PodView.from_raw(
        {
            "metadata": {
                "name": name,
                "namespace": "research",
                "labels": {f"muster.dev/{key}": value for key, value in labels.items()},
            },
            "spec": {"containers": []},
            "status": {"phase": "Running"},
        }
    )


def scene(*pods: PodView, gpus: int = 2, **status: Any) -> Scene:
    job = TrainingJob.from_raw(
        {
            "metadata": {"name": "train", "namespace": "research", "uid": "u"},
            "spec": {"image": "i", "command": ["c"], "workers": {"replicas": 3, "gpusPerWorker": gpus}},
            "status": status,
        }
    )
    return Scene(job, pods, (), datetime(2026, 1, 2, tzinfo=timezone.utc))


GANG = tuple(pod(index, generation) for generation in (1, 2) for index in range(3))


def test_the_newest_pod_of_a_worker_in_the_newest_gang_is_meant() -> None:
    replaced = scene(*GANG, pod(1, 2, 1), pod(1, 2, 2))
    assert [each.name for each in pods_of(replaced, (1,))] == ["train-g2-1-2"]
    assert [each.name for each in pods_of(replaced, ())] == ["train-g2-0-0", "train-g2-1-2", "train-g2-2-0"]


def test_a_rank_is_found_in_its_worker() -> None:
    assert [worker_of(scene(), rank) for rank in range(6)] == [(0,), (0,), (1,), (1,), (2,), (2,)]
    with pytest.raises(NotThere, match="train has no rank 6; its ranks are 0 to 5"):
        worker_of(scene(), 6)


def test_what_is_not_there_is_told() -> None:
    queue = {"position": 2, "reason": "InsufficientCapacity", "message": "needs 3 workers"}
    with pytest.raises(NotThere, match=r"train has no pods: .*needs 3 workers"):
        pods_of(scene(phase="Queued", queue=queue), (0,))
    with pytest.raises(NotThere, match="no pod of worker 7; there are those of 0-2"):
        pods_of(scene(*GANG), (7,))


class Server:
    """Each pod's log; `waiting` ones have none yet."""

    def __init__(self, *waiting: str, steps: int = 1) -> None:
        self.waiting = waiting
        self.steps = range(1, steps + 1)
        self.open = self.most = 0
        self.credentials = type("Credentials", (), {"namespace": "research"})

    async def log(
        self, namespace: str, name: str, container: str, *, follow: bool, tail: int | None
    ) -> AsyncIterator[str]:
        assert (namespace, container, follow) == ("research", "trainer", False)
        if name in self.waiting:
            raise ApiError(400, "BadRequest", f"container in pod {name!r} is waiting to start: ContainerCreating")
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        lines = [
            "muster-launch: joins\n",
            *(f"[rank {rank}] step {step}\n" for step in self.steps for rank in range(6)),
        ]
        for line in lines[-(tail if tail is not None else len(lines)) :]:
            yield line
        self.open -= 1


async def printed(
    monkeypatch: pytest.MonkeyPatch, server: Server, gang: Sequence[PodView] = GANG, **options: Any
) -> list[str]:
    @asynccontextmanager
    async def connected(*_: Any) -> AsyncIterator[Server]:
        yield server

    async def look(*_: Any) -> Scene:
        return scene(*gang)

    monkeypatch.setattr(printing, "connected", connected)
    monkeypatch.setattr(printing, "look", look)
    told: list[str] = []
    settings: dict[str, Any] = {"workers": (0,), "rank": None, "follow": False, "tail": None} | options
    await printing.logs("train", None, kubeconfig=None, context=None, write=told.append, **settings)
    return told


async def test_one_workers_log_is_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    told = await printed(monkeypatch, Server())
    assert told[:2] == ["muster-launch: joins\n", "[rank 0] step 1\n"]
    assert await printed(monkeypatch, Server(), tail=1) == ["[rank 5] step 1\n"]


async def test_all_workers_lines_say_whose_they_are_and_a_ranks_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told = await printed(monkeypatch, Server(), workers=())
    assert {line.partition("] ")[0] for line in told} == {"[worker 0", "[worker 1", "[worker 2"}
    assert await printed(monkeypatch, Server(), rank=3) == ["[rank 3] step 1\n"]


async def test_the_tail_of_a_rank_is_of_its_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have written since."""
    server = Server(steps=3)
    assert await printed(monkeypatch, server, rank=1, tail=2) == ["[rank 1] step 2\n", "[rank 1] step 3\n"]
    assert await printed(monkeypatch, server, rank=1, tail=0) == []
    assert len(await printed(monkeypatch, server, rank=1, tail=9)) == 3


async def test_a_rank_that_has_written_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await printed(monkeypatch, Server(steps=0), rank=3) == []
    assert "rank 3 has written nothing in train-g2-1-0; without --rank" in capsys.readouterr().err
    await printed(monkeypatch, Server(), rank=3, tail=1)
    assert capsys.readouterr().err == ""


async def test_a_worker_that_has_not_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        NotThere, match=r"worker 0 has no log yet .*ContainerCreating.*`muster status train -n research` says"
    ):
        await printed(monkeypatch, Server("train-g2-0-0"))


async def test_of_a_large_gang_so_many_logs_are_read_at_once_and_no_more_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large, server = [pod(index, 1) for index in range(printing.FOLLOWED + 50)], Server()
    told = await printed(monkeypatch, server, large, workers=(), tail=1)
    assert len(told) == printing.FOLLOWED + 50
    assert server.most == printing.FOLLOWED
    with pytest.raises(NotThere, match="train has 150 workers, and 100 can be followed at once: name them by --worker"):
        await printed(monkeypatch, server, large, workers=(), follow=True)


def at(moment: int) -> str:
    """As kubelet writes it; three to a second."""
    return f"2026-01-02T03:00:{moment // 3:02}.{moment % 3:09}Z"


class Following:
    """A job whose pods come and go: `scenes` are seen one after the other, the last one for good."""

    def __init__(self, *scenes: Scene, waiting: int = 0) -> None:
        self.scenes, self.waiting = list(scenes), waiting
        self.credentials = type("Credentials", (), {"namespace": "research"})

    async def look(self, *_: Any) -> Scene:
        return self.scenes.pop(0) if len(self.scenes) > 1 else self.scenes[0]

    async def log(
        self, namespace: str, name: str, container: str, *, follow: bool, tail: int | None, stamped: bool, since: str
    ) -> AsyncIterator[str]:
        assert follow
        assert stamped
        if name != "train-g1-0-0" and self.waiting:
            self.waiting -= 1
            raise ApiError(400, "BadRequest", "waiting to start: ContainerCreating")
        yield f"{at(0)} {name}, tail {tail}\n"


async def followed(monkeypatch: pytest.MonkeyPatch, server: Following, **options: Any) -> list[str]:
    @asynccontextmanager
    async def connected(*_: Any) -> AsyncIterator[Following]:
        yield server

    monkeypatch.setattr(printing, "connected", connected)
    monkeypatch.setattr(printing, "look", server.look)
    monkeypatch.setattr(printing, "LOOK_SECONDS", 0.01)
    told: list[str] = []
    settings: dict[str, Any] = {"workers": (0,), "rank": None, "follow": True, "tail": 5} | options
    work = printing.logs("train", None, kubeconfig=None, context=None, write=told.append, **settings)
    assert await asyncio.wait_for(work, 20) == 0
    return told


ENDED = "2026-01-02T03:00:00Z"


async def test_whoever_follows_a_worker_follows_it_into_its_next_pods(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = scene(phase="Queued")
    second, third = scene(pod(0, 1, 1), pod(1, 1)), scene(pod(0, 2), pod(1, 2))
    ended = scene(pod(0, 2), pod(1, 2), phase="Succeeded", finishedAt=ENDED)
    job = Following(scene(pod(0, 1), pod(1, 1)), second, waits, waits, third, ended, waiting=2)
    told = await followed(monkeypatch, job)
    assert told == ["train-g1-0-0, tail 5\n", "train-g2-0-0, tail None\n"], "the pod between was gone before it ran"
    told = capsys.readouterr().err.splitlines()
    assert told == ["muster: worker 0 goes on in train-g1-0-1", "muster: worker 0 goes on in train-g2-0-0"]


async def test_of_all_workers_one_that_is_replaced_is_followed_beside_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Following(
        scene(pod(0, 1), pod(1, 1)),
        scene(pod(0, 1, 1), pod(1, 1)),
        scene(pod(0, 1, 1), pod(1, 1), pod(2, 1), phase="Failed", finishedAt=ENDED),
    )
    told = await followed(monkeypatch, job, workers=(), tail=None)
    assert sorted(told) == [
        "[worker 0] train-g1-0-0, tail None\n",
        "[worker 0] train-g1-0-1, tail None\n",
        "[worker 1] train-g1-1-0, tail None\n",
        "[worker 2] train-g1-2-0, tail None\n",
    ]
    assert capsys.readouterr().err == "muster: worker 0 goes on in train-g1-0-1\n"


async def test_a_job_that_was_deleted_is_followed_no_further(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Following(scene(pod(0, 1)))

    async def look(*_: Any) -> Scene:
        if not looked:
            looked.append(True)
            return job.scenes[0]
        raise NotThere("there is no TrainingJob train")

    looked: list[bool] = []
    job.look = look  # type: ignore[method-assign]
    assert await followed(monkeypatch, job) == ["train-g1-0-0, tail 5\n"]
    assert "there is no TrainingJob train" in capsys.readouterr().err


class Outages(Following):
    """One pod of ten lines; its log breaks off behind every fourth, by turns without a word and with an error, and
    comes from the second on that was asked for."""

    def __init__(self, *scenes: Scene) -> None:
        super().__init__(*scenes)
        self.whole = False
        self.errors: list[Exception | None] = [
            None,
            ApiUnreachable("log of train-g1-0-0: Connection reset"),
            ApiError(502, "BadGateway", "dial tcp 10.0.0.7:10250: connect: connection refused"),
        ]

    async def look(self, *_: Any) -> Scene:
        return self.scenes[self.whole]

    async def log(
        self,
        namespace: str,
        name: str,
        container: str,
        *,
        follow: bool,
        tail: int | None,
        stamped: bool = False,
        since: str = "",
    ) -> AsyncIterator[str]:
        if not follow:
            return
        first = next((line for line in range(10) if at(line)[:19] >= since[:19]), 0)
        for line in range(first, min(first + 4, 10) if self.errors else 10):
            yield f"{at(line)} [rank 0] step {line}\n"
        self.whole = not self.errors
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error


@pytest.mark.parametrize("asked", [{}, {"rank": 0}, {"rank": 0, "tail": 100}])
async def test_a_log_that_breaks_off_is_gone_on_with_and_no_line_comes_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: dict[str, Any]
) -> None:
    gang = pod(0, 1)
    job = Outages(scene(gang), scene(gang, phase="Succeeded", finishedAt=ENDED))
    told = await followed(monkeypatch, job, **{"tail": None, **asked})
    assert told == [f"[rank 0] step {step}\n" for step in range(10)]
    assert capsys.readouterr().err.splitlines() == [
        "muster: log of train-g1-0-0: Connection reset; trying again",
        "muster: 502 BadGateway: dial tcp 10.0.0.7:10250: connect: connection refused; trying again",
    ]


async def test_a_pod_that_waits_to_start_is_not_asked_for_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = 0
    slept = asyncio.sleep

    async def sleep(seconds: float) -> None:
        nonlocal paused
        paused += seconds == printing.LOOK_SECONDS
        await slept(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    second = scene(pod(0, 1, 1))
    job = Following(
        scene(pod(0, 1)), second, second, second, second, scene(phase="Failed", finishedAt=ENDED), waiting=3
    )
    await followed(monkeypatch, job)
    assert paused >= 3
