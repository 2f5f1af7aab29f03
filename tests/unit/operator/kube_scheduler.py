"""What Kubernetes does with a pod, by its documentation and nothing of Muster: the API server's defaults, and whether
kube-scheduler's default plugins let the pod onto a node. Loops over objects as the API server gives them, slowly.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any

Object = dict[str, Any]
Amounts = dict[str, Fraction]

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_ENDED = ("Succeeded", "Failed")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_SUFFIXES = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_INT64 = range(-(2**63), 2**63)


def number(quantity: str | int) -> Fraction:
    """A quantity's value: `1Gi`, `500m`, `1e3`, `1E`."""
    text = str(quantity)
    if text.endswith("i"):
        return Fraction(text[:-2]) * 1024 ** ("KMGTPE".index(text[-2]) + 1)
    if text[-1] in _SUFFIXES:
        return Fraction(text[:-1]) * Fraction(10) ** _SUFFIXES[text[-1]]
    return Fraction(text)  # it reads exponents, too


def counted(resource: str, value: Fraction) -> int:
    """As kube-scheduler counts: thousandths of processors and whole pieces of all else, rounded up."""
    return ceil(value * 1000) if resource == "cpu" else ceil(value)


# -- the API server ---------------------------------------------------------------------------------------------------


def admitted(pod: Object) -> Object:
    """The pod with the API server's defaults: requests from limits, ports of the host's network."""
    pod = copy.deepcopy(pod)
    spec = pod["spec"]
    containers = [*spec.get("containers", []), *spec.get("initContainers", [])]
    for container in containers:
        resources = container.get("resources", {})
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
        for port in container.get("ports", []) if spec.get("hostNetwork") else []:
            port.setdefault("hostPort", port["containerPort"])
    whole = spec.get("resources")
    if whole and (whole.get("requests") or whole.get("limits")):
        asked = whole.setdefault("requests", {})
        together = _containers_together(spec, {}, infeasible=False)
        for name, value in together.items():
            if name in ("cpu", "memory"):
                asked.setdefault(name, str(float(value)) if value % 1 else str(value))
        for name, limit in whole.get("limits", {}).items():
            asked.setdefault(name, limit)
    return pod


# -- what a pod asks for ----------------------------------------------------------------------------------------------


def requests(pod: Object) -> dict[str, int]:
    """What a pod counts with on its node: the most that it may have at once, and its overhead."""
    spec, status = pod["spec"], pod.get("status", {})
    infeasible = any(
        condition["type"] == "PodResizePending" and condition.get("reason") == "Infeasible"
        for condition in status.get("conditions", [])
    )
    told = {one["name"]: one for kind in ("containerStatuses", "initContainerStatuses") for one in status.get(kind, [])}
    total = _containers_together(spec, told, infeasible)
    for name, quantity in spec.get("resources", {}).get("requests", {}).items():
        total[name] = number(quantity)
        if "resources" in status:
            have = [status["resources"].get("requests", {}), status.get("allocatedResources", {})]
            have += [] if infeasible else [spec["resources"]["requests"]]
            total[name] = max(number(amounts[name]) if name in amounts else Fraction(0) for amounts in have)
    for name, quantity in spec.get("overhead", {}).items():
        total[name] = total.get(name, Fraction(0)) + number(quantity)
    return {name: counted(name, value) for name, value in total.items() if value}


def _containers_together(spec: Object, told: dict[str, Object], infeasible: bool) -> Amounts:
    """The most of each resource at any moment: each init container beside the sidecars before it, then all the rest."""
    moments: list[list[Amounts]] = []
    sidecars: list[Amounts] = []
    for container in spec.get("initContainers", []):
        sidecar = container.get("restartPolicy") == "Always"
        asked = _container(container, told if sidecar else {}, infeasible)
        moments.append([*sidecars, asked])
        if sidecar:
            sidecars.append(asked)
    moments.append([*sidecars, *(_container(one, told, infeasible) for one in spec.get("containers", []))])
    names = {name for moment in moments for amounts in moment for name in amounts}
    return {
        name: max(sum((amounts.get(name, Fraction(0)) for amounts in moment), Fraction(0)) for moment in moments)
        for name in names
    }


def _container(container: Object, told: dict[str, Object], infeasible: bool) -> Amounts:
    wish = container.get("resources", {}).get("requests", {})
    now = told.get(container["name"], {})
    if "resources" not in now:
        return {name: number(quantity) for name, quantity in wish.items()}
    have = [now["resources"].get("requests", {}), now.get("allocatedResources", {})]
    have += [] if infeasible else [wish]
    names = {name for amounts in have for name in amounts}
    return {name: max(number(amounts[name]) for amounts in have if name in amounts) for name in names}


