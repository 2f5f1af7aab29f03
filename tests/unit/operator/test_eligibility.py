"""Node selectors, affinity terms and taints are judged as kube-scheduler judges them."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from muster.cluster.eligibility import Matcher, filter_of_pod, tolerated
from muster.cluster.volumes import reach, reach_of_class

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True)
class Node:
    name: str = "n1"
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


def allows(spec: dict[str, Any], node: Node, **extra: Any) -> bool:
    return Matcher(filter_of_pod(spec, **extra)).allows(node)


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_node_selector() -> None:
    assert allows({"nodeSelector": {"a": "1"}}, Node(labels={"a": "1", "b": "2"}))
    assert not allows({"nodeSelector": {"a": "1", "c": "3"}}, Node(labels={"a": "1"}))


@pytest.mark.parametrize(
    ("operator", "values", "labels", "expected"),
    [
        ("In", ["1", "2"], {"a": "2"}, True),
        ("In", ["1"], {}, False),
        ("NotIn", ["1"], {}, True),
        ("NotIn", ["1"], {"a": "1"}, False),
        ("Exists", [], {"a": ""}, True),
        ("Exists", [], {}, False),
        ("DoesNotExist", [], {}, True),
        ("DoesNotExist", [], {"a": "x"}, False),
        ("Gt", ["5"], {"a": "6"}, True),
        ("Gt", ["5"], {"a": "5"}, False),
        ("Lt", ["5"], {"a": "4"}, True),
        ("Gt", ["5"], {"a": "many"}, False),
        ("Gt", ["5"], {}, False),
        ("Gt", ["5"], {"a": "1_000"}, False),
        ("Lt", ["5"], {"a": "-1"}, True),
        ("Gt", ["5"], {"a": "+6"}, True),
        ("Gt", ["5"], {"a": "9223372036854775807"}, True),
        ("Gt", ["5"], {"a": "9223372036854775808"}, False),
        ("Lt", ["9223372036854775808"], {"a": "5"}, False),
    ],
)
def test_operators(operator: str, values: list[str], labels: dict[str, str], expected: bool) -> None:
    assert allows(affinity(expression("a", operator, *values)), Node(labels=labels)) is expected


def test_terms_are_ored_and_their_parts_anded() -> None:
    either = affinity(expression("a", "In", "1"), expression("b", "In", "1"))
    assert allows(either, Node(labels={"b": "1"}))
    assert not allows(either, Node(labels={"c": "1"}))
    named = {
        **expression("a", "In", "1"),
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}],
    }
    assert not allows(affinity(named), Node("n1", {"a": "1"}))
    assert allows(affinity(named), Node("n2", {"a": "1"}))


def test_an_empty_term_matches_nothing() -> None:
    assert not allows(affinity({}), Node())


def test_taints_and_tolerations() -> None:
    gpu = Taint("nvidia.com/gpu", "present")
    assert not allows({}, Node(taints=(gpu,)))
    assert allows({"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}, Node(taints=(gpu,)))
    assert allows({"tolerations": [{"operator": "Exists"}]}, Node(taints=(gpu,)))
    assert not allows({"tolerations": [{"key": "nvidia.com/gpu", "value": "absent"}]}, Node(taints=(gpu,)))
    assert allows({}, Node(taints=(Taint("x", effect="PreferNoSchedule"),)))
    assert not tolerated(gpu, [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}])


@pytest.mark.parametrize(
    ("operator", "value", "has", "expected"),
    [
        ("Gt", "5", "6", True),
        ("Gt", "5", "5", False),
        ("Lt", "5", "5", False),
        ("Lt", "5", "-3", True),
        ("Lt", "5", "", False),
        ("Lt", "5", "03", False),
        ("Gt", "-1", "-0", False),
        ("Gt", "5", "+6", False),
        ("Gt", "5", "9223372036854775808", False),
        ("Gt", "9223372036854775807", "9223372036854775807", False),
        ("NotIn", "5", "5", False),
    ],
)
def test_taints_are_compared_as_whole_numbers(operator: str, value: str, has: str, expected: bool) -> None:
    toleration = {"key": "sla", "operator": operator, "value": value}
    assert allows({"tolerations": [toleration]}, Node(taints=(Taint("sla", has),))) is expected
    assert not allows({"tolerations": [{**toleration, "key": "other"}]}, Node(taints=(Taint("sla", has),)))


def test_what_is_tolerated_for_a_while_is_not_started_on() -> None:
    leaving = Node(taints=(Taint("example.com/maintenance", effect="NoExecute"),))
    toleration = {"key": "example.com/maintenance", "operator": "Exists"}
    assert allows({"tolerations": [toleration]}, leaving)
    for_a_while = {**toleration, "effect": "NoExecute", "tolerationSeconds": 300}
    assert not allows({"tolerations": [for_a_while]}, leaving)
    assert allows({"tolerations": [toleration, for_a_while]}, leaving), "the first that matches counts"
    assert not allows({"tolerations": [for_a_while, toleration]}, leaving)
    told = Matcher(filter_of_pod({"tolerations": [for_a_while]})).why_none([leaving])
    assert told.endswith("suit: example.com/maintenance:NoExecute (it does for tolerationSeconds only)")


def test_readiness_taints_are_left_to_the_snapshot() -> None:
    assert allows({}, Node(taints=(Taint("node.kubernetes.io/not-ready", effect="NoExecute"),)))


def test_avoided_nodes() -> None:
    assert not allows({}, Node("n1"), avoided={"n1"})
    assert allows({}, Node("n2"), avoided={"n1"})


def test_equal_demands_give_equal_filters() -> None:
    one = filter_of_pod({"nodeSelector": {"a": "1", "b": "2"}, "tolerations": [{"key": "k", "operator": "Exists"}]})
    two = filter_of_pod({"tolerations": [{"operator": "Exists", "key": "k"}], "nodeSelector": {"b": "2", "a": "1"}})
    assert one == two
    assert hash(one) == hash(two)


LABELLED = (Node("a", {"pool": "one", "zone": "x"}), Node("b", {"pool": "two", "zone": "y"}))
TAINTED = (
    Node("a", taints=(Taint("own", "x"), Taint("old", effect="NoExecute"))),
    Node("b", taints=(Taint("own", "x"),)),
)


@pytest.mark.parametrize(
    ("spec", "nodes", "told"),
    [
        ({"nodeSelector": {"pool": "nope"}}, LABELLED, "none has the label pool=nope (pool is one, two)"),
        ({"nodeSelector": {"rack": "r"}}, LABELLED, "none has the label rack=r"),
        ({"nodeSelector": {"pool": "one", "zone": "y"}}, LABELLED, "none has all of the labels pool=one, zone=y"),
        (affinity(expression("pool", "In", "three")), LABELLED, "none has what the required node affinity demands"),
        ({}, TAINTED, "it does not tolerate the taints of those whose labels suit: old:NoExecute, own=x:NoSchedule"),
        ({"tolerations": [{"key": "own", "operator": "Exists"}]}, TAINTED, ""),
        ({"nodeSelector": {"pool": "nope"}}, (), ""),
    ],
)
def test_what_no_node_has_is_named(spec: dict[str, Any], nodes: tuple[Node, ...], told: str) -> None:
    assert Matcher(filter_of_pod(spec)).why_none(nodes) == told


def test_a_node_that_is_avoided_and_tainted_is_told_by_its_taint() -> None:
    matcher = Matcher(filter_of_pod({}, avoided={"a", "b"}))
    assert matcher.why_none(TAINTED).endswith("old:NoExecute, own=x:NoSchedule")
    assert matcher.why_none((*TAINTED, Node("c"))) == "", "not by these: c takes it"
    assert Matcher(filter_of_pod({}, avoided={"a", "c"})).why_none((*TAINTED, Node("c"))).endswith("own=x:NoSchedule")


def test_a_taint_alone_keeps_a_pod_from_a_node() -> None:
    assert Matcher(filter_of_pod({}, avoided={"b"})).is_kept_by("own", TAINTED[1])
    assert not Matcher(filter_of_pod({})).is_kept_by("own", TAINTED[0]), "so does another"
    assert not Matcher(filter_of_pod({"nodeSelector": {"pool": "x"}})).is_kept_by("own", TAINTED[1])
    assert not Matcher(filter_of_pod({"tolerations": [{"operator": "Exists"}]})).is_kept_by("own", TAINTED[1])


def test_a_volume_is_used_where_it_lies_and_each_of_them_must_be() -> None:
    here, there, gone = (json.dumps([expression("zone", "In", value)]) for value in ("x", "y", "z"))
    assert allows({}, LABELLED[0], volumes=(("data", here),))
    assert not allows({}, LABELLED[1], volumes=(("data", here),))
    assert not allows({}, LABELLED[0], volumes=(("data", here), ("more", there)))
    assert not allows({}, LABELLED[0], volumes=(("data", "[]"),)), "terms are ORed"
    told = Matcher(filter_of_pod({}, volumes=(("data", here), ("more", gone)))).why_none(LABELLED)
    assert told == "none whose labels suit reaches the volume of PersistentVolumeClaim 'more'"


ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
HERE = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{}, expression("gpu", "Exists")]}}}


@pytest.mark.parametrize(
    ("labels", "spec", "node", "expected"),
    [
        ({ZONE: "a"}, {}, {ZONE: "a"}, True),
        ({ZONE: "a"}, {}, {ZONE: "b"}, False),
        ({ZONE: "a__b"}, {}, {ZONE: "b"}, True),
        ({ZONE: "a"}, {}, {"topology.kubernetes.io/region": "r"}, False),
        ({ZONE: "a"}, {}, {"gpu": "x"}, True),
        ({ZONE: ""}, {}, {ZONE: "b"}, True),
        ({OLD_ZONE: "a"}, {}, {ZONE: "a"}, True),
        ({OLD_ZONE: "a"}, {}, {OLD_ZONE: "b", ZONE: "a"}, False),
        ({ZONE: "a"}, HERE, {ZONE: "a", "gpu": "x"}, True),
        ({ZONE: "a"}, HERE, {ZONE: "a"}, False),
        ({"disk": "a"}, {}, {ZONE: "b"}, True),
    ],
)
def test_a_volume_with_the_label_of_a_zone_lies_there(
    labels: dict[str, str], spec: dict[str, Any], node: dict[str, str], expected: bool
) -> None:
    found = reach("data", {"metadata": {"labels": labels}, "spec": spec})
    assert allows({}, Node(labels=node), volumes=(found,) if found else ()) == expected


def test_a_volume_that_is_not_made_yet_is_used_where_its_class_makes_it() -> None:
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}, {"key": "gpu", "values": ["x"]}]}, {}]
    found = reach_of_class("data", {"provisioner": "csi.example.com", "allowedTopologies": topologies})
    assert found is not None
    assert allows({}, Node(labels={ZONE: "b", "gpu": "x"}), volumes=(found,))
    assert not allows({}, Node(labels={ZONE: "b"}), volumes=(found,))
    assert not allows({}, Node(labels={ZONE: "c", "gpu": "x"}), volumes=(found,))
    assert reach_of_class("data", {"provisioner": "csi.example.com"}) is None
    by_hand = {"provisioner": "kubernetes.io/no-provisioner", "allowedTopologies": topologies}
    assert reach_of_class("data", by_hand) is None, "those that are there say where they lie"


def test_who_stays_away_from_the_nodes_that_suit_blames_no_label_and_no_taint() -> None:
    assert Matcher(filter_of_pod({}, avoided=["a", "b"])).why_none(LABELLED) == ""
    assert "own=x" in Matcher(filter_of_pod({}, avoided=["a"])).why_none(TAINTED)
