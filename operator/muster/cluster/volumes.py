"""From which nodes a pod's volumes can be used: a disk lies in one zone, a local volume on one node. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]

Reach = tuple[str, str]
"""(name of a PersistentVolumeClaim, JSON of the node selector terms of its volume): nodes that one of them matches."""


def claims(spec: Object) -> list[str]:
    """Names of the PersistentVolumeClaims that a pod mounts, sorted."""
    named = ((volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in spec.get("volumes") or ())
    return sorted({name for name in named if name})


def volume_of(claim: Object) -> str:
    """Name of the PersistentVolume that a claim is bound to; "" before."""
    return (claim.get("spec") or {}).get("volumeName") or ""


def reach(claim: str, volume: Object) -> Reach | None:
    """From where the volume of a claim can be used; None for one that every node can use."""
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required")
    return None if required is None else (claim, json.dumps(required.get("nodeSelectorTerms") or [], sort_keys=True))
