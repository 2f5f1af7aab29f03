"""What `kubectl apply` refuses, and with which words: each must say what is wrong and how to mend it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from muster.api.examples import EXAMPLES

pytestmark = pytest.mark.cluster

Object = dict[str, Any]
Change = Callable[[Object], Any]


def spec(**fields: Any) -> Change:
    return lambda job: job["spec"].update(fields)


def workers(**fields: Any) -> Change:
    return lambda job: job["spec"]["workers"].update(fields)


def checkpoint(**fields: Any) -> Change:
    return spec(checkpoint={"uri": "s3://models/tiny", **fields})


def without(name: str) -> Change:
    return lambda job: job["spec"].pop(name)


def named(name: str) -> Change:
    return lambda job: job["metadata"].update(name=name)


URI = "write s3://BUCKET/PREFIX"
DURATION = "like 90s, 10m, 1h30m or 2d"
EMPTY_KEY = "a key is empty, or longer than 317 characters: name it, or take the entry out"

REFUSED: dict[str, tuple[Change, str]] = {
    "zero workers": (workers(replicas=0), "spec.workers.replicas in body should be greater than or equal to 1"),
    "negative workers": (workers(replicas=-1), "spec.workers.replicas in body should be greater than or equal to 1"),
    "too many workers": (
        workers(replicas=20000),
        "spec.workers.replicas in body should be less than or equal to 16384",
    ),
    "half a worker": (workers(replicas=1.5), "spec.workers.replicas in body must be of type int"),
    "workers as text": (workers(replicas="two"), "spec.workers.replicas in body must be of type integer"),
    "no replicas": (spec(workers={}), "spec.workers.replicas: Required value"),
    "no workers": (without("workers"), "spec.workers: Required value"),
    "negative GPUs": (workers(gpusPerWorker=-8), "spec.workers.gpusPerWorker in body should be greater than"),
    "min > max": (workers(min=3, max=1), "min is greater than max: give min <= replicas <= max"),
    "min > replicas": (workers(min=3), "min is greater than replicas: give min <= replicas <= max"),
    "max < replicas": (workers(max=1), "replicas is greater than max: give min <= replicas <= max"),
    "zero min": (workers(min=0), "spec.workers.min in body should be greater than or equal to 1"),
    "type without GPUs": (workers(gpuType="H100"), "gpuType without GPUs: say how many in gpusPerWorker"),
    "type of odd letters": (workers(gpuType="H 100", gpusPerWorker=1), "use a short name such as H100"),
    "more ranks than GPUs": (workers(gpusPerWorker=2, processesPerWorker=4), "processesPerWorker <= gpusPerWorker"),
    "zero processes": (
        workers(processesPerWorker=0),
        "processesPerWorker in body should be greater than or equal to 1",
    ),
    "GPUs as resources": (
        workers(resources={"limits": {"nvidia.com/gpu": 8}}),
        "GPUs are asked for by workers.gpusPerWorker; take them out of resources",
    ),
    "no quantity": (workers(resources={"requests": {"memory": "64GB"}}), "memory in body should match '^(4|500m|64Gi|"),
    "half a quantity": (workers(resources={"requests": {"cpu": 2.5}}), "requests.cpu in body must be of type"),
    "negative quantity": (
        workers(resources={"requests": {"cpu": -1}}),
        "cpu in body should be greater than or equal to 0",
    ),
    "no image": (without("image"), "spec.image: Required value"),
    "empty image": (spec(image=""), "spec.image in body should be at least 1 chars long"),
    "image with a space": (spec(image="my image"), "an image reference has no spaces"),
    "no command": (without("command"), "spec.command: Required value"),
    "empty command": (spec(command=[]), "spec.command in body should have at least 1 items"),
    "command as text": (spec(command="python train.py"), 'spec.command in body must be of type array: "string"'),
    "unknown strategy": (spec(parallelism={"strategy": "zero3"}), 'supported values: "ddp", "fsdp", "hsdp"'),
    "unknown topology mode": (spec(topology={"mode": "strict"}), '"required", "preferred", "unconstrained"'),
    "required without level": (spec(topology={"mode": "required"}), "mode required needs a level"),
    "step without elasticity": (workers(step=2), "give min below max too, or leave step out"),
    "odd step": (workers(replicas=4, min=2, max=7, step=2), "replicas and max that are min plus whole steps"),
    "spares of an elastic gang": (
        workers(replicas=4, min=2, max=6, spares=1),
        "an elastic gang goes on with fewer workers when nodes break",
    ),
    "partial without min": (workers(partial=True), "say with how many at least, in min"),
    "half a slice": (
        lambda job: job["spec"].update(workers={"replicas": 6}, topology={"slices": [{"workers": 4, "level": "rack"}]}),
        "the gang does not divide into whole slices",
    ),
    "a step of half a slice": (
        lambda job: job["spec"].update(
            workers={"replicas": 8, "min": 4, "max": 8, "step": 2},
            topology={"slices": [{"workers": 4, "level": "rack"}]},
        ),
        "grows and shrinks by whole slices",
    ),
    "half a replica of the model": (
        lambda job: job["spec"].update(workers={"replicas": 6}, parallelism={"workersPerReplica": 4}),
        "the gang does not divide into whole replicas of the model: give workers.replicas, min and max",
    ),
    "a least size of half a replica": (
        lambda job: job["spec"].update(workers={"replicas": 8, "min": 6}, parallelism={"workersPerReplica": 4}),
        "the gang does not divide into whole replicas of the model",
    ),
    "a step of half a replica": (
        lambda job: job["spec"].update(
            workers={"replicas": 8, "min": 4, "step": 2}, parallelism={"workersPerReplica": 4}
        ),
        "give workers.step a multiple of parallelism.workersPerReplica, or leave step out",
    ),
    "slices that do not nest": (
        lambda job: job["spec"].update(
            workers={"replicas": 12},
            topology={"slices": [{"workers": 6, "level": "rack"}, {"workers": 4, "level": "host"}]},
        ),
        "give each a number of workers that divides the number before it",
    ),
    "two slices of one level": (
        lambda job: job["spec"].update(
            workers={"replicas": 8},
            topology={"slices": [{"workers": 4, "level": "rack"}, {"workers": 2, "level": "rack"}]},
        ),
        "two slices share a level",
    ),
    "fallback of one kind": (
        spec(capacity={"order": ["spot"], "fallbackAfter": "5m"}),
        "name two kinds or more in order",
    ),
    "price of one kind": (spec(capacity={"order": ["spot"], "prefer": "cheapest"}), "prefer chooses among kinds"),
    "two kinds beyond a base": (
        spec(capacity={"order": ["spot", "reserved"], "base": "on-demand"}, workers={"replicas": 4, "min": 2}),
        "name one kind there, or leave base out",
    ),
    "a base of its own kind": (
        spec(capacity={"order": ["spot"], "base": "spot"}, workers={"replicas": 4, "min": 2}),
        "name another one in order, or leave base out",
    ),
    "a base of one size": (
        spec(capacity={"order": ["spot"], "base": "on-demand"}),
        "a gang of one size has no workers beyond a base: give a workers.min below replicas",
    ),
    "a base in whole": (
        spec(capacity={"order": ["spot"], "base": "on-demand"}, workers={"replicas": 4, "min": 2, "partial": False}),
        "leave partial out, or base",
    ),
    "unknown capacity": (spec(capacity={"order": ["cheap"]}), 'supported values: "on-demand", "reserved", "spot"'),
    "budget of a job that is not preemptible": (
        spec(preemptible=False, disruptionBudget={"preemptions": 1}),
        "a job that is not preemptible is never preempted",
    ),
    "level without meaning": (
        spec(topology={"mode": "unconstrained", "level": "rack"}),
        "a level has no meaning with mode unconstrained",
    ),
    "uri without scheme": (checkpoint(uri="models/tiny"), URI),
    "uri of another scheme": (checkpoint(uri="gs://models/tiny"), URI),
    "uri of a folder": (checkpoint(uri="file:///tmp/tiny"), URI),
    "bucket in capitals": (checkpoint(uri="s3://Models/tiny"), URI),
    "bucket of two letters": (checkpoint(uri="s3://ab/tiny"), URI),
    "uri with a query": (checkpoint(uri="s3://models/tiny?x=1"), URI),
    "uri with an empty folder": (checkpoint(uri="s3://models//tiny"), URI),
    "uri that leads upwards": (checkpoint(uri="s3://models/a/../tiny"), URI),
    "uri of a step": (checkpoint(uri="s3://models/tiny@6"), URI),
    "empty uri": (checkpoint(uri=""), "spec.checkpoint.uri"),
    "no uri": (spec(checkpoint={"interval": "10m"}), "spec.checkpoint.uri: Required value"),
    "interval without unit": (checkpoint(interval="10"), DURATION),
    "interval in words": (checkpoint(interval="ten minutes"), DURATION),
    "interval as number": (checkpoint(interval=600), "spec.checkpoint.interval in body must be of type string"),
    "units in another order": (checkpoint(interval="10s5m"), DURATION),
    "deadline in words": (spec(deadline="tomorrow"), "write a moment as date, time and time zone, like 2026-12-01T08"),
    "deadline without a zone": (spec(deadline="2026-12-01T08:00:00"), "write a moment as date, time and time zone"),
    "deadline on no day": (spec(deadline="2026-02-30T08:00:00Z"), "write a moment as date, time and time zone"),
    "deadline a day ahead of UTC": (spec(deadline="2026-12-01T08:00:00+24:00"), "write a moment as date, time and"),
    "deadline at a zone of 60 minutes": (spec(deadline="2026-12-01T08:00:00+10:60"), "write a moment as date, time"),
    "no runtime": (spec(maxRuntime="0h"), "maxRuntime is 0, so the job would end before it has trained"),
    "no window of failures": (spec(restart={"window": "0s"}), "within no time at all no failure counts"),
    "no window of preemptions": (
        spec(disruptionBudget={"preemptions": 1, "window": "0d0h"}),
        "within no time at all no preemption counts",
    ),
    "zero steps": (checkpoint(everySteps=0), "spec.checkpoint.everySteps in body should be greater than or equal to 1"),
    "nothing kept": (checkpoint(retention={"last": 0}), "retention.last in body should be greater than or equal to 1"),
    "endpoint without scheme": (checkpoint(endpoint="minio:9000"), "write the URL of an S3 server"),
    "from no uri": (checkpoint(**{"from": "models/base"}), "s3://BUCKET/PREFIX@STEP"),
    "from itself": (checkpoint(**{"from": "s3://models/tiny@100"}), "from is this job's own uri"),
    "tracking nowhere": (spec(tracking={"experiment": "gpt"}), "tracking without a uri: say where the run is to be"),
    "tracking by file": (spec(tracking={"uri": "file:///runs"}), "write the URL of an MLflow server"),
    "tracking with a password": (spec(tracking={"uri": "https://me:pw@mlflow"}), "belong into secretRef"),
    "W&B without a project": (spec(tracking={"uri": "wandb://me"}), "wandb://ENTITY/PROJECT"),
    "a tracker without a name": (spec(tracking={"uri": "python://mine"}), "python://MODULE:NAME"),
    "load without from": (checkpoint(load="model"), "name that checkpoint in from"),
    "unknown load": (checkpoint(load="some", **{"from": "s3://models/base"}), 'supported values: "all", "model"'),
    "negative limit": (spec(restart={"limit": -1}), "spec.restart.limit in body should be greater than or equal to 0"),
    "rollback to nowhere": (spec(numerics={"action": "rollback"}), "a rollback needs a checkpoint to go back to"),
    "numbers without an action": (spec(numerics={"limit": 3}), "spec.numerics.action: Required value"),
    "a factor of 1": (spec(numerics={"action": "skip", "spike": {"loss": 1}}), "write a number above 1"),
    "a factor of billions": (spec(numerics={"action": "skip", "spike": {"loss": 12345678901}}), "below a million"),
    "a factor in words": (spec(numerics={"action": "skip", "spike": {"loss": "much"}}), "write a number above 1"),
    "runtime no duration": (spec(maxRuntime="forever"), DURATION),
    "no grace": (spec(terminationGracePeriod="0s"), "with no time at all no checkpoint is saved"),
    "no interval": (checkpoint(interval="0m0s"), "everySteps: 1 saves at each step"),
    "a command of nothing": (spec(command=["", "train.py"]), "the command begins with nothing"),
    "a volume over the runtime": (
        spec(volumes=[{"name": "a", "emptyDir": {}}], volumeMounts=[{"name": "a", "mountPath": "/muster/"}]),
        "/muster has the runtime that Muster brings along",
    ),
    "grace no duration": (spec(terminationGracePeriod="-5s"), DURATION),
    "env as map": (spec(env={"A": "b"}), 'unknown field "spec.env.A"'),
    "env value no text": (spec(env=[{"name": "A", "value": 5}]), "value in body must be of type string"),
    "env without name": (spec(env=[{"value": "b"}]), "spec.env[0].name: Required value"),
    "env name with =": (spec(env=[{"name": "A=B", "value": "c"}]), "for the name of an environment variable"),
    "env twice": (spec(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]), "Duplicate value"),
    "env value twice": (
        spec(env=[{"name": "A", "value": "b", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
        "give either value or valueFrom, not both",
    ),
    "env from nowhere": (spec(env=[{"name": "A", "valueFrom": {}}]), "name exactly one source"),
    "env of Muster's own": (spec(env=[{"name": "MUSTER_INDEX", "value": "7"}]), "Muster sets this variable itself"),
    "env of the ranks": (spec(env=[{"name": "RANK", "value": "3"}]), "Muster sets this variable itself; take it out"),
    "envFrom from nowhere": (spec(envFrom=[{"prefix": "A_"}]), "name exactly one of configMapRef and secretRef"),
    "label of Muster's own": (
        spec(podTemplate={"metadata": {"labels": {"muster.dev/job": "other"}}}),
        "labels of muster.dev/ are Muster's own",
    ),
    "a label of nodes without a key": (spec(nodeSelector={"": "gpu"}), EMPTY_KEY),
    "a label of pods without a key": (spec(podTemplate={"metadata": {"labels": {"": "a"}}}), EMPTY_KEY),
    "an annotation with too long a key": (
        spec(podTemplate={"metadata": {"annotations": {"a" * 318: "b"}}}),
        "a key is empty, or longer than 317 characters",
    ),
    "a resource without a name": (workers(resources={"requests": {"": 1}}), EMPTY_KEY),
    "a tag without a name": (spec(tracking={"uri": "https://mlflow", "tags": {"": "a"}}), "longer than 250 characters"),
    "queue in capitals": (spec(queue="Research"), "use 1 to 63 lower-case letters, digits and dashes"),
    "unknown field": (spec(worker=2), 'unknown field "spec.worker"'),
    "name with a dot": (named("a.b"), "a Service carries the name of the job"),
    "name that starts with a digit": (named("8b"), "a Service carries the name of the job"),
    "name of 64 characters": (named("a" * 64), "the name has more than 63 characters"),
}


@pytest.fixture
def job() -> Object:
    """The shortest TrainingJob. Nothing here is stored, so all tests may use one namespace."""
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "tiny", "namespace": "default"},
        "spec": {"image": "example/train:1", "command": ["python", "train.py"], "workers": {"replicas": 2}},
    }


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_job_is_refused_with_words_that_help(case: str, control_plane: Any, job: Object) -> None:
    change, words = REFUSED[case]
    change(job)
    assert words in control_plane.refusal(job)


TAKEN: dict[str, Change] = {
    "shortest": lambda job: None,
    "name of 63 characters": named("a" * 63),
    "min = replicas = max": workers(min=2, max=2),
    "elastic": workers(min=1, max=4),
    "quantities as numbers and text": workers(resources={"requests": {"cpu": 4, "memory": "1.5Gi"}}),
    "warm start at a step": checkpoint(**{"from": "s3://models/base@1000", "load": "model"}),
    "bucket alone": checkpoint(uri="s3://models"),
    "factors as number and text": spec(numerics={"action": "skip", "spike": {"loss": "1.5", "gradientNorm": 10}}),
    "deadline": spec(deadline="2026-12-01T08:00:00Z"),
    "deadline of another zone": spec(deadline="2026-12-01T08:00:00.5+01:00"),
    "a volume beside the runtime": spec(
        volumes=[{"name": "a", "emptyDir": {}}], volumeMounts=[{"name": "a", "mountPath": "/muster-data"}]
    ),
    "all units": spec(maxRuntime="1d2h3m4s"),
    "any volume": spec(volumes=[{"name": "data", "csi": {"driver": "example.com", "readOnly": True}}]),
    "session's own variable": spec(env=[{"name": "MUSTER_SEED", "value": "7"}]),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_good_job_is_taken(case: str, control_plane: Any, job: Object) -> None:
    TAKEN[case](job)
    control_plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=job)


def queue_with(**quota: Any) -> Object:
    resources = [{"name": "nvidia.com/gpu", "nominal": 8}]
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingQueue",
        "metadata": {"name": "refused"},
        "spec": {"quotas": [{"gpuType": "H100", "resources": resources, **quota}]},
    }


QUEUES: dict[str, tuple[Object, str]] = {
    "no resources": (queue_with(resources=[]), "resources in body should have at least 1 items"),
    "unknown capacity": (queue_with(capacity="cheap"), 'supported values: "on-demand", "reserved", "spot"'),
    "spot without GPUs": (queue_with(gpuType="", capacity="spot"), "gangs without GPUs have one quota for all nodes"),
    "quota beyond numbers": (
        queue_with(resources=[{"name": "cpu", "nominal": "1.0e+99"}]),
        "should match '^(4|500m|64Gi|",
    ),
    "negative quota": (queue_with(resources=[{"name": "cpu", "nominal": -1}]), "should be greater than or equal to 0"),
    "resource without its domain": (queue_with(resources=[{"name": "gpu", "nominal": 8}]), "such as nvidia.com/gpu"),
    "no nominal": (queue_with(resources=[{"name": "cpu"}]), "nominal: Required value"),
}


@pytest.mark.parametrize("case", QUEUES)
def test_a_bad_queue_is_refused(case: str, control_plane: Any) -> None:
    manifest, words = QUEUES[case]
    assert words in control_plane.refusal(manifest)


def test_a_flavour_may_be_named_once(control_plane: Any) -> None:
    manifest = queue_with()
    manifest["spec"]["quotas"].append(copy.deepcopy(manifest["spec"]["quotas"][0]))
    assert "Duplicate value" in control_plane.refusal(manifest)


def test_a_selector_needs_keys(control_plane: Any) -> None:
    manifest = queue_with()
    manifest["spec"]["namespaces"] = {"matchLabels": {"": "research"}}
    assert EMPTY_KEY in control_plane.refusal(manifest)


def test_a_selector_needs_values_for_in(control_plane: Any) -> None:
    manifest = queue_with()
    manifest["spec"]["namespaces"] = {"matchExpressions": [{"key": "team", "operator": "In"}]}
    assert "In and NotIn need values" in control_plane.refusal(manifest)


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ([], "spec.levels in body should have at least 1 items"),
        ([{"name": "a", "label": "x"}, {"name": "b", "label": "x"}], "two levels have the same label"),
        ([{"name": "a", "label": "x"}, {"name": "a", "label": "y"}], "Duplicate value"),
        ([{"name": "a", "label": "not a label"}], "use a label key such as"),
    ],
)
def test_a_bad_topology_is_refused(levels: list[Object], words: str, control_plane: Any) -> None:
    manifest = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Topology",
        "metadata": {"name": "refused"},
        "spec": {"levels": levels},
    }
    assert words in control_plane.refusal(manifest)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_reference_examples_are_taken(kind: str, control_plane: Any) -> None:
    control_plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=EXAMPLES[kind].replace("research", "default"))
