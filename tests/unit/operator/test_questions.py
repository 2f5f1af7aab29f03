"""Whom the operator asks first, and that no gang dies of an answer's age: 2,000 gangs on a clock of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from muster.api.placement import nodes_with_workers
from muster.api.terms import Usage
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster.eligibility import UNREACHABLE
from muster.cluster.launchers import DirectTransport, Launcher, LauncherError, Launchers, NotAsked
from muster.cluster.pods import PodSettings
from muster.cluster.views import NodeView
from muster.controllers.cache import Cache
from muster.controllers.claims import Claims
from muster.controllers.inputs import Inputs
from muster.controllers.lifecycle.failure import UNANSWERED
from muster.controllers.lifecycle.reconcile import reconcile
from muster.controllers.progress import Progress
from muster.controllers.questions import (
    DOUBTS_AT_ONCE,
    DOUBTS_PER_ROUND,
    IN_A_ROW,
    POLLS_PER_SECOND,
    Silence,
    Stand,
    at_doubt,
    due,
    longer,
)
from muster.controllers.records import Record
from muster.controllers.situations import PATIENCE, Situations
from muster_protocol.launcher_api import MEMBERSHIP_PATH, RELIABILITY_PATH
from muster_protocol.launcher_status import Phase, Status
from muster_protocol.messages import Reliability
from muster_protocol.wire import decode, encode

from .lifecycle.cases import START, Case, trainingjob
from .loops import Items

pytestmark = pytest.mark.unit

TIMEOUT = 5.0
"""Seconds that the dead let the operator wait."""


# -- the pure core -----------------------------------------------------------------------------------------------------


def test_gangs_in_doubt_come_before_all_others_and_do_not_use_up_the_others_turns() -> None:
    stands = dict.fromkeys((f"calm-{n:04}" for n in range(1000)), Stand.CALM)
    stands |= dict.fromkeys((f"doubtful-{n:04}" for n in range(1000)), Stand.DOUBTFUL) | {"joining": Stand.JOINING}
    found = due({}, stands, (), 0.0, 1.0)
    assert found[:DOUBTS_PER_ROUND] == [f"doubtful-{n:04}" for n in range(DOUBTS_PER_ROUND)]
    assert found[DOUBTS_PER_ROUND] == "joining"
    assert len(found) == DOUBTS_PER_ROUND + 1 + POLLS_PER_SECOND


def test_gangs_in_doubt_take_turns_the_longest_unasked_first() -> None:
    stands = dict.fromkeys((f"{n:04}" for n in range(DOUBTS_PER_ROUND + 50)), Stand.DOUBTFUL)
    first = due({}, stands, (), 0.0, 1.0)
    second = due(dict.fromkeys(first, 0.0), stands, (), 1.0, 1.0)
    assert set(first) | set(second[:50]) == set(stands)


def test_no_more_of_them_are_awaited_at_once_than_there_is_room_for() -> None:
    stands = dict.fromkeys((f"{n:04}" for n in range(2 * DOUBTS_AT_ONCE)), Stand.DOUBTFUL)
    busy = set(sorted(stands)[: DOUBTS_AT_ONCE - 3])
    found = due({}, stands, busy, 0.0, 1.0)
    assert len(found) == 3
    assert not busy & set(found)


def test_one_question_that_is_left_unanswered_proves_nothing() -> None:
    assert longer(None, 100.0, doubtful=True).lasts == 0.0


def test_questions_to_a_calm_gang_count_together_only_when_they_follow_each_other() -> None:
    lost = longer(None, 0.0, doubtful=False)
    assert longer(lost, IN_A_ROW, doubtful=False).lasts == IN_A_ROW
    assert longer(lost, IN_A_ROW + 1, doubtful=False).lasts == 0.0
    assert longer(lost, IN_A_ROW + 1, doubtful=True).lasts == IN_A_ROW + 1


def test_a_silence_that_is_long_over_does_not_count_when_doubt_arises() -> None:
    silence = Silence(0.0, 30.0)
    assert at_doubt(silence, 30.0 + IN_A_ROW) == silence
    assert at_doubt(silence, 31.0 + IN_A_ROW) is None


# -- thousands of gangs ------------------------------------------------------------------------------------------------


@dataclass
class Clock:
    """Time goes on when the test says so."""

    now: float = 1000.0
    sleepers: list[tuple[float, asyncio.Future[None]]] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        waits = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.now + seconds, waits))
        await waits

    async def go_on(self, seconds: float) -> None:
        self.now += seconds
        for moment, waits in self.sleepers:
            if moment <= self.now:
                waits.set_result(None)
        self.sleepers = [each for each in self.sleepers if each[0] > self.now]
        for _ in range(30):  # steps of a visit that doesn't wait for the clock
            await asyncio.sleep(0)


class Fleet:
    """Running gangs of two workers, each on two nodes of its own, and an operator that asks their launchers.

    Attributes:
        dead: nodes on which nothing answers.
        cut: nodes whose launchers the operator alone can't reach.
        said: what the launchers say beside the usual.
        ended: gangs of which a worker was given up, by UID, and when.
        told: pods that were told who belongs to their gang, as often as they were.
        node_hours: that nodes run between two failures, as the operator knows it.
        rates: what pods were told of that, as often as they were; `too_old` launchers know no such call.
        strange: the launchers' tokens are of another key than the operator's.
        wrote: what was handed to be written.
    """

    def __init__(self, gangs: int, *, failing: Callable[[str], Exception] = LauncherError, **spec: Any) -> None:
        self.clock, self.dead, self.cut, self.ended = Clock(), set[str](), set[str](), dict[str, float]()
        self._failing = failing
        self.told: list[str] = []
        self.node_hours, self.too_old, self.strange = 1000.0, False, False
        self.rates: list[tuple[str, float]] = []
        self.said: dict[str, Any] = {}
        self.wrote: list[TrainingJobStatus] = []
        self._pods, self._nodes = Items(), Items()
        self.cache = Cache(pods=self._pods, nodes=self._nodes, namespaces=Items(), priority_classes=Items())
        self._node_of: dict[str, str] = {}
        self.records: dict[str, Record] = {}
        self.lead()
        model = Case(trainingjob(workers=2, **spec))
        model.start()
        self._show("free", reachable=True)
        for number in range(gangs):
            self._add(model, f"gang-{number:05}")

    def lead(self) -> None:
        """Another operator takes over, which has asked nobody yet."""
        self.progress = Progress(
            self.cache,
            Launchers(self._answer, b"k" * 16),
            node_hours=lambda: (("on-demand", self.node_hours), ("spot", 1.0)),
            clock=lambda: self.clock.now,
        )
        claims = Claims(self.cache.mark)
        inputs = Inputs(self.cache, PodSettings("runtime"), claims)
        self._situations = Situations(self.cache, self.progress, claims, inputs, PATIENCE)
        self.records = {uid: Record.of(record.job) for uid, record in self.records.items()}
        self.cache.dirty |= set(self.records)

    def _add(self, model: Case, uid: str) -> None:
        placement = model.job.status.placement
        assert placement is not None
        nodes = self.nodes_of(uid)
        status = model.job.status.model_copy(
            update={"placement": placement.model_copy(update={"nodes": nodes_with_workers(nodes)})}
        )
        metadata = model.job.metadata.model_copy(update={"uid": uid, "name": uid})
        job: TrainingJob = model.job.model_copy(update={"metadata": metadata, "status": status})
        self.records[uid] = Record.of(job)
        for pod in model.pods.values():
            name, node = f"{uid}-g1-{pod.index}-0", nodes[pod.index]
            self._show(node, reachable=True)
            self._node_of[name] = node
            view = replace(pod, name=name, uid=f"uid-{name}", owner_uid=uid, job=uid, node=node)
            self._pods.items[view.key] = view
            self.cache.on_pod(view.key, view)

    def nodes_of(self, uid: str) -> tuple[str, str]:
        return f"{uid}-a", f"{uid}-b"

    def _show(self, name: str, *, reachable: bool) -> None:
        taints = [] if reachable else [{"key": UNREACHABLE, "effect": "NoExecute"}]
        conditions = [{"type": "Ready", "status": "True" if reachable else "Unknown"}]
        metadata = {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}
        raw = {"metadata": metadata, "spec": {"taints": taints}, "status": {"conditions": conditions}}
        self._nodes.items[name] = NodeView.from_raw(raw)

        self.cache.on_node(name, self._nodes.items[name])

    def pod_is(self, name: str, phase: str) -> None:
        key = f"research/{name}"
        self._pods.items[key] = replace(self._pods.items[key], phase=phase)
        self.cache.on_pod(key, self._pods.items[key])

    def unreachable(self, uids: Iterable[str]) -> None:
        for uid in uids:
            for name in self.nodes_of(uid):
                self._show(name, reachable=False)

    def free_node(self, *, reachable: bool) -> None:
        """The one node that no gang is on."""
        self._show("free", reachable=reachable)

    async def _answer(
        self, launcher: Launcher, method: str, path: str, body: bytes | None, token: str
    ) -> tuple[int, bytes]:
        node = self._node_of[launcher.pod]
        if self.strange:
            return 401, b"wrong token"
        if path == MEMBERSHIP_PATH:
            self.told.append(launcher.pod)
        if path == RELIABILITY_PATH:
            self.rates.append((launcher.pod, decode(Reliability, body or b"").node_hours))
            if self.too_old:
                return 404, b"no such page"
        if node in self.dead or node in self.cut:
            await self.clock.sleep(TIMEOUT)
            raise self._failing(launcher.pod)
        return 200, encode(replace(Status(Phase.RUNNING, 1, 1, 0 if node.endswith("-a") else 1), **self.said))

    async def go_on(self, seconds: int) -> None:
        """The operator asks once a second and gives each gang its turn that has news."""
        for _ in range(seconds):
            await self.clock.go_on(1.0)
            self.progress.ask_due(self.records, lambda record, status: self.wrote.append(status), self.clock.now, 1.0)
            await self.clock.go_on(0.0)
            dirty, self.cache.dirty = self.cache.dirty, set()
            for uid in sorted(dirty & set(self.records)):
                self._turn(uid)

    def _turn(self, uid: str) -> None:
        record, pods = self.records[uid], self.cache.pods_of(("research", uid))
        record.see(pods, self.clock.now)
        status = reconcile(self._situations.of(record, pods, START, self.clock.now)).status
        placement = status.placement if status is not None else None
        if status is not None and (status.stop is not None or (placement is not None and placement.replacing)):
            self.ended[uid] = self.clock.now
            del self.records[uid]


async def test_a_rack_of_500_nodes_that_turns_unreachable_ends_no_gang_that_lives_though_answers_are_old() -> None:
    fleet = Fleet(2000)
    await fleet.go_on(41)
    ages = [fleet.clock.now - record.launcher_at for record in fleet.records.values()]
    assert max(ages) > 15.0, "2,000 gangs are not asked more often"
    rack = sorted(fleet.records)[:250]
    for uid in rack[:10]:
        fleet.dead |= set(fleet.nodes_of(uid))
    fleet.unreachable(rack)
    begun = fleet.clock.now
    await fleet.go_on(30)
    assert sorted(fleet.ended) == rack[:10]
    assert min(fleet.ended.values()) - begun >= UNANSWERED
    assert all(begun < fleet.records[uid].launcher_at for uid in rack[10:]), "they were asked at once"


async def test_a_new_leader_ends_only_those_of_which_nobody_answers_its_questions() -> None:
    fleet = Fleet(300)
    fleet.dead |= set(fleet.nodes_of("gang-00007"))
    fleet.unreachable(sorted(fleet.records))
    fleet.lead()
    await fleet.go_on(30)
    assert list(fleet.ended) == ["gang-00007"]


async def test_more_dead_gangs_than_can_be_asked_at_once_are_all_found_and_the_living_among_them_are_spared() -> None:
    fleet = Fleet(DOUBTS_AT_ONCE + 200)
    living = set(sorted(fleet.records)[::10])
    fleet.dead |= {name for uid in set(fleet.records) - living for name in fleet.nodes_of(uid)}
    fleet.unreachable(sorted(fleet.records))
    await fleet.go_on(90)
    assert set(fleet.records) == living


async def test_a_leader_that_only_the_operator_cannot_reach_lives_by_the_word_of_another() -> None:
    fleet = Fleet(1)
    fleet.cut.add("gang-00000-a")
    fleet.unreachable(["gang-00000"])
    await fleet.go_on(60)
    assert not fleet.ended


async def test_nobody_is_ended_while_all_nodes_are_unreachable_at_once_nor_when_the_first_is_back() -> None:
    fleet = Fleet(20)
    fleet.free_node(reachable=False)
    fleet.dead |= {name for uid in fleet.records for name in fleet.nodes_of(uid)}
    fleet.unreachable(sorted(fleet.records))
    await fleet.go_on(120)
    assert not fleet.ended, "nothing could start anywhere"
    fleet.free_node(reachable=True)
    await fleet.go_on(5)
    fleet.dead -= set(fleet.nodes_of("gang-00007"))
    await fleet.go_on(55)
    assert list(fleet.records) == ["gang-00007"]


async def test_questions_that_never_left_the_operator_end_nobody() -> None:
    fleet = Fleet(1, failing=NotAsked)
    fleet.dead |= set(fleet.nodes_of("gang-00000"))
    fleet.unreachable(["gang-00000"])
    await fleet.go_on(60)
    assert not fleet.ended


async def test_a_pod_whose_image_is_still_pulled_is_not_told_of_its_gang_before_it_runs() -> None:
    fleet = Fleet(1)
    fleet.pod_is("gang-00000-g1-1-0", "Pending")
    await fleet.go_on(30)
    assert fleet.told == ["gang-00000-g1-0-0"]
    fleet.pod_is("gang-00000-g1-1-0", "Running")
    await fleet.go_on(30)
    assert fleet.told == ["gang-00000-g1-0-0", "gang-00000-g1-1-0"]


AUTO = {"uri": "s3://models/llama", "interval": "auto"}


async def test_a_gang_that_runs_is_told_how_often_nodes_fail_when_that_has_moved() -> None:
    fleet = Fleet(1, checkpoint=AUTO)
    await fleet.go_on(120)
    leader = "gang-00000-g1-0-0"
    assert fleet.rates == [(leader, 1000.0)]
    fleet.node_hours = 1099.0
    await fleet.go_on(120)
    assert len(fleet.rates) == 1, "the interval would hardly change"
    fleet.node_hours = 123.4567
    await fleet.go_on(120)
    assert fleet.rates == [(leader, 1000.0), (leader, 123.5)]
    fleet.lead()
    await fleet.go_on(120)
    assert fleet.rates[2:] == [(leader, 123.5)], "another operator doesn't know what was told"
    assert not any(record.task for record in fleet.records.values()), "no status is written for it"


async def test_a_launcher_that_knows_no_such_call_is_told_again_after_a_minute_and_all_else_goes_on() -> None:
    fleet = Fleet(1, checkpoint=AUTO)
    fleet.too_old = True
    await fleet.go_on(130)
    assert 2 <= len(fleet.rates) <= 3
    assert not fleet.ended
    fleet.too_old = False
    await fleet.go_on(130)
    assert len(fleet.rates) <= 4


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"checkpoint": {"uri": "s3://models/llama", "interval": "10m"}},
        {"checkpoint": AUTO, "env": [{"name": "MUSTER_CHECKPOINT_NODE_HOURS", "value": "7"}]},
    ],
)
async def test_a_gang_whose_interval_is_given_or_that_knows_its_nodes_itself_is_not_told(spec: dict[str, Any]) -> None:
    fleet = Fleet(1, **spec)
    await fleet.go_on(60)
    assert fleet.rates == []


async def test_a_status_that_cannot_be_true_is_not_heeded_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = Fleet(1)
    await fleet.go_on(2)
    (record,) = fleet.records.values()
    before = record.launcher
    assert before is not None
    fleet.said = {"restarts": 2**40}
    await fleet.go_on(30)
    assert record.launcher == before
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
        "the launcher of pod research/gang-00000-g1-0-0 sent a status that can't be true, and is not heeded: "
        "restarts is 1099511627776; it has to be at least 0 and below 1048576"
    ]
    fleet.said = {"restarts": 1}
    await fleet.go_on(30)
    assert record.launcher.restarts == 1


async def test_a_token_that_a_launcher_does_not_know_is_told_in_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing else would tell why a gang that trains tells of no progress, or one that starts never runs."""
    fleet = Fleet(1)
    fleet.strange = True
    await fleet.go_on(30)
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
        "the launcher of pod research/gang-00000-g1-0-0 does not know this operator's token: "
        "MUSTER_OPERATOR_TOKEN_KEY, the chart's tokenKey, has changed since the pod was made; the run goes on, "
        "tells of no progress until the key is as it was, and its next placement gets the new one"
    ]


