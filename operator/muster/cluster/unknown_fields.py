"""Fields that a job gives its pods and that a pod does not have, as the API server names them. Pure.

The schema takes any PodSpec and any volume, so a misspelt field is kept in the job; a POST of a pod leaves it out
without a word. A strict one names it by its path in the pod, where containers and volumes of the job stand behind
Muster's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.cluster.errors import ApiError
from muster.cluster.strategic import MERGE_KEYS

Object = Mapping[str, Any]

_UNKNOWN: Final = re.compile(r'unknown field "([^"]*)"')
_PART: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def unknown_fields(error: ApiError) -> tuple[str, ...]:
    """Paths in the pod of all fields that a strict POST was refused for; () when it was refused for something else."""
    if error.status != 400 or "strict decoding error" not in error.message:
        return ()
    return tuple(_UNKNOWN.findall(error.message))


def sentence(paths: Sequence[str], pod: Object, template: Object | None, volumes: Sequence[Object]) -> str:
    """What the job is told of them.

    Args:
        pod: metadata and spec that were sent.
        template: the job's `podTemplate`.
        volumes: the job's `spec.volumes`.
    """
    where = ", ".join(path_in_job(path, pod, template, volumes) for path in paths)
    pages = dict.fromkeys("pod." + re.sub(r"\[\d+\]", "", path).rpartition(".")[0] for path in paths)
    explained = ", ".join(f"kubectl explain {page}" for page in pages)
    many = len(paths) > 1
    return (
        f"{where}: a pod has no such {'fields' if many else 'field'}, upper and lower case count: correct or remove "
        f"{'them' if many else 'it'}; those that there are:  {explained}"
    )


def path_in_job(path: str, pod: Object, template: Object | None, volumes: Sequence[Object]) -> str:
    """`path` of a field of the pod as whoever wrote the job finds it there; as it is where the job does not have it."""
    parts = [name or int(index) for name, index in _PART.findall(path)]
    if template is not None and (own := _within(parts, pod, template)) is not None:
        return f"spec.podTemplate{own}"
    if parts[:2] == ["spec", "volumes"] and len(parts) > 2:
        own = _within(parts[1:], pod.get("spec", {}), {"volumes": volumes})
        if own is not None:
            return f"spec{own}"
    return path


def _within(parts: Sequence[str | int], pod: Any, laid: Any) -> str | None:
    """The path in `laid`, which was merged into `pod`, of what lies there at `parts`; None where `laid` has it not."""
    path, key = "", None
    for part in parts:
        if isinstance(part, int):
            if not isinstance(laid, Sequence) or not isinstance(pod, Sequence) or part >= len(pod):
                return None
            same = [at for at, item in enumerate(laid) if key and item.get(key) == pod[part].get(key)]
            at = same[0] if same else part
            if (key and not same) or at >= len(laid):
                return None
            pod, laid, path, key = pod[part], laid[at], f"{path}[{at}]", None
        else:
            if not isinstance(laid, Mapping) or part not in laid:
                return None
            pod, laid, path, key = pod.get(part), laid[part], f"{path}.{part}", MERGE_KEYS.get(part)
    return path