def host_ports(pod: Object) -> list[tuple[str, str, int]]:
    """(address, protocol, port) of what runs as long as the pod."""
    spec = pod["spec"]
    sidecars = [one for one in spec.get("initContainers", []) if one.get("restartPolicy") == "Always"]
    return [
        (port.get("hostIP") or "0.0.0.0", port.get("protocol", "TCP"), port["hostPort"])
        for container in [*sidecars, *spec.get("containers", [])]
        for port in container.get("ports", [])
        if port.get("hostPort")
    ]


# -- kube-scheduler ---------------------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """Attributes:
    nodes, pods: as the API server gives them.
    volumes: by claim, the PersistentVolume that it is bound to.
    classes: by claim that is not bound yet, its StorageClass.
    every_node_a_host: also those without the label of one, which Kubernetes leaves out when it keeps pods apart.
    """

    nodes: list[Object]
    pods: list[Object]
    every_node_a_host: bool = False
    volumes: dict[str, Object] = field(default_factory=dict)
    classes: dict[str, Object] = field(default_factory=dict)

    def on(self, node: Object) -> list[Object]:
        """Pods that run there, or will."""
        return [
            pod
            for pod in self.pods
            if pod["spec"].get("nodeName") == node["metadata"]["name"] and pod["status"].get("phase") not in _ENDED
        ]

    def nominated(self, node: Object, pod: Object) -> list[Object]:
        """Pods that another node's worth was evicted for, or that somebody promised the node, and that go before."""
        return [
            other
            for other in self.pods
            if not other["spec"].get("nodeName")
            and other["status"].get("phase") not in _ENDED
            and other["status"].get("nominatedNodeName") == node["metadata"]["name"]
            and other["spec"].get("priority", 0) >= pod["spec"].get("priority", 0)
        ]

    def refuses(self, pod: Object, node: Object) -> list[str]:
        """Why the pod is not let onto the node, one word for each plugin that refuses; empty: it may be bound."""
        others = [*self.on(node), *self.nominated(node, pod)]
        plugins = {
            "NodeUnschedulable": bool(node["spec"].get("unschedulable"))
            and not tolerates(pod, {"key": UNSCHEDULABLE, "effect": "NoSchedule"}),
            "TaintToleration": any(
                not tolerates(pod, taint)
                for taint in node["spec"].get("taints", [])
                if taint["effect"] in ("NoSchedule", "NoExecute")
            ),
            "NodeAffinity": not has_affinity(pod, node),
            "VolumeBinding": any(
                not _can_use(self.volumes[claim], node)
                if claim in self.volumes
                else not _is_made_for(self.classes.get(claim, {}), node)
                for claim in _claims(pod)
            ),
            "VolumeZone": any(not _in_zone(self.volumes[one], node) for one in _claims(pod) if one in self.volumes),
            "NodePorts": any(
                _clash(one, other) for one in host_ports(pod) for each in others for other in host_ports(each)
            ),
            "NodeResourcesFit": bool(lacking(pod, node, others)),
            "InterPodAffinity": any(self._kept_apart(pod, node)),
        }
        return [name for name, refused in plugins.items() if refused]

    def bind(self, pod: Object, node: Object) -> Object:
        """Let the pod run there."""
        bound = copy.deepcopy(pod)
        bound["spec"]["nodeName"] = node["metadata"]["name"]
        bound.setdefault("status", {})["phase"] = "Running"
        self.pods.append(bound)
        return bound

    def _kept_apart(self, pod: Object, node: Object) -> Iterator[bool]:
        """Required anti-affinity of the pod with those in the same domain, and theirs with it. Without terms that name
        namespaces: those of the pod with the term count."""
        for there in self.nodes:
            for other in self.on(there):
                for subject, term, of in ((other, each, pod) for each in _apart(pod)):
                    yield self._same_domain(term, node, there) and _meant(term, subject, of)
                for subject, term, of in ((pod, each, other) for each in _apart(other)):
                    yield self._same_domain(term, node, there) and _meant(term, subject, of)

    def _same_domain(self, term: Object, one: Object, other: Object) -> bool:
        if self.every_node_a_host:
            return bool(one["metadata"]["name"] == other["metadata"]["name"])
        domains = [node["metadata"].get("labels", {}).get(term["topologyKey"]) for node in (one, other)]
        return None not in domains and domains[0] == domains[1]