async def test_progress_brings_the_rate_by_the_prices_that_hold_now() -> None:
    fleet = Fleet(1)
    (record,) = fleet.records.values()
    old = record.job.status.model_copy(update={"usage": Usage(hourly="98.48", currency="USD")})
    record.job = record.job.model_copy(update={"status": old})
    record.gpu_type, record.price, record.currency = "H100", 2.5, "EUR"
    fleet.said = {"step": 7}
    await fleet.go_on(12)
    assert fleet.wrote[-1].progress is not None
    assert fleet.wrote[-1].usage == Usage(hourly="5", currency="EUR")


async def test_a_launcher_is_not_taken_for_silent_because_the_silent_ones_before_it_used_up_the_connections() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/silent":
            await asyncio.Event().wait()
        return web.Response(text="here")

    app = web.Application()
    app.router.add_get("/{name}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    transport = DirectTransport(timeout=3.0, at_once=1)
    launcher = Launcher("ns", "pod", "127.0.0.1", runner.addresses[0][1], "uid")
    paths = ["/silent", "/here"]
    try:
        calls = (transport(launcher, "GET", path, None, "token") for path in paths)
        found = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        await transport.close()
        await runner.cleanup()
    assert isinstance(found[0], LauncherError)
    assert found[1] == (200, b"here")
