"""The operator does all its work with no more than the rights that the chart gives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import CHART, ControlPlane
from .gangs import Corner, corner

pytestmark = pytest.mark.cluster

NAMESPACE = "muster-rights"
NEEDED = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "PriorityClass"}
SOON = 60.0


@pytest.fixture
def account(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig that holds the operator's service account and nothing else."""
    control_plane.kubectl("create", "namespace", NAMESPACE)
    rendered = control_plane.helm("template", "rights", str(CHART), "-n", NAMESPACE).stdout
    objects = [item for item in yaml.safe_load_all(rendered) if item and item["kind"] in NEEDED]
    for item in objects:
        control_plane.apply(item)
    name = next(item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount")
    token = control_plane.kubectl("create", "token", name, "-n", NAMESPACE, "--duration=1h").stdout.strip()
    config: dict[str, Any] = yaml.safe_load(control_plane.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    yield path
    for item in objects:
        where = ["-n", NAMESPACE] if "namespace" in item["metadata"] else []
        control_plane.kubectl("delete", item["kind"], item["metadata"]["name"], *where, "--wait=false")
    control_plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def operator(account: Path, tmp_path: Path) -> Iterator[Path]:
    """The operator as a process of its own; gives its log."""
    log = tmp_path / "operator.log"
    settings = {
        "NAMESPACE": NAMESPACE,
        "RUNTIME_IMAGE": "example/runtime:1",
        "TOKEN_KEY": "only for tests, never elsewhere!",
        "THROUGH_PROXY": "false",
        "HTTP_PORT": "0",
    }
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment = {**kept, **{f"MUSTER_OPERATOR_{key}": value for key, value in settings.items()}}
    command = [str(Path(sys.executable).with_name("muster")), "operator", "--kubeconfig", str(account)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        yield found


def said(log: Path) -> str:
    return f"--- the operator's log\n{log.read_text()}"


def refusals(log: Path) -> list[str]:
    """What the API server did not let the operator do; a namespace of an earlier test that is going takes nothing."""
    lines = [line for line in log.read_text().splitlines() if "is being terminated" not in line]
    return [line for line in lines if "forbidden" in line.lower() or " 403" in line]


async def test_a_job_lives_from_apply_to_its_deletion(
    place: Corner, operator: Path, control_plane: ControlPlane
) -> None:
    await place.add_nodes(1)
    await place.submit("rights", 2, ttlAfterFinished="1s")

    async def whole() -> bool:
        pods = await place.pods("rights")
        return len(pods) == 2 and all(pod["status"].get("phase") == "Running" for pod in pods)

    try:
        await place.until("two pods that run", whole, SOON)
        await place.until("an Event", lambda: events(place), SOON)
        for pod in await place.pods("rights"):
            await place.nodes.finish(pod)
        await place.until("the job is deleted after its time to live", lambda: gone(place), SOON)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{said(operator)}") from error
    assert refusals(operator) == []
    assert control_plane.get("lease", "muster-operator", "-n", NAMESPACE)["spec"]["holderIdentity"]


async def events(place: Corner) -> bool:
    told = (await place.api.get(f"/api/v1/namespaces/{place.namespace}/events"))["items"]
    ours = [item for item in told if item["involvedObject"]["kind"] == "TrainingJob"]
    assert all(item["lastTimestamp"] for item in ours), "kubectl describe puts them in order by that"
    return bool(ours)


async def gone(place: Corner) -> bool:
    return not (await place.api.get(place.jobs()))["items"]
