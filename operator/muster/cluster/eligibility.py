"""Which nodes a pod may run on, by kube-scheduler's own rules: node selector, required node affinity, taints, and where
its volumes lie.

Room is not looked at here, nor readiness: those are the planner's, from the snapshot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from muster.cluster.volumes import Reach

Object = dict[str, Any]


class Taint(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def effect(self) -> str: ...


class Node(Protocol):
    """What is asked of a node; `muster.cluster.views.NodeView` is one."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def taints(self) -> Sequence[Taint]: ...


NOT_READY: Final = "node.kubernetes.io/not-ready"
"""Taint of a node whose kubelet says that it is not well."""
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
"""Taint of a node whose kubelet has been silent for the cluster's grace (40 s by default)."""
_LIFECYCLE_TAINTS: Final = frozenset({NOT_READY, UNREACHABLE, "node.kubernetes.io/unschedulable"})
"""Judged by `NodeView.takes_pods`, for whatever a pod tolerates: nobody starts on such a node."""
_KEEP_AWAY: Final = ("NoSchedule", "NoExecute")
"""Effects of the taints that kube-scheduler heeds."""


_SHOWN: Final = 4
"""Values of a label, and taints, that are told of."""


@dataclass(frozen=True)
class NodeFilter:
    """A pod's demands on its node, comparable and hashable so that jobs with the same demands share one mask.

    Attributes:
        selector: `nodeSelector`, sorted.
        terms: JSON of the required node selector terms, or "" for none.
        tolerations: JSON of the tolerations.
        gpu_type: GPU type whose quota is drawn on, as nodes have it, or "".
        product: what is asked for in other words than that, or "": a type may be of several products, and a product of
            several types, where nodes are labelled with types of a site's own.
        capacity: capacity kinds allowed (on-demand, spot), empty for any.
        avoided: names of nodes to stay away from for now.
        volumes: from where each of its volumes can be used that not every node can use.
    """

    selector: tuple[tuple[str, str], ...] = ()
    terms: str = ""
    tolerations: str = "[]"
    gpu_type: str = ""
    product: str = ""
    capacity: tuple[str, ...] = ()
    avoided: frozenset[str] = frozenset()
    volumes: tuple[Reach, ...] = ()


def filter_of_pod(
    spec: Object,
    *,
    gpu_type: str = "",
    capacity: Iterable[str] = (),
    avoided: Iterable[str] = (),
    volumes: tuple[Reach, ...] = (),
) -> NodeFilter:
    """The filter of a pod spec that isn't pinned yet."""
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return NodeFilter(
        selector=tuple(sorted((spec.get("nodeSelector") or {}).items())),
        terms=json.dumps(affinity.get("nodeSelectorTerms") or [], sort_keys=True) if affinity else "",
        tolerations=json.dumps(spec.get("tolerations") or [], sort_keys=True),
        gpu_type=gpu_type,
        capacity=tuple(sorted(capacity)),
        avoided=frozenset(avoided),
        volumes=volumes,
    )


class Matcher:
    """One filter, made ready to be asked about many nodes."""

    def __init__(self, node_filter: NodeFilter) -> None:
        self._selector = node_filter.selector
        self._terms: list[Object] | None = json.loads(node_filter.terms) if node_filter.terms else None
        self._tolerations: list[Object] = json.loads(node_filter.tolerations)
        self._avoided = node_filter.avoided
        self._volumes: list[tuple[str, list[Object]]] = [
            (claim, json.loads(terms)) for claim, terms in node_filter.volumes
        ]

    def allows(self, node: Node) -> bool:
        """Whether kube-scheduler would let the pod onto `node` if it had room; GPU type and capacity are not judged."""
        if node.name in self._avoided:
            return False
        return self._suits(node) and not self._in_the_way(node)

    def is_kept_by(self, taint: str, node: Node) -> bool:
        """Whether nothing but the taint of this key keeps the pod from `node`, also where it stays away from it now."""
        return self._suits(node) and {each.key for each in self._in_the_way(node)} == {taint}

    def _suits(self, node: Node) -> bool:
        return (
            self._has_labels(node)
            and self._has_affinity(node)
            and all(_any_matches(terms, node) for _, terms in self._volumes)
        )

    def _has_labels(self, node: Node) -> bool:
        return all(node.labels.get(key) == value for key, value in self._selector)

    def _has_affinity(self, node: Node) -> bool:
        return self._terms is None or _any_matches(self._terms, node)

    def _in_the_way(self, node: Node) -> list[Taint]:
        """Taints that keep the pod away."""
        return [
            taint
            for taint in node.taints
            if taint.effect in _KEEP_AWAY
            and taint.key not in _LIFECYCLE_TAINTS
            and not tolerated(taint, self._tolerations)
        ]

    def _named(self, taint: Taint) -> str:
        a_while = any(_matches(toleration, taint) for toleration in self._tolerations)
        value = f"={taint.value}" if taint.value else ""
        return f"{taint.key}{value}:{taint.effect}{' (it does for tolerationSeconds only)' if a_while else ''}"

    def why_none(self, nodes: Sequence[Node]) -> str:
        """What no one of `nodes` has, or which taints keep the pod from those that have all; "" where that is not why
        it is allowed on none."""
        if not nodes:
            return ""
        for key, value in self._selector:
            others = sorted({node.labels[key] for node in nodes if key in node.labels})
            if value not in others:
                there = f" ({key} is {', '.join(others[:_SHOWN])}{', ...' * (len(others) > _SHOWN)})" if others else ""
                return f"none has the label {key}={value}{there}"
        suiting = [node for node in nodes if self._has_labels(node)]
        if not suiting:
            return f"none has all of the labels {', '.join(f'{key}={value}' for key, value in self._selector)}"
        suiting = [node for node in suiting if self._has_affinity(node)]
        if not suiting:
            return "none has what the required node affinity demands"
        for claim, terms in self._volumes:
            suiting = [node for node in suiting if _any_matches(terms, node)]
            if not suiting:
                return f"none whose labels suit reaches the volume of PersistentVolumeClaim {claim!r}"
        near = [node for node in suiting if node.name not in self._avoided] or suiting
        taints = [self._in_the_way(node) for node in near]
        if not all(taints):
            return ""
        told = sorted({self._named(one) for each in taints for one in each})
        more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
        return f"it does not tolerate the taints of those whose labels suit: {', '.join(told[:_SHOWN])}{more}"


