"""What a pod asks of its node, summed as kube-scheduler does. Pure.

Regular containers run together, init containers one after another, and those with `restartPolicy: Always` (sidecars)
from their turn on beside all that follow. On top come the pod's overhead, one of the node's pods, and its host ports.
A container whose resize is under way counts with the most of what it asks for, was given, and has.
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

_POD_LEVEL: Final = ("cpu", "memory", "hugepages-")
"""Resources that `spec.resources` may ask for the pod as a whole; they take the place of the containers' sum."""


def requests_of(spec: Object, status: Object | None = None) -> Requests:
    """The whole pod's requests in base units. Raises ValueError for a quantity that cannot be read."""
    statuses = _statuses(status or {})
    total: Exact = {}
    for container in spec.get("containers") or ():
        _add(total, _container(container, statuses))
    sidecars: Exact = {}
    initial: Exact = {}
    for container in spec.get("initContainers") or ():
        asked = _container(container, statuses)
        if _is_sidecar(container):
            _add(total, asked)
            _add(sidecars, asked)
            _raise(initial, sidecars)
        else:
            _add(asked, sidecars)
            _raise(initial, asked)
    _raise(total, initial)
    for name, quantity in ((spec.get("resources") or {}).get("requests") or {}).items():
        if name.startswith(_POD_LEVEL):
            total[name] = parse(quantity)
    _add(total, _exact(spec.get("overhead")))
    amounts = {name: whole(name, value) for name, value in total.items() if value}
    amounts["pods"] = 1
    amounts |= dict.fromkeys(_host_ports(spec), 1)
    return tuple(sorted(amounts.items()))


def _statuses(status: Object) -> Mapping[str, Object]:
    return {
        item.get("name", ""): item
        for kind in ("containerStatuses", "initContainerStatuses")
        for item in status.get(kind) or ()
    }


def _container(container: Object, statuses: Mapping[str, Object]) -> Exact:
    asked = _exact((container.get("resources") or {}).get("requests"))
    now = statuses.get(container.get("name", ""))
    if now:
        _raise(asked, _exact((now.get("resources") or {}).get("requests")))
        _raise(asked, _exact(now.get("allocatedResources")))
    return asked


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
