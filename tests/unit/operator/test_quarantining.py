"""A quarantine on the nodes: what is written, and that other people's taints stay theirs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from muster.api.names import QUARANTINE_LIFTED, QUARANTINE_REASON, QUARANTINE_TAINT, QUARANTINE_UNTIL
from muster.cluster import marks
from muster.cluster.errors import ApiError
from muster.cluster.events import News
from muster.cluster.views import NodeView
from muster.controllers.cache import Cache
from muster.controllers.quarantine import Fault, Rules
from muster.controllers.quarantining import Quarantining

from .loops import Items

pytestmark = pytest.mark.unit

Object = dict[str, Any]
OTHERS = {"key": "example.com/maintenance", "effect": "NoSchedule"}


class Nodes:
    """Nodes as the API server keeps them, with merge patches as it takes them."""

    def __init__(self, *names: str) -> None:
        self.raw = {name: node(name) for name in names}
        self.patches = 0
        self.before_patch: Callable[[], None] = lambda: None
        self.guarded: set[str] = set()

    async def get(self, path: str) -> Object:
        name = path.rsplit("/", 1)[1]
        if name not in self.raw:
            raise ApiError(404, "NotFound", "gone")
        return deepcopy(self.raw[name])

    async def merge_patch(self, path: str, patch: Object) -> Object:
        self.before_patch()
        if path.rsplit("/", 1)[1] in self.guarded:
            raise ApiError(403, "Forbidden", "a webhook lets nobody touch this node")
        raw = self.raw[path.rsplit("/", 1)[1]]
        if patch["metadata"]["resourceVersion"] != raw["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        raw["metadata"]["resourceVersion"] += "1"
        notes = raw["metadata"]["annotations"] | patch["metadata"]["annotations"]
        raw["metadata"]["annotations"] = {key: value for key, value in notes.items() if value is not None}
        raw["spec"] = {"taints": patch["spec"]["taints"]} if patch["spec"]["taints"] else {}
        self.patches += 1
        return raw

    def touch(self, name: str, taints: list[Object]) -> None:
        """Somebody writes the node's taints."""
        self.raw[name]["metadata"]["resourceVersion"] += "2"
        self.raw[name]["spec"] = {"taints": taints}

    def keys(self, name: str) -> list[str]:
        return [taint["key"] for taint in self.raw[name]["spec"].get("taints", [])]

    def notes(self, name: str) -> Object:
        found: Object = self.raw[name]["metadata"]["annotations"]
        return found


def node(name: str) -> Object:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "annotations": {"a": "b"}}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "spec": {"taints": [OTHERS]}}


def keeper(nodes: Nodes, faults: list[Fault], told: list[News], **rules: float) -> Quarantining:
    """As another operator would begin: all that it knows are the nodes and the jobs."""
    items = {name: NodeView.from_raw(raw) for name, raw in nodes.raw.items()}
    cache = Cache(pods=Items(), nodes=Items(items), namespaces=Items(), priority_classes=Items())
    found = Rules(threshold=2, share=50, **rules)  # type: ignore[arg-type]
    return Quarantining(nodes, cache, found, lambda: faults, told.append)  # type: ignore[arg-type]


def faults(*names: str) -> list[Fault]:
    now = datetime.now(timezone.utc)
    return [Fault(name, "hang", now, job, 1, f"ns/{job}", "rank 3 hangs") for name in names for job in "ab"]