def _any_matches(terms: Iterable[Object], node: Node) -> bool:
    return any(term_matches(term, node) for term in terms)


def term_matches(term: Object, node: Node) -> bool:
    """Whether a node selector term holds. A term without any demand matches nothing, as in Kubernetes."""
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    return all(_requirement(item, node.labels) for item in expressions) and all(
        _requirement(item, {"metadata.name": node.name}) for item in fields
    )


def _requirement(requirement: Object, labels: Mapping[str, str]) -> bool:
    key, operator = requirement.get("key", ""), requirement.get("operator", "")
    values, present = requirement.get("values") or [], labels.get(key)
    if operator == "In":
        return present is not None and present in values
    if operator == "NotIn":
        return present is None or present not in values
    if operator == "Exists":
        return present is not None
    if operator == "DoesNotExist":
        return present is None
    if operator in ("Gt", "Lt") and present is not None and len(values) == 1:
        return _compare(operator, present, values[0])
    return False


_INTEGER: Final = re.compile(r"[-+]?[0-9]+", re.ASCII)
"""What Go reads as one; Python's `int` takes the label `1_000`, too."""
_PLAIN_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
"""How one has to be written that a toleration compares: without a plus, and without zeros in front."""
_INT64: Final = range(-(2**63), 2**63)


def _compare(operator: str, present: str, bound: str, form: re.Pattern[str] = _INTEGER) -> bool:
    if not form.fullmatch(present) or not form.fullmatch(bound):
        return False
    left, right = int(present), int(bound)
    if left not in _INT64 or right not in _INT64:
        return False
    return left > right if operator == "Gt" else left < right


def tells_state(taint: Taint) -> bool:
    """Whether the taint is one that the control plane gives a node that is not ready, or cordoned."""
    return taint.key in _LIFECYCLE_TAINTS and taint.effect in _KEEP_AWAY


def tolerated(taint: Taint, tolerations: Iterable[Object]) -> bool:
    """Whether a pod with these tolerations may stay for as long as the taint is there. Of those that match the first
    counts, as it does for who evicts: a gang that is evicted after `tolerationSeconds` would start there again and
    again."""
    first = next((toleration for toleration in tolerations if _matches(toleration, taint)), None)
    return first is not None and (taint.effect != "NoExecute" or first.get("tolerationSeconds") is None)


def _matches(toleration: Object, taint: Taint) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.effect:
        return False
    key = toleration.get("key") or ""
    if key and key != taint.key:
        return False
    operator, value = toleration.get("operator") or "Equal", toleration.get("value") or ""
    if operator in ("Gt", "Lt"):
        return _compare(operator, taint.value, value, _PLAIN_INTEGER)
    return operator == "Exists" or (operator == "Equal" and bool(key) and value == taint.value)


def pinned_node(spec: Mapping[str, Any]) -> str:
    """The one node that the pod's required affinity allows by `matchFields metadata.name`, or "".

    Terms are ORed: the pod is pinned only when every one of them names the same node. DaemonSets pin this way too.
    """
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    found = {_pinned_by(term) for term in terms}
    return found.pop() if len(found) == 1 else ""


def _pinned_by(term: Mapping[str, Any]) -> str:
    for demand in term.get("matchFields") or ():
        values = list(demand.get("values") or [])
        if demand.get("key") == "metadata.name" and demand.get("operator") == "In" and len(values) == 1:
            return str(values[0])
    return ""
