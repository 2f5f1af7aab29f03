"""What a pod demands of the pods around it: the one demand that the planner knows, and those that are refused.

kube-scheduler checks a pod's terms about other pods when it binds it. The planner places whole gangs by node and
topology and looks at no labels of pods, so a term that it does not know would have gang after gang placed, refused and
taken back. It knows one: at most one worker of the gang a node. That is a resource of which each node has one, as a
host port is. What is only preferred decides nothing, for each pod is pinned to its node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from muster.api import names
from muster.cluster.template_shape import misshapen

Object = Mapping[str, Any]

APART: Final = "apart"
"""How the resource is named: `apart/<namespace>/<job>`."""

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def apart(metadata: Object, spec: Object) -> str:
    """The resource of which a pod takes its node's only one, when no other worker of its gang may be there; else ""."""
    job = (metadata.get("labels") or {}).get(names.JOB_LABEL) or ""
    own = job and any(_of_own_gang(term, job) for term in _terms(spec, "podAntiAffinity"))
    return f"{APART}/{metadata.get('namespace') or ''}/{job}" if own else ""


def names_a_job(spec: Object) -> bool:
    """Whether what a template's terms mean may depend on the name of the job that they are in. Nonsense means nothing:
    it is refused in the same words whoever has it."""
    return not misshapen(spec) and bool(_terms(spec, "podAntiAffinity"))


def problems(metadata: Object, spec: Object, where: str = "podTemplate.spec") -> Iterator[str]:
    """Each demand of a pod on other pods that nobody would plan by, in a sentence that says what to write instead."""
    job = (metadata.get("labels") or {}).get(names.JOB_LABEL) or ""
    if _terms(spec, "podAffinity"):
        yield (
            f"{where}.affinity.podAffinity.{_REQUIRED} is not planned by: say with spec.topology how close the workers "
            "lie (mode, level, slices), or with nodeSelector which nodes they want"
        )
    for position, term in enumerate(_terms(spec, "podAntiAffinity")):
        if not _of_own_gang(term, job):
            yield (
                f"{where}.affinity.podAntiAffinity.{_REQUIRED}[{position}] is not planned by: only at most one worker "
                f"a node is, by topologyKey: {names.HOST_LABEL} and labelSelector: {{matchLabels: "
                f"{{{names.JOB_LABEL}: {job}}}}} and nothing else; spread workers over wider domains with "
                "spec.topology.balanced, and keep away from other jobs' nodes with nodeSelector"
            )
    for position, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        if (constraint.get("whenUnsatisfiable") or "DoNotSchedule") != "ScheduleAnyway":
            yield (
                f"{where}.topologySpreadConstraints[{position}] is not planned by: spread the workers with "
                "spec.topology.balanced, which gives each domain of a level as many"
            )


def _terms(spec: Object, kind: str) -> list[Object]:
    return ((spec.get("affinity") or {}).get(kind) or {}).get(_REQUIRED) or []


def _of_own_gang(term: Object, job: str) -> bool:
    """Whether a term keeps the workers of a job from each other's nodes, and says nothing else."""
    said = {key for key, value in term.items() if value or (key == "namespaceSelector" and value is not None)}
    if said != {"topologyKey", "labelSelector"} or term["topologyKey"] != names.HOST_LABEL:
        return False
    selector = {key: value for key, value in term["labelSelector"].items() if value}
    listed = [{"key": names.JOB_LABEL, "operator": "In", "values": [job]}]
    return selector in ({"matchLabels": {names.JOB_LABEL: job}}, {"matchExpressions": listed})
