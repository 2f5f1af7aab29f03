"""The operator with the rights that the chart gives it, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.scheduling import GROUP

from .conftest import CHART, ControlPlane
from .gangs import Corner, corner
from .operators import operator

pytestmark = pytest.mark.cluster

NAMESPACE = "muster-system"
RIGHTS = frozenset({"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"})


@pytest.fixture
def service_account(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig with a token of the chart's service account."""
    rendered = control_plane.helm("template", "muster", str(CHART), "--namespace", NAMESPACE).stdout
    documents: list[dict[str, Any]] = [one for one in yaml.safe_load_all(rendered) if one and one["kind"] in RIGHTS]
    account = next(one["metadata"]["name"] for one in documents if one["kind"] == "ServiceAccount")
    control_plane.kubectl("create", "namespace", NAMESPACE, check=False)
    text = yaml.safe_dump_all(documents)
    control_plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=text)
    token = control_plane.kubectl("create", "token", account, "-n", NAMESPACE).stdout.strip()
    kubeconfig = yaml.safe_load(control_plane.kubeconfig.read_text())
    for user in kubeconfig["users"]:
        user["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    yield path
    control_plane.kubectl("delete", "-n", NAMESPACE, "-f", "-", stdin=text)


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        await found.add_nodes(2)
        yield found


async def no_jobs(place: Corner) -> bool:
    return not (await place.api.get(f"{GROUP}/trainingjobs"))["items"]


async def test_the_charts_rights_are_enough_for_a_jobs_whole_life(
    service_account: Path, place: Corner, tmp_path: Path
) -> None:
    # What other tests left in namespaces that are going would be refused for that, not for want of rights.
    await place.until("the going of other tests' jobs", lambda: no_jobs(place))
    async with operator(service_account, tmp_path, "restricted", namespace=NAMESPACE, through_proxy=False) as running:
        await running.until_told("planning begins")
        document = place.document("job", 2, ttlAfterFinished="1s")
        await place.api.create(place.jobs(), document)

        async def all_run() -> bool:
            pods = await place.pods("job")
            return len(pods) == 2 and all(pod["status"].get("phase") == "Running" for pod in pods)

        await place.until("running pods", all_run)
        for pod in await place.pods("job"):
            await place.nodes.finish(pod)

        async def gone() -> bool:
            return not (await place.api.get(place.jobs()))["items"]

        await place.until("the job's going after its ttl", gone)

        async def told() -> bool:
            events = await place.api.get(f"/apis/events.k8s.io/v1/namespaces/{place.namespace}/events")
            return any(event.get("reportingController") == "muster.dev/operator" for event in events["items"])

        await place.until("events of the job", told)
        assert 'code="403"' not in (await running.probe("/metrics"))[1]
        assert "Forbidden" not in running.told()
        assert "forbidden" not in running.told()
