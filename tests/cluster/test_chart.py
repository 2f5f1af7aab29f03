"""The chart as Helm renders it, and as the API server takes it. "It should set ...", one test a promise."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.cluster import api
from tests.cluster.conftest import CHART, ROOT, ControlPlane

from muster.cli.settings import Settings

pytestmark = pytest.mark.cluster

Object = dict[str, Any]
NAMESPACE = "muster-system"
INSTALL = ROOT / "docs" / "install.md"
EVERYTHING = (
    "networkPolicy.enabled=true",
    "metrics.serviceMonitor.enabled=true",
    "defaultQueue.create=true",
    "badNodes.policy=taint",
    "commonLabels.team=platform",
    "podLabels.tier=system",
    "podAnnotations.note=yes",
    "priorityClassName=system-cluster-critical",
    "nodeSelector.pool=system",
    "tolerations[0].operator=Exists",
    "imagePullSecrets[0].name=registry",
    "extraEnv[0].name=HTTPS_PROXY",
    "extraEnv[0].value=http://proxy:3128",
    "resources.limits.memory=2Gi",
    "serviceAccount.annotations.role=a",
    "metrics.serviceMonitor.labels.release=prometheus",
    "monitoring.podMonitor.enabled=true",
    "monitoring.rules.enabled=true",
    "monitoring.dashboards.enabled=true",
)

Render = Callable[..., list[Object]]


@pytest.fixture(scope="session")
def render(control_plane: ControlPlane) -> Render:
    """Renders the chart with `--set` values and returns its objects."""

    def rendered(*values: str, release: str = "muster") -> list[Object]:
        settings = [word for value in values for word in ("--set", value)]
        done = control_plane.helm("template", release, str(CHART), "-n", NAMESPACE, *settings)
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return rendered


def one(objects: list[Object], kind: str, suffix: str = "") -> Object:
    found = [item for item in objects if item["kind"] == kind and item["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]


def container(objects: list[Object]) -> Object:
    result: Object = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return result


def environment(objects: list[Object]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container(objects)["env"]}


def test_helm_lint_has_nothing_to_say(control_plane: ControlPlane) -> None:
    said = control_plane.helm("lint", "--strict", str(CHART)).stdout
    assert "WARNING" not in said
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything on"])
def test_the_api_server_takes_every_object(
    values: tuple[str, ...], control_plane: ControlPlane, render: Render
) -> None:
    control_plane.kubectl("create", "namespace", NAMESPACE, check=False)
    for item in render(*values):
        if item["apiVersion"].startswith("monitoring.coreos.com/"):
            continue  # kinds of the Prometheus operator; this API server has no such CRDs
        control_plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=item)


def test_it_should_leave_a_dead_node_soon_unless_told_otherwise(render: Render) -> None:
    def tolerated(*values: str) -> list[tuple[str, int | None]]:
        spec = one(render(*values), "Deployment")["spec"]["template"]["spec"]
        return [(each.get("key", "any"), each.get("tolerationSeconds")) for each in spec["tolerations"]]

    not_ready, unreachable = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
    assert tolerated() == [(not_ready, 30), (unreachable, 30)]
    assert tolerated("tolerations[0].operator=Exists") == [("any", None), (not_ready, 30), (unreachable, 30)]
    own = (f"tolerations[0].key={unreachable}", "tolerations[0].operator=Exists", "tolerations[0].tolerationSeconds=60")
    assert tolerated(*own) == [(unreachable, 60), (not_ready, 30)]


def test_it_should_set_thresholds_and_runbooks_in_alerts(render: Render) -> None:
    values = ("monitoring.rules.enabled=true", "monitoring.rules.thresholds.queueWaitSeconds=7200")
    groups = one(render(*values, "monitoring.rules.runbookUrl=https://x/"), "PrometheusRule")["spec"]["groups"]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    waits = "max by (cluster, queue) (muster_queue_oldest_wait_seconds)"
    assert alerts["MusterQueueWaitLong"]["expr"].strip() == f"{waits} > 7200"
    assert alerts["MusterGPUXid"]["annotations"]["runbook_url"] == "https://x/MusterGPUXid.md"
    assert "@" not in str(groups)


def test_it_should_set_nobody_read_only_root_and_no_capabilities(render: Render) -> None:
    objects = render()
    pod = one(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_its_pods_should_pass_the_restricted_pod_security_standard(control_plane: ControlPlane, render: Render) -> None:
    name = "restricted"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    template = one(render(), "Deployment")["spec"]["template"]
    template["spec"].pop("serviceAccountName")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator", "namespace": name}}
    control_plane.kubectl(
        "apply",
        "--dry-run=server",
        "-f",
        "-",
        stdin={**pod, "spec": {**template["spec"], "serviceAccountName": "default"}},
    )


def test_it_should_set_probes_on_the_http_port(render: Render) -> None:
    operator = container(render())
    assert operator["ports"] == [{"name": "http", "containerPort": 8080}]
    assert operator["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert operator["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


def test_it_should_set_two_replicas_with_a_disruption_budget(render: Render) -> None:
    objects = render()
    assert one(objects, "Deployment")["spec"]["replicas"] == 2
    assert one(objects, "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    assert not [item for item in render("replicas=1") if item["kind"] == "PodDisruptionBudget"]


def test_it_should_set_selectors_that_its_own_pods_bear(render: Render) -> None:
    objects = render(*EVERYTHING)
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        one(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        one(objects, "Service")["spec"]["selector"],
        one(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
    assert one(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items() <= (
        one(objects, "Service")["metadata"]["labels"].items()
    )


def test_it_should_set_the_registry_once(render: Render) -> None:
    objects = render("image.registry=registry.example.com:5000", "image.tag=v1", "runtime.image.tag=v2")
    assert container(objects)["image"] == "registry.example.com:5000/muster/operator:v1"
    assert environment(objects)["MUSTER_OPERATOR_RUNTIME_IMAGE"] == "registry.example.com:5000/muster/runtime:v2"


def test_it_should_set_the_digest_in_the_place_of_the_tag(render: Render) -> None:
    digest = "sha256:" + "ab" * 32
    objects = render(f"image.digest={digest}", f"runtime.image.digest={digest}")
    assert container(objects)["image"] == f"localhost/muster/operator@{digest}"
    assert environment(objects)["MUSTER_OPERATOR_RUNTIME_IMAGE"] == f"localhost/muster/runtime@{digest}"


def test_it_should_set_the_app_version_as_tag_by_default(render: Render) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert container(render())["image"].endswith(f":{version}")


def test_it_should_set_the_token_key_from_its_secret(render: Render) -> None:
    objects = render()
    reference = environment(objects)["MUSTER_OPERATOR_TOKEN_KEY"]["secretKeyRef"]
    assert one(objects, "Secret")["metadata"]["name"] == reference["name"]
    assert reference["key"] in one(objects, "Secret")["data"]


def test_it_should_set_an_existing_token_key_and_make_none(render: Render) -> None:
    objects = render("tokenKey.existingSecret=mine")
    assert environment(objects)["MUSTER_OPERATOR_TOKEN_KEY"]["secretKeyRef"]["name"] == "mine"
    assert not [item for item in objects if item["kind"] == "Secret"]


def test_it_should_set_a_priority_class_that_never_preempts(render: Render) -> None:
    found = one(render(), "PriorityClass")
    assert (found["metadata"]["name"], found["preemptionPolicy"], found["value"]) == ("muster-gang", "Never", 0)


def test_it_should_set_no_right_to_read_secrets_or_to_write_specs(render: Render) -> None:
    rules = one(render(), "ClusterRole", "muster")["rules"]
    verbs = {resource: set(rule["verbs"]) for rule in rules for resource in rule["resources"]}
    assert verbs["secrets"] == {"create"}
    assert verbs["persistentvolumeclaims"] == verbs["persistentvolumes"] == verbs["storageclasses"] == {"get"}
    assert verbs["trainingjobs"] == {"get", "list", "watch", "delete"}
    assert verbs["trainingqueues"] == verbs["topologies"] == {"get", "list", "watch"}
    assert not verbs["pods"] & {"update", "patch", "deletecollection"}
    assert not any("*" in (*rule["verbs"], *rule["resources"], *rule["apiGroups"]) for rule in rules)


def test_it_should_set_rights_on_provisioning_requests_only_where_a_class_is_named(render: Render) -> None:
    assert "provisioningrequests" not in str(one(render(), "ClusterRole", "muster")["rules"])
    assert "MUSTER_OPERATOR_PROVISIONING_CLASS" not in environment(render())
    objects = render("provisioning.className=some.class")
    rules = one(objects, "ClusterRole", "muster")["rules"]
    verbs = {resource: set(rule["verbs"]) for rule in rules for resource in rule["resources"]}
    assert verbs["provisioningrequests"] == {"list", "create", "delete"}
    assert verbs["podtemplates"] == {"create", "delete"}
    assert environment(objects)["MUSTER_OPERATOR_PROVISIONING_CLASS"] == "some.class"


def test_it_should_set_a_right_to_patch_nodes_only_where_they_are_tainted(render: Render) -> None:
    def verbs(*values: str) -> set[str]:
        rules = one(render(*values), "ClusterRole", "muster")["rules"]
        return {verb for rule in rules if "nodes" in rule["resources"] for verb in rule["verbs"]}

    assert verbs() == verbs("badNodes.policy=ignore") == {"get", "list", "watch"}
    assert verbs("badNodes.policy=taint") == {"get", "list", "watch", "patch"}
    given = environment(render("badNodes.policy=taint", "badNodes.forgiveAfter=2h", "badNodes.maxPercent=5"))
    assert (given["MUSTER_OPERATOR_BAD_NODES"], given["MUSTER_OPERATOR_BAD_NODES_SHARE"]) == ("taint", "5")
    assert given["MUSTER_OPERATOR_BAD_NODES_FORGIVE_AFTER"] == "2h"


def test_it_should_say_how_long_a_placement_stands_before_it_moves(render: Render) -> None:
    told = [environment(render(*values))["MUSTER_OPERATOR_SETTLE_AFTER"] for values in ((), ("moves.settleAfter=20s",))]
    assert told == ["10m", "20s"]


def test_it_should_set_rights_to_review_tokens_only_where_the_api_is_served(render: Render) -> None:
    def reviews(*values: str) -> dict[str, set[str]]:
        rules = one(render(*values), "ClusterRole", "muster")["rules"]
        verbs = {resource: set(rule["verbs"]) for rule in rules for resource in rule["resources"]}
        return {resource: verbs[resource] for resource in verbs if resource.endswith("reviews")}

    assert reviews() == {"tokenreviews": {"create"}, "subjectaccessreviews": {"create"}}
    assert reviews("api.enabled=false") == {}
    assert environment(render("api.enabled=false"))["MUSTER_OPERATOR_API"] == "false"
    assert "MUSTER_OPERATOR_API_HOST" not in environment(render("api.enabled=false"))
    policy = one(render("networkPolicy.enabled=true", "networkPolicy.metricsFrom[0].podSelector={}"), "NetworkPolicy")
    peers = policy["spec"]["ingress"][0]["from"]
    assert policy["spec"]["podSelector"] in [peer.get("podSelector") for peer in peers]


def test_it_should_set_the_labels_of_the_node_groups_to_ask_for(render: Render) -> None:
    name = "MUSTER_OPERATOR_PROVISIONING_NODE_SELECTORS"
    assert name not in environment(render("provisioning.className=some.class"))
    objects = render("provisioning.className=some.class", "provisioning.nodeSelectors.H100/spot.pool=h100-spot")
    assert json.loads(environment(objects)[name]) == {"H100/spot": {"pool": "h100-spot"}}


def test_it_should_set_roles_that_aggregate(render: Render) -> None:
    objects = render()
    view, edit = one(objects, "ClusterRole", "-view"), one(objects, "ClusterRole", "-edit")
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert not [
        item
        for item in render("rbac.aggregate=false")
        if item["metadata"]["name"].endswith(("-view", "-edit", "-leader"))
    ]


def test_it_should_set_crds_that_stay_unless_told_otherwise(render: Render) -> None:
    kept = [item for item in render() if item["kind"] == "CustomResourceDefinition"]
    assert len(kept) == 3
    for item in kept:
        assert item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for item in render("crds.keep=false"):
        assert item["kind"] != "CustomResourceDefinition" or "annotations" not in item["metadata"]
    assert not [item for item in render("crds.enabled=false") if item["kind"] == "CustomResourceDefinition"]


def test_it_should_set_the_same_crds_as_the_folder(render: Render, control_plane: ControlPlane) -> None:
    for item in render():
        if item["kind"] == "CustomResourceDefinition":
            path = CHART.parents[1] / "crds" / f"{item['spec']['names']['plural']}.yaml"
            assert yaml.safe_load(path.read_text())["spec"] == item["spec"]


def test_it_should_set_labels_on_every_object(render: Render) -> None:
    for item in render(*EVERYTHING):
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "muster"
        assert labels["team"] == "platform"


def test_it_should_set_names_that_hold_two_releases_apart(render: Render) -> None:
    names = [{(item["kind"], item["metadata"]["name"]) for item in render(release=name)} for name in ("one", "two")]
    shared = {kind for kind, _ in names[0] & names[1]}
    assert shared == {"CustomResourceDefinition", "PriorityClass", "Topology"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("image.tga=1", "additional properties 'tga' not allowed"),
        ("replicas=0", "minimum: got 0, want 1"),
        ("serviceAccount.create=false", "name the service account, since serviceAccount.create is false"),
        ("history.database=sqlite", "replicas is 2: set replicas=1, or history.database=postgresql"),
        ("history.database=postgresql", "name the Secret with its URL in history.postgresql.urlSecretRef.name"),
        ("history.retention=1y", 'history.retention is "1y": write a duration with its unit, like 45s, 10m'),
        ("moves.settleAfter=10", 'moves.settleAfter is "10": write a duration with its unit'),
        ("badNodes.window=", 'badNodes.window is "": write a duration'),
        ("badNodes.forgiveAfter=12 hours", 'badNodes.forgiveAfter is "12 hours": write a duration'),
        ("image.digest=latest", 'image.digest is "latest": write sha256: and its 64 digits'),
        ("runtime.image.digest=sha256:12", 'runtime.image.digest is "sha256:12": write sha256: and its 64 digits'),
        ("resources.limits.memory=2GB", 'resources.limits.memory is "2GB": write a quantity of Kubernetes, like 500m'),
        ("resources.requests.cpu=abc", 'resources.requests.cpu is "abc": write a quantity'),
        ("topology.levels[0].name=Rack 1,topology.levels[0].label=rack", "write at most 63 small letters"),
        ("topology.levels[0].name=rack,topology.levels[0].label=a b", "write the key of a node label, like topology"),
        ("nodeHoursBetweenFailures.ondemand=5", '"ondemand" is no kind of capacity: write on-demand, reserved or spot'),
        ("provisioning.nodeSelectors.H100.pool=a", 'nodeSelectors: "H100" is no GPU type with its kind of capacity'),
        ("provisioning.nodeSelectors.H100/ondemand.pool=a", '"H100/ondemand" is no GPU type with its kind of capacity'),
        ("nodeHoursBetweenFailures.spot=0", "exclusiveMinimum: got 0, want 0"),
        ("nodeHoursBetweenFailures.spot=many", 'Failures.spot is "many": write hours above 0, like 24 or 10.5'),
        ("monitoring.rules.thresholds.planSeconds=0.0", 'thresholds.planSeconds is "0.0": write seconds above 0'),
        ("commonLabels.app\\.kubernetes\\.io/part-of=ml", "commonLabels: app.kubernetes.io/part-of is the chart's own"),
        ("podLabels.app\\.kubernetes\\.io/name=x", "podLabels: app.kubernetes.io/name is the chart's own"),
        ("commonLabels.team=a,podLabels.team=b", "podLabels: team stands in commonLabels, too"),
        ("image.registry=https://registry.example.com", "write a registry without the scheme, like registry.example"),
        ("prices.H100=3", '"H100" is no GPU type with its kind of capacity: write it like H100/on-demand'),
        ("prices.H100.on-demand=3", '"H100" is no GPU type with its kind of capacity'),
        ("prices.H100/ondemand=3", '"H100/ondemand" is no GPU type with its kind of capacity'),
        ("prices.H100/spot=cheap", 'prices: H100/spot is "cheap": write what one GPU costs an hour, as a number'),
        ("prices.H100/spot=-1", 'prices: H100/spot is "-1": write what one GPU costs an hour, as a number like 2.5'),
        ("cost.currency=eur", 'cost.currency is "eur", which is no currency: write its code of ISO'),
        ("cost.currency=ABC", 'cost.currency is "ABC", which is no currency: write its code of ISO 4217'),
        ("cost.currency=EUR\\, USD", 'cost.currency is "EUR, USD", which is no currency'),
        ("monitoring.rules.thresholds.budget=1.5", 'thresholds.budget is "1.5": write a ratio from 0 to 1, like 0.5'),
        ("monitoring.rules.thresholds.idle=few", 'thresholds.idle is "few": write a ratio from 0 to 1'),
        ("monitoring.rules.thresholds.costSpike=0.0", 'thresholds.costSpike is "0.0": write a factor above 0'),
        ("cost.region=mars", 'no public list price is for "mars", but for aws/us-east-1, azure/eastus'),
    ],
)
def test_a_wrong_value_is_refused(value: str, words: str, control_plane: ControlPlane) -> None:
    done = control_plane.helm("template", "muster", str(CHART), "--set", value, check=False)
    assert done.returncode != 0
    assert words in done.stderr


def test_it_may_be_part_of_another_chart(control_plane: ControlPlane, tmp_path: Path) -> None:
    """To which Helm adds what is for all of its parts, under `global`."""
    shutil.copytree(CHART, tmp_path / "charts" / "muster")
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: platform, version: 0.1.0}\n")
    (tmp_path / "values.yaml").write_text("{global: {region: eu}, muster: {replicas: 3}}\n")
    done = control_plane.helm("template", "platform", str(tmp_path), "-n", NAMESPACE)
    deployment = one([document for document in yaml.safe_load_all(done.stdout) if document], "Deployment")
    assert deployment["metadata"]["name"] == "platform-muster"
    assert deployment["spec"]["replicas"] == 3


def test_a_release_whose_name_looks_like_a_number(render: Render) -> None:
    labels = one(render(release="1e3"), "Deployment")["metadata"]["labels"]
    assert labels["app.kubernetes.io/instance"] == "1e3"


def test_a_price_may_stand_on_the_command_line(render: Render) -> None:
    given = environment(render("prices.H100/on-demand=2.5", "prices.H100/spot=1"))["MUSTER_OPERATOR_PRICES"]
    assert Settings(prices=json.loads(given)).prices == {"H100/on-demand": 2.5, "H100/spot": 1.0}


def test_hours_between_failures_may_stand_on_the_command_line(render: Render) -> None:
    given = environment(render("nodeHoursBetweenFailures.spot=10.5", "nodeHoursBetweenFailures.on-demand=5000"))
    assert Settings(node_hours=json.loads(given["MUSTER_OPERATOR_NODE_HOURS"])).node_hours == {
        "spot": 10.5,
        "on-demand": 5000.0,
    }


def test_a_threshold_may_stand_on_the_command_line(render: Render) -> None:
    given = ("utilization=0.25", "idle=0", "failureRate=0.125", "budget=1", "costSpike=2.5", "planSeconds=0.75")
    rules = render("monitoring.rules.enabled=true", *(f"monitoring.rules.thresholds.{value}" for value in given))
    alerts = json.dumps(one(rules, "PrometheusRule"))
    for told in (" 0.25", " 0.125", " 2.5", "0.75 or max"):
        assert told in alerts


def test_prices_in_any_region_are_taken_where_the_public_list_is_not_counted_at(render: Render) -> None:
    for values in (
        ("cost.region=oci",),
        ("cost.region=mars", "cost.listPrices=false"),
        ("cost.region=mars", "cost.currency=EUR", "prices.H100/on-demand=2.5"),
        ("cost.region=mars", "prices.H100/on-demand=2"),
        ("cost.region=mars", "cost.catalogue.gpus[0].region=mars"),
    ):
        assert environment(render(*values))["MUSTER_OPERATOR_PRICE_REGION"] == values[0].partition("=")[2]


def test_a_history_in_sqlite_has_a_volume_and_one_pod_at_a_time(render: Render) -> None:
    objects = render("history.database=sqlite", "replicas=1", "history.sqlite.storageClassName=fast")
    claim, deployment = one(objects, "PersistentVolumeClaim"), one(objects, "Deployment")
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    volumes = {item["name"]: item for item in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes["history"]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    (mount,) = [item for item in container(objects)["volumeMounts"] if item["name"] == "history"]
    assert environment(objects)["MUSTER_OPERATOR_HISTORY_URL"] == f"sqlite:///{mount['mountPath']}/history.db"
    assert environment(objects)["MUSTER_OPERATOR_HISTORY_RETENTION"] == "400d"


def test_a_history_in_a_volume_that_is_there(render: Render) -> None:
    objects = render("history.database=sqlite", "replicas=1", "history.sqlite.existingClaim=mine")
    assert not [item for item in objects if item["kind"] == "PersistentVolumeClaim"]


def test_a_history_in_postgresql(render: Render) -> None:
    objects = render("history.database=postgresql", "history.postgresql.urlSecretRef.name=db", "history.retention=90d")
    file = Path(environment(objects)["MUSTER_OPERATOR_HISTORY_URL_FILE"])
    (mount,) = [item for item in container(objects)["volumeMounts"] if item["name"] == "history"]
    assert (mount["mountPath"], mount["readOnly"]) == (str(file.parent), True)
    volumes = {item["name"]: item for item in one(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]}
    secret = volumes["history"]["secret"]
    assert (secret["secretName"], secret["items"]) == ("db", [{"key": "url", "path": file.name}])
    assert environment(objects)["MUSTER_OPERATOR_HISTORY_RETENTION"] == "90d"
    assert one(objects, "Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"


def test_no_history_unless_asked_for(render: Render) -> None:
    objects = render()
    assert "MUSTER_OPERATOR_HISTORY_URL" not in environment(objects)
    assert not [item for item in objects if item["kind"] == "PersistentVolumeClaim"]


@pytest.fixture(scope="module")
def installed_rights(control_plane: ControlPlane, render: Render) -> None:
    """The chart's roles and bindings, in force."""
    control_plane.kubectl("create", "namespace", NAMESPACE, check=False)
    for item in render():
        if item["apiVersion"].startswith("rbac.") or item["kind"] == "ServiceAccount":
            control_plane.apply(item)
    binding = ("create", "rolebinding", "-n", NAMESPACE, "--clusterrole")
    for role in ("view", "edit"):
        control_plane.kubectl(*binding, role, f"{role}er", f"--user={role}er", check=False)
    may = ("auth", "can-i", "create", "trainingjobs.muster.dev", "-n", NAMESPACE, "--as=editer")
    deadline = time.monotonic() + 30
    while control_plane.kubectl(*may, check=False).returncode:  # the controller manager aggregates the roles
        assert time.monotonic() < deadline, "the edit role never got the right to make TrainingJobs"
        time.sleep(0.2)


