"""What those parts of a `podTemplate` must be that Muster reads itself. Pure.

The schema takes any PodSpec, of any version of Kubernetes, and the dry run judges it. But the pod has to be made before
that, and a job that has nodes is planned by what its template says: a null in the place of a list must be a sentence
about the job, and stop nobody else. A mapping stands for a mapping (`ANY`: whatever its keys), a list for a list of its
one item, a text for a text, and a number for a quantity: a number or a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

Shape = dict[str, Any] | list[Any] | str | int

ANY: Final = "*"
_QUANTITY: Final = 0
_RESOURCES: Final[Shape] = {"requests": {ANY: _QUANTITY}, "limits": {ANY: _QUANTITY}}
_CONTAINER: Final[Shape] = {
    "name": "",
    "restartPolicy": "",
    "env": [{"name": ""}],
    "ports": [{}],
    "volumeMounts": [{"mountPath": ""}],
    "resources": _RESOURCES,
}
_REQUIREMENT: Final[Shape] = {"key": "", "operator": "", "values": [""]}
_NODES: Final[Shape] = {"nodeSelectorTerms": [{"matchExpressions": [_REQUIREMENT], "matchFields": [_REQUIREMENT]}]}
_SELECTOR: Final[Shape] = {"matchLabels": {ANY: ""}, "matchExpressions": [_REQUIREMENT]}
_PODS: Final[Shape] = {
    "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "", "labelSelector": _SELECTOR}]
}
POD_SPEC: Final[Shape] = {
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "volumes": [{"name": ""}],
    "tolerations": [{"key": "", "operator": "", "value": "", "effect": ""}],
    "nodeSelector": {ANY: ""},
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _NODES},
        "podAffinity": _PODS,
        "podAntiAffinity": _PODS,
    },
    "topologySpreadConstraints": [{"whenUnsatisfiable": ""}],
    "resources": _RESOURCES,
    "overhead": {ANY: _QUANTITY},
}

_OWN_INSIDE: Final = {"containers": "container", "initContainers": "container", "volumes": "volume"}
"""Lists with what is Muster's own, which a null would drop."""


def misshapen(spec: Mapping[str, Any]) -> str:
    """The first part of the spec of an override that is not what it must be, in a sentence; "" when all is well."""
    for field, own in _OWN_INSIDE.items():
        if spec.get(field, ()) is None:
            return f"podTemplate.spec.{field} is null, which would drop Muster's own {own}: leave it out"
    return next(_wrong(spec, POD_SPEC, "podTemplate.spec"), "")


def _wrong(value: Any, shape: Shape, path: str) -> Iterator[str]:
    if not isinstance(value, (int, float, str) if isinstance(shape, int) else type(shape)):
        yield f"{path} is {_word(value)}: write {_word(shape)} there, as in a pod"
    elif isinstance(shape, list) and isinstance(value, list):
        for position, item in enumerate(value):
            yield from _wrong(item, shape[0], f"{path}[{position}]")
    elif isinstance(shape, dict) and isinstance(value, dict):
        for name, item in value.items():
            within = shape.get(name, shape.get(ANY))
            if within is not None and item is not None and not name.startswith("$"):  # a null takes a field away
                yield from _wrong(item, within, f"{path}.{name}")


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    kinds = {dict: "a mapping", list: "a list", str: "a text", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
