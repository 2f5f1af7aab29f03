"""What the API server says of a pod that nobody has written is told of the job that somebody has."""

from __future__ import annotations

import pytest

from muster.api.effective import effective_spec
from muster.api.trainingjob import TrainingJobSpec
from muster.cluster.errors import ApiError
from muster.controllers.refusals import sentence

pytestmark = pytest.mark.unit

SPEC = effective_spec(
    TrainingJobSpec.model_validate(
        {
            "image": "i",
            "command": ["c"],
            "workers": {"replicas": 1},
            "serviceAccountName": "nope",
            "volumes": [{"name": "data", "emptyDir": {}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "dat", "mountPath": "/more"}],
        }
    )
)
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
