"""The command line against a real API server: what it shows, and the sentences with which it fails."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import ControlPlane

pytestmark = pytest.mark.cluster


def muster(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MUSTER_", "KUBECONFIG"))}
    command = [sys.executable, "-c", "from muster.cli.app import main; main()", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**kept, "COLUMNS": "200", **environment}
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on stderr."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_jobs_and_queues_are_listed(control_plane: ControlPlane, namespace: str, job: dict[str, Any]) -> None:
    queue = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingQueue", "metadata": {"name": namespace}}
    quota = {"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": "64"}]}
    control_plane.apply({**queue, "spec": {"cohort": "all", "quotas": [quota]}})
    try:
        control_plane.apply({**job, "spec": {**job["spec"], "queue": namespace}})
        waits = {"phase": "Queued", "queue": {"position": 1, "reason": "QuotaExceeded", "message": "8 GPUs missing"}}
        control_plane.set_status(namespace, "tiny", waits)
        config = ("--kubeconfig", str(control_plane.kubeconfig))
        jobs = muster("jobs", "-n", namespace, *config)
        assert jobs.returncode == 0, jobs.stderr
        assert "tiny" in jobs.stdout
        assert "QuotaExceeded: 8 GPUs missing" in jobs.stdout
        assert "tiny" in muster("jobs", "-A", *config).stdout
        assert "give either" in refused(muster("jobs", "-A", "-n", namespace, *config))
        row = next(line for line in muster("queues", *config).stdout.splitlines() if line.startswith(namespace))
        assert "cohort all" in row
        assert "H100 on-demand: 0 of 64 nvidia.com/gpu" in row
        assert "tiny" in muster("jobs", "-q", namespace, *config).stdout
        for command, policy in ((("hold",), "hold"), (("hold", "--drain"), "holdAndDrain"), (("release",), "none")):
            done = muster(*command, namespace, *config)
            assert done.returncode == 0, done.stderr
            assert control_plane.get("trainingqueue", namespace)["spec"]["stopPolicy"] == policy
        said = refused(muster("jobs", "-q", f"{namespace}-x", *config))
        assert f"no TrainingQueue '{namespace}-x'; did you mean '{namespace}'? There are: " in said
        control_plane.kubectl("delete", "trainingqueue", namespace)
        gone = muster("jobs", "-q", namespace, *config)
        assert "tiny" in gone.stdout, "what is left of a queue can be found"
        assert f"there is no TrainingQueue '{namespace}'" in gone.stderr
        control_plane.apply({**queue, "spec": {"cohort": "all", "quotas": [quota]}})
    finally:
        control_plane.kubectl("delete", "trainingqueue", namespace)


def test_status_shows_the_job_and_watch_ends_with_it(
    control_plane: ControlPlane, namespace: str, job: dict[str, Any]
) -> None:
    control_plane.apply(job)
    config = ("--kubeconfig", str(control_plane.kubeconfig), "-n", namespace)
    shown = muster("status", "tiny", *config)
    assert shown.returncode == 0, shown.stderr
    assert "does the operator run?" in shown.stdout
    control_plane.set_status(
        namespace, "tiny", {"phase": "Failed", "failure": {"message": "rank 0: boom", "cause": "user"}}
    )
    watched = muster("status", "tiny", "--watch", *config)
    assert watched.returncode == 1, watched.stderr
    assert f"{namespace}/tiny, Failed" in watched.stdout
    explained = muster("explain", "tiny", *config)
    assert explained.returncode == 1, explained.stderr
    assert f"{namespace}/tiny: Failed" in explained.stdout
    assert "rank 0: boom" in explained.stdout


def test_a_lease_that_nobody_holds_is_told_to_whoever_may_read_it(
    control_plane: ControlPlane, namespace: str, job: dict[str, Any]
) -> None:
    """In a namespace of its own: as of an operator that is not where the docs have it."""
    control_plane.apply(job)
    config = ("--kubeconfig", str(control_plane.kubeconfig), "-n", namespace)
    control_plane.set_status(namespace, "tiny", {"phase": "Running"})
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "muster-operator", "namespace": namespace},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.000000Z"},
    }
    # Those of operators that other tests have killed are newer, and the newest counts.
    for each in control_plane.get("lease", "-A")["items"]:
        if each["metadata"]["name"] == "muster-operator":
            control_plane.kubectl("delete", "lease", "muster-operator", "-n", each["metadata"]["namespace"])
    control_plane.apply(lease)
    try:
        told = "no operator leads since 2026-01-02 03:04:05 UTC"
        shown = muster("status", "tiny", *config)
        assert told in shown.stdout, shown.stderr
        assert f"kubectl get lease muster-operator -n {namespace}" in shown.stdout
        assert told in muster("explain", "tiny", *config).stdout
        assert told in muster("jobs", *config).stderr
        for command in ("suspend", "resume"):
            asked = muster(command, "tiny", *config)
            assert asked.returncode == 0, asked.stderr
            assert f"{told}: this is done once one does; look by  kubectl get pods" in asked.stderr
    finally:
        control_plane.kubectl("delete", "lease", "muster-operator", "-n", namespace)


def test_the_namespace_of_the_kubeconfig_counts(
    control_plane: ControlPlane, namespace: str, job: dict[str, Any], tmp_path: Path
) -> None:
    control_plane.apply(job)
    document = yaml.safe_load(control_plane.kubeconfig.read_text())
    document["contexts"][0]["context"]["namespace"] = namespace
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    shown = muster("status", "tiny", KUBECONFIG=str(path))
    assert f"{namespace}/tiny" in shown.stdout


def test_a_job_that_does_not_exist_is_answered_with_those_that_do(
    control_plane: ControlPlane, namespace: str, job: dict[str, Any]
) -> None:
    control_plane.apply(job)
    said = refused(muster("status", "tinny", "-n", namespace, "--kubeconfig", str(control_plane.kubeconfig)))
    assert said == f"muster: no TrainingJob 'tinny' in namespace '{namespace}'; did you mean 'tiny'? There are: tiny"


def test_a_namespace_that_does_not_exist_is_told(control_plane: ControlPlane, namespace: str) -> None:
    config = ("--kubeconfig", str(control_plane.kubeconfig))
    for command in (("jobs",), ("status", "tiny")):
        said = refused(muster(*command, "-n", f"{namespace}x", *config))
        assert said.startswith(f"muster: there is no namespace '{namespace}x'; did you mean '{namespace}'? There are: ")


def test_a_wrong_token_a_dead_address_and_a_missing_kubeconfig_are_sentences(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    document = yaml.safe_load(control_plane.kubeconfig.read_text())
    path = tmp_path / "kubeconfig"
    document["users"][0]["user"] = {"token": "wrong"}
    path.write_text(yaml.safe_dump(document))
    assert "Unauthorized" in refused(muster("jobs", "--kubeconfig", str(path)))

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{held.getsockname()[1]}"
        path.write_text(yaml.safe_dump(document))
        assert "cannot be reached" in refused(muster("jobs", "--kubeconfig", str(path)))

    assert "there is no kubeconfig" in refused(muster("jobs", "--kubeconfig", str(tmp_path / "none")))
    assert "no cluster to talk to" in refused(muster("jobs", HOME=str(tmp_path)))


def test_an_operator_that_cannot_start_says_why(control_plane: ControlPlane) -> None:
    config = ("--kubeconfig", str(control_plane.kubeconfig))
    assert "no runtime image" in refused(muster("operator", *config))
    said = refused(muster("operator", *config, "--runtime-image", "x", MUSTER_OPERATOR_TOKEN_KEY="short"))
    assert "MUSTER_OPERATOR_TOKEN_KEY" in said
    with socket.socket() as held:
        held.bind(("0.0.0.0", 0))
        held.listen()
        port = str(held.getsockname()[1])
        done = muster("operator", *config, "--runtime-image", "x", "--http-port", port)
    assert done.returncode == 2
    assert "--http-port" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_crds_that_it_prints_are_those_of_the_repository(control_plane: ControlPlane) -> None:
    done = muster("crds")
    assert done.returncode == 0
    control_plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=done.stdout)
    names = {document["metadata"]["name"] for document in yaml.safe_load_all(done.stdout)}
    assert names == {"trainingjobs.muster.dev", "trainingqueues.muster.dev", "topologies.muster.dev"}
