"""Whether any operator leads, by the Lease of leader election. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from muster.cluster.views import parse_time
from muster_protocol.durations import format_duration

HELD_SECONDS: Final = 60.0
"""A holder that has not renewed for so long is gone, and nobody has come in its place. Another would have within the
Lease's duration, 15 s; what is more allows for clocks that differ, for the moment is the operator's."""
GIVEN_BACK_SECONDS: Final = 15.0
"""The same of a Lease that was given back: who stands by takes it at its next look."""


@dataclass(frozen=True)
class Unled:
    """No operator leads.

    Attributes:
        since: the last renewal of the Lease.
        namespace, lease: where the Lease is, and its name.
    """

    since: datetime
    namespace: str
    lease: str

    def told(self, now: datetime) -> str:
        """One sentence, with how to look."""
        lasts = format_duration(max(0.0, (now - self.since).total_seconds()))
        return (
            f"no operator leads since {self.moment} ({lasts} ago): what is told here is of then, and nothing is "
            f"decided until one does; {self._looks}"
        )

    @property
    def asked(self) -> str:
        """The same to who has just asked for something."""
        return f"no operator leads since {self.moment}: this is done once one does; {self._looks}"

    @property
    def _looks(self) -> str:
        return f"look by  kubectl get pods -n {self.namespace}  and  kubectl get lease {self.lease} -n {self.namespace}"

    @property
    def moment(self) -> str:
        return f"{self.since:%Y-%m-%d %H:%M:%S} UTC"


def unled(leases: Iterable[Mapping[str, Any]], now: datetime) -> Unled | None:
    """None where an operator leads by one of these Leases, and where they tell nothing."""
    found = []
    for lease in leases:
        spec = lease.get("spec") or {}
        renewed = parse_time(spec.get("renewTime") or "")
        if renewed is None:
            continue
        least = max(HELD_SECONDS, 2.0 * (spec.get("leaseDurationSeconds") or 0))
        if (now - renewed).total_seconds() < (least if spec.get("holderIdentity") else GIVEN_BACK_SECONDS):
            return None
        found.append(Unled(renewed, lease["metadata"]["namespace"], lease["metadata"]["name"]))
    return max(found, key=lambda one: one.since, default=None)