def lacking(pod: Object, node: Object, others: Sequence[Object]) -> list[str]:
    """Resources of which the node has too little. What a pod does not ask for is not looked at."""
    has = {
        name: counted(name, number(quantity))
        for name, quantity in node.get("status", {}).get("allocatable", {}).items()
    }
    given = [requests(other) for other in others]
    short = [
        name
        for name, amount in requests(pod).items()
        if amount > has.get(name, 0) - sum(amounts.get(name, 0) for amounts in given)
    ]
    return [*short, *(["pods"] if len(others) + 1 > has.get("pods", 0) else [])]


def tolerates(pod: Object, taint: Object) -> bool:
    """Whether any of its tolerations matches."""
    return any(matches(toleration, taint) for toleration in pod["spec"].get("tolerations", []))


def matches(toleration: Object, taint: Object) -> bool:
    """Whether a toleration speaks of the taint."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    operator, value, has = toleration.get("operator") or "Equal", toleration.get("value", ""), taint.get("value", "")
    if operator == "Exists":
        return True
    if operator == "Equal":
        return bool(value == has)
    numbers = [int(text) for text in (has, value) if _plain_integer(text)]
    return len(numbers) == 2 and (numbers[0] > numbers[1] if operator == "Gt" else numbers[0] < numbers[1])


def _plain_integer(text: str) -> bool:
    """As people write one, and no larger than 64 bits."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and str(int(text)) == text and int(text) in _INT64


def has_affinity(pod: Object, node: Object) -> bool:
    """The node selector, and any one of the required terms."""
    labels, spec = node["metadata"].get("labels", {}), pod["spec"]
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get(_REQUIRED)
    return required is None or any(_term(term, node) for term in required["nodeSelectorTerms"])


def _term(term: Object, node: Object) -> bool:
    fields = {"metadata.name": node["metadata"]["name"]}
    demands = [(one, node["metadata"].get("labels", {})) for one in term.get("matchExpressions", [])]
    demands += [(one, fields) for one in term.get("matchFields", [])]
    return bool(demands) and all(_demand(one, has) for one, has in demands)


def _demand(demand: Object, has: dict[str, str]) -> bool:
    key, values = demand["key"], demand.get("values", [])
    match demand["operator"]:
        case "In":
            return key in has and has[key] in values
        case "NotIn":
            return key not in has or has[key] not in values
        case "Exists":
            return key in has
        case "DoesNotExist":
            return key not in has
        case operator:
            there, bound = _integer(has.get(key, "")), _integer(values[0])
            return there is not None and bound is not None and (there > bound if operator == "Gt" else there < bound)


def _integer(text: str) -> int | None:
    """What Go's ParseInt reads: a sign, digits, 64 bits."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or int(text) not in _INT64:
        return None
    return int(text)


def _can_use(volume: Object, node: Object) -> bool:
    """Whether the volume's affinity lets the node have it."""
    required = volume["spec"].get("nodeAffinity", {}).get("required")
    return required is None or any(_term(term, node) for term in required["nodeSelectorTerms"])


def _is_made_for(storage: Object, node: Object) -> bool:
    """Whether a volume can be made where the node can have it."""
    labels = node["metadata"].get("labels", {})
    allowed = storage.get("allowedTopologies", [])
    return not allowed or any(
        bool(term) and all(labels.get(one["key"]) in one["values"] for one in term["matchLabelExpressions"])
        for term in allowed
    )


def _in_zone(volume: Object, node: Object) -> bool:
    """The zones and regions in a volume's labels hold for nodes with any such label. One with an empty name in it is
    not read, and a node may have today's label where the volume has the old one."""
    labels, has = volume["metadata"].get("labels", {}), node["metadata"].get("labels", {})
    if not any(key in has for key in (ZONE, REGION, OLD_ZONE, OLD_REGION)):
        return True
    for key in (ZONE, REGION, OLD_ZONE, OLD_REGION):
        zones = labels.get(key, "").split("__")
        there = has.get(key, has.get({OLD_ZONE: ZONE, OLD_REGION: REGION}.get(key, key)))
        if "" not in zones and there not in zones:
            return False
    return True


def _clash(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    addresses = {one[0], other[0]}
    return one[1:] == other[1:] and (len(addresses) == 1 or "0.0.0.0" in addresses)


def _claims(pod: Object) -> list[str]:
    return [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"].get("volumes", [])]


def _apart(pod: Object) -> Iterable[Object]:
    found: list[Object] = pod["spec"].get("affinity", {}).get("podAntiAffinity", {}).get(_REQUIRED, [])
    return found


def _meant(term: Object, subject: Object, of: Object) -> bool:
    labels = subject["metadata"].get("labels", {})
    return subject["metadata"]["namespace"] == of["metadata"]["namespace"] and all(
        labels.get(key) == value for key, value in term["labelSelector"]["matchLabels"].items()
    )