async def test_taint_and_annotations_say_why_and_until_when_and_go_again() -> None:
    nodes, told = Nodes("n0", "n1"), list[News]()
    await keeper(nodes, faults("n0"), told).round()
    assert nodes.keys("n0") == [OTHERS["key"], QUARANTINE_TAINT]
    notes = nodes.notes("n0")
    assert "2 gangs failed here: hang (ns/" in notes[QUARANTINE_REASON]
    until = datetime.fromisoformat(notes[QUARANTINE_UNTIL])
    assert abs(until - datetime.now(timezone.utc) - timedelta(hours=12)) < timedelta(minutes=1)
    (news,) = told
    assert (news.about.kind, news.about.uid, news.reason, news.warning) == ("Node", "uid-n0", "Quarantined", True)

    second = keeper(nodes, faults("n0"), told)
    await second.round()
    assert (nodes.patches, second.held) == (1, ("n0",)), "another operator finds it as it is"

    notes[QUARANTINE_UNTIL] = "2026-02-01T00:00:00Z"
    old = faults("n0")
    await keeper(nodes, old, told).round()
    assert nodes.keys("n0") == [OTHERS["key"]]
    assert notes.keys() - nodes.notes("n0").keys() == {QUARANTINE_REASON, QUARANTINE_UNTIL}
    assert told[-1].reason == "QuarantineLifted"
    nodes.notes("n0")[QUARANTINE_LIFTED] = marks.format_time(datetime.now(timezone.utc) + timedelta(seconds=1))
    await keeper(nodes, old, told).round()
    assert nodes.patches == 2, "what was forgiven does not count again"


async def test_somebodys_own_taint_is_never_taken_away() -> None:
    nodes, told = Nodes("n0"), list[News]()
    nodes.touch("n0", [{"key": QUARANTINE_TAINT, "value": "mine", "effect": "NoSchedule"}])
    for note in ("", "when I am back", "0001-01-01T00:00:00+12:00"):
        nodes.notes("n0")[QUARANTINE_UNTIL] = note
        await keeper(nodes, faults("n0"), told).round()
    assert (nodes.patches, told) == (0, [])


async def test_a_taint_that_somebody_removes_is_a_pardon() -> None:
    nodes, told = Nodes("n0"), list[News]()
    await keeper(nodes, faults("n0"), told).round()
    nodes.touch("n0", [])
    await keeper(nodes, faults("n0"), told).round()
    assert nodes.keys("n0") == []
    assert QUARANTINE_UNTIL not in nodes.notes("n0")
    assert told[-1].note == "somebody took the taint away"


async def test_who_writes_to_the_node_meanwhile_is_let_by() -> None:
    nodes, told = Nodes("n0"), list[News]()
    one = keeper(nodes, faults("n0"), told)
    theirs = {"key": "example.com/new", "effect": "NoExecute"}
    nodes.before_patch = lambda: nodes.touch("n0", [theirs])
    await one.round()
    assert (nodes.keys("n0"), told) == (["example.com/new"], [])
    nodes.before_patch = lambda: None
    await one.round()
    assert nodes.keys("n0") == ["example.com/new", QUARANTINE_TAINT]


async def test_faults_of_deleted_jobs_are_remembered_and_a_node_that_is_gone_is_no_trouble() -> None:
    nodes, told, known = Nodes("n0", "n1"), list[News](), faults("n0")[:1]
    one = keeper(nodes, known, told)
    await one.round()
    known[:] = faults("n0")[1:]
    del nodes.raw["n1"]
    await one.round()
    assert QUARANTINE_TAINT in nodes.keys("n0")
    assert one.faults_by_cause() == {"hang": 2}


async def test_a_node_that_nobody_may_change_keeps_no_other_in_service_or_in_quarantine() -> None:
    nodes, told = Nodes("n0", "n1", "n2"), list[News]()
    await keeper(nodes, faults("n2"), told).round()
    nodes.notes("n2")[QUARANTINE_UNTIL] = "2026-02-01T00:00:00Z"
    nodes.guarded.add("n0")  # it comes first, and the share of three nodes is one
    one = keeper(nodes, faults("n0", "n1"), told)
    await one.round()
    assert QUARANTINE_TAINT not in nodes.keys("n0")
    assert QUARANTINE_TAINT in nodes.keys("n1"), "the node after it fails as often, and takes no new pods"
    assert QUARANTINE_TAINT not in nodes.keys("n2"), "its time is over"
    nodes.guarded.clear()
    await keeper(nodes, faults("n0"), told).round()
    assert QUARANTINE_TAINT not in nodes.keys("n0"), "another of its kind is out by now"
    assert [news.reason for news in told] == ["Quarantined", "Quarantined", "QuarantineLifted"]
