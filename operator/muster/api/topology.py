"""Topology: which node labels say how close nodes are."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Len

from muster.api.common import Condition, Count, Label63, LabelKey, Model, Quantity, Resource
from muster.api.schema import Atomic, Int64, MapList, Rule


class Level(Model):
    """One level: nodes with the same value of the label, and of the wider levels' labels, are one domain."""

    name: Label63
    """Name of the level, as jobs give it in `topology.level`."""
    label: LabelKey
    """Key of the node label whose values are the domains."""
    bandwidth: Quantity | None = None
    """What one node can send to another in the same domain, in bits a second, like 400G. For people; not used yet to
    choose nodes."""


class TopologySpec(Model):
    """The levels."""

    levels: Annotated[
        tuple[Level, ...],
        Len(1, 8),
        MapList(("name",)),
        Rule(
            "self.all(a, self.exists_one(b, a.label == b.label))",
            "two levels have the same label: give each level a label of its own",
        ),
    ]
    """The levels, widest first, such as zone, block, rack, host."""


class TopologyStatus(Model):
    """What the operator tells of the topology."""

    conditions: Annotated[tuple[Condition, ...], Len(0, 8), MapList(("type",))] = ()
    """The aspects of the topology's state."""
    observed_generation: Annotated[int, Ge(0), Int64()] | None = None
    """The `metadata.generation` that the status speaks of."""
    nodes: Count | None = None
    """Nodes that have the labels of every level."""


class Topology(Resource):
    """Which node labels say how close nodes are, widest level first. The planner reads the one named `default`."""

    kind: str = "Topology"
    spec: TopologySpec
    """The levels."""
    status: Annotated[TopologyStatus, Atomic()] = TopologyStatus()
    """What the operator tells of it."""