OPERATOR = f"system:serviceaccount:{NAMESPACE}:muster"
RIGHTS = [
    (OPERATOR, "watch", "trainingjobs.muster.dev", "default", True),
    (OPERATOR, "update", "trainingjobs.muster.dev/status", "default", True),
    (OPERATOR, "update", "trainingjobs.muster.dev", "default", False),
    (OPERATOR, "create", "trainingjobs.muster.dev", "default", False),
    (OPERATOR, "create", "pods", "default", True),
    (OPERATOR, "create", "pods/exec", "default", False),
    (OPERATOR, "create", "pods/eviction", "default", False),
    (OPERATOR, "create", "secrets", "default", True),
    (OPERATOR, "get", "secrets", "default", False),
    (OPERATOR, "get", "secrets", NAMESPACE, False),
    (OPERATOR, "update", "nodes", "", False),
    (OPERATOR, "update", "leases.coordination.k8s.io/muster-operator", NAMESPACE, True),
    ("anybody", "get", "leases.coordination.k8s.io/muster-operator", NAMESPACE, True),
    ("anybody", "update", "leases.coordination.k8s.io/muster-operator", NAMESPACE, False),
    ("anybody", "get", "leases.coordination.k8s.io/another", NAMESPACE, False),
    (OPERATOR, "update", "leases.coordination.k8s.io/other", NAMESPACE, False),
    (OPERATOR, "create", "leases.coordination.k8s.io", "default", False),
    ("viewer", "get", "trainingjobs.muster.dev", NAMESPACE, True),
    ("viewer", "create", "trainingjobs.muster.dev", NAMESPACE, False),
    ("editer", "delete", "trainingjobs.muster.dev", NAMESPACE, True),
    ("editer", "patch", "trainingjobs.muster.dev/status", NAMESPACE, False),
    ("editer", "create", "trainingqueues.muster.dev", "", False),
]


