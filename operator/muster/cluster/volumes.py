"""From which nodes a pod's volumes can be used: a disk lies in one zone, a local volume on one node. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain, product
from typing import Any, Final

Object = Mapping[str, Any]

Reach = tuple[str, str]
"""(name of a PersistentVolumeClaim, JSON of the node selector terms of its volume): nodes that one of them matches."""

_ZONE: Final = "topology.kubernetes.io/zone"
_REGION: Final = "topology.kubernetes.io/region"
_PLACES: Final = {
    "failure-domain.beta.kubernetes.io/zone": _ZONE,
    "failure-domain.beta.kubernetes.io/region": _REGION,
    _ZONE: _ZONE,
    _REGION: _REGION,
}
"""Labels of a volume by which it lies somewhere, as before there was `nodeAffinity`, and their names of today."""
_NOT_MADE: Final = "kubernetes.io/no-provisioner"
"""Of a StorageClass whose volumes are made by hand: each says itself where it lies."""


def claims(spec: Object) -> list[str]:
    """Names of the PersistentVolumeClaims that a pod mounts, sorted."""
    named = ((volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in spec.get("volumes") or ())
    return sorted({name for name in named if name})


def volume_of(claim: Object) -> str:
    """Name of the PersistentVolume that a claim is bound to; "" before."""
    return (claim.get("spec") or {}).get("volumeName") or ""


def class_of(claim: Object) -> str:
    """Name of the StorageClass that makes a claim's volume; "" without one."""
    return (claim.get("spec") or {}).get("storageClassName") or ""


def reach(claim: str, volume: Object) -> Reach | None:
    """From where the volume of a claim can be used; None for one that every node can use."""
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required")
    terms = (
        None if required is None else [term for term in required.get("nodeSelectorTerms") or [] if any(term.values())]
    )
    labels = (volume.get("metadata") or {}).get("labels") or {}
    zones = {key: [zone.strip() for zone in labels[key].split("__")] for key in _PLACES if key in labels}
    within = [_within(key, values) for key, values in zones.items() if all(values)]
    if within:
        ways = [list(chain(*way)) for way in product(*within)]
        ways.append([{"key": key, "operator": "DoesNotExist"} for key in _PLACES])  # a node that says nothing of it
        terms = [_both(term, way) for term in ([{}] if terms is None else terms) for way in ways]
    return None if terms is None else (claim, json.dumps(terms, sort_keys=True))


def _within(key: str, values: list[str]) -> list[list[Object]]:
    """The ways in which a node may be in one of these zones: by that label or, where it lacks it, by today's."""
    today = _PLACES[key]
    ways: list[list[Object]] = [[{"key": key, "operator": "In", "values": values}]]
    if today != key:
        ways.append([{"key": key, "operator": "DoesNotExist"}, {"key": today, "operator": "In", "values": values}])
    return ways


def reach_of_class(claim: str, storage: Object) -> Reach | None:
    """From where the volume can be used that a StorageClass makes for a claim; None where it makes one anywhere."""
    allowed = [term.get("matchLabelExpressions") for term in storage.get("allowedTopologies") or ()]
    if not allowed or storage.get("provisioner") == _NOT_MADE:
        return None
    terms = [{"matchExpressions": [{**one, "operator": "In"} for one in demands]} for demands in allowed if demands]
    return claim, json.dumps(terms, sort_keys=True)


def _both(term: Object, demands: list[Object]) -> Object:
    return {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *demands]}
