"""The gang's objects, as the API server takes them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api import names
from muster.api.effective import effective_spec
from muster.api.restarts import InPlace
from muster.api.trainingjob import TrainingJob
from muster.cluster import interpod, pods
from muster.cluster.eligibility import Matcher, filter_of_pod
from muster.cluster.overrides import TemplateRefused
from muster.cluster.pods import Identity, PodSettings
from muster.cluster.views import NodeView, PodView

pytestmark = pytest.mark.unit

JOB = Identity("research", "llama", "0123456789abcdef")
SETTINGS = PodSettings("ghcr.io/muster/runtime:1")


def effective(**spec: Any) -> Any:
    raw = {
        "metadata": {"name": "llama", "namespace": "research", "uid": JOB.uid},
        "spec": {
            "image": "train:1",
            "command": ["python", "train.py"],
            "workers": {"replicas": 2, "gpusPerWorker": 8},
            **spec,
        },
    }
    return effective_spec(TrainingJob.from_raw(raw).spec)


def template(**spec: Any) -> dict[str, Any]:
    return pods.template(JOB, effective(**spec), SETTINGS)


def made(**spec: Any) -> dict[str, Any]:
    return pods.pod(JOB, template(**spec), generation=3, index=1, attempt=0, node="node-7", workers=2)


def trainer(pod: dict[str, Any]) -> dict[str, Any]:
    return pods.container(pod["spec"], "trainer")


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    entries = trainer(pod)["env"]
    found = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}
    assert len(found) == len(entries), "a variable is set twice"
    return found


def test_name_labels_owner_and_host_name() -> None:
    pod = made()
    metadata = pod["metadata"]
    assert metadata["name"] == "llama-g3-1-0"
    assert metadata["labels"] == {
        "muster.dev/job": "llama",
        "muster.dev/job-uid": JOB.uid,
        "muster.dev/generation": "3",
        "muster.dev/index": "1",
        "muster.dev/attempt": "0",
        "muster.dev/queue": "default",
        "app.kubernetes.io/managed-by": "muster",
    }
    (owner,) = metadata["ownerReferences"]
    assert owner["controller"] is True
    assert owner["blockOwnerDeletion"] is False
    assert owner["uid"] == JOB.uid
    assert pod["spec"]["hostname"] == "g3-1-0"
    assert pod["spec"]["subdomain"] == "llama"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["priorityClassName"] == "muster-gang"
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_the_view_of_a_made_pod_says_what_was_meant() -> None:
    view = PodView.from_raw(made())
    assert (view.node, view.owner_uid, view.generation, view.index, view.attempt) == ("node-7", JOB.uid, 3, 1, 0)
    assert dict(view.requests) == {"nvidia.com/gpu": 8, "pods": 1}


def test_the_longest_name_still_makes_valid_names() -> None:
    job = Identity("research", "a" * 63, "0123456789abcdef")
    pod = pods.pod(
        job,
        pods.template(job, effective(), SETTINGS),
        generation=10**6,
        index=4095,
        attempt=999,
        node="n",
        workers=4096,
    )
    assert len(pod["metadata"]["name"]) <= 253
    assert len(pod["spec"]["hostname"]) <= 63
    assert len(pods.service_name(job)) <= 63
    assert all(len(value) <= 63 for value in pod["metadata"]["labels"].values())


@pytest.mark.parametrize("name", ["9lives", "with.dot", "x" * 70])
def test_a_name_that_a_service_may_not_have_gets_one_made_from_it(name: str) -> None:
    made_name = pods.service_name(Identity("n", name, "u"))
    assert pods._DNS_1035.match(made_name)
    assert made_name == pods.service_name(Identity("n", name, "u"))
    assert made_name != pods.service_name(Identity("n", name, "v"))


def test_the_command_runs_under_the_launcher() -> None:
    pod = made(args=["--lr", "3e-4"])
    assert trainer(pod)["command"] == ["/muster/bin/muster-launch", "--", "python", "train.py"]
    assert trainer(pod)["args"] == ["--lr", "3e-4"]


def test_the_runtime_is_brought_by_an_init_container_that_costs_nothing() -> None:
    pod = made(workers={"replicas": 1, "resources": {"limits": {"cpu": "4", "memory": "8Gi"}}})
    (runtime,) = pod["spec"]["initContainers"]
    assert runtime["image"] == "ghcr.io/muster/runtime:1"
    assert runtime["command"] == ["python3", "-m", "muster_runtime.install", "/muster"]
    assert runtime["resources"] == trainer(pod)["resources"]
    assert dict(PodView.from_raw(pod).requests) == {"cpu": 4000, "memory": 8 * 2**30, "pods": 1}
    security = runtime["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "securityContext" not in trainer(pod)


def test_the_environment_is_the_protocols() -> None:
    found = environment(made(parallelism={"strategy": "fsdp"}, readyTimeout="10m", terminationGracePeriod="90s"))
    assert found["MUSTER_JOB"] == "llama"
    assert found["MUSTER_GENERATION"] == "3"
    assert found["MUSTER_INDEX"] == "1"
    assert found["MUSTER_WORKERS"] == "2"
    assert found["MUSTER_PROCESSES_PER_WORKER"] == "8"
    assert found["MUSTER_LEADER_HOST"] == "g3-0-0.llama.research.svc"
    assert found["MUSTER_READY_TIMEOUT"] == "600"
    assert found["MUSTER_GRACE_SECONDS"] == "90"
    assert found["MUSTER_STRATEGY"] == "fsdp"
    assert found["MUSTER_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert found["MUSTER_MEMORY_REQUEST"] == {
        "resourceFieldRef": {"containerName": "trainer", "resource": "requests.memory"}
    }
    assert found["MUSTER_TOKEN"] == {"secretKeyRef": {"name": "llama-muster-01234567", "key": "MUSTER_TOKEN"}}
    assert "MUSTER_MAX_RUNTIME" not in found
    assert "MUSTER_CHECKPOINT_URI" not in found


def test_what_ranks_may_take_goes_to_the_launcher() -> None:
    found = environment(made(hang={"step": "10m", "evaluation": "0s", "start": "auto"}))
    told = [found[f"MUSTER_HANG_{section}"] for section in ("START", "STEP", "EVALUATION", "CHECKPOINT")]
    assert told == ["auto", "600", "0", "auto"]
    assert environment(made())["MUSTER_HANG_STEP"] == "auto"


def test_what_is_watched_of_numbers_goes_to_the_ranks() -> None:
    found = environment(made(numerics={"action": "skip", "spike": {"loss": "1.5", "gradientNorm": 10}, "limit": 7}))
    told = {name: found.get(f"MUSTER_NUMERICS{name}") for name in ("", "_LOSS", "_NORM", "_LIMIT")}
    assert told == {"": "skip", "_LOSS": "1.5", "_NORM": "10", "_LIMIT": "7"}
    found = environment(made(numerics={"action": "stop"}))
    assert {name for name in found if "NUMERICS" in name} == {"MUSTER_NUMERICS", "MUSTER_NUMERICS_LIMIT"}
    assert found["MUSTER_NUMERICS_LIMIT"] == "10"
    assert not any(name.startswith("MUSTER_NUMERICS") for name in environment(made()))


def test_the_rest_of_max_runtime_goes_to_the_launcher() -> None:
    pod = pods.pod(JOB, template(), generation=1, index=0, attempt=0, node="n", workers=2, max_runtime=77)
    assert environment(pod)["MUSTER_MAX_RUNTIME"] == "77"


def test_pods_of_a_gang_wait_for_lost_ones_and_know_the_present_leader() -> None:
    pod = pods.pod(JOB, template(), generation=1, index=1, attempt=2, node="n", workers=2, leader=3)
    assert environment(pod)["MUSTER_REPLACE_SECONDS"] == "120"
    assert environment(pod)["MUSTER_LEADER_HOST"] == "g1-0-3.llama.research.svc"
    assert pod["spec"]["hostname"] == "g1-1-2"
    patient = {"replicas": 4, "min": 2, "shrinkAfter": "10m"}
    assert environment(made(workers=patient))["MUSTER_REPLACE_SECONDS"] == "660", "longer than it takes to shrink"
    hasty = {"replicas": 4, "min": 2, "shrinkAfter": "0s"}
    assert environment(made(workers=hasty))["MUSTER_REPLACE_SECONDS"] == "120"


def test_the_crashes_that_a_launcher_may_answer_go_to_it() -> None:
    def told(in_place: InPlace) -> dict[str, str]:
        pod = pods.pod(JOB, template(), generation=1, index=0, attempt=0, node="n", workers=2, in_place=in_place)
        return {name: value for name, value in environment(pod).items() if "RESTARTS_IN_PLACE" in name}

    assert told(InPlace(script=2, network=7)) == {
        "MUSTER_RESTARTS_IN_PLACE": "2",
        "MUSTER_MEMORY_RESTARTS_IN_PLACE": "0",  # left out it would be as many
        "MUSTER_NETWORK_RESTARTS_IN_PLACE": "7",
    }
    assert told(InPlace()) == {}
    assert told(InPlace(network=10)) == {
        "MUSTER_RESTARTS_IN_PLACE": "0",
        "MUSTER_MEMORY_RESTARTS_IN_PLACE": "0",
        "MUSTER_NETWORK_RESTARTS_IN_PLACE": "10",
    }


def test_the_steps_that_the_run_had_done_are_told() -> None:
    pod = pods.pod(JOB, template(), generation=2, index=0, attempt=0, node="n", workers=2, reached=1200)
    assert environment(pod)["MUSTER_REACHED_STEP"] == "1200"
    pod = pods.pod(JOB, template(), generation=1, index=0, attempt=0, node="n", workers=2)
    assert "MUSTER_REACHED_STEP" not in environment(pod)


def test_an_interval_of_its_own_choice_is_told_how_often_nodes_fail() -> None:
    auto = {"uri": "s3://models/llama", "interval": "auto"}
    found = environment(made(checkpoint=auto))
    assert (found["MUSTER_CHECKPOINT_INTERVAL"], found["MUSTER_CHECKPOINT_NODE_HOURS"]) == ("auto", "3700")
    spot = environment(made(checkpoint=auto, capacity={"order": ["on-demand", "spot"]}))
    assert spot["MUSTER_CHECKPOINT_NODE_HOURS"] == "24"
    own = environment(made(checkpoint=auto, env=[{"name": "MUSTER_CHECKPOINT_NODE_HOURS", "value": "7"}]))
    assert own["MUSTER_CHECKPOINT_NODE_HOURS"] == "7"


def test_checkpoint_fields_become_environment() -> None:
    checkpoint = {
        "uri": "s3://models/llama",
        "everySteps": 100,
        "retention": {"last": 5, "every": 1000, "everyHours": 6, "best": {"metric": "accuracy", "mode": "max"}},
        "secretRef": {"name": "s3"},
        "endpoint": "http://s3:7070",
        "from": "s3://models/base@7",
        "load": "model",
    }
    found = environment(made(checkpoint=checkpoint))
    assert found["MUSTER_CHECKPOINT_URI"] == "s3://models/llama"
    assert found["MUSTER_CHECKPOINT_EVERY_STEPS"] == "100"
    assert "MUSTER_CHECKPOINT_INTERVAL" not in found
    assert found["MUSTER_CHECKPOINT_KEEP_LAST"] == "5"
    assert found["MUSTER_CHECKPOINT_KEEP_EVERY"] == "1000"
    assert found["MUSTER_CHECKPOINT_KEEP_SECONDS"] == "21600"
    assert found["MUSTER_CHECKPOINT_KEEP_BEST"] == "accuracy:max:1"
    assert found["MUSTER_CHECKPOINT_FROM"] == "s3://models/base@7"
    assert found["MUSTER_CHECKPOINT_FROM_LOAD"] == "model"
    assert found["AWS_ENDPOINT_URL_S3"] == "http://s3:7070"
    assert "MUSTER_CHECKPOINT_NODE_HOURS" not in found
    key = {"name": "s3", "key": "AWS_ACCESS_KEY_ID", "optional": False}
    assert found["AWS_ACCESS_KEY_ID"] == {"secretKeyRef": key}
    assert found["AWS_SESSION_TOKEN"]["secretKeyRef"]["optional"] is True


def test_how_the_storage_is_spoken_to_reaches_the_launcher() -> None:
    checkpoint = {
        "uri": "s3://models/llama",
        "endpoint": "https://s3.example.com",
        "addressing": "virtual",
        "memory": "local",
        "encryption": {"type": "SSE-KMS", "keyId": "arn:aws:kms:eu-1:1:key/2"},
        "caConfigMapRef": {"name": "storage-ca", "key": "root.pem"},
    }
    pod = made(checkpoint=checkpoint)
    found = environment(pod)
    assert found["MUSTER_S3_ADDRESSING"] == "virtual"
    assert found["MUSTER_CHECKPOINT_MEMORY"] == "local"
    assert found["MUSTER_S3_ENCRYPTION"] == "aws:kms"
    assert found["MUSTER_S3_KMS_KEY"] == "arn:aws:kms:eu-1:1:key/2"
    (volume,) = (volume for volume in pod["spec"]["volumes"] if "configMap" in volume)
    assert volume["configMap"] == {"name": "storage-ca", "items": [{"key": "root.pem", "path": "ca.crt"}]}
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    (mount,) = (mount for mount in mounts if mount["name"] == volume["name"])
    assert found["MUSTER_S3_CA_FILE"] == f"{mount['mountPath']}/ca.crt"
    usual = environment(made(checkpoint={"uri": "s3://models/llama"}))
    assert not [name for name in usual if name.startswith("MUSTER_S3_")]


def test_the_users_word_wins_over_the_storages_environment() -> None:
    found = environment(
        made(checkpoint={"uri": "s3://b-1/x", "endpoint": "http://a"}, env=[{"name": "AWS_REGION", "value": "eu"}])
    )
    assert found["AWS_REGION"] == "eu"


def test_volumes_mounts_selectors_and_secrets_are_the_users() -> None:
    pod = made(
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "imagenet"}}],
        volumeMounts=[{"name": "data", "mountPath": "/data", "readOnly": True}],
        nodeSelector={"pool": "gpu"},
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
        imagePullSecrets=[{"name": "registry"}],
        serviceAccountName="trainer",
    )
    spec = pod["spec"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "imagenet"}} in spec["volumes"]
    assert {"name": "data", "mountPath": "/data", "readOnly": True} in trainer(pod)["volumeMounts"]
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"][0] == {"key": "nvidia.com/gpu", "operator": "Exists"}
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["serviceAccountName"] == "trainer"


NOT_READY, UNREACHABLE = (
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
    for key in ("not-ready", "unreachable")
)


def test_a_pod_stays_for_ever_on_a_node_whose_kubelet_is_silent() -> None:
    assert made()["spec"]["tolerations"] == [NOT_READY, UNREACHABLE]


def test_what_a_job_says_itself_of_silent_nodes_stands() -> None:
    brief = {**UNREACHABLE, "tolerationSeconds": 60}
    assert made(tolerations=[brief])["spec"]["tolerations"] == [brief, NOT_READY]
    assert made(podTemplate={"spec": {"tolerations": [brief]}})["spec"]["tolerations"] == [brief, NOT_READY]
    of_all = {"operator": "Exists", "tolerationSeconds": 60}
    assert made(tolerations=[of_all])["spec"]["tolerations"] == [of_all]
    not_of_it = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoSchedule"}
    assert made(tolerations=[not_of_it])["spec"]["tolerations"] == [not_of_it, NOT_READY, UNREACHABLE]


def test_a_mount_of_the_users_own_at_dev_shm_takes_the_place_of_ours() -> None:
    pod = made(
        volumes=[{"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}],
        volumeMounts=[{"name": "fast", "mountPath": "/dev/shm"}],
    )
    assert [mount["name"] for mount in trainer(pod)["volumeMounts"] if mount["mountPath"] == "/dev/shm"] == ["fast"]
    assert "shm" not in [volume["name"] for volume in pod["spec"]["volumes"]]


def required_terms(pod: dict[str, Any]) -> list[dict[str, Any]]:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms: list[dict[str, Any]] = affinity["nodeSelectorTerms"]
    return terms


PINNED = [{"key": "metadata.name", "operator": "In", "values": ["node-7"]}]


def test_a_pod_is_pinned_to_its_node() -> None:
    assert required_terms(made()) == [{"matchFields": PINNED}]


def test_every_term_of_the_users_is_pinned_since_terms_are_ored() -> None:
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchExpressions": [{"key": "fast", "operator": "Exists"}]},
        {},
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    override = {"spec": {"affinity": affinity}}
    assert required_terms(made(podTemplate=override)) == [
        {**terms[0], "matchFields": PINNED},
        {**terms[1], "matchFields": PINNED},
    ]
    unpinned = filter_of_pod(template(podTemplate=override)["spec"])
    assert unpinned.terms, "the template keeps the user's own terms for the choice of the node"
    assert Matcher(unpinned) is not None


def test_the_override_merges_into_the_trainer() -> None:
    override = {
        "metadata": {"annotations": {"a": "b"}, "labels": {"team": "x"}},
        "spec": {
            "securityContext": {"runAsUser": 1000},
            "containers": [
                {"name": "trainer", "securityContext": {"runAsNonRoot": True}, "env": [{"name": "A", "value": "1"}]},
                {"name": "log", "image": "log:1"},
            ],
        },
    }
    pod = made(podTemplate=override)
    assert pod["metadata"]["annotations"] == {**names.KEEP_ANNOTATIONS, "a": "b"}
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["labels"]["muster.dev/job"] == "llama"
    assert trainer(pod)["securityContext"] == {"runAsNonRoot": True}
    assert trainer(pod)["image"] == "train:1"
    assert environment(pod)["A"] == "1"
    assert [container["name"] for container in pod["spec"]["containers"]] == ["trainer", "log"]
    assert pod["spec"]["securityContext"] == {"runAsUser": 1000}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ({"spec": {"nodeName": "n"}}, "spec.nodeName is Muster's"),
        ({"spec": {"schedulerName": "mine"}}, "spec.schedulerName is Muster's"),
        ({"spec": {"priorityClassName": "high"}}, "set spec.priorityClassName of the job"),
        ({"spec": {"restartPolicy": "Always"}}, "see spec.restart"),
        ({"spec": {"schedulingGates": [{"name": "x"}]}}, "schedulingGates"),
        ({"spec": {"activeDeadlineSeconds": 3600}}, "set spec.maxRuntime of the job"),
        ({"spec": {"terminationGracePeriodSeconds": 5}}, "set spec.terminationGracePeriod of the job"),
        ({"spec": {"containers": [{"name": "trainer", "command": ["sh"]}]}}, "set spec.command of the job"),
        ({"spec": {"containers": [{"name": "trainer", "$patch": "delete"}]}}, "can't be deleted"),
        ({"spec": {"containers": [{"$patch": "replace"}]}}, "would drop Muster's own containers"),
        ({"spec": {"initContainers": [{"name": "muster-runtime", "image": "x"}]}}, "only resources"),
        ({"spec": {"containers": [{"name": "muster-runtime", "image": "x"}]}}, "use another name"),
        ({"spec": {"volumes": [{"name": "muster", "emptyDir": {}}]}}, "use another name"),
        ({"spec": {"$patch": "replace"}}, "would drop what Muster needs"),
        (
            {"spec": {"containers": [{"name": "trainer", "env": [{"name": "MUSTER_TOKEN", "value": "x"}]}]}},
            "MUSTER_TOKEN is Muster's",
        ),
        (
            {"spec": {"containers": [{"name": "trainer", "volumeMounts": [{"name": "x", "mountPath": "/muster/"}]}]}},
            "mount elsewhere",
        ),
        ({"spec": {"containers": [{"image": "x"}]}}, "needs 'name'"),
        ({"spec": {"containers": None}}, "spec.containers is null, which would drop Muster's own container"),
        ({"spec": {"initContainers": None}}, "spec.initContainers is null"),
        ({"spec": {"volumes": None}}, "spec.volumes is null, which would drop Muster's own volume: leave it out"),
        ({"spec": {"containers": [{"name": "trainer", "env": None}]}}, "env would drop what Muster needs there"),
        (
            {
                "spec": {
                    "containers": [{"name": "trainer", "env": [{"$patch": "replace"}, {"name": "A", "value": "1"}]}]
                }
            },
            "env would drop what Muster needs there: leave it out",
        ),
        ({"spec": {"containers": [{"name": "trainer", "volumeMounts": None}]}}, "volumeMounts would drop what Muster"),
        (
            {"spec": {"containers": [{"name": "trainer", "$deleteFromPrimitiveList/command": ["--"]}]}},
            "set spec.command of the job",
        ),
        ({"spec": {"tolerations": {"key": "a"}}}, "spec.tolerations is a mapping: write a list there, as in a pod"),
        ({"spec": {"tolerations": [None]}}, r"spec.tolerations\[0\] is null: write a mapping there"),
        ({"spec": {"nodeSelector": {"pool": 7}}}, "spec.nodeSelector.pool is a number: write a text there"),
        (
            {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"memory": []}}}]}},
            "resources.limits.memory is a list: write a number there",
        ),
    ],
)
def test_what_an_override_may_not_say(override: dict[str, Any], words: str) -> None:
    with pytest.raises(TemplateRefused, match=words.replace("$", r"\$")):
        template(podTemplate=override)


ONE_A_NODE = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"muster.dev/job": "llama"}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def of_pods(kind: str, *terms: dict[str, Any], when: str = REQUIRED) -> dict[str, Any]:
    return {"spec": {"affinity": {kind: {when: list(terms)}}}}


@pytest.mark.parametrize("expressions", [False, True])
def test_workers_that_keep_off_each_others_nodes_take_a_place_that_a_node_has_once(expressions: bool) -> None:
    listed = {"matchExpressions": [{"key": "muster.dev/job", "operator": "In", "values": ["llama"]}]}
    term = {**ONE_A_NODE, "labelSelector": listed} if expressions else ONE_A_NODE
    view = PodView.from_raw(made(podTemplate=of_pods("podAntiAffinity", term)))
    assert dict(view.requests)["apart/research/llama"] == 1


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (of_pods("podAffinity", ONE_A_NODE), r"podAffinity\.required\w+ is not planned by: say with spec\.topology"),
        (
            of_pods("podAntiAffinity", ONE_A_NODE, {**ONE_A_NODE, "topologyKey": "topology.kubernetes.io/zone"}),
            r"Execution\[1\] is not planned by: only .* labelSelector: {matchLabels: {muster.dev/job: llama}}",
        ),
        (
            of_pods("podAntiAffinity", {**ONE_A_NODE, "labelSelector": {"matchLabels": {"muster.dev/job": "other"}}}),
            r"Execution\[0\] is not planned by",
        ),
        (of_pods("podAntiAffinity", {**ONE_A_NODE, "namespaceSelector": {}}), r"Execution\[0\] is not planned by"),
        (
            {"spec": {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}},
            r"topologySpreadConstraints\[0\] is not planned by: spread the workers with spec\.topology\.balanced",
        ),
        (of_pods("podAntiAffinity", {"topologyKey": 3}), "topologyKey is a number: write a text there"),
    ],
)
def test_a_demand_on_other_pods_that_nobody_plans_by_is_refused(override: dict[str, Any], words: str) -> None:
    with pytest.raises(TemplateRefused, match=words):
        template(podTemplate=override)


def test_what_is_only_preferred_of_other_pods_is_kept() -> None:
    wish = {"weight": 1, "podAffinityTerm": ONE_A_NODE}
    override = of_pods("podAffinity", wish, when="preferredDuringSchedulingIgnoredDuringExecution")
    spread = {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    override["spec"]["topologySpreadConstraints"] = [spread]
    spec = made(podTemplate=override)["spec"]
    assert spec["affinity"]["podAffinity"] == override["spec"]["affinity"]["podAffinity"]
    assert spec["topologySpreadConstraints"] == [spread]


_JUNK = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["", "a", "trainer", "muster-runtime", "In", "1Gi"])
)
_FIELDS = (
    *("containers", "initContainers", "name", "env", "ports", "hostPort", "volumeMounts", "restartPolicy", "volumes"),
    *("resources", "requests", "limits", "cpu", "overhead", "hostNetwork", "tolerations", "effect", "$patch"),
    *("nodeSelector", "matchExpressions", "matchFields", "key", "operator", "value", "values", "affinity"),
    *("podAntiAffinity", "topologySpreadConstraints", "topologyKey", "labelSelector", "matchLabels", REQUIRED),
)


@given(
    st.recursive(
        _JUNK,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from([(), *(("affinity", kind, REQUIRED) for kind in ("nodeAffinity", "podAntiAffinity"))]),
    st.sampled_from(["containers", "initContainers", "nodeSelector", "nodeSelectorTerms", "overhead", "resources"]),
)
def test_whatever_an_override_is_it_becomes_a_pod_or_is_refused_in_a_sentence(
    junk: Any, below: tuple[str, ...], field: str
) -> None:
    override: Any = junk if isinstance(junk, dict) else {field: junk}
    for name in reversed(below):
        override = {name: override}
    for spec in (override, {"containers": [{"name": "trainer", **override}]}):
        interpod.names_a_job(spec)  # asked before it is merged
        try:
            merged = template(podTemplate={"spec": spec})
            PodView.from_raw(merged)
        except ValueError:  # TemplateRefused, or a quantity that is none
            continue
        node = NodeView.from_raw({"metadata": {"name": "n", "labels": {"a": "a"}}})
        Matcher(filter_of_pod(merged["spec"])).allows(node)
        pods.pod(JOB, merged, generation=1, index=0, attempt=0, node="n", workers=1)


def test_a_label_of_ours_is_refused() -> None:
    from muster.cluster.overrides import problems

    assert list(problems({"metadata": {"labels": {"muster.dev/index": "9"}}}))
    assert list(problems({"metadata": {"ownerReferences": []}}))


def test_service_and_secret_belong_to_the_job() -> None:
    service, secret = pods.service(JOB), pods.secret(JOB, "token")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"muster.dev/job-uid": JOB.uid, "muster.dev/index": "0"}
    assert secret["immutable"] is True
    assert secret["stringData"] == {"MUSTER_TOKEN": "token"}
    for made_object in (service, secret):
        assert made_object["metadata"]["ownerReferences"][0]["uid"] == JOB.uid


def test_the_hash_changes_with_the_spec_and_only_with_it() -> None:
    assert pods.spec_hash(effective(), SETTINGS) == pods.spec_hash(effective(), SETTINGS)
    assert pods.spec_hash(effective(), SETTINGS) != pods.spec_hash(effective(image="train:2"), SETTINGS)
    assert pods.spec_hash(effective(), SETTINGS) != pods.spec_hash(effective(), PodSettings("other"))


@pytest.mark.parametrize("terms", [[], [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]])
def test_making_pods_leaves_the_template_alone(terms: list[dict[str, Any]]) -> None:
    base = template()
    if terms:
        required = {"nodeSelectorTerms": terms}
        base["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    before = copy.deepcopy(base)
    one = pods.pod(JOB, base, generation=1, index=0, attempt=0, node="a", workers=2)
    two = pods.pod(JOB, base, generation=1, index=1, attempt=0, node="b", workers=2)
    assert PodView.from_raw(one).node == "a"
    assert PodView.from_raw(two).node == "b"
    assert base == before
