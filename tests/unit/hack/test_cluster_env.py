"""What `python -m hack.cluster env` prints, as a shell takes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hack.cluster import api, processes, state
from hack.cluster.__main__ import exports
from hack.cluster.errors import ClusterError
from hack.cluster.plan import Options
from hack.cluster.progress import Progress

pytestmark = pytest.mark.unit


def program(path: Path, says: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {says}\n")
    path.chmod(0o755)


def test_a_shell_finds_muster_and_the_clusters_kubectl_but_keeps_its_own_python(tmp_path: Path) -> None:
    kube, environment, own = tmp_path / "the cluster's", tmp_path / "venv", tmp_path / "own"
    for path, says in (
        (kube / "kubectl", "the cluster's kubectl"),
        (own / "kubectl", "own kubectl"),
        (environment / "muster", "muster"),
        (environment / "python3", "the environment's python"),
        (own / "python3", "own python"),
    ):
        program(path, f'"{says}"')
    lines = "\n".join(exports({"KUBECONFIG": "/a b/c"}, [kube], environment))
    script = f'{lines}\nmuster; kubectl; python3; echo "$KUBECONFIG"'
    done = subprocess.run(
        ["/bin/bash", "-c", script], capture_output=True, text=True, check=True, env={"PATH": f"{own}:/usr/bin:/bin"}
    )
    assert done.stdout.splitlines() == ["muster", "the cluster's kubectl", "own python", "/a b/c"]


def test_a_cluster_with_other_options_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(state, "_claim_slot", lambda _: 0)
    monkeypatch.setattr(processes, "find", lambda *_: "it runs")
    for name, down in (("muster", "`make cluster-down`"), ("mine", "hack.cluster down --name mine`")):
        state.save(state.create(Options(name=name)), phase="ready")
        with pytest.raises(ClusterError) as told:
            api._reuse(Options(name=name, nodes=3, audit_log=True), Progress(quiet=True))
        assert "--nodes 2 and not --nodes 3, --audit-log off and not --audit-log on: take it down" in str(told.value)
        assert down in str(told.value)
