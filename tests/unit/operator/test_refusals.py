"""What the API server says of a pod that nobody has written is told of the job that somebody has."""

from __future__ import annotations

import pytest

from muster.api.effective import effective_spec
from muster.api.trainingjob import TrainingJobSpec
from muster.cluster.errors import ApiError
from muster.controllers.refusals import sentence

pytestmark = pytest.mark.unit

SPEC_VALUES = {
    "image": "i",
    "command": ["c"],
    "workers": {"replicas": 1},
    "serviceAccountName": "nope",
    "volumes": [{"name": "data", "emptyDir": {}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "dat", "mountPath": "/more"}],
}
SPEC = effective_spec(TrainingJobSpec.model_validate(SPEC_VALUES))
MOUNT = 'spec.containers[0].volumeMounts[3].name: Not found: "{}"'


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (
            422,
            f'Pod "train-rehearsal-e3457df8" is invalid: {MOUNT.format("dat")}',
            "spec.volumeMounts[1].name: there is no volume 'dat' in spec.volumes; did you mean 'data'? There are: data",
        ),
        (
            422,
            f'Pod "train-rehearsal-e3457df8" is invalid: [{MOUNT.format("dat")}, {MOUNT.format("own")}]',
            "spec.volumeMounts[1].name: there is no volume 'dat' in spec.volumes; did you mean 'data'? There are: data"
            "; podTemplate mounts a volume 'own': there is no volume 'own' in spec.volumes; there are: data",
        ),
        (
            422,
            f'Pod "train-rehearsal-e3457df8" is invalid: [{MOUNT.format("dat")}, spec.hostUsers: Forbidden: "x"]',
            f"the API server does not take the pods that the job makes: [{MOUNT.format('dat')}, spec.hostUsers: "
            'Forbidden: "x"]',
        ),
        (
            403,
            'pods "train-rehearsal-e3457df8" is forbidden: error looking up service account research/nope: '
            'serviceaccount "nope" not found',
            "spec.serviceAccountName: namespace 'research' has no ServiceAccount 'nope': make it "
            "(kubectl create serviceaccount nope -n research), or name another",
        ),
        (
            403,
            'pods "train-rehearsal-e3457df8" is forbidden: error looking up service account research/other: '
            'serviceaccount "other" not found',
            "the pods' service account: namespace 'research' has no ServiceAccount 'other': make it "
            "(kubectl create serviceaccount other -n research), or name another",
        ),
        (
            403,
            'pods "train-rehearsal-e3457df8" is forbidden: exceeded quota: compute, requested: pods=1',
            "namespace 'research' refuses the job's pods: exceeded quota: compute, requested: pods=1",
        ),
        (
            403,
            'admission webhook "signed.example.com" denied the request: the image is not signed',
            "namespace 'research' refuses the job's pods: admission webhook \"signed.example.com\" denied the request: "
            "the image is not signed",
        ),
    ],
)
def test_a_refused_rehearsal_is_told_of_the_job(status: int, said: str, told: str) -> None:
    assert sentence(ApiError(status, "Invalid", said), "research", SPEC, "muster-gang") == told


def test_a_misspelt_training_container_is_told_how_that_is_named() -> None:
    pod = {"metadata": {}, "spec": {"containers": [{"name": "trainer", "image": "i"}, {"name": "traner"}]}}
    said = 'Pod "train-rehearsal-e3457df8" is invalid: spec.containers[1].image: Required value'
    assert sentence(ApiError(422, "Invalid", said), "research", SPEC, "muster-gang", pod) == (
        "podTemplate.spec.containers: 'traner' is a container of its own, for the job has none of that name, and has "
        "no image: the training container is named 'trainer', in containers; name it so, or give 'traner' an image"
    )
    injected = said.replace("[1]", "[5]")
    assert "spec.containers[5].image: Required value" in sentence(
        ApiError(422, "Invalid", injected), "research", SPEC, "", pod
    )


def test_a_field_that_no_pod_has_is_told_by_its_path_in_the_job() -> None:
    said = 'Pod in version "v1" cannot be handled: strict decoding error: unknown field "spec.volumes[0].emptydir"'
    pod = {"metadata": {}, "spec": {"volumes": [{"name": "data", "emptydir": {}}]}}
    values = {**SPEC_VALUES, "volumes": [{"name": "data", "emptydir": {}}]}
    spec = effective_spec(TrainingJobSpec.model_validate(values))
    told = sentence(ApiError(400, "BadRequest", said), "research", spec, "muster-gang", pod)
    assert told.startswith("spec.volumes[0].emptydir: a pod has no such field")
