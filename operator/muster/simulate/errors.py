"""What can be wrong with what a user gives the simulator."""

from __future__ import annotations


class SimulationError(Exception):
    """A sentence for the user: what is wrong, where, and how to mend it."""
