"""Made-up GPUs: who holds which, and what an exporter would say of them."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
from hack.monitoring import gpus
from hack.monitoring.pages import Pages

pytestmark = pytest.mark.unit

NODES = [{"metadata": {"name": "node-0"}, "status": {"capacity": {"nvidia.com/gpu": "4"}}}]


def pod(name: str, wanted: int, created: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    container = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": str(wanted)}}}
    return {
        "metadata": {"namespace": "ns", "name": name, "creationTimestamp": created},
        "spec": {"nodeName": "node-0", "containers": [container]},
    }


def test_a_pod_keeps_its_gpus_and_the_next_gets_others() -> None:
    first = gpus.held(NODES, [pod("a", 1), pod("b", 2, "2026-01-01T00:01:00Z")], {})
    assert {number: holder[1] for (_, number), holder in first.items()} == {0: "a", 1: "b", 2: "b"}
    after = gpus.held(NODES, [pod("b", 2), pod("c", 2, "2026-01-01T00:02:00Z")], first)
    assert {number: holder[1] for (_, number), holder in after.items()} == {1: "b", 2: "b", 0: "c", 3: "c"}


def test_free_gpus_have_no_pod_and_do_nothing() -> None:
    holder = ("ns", "a", "trainer")
    page = gpus.text([gpus.Gpu("node-0", 0, "H100", holder, 0.5, 1024), gpus.Gpu("node-0", 1, "H100")])
    (busy, free) = [line for line in page.splitlines() if line.startswith("DCGM_FI_DEV_GPU_UTIL{")]
    assert 'pod="a"' in busy
    assert busy.endswith(" 50")
    assert "pod=" not in free
    assert free.endswith(" 0")


def test_pages_are_served_by_their_path() -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with (
        Pages({"/dcgm": lambda: "some 1\n"}) as pages,
        direct.open(f"http://{pages.address}/dcgm", timeout=10) as answer,
    ):
        assert answer.read() == b"some 1\n"
