"""Strategic merge of a pod template override, as `kubectl patch --type strategic` does it.

Lists of named things (containers, env, volumes...) merge by their key; every other list is replaced whole. The
directives `$patch: delete | replace | merge`, `$retainKeys`, `$deleteFromPrimitiveList/FIELD` and
`$setElementOrder/FIELD` are understood; null deletes a field.
"""

from __future__ import annotations

import copy
from typing import Any, Final

Object = dict[str, Any]

MERGE_KEYS: Final[dict[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
"""Fields of a pod template whose items merge by key: `patchMergeKey` in Kubernetes' own types."""

_ENV_SOURCES: Final = ("value", "valueFrom")


class MergeError(ValueError):
    """The override cannot be merged; the message says at which field and why."""


def merge(base: Object, patch: Object, *, path: str = "podTemplate") -> Object:
    """`base` with `patch` merged into it; neither is changed.

    Raises:
        MergeError: an item without its key, an unknown directive, or a value of another type than `base` has.
    """
    directive = patch.get("$patch", "merge")
    if directive == "replace":
        return {name: copy.deepcopy(value) for name, value in patch.items() if name != "$patch"}
    if directive == "delete":
        return {}
    if directive != "merge":
        raise MergeError(f"{path}.$patch: {directive!r} is not a directive; use merge, replace or delete")
    merged = copy.deepcopy(base)
    _retain(merged, patch, path)
    for name, value in patch.items():
        if name.startswith("$"):
            _primitive_deletions(merged, name, value, path)
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge_value(name, merged.get(name), value, f"{path}.{name}")
    return merged


def _retain(merged: Object, patch: Object, path: str) -> None:
    """`$retainKeys` drops every field that it doesn't list: how one volume source takes the place of another."""
    keep = patch.get("$retainKeys")
    if keep is None:
        return
    if not isinstance(keep, list):
        raise MergeError(f"{path}.$retainKeys: must be a list of field names")
    for name in [name for name in merged if name not in keep]:
        del merged[name]


def _primitive_deletions(merged: Object, directive: str, value: Any, path: str) -> None:
    name, _, target = directive.partition("/")
    if name in ("$patch", "$retainKeys", "$setElementOrder"):
        return
    if name != "$deleteFromPrimitiveList" or not target or not isinstance(value, list):
        raise MergeError(f"{path}.{directive}: unknown directive")
    if isinstance(merged.get(target), list):
        merged[target] = [item for item in merged[target] if item not in value]


def _merge_value(name: str, base: Any, value: Any, path: str) -> Any:
    if isinstance(value, dict):
        if base is not None and not isinstance(base, dict):
            raise MergeError(f"{path}: must be a {type(base).__name__}, not a mapping")
        return merge(base or {}, value, path=path)
    if isinstance(value, list):
        if base is not None and not isinstance(base, list):
            raise MergeError(f"{path}: must be a {type(base).__name__}, not a list")
        key = MERGE_KEYS.get(name)
        return copy.deepcopy(value) if key is None else _merge_list(key, base or [], value, path)
    return value


def _merge_list(key: str, base: list[Any], patch: list[Any], path: str) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" and key not in item for item in patch):
        return [copy.deepcopy(item) for item in patch if "$patch" not in item]
    merged = copy.deepcopy(base)
    for position, item in enumerate(patch):
        where = f"{path}[{position}]"
        if not isinstance(item, dict) or item.get(key) is None:
            raise MergeError(f"{where}: needs {key!r}, by which it is merged")
        place = next((i for i, other in enumerate(merged) if other.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if place is not None:
                del merged[place]
        elif place is None:
            merged.append(merge({}, item, path=where))
        else:
            merged[place] = merge(_one_source(key, path, merged[place], item), item, path=where)
    return merged


def _one_source(key: str, path: str, base: Object, patch: Object) -> Object:
    """A variable has `value` or `valueFrom`, and a volume one source: a new one takes the place of the old.

    kubectl writes `$retainKeys` for volumes by itself; people who write an override by hand do not.
    """
    if path.endswith(".env") and any(name in patch for name in _ENV_SOURCES):
        return {key: base[key]}
    if path.endswith(".volumes") and not (set(patch) - {key}) & set(base) and set(patch) - {key}:
        return {key: base[key]}
    return base
