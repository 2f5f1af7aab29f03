"""The YAML of the documentation, as it stands there, on a real API server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from muster.api.crd import custom_resource_definition
from muster.api.kinds import KINDS

from .conftest import ROOT, ControlPlane

pytestmark = pytest.mark.cluster

Object = dict[str, Any]

PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
NO_OBJECTS = {"docs/autoscaling.md", "docs/cost.md", "docs/simulator.md", "docs/time.md"}
"""Pages with YAML that is for the chart, for pods, or for a file of our own."""

BESIDE: dict[str, Object] = {
    "TrainingJob": {
        "image": "example/train:1",
        "command": ["python", "train.py"],
        "workers": {"replicas": 16, "gpusPerWorker": 8},
        "checkpoint": {"uri": "s3://models/documented"},
    },
    "TrainingQueue": {},
}
"""What a part of a spec is tried with."""


def fields() -> dict[str, set[str]]:
    """The fields of each kind's spec, by kind."""
    found = {}
    for kind in KINDS:
        definition = custom_resource_definition(kind)["spec"]
        schema = definition["versions"][0]["schema"]["openAPIV3Schema"]
        found[definition["names"]["kind"]] = set(schema["properties"]["spec"]["properties"])
    return found


def blocks() -> Iterator[tuple[str, Object]]:
    for page in sorted(PAGES):
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for document in yaml.safe_load_all(block):
                yield str(page.relative_to(ROOT)), document


def whole(document: Object, known: dict[str, set[str]]) -> Object | None:
    """The object that a block is, or is a part of; None of what is no part of any kind."""
    if "kind" in document:
        metadata = {key: value for key, value in document["metadata"].items() if key != "namespace"}
        return {**document, "metadata": metadata}
    spec = document.get("spec", document)
    kind = next((kind for kind in BESIDE if set(spec) <= known[kind]), None)
    if kind is None:
        return None
    metadata = {"name": "documented"}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": {**BESIDE[kind], **spec}}


def test_the_api_server_takes_the_yaml_of_every_page(control_plane: ControlPlane) -> None:
    known = fields()
    taken, refused = 0, []
    for page, document in blocks():
        found = whole(document, known)
        if found is None:
            assert page in NO_OBJECTS, f"{page}: {document} is part of no kind's spec"
            continue
        done = control_plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(found), check=False)
        taken += 1
        refused += [f"{page}: {done.stderr}"] if done.returncode else []
    assert refused == []
    assert taken >= 20