@pytest.mark.parametrize(("user", "verb", "resource", "namespace", "allowed"), RIGHTS)
def test_it_should_set_these_rights(
    user: str,
    verb: str,
    resource: str,
    namespace: str,
    allowed: bool,
    control_plane: ControlPlane,
    installed_rights: None,
) -> None:
    where = ["-n", namespace] if namespace else []
    kind, slash, rest = resource.partition("/")
    target = [resource] if not slash or kind.startswith("leases") else [kind, f"--subresource={rest}"]
    done = control_plane.kubectl("auth", "can-i", verb, *target, f"--as={user}", *where, check=False)
    assert done.stdout.strip() == ("yes" if allowed else "no")


DEFAULT_QUEUE = {"weight": 1, "order": "shortestExpected", "stopPolicy": "none"}
"""What an API server makes of a queue that says nothing."""


def bare(name: str) -> api.Options:
    return api.Options(name=name, nodes=0, control_plane_only=True)


def _type(plane: ControlPlane, commands: str, folder: Path) -> None:
    """What docs/install.md says for the move of a release, with the namespace `elsewhere`."""
    assert commands.count("helm ") == 3
    typed = commands.replace("charts/muster", str(CHART)).replace(" other", " elsewhere")
    programs = ":".join(str(program.parent) for program in (plane.cluster.helm, plane.cluster.kubectl))
    environment = {**plane.environment, "PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-ec", typed], env=environment, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{typed}\n{done.stderr}"


