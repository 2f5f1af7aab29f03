"""Checks what a scheduler does against the load's own rules, at every event, from nothing but the watched objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from load import JobSet, Load
from muster.api import names
from muster.api.placement import parse_indexes
from muster.cluster.eligibility import pinned_node
from muster.cluster.quantities import amount

Object = dict[str, Any]

KEPT = 20
"""Violations that are told in words; the others are counted."""


@dataclass(frozen=True)
class Hold:
    """What a placed job holds: millicores by node."""

    queue: str
    generation: int
    nodes: Mapping[str, int]

    @property
    def cpu(self) -> int:
        return sum(self.nodes.values())


class Witness:
    """Fed with every event in the order of the watch.

    Attributes:
        violations: how many events broke a rule.
        told: the first of them in words.
        peak: most millicores that were in use at once.
    """

    def __init__(self, load: Load, racks: Mapping[str, str], *, pods: bool) -> None:
        """`racks`: name of the rack by node.

        With `pods`, a node's room is what its pods ask for (`see_pod`) and not what placements name: of a gang that
        ends, each pod that has succeeded holds nothing any more, while the placement stands until the last one has.
        """
        self._load = load
        self._racks = racks
        self._pods = pods
        self._alive: dict[str, tuple[str, int]] = {}
        self._node_cpu = amount("cpu", load.capacity["cpu"])
        self._cohort_of = {queue: queue.split("-")[1] for queue in load.queues}
        self._holds: dict[str, Hold] = {}
        self._by_queue: Counter[str] = Counter()
        self._by_cohort: Counter[str] = Counter()
        self._by_node: Counter[str] = Counter()
        self.violations = 0
        self.told: list[str] = []
        self.peak = 0

    def see(self, raw: Object, kind: JobSet, ended: bool) -> None:
        """One object as it is now; `ended` when it is finished or deleted.

        A gang that was told to stop holds its room until its last pod is gone, which in this bench is at once;
        `status.placement` goes with the write after that.
        """
        name, status = raw["metadata"]["name"], raw.get("status") or {}
        placement = None if ended or status.get("stop") else status.get("placement")
        before = self._holds.get(name)
        generation = placement["generation"] if placement else 0
        if before is not None and before.generation == generation:
            return
        if before is not None:
            del self._holds[name]
            self._count(before, -1)
        if placement is None:
            return
        places = _places(placement)
        nodes: Counter[str] = Counter()
        for node in places:
            nodes[node] += kind.cpu
        hold = self._holds[name] = Hold(raw["spec"]["queue"], generation, nodes)
        self._count(hold, 1)
        self._judge(name, hold, kind, places)

    def see_pod(self, raw: Object, kind: JobSet, gone: bool) -> None:
        """One pod as it is now; `gone` when it is deleted. It takes its node's room from its creation, bound or not."""
        metadata, spec = raw["metadata"], raw["spec"]
        ended = gone or (raw.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        before = self._alive.pop(metadata["uid"], None)
        if before is not None:
            self._by_node[before[0]] -= before[1]
        if ended:
            return
        node = spec.get("nodeName") or pinned_node(spec)
        self._alive[metadata["uid"]] = (node, kind.cpu)
        self._by_node[node] += kind.cpu
        name = f"{metadata['labels'][names.JOB_LABEL]}, pod {metadata['name']}"
        if not node:
            self._break(f"{name}: no node is named for it")
        elif before is None and self._by_node[node] > self._node_cpu:
            self._break(f"{name}: pods ask node {node} for {self._by_node[node]}m of {self._node_cpu}m")

    def _count(self, hold: Hold, sign: int) -> None:
        self._by_queue[hold.queue] += sign * hold.cpu
        self._by_cohort[self._cohort_of[hold.queue]] += sign * hold.cpu
        if not self._pods:
            for node, cpu in hold.nodes.items():
                self._by_node[node] += sign * cpu
        self.peak = max(self.peak, sum(self._by_cohort.values()))

    def _judge(self, name: str, hold: Hold, kind: JobSet, places: list[str]) -> None:
        load = self._load
        used, most = self._by_queue[hold.queue], load.nominal + load.borrowing
        if used > most:
            self._break(f"{name}: queue {hold.queue} uses {used}m of {most}m")
        cohort = self._cohort_of[hold.queue]
        used, most = self._by_cohort[cohort], load.nominal * load.per_cohort
        if used > most:
            self._break(f"{name}: cohort {cohort} uses {used}m of {most}m")
        for node in hold.nodes:
            if self._by_node[node] > self._node_cpu:
                self._break(f"{name}: node {node} gives {self._by_node[node]}m of {self._node_cpu}m")
        if len(places) != kind.workers:
            self._break(f"{name}: {len(places)} of {kind.workers} workers are placed")
        racks = [self._racks[node] for node in places]
        if kind.mode == "required" and len(set(racks)) > 1:
            self._break(f"{name}: its workers must share a rack and lie in {sorted(set(racks))}")
        for first in range(0, len(racks), kind.slice_size or len(racks)):
            if kind.slice_size and len(set(racks[first : first + kind.slice_size])) > 1:
                self._break(f"{name}: the slice of worker {first} lies in several racks")

    def _break(self, message: str) -> None:
        self.violations += 1
        if len(self.told) < KEPT:
            self.told.append(message)


def _places(placement: Object) -> list[str]:
    """Node by worker."""
    found = {index: item["node"] for item in placement["nodes"] for index in parse_indexes(item["indexes"])}
    return [found[index] for index in sorted(found)]
