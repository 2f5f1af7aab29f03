"""`make install` on a cluster that is up already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hack import images
from hack.cluster import api, build, state
from hack.cluster.errors import ClusterError
from hack.cluster.plan import Options
from hack.demo import bring_up, install
from hack.demo.__main__ import _next_steps

pytestmark = pytest.mark.unit


class Recorder:
    """An API server that takes everything, and remembers what it was given."""

    def __init__(self, *_: object) -> None:
        pass

    given: tuple[str, ...] = ()

    def create(self, path: str, document: dict[str, Any]) -> None:
        Recorder.given += (f"{path}/{document['metadata']['name']}",)

    apply = create


def test_the_s3_server_gets_its_name_back_with_the_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Service stands in the operator's namespace: who has taken Muster away by hand has deleted it, too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(state, "_claim_slot", lambda _: 0)
    state.save(state.create(Options(name="mine")), phase="ready")
    monkeypatch.setattr(build, "program", lambda _: tmp_path)
    monkeypatch.setattr(images, "build_all", lambda *_: {})
    monkeypatch.setattr(bring_up, "Kube", lambda cluster: cluster)
    for name in ("operator", "bucket", "namespace"):
        monkeypatch.setattr(install, name, lambda *_: None)
    monkeypatch.setattr(api, "ApiClient", Recorder)
    monkeypatch.setattr(Recorder, "given", ())

    bring_up.bring_up("mine")

    assert Recorder.given == (
        "/api/v1/namespaces/muster-system",
        "/api/v1/namespaces/muster-system/services/s3",
        "/apis/discovery.k8s.io/v1/namespaces/muster-system/endpointslices/s3-hub",
    )


def test_a_cluster_is_started_as_large_as_somebody_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "program", lambda _: tmp_path)
    asked: list[Options] = []

    def up(options: Options, progress: object) -> None:
        asked.append(options)
        raise ClusterError("none is started here")

    monkeypatch.setattr(api, "up", up)
    sizes: tuple[dict[str, int], ...] = ({}, {"nodes": 3, "kwok_nodes": 5})
    for wanted in sizes:
        with pytest.raises(ClusterError, match="none is started here"):
            bring_up.bring_up("mine", **wanted)
    assert asked == [Options(name="mine"), Options(name="mine", nodes=3, kwok_nodes=5)]


def test_only_jobs_that_are_there_are_offered_to_look_at() -> None:
    after_demo, after_install = _next_steps("muster", "gpt"), _next_steps("muster", "")
    assert "muster status gpt -n research" in after_demo
    assert any(line.startswith("make demo ") and "again" in line for line in after_demo)
    assert not [line for line in after_install if "gpt" in line or "again" in line or " -n research" in line]
    assert any(line.startswith("make demo ") for line in after_install)
    assert any("-m hack.demo --name mine " in line for line in _next_steps("mine", ""))