def test_install_upgrade_and_uninstall(control_plane: ControlPlane, tmp_path: Path) -> None:
    """On an API server that has never seen our kinds: the first install makes them and an object of one of them."""
    plane = ControlPlane(api.up(bare("test-chart")))
    try:
        created = ("--set", "defaultQueue.create=true")
        plane.helm("install", "muster", str(CHART), "-n", NAMESPACE, "--create-namespace", *created)
        key = plane.get("secret", "muster-token-key", "-n", NAMESPACE)["data"]["token-key"]
        levels = [level["name"] for level in plane.get("topology", "default")["spec"]["levels"]]
        assert levels == ["zone", "block", "rack", "host"]

        other = '[{"name": "rack", "label": "example.com/rack"}]'
        levelled = (*created, "--set-json", f"topology.levels={other}")
        plane.helm("upgrade", "muster", str(CHART), "-n", NAMESPACE, *levelled)
        assert plane.get("topology", "default")["spec"]["levels"] == json.loads(other)
        assert plane.get("secret", "muster-token-key", "-n", NAMESPACE)["data"]["token-key"] == key

        plane.kubectl("patch", "trainingqueue", "default", "--type=merge", "-p", '{"spec": {"stopPolicy": "hold"}}')
        held = plane.get("trainingqueue", "default")
        # There the Topology and the queue are hooks, not parts of the release.
        plane.helm("rollback", "muster", "1", "-n", NAMESPACE)
        queue = plane.get("trainingqueue", "default")
        assert (queue["metadata"]["uid"], queue["spec"]) == (
            held["metadata"]["uid"],
            DEFAULT_QUEUE | {"stopPolicy": "hold"},
        )
        plane.kubectl("patch", "trainingqueue", "default", "--type=merge", "-p", '{"spec": {"stopPolicy": "none"}}')
        assert [level["name"] for level in plane.get("topology", "default")["spec"]["levels"]] == levels

        # With another name the token key and the volume of the history would stay behind.
        renamed = ("upgrade", "muster", str(CHART), "-n", NAMESPACE, "--set", "fullnameOverride=train")
        assert "keep the key by tokenKey.existingSecret=muster-token-key" in plane.helm(*renamed, check=False).stderr
        kept = ("--set", "tokenKey.existingSecret=muster-token-key")
        sqlite = ("--set", "history.database=sqlite", "--set", "replicas=1")
        unkept = plane.helm(*renamed, *kept, *sqlite, check=False)
        assert "keep the volume by history.sqlite.existingClaim=muster-history" in unkept.stderr
        plane.helm(*renamed, *kept)
        assert plane.get("secret", "muster-token-key", "-n", NAMESPACE)["data"]["token-key"] == key
        plane.helm("upgrade", "muster", str(CHART), "-n", NAMESPACE, "--reset-values", *kept)

        plane.helm("upgrade", "muster", str(CHART), "-n", NAMESPACE, *sqlite)
        strategy = plane.get("deployment", "muster", "-n", NAMESPACE)["spec"]["strategy"]
        assert strategy == {"type": "Recreate"}
        plane.helm("upgrade", "muster", str(CHART), "-n", NAMESPACE, "--reset-values")
        strategy = plane.get("deployment", "muster", "-n", NAMESPACE)["spec"]["strategy"]
        assert strategy["type"] == "RollingUpdate"

        ranked = ("upgrade", "muster", str(CHART), "-n", NAMESPACE, "--set", "gangPriorityClass.value=5")
        assert "`kubectl delete priorityclass muster-gang` first" in plane.helm(*ranked, check=False).stderr
        plane.kubectl("delete", "priorityclass", "muster-gang")
        plane.helm(*ranked)
        assert plane.get("priorityclass", "muster-gang")["value"] == 5

        second = plane.helm("install", "other", str(CHART), "-n", "other", "--create-namespace", check=False)
        assert second.returncode
        assert f'Muster runs in this cluster as release "muster" in namespace "{NAMESPACE}"' in second.stderr
        assert f"helm upgrade muster CHART -n {NAMESPACE}" in second.stderr

        plane.helm("uninstall", "muster", "-n", NAMESPACE)
        assert plane.get("topologies")["items"] == []
        assert len(plane.get("crd")["items"]) == 3

        plane.helm("install", "muster", str(CHART), "-n", NAMESPACE, "--set", "defaultQueue.create=true")
        assert plane.get("trainingqueue", "default")["spec"] == DEFAULT_QUEUE
        assert plane.get("secret", "muster-token-key", "-n", NAMESPACE)["data"]["token-key"] == key
        assert plane.get("topology", "default")["spec"]["levels"][0]["name"] == "zone"
        plane.helm("upgrade", "muster", str(CHART), "-n", NAMESPACE, "--set", "defaultQueue.create=false")
        assert plane.get("trainingqueue", "default")["spec"] == DEFAULT_QUEUE, "jobs may be in it"
        plane.helm("uninstall", "muster", "-n", NAMESPACE)
        plane.helm("install", "muster", str(CHART), "-n", NAMESPACE, "--set", "defaultQueue.create=true")
        plane.helm("uninstall", "muster", "-n", NAMESPACE)
        assert plane.get("trainingqueue", "default")["spec"] == DEFAULT_QUEUE

        plane.kubectl("delete", "crd", "topologies.muster.dev", "trainingqueues.muster.dev")
        plane.helm("install", "muster", str(CHART), "-n", NAMESPACE, "--set", "defaultQueue.create=true")
        assert plane.get("topology", "default")["spec"]["levels"][0]["name"] == "zone"
        assert plane.get("trainingqueue", "default")["spec"] == DEFAULT_QUEUE
        plane.helm("uninstall", "muster", "-n", NAMESPACE)

        moved = ("install", "moved", str(CHART), "-n", "other", "--create-namespace")
        assert "invalid ownership metadata" in plane.helm(*moved, check=False).stderr
        plane.helm("install", "muster", str(CHART), "-n", NAMESPACE, "--set", "image.registry=registry.example.com")
        _type(plane, INSTALL.read_text().partition("on meanwhile:\n\n```\n")[2].partition("```")[0], tmp_path)
        operator = plane.get("deployment", "muster", "-n", "elsewhere")["spec"]["template"]["spec"]["containers"][0]
        assert operator["image"].startswith("registry.example.com/")
        assert plane.get("secret", "muster-token-key", "-n", "elsewhere")["data"]["token-key"] == key
    finally:
        api.down("test-chart")
