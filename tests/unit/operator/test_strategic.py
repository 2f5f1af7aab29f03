"""The override merges as `kubectl patch --type strategic` would merge it."""

from typing import Any

import pytest

from muster.cluster.strategic import MergeError, merge

pytestmark = pytest.mark.unit


def trainer(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **fields}]}}


def test_mappings_merge_and_null_deletes() -> None:
    base = {"metadata": {"labels": {"a": "1", "b": "2"}}}
    patch = {"metadata": {"labels": {"b": None, "c": "3"}, "annotations": {"x": "y"}}}
    assert merge(base, patch) == {"metadata": {"labels": {"a": "1", "c": "3"}, "annotations": {"x": "y"}}}


def test_neither_side_is_changed() -> None:
    base, patch = trainer(env=[{"name": "A", "value": "1"}]), trainer(env=[{"name": "B", "value": "2"}])
    merge(base, patch)
    assert base == trainer(env=[{"name": "A", "value": "1"}])
    assert patch == trainer(env=[{"name": "B", "value": "2"}])


def test_containers_merge_by_name_and_new_ones_are_appended() -> None:
    patch = {"spec": {"containers": [{"name": "log", "image": "l"}, {"name": "trainer", "tty": True}]}}
    assert merge(trainer(image="t"), patch)["spec"]["containers"] == [
        {"name": "trainer", "image": "t", "tty": True},
        {"name": "log", "image": "l"},
    ]


def test_env_merges_by_name_and_a_source_takes_the_place_of_a_value() -> None:
    base = trainer(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    patch = trainer(env=[{"name": "A", "valueFrom": source}, {"name": "C", "value": "3"}])
    assert merge(base, patch)["spec"]["containers"][0]["env"] == [
        {"name": "A", "valueFrom": source},
        {"name": "B", "value": "2"},
        {"name": "C", "value": "3"},
    ]


def test_a_volume_has_one_source() -> None:
    base = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]}}
    patch = {
        "spec": {
            "volumes": [{"name": "v", "hostPath": {"path": "/x"}}, {"name": "w", "emptyDir": {"medium": "Memory"}}]
        }
    }
    assert merge(base, patch)["spec"]["volumes"] == [
        {"name": "v", "hostPath": {"path": "/x"}},
        {"name": "w", "emptyDir": {"medium": "Memory"}},
    ]


def test_mounts_merge_by_path_and_ports_by_number() -> None:
    base = trainer(volumeMounts=[{"mountPath": "/a", "name": "a"}], ports=[{"containerPort": 1, "name": "one"}])
    patch = trainer(volumeMounts=[{"mountPath": "/a", "readOnly": True}], ports=[{"containerPort": 2}])
    merged = merge(base, patch)["spec"]["containers"][0]
    assert merged["volumeMounts"] == [{"mountPath": "/a", "name": "a", "readOnly": True}]
    assert merged["ports"] == [{"containerPort": 1, "name": "one"}, {"containerPort": 2}]


def test_lists_without_a_key_are_replaced_whole() -> None:
    base = {"spec": {"tolerations": [{"key": "a"}], "containers": [{"name": "trainer", "args": ["1", "2"]}]}}
    patch = {"spec": {"tolerations": [{"key": "b"}], "containers": [{"name": "trainer", "args": ["3"]}]}}
    assert merge(base, patch)["spec"] == {
        "tolerations": [{"key": "b"}],
        "containers": [{"name": "trainer", "args": ["3"]}],
    }


def test_directives() -> None:
    base = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]}}
    deleted = merge(base, {"spec": {"volumes": [{"name": "v", "$patch": "delete"}]}})
    assert deleted["spec"]["volumes"] == [{"name": "w", "emptyDir": {}}]
    replaced = merge(base, {"spec": {"volumes": [{"$patch": "replace"}, {"name": "z", "emptyDir": {}}]}})
    assert replaced["spec"]["volumes"] == [{"name": "z", "emptyDir": {}}]
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"$patch": "replace", "d": 3}}) == {"a": {"d": 3}}
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"$retainKeys": ["c", "d"], "d": 3}}) == {"a": {"c": 2, "d": 3}}
    assert merge({"f": ["x", "y"]}, {"$deleteFromPrimitiveList/f": ["x"]}) == {"f": ["y"]}


@pytest.mark.parametrize(
    ("patch", "where"),
    [
        ({"spec": {"containers": [{"image": "x"}]}}, r"spec\.containers\[0\]: needs 'name'"),
        ({"spec": {"containers": {"name": "x"}}}, r"spec\.containers: must be a list"),
        ({"spec": ["x"]}, r"spec: must be a dict"),
        ({"spec": {"$patch": "remove"}}, r"spec\.\$patch: 'remove'"),
        ({"spec": {"$unknown": []}}, r"spec\.\$unknown: unknown directive"),
    ],
)
def test_what_cannot_be_merged_says_where(patch: dict[str, Any], where: str) -> None:
    with pytest.raises(MergeError, match=where):
        merge(trainer(), patch)
