"""The CRDs as API servers demand them, and Kubernetes' own habits."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from muster.api import generate, names
from muster.api.builtin import BUILT_IN
from muster.api.crd import CATEGORY, attribute_docs, custom_resource_definition
from muster.api.kinds import KINDS, TRAINING_JOB
from muster.api.rules import FROZEN_AT_THE_END
from muster.scheduling.plan import MoveReason, WaitReason

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
Schema = dict[str, Any]


def root(kind: Any) -> Schema:
    schema: Schema = custom_resource_definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from walk(field, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


NODES = [(path, node) for kind in KINDS for path, node in walk(root(kind), kind.name)]
FIELDS = [(path, node) for path, node in NODES if ".spec" in path or ".status" in path]


def ids(cases: list[tuple[str, Schema]]) -> Any:
    return {"argvalues": cases, "ids": [path for path, _ in cases]}


def test_kubernetes_before_1_34_takes_the_rules_too() -> None:
    """To them a number or text is as long as a request may be, and a rule about each in a list is too dear."""
    many = [(path, node) for path, node in NODES if "[]" in path or "{}" in path]
    assert [path for path, node in many if "x-kubernetes-int-or-string" in node], "there are some"
    for path, node in many:
        assert not ("x-kubernetes-int-or-string" in node and "x-kubernetes-validations" in node), path


def test_generated_files_are_up_to_date() -> None:
    assert generate.differing(ROOT) == [], "run `make generate`"


def test_check_says_what_is_out_of_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "charts/muster").mkdir(parents=True)
    (tmp_path / "charts/muster/values.yaml").write_text((ROOT / "charts/muster/values.yaml").read_text())
    assert generate.main(["--check", "--root", str(tmp_path)]) == 1
    assert "crds/trainingjobs.yaml is out of date: run `make generate`" in capsys.readouterr().err
    assert generate.main(["--root", str(tmp_path)]) == 0
    assert generate.main(["--check", "--root", str(tmp_path)]) == 0


@pytest.mark.parametrize(("path", "node"), **ids(NODES))
def test_every_node_has_a_type_that_is_no_float(path: str, node: Schema) -> None:
    if node.get("x-kubernetes-int-or-string"):
        assert "type" not in node
        return
    assert node["type"] in {"object", "array", "string", "integer", "boolean"}
    assert node.get("format") in {None, "int32", "int64", "date-time"}


@pytest.mark.parametrize(("path", "node"), **ids([(p, n) for p, n in NODES if n.get("type") == "integer"]))
def test_every_number_has_a_format(path: str, node: Schema) -> None:
    assert node["format"] in {"int32", "int64"}


@pytest.mark.parametrize(("path", "node"), **ids([(p, n) for p, n in FIELDS if n.get("type") == "string"]))
def test_every_text_has_a_longest_length(path: str, node: Schema) -> None:
    assert "maxLength" in node or "enum" in node or node.get("format") == "date-time"


@pytest.mark.parametrize(("path", "node"), **ids([(p, n) for p, n in NODES if n.get("type") == "array"]))
def test_every_list_has_a_type_and_a_longest_length(path: str, node: Schema) -> None:
    assert node["x-kubernetes-list-type"] in {"map", "set", "atomic"}
    assert "maxItems" in node
    keys = node.get("x-kubernetes-list-map-keys", [])
    fields = node["items"].get("properties", {})
    assert bool(keys) is (node["x-kubernetes-list-type"] == "map")
    for key in keys:
        assert key in node["items"].get("required", ()) or "default" in fields[key]


@pytest.mark.parametrize(("path", "node"), **ids([(p, n) for p, n in NODES if "additionalProperties" in n]))
def test_every_map_has_a_longest_length(path: str, node: Schema) -> None:
    assert "maxProperties" in node


@pytest.mark.parametrize(("path", "node"), **ids(FIELDS))
def test_every_field_is_explained(path: str, node: Schema) -> None:
    if not path.endswith(("[]", "{}")):
        assert len(node["description"]) > 5


@pytest.mark.parametrize(("path", "node"), **ids(FIELDS))
def test_defaults_are_stored_only_where_no_template_may_set_the_field(path: str, node: Schema) -> None:
    allowed = {"queue", "suspend", "gpuType", "capacity", "timeZone", "weight", "stopPolicy"}
    allowed |= {"order", "withinQueue", "reclaim", "whenBorrowing"}
    assert "default" not in node or path.rsplit(".", 1)[-1] in allowed


@pytest.mark.parametrize(("path", "node"), **ids([(p, n) for p, n in NODES if "x-kubernetes-validations" in n]))
def test_every_rule_has_a_message(path: str, node: Schema) -> None:
    for rule in node["x-kubernetes-validations"]:
        assert len(rule["message"]) > 20
        assert len(rule["message"]) < 400
        assert "\n" not in rule["message"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_served_as_the_design_says(kind: Any) -> None:
    spec = custom_resource_definition(kind)["spec"]
    version = spec["versions"][0]
    assert (spec["group"], version["name"]) == ("muster.dev", "v1alpha1")
    assert spec["names"]["categories"] == [CATEGORY]
    assert version["subresources"]["status"] == {}
    assert version["additionalPrinterColumns"]
    status = root(kind)["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert "observedGeneration" in status
    assert "status" not in root(kind).get("required", ())


def test_short_names_and_scopes() -> None:
    assert {kind.name: (kind.short, kind.namespaced) for kind in KINDS} == {
        "TrainingJob": ("tj", True),
        "TrainingQueue": ("tq", False),
        "Topology": ("topo", False),
    }


def test_the_paths_of_columns_and_scale_exist() -> None:
    for kind in KINDS:
        paths = {path.removeprefix(kind.name) for path, _ in walk(root(kind), kind.name)}
        wanted = {column.path for column in kind.columns if "[" not in column.path}
        if kind.scale:
            wanted |= {kind.scale.spec_replicas, kind.scale.status_replicas, kind.scale.selector}
        assert wanted - paths == {".metadata.creationTimestamp"}


def test_documented_defaults_are_of_fields_that_exist() -> None:
    paths = {path.removeprefix("TrainingJob.") for path, _ in walk(root(TRAINING_JOB), "TrainingJob")}
    assert set(BUILT_IN) <= paths


ENUMS = [
    names.Phase,
    names.ConditionType,
    names.QueueConditionType,
    names.TopologyConditionType,
    names.Reason,
    names.EventReason,
    WaitReason,
    MoveReason,
]


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_every_name_is_one_camel_case_word_and_says_what_it_means(enum: type[Enum]) -> None:
    docs = attribute_docs(enum.__module__)[enum.__name__]
    for member in enum:
        assert member.value.isalnum()
        assert member.value[0].isupper()
        assert member.name in docs


def test_the_planners_reasons_and_ours_do_not_clash() -> None:
    values = [reason.value for enum in (WaitReason, MoveReason, names.Reason) for reason in enum]
    assert len(set(values)) == len(values)


def test_every_field_of_a_job_is_frozen_at_its_end_but_the_one_that_counts_from_there() -> None:
    fields = set(root(TRAINING_JOB)["properties"]["spec"]["properties"])
    assert fields - set(FROZEN_AT_THE_END) == {"ttlAfterFinished"}
    assert set(FROZEN_AT_THE_END) <= fields
