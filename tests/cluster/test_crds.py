"""The kinds as a real API server serves them: changes, scale, columns, explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
import yaml

from muster.api.crd import custom_resource_definition
from muster.api.effective import effective_spec
from muster.api.kinds import KINDS
from muster.api.names import Phase
from muster.api.placement import Placement
from muster.api.queue_position import Lacking
from muster.api.rules import FROZEN_AT_THE_END, FROZEN_WHILE_ADMITTED
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import Growth, Progress, TrainingJobStatus

from .conftest import ROOT

pytestmark = pytest.mark.cluster

Object = dict[str, Any]

ADMITTED = {
    "conditions": [
        {
            "type": "Admitted",
            "status": "True",
            "reason": "Admitted",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
    ]
}

FULL: Object = {
    "queue": "research",
    "image": "example/train:1",
    "command": ["python", "train.py"],
    "args": ["--lr", "1"],
    "workers": {
        "spares": 1,
        "replicas": 2,
        "gpusPerWorker": 8,
        "gpuType": "H100",
        "processesPerWorker": 8,
        "resources": {"requests": {"cpu": "4"}},
    },
    "parallelism": {"strategy": "ddp"},
    "preemptible": True,
    "topology": {"mode": "required", "level": "rack"},
    "checkpoint": {"uri": "s3://models/tiny"},
    "tracking": {"uri": "https://mlflow.example.com"},
    "env": [{"name": "A", "value": "b"}],
    "envFrom": [{"secretRef": {"name": "s"}}],
    "volumes": [{"name": "data", "emptyDir": {}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "nodeSelector": {"pool": "a"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "serviceAccountName": "trainer",
}

OTHER: Object = {
    "queue": "other",
    "image": "example/train:2",
    "command": ["python", "other.py"],
    "args": ["--lr", "2"],
    "workers.spares": 2,
    "workers.gpusPerWorker": 16,
    "workers.gpuType": "H200",
    "workers.processesPerWorker": 4,
    "workers.resources": {"requests": {"cpu": "8"}},
    "parallelism": {"strategy": "fsdp"},
    "topology": {"mode": "preferred", "level": "rack"},
    "preemptible": False,
    "checkpoint.uri": "s3://models/other",
    "tracking": {"uri": "https://other.example.com"},
    "env": [{"name": "A", "value": "c"}],
    "envFrom": [{"secretRef": {"name": "t"}}],
    "volumeMounts": [{"name": "data", "mountPath": "/elsewhere"}],
    "nodeSelector": {"pool": "b"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "serviceAccountName": "other",
}

REMOVABLE = sorted(set(FROZEN_WHILE_ADMITTED) - {"queue", "image", "command", "workers.gpusPerWorker"})


def change(manifest: Object, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    target = manifest["spec"]
    for name in parents:
        target = target[name]
    if value is None:
        target.pop(last)
    else:
        target[last] = value


@pytest.fixture
def admitted(control_plane: Any, job: Object) -> Object:
    """The manifest of a job that the operator has admitted."""
    job["spec"] = yaml.safe_load(yaml.safe_dump(FULL))
    control_plane.apply(job)
    control_plane.set_status(job["metadata"]["namespace"], "tiny", ADMITTED)
    return job


def test_every_frozen_field_has_its_case() -> None:
    assert set(OTHER) == set(FROZEN_WHILE_ADMITTED)


@pytest.mark.parametrize("path", FROZEN_WHILE_ADMITTED)
def test_a_frozen_field_is_refused_with_the_way_out_and_the_way_out_works(
    path: str, control_plane: Any, admitted: Object
) -> None:
    change(admitted, path, OTHER[path])
    said = control_plane.refusal(admitted)
    assert "spec: Forbidden" in said
    assert f"{path} cannot change while the job is admitted: set spec.suspend to true" in said
    admitted["spec"]["suspend"] = True
    control_plane.apply(admitted)


@pytest.mark.parametrize("path", REMOVABLE)
def test_a_frozen_field_can_neither_go_nor_appear(path: str, control_plane: Any, admitted: Object) -> None:
    value = yaml.safe_load(yaml.safe_dump(admitted))
    change(admitted, path, None) if path != "checkpoint.uri" else admitted["spec"].pop("checkpoint")
    assert f"{path} cannot change while the job is admitted" in control_plane.refusal(admitted)
    admitted["metadata"]["name"] = value["metadata"]["name"] = "without"
    control_plane.apply(admitted)
    control_plane.set_status(admitted["metadata"]["namespace"], "without", ADMITTED)
    assert f"{path} cannot change while the job is admitted" in control_plane.refusal(value)


def test_fields_may_change_while_the_job_waits(control_plane: Any, job: Object) -> None:
    control_plane.apply(job)
    job["spec"]["image"] = "example/train:2"
    control_plane.apply(job)
    waiting = {"conditions": [{**ADMITTED["conditions"][0], "status": "False", "reason": "QuotaExceeded"}]}
    control_plane.set_status(job["metadata"]["namespace"], "tiny", waiting)
    job["spec"]["image"] = "example/train:3"
    control_plane.apply(job)


def test_other_fields_may_change_while_the_job_is_admitted(control_plane: Any, admitted: Object) -> None:
    admitted["spec"] |= {"maxRuntime": "1h", "priorityClassName": "high", "restart": {"limit": 7}}
    control_plane.apply(admitted)


LATE: Object = {
    "workers": {"replicas": 3},
    "capacity": {"order": ["spot"]},
    "disruptionBudget": {"preemptions": 1},
    "priorityClassName": "high",
    "checkpoint": {"uri": "s3://models/other"},
    "restart": {"limit": 9},
    "hang": {"step": "5m"},
    "numerics": {"action": "stop"},
    "health": {"preflight": False},
    "readyTimeout": "1h",
    "maxRuntime": "2h",
    "window": {"start": "0 22 * * *", "duration": "8h"},
    "deadline": "2026-12-01T08:00:00Z",
    "budget": {"gpuHours": 8},
    "suspend": True,
    "volumes": [{"name": "other", "emptyDir": {}}],
    "podTemplate": {"spec": {"hostNetwork": True}},
    "imagePullSecrets": [{"name": "pull"}],
    "terminationGracePeriod": "5m",
}


@pytest.mark.parametrize("path", FROZEN_AT_THE_END)
def test_an_ended_job_refuses_what_would_do_nothing(path: str, control_plane: Any, admitted: Object) -> None:
    ended = {"conditions": [{**ADMITTED["conditions"][0], "status": "False"}], "finishedAt": "2026-01-01T01:00:00Z"}
    control_plane.set_status(admitted["metadata"]["namespace"], "tiny", ended)
    admitted["spec"][path] = LATE.get(path, OTHER.get(path))
    said = control_plane.refusal(admitted)
    assert "spec: Forbidden: the job has ended, and nothing starts it again: delete it and apply it" in said


def test_an_ended_job_takes_the_same_again_and_what_still_does_something(control_plane: Any, admitted: Object) -> None:
    where = admitted["metadata"]["namespace"]
    control_plane.set_status(where, "tiny", {"conditions": None, "finishedAt": "2026-01-01T01:00:00Z"})
    control_plane.apply(admitted)
    admitted["spec"]["ttlAfterFinished"] = "1h"
    admitted["metadata"] |= {"labels": {"kept": "no"}, "annotations": {"note": "done"}}
    control_plane.apply(admitted)
    control_plane.set_status(where, "tiny", {"phase": "Failed", "finishedAt": None})
    admitted["spec"]["image"] = "example/train:2"
    control_plane.apply(admitted)


def scale(control_plane: Any, job: Object, replicas: int) -> Any:
    where = ("-n", job["metadata"]["namespace"])
    return control_plane.kubectl("scale", "tj", "tiny", *where, f"--replicas={replicas}", check=False)


def test_scale_of_a_job_that_is_not_elastic_is_refused_with_the_way_out(control_plane: Any, job: Object) -> None:
    control_plane.apply(job)
    control_plane.set_status(job["metadata"]["namespace"], "tiny", ADMITTED)
    done = scale(control_plane, job, 3)
    assert done.returncode != 0
    told = (
        "this job is not elastic, so its number of workers cannot change while it is admitted: set spec.suspend to true"
    )
    assert told in done.stderr
    job["spec"]["suspend"] = True
    control_plane.apply(job)
    assert scale(control_plane, job, 3).returncode == 0


def test_a_suspended_job_is_resumed_with_another_number_of_workers_in_one_edit(control_plane: Any, job: Object) -> None:
    job["spec"]["suspend"] = True
    control_plane.apply(job)
    job["spec"]["suspend"] = False
    job["spec"]["workers"]["replicas"] = 3
    control_plane.apply(job)
    control_plane.set_status(job["metadata"]["namespace"], "tiny", ADMITTED)
    job["spec"]["workers"]["replicas"] = 2
    assert "this job is not elastic" in control_plane.refusal(job)


def test_a_job_that_waits_may_ask_for_fewer_workers(control_plane: Any, job: Object) -> None:
    """As `muster explain` says to who asks for more than the cluster has."""
    control_plane.apply(job)
    assert scale(control_plane, job, 1).returncode == 0
    waits = yaml.safe_load(yaml.safe_dump(ADMITTED))
    waits["conditions"][0] |= {"status": "False", "reason": "ExceedsCluster"}
    control_plane.set_status(job["metadata"]["namespace"], "tiny", waits)
    assert scale(control_plane, job, 3).returncode == 0


def test_scale_of_an_elastic_job_keeps_within_its_bounds(control_plane: Any, job: Object) -> None:
    job["spec"]["workers"] |= {"min": 1, "max": 4}
    control_plane.apply(job)
    assert scale(control_plane, job, 4).returncode == 0
    done = scale(control_plane, job, 5)
    assert done.returncode != 0
    assert "replicas is greater than max" in done.stderr


def test_the_scale_subresource_shows_the_size_and_the_selector(control_plane: Any, job: Object) -> None:
    control_plane.apply(job)
    name, where = job["metadata"]["name"], job["metadata"]["namespace"]
    control_plane.set_status(where, name, {"replicas": 2, "selector": "muster.dev/job=tiny"})
    shown = control_plane.get("tj", name, "-n", where, "--subresource=scale")
    assert shown["spec"] == {"replicas": 2}
    assert shown["status"] == {"replicas": 2, "selector": "muster.dev/job=tiny"}


def test_a_plain_apply_cannot_write_the_status(control_plane: Any, job: Object) -> None:
    control_plane.apply({**job, "status": {"phase": "Succeeded"}})
    assert "status" not in control_plane.get("tj", "tiny", "-n", job["metadata"]["namespace"])


def test_a_job_from_the_api_server_reads_as_the_model(control_plane: Any, admitted: Object) -> None:
    raw = control_plane.get("tj", "tiny", "-n", admitted["metadata"]["namespace"])
    job = TrainingJob.from_raw(raw)
    assert job.to_raw()["spec"] == raw["spec"]
    assert job.status.conditions[0].type == "Admitted"
    assert effective_spec(job.spec).world_size == 16


def test_a_whole_status_is_taken_and_read_back(control_plane: Any, job: Object) -> None:
    control_plane.apply(job)
    status = TrainingJobStatus(
        phase=Phase.RUNNING,
        placement=Placement.of(
            2, ["node-a"] * 4 + ["node-b"] * 2, attempts={5: 1}, base=4, capacity="on-demand", beyond="spot"
        ),
        growth=Growth(
            reason="InsufficientCapacity",
            message="one is missing",
            workers=8,
            not_before=datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
            lacking=Lacking(resource="nvidia.com/gpu", amount="8", placeable=0),
            kept_for="research/big",
        ),
        workers="6/8",
        progress=Progress(step=40, total_steps=100, steps_per_second="1.5"),
        conditions=TrainingJob.from_raw({**job, "status": ADMITTED}).status.conditions,
        gpus=48,
        nodes="node-a, node-b",
    )
    where = job["metadata"]["namespace"]
    control_plane.set_status(where, "tiny", status.to_raw())
    read = TrainingJob.from_raw(control_plane.get("tj", "tiny", "-n", where)).status
    assert read == status
    assert read.placement is not None
    assert read.placement.node_of_index() == ("node-a",) * 4 + ("node-b",) * 2


def test_kubectl_get_shows_the_columns(control_plane: Any, job: Object) -> None:
    control_plane.apply(job)
    where = job["metadata"]["namespace"]
    waiting = {"reason": "QuotaExceeded", "message": "8 GPUs are missing", "position": 3}
    control_plane.set_status(where, "tiny", {"phase": "Queued", "workers": "1/2", "gpus": 16, "queue": waiting})
    header, row = control_plane.kubectl("get", "tj", "-n", where).stdout.splitlines()
    assert header.split() == ["NAME", "PHASE", "QUEUE", "WORKERS", "GPUS", "STEP", "REASON", "AGE"]
    assert row.split()[:5] == ["tiny", "Queued", "default", "1/2", "16"]
    assert "QuotaExceeded" in row
    wide = control_plane.kubectl("get", "tj", "-n", where, "-o", "wide").stdout
    assert "8 GPUs are missing" in wide
    assert _column(wide, "POSITION") == "3"
    control_plane.set_status(where, "tiny", {"queue": {"reason": "QueueNotFound", "position": None}})
    wide = control_plane.kubectl("get", "tj", "-n", where, "-o", "wide").stdout
    assert _column(wide, "POSITION") == "", "it is not in the order"


def test_the_api_server_takes_every_example(control_plane: Any) -> None:
    others = {"simulator", "cost"}  # files that are no objects
    paths = sorted(path for path in (ROOT / "examples").rglob("*.yaml") if path.parent.name not in others)
    assert len(paths) > 30
    taken = control_plane.kubectl("apply", "--dry-run=server", *(f"--filename={path}" for path in paths)).stdout
    assert len(taken.splitlines()) >= len(paths)


def _column(table: str, title: str) -> str:
    """What one row says in a column, by where the columns begin."""
    header, row = table.splitlines()
    return row[header.index(title) :].split("  ")[0].strip()


def test_objects_go_without_an_operator(control_plane: Any, job: Object) -> None:
    control_plane.apply(job)
    name = job["metadata"]["namespace"]
    control_plane.kubectl("delete", "tj", "tiny", "-n", name, "--timeout=20s")
    control_plane.apply(job)
    control_plane.kubectl("delete", "namespace", name, "--timeout=60s")
    control_plane.kubectl("create", "namespace", name)  # the fixture deletes it


def test_the_category_lists_all_kinds(control_plane: Any, job: Object) -> None:
    control_plane.apply(job)
    shown = control_plane.kubectl("get", "muster", "-n", job["metadata"]["namespace"]).stdout
    assert "trainingjob.muster.dev/tiny" in shown


def every_path(schema: Object, path: str) -> Iterator[str]:
    yield path
    item = schema.get("items", schema)
    for name, field in item.get("properties", {}).items():
        yield from every_path(field, f"{path}.{name}")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kubectl_explains_every_field(kind: Any, control_plane: Any) -> None:
    shown = control_plane.kubectl("explain", kind.plural, "--recursive").stdout
    schema = custom_resource_definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    paths = [path for name in ("spec", "status") for path in every_path(schema["properties"][name], name)]
    for path in paths:
        assert path.rsplit(".", 1)[-1] in shown
    one: Callable[[str], str] = lambda path: control_plane.kubectl("explain", f"{kind.short}.{path}").stdout  # noqa: E731
    assert "DESCRIPTION:" in one("spec")
    assert "<empty>" not in one("spec")


def test_the_api_server_stores_defaults_only_for_queue_and_suspend(control_plane: Any, job: Object) -> None:
    control_plane.apply(job)
    stored = control_plane.get("tj", "tiny", "-n", job["metadata"]["namespace"])["spec"]
    assert stored == {**job["spec"], "queue": "default", "suspend": False}
