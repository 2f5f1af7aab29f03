"""What a pod asks of its node, summed as kube-scheduler does. Pure.

Regular containers run together, init containers one after another, and those with `restartPolicy: Always` (sidecars)
from their turn on beside all that follow. On top come the pod's overhead, one of the node's pods, and its host ports.
A container whose resize is under way counts with the most of what it asks for, was given, and has; where the node can
never give it what it asks for, with the most of the other two.

A pod that the API server has not seen yet asks for what it would make of it: what is only limited is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Final

from muster.cluster.quantities import parse, whole

Object = Mapping[str, Any]
Exact = dict[str, Fraction]

Requests = tuple[tuple[str, int], ...]
"""(resource, amount in base units), sorted by name."""

HOST_PORT: Final = "hostport"

_HUGE_PAGES: Final = "hugepages-"


def requests_of(spec: Object, status: Object | None = None) -> Requests:
    """The whole pod's requests in base units. Raises ValueError for a quantity that cannot be read."""
    status = status or {}
    infeasible, statuses = _infeasible(status), _statuses(status)
    total: Exact = {}
    for container in spec.get("containers") or ():
        _add(total, _container(container, statuses, infeasible))
    sidecars: Exact = {}
    initial: Exact = {}
    for container in spec.get("initContainers") or ():
        if _is_sidecar(container):
            asked = _container(container, statuses, infeasible)
            _add(total, asked)
            _add(sidecars, asked)
            _raise(initial, sidecars)
        else:
            asked = _asked(container)
            _add(asked, sidecars)
            _raise(initial, asked)
    _raise(total, initial)
    total |= _of_the_whole(spec, status, total, infeasible)
    _add(total, _exact(spec.get("overhead")))
    amounts = {name: whole(name, value) for name, value in total.items() if value}
    amounts["pods"] = 1
    amounts |= dict.fromkeys(_host_ports(spec), 1)
    return tuple(sorted(amounts.items()))


def _of_the_whole(spec: Object, status: Object, containers: Exact, infeasible: bool) -> Exact:
    """What `spec.resources` asks for the pod as a whole, in the place of the containers' sum."""
    resources = spec.get("resources") or {}
    wish = _exact(resources.get("requests"))
    for name, limit in _exact(resources.get("limits")).items():
        if name not in wish and (name not in containers or name.startswith(_HUGE_PAGES)):
            wish[name] = limit
    wish = {name: value for name, value in wish.items() if _may_be_whole(name)}
    if not wish or status.get("resources") is None:
        return wish
    have = _given(status, {} if infeasible else wish)
    return {name: have.get(name, Fraction(0)) for name in wish}


def _may_be_whole(resource: str) -> bool:
    """Whether `spec.resources` may ask for it for the pod as a whole."""
    return resource in ("cpu", "memory") or resource.startswith(_HUGE_PAGES)


def _infeasible(status: Object) -> bool:
    """Whether the node can never give what a resize asks for: what the spec says is only a wish then."""
    conditions = status.get("conditions") or ()
    return any(item.get("type") == "PodResizePending" and item.get("reason") == "Infeasible" for item in conditions)


def _statuses(status: Object) -> Mapping[str, Object]:
    return {
        item.get("name", ""): item
        for kind in ("containerStatuses", "initContainerStatuses")
        for item in status.get(kind) or ()
    }


def _container(container: Object, statuses: Mapping[str, Object], infeasible: bool) -> Exact:
    """What a container counts with that may be resized."""
    now = statuses.get(container.get("name", ""))
    if not now or now.get("resources") is None:
        return _asked(container)
    return _given(now, {} if infeasible else _asked(container))


def _asked(container: Object) -> Exact:
    resources = container.get("resources") or {}
    return _exact(resources.get("limits")) | _exact(resources.get("requests"))


def _given(status: Object, wish: Exact) -> Exact:
    """The most of a wish, and of what a container or pod has by its status, and was promised."""
    have = dict(wish)
    _raise(have, _exact(status["resources"].get("requests")))
    _raise(have, _exact(status.get("allocatedResources")))
    return have


def _exact(quantities: Object | None) -> Exact:
    return {name: parse(quantity) for name, quantity in (quantities or {}).items()}


def _add(total: Exact, more: Exact) -> None:
    for name, value in more.items():
        total[name] = total[name] + value if name in total else value


def _raise(total: Exact, floor: Exact) -> None:
    for name, value in floor.items():
        if name not in total or total[name] < value:
            total[name] = value


def _is_sidecar(container: Object) -> bool:
    return container.get("restartPolicy") == "Always"


def _host_ports(spec: Object) -> Iterable[str]:
    sidecars = [item for item in spec.get("initContainers") or () if _is_sidecar(item)]
    for container in [*(spec.get("containers") or ()), *sidecars]:
        for port in container.get("ports") or ():
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else 0)
            if number:
                yield f"{HOST_PORT}/{port.get('protocol') or 'TCP'}/{number}"
