"""Jobs that are read share what is the same in them, and are as if they did not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from muster.api.trainingjob import TrainingJob
from muster.cluster.reading import read_job

pytestmark = pytest.mark.unit


def raw(name: str, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "research", "uid": name, "resourceVersion": "7"},
        "spec": {
            "queue": "default",
            "image": "registry.example/train:1",
            "command": ["python", "train.py"],
            "workers": {"replicas": 2},
        },
        **({"status": status} if status else {}),
    }


CONDITION = {
    "type": "Admitted",
    "status": "False",
    "reason": "QuotaExceeded",
    "message": "its queue has none left",
    "lastTransitionTime": "2026-11-25T10:00:00Z",
}


@pytest.mark.parametrize("status", [{}, {"phase": "Queued", "conditions": [CONDITION], "position": 3}])
def test_a_job_is_as_pydantic_alone_would_read_it(status: dict[str, Any]) -> None:
    read, plain = read_job(raw("a", **status)), TrainingJob.model_validate(raw("a", **status))
    assert read.model_dump() == plain.model_dump()
    assert read.status.model_fields_set == plain.status.model_fields_set
    assert read.model_dump(exclude_unset=True)["metadata"] == plain.model_dump(exclude_unset=True)["metadata"]


def test_jobs_share_their_specs_and_the_sets_of_fields_that_were_given() -> None:
    one, other = (read_job(raw(name, phase="Queued", conditions=[CONDITION])) for name in "ab")
    assert one.spec is other.spec
    assert one.metadata.model_fields_set is other.metadata.model_fields_set
    assert one.status.conditions[0].model_fields_set is other.status.conditions[0].model_fields_set


def test_a_copy_that_is_given_more_leaves_the_shared_set_as_it_is() -> None:
    one, other = (read_job(raw(name, phase="Queued")) for name in "ab")
    copy = one.status.model_copy(update={"position": 5})
    assert "position" in copy.model_fields_set
    assert "position" not in other.status.model_fields_set


def test_a_bad_spec_is_told_with_its_place_in_the_whole_object() -> None:
    bad = raw("a")
    bad["spec"]["workers"]["replicas"] = "many"
    with pytest.raises(ValidationError) as caught:
        read_job(bad)
    assert caught.value.errors()[0]["loc"][0] == "spec"
