"""The chart as an administrator uses it: install, upgrade, and what the operator's pod is allowed to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hack.cluster.progress import Progress
from hack.demo import install
from hack.demo.kube import Json, holds

if TYPE_CHECKING:
    from conftest import World


def operator_pods(world: World) -> list[Json]:
    found = world.kube.items(f"/api/v1/namespaces/{install.SYSTEM}/pods")
    return [pod for pod in found if pod["metadata"]["labels"].get("app.kubernetes.io/name") == "muster"]


def test_the_operator_runs_as_nobody_on_a_read_only_root(world: World) -> None:
    pods = operator_pods(world)
    assert pods
    for pod in pods:
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in pod["spec"]["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]
            assert {"livenessProbe", "readinessProbe"} <= set(container)


def test_the_operator_may_not_read_secrets(world: World) -> None:
    account = operator_pods(world)[0]["spec"]["serviceAccountName"]
    user = f"system:serviceaccount:{install.SYSTEM}:{account}"
    for verb in ("get", "list", "watch"):
        assert not _may(world, user, verb, "secrets"), f"the operator may {verb} Secrets"


def _may(world: World, user: str, verb: str, resource: str) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user,
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {"verb": verb, "resource": resource},
        },
    }
    answer = json.loads(world.kube.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
    return bool(answer["status"]["allowed"])


def test_an_upgrade_goes_through_while_a_job_trains(world: World) -> None:
    job = world.plain("over-the-upgrade", "python3", "-c", "import time; time.sleep(12)")
    world.apply(job)
    world.until("over-the-upgrade", "runs", lambda job: holds(job, "Running"))
    before = {pod["metadata"]["uid"] for pod in world.pods("over-the-upgrade")}
    install.operator(world.kube, world.built, Progress(), (*world.VALUES, "podAnnotations.upgraded=yes"))
    history = json.loads(world.kube.helm("history", install.RELEASE, "-n", install.SYSTEM, "-o", "json"))
    assert history[-1]["status"] == "deployed"
    assert history[-1]["revision"] > 1
    after = {pod["metadata"]["uid"] for pod in world.pods("over-the-upgrade")}
    assert after <= before, world.kube.describe(world.namespace, "over-the-upgrade")
    world.until_succeeded("over-the-upgrade")
