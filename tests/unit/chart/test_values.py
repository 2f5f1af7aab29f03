"""values.yaml, its schema, and the templates that use it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from muster.api import chart_values
from muster.api.examples import EXAMPLES
from muster.cli.settings import Settings
from muster.sizing.currencies import CURRENCIES
from muster.sizing.prices import catalogue

pytestmark = pytest.mark.unit

CHART = Path(__file__).resolve().parents[3] / "charts" / "muster"
TEXT = (CHART / "values.yaml").read_text()
VALUES = yaml.safe_load(TEXT)
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
FOUND = chart_values.values(TEXT)
TEMPLATES = {path: path.read_text() for path in sorted((CHART / "templates").rglob("*")) if path.is_file()}
SOURCE = "\n".join(text for path, text in TEMPLATES.items() if path.parent.name != "crds") + "\n".join(
    text[:400] for path, text in TEMPLATES.items() if path.parent.name == "crds"
)


def leaves() -> list[str]:
    paths = [value.path for value in FOUND]
    return [path for path in paths if not any(other.startswith(f"{path}.") for other in paths)]


def test_values_are_found_at_every_depth() -> None:
    assert {"image.tag", "runtime.image.digest", "metrics.serviceMonitor.labels"} <= set(leaves())


@pytest.mark.parametrize("path", leaves())
def test_every_value_is_used_by_a_template(path: str) -> None:
    used = set(re.findall(r"\.Values\.([A-Za-z0-9.]+)", SOURCE))
    whole = set(re.findall(r"toYaml \.Values\.([A-Za-z0-9.]+)", SOURCE))
    image, _, field = path.rpartition(".")
    handed_over = image in used and re.search(rf"\.image\.{field}\b", SOURCE)
    assert path in used or image in whole or handed_over, f"no template uses {path}"


def test_every_used_value_exists() -> None:
    used = set(re.findall(r"\.Values\.([A-Za-z0-9.]+)", SOURCE))
    assert used <= {value.path for value in FOUND}


@pytest.mark.parametrize("value", FOUND, ids=lambda value: value.path)
def test_every_value_has_a_comment(value: chart_values.Value) -> None:
    assert len(value.comment) > 5
    assert value.comment.endswith(".")


def test_the_defaults_fit_the_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)


def closed(schema: dict[str, Any], path: str = "") -> list[str]:
    """Sections that take unknown keys."""
    if "properties" not in schema:
        return []
    inner = [found for name, field in schema["properties"].items() for found in closed(field, f"{path}.{name}")]
    return [*([] if schema.get("additionalProperties") is False else [path]), *inner]


def test_no_section_takes_unknown_keys() -> None:
    assert closed(SCHEMA) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"imge": {}},
        {"image": {"tga": "1"}},
        {"replicas": 0},
        {"replicas": "2"},
        {"image": {"pullPolicy": "Sometimes"}},
        {"podAnnotations": {"a": 1}},
        {"topology": {"levels": []}},
        {"topology": {"levels": [{"name": "rack"}]}},
        {"gangPriorityClass": {"value": 2000000000}},
        {"log": {"level": "LOUD"}},
        {"tolerations": ["gpu"]},
        {"networkPolicy": {"metricsFrom": ["monitoring"]}},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(over(VALUES, wrong), SCHEMA)


def over(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """As Helm lays one over the other."""
    given = {name: over(values[name], of) if isinstance(values.get(name), dict) else of for name, of in more.items()}
    return values | given


def without(values: dict[str, Any], path: str) -> dict[str, Any]:
    """As Helm does where the value is null."""
    name, _, inner = path.partition(".")
    if inner:
        return values | {name: without(values[name], inner)}
    return {other: of for other, of in values.items() if other != name}


@pytest.mark.parametrize("path", [value.path for value in FOUND])
def test_what_is_set_to_null_is_refused_but_maps_and_lists_of_the_users(path: str) -> None:
    default = VALUES
    for name in path.split("."):
        default = default[name]
    filled_by_users = path in leaves() and isinstance(default, dict | list)
    wrong = list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(without(VALUES, path)))
    assert [error.validator for error in wrong] == ([] if filled_by_users else ["required"])


def test_no_pattern_is_in_the_schema() -> None:
    """Helm would tell it as it stands there; templates/_refusals.tpl has sentences."""
    assert '"pattern"' not in (CHART / "values.schema.json").read_text()


def listed(name: str) -> str:
    """What a template of that name says."""
    refusals = (CHART / "templates" / "_refusals.tpl").read_text()
    return refusals.partition(f'define "muster.{name}" -}}}}\n')[2].partition("\n{{- end }}")[0]


def test_the_chart_knows_the_regions_of_the_list_prices() -> None:
    assert listed("listRegions").split(", ") == sorted(catalogue().regions)


def test_the_chart_knows_the_currencies_that_the_operator_knows() -> None:
    assert listed("currencies").split() == sorted(CURRENCIES)


def test_the_default_topology_is_the_documented_one() -> None:
    documented = yaml.safe_load(EXAMPLES["Topology"])["spec"]["levels"]
    assert [(level["name"], level["label"]) for level in VALUES["topology"]["levels"]] == [
        (level["name"], level["label"]) for level in documented
    ]


def test_the_operator_knows_every_setting_that_the_chart_gives() -> None:
    given = set(re.findall(r"name: MUSTER_OPERATOR_([A-Z_]+)", SOURCE))
    assert given
    assert given <= {name.upper() for name in Settings.model_fields}


def test_the_chart_and_the_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (CHART.parents[1] / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
    assert chart["version"] == chart["appVersion"]


def test_a_default_of_no_plain_type_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2"):
        chart_values.schema("# A value.\na: null\n")
