"""A field that a pod does not have is told by its path in the job."""

from __future__ import annotations

import pytest

from muster.cluster.errors import ApiError
from muster.cluster.unknown_fields import path_in_job, sentence, unknown_fields

pytestmark = pytest.mark.unit

TEMPLATE = {
    "spec": {
        "nodeselector": {"disk": "ssd"},
        "containers": [
            {"name": "beside", "image": "i"},
            {"name": "trainer", "resorces": {}, "env": [{"name": "B", "valuefrom": {}}]},
        ],
        "volumes": [{"name": "late", "emptydir": {}}],
        "dnsConfig": {"options": [{"nam": "x"}]},
    }
}
VOLUMES = [{"name": "good", "emptyDir": {}}, {"name": "scripts", "configmap": {"name": "s"}}]
POD = {
    "metadata": {},
    "spec": {
        **TEMPLATE["spec"],
        "containers": [
            {"name": "trainer", "resorces": {}, "env": [{"name": "A"}, {"name": "B", "valuefrom": {}}]},
            {"name": "beside", "image": "i"},
        ],
        "volumes": [{"name": "muster"}, {"name": "shm"}, *VOLUMES, {"name": "late", "emptydir": {}}],
    },
}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("spec.nodeselector", "spec.podTemplate.spec.nodeselector"),
        ("spec.containers[0].resorces", "spec.podTemplate.spec.containers[1].resorces"),
        ("spec.containers[0].env[1].valuefrom", "spec.podTemplate.spec.containers[1].env[0].valuefrom"),
        ("spec.volumes[3].configmap", "spec.volumes[1].configmap"),
        ("spec.volumes[4].emptydir", "spec.podTemplate.spec.volumes[0].emptydir"),
        ("spec.dnsConfig.options[0].nam", "spec.podTemplate.spec.dnsConfig.options[0].nam"),
        ("spec.hostname", "spec.hostname"),
        ("spec.volumes[9].x", "spec.volumes[9].x"),
    ],
)
def test_a_path_in_the_pod_is_told_as_the_one_in_the_job(path: str, told: str) -> None:
    assert path_in_job(path, POD, TEMPLATE, VOLUMES) == told


def test_a_job_without_a_template_has_volumes() -> None:
    assert path_in_job("spec.volumes[3].configmap", POD, None, VOLUMES) == "spec.volumes[1].configmap"


def test_all_of_them_are_told_in_one_sentence_with_where_to_look() -> None:
    said = (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field '
        '"spec.containers[0].resorces", unknown field "spec.nodeselector"'
    )
    found = unknown_fields(ApiError(400, "BadRequest", said))
    assert sentence(found, POD, TEMPLATE, VOLUMES) == (
        "spec.podTemplate.spec.containers[1].resorces, spec.podTemplate.spec.nodeselector: a pod has no such fields, "
        "upper and lower case count: correct or remove them; those that there are:  kubectl explain "
        "pod.spec.containers, kubectl explain pod.spec"
    )
    assert not unknown_fields(ApiError(422, "Invalid", said))
    assert not unknown_fields(ApiError(400, "BadRequest", 'unknown field "x"'))
